//! The interface between the front and the routes.

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

/// The service of one route.
pub trait RouteService: Send + Sync + 'static {
    fn route(&self) -> &Arc<Route>;

    /// Tracks a request on its way to the route until the token is dropped: its server is not removed
    /// meanwhile.
    fn track_arrival(&self) -> Option<TaskToken> {
        None
    }

    /// Whether the server behind it is known to be reachable.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Serves one call. All work is done as the stream is polled.
    fn call(&self, call: Arc<Call>, caller: Caller) -> ReplyStream;

    /// Relays one request of a legacy client to its session at the server.
    fn relay(&self, passage: LegacyRequest) -> BoxFuture<'static, LegacyResponse>;

    /// Whether a request with these headers has passed this route before: the route's server leads back here.
    fn is_loop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// Fetches the protected-resource metadata of the server behind this route, unchanged.
    fn metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// The URL of the server behind this route, if it has one.
    fn url(&self) -> Option<&Uri> {
        None
    }

    /// Whether that server receives the `Authorization` of clients, unless the front removes it.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Requests a document of that server's origin outside the MCP endpoint.
    fn ask_origin(&self, request: OriginRequest) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }
}
