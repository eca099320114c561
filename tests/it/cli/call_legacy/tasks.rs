//! Tasks of 2025-11-25: how they are followed, their input requests, cancellation.

use super::{
    Running, SESSION, TASKS, makes_a_task, polled, question, refuses_strangers, said, task, tools, with_tasks,
};
use crate::support::legacy_server::{Canned, LegacyServer, Options, Seen};
use http::Method;
use serde_json::json;

/// Longer than any test: nothing is polled.
const NEVER_MS: u64 = 3_600_000;

async fn gone(server: &LegacyServer) -> Seen {
    server.seen(|seen| seen.http == Method::DELETE).await
}

#[tokio::test]
async fn a_tool_with_tasks_is_called_as_one_and_followed_to_its_result() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS, "--json"]);
    let seen = makes_a_task(&server, 10).await;
    server.listener(SESSION).await.notify(
        "notifications/progress",
        json!({ "progressToken": seen.json["params"]["_meta"]["progressToken"], "progress": 1, "total": 4, "message": "on it" }),
    );
    server.call().await.result(task("working", 10));
    let result = polled(&server, "completed").await;
    assert_eq!((result.method(), &result.seen.json["params"]["taskId"]), ("tasks/result", &json!("t1")));
    result.spelled(r#"{"content":[],"n": 9007199254740993,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}"#);

    let ended = call.end().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains(r#""n": 9007199254740993"#), "as it came: {}", ended.out);
    ended.says(&["task t1 (kept for 1m, polled every 10ms)\n", "on it (1/4)\n", "working\n", "completed\n"]);

    assert!(seen.json["params"]["task"]["ttl"].as_u64().is_some_and(|ttl| ttl > 0), "{}", seen.json);
    let hello = server.message("initialize").await;
    let params = &hello.json["params"];
    assert_eq!(
        (&params["protocolVersion"], &params["capabilities"]),
        (&json!("2025-11-25"), &json!({})),
        "nobody can be asked"
    );
    assert_eq!((hello.header("mcp-protocol-version"), hello.session()), (None, ""));
    for later in server.log().iter().skip(1) {
        assert_eq!(
            (later.header("mcp-protocol-version"), later.session()),
            (Some("2025-11-25"), SESSION),
            "{later:?}"
        );
    }
    let methods: Vec<_> = server.log().iter().map(|seen| seen.method().to_owned()).collect();
    assert_eq!(methods[..2], ["initialize", "notifications/initialized"], "before all else");
    gone(&server).await;
}

#[tokio::test]
async fn a_task_that_requires_input_is_followed_by_tasks_result() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS, "--answer", r#"elicitation-1={"name":"Ada"}"#]);
    makes_a_task(&server, 10).await;
    let result = polled(&server, "input_required").await;
    assert_eq!(result.method(), "tasks/result");
    let id = result.id();
    let stream = result.stream();
    stream.send(&question("q1"));
    let answer = server.seen(|seen| seen.answers(&json!("q1"))).await;
    assert_eq!(
        answer.json["result"],
        json!({
            "action": "accept", "content": { "name": "Ada" },
            "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } },
        })
    );
    // It goes on being polled while its result is waited for.
    for _ in 0..2 {
        server.call().await.result(task("working", 10));
    }
    stream.result(&id, said("done"));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    ended.says(&["input_required\n", "working\n"]);
    assert_eq!(server.messages("tasks/result"), 1);
    let hello = server.message("initialize").await;
    assert_eq!(
        hello.json["params"]["capabilities"],
        json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} })
    );
}

#[tokio::test]
async fn an_input_request_on_the_get_stream_is_answered_and_a_notification_spares_a_poll() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS, "--answer", r#"elicitation-1={"name":"Ada"}"#]);
    makes_a_task(&server, NEVER_MS).await;
    let listener = server.listener(SESSION).await;
    listener.send(&question("q1"));
    let answer = server.seen(|seen| seen.answers(&json!("q1"))).await;
    assert_eq!(answer.json["result"]["content"], json!({ "name": "Ada" }));
    listener.notify("notifications/tasks/status", task("completed", NEVER_MS));
    // What was overtaken on its way changes nothing.
    listener.notify("notifications/tasks/status", task("working", NEVER_MS));
    let result = server.call().await;
    assert_eq!(result.method(), "tasks/result");
    result.result(said("done"));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    assert_eq!(server.messages("tasks/get"), 0, "no more often than the server wants");
}

#[tokio::test]
async fn a_failed_task_ends_as_its_call_would_have() {
    let error = json!({ "code": -32603, "message": "no paper" });
    for (answer, code, out, err) in [
        (
            json!({ "result": { "content": [{ "type": "text", "text": "no" }], "isError": true } }),
            1,
            "no\n",
            "failed: why\n",
        ),
        (json!({ "error": error }), 2, "", "error: no paper (-32603)\n"),
        // What the Python SDK 1.30 says of a tool that raises an error.
        (
            json!({ "result": { "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } } } }),
            2,
            "",
            "error: the task failed: why\n",
        ),
    ] {
        let server = LegacyServer::start(with_tasks()).await;
        let call = Running::start(&server, "tool", &[TASKS]);
        makes_a_task(&server, 10).await;
        let mut failed = task("failed", 10);
        failed["statusMessage"] = "why".into();
        server.call().await.result(failed);
        let result = server.call().await;
        assert_eq!(result.method(), "tasks/result");
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},{}"#, result.id(), &answer.to_string()[1..]);
        result.canned(Canned::status(200).body(body).header("content-type", "application/json"));
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out), (Some(code), out), "{ended:?}");
        ended.says(&[err]);
    }
}

#[tokio::test]
async fn a_task_cancelled_by_another_client_is_reported_as_cancelled() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS, "--sampling", "x"]);
    makes_a_task(&server, 10).await;
    let result = polled(&server, "input_required").await;
    assert_eq!(result.method(), "tasks/result");
    result.error(json!({ "code": -32603, "message": "gone" }));
    let poll = server.call().await;
    assert_eq!(poll.method(), "tasks/get");
    poll.result(task("cancelled", 10));
    let ended = call.end().await;
    assert_eq!(ended.code, Some(130), "{ended:?}");
    ended.says(&["the task was cancelled\n"]);
}

#[tokio::test]
async fn ctrl_c_cancels_the_task_and_ends_the_session() {
    let server = LegacyServer::start(with_tasks()).await;
    let mut call = Running::start(&server, "tool", &[TASKS]);
    makes_a_task(&server, NEVER_MS).await;
    call.interrupt_after("task t1").await;
    let cancel = server.call().await;
    assert_eq!((cancel.method(), &cancel.seen.json["params"]), ("tasks/cancel", &json!({ "taskId": "t1" })));
    cancel.result(task("cancelled", 10));
    gone(&server).await;
    assert_eq!(call.end().await.code, Some(130));
    assert_eq!(server.messages("notifications/cancelled"), 0, "that is for calls that are no tasks");
}

#[tokio::test]
async fn ctrl_c_before_there_is_a_handle_waits_for_it_to_cancel_the_task() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let create = server.call().await;
    call.interrupt();
    create.result(json!({ "task": task("working", NEVER_MS) }));
    let cancel = polled(&server, "working").await;
    assert_eq!(cancel.method(), "tasks/cancel");
    cancel.result(task("cancelled", 10));
    let ended = call.end().await;
    assert_eq!((ended.code, server.messages("notifications/cancelled")), (Some(130), 0), "{ended:?}");
}

#[tokio::test]
async fn ctrl_c_cancels_a_call_that_is_no_task() {
    let server = LegacyServer::start(Options::default()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let waiting = server.call().await;
    call.interrupt();
    let cancelled = server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], waiting.id());
    gone(&server).await;
    let ended = call.end().await;
    assert_eq!(ended.code, Some(130));
    ended.says(&["cancelled\n"]);
}

#[tokio::test]
async fn a_task_that_cannot_be_cancelled_is_reported_as_running() {
    let options = Options {
        capabilities: json!({ "tasks": { "requests": { "tools": { "call": {} } } } }),
        ..with_tasks()
    };
    let server = LegacyServer::start(options).await;
    let call = Running::start(&server, "tool", &[TASKS, "--timeout", "1s"]);
    makes_a_task(&server, NEVER_MS).await;
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&[
        "the call could not be cancelled: task t1: ",
        "not declare `tasks.cancel`",
        "no result within 1s",
    ]);
    assert_eq!(server.messages("tasks/cancel"), 0);
}

#[tokio::test]
async fn without_tasks_for_it_a_tool_is_called_plainly() {
    let none = Options { tools: Some(tools("required")), ..Options::default() };
    let forbidden = Options { tools: Some(tools("forbidden")), ..with_tasks() };
    for (options, words) in [
        (none, &[TASKS][..]),
        (forbidden, &[TASKS]),
        (with_tasks(), &[TASKS, "--no-tasks"]),
        (with_tasks(), &["2025-06-18"]),
    ] {
        let version = if words[0] == TASKS { "2025-11-25" } else { "2025-06-18" };
        let server = LegacyServer::start(Options { version, ..options }).await;
        let call = Running::start(&server, "tool", words);
        let plain = server.call().await;
        assert_eq!(plain.seen.json["params"].get("task"), None);
        let (id, token) = (plain.id(), plain.seen.json["params"]["_meta"]["progressToken"].clone());
        let stream = plain.stream();
        stream.notify("notifications/progress", json!({ "progressToken": token, "progress": 2 }));
        stream.result(&id, said("done"));
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(0), "done\n", "2\n"));
    }
}

#[tokio::test]
async fn a_tool_that_requires_a_task_refuses_with_the_servers_message() {
    let server = LegacyServer::start(Options { tools: Some(tools("required")), ..with_tasks() }).await;
    let call = Running::start(&server, "tool", &[TASKS, "--no-tasks"]);
    server.call().await.error(json!({ "code": -32601, "message": "tool wants a task" }));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.err), (Some(2), "error: tool wants a task (-32601)\n"));
}

#[tokio::test]
async fn a_server_may_answer_at_once_what_was_to_be_a_task_and_the_reverse() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    server.call().await.result(json!({ "content": [{ "type": "text", "text": "at once" }] }));
    assert_eq!(call.end().await.out, "at once\n");

    let server = LegacyServer::start(Options::default()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    makes_a_task(&server, 10).await;
    let result = polled(&server, "completed").await;
    result.says("later");
    assert_eq!(call.end().await.out, "later\n");
}

#[tokio::test]
async fn a_task_that_the_client_did_not_declare_is_not_followed() {
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS, "--no-tasks"]);
    let seen = makes_a_task(&server, 10).await;
    assert_eq!(seen.json["params"].get("task"), None);
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    ended.says(&["although this client did not declare support", "`--task t1`"]);
    assert_eq!(server.messages("tasks/get") + server.messages("tasks/result"), 0);
}

#[tokio::test]
async fn a_task_of_2025_11_25_is_followed_by_its_handle() {
    for words in [&["--task", "t1", "--protocol", TASKS][..], &["--task", "t1"]] {
        let refusal = Canned::status(400).body("Missing session ID");
        let server = LegacyServer::start(refuses_strangers(refusal, with_tasks())).await;
        let call = Running::begin(&server, words);
        let result = polled(&server, "completed").await;
        assert_eq!((result.method(), &result.seen.json["params"]["taskId"]), ("tasks/result", &json!("t1")));
        result.result(said("done"));
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
        assert_eq!(server.messages("tools/call") + server.messages("tools/list"), 0);
    }
}

#[tokio::test]
async fn text_of_a_legacy_server_has_no_terminal_escapes() {
    const COMMAND: &str = "\u{1b}]0;owned\u{7}\u{9b}2J";
    let server = LegacyServer::start(with_tasks()).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let mut working = task("working", 10);
    working["statusMessage"] = COMMAND.into();
    let made = server.call().await;
    made.result(json!({ "task": working.clone() }));
    let poll = server.call().await;
    assert_eq!(poll.method(), "tasks/get");
    poll.error(json!({ "code": -32603, "message": COMMAND, "data": COMMAND }));
    let ended = call.end().await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let commands = |text: &str| text.chars().any(|char| char.is_control() && char != '\n');
    assert!(!commands(&ended.err), "{:?}", ended.err);
    ended.says(&["working: \\u{1b}]0;owned\\u{7}\\u{9b}2J\n", "error: \\u{1b}]0;owned"]);

    // What goes into a pipe may come to a terminal from there; a program that wants it as it is reads `--json`.
    let server = LegacyServer::start(Options::default()).await;
    let call = Running::start(&server, "tool", &["2025-06-18"]);
    server.call().await.says(COMMAND);
    assert_eq!(call.end().await.out, "\\u{1b}]0;owned\\u{7}\\u{9b}2J\n");
}
