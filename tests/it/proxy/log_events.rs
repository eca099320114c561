//! Log events of failed calls and refused requests.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup, start};
use crate::{
    front::listener_and_service::Lines,
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::{Call, Canned, ReservedPort},
        modern_client::{Client, soon},
    },
};
use serde_json::{Value, json};
use tokio::task::yield_now;

/// The access line of the last of so many requests.
async fn last(lines: &Lines, count: usize) -> Value {
    lines.until(count).await.pop().expect("there are some")
}

/// How a server answers a call.
type Way = fn(Call);

/// Outcome, level and reason.
fn said(line: &Value) -> (&str, &str, &str) {
    let text = |field: &str| line[field].as_str().unwrap_or_default();
    (text("outcome"), text("level"), text("reason"))
}

#[tokio::test]
async fn a_server_that_is_down_is_warned_of_with_the_reason() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &[]);
    let lines = Lines::record();
    let modern = Client::new(proxy.addresses[0]);
    modern.ask("tools/list", json!({})).await;
    let line = last(&lines, 1).await;
    let (outcome, level, reason) = said(&line);
    assert_eq!((outcome, level), ("upstream_failed", "WARN"));
    assert!(reason.starts_with("the server could not be reached: "), "{reason}");

    let older = LegacyClient::new(proxy.addresses[0]).within("s1");
    older.call(1).await.answer().await;
    let line = last(&lines, 2).await;
    let (outcome, level, reason) = said(&line);
    assert_eq!((outcome, level), ("upstream_failed", "WARN"));
    assert!(reason.starts_with("the server could not be reached: "), "{reason}");
}

#[tokio::test]
async fn a_refused_host_or_origin_is_named_with_the_way_out() {
    let world = ProxyAndServer::new().await;
    let lines = Lines::record();
    for (at, (header, value, setting)) in
        [("host", "mcp.example.com", "access.hosts"), ("origin", "https://evil.example", "access.origins")]
            .into_iter()
            .enumerate()
    {
        world.client().with(header, value).ask("tools/list", json!({})).await;
        let line = last(&lines, at + 1).await;
        let (outcome, level, reason) = said(&line);
        assert_eq!((outcome, level), ("refused", "INFO"));
        assert!(reason.contains(value) && reason.contains(setting), "{reason}");
    }
}

/// The lines of an event, once there are so many.
async fn until(lines: &Lines, event: &str, count: usize) -> Vec<Value> {
    soon("its lines are written", async {
        loop {
            let lines = lines.of(event);
            if lines.len() >= count {
                return lines;
            }
            yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn a_refused_host_or_origin_is_logged_with_where_it_came_from() {
    let world = Setup::new().top("admin: 127.0.0.1:0").start().await;
    let lines = Lines::record();
    let client = world.client();
    client.with("host", "mcp.example.com").ask("tools/list", json!({})).await;
    let page = client.with("origin", "https://evil.example").with("forwarded", "for=192.0.2.7");
    page.ask("tools/list", json!({})).await;
    let admin = Client::new(world.proxy.admin.as_ref().expect("there is one").address);
    admin.with("host", "admin.example.com").ask("tools/list", json!({})).await;
    admin
        .with("sec-fetch-site", "cross-site")
        .with("origin", "https://evil.example")
        .call("t")
        .await
        .answer()
        .await;
    let denied = until(&lines, "access_denied", 4).await;
    let wanted = [
        json!({ "listener": "clients", "host": "mcp.example.com" }),
        json!({ "listener": "clients", "origin": "https://evil.example", "forwarded": "for=192.0.2.7" }),
        json!({ "listener": "admin", "host": "admin.example.com" }),
        json!({ "listener": "admin", "origin": "https://evil.example" }),
    ];
    assert_eq!(denied.len(), wanted.len(), "{denied:#?}");
    for (line, wanted) in denied.iter().zip(wanted) {
        assert_eq!((&line["level"], &line["client"]), (&json!("WARN"), &json!("127.0.0.1")), "{line:#}");
        for field in ["listener", "host", "origin", "forwarded"] {
            assert_eq!(line[field], wanted[field], "{field}: {line:#}");
        }
    }
}

#[tokio::test]
async fn a_failed_task_is_logged_with_its_reason_and_warned_of_where_its_client_is_not_at_fault() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let lines = Lines::record();
    let ways: [(Way, &str, &str, Option<&str>); 6] = [
        (|call| call.canned(Canned::status(500).body("oops\nforged=1")), "failed", "WARN", Some("HTTP 500")),
        (|call| call.stream().break_off(), "failed", "WARN", Some("whether the call ran is unknown")),
        (
            |call| call.error(json!({ "code": -32603, "message": "no account 4711" })),
            "failed",
            "WARN",
            Some("error -32603"),
        ),
        (
            |call| call.error(json!({ "code": -32602, "message": "no account 4711" })),
            "failed",
            "INFO",
            Some("error -32602"),
        ),
        (|call| call.result(json!({ "content": [], "isError": true })), "completed", "INFO", None),
        (|call| call.says("done"), "completed", "INFO", None),
    ];
    let client = world.tasker();
    let mut count = 0;
    for (way, to, level, reason) in ways {
        let waiting = client.call("t").await;
        let call = world.server.call().await;
        let task = waiting.answer().await.task();
        way(call);
        client.ended(&task).await;
        count += 2;
        let line = until(&lines, "transition", count).await.pop().expect("there are some");
        assert_eq!((&line["to"], &line["level"]), (&json!(to), &json!(level)), "{line:#}");
        let said = line["reason"].as_str();
        assert_eq!(said.is_some(), reason.is_some(), "{line:#}");
        assert!(said.unwrap_or_default().contains(reason.unwrap_or_default()), "{line:#}");
        assert!(!line.to_string().contains("4711"), "{line:#}");
    }
    let waiting = client.call("t").await;
    let _call = world.server.call().await;
    let task = waiting.answer().await.task();
    client.of_task("tasks/cancel", &task).await;
    let line = until(&lines, "transition", count + 2).await.pop().expect("there are some");
    assert_eq!((&line["to"], &line["level"]), (&json!("cancelled"), &json!("INFO")));
    assert_eq!(line["reason"], Value::Null);
}

#[tokio::test]
async fn a_tool_that_failed_is_distinguished_from_one_that_did_not() {
    let world = ProxyAndServer::new().await;
    let lines = Lines::record();
    let ways: [(Way, &str); 4] = [
        (|call| call.result(json!({ "content": [], "isError": true })), "tool_error"),
        (|call| call.result(json!({ "content": [], "isError": false })), "result"),
        (|call| call.says(r#"{"isError":true}"#), "result"),
        (
            |call| {
                let id = call.id();
                let events = call.stream();
                events.send(
                    &json!({ "jsonrpc": "2.0", "id": id, "result": { "isError" : true, "content": [] } }),
                );
            },
            "tool_error",
        ),
    ];
    let older = LegacyClient::new(world.addr()).within("s1");
    let mut count = 0;
    for (way, outcome) in ways {
        let waiting = world.client().call("t").await;
        way(world.server.call().await);
        waiting.answer().await;
        count += 1;
        assert_eq!(said(&last(&lines, count).await), (outcome, "INFO", ""));

        let waiting = older.call(1).await;
        way(world.server.call().await);
        waiting.answer().await;
        count += 1;
        assert_eq!(said(&last(&lines, count).await), (outcome, "INFO", ""), "of a legacy client");
    }
}

#[tokio::test]
async fn an_error_of_the_server_is_logged_with_its_code_and_without_its_message() {
    let world = ProxyAndServer::new().await;
    let lines = Lines::record();
    let waiting = world.client().call("t").await;
    world.server.call().await.error(json!({ "code": -32602, "message": "no account 4711" }));
    waiting.answer().await;
    let line = last(&lines, 1).await;
    assert_eq!(said(&line), ("server_error", "INFO", "error -32602"));
    // An answer that is none is the server's fault, and is said.
    let waiting = world.client().call("t").await;
    world.server.call().await.canned(Canned::status(500).body("oops"));
    waiting.answer().await;
    let line = last(&lines, 2).await;
    let (outcome, level, reason) = said(&line);
    assert_eq!((outcome, level), ("upstream_failed", "WARN"));
    assert!(reason.contains("HTTP 500"), "{reason}");
}

#[tokio::test]
async fn a_disconnect_of_a_legacy_client_is_logged() {
    let world = ProxyAndServer::new().await;
    let lines = Lines::record();
    let client = LegacyClient::new(world.addr()).hello().await;
    let so_far = lines.until(2).await.len();
    // It takes its call back, and the server answers all the same, as some do.
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    client
        .post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#)
        .await
        .answer()
        .await;
    call.error(json!({ "code": 0, "message": "Request cancelled" }));
    waiting.answer().await;
    let line = last(&lines, so_far + 2).await;
    assert_eq!((said(&line).0, &line["method"]), ("departed", &json!("tools/call")));
    // It ends its session, and its server knows it no more.
    let world = Setup::new()
        .server(|options| {
            options.hook = Some(Box::new(|seen| {
                (seen.http == http::Method::GET).then(|| Canned::status(404).body("no such session"))
            }));
        })
        .start()
        .await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let so_far = lines.until(so_far + 4).await.len();
    client.send(http::Method::DELETE, "/mcp", "").await.answer().await;
    client.listen().await.answer().await;
    let line = last(&lines, so_far + 2).await;
    assert_eq!((said(&line).0, &line["method"]), ("departed", &json!("GET")), "{line:#}");
}

#[tokio::test]
async fn no_line_has_the_id_of_a_task_or_of_a_session_whole() {
    let world = ProxyAndServer::with("defer: { after: 20ms }").await;
    let lines = Lines::record();
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says("done");
    client.ended(&task).await;
    let older = LegacyClient::new(world.addr()).hello().await;
    let waiting = older.call(7).await;
    world.server.call().await.says("done");
    let session = waiting.answer().await.header("mcp-session-id").to_owned();
    client.of_task("tasks/get", "0123456789abcdef0123456789abcdef").await;
    lines.until(6).await;
    let said: Vec<_> = lines.so_far().into_iter().chain(lines.of("transition")).collect();
    let of_task = said.iter().filter(|line| line["task"] == task[..8]).count();
    assert!(of_task >= 3, "created, ended, and the answer with its handle: {said:#?}");
    for line in &said {
        let line = line.to_string();
        assert!(!line.contains(&task) && (session.is_empty() || !line.contains(&session)), "{line}");
    }
}
