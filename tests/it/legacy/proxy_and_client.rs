//! Harness: a small legacy client.

use crate::support::modern_client::{Client, Waiting};
use bytes::Bytes;
use deferral::internals::runtime::PipeNetwork;
use http::{Method, Request};
use http_body_util::Full;
use std::net::SocketAddr;

/// A client that has a session, or will have one.
#[derive(Clone, Debug)]
pub(crate) struct LegacyClient {
    client: Client,
}

pub(crate) const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
pub(crate) const READY: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

// === impl LegacyClient ===

impl LegacyClient {
    /// Says nothing of a version, and has no session yet.
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let client = Client::new(addr).with("mcp-protocol-version", "").with("mcp-method", "");
        Self { client }
    }

    /// The same client, in this session of 2025-11-25.
    pub(crate) fn within(&self, session: &str) -> Self {
        self.with("mcp-session-id", session).with("mcp-protocol-version", "2025-11-25")
    }

    /// The same client in a simulation.
    pub(crate) fn piped(&self, pipes: &PipeNetwork) -> Self {
        Self { client: self.client.piped(pipes) }
    }

    /// The session it is in.
    pub(crate) fn session(&self) -> String {
        self.client.header("mcp-session-id").expect("it is in one").to_owned()
    }

    pub(crate) fn with(&self, name: &'static str, value: &str) -> Self {
        Self { client: self.client.with(name, value) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Opens a session; gives the client within it.
    pub(crate) async fn hello(&self) -> Self {
        let answer = self.post(HELLO).await.answer().await;
        let session = answer.header("mcp-session-id").to_owned();
        let client = self.within(&session);
        assert_eq!(client.post(READY).await.answer().await.status, 202);
        client
    }

    pub(crate) fn request(&self, method: Method, target: &str, body: &str) -> Request<Full<Bytes>> {
        let mut request = self.client.spelled("", None, body.to_owned());
        request.headers_mut().remove("mcp-method");
        if body.is_empty() {
            request.headers_mut().remove("content-type");
        }
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().expect("a target");
        request
    }

    pub(crate) async fn send(&self, method: Method, target: &str, body: &str) -> Waiting {
        self.client.send_request(self.request(method, target, body)).await
    }

    /// Sends a message.
    pub(crate) async fn post(&self, body: &str) -> Waiting {
        self.send(Method::POST, "/mcp", body).await
    }

    /// Calls the tool `t`.
    pub(crate) async fn call(&self, id: u64) -> Waiting {
        self.post(&call(id)).await
    }

    /// Opens the GET stream.
    pub(crate) async fn listen(&self) -> Waiting {
        self.send(Method::GET, "/mcp", "").await
    }
}

pub(crate) fn call(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{{}}}}}}"#)
}
