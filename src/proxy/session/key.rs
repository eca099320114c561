//! The key of a session.

use crate::{dialect::Principal, protocol::headers::SESSION_ID};
use http::{HeaderMap, HeaderValue};

/// A session of a principal: a digest of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct SessionKey(Principal);

// === impl SessionKey ===

impl SessionKey {
    /// The session of a request; none if it names none.
    pub(in crate::proxy) fn of(principal: Principal, headers: &HeaderMap) -> Option<Self> {
        Some(Self::named(principal, headers.get(&SESSION_ID)?))
    }

    /// The session with this id.
    pub(in crate::proxy) fn named(principal: Principal, id: &HeaderValue) -> Self {
        Self(Principal::derive(&[principal.as_bytes(), id.as_bytes()]))
    }

    /// Restores a stored digest.
    pub(in crate::proxy) fn from_digest(digest: [u8; 16]) -> Self {
        Self(Principal::from_bytes(digest))
    }

    pub(in crate::proxy) fn digest(self) -> [u8; 16] {
        *self.0.as_bytes()
    }
}
