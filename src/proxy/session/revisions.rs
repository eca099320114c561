//! Which sessions of clients are of 2025-11-25, the revision that has tasks.
//!
//! Requests in a session say so in a header. Where one lacks it, the revision is what the handshake
//! agreed on (2025-11-25, *Protocol Version Header*), so that is remembered.

use super::{cancelled_requests::Marks, streams::Key};
use crate::{
    dialect::Principal,
    protocol::{Revision, headers::PROTOCOL_VERSION},
    proxy::shared::Shared,
};
use http::HeaderMap;
use std::sync::{Mutex, PoisonError};

/// The sessions whose handshake agreed on 2025-11-25, the last 16384 of them. One that is forgotten is
/// told by its header alone.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Revisions {
    /// Held for one insertion or look-up.
    sessions: Mutex<Marks>,
}

// === impl Revisions ===

impl Revisions {
    /// The handshake that opened this session has agreed on 2025-11-25.
    pub(in crate::proxy) fn learn(&self, session: Key) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remember(session.digest());
    }

    fn knows(&self, session: Key) -> bool {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).contains(&session.digest())
    }
}

// === impl Shared ===

impl Shared {
    /// Whether the revision that a request is of knows tasks.
    pub(in crate::proxy) fn knows_tasks(&self, principal: Principal, headers: &HeaderMap) -> bool {
        match headers.get(&PROTOCOL_VERSION) {
            Some(version) => version == Revision::V2025_11_25.as_str(),
            None => Key::of(principal, headers).is_some_and(|session| self.revisions.knows(session)),
        }
    }
}
