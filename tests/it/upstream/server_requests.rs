//! Input requests of the server: which call they belong to, responses, withdrawal.

use super::{ASKABLE, UpstreamAndServer, elicitation, identity, notification, request};
use crate::support::legacy_server::Options;
use bytes::Bytes;
use deferral::internals::{
    protocol::Method,
    upstream::{Upstream, UpstreamEvent},
};
use futures_util::StreamExt;
use serde_json::json;

#[tokio::test]
async fn an_input_request_on_the_calls_stream_is_answered_in_its_session_byte_for_byte() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    let question = call.question().await;
    let asked = question.request.canonical().expect("in the words of 2026-07-28");
    assert_eq!(asked.as_bytes(), r#"{"method":"elicitation/create","params":{"message":"?"}}"#);
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"accept","x":1e400}"#)));
    let answer = world.server.seen(|seen| seen.answers_raw("0")).await;
    assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept","x":1e400}}"#);
    assert_eq!(answer.session(), "s1");
    events.result(&json!(1), json!({}));
    call.result().await;
}

#[tokio::test]
async fn an_input_request_that_is_dropped_is_refused() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!("q")));
    drop(call.question().await);
    let answer = world.server.seen(|seen| seen.answers(&json!("q"))).await;
    assert_eq!(answer.json["error"], json!({ "code": -32603, "message": "not answered" }));
}

#[tokio::test]
async fn requests_other_than_input_requests_are_answered_at_once() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    let listener = world.server.listener("s1").await;
    for (n, events) in [(1, &events), (2, &listener)] {
        events.send(&json!({ "jsonrpc": "2.0", "id": format!("ping{n}"), "method": "ping" }));
        events.send(&json!({ "jsonrpc": "2.0", "id": format!("other{n}"), "method": "vendor/x" }));
        let pong = world.server.seen(|seen| seen.answers(&json!(format!("ping{n}")))).await;
        assert_eq!(pong.json["result"], json!({}));
        let other = world.server.seen(|seen| seen.answers(&json!(format!("other{n}")))).await;
        assert_eq!(other.json["error"]["code"], -32601);
    }
    events.result(&json!(1), json!({}));
    call.result().await;
}

#[tokio::test]
async fn an_input_request_on_the_get_stream_goes_to_the_call_that_leased_the_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_ne!(a.session(), b.session(), "a session for each call that can be asked");
    for (n, call) in [(7, &a), (8, &b)] {
        world.server.listener(call.session()).await.send(&elicitation(json!(n)));
    }
    for (running, n) in [(&mut first, a.id() == 1), (&mut second, a.id() == 2)]
        .map(|(call, is_a)| (call, if is_a { 7 } else { 8 }))
    {
        let question = running.question().await;
        assert_eq!(question.id.to_string(), n.to_string());
        question.responder.respond(Err(Bytes::from_static(br#"{"code":1,"message":"no"}"#)));
        world.server.seen(|seen| seen.answers(&json!(n)) && seen.json["error"]["code"] == 1).await;
    }
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;
}

#[tokio::test]
async fn calls_share_a_session_until_the_server_sends_an_input_request_off_the_calls_stream() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    drop(call.question().await);
    events.result(&json!(1), json!({}));
    call.result().await;

    let (mut first, mut second) = (world.ask(2), world.ask(3));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((a.session(), b.session()), ("s1", "s1"));
    let listener = world.server.listener("s1").await;
    listener.send(&elicitation(json!("whose?")));
    let refusal = world.server.seen(|seen| seen.answers(&json!("whose?"))).await;
    assert_eq!(
        refusal.json["error"],
        json!({ "code": -32603, "message": "cannot be attributed to one call" })
    );
    let mut third = world.ask(6);
    assert_eq!(world.answer().await, "s2", "in the first session two others may be asked");
    third.result().await;
    a.result(json!({}));
    b.result(json!({}));
    first.result().await;
    second.result().await;

    let (_first, _second) = (world.ask(4), world.ask(5));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_ne!(a.session(), b.session());
}

#[tokio::test]
async fn a_session_is_leased_when_the_last_call_that_shared_it_has_ended() {
    let world = UpstreamAndServer::with(Options::default(), |config| config.limits.sessions = 1).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    drop(call.question().await);
    events.result(&json!(1), json!({}));
    call.result().await;
    let mut shared = world.ask(2);
    let held = world.server.call().await;
    world.server.listener("s1").await.send(&elicitation(json!("off its stream")));
    drop(shared.question().await);

    let mut next = world.upstream.call(request(3, Method::ToolsCall, ASKABLE));
    assert!(futures_util::poll!(next.next()).is_pending());
    assert!(!world.server.has_call(), "it waits in line");
    held.result(json!({}));
    shared.result().await;
    let (event, session) = tokio::join!(next.next(), world.answer());
    assert!(matches!(event, Some(UpstreamEvent::Final(_))));
    assert_eq!(session, "s1");
}

#[tokio::test]
async fn an_input_request_with_no_call_in_flight_is_refused() {
    let world = UpstreamAndServer::new(Options::default()).await;
    world.upstream.describe(&identity(ASKABLE)).await.expect("a session");
    world.server.listener("s1").await.send(&elicitation(json!(5)));
    let refusal = world.server.seen(|seen| seen.answers(&json!(5))).await;
    assert_eq!(refusal.json["error"]["code"], -32603);
}

#[tokio::test]
async fn an_input_request_can_be_withdrawn_on_either_stream() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    let listener = world.server.listener("s1").await;
    for (id, events) in [(json!(0), &events), (json!("b"), &listener)] {
        events.send(&elicitation(id.clone()));
        let question = call.question().await;
        events.send(&notification("notifications/cancelled", json!({ "requestId": id })));
        match call.next().await {
            Some(UpstreamEvent::RequestCancelled { id: withdrawn }) => {
                assert_eq!(withdrawn.to_string(), id.to_string())
            }
            other => panic!("a withdrawal, not {other:?}"),
        }
        drop(question);
    }
    events.result(&json!(1), json!({}));
    call.result().await;
}
