//! What is due: lives to be extended, results to be forgotten.

use super::{Endpoint, TaskLedger};
use crate::runtime::DrainWatch;
use std::{sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// How often the store is asked what is due. A finished task is found at least until its ttl ends,
/// and for at most this long after.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How much is looked at in one go, so that a great many dues do not hold up a small store.
const BATCH: usize = 1000;

impl TaskLedger {
    /// Looks after the tasks until the proxy is at its end, those first that a process before this one left behind.
    pub async fn maintain(self: Arc<Self>, endpoints: Vec<Endpoint>, stopping: DrainWatch) {
        // What nobody holds would be taken for lost.
        self.recover_orphans(&endpoints, &stopping).await;
        // Their servers may be let go.
        drop(endpoints);
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

    async fn sweep_all(&self, stopping: &DrainWatch) {
        self.sweep_clock().await;
        loop {
            match self.sweep(BATCH, stopping).await {
                Ok(BATCH) => {}
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
    async fn a_task_that_works_and_is_held_by_nobody_ends() {
        let (store, clock) = (Arc::new(MemoryStore::default()), Arc::new(SystemClock::new()));
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let record = |id| Record::new(id, owner.clone(), "slow", Duration::ZERO, clock.timestamp());
        let [held, lost] = [6, 7].map(|id| TaskId::from_entropy([id; 16]));
        let _custody = ledger.admit(record(held.clone()), false).await.expect("there is room");
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
    async fn a_task_that_was_left_to_the_next_process_is_not_taken_for_lost() {
        let (store, clock) = (Arc::new(MemoryStore::default()), Arc::new(SystemClock::new()));
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let id = TaskId::from_entropy([6; 16]);
        let record = Record::new(id.clone(), owner, "slow", Duration::ZERO, clock.timestamp());
        let custody = ledger.admit(record, false).await.expect("there is room");
        tokio::time::sleep(Duration::from_secs(60 * 60)).await;
        let (drain, stopping) = Drain::new();
        drain.start();
        // As its driver does when it leaves the call to the next process.
        drop(custody);
        ledger.sweep_all(&stopping).await;
        let kept = store.load(&id).await.expect("it answers").expect("it is there").1;
        assert_eq!(kept.state, TaskState::Working);
    }
}
