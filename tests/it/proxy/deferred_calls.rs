//! Slow calls become tasks.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, SLOW, Setup};
use crate::support::{
    legacy_server::Canned,
    limit_hits::LimitHits,
    modern_client::{Event, Version, indistinguishable},
    paused_time::passes,
};
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn a_slow_call_becomes_a_task_with_a_flat_handle() {
    for version in [Version::Http1, Version::Http2] {
        let world = ProxyAndServer::with(SLOW).await;
        let waiting = world.tasker().over(version).call("slow").await;
        let call = world.server.call().await;

        let answer = waiting.answer().await;

        assert_eq!(answer.status, 200);
        assert!(answer.is_json());
        let handle = answer.result();
        let mut members: Vec<_> = handle.as_object().expect("an object").keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(
            members,
            [
                "_meta",
                "createdAt",
                "lastUpdatedAt",
                "pollIntervalMs",
                "resultType",
                "status",
                "taskId",
                "ttlMs"
            ]
        );
        assert_eq!((&handle["resultType"], &handle["status"]), (&json!("task"), &json!("working")));
        assert!(handle["ttlMs"].as_u64().is_some_and(|ttl| ttl >= 600_000), "{handle}");
        assert!(handle["pollIntervalMs"].as_u64().is_some_and(|interval| interval > 0), "{handle}");
        assert!(handle["createdAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{handle}");
        call.says("done");
    }
}

#[tokio::test]
async fn a_task_is_found_at_once_and_in_the_end_holds_the_result_as_it_came() {
    let world = ProxyAndServer::with(SLOW).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();

    let working = client.task(&task).await;
    assert_eq!((&working["status"], &working["resultType"]), (&json!("working"), &json!("complete")));
    assert!(working.get("result").is_none());

    call.spelled(r#"{"content":[], "big":12345678901234567890123,"e":1E+2}"#);
    let ended = client.ended(&task).await;
    assert_eq!(ended["status"], "completed");
    assert_eq!((&ended["taskId"], &ended["createdAt"]), (&working["taskId"], &working["createdAt"]));
    assert!(ended["ttlMs"].as_u64() >= working["ttlMs"].as_u64(), "never shortened");
    assert_eq!(ended["result"]["resultType"], "complete");
    let body = client.of_task("tasks/get", &task).await.body;
    assert!(body.contains(r#""result":{"content":[], "big":12345678901234567890123,"e":1E+2"#), "{body}");
    assert!(!body.contains("related-task"));
    assert_eq!(world.calls(), 1, "nothing is called twice");
}

#[tokio::test]
async fn an_error_of_the_server_makes_a_failed_task() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.error(json!({ "code": -32603, "message": "no disk", "data": { "free": 0 } }));
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["statusMessage"]), (&json!("failed"), &json!("no disk")));
    assert_eq!(ended["error"], json!({ "code": -32603, "message": "no disk", "data": { "free": 0 } }));
    assert!(ended.get("result").is_none());
}

#[tokio::test]
async fn a_tool_that_fails_makes_a_completed_task() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.result(json!({ "content": [{ "type": "text", "text": "no disk" }], "isError": true }));
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["result"]["isError"]), (&json!("completed"), &json!(true)));
    assert!(ended.get("error").is_none());
}

#[tokio::test]
async fn progress_is_shown_in_the_status_message() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (id, token) = (call.id(), call.seen.json["params"]["_meta"]["progressToken"].clone());
    let events = call.stream();
    events.notify(
        "notifications/progress",
        json!({ "progressToken": token, "progress": 1, "total": 2, "message": "half" }),
    );
    let halfway = client.until(&task, |task| task["statusMessage"] == "half (1/2)").await;
    assert_eq!(halfway["status"], "working");
    events.result(&id, json!({ "content": [] }));
    let ended = client.ended(&task).await;
    assert_eq!(ended.get("statusMessage"), None, "halfway is no news of a call that is done");
}

#[tokio::test]
async fn progress_before_the_handle_goes_to_the_client_that_asked_for_it() {
    let world = ProxyAndServer::with("defer: { after: 10s }").await;
    let client = world.tasker();
    let params = json!({ "name": "slow", "_meta": { "progressToken": "mine" } });
    let mut stream = {
        let waiting = client.send("tools/call", params).await;
        let call = world.server.call().await;
        let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
        let events = call.stream();
        events.notify("notifications/progress", json!({ "progressToken": token, "progress": 1 }));
        let stream = waiting.stream().await;
        // The call goes on for as long as its stream is held.
        std::mem::forget(events);
        stream
    };
    assert_eq!(
        stream.notice("notifications/progress").await,
        json!({ "progressToken": "mine", "progress": 1 })
    );
    passes(Duration::from_secs(10)).await;
    let handle = stream.next().await;
    assert_eq!((stream.status.as_u16(), &handle["result"]["resultType"]), (200, &json!("task")));
    assert_eq!(stream.event().await, None, "the connection is given back");
}

#[tokio::test]
async fn a_large_result_comes_as_one_document() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let text = "x".repeat(3 << 20);
    call.says(&text);
    client.ended(&task).await;
    let answer = client.of_task("tasks/get", &task).await;
    assert!(answer.is_json(), "some clients refuse events of this size");
    assert_eq!(answer.result()["result"]["content"][0]["text"], json!(text));
}

#[tokio::test]
async fn a_result_over_the_limit_fails_its_task_and_the_limit_is_named() {
    let hits = LimitHits::of("limits.stored_result_bytes");
    let world = Setup::new().route(ALWAYS).top("limits: { stored_result_bytes: 1000 }").start().await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says(&"x".repeat(1000));
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(-31005)));
    let message = ended["error"]["message"].as_str().expect("words");
    assert!(message.contains("limits.stored_result_bytes") && message.contains("1000"), "{message}");
    hits.are(1).await;
}

#[tokio::test]
async fn the_clients_connection_is_given_back_with_the_handle() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let mut kept = world.tasker().kept().await;
    let task = kept.ask("tools/call", json!({ "name": "slow" })).await.task();
    let again = kept.ask("tasks/get", json!({ "taskId": task })).await.result();
    assert_eq!(again["status"], "working");
    world.server.call().await.says("done");
    assert_eq!(kept.client().ended(&task).await["status"], "completed");
}

#[tokio::test]
async fn updates_are_acknowledged_and_answers_to_nothing_are_ignored() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let before = client.task(&task).await;
    let params = json!({ "taskId": task, "inputResponses": { "nobody": { "action": "accept" } } });
    assert_eq!(
        client.ask("tasks/update", params).await.apart_from_meta(),
        json!({ "resultType": "complete" })
    );
    assert_eq!(client.task(&task).await["lastUpdatedAt"], before["lastUpdatedAt"]);
    let params = json!({ "taskId": task, "inputResponses": [] });
    assert_eq!(client.ask("tasks/update", params).await.refusal(), (200, -32602));
    call.says("done");
}

#[tokio::test]
async fn tasks_are_only_for_clients_that_declare_the_extension_on_that_very_request() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let waiting = world.tasker().call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for id in [&*task, "unknown"] {
            let answer = world.client().of_task(method, id).await;
            assert_eq!(answer.refusal(), (400, -32021), "{method}");
            assert_eq!(
                answer.error()["data"],
                json!({ "requiredCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } } })
            );
        }
    }
    // The very same client, not declaring it this time, waits.
    let waiting = world.client().call("slow").await;
    world.server.call().await.says("waited for");
    assert_eq!(waiting.answer().await.text(), "waited for");
    call.says("done");
}

#[tokio::test]
async fn an_answer_that_is_no_result_fails_the_task() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.spelled("[1]");
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(-31004)));
}

#[tokio::test]
async fn only_calls_of_tools_become_tasks() {
    let world = Setup::new().route(ALWAYS).top("timeouts: { keep_alive: 20ms }").start().await;
    let client = world.tasker();
    for (method, params) in
        [("prompts/get", json!({ "name": "p" })), ("resources/read", json!({ "uri": "file:///a" }))]
    {
        let mut stream = client.send(method, params).await.stream().await;
        let call = world.server.call().await;
        assert_eq!(stream.event().await, Some(Event::Comment), "it is held");
        call.result(json!({ "x": 1 }));
        assert_eq!(stream.next().await["result"]["x"], json!(1));
    }
}

#[tokio::test]
async fn a_request_for_legacy_tasks_is_not_relayed() {
    let world = ProxyAndServer::new().await;
    let waiting = world.tasker().send("tools/call", json!({ "name": "t", "task": { "ttl": 1 } })).await;
    let call = world.server.call().await;
    assert_eq!(call.seen.json["params"].get("task"), None::<&Value>);
    call.says("plain");
    assert_eq!(waiting.answer().await.text(), "plain");
}

#[tokio::test]
async fn of_frequent_progress_the_last_message_is_shown() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let mut stream = client.listen(json!({ "taskIds": [task] })).await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    let id = call.id();
    let events = call.stream();
    for progress in 1..=50 {
        events.notify(
            "notifications/progress",
            json!({ "progressToken": id, "progress": progress, "total": 50 }),
        );
    }
    let mut told = 0;
    loop {
        told += 1;
        if stream.notice("notifications/tasks").await["statusMessage"] == "50/50" {
            break;
        }
    }
    assert!(told < 10, "many words at a time are one: {told}");
    events.result(&id, json!({ "content": [] }));
}

#[tokio::test]
async fn a_result_that_comes_on_the_sessions_own_stream_ends_the_task() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (id, session) = (call.id(), call.session().to_owned());
    call.canned(Canned::status(202));
    world.server.listener(&session).await.result(&id, json!({ "content": [], "x": 1 }));
    assert_eq!(client.ended(&task).await["result"]["x"], 1);
}

// === time ===

/// Moves the time of the proxy, and of everything else, on.
async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_result_is_found_until_its_time_is_over_and_not_after() {
    let world = ProxyAndServer::with("defer: { mode: always, retention: 40s }").await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    assert_eq!(client.task(&task).await["ttlMs"], 60_000, "at least a minute while it works");
    pass(100).await;
    let working = client.until(&task, |task| task["ttlMs"].as_u64() > Some(100_000)).await;
    assert_eq!(working["status"], "working", "and another when half of it is over");
    call.says("done");
    let ended = client.ended(&task).await;
    let time = |at: &Value| {
        at.as_str().expect("a time").parse::<jiff::Timestamp>().expect("ISO 8601").as_millisecond()
    };
    let ran = time(&ended["lastUpdatedAt"]) - time(&ended["createdAt"]);
    assert_eq!(ended["ttlMs"], ran + 40_000, "what is written holds for what follows the end");
    pass(30).await;
    let late = client.task(&task).await;
    assert_eq!((&late["status"], &late["ttlMs"]), (&json!("completed"), &ended["ttlMs"]));
    pass(10).await;
    let gone = client.of_task("tasks/get", &task).await;
    let unknown = client.of_task("tasks/get", "unknown").await;
    assert!(indistinguishable(&gone, &unknown), "{gone:?} {unknown:?}");
}

#[tokio::test]
async fn a_task_that_works_outlives_every_ttl_and_then_keeps_its_result() {
    let world = ProxyAndServer::with("defer: { mode: always, retention: 20m }").await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    for minutes in [15, 30, 45, 60] {
        pass(15 * 60).await;
        let working = client.until(&task, |task| task["ttlMs"].as_u64() > Some(minutes * 60_000)).await;
        assert_eq!(working["status"], "working");
    }
    assert_eq!(client.task(&task).await["pollIntervalMs"], 30_000, "an old task is asked for now and then");
    call.says("done");
    let ended = client.ended(&task).await;
    assert!(ended["ttlMs"].as_u64() >= Some(80 * 60_000), "{ended}");
    pass(19 * 60).await;
    assert_eq!(client.task(&task).await["result"]["content"][0]["text"], "done");
}
#[tokio::test]
async fn a_call_before_which_the_tools_must_be_listed_becomes_a_task_in_time() {
    let world = Setup::new().route(SLOW).server(|options| options.tools = None).start().await;
    let waiting = world.tasker().call("slow").await;
    let list = world.server.call().await;
    assert_eq!(list.method(), "tools/list");
    let task = waiting.answer().await.task();
    list.result(json!({ "tools": [] }));
    world.server.call().await.says("done");
    assert_eq!(world.tasker().ended(&task).await["status"], "completed");
}
