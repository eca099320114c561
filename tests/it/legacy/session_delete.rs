//! Session deletes, with servers that would fail after one or are unreachable.

use super::proxy_and_client::{HELLO, LegacyClient, READY};
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup, start},
    support::{
        legacy_server::{Call, Canned, ReservedPort, Seen},
        paused_time::Still,
    },
};
use http::Method;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A world whose server offers no newer revision than this. One from before 2025-06-18 fails for ever
/// once a session is ended.
async fn offering(newest: &'static str, setup: Setup) -> ProxyAndServer {
    let setup = setup.server(|options| {
        let dead = AtomicBool::new(false);
        let before = std::mem::take(options);
        *options = before.hook(move |seen: &Seen| {
            if seen.http == Method::DELETE {
                dead.store(newest < "2025-06-18", SeqCst);
                return Some(Canned::status(204));
            }
            if dead.load(SeqCst) {
                return Some(Canned::status(500).body("Task group is not initialized"));
            }
            if seen.method() != "initialize" {
                return None;
            }
            let asked = seen.json["params"]["protocolVersion"].as_str().expect("it names one");
            let result = json!({
                "protocolVersion": asked.min(newest),
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "s", "version": "1" },
            });
            let body = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result });
            let session = format!("of-{}", seen.header("user-agent").unwrap_or("client"));
            Some(Canned::json(200, &body).header("mcp-session-id", session))
        });
    });
    setup.start().await
}

/// A session begun by a client that knows nothing newer than this.
async fn begun(world: &ProxyAndServer, newest: &str) -> LegacyClient {
    let client = LegacyClient::new(world.addr()).with("user-agent", "client");
    let hello = HELLO.replace("2025-11-25", newest);
    let answer = client.post(&hello).await.answer().await;
    let client = client.within("of-client").with("mcp-protocol-version", newest);
    assert_eq!(answer.header("mcp-session-id"), "of-client");
    assert_eq!(client.post(READY).await.answer().await.status, 202);
    client
}

async fn end(client: &LegacyClient) -> u16 {
    client.send(Method::DELETE, "/mcp", "").await.answer().await.status.as_u16()
}

fn ends(world: &ProxyAndServer) -> usize {
    world.server.count(|seen| seen.http == Method::DELETE && seen.session() == "of-client")
}

#[tokio::test]
async fn delete_is_not_sent_to_a_server_that_would_fail_after_it() {
    for (client, route) in
        [("2025-11-25", ""), ("2025-06-18", ""), ("2025-03-26", ""), ("2025-03-26", "defer: { mode: never }")]
    {
        let setup = if route.is_empty() { Setup::new() } else { Setup::new().route(route) };
        let world = offering("2025-03-26", setup).await;
        let older = begun(&world, client).await;
        assert_eq!(end(&older).await, 200);
        assert_eq!(ends(&world), 0, "{client}");
        // For the client it is over.
        let called = older.call(7).await.answer().await;
        assert_eq!((called.status.as_u16(), &called.json()["id"]), (404, &json!(7)));
        assert_eq!(older.listen().await.answer().await.status, 404);
        assert_eq!(older.post(READY).await.answer().await.status, 404);
        assert_eq!(end(&older).await, 404);
        // No other session is affected.
        let other = LegacyClient::new(world.addr());
        assert_eq!(other.post(HELLO).await.answer().await.status, 200);
        let other = other.with("authorization", "Bearer other").within("of-client");
        let waiting = other.call(8).await;
        world.server.call().await.says("hello");
        assert_eq!(waiting.answer().await.text(), "hello");
    }
}

#[tokio::test]
async fn a_server_is_judged_by_the_newest_revision_it_offers_itself() {
    for client in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let world = offering("2025-11-25", Setup::new()).await;
        let older = begun(&world, client).await;
        assert_eq!(end(&older).await, 204, "{client}");
        assert_eq!(ends(&world), 1, "{client}");
    }
}

#[tokio::test]
async fn a_server_with_an_unknown_revision_is_probed_before_a_delete() {
    for (newest, status) in [("2025-03-26", 200), ("2025-06-18", 204)] {
        let world = offering(newest, Setup::new()).await;
        let older = LegacyClient::new(world.addr()).within("of-client");
        assert_eq!(end(&older).await, status);
        assert_eq!(ends(&world), usize::from(status == 204));
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_answered_where_its_server_is_gone() {
    let ProxyAndServer { server, proxy } = ProxyAndServer::new().await;
    let client = LegacyClient::new(proxy.addresses[0]).hello().await;
    drop(server);
    let answer = client.send(Method::DELETE, "/mcp", "").await.answer().await;
    assert_eq!(answer.refusal(), (502, -31001));
    assert_eq!(client.call(7).await.answer().await.refusal(), (200, -31001));
}

#[tokio::test]
async fn the_end_of_a_session_is_answered_where_its_server_was_never_there() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[], &[]);
    let client = LegacyClient::new(proxy.addresses[0]).within("s1");
    let answer = client.send(Method::DELETE, "/mcp", "").await.answer().await;
    assert_eq!(answer.refusal(), (502, -31001));
}

#[tokio::test]
async fn the_end_of_a_session_is_answered_where_its_server_redirects() {
    let setup = Setup::new().server(|options| {
        options.hook = Some(Box::new(|seen| {
            (seen.http == Method::DELETE).then(|| Canned::status(307).header("location", "http://else/mcp"))
        }));
    });
    let world = setup.start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let answer = client.send(Method::DELETE, "/mcp", "").await.answer().await;
    assert_eq!(answer.refusal(), (502, -31004));
}

/// An id may be derived from the user, or be the only one that there is.
#[tokio::test]
async fn a_session_whose_id_its_server_gives_again_lives_again() {
    for newest in ["2025-03-26", "2025-11-25"] {
        // The first is answered here, and goes on at a server that would not survive its end.
        let world = offering(newest, Setup::new().route("defer: { mode: never }")).await;
        let first = begun(&world, newest).await;
        assert!(end(&first).await < 300, "{newest}");
        if newest == "2025-03-26" {
            assert_eq!(first.call(1).await.answer().await.status, 404);
        }
        let again = begun(&world, newest).await;
        let waiting = again.call(2).await;
        world.server.call().await.says("done");
        assert_eq!(waiting.answer().await.text(), "done", "{newest}");
        // What breaks there is owed an error, and so is a call in a session that is not over.
        let waiting = again.call(3).await;
        world.server.call().await.stream().notify("notifications/x", json!({}));
        let messages = waiting.answer().await.messages();
        assert_eq!(messages.last().expect("an error")["error"]["code"], -31002, "{newest}: {messages:?}");
        assert!(end(&again).await < 300, "it can be ended again");
    }
}

/// A session in which a task works, and another client that has called before.
async fn working() -> (ProxyAndServer, LegacyClient, (Value, Call), LegacyClient) {
    let setup = Setup::new().server(|options| options.asks = Box::new(is_cancel));
    let world = setup.start().await;
    let client = LegacyClient::new(world.addr()).with("authorization", "Bearer one").hello().await;
    let wish = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let made = client.post(wish).await.answer().await.result();
    let call = world.server.call().await;
    let other = LegacyClient::new(world.addr()).hello().await;
    is_served(&world, &other).await;
    (world, client, (made["task"]["taskId"].clone(), call), other)
}

fn is_cancel(seen: &Seen) -> bool {
    seen.method() == "notifications/cancelled"
}

/// What was sent before without waiting has arrived when this returns.
async fn is_served(world: &ProxyAndServer, client: &LegacyClient) {
    let waiting = client.call(1).await;
    world.server.call().await.says("there");
    assert_eq!(waiting.answer().await.text(), "there");
}

async fn cancel(client: &LegacyClient, task: &Value) {
    let ask = json!({ "jsonrpc": "2.0", "id": 8, "method": "tasks/cancel", "params": { "taskId": task } });
    client.post(&ask.to_string()).await.answer().await.result();
}

/// Its task was cancelled in it a moment before.
#[tokio::test]
async fn a_client_ends_its_session_behind_what_is_queued_in_it() {
    let (world, client, (task, _unanswered), other) = working().await;
    let ends = |seen: &Seen| seen.http == Method::DELETE && seen.session() == client.session();
    let still = Still::stands();
    cancel(&client, &task).await;
    let cancelled = world.server.call().await;
    assert!(is_cancel(&cancelled.seen));
    let ending = client.send(Method::DELETE, "/mcp", "").await;
    is_served(&world, &other).await;
    assert_eq!(world.server.count(ends), 0);
    cancelled.canned(Canned::status(202));
    world.server.seen(ends).await;
    drop(still);
    assert_eq!(ending.answer().await.status, 200);
}

/// The task goes on where its client has ended the session, until another of its sessions cancels it.
#[tokio::test]
async fn a_deleted_session_ends_after_the_cancellation_of_its_last_task() {
    let (world, client, (task, _unanswered), other) = working().await;
    let ends = |seen: &Seen| seen.http == Method::DELETE && seen.session() == client.session();
    let again = LegacyClient::new(world.addr()).with("authorization", "Bearer one").hello().await;
    assert_eq!(end(&client).await, 200);
    let still = Still::stands();
    cancel(&again, &task).await;
    let cancelled = world.server.call().await;
    assert_eq!((is_cancel(&cancelled.seen), cancelled.session()), (true, &*client.session()));
    is_served(&world, &other).await;
    assert_eq!(world.server.count(ends), 0);
    cancelled.canned(Canned::status(202));
    world.server.seen(ends).await;
    drop(still);
}
