//! A call that becomes a task although its client did not ask for one (SEP-2229).

use super::world::Older;
use crate::proxy::world::{Setup, World};
use serde_json::{Value, json};

const NOW: &str = "defer: { after: 0s }";
const SOON: &str = "defer: { after: 200ms }";
const LATE: &str = "defer: { after: 1h }";
const MARKED: &str = "tasks: { unsolicited: [{ header: X-Takes-Tasks, value: yes }] }";

async fn world(after: &'static str, whom: &'static str) -> World {
    Setup::new().route(after).route(whom).start().await
}

/// A client in a session, who is one of those that the operator means.
async fn taker(world: &World) -> Older {
    Older::new(world.addr()).with("x-takes-tasks", "yes").hello().await
}

/// `tasks/…` of a task.
async fn of_task(client: &Older, method: &str, task: &str) -> Value {
    let ask = json!({ "jsonrpc": "2.0", "id": 90, "method": method, "params": { "taskId": task } });
    client.post(&ask.to_string()).await.answer().await.json()
}

#[tokio::test]
async fn a_quick_call_is_answered_plainly_also_one_that_asks_for_a_task() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let plain = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t"}}"#;
    let wished = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","task":{"ttl":1}}}"#;
    for message in [plain, wished] {
        let waiting = client.post(message).await;
        let call = world.server.call().await;
        assert_eq!(call.session(), "s1", "in the client's own session");
        assert_eq!(call.seen.json["params"].get("task"), None);
        call.spelled(r#"{"content":[ ],"n":1e400}"#);
        let answer = waiting.answer().await;
        assert!(answer.is_json());
        assert!(
            answer.body.contains(r#""id":"a""#) && answer.body.contains(r#"{"content":[ ],"n":1e400}"#),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_slow_call_is_a_task_whose_result_is_fetched() {
    let world = world(SOON, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let answer = waiting.answer().await;
    assert_eq!(answer.json()["id"], 7);
    let task = answer.result()["task"].clone();
    assert_eq!(task["status"], "working");
    assert!(answer.result().get("content").is_none() && answer.result().get("resultType").is_none());
    let id = task["taskId"].as_str().expect("an id").to_owned();
    assert_eq!(of_task(&client, "tasks/get", &id).await["result"]["status"], "working");
    call.says("done");
    // Waits until it has ended.
    let result = of_task(&client, "tasks/result", &id).await;
    assert_eq!(result["result"]["content"][0]["text"], "done");
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn only_those_whom_the_operator_named_get_one() {
    let world = world(NOW, MARKED).await;
    for client in [
        Older::new(world.addr()).hello().await,
        Older::new(world.addr()).with("x-takes-tasks", "no").hello().await,
        // Whose revision knows no tasks.
        taker(&world).await.with("mcp-protocol-version", "2025-06-18"),
    ] {
        let waiting = client.call(1).await;
        world.server.call().await.says("plain");
        assert_eq!(waiting.answer().await.text(), "plain");
    }
}

#[tokio::test]
async fn everybody_gets_one_where_the_operator_says_so() {
    let world = world(NOW, "tasks: { unsolicited: always }").await;
    let client = Older::new(world.addr()).hello().await;
    let waiting = client.call(1).await;
    assert!(waiting.answer().await.result()["task"]["taskId"].is_string());
}

#[tokio::test]
async fn what_the_server_says_on_the_way_reaches_the_client_that_waits() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let message = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"mine"}}}"#;
    let waiting = client.post(message).await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": "mine", "progress": 1 }));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.next().await["params"]["progressToken"], "mine");
    // A question goes by as it is, and its answer finds the server by itself.
    events.send(
        &json!({ "jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": { "message": "?" } }),
    );
    assert_eq!(stream.next().await["id"], 77);
    let answer = json!({ "jsonrpc": "2.0", "id": 77, "result": { "action": "decline" } });
    assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
    let heard = world.server.seen(|seen| seen.answers(&json!(77))).await;
    assert_eq!(heard.json, answer);
    events.result(&id, json!({ "content": [] }));
    assert_eq!(stream.next().await, json!({ "jsonrpc": "2.0", "id": 5, "result": { "content": [] } }));
    assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1, "answered once");
}

#[tokio::test]
async fn progress_that_the_client_did_not_ask_for_is_not_told() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let (id, token) = (call.id(), call.seen.json["params"]["_meta"]["progressToken"].clone());
    assert_eq!(token, id, "the proxy watches");
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": token, "progress": 1 }));
    events.result(&id, json!({ "content": [] }));
    let answer = waiting.answer().await;
    assert!(answer.is_json(), "nothing came before it");
    assert_eq!(answer.json()["id"], 1);
}

#[tokio::test]
async fn a_client_that_leaves_finds_its_call_among_its_tasks() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    waiting.leave();
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tasks/list"}"#;
    let id = loop {
        let tasks = client.post(list).await.answer().await.result()["tasks"].clone();
        if let Some(id) = tasks[0]["taskId"].as_str() {
            break id.to_owned();
        }
        tokio::task::yield_now().await;
    };
    call.says("done");
    assert_eq!(of_task(&client, "tasks/result", &id).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn where_there_is_no_room_for_a_task_the_call_stays_plain() {
    let setup = Setup::new().route(NOW).route(MARKED).top("limits: { tasks: 0 }");
    let world = setup.start().await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    world.server.call().await.says("plain");
    assert_eq!(waiting.answer().await.text(), "plain");
}

#[tokio::test]
async fn a_server_that_dies_before_the_threshold_is_an_error_in_the_answer() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(3).await;
    world.server.call().await.stream().break_off();
    let answer = waiting.answer().await;
    assert_eq!(answer.refusal(), (200, -31002), "{answer:?}");
    assert_eq!(answer.json()["id"], 3);
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_one_unasked() {
    let setup = Setup::new().route("defer: { after: 0s, mode: required }").route(MARKED);
    let world = setup.start().await;
    let answer = taker(&world).await.call(1).await.answer().await;
    assert!(answer.result()["task"]["taskId"].is_string());
    let plain = Older::new(world.addr()).hello().await.call(1).await.answer().await;
    assert_eq!(plain.error()["code"], -32601);
}
