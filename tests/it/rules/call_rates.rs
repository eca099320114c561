//! `calls_per_minute`: calls of one caller per minute.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{limit_hits::LimitHits, modern_client::Answer},
};
use serde_json::json;

const TWO: &str = "calls_per_minute: 2";

async fn calls(world: &ProxyAndServer, client: &crate::support::modern_client::Client) -> Answer {
    let waiting = client.call("t").await;
    world.server.call().await.says("done");
    waiting.answer().await
}

/// Refused for the limit, with the time to try again.
fn is_too_many(answer: &Answer) {
    assert_eq!(answer.refusal(), (200, -31006), "{}", answer.body);
    let error = answer.error();
    assert!(
        error["message"].as_str().expect("a message").contains("(calls_per_minute); try again in "),
        "{error}"
    );
    assert_eq!(error["data"]["limit"], "calls_per_minute");
    let wait = error["data"]["retryAfterMs"].as_u64().expect("a time");
    assert!((20_000..=30_000).contains(&wait), "{wait}");
    let seconds: u64 = answer.header("retry-after").parse().expect("whole seconds");
    assert_eq!(seconds, wait.div_ceil(1000));
}

#[tokio::test]
async fn a_caller_over_its_rate_is_refused_with_retry_after() {
    let world = ProxyAndServer::with(TWO).await;
    let met = LimitHits::of("calls_per_minute");
    let alice = world.tasker().bearing("alice");
    for _ in 0..2 {
        assert_eq!(calls(&world, &alice).await.text(), "done");
    }
    is_too_many(&alice.call("t").await.answer().await);
    let older = LegacyClient::new(world.addr()).with("authorization", "Bearer alice").within("s1");
    is_too_many(&older.call(1).await.answer().await);
    met.are(2).await;
    let unknown = alice.ask("tasks/get", json!({ "taskId": "0123456789abcdef0123456789abcdef" })).await;
    assert_ne!(unknown.error()["code"], -31006, "what is asked of tasks does not count");
    assert_eq!(calls(&world, &world.client().bearing("bob")).await.text(), "done", "others have their own");
    assert_eq!(world.calls(), 3);
}

#[tokio::test]
async fn every_call_of_a_batch_counts_and_all_of_it_or_nothing_is_sent() {
    let world = ProxyAndServer::with("tools: [{ match: t, calls_per_minute: 2 }]").await;
    let client = LegacyClient::new(world.addr())
        .with("mcp-session-id", "s1")
        .with("mcp-protocol-version", "2025-03-26");
    let call =
        |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "t" } });
    let batch = json!([call(1), call(2), call(3)]).to_string();
    let answers = client.post(&batch).await.answer().await.json();
    assert!(answers.as_array().expect("a batch").iter().all(|answer| answer["error"]["code"] == -31006));
    assert_eq!(world.server.count(|seen| seen.json.is_array()), 0);
    let waiting = client.post(&json!([call(1), call(2)]).to_string()).await;
    world.server.seen(|seen| seen.json.is_array()).await;
    assert_eq!(client.call(4).await.answer().await.refusal(), (200, -31006));
    drop(waiting);
}

#[tokio::test]
async fn a_refused_call_takes_neither_a_permit_nor_the_rate_of_the_route() {
    let world = Setup::new()
        .route("calls_per_minute: 2")
        .route("tools: [{ match: rare, calls_per_minute: 1, concurrency: 1 }]")
        .start()
        .await;
    let client = world.client();
    let rare = client.call("rare").await;
    world.server.call().await.says("done");
    assert_eq!(rare.answer().await.text(), "done");
    for _ in 0..3 {
        assert_eq!(client.call("rare").await.answer().await.refusal(), (200, -31006));
    }
    assert_eq!(calls(&world, &client).await.text(), "done", "the second of the route");
    assert_eq!(client.call("t").await.answer().await.refusal(), (200, -31006));
}
