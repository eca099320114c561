//! What the log says of a call that came to nothing, and why.

use super::world::{Setup, World, start};
use crate::{
    front::world::Lines,
    legacy::world::Older,
    support::servers::{Call, Canned, Nobody},
};
use serde_json::{Value, json};

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
    let nobody = Nobody::new();
    let proxy = start(&nobody.url(), &[], &[]);
    let lines = Lines::record();
    let modern = crate::support::clients::Client::new(proxy.addresses[0]);
    modern.ask("tools/list", json!({})).await;
    let line = last(&lines, 1).await;
    let (outcome, level, reason) = said(&line);
    assert_eq!((outcome, level), ("upstream_failed", "WARN"));
    assert!(reason.starts_with("the server could not be reached: "), "{reason}");

    let older = Older::new(proxy.addresses[0]).within("s1");
    older.call(1).await.answer().await;
    let line = last(&lines, 2).await;
    let (outcome, level, reason) = said(&line);
    assert_eq!((outcome, level), ("upstream_failed", "WARN"));
    assert!(reason.starts_with("the server could not be reached: "), "{reason}");
}

#[tokio::test]
async fn a_refused_host_or_origin_is_named_with_the_way_out() {
    let world = World::new().await;
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

#[tokio::test]
async fn a_tool_that_failed_is_told_apart_from_one_that_did_not() {
    let world = World::new().await;
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
    let older = Older::new(world.addr()).within("s1");
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
async fn an_error_of_the_server_is_said_by_its_code_and_never_in_its_words() {
    let world = World::new().await;
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
async fn a_legacy_client_that_left_is_said_to_have_left() {
    let world = World::new().await;
    let lines = Lines::record();
    let client = Older::new(world.addr()).hello().await;
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
    let client = Older::new(world.addr()).hello().await;
    let so_far = lines.until(so_far + 4).await.len();
    client.send(http::Method::DELETE, "/mcp", "").await.answer().await;
    client.listen().await.answer().await;
    let line = last(&lines, so_far + 2).await;
    assert_eq!((said(&line).0, &line["method"]), ("departed", &json!("GET")), "{line:#}");
}

#[tokio::test]
async fn no_line_has_the_id_of_a_task_or_of_a_session_whole() {
    let world = World::with("defer: { after: 20ms }").await;
    let lines = Lines::record();
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says("done");
    client.ended(&task).await;
    let older = Older::new(world.addr()).hello().await;
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
