//! Session pools: which calls share a session, the queue for one, eviction, closing of idle sessions.

use super::{ASKABLE, MUTE, UpstreamAndServer, identity, request, token};
use crate::support::{
    legacy_server::{Canned, Get, Options, Seen},
    limit_hits::LimitHits,
};
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, OutgoingCall, Upstream, UpstreamEvent},
};
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn callers_that_differ_in_credentials_or_capabilities_share_no_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let callers = [identity(MUTE), identity(r#"{"sampling":{}}"#), token("Bearer a"), token("Bearer b")];
    for (id, caller) in callers.iter().enumerate() {
        let id = id as u64;
        let mut call =
            world.send(OutgoingCall { caller: caller.clone(), ..request(id, Method::ToolsCall, MUTE) });
        assert_eq!(world.answer().await, format!("s{}", id + 1));
        call.result().await;
    }
    let mut call =
        world.send(OutgoingCall { caller: token("Bearer a"), ..request(9, Method::ToolsCall, MUTE) });
    let arrived = world.server.call().await;
    assert_eq!((arrived.session(), arrived.seen.header("authorization")), ("s3", Some("Bearer a")));
    arrived.result(json!({}));
    call.result().await;
    let hellos = world.server.log().into_iter().filter(|seen| seen.method() == "initialize");
    let shown: Vec<_> = hellos.map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    assert_eq!(shown, [None, None, Some("Bearer a".to_owned()), Some("Bearer b".to_owned())]);
}

#[tokio::test]
async fn the_least_recently_used_identities_are_evicted() {
    let hits = LimitHits::of("limits.identities");
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.identities = 4).await;
    let callers = ["Bearer a", "Bearer b", "Bearer c", "Bearer d", "Bearer e", "Bearer f"].map(token);
    let from = |caller: usize, id| {
        world.send(OutgoingCall { caller: callers[caller].clone(), ..request(id, Method::ToolsCall, MUTE) })
    };
    // The first never ends, the second calls once more.
    let mut waiting = from(0, 1);
    let held = world.server.call().await;
    for (id, caller) in [1, 2, 3, 1].into_iter().enumerate() {
        let mut call = from(caller, 2 + id as u64);
        world.answer().await;
        call.result().await;
    }
    for (caller, session) in [(4, "s3"), (5, "s4")] {
        let mut call = from(caller, 10 + caller as u64);
        world.answer().await;
        call.result().await;
        let told = move |seen: &Seen| seen.http == http::Method::DELETE && seen.session() == session;
        world.server.seen(told).await;
    }
    held.result(json!({ "still": "there" }));
    assert_eq!(waiting.result().await, json!({ "still": "there" }));
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 2);
    hits.are(2).await;
}

#[tokio::test]
async fn calls_one_after_the_other_meet_the_same_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for id in 0..5 {
        let mut call = world.ask(id);
        assert_eq!(world.answer().await, "s1");
        call.result().await;
    }
}

#[tokio::test]
async fn calls_wait_in_line_for_a_session() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut first = world.ask(1);
    let held = world.server.call().await;
    let mut queued: Vec<_> =
        (2..5).map(|id| world.upstream.call(request(id, Method::ToolsCall, ASKABLE))).collect();
    for replies in &mut queued {
        assert!(futures_util::poll!(replies.next()).is_pending());
    }
    drop(queued.remove(0));
    assert!(!world.server.has_call());
    held.result(json!({}));
    first.result().await;
    for (id, mut replies) in [3, 4].into_iter().zip(queued) {
        let answered = async {
            let call = world.server.call().await;
            assert_eq!((call.id(), call.session()), (json!(id), "s1"));
            call.result(json!({}));
        };
        let (event, ()) = tokio::join!(replies.next(), answered);
        assert!(matches!(event, Some(UpstreamEvent::Final(_))));
    }
}

#[tokio::test]
async fn a_lost_session_frees_its_permit() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let first = world.ask(1);
    let held = world.server.call().await;
    let mut second = world.ask(2);
    drop(first);
    held.left().await;
    assert_eq!(world.answer().await, "s2");
    second.result().await;
}

#[tokio::test]
async fn a_session_whose_client_disconnects_during_the_handshake_serves_the_next_call() {
    let options = Options { get: Get::Silent, ..Options::default() };
    let world = UpstreamAndServer::with(options, |config| config.limits.sessions = 2).await;
    let _first = world.ask(1);
    let _held = world.server.call().await;
    let mut abandoned = world.upstream.call(request(2, Method::ToolsCall, ASKABLE));
    tokio::select! {
        _ = abandoned.next() => panic!("nobody answers it"),
        _ = world.server.seen(|seen| seen.http == http::Method::GET && seen.session() == "s2") => {}
    }
    drop(abandoned);
    let mut next = world.ask(3);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
}

#[tokio::test]
async fn a_session_with_a_lost_call_is_not_leased_again() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    drop(world.server.call().await.stream());
    assert!(matches!(call.lost().await, CallError::Broken(_)));
    let mut next = world.ask(2);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
}

#[tokio::test]
async fn calls_over_the_queue_limit_get_an_error_that_the_server_is_busy() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let _first = world.ask(1);
    let _held = world.server.call().await;
    let mut queued = Vec::new();
    let lost = loop {
        let mut replies = world.upstream.call(request(2 + queued.len() as u64, Method::ToolsCall, ASKABLE));
        match futures_util::poll!(replies.next()) {
            std::task::Poll::Ready(event) => break event,
            std::task::Poll::Pending => queued.push(replies),
        }
        assert!(queued.len() < 10_000, "the queue is bounded");
    };
    assert!(matches!(lost, Some(UpstreamEvent::Lost(CallError::QueueFull { limit: 1, queue: 1024, .. }))));
}

#[tokio::test]
async fn idle_sessions_are_closed_and_the_list_session_last() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;
    let minutes = async |minutes: u32| {
        tokio::time::pause();
        for _ in 0..minutes {
            tokio::time::advance(Duration::from_secs(60)).await;
            tokio::task::yield_now().await;
        }
        tokio::time::resume();
    };
    let closed = |session: &'static str| {
        move |seen: &Seen| seen.http == http::Method::DELETE && seen.session() == session
    };
    minutes(7).await;
    world.server.seen(closed("s2")).await;
    assert_eq!(world.server.count(closed("s1")), 0);
    minutes(31).await;
    world.server.seen(closed("s1")).await;
    let mut call = world.ask(3);
    assert_eq!(world.answer().await, "s3");
    call.result().await;
}

/// An id may be derived from the user, or be the only one that there is.
#[tokio::test]
async fn a_session_is_not_ended_while_another_has_its_id() {
    let world = UpstreamAndServer::new(Options::default().hook(|seen| {
        let result = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "s", "version": "1" } });
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result });
        (seen.method() == "initialize").then(|| Canned::json(200, &answer).header("mcp-session-id", "only"))
    }))
    .await;
    let (mut first, second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((world.server.messages("initialize"), a.session(), b.session()), (2, "only", "only"));
    // A session in which a call was cancelled is given up.
    drop(second);
    world.server.message("notifications/cancelled").await;
    let (running, _left) = if a.id() == 1 { (a, b) } else { (b, a) };
    running.result(json!({}));
    first.result().await;
    let ends = |world: &UpstreamAndServer| world.server.count(|seen| seen.http == http::Method::DELETE);
    assert_eq!(ends(&world), 0);
    world.upstream.close().await;
    assert_eq!(ends(&world), 1, "the last is ended");
}
