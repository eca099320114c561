//! Calls that end without a response: later input requests of their server reach no other client.

use super::{ASKABLE, Running, UpstreamAndServer, elicitation, notification, request};
use crate::support::{
    legacy_server::{Call, Canned, Options},
    paused_time::passes,
};
use deferral::internals::{protocol::Method, upstream::UpstreamEvent};
use serde_json::json;
use std::time::Duration;

/// How a call can leave while its server may still be at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Its caller goes.
    Dropped,
    /// Its stream ends without the response.
    Broken,
    /// Its answer is no message.
    Garbled,
    /// A gateway in front of the server has waited long enough.
    GatewayTimeout,
    /// We have.
    TimedOut,
}

const LIMIT: Duration = Duration::from_secs(3600);

/// A server that is known to ask on its calls' own streams, so that calls share its session.
async fn sharing() -> UpstreamAndServer {
    let world = UpstreamAndServer::with(Options::default(), |config| config.timeouts.call = LIMIT).await;
    let mut call = world.ask(1);
    let events = world.server.call().await.stream();
    events.send(&elicitation(json!(0)));
    drop(call.question().await);
    events.result(&json!(1), json!({}));
    call.result().await;
    world
}

async fn leave(how: Leaving, call: Running, arrived: Call) {
    match how {
        Leaving::Dropped => {
            drop(call);
            arrived.left().await;
        }
        Leaving::Broken => {
            drop(arrived.stream());
            lost(call).await;
        }
        Leaving::Garbled => {
            let document = arrived.document();
            document.raw("{");
            drop(document);
            lost(call).await;
        }
        Leaving::GatewayTimeout => {
            arrived.canned(Canned::status(504));
            lost(call).await;
        }
        Leaving::TimedOut => {
            passes(Duration::from_secs(20)).await;
            lost(call).await;
        }
    }
}

async fn lost(mut call: Running) {
    assert!(matches!(call.next().await, Some(UpstreamEvent::Lost(_))));
}

#[tokio::test]
async fn an_input_request_that_may_belong_to_an_unfinished_call_is_refused() {
    use Leaving::*;
    for how in [Dropped, Broken, Garbled, GatewayTimeout, TimedOut] {
        let world = sharing().await;
        let leaving = world.ask(2);
        let leaves = world.server.call().await;
        if how == TimedOut {
            passes(LIMIT - Duration::from_secs(10)).await;
        }
        let mut staying = world.ask(3);
        let stays = world.server.call().await;
        assert_eq!((leaves.session(), stays.session()), ("s1", "s1"), "they share it");
        leave(how, leaving, leaves).await;

        // A question for the call that left, and something it would say.
        let listener = world.server.listener("s1").await;
        listener.notify("notifications/message", json!({ "level": "info", "data": "for its caller only" }));
        listener.send(&elicitation(json!("whose?")));
        let refused = world.server.seen(|seen| seen.answers(&json!("whose?"))).await;
        assert_eq!(refused.json["error"]["code"], -32603, "{how:?}: {}", refused.json);
        stays.result(json!({}));
        assert_eq!(staying.result().await, json!({}), "{how:?}: it has heard of nothing else");
    }
}

#[tokio::test]
async fn a_shared_session_with_an_unfinished_call_takes_no_further_calls() {
    let world = sharing().await;
    let mut call = world.ask(2);
    drop(world.server.call().await.stream());
    assert!(matches!(call.next().await, Some(UpstreamEvent::Lost(_))));
    let mut next = world.ask(3);
    assert_eq!(world.answer().await, "s2");
    next.result().await;
}

/// What only asks for something leaves nothing behind that could ask back.
#[tokio::test]
async fn a_list_whose_response_breaks_does_not_retire_its_session() {
    let world = sharing().await;
    let mut list = world.send(request(2, Method::ToolsList, ASKABLE));
    drop(world.server.call().await.stream());
    assert!(matches!(list.next().await, Some(UpstreamEvent::Lost(_))));
    let mut call = world.ask(3);
    let arrived = world.server.call().await;
    assert_eq!(arrived.session(), "s1");
    let listener = world.server.listener("s1").await;
    listener.send(&notification("notifications/message", json!({ "data": 1 })));
    assert_eq!(call.notice().await["params"]["data"], 1);
    arrived.result(json!({}));
    call.result().await;
}

#[tokio::test]
async fn a_call_that_ends_with_an_http_error_does_not_retire_its_session() {
    let world = sharing().await;
    for (id, status) in [(2, 500), (3, 501), (4, 422)] {
        let mut call = world.ask(id);
        let arrived = world.server.call().await;
        assert_eq!(arrived.session(), "s1");
        arrived.canned(Canned::status(status));
        assert!(matches!(call.next().await, Some(UpstreamEvent::Lost(_))));
    }
    let mut call = world.ask(5);
    assert_eq!(world.answer().await, "s1");
    call.result().await;
}
