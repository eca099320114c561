//! Tasks of 2025-11-25, which the proxy runs.

use super::proxy_and_stdio_server::{Child, ProxyAndStdioServer, ask, heard, settle, tell};
use crate::legacy::proxy_and_client::LegacyClient;
use http::Method;
use serde_json::{Value, json};

const RELATED: &str = "io.modelcontextprotocol/related-task";

/// The response to a request.
async fn asked(client: &LegacyClient, method: &str, params: Value) -> Value {
    heard(&ask(client, &json!(90), method, params).await).await.pop().expect("a response")
}

/// A call that is a task at once: its id, and what the child has of it.
async fn task(client: &LegacyClient, child: &mut Child, tool: Value) -> (String, Value) {
    let created = asked(client, "tools/call", tool).await;
    let id = created["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created:#}")).to_owned();
    (id, child.told("tools/call").await)
}

fn wish() -> Value {
    json!({ "name": "t", "task": { "ttl": 600000 }, "_meta": { "progressToken": "p" } })
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_a_task_whose_result_is_fetched() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (client, mut child) = world.begin(json!({})).await;
    let (id, call) = task(&client, &mut child, wish()).await;
    assert_eq!(call["params"].get("task"), None);
    assert_eq!(asked(&client, "tasks/get", json!({ "taskId": id })).await["result"]["status"], "working");
    let result = ask(&client, &json!(3), "tasks/result", json!({ "taskId": id })).await;
    settle().await;
    let progress = json!({ "progressToken": call["id"], "progress": 1 });
    child.notifies("notifications/progress", progress).await;
    child.answers(&call, json!({ "content": ["done"] })).await;
    let said = heard(&result).await;
    let progress = said.iter().find(|said| said["method"] == "notifications/progress").expect("progress");
    assert_eq!(progress["params"]["progressToken"], "p");
    assert_eq!(said.last().expect("a result")["result"]["content"], json!(["done"]));
    assert_eq!(asked(&client, "tasks/get", json!({ "taskId": id })).await["result"]["status"], "completed");
    // The server's own are nobody's.
    let list = asked(&client, "tasks/list", json!({})).await;
    assert_eq!(list["result"]["tasks"][0]["taskId"], *id);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_cancelled_at_the_server_and_goes_on_where_its_session_ends() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let client = world.client().with("authorization", "Bearer a");
    let (client, mut child) =
        tokio::join!(super::proxy_and_stdio_server::hello(&client, json!({})), world.child());
    let (id, call) = task(&client, &mut child, wish()).await;
    let (other, of_other) = task(&client, &mut child, wish()).await;
    assert_eq!(client.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    let client =
        super::proxy_and_stdio_server::hello(&world.client().with("authorization", "Bearer a"), json!({}))
            .await;
    child.answers(&of_other, json!({ "content": ["done"] })).await;
    let result = asked(&client, "tasks/result", json!({ "taskId": other })).await;
    assert_eq!(result["result"]["content"], json!(["done"]));
    assert_eq!(
        asked(&client, "tasks/cancel", json!({ "taskId": id })).await["result"]["status"],
        "cancelled"
    );
    assert_eq!(child.told("notifications/cancelled").await["params"]["requestId"], call["id"]);
}

#[tokio::test(start_paused = true)]
async fn an_input_request_in_a_task_is_sent_on_the_stream_of_tasks_result() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (client, mut child) = world.begin(json!({ "elicitation": {} })).await;
    let (id, call) = task(&client, &mut child, wish()).await;
    child.asks("q", "elicitation/create").await;
    settle().await;
    let status = asked(&client, "tasks/get", json!({ "taskId": id })).await;
    assert_eq!(status["result"]["status"], "input_required");
    let result = ask(&client, &json!(3), "tasks/result", json!({ "taskId": id })).await;
    let put = heard(&result).await.into_iter().find(|said| said["method"] == "elicitation/create");
    let put = put.expect("it is put");
    assert_eq!(put["params"]["_meta"][RELATED]["taskId"], *id);
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } })).await;
    let answer = json!({ "jsonrpc": "2.0", "id": "q", "result": { "action": "decline" } });
    assert_eq!(child.next().await, Some(answer));
    child.answers(&call, json!({ "content": [] })).await;
    assert_eq!(heard(&result).await.last().expect("a result")["id"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_configured_client_becomes_an_unsolicited_task_with_its_input_request_open() {
    let mut world = ProxyAndStdioServer::new(
        "defer: { after: 2s }\n    tasks: { unsolicited: [{ header: X-Takes-Tasks, value: yes }] }",
    );
    let client = world.client().with("x-takes-tasks", "yes");
    let capabilities = json!({ "elicitation": {} });
    let (client, mut child) =
        tokio::join!(super::proxy_and_stdio_server::hello(&client, capabilities), world.child());
    let waiting = ask(&client, &json!(1), "tools/call", json!({ "name": "t" })).await;
    let call = child.told("tools/call").await;
    child.asks("q", "elicitation/create").await;
    let put = heard(&waiting).await.remove(0);
    assert_eq!(put["method"], "elicitation/create");
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let handle = heard(&waiting).await.pop().expect("a handle");
    let id = handle["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{handle:#}")).to_owned();
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } })).await;
    assert_eq!(child.next().await.expect("an answer")["id"], "q");
    child.answers(&call, json!({ "content": ["done"] })).await;
    let result = asked(&client, "tasks/result", json!({ "taskId": id })).await;
    assert_eq!(result["result"]["content"], json!(["done"]));
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_child_dies_has_failed_at_once() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1s }");
    let (client, mut child) = world.begin(json!({})).await;
    let (id, _) = task(&client, &mut child, wish()).await;
    drop(child);
    settle().await;
    let task = asked(&client, "tasks/get", json!({ "taskId": id })).await;
    assert_eq!(task["result"]["status"], "failed");
    let result = asked(&client, "tasks/result", json!({ "taskId": id })).await;
    assert_eq!(result["error"]["code"], -31002);
    // The session is there all the same, with another child.
    let again = ask(&client, &json!(1), "tools/call", wish()).await;
    world.child().await.told("tools/call").await;
    assert_eq!(heard(&again).await.len(), 1);
}
