//! `timeout`: of a route and of a tool.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{limit_hits::LimitHits, paused_time::a_moment},
};
use serde_json::json;

const SHORT: &str = "tools: [{ match: short, timeout: 500ms }]";

fn call(id: u64, tool: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool } }).to_string()
}

#[tokio::test]
async fn a_call_whose_time_is_over_fails_and_is_cancelled_in_both_eras() {
    let world = ProxyAndServer::with(SHORT).await;
    let met = LimitHits::of("timeouts.call");
    let other = world.client().call("other").await;
    let stays = world.server.call().await;
    let modern = world.client().call("short").await;
    let _held = world.server.call().await;
    assert_eq!(modern.answer().await.refusal(), (200, -31003));
    let older = LegacyClient::new(world.addr()).within("s1").post(&call(5, "short")).await;
    let _held_too = world.server.call().await;
    assert_eq!(older.answer().await.refusal(), (200, -31003));
    world.server.sees(2, |seen| seen.method() == "notifications/cancelled").await;
    met.are(2).await;
    stays.says("done");
    assert_eq!(other.answer().await.text(), "done", "the others have their time");
}

#[tokio::test]
async fn a_task_whose_time_is_over_fails_with_its_code() {
    let world = Setup::new().route("tools: [{ match: short, mode: always, timeout: 60ms }]").start().await;
    let task = world.tasker().call("short").await.answer().await.result();
    assert_eq!(task["resultType"], "task");
    let shown = loop {
        let shown = world.tasker().ask("tasks/get", json!({ "taskId": task["taskId"] })).await.result();
        if shown["status"] != "working" {
            break shown;
        }
        a_moment().await;
    };
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!(-31003)), "{shown}");
}

#[tokio::test]
async fn a_tools_time_outweighs_the_routes_and_that_the_one_of_all_routes_also_where_it_is_longer() {
    let world = Setup::new()
        .top("timeouts: { keep_alive: 1h, call: 10ms }")
        .route("timeout: 50ms")
        .route("tools: [{ match: long, timeout: 1h }]")
        .start()
        .await;
    let older = LegacyClient::new(world.addr()).within("s1");
    let long = [world.client().call("long").await, older.post(&call(5, "long")).await];
    let at_server = [world.server.call().await, world.server.call().await];
    for other in [world.client().call("other").await, older.post(&call(6, "other")).await] {
        let _held = world.server.call().await;
        let answer = other.answer().await;
        assert_eq!(answer.refusal(), (200, -31003));
        assert!(answer.body.contains("50ms"), "{}", answer.body);
    }
    at_server.into_iter().for_each(|call| call.says("long"));
    for waiting in long {
        assert_eq!(waiting.answer().await.text(), "long");
    }
}
