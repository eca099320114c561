//! Requests to the origin of a server over HTTP, outside its MCP endpoint.

use super::{CallError, ServerUrl};
use crate::dialect::Credentials;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};

/// A server over HTTP: its address, and the documents beside its MCP endpoint.
pub trait HttpOrigin: Send + Sync {
    /// URL of the MCP endpoint.
    fn url(&self) -> &ServerUrl;

    /// Whether this proxy sent a request with these headers to this server before, so that forwarding it
    /// again would be a loop (RFC 9110, 7.6.3).
    fn is_own_hop(&self, headers: &HeaderMap) -> bool;

    /// Whether the server receives the `Authorization` header of callers: not if the configuration sets
    /// another.
    fn passes_authorization(&self) -> bool;

    /// Fetches a document by GET, such as protected-resource metadata. `path` includes the query.
    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// Sends a request with the client's headers. Does not follow redirects.
    fn request(&self, request: OriginRequest) -> BoxFuture<'_, Result<OriginResponse, CallError>>;
}

/// A request to the server's origin, outside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginRequest {
    pub method: Method,
    /// Path with query.
    pub path: String,
    /// The client's headers.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Response of the server's origin, outside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

// === impl OriginRequest ===

impl OriginRequest {
    /// Creates a GET request for this path, with these headers.
    pub fn get(path: String, headers: HeaderMap) -> Self {
        Self { method: Method::GET, path, headers, body: Bytes::new() }
    }
}
