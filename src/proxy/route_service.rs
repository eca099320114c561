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
    /// The configuration of the route.
    fn route(&self) -> &Arc<Route>;

    /// Tracks a received request until the token is dropped: the route's server is not removed meanwhile.
    /// `None` if the service tracks no requests.
    fn track_arrival(&self) -> Option<TaskToken> {
        None
    }

    /// Whether the route's server is known to be reachable.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Serves one request of a client of 2026-07-28. All work is done as the stream is polled; dropping the
    /// stream means that the client has disconnected.
    fn call(&self, call: Arc<Call>, caller: Caller) -> ReplyStream;

    /// Serves one HTTP request of a legacy client: relays it to the client's session at the server, or
    /// answers it if it is about a task of the proxy.
    fn relay(&self, request: LegacyRequest) -> BoxFuture<'static, LegacyResponse>;

    /// Whether a request with these headers has passed this route before: the route's server leads back here.
    fn is_loop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// Fetches the protected-resource metadata document at this path from the origin of the route's server.
    /// The document is not changed.
    fn fetch_metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// The URL of the route's server; `None` for a stdio server.
    fn server_url(&self) -> Option<&Uri> {
        None
    }

    /// Whether the route's server receives the `Authorization` header of clients, unless the front removes
    /// it.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Sends a request to the origin of the route's server, outside the MCP endpoint (such as for an OAuth
    /// document).
    fn request_origin(
        &self,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }
}
