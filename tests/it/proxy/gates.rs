//! What the server does not declare, or this revision does not have, is not served.

use super::world::{Setup, World};
use serde_json::{Value, json};

/// Asks, and must be told that there is no such method.
async fn is_not_served(world: &World, method: &str, params: Value) {
    let answer = world.tasker().ask(method, params).await;
    assert_eq!(answer.refusal(), (404, -32601), "{method}");
    assert_eq!(answer.json()["id"], 1, "{method}");
}

#[tokio::test]
async fn what_the_server_did_not_declare_is_not_found() {
    let world = Setup::new().server(|options| options.capabilities = json!({ "logging": {} })).start().await;
    for (method, params) in [
        ("tools/list", json!({})),
        ("tools/call", json!({ "name": "t" })),
        ("prompts/list", json!({})),
        ("prompts/get", json!({ "name": "p" })),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "file:///a" })),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": {} })),
    ] {
        is_not_served(&world, method, params).await;
        assert_eq!(world.server.messages(method), 0, "{method} has gone no further");
    }
}

#[tokio::test]
async fn methods_of_older_revisions_and_unknown_ones_are_not_found() {
    let world = World::new().await;
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
        "elicitation/create",
        "x/unknown",
    ] {
        is_not_served(&world, method, json!({ "uri": "file:///a", "level": "info", "taskId": "t" })).await;
    }
    assert_eq!(world.server.log().len(), 0, "none of them concerns the server");
}

#[tokio::test]
async fn notifications_are_taken_and_go_no_further() {
    let world = World::new().await;
    let client = world.client();
    for method in ["notifications/cancelled", "notifications/initialized", "notifications/x"] {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": { "requestId": 1 } }).to_string();
        let answer = client.send_request(client.spelled(method, None, body)).await.answer().await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (202, ""));
    }
    let waiting = client.call("t").await;
    world.server.call().await.says("hi");
    waiting.answer().await;
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    assert_eq!(world.server.messages("notifications/x"), 0);
}
