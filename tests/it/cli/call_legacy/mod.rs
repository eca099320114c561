//! `deferral call --protocol`: legacy revisions, against a scripted server.

mod revisions;
mod sessions;
mod tasks;

use crate::support::legacy_server::{Canned, LegacyServer, Options, PATIENCE, Seen};
use http::Method;
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

const TASKS: &str = "2025-11-25";

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
