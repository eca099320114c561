//! Event streams: every byte is relayed as it arrives.

use super::proxy_and_client::{LegacyClient, call};
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::{Events, LegacyServer},
        modern_client::{Stream, soon},
    },
};
use http::Method;
use serde_json::json;

/// A call whose server has begun to answer with an event stream.
async fn begun(world: &ProxyAndServer, id: u64) -> (Stream, Events) {
    let waiting = LegacyClient::new(world.addr()).within("s1").call(id).await;
    let events = world.server.call().await.stream();
    // Before the first byte of the body.
    (waiting.stream().await, events)
}

async fn piece(stream: &mut Stream) -> String {
    stream.piece().await.expect("it goes on").expect("it does not break off")
}

#[tokio::test]
async fn an_event_stream_comes_as_it_is_sent() {
    let world = ProxyAndServer::new().await;
    let (mut stream, events) = begun(&world, 1).await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    for raw in [
        "id: 1_0\ndata:\n\n",
        "retry: 500\n\n",
        ": ping - 2026\r\n\r\n",
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",",
        "\"params\":{\"progressToken\":1,\"progress\":1e400}}\n\n",
        "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n",
    ] {
        events.raw(raw);
        assert_eq!(piece(&mut stream).await, raw);
    }
    drop(events);
    assert!(stream.piece().await.is_none());
}

#[tokio::test]
async fn a_stream_that_can_be_resumed_is_closed_where_the_server_closes_it() {
    let world = ProxyAndServer::new().await;
    let (mut stream, events) = begun(&world, 1).await;
    let sent = "id: 5\ndata:\n\nretry: 10\n\n";
    events.raw(sent);
    drop(events);
    assert_eq!(stream.rest().await, sent, "nothing is added");
    // And is taken up again at the server.
    let client = LegacyClient::new(world.addr()).within("s1").with("last-event-id", "5");
    let mut stream = client.listen().await.stream().await;
    let resumed = world.server.listener("s1").await;
    let seen = world.server.seen(|seen| seen.http == Method::GET).await;
    assert_eq!(seen.header("last-event-id"), Some("5"));
    resumed.result(&json!(1), json!({}));
    assert!(piece(&mut stream).await.contains("\"id\":1"));
}

#[tokio::test]
async fn input_requests_and_their_answers_pass() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let mut listening = client.listen().await.stream().await;
    let question = "data: {\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"elicitation/create\",\"params\":{}}\n\n";
    world.server.listener("s1").await.raw(question);
    assert_eq!(piece(&mut listening).await, question);
    let answer = r#"{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}"#;
    assert_eq!(client.post(answer).await.answer().await.status, 202);
    world.server.seen(|seen| seen.body == answer && seen.session() == "s1").await;
}

#[tokio::test]
async fn a_client_that_stops_listening_stops_listening_at_the_server() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let stream = client.listen().await.stream().await;
    let events = world.server.listener("s1").await;
    stream.leave();
    events.left().await;
}

#[tokio::test]
async fn a_call_waits_for_the_stream_that_was_opened_before_it() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (listening, waiting) = tokio::join!(client.listen(), client.call(1));
    world.server.call().await.says("done");
    let order = |server: &LegacyServer| {
        let log = server.log();
        let at = |method: Method, name: &str| {
            log.iter().position(|seen| seen.http == method && seen.method() == name).expect("it is there")
        };
        (at(Method::GET, ""), at(Method::POST, "tools/call"))
    };
    let (get, post) = order(&world.server);
    assert!(get < post, "{:#?}", world.server.log());
    waiting.answer().await;
    listening.stream().await.leave();
}

#[tokio::test]
async fn a_stream_that_has_begun_is_kept_alive_between_its_events() {
    let world = Setup::new().route("held: { comments: 400ms }").start().await;
    let (mut stream, events) = begun(&world, 1).await;
    events.raw("data: {}\n\n");
    assert_eq!(piece(&mut stream).await, "data: {}\n\n");
    assert_eq!(piece(&mut stream).await, ":\n\n");
    events.raw("data: {\"jsonrpc\":");
    assert_eq!(piece(&mut stream).await, "data: {\"jsonrpc\":");
    let beginning = tokio::time::timeout(std::time::Duration::from_millis(1_500), stream.piece()).await;
    assert!(beginning.is_err(), "never within an event");
    events.raw("\"2.0\",\"id\":1,\"result\":{}}\n\n");
    assert_eq!(piece(&mut stream).await, "\"2.0\",\"id\":1,\"result\":{}}\n\n");
}

#[tokio::test]
async fn a_large_document_comes_as_it_is_sent() {
    let world = ProxyAndServer::new().await;
    let waiting = LegacyClient::new(world.addr()).within("s1").call(1).await;
    let document = world.server.call().await.document();
    let mut stream = waiting.stream().await;
    document.raw("{\"jsonrpc\":\"2.0\",");
    assert_eq!(piece(&mut stream).await, "{\"jsonrpc\":\"2.0\",");
    document.raw("\"id\":1,\"result\":{}}");
    drop(document);
    assert_eq!(stream.rest().await, "\"id\":1,\"result\":{}}");
}

#[tokio::test]
async fn calls_are_waited_for_at_the_end_and_listeners_are_released_last() {
    let world = Setup::new().top("drain: 10s").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let mut listening = client.listen().await.stream().await;
    world.server.listener("s1").await;
    let waiting = client.post(&call(1)).await;
    let called = world.server.call().await;
    let stopping = tokio::spawn(world.proxy.stop());
    soon("new calls are refused", async {
        while client.post(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).await.answer().await.status
            != 503
        {}
    })
    .await;
    let heard = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": "heard" } });
    world.server.listener("s1").await.raw(format!("data: {heard}\n\n"));
    assert_eq!(soon("the stream is read", listening.next()).await, heard);
    called.says("in time");
    assert_eq!(waiting.answer().await.text(), "in time");
    soon("the stream ends", async { while listening.piece().await.is_some() {} }).await;
    soon("the proxy stops", stopping).await.expect("it does not panic");
}
