//! Callers without whose credentials nothing can be done, which are not kept: who is waited for.

use crate::dialect::{Credentials, Principal};
use dashmap::DashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The callers that are waited for, as their calls cannot be taken up without their credentials.
#[derive(Default)]
pub(super) struct Absent {
    callers: DashMap<Principal, Vec<oneshot::Sender<Credentials>>>,
    /// How many there are: nearly always none.
    count: AtomicUsize,
}

// === impl Absent ===

impl Absent {
    /// Resolves with what the caller shows when it next comes.
    pub(super) fn await_caller(&self, principal: Principal) -> oneshot::Receiver<Credentials> {
        let (tell, told) = oneshot::channel();
        self.callers.entry(principal).or_default().push(tell);
        self.count.fetch_add(1, Ordering::Relaxed);
        told
    }

    /// A caller is here, and shows these.
    pub(super) fn is_here(&self, principal: Principal, credentials: impl FnOnce() -> Credentials) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some((_, waiting)) = self.callers.remove(&principal) else { return };
        self.count.fetch_sub(waiting.len(), Ordering::Relaxed);
        let credentials = credentials();
        for tell in waiting {
            // It may have been waited for long enough.
            let _ = tell.send(credentials.clone());
        }
    }
}
