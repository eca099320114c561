//! Messages to a server beside calls: input responses and cancellations are delivered, or their failure is reported; and
//! endless input requests take a bounded share.

use super::{ASKABLE, MUTE, Running, UpstreamAndServer, connect, elicitation, request};
use crate::support::{
    legacy_server::{Call, Canned, Events, Options, Seen},
    limit_hits::LimitHits,
    paused_time::{Still, passes},
};
use bytes::Bytes;
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, PendingServerRequest, Upstream as _},
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

fn is_answer(seen: &Seen) -> bool {
    seen.http == http::Method::POST && seen.method().is_empty()
}

fn is_cancel(seen: &Seen) -> bool {
    seen.method() == "notifications/cancelled"
}

/// Holds for the first `times` that something like this arrives.
fn first(times: usize, like: fn(&Seen) -> bool) -> impl Fn(&Seen) -> bool + Send + Sync {
    let left = AtomicUsize::new(times);
    move |seen| {
        let one_less = |left: usize| left.checked_sub(1);
        like(seen) && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

/// A call that has been asked something on its own stream.
async fn asked(world: &UpstreamAndServer, id: u64) -> (Running, Events, PendingServerRequest) {
    let mut call = world.ask(id);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!("who?")));
    let question = call.question().await;
    (call, events, question)
}

fn accept() -> Result<Bytes, Bytes> {
    Ok(Bytes::from_static(br#"{"action":"accept"}"#))
}

#[tokio::test]
async fn an_undelivered_input_response_is_sent_again() {
    for status in [None, Some(503), Some(429)] {
        let mut options = Options::default();
        let fails = first(1, is_answer);
        match status {
            None => options.breaks = Box::new(fails),
            Some(status) => {
                options = options.hook(move |seen| fails(seen).then(|| Canned::status(status)));
            }
        }
        let world = UpstreamAndServer::new(options).await;
        let (mut call, events, question) = asked(&world, 1).await;
        question.responder.respond(accept());
        times(&world, is_answer, 2).await;
        events.result(&json!(1), json!({}));
        assert_eq!(call.result().await, json!({}));
    }
}

#[tokio::test]
async fn a_cancellation_whose_connection_breaks_is_sent_again() {
    let world =
        UpstreamAndServer::new(Options { breaks: Box::new(first(1, is_cancel)), ..Options::default() }).await;
    let call = world.call(1);
    let arrived = world.server.call().await;
    drop(call);
    arrived.left().await;
    times(&world, is_cancel, 2).await;
    // It has been told, so that its session can end.
    world.server.seen(|seen| seen.http == http::Method::DELETE).await;
    assert_eq!(world.server.count(is_cancel), 2);
}

fn is_end(seen: &Seen) -> bool {
    seen.http == http::Method::DELETE
}

#[tokio::test]
async fn a_session_is_not_deleted_before_its_cancellation_is_delivered() {
    let world = UpstreamAndServer::new(Options { asks: Box::new(is_cancel), ..Options::default() }).await;
    let still = Still::stands();
    let call = world.call(1);
    let _unanswered = world.server.call().await;
    drop(call);
    let cancel = world.server.call().await;
    let server = async {
        // What is sent without waiting is there before this call of another.
        let other = connect(&world.server.url(), |_| {});
        let mut list = Running::new(other.call(request(9, Method::ToolsList, MUTE)));
        world.server.call().await.result(json!({}));
        list.result().await;
        assert_eq!(world.server.count(is_end), 0);
        cancel.canned(Canned::status(202));
        world.server.seen(is_end).await;
        drop(still);
    };
    tokio::join!(world.upstream.close(), server);
}

#[tokio::test]
async fn a_session_is_deleted_although_its_cancellation_cannot_be_delivered() {
    let world = UpstreamAndServer::new(Options { ignores: Box::new(is_cancel), ..Options::default() }).await;
    let still = Still::stands();
    let (call, other) = (world.call(1), world.call(2));
    let _unanswered = [world.server.call().await, world.server.call().await];
    drop(call);
    times(&world, is_cancel, 1).await;
    let server = async {
        // Of the call that was in flight to the last.
        times(&world, is_cancel, 2).await;
        assert_eq!(world.server.count(is_end), 0);
        still.passes(Duration::from_millis(1010)).await;
        world.server.seen(is_end).await;
        drop(still);
    };
    tokio::join!(world.upstream.close(), server);
    drop(other);
}

/// Waits until something like this has arrived so often.
async fn times(world: &UpstreamAndServer, like: fn(&Seen) -> bool, times: usize) {
    world.server.last_of(times, like).await;
}

#[tokio::test]
async fn a_call_whose_input_response_cannot_be_delivered_ends_and_reports_it() {
    let options = Options::default().hook(|seen| is_answer(seen).then(|| Canned::status(503)));
    let world = UpstreamAndServer::new(options).await;
    let (mut call, events, question) = asked(&world, 1).await;
    question.responder.respond(accept());
    // Within a bound: at once, and after each of these.
    times(&world, is_answer, 2).await;
    for (told, pause) in [(3, 100), (4, 1_000), (5, 5_000)] {
        passes(Duration::from_millis(pause + 10)).await;
        times(&world, is_answer, told).await;
    }
    let CallError::ResponseUndelivered(why) = call.lost().await else {
        panic!("a loss that says what is missing")
    };
    assert!(why.contains("503"), "{why}");
    // Its server goes on waiting for the answer, unless it hears of this.
    let cancelled = world.server.seen(is_cancel).await;
    assert_eq!(cancelled.json["params"]["requestId"], 1);
    events.left().await;
    assert_eq!(world.server.count(is_answer), 5);
}

#[tokio::test]
async fn an_input_response_that_the_server_refuses_is_not_sent_again() {
    let options = Options::default().hook(|seen| is_answer(seen).then(|| Canned::status(404)));
    let world = UpstreamAndServer::new(options).await;
    let (mut call, _events, question) = asked(&world, 1).await;
    question.responder.respond(accept());
    assert!(matches!(call.lost().await, CallError::ResponseUndelivered(_)));
    world.server.seen(is_cancel).await;
    assert_eq!(world.server.count(is_answer), 1);
}

#[tokio::test]
async fn answered_and_withdrawn_input_requests_do_not_accumulate() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    for n in 0..600 {
        events.send(&elicitation(json!(n)));
        let question = call.question().await;
        match n % 3 {
            0 => question.responder.discard(),
            1 => drop(question),
            _ => question.responder.respond(accept()),
        }
        if n % 3 != 0 {
            world.server.seen(|seen| seen.answers(&json!(n))).await;
        }
    }
    events.result(&json!(1), json!({}));
    call.result().await;
}

#[tokio::test]
async fn endless_input_requests_in_one_call_fail_that_call_only() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut other = world.call(2);
    let others = world.server.call().await;
    let mut call = world.ask(1);
    let arrived = world.server.call().await;
    let events = arrived.stream();
    for n in 0..257 {
        events.send(&elicitation(json!(n)));
    }
    let mut held = Vec::new();
    for _ in 0..256 {
        held.push(call.question().await);
    }
    let CallError::Invalid(why) = call.lost().await else { panic!("the server is at fault") };
    assert!(why.contains("256 input requests"), "{why}");
    world.server.seen(|seen| is_cancel(seen) && seen.json["params"]["requestId"] == 1).await;
    others.result(json!({}));
    other.result().await;
}

/// A flood of pings whose answers the server does not take.
struct Flood {
    world: UpstreamAndServer,
    /// Whether it takes them now.
    relents: Arc<AtomicBool>,
    other: (Running, Call),
}

const PINGS: usize = 3_000;
const PLACES: usize = 8;

fn is_pong(seen: &Seen) -> bool {
    is_answer(seen) && seen.json["id"].as_str().is_some_and(|id| id.starts_with("ping"))
}

async fn flood() -> Flood {
    let relents = Arc::new(AtomicBool::new(false));
    let taken = relents.clone();
    let ignores = Box::new(move |seen: &Seen| is_pong(seen) && !taken.load(Ordering::Relaxed));
    let world = UpstreamAndServer::with(Options { ignores, ..Options::default() }, |config| {
        config.limits.messages = PLACES
    })
    .await;
    let mut call = world.call(1);
    let arrived = world.server.call().await;
    let listener = world.server.listener("s1").await;
    for n in 0..PINGS {
        listener.send(&json!({ "jsonrpc": "2.0", "id": format!("ping{n}"), "method": "ping" }));
    }
    listener.notify("notifications/message", json!({ "data": "that was all" }));
    call.notice().await;
    // None waits for the one before it any more.
    passes(Duration::from_secs(2)).await;
    times(&world, is_pong, PLACES / 2).await;
    Flood { world, relents, other: (call, arrived) }
}

#[tokio::test]
async fn endless_pings_take_a_bounded_number_of_connections_and_delay_no_call() {
    let hits = LimitHits::of("limits.messages");
    let Flood { world, other, relents: _relents } = flood().await;
    let (mut call, arrived) = other;
    // Lists, other calls, and what must reach the server have their way.
    let mut list = world.send(request(2, Method::ToolsList, ASKABLE));
    world.answer().await;
    list.result().await;
    let (mut asking, events, question) = asked(&world, 3).await;
    question.responder.respond(accept());
    world.server.seen(|seen| seen.answers(&json!("who?"))).await;
    events.result(&json!(3), json!({}));
    asking.result().await;
    let leaving = world.call(4);
    let left = world.server.call().await;
    drop(leaving);
    left.left().await;
    world.server.seen(is_cancel).await;
    arrived.result(json!({}));
    call.result().await;

    assert_eq!(world.server.count(is_pong), PLACES / 2, "half of the places at most");
    let connections = world.server.log().iter().map(|seen| seen.connection).max();
    assert!(connections.is_some_and(|n| n < 3 * PLACES), "{connections:?} for {PINGS} pings");
    assert!(hits.now() > 0, "{}", hits.now());
}

#[tokio::test]
async fn undelivered_responses_are_bounded() {
    let Flood { world, relents, other: _other } = flood().await;
    relents.store(true, Ordering::Relaxed);
    // Those on their way are given up.
    passes(Duration::from_secs(31)).await;
    times(&world, is_pong, 1024).await;
    let listener = world.server.listener("s1").await;
    let last: Value = json!("ping, the last");
    listener.send(&json!({ "jsonrpc": "2.0", "id": last, "method": "ping" }));
    world.server.seen(|seen| seen.answers(&last)).await;
    assert_eq!(world.server.count(is_pong), 1024 + 1, "the others were dropped");
}
