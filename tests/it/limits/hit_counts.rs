//! Metrics of limits.
//!
//! A limit is looked at by the test that drives it to its end. Here are those whose tests drive a part of the proxy that counts
//! nothing, driven once more through the whole of it; and it is looked that none is left out.

use super::test_of_each_limit::{self, Held};
use crate::{
    emulated_sessions::proxy_and_stdio_server::ProxyAndStdioServer as Hosted,
    legacy::proxy_and_client::{HELLO, LegacyClient},
    proxy::proxy_and_server::{ALWAYS, Setup, start},
    support::{legacy_server::crowded, limit_hits::LimitHits, modern_client::soon},
};
use deferral::internals::{telemetry, upstream::UpstreamLimits};
use serde_json::json;
use std::collections::BTreeSet;

/// Which limits are counted in another test than the one that [`test_of_each_limit`] names, as that one has no whole proxy or is no test
/// of a limit of all routes.
const COUNTED: &[(&str, &str)] = &[
    (
        "limits.streams",
        "calls_beyond_what_a_connection_may_carry_are_refused_where_its_client_does_not_queue_them",
    ),
    ("limits.body_memory", "bodies_over_the_memory_limit_are_counted"),
    ("limits.queue", "calls_that_find_no_session_are_counted_by_what_kept_them_from_one"),
    ("timeouts.queue", "calls_that_find_no_session_are_counted_by_what_kept_them_from_one"),
    ("limits.result_bytes", "a_response_over_the_limit_is_counted_once_in_both_eras"),
    ("limits.client_sessions", "sessions_over_the_limit_are_counted"),
    ("limits.stored_bytes", "a_result_that_does_not_fit_ends_its_task_with_the_limit_named"),
    ("timeouts.connect", "a_server_that_takes_no_connection_is_counted"),
    ("timeouts.first_byte", "an_unanswered_request_is_counted_by_the_timeout_that_ended_it"),
    ("timeouts.idle", "an_unanswered_request_is_counted_by_the_timeout_that_ended_it"),
    ("timeouts.call", "a_call_over_its_timeout_is_counted_once_in_both_eras"),
    // Of a route, and of the store.
    ("concurrency", "the_tools_of_a_rule_share_its_permits_and_other_tools_need_none"),
    ("calls_per_minute", "a_caller_over_its_rate_is_refused_with_retry_after"),
    // Driven by `the_number_of_processes_is_bounded_and_a_long_wait_is_an_error`, which has no proxy.
    ("upstream.instances", "a_limit_that_failed_a_call_is_counted_once"),
    ("upstream.start_timeout", "an_operator_sees_that_a_process_did_not_come_up_in_time"),
    ("questions.park", "an_input_request_over_the_park_time_is_cancelled_with_its_call"),
    // Driven on paused time, without a proxy.
    ("questions.turn", "an_unanswered_request_ends_after_a_turn_if_another_principal_waits"),
    ("held.deadline", "a_stream_that_has_begun_ends_at_the_deadline_even_within_an_event"),
    ("store.max_bytes", "results_over_the_size_of_the_folder_are_counted"),
    ("free space of store.disk", "meets_a_disk_without_space"),
];

#[test]
fn every_counted_limit_has_a_test_that_reaches_it_and_reads_the_count() {
    let tests = test_of_each_limit::tests();
    let mut unused: BTreeSet<_> = COUNTED.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(unused.len(), COUNTED.len(), "a limit is here twice");
    for limit in telemetry::limit_snapshots() {
        let key = limit.limit;
        unused.remove(key);
        let elsewhere = COUNTED.iter().find(|(counted, _)| *counted == key).map(|(_, test)| *test);
        let driven = test_of_each_limit::BOUNDS.iter().find_map(|(bound, held)| match held {
            Held::By(test) => (*bound == key).then_some(*test),
            Held::Not(_) => None,
        });
        let test = elsewhere.or(driven).unwrap_or_else(|| panic!("no test drives {key}"));
        let text = tests.get(test).unwrap_or_else(|| panic!("{key}: there is no test {test}"));
        let looks = [
            format!("LimitHits::of(\"{key}\")"),
            format!("hits(&admin, \"{key}\")"),
            format!("hits(\"{key}\")"),
        ];
        let is_looked_at = looks.iter().any(|looks| text.contains(looks));
        assert!(is_looked_at, "{test} drives {key} and does not look at its count: {looks:?}");
    }
    assert!(unused.is_empty(), "these are not counted: {unused:?}");
}

#[tokio::test]
async fn bodies_over_the_memory_limit_are_counted() {
    let world = Setup::new().top("limits: { body_memory: 1MiB, body_bytes: 800KiB }").start().await;
    let hits = LimitHits::of("limits.body_memory");
    let large = json!({ "name": "t", "arguments": { "a": "x".repeat(700 << 10) } });
    let waiting = world.client().send("tools/call", large.clone()).await;
    let held = world.server.call().await;
    assert_eq!(world.client().ask("tools/call", large).await.refusal(), (503, -31006));
    held.says("done");
    assert_eq!(waiting.answer().await.text(), "done");
    hits.are(1).await;
}

#[tokio::test]
async fn calls_that_find_no_session_are_counted_by_what_kept_them_from_one() {
    let (full, overdue) = (LimitHits::of("limits.queue"), LimitHits::of("timeouts.queue"));
    let top = "limits: { sessions: 1, queue: 1 }";
    let world = Setup::new().top(top).top("timeouts: { queue: 1s }").start().await;
    let asked = world.client().declaring(json!({ "elicitation": {} }));
    let first = asked.call("first").await;
    let held = world.server.call().await;
    // One call is queued until its timeout; the other is refused at once.
    let waiting = [asked.call("second").await, asked.call("third").await];
    for waiting in waiting {
        assert_eq!(waiting.answer().await.error()["code"], -31006);
    }
    held.says("done");
    assert_eq!(first.answer().await.text(), "done");
    tokio::join!(full.are(1), overdue.are(1));
}

#[tokio::test]
async fn a_response_over_the_limit_is_counted_once_in_both_eras() {
    let world = Setup::new().top("limits: { result_bytes: 1000 }").start().await;
    let hits = LimitHits::of("limits.result_bytes");
    let waiting = world.client().call("t").await;
    world.server.call().await.says(&"x".repeat(2000));
    assert_eq!(waiting.answer().await.error()["code"], -31005);
    hits.are(1).await;
    // That of a task, which has an end of its own.
    let waiting = world.tasker().call("t").await;
    world.server.call().await.says(&"x".repeat(2000));
    waiting.answer().await;
    hits.are(2).await;
}

#[tokio::test]
async fn a_call_over_its_timeout_is_counted_once_in_both_eras() {
    let world = Setup::new().top("timeouts: { call: 100ms }").start().await;
    let hits = LimitHits::of("timeouts.call");
    let waiting = world.client().call("t").await;
    let _held = world.server.call().await;
    assert_eq!(waiting.answer().await.error()["code"], -31003);
    hits.are(1).await;
    let older = LegacyClient::new(world.addr()).hello().await;
    let waiting = older.call(1).await;
    let _held = world.server.call().await;
    assert_eq!(waiting.answer().await.error()["code"], -31003);
    hits.are(2).await;
}

#[tokio::test]
async fn an_unanswered_request_is_counted_by_the_timeout_that_ended_it() {
    let (silent, idle) = (LimitHits::of("timeouts.first_byte"), LimitHits::of("timeouts.idle"));
    let world = Setup::new().top("timeouts: { first_byte: 300ms, idle: 50ms }").start().await;
    let client = world.client();
    client.ask("tools/list", json!({})).await.result();
    let waiting = client.send("prompts/list", json!({})).await;
    let _held = world.server.call().await;
    assert_eq!(waiting.answer().await.error()["code"], -31003);
    let waiting = client.send("prompts/list", json!({})).await;
    let events = world.server.call().await.stream();
    events.raw(":\n\n");
    assert_eq!(waiting.answer().await.error()["code"], -31003);
    tokio::join!(silent.are(1), idle.are(1));
}

#[tokio::test]
async fn a_server_that_takes_no_connection_is_counted() {
    let hits = LimitHits::of("timeouts.connect");
    let crowd = crowded().await;
    let proxy = start(&format!("http://{}/mcp", crowd.addr), &[], &["timeouts: { connect: 50ms }"]);
    let client = crate::support::modern_client::Client::new(proxy.addresses[0]);
    let answer = client.ask("tools/list", json!({})).await;
    assert_eq!(answer.error()["code"], -31001, "{}", answer.body);
    assert!(hits.now() > 0, "it may have been tried again");
}

#[tokio::test(start_paused = true)]
async fn sessions_over_the_limit_are_counted() {
    let hits = LimitHits::of("limits.client_sessions");
    let limits = UpstreamLimits { client_sessions: 1, ..UpstreamLimits::default() };
    let mut world = Hosted::limited("defer: { mode: never }", limits);
    let (_first, _child) = world.begin(json!({})).await;
    assert_eq!(world.client().post(HELLO).await.answer().await.error()["code"], -31006);
    hits.are(1).await;
}

#[tokio::test]
async fn results_over_the_size_of_the_folder_are_counted() {
    let hits = LimitHits::of("store.max_bytes");
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("store: {{ disk: '{}', max_bytes: 16MiB }}", folder.path().join("tasks").display());
    let world = Setup::new().route(ALWAYS).top(store.leak()).start().await;
    let client = world.tasker();
    let mut told = String::new();
    while told.is_empty() {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        let task = waiting.answer().await.task();
        call.says(&"x".repeat(2 << 20));
        let ended = soon("its end", client.ended(&task)).await;
        told = ended["error"]["message"].as_str().unwrap_or_default().to_owned();
    }
    assert!(told.contains("(store.max_bytes)"), "{told}");
    hits.are(1).await;
}
