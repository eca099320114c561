//! Event ids that the proxy adds, for servers that send none.

use super::proxy_and_client::LegacyClient;
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{legacy_server::Events, modern_client::Stream},
};
use http::Method;
use serde_json::{Value, json};

const MINT: &str = "resume: { mint: true }";

async fn world() -> ProxyAndServer {
    Setup::new().route(MINT).start().await
}

/// A call whose answer is a stream, and both its ends.
async fn called(world: &ProxyAndServer, client: &LegacyClient) -> (Value, Events, Stream) {
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.raw("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n");
    (id, events, waiting.stream().await)
}

/// The id that stands in front of an event.
fn id_of(event: &str) -> &str {
    let line =
        event.lines().find(|line| line.starts_with("id: ")).unwrap_or_else(|| panic!("no id: {event}"));
    line.strip_prefix("id: ").expect("it begins so")
}

async fn until(stream: &mut Stream, what: &str) -> String {
    let mut text = String::new();
    while !text.contains(what) || !text.ends_with("\n\n") {
        text.push_str(&stream.piece().await.expect("more").expect("it does not break off"));
    }
    text
}

async fn resume(client: &LegacyClient, id: &str) -> crate::support::modern_client::Waiting {
    client.with("last-event-id", id).send(Method::GET, "/mcp", "").await
}

#[tokio::test]
async fn each_event_gets_an_id_and_keeps_its_bytes() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (id, events, mut stream) = called(&world, &client).await;
    let first = until(&mut stream, "notifications/x").await;
    let (priming, event) = first.split_once("\n\n").expect("two events");
    assert_eq!(
        priming,
        format!("id: {}\ndata: ", id_of(priming)),
        "so that it can come back before anything else"
    );
    assert!(
        event.ends_with("\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
    );
    assert_ne!(id_of(priming), id_of(event));
    events.raw(": hello\r\n\r\n");
    events.raw(format!(
        "data: {{\"jsonrpc\":\"2.0\",\r\ndata:\"id\":{id},\"result\":{{\"n\":1e400}}}}\r\n\r\n"
    ));
    drop(events);
    let rest = stream.rest().await;
    let (comment, last) = rest.split_once("\r\n\r\n").expect("two");
    assert_eq!(comment, ": hello");
    assert_eq!(
        last,
        format!(
            "id: {}\ndata: {{\"jsonrpc\":\"2.0\",\r\ndata:\"id\":1,\"result\":{{\"n\":1e400}}}}\r\n\r\n",
            id_of(last)
        )
    );
}

#[tokio::test]
async fn a_response_whose_last_byte_is_a_cr_gets_its_id() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (id, events, mut stream) = called(&world, &client).await;
    until(&mut stream, "notifications/x").await;
    let response = format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\r\r");
    events.raw(response.clone());
    drop(events);
    let last = stream.rest().await;
    assert_eq!(last, format!("id: {}\n{response}", id_of(&last)));
}

#[tokio::test]
async fn clients_that_do_not_know_empty_events_get_none() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await.with("mcp-protocol-version", "2025-06-18");
    let (_, _events, mut stream) = called(&world, &client).await;
    assert_eq!(until(&mut stream, "notifications/x").await.matches("data:").count(), 1);
}

#[tokio::test]
async fn a_response_is_resumed_where_it_broke() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (id, events, mut stream) = called(&world, &client).await;
    let first = until(&mut stream, "notifications/x").await;
    let last_id = id_of(first.split_once("\n\n").expect("two events").1).to_owned();
    stream.leave();
    // No client reads, and the call continues.
    events.notify("notifications/y", json!({}));
    let mut again = resume(&client, &last_id).await.stream().await;
    let missed = until(&mut again, "notifications/y").await;
    assert!(!missed.contains("notifications/x"), "what it had is not given again: {missed}");
    // It breaks once more, and the answer comes meanwhile.
    again.leave();
    events.result(&id, json!({ "content": [] }));
    drop(events);
    for _ in 0..2 {
        let answer = resume(&client, id_of(&missed)).await.stream().await.rest().await;
        assert!(answer.contains(r#""id":1,"jsonrpc":"2.0","result":{"content":[]}"#), "{answer}");
        let end = resume(&client, id_of(&answer)).await.stream().await.rest().await;
        assert_eq!(end, "", "nothing follows the answer");
    }
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    assert_eq!(world.server.count(|seen| seen.http == Method::GET), 0, "the server knows nothing of it");
}

#[tokio::test]
async fn no_other_client_can_resume_a_stream() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (_, _events, mut stream) = called(&world, &client).await;
    let first = until(&mut stream, "notifications/x").await;
    for other in [client.within("s2"), client.with("authorization", "Bearer x")] {
        let refused = resume(&other, id_of(&first)).await.answer().await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.body.contains("resume.keep"), "{refused:?}");
    }
}

#[tokio::test]
async fn event_ids_of_the_server_are_unchanged() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let events = call.stream();
    let said = "id: 7\ndata: \n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    events.raw(said);
    drop(events);
    assert_eq!(waiting.stream().await.rest().await, said);
    // And to what it is asked by its own.
    let waiting = resume(&client, "7").await;
    let seen = world.server.seen(|seen| seen.http == Method::GET).await;
    assert_eq!(seen.header("last-event-id"), Some("7"));
    waiting.leave();
}

#[tokio::test]
async fn stored_events_are_bounded() {
    let world = Setup::new().route("resume: { mint: true, bytes: 1KiB }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (_, events, mut stream) = called(&world, &client).await;
    let first = id_of(&until(&mut stream, "notifications/x").await).to_owned();
    events.notify("notifications/large", json!({ "x": "y".repeat(2000) }));
    until(&mut stream, "notifications/large").await;
    events.notify("notifications/last", json!({}));
    let last = until(&mut stream, "notifications/last").await;
    let late = resume(&client, &first).await.answer().await;
    assert_eq!(late.status, 200);
    let error: Value = late.messages().pop().expect("an error");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-31005)), "{late:?}");
    let mut again = resume(&client, id_of(&last)).await.stream().await;
    events.notify("notifications/more", json!({}));
    until(&mut again, "notifications/more").await;
}

#[tokio::test]
async fn an_event_too_large_to_be_stored_is_an_error_on_resumption() {
    let world = Setup::new().route("resume: { mint: true, bytes: 1KiB }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (id, events, mut stream) = called(&world, &client).await;
    let first = id_of(&until(&mut stream, "notifications/x").await).to_owned();
    // It comes in two pieces, and so cannot be held until its end.
    events.raw(format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"x\":\"{}", "y".repeat(2000)));
    while !stream.piece().await.expect("more").expect("it does not break off").contains("yyy") {}
    stream.leave();
    let errors = resume(&client, &first).await.answer().await.messages();
    assert_eq!((&errors[0]["id"], &errors[0]["error"]["code"]), (&json!(1), &json!(-31005)), "{errors:?}");
    // What was left without a reader is gone, and the answer ends in an error all the same.
    events.raw("\"}}\n\n");
    drop(events);
    let errors = resume(&client, &first).await.answer().await.messages();
    assert_eq!((&errors[0]["id"], &errors[0]["error"]["code"]), (&json!(1), &json!(-31005)), "{errors:?}");
}

#[tokio::test]
async fn without_the_option_nothing_is_added() {
    let world = ProxyAndServer::new().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (_, _events, mut stream) = called(&world, &client).await;
    assert!(!until(&mut stream, "notifications/x").await.contains("id: "));
}

#[tokio::test]
async fn resumption_after_the_greatest_event_id_gets_an_error() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let (_, _events, mut stream) = called(&world, &client).await;
    let text = until(&mut stream, "notifications/x").await;
    let (name, _) = id_of(&text).rsplit_once('-').expect("a name and a number");
    let answer = resume(&client, &format!("{name}-{}", u64::MAX)).await.answer().await;
    assert_eq!(answer.refusal(), (400, -32600));
}
