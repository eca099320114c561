//! A disconnect is not a cancel (2025-11-25, *Sending Messages to the Server*).

use super::world::Older;
use crate::{
    front::world::Lines,
    proxy::world::{Setup, World},
};
use serde_json::json;

/// Waits until the proxy has seen a client leave.
async fn departed(lines: &Lines) {
    while !lines.so_far().iter().any(|line| line["outcome"] == "departed") {
        tokio::task::yield_now().await;
    }
}

/// Which connection of the server's a new call comes by.
async fn next_connection(world: &World, client: &Older) -> usize {
    let waiting = client.call(99).await;
    let call = world.server.call().await;
    let connection = call.seen.connection;
    call.says("");
    waiting.answer().await;
    connection
}

#[tokio::test]
async fn a_call_whose_client_leaves_goes_on_before_its_answer_has_begun() {
    let lines = Lines::record();
    let world = World::new().await;
    let client = Older::new(world.addr()).within("s1");
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
async fn a_call_whose_client_leaves_goes_on_in_the_middle_of_its_answer() {
    let lines = Lines::record();
    let world = World::new().await;
    let client = Older::new(world.addr()).within("s1");
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

#[tokio::test]
async fn only_so_many_answers_are_read_on() {
    let world = Setup::new().top("limits: { departed: 1 }").start().await;
    let client = Older::new(world.addr()).within("s1");
    let lines = Lines::record();
    let first = client.call(1).await;
    let _first_call = world.server.call().await;
    first.leave();
    departed(&lines).await;
    let second = client.call(2).await;
    let second_call = world.server.call().await;
    second.leave();
    second_call.left().await;
}

#[tokio::test]
async fn an_answer_is_read_on_only_for_as_long_as_a_call_may_take() {
    let world = Setup::new().top("timeouts: { call: 100ms }").start().await;
    let waiting = Older::new(world.addr()).within("s1").call(1).await;
    let events = world.server.call().await.stream();
    waiting.stream().await.leave();
    events.left().await;
}

#[tokio::test]
async fn a_server_hears_of_the_calls_that_a_stopping_proxy_has_ended_for_their_clients() {
    for begun in [false, true] {
        let world = Setup::new().top("drain: 20ms").start().await;
        let waiting = Older::new(world.addr()).within("s1").call(1).await;
        let call = world.server.call().await;
        let mut call = Some(call);
        let events = begun.then(|| call.take().expect("it is there").stream());
        let World { server, proxy } = world;
        let (answer, ()) = tokio::join!(waiting.answer(), proxy.stop());
        assert_eq!(answer.refusal(), (200, -31007), "{answer:?}");
        let told = server.message("notifications/cancelled").await;
        assert_eq!((&told.json["params"]["requestId"], told.session()), (&json!(1), "s1"));
        assert_eq!(server.messages("notifications/cancelled"), 1);
        drop((call, events));
    }
}
