//! Which sessions of clients are there.
//!
//! A session is the server's own, so only the server knows. What is answered here in its place must
//! not be answered in a session that has ended, or never was: a client hears of that by a 404 alone
//! (2025-11-25, *Session Management*).

use super::{Client, Key};
use crate::{
    protocol::headers::SESSION_ID,
    proxy::{Passed, recent::Recent},
};
use http::StatusCode;

/// The sessions that were there when they were last heard of.
pub(in crate::proxy) struct Presence {
    there: Recent<Key, ()>,
}

/// Sessions that are remembered. Beyond it, those used least lately are forgotten, and their servers
/// asked again.
const REMEMBERED: usize = 100_000;

// === impl Presence ===

impl Default for Presence {
    fn default() -> Self {
        Self { there: Recent::new(REMEMBERED) }
    }
}

impl Presence {
    pub(in crate::proxy) fn knows(&self, key: Key) -> bool {
        self.there.get(&key).is_some()
    }

    /// The session is there.
    pub(in crate::proxy) fn learn(&self, key: Key) {
        self.there.get_or_insert_with(key, || ());
    }

    /// Something failed in a session, perhaps because it is there no more.
    pub(in crate::proxy) fn doubt(&self, key: Key) {
        self.there.remove(&key);
    }

    /// What has become of a session, by what its server answered. `ends` is whether it was told to end it.
    pub(in crate::proxy) fn saw(&self, client: &Client, ends: bool, passed: &Passed) {
        match client.session {
            // A handshake that opened it.
            None => {
                let opened = passed.headers.get(&SESSION_ID);
                opened.into_iter().for_each(|session| self.learn(Key::named(client.principal, session)));
            }
            Some(session) if ends || passed.status == StatusCode::NOT_FOUND => self.doubt(session),
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
        let key = |n: usize| Key::named(Principal::ANONYMOUS, &HeaderValue::from(n));
        let sessions = Presence::default();
        for n in 0..=REMEMBERED {
            sessions.learn(key(n));
            // This one goes on working all the time.
            sessions.learn(key(0));
        }
        let is_there = |n: usize| sessions.knows(key(n));
        assert!(is_there(0) && is_there(REMEMBERED) && is_there(REMEMBERED / 2));
        assert!(!is_there(1), "the oldest makes room");
    }
}
