//! Slow calls without a task: progress, comments, deadline.

use super::proxy_and_client::{LegacyClient, READY, call};
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup, start},
    support::{
        legacy_server::{Call, Canned, Seen},
        limit_hits::LimitHits,
        modern_client::{Stream, soon},
        paused_time::passes,
    },
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::mpsc};

const QUICK: &str = "held: { progress: 30ms, comments: 10s }";
/// A deadline that nothing before it takes as long as.
const OVERDUE: &str = "defer: { mode: never }\n    held: { deadline: 10s }";
const DEADLINE: Duration = Duration::from_secs(10);
const COMMENTS: &str = "held: { progress: off, comments: 20ms }";

fn session(world: &ProxyAndServer) -> LegacyClient {
    LegacyClient::new(world.addr()).within("s1")
}

/// A call with this progress token.
fn with_token(id: u64, token: &str) -> String {
    call(id).replace("\"arguments\"", &format!("\"_meta\":{{\"progressToken\":{token}}},\"arguments\""))
}

async fn piece(stream: &mut Stream) -> String {
    soon("something is said", stream.piece()).await.expect("it goes on").expect("it does not break off")
}

/// The message of one event that is written as servers of this era write it.
fn message(event: &str) -> Value {
    let data = event.strip_prefix("event: message\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
    serde_json::from_str(data.unwrap_or_else(|| panic!("one event: {event:?}"))).expect("JSON")
}

/// What a word of progress says.
fn progress(event: &str) -> f64 {
    let message = message(event);
    assert_eq!(message["method"], "notifications/progress");
    assert_eq!(message["params"]["progressToken"], "t");
    assert!(message["params"].get("total").is_none());
    let said = message["params"]["message"].as_str().expect("a text");
    let seconds = said.strip_prefix("still running, ").and_then(|rest| rest.strip_suffix(" s"));
    // None, where the machine is not busy.
    seconds.and_then(|seconds| seconds.parse::<u8>().ok()).unwrap_or_else(|| panic!("{said}"));
    message["params"]["progress"].as_f64().expect("a number")
}

/// Waits until the server has received the cancellation and dropped the call.
async fn given_up(world: &ProxyAndServer, called: Call, id: u64) {
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!((told.session(), &told.json["params"]["requestId"]), ("s1", &json!(id)));
    called.left().await;
}

fn overdue(error: &Value) {
    assert_eq!(error["code"], -31003);
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("10s (held.deadline)"), "{message}");
}

#[tokio::test]
async fn a_legacy_client_with_a_progress_token_gets_progress() {
    let world = ProxyAndServer::with(QUICK).await;
    let waiting = session(&world).post(&with_token(1, "\"t\"")).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    let first = progress(&piece(&mut stream).await);
    let second = progress(&piece(&mut stream).await);
    assert!(0.0 < first && first < second && second < 0.001, "{first} {second}");
    let server = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":7}}\n\n";
    events.raw(server);
    loop {
        match &*piece(&mut stream).await {
            said if said == server => break,
            ours => assert!(progress(ours) < 0.001),
        }
    }
    let third = progress(&piece(&mut stream).await);
    assert!(7.0 < third && third < 7.001, "{third}");
    let response = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    events.raw(response);
    while piece(&mut stream).await != response {}
    // Another call that is told of twice has waited long enough.
    let waiting = session(&world).post(&with_token(2, "\"t\"")).await;
    let _events = world.server.call().await.stream();
    let mut other = waiting.stream().await;
    for _ in 0..2 {
        piece(&mut other).await;
    }
    assert!(stream.piece().now_or_never().is_none(), "progress stops with the answer");
}

#[tokio::test]
async fn a_servers_own_comments_do_not_keep_progress_back() {
    let world = ProxyAndServer::with("held: { progress: 100ms, comments: 10s }").await;
    let waiting = session(&world).post(&with_token(1, "\"t\"")).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    let said = async {
        let mut said = String::new();
        while !said.contains("notifications/progress") {
            events.raw(": ping\n\n");
            said = piece(&mut stream).await;
        }
    };
    soon("progress is told", said).await;
}

#[tokio::test]
async fn a_client_without_a_token_gets_comments_alone() {
    for route in ["held: { progress: 20ms, comments: 60ms }", "held: { progress: off, comments: 60ms }"] {
        let world = ProxyAndServer::with(route).await;
        for body in [call(1), with_token(2, "null"), with_token(3, "{}")] {
            let waiting = session(&world).post(&body).await;
            let _events = world.server.call().await.stream();
            let mut stream = waiting.stream().await;
            for _ in 0..2 {
                assert_eq!(piece(&mut stream).await, ":\n\n", "{body}");
            }
        }
    }
}

#[tokio::test]
async fn the_proxy_begins_the_response_of_a_silent_server() {
    let world = ProxyAndServer::with("held: { progress: 40ms, comments: 20ms }").await;
    let waiting = session(&world).post(&with_token(1, "\"t\"")).await;
    let called = world.server.call().await;
    let mut stream = soon("it begins", waiting.stream()).await;
    assert_eq!(
        (stream.status.as_u16(), &stream.headers["content-type"]),
        (200, &"text/event-stream".parse().unwrap())
    );
    progress(&piece(&mut stream).await);
    let mut said = String::new();
    while !(said.contains(":\n\n") && said.contains("still running")) {
        said += &piece(&mut stream).await;
    }
    // A document of more than one line.
    let body = "{\"jsonrpc\": \"2.0\",\n \"id\": 1, \"result\": {\"content\": [ ]}}";
    called.canned(Canned::status(200).body(body).header("content-type", "application/json"));
    let rest = stream.rest().await;
    let (_, last) = rest.rsplit_once("event: message").expect("the response");
    assert_eq!(last, "\ndata: {\"jsonrpc\": \"2.0\",  \"id\": 1, \"result\": {\"content\": [ ]}}\n\n");
}

#[tokio::test]
async fn a_late_event_stream_of_the_servers_goes_on_as_it_is() {
    let world = ProxyAndServer::with(COMMENTS).await;
    let waiting = session(&world).call(1).await;
    let called = world.server.call().await;
    let mut stream = waiting.stream().await;
    assert_eq!(piece(&mut stream).await, ":\n\n");
    let events = called.stream();
    let sent =
        "id: 1_0\nretry: 5\ndata:\n\n: x\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    events.raw(sent);
    drop(events);
    assert_eq!(stream.rest().await.replace("\n:\n\n", "\n").trim_start_matches(":\n\n"), sent);
}

#[tokio::test]
async fn what_a_late_http_error_means_is_the_last_event() {
    let said = json!({ "code": -32603, "message": "out of paper", "data": [1] });
    let json = json!({ "jsonrpc": "2.0", "id": null, "error": said }).to_string();
    for (canned, error) in [
        (Canned::status(503).body("busy"), json!({ "code": -31004 })),
        (Canned::status(500).body(json.clone()), said.clone()),
        (Canned::status(404).body("no session"), json!({ "code": -31004 })),
        (Canned::status(401), json!({ "code": -31008 })),
        (Canned::status(307).header("location", "http://other.invalid/x"), json!({ "code": -31004 })),
        (Canned::status(200).body("<html>").header("content-type", "text/html"), json!({ "code": -31004 })),
        (Canned::status(202), json!({ "code": -31002 })),
    ] {
        let world = ProxyAndServer::with(COMMENTS).await;
        let waiting = session(&world).call(7).await;
        let called = world.server.call().await;
        let mut stream = waiting.stream().await;
        assert_eq!(piece(&mut stream).await, ":\n\n");
        let shown = (canned.status, canned.body.clone());
        called.canned(canned);
        let rest = stream.rest().await;
        let last = message(rest.trim_start_matches(":\n\n"));
        assert_eq!(
            (last["id"].as_u64(), &last["error"]["code"]),
            (Some(7), &error["code"]),
            "{shown:?} {last}"
        );
        if error.get("message").is_some() {
            assert_eq!(last["error"], error);
        }
    }
}

#[tokio::test]
async fn a_server_that_dies_after_the_response_began_is_reported_on_the_stream() {
    let ProxyAndServer { server, proxy } = ProxyAndServer::with(COMMENTS).await;
    let waiting = LegacyClient::new(proxy.addresses[0]).within("s1").call(7).await;
    let _called = server.call().await;
    let mut stream = waiting.stream().await;
    assert_eq!(piece(&mut stream).await, ":\n\n");
    drop(server);
    let rest = stream.rest().await;
    assert_eq!(message(rest.trim_start_matches(":\n\n"))["error"]["code"], -31002, "{rest}");
}

#[tokio::test]
async fn the_proxy_begins_only_responses_of_calls() {
    let world = ProxyAndServer::with("held: { progress: 20ms, comments: 20ms }").await;
    let no_call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"vendor/thing\"}".to_owned();
    let json_only = session(&world).with("accept", "application/json");
    for (client, body) in [(session(&world), no_call), (json_only, call(1))] {
        let waiting = client.post(&body).await;
        let called = world.server.call().await;
        // Another call is begun meanwhile.
        session(&world).call(2).await.stream().await;
        let _other = world.server.call().await;
        called.canned(
            Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 1, "result": {} })).header("x-own", "1"),
        );
        let answer = waiting.answer().await;
        assert_eq!(
            (answer.header("content-type"), answer.header("x-own")),
            ("application/json", "1"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_call_that_has_waited_long_enough_gets_an_error_and_is_cancelled() {
    let hits = LimitHits::of("held.deadline");
    let world = ProxyAndServer::with(OVERDUE).await;
    // Before the server has begun.
    let waiting = session(&world).call(1).await;
    let called = world.server.call().await;
    passes(DEADLINE).await;
    let answer = waiting.answer().await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/json"));
    overdue(&answer.error());
    given_up(&world, called, 1).await;
    hits.are(1).await;
}

#[tokio::test]
async fn the_cancellation_at_the_deadline_is_sent_again_until_delivered() {
    let left = AtomicUsize::new(2);
    let refused = move |seen: &Seen| {
        let one_less = |left: usize| left.checked_sub(1);
        let refuses = seen.method() == "notifications/cancelled"
            && left.fetch_update(Relaxed, Relaxed, one_less).is_ok();
        refuses.then(|| Canned::status(503))
    };
    let world = Setup::new()
        .server(|options| *options = std::mem::take(options).hook(refused))
        .route(OVERDUE)
        .start()
        .await;
    let waiting = session(&world).call(1).await;
    let _called = world.server.call().await;
    passes(DEADLINE).await;
    overdue(&waiting.answer().await.error());
    let told = world.server.last_of(3, |seen| seen.method() == "notifications/cancelled").await;
    assert_eq!((told.session(), &told.json["params"]["requestId"]), ("s1", &json!(1)));
}

#[tokio::test]
async fn a_stream_that_has_begun_ends_at_the_deadline_even_within_an_event() {
    let hits = LimitHits::of("held.deadline");
    for begun in ["", ": ping\n\n", "data: {\"jsonrpc\":\"2.0\",\"id\":2,"] {
        let world = ProxyAndServer::with(OVERDUE).await;
        let waiting = session(&world).call(2).await;
        let events = world.server.call().await.stream();
        events.raw(begun);
        let mut stream = waiting.stream().await;
        let mut rest = String::new();
        while rest.len() < begun.len() {
            rest += &piece(&mut stream).await;
        }
        passes(DEADLINE).await;
        rest += &stream.rest().await;
        let (before, last) = rest.split_at(rest.find("event: message").expect("an error"));
        assert!(before.starts_with(begun), "{rest}");
        let last = message(last);
        assert_eq!(last["id"], 2);
        overdue(&last["error"]);
        let told = world.server.message("notifications/cancelled").await;
        assert_eq!((told.session(), &told.json["params"]["requestId"]), ("s1", &json!(2)));
        events.left().await;
    }
    hits.are(3).await;
}

#[tokio::test]
async fn an_answer_that_was_begun_for_a_server_ends_at_the_deadline() {
    let hits = LimitHits::of("held.deadline");
    let world = ProxyAndServer::with(
        "defer: { mode: never }\n    held: { progress: off, comments: 20ms, deadline: 10s }",
    )
    .await;
    let waiting = session(&world).call(3).await;
    let called = world.server.call().await;
    let mut stream = waiting.stream().await;
    assert_eq!(piece(&mut stream).await, ":\n\n");
    passes(DEADLINE).await;
    let rest = stream.rest().await;
    overdue(&message(rest.trim_start_matches(":\n\n"))["error"]);
    given_up(&world, called, 3).await;
    hits.are(1).await;
}

#[tokio::test]
async fn a_document_that_has_begun_breaks_off_at_the_deadline() {
    let hits = LimitHits::of("held.deadline");
    let world = ProxyAndServer::with(OVERDUE).await;
    let waiting = session(&world).call(4).await;
    let document = world.server.call().await.document();
    document.raw("{\"jsonrpc\":\"2.0\",");
    let mut stream = waiting.stream().await;
    piece(&mut stream).await;
    passes(DEADLINE).await;
    assert!(soon("it ends", stream.piece()).await.expect("it does not just end").is_err());
    world.server.message("notifications/cancelled").await;
    hits.are(1).await;
}

#[tokio::test]
async fn a_short_document_that_does_not_come_ends_at_the_deadline() {
    let hits = LimitHits::of("held.deadline");
    let world = ProxyAndServer::with(OVERDUE).await;
    let waiting = session(&world).call(4).await;
    let document = world.server.call().await.document_of(500);
    document.raw("{\"jsonrpc\":\"2.0\",");
    passes(DEADLINE).await;
    let answer = waiting.answer().await;
    overdue(&answer.error());
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!((told.session(), &told.json["params"]["requestId"]), ("s1", &json!(4)));
    document.left().await;
    hits.are(1).await;
}

#[tokio::test]
async fn a_short_document_that_does_not_come_holds_up_no_proxy_that_stops() {
    let ProxyAndServer { server, proxy } = Setup::new().top("drain: 20ms").start().await;
    let waiting = LegacyClient::new(proxy.addresses[0]).within("s1").call(4).await;
    let document = server.call().await.document_of(500);
    document.raw("{\"jsonrpc\":\"2.0\",");
    let (answer, ()) = tokio::join!(waiting.answer(), proxy.stop());
    assert_eq!(answer.refusal(), (200, -31007), "{answer:?}");
    assert_eq!(server.message("notifications/cancelled").await.json["params"]["requestId"], 4);
}

#[tokio::test]
async fn what_is_no_call_has_no_deadline() {
    let world = ProxyAndServer::with(OVERDUE).await;
    let client = session(&world);
    let waiting = client.post("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"vendor/thing\"}").await;
    let called = world.server.call().await;
    // A call has waited long enough meanwhile.
    let other = client.call(2).await;
    let _other = world.server.call().await;
    passes(DEADLINE).await;
    overdue(&other.answer().await.error());
    called.result(json!({}));
    assert_eq!(waiting.answer().await.result(), json!({}));
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(
        (&told.json["params"]["requestId"], world.server.messages("notifications/cancelled")),
        (&json!(2), 1)
    );
}

#[tokio::test]
async fn each_call_of_a_batch_is_cancelled_at_the_deadline() {
    // A server that takes everything and answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("bound"));
    let (taken, mut told) = mpsc::unbounded_channel();
    let taking = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().await.expect("it listens");
            let mut head = vec![0; 4096];
            let count = socket.read(&mut head).await.expect("a request");
            let _ = taken.send(String::from_utf8_lossy(&head[..count]).into_owned());
            open.push(socket);
        }
    });
    let proxy = start(
        &url,
        &["defer: { mode: never }", "held: { deadline: 10s }"],
        // The server answers no notification.
        &["timeouts: { first_byte: 500ms }"],
    );
    let client = LegacyClient::new(proxy.addresses[0]).within("s1");
    let waiting = client.post(&format!("[{},{READY},{}]", call(1), call(2))).await;
    soon("the batch arrives", told.recv()).await.expect("it listens");
    passes(DEADLINE).await;
    let answer = waiting.answer().await;
    let errors = answer.json();
    let errors = errors.as_array().expect("a batch");
    assert_eq!(errors.len(), 2);
    for (error, id) in errors.iter().zip(1..) {
        assert_eq!(error["id"], id);
        overdue(&error["error"]);
    }
    for id in 1..=2 {
        let told = soon("it is told", told.recv()).await.expect("it listens");
        assert!(told.contains(&format!("\"requestId\":{id},")), "{told}");
    }
    taking.abort();
}
