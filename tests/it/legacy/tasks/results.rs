//! `tasks/result`.

use super::task_client::{
    Answer, Call, Canned, ProxyAndServer, RELATED, Stream, Tasker, Value, heard, id, json, on_terms,
    question, setup, world,
};
use crate::{
    proxy::proxy_and_server::ALWAYS,
    support::{legacy_server::Options, modern_client::Event, paused_time::passes, random_json::member},
};
use deferral::internals::policy::LegacyTaskPolicy;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use std::time::Duration;

/// The response in what a waiting request hears, once it comes.
async fn response(stream: &mut Stream) -> Value {
    loop {
        let message = heard(stream).await;
        if message.get("method").is_none() {
            return message;
        }
    }
}

/// The very bytes of the last message of an answer.
fn last(answer: &Answer) -> String {
    let last = answer.body.trim_end().lines().last().expect("a message");
    last.strip_prefix("data: ").unwrap_or(last).to_owned()
}

#[tokio::test]
async fn tasks_result_waits_for_the_end() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let mut waiting = client.waits(&task).await;
    assert_eq!(client.get(&task).await["status"], "working", "polls go on meanwhile");
    call.says("done");
    let response = response(&mut waiting).await;
    assert_eq!((&response["id"], &response["jsonrpc"]), (&json!(7), &json!("2.0")));
    assert_eq!(response["result"]["content"][0]["text"], "done");
    assert!(waiting.event().await.is_none(), "released once, and closed");
}

#[tokio::test]
async fn after_the_end_the_result_is_one_document_for_every_request() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.says("done");
    client.becomes(&task, "completed").await;
    for _ in 0..3 {
        let answer = client.result(&task).await;
        assert!(answer.is_json());
        assert_eq!((answer.status.as_u16(), &*answer.text()), (200, "done"));
    }
}

#[tokio::test]
async fn several_requests_wait_and_a_disconnect_of_one_cancels_nothing() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(client.waits(&task).await);
    }
    waiting.pop().expect("a stream").leave();
    waiting.remove(0).leave();
    client.send("tasks/result", json!({ "taskId": task })).await.leave();
    call.says("done");
    for stream in &mut waiting {
        assert_eq!(response(stream).await["result"]["content"][0]["text"], "done");
    }
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn what_waits_is_kept_alive_by_comments_also_while_the_task_reports_progress() {
    let world = setup().route(ALWAYS).top("timeouts: { keep_alive: 700ms }").start().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
    let events = call.stream();
    let mut waiting = client.waits(&task).await;
    assert_eq!(waiting.event().await, Some(Event::Comment));
    // Its progress changes the task more often than that (each half second), and nothing is said of it.
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let (mut progress, mut comments, mut silent) = (0, 0, 0);
    while comments < 3 {
        tokio::select! {
            event = waiting.event() => {
                assert_eq!(event, Some(Event::Comment));
                comments += 1;
                silent = 0;
            }
            _ = pace.tick() => {
                progress += 1;
                let params = json!({ "progressToken": token, "progress": progress });
                events.notify("notifications/progress", params);
                silent += 1;
                assert!(silent < 60, "no comment came for three seconds");
            }
        }
    }
    assert_ne!(client.get(&task).await.get("statusMessage"), None);
}

#[tokio::test]
async fn a_result_is_the_servers_with_the_related_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let spelled = r#"{ "content":[],"structuredContent":{"n":1e400,"m":12345678901234567890123}, "x" :[1.10],"_meta":{"k" : 1,"k2":{}}}"#;
    for waits in [true, false] {
        let (task, call) = client.makes(&world).await;
        let answer = match waits {
            true => {
                let waiting = client.send("tasks/result", json!({ "taskId": task })).await;
                call.spelled(spelled);
                waiting.answer().await
            }
            false => {
                call.spelled(spelled);
                client.becomes(&task, "completed").await;
                client.result(&task).await
            }
        };
        let about = format!(r#","{RELATED}":{{"taskId":"{task}"}}"#);
        let result = member(&last(&answer), "result").expect("a result");
        assert!(result.contains(&about), "{result}");
        assert_eq!(result.replace(&about, ""), spelled);
    }
}

#[tokio::test]
async fn an_error_is_the_servers() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let spelled = "{\"code\":-32042, \"message\":\"go \\\"there\\\"\",\n\"data\":{\"n\":1e400}}";
    for waits in [true, false] {
        let (task, call) = client.makes(&world).await;
        let id = call.id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{spelled}}}"#);
        let canned = Canned::status(200).body(body).header("content-type", "application/json");
        let answer = match waits {
            true => {
                let waiting = client.send("tasks/result", json!({ "taskId": task })).await;
                call.canned(canned);
                waiting.answer().await
            }
            false => {
                call.canned(canned);
                client.becomes(&task, "failed").await;
                client.result(&task).await
            }
        };
        assert_eq!(answer.status, 200);
        assert_eq!(member(&last(&answer), "error").expect("an error"), spelled.replace('\n', " "));
        assert_eq!(client.get(&task).await["statusMessage"], "go \"there\"");
    }
}

#[tokio::test]
async fn a_tool_error_is_a_failed_task_with_its_message_and_result() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.result(json!({ "content": [{ "type": "text", "text": "rate limit" }], "isError": true }));
    let shown = client.becomes(&task, "failed").await;
    assert_eq!(shown["statusMessage"], "rate limit");
    let result = client.result(&task).await.result();
    assert_eq!((&result["isError"], &result["content"][0]["text"]), (&json!(true), &json!("rate limit")));
}

#[tokio::test]
async fn a_tool_error_is_a_completed_task_where_configured() {
    let world =
        on_terms(LegacyTaskPolicy { completes_on_tool_error: true, ..LegacyTaskPolicy::default() }).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.result(json!({ "content": [{ "type": "text", "text": "rate limit" }], "isError": true }));
    let shown = client.becomes(&task, "completed").await;
    assert_eq!(shown["statusMessage"], "rate limit");
    assert_eq!(client.result(&task).await.result()["isError"], true);
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_task_and_names_the_limit() {
    let world = setup().route(ALWAYS).top("limits: { stored_result_bytes: 1000 }").start().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.says(&"x".repeat(1000));
    let error = client.result(&task).await.error();
    assert_eq!(error["code"], -31005);
    assert!(error["message"].as_str().expect("words").contains("limits.stored_result_bytes"));
    assert_eq!(client.get(&task).await["status"], "failed");
}

/// What a task has come to whose server did this.
async fn fails(world: &ProxyAndServer, what: impl AsyncFnOnce(Call)) -> (i64, String) {
    let client = Tasker::hello(world).await;
    let (task, call) = client.makes(world).await;
    let mut waiting = client.waits(&task).await;
    what(call).await;
    let waited = response(&mut waiting).await["error"].take();
    let answer = client.result(&task).await;
    assert_eq!((answer.status.as_u16(), &answer.error()), (200, &waited));
    let shown = client.get(&task).await;
    assert_eq!((&shown["status"], &shown["statusMessage"]), (&json!("failed"), &waited["message"]));
    assert_eq!(world.server.messages("initialize"), 1, "its session is not ours to open again");
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 0);
    assert_eq!(world.calls(), 1, "the call is not made twice");
    (waited["code"].as_i64().expect("a code"), waited["message"].as_str().expect("words").to_owned())
}

#[tokio::test]
async fn a_server_failure_fails_its_tasks_with_a_message() {
    // Nothing of the answer, then a part of it.
    let (code, _) = fails(&world(ALWAYS).await, async |call| drop(call.document())).await;
    assert!(code <= -31001, "{code}");
    let (code, _) = fails(&world(ALWAYS).await, async |call| call.stream().break_off()).await;
    assert_eq!(code, -31002);
    let (code, _) = fails(&world(ALWAYS).await, async |call| {
        let events = call.stream();
        events.notify("notifications/message", json!({ "data": 1 }));
        drop(events);
    })
    .await;
    assert_eq!(code, -31002);
    let (code, words) = fails(&world(ALWAYS).await, async |call| call.canned(Canned::status(500))).await;
    assert!(words.contains("500"), "{code} {words}");
    let html = || Canned::status(200).body("<html>").header("content-type", "text/html");
    let (code, words) = fails(&world(ALWAYS).await, async |call| call.canned(html())).await;
    assert_eq!(code, -31004, "{words}");
    let (code, words) = fails(&world(ALWAYS).await, async |call| call.canned(Canned::status(202))).await;
    assert_eq!(code, -31004, "{words}");
}

#[tokio::test]
async fn credentials_that_are_refused_in_a_task_fail_it() {
    let challenge = || Canned::status(401).header("www-authenticate", "Bearer");
    let (code, words) = fails(&world(ALWAYS).await, async |call| call.canned(challenge())).await;
    assert_eq!(code, -31008, "{words}");
}

#[tokio::test]
async fn a_session_that_is_lost_in_a_task_fails_it() {
    let (_, words) = fails(&world(ALWAYS).await, async |call| call.canned(Canned::status(404))).await;
    assert!(words.contains("404"), "{words}");
    let named = json!({ "jsonrpc": "2.0", "id": "server-error", "error": { "code": -32600, "message": "Session not found" } });
    let lost = || Canned::json(404, &named);
    let (code, words) = fails(&world(ALWAYS).await, async |call| call.canned(lost())).await;
    assert_eq!((code, &*words), (-32600, "Session not found"));
}

/// Options of a server that loses its session `s1` on request.
fn losing(options: &mut Options) -> Arc<AtomicBool> {
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&is_lost);
    let before = options.hook.take().expect("there is one");
    options.hook = Some(Box::new(move |seen| match lost.load(Relaxed) && seen.session() == "s1" {
        true => Some(Canned::status(404)),
        false => before(seen),
    }));
    is_lost
}

#[tokio::test]
async fn a_session_lost_before_the_task_is_reported_to_the_client() {
    let mut setup = setup().route("tasks: { unsolicited: always }");
    let is_lost = losing(&mut setup.options);
    let world = setup.start().await;
    let client = Tasker::hello(&world).await;
    let plain = json!({ "name": "slow", "arguments": {} });
    let waiting = client.send("tools/call", plain.clone()).await;
    let call = world.server.call().await;
    is_lost.store(true, Relaxed);
    call.canned(Canned::status(404));
    waiting.answer().await.error();
    assert_eq!(client.ask("tools/call", plain).await.status, 404);
}

#[tokio::test]
async fn a_session_lost_during_a_task_is_reported_and_the_next_session_finds_the_task() {
    let mut setup = setup().route(ALWAYS);
    let is_lost = losing(&mut setup.options);
    let world = setup.start().await;
    let client = Tasker::bearing(&world, "a").await;
    let (task, call) = client.makes(&world).await;
    let waiting = client.send("tasks/result", json!({ "taskId": task })).await;
    is_lost.store(true, Relaxed);
    call.canned(Canned::status(404));
    waiting.answer().await.error();
    // All that it sends would be answered here: nothing else could tell it.
    assert_eq!(client.begins(json!({})).await.status, 404);
    assert_eq!(client.of("tasks/get", &task).await.status, 404);
    let client = Tasker::bearing(&world, "a").await;
    assert_eq!(client.get(&task).await["status"], "failed");
    client.makes(&world).await.1.says("done");
}

#[tokio::test]
async fn a_call_that_takes_too_long_fails_and_is_cancelled() {
    let world = setup().route(ALWAYS).top("timeouts: { call: 10s, keep_alive: 1h }").start().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let id = call.id();
    passes(Duration::from_secs(10)).await;
    let error = client.result(&task).await.error();
    assert_eq!(error["code"], -31003, "{error}");
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], id);
}

#[tokio::test]
async fn a_server_that_is_gone_fails_its_tasks() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let ProxyAndServer { server, proxy } = world;
    drop(server);
    let answer = client.begins(json!({})).await;
    // Its connections may be open still.
    let task = id(&answer);
    let error = client.result(&task).await.error();
    assert!(error["code"].as_i64().expect("a code") <= -31001, "{error}");
    proxy.stop().await;
}

#[tokio::test]
async fn notifications_before_the_end_are_delivered_before_it() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, id, events) = client.makes_stream(&world).await;
    let mut waiting = client.waits(&task).await;
    let log = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": 1 } });
    let result = json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } });
    events.raw(format!("data: {log}\n\ndata: {}\n\ndata: {result}\n\n", question(0, "?")));
    assert_eq!(heard(&mut waiting).await["params"]["data"], 1);
    assert_eq!(response(&mut waiting).await["result"]["content"], json!([]));
}
