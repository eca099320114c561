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
            // Recover first: the sweep fails working tasks without a lease.
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
                Ok(BATCH_SIZE) => {}
                Ok(_) => return,
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
        store::{MemoryStore, Store},
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
        let state = async |id| store.load(id).await.expect("it answers").expect("it is there").1;
        assert_eq!(state(&held).await.state, TaskState::Working);
        let TaskState::Failed { error } = &state(&lost).await.state else { panic!("it still works") };
        assert!(error.starts_with(br#"{"code":-31002,"#), "{error:?}");
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
        let kept = store.load(&id).await.expect("it answers").expect("it is there").1;
        assert_eq!(kept.state, TaskState::Working);
    }
}
