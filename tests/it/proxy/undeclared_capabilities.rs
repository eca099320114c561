//! Input requests for capabilities that the client did not declare.

use super::proxy_and_server::{ALWAYS, ProxyAndServer};
use serde_json::{Value, json};

fn question(method: &str) -> Value {
    let params = match method {
        "elicitation/create" => json!({ "message": "Who?", "requestedSchema": { "type": "object" } }),
        "sampling/createMessage" => json!({ "messages": [], "maxTokens": 1 }),
        _ => json!({}),
    };
    json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": params })
}

const QUESTIONS: [(&str, &str); 3] =
    [("sampling/createMessage", "sampling"), ("elicitation/create", "elicitation"), ("roots/list", "roots")];

#[tokio::test]
async fn a_call_that_fails_for_an_undeclared_input_request_names_the_capability() {
    for (method, capability) in QUESTIONS {
        for off_stream in [false, true] {
            let world = ProxyAndServer::new().await;
            let waiting = world.client().call("asks").await;
            let call = world.server.call().await;
            let (id, session) = (call.id(), call.session().to_owned());
            let own = world.server.listener(&session).await;
            let events = call.stream();
            if off_stream { &own } else { &events }.send(&question(method));
            let refused = world.server.seen(|seen| seen.answers(&json!(0))).await;
            assert_eq!(refused.session(), session);
            assert_eq!(refused.json["error"]["code"], -32601, "{refused:?}");
            if off_stream {
                events.send(
                    &json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32603, "message": "no" } }),
                );
            } else {
                events.result(&id, json!({ "content": [], "isError": true }));
            }
            let answer = waiting.answer().await;
            assert_eq!(answer.refusal(), (400, -32021), "{answer:?}");
            let required = &answer.error()["data"]["requiredCapabilities"];
            assert!(required[capability].is_object(), "{required}");
            assert!(answer.is_json(), "a status must still be possible");
        }
    }
}

#[tokio::test]
async fn a_server_that_copes_without_the_answer_is_passed_on() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("asks").await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.send(&question("sampling/createMessage"));
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done without" }] }));
    let answer = waiting.answer().await;
    assert_eq!(answer.text(), "done without");
    assert_eq!(answer.messages().len(), 1, "the question itself goes nowhere");
}

#[tokio::test]
async fn a_failure_that_has_nothing_to_do_with_an_input_request_is_the_servers_own() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("asks").await;
    world.server.call().await.error(json!({ "code": -32601, "message": "Sampling is not supported" }));
    assert_eq!(waiting.answer().await.refusal(), (200, -32601));
}

#[tokio::test]
async fn a_task_that_fails_for_such_an_input_request_names_the_capability() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("asks").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let id = call.id();
    let events = call.stream();
    events.send(&question("sampling/createMessage"));
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [], "isError": true }));
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(-32021)));
    assert!(ended["error"]["data"]["requiredCapabilities"]["sampling"].is_object());
}

#[tokio::test]
async fn the_server_receives_exactly_the_clients_capabilities() {
    let world = ProxyAndServer::new().await;
    let declared = [
        json!({}),
        json!({ "sampling": { "tools": {} } }),
        json!({ "elicitation": { "form": {} }, "roots": { "listChanged": true } }),
    ];
    for capabilities in &declared {
        let mut all = capabilities.clone();
        all["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
        let waiting = world.client().declaring(all).call("t").await;
        world.server.call().await.says("hi");
        waiting.answer().await;
    }
    let told: Vec<_> = world
        .server
        .log()
        .into_iter()
        .filter(|seen| seen.method() == "initialize")
        .map(|seen| {
            let mut capabilities = seen.json["params"]["capabilities"].clone();
            capabilities.as_object_mut().expect("an object").remove("extensions");
            capabilities
        })
        .collect();
    assert_eq!(told, declared);
}

#[tokio::test]
async fn an_input_request_on_one_callers_call_never_reaches_another() {
    let world = ProxyAndServer::new().await;
    let alice = world.client().bearing("alice").call("asks").await;
    let a = world.server.call().await;
    let bob = world.client().bearing("bob").declaring(json!({ "sampling": {} })).call("waits").await;
    let b = world.server.call().await;
    let id = a.id();
    let events = a.stream();
    events.send(&question("sampling/createMessage"));
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [] }));
    assert_eq!(alice.answer().await.result()["content"], json!([]));
    b.says("undisturbed");
    let answer = bob.answer().await;
    assert_eq!((answer.text(), answer.messages().len()), ("undisturbed".to_owned(), 1));
}
