//! `/tap`: events, for operators with the token.

use super::Operator;
use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::modern_client::soon,
};
use deferral::internals::admin::AdminServer;
use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// A tap that is open.
struct Tap {
    socket: TcpStream,
    text: String,
}

impl Tap {
    /// At the admin address of this proxy, with its token.
    async fn open(admin: &AdminServer, query: &str) -> Self {
        let (address, token) = (admin.address, admin.generated_token());
        let token = token.expose();
        let mut socket = TcpStream::connect(address).await.expect("it listens");
        let request =
            format!("GET /tap{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("it reads");
        let mut tap = Self { socket, text: String::new() };
        while !tap.text.contains("\r\n\r\n") {
            tap.read().await;
        }
        assert!(tap.text.starts_with("HTTP/1.1 200"), "{}", tap.text);
        tap
    }

    async fn read(&mut self) {
        let mut piece = [0; 4096];
        let read = soon("a line", self.socket.read(&mut piece)).await.expect("it goes on");
        assert!(read > 0, "it ended: {}", self.text);
        self.text.push_str(std::str::from_utf8(&piece[..read]).expect("text"));
    }

    /// The next event.
    async fn next(&mut self) -> Value {
        loop {
            if let Some((before, rest)) = self.text.split_once('\n') {
                let event = before.find('{').and_then(|at| serde_json::from_str(&before[at..]).ok());
                self.text = rest.to_owned();
                match event {
                    Some(event) => return event,
                    None => continue,
                }
            }
            self.read().await;
        }
    }
}

async fn world() -> ProxyAndServer {
    Setup::new().top("admin: 127.0.0.1:0").start().await
}

fn admin(world: &ProxyAndServer) -> &AdminServer {
    world.proxy.admin.as_ref().expect("there is one")
}

#[tokio::test]
async fn a_tap_needs_the_token_on_loopback_too_and_refuses_unknown_filters() {
    let world = world().await;
    let operator = Operator::of(admin(&world));
    assert_eq!(Operator::at(admin(&world).address).get("/tap").await.status, 401);
    assert_eq!(operator.with_token("0123456789abcdef").get("/tap").await.status, 401);
    let unknown = operator.get("/tap?tools=x").await;
    assert_eq!(unknown.status, 400);
    assert!(unknown.body.contains("`tools`"), "{unknown:?}");
    assert_eq!(operator.get("/tap?arguments=yes").await.status, 400);
}

#[tokio::test]
async fn four_taps_can_be_open_and_a_further_one_is_refused() {
    let world = world().await;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(Tap::open(admin(&world), "").await);
    }
    let operator = Operator::of(admin(&world));
    let refused = operator.get("/tap").await;
    assert_eq!(refused.status, 503);
    assert!(refused.error().contains("4 taps"), "{refused:?}");
    assert_eq!(operator.get("/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tap_command_prints_events_until_its_output_closes() {
    let world = world().await;
    let url = admin(&world).url.trim_end_matches('/').to_owned();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_deferral"));
    command
        .args(["tap", "--admin", &url, "--json"])
        .env("DEFERRAL_ADMIN_TOKEN", admin(&world).generated_token().expose());
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    // Calls until it has connected.
    let call = async || {
        let waiting = world.client().call("quick").await;
        world.server.call().await.says("secret result");
        waiting.answer().await;
    };
    let line = loop {
        call().await;
        if let Ok(line) = timeout(Duration::from_millis(100), lines.next_line()).await {
            break line.expect("text").expect("a line");
        }
    };
    let event: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&event["event"], &event["target"]), (&json!("request"), &json!("quick")), "{line}");
    assert!(!line.contains("secret"), "{line}");
    drop(lines);
    let status = loop {
        call().await;
        if let Ok(status) = timeout(Duration::from_millis(100), child.wait()).await {
            break status.expect("it ends");
        }
    };
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn input_requests_are_shown_with_the_caller_and_the_tool_of_their_call() {
    let world = world().await;
    let mut tap = Tap::open(admin(&world), "?caller=anonymous&tool=book*").await;
    let client = world.client().declaring(json!({ "elicitation": { "form": {} } }));
    let waiting = client.call("book_table").await;
    let events = world.server.call().await.stream();
    events.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {
        "message": "Who?",
        "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } },
    }}));
    waiting.answer().await;
    let shown = loop {
        let shown = tap.next().await;
        if shown["event"] == "input_request" {
            break shown;
        }
    };
    assert_eq!(
        (&shown["method"], &shown["outcome"], &shown["principal"]),
        (&json!("elicitation/create"), &json!("asked"), &json!("anonymous"))
    );
    assert_eq!(shown["tool"], "book_table");
    assert!(!shown.to_string().contains("Who?"), "{shown}");
}

#[tokio::test]
async fn requests_and_tasks_are_shown_by_route_caller_and_tool() {
    let world = world().await;
    let mut all = Tap::open(admin(&world), "").await;
    let mut of_tool = Tap::open(admin(&world), "?tool=slow*&route=%2Fmcp").await;
    let of_nobody = Tap::open(admin(&world), "?caller=0000000000000000").await;
    let quick = world.client().call("quick").await;
    world.server.call().await.says("secret result");
    quick.answer().await;
    let shown = all.next().await;
    assert_eq!(
        (&shown["event"], &shown["method"], &shown["target"]),
        (&json!("request"), &json!("tools/call"), &json!("quick"))
    );
    assert_eq!(
        (&shown["outcome"], &shown["status"], &shown["route"]),
        (&json!("result"), &json!(200), &json!("/mcp"))
    );
    assert!(shown["took_ms"].is_number() && shown["principal"].is_string(), "{shown}");

    let older = LegacyClient::new(world.addr()).within("s1");
    let slow = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow_one","arguments":{"password":"hunter2"}}}"#;
    let waiting = older.post(slow).await;
    world.server.call().await.says("secret result");
    waiting.answer().await;
    for tap in [&mut all, &mut of_tool] {
        let shown = tap.next().await;
        assert_eq!((&shown["target"], &shown["client"]), (&json!("slow_one"), &json!("legacy")));
        let text = shown.to_string();
        assert!(!text.contains("hunter2") && !text.contains("secret"), "{text}");
    }
    // An event is put to all taps at once: the others have shown it.
    let mut shown = [0; 4096];
    let read = of_nobody.socket.try_read(&mut shown).unwrap_or(0);
    assert!(!String::from_utf8_lossy(&shown[..read]).contains("slow_one"));
}

#[tokio::test]
async fn arguments_and_results_are_shown_on_request_only() {
    let world = world().await;
    let mut plain = Tap::open(admin(&world), "").await;
    let mut with = Tap::open(admin(&world), "?arguments=1").await;
    let call = |name: &str, text: &str| json!({ "name": name, "arguments": { "text": text } });
    for (name, text) in [("small", "a".to_owned()), ("large", "b".repeat(20 << 10))] {
        let waiting = world.client().send("tools/call", call(name, &text)).await;
        world.server.call().await.says(&format!("result of {name}"));
        waiting.answer().await;
        let shown = with.next().await;
        match name {
            "small" => assert_eq!(shown["arguments"], json!({ "text": "a" })),
            _ => assert!(shown["arguments"].as_str().is_some_and(|said| said.ends_with("bytes)")), "{shown}"),
        }
        assert!(shown["result"].to_string().contains(&format!("result of {name}")), "{shown}");
        let redacted = plain.next().await;
        assert_eq!((redacted.get("arguments"), redacted.get("result")), (None, None));
    }
}
