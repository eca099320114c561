//! `deferral call --protocol`: the older revisions, against a server that is told what to say.

use crate::support::legacy_server::{Canned, Events, Get, LegacyServer, Options, PATIENCE, Seen};
use http::Method;
use serde_json::{Value, json};
use std::{
    process::{Output, Stdio},
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

const TASKS: &str = "2025-11-25";
/// Longer than any test: nothing is polled.
const NEVER_MS: u64 = 3_600_000;

/// `deferral call` at work.
struct Running(Child);

impl Running {
    fn start(server: &LegacyServer, tool: &str, words: &[&str]) -> Self {
        Self::begin(server, &[&[tool, "--protocol"], words].concat())
    }

    /// Without a word of which revision to speak, unless it is among these.
    fn begin(server: &LegacyServer, words: &[&str]) -> Self {
        let url = server.url();
        let child = Command::new(env!("CARGO_BIN_EXE_deferral"))
            .args([&["call", &url], words].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        Self(child)
    }

    async fn end(self) -> Ended {
        let Output { status, stdout, stderr } =
            timeout(PATIENCE, self.0.wait_with_output()).await.expect("it ends").expect("it was started");
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        Ended { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// Ctrl-C, once this was said.
    async fn interrupt_after(&mut self, words: &str) {
        let mut lines = BufReader::new(self.0.stderr.take().expect("it is piped")).lines();
        loop {
            let line = timeout(PATIENCE, lines.next_line()).await.expect("it speaks").expect("text");
            if line.expect("it has not ended").contains(words) {
                break;
            }
        }
        self.interrupt();
        // The rest is read, so that it can be written.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    }

    fn interrupt(&self) {
        let id = self.0.id().expect("it runs").to_string();
        let sent = std::process::Command::new("kill").args(["-INT", &id]).status().expect("kill is there");
        assert!(sent.success());
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.err.contains(part), "{part}: {}", self.err);
        }
    }
}

fn tools(support: &str) -> Value {
    json!([
        { "name": "other", "inputSchema": { "type": "object" } },
        { "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": support } },
    ])
}

/// A server with tasks of its own.
fn with_tasks() -> Options {
    Options {
        capabilities: json!({ "tools": {}, "tasks": { "cancel": {}, "requests": { "tools": { "call": {} } } } }),
        tools: Some(tools("optional")),
        ..Options::default()
    }
}

fn task(status: &str, poll_ms: u64) -> Value {
    json!({
        "taskId": "t1", "status": status, "ttl": 60_000, "pollInterval": poll_ms,
        "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
    })
}

fn said(text: &str) -> Value {
    json!({
        "content": [{ "type": "text", "text": text }],
        "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } },
    })
}

/// A question that belongs to the task.
fn question(id: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
        "message": "Who?",
        "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } },
        "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } },
    }})
}

/// The session of the one client there is.
const SESSION: &str = "s1";

/// The server makes a task of the call, whose state is to be asked for this often.
async fn makes_a_task(server: &LegacyServer, poll_ms: u64) -> Seen {
    let call = server.call().await;
    assert_eq!((call.method(), call.name()), ("tools/call", "tool"));
    let seen = call.seen.clone();
    call.result(json!({ "task": task("working", poll_ms) }));
    seen
}

/// Answers polls with this state, until something else is asked for: that is given back.
async fn polled(server: &LegacyServer, status: &str) -> crate::support::legacy_server::Call {
    loop {
        let call = server.call().await;
        if call.method() != "tasks/get" {
            return call;
        }
        assert_eq!(call.seen.json["params"], json!({ "taskId": "t1" }));
        call.result(task(status, 10));
    }
}

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
async fn a_task_that_wants_input_is_asked_for_its_result_at_once_and_asks_there() {
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
async fn a_question_on_the_get_stream_is_answered_and_a_notification_spares_a_poll() {
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
async fn a_task_that_somebody_else_cancelled_says_so_whatever_comes_of_its_result() {
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
async fn a_task_that_cannot_be_cancelled_is_said_to_go_on() {
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
async fn a_tool_that_may_only_be_a_task_refuses_in_the_servers_words() {
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

/// What a GET with `Last-Event-ID` is answered with: the response to the last `tools/call`.
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
async fn a_stream_that_breaks_before_the_response_is_taken_up_after_its_last_event() {
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
async fn a_result_that_breaks_off_is_asked_for_again_and_so_is_a_poll() {
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
async fn a_get_stream_that_ends_is_taken_up_where_it_was() {
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
async fn a_plain_call_that_asks_what_nobody_answers_is_given_up() {
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

#[test]
fn a_legacy_server_is_called_in_its_own_way_directly_and_through_the_proxy() {
    let demo = super::Demo::start();
    let answer = r#"elicitation-1={"date":"2026-08-01","party":4,"seat":"outside"}"#;
    for url in [&demo.server, &demo.url] {
        for revision in ["2025-11-25", "2025-06-18"] {
            let words = ["call", url, "book_table", "--protocol", revision, "--answer", answer];
            let output = super::deferral(&words);
            assert_eq!((output.status.code(), super::text(&output.stdout)), (Some(0), super::BOOKED));
        }
        let words = ["call", url, "report", r#"{"seconds":0.7}"#, "--protocol", "2025-03-26"];
        let output = super::deferral(&words);
        assert_eq!(super::text(&output.stdout), "The report is done. It took 0.7 s.\n");
        assert_eq!(super::text(&output.stderr), "writing the report (0.5/0.7)\n");
    }
}

#[tokio::test]
async fn the_oldest_revision_has_batches_and_neither_its_header_nor_a_leave() {
    let server = LegacyServer::start(Options { version: "2025-03-26", ..Options::default() }).await;
    let call = Running::start(&server, "tool", &["2025-03-26", "--answer", "roots-1={\"roots\":[]}"]);
    let waiting = server.call().await;
    assert_eq!((waiting.session(), waiting.seen.header("mcp-protocol-version")), (SESSION, None));
    let body = json!([
        { "jsonrpc": "2.0", "method": "notifications/message", "params": {} },
        { "jsonrpc": "2.0", "id": waiting.id(), "result": said("done") },
    ]);
    waiting.canned(Canned::json(200, &body));
    let ended = call.end().await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{ended:?}");
    assert_eq!(server.count(|seen| seen.http == Method::DELETE), 0);
    let hello = server.message("initialize").await;
    assert_eq!(
        hello.json["params"]["capabilities"],
        json!({ "sampling": {}, "roots": {} }),
        "no elicitation"
    );
}

#[tokio::test]
async fn the_server_chooses_the_revision_among_those_that_both_speak() {
    let server = LegacyServer::start(Options { version: "2025-06-18", ..with_tasks() }).await;
    let call = Running::start(&server, "tool", &[TASKS]);
    let plain = server.call().await;
    assert_eq!(plain.seen.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(plain.seen.json["params"].get("task"), None, "there were none yet");
    plain.says("done");
    call.end().await.says(&["the server uses revision 2025-06-18\n"]);

    let server = LegacyServer::start(Options { version: "2024-11-05", ..Options::default() }).await;
    let ended = Running::start(&server, "tool", &[TASKS]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&[
        "the server uses revision 2024-11-05, which this client does not support; it supports 2026-07-28,",
    ]);
}

#[tokio::test]
async fn a_handshake_that_is_refused_says_what_may_be_wrong() {
    let refuse = |canned: fn(&Seen) -> Canned| {
        Options::default().hook(move |seen| (seen.method() == "initialize").then(|| canned(seen)))
    };
    let unknown = refuse(|seen| {
        let error = json!({ "code": -32601, "message": "unknown method" });
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error }))
    });
    let missing = refuse(|_| Canned::status(404).body("nothing here"));
    let closed = refuse(|_| Canned::status(401));
    for (options, part, hint) in [
        (unknown, "the server refused `initialize`: unknown method (-32601)", true),
        (missing, "the server refused `initialize`: HTTP 404 Not Found: nothing here", true),
        (closed, "the server refused `initialize`: HTTP 401 Unauthorized", false),
    ] {
        let server = LegacyServer::start(options).await;
        let ended = Running::start(&server, "tool", &[TASKS]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[part]);
        assert_eq!(ended.err.contains("the server may support no revision before"), hint, "{}", ended.err);
    }
}

#[tokio::test]
async fn an_older_server_that_is_spoken_to_in_a_newer_way_gets_a_hint_for_its_caller() {
    let error = json!({ "code": -32600, "message": "no session" });
    let body = json!({ "jsonrpc": "2.0", "id": "server-error", "error": error });
    let server = LegacyServer::start(Options::default().hook(move |_| Some(Canned::json(400, &body)))).await;
    let ended = Running::start(&server, "tool", &["2026-07-28"]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&["HTTP 400 Bad Request: ", "no session", "try `--protocol 2025-11-25`"]);
}

#[tokio::test]
async fn a_revision_that_is_not_spoken_is_answered_with_those_that_are() {
    let server = LegacyServer::start(Options::default()).await;
    for word in ["2024-11-05", "latest"] {
        let ended = Running::start(&server, "tool", &[word]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[&format!(
            "`{word}` is not a revision that this client supports; use 2026-07-28, 2025-11-25, 2025-06-18 or 2025-03-26"
        )]);
    }
    assert!(server.log().is_empty());
}

/// What servers of older revisions say to a request before any handshake.
fn refusals() -> Vec<(&'static str, Canned)> {
    let error = |code: i64, message: &str, id: Value| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    vec![
        ("typescript", Canned::json(400, &error(-32000, "Bad Request: Server not initialized", Value::Null))),
        (
            "python",
            Canned::json(400, &error(-32600, "Bad Request: Missing session ID", "server-error".into())),
        ),
        (
            "python, without sessions",
            Canned::json(200, &error(-32602, "Invalid request parameters", 1.into())),
        ),
        ("a page", Canned::status(400).body("Invalid or missing session ID")),
        ("nothing", Canned::status(404)),
        ("accept", Canned::status(406).body("Not Acceptable")),
        ("crash", Canned::status(500)),
        (
            "a newer one",
            Canned::json(
                400,
                &json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32022, "message": "not spoken",
                    "data": { "supported": ["2025-11-25", "2025-06-18"], "requested": "2026-07-28" } } }),
            ),
        ),
    ]
}

/// Refuses like this what has neither a session nor begins one.
fn refuses_strangers(canned: Canned, options: Options) -> Options {
    options.hook(move |seen| {
        (seen.http == Method::POST && seen.session().is_empty() && seen.method() != "initialize")
            .then(|| canned.clone())
    })
}

#[tokio::test]
async fn an_older_server_is_spoken_to_in_its_own_revision_without_being_asked_to() {
    for (who, canned) in refusals() {
        let options = Options { version: "2025-06-18", ..Options::default() };
        let server = LegacyServer::start(refuses_strangers(canned, options)).await;
        let call = Running::begin(&server, &["tool"]);
        let plain = server.call().await;
        assert_eq!((plain.method(), plain.session()), ("tools/call", SESSION), "{who}");
        plain.says("done");
        let ended = call.end().await;
        assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"), "{who}: {ended:?}");
        assert_eq!(ended.err, "the server uses revision 2025-06-18\n", "{who}");
    }
}

#[tokio::test]
async fn a_server_that_wants_credentials_or_is_busy_is_not_tried_in_older_ways() {
    for status in [401, 403, 429, 503] {
        let server =
            LegacyServer::start(Options::default().hook(move |_| Some(Canned::status(status)))).await;
        let ended = Running::begin(&server, &["tool"]).end().await;
        assert_eq!(ended.code, Some(2));
        ended.says(&[&format!("error: HTTP {status} ")]);
        assert_eq!(server.messages("initialize"), 0, "{status}");
    }
}

#[tokio::test]
async fn where_no_revision_helps_each_refusal_is_told() {
    let server = LegacyServer::start(Options::default().hook(|_| Some(Canned::status(404)))).await;
    let ended = Running::begin(&server, &["tool"]).end().await;
    assert_eq!(ended.code, Some(2));
    ended.says(&[
        "supports no revision of this client",
        "2026-07-28: HTTP 404",
        "earlier revisions: HTTP 404",
    ]);
}

#[tokio::test]
async fn a_task_that_nobody_declared_is_not_followed() {
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
async fn what_a_server_says_does_not_command_the_terminal() {
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
