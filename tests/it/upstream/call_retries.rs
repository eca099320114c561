//! Calls that are sent again in a new session, because the server has lost the old one.

use super::UpstreamAndServer;
use crate::support::legacy_server::{Canned, Options};
use deferral::internals::upstream::{CallError, UpstreamEvent};

use http::StatusCode;
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

#[tokio::test]
async fn a_call_refused_because_the_session_is_gone_is_made_in_a_new_one() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;

    let mut call = world.call(2);
    let gone =
        json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32001, "message": "Session not found" } });
    world.server.call().await.canned(Canned::json(404, &gone));
    assert_eq!(world.answer().await, "s2");
    assert_eq!(call.result().await, json!({ "session": "s2" }));
}

#[tokio::test]
async fn a_call_goes_past_every_session_that_a_server_forgot_when_it_was_started_anew() {
    let forgot = Arc::new(AtomicBool::new(false));
    let forgets = Arc::clone(&forgot);
    let options = Options::default().hook(move |seen| {
        let is_old = ["s1", "s2", "s3"].contains(&seen.session()) && seen.method() == "tools/call";
        (is_old && forgets.load(Ordering::Relaxed)).then(|| Canned::status(404))
    });
    let world = UpstreamAndServer::new(options).await;
    // Each has a session to itself, until it is known where the server asks.
    let mut calls: Vec<_> = (1..4).map(|id| world.ask(id)).collect();
    let mut arrived = Vec::new();
    for _ in 0..3 {
        arrived.push(world.server.call().await);
    }
    arrived.into_iter().for_each(|call| call.result(json!({})));
    for call in &mut calls {
        call.result().await;
    }
    forgot.store(true, Ordering::Relaxed);
    let mut call = world.ask(4);
    assert_eq!(world.answer().await, "s4");
    assert_eq!(call.result().await, json!({ "session": "s4" }));
}

#[tokio::test]
async fn a_call_is_not_made_a_third_time() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    for session in ["s1", "s2"] {
        let arrived = world.server.call().await;
        assert_eq!(arrived.session(), session);
        arrived.canned(Canned::status(404).body("nobody home"));
    }
    assert!(matches!(call.lost().await, CallError::Status { status: StatusCode::NOT_FOUND, .. }));
    assert_eq!(world.server.messages("tools/call"), 2);
}

#[tokio::test]
async fn a_404_that_answers_the_call_is_its_answer() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut call = world.call(1);
    let error = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32601, "message": "no such tool" } });
    world.server.call().await.canned(Canned::json(404, &error));
    assert!(matches!(call.next().await, Some(UpstreamEvent::Final(_))));
    assert_eq!(world.server.messages("tools/call"), 1);
}
