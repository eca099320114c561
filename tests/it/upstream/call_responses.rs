//! Responses to calls: documents, event streams, batches, errors, and responses on the session's GET stream.

use super::{ASKABLE, UpstreamAndServer, identity, notification, value};
use crate::support::legacy_server::{Canned, Get, Options, Seen};
use bytes::Bytes;
use deferral::internals::upstream::{CallError, Upstream, UpstreamEvent};

use http::StatusCode;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test]
async fn a_call_is_answered_by_a_document() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(7);
    let arrived = world.server.call().await;
    assert_eq!(arrived.id(), 7);
    arrived.result(json!({ "content": [] }));
    assert_eq!(call.result().await, json!({ "content": [] }));
}

#[tokio::test]
async fn a_call_is_answered_by_a_stream_and_what_trails_the_response_is_dropped() {
    let world = UpstreamAndServer::new(Options { sse: true, ..Options::default() }).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.send(&notification("notifications/progress", json!({ "progressToken": 7, "progress": 1 })));
    assert_eq!(call.notice().await["params"]["progress"], 1);
    events.raw(": a comment\n\nevent: ping\ndata: {\"not\": \"a message\"}\n\n");
    events.send(&notification("vendor/thing", json!({})));
    assert_eq!(call.notice().await["method"], "vendor/thing");
    events.result(&json!(99), json!({ "of": "another request" }));
    events.result(&json!(7), json!({ "n": 1 }));
    events.result(&json!(7), json!({ "n": 2 }));
    assert_eq!(call.result().await, json!({ "n": 1 }));
}

#[tokio::test]
async fn a_long_document_in_many_pieces_is_put_together() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(7);
    let document = world.server.call().await.document();
    let text = "x".repeat(300_000);
    let body = json!({ "jsonrpc": "2.0", "id": 7, "result": { "text": text } }).to_string();
    for piece in body.as_bytes().chunks(70_000) {
        document.raw(Bytes::copy_from_slice(piece));
    }
    drop(document);
    assert_eq!(call.result().await["text"].as_str().map(str::len), Some(300_000));
}

#[tokio::test]
async fn a_batch_is_read_in_its_order() {
    let world = UpstreamAndServer::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let mut call = world.call(7);
    let note = notification("notifications/message", json!({ "data": 1 }));
    let response = json!({ "jsonrpc": "2.0", "id": 7, "result": {} });
    world.server.call().await.canned(Canned::json(200, &json!([note, response])));
    assert_eq!(call.notice().await["params"]["data"], 1);
    assert_eq!(call.result().await, json!({}));
}

#[tokio::test]
async fn an_error_of_the_server_is_the_answer_whatever_its_status_and_id() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let failure =
        |id: Value| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": "no" } });
    for (n, (status, id)) in
        [(200, json!(0)), (422, json!("server-error")), (500, Value::Null)].into_iter().enumerate()
    {
        let n = n as u64;
        let mut call = world.call(n);
        world.server.call().await.canned(Canned::json(status, &failure(id)));
        match call.next().await {
            Some(UpstreamEvent::Final(response)) => {
                assert_eq!(value(response.frame())["error"]["message"], "no");
            }
            other => panic!("{status}: a final event, not {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_http_error_without_a_message_ends_the_call_with_its_body() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(502).body(" bad gateway\n"));
    let CallError::Status { status, detail, .. } = call.lost().await else { panic!("a status") };
    assert_eq!((status, detail.as_str()), (StatusCode::BAD_GATEWAY, "bad gateway"));

    let mut call = world.call(2);
    world.server.call().await.canned(Canned::status(307).header("location", "http://other.invalid/mcp"));
    let CallError::Status { detail, .. } = call.lost().await else { panic!("a status") };
    assert_eq!(
        detail,
        "it redirects to http://other.invalid/mcp, which is another server or another method; name it in upstream.url"
    );
}

#[tokio::test]
async fn refused_credentials_come_back_with_their_challenge() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for status in [401, 403] {
        let mut call = world.call(1);
        world.server.call().await.canned(Canned::status(status).header("www-authenticate", "Bearer x"));
        let CallError::Unauthorized { status: got, challenge } = call.lost().await else {
            panic!("unauthorized")
        };
        assert_eq!(got, status);
        assert_eq!(challenge.expect("a challenge"), "Bearer x");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_message_is_invalid() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for canned in [
        Canned::status(200).body("<html>").header("content-type", "text/html"),
        Canned::status(200).body("{").header("content-type", "application/json"),
        Canned::status(200).body("[]").header("content-type", "application/json"),
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 99, "result": {} })),
    ] {
        let mut call = world.call(1);
        world.server.call().await.canned(canned);
        assert!(matches!(call.lost().await, CallError::Invalid(_)));
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_refused_and_the_call_cancelled() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.result_bytes = 1000).await;
    for id in [1, 2] {
        let mut call = world.call(id);
        let arrived = world.server.call().await;
        let events = if id == 1 { arrived.document() } else { arrived.stream() };
        events.raw(format!("data: {{\"text\":\"{}\"}}", "x".repeat(2000)));
        assert!(matches!(call.lost().await, CallError::TooLarge { limit: 1000 }));
        world.server.seen(|seen| seen.json["params"]["requestId"] == id).await;
    }
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_answered_on_the_get_stream() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    let listener = world.server.listener("s1").await;
    listener.result(&json!(1), json!({ "late": true }));
    assert_eq!(call.result().await, json!({ "late": true }));
}

/// We send numbers; a server may keep ids as text and hand them back as that.
#[tokio::test]
async fn what_arrives_on_the_get_stream_finds_its_call_also_where_the_number_came_back_as_text() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let (mut first, mut second) = (world.call(1), world.call(2));
    world.server.call().await.canned(Canned::status(202));
    world.server.call().await.canned(Canned::status(202));
    let listener = world.server.listener("s1").await;
    listener.send(&notification("notifications/progress", json!({ "progressToken": "2", "progress": 22 })));
    assert_eq!(second.notice().await["params"]["progress"], 22);
    for nobody in ["3", "x", "", "-1", "1.0"] {
        listener.result(&json!(nobody), json!({ "for": nobody }));
    }
    listener.result(&json!("2"), json!({ "for": 2 }));
    listener.result(&json!("1"), json!({ "for": 1 }));
    assert_eq!(second.result().await, json!({ "for": 2 }));
    assert_eq!(first.result().await, json!({ "for": 1 }));
}

/// Some servers read numbers as floating-point ones.
#[tokio::test]
async fn the_answer_to_a_call_is_found_however_its_number_is_spelled() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for (spelled, in_call) in
        [("1.0", true), ("1e0", true), ("\"1\"", true), ("1.0", false), ("10e-1", false)]
    {
        let mut call = world.call(1);
        let arrived = world.server.call().await;
        let answer = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{spelled},\"result\":{{}}}}\n\n");
        if in_call {
            arrived.stream().raw(answer);
        } else {
            arrived.canned(Canned::status(202));
            world.server.listener("s1").await.raw(answer);
        }
        assert_eq!(call.result().await, json!({}), "{spelled}");
    }
}

#[tokio::test]
async fn no_id_of_ours_is_wider_than_31_bits() {
    let world = UpstreamAndServer::new(Options::default()).await;
    world.upstream.describe(&identity(ASKABLE)).await.expect("a session");
    let caller = identity(ASKABLE);
    let subscribing = world.upstream.subscribe(&caller, "a://b");
    let answering = async { world.server.call().await.result(json!({})) };
    assert!(tokio::join!(subscribing, answering).0.is_ok());
    let ids: Vec<_> = world.server.log().iter().filter_map(|seen| seen.json["id"].as_u64()).collect();
    assert!(ids.len() >= 2 && ids.iter().all(|id| (1..1 << 31).contains(id)), "{ids:?}");
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_invalid_where_there_is_no_get_stream() {
    let world = UpstreamAndServer::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    assert!(matches!(call.lost().await, CallError::Invalid(_)));
}

#[tokio::test]
async fn a_call_that_was_only_taken_is_lost_where_the_get_stream_is_refused_afterwards() {
    let is_first = AtomicBool::new(true);
    let hook = move |seen: &Seen| {
        let is_again = seen.http == http::Method::GET && !is_first.swap(false, Ordering::Relaxed);
        is_again.then(|| Canned::status(405))
    };
    let world = UpstreamAndServer::new(Options::default().hook(hook)).await;
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(202));
    world.server.listener("s1").await.raw("id: g1\nretry: 1\ndata:\n\n");
    world.server.hang_up("s1");
    assert!(matches!(call.lost().await, CallError::SessionEnded));
}
