//! A disconnect is not a cancel (2025-11-25, *Sending Messages to the Server*).

use super::proxy_and_client::LegacyClient;
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::{Events, Get},
        limit_hits::LimitHits,
        modern_client::{Stream, Waiting},
        paused_time::passes,
    },
};
use http::Method;
use serde_json::json;
use std::time::Duration;

/// Waits until the proxy has seen a client leave.
pub(super) async fn departed(lines: &Lines) {
    while !lines.so_far().iter().any(|line| line["outcome"] == "departed") {
        tokio::task::yield_now().await;
    }
}

/// Which connection of the server's a new call comes by.
pub(super) async fn next_connection(world: &ProxyAndServer, client: &LegacyClient) -> usize {
    let waiting = client.call(99).await;
    let call = world.server.call().await;
    let connection = call.seen.connection;
    call.says("");
    waiting.answer().await;
    connection
}

#[tokio::test]
async fn a_call_whose_client_disconnects_goes_on_before_its_answer_has_begun() {
    let lines = Lines::record();
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let connection = call.seen.connection;
    waiting.leave();
    departed(&lines).await;
    assert_ne!(next_connection(&world, &client).await, connection, "it is still at work");
    call.says("nobody hears this");
    // It was read to its end: the connection is free again.
    while next_connection(&world, &client).await != connection {}
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_call_whose_client_disconnects_goes_on_in_the_middle_of_its_answer() {
    let lines = Lines::record();
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let connection = call.seen.connection;
    let events = call.stream();
    events.raw("id: 1\ndata:\n\n");
    let mut stream = waiting.stream().await;
    stream.piece().await.expect("it goes on").expect("it does not break off");
    stream.leave();
    departed(&lines).await;
    assert_ne!(next_connection(&world, &client).await, connection, "it is still read");
    events.result(&json!(1), json!({}));
    drop(events);
    while next_connection(&world, &client).await != connection {}
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

/// A call that its server would have read on the direct way.
#[tokio::test]
async fn a_call_is_sent_although_its_client_disconnects_before_routing() {
    let lines = Lines::record();
    let setup = Setup::new().route("defer: { mode: always }").server(|options| options.pongs = false);
    let world = setup.start().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    // In a session that is older than the proxy it is asked for that first.
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let waiting = client.post(call).await;
    let asked = world.server.call().await;
    assert_ne!(asked.method(), "tools/call");
    waiting.leave();
    departed(&lines).await;
    asked.result(json!({}));
    while world.server.messages("tools/call") == 0 {
        let asked = world.server.call().await;
        if asked.method() != "tools/call" {
            asked.result(json!({}));
        }
    }
}

#[tokio::test]
async fn responses_read_for_disconnected_clients_are_bounded() {
    let hits = LimitHits::of("limits.departed");
    let world = Setup::new().top("limits: { departed: 1 }").start().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let lines = Lines::record();
    let first = client.call(1).await;
    let _first_call = world.server.call().await;
    first.leave();
    departed(&lines).await;
    let second = client.call(2).await;
    let second_call = world.server.call().await;
    second.leave();
    second_call.left().await;
    hits.are(1).await;
}

#[tokio::test]
async fn a_response_for_a_disconnected_client_is_read_until_the_call_timeout() {
    let world = Setup::new().top("timeouts: { call: 10s, keep_alive: 1h }").start().await;
    let waiting = LegacyClient::new(world.addr()).within("s1").call(1).await;
    let events = world.server.call().await.stream();
    let lines = Lines::record();
    waiting.stream().await.leave();
    lines.until(1).await;
    passes(Duration::from_secs(10)).await;
    events.left().await;
}

fn cancel(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

#[tokio::test]
async fn a_call_that_was_cancelled_is_not_read_on_when_its_client_disconnects() {
    let world = Setup::new().top("drain: 20ms").start().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    // Whether its response has begun; cancelled before or after the disconnect.
    let begun = async |id| {
        let waiting = client.call(id).await;
        let events = world.server.call().await.stream();
        (waiting.stream().await, events)
    };
    let (one, first) = begun(1).await;
    let (other, second) = begun(2).await;
    let waiting = client.call(3).await;
    let third = world.server.call().await;
    client.post(&cancel(1)).await.answer().await;
    client.post(&cancel(3)).await.answer().await;
    let lines = Lines::record();
    one.leave();
    other.leave();
    waiting.leave();
    lines.until(3).await;
    client.post(&cancel(2)).await.answer().await;
    tokio::join!(first.left(), second.left(), third.left());
    let ProxyAndServer { server, proxy } = world;
    proxy.stop().await;
    assert_eq!(server.messages("notifications/cancelled"), 3, "none is told twice");
}

/// An answer of which the client has read an event with an id.
async fn read_from(waiting: Waiting, events: &Events) -> Stream {
    events.raw("id: 1\nretry: 10\ndata:\n\n");
    let mut stream = waiting.stream().await;
    stream.piece().await.expect("it goes on").expect("it does not break off");
    stream
}

#[tokio::test]
async fn a_call_over_its_timeout_is_cancelled_at_the_server() {
    for stage in ["before its answer", "within it", "while it is taken up"] {
        let setup = Setup::new().top("timeouts: { call: 10s, keep_alive: 1h }");
        let world = setup.server(|options| options.get = Get::Silent).start().await;
        let waiting = LegacyClient::new(world.addr()).within("s1").call(1).await;
        let call = world.server.call().await;
        let (mut call, mut events) = (Some(call), None);
        let rest = if stage == "before its answer" {
            passes(Duration::from_secs(10)).await;
            waiting.answer().await.body
        } else {
            let begun = call.take().expect("it is there").stream();
            let mut stream = read_from(waiting, &begun).await;
            match stage {
                "within it" => events = Some(begun),
                _ => {
                    begun.break_off();
                    world.server.seen(|seen| seen.http == Method::GET).await;
                }
            }
            passes(Duration::from_secs(10)).await;
            stream.rest().await
        };
        assert!(rest.contains("-31003"), "{stage}: {rest}");
        let told = world.server.message("notifications/cancelled").await;
        assert_eq!((&told.json["params"]["requestId"], told.session()), (&json!(1), "s1"), "{stage}");
        assert_eq!(world.server.messages("notifications/cancelled"), 1);
        drop((call, events));
    }
}

#[tokio::test]
async fn a_call_whose_stream_was_being_resumed_is_cancelled_at_the_shutdown() {
    let setup = Setup::new().top("drain: 20ms").server(|options| options.get = Get::Refused(503));
    let ProxyAndServer { server, proxy } = setup.start().await;
    let waiting = LegacyClient::new(proxy.addresses[0]).within("s1").call(1).await;
    let events = server.call().await.stream();
    let mut stream = read_from(waiting, &events).await;
    events.break_off();
    server.seen(|seen| seen.http == Method::GET).await;
    let (rest, ()) = tokio::join!(stream.rest(), proxy.stop());
    assert!(rest.contains("-31007"), "{rest}");
    let told = server.message("notifications/cancelled").await;
    assert_eq!((&told.json["params"]["requestId"], told.session()), (&json!(1), "s1"));
    assert_eq!(server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn calls_of_disconnected_clients_are_cancelled_at_the_shutdown() {
    for begun in [false, true] {
        let world = Setup::new().top("drain: 20ms").start().await;
        let waiting = LegacyClient::new(world.addr()).within("s1").call(1).await;
        let call = world.server.call().await;
        let mut call = Some(call);
        let events = begun.then(|| call.take().expect("it is there").stream());
        let ProxyAndServer { server, proxy } = world;
        let (answer, ()) = tokio::join!(waiting.answer(), proxy.stop());
        assert_eq!(answer.refusal(), (200, -31007), "{answer:?}");
        let told = server.message("notifications/cancelled").await;
        assert_eq!((&told.json["params"]["requestId"], told.session()), (&json!(1), "s1"));
        assert_eq!(server.messages("notifications/cancelled"), 1);
        drop((call, events));
    }
}
