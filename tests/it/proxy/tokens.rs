//! Clients with a token of the proxy.

use super::proxy_and_server::{ALWAYS, Kept, ProxyAndServer, Setup, start_kept};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::{Canned, LegacyServer, Options, Seen},
        modern_client::{Client, indistinguishable, soon},
    },
};
use deferral::internals::store::{MemoryStore, StoreSecret};
use http::Method;
use serde_json::json;
use std::{path::Path, sync::Arc};
use tempfile::TempDir;

/// A world in which alice has two tokens and bob has one, and the folder they are in.
async fn world(change: impl FnOnce(&mut Options)) -> (ProxyAndServer, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let access = access(folder.path(), &[("alice", ALICE), ("alice", ALICES_NEW), ("bob", BOB)]);
    (Setup::new().route(ALWAYS).top(access.leak()).server(change).start().await, folder)
}

/// `access` with these tokens, which are in files of this folder.
fn access(folder: &Path, tokens: &[(&str, &str)]) -> String {
    let tokens = tokens.iter().map(|(name, token)| {
        let path = folder.join(token);
        std::fs::write(&path, token).expect("it can be written");
        format!("{{ name: {name}, file: '{}' }}", path.display())
    });
    format!("access: {{ tokens: [{}] }}", tokens.collect::<Vec<_>>().join(", "))
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
    let older = LegacyClient::new(world.addr()).with("authorization", &format!("Bearer {ALICE}"));
    let older = older.hello().await;
    let waiting = older.call(1).await;
    world.server.call().await.says("hi");
    assert_eq!(waiting.answer().await.status, 200);
    assert_eq!(older.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);

    let log = world.server.log();
    assert!(log.iter().any(|seen| seen.header("cookie") == Some("c=1")), "what is not ours goes along");
    for seen in &log {
        assert_eq!(seen.header("authorization"), None, "{seen:?}");
        assert!(!format!("{seen:?}").contains(ALICE), "{seen:?}");
    }
}

#[tokio::test]
async fn the_tasks_of_a_legacy_client_belong_to_the_name_of_its_token() {
    // Its server says that the session is there when it is asked.
    let pong = |seen: &Seen| {
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} });
        (seen.method() == "ping").then(|| Canned::json(200, &answer))
    };
    let (world, _folder) = world(|options| *options = std::mem::take(options).hook(pong)).await;
    let as_who =
        |token: &str| LegacyClient::new(world.addr()).with("authorization", &format!("Bearer {token}"));
    let alice = as_who(ALICE).hello().await;
    let task = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let answer = alice.post(task).await.answer().await;
    let task = answer.result()["task"]["taskId"].as_str().expect("a task").to_owned();
    let get = json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": { "taskId": task } });
    let renewed = as_who(ALICES_NEW).within(&alice.session());
    assert_eq!(renewed.post(&get.to_string()).await.answer().await.result()["status"], "working");
    // The task is alice's. Bob cannot use her session, and does not find it from his own either.
    let bob = as_who(BOB).within(&alice.session());
    assert_eq!(bob.post(&get.to_string()).await.answer().await.status, 404);
    let bob = as_who(BOB).hello().await;
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

/// What a client sends in a session: a request, a notification, a batch, a GET and a DELETE.
async fn statuses(client: &LegacyClient) -> Vec<u16> {
    const LIST: &str = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#;
    let mut statuses = Vec::new();
    for (method, body) in [
        (Method::POST, LIST),
        (Method::POST, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        (Method::POST, r#"[{"jsonrpc":"2.0","id":4,"method":"ping"}]"#),
        (Method::GET, ""),
        (Method::DELETE, ""),
    ] {
        statuses.push(client.send(method, "/mcp", body).await.stream().await.status.as_u16());
    }
    statuses
}

/// Every request of this client in the session is answered 404 and reaches no server.
async fn is_shut_out(world: &ProxyAndServer, client: &LegacyClient) {
    let before = world.server.log().len();
    assert_eq!(statuses(client).await, [404; 5], "{client:?}");
    assert_eq!(world.server.log().len(), before, "nothing of it reaches the server");
}

#[tokio::test]
async fn a_session_serves_the_name_it_was_opened_by_and_is_unknown_to_others() {
    let (world, _folder) = world(|_| {}).await;
    let as_who =
        |token: &str| LegacyClient::new(world.addr()).with("authorization", &format!("Bearer {token}"));
    let alice = as_who(ALICE).hello().await;
    let servers = world.server.message("notifications/initialized").await.session().to_owned();
    assert!(alice.session().starts_with(&servers), "{} {servers}", alice.session());
    assert_ne!(alice.session(), servers);
    for foreign in [
        as_who(BOB).within(&alice.session()),
        // The server's own id, which may show in its logs, is of no use.
        as_who(ALICE).within(&servers),
        as_who(BOB).within(&servers),
        as_who(ALICE).within(&format!("{}x", alice.session())),
    ] {
        is_shut_out(&world, &foreign).await;
    }
    let list = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#;
    let refused = as_who(BOB).within(&alice.session()).post(list).await.answer().await;
    assert_eq!(refused.json()["id"], 3);
    assert_eq!(refused.error()["code"], -32600);
    let renewed = as_who(ALICES_NEW).within(&alice.session());
    let served = statuses(&renewed).await;
    assert!(!served.contains(&404), "{served:?}");
    assert!(world.server.log().iter().all(|seen| seen.session().is_empty() || seen.session() == servers));
}

#[tokio::test]
async fn a_session_belongs_to_the_header_that_names_the_principal() {
    let world = Setup::new().route("principal: { header: X-User }").start().await;
    let user = |name: &str| LegacyClient::new(world.addr()).with("x-user", name);
    let alice = user("alice").hello().await;
    let servers = world.server.message("notifications/initialized").await.session().to_owned();
    let nobody = LegacyClient::new(world.addr());
    for foreign in
        [user("bob").within(&alice.session()), nobody.within(&alice.session()), nobody.within(&servers)]
    {
        is_shut_out(&world, &foreign).await;
    }
    // A session that was opened without the header belongs to no other principal.
    let anonymous = nobody.hello().await;
    is_shut_out(&world, &user("alice").within(&anonymous.session())).await;
    for client in [alice, anonymous] {
        let served = statuses(&client).await;
        assert!(!served.contains(&404), "{served:?}");
    }
}

#[tokio::test]
async fn where_authorization_passes_the_server_judges_who_uses_a_session() {
    let world = ProxyAndServer::new().await;
    let bearing = |token: &str| LegacyClient::new(world.addr()).with("authorization", token);
    let alice = bearing("Bearer a").hello().await;
    assert_eq!(alice.session(), "s1");
    let refreshed = bearing("Bearer b").within("s1");
    let waiting = refreshed.call(1).await;
    world.server.call().await.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
}

#[tokio::test]
async fn a_session_belongs_to_its_principal_after_a_restart() {
    let server = LegacyServer::start(Setup::new().options).await;
    let mut memory = MemoryStore::default();
    let mut next = |secret: u8| {
        memory = memory.restarted();
        let kept: Kept = (Arc::new(memory.restarted()), StoreSecret::new(&[secret; 32]));
        start_kept(&server.url(), kept, &["principal: { header: X-User }"], &[])
    };
    let first = next(1);
    let alice = LegacyClient::new(first.addresses[0]).with("x-user", "alice").hello().await;
    first.stop().await;
    let second = next(1);
    let user =
        |name: &str| LegacyClient::new(second.addresses[0]).with("x-user", name).within(&alice.session());
    let waiting = user("alice").call(1).await;
    server.call().await.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
    assert_eq!(user("bob").call(2).await.answer().await.status, 404);
    second.stop().await;
    // With another key it is unknown.
    let third = next(2);
    let alice = LegacyClient::new(third.addresses[0]).with("x-user", "alice").within(&alice.session());
    assert_eq!(alice.call(3).await.answer().await.status, 404);
    third.stop().await;
}

#[tokio::test]
async fn a_removed_tokens_streams_end_and_its_calls_end_as_they_began() {
    let (mut world, folder) =
        world(|options| options.capabilities = json!({ "tools": { "listChanged": true } })).await;
    let as_who =
        |token: &str| LegacyClient::new(world.addr()).with("authorization", &format!("Bearer {token}"));
    let (alice, bob) = (as_who(ALICE).hello().await, as_who(BOB).hello().await);
    let mut gets = [alice.listen().await.stream().await, bob.listen().await.stream().await];
    let lists = || json!({ "toolsListChanged": true });
    let as_modern = |token| world.client().bearing(token);
    let mut listens = [as_modern(ALICE).listen(lists()).await, as_modern(BOB).listen(lists()).await];
    for stream in &mut listens {
        stream.notice("notifications/subscriptions/acknowledged").await;
    }
    // Held, of either era.
    let (older, held) = (bob.call(7).await, world.client().bearing(BOB).call("t").await);
    let calls = [world.server.call().await, world.server.call().await];

    let access = access(folder.path(), &[("alice", ALICE), ("alice", ALICES_NEW)]);
    world.reload(&[ALWAYS], &[&access]).expect("it is right");
    assert_eq!(soon("bob's GET stream ends", gets[1].rest()).await, "");
    let last = listens[1].next().await;
    assert_eq!(last["error"]["code"], -31008, "{last}");
    assert_eq!(soon("bob's other stream ends", listens[1].rest()).await, "");
    assert_eq!(bob.listen().await.answer().await.status, 401);

    for call in calls {
        call.says("to the end");
    }
    assert_eq!(older.answer().await.text(), "to the end");
    assert_eq!(held.answer().await.text(), "to the end");
    // Alice hears on.
    let session = world
        .server
        .log()
        .iter()
        .find(|seen| seen.http == Method::GET)
        .expect("a stream")
        .session()
        .to_owned();
    world.server.listener(&session).await.notify("notifications/x", json!({}));
    let piece =
        soon("alice's stream goes on", gets[0].piece()).await.expect("it is open").expect("it is whole");
    assert!(piece.contains("notifications/x"), "{piece}");
}
