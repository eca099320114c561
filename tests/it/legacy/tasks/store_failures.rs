//! A failing store, with clients of 2025-11-25.

use super::task_client::*;
use crate::{
    proxy::proxy_and_server::ALWAYS,
    support::faulty_store::{EVERYTHING, FaultyStore, Op},
};
use std::sync::Arc;

async fn world() -> (ProxyAndServer, Arc<FaultyStore>) {
    let store = FaultyStore::new();
    (setup().route(ALWAYS).store(&store).start().await, store)
}

#[tokio::test]
async fn a_result_is_waited_for_through_a_store_that_fails() {
    let (world, store) = world().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let mut waiting = client.waits(&task).await;
    store.fails(&[Op::Swap]);
    call.says("kept in the end");
    store.refused(Op::Swap).await;
    assert_eq!(client.get(&task).await["status"], "working", "nothing is shown that is not kept");
    store.works();
    let result = beyond_status(&mut waiting).await;
    assert_eq!(result["result"]["content"][0]["text"], "kept in the end");
    client.becomes(&task, "completed").await;
}

#[tokio::test]
async fn what_the_store_does_not_take_is_an_internal_error() {
    let (world, store) = world().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    store.fails(&[Op::Swap]);
    assert_eq!(client.of("tasks/cancel", &task).await.refusal(), (200, -32603));
    store.fails(&EVERYTHING);
    assert_eq!(client.of("tasks/get", UNKNOWN).await.refusal(), (200, -32603));
    assert_eq!(client.ask("tasks/list", json!({})).await.refusal(), (200, -32603));
    assert_eq!(client.get(&task).await["status"], "working", "what is held here is known");
    store.works();
    call.says("done");
    client.becomes(&task, "completed").await;
    store.fails(&EVERYTHING);
    assert_eq!(client.result(&task).await.refusal(), (200, -32603));
}

#[tokio::test]
async fn an_answer_that_is_not_kept_is_not_taken() {
    let (world, store) = world().await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    client.becomes(&task, "input_required").await;
    let answer = json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } });
    for op in [Op::Swap, Op::Load] {
        store.fails(&[op]);
        let refused = client.0.post(&answer.to_string()).await.answer().await;
        assert_eq!(refused.status, 503);
        assert_eq!(refused.error()["code"], -32603);
    }
    store.works();
    assert_eq!(client.get(&task).await["status"], "input_required", "it may be answered again");
    client.posts(&answer).await;
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 1);
    events.result(&id, json!({ "content": [] }));
    client.becomes(&task, "completed").await;
}
