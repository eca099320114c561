//! Calls of ours in the sessions of legacy clients, and what they keep a session for.
//!
//! Many clients end their session whenever they leave, and come back for their tasks in another one
//! (2025-11-25, *Session Management*; *Tasks*). The tasks run in the session that has been left, so its
//! server hears of the end only after the last of them.

use super::{farewell, streams::Key};
use crate::{dialect::Principal, proxy::endpoint::Shared, upstream::ClientSession};
use dashmap::{DashMap, Entry};
use std::sync::Arc;

/// The sessions in which calls of ours are in flight.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Residents {
    sessions: DashMap<Key, Inhabited>,
}

#[derive(Debug, Default)]
struct Inhabited {
    /// Never 0.
    calls: usize,
    /// The client has ended it: how its server is to be told.
    left: Option<(Principal, ClientSession)>,
}

/// One call of ours in a session. The last one that is dropped in a session which its client has left
/// ends that at the server.
pub(super) struct Resident {
    shared: Arc<Shared>,
    key: Key,
}

// === impl Residents ===

impl Residents {
    /// The client has ended this session. Whether calls of ours go on in it: then its server is told
    /// once they have ended, and must not be before.
    pub(super) fn leave(
        &self,
        key: Key,
        principal: Principal,
        session: impl FnOnce() -> ClientSession,
    ) -> bool {
        let Some(mut inhabited) = self.sessions.get_mut(&key) else { return false };
        inhabited.left.get_or_insert_with(|| (principal, session()));
        true
    }
}

// === impl Resident ===

impl Resident {
    pub(super) fn new(shared: &Arc<Shared>, key: Key) -> Self {
        shared.residents.sessions.entry(key).or_default().calls += 1;
        Self { shared: Arc::clone(shared), key }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let Entry::Occupied(mut inhabited) = self.shared.residents.sessions.entry(self.key) else { return };
        inhabited.get_mut().calls -= 1;
        if inhabited.get().calls > 0 {
            return;
        }
        let Some((principal, session)) = inhabited.remove().left else { return };
        let shared = Arc::clone(&self.shared);
        self.shared.stopping.spawn(async move { farewell::end_at_server(&shared, principal, session).await });
    }
}
