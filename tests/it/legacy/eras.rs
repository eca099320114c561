//! Tasks of clients of both eras at one address.

use super::proxy_and_client::LegacyClient;
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::modern_client::Client,
};
use serde_json::{Value, json};

const ALWAYS: &str = "defer: { mode: always }";
const MEET: &str = "tasks: { across_eras: true }";
const TASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","task":{}}}"#;

/// A modern client and a legacy one, who show the same token.
async fn both(world: &ProxyAndServer, token: Option<&str>) -> (Client, LegacyClient) {
    let modern = world.client().declaring(json!({
        "elicitation": {},
        "extensions": { "io.modelcontextprotocol/tasks": {} },
    }));
    let older = LegacyClient::new(world.addr());
    match token {
        Some(token) => {
            let header = format!("Bearer {token}");
            (modern.bearing(token), older.with("authorization", &header).hello().await)
        }
        None => (modern, older.hello().await),
    }
}

fn about(method: &str, task: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": 9, "method": method, "params": { "taskId": task } }).to_string()
}

async fn of_older(client: &LegacyClient) -> String {
    let answer = client.post(TASK).await.answer().await;
    answer.result()["task"]["taskId"].as_str().expect("an id").to_owned()
}

async fn listed(client: &LegacyClient) -> Vec<Value> {
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tasks/list"}"#;
    let tasks = client.post(list).await.answer().await.result()["tasks"].clone();
    tasks.as_array().expect("tasks").iter().map(|task| task["taskId"].clone()).collect()
}

#[tokio::test]
async fn eras_do_not_see_each_others_tasks() {
    let apart = [("", Some("alice")), ("", None), (MEET, None)];
    for (meet, token) in apart {
        let setup = Setup::new().route(ALWAYS);
        let world = if meet.is_empty() { setup.start().await } else { setup.route(MEET).start().await };
        let (modern, older) = both(&world, token).await;
        let new = modern.call("t").await.answer().await.task();
        let old = of_older(&older).await;
        for method in ["tasks/get", "tasks/cancel"] {
            assert_eq!(modern.of_task(method, &old).await.refusal(), (200, -32602), "{method}");
            assert_eq!(
                older.post(&about(method, &new)).await.answer().await.refusal(),
                (200, -32602),
                "{method}"
            );
        }
        assert_eq!(older.post(&about("tasks/result", &new)).await.answer().await.refusal(), (200, -32602));
        assert_eq!(listed(&older).await, [json!(old)]);
    }
}

#[tokio::test]
async fn where_the_operator_lets_them_meet_each_sees_a_task_in_its_own_way() {
    let world = Setup::new().route(ALWAYS).route(MEET).start().await;
    let (modern, older) = both(&world, Some("alice")).await;
    let old = of_older(&older).await;
    let call = world.server.call().await;
    let new = modern.call("t").await.answer().await.task();
    assert_eq!(listed(&older).await, [json!(old), json!(new)]);

    call.spelled(r#"{"content":[],"isError":true}"#);
    let seen = modern.ended(&old).await;
    assert_eq!((&seen["status"], &seen["result"]["isError"]), (&json!("completed"), &json!(true)));
    let seen = older.post(&about("tasks/get", &old)).await.answer().await.result();
    assert_eq!(seen["status"], "failed");

    world.server.call().await.spelled(r#"{"content":[],"n":1.0}"#);
    modern.ended(&new).await;
    let body = older.post(&about("tasks/result", &new)).await.answer().await.body;
    let related = format!(r#""_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{new}"}}}}"#);
    assert_eq!(body, format!(r#"{{"jsonrpc":"2.0","id":9,"result":{{"content":[],"n":1.0,{related}}}}}"#));

    let others = LegacyClient::new(world.addr()).with("authorization", "Bearer bob").hello().await;
    assert_eq!(others.post(&about("tasks/get", &old)).await.answer().await.refusal(), (200, -32602));
}

#[tokio::test]
async fn a_legacy_client_can_answer_an_input_request_of_a_modern_clients_task() {
    let world = Setup::new().route(ALWAYS).route(MEET).start().await;
    let (modern, older) = both(&world, Some("alice")).await;
    let task = modern.call("t").await.answer().await.task();
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    let ask = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } } });
    let mut waiting = older.post(&about("tasks/result", &task)).await.stream().await;
    events.send(&ask(50));
    let put = waiting.next().await;
    assert_eq!(put["method"], "elicitation/create");
    assert_eq!(put["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], *task);
    let answer = json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "decline" } });
    assert_eq!(older.post(&answer.to_string()).await.answer().await.status, 202);
    let heard = world.server.seen(|seen| seen.answers(&json!(50))).await;
    assert_eq!(heard.json["result"], json!({ "action": "decline" }));

    // The input request that the modern client answered is cancelled at the other.
    events.send(&ask(51));
    let put = waiting.next().await;
    let found = modern.until(&task, |task| task["status"] == "input_required").await;
    let key = found["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    modern
        .ask("tasks/update", json!({ "taskId": task, "inputResponses": { key: { "action": "cancel" } } }))
        .await;
    let taken_back = waiting.notice("notifications/cancelled").await;
    assert_eq!(taken_back["requestId"], put["id"]);
    events.result(&id, json!({ "content": [] }));
    assert_eq!(waiting.next().await["result"]["content"], json!([]));
    assert_eq!(world.server.count(|seen| seen.answers(&json!(51))), 1);
}
