//! What the front hands its calls to.

use super::{LegacyRequest, LegacyResponse, ReplyStream};
use crate::{
    dialect::{Call, Caller, Credentials},
    policy::Route,
    runtime::TaskToken,
    upstream::{CallError, OriginRequest, OriginResponse},
};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Uri};
use std::sync::Arc;

/// One route at work.
pub trait RouteService: Send + Sync + 'static {
    fn route(&self) -> &Arc<Route>;

    /// A request is on its way here, until this is dropped: its server is not let go meanwhile.
    fn track_arrival(&self) -> Option<TaskToken> {
        None
    }

    /// Whether the server behind it is known to be reachable.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Serves one call. Everything happens as the stream is polled.
    fn call(&self, call: Arc<Call>, caller: Caller) -> ReplyStream;

    /// Passes one request of a legacy client on to its session at the server.
    fn relay(&self, passage: LegacyRequest) -> BoxFuture<'static, LegacyResponse>;

    /// Whether a request with these headers has passed this route before: its server leads back here.
    fn is_loop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// Fetches protected-resource metadata of the server behind this route, as it is.
    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// The URL of the server behind this route, where it has one.
    fn url(&self) -> Option<&Uri> {
        None
    }

    /// Whether that server sees the `Authorization` of clients, where it is not taken from them by the front.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Asks that server's origin for something beside the MCP endpoint.
    fn ask_origin(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }
}
