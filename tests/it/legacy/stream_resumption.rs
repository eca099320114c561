//! Streams that end or break before the response, with a server whose events have ids: the client gets the rest, or one
//! error that reports it.

use super::{
    client_disconnects::departed,
    proxy_and_client::{LegacyClient, call},
};
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::{Canned, Events, Get, LegacyServer, Options, Seen},
        modern_client::{Stream, soon},
        paused_time::passes,
    },
};
use http::Method;
use serde_json::json;
use std::time::Duration;

/// No client waits longer for what becomes of its call.
const SOON: Duration = Duration::from_secs(12);

const PRIMING: &str = "id: e1\nretry: 10\ndata:\n\n";
const ANSWER: &str = "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n";

fn within(world: &ProxyAndServer) -> LegacyClient {
    LegacyClient::new(world.addr()).within("s1")
}

/// The next piece that is no comment of the proxy.
async fn beyond_comments(stream: &mut Stream) -> String {
    loop {
        let piece = stream.piece().await.expect("it goes on").expect("it does not break off");
        let rest = piece.trim_start_matches(":\n\n");
        if !rest.is_empty() {
            return rest.to_owned();
        }
    }
}

/// A call whose server has sent one event with an id.
async fn begun(client: &LegacyClient, server: &LegacyServer) -> (Stream, Events) {
    let waiting = client.call(7).await;
    let events = server.call().await.stream();
    let mut stream = waiting.stream().await;
    events.raw(PRIMING);
    assert_eq!(beyond_comments(&mut stream).await, PRIMING);
    (stream, events)
}

/// The errors in what a stream has said, as id and code.
fn errors(text: &str) -> Vec<(u64, i64)> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let errors = data.filter_map(|data| {
        let message: serde_json::Value = serde_json::from_str(&format!("{{{data}")).expect("JSON");
        Some((message["id"].as_u64()?, message["error"]["code"].as_i64()?))
    });
    errors.collect()
}

/// A world whose server answers GET like this.
async fn resumed_with(answer: impl Fn() -> Canned + Send + Sync + 'static) -> ProxyAndServer {
    let setup = Setup::new().server(|options| {
        let before = std::mem::take(options);
        *options = before.hook(move |seen| (seen.http == Method::GET).then(&answer));
    });
    setup.start().await
}

fn events(text: &str) -> Canned {
    Canned::status(200).body(text).header("content-type", "text/event-stream")
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_where_its_server_has_more() {
    let world = ProxyAndServer::new().await;
    let client = within(&world).with("x-own", "kept");
    let (mut stream, events) = begun(&client, &world.server).await;
    events.raw("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"resu");
    let cut = stream.piece().await.expect("it goes on").expect("it does not break off");
    events.break_off();
    let again = world.server.seen(|seen| seen.http == Method::GET).await;
    assert_eq!((again.session(), again.header("last-event-id")), ("s1", Some("e1")));
    assert_eq!((again.header("accept"), again.header("x-own")), (Some("text/event-stream"), Some("kept")));
    assert!(again.header("content-type").is_none() && again.body.is_empty());
    world.server.listener("s1").await.raw(ANSWER);
    world.server.hang_up("s1");
    // What was cut off is void, its id too, and comes again.
    let void = "\nid: e1\nevent: incomplete\n\n";
    assert_eq!(format!("{cut}{}", stream.rest().await), format!("{cut}{void}{ANSWER}"));
    assert_eq!(world.server.messages("tools/call"), 1);
}

/// What asks for what followed the first event.
fn comes_back(seen: &Seen) -> bool {
    seen.http == Method::GET && seen.header("last-event-id") == Some("e1")
}

#[tokio::test]
async fn a_byte_order_mark_does_not_come_again_in_the_middle_of_a_stream() {
    let world = ProxyAndServer::new().await;
    let (mut stream, events) = begun(&within(&world), &world.server).await;
    events.break_off();
    let listener = world.server.listener("s1").await;
    world.server.hang_up("s1");
    listener.raw(format!("\u{feff}{ANSWER}"));
    drop(listener);
    // Behind it the id would be none.
    assert_eq!(stream.rest().await, ANSWER);
}

#[tokio::test]
async fn a_response_that_was_cut_off_is_still_owed_when_the_stream_breaks_again() {
    let world = ProxyAndServer::new().await;
    let (mut stream, events) = begun(&within(&world), &world.server).await;
    events.raw("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"big");
    let cut = stream.piece().await.expect("it goes on").expect("it does not break off");
    events.break_off();
    let listener = world.server.listener("s1").await;
    world.server.hang_up("s1");
    listener.break_off();
    world.server.sees(2, comes_back).await;
    world.server.listener("s1").await.raw(ANSWER);
    world.server.hang_up("s1");
    // Who reads to the end has the id of the event that was cut off no more.
    let void = "\nid: e1\nevent: incomplete\n\n";
    assert_eq!(format!("{cut}{}", stream.rest().await), format!("{cut}{void}{ANSWER}"));
}

#[tokio::test]
async fn a_response_that_was_cut_off_is_resumed_by_the_client_when_the_server_ends_the_stream() {
    let world = resumed_with(|| events("retry: 10\n\n")).await;
    let client = within(&world);
    let (mut stream, events) = begun(&client, &world.server).await;
    events.raw("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"big");
    stream.piece().await.expect("it goes on").expect("it does not break off");
    events.break_off();
    assert!(stream.rest().await.ends_with("id: e1\nevent: incomplete\n\nretry: 10\n\n"));
    let ProxyAndServer { server, proxy: _proxy } = world;
    drop(server);
    let back = client.with("last-event-id", "e1").listen().await;
    tokio::time::pause();
    assert_eq!(errors(&back.answer_within(SOON).await.body), [(7, -31002)]);
}

#[tokio::test]
async fn a_client_is_kept_waiting_while_its_stream_is_resumed_but_not_beyond_its_deadline() {
    let setup = Setup::new().route("defer: { mode: never }");
    let setup = setup.route("held: { progress: off, comments: 50ms, deadline: 10s }");
    let world = setup.server(|options| options.get = Get::Silent).start().await;
    let (mut stream, events) = begun(&within(&world), &world.server).await;
    events.raw("data: {\"jsonr");
    beyond_comments(&mut stream).await;
    events.break_off();
    let mut rest = String::new();
    while !rest.ends_with(":\n\n:\n\n") {
        rest += &stream.piece().await.expect("it goes on").expect("it does not break off");
    }
    passes(Duration::from_secs(10)).await;
    rest += &stream.rest().await;
    assert!(rest.starts_with("\nevent: incomplete\n\n:\n\n:\n\n"), "{rest}");
    assert_eq!(errors(&rest), [(7, -31003)]);
    assert_eq!(world.server.message("notifications/cancelled").await.json["params"]["requestId"], 7);
}

#[tokio::test]
async fn resumption_at_a_silent_server_ends_at_the_deadline() {
    let setup = Setup::new().top("timeouts: { keep_alive: 50ms, call: 10s }");
    let world = setup.server(|options| options.get = Get::Silent).start().await;
    let client = within(&world);
    let (mut stream, ended) = begun(&client, &world.server).await;
    drop(ended);
    stream.rest().await;
    let mut back = client.with("last-event-id", "e1").listen().await.stream().await;
    let mut rest = String::new();
    while !rest.ends_with(":\n\n:\n\n") {
        rest += &back.piece().await.expect("it goes on").expect("it does not break off");
    }
    passes(Duration::from_secs(10)).await;
    rest += &back.rest().await;
    assert!(rest.starts_with(":\n\n:\n\n"), "{rest}");
    assert_eq!(errors(&rest), [(7, -31003)]);
}

#[tokio::test]
async fn a_stream_that_breaks_more_than_once_goes_on_behind_its_last_event() {
    let world = ProxyAndServer::new().await;
    let (mut stream, events) = begun(&within(&world), &world.server).await;
    events.break_off();
    world.server.seen(|seen| seen.header("last-event-id") == Some("e1")).await;
    let listener = world.server.listener("s1").await;
    world.server.hang_up("s1");
    listener.raw("id: e5\ndata:\n\n");
    assert_eq!(
        stream.piece().await.expect("it goes on").expect("it does not break off"),
        "id: e5\ndata:\n\n"
    );
    listener.break_off();
    world.server.seen(|seen| seen.header("last-event-id") == Some("e5")).await;
    world.server.listener("s1").await.raw(ANSWER);
    world.server.hang_up("s1");
    assert_eq!(stream.rest().await, ANSWER);
}

#[tokio::test]
async fn a_stream_that_breaks_gets_the_error_where_the_server_has_no_more() {
    type Refusal = fn() -> Canned;
    let refusals: [Refusal; 5] = [
        || Canned::status(404).body("Session not found"),
        || Canned::status(400),
        || Canned::status(405),
        || Canned::json(200, &json!({})),
        || Canned::status(202),
    ];
    for refusal in refusals {
        let world = resumed_with(refusal).await;
        let (mut stream, events) = begun(&within(&world), &world.server).await;
        events.break_off();
        assert_eq!(errors(&stream.rest().await), [(7, -31002)]);
    }
}

#[tokio::test]
async fn a_broken_stream_gets_an_error_where_connections_are_reset() {
    let setup = Setup::new().server(|options| options.get = Get::Stream);
    let ProxyAndServer { server, proxy } = setup.start().await;
    let (stream, events) = begun(&LegacyClient::new(proxy.addresses[0]).within("s1"), &server).await;
    let addr = server.addr();
    drop(server);
    // Its port lives on for a moment: connections are taken, and reset at once.
    let port = loop {
        match tokio::net::TcpListener::bind(addr).await {
            Ok(port) => break port,
            Err(_still_closing) => tokio::task::yield_now().await,
        }
    };
    let taking = tokio::spawn(async move { while port.accept().await.is_ok() {} });
    tokio::time::pause();
    drop(events);
    let rest = stream.rest_within(SOON).await;
    assert_eq!(errors(&rest), [(7, -31002)], "{rest}");
    taking.abort();
}

#[tokio::test]
async fn a_resumed_stream_gets_an_error_where_the_server_has_no_more_events() {
    let refusals: [fn() -> Canned; 4] = [
        || Canned::status(404).body("Session not found"),
        || Canned::status(405),
        || {
            Canned::json(
                400,
                &json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32600, "message": "no" } }),
            )
        },
        || Canned::status(202),
    ];
    for refusal in refusals {
        let world = resumed_with(refusal).await;
        let client = within(&world);
        let (mut stream, events) = begun(&client, &world.server).await;
        drop(events);
        // The server has ended it: its client is to come back.
        assert_eq!(stream.rest().await, "");
        let back = client.with("last-event-id", "e1");
        let answer = back.listen().await.answer().await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/event-stream"));
        assert_eq!(errors(&answer.body), [(7, -31002)]);
        // No other client gets it, and none gets it twice.
        for other in
            [back.clone(), client.with("last-event-id", "e9"), back.with("authorization", "Bearer o")]
        {
            assert!(!other.listen().await.answer().await.body.contains("-31002"));
        }
    }
}

#[tokio::test]
async fn a_resumed_stream_gets_an_error_where_the_server_is_gone() {
    let ProxyAndServer { server, proxy } = ProxyAndServer::new().await;
    let client = LegacyClient::new(proxy.addresses[0]).within("s1");
    let (mut stream, events) = begun(&client, &server).await;
    drop(events);
    assert_eq!(stream.rest().await, "");
    drop(server);
    let back = client.with("last-event-id", "e1").listen().await;
    tokio::time::pause();
    let answer = back.answer_within(SOON).await;
    assert_eq!((answer.status.as_u16(), &errors(&answer.body)[..]), (200, &[(7, -31002)][..]));
}

#[tokio::test]
async fn a_disconnected_client_that_resumes_gets_an_error_where_the_server_has_no_more_events() {
    let world = resumed_with(|| Canned::status(404)).await;
    let client = within(&world);
    let (stream, events) = begun(&client, &world.server).await;
    drop(stream);
    // It is seen to leave.
    events.raw(": x\n\n");
    let back = client.with("last-event-id", "e1");
    let told = async {
        loop {
            let answer = back.listen().await.answer().await;
            if answer.status == 200 {
                return answer;
            }
        }
    };
    let answer = soon("it is told", told).await;
    assert_eq!(errors(&answer.body), [(7, -31002)]);
}

/// A client that has left a call whose events go on; what is read of it meanwhile is read by the proxy.
async fn left_behind(client: &LegacyClient, world: &ProxyAndServer, events: &[&'static str]) -> Events {
    let lines = Lines::record();
    let (mut stream, said) = begun(client, &world.server).await;
    for event in events {
        said.raw(*event);
        assert_eq!(beyond_comments(&mut stream).await, *event);
    }
    stream.leave();
    departed(&lines).await;
    said
}

/// A server may give a stream to one connection at a time.
#[tokio::test]
async fn an_answer_is_not_read_on_for_a_client_that_returns_for_it() {
    let world = ProxyAndServer::new().await;
    let client = within(&world);
    let said = left_behind(&client, &world, &[]).await;
    let back = client.with("last-event-id", "e1").listen().await;
    said.left().await;
    world.server.seen(comes_back).await;
    world.server.listener("s1").await.raw(ANSWER);
    world.server.hang_up("s1");
    assert_eq!(back.stream().await.rest().await, ANSWER);
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_client_may_resume_after_an_earlier_event() {
    let world = resumed_with(|| Canned::status(404)).await;
    let client = within(&world);
    let notes = ["id: e2\ndata:\n\n", "id: e3\ndata:\n\n"];
    let said = left_behind(&client, &world, &notes).await;
    let answer = client.with("last-event-id", "e2").listen().await.answer().await;
    assert_eq!((answer.status.as_u16(), &errors(&answer.body)[..]), (200, &[(7, -31002)][..]));
    said.left().await;
}

#[tokio::test]
async fn a_resumption_is_relayed_where_the_server_has_more_events() {
    let world = resumed_with(|| events(ANSWER).header("x-why", "so")).await;
    let client = within(&world);
    let (mut stream, ended) = begun(&client, &world.server).await;
    drop(ended);
    stream.rest().await;
    let answer = client.with("last-event-id", "e1").listen().await.answer().await;
    assert_eq!((answer.header("x-why"), &*answer.body), ("so", ANSWER));
}

#[tokio::test]
async fn a_resumed_stream_that_ends_is_resumed_by_the_client_and_one_that_breaks_is_resumed() {
    let world = ProxyAndServer::new().await;
    let client = within(&world);
    let (mut stream, ended) = begun(&client, &world.server).await;
    drop(ended);
    stream.rest().await;
    let mut back = client.with("last-event-id", "e1").listen().await.stream().await;
    let listener = world.server.listener("s1").await;
    listener.raw("id: e3\nretry: 10\ndata:\n\n");
    back.piece().await.expect("it goes on").expect("it does not break off");
    world.server.hang_up("s1");
    listener.break_off();
    world.server.seen(|seen| seen.header("last-event-id") == Some("e3")).await;
    world.server.hang_up("s1");
    // The server has ended it now: it is come back for once more, and the server is gone.
    assert_eq!(back.rest().await, "");
    let ProxyAndServer { server, proxy: _proxy } = world;
    drop(server);
    let back = client.with("last-event-id", "e3").listen().await;
    tokio::time::pause();
    assert_eq!(errors(&back.answer_within(SOON).await.body), [(7, -31002)]);
}

#[tokio::test]
async fn a_cancelled_request_is_not_resumed() {
    let world = resumed_with(|| Canned::status(404)).await;
    let client = within(&world);
    let (mut stream, events) = begun(&client, &world.server).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    client.post(cancel).await.answer().await;
    events.break_off();
    assert_eq!(stream.rest().await, "");
    assert_eq!(world.server.count(|seen| seen.http == Method::GET), 0);
}

#[tokio::test]
async fn each_request_of_a_batch_that_was_left_gets_its_error() {
    let setup = Setup::new().server(|options: &mut Options| {
        let before = std::mem::take(options);
        *options = before.hook(|seen| match seen.json.is_array() {
            true => Some(events("id: e1\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n")),
            false => (seen.http == Method::GET).then(|| Canned::status(404)),
        });
    });
    let world = setup.start().await;
    let client = within(&world);
    let batch = format!("[{},{},{}]", call(1), call(2), call(3));
    assert_eq!(errors(&client.post(&batch).await.answer().await.body), []);
    let answer = client.with("last-event-id", "e1").listen().await.answer().await;
    assert_eq!(errors(&answer.body), [(1, -31002), (3, -31002)]);
}
