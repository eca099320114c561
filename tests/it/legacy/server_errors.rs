//! Every legacy request gets a response: released clients would otherwise wait for ever.

use super::proxy_and_client::{LegacyClient, READY, call};
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup, start},
    support::{
        legacy_server::{Canned, ReservedPort},
        modern_client::{Answer, soon},
        paused_time::passes,
    },
};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;

fn session(world: &ProxyAndServer) -> LegacyClient {
    LegacyClient::new(world.addr()).within("s1")
}

/// What a call is answered with that the server answers like this.
async fn answered(canned: Canned) -> Answer {
    let world = ProxyAndServer::new().await;
    let waiting = session(&world).call(7).await;
    world.server.call().await.canned(canned);
    waiting.answer().await
}

fn events(body: &str) -> Canned {
    Canned::status(200).body(body).header("content-type", "text/event-stream")
}

/// The messages of an event stream, and what other events there are.
fn messages(stream: &str) -> (Vec<Value>, usize) {
    let (mut messages, mut others) = (Vec::new(), 0);
    for event in stream.split("\n\n").filter(|event| !event.trim().is_empty()) {
        let named = event.lines().rfind(|line| line.starts_with("event:"));
        let data: String = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        match named.is_none_or(|line| line == "event: message") {
            true => messages.push(serde_json::from_str(&data).expect("JSON")),
            false => others += 1,
        }
    }
    (messages, others)
}

#[tokio::test]
async fn a_server_error_is_a_json_rpc_error() {
    for status in [500, 502, 503] {
        let answer = answered(Canned::status(status).body("upstream connect error")).await;
        assert_eq!(answer.refusal(), (200, -31004));
        assert_eq!(answer.json()["id"], 7);
        let message = answer.error()["message"].as_str().expect("a text").to_owned();
        assert!(message.contains(&status.to_string()) && message.contains("upstream connect"), "{message}");
    }
}

#[tokio::test]
async fn a_server_error_with_a_message_is_relayed_with_it() {
    let error = json!({ "code": -32603, "message": "out of paper", "data": { "tray": 2 } });
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
    let answer = answered(Canned::json(500, &body)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({ "jsonrpc": "2.0", "id": 7, "error": error }));
}

#[tokio::test]
async fn a_redirect_is_not_handed_to_the_client() {
    let answer = answered(Canned::status(307).header("location", "http://server.internal/mcp/")).await;
    assert_eq!(answer.refusal(), (200, -31004));
    let message = answer.error()["message"].as_str().expect("a text").to_owned();
    assert!(message.contains("http://server.internal/mcp/, which is another server"), "{message}");
    assert_eq!(answer.header("location"), "");
}

#[tokio::test]
async fn each_request_of_a_batch_gets_its_error() {
    let world = Setup::new()
        .server(|options| {
            options.hook = Some(Box::new(|seen| seen.json.is_array().then(|| Canned::status(503))));
        })
        .start()
        .await;
    let answer = session(&world).post(&format!("[{},{READY},{}]", call(1), call(2))).await.answer().await;
    let errors = answer.json();
    let told: Vec<_> =
        errors.as_array().expect("a batch").iter().map(|one| (&one["id"], &one["error"]["code"])).collect();
    assert_eq!(told, [(&json!(1), &json!(-31004)), (&json!(2), &json!(-31004))]);
}

#[tokio::test]
async fn an_unreachable_server_is_reported_for_requests_and_notifications() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &[]);
    let client = LegacyClient::new(proxy.addresses[0]).within("s1");
    assert_eq!(client.call(7).await.answer().await.refusal(), (200, -31001));
    for waiting in [client.listen().await, client.post(READY).await] {
        let answer = waiting.answer().await;
        assert_eq!(answer.refusal(), (502, -31001));
        assert!(answer.json().get("id").is_none());
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_the_response_gets_one() {
    let progress = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n";
    let answer = answered(events(progress)).await;
    let (messages, others) = messages(&answer.body);
    assert!(answer.body.starts_with(progress));
    assert_eq!((messages.len(), others), (2, 0));
    assert_eq!((&messages[1]["id"], &messages[1]["error"]["code"]), (&json!(7), &json!(-31002)));
}

#[tokio::test]
async fn a_stream_that_breaks_within_an_event_gets_a_response_that_can_be_read() {
    let world = ProxyAndServer::new().await;
    let waiting = session(&world).call(7).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"resu");
    let mut text = stream.piece().await.expect("it goes on").expect("it does not break off");
    events.break_off();
    text.push_str(&stream.rest().await);
    let (messages, others) = messages(&text);
    assert_eq!((messages.len(), others), (1, 1), "{text}");
    assert_eq!((&messages[0]["id"], &messages[0]["error"]["code"]), (&json!(7), &json!(-31002)));
}

#[tokio::test]
async fn unanswered_requests_of_a_batch_get_an_error() {
    let world = Setup::new()
        .server(|options| {
            options.hook = Some(Box::new(|seen| {
                let answer = "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n";
                seen.json.is_array().then(|| events(answer))
            }));
        })
        .start()
        .await;
    let batch = format!("[{},{},{}]", call(1), call(2), call(3));
    let (messages, _) = messages(&session(&world).post(&batch).await.answer().await.body);
    let told: Vec<_> = messages.iter().map(|one| (one["id"].clone(), one["error"]["code"].clone())).collect();
    assert_eq!(json!(told), json!([[2, null], [1, -31002], [3, -31002]]));
}

#[tokio::test]
async fn a_stream_may_break_after_the_response() {
    let world = ProxyAndServer::new().await;
    let waiting = session(&world).call(7).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    let response = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n";
    events.raw(response);
    let text = stream.piece().await.expect("it goes on").expect("it does not break off");
    events.break_off();
    assert_eq!(text + &stream.rest().await, response);
}

#[tokio::test]
async fn a_document_that_breaks_off_is_not_taken_for_whole() {
    let world = ProxyAndServer::new().await;
    let waiting = session(&world).call(7).await;
    let document = world.server.call().await.document();
    let mut stream = waiting.stream().await;
    document.raw("{\"jsonrpc\":\"2.0\",\"id\":7,");
    stream.piece().await.expect("it goes on").expect("it does not break off");
    document.break_off();
    assert!(stream.piece().await.expect("it does not just end").is_err());
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_answered() {
    let world = Setup::new().top("timeouts: { call: 10s, keep_alive: 1h }").start().await;
    let waiting = session(&world).call(7).await;
    let _call = world.server.call().await;
    passes(Duration::from_secs(10)).await;
    assert_eq!(waiting.answer().await.refusal(), (200, -31003));
    let waiting = session(&world).call(8).await;
    let events = world.server.call().await.stream();
    events.raw("id: 1\ndata:\n\n");
    let mut stream = waiting.stream().await;
    stream.piece().await.expect("it goes on").expect("it does not break off");
    passes(Duration::from_secs(10)).await;
    let (messages, _) = messages(&stream.rest().await);
    assert_eq!((&messages[0]["id"], &messages[0]["error"]["code"]), (&json!(8), &json!(-31003)));
}

#[tokio::test]
async fn a_call_that_is_in_flight_at_the_shutdown_is_answered() {
    let world = Setup::new().top("drain: 20ms").start().await;
    let client = session(&world);
    let (held, begun, resumable) = (client.call(1).await, client.call(2).await, client.call(3).await);
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(world.server.call().await);
    }
    calls.sort_by_key(|call| call.id().as_u64());
    let resumed = calls.pop().expect("the third").stream();
    let events = calls.pop().expect("the second").stream();
    resumed.raw("id: 1\ndata:\n\n");
    let (mut begun, mut resumable) = (begun.stream().await, resumable.stream().await);
    resumable.piece().await.expect("it goes on").expect("it does not break off");
    soon("the proxy stops", world.proxy.stop()).await;
    assert_eq!(held.answer().await.refusal(), (200, -31007));
    assert_eq!(messages(&begun.rest().await).0[0]["error"]["code"], -31007);
    assert_eq!(resumable.rest().await, "", "its client goes on with the next proxy");
    drop(events);
}

#[tokio::test]
async fn notifications_keep_the_servers_status() {
    let world = Setup::new()
        .server(|options| {
            options.hook =
                Some(Box::new(|seen| (seen.http == Method::GET).then(|| Canned::status(500).body("x"))));
        })
        .start()
        .await;
    let answer = session(&world).listen().await.answer().await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (500, "x"));
}

#[tokio::test]
async fn an_empty_answer_to_a_request_is_an_error() {
    let empty = [
        Canned::status(204),
        Canned::status(200).header("content-length", "0"),
        Canned::status(200).header("content-type", "application/json"),
        Canned::status(200).header("content-type", "application/json").header("content-length", "0"),
        events("").header("content-length", "0"),
        Canned::status(204).header("content-type", "text/event-stream"),
    ];
    for canned in empty {
        let answer = answered(canned).await;
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_i64()), (200, Some(-31004)));
        assert_eq!(answer.json()["id"], 7);
    }
}

#[tokio::test]
async fn an_empty_answer_to_what_we_would_have_added_to_is_an_error_too() {
    for method in ["initialize", "tools/list"] {
        for announced in [true, false] {
            let world = Setup::new()
                .server(move |options| {
                    options.hook = Some(Box::new(move |seen| {
                        let canned = Canned::status(200).header("content-type", "application/json");
                        let canned = if announced { canned.header("content-length", "0") } else { canned };
                        (seen.method() == method).then_some(canned)
                    }));
                })
                .start()
                .await;
            let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
            let ask = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            let client = match method {
                "initialize" => LegacyClient::new(world.addr()),
                _ => LegacyClient::new(world.addr()).hello().await,
            };
            let answer = client.post(&ask.to_string()).await.answer().await;
            // A handshake that fails has run no call.
            let code = if method == "initialize" { -31001 } else { -31004 };
            assert_eq!(answer.refusal(), (200, code), "{method}");
        }
    }
}

#[tokio::test]
async fn a_document_that_breaks_before_it_begins_is_an_error() {
    let world = ProxyAndServer::new().await;
    let waiting = session(&world).call(7).await;
    let document = world.server.call().await.document();
    let mut answer = waiting.stream().await;
    document.break_off();
    let answer: Value = serde_json::from_str(&answer.rest().await).expect("one error");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-31002)));
}

#[tokio::test]
async fn a_document_that_has_not_begun_is_an_error_at_the_deadline() {
    let route = ["defer: { mode: never }", "held: { progress: off, deadline: 10s }"];
    let world = Setup::new().route(route[0]).route(route[1]).start().await;
    let waiting = session(&world).call(7).await;
    let _document = world.server.call().await.document();
    let mut stream = waiting.stream().await;
    passes(Duration::from_secs(10)).await;
    let answer: Value = serde_json::from_str(&stream.rest().await).expect("one error");
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-31003)));
}

#[tokio::test]
async fn an_event_stream_that_announces_its_length_is_not_held_to_it() {
    let cut = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"res";
    let canned = events(cut).header("content-length", cut.len().to_string());
    let answer = answered(canned).await;
    assert_eq!(answer.header("content-length"), "");
    let (messages, _) = messages(&answer.body);
    assert_eq!((&messages[0]["id"], &messages[0]["error"]["code"]), (&json!(7), &json!(-31002)));
}

#[tokio::test]
async fn comments_of_ours_fit_into_an_event_stream_that_announces_its_length() {
    let world = ProxyAndServer::with("held: { progress: off, comments: 20ms }").await;
    let waiting = session(&world).call(7).await;
    let response = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n";
    let stream = world.server.call().await.stream_of(response.len());
    let mut answer = waiting.stream().await;
    let comment = answer.piece().await.expect("it goes on").expect("it does not break off");
    assert_eq!(comment, ":\n\n");
    stream.raw(response);
    drop(stream);
    assert!(answer.rest().await.ends_with(response));
}
