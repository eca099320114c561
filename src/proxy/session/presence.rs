//! Which sessions of clients are there.
//!
//! A session is the server's own, so only the server knows. What is answered here in its place must
//! not be answered in a session that has ended, or never was: a client hears of that by a 404 alone
//! (2025-11-25, *Session Management*).

use super::{LegacyClient, SessionKey};
use crate::{
    protocol::headers::SESSION_ID,
    proxy::{LegacyResponse, recent_map::RecentMap},
};
use http::StatusCode;

/// The sessions that were there when they were last heard of.
pub(in crate::proxy) struct SessionPresence {
    known: RecentMap<SessionKey, ()>,
}

/// Sessions that are remembered. Beyond it, those used least lately are forgotten, and their servers
/// asked again.
const REMEMBERED: usize = 100_000;

// === impl Presence ===

impl Default for SessionPresence {
    fn default() -> Self {
        Self { known: RecentMap::new(REMEMBERED) }
    }
}

impl SessionPresence {
    pub(in crate::proxy) fn is_known(&self, key: SessionKey) -> bool {
        self.known.get(&key).is_some()
    }

    /// The session is there.
    pub(in crate::proxy) fn learn(&self, key: SessionKey) {
        self.known.get_or_insert_with(key, || ());
    }

    /// Something failed in a session, perhaps because it is there no more.
    pub(in crate::proxy) fn forget(&self, key: SessionKey) {
        self.known.remove(&key);
    }

    /// What has become of a session, by what its server answered. `ends` is whether it was told to end it.
    pub(in crate::proxy) fn note_response(&self, client: &LegacyClient, ends: bool, passed: &LegacyResponse) {
        match client.session {
            // A handshake that opened it.
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
    fn a_storm_of_sessions_makes_others_forgotten_by_eighths_the_oldest_first() {
        let key = |n: usize| SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from(n));
        let sessions = SessionPresence::default();
        for n in 0..=REMEMBERED {
            sessions.learn(key(n));
            // This one goes on working all the time.
            sessions.learn(key(0));
        }
        let is_there = |n: usize| sessions.is_known(key(n));
        assert!(is_there(0) && is_there(REMEMBERED) && is_there(REMEMBERED / 2));
        assert!(!is_there(1), "the oldest makes room");
    }
}
