//! Connections and streams that break during a call, and their resumption.

use super::{MUTE, UpstreamAndServer, connect, notification, request};
use crate::support::legacy_server::{Canned, Get, LegacyServer, Options, ReservedPort, Seen};
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, Upstream, UpstreamEvent},
};
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test]
async fn a_broken_stream_is_resumed_after_the_last_event_when_the_server_wants_it() {
    use deferral::internals::runtime::{Clock, SystemClock};
    let world = UpstreamAndServer::new(Options { get: Get::Refused(405), ..Options::default() }).await;
    let mut warm = world.list(1);
    world.answer().await;
    warm.result().await;

    let options = Options { version: "2025-03-26", ..Options::default() };
    let world = UpstreamAndServer::new(options).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.raw("id: e1\nretry: 200\ndata:\n\n");
    events.raw(format!(
        "id: e2\ndata: {}\n\n",
        notification("notifications/progress", json!({ "progress": 1 }))
    ));
    call.notice().await;
    let clock = SystemClock::new();
    let closed = clock.now();
    drop(events);
    world.server.seen(|seen| seen.header("last-event-id") == Some("e2")).await;
    let waited = clock.now() - closed;
    assert!((Duration::from_millis(190)..Duration::from_millis(400)).contains(&waited), "{waited:?}");
    world.server.listener("s1").await.result(&json!(7), json!({ "resumed": true }));
    assert_eq!(call.result().await, json!({ "resumed": true }));
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn a_stream_can_be_resumed_many_times() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(7);
    let events = world.server.call().await.stream();
    events.raw("id: e0\nretry: 1\ndata:\n\n");
    drop(events);
    for n in 0..4 {
        let last = format!("e{n}");
        world.server.seen(|seen| seen.header("last-event-id") == Some(last.as_str())).await;
        let events = world.server.listener("s1").await;
        events.raw(format!("id: e{}\ndata:\n\n", n + 1));
        if n == 3 {
            events.result(&json!(7), json!({}));
        }
        world.server.hang_up("s1");
    }
    assert_eq!(call.result().await, json!({}));
}

#[tokio::test]
async fn a_stream_without_ids_that_ends_is_a_broken_call() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    drop(world.server.call().await.stream());
    assert!(matches!(call.lost().await, CallError::Broken(_)));

    let mut call = world.call(2);
    let events = world.server.call().await.stream();
    events.raw("data: {");
    events.break_off();
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_stream_whose_session_is_gone_when_it_is_resumed_ends_the_call() {
    let hook = |seen: &Seen| seen.header("last-event-id").map(|_| Canned::status(404));
    let world = UpstreamAndServer::new(Options::default().hook(hook)).await;
    let mut call = world.call(1);
    world.server.call().await.stream().raw("id: e1\nretry: 1\ndata:\n\n");
    assert!(matches!(call.lost().await, CallError::SessionEnded));
}

#[tokio::test]
async fn a_call_whose_server_refuses_connections_is_abandoned_within_twelve_seconds() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    let events = world.server.call().await.stream();
    events.raw(format!(
        "id: e1\nretry: 500\ndata: {}\n\n",
        notification("notifications/progress", json!({ "progress": 1 }))
    ));
    call.notice().await;
    let UpstreamAndServer { server, upstream: _upstream } = world;
    drop(server);
    tokio::time::pause();
    drop(events);
    let lost = timeout(Duration::from_secs(12), call.events.recv()).await.expect("it is given up");
    assert!(matches!(lost, Some(UpstreamEvent::Lost(CallError::Broken(_)))), "{lost:?}");
}

#[tokio::test]
async fn an_empty_answer_is_no_promise_of_another() {
    for canned in [Canned::status(204), Canned::status(200).header("content-length", "0")] {
        let world = UpstreamAndServer::new(Options::default()).await;
        let mut call = world.call(1);
        world.server.call().await.canned(canned);
        assert!(matches!(call.lost().await, CallError::Invalid(_)));
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_answer_loses_a_call_and_repeats_a_list() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let server = LegacyServer::on(listener, Options::default());
    let upstream = connect(&format!("http://{addr}/mcp"), |_| {});
    let world = UpstreamAndServer { server, upstream };
    let mut call = world.call(1);
    world.server.call().await.document().break_off();
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    assert_eq!(world.server.messages("tools/call"), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let nobody = ReservedPort::new();
    let mut replies = connect(&nobody.url(), |_| {}).call(request(1, Method::ToolsCall, MUTE));
    assert!(matches!(replies.next().await, Some(UpstreamEvent::Lost(CallError::Unreachable(_)))));
    assert!(replies.next().await.is_none());
}
