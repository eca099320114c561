//! Callers without whose credentials nothing can be done, which are not kept: who is waited for.

use crate::dialect::{Credentials, Principal};
use dashmap::DashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The callers that are waited for, as their calls cannot be taken up without their credentials.
#[derive(Default)]
pub(super) struct PendingCredentials {
    callers: DashMap<Principal, Vec<oneshot::Sender<Credentials>>>,
    /// How many are waited for: nearly always none.
    count: AtomicUsize,
}

// === impl Absent ===

impl PendingCredentials {
    /// Resolves with what the caller shows when it next comes.
    pub(super) fn wait_for(&self, principal: Principal) -> oneshot::Receiver<Credentials> {
        let (tell, told) = oneshot::channel();
        self.callers.entry(principal).or_default().push(tell);
        self.count.fetch_add(1, Ordering::Relaxed);
        told
    }

    /// Whoever waited for this caller may not do so any more.
    pub(super) fn remove_abandoned(&self, principal: Principal) {
        self.callers.remove_if_mut(&principal, |_, waiting| {
            let before = waiting.len();
            waiting.retain(|tell| !tell.is_closed());
            self.count.fetch_sub(before - waiting.len(), Ordering::Relaxed);
            waiting.is_empty()
        });
    }

    /// A caller is here, and shows these.
    pub(super) fn provide_credentials(
        &self,
        principal: Principal,
        credentials: impl FnOnce() -> Credentials,
    ) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_left_of_a_caller_who_is_not_waited_for_any_more() {
        let absent = PendingCredentials::default();
        let principal = Principal::ANONYMOUS;
        let (first, second) = (absent.wait_for(principal), absent.wait_for(principal));
        drop(first);
        absent.remove_abandoned(principal);
        assert_eq!((absent.callers.len(), absent.count.load(Ordering::Relaxed)), (1, 1));
        absent.provide_credentials(principal, Credentials::default);
        assert!(second.await.is_ok(), "the other is told all the same");
        let third = absent.wait_for(principal);
        drop(third);
        absent.remove_abandoned(principal);
        assert_eq!((absent.callers.len(), absent.count.load(Ordering::Relaxed)), (0, 0));
    }
}
