//! A call's request to its server.

use bytes::Bytes;
use std::{sync::Arc, time::Duration};

use super::call_client::CallClient;
use crate::{dialect::ExtraHeaders, protocol::Method, upstream::Deferral};

/// A request ready to be sent.
pub(super) struct CallRequest {
    /// Id in `body`: unique among the ids in use in this process, and so in any session.
    pub(super) id: u64,
    pub(super) method: Method,
    /// JSON-RPC message in the server's revision. Its progress token, if any, is `id` as a number; in a
    /// client's own session it may be the client's.
    pub(super) body: Bytes,
    /// Additional headers of the client.
    pub(super) headers: ExtraHeaders,
    /// Deferral state, if the call may become a task.
    pub(super) deferral: Option<Deferral>,
    /// Client of the call, in a session that several clients may share.
    pub(super) client: Option<Arc<CallClient>>,
    /// Time limit, if it differs from [`UpstreamTimeouts::call`](crate::upstream::UpstreamTimeouts::call).
    pub(super) timeout: Option<Duration>,
}
