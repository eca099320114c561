//! The access log: one line for each request.

use super::{
    BOTH, NEVER,
    listener_and_service::{
        FrontAndService, Lines, ScriptedService, Version, bare, call, items, message, notice, once, post,
        reply,
    },
};
use deferral::internals::{
    proxy::{AccessSummary, ReplyItem},
    task::TaskId,
    telemetry::RequestOutcome,
};
use http::HeaderValue;

use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn each_request_leaves_one_line() {
    for version in BOTH {
        let lines = Lines::record();
        let desk = ScriptedService::new(|call| {
            let mut reply = reply(&call.id, "{}");
            reply.summary = AccessSummary {
                outcome: RequestOutcome::Task,
                task: TaskId::parse(&"0a".repeat(16)),
                upstream_time: Duration::from_millis(3),
                ..AccessSummary::default()
            };
            match call.target.as_deref() {
                Some("talk") => items([notice("1"), ReplyItem::Reply(reply)]),
                _ => once(reply),
            }
        });
        let world = FrontAndService::new(&[&desk], |config| config.limits.body_bytes = 1000);
        let mut client = world.client(version).await;
        for tool in ["greet", "talk"] {
            let mut request = call(tool);
            request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer a"));
            client.ask(request).await;
        }
        for line in &lines.until(2).await {
            assert_eq!(line["method"], "tools/call");
            assert_eq!(line["route"], "/mcp");
            assert_eq!(line["client"], "modern");
            assert_eq!(line["status"], 200);
            assert_eq!(line["outcome"], "task");
            assert_eq!(line["task"], "0a".repeat(4));
            assert_eq!(line["upstream_us"], 3000);
            let known = line["principal"].as_str().expect("text");
            assert!(known != "anonymous" && !known.contains("Bearer"), "{line}");
        }
        assert_eq!(lines.so_far()[0]["target"], "greet");

        client.ask(bare("GET", "/nowhere", &[])).await;
        client.ask(bare("DELETE", "/mcp", &[])).await;
        client.ask(bare("OPTIONS", "/mcp", &[])).await;
        client.ask(post(&message("tools/list", &" ".repeat(1000)), &[])).await;
        let seen: Vec<_> = lines.until(6).await[2..]
            .iter()
            .map(|line| {
                (
                    line["method"].clone(),
                    line["route"].clone(),
                    line["status"].clone(),
                    line["outcome"].clone(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (json!("GET"), json!(""), json!(404), json!("refused")),
                (json!("DELETE"), json!("/mcp"), json!(200), json!("result")),
                (json!("OPTIONS"), json!("/mcp"), json!(204), json!("result")),
                (json!("POST"), json!("/mcp"), json!(413), json!("refused")),
            ]
        );
    }
}

#[tokio::test]
async fn a_disconnect_is_logged() {
    for version in BOTH {
        for keep_alive in [NEVER, Duration::from_millis(5)] {
            let lines = Lines::record();
            let (desk, mut given_up) = ScriptedService::silent(keep_alive);
            let world = FrontAndService::new(&[&desk], |_| {});
            let mut client = world.client(version).await;
            let answer = client.send(call("work"));
            let begun = if keep_alive == NEVER {
                let waiting = tokio::spawn(answer);
                while desk.seen.lock().unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
                waiting.abort();
                None
            } else {
                Some(answer.await.expect("an event stream"))
            };
            let status = if begun.is_some() { 200 } else { 499 };
            drop(begun);
            drop(client);
            given_up.recv().await.expect("the call is dropped");
            let line = &lines.until(1).await[0];
            assert_eq!(line["outcome"], "departed");
            assert_eq!(line["status"], status);
            assert_eq!(line["target"], "work");
            assert_eq!(line["own_us"], 0);
        }
    }
}

#[tokio::test]
async fn a_log_line_is_bounded() {
    let lines = Lines::record();
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    client.ask(call(&"x".repeat(5000))).await;
    let batch = vec![r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#; 100];
    let mut request = post(&format!("[{}]", batch.join(",")), &[]);
    for name in ["mcp-method", "mcp-protocol-version"] {
        request.headers_mut().remove(name);
    }
    client.ask(request).await;
    let lines = lines.until(2).await;
    assert_eq!(lines[0]["target"], "x".repeat(200));
    let names = lines[1]["method"].as_str().expect("text");
    assert_eq!(names, ["notifications/vendor"; 8].join(","), "{}", lines[1]);
}
