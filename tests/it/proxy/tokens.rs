//! Clients that are known by a token of ours.

use super::world::{ALWAYS, Setup, World};
use crate::{
    legacy::world::Older,
    support::{
        clients::{Client, indistinguishable},
        servers::{Canned, Options, Seen},
    },
};
use serde_json::json;
use tempfile::TempDir;

/// A world in which alice has two tokens and bob has one, and the folder they are in.
async fn world(change: impl FnOnce(&mut Options)) -> (World, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = [("alice", ALICE), ("alice", ALICES_NEW), ("bob", BOB)].map(|(name, token)| {
        let path = folder.path().join(token);
        std::fs::write(&path, token).expect("it can be written");
        format!("{{ name: {name}, file: '{}' }}", path.display())
    });
    let access = format!("access: {{ tokens: [{}] }}", tokens.join(", "));
    (Setup::new().route(ALWAYS).top(access.leak()).server(change).start().await, folder)
}

const ALICE: &str = "alices-token-0000";
const ALICES_NEW: &str = "alices-token-0001";
const BOB: &str = "bobs-token-000000";

#[tokio::test]
async fn a_task_belongs_to_the_name_of_the_token_and_outlives_the_token() {
    let (world, _folder) = world(|_| {}).await;
    let as_who = |token| world.tasker().bearing(token);
    let waiting = as_who(ALICE).call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let unknown: String = "0123456789abcdef".chars().cycle().take(task.len()).collect();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let foreign = as_who(BOB).of_task(method, &task).await;
        assert!(indistinguishable(&foreign, &as_who(BOB).of_task(method, &unknown).await), "{foreign:?}");
    }
    assert_eq!(world.tasker().of_task("tasks/get", &task).await.status, 401);
    assert_eq!(as_who(ALICES_NEW).task(&task).await["status"], "working");
    call.says("done");
    assert_eq!(as_who(ALICES_NEW).ended(&task).await["status"], "completed");
}

#[tokio::test]
async fn the_server_sees_no_token_of_ours_from_whatever_client() {
    let (world, _folder) = world(|_| {}).await;
    let modern = world.client().bearing(ALICE).with("cookie", "c=1");
    let waiting = modern.call("t").await;
    world.server.call().await.says("hi");
    assert_eq!(waiting.answer().await.status, 200);
    let older = Older::new(world.addr()).with("authorization", &format!("Bearer {ALICE}"));
    let older = older.hello().await;
    let waiting = older.call(1).await;
    world.server.call().await.says("hi");
    assert_eq!(waiting.answer().await.status, 200);
    assert_eq!(older.send(http::Method::DELETE, "/mcp", "").await.answer().await.status, 200);

    let log = world.server.log();
    assert!(log.iter().any(|seen| seen.header("cookie") == Some("c=1")), "what is not ours goes along");
    for seen in &log {
        assert_eq!(seen.header("authorization"), None, "{seen:?}");
        assert!(!format!("{seen:?}").contains(ALICE), "{seen:?}");
    }
}

#[tokio::test]
async fn the_tasks_of_an_older_client_belong_to_the_name_of_its_token() {
    // Its server says that the session is there when it is asked.
    let pong = |seen: &Seen| {
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} });
        (seen.method() == "ping").then(|| Canned::json(200, &answer))
    };
    let (world, _folder) = world(|options| *options = std::mem::take(options).hook(pong)).await;
    let as_who = |token: &str| Older::new(world.addr()).with("authorization", &format!("Bearer {token}"));
    let alice = as_who(ALICE).hello().await;
    let task = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let answer = alice.post(task).await.answer().await;
    let task = answer.result()["task"]["taskId"].as_str().expect("a task").to_owned();
    let get = json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": { "taskId": task } });
    let renewed = as_who(ALICES_NEW).within(&alice.session());
    assert_eq!(renewed.post(&get.to_string()).await.answer().await.result()["status"], "working");
    // A session is the server's own, and it sees nothing of ours that would tell the two apart: it serves both. The
    // task is here, and it is alice's.
    let bob = as_who(BOB).within(&alice.session());
    assert_eq!(bob.post(&get.to_string()).await.answer().await.error()["code"], -32602);
    let list = r#"{"jsonrpc":"2.0","id":3,"method":"tasks/list"}"#;
    assert_eq!(bob.post(list).await.answer().await.result()["tasks"], json!([]));
    assert_eq!(renewed.post(list).await.answer().await.result()["tasks"][0]["taskId"], json!(task));
    world.server.call().await.says("done");
}

#[tokio::test]
async fn a_client_that_listens_needs_a_token_too() {
    let (world, _folder) = world(|_| {}).await;
    let listens = |client: Client| async move {
        client.send("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })).await
    };
    assert_eq!(listens(world.client()).await.answer().await.status, 401);
    let mut stream = listens(world.client().bearing(BOB)).await.stream().await;
    stream.notice("notifications/subscriptions/acknowledged").await;
}
