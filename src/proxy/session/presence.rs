//! Which sessions of clients are there.
//!
//! A session is the server's own, so only the server knows. What is answered here in its place must
//! not be answered in a session that has ended, or never was: a client hears of that by a 404 alone
//! (2025-11-25, *Session Management*). So a session that has not been seen to be there is asked for, by
//! a `ping` in it.

use super::streams::Key;
use crate::{
    protocol::headers::SESSION_ID,
    proxy::{AccessSummary, Passage, Passed, Passing, ids, recent::Recent, shared::Shared},
    telemetry::Outcome,
    upstream::{Forward, Purpose},
};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use std::time::Duration;
use tokio::time::timeout;

/// The sessions that were there when they were last heard of.
pub(in crate::proxy) struct Sessions {
    there: Recent<Key, ()>,
}

/// What is to be noticed of a request that passes.
pub(in crate::proxy) struct Watched {
    principal: crate::dialect::Principal,
    session: Option<HeaderValue>,
    ends: bool,
}

/// Sessions that are remembered. Beyond it, those used least lately are forgotten, and their servers
/// asked again.
const REMEMBERED: usize = 100_000;

/// How long a server may take to say whether a session is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most that is passed on of a server's refusal, in bytes.
const REFUSAL: usize = 64 << 10;

// === impl Sessions ===

impl Default for Sessions {
    fn default() -> Self {
        Self { there: Recent::new(REMEMBERED) }
    }
}

impl Sessions {
    fn is_there(&self, key: Key) {
        self.there.get_or_insert_with(key, || ());
    }

    /// Something failed in a session, perhaps because it is there no more.
    pub(in crate::proxy) fn doubt(&self, key: Key) {
        self.there.remove(&key);
    }

    /// What has become of a session, by what its server answered.
    pub(in crate::proxy) fn saw(&self, watched: &Watched, passed: &Passed) {
        if let Some(session) = passed.headers.get(&SESSION_ID).filter(|_| watched.session.is_none()) {
            // A handshake that opened it.
            self.is_there(Key::named(watched.principal, session));
        }
        if let Some(session) = &watched.session
            && (watched.ends || passed.status == StatusCode::NOT_FOUND)
        {
            self.there.remove(&Key::named(watched.principal, session));
        }
    }
}

// === impl Watched ===

impl Watched {
    pub(in crate::proxy) fn of(passage: &Passage) -> Self {
        Self {
            principal: passage.principal,
            session: passage.headers.get(&SESSION_ID).cloned(),
            ends: passage.method == Method::DELETE,
        }
    }
}

// === impl Shared ===

impl Shared {
    /// What the server says of the session of this request, where that is a refusal. A server that
    /// cannot be reached says nothing: what is kept here can still be asked for.
    pub(in crate::proxy) async fn refuses(&self, passage: &Passage, key: Option<Key>) -> Option<Passed> {
        let key = key.filter(|key| self.sessions.there.get(key).is_none())?;
        let session = passage.session();
        let ping = Forward {
            method: Method::POST,
            query: session.query,
            headers: session.headers,
            body: Bytes::from(format!(
                r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#,
                ids::next_in_session()
            )),
            purpose: Purpose::Ask,
            calls: SmallVec::new(),
            interest: None,
        };
        let answer = match timeout(PATIENCE, self.upstream.forward(ping)).await {
            Ok(Ok(answer)) if answer.status.is_client_error() => answer,
            // A server that is too busy to answer has the session for all we know: waiting for it once
            // is enough.
            Ok(Ok(_)) | Err(_) => {
                self.sessions.is_there(key);
                return None;
            }
            Ok(Err(_)) => return None,
        };
        let (status, headers) = (answer.status, answer.headers.clone());
        let body = answer.whole(REFUSAL).await.unwrap_or_default();
        let account = AccessSummary { outcome: Outcome::ServerError, ..AccessSummary::default() };
        Some(Passed { status, headers, body: Passing::Whole(body, account) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;

    #[test]
    fn a_storm_of_sessions_makes_others_forgotten_by_eighths_the_oldest_first() {
        let key = |n: usize| Key::named(Principal::ANONYMOUS, &HeaderValue::from(n));
        let sessions = Sessions::default();
        for n in 0..=REMEMBERED {
            sessions.is_there(key(n));
            // This one goes on working all the time.
            sessions.is_there(key(0));
        }
        let is_there = |n: usize| sessions.there.get(&key(n)).is_some();
        assert!(is_there(0) && is_there(REMEMBERED) && is_there(REMEMBERED / 2));
        assert!(!is_there(1), "the oldest makes room");
    }
}
