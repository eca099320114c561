//! Commands in front of servers that send arbitrary responses.

use crate::support::{
    legacy_server::{Canned, LegacyServer, Options, Seen},
    program::interrupt,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

/// A server whose tool `t` is answered with this.
async fn answering(result: impl Fn(&Seen) -> Value + Send + Sync + 'static) -> LegacyServer {
    let options = Options { tools: Some(json!([])), ..Options::default() };
    let hook = move |seen: &Seen| {
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result(seen) });
        (seen.method() == "tools/call").then(|| Canned::json(200, &answer))
    };
    LegacyServer::start(options.hook(hook)).await
}

async fn call(server: &LegacyServer, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(["call", &server.url(), "t", "--no-tasks", "--protocol", "2025-11-25"]).args(words);
    tokio::task::spawn_blocking(move || command.output().expect("it starts")).await.expect("it ends")
}

/// What a proxy answers for a call of `t` that is still running, with this result tool.
fn running(result_tool: &str) -> Value {
    json!({
        "content": [{ "type": "text", "text": format!("t is still running: call {result_tool} with tk_1") }],
        "_meta": { "deferral/ticket": {
            "ticket": "tk_1", "tool": "t", "status": "working", "elapsedMs": 7, "waitMs": 5,
            "resultTool": result_tool, "cancelTool": "deferral_cancel",
        } },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_names_a_tool_of_the_servers_choosing_is_printed_and_not_followed() {
    let server = answering(|_| running("wipe_disk")).await;
    let output = call(&server, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("call wipe_disk with tk_1"), "{output:?}");
    assert_eq!(server.messages("tools/call"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_tool_that_answers_at_once_is_called_with_a_pause() {
    let server = answering(|_| running("deferral_result")).await;
    let output = call(&server, &["--timeout", "1200ms"]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // The call, the result tool at 0, 0.5 and 1 s, the cancel tool.
    let calls = server.messages("tools/call");
    assert!((3..=5).contains(&calls), "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_for_another_call_ends_what_is_followed() {
    let server = answering(|seen| match seen.json["params"]["name"].as_str() {
        Some("t") => running("deferral_result"),
        _ => running("deferral_result_2"),
    })
    .await;
    let output = call(&server, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(server.messages("tools/call"), 2);
}

/// What a terminal would obey, in what a server says.
const EVIL: &str = "a\u{1b}]0;x\u{7}\u{9b}2Jb\u{202e}c\r\nerror: the disk is gone";

fn is_harmless(output: &Output) -> bool {
    let all = [&output.stdout[..], &output.stderr].concat();
    let all = String::from_utf8(all).expect("text");
    !all.chars().any(|char| char.is_control() && char != '\n' || char == '\u{202e}')
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_a_server_moves_no_cursor_and_forges_no_message() {
    let server =
        answering(|_| json!({ "content": [{ "type": "text", "text": EVIL }], "isError": true, "n": 1.50 }))
            .await;
    let output = call(&server, &[]).await;
    assert!(output.status.code() == Some(1) && is_harmless(&output), "{output:?}");
    let output = call(&server, &["--json"]).await;
    assert!(is_harmless(&output), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["content"][0]["text"], EVIL, "escaped, and the same");

    let hook = |seen: &Seen| {
        let error = json!({ "code": 1, "message": EVIL });
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error });
        (seen.method() == "tools/call").then(|| Canned::json(200, &answer))
    };
    let options = Options { tools: Some(json!([])), ..Options::default() };
    let server = LegacyServer::start(options.hook(hook)).await;
    let output = call(&server, &[]).await;
    assert!(output.status.code() == Some(2) && is_harmless(&output), "{output:?}");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_of_a_server_are_listed() {
    let tools = json!([{ "name": "greet", "description": "Says hello.\nOr not." }, { "name": EVIL }]);
    let server = LegacyServer::start(Options { tools: Some(tools.clone()), ..Options::default() }).await;
    for words in [&["tools"][..], &["call"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
        command.args(words).args([&server.url(), "--protocol", "2025-06-18"]);
        let mut json = Command::new(env!("CARGO_BIN_EXE_deferral"));
        json.args(words).args([&server.url(), "--json", "--protocol", "2025-11-25"]);
        let run = move || [command, json].map(|mut command| command.output().expect("it starts"));
        let [list, json] = tokio::task::spawn_blocking(run).await.expect("it ends");
        assert!(list.status.success() && is_harmless(&list) && is_harmless(&json), "{list:?}");
        let shown = String::from_utf8_lossy(&list.stdout);
        assert!(shown.starts_with("greet ") && shown.contains("  Says hello.\n"), "{shown}");
        assert_eq!(shown.lines().count(), 2);
        assert_eq!(serde_json::from_slice::<Value>(&json.stdout).expect("JSON"), tools);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_input_requests_cancel_the_call() {
    let hook = |seen: &Seen| {
        let tools = json!({ "resultType": "complete", "tools": [] });
        let asked = json!({ "resultType": "input_required", "requestState": "s", "inputRequests": {
            "r": { "method": "roots/list" },
        } });
        let result = if seen.method() == "tools/call" { asked } else { tools };
        Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result })))
    };
    let server = LegacyServer::start(Options::default().hook(hook)).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(["call", &server.url(), "t", "--protocol", "2026-07-28", "--root", "file:///a"]);
    let output =
        tokio::task::spawn_blocking(move || command.output().expect("it starts")).await.expect("it ends");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("error: the server has requested input 100 times"),
        "{output:?}"
    );
    assert_eq!(server.messages("tools/call"), 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_again_ends_a_call_whose_server_does_not_answer_the_cancellation() {
    let hook = |seen: &Seen| {
        let task = |kind: &str| {
            json!({
                "resultType": kind, "taskId": "t1", "status": "working", "createdAt": "", "lastUpdatedAt": "",
                "ttlMs": null, "pollIntervalMs": 60_000,
            })
        };
        let result = match seen.method() {
            "tools/list" => json!({ "resultType": "complete", "tools": [] }),
            "tools/call" => task("task"),
            "tasks/get" => task("complete"),
            // That of the cancellation never comes.
            _ => return None,
        };
        Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result })))
    };
    let server = LegacyServer::start(Options::default().hook(hook)).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_deferral"));
    command.args(["call", &server.url(), "t", "--protocol", "2026-07-28"]);
    let run = move || {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines =
            BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        for beginning in ["task t1", "cancelling: waiting up to 2s"] {
            assert!(lines.any(|line| line.starts_with(beginning)), "{beginning}");
            interrupt(&child);
        }
        let rest: Vec<_> = lines.collect();
        (child.wait().expect("it ends").code(), rest)
    };
    let (code, rest) = tokio::task::spawn_blocking(run).await.expect("it ends");
    assert_eq!((code, rest), (Some(130), vec!["cancelled".to_owned()]));
}
