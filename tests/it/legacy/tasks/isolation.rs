//! Ownership of tasks.

use super::task_client::{
    LegacyClient, Tasker, UNKNOWN, beyond_status, heard, json, on_terms, question, setup, world,
};
use crate::{
    proxy::proxy_and_server::ALWAYS,
    support::{limit_hits::LimitHits, modern_client::indistinguishable},
};
use deferral::internals::policy::LegacyTaskPolicy;

const METHODS: [&str; 3] = ["tasks/get", "tasks/result", "tasks/cancel"];

/// To this client the task does not exist.
async fn sees_nothing(client: &Tasker, task: &str) {
    for method in METHODS {
        let foreign = client.of(method, task).await;
        assert_eq!(foreign.refusal(), (200, -32602), "{method}");
        for unknown in [UNKNOWN, "no id at all", ""] {
            let unknown = client.of(method, unknown).await;
            assert!(indistinguishable(&foreign, &unknown), "{method}: {foreign:?} {unknown:?}");
        }
    }
    assert!(!client.list().await.contains(&task.to_owned()));
}

async fn sees(client: &Tasker, task: &str) {
    assert_eq!(client.get(task).await["taskId"], task);
    assert!(client.list().await.contains(&task.to_owned()));
}

#[tokio::test]
async fn sessions_without_credentials_list_only_their_own_and_find_others_by_their_ids() {
    let world = world(ALWAYS).await;
    let (one, other) = (Tasker::hello(&world).await, Tasker::hello(&world).await);
    let (task, call) = one.makes(&world).await;
    let (others, others_call) = other.makes(&world).await;
    sees(&one, &task).await;
    sees(&other, &others).await;
    assert_eq!((one.list().await, other.list().await), (vec![task.clone()], vec![others.clone()]));
    assert_eq!(other.get(&task).await["status"], "working");
    call.says("one");
    others_call.says("other");
    assert_eq!(other.result(&task).await.text(), "one");
    assert_eq!(one.result(&others).await.text(), "other");
    let sessionless = Tasker(LegacyClient::new(world.addr()).with("mcp-protocol-version", "2025-11-25"));
    assert_eq!(sessionless.result(&task).await.text(), "one");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn the_same_credentials_share_their_tasks_between_sessions() {
    let world = world(ALWAYS).await;
    let (one, other) = (Tasker::bearing(&world, "a").await, Tasker::bearing(&world, "a").await);
    let (task, call) = one.makes(&world).await;
    sees(&other, &task).await;
    let mut waiting = other.waits(&task).await;
    call.says("done");
    assert_eq!(beyond_status(&mut waiting).await["result"]["content"][0]["text"], "done");
    assert_eq!(one.result(&task).await.text(), "done");
}

#[tokio::test]
async fn other_credentials_see_nothing() {
    let world = world(ALWAYS).await;
    let (alice, bob) = (Tasker::bearing(&world, "alice").await, Tasker::bearing(&world, "bob").await);
    let nobody = Tasker::hello(&world).await;
    let (task, call) = alice.makes(&world).await;
    sees_nothing(&bob, &task).await;
    sees_nothing(&nobody, &task).await;
    // Not even in the very session.
    sees_nothing(&Tasker(alice.0.with("authorization", "Bearer bob")), &task).await;
    sees_nothing(&Tasker(alice.0.with("authorization", "")), &task).await;
    call.says("done");
    assert_eq!(alice.result(&task).await.text(), "done");
}

#[tokio::test]
async fn an_input_request_is_answered_by_those_who_see_its_task_alone() {
    let world = world(ALWAYS).await;
    let (one, other) = (Tasker::bearing(&world, "one").await, Tasker::bearing(&world, "other").await);
    let mut listening = one.listens().await;
    let (task, _, events) = one.makes_stream(&world).await;
    events.send(&question(3, "who?"));
    let put = heard(&mut listening).await;
    // It is accepted like any response, and not relayed.
    other.answers(&put["id"], json!({ "action": "cancel" })).await;
    let stranger = Tasker(LegacyClient::new(world.addr()).with("mcp-protocol-version", "2025-11-25"));
    stranger.answers(&put["id"], json!({ "action": "cancel" })).await;
    assert_eq!(one.get(&task).await["status"], "input_required");
    one.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    let seen = world.server.seen(|seen| seen.answers(&json!(3))).await;
    assert_eq!(seen.json["result"]["action"], "accept");
    assert_eq!(seen.session(), "s1");
    assert_eq!(world.server.count(|seen| seen.method().is_empty() && !seen.json.is_null()), 1);
}

#[tokio::test]
async fn the_eras_do_not_see_each_others_tasks() {
    let world = world(ALWAYS).await;
    let (older, newer) = (Tasker::bearing(&world, "a").await, world.tasker().bearing("a"));
    let (task, call) = older.makes(&world).await;
    let waiting = newer.call("slow").await;
    let newer_call = world.server.call().await;
    let newer_task = waiting.answer().await.task();
    sees_nothing(&older, &newer_task).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        assert_eq!(newer.of_task(method, &task).await.refusal(), (200, -32602), "{method}");
    }
    call.says("older");
    newer_call.says("newer");
    assert_eq!(older.result(&task).await.text(), "older");
    assert_eq!(newer.ended(&newer_task).await["result"]["content"][0]["text"], "newer");
}

#[tokio::test]
async fn the_eras_meet_where_the_operator_lets_them_and_credentials_are_the_same() {
    let world =
        on_terms(LegacyTaskPolicy { is_shared_across_eras: true, ..LegacyTaskPolicy::default() }).await;
    let (older, newer) = (Tasker::bearing(&world, "a").await, world.tasker().bearing("a"));
    let (task, call) = older.makes(&world).await;
    let waiting = newer.call("slow").await;
    let newer_call = world.server.call().await;
    let newer_task = waiting.answer().await.task();
    sees(&older, &newer_task).await;
    assert_eq!(newer.task(&task).await["status"], "working");
    call.says("older");
    newer_call.says("newer");
    let ended = newer.ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], "older");
    assert_eq!(ended["result"]["resultType"], "complete");
    let result = older.result(&newer_task).await.result();
    assert_eq!(result["content"][0]["text"], "newer");
    assert_eq!(result.get("resultType"), None, "{result}");
    sees_nothing(&Tasker::bearing(&world, "b").await, &newer_task).await;
}

#[tokio::test]
async fn the_eras_never_share_tasks_without_credentials() {
    let world =
        on_terms(LegacyTaskPolicy { is_shared_across_eras: true, ..LegacyTaskPolicy::default() }).await;
    let (older, newer) = (Tasker::hello(&world).await, world.tasker());
    let (task, _call) = older.makes(&world).await;
    let waiting = newer.call("slow").await;
    let _newer_call = world.server.call().await;
    sees_nothing(&older, &waiting.answer().await.task()).await;
    assert_eq!(newer.of_task("tasks/get", &task).await.refusal(), (200, -32602));
}

#[tokio::test]
async fn an_input_request_that_the_other_era_answered_is_cancelled() {
    let world =
        on_terms(LegacyTaskPolicy { is_shared_across_eras: true, ..LegacyTaskPolicy::default() }).await;
    let (older, newer) = (Tasker::bearing(&world, "a").await, world.tasker().bearing("a"));
    let mut listening = older.listens().await;
    let (task, _, events) = older.makes_stream(&world).await;
    events.send(&question(3, "who?"));
    let put = heard(&mut listening).await;
    let key = newer.task(&task).await["inputRequests"].as_object().expect("questions").keys().next().cloned();
    let answers = json!({ key.expect("a question"): { "action": "accept", "content": {} } });
    newer.ask("tasks/update", json!({ "taskId": task, "inputResponses": answers })).await.result();
    world.server.seen(|seen| seen.answers(&json!(3))).await;
    let back = beyond_status(&mut listening).await;
    assert_eq!(back["method"], "notifications/cancelled");
    assert_eq!(back["params"]["requestId"], put["id"]);
}

#[tokio::test]
async fn without_credentials_or_sessions_a_task_is_found_by_its_id_and_not_listed() {
    let world = setup().route(ALWAYS).server(|options| options.sessions = false).start().await;
    let client = Tasker(LegacyClient::new(world.addr()).with("mcp-protocol-version", "2025-11-25"));
    let (task, call) = client.makes(&world).await;
    assert_eq!(client.get(&task).await["status"], "working");
    let answer = client.ask("tasks/list", json!({})).await;
    assert_eq!(answer.refusal(), (200, -32601));
    let mut waiting = client.waits(&task).await;
    let id = call.id();
    let events = call.stream();
    // The streams of two sessions could not be distinguished.
    events.send(&question("q", "who?"));
    let put = beyond_status(&mut waiting).await;
    assert_eq!(put["method"], "elicitation/create");
    client.answers(&put["id"], json!({ "action": "decline" })).await;
    world.server.seen(|seen| seen.answers(&json!("q"))).await;
    events.result(&id, json!({ "content": [] }));
    assert_eq!(client.result(&task).await.result()["content"], json!([]));
}

#[tokio::test]
async fn input_responses_to_unknown_tasks_count_as_misses() {
    let hits = LimitHits::of("limits.misses_per_minute");
    let world = setup().route(ALWAYS).top("limits: { misses_per_minute: 2 }").start().await;
    let Tasker(client) = Tasker::hello(&world).await;
    let answer =
        json!({ "jsonrpc": "2.0", "id": format!("deferral:{UNKNOWN}:name"), "result": {} }).to_string();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(client.post(&answer).await.answer().await.status.as_u16());
    }
    assert_eq!(statuses, [202, 202, 429]);
    hits.are(1).await;
}
