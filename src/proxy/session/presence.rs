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
    known: RecentMap<SessionKey, ()>,
}

/// Sessions that are remembered. Beyond this number the least recently used are evicted, and checked with
/// their servers again.
const REMEMBERED: usize = 100_000;

// === impl SessionPresence ===

impl Default for SessionPresence {
    fn default() -> Self {
        Self { known: RecentMap::new(REMEMBERED) }
    }
}

impl SessionPresence {
    /// Whether the session existed at the server's last response, as far as remembered.
    pub(in crate::proxy) fn is_known(&self, key: SessionKey) -> bool {
        self.known.get(&key).is_some()
    }

    /// Records that the session exists.
    pub(in crate::proxy) fn learn(&self, key: SessionKey) {
        self.known.get_or_insert_with(key, || ());
    }

    /// Removes a session, which may not exist any more, after a failure in it.
    pub(in crate::proxy) fn forget(&self, key: SessionKey) {
        self.known.remove(&key);
    }

    /// Updates the state of a session after a response of its server. `ends` is whether the request was a
    /// DELETE.
    pub(in crate::proxy) fn note_response(&self, client: &LegacyClient, ends: bool, passed: &LegacyResponse) {
        match client.session {
            // A request without a session may be the handshake that opened one.
            None => {
                let opened = passed.headers.get(&SESSION_ID);
                opened
                    .into_iter()
                    .for_each(|session| self.learn(SessionKey::named(client.principal, session)));
            }
            Some(session) if ends || passed.status == StatusCode::NOT_FOUND => self.forget(session),
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
        let key = |n: usize| SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from(n));
        let sessions = SessionPresence::default();
        for n in 0..=REMEMBERED {
            sessions.learn(key(n));
            // This session stays in use.
            sessions.learn(key(0));
        }
        let is_there = |n: usize| sessions.is_known(key(n));
        assert!(is_there(0) && is_there(REMEMBERED) && is_there(REMEMBERED / 2));
        assert!(!is_there(1), "the oldest makes room");
    }
}
