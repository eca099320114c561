//! Principals whose credentials are awaited. Credentials are never stored, and some calls cannot be resumed
//! without them.

use crate::dialect::{Credentials, Principal};
use dashmap::DashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The principals whose calls wait to be resumed with their credentials.
#[derive(Default)]
pub(super) struct PendingCredentials {
    callers: DashMap<Principal, Vec<oneshot::Sender<Credentials>>>,
    /// The number of waiting calls: nearly always zero.
    count: AtomicUsize,
}

// === impl PendingCredentials ===

impl PendingCredentials {
    /// Resolves with the credentials of the principal's next request.
    pub(super) fn wait_for(&self, principal: Principal) -> oneshot::Receiver<Credentials> {
        let (sender, receiver) = oneshot::channel();
        self.callers.entry(principal).or_default().push(sender);
        self.count.fetch_add(1, Ordering::Relaxed);
        receiver
    }

    /// Removes the entries of this principal whose receivers were dropped.
    pub(super) fn remove_abandoned(&self, principal: Principal) {
        self.callers.remove_if_mut(&principal, |_, waiting| {
            let before = waiting.len();
            waiting.retain(|sender| !sender.is_closed());
            self.count.fetch_sub(before - waiting.len(), Ordering::Relaxed);
            waiting.is_empty()
        });
    }

    /// Sends the credentials of a request to all calls that wait for this principal.
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
        for sender in waiting {
            // The receiver may have timed out.
            let _ = sender.send(credentials.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn abandoned_waits_are_removed() {
        let absent = PendingCredentials::default();
        let principal = Principal::ANONYMOUS;
        let (first, second) = (absent.wait_for(principal), absent.wait_for(principal));
        drop(first);
        absent.remove_abandoned(principal);
        assert_eq!((absent.callers.len(), absent.count.load(Ordering::Relaxed)), (1, 1));
        absent.provide_credentials(principal, Credentials::default);
        assert!(second.await.is_ok(), "the other one still receives them");
        let third = absent.wait_for(principal);
        drop(third);
        absent.remove_abandoned(principal);
        assert_eq!((absent.callers.len(), absent.count.load(Ordering::Relaxed)), (0, 0));
    }
}
