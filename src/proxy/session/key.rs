//! The key by which the proxy identifies a legacy client's session.

use crate::{dialect::Principal, protocol::headers::SESSION_ID};
use http::{HeaderMap, HeaderValue};

/// Identifies a session: the digest of the principal and the session id, so that a session id is valid only
/// for its principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct SessionKey(Principal);

// === impl SessionKey ===

impl SessionKey {
    /// The key of the session that a request's headers name (`Mcp-Session-Id`); `None` without that header.
    pub(in crate::proxy) fn from_headers(principal: Principal, headers: &HeaderMap) -> Option<Self> {
        Some(Self::from_id(principal, headers.get(&SESSION_ID)?))
    }

    /// The key of this principal's session with this id.
    pub(in crate::proxy) fn from_id(principal: Principal, id: &HeaderValue) -> Self {
        Self(Principal::derive(&[principal.as_bytes(), id.as_bytes()]))
    }

    /// Restores a key from its stored [`digest`](Self::digest).
    pub(in crate::proxy) fn from_digest(digest: [u8; 16]) -> Self {
        Self(Principal::from_bytes(digest))
    }

    /// The digest of principal and session id, for storage.
    pub(in crate::proxy) fn digest(self) -> [u8; 16] {
        *self.0.as_bytes()
    }
}
