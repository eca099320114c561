//! The places of calls in flight.

use crate::runtime::resize;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of calls in flight, of all configurations.
#[derive(Clone, Debug)]
pub(super) struct Places {
    calls: Arc<Semaphore>,
    /// For those that are read although there is no place for them.
    waiting_room: Arc<Semaphore>,
}

/// Requests that are read at a time although there is no place for them.
const WAITING_ROOM: usize = 64;

// === impl Places ===

impl Places {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
            waiting_room: Arc::new(Semaphore::new(WAITING_ROOM)),
        }
    }

    /// From now on there are so many; calls in flight keep theirs.
    pub(super) fn bound_by(&self, before: usize, limit: usize) {
        resize(&self.calls, before, limit);
    }

    /// One for a call, if there is one.
    pub(super) fn call(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// One for a request that is read to be told that there is no other.
    pub(super) fn wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting_room).try_acquire_owned().ok()
    }
}
