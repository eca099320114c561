//! Which sessions of clients exist.
//!
//! Only the server knows which sessions exist. The proxy must not respond in the server's place in a session
//! that has ended or never existed, because a client learns only by a 404 that its session is gone
//! (2025-11-25, *Session Management*).

use super::{LegacyClient, SessionKey};
use crate::{
    protocol::headers::SESSION_ID,
    proxy::{LegacyResponse, recent_map::RecentMap},
};
use http::StatusCode;

/// The sessions that existed at the server when it last responded in them.
pub(in crate::proxy) struct SessionPresence {
    sessions: RecentMap<SessionKey, ()>,
}

/// Sessions that are remembered. Beyond this number the least recently used are evicted, and checked with
/// their servers again.
const MAX_SESSIONS: usize = 100_000;

// === impl SessionPresence ===

impl Default for SessionPresence {
    fn default() -> Self {
        Self { sessions: RecentMap::new(MAX_SESSIONS) }
    }
}

impl SessionPresence {
    /// Whether the session existed at the server's last response, as far as remembered.
    pub(in crate::proxy) fn is_known(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some()
    }

    /// Records that the session exists.
    pub(in crate::proxy) fn insert(&self, key: SessionKey) {
        self.sessions.get_or_insert_with(key, || ());
    }

    /// Removes a session, which may not exist any more, after a failure in it.
    pub(in crate::proxy) fn remove(&self, key: SessionKey) {
        self.sessions.remove(&key);
    }

    /// Updates the state of a session after a response of its server. `is_delete` is whether the request was a
    /// DELETE.
    pub(in crate::proxy) fn note_response(
        &self,
        client: &LegacyClient,
        is_delete: bool,
        response: &LegacyResponse,
    ) {
        match client.session {
            // A request without a session may be the handshake that opened one.
            None => {
                let session_id = response.headers.get(&SESSION_ID);
                session_id
                    .into_iter()
                    .for_each(|session| self.insert(SessionKey::from_id(client.principal, session)));
            }
            Some(session) if is_delete || response.status == StatusCode::NOT_FOUND => self.remove(session),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use http::HeaderValue;

    #[test]
    fn a_full_presence_map_evicts_the_oldest_eighth() {
        let key = |n: usize| SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from(n));
        let sessions = SessionPresence::default();
        for n in 0..=MAX_SESSIONS {
            sessions.insert(key(n));
            // This session stays in use.
            sessions.insert(key(0));
        }
        let is_there = |n: usize| sessions.is_known(key(n));
        assert!(is_there(0) && is_there(MAX_SESSIONS) && is_there(MAX_SESSIONS / 2));
        assert!(!is_there(1), "the oldest makes room");
    }
}
