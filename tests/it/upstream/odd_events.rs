//! Stream events without a message: they are skipped, and only the end of a stream ends a call.

use super::{UpstreamAndServer, elicitation, notification};
use crate::support::legacy_server::Options;
use bytes::Bytes;
use deferral::internals::upstream::CallError;
use serde_json::json;

/// What the data of an event may be that is no message.
const ODD: [&str; 8] = [
    "ping",
    r#"{"type":"ping"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{},"id":null}"#,
    r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"both"}}"#,
    r#"{"jsonrpc":"2.0","id":7,"id":8,"result":{}}"#,
    "[]",
    "null",
    "{",
];

#[tokio::test]
async fn an_event_that_is_no_message_ends_neither_the_stream_nor_the_call() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    for odd in ODD {
        events.raw(format!("id: e\ndata: {odd}\n\n"));
    }
    events.send(&notification("notifications/message", json!({ "level": "info", "data": 1 })));
    assert_eq!(call.notice().await["params"]["data"], 1);
    events.raw("data: ping\n\n");
    events.result(&json!(7), json!({ "n": 1 }));
    assert_eq!(call.result().await, json!({ "n": 1 }));
}

#[tokio::test]
async fn an_event_that_is_no_message_does_not_end_the_stream_of_a_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(7);
    let arrived = world.server.call().await;
    let listener = world.server.listener("s1").await;
    for odd in ODD {
        listener.raw(format!("data: {odd}\n\n"));
    }
    listener.send(&elicitation(json!("q")));
    drop(call.question().await);
    world.server.seen(|seen| seen.answers(&json!("q"))).await;
    arrived.result(json!({}));
    call.result().await;
    let opened = world.server.count(|seen| seen.http == http::Method::GET);
    assert_eq!(opened, 1, "the stream is not opened again");
}

#[tokio::test]
async fn a_part_of_a_batch_that_is_no_message_does_not_hide_the_others() {
    let world = UpstreamAndServer::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let note = notification("notifications/message", json!({ "data": 1 }));
    let response = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "result": {} });
    let mut in_stream = world.call(7);
    let events = world.server.call().await.stream();
    events.raw(format!("data: [1,{note},{{\"type\":\"ping\"}},{}]\n\n", response(7)));
    assert_eq!(in_stream.notice().await["params"]["data"], 1);
    assert_eq!(in_stream.result().await, json!({}));

    let mut in_document = world.call(8);
    let document = world.server.call().await.document();
    document.raw(format!("[1,{note},[],{}]", response(8)));
    drop(document);
    assert_eq!(in_document.notice().await["params"]["data"], 1);
    assert_eq!(in_document.result().await, json!({}));
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_become_replacement_characters() {
    let world = UpstreamAndServer::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    let raw = |opening: &str, message: &[u8], closing: &str| {
        events.raw(Bytes::from([opening.as_bytes(), message, closing.as_bytes()].concat()));
    };
    let note =
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\"caf\xe9\"}}";
    raw("data: ", note, "\n\n");
    assert_eq!(call.notice().await["params"]["data"], "caf\u{fffd}");
    raw("data: [", note, "]\n\n");
    assert_eq!(call.notice().await["params"]["data"], "caf\u{fffd}");
    raw("data: ", b"\xff\xfe", "\n\n");
    raw("data: ", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"text\":\"\xc3\"}}", "\n\n");
    assert_eq!(call.result().await["text"], "\u{fffd}");
}

#[tokio::test]
async fn a_stream_that_ends_after_a_skipped_event_reports_why_it_was_no_message() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(7);
    world.server.call().await.stream().raw("data: ping\n\n");
    let CallError::Broken(why) = call.lost().await else { panic!("it broke") };
    assert!(why.contains("an event in it was skipped") && why.contains("not valid JSON"), "{why}");
}

#[tokio::test]
async fn a_document_that_is_no_message_is_still_no_answer() {
    let world = UpstreamAndServer::new(Options { version: "2025-03-26", ..Options::default() }).await;
    for document in ["[]", "[1]", "ping", r#"{"type":"ping"}"#] {
        let mut call = world.call(7);
        let body = world.server.call().await.document();
        body.raw(document);
        drop(body);
        assert!(matches!(call.lost().await, CallError::Invalid(_)), "{document}");
    }
}
