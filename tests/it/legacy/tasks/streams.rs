//! The session's GET stream, and streams of calls that break.

use super::task_client::{
    Events, LegacyClient, ProxyAndServer, Stream, Tasker, Value, beyond_status, heard, id, json, question,
    setup, up_to_mark, world,
};
use crate::proxy::proxy_and_server::ALWAYS;
use http::Method;

async fn piece(stream: &mut Stream) -> String {
    stream.piece().await.expect("it goes on").expect("it does not break off")
}

/// What comes until all of `wanted` bytes of the server's have, as it comes.
async fn until(stream: &mut Stream, ends: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(ends) {
        text.push_str(&piece(stream).await);
    }
    text
}

#[tokio::test]
async fn the_bytes_of_the_sessions_stream_are_unchanged_around_inserted_events() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let own = world.server.listener("s1").await;
    let (_, _, events) = client.makes_stream(&world).await;

    own.raw("id: 1_0\r\nretry: 500\r\ndata:\r\n\r\n: ping\r\n\r\n");
    assert_eq!(
        until(&mut listening, ": ping\r\n\r\n").await,
        "id: 1_0\r\nretry: 500\r\ndata:\r\n\r\n: ping\r\n\r\n"
    );
    events.notify("notifications/message", json!({ "data": 1 }));
    let ours = until(&mut listening, "\n\n").await;
    assert!(ours.starts_with("data: {") && ours.contains(r#""data":1"#), "{ours}");
    assert!(!ours.contains("id: "), "an id of ours would be asked for at the server");

    // Never within an event of the server's.
    own.raw("id: 2\ndata: {\"jsonrpc\":\"2.0\",");
    // While a call of ours is in flight it may be about that, and goes by when it has ended.
    events.send(&question(0, "who?"));
    world_has_asked(&client).await;
    let put = until(&mut listening, "\n\n").await;
    assert!(put.contains("elicitation/create"), "{put}");
    own.raw("\"method\":\"notifications/x\"}\n");
    own.raw("\n");
    let whole = "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n";
    let mut text = until(&mut listening, "\n\n").await;
    while !text.ends_with(whole) {
        text.push_str(&until(&mut listening, "\n\n").await);
    }
}

/// Until the one task of the client asks.
async fn world_has_asked(client: &Tasker) {
    let task = client.list().await.pop().expect("a task");
    client.becomes(&task, "input_required").await;
}

#[tokio::test]
async fn a_stream_without_tasks_is_byte_for_byte_the_servers() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    world.server.listener("s1").await.raw("data: a");
    assert_eq!(piece(&mut listening).await, "data: a", "as it comes");
    world.server.listener("s1").await.raw("\n\n");
    assert_eq!(piece(&mut listening).await, "\n\n");
    let sent = "\u{feff}id:a\rdata: x\r\revent: y\r\ndata:z\r\n\r\n:\n\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"elicitation/create\"}\n\n";
    world.server.listener("s1").await.raw(sent);
    world.server.hang_up("s1");
    assert_eq!(listening.rest().await, sent);
}

#[tokio::test]
async fn an_event_too_large_to_be_read_is_relayed() {
    let world = setup().route(ALWAYS).top("limits: { result_bytes: 1000 }").start().await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let large = format!("data: {}", "x".repeat(2000));
    let own = world.server.listener("s1").await;
    own.raw(large.clone());
    own.raw("\n\ndata: y\n\n: end");
    drop(own);
    world.server.hang_up("s1");
    assert_eq!(listening.rest().await, large + "\n\ndata: y\n\n: end");
}

#[tokio::test]
async fn a_stream_that_was_resumed_is_listened_on_too() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let resumed = Tasker(client.0.with("last-event-id", "4"));
    let mut listening = resumed.listens().await;
    let (_, _, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    assert_eq!(heard(&mut listening).await["method"], "elicitation/create");
    // But not where there is another.
    let mut fresh = client.listens().await;
    events.send(&question(1, "and?"));
    let mut asked = Vec::new();
    while !asked.contains(&json!("and?")) {
        asked.push(beyond_status(&mut fresh).await["params"]["message"].take());
    }
}

#[tokio::test]
async fn each_session_gets_notifications_of_its_own_tasks_only() {
    let world = world(ALWAYS).await;
    let (one, other) = (Tasker::hello(&world).await, Tasker::hello(&world).await);
    let (mut ones, mut others) = (one.listens().await, other.listens().await);
    let (_, _, events) = one.makes_stream(&world).await;
    events.send(&question(0, "one?"));
    assert_eq!(heard(&mut ones).await["params"]["message"], "one?");
    let heard = up_to_mark(&world, "s2", &mut others).await;
    assert_eq!(heard, [Value::Null; 0]);
}

/// The GET that takes up a call's stream.
async fn resumed(world: &ProxyAndServer, last: &str) -> Events {
    let seen = world
        .server
        .seen(|seen| seen.http == Method::GET && seen.header("last-event-id") == Some(last))
        .await;
    assert_eq!(seen.session(), "old");
    assert_eq!(seen.header("accept"), Some("text/event-stream"));
    assert_eq!(seen.header("x-tenant"), Some("t"), "as the client's own requests");
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(seen.query.as_deref(), Some("key=a%20b&x"));
    world.server.listener("old").await
}

#[tokio::test]
async fn a_stream_that_breaks_in_a_task_is_resumed_in_the_clients_session() {
    let world = world(ALWAYS).await;
    let client = LegacyClient::new(world.addr()).within("old").with("x-tenant", "t");
    let body = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"slow","task":{}}}"#;
    let waiting = client.send(Method::POST, "/mcp?key=a%20b&x", body).await;
    let call = world.server.call().await;
    assert_eq!(call.seen.query.as_deref(), Some("key=a%20b&x"));
    let task = id(&waiting.answer().await);
    let id = call.id();
    let events = call.stream();
    events.raw("id: e1\nretry: 10\ndata:\n\n");
    drop(events);
    let events = resumed(&world, "e1").await;
    events.raw("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"roots/list\"}\n\n");
    let client = Tasker(client);
    let mut waiting = client.waits(&task).await;
    let put = beyond_status(&mut waiting).await;
    client.answers(&put["id"], json!({ "roots": [] })).await;
    world.server.seen(|seen| seen.answers(&json!(5)) && seen.query.as_deref() == Some("key=a%20b&x")).await;
    events.break_off();
    world.server.hang_up("old");
    let events = resumed(&world, "e2").await;
    events.result(&id, json!({ "content": [], "n": 2 }));
    while heard(&mut waiting).await["result"]["n"] != 2 {}
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_stream_that_breaks_and_cannot_be_resumed_fails_the_task() {
    let world = setup().route(ALWAYS).start().await;
    let client = Tasker::hello(&world).await;
    let (task, _, events) = client.makes_stream(&world).await;
    drop(events);
    let error = client.result(&task).await.error();
    assert_eq!(error["code"], -31002);
    let shown = client.get(&task).await;
    assert_eq!((&shown["status"], &shown["statusMessage"]), (&json!("failed"), &error["message"]));
}
