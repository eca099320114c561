//! The queue for a session: sharing, timeout, limit.

use super::{ASKABLE, UpstreamAndServer, elicitation, request};
use crate::support::legacy_server::{Canned, Options, Seen};
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, Upstream, UpstreamEvent, UpstreamEvents},
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
    time::Duration,
};

fn ask(world: &UpstreamAndServer, id: u64) -> UpstreamEvents {
    world.upstream.call(request(id, Method::ToolsCall, ASKABLE))
}

#[tokio::test]
async fn queued_calls_share_a_session_once_the_server_sends_input_requests_on_a_calls_stream() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut first = world.ask(1);
    let events = world.server.call().await.stream();
    let mut waiting: Vec<_> = (2..5).map(|id| ask(&world, id)).collect();
    for replies in &mut waiting {
        assert!(futures_util::poll!(replies.next()).is_pending());
    }
    assert!(!world.server.has_call());
    events.send(&elicitation(json!(0)));
    let question = first.question().await;
    // Nobody has ended, and yet all go on.
    for replies in &mut waiting {
        let (event, session) = tokio::join!(replies.next(), world.answer());
        assert!(matches!(event, Some(UpstreamEvent::Final(_))));
        assert_eq!(session, "s1");
    }
    drop(question);
    events.result(&json!(1), json!({}));
    first.result().await;
}

#[tokio::test]
async fn queued_calls_share_a_session_once_it_has_no_get_stream() {
    // The first stream is ended by the server, and then there is none.
    let had_one = AtomicBool::new(false);
    let options = Options::default().hook(move |seen| {
        let again = seen.http == http::Method::GET && had_one.swap(true, Ordering::Relaxed);
        again.then(|| Canned::status(405))
    });
    let world = UpstreamAndServer::with(options, |config| config.limits.sessions = 1).await;
    let mut first = world.ask(1);
    let held = world.server.call().await;
    let mut second = ask(&world, 2);
    assert!(futures_util::poll!(second.next()).is_pending());
    let listener = world.server.listener("s1").await;
    listener.raw("retry: 10\n\n");
    world.server.hang_up("s1");
    drop(listener);
    let (event, session) = tokio::join!(second.next(), world.answer());
    assert!(matches!(event, Some(UpstreamEvent::Final(_))));
    assert_eq!(session, "s1");
    held.result(json!({}));
    first.result().await;
}

#[tokio::test]
async fn a_call_over_the_queue_timeout_gets_an_error_with_the_limit() {
    let limit = Duration::from_millis(20);
    let world = UpstreamAndServer::with(Options::default(), |config| {
        config.limits.sessions = 1;
        config.timeouts.queue = limit;
    })
    .await;
    let mut first = world.ask(1);
    let held = world.server.call().await;
    let lost = world.ask(2).lost().await;
    assert!(
        matches!(lost, CallError::QueueTimeout { limit: 1, bound: "limits.sessions", after } if after == limit),
        "{lost}"
    );
    for name in ["limits.sessions", "timeouts.queue"] {
        assert!(lost.to_string().contains(name), "{lost}");
    }
    assert_eq!(world.server.messages("tools/call"), 1, "it was never sent");
    // Who comes later is not kept by those who gave up.
    held.result(json!({}));
    first.result().await;
    let mut next = world.ask(3);
    assert_eq!(world.answer().await, "s1");
    next.result().await;
}

#[tokio::test]
async fn the_session_queue_is_bounded_and_a_cancelled_call_frees_its_entry() {
    let world = UpstreamAndServer::with(Options::default(), |config| {
        config.limits.sessions = 1;
        config.limits.queue = 2;
    })
    .await;
    let mut first = world.ask(1);
    let held = world.server.call().await;
    let (mut second, mut third) = (ask(&world, 2), ask(&world, 3));
    assert!(futures_util::poll!(second.next()).is_pending());
    assert!(futures_util::poll!(third.next()).is_pending());
    let Poll::Ready(Some(UpstreamEvent::Lost(lost))) = futures_util::poll!(ask(&world, 4).next()) else {
        panic!("the queue is full")
    };
    assert!(matches!(lost, CallError::QueueFull { limit: 1, bound: "limits.sessions", queue: 2 }), "{lost}");
    for name in ["limits.sessions", "limits.queue"] {
        assert!(lost.to_string().contains(name), "{lost}");
    }
    // A disconnect frees the entry for another call.
    drop(second);
    let mut fifth = ask(&world, 5);
    assert!(futures_util::poll!(fifth.next()).is_pending());
    held.result(json!({}));
    first.result().await;
    for replies in [&mut third, &mut fifth] {
        let (event, session) = tokio::join!(replies.next(), world.answer());
        assert!(matches!(event, Some(UpstreamEvent::Final(_))));
        assert_eq!(session, "s1");
    }
    let calls = world.server.count(|seen: &Seen| seen.method() == "tools/call");
    assert_eq!(calls, 3);
}
