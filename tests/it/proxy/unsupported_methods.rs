//! Methods that the server or the revision does not have.

use super::proxy_and_server::{ProxyAndServer, Setup};
use crate::support::legacy_server::{Canned, Seen};
use serde_json::{Value, json};

/// Sends a request that must fail with "method not found".
async fn is_not_served(world: &ProxyAndServer, method: &str, params: Value) {
    let answer = world.tasker().ask(method, params).await;
    assert_eq!(answer.refusal(), (404, -32601), "{method}");
    assert_eq!(answer.json()["id"], 1, "{method}");
}

/// Every method that needs something of the server.
const METHODS: [(&str, &str); 8] = [
    ("tools/list", "{}"),
    ("tools/call", r#"{"name":"t"}"#),
    ("prompts/list", "{}"),
    ("prompts/get", r#"{"name":"p"}"#),
    ("resources/list", "{}"),
    ("resources/templates/list", "{}"),
    ("resources/read", r#"{"uri":"file:///a"}"#),
    ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{}}"#),
];

fn params(raw: &str) -> Value {
    serde_json::from_str(raw).expect("JSON")
}

/// A server that declares none of it, and answers it like this.
fn undeclared(answer: fn(&Seen) -> Option<Canned>) -> Setup {
    Setup::new().server(move |options| {
        options.capabilities = json!({ "logging": {} });
        options.tools = None;
        let is_ours = |seen: &Seen| METHODS.iter().any(|(method, _)| *method == seen.method());
        options.hook = Some(Box::new(move |seen| answer(seen).filter(|_| is_ours(seen))));
    })
}

fn refused(seen: &Seen, status: u16, code: i64, message: &str) -> Option<Canned> {
    let error = json!({ "code": code, "message": message });
    Some(Canned::json(status, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error })))
}

#[tokio::test]
async fn what_the_server_did_not_declare_and_does_not_have_is_not_found() {
    let refusals: [fn(&Seen) -> Option<Canned>; 4] = [
        |seen| refused(seen, 200, -32601, "Method not found"),
        |seen| refused(seen, 404, -32601, "Method not found"),
        |seen| refused(seen, 400, -32601, "no"),
        |seen| refused(seen, 200, -32600, "Unknown method"),
    ];
    for refusal in refusals {
        let world = undeclared(refusal).start().await;
        for (method, raw) in METHODS {
            is_not_served(&world, method, params(raw)).await;
            assert!(world.server.messages(method) > 0, "{method} is the server's to refuse");
        }
    }
    // A list has nothing to be wrong with.
    let world = undeclared(|seen| refused(seen, 200, -32603, "oops")).start().await;
    for (method, raw) in METHODS {
        match method.ends_with("/list") {
            true => is_not_served(&world, method, params(raw)).await,
            false => {
                let answer = world.tasker().ask(method, params(raw)).await;
                assert_eq!(answer.refusal(), (200, -32603), "{method}");
            }
        }
    }
}

#[tokio::test]
async fn what_the_server_has_and_did_not_declare_is_served() {
    let world = undeclared(|seen| {
        let result = json!({ "tools": [], "prompts": [], "resources": [], "resourceTemplates": [], "content": [], "contents": [], "messages": [], "completion": { "values": [] } });
        Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result })))
    });
    let world = world.start().await;
    for (method, raw) in METHODS {
        let answer = world.tasker().ask(method, params(raw)).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (200, &Value::Null), "{method}");
        assert!(answer.json()["result"].is_object(), "{method}: {answer:?}");
    }
    let discovered = world.client().ask("server/discover", json!({})).await.json();
    assert_eq!(discovered["result"]["capabilities"]["tools"], Value::Null, "nothing is declared for it");
}

#[tokio::test]
async fn an_error_of_what_the_server_declared_stays_its_own() {
    let world = Setup::new()
        .server(|options| {
            options.hook = Some(Box::new(|seen| {
                (seen.method() == "prompts/get").then(|| refused(seen, 200, -32601, "no"))?
            }));
        })
        .start()
        .await;
    let answer = world.client().ask("prompts/get", json!({ "name": "p" })).await;
    assert_eq!(answer.refusal(), (200, -32601));
}

#[tokio::test]
async fn methods_of_legacy_revisions_and_unknown_ones_are_not_found() {
    let world = ProxyAndServer::new().await;
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
    let world = ProxyAndServer::new().await;
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
