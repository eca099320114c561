//! Sessions and streams that break, server requests, plain calls.

use super::{Running, SESSION, TASKS, makes_a_task, polled, question, said, with_tasks};
use crate::support::legacy_server::{Canned, Events, Get, LegacyServer, Options};
use http::Method;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// What a GET with `Response-Event-ID` is answered with: the response to the last `tools/call`.
fn resumable(options: Options, refusals: u32) -> Options {
    let state = Arc::new(Mutex::new((Value::Null, refusals)));
    options.hook(move |seen| {
        let mut state = state.lock().expect("nothing panics with it");
        if seen.method() == "tools/call" {
            state.0 = seen.json["id"].clone();
        }
        seen.header("last-event-id").filter(|id| *id == "e1")?;
        if state.1 > 0 {
            state.1 -= 1;
            return Some(Canned::status(503));
        }
        let response = json!({ "jsonrpc": "2.0", "id": state.0, "result": said("resumed") });
        let body = format!("id: e2\ndata: {response}\n\n");
        Some(Canned::status(200).body(body).header("content-type", "text/event-stream"))
    })
}

#[tokio::test]
async fn a_stream_that_breaks_before_the_response_is_resumed_after_its_last_event() {
    for (breaks, refusals) in [(true, 0), (false, 0), (false, 1)] {
        let server = LegacyServer::start(resumable(Options::default(), refusals)).await;
        let call = Running::start(&server, "tool", &[TASKS]);
        let stream = server.call().await.stream();
        stream.raw("id: e1\nretry: 20\ndata:\n\n");
        stream.send(&json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" }));
        server.seen(|seen| seen.answers(&json!("p"))).await;
        if breaks {
            stream.break_off();
        } else {
            drop(stream);
        }
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out), (Some(0), "resumed\n"), "{ended:?}");
        assert_eq!(server.messages("tools/call"), 1, "it is not made again");
    }
}

#[tokio::test]
async fn a_stream_without_event_ids_that_breaks_is_a_lost_call() {
    let server = LegacyServer::start(Options::default()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    drop(server.call().await.stream());
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["the stream ended without the response"]);
    assert_eq!(server.messages("tools/call"), 1, "it is not made again");
}

#[tokio::test]
async fn a_result_that_breaks_off_is_requested_again_and_so_is_a_poll() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    makes_a_task(&server, 10).await;
    server.call().await.canned(Canned::status(503));
    let result = polled(&server, "completed").await;
    drop(result.stream());
    let result = polled(&server, "completed").await;
    assert_eq!(result.method(), "tasks/result");
    result.result(said("done"));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    ended.says(&["HTTP 503 Service Unavailable; retrying\n", "was lost: "]);
}

#[tokio::test]
async fn a_lost_session_is_named_with_the_handle_of_its_task() {
    let lost = |method: &'static str| {
        with_tasks().hook(move |seen| (seen.method() == method).then(|| Canned::status(404)))
    };
    let server = LegacyServer::start(lost("tasks/get")).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    makes_a_task(&server, 10).await;
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["task t1: the server ended the session (HTTP 404)", "its handle is t1"]);

    let server = LegacyServer::start(lost("tools/call")).await;
    let ended = Running::start(&server, "tool", &[TASKS]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["error: the server ended the session (HTTP 404)", "repeat the call"]);
}

#[tokio::test]
async fn a_server_without_sessions_or_streams_of_its_own_will_do() {
    let options = Options { sessions: false, get: Get::Refused(405), sse: true, ..with_tasks() }
        .hook(|seen| (seen.http == Method::DELETE).then(|| Canned::status(405)));
    let server = LegacyServer::start(options).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    makes_a_task(&server, 10).await;
    polled(&server, "completed").await.result(said("done"));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    assert_eq!(server.count(|seen| seen.http == Method::GET), 1, "it is not asked for again");
    assert_eq!(server.count(|seen| seen.http == Method::DELETE), 0, "there is no session to end");
}

#[tokio::test]
async fn a_get_stream_that_ends_is_resumed_where_it_was() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let create = server.call().await;
    let listener = server.listener(SESSION).await;
    listener.raw("id: g7\nretry: 10\ndata:\n\n");
    server.hang_up(SESSION);
    drop(listener);
    server.seen(|seen| seen.header("last-event-id") == Some("g7")).await;
    create.says("done");
    assert_eq!(call.end().await.code, Some(0));
}

#[tokio::test]
async fn what_was_not_declared_is_refused_and_a_ping_is_answered() {
    let server = LegacyServer::start(Options::default()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let waiting = server.call().await;
    let id = waiting.id();
    let stream: Events = waiting.stream();
    for (asked, method) in [("p", "ping"), ("s", "sampling/createMessage"), ("v", "vendor/ask")] {
        stream.send(&json!({ "jsonrpc": "2.0", "id": asked, "method": method, "params": {} }));
    }
    let answer = async |id| server.seen(|seen| seen.answers(&json!(id))).await.json;
    assert_eq!(answer("p").await["result"], json!({}));
    assert_eq!(answer("s").await["error"]["code"], -32601);
    assert_eq!(answer("v").await["error"]["code"], -32601);
    stream.result(&id, said("done"));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    ended.says(&["(sampling/createMessage)"]);
    assert!(!ended.err.contains("vendor/ask"), "{}", ended.err);
}

#[tokio::test]
async fn a_plain_call_with_an_unanswerable_input_request_is_cancelled() {
    let server = LegacyServer::start(Options { version: "2025-06-18", ..Options::default() }).await;
    let call = Running::start(&server, "tool", &["2025-06-18", "--answer", "elicitation-2=decline"]);
    let waiting = server.call().await;
    let id = waiting.id();
    let stream = waiting.stream();
    stream.send(&question("q1"));
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["no answers are available\n  elicitation-1 (elicitation/create): Who?", "`elicitation-2`"]);
    assert_eq!(server.message("notifications/cancelled").await.json["params"]["requestId"], id);
    let hello = server.message("initialize").await;
    assert_eq!(hello.json["params"]["capabilities"]["elicitation"], json!({}), "there were no modes yet");
}
