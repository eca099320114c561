//! Tests of the limits of emulated sessions.

use bytes::Bytes;
use futures_util::future::poll_fn;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use smallvec::SmallVec;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, split},
    sync::mpsc,
    time::sleep,
};

use super::session::{MAX_OPEN_REQUESTS, MAX_SUBSCRIPTIONS};
use crate::{
    dialect::Principal,
    protocol::headers::SESSION_ID,
    upstream::{
        Config, HttpRequest, HttpResponse, RequestPurpose, Upstream, UpstreamLimits, duplex::in_memory,
    },
};

/// Messages that a child sends, and those it receives that are not requests.
struct Child {
    sends: mpsc::UnboundedSender<Value>,
    received: mpsc::UnboundedReceiver<Value>,
}

/// A server that answers all requests at once.
fn server() -> (Arc<dyn Upstream>, Child) {
    limited(UpstreamLimits::default())
}

fn limited(limits: UpstreamLimits) -> (Arc<dyn Upstream>, Child) {
    let (server, mut started) =
        in_memory(Config { limits, ..Config::default() }).expect("a runtime is entered");
    let (sends, mut outgoing) = mpsc::unbounded_channel::<Value>();
    let (receives, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (reads, mut writes) = split(started.recv().await.expect("it is started"));
        let mut lines = BufReader::new(reads).lines();
        loop {
            let message = tokio::select! {
                line = lines.next_line() => {
                    let Ok(Some(line)) = line else { return };
                    let message: Value = serde_json::from_str(&line).expect("JSON");
                    if message.get("method").is_none() || message.get("id").is_none() {
                        let _ = receives.send(message);
                        continue;
                    }
                    json!({ "jsonrpc": "2.0", "id": message["id"], "result": {
                        "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {} } })
                }
                outgoing_message = outgoing.recv() => outgoing_message.expect("the test goes on"),
            };
            writes.write_all(format!("{message}\n").as_bytes()).await.expect("it is read");
        }
    });
    (server, Child { sends, received })
}

async fn post(server: &dyn Upstream, session: Option<&HeaderValue>, message: Value) -> (HttpResponse, Value) {
    let headers = session.map(|session| (SESSION_ID.clone(), session.clone()));
    let request = HttpRequest {
        principal: Principal::ANONYMOUS,
        method: Method::POST,
        query: None,
        headers: HeaderMap::from_iter(headers),
        body: message.to_string().into(),
        purpose: RequestPurpose::Idempotent,
        calls: SmallVec::new(),
        interest: None,
        timeout: None,
    };
    let mut answer = server.http_relay().expect("a relay").forward(request).await.expect("an answer");
    let body = poll_fn(|cx| answer.body.poll_chunk(cx)).await.transpose().expect("whole").unwrap_or_default();
    let body: Bytes = body;
    (answer, serde_json::from_slice(&body).unwrap_or_default())
}

async fn begin(server: &dyn Upstream) -> Result<HeaderValue, Value> {
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": { "roots": {} } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let (answer, body) = post(server, None, initialize).await;
    answer.headers.get(&SESSION_ID).cloned().ok_or_else(|| body["error"].clone())
}

async fn ping(server: &dyn Upstream, session: &HeaderValue) -> StatusCode {
    post(server, Some(session), json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).await.0.status
}

#[tokio::test(start_paused = true)]
async fn sessions_are_bounded_and_idle_ones_are_evicted() {
    let (server, _child) = limited(UpstreamLimits { client_sessions: 100, ..UpstreamLimits::default() });
    let first = begin(&*server).await.expect("a session");
    for _ in 1..100 {
        begin(&*server).await.expect("a session");
    }
    let refused = begin(&*server).await.expect_err("there is no room");
    assert_eq!(refused["code"], -31006, "{refused}");
    assert!(
        refused["message"]
            .as_str()
            .is_some_and(|words| words.contains("all 100 ") && words.contains("limits.client_sessions")),
        "{refused}"
    );
    sleep(Duration::from_secs(61)).await;
    assert_eq!(ping(&*server, &first).await, 200);
    let newest = begin(&*server).await.expect("those that were quiet made room");
    assert_eq!(
        (ping(&*server, &first).await, ping(&*server, &newest).await),
        (StatusCode::OK, StatusCode::OK)
    );
}

#[tokio::test(start_paused = true)]
async fn subscriptions_of_a_session_are_bounded() {
    let (server, _child) = server();
    let session = begin(&*server).await.expect("a session");
    let subscribe = |n: usize| json!({ "jsonrpc": "2.0", "id": n, "method": "resources/subscribe", "params": { "uri": format!("file:///{n}") } });
    for n in 0..MAX_SUBSCRIPTIONS {
        assert_eq!(post(&*server, Some(&session), subscribe(n)).await.1["result"], json!({}));
    }
    let (_, refused) = post(&*server, Some(&session), subscribe(MAX_SUBSCRIPTIONS)).await;
    assert_eq!(refused["error"]["code"], -31006, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn open_requests_outside_calls_are_bounded() {
    let (server, mut child) = server();
    let _session = begin(&*server).await.expect("a session");
    assert_eq!(
        child.received.recv().await.expect("the handshake ends")["method"],
        "notifications/initialized"
    );
    for n in 0..=MAX_OPEN_REQUESTS {
        let asks = json!({ "jsonrpc": "2.0", "id": n, "method": "roots/list" });
        child.sends.send(asks).expect("it runs");
    }
    let refused = child.received.recv().await.expect("an answer");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(MAX_OPEN_REQUESTS), &json!(-32603)));
}
