//! `concurrency`: concurrent calls of a route or of a rule's tools; further calls are queued.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{limit_hits::LimitHits, paused_time::a_moment},
};
use serde_json::{Value, json};

const ONE: &str = "concurrency: 1";
const ONE_SLOW: &str = "tools: [{ match: 'slow*', concurrency: 1 }]";

/// The message for a legacy client's call.
fn call(id: u64, tool: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool } }).to_string()
}

fn message(error: &Value) -> String {
    error["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn the_tools_of_a_rule_share_its_permits_and_other_tools_need_none() {
    let world = ProxyAndServer::with(ONE_SLOW).await;
    let waits = LimitHits::of("concurrency");
    let first = world.client().call("slow_a").await;
    let at_server = world.server.call().await;
    let second = world.client().call("slow_b").await;
    waits.are(1).await;
    let other = world.client().call("quick").await;
    let quick = world.server.call().await;
    assert_eq!(quick.name(), "quick", "the second waits");
    quick.says("quick");
    assert_eq!(other.answer().await.text(), "quick");
    at_server.says("first");
    assert_eq!(first.answer().await.text(), "first");
    let next = world.server.call().await;
    assert_eq!(next.name(), "slow_b");
    next.says("second");
    assert_eq!(second.answer().await.text(), "second");
}

#[tokio::test]
async fn a_client_that_disconnects_in_the_queue_frees_its_entry_and_its_call_is_never_sent() {
    let world = Setup::new().route(ONE).top("limits: { queue: 1 }").start().await;
    let (waits, full) = (LimitHits::of("concurrency"), LimitHits::of("limits.queue"));
    let first = world.client().call("a").await;
    let at_server = world.server.call().await;
    let leaves = world.client().call("leaves").await;
    waits.are(1).await;
    assert_eq!(world.client().call("full").await.answer().await.refusal(), (200, -31006));
    full.are(1).await;
    leaves.leave();
    // The only place in the queue is taken until the proxy has noticed.
    let stays = loop {
        let waiting = world.client().call("stays").await.follow();
        while waits.now() < 2 && !waiting.is_over() {
            a_moment().await;
        }
        if waits.now() == 2 {
            break waiting;
        }
    };
    at_server.says("done");
    assert_eq!(first.answer().await.text(), "done");
    let next = world.server.call().await;
    assert_eq!(next.name(), "stays");
    next.says("stayed");
    while !stays.is_over() {
        a_moment().await;
    }
    assert_eq!(stays.messages()[0]["result"]["content"][0]["text"], "stayed");
    assert_eq!((world.calls(), world.server.messages("notifications/cancelled")), (2, 0));
}

#[tokio::test]
async fn a_call_in_the_queue_becomes_a_task_that_reports_it_is_queued() {
    let world = Setup::new().route(ONE).route("defer: { after: 20ms }").start().await;
    let first = world.tasker().call("a").await;
    let at_server = world.server.call().await;
    let first = first.answer().await.result();
    let queued = world.tasker().call("b").await.answer().await.result();
    assert_eq!(queued["resultType"], "task", "{queued}");
    assert!(queued["statusMessage"].as_str().is_some_and(|said| said.starts_with("queued")), "{queued}");
    assert_eq!(first.get("statusMessage"), None, "{first}");
    let cancelled = world.tasker().call("c").await.answer().await.result();
    world.tasker().ask("tasks/cancel", json!({ "taskId": cancelled["taskId"] })).await.result();

    at_server.says("first");
    let next = world.server.call().await;
    assert_eq!(next.name(), "b");
    let get = json!({ "taskId": queued["taskId"] });
    loop {
        let shown = world.tasker().ask("tasks/get", get.clone()).await.result();
        if shown["statusMessage"] == "running" {
            break;
        }
        a_moment().await;
    }
    next.says("second");
    // The place of the one that was cancelled is free.
    let last = world.client().call("d").await;
    let at_server = world.server.call().await;
    assert_eq!(at_server.name(), "d");
    at_server.says("last");
    assert_eq!(last.answer().await.text(), "last");
    assert_eq!(world.calls(), 3);
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_legacy_call_is_queued_too_and_never_sent_if_it_is_cancelled_there() {
    let world = ProxyAndServer::with(ONE).await;
    let waits = LimitHits::of("concurrency");
    let client = LegacyClient::new(world.addr()).hello().await;
    let first = client.post(&call(1, "a")).await;
    let at_server = world.server.call().await;
    let second = client.post(&call(2, "b")).await;
    waits.are(1).await;
    let third = client.post(&call(3, "c")).await;
    waits.are(2).await;
    let cancel =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"enough"}}"#;
    assert_eq!(client.post(cancel).await.answer().await.status, 202);
    assert_eq!(second.answer().await.body, "", "no answer is owed");
    at_server.says("first");
    assert_eq!(first.answer().await.text(), "first");
    let next = world.server.call().await;
    assert_eq!(next.name(), "c");
    next.says("third");
    assert_eq!(third.answer().await.text(), "third");
    assert_eq!((world.calls(), world.server.messages("notifications/cancelled")), (2, 0));
}

#[tokio::test]
async fn a_call_of_a_disconnected_client_keeps_its_permit_until_the_server_ends_it() {
    let world = ProxyAndServer::with(ONE).await;
    let waits = LimitHits::of("concurrency");
    let client = LegacyClient::new(world.addr()).hello().await;
    let left = client.post(&call(1, "left")).await;
    let at_server = world.server.call().await;
    left.leave();
    let second = client.post(&call(2, "b")).await;
    waits.are(1).await;
    at_server.says("nobody hears it");
    world.server.call().await.says("second");
    assert_eq!(second.answer().await.text(), "second");
}

#[tokio::test]
async fn a_full_queue_and_a_long_wait_name_their_limits_in_both_eras() {
    let world = Setup::new().route(ONE).top("limits: { queue: 0 }").start().await;
    let (waits, full) = (LimitHits::of("concurrency"), LimitHits::of("limits.queue"));
    let first = world.client().call("a").await;
    let at_server = world.server.call().await;
    let older = LegacyClient::new(world.addr()).within("s1");
    for answer in
        [world.client().call("b").await.answer().await, older.post(&call(2, "b")).await.answer().await]
    {
        assert_eq!(answer.refusal(), (200, -31006));
        let said = message(&answer.error());
        assert!(said.contains("(concurrency)") && said.contains("(limits.queue)"), "{said}");
    }
    full.are(2).await;
    assert_eq!((waits.now(), world.calls()), (0, 1));
    at_server.says("done");
    assert_eq!(first.answer().await.text(), "done");

    let world = Setup::new().route(ONE).top("timeouts: { keep_alive: 1h, queue: 30ms }").start().await;
    let late = LimitHits::of("timeouts.queue");
    let _first = world.client().call("a").await;
    let _at_server = world.server.call().await;
    let older = LegacyClient::new(world.addr()).within("s1");
    for answer in
        [world.client().call("b").await.answer().await, older.post(&call(2, "b")).await.answer().await]
    {
        assert_eq!(answer.refusal(), (200, -31006));
        let said = message(&answer.error());
        assert!(said.contains("(concurrency)") && said.contains("(timeouts.queue)"), "{said}");
    }
    late.are(2).await;
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_batch_takes_a_permit_for_each_of_its_calls_and_one_that_is_too_large_is_refused() {
    let setup = Setup::new().route("concurrency: 2");
    let world = setup.server(|options| options.ignores = Box::new(|seen| seen.json.is_array())).start().await;
    let client = LegacyClient::new(world.addr())
        .with("mcp-session-id", "s1")
        .with("mcp-protocol-version", "2025-03-26");
    let batch = |count: u64| {
        let calls: Vec<_> = (1..=count).map(|id| call(id, "t")).collect();
        format!("[{}]", calls.join(","))
    };
    let refused = client.post(&batch(3)).await.answer().await.json();
    let refused = refused.as_array().expect("a batch").clone();
    assert_eq!(refused.len(), 3);
    assert!(
        message(&refused[0]["error"]).contains("of which 2 may run at a time (concurrency)"),
        "{refused:?}"
    );
    let waits = LimitHits::of("concurrency");
    let waiting = client.post(&batch(2)).await;
    world.server.seen(|seen| seen.json.is_array()).await;
    let second = world.client().call("b").await;
    waits.are(1).await;
    drop((waiting, second));
}

#[tokio::test]
async fn a_reload_that_raises_the_limit_admits_queued_calls() {
    let mut world = ProxyAndServer::with(ONE).await;
    let waits = LimitHits::of("concurrency");
    let first = world.client().call("a").await;
    let at_server = world.server.call().await;
    let second = world.client().call("b").await;
    waits.are(1).await;
    world.reload(&["concurrency: 2"], &[]).expect("it is right");
    let next = world.server.call().await;
    assert_eq!(next.name(), "b");
    let third = world.client().call("c").await;
    waits.are(2).await;
    world.reload(&[], &[]).expect("it is right");
    let last = world.server.call().await;
    assert_eq!(last.name(), "c", "without a limit nobody waits");
    for (call, waiting) in [(at_server, first), (next, second), (last, third)] {
        call.says("done");
        assert_eq!(waiting.answer().await.text(), "done");
    }
}
