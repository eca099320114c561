//! Requests in a session that the server may have lost.

use super::proxy_and_client::LegacyClient;
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::legacy_server::Canned,
};
use serde_json::json;

const TASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tasks/list"}"#;

/// A server that knows the session `s1` until it is deleted.
async fn world() -> ProxyAndServer {
    let setup = Setup::new().server(|options| {
        let before = std::mem::take(options);
        let ended = std::sync::atomic::AtomicBool::new(false);
        *options = before.hook(move |seen| {
            use std::sync::atomic::Ordering::Relaxed;
            if seen.http == http::Method::DELETE {
                ended.store(true, Relaxed);
                return Some(Canned::status(200));
            }
            let is_known = seen.session() == "s1" && !ended.load(Relaxed);
            if seen.session().is_empty() || is_known {
                return match seen.method() {
                    "ping" => {
                        Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} })))
                    }
                    _ => None,
                };
            }
            let gone = json!({ "jsonrpc": "2.0", "id": "server-error", "error": { "code": -32600, "message": "Session not found" } });
            Some(Canned::json(404, &gone))
        });
    });
    setup.start().await
}

#[tokio::test]
async fn tasks_are_not_served_in_a_session_that_never_was() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).within("invented");
    for message in [TASK, LIST] {
        let answer = client.post(message).await.answer().await;
        assert_eq!(
            (answer.status.as_u16(), &*answer.error()["message"].to_string()),
            (404, "\"Session not found\"")
        );
    }
    assert_eq!(world.calls(), 0, "nothing was called");
}

#[tokio::test]
async fn tasks_are_not_served_in_a_session_that_its_client_has_ended() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    assert_eq!(client.post(LIST).await.answer().await.status, 200);
    assert_eq!(world.server.messages("ping"), 0, "it was seen to begin");
    assert_eq!(client.send(http::Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    for message in [LIST, TASK] {
        assert_eq!(client.post(message).await.answer().await.status, 404);
    }
}

#[tokio::test]
async fn a_session_older_than_the_proxy_is_probed_once() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    for _ in 0..3 {
        assert_eq!(client.post(LIST).await.answer().await.status, 200);
    }
    assert_eq!(world.server.messages("ping"), 1);
}

#[tokio::test]
async fn at_the_call_limit_a_legacy_client_gets_an_error_with_its_request_id() {
    let world = Setup::new().top("limits: { calls: 1 }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let refused = client.call(2).await.answer().await;
    assert_eq!((refused.status.as_u16(), refused.json()["id"].clone()), (200, json!(2)));
    assert_eq!(refused.error()["code"], -31006);
    let modern = world.client().call("t").await.answer().await;
    assert_eq!(modern.refusal(), (503, -31006));
    let told = client.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#).await.answer().await;
    assert_eq!(told.status, 503, "nothing waits for an answer");
    call.says("done");
    assert_eq!(waiting.answer().await.text(), "done");
}
