//! The periodic sweep: renews leases, and removes expired results.

use crate::{
    proxy::{Endpoint, TaskLedger},
    runtime::DrainWatch,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// The pause between sweeps. A finished task can be fetched until its ttl ends, and at most this much longer.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Tasks that are processed in one batch, so that many due tasks do not block a slow store.
const BATCH_SIZE: usize = 1000;

impl TaskLedger {
    /// Recovers the tasks of a former process on these endpoints, and then sweeps all tasks periodically
    /// until shutdown (`stopping`).
    pub fn maintain(
        self: Arc<Self>,
        endpoints: Vec<Endpoint>,
        stopping: DrainWatch,
    ) -> impl Future<Output = ()> + Send {
        // Not in the future: a client's request may arrive before the future is polled.
        for endpoint in &endpoints {
            endpoint.call_context().pending_credentials.begin_recovery();
        }
        async move {
            // Recover first: this process owns the tasks from then on, and the sweep fails those without a lease.
            self.recover_orphans(&endpoints, &stopping).await;
            for endpoint in &endpoints {
                endpoint.call_context().pending_credentials.end_recovery();
            }
            // Dropped, so that the servers of these endpoints can be removed after a reload.
            drop(endpoints);
            self.sweep_until(stopping).await;
        }
    }

    /// Sweeps at each interval until shutdown.
    async fn sweep_until(&self, stopping: DrainWatch) {
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stopping.stopped() => return,
                _ = ticks.tick() => self.sweep_all(&stopping).await,
            }
        }
    }

    /// Stores the clock, and sweeps all tasks that are due.
    async fn sweep_all(&self, stopping: &DrainWatch) {
        self.refresh_clock().await;
        loop {
            match self.sweep(BATCH_SIZE, stopping).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.log_failure("sweeping", &error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::TaskQuotas,
        runtime::{Clock, Drain, SystemClock},
        store::{DiskStore, MemoryStore, Store, StoreBounds},
        task::{Record, TaskId, TaskPrincipal, TaskSharing, TaskState},
    };

    #[tokio::test(start_paused = true)]
    async fn a_working_task_without_a_lease_fails() {
        let (store, clock) = (Arc::new(MemoryStore::default()), Arc::new(SystemClock::new()));
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let record = |id| Record::new(id, owner.clone(), "slow", Duration::ZERO, clock.timestamp());
        let [held, lost] = [6, 7].map(|id| TaskId::from_entropy([id; 16]));
        let _custody = ledger.admit(record(held.clone())).await.expect("there is room");
        store.insert(Arc::new(record(lost.clone()))).await.expect("kept");
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        let (_drain, stopping) = Drain::new();
        ledger.sweep_all(&stopping).await;
        let state = async |id| store.load(id).await.expect("it answers").expect("it is there").record;
        assert_eq!(state(&held).await.state, TaskState::Working);
        let TaskState::Failed { error } = &state(&lost).await.state else { panic!("it still works") };
        assert!(error.starts_with(br#"{"code":-31002,"#), "{error:?}");
    }

    /// Sweeps in a process that has not taken over the tasks of the former one: more of them than one batch.
    async fn sweep_tasks_of(former: Arc<dyn Store>, next: impl FnOnce() -> Arc<dyn Store>) {
        let clock = Arc::new(SystemClock::new());
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let ids = (0..=BATCH_SIZE as u128).map(|number| TaskId::from_entropy(number.to_be_bytes()));
        let record = |id| Record::new(id, owner.clone(), "slow", Duration::ZERO, clock.timestamp());
        let inserted = ids.clone().map(|id| former.insert(Arc::new(record(id))));
        for inserted in futures_util::future::join_all(inserted).await {
            inserted.expect("kept");
        }
        former.close().await;
        drop(former);
        let store = next();
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        let (_drain, stopping) = Drain::new();
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        let is_working = async |id| {
            let task = store.load(&id).await.expect("it answers").expect("it is there");
            task.record.state == TaskState::Working
        };
        ledger.sweep_all(&stopping).await;
        for id in ids.clone() {
            assert!(is_working(id).await);
        }
        // As the owner that has dropped their leases, this process ends them.
        while !store.take_orphans(BATCH_SIZE).await.expect("it answers").is_empty() {}
        ledger.sweep_all(&stopping).await;
        for id in ids {
            assert!(!is_working(id).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_another_process_in_memory_are_left_alone() {
        let former = Arc::new(MemoryStore::default());
        sweep_tasks_of(former.clone(), move || Arc::new(former.restarted())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_another_process_on_disk_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tasks");
        let open = || Arc::new(DiskStore::open(&path, StoreBounds::NONE, None).expect("opens"));
        sweep_tasks_of(open(), || open()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_released_to_the_next_process_stays_working() {
        let (store, clock) = (Arc::new(MemoryStore::default()), Arc::new(SystemClock::new()));
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let id = TaskId::from_entropy([6; 16]);
        let record = Record::new(id.clone(), owner, "slow", Duration::ZERO, clock.timestamp());
        let custody = ledger.admit(record).await.expect("there is room");
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        let (drain, stopping) = Drain::new();
        drain.start();
        // A driver does the same when it leaves the call to the next process.
        drop(custody);
        ledger.sweep_all(&stopping).await;
        let kept = store.load(&id).await.expect("it answers").expect("it is there").record;
        assert_eq!(kept.state, TaskState::Working);
    }
}
