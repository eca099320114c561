//! Credentials that are awaited to resume the calls of a former process. Credentials are never stored, so a
//! call that needs them is resumed when its principal next sends a request.

use crate::{
    dialect::{Credentials, Principal},
    runtime::Mutex,
};
use dashmap::DashMap;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokio::sync::oneshot;

/// The calls that wait to be resumed with the credentials of their principals.
#[derive(Default)]
pub(in crate::proxy) struct PendingCredentials {
    /// The waiting calls of each principal.
    waiting_calls: DashMap<Principal, Vec<oneshot::Sender<Credentials>>>,
    /// Credentials of requests that arrived before the recovery of tasks was complete, because their
    /// principals may be awaited later; `None` once the recovery is complete. Locked for one insertion or
    /// look-up.
    early_credentials: Mutex<Option<HashMap<Principal, Credentials>>>,
    /// The number of waiting calls, plus one until the recovery is complete. Zero lets a request skip all
    /// locks.
    count: AtomicUsize,
}

/// Principals whose early credentials are remembered. The calls of further ones wait for another request.
const MAX_EARLY_CREDENTIALS: usize = 1024;

// === impl PendingCredentials ===

impl PendingCredentials {
    /// Starts to remember the credentials of all requests; called before the recovery of tasks, when it is
    /// not known which principals are awaited.
    pub(in crate::proxy) fn begin_recovery(&self) {
        if self.early_credentials.lock().replace(HashMap::new()).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops the remembered credentials; called when the recovery has registered all waiting calls.
    pub(in crate::proxy) fn end_recovery(&self) {
        if self.early_credentials.lock().take().is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Registers a call that waits for the credentials of this principal. The receiver resolves with the
    /// credentials of the principal's next request, or at once if they are remembered.
    pub(in crate::proxy) fn wait_for(&self, principal: Principal) -> oneshot::Receiver<Credentials> {
        let (sender, receiver) = oneshot::channel();
        self.waiting_calls.entry(principal).or_default().push(sender);
        self.count.fetch_add(1, Ordering::Relaxed);
        // Looked up after the registration: a concurrent request is either remembered here, or finds the
        // sender.
        let remembered = self
            .early_credentials
            .lock()
            .as_ref()
            .and_then(|by_principal| by_principal.get(&principal).cloned());
        if let Some(credentials) = remembered {
            self.send_credentials(principal, || credentials);
        }
        receiver
    }

    /// Removes the waiting calls of this principal whose receivers were dropped.
    pub(in crate::proxy) fn remove_abandoned(&self, principal: Principal) {
        self.waiting_calls.remove_if_mut(&principal, |_, senders| {
            let previous_len = senders.len();
            senders.retain(|sender| !sender.is_closed());
            self.count.fetch_sub(previous_len - senders.len(), Ordering::Relaxed);
            senders.is_empty()
        });
    }

    /// Sends the credentials of a request to all calls that wait for this principal. Cheap if no call waits.
    pub(in crate::proxy) fn provide_credentials(
        &self,
        principal: Principal,
        credentials: impl Fn() -> Credentials,
    ) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(remembered) = &mut *self.early_credentials.lock()
            && (remembered.len() < MAX_EARLY_CREDENTIALS || remembered.contains_key(&principal))
        {
            remembered.insert(principal, credentials());
        }
        self.send_credentials(principal, credentials);
    }

    fn send_credentials(&self, principal: Principal, credentials: impl FnOnce() -> Credentials) {
        let Some((_, senders)) = self.waiting_calls.remove(&principal) else { return };
        self.count.fetch_sub(senders.len(), Ordering::Relaxed);
        let credentials = credentials();
        for sender in senders {
            // The receiver may have timed out.
            let _ = sender.send(credentials.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn abandoned_waits_are_removed() {
        let absent = PendingCredentials::default();
        let principal = Principal::ANONYMOUS;
        let (first, second) = (absent.wait_for(principal), absent.wait_for(principal));
        drop(first);
        absent.remove_abandoned(principal);
        assert_eq!((absent.waiting_calls.len(), absent.count.load(Ordering::Relaxed)), (1, 1));
        absent.provide_credentials(principal, Credentials::default);
        assert!(second.await.is_ok(), "the other one still receives them");
        let third = absent.wait_for(principal);
        drop(third);
        absent.remove_abandoned(principal);
        assert_eq!((absent.waiting_calls.len(), absent.count.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn a_caller_that_comes_before_it_is_waited_for_is_remembered_until_all_are_known() {
        let absent = PendingCredentials::default();
        let principal = |n: u16| {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&n.to_be_bytes());
            Principal::from_bytes(bytes)
        };
        absent.provide_credentials(principal(0), Credentials::default);
        absent.begin_recovery();
        assert!(absent.wait_for(principal(0)).now_or_never().is_none(), "it came before that");
        for n in 1..=MAX_EARLY_CREDENTIALS as u16 + 1 {
            absent.provide_credentials(principal(n), Credentials::default);
        }
        assert!(absent.wait_for(principal(1)).now_or_never().is_some());
        assert!(absent.wait_for(principal(1)).now_or_never().is_some(), "by a second task, too");
        assert!(absent.wait_for(principal(MAX_EARLY_CREDENTIALS as u16)).now_or_never().is_some());
        assert!(
            absent.wait_for(principal(MAX_EARLY_CREDENTIALS as u16 + 1)).now_or_never().is_none(),
            "one too many"
        );
        absent.end_recovery();
        assert!(absent.wait_for(principal(2)).now_or_never().is_none());
        for n in [0, 2, MAX_EARLY_CREDENTIALS as u16 + 1] {
            absent.remove_abandoned(principal(n));
        }
        assert_eq!((absent.waiting_calls.len(), absent.count.load(Ordering::Relaxed)), (0, 0));
    }
}
