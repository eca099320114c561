//! Which calls become tasks, by tool, mode and client.

use super::proxy_and_server::{ProxyAndServer, Setup};
use crate::support::legacy_server::Call;
use crate::support::modern_client::{Client, Waiting};
use serde_json::json;

const RULES: &str = "tools: [
      { match: never, mode: never, after: 0s },
      { match: always, mode: always },
      { match: required, mode: required, after: 0s },
      { match: observe, mode: observe, after: 0s },
      { match: \"au?o\", mode: auto, after: 20ms },
      { match: \"wild_*\", mode: always },
      { match: \"*_late\", mode: never },
      { match: needy, requires: { sampling: { tools: {} } } },
    ]";

async fn world() -> ProxyAndServer {
    Setup::new().route(RULES).start().await
}

async fn begin(world: &ProxyAndServer, client: &Client, tool: &str) -> (Waiting, Call) {
    let waiting = client.call(tool).await;
    let call = world.server.call().await;
    assert_eq!(call.name(), tool);
    (waiting, call)
}

/// The call is answered plainly although another has meanwhile become a task for its age.
async fn is_held(world: &ProxyAndServer, client: &Client, tool: &str) {
    let (waiting, call) = begin(world, client, tool).await;
    let (aged, other) = begin(world, &world.tasker(), "auto").await;
    aged.answer().await.task();
    other.says("aged");
    call.says("held");
    let answer = waiting.answer().await;
    assert_eq!(answer.text(), "held", "{tool}");
}

async fn is_a_task(world: &ProxyAndServer, client: &Client, tool: &str) {
    let (waiting, call) = begin(world, client, tool).await;
    let task = waiting.answer().await.task();
    call.says("done");
    assert_eq!(client.ended(&task).await["status"], "completed", "{tool}");
}

#[tokio::test]
async fn clients_with_tasks_get_one_by_the_tools_mode() {
    let world = world().await;
    let client = world.tasker();
    is_held(&world, &client, "never").await;
    is_held(&world, &client, "observe").await;
    is_a_task(&world, &client, "always").await;
    is_a_task(&world, &client, "required").await;
    is_a_task(&world, &client, "auto").await;
}

#[tokio::test]
async fn clients_without_tasks_are_held_in_every_mode_that_serves_them() {
    let world = world().await;
    for tool in ["never", "observe", "always", "auto"] {
        is_held(&world, &world.client(), tool).await;
    }
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_refused_before_anything_is_sent() {
    let world = world().await;
    let answer = world.client().call("required").await.answer().await;
    assert_eq!(answer.refusal(), (400, -32021));
    assert!(answer.is_json());
    assert_eq!(
        answer.error()["data"],
        json!({ "requiredCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } } })
    );
    is_held(&world, &world.client(), "never").await;
    assert_eq!(world.server.count(|seen| seen.json["params"]["name"] == "required"), 0);
}

#[tokio::test]
async fn the_first_rule_that_matches_holds() {
    let world = world().await;
    is_a_task(&world, &world.tasker(), "wild_late").await;
    is_held(&world, &world.tasker(), "too_late").await;
    // No rule: the route's own, five seconds.
    is_held(&world, &world.tasker(), "auxxo").await;
}

#[tokio::test]
async fn a_tool_that_needs_a_capability_is_refused_before_anything_is_sent() {
    let world = world().await;
    for (declared, missing) in [
        (json!({}), json!({ "sampling": { "tools": {} } })),
        (json!({ "sampling": {} }), json!({ "sampling": { "tools": {} } })),
    ] {
        let answer = world.client().declaring(declared).call("needy").await.answer().await;
        assert_eq!(answer.refusal(), (400, -32021));
        assert_eq!(answer.error()["data"], json!({ "requiredCapabilities": missing }));
    }
    assert_eq!(world.calls(), 0);
    let able = world.client().declaring(json!({ "sampling": { "tools": {} } }));
    is_held(&world, &able, "needy").await;
}

#[tokio::test]
async fn a_route_has_a_mode_of_its_own() {
    let world = ProxyAndServer::with("defer: { mode: required, after: 0s }").await;
    assert_eq!(world.client().call("any").await.answer().await.refusal(), (400, -32021));
    is_a_task(&world, &world.tasker(), "any").await;
}
