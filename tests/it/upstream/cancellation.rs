//! Cancellation of calls, and timeouts, which cancel them.

use super::{ASKABLE, MUTE, UpstreamAndServer, connect, identity, request};
use crate::support::legacy_server::{Options, PATIENCE, crowded};
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, Upstream, UpstreamEvent},
};
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_once_and_its_session_not_used_again() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut other = world.call(1);
    let held = world.server.call().await;
    let call = world.call(2);
    let arrived = world.server.call().await;
    assert_eq!(arrived.session(), "s1");
    drop(call);
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], 2);
    assert_eq!(cancelled.session(), "s1");
    arrived.left().await;

    let mut next = world.call(3);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 0, "one call is still on it");
    held.result(json!({ "went": "on" }));
    assert_eq!(other.result().await, json!({ "went": "on" }));
    let farewell = world.server.seen(|seen| seen.http == http::Method::DELETE).await;
    assert_eq!(farewell.session(), "s1");
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn a_session_of_an_old_revision_is_never_deleted() {
    let world = UpstreamAndServer::new(Options { version: "2025-03-26", ..Options::default() }).await;
    let call = world.call(1);
    let arrived = world.server.call().await;
    drop(call);
    world.server.message("notifications/cancelled").await;
    arrived.left().await;
    let listener = world.server.listener("s1").await;
    listener.left().await;
    world.upstream.close().await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 0);
}

#[tokio::test]
async fn a_call_that_is_over_or_was_never_sent_is_not_cancelled() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut call = world.ask(1);
    let held = world.server.call().await;
    drop(world.upstream.call(request(2, Method::ToolsCall, ASKABLE)));
    let mut queued = world.upstream.call(request(3, Method::ToolsCall, ASKABLE));
    assert!(futures_util::poll!(queued.next()).is_pending());
    drop(queued);
    held.result(json!({}));
    call.result().await;
    drop(call);
    let mut last = world.ask(4);
    world.answer().await;
    last.result().await;
    world.upstream.close().await;
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    assert_eq!(world.server.messages("tools/call"), 2);
}

#[tokio::test]
async fn a_call_as_a_whole_is_limited_and_cancelled_then() {
    let limit = Duration::from_millis(50);
    let world = UpstreamAndServer::with(Options::default(), |config| {
        config.timeouts.call = limit;
        config.timeouts.first_byte = PATIENCE;
    })
    .await;
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let mut call = world.call(1);
    let arrived = world.server.call().await;
    assert!(matches!(call.lost().await, CallError::CallTimeout(by) if by == limit));
    world.server.message("notifications/cancelled").await;
    arrived.left().await;
}

#[tokio::test]
async fn first_byte_and_idle_limit_what_is_not_a_call() {
    let world = UpstreamAndServer::with(Options::default(), |config| {
        config.timeouts.first_byte = Duration::from_millis(300);
        config.timeouts.idle = Duration::from_millis(50);
    })
    .await;
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let mut call = world.call(1);
    let silent = world.server.call().await;

    let mut list = world.list(2);
    let held = world.server.call().await;
    assert!(matches!(list.lost().await, CallError::FirstByteTimeout(_)));
    held.left().await;

    let mut list = world.list(3);
    let events = world.server.call().await.stream();
    events.raw(":\n\n");
    assert!(matches!(list.lost().await, CallError::IdleTimeout(_)));

    silent.result(json!({ "silence": "is work" }));
    call.result().await;
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_has_its_own_error() {
    let crowd = crowded().await;
    let addr = crowd.addr;
    let limit = Duration::from_millis(50);
    let upstream = connect(&format!("http://{addr}/mcp"), |config| config.timeouts.connect = limit);
    let mut replies = upstream.call(request(1, Method::ToolsCall, MUTE));
    assert!(
        matches!(replies.next().await, Some(UpstreamEvent::Lost(CallError::ConnectTimeout(by))) if by == limit)
    );
}
