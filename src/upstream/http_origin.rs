//! Requests to the origin of a server over HTTP, outside its MCP endpoint.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

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
