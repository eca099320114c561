//! Connections to the server, from the first request to the close of the upstream.

use super::{MUTE, Running, UpstreamAndServer, connect, identity, request, token};
use crate::support::legacy_server::{Canned, Get, LegacyServer, Options, Seen};
use crate::support::tls_server::tls_before;
use bytes::Bytes;
use deferral::internals::{
    dialect::Principal,
    protocol::Method,
    upstream::{
        CallError, ClientSession, Config, HttpUpstream, NativeCall, Upstream, UpstreamEvent, UpstreamEvents,
    },
};
use futures_util::StreamExt;
use http::HeaderMap;
use serde_json::json;
use std::sync::Arc;

/// Bytes that say when the last slice of them is gone.
struct Watched {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[tokio::test]
async fn the_request_body_is_dropped_once_the_response_begins() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let alive = Arc::new(());
    let text = "x".repeat(1 << 20);
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "t", "text": text } });
    let body = Bytes::from_owner(Watched { bytes: body.to_string().into(), _alive: Arc::clone(&alive) });
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers: HeaderMap::new() };
    let call = NativeCall { id: 1, method: Method::ToolsCall, body, deferral: None };
    let mut running = Running::new(world.relay().call_in(session, call).0);
    let call = world.server.call().await;
    assert_eq!(Arc::strong_count(&alive), 2);
    let events = call.stream();
    events.notify("notifications/message", json!({ "level": "info", "data": "begun" }));
    running.notice().await;
    assert_eq!(Arc::strong_count(&alive), 1, "the call goes on without what was sent");
    events.result(&json!(1), json!({ "content": [] }));
    running.result().await;
}

#[tokio::test]
async fn connections_are_kept() {
    let world = UpstreamAndServer::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    for id in 0..5 {
        let mut call = world.call(id);
        let arrived = world.server.call().await;
        if id % 2 == 0 {
            arrived.result(json!({}));
        } else {
            let events = arrived.stream();
            events.result(&json!(id), json!({}));
        }
        call.result().await;
    }
    assert!(world.server.log().iter().all(|seen| seen.connection <= 2), "{:?}", world.server.log());
}

#[tokio::test]
async fn a_document_beside_the_endpoint_is_fetched_as_it_is() {
    let path = "/.well-known/oauth-protected-resource/mcp";
    let hook = move |seen: &Seen| {
        (seen.path == path).then(|| Canned::status(418).body("tea").header("x-kind", "oolong"))
    };
    let world = UpstreamAndServer::new(Options::default().hook(hook)).await;
    let credentials = token("Bearer a").credentials;
    let document = world.origin().fetch(path, &credentials).await.expect("a document");
    assert_eq!((document.status.as_u16(), document.body.as_ref()), (418, &b"tea"[..]));
    assert_eq!(document.headers["x-kind"], "oolong");
    assert_eq!(world.server.log()[0].header("authorization"), Some("Bearer a"));
}

#[tokio::test]
async fn closing_cancels_what_is_in_flight_ends_the_sessions_and_refuses_further_calls() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    let arrived = world.server.call().await;
    world.upstream.close().await;
    assert!(matches!(call.lost().await, CallError::Closing));
    arrived.left().await;
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE && seen.session() == "s1"), 1);
    assert!(matches!(world.call(2).lost().await, CallError::Closing));
    assert!(world.upstream.describe(&identity(MUTE)).await.is_err());
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn an_unsupported_url_is_named() {
    for url in ["ftp://a/mcp", "/mcp"] {
        let target = url.parse().expect("a URI");
        let error = HttpUpstream::new(&target, Config::default()).map(drop).expect_err("refused").to_string();
        assert!(error.contains(url), "{error}");
    }
}

/// The seam hands out boxed streams; this keeps the name in use where tests hold one.
#[tokio::test]
async fn nothing_is_sent_before_a_call_is_polled() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let replies: UpstreamEvents = world.upstream.call(request(1, Method::ToolsCall, MUTE));
    drop(replies);
    world.upstream.close().await;
    assert!(world.server.log().is_empty());
}

/// Runs in a process of its own, because the system's trust is read from the environment.
#[tokio::test]
async fn a_server_that_the_system_trusts_is_reached_over_tls() {
    let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/tls/authority.pem");
    if std::env::var("SSL_CERT_FILE").as_deref() != Ok(authority) {
        let status = tokio::process::Command::new(std::env::current_exe().expect("a test binary"))
            .args(["--exact", "upstream::connections::a_server_that_the_system_trusts_is_reached_over_tls"])
            .env("SSL_CERT_FILE", authority)
            .env_remove("SSL_CERT_DIR")
            .status();
        assert!(status.await.expect("a process").success());
        return;
    }
    let server = LegacyServer::start(Options::default()).await;
    let port = tls_before(server.addr(), "127.0.0.1").await;
    for host in ["localhost", "127.0.0.1"] {
        let upstream = connect(&format!("https://{host}:{port}/mcp"), |_| {});
        let world = UpstreamAndServer { server: LegacyServer::start(Options::default()).await, upstream };
        for id in 0..3 {
            let mut call = world.call(id);
            server.call().await.result(json!({ "text": "x".repeat(100_000) }));
            assert_eq!(call.result().await["text"].as_str().map(str::len), Some(100_000));
        }
    }
    // The name is checked too: the certificate does not speak of this one.
    let port = tls_before(server.addr(), "127.0.0.2").await;
    let upstream = connect(&format!("https://127.0.0.2:{port}/mcp"), |_| {});
    let mut replies = upstream.call(request(1, Method::ToolsCall, MUTE));
    assert!(matches!(replies.next().await, Some(UpstreamEvent::Lost(CallError::Unreachable(_)))));
}
