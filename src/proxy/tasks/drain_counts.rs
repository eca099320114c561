//! Counts that shutdown waits for or reports: created tasks, results that no client has fetched, and tasks left
//! to the next process.

use crate::task::TaskId;
use dashmap::DashMap;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Notify;

/// The counts of one [`TaskLedger`](super::TaskLedger).
#[derive(Default)]
pub(super) struct DrainCounts {
    /// Ended tasks whose results have not been fetched and would be lost with the process: shutdown waits for
    /// them. Empty if the store outlives the process. Bounded by the number of tasks.
    unfetched: DashMap<TaskId, ()>,
    /// Notified whenever an entry of `unfetched` is removed.
    fetched: Notify,
    created: AtomicUsize,
    released: AtomicUsize,
    pending: AtomicUsize,
}

/// Counts one task of a former process as waiting for its caller's credentials, until dropped.
pub(in crate::proxy) struct PendingTaskGuard(Arc<DrainCounts>);

// === impl DrainCounts ===

impl DrainCounts {
    /// Counts a task whose handle is sent to a client.
    pub(super) fn count_created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of tasks created since the start of the process.
    pub(super) fn created(&self) -> usize {
        self.created.load(Ordering::Relaxed)
    }

    /// Counts a task that is left to the next process at shutdown.
    pub(super) fn count_released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of tasks left to the next process.
    pub(super) fn released(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }

    /// Counts a task of a former process as waiting for its caller's credentials: no call runs for it.
    pub(super) fn count_pending(self: &Arc<Self>) -> PendingTaskGuard {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingTaskGuard(Arc::clone(self))
    }

    /// The number of tasks that wait for their callers' credentials.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Adds a task whose result is about to be stored, before any client can fetch it.
    pub(super) fn insert_unfetched(&self, id: TaskId) {
        self.unfetched.insert(id, ());
    }

    /// Removes a task whose result was fetched or no longer exists from the unfetched ones.
    pub(super) fn remove_unfetched(&self, id: &TaskId) {
        if self.unfetched.remove(id).is_some() {
            self.fetched.notify_waiters();
        }
    }

    /// The number of unfetched results.
    pub(super) fn unfetched(&self) -> usize {
        self.unfetched.len()
    }

    /// Resolves when there are no unfetched results.
    pub(super) async fn wait_until_all_fetched(&self) {
        loop {
            let fetched = self.fetched.notified();
            if self.unfetched.is_empty() {
                return;
            }
            fetched.await;
        }
    }
}

// === impl PendingTaskGuard ===

impl Drop for PendingTaskGuard {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
