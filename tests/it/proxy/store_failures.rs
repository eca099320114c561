//! A store that fails: nothing is lost, and nothing unstored is acknowledged.

use super::{
    program::Program,
    proxy_and_server::{ALWAYS, ProxyAndServer, Setup},
};
use crate::support::{
    faulty_store::{EVERYTHING, FaultyStore, Op},
    legacy_server::{Call, LegacyServer},
    modern_client::Client,
};
use deferral::internals::store::{Store, StoreSecret};
use serde_json::json;
use std::sync::Arc;

/// Every call is a task at once, in a store that works so far.
async fn world() -> (ProxyAndServer, Arc<FaultyStore>) {
    let store = FaultyStore::new();
    (Setup::new().route(ALWAYS).store(&store).start().await, store)
}

/// A task of this client, and the call at the server.
async fn task(world: &ProxyAndServer, client: &Client) -> (String, Call) {
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    (waiting.answer().await.task(), call)
}

/// A client that can be asked and given tasks.
fn asked(world: &ProxyAndServer) -> Client {
    let tasks = json!({ "io.modelcontextprotocol/tasks": {} });
    world.client().declaring(json!({ "elicitation": {}, "extensions": tasks }))
}

const QUESTION: &str = r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{}}}}"#;

#[tokio::test]
async fn a_result_that_the_store_does_not_take_is_shown_once_it_does() {
    let (world, store) = world().await;
    let client = world.tasker();
    let (task, call) = task(&world, &client).await;
    store.fails(&[Op::Swap]);
    call.says("kept in the end");
    store.refused(Op::Swap).await;
    let waits = client.until(&task, |task| task["statusMessage"].is_string()).await;
    assert_eq!(waits["status"], "working", "nothing is shown that is not kept");
    assert!(waits["statusMessage"].as_str().expect("words").contains("store"), "{waits:#}");
    store.works();
    let ended = client.ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], "kept in the end");
    assert_eq!(ended.get("statusMessage"), None);
}

#[tokio::test]
async fn a_task_that_is_held_here_is_shown_while_the_store_does_not_answer() {
    let (world, store) = world().await;
    let client = world.tasker();
    let (task, call) = task(&world, &client).await;
    store.fails(&EVERYTHING);
    assert_eq!(client.task(&task).await["status"], "working");
    let unknown = client.of_task("tasks/get", "0123456789abcdef0123456789abcdef").await;
    assert_eq!(unknown.refusal(), (200, -32603), "what is not known is not called unknown");
    let foreign = client.bearing("mallory").of_task("tasks/get", &task).await;
    assert_eq!(foreign.refusal(), (200, -32602));
    store.works();
    call.says("done");
    assert_eq!(client.ended(&task).await["status"], "completed");
}

#[tokio::test]
async fn a_handle_is_given_although_the_store_fails_right_after() {
    let (world, store) = world().await;
    let client = world.tasker();
    store.fails(&[Op::Load]);
    let (task, call) = task(&world, &client).await;
    store.works();
    call.says("done");
    assert_eq!(client.ended(&task).await["status"], "completed");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_cancel_that_is_not_kept_is_not_acknowledged() {
    let (world, store) = world().await;
    let client = world.tasker();
    let (task, call) = task(&world, &client).await;
    store.fails(&[Op::Swap]);
    let refused = client.of_task("tasks/cancel", &task).await;
    assert_eq!(refused.refusal(), (200, -32603));
    assert_eq!(client.task(&task).await["status"], "working");
    store.works();
    client.of_task("tasks/cancel", &task).await.result();
    assert_eq!(client.task(&task).await["status"], "cancelled");
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
}

#[tokio::test]
async fn an_answer_that_is_not_kept_is_not_acknowledged() {
    let (world, store) = world().await;
    let client = asked(&world);
    let (task, call) = task(&world, &client).await;
    let id = call.id();
    let events = call.stream();
    events.raw(format!("data: {QUESTION}\n\n"));
    let key = {
        let asked = client.until(&task, |task| task["status"] == "input_required").await;
        asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone()
    };
    let answers = json!({ "taskId": task, "inputResponses": { key: { "action": "decline" } } });
    store.fails(&[Op::Swap]);
    assert_eq!(client.ask("tasks/update", answers.clone()).await.refusal(), (200, -32603));
    store.works();
    assert_eq!(client.task(&task).await["status"], "input_required", "it may be answered again");
    client.ask("tasks/update", answers).await.result();
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 1);
    events.result(&id, json!({ "content": [] }));
    assert_eq!(client.until(&task, |task| task["status"] == "completed").await["status"], "completed");
}

#[tokio::test]
async fn an_input_request_that_the_store_does_not_take_is_put_once_it_does() {
    let (world, store) = world().await;
    let client = asked(&world);
    let (task, call) = task(&world, &client).await;
    let events = call.stream();
    store.fails(&[Op::Swap]);
    events.raw(format!("data: {QUESTION}\n\n"));
    store.refused(Op::Swap).await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 0, "it is not declined");
    store.works();
    client.until(&task, |task| task["status"] == "input_required").await;
}

#[tokio::test]
async fn a_subscription_to_an_unreadable_task_gets_an_error() {
    let (world, store) = world().await;
    let client = world.tasker();
    let (task, call) = task(&world, &client).await;
    call.says("done");
    client.ended(&task).await;
    store.fails(&[Op::Load]);
    let params = json!({ "notifications": { "taskIds": [task] } });
    let refused = client.ask("subscriptions/listen", params.clone()).await;
    assert_eq!(refused.refusal(), (200, -32603), "it would wait for ever");
    store.works();
    let mut stream = client.listen(params["notifications"].clone()).await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    assert_eq!(stream.notice("notifications/tasks").await["status"], "completed");
}

#[tokio::test]
async fn a_store_that_fails_leaves_calls_synchronous_and_their_input_requests_open() {
    let (world, store) = world().await;
    store.fails(&EVERYTHING);
    let waiting = world.tasker().call("slow").await;
    world.server.call().await.says("plain");
    assert_eq!(waiting.answer().await.text(), "plain");

    let client = world.client().declaring(json!({ "elicitation": {} }));
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let events = call.stream();
    events.raw(format!("data: {QUESTION}\n\n"));
    let asked = waiting.answer().await.result();
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
}

#[tokio::test]
async fn a_failing_store_is_logged_once_and_its_recovery_once() {
    let server = LegacyServer::start(Setup::new().options).await;
    let store = FaultyStore::new();
    let kept = (store.clone() as Arc<dyn Store>, StoreSecret::new(&[1; 32]));
    let proxy = Program::kept(&server, kept, &[ALWAYS], &[]).await;
    let client = proxy.client().with_tasks();
    let said = |event: &str| proxy.log.lines().iter().filter(|line| line["event"] == event).count();
    store.fails(&[Op::Insert]);
    for _ in 0..3 {
        let waiting = client.call("t").await;
        server.call().await.says("as it is");
        assert_eq!(waiting.answer().await.text(), "as it is", "it stays a call");
    }
    assert_eq!((said("store_failed"), said("store_back")), (1, 0));
    store.works();
    let waiting = client.call("t").await;
    server.call().await.says("as a task");
    waiting.answer().await.task();
    assert_eq!((said("store_failed"), said("store_back")), (1, 1));
    proxy.killed().await;
}
