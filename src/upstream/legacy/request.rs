//! A call as it is sent.

use bytes::Bytes;
use std::time::Duration;

use crate::{dialect::ExtraHeaders, protocol::Method, upstream::Deferral};

/// A request ready to be sent.
pub(super) struct CallRequest {
    /// The id that `body` carries: unique among those in use in this process, so also in any session.
    pub(super) id: u64,
    pub(super) method: Method,
    /// The whole JSON-RPC message, in the server's words. Its progress token, if it has one, is `id` as a
    /// number; in a legacy client's session it may be the client's own.
    pub(super) body: Bytes,
    /// Further headers of the client to pass on.
    pub(super) headers: ExtraHeaders,
    pub(super) deferral: Option<Deferral>,
    /// How long it may take, where that is not [`UpstreamTimeouts::call`](crate::upstream::UpstreamTimeouts::call).
    pub(super) timeout: Option<Duration>,
}
