//! `serverInfo` in every result, also in those of the proxy itself
//! (2026-07-28, *General fields*: `io.modelcontextprotocol/serverInfo`).

use super::proxy_and_server::{ALWAYS, ProxyAndServer};
use crate::support::modern_client::Event;
use serde_json::{Value, json};

/// What the scripted server says of itself.
fn named(result: &Value) {
    let about = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(about, &json!({ "name": "scripted", "version": "1" }), "{result:#}");
}

#[tokio::test]
async fn task_results_have_the_server_info() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    // A task that is made before its server has been spoken to cannot say who that is.
    named(&client.ask("server/discover", json!({})).await.result());
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let handle = waiting.answer().await;
    named(&handle.result());
    let task = handle.task();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        named(&client.of_task(method, &task).await.result());
    }
    // Of a task that has ended, too, beside what its own result says.
    call.says("late");
    named(&client.of_task("tasks/get", &task).await.result());
    let acknowledged = client.of_task("tasks/cancel", &task).await.result();
    let mut members: Vec<_> = acknowledged.as_object().expect("an object").keys().collect();
    members.sort();
    assert_eq!(members, ["_meta", "resultType"], "an acknowledgement says nothing else");
}

#[tokio::test]
async fn the_end_of_a_subscription_has_the_server_info() {
    let world = ProxyAndServer::new().await;
    let mut stream = world.client().listen(json!({ "toolsListChanged": true })).await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    let stopped = tokio::spawn(world.proxy.stop());
    let mut last = Value::Null;
    while let Some(event) = stream.event().await {
        if let Event::Message(message) = event {
            last = message;
        }
    }
    named(&last["result"]);
    assert_eq!(last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
    stopped.await.expect("it stops");
}
