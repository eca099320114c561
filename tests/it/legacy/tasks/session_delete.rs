//! Clients that delete their session and find their tasks from another one.

use super::task_client::{LegacyClient, ProxyAndServer, Tasker, beyond_status, json, question, setup, world};
use crate::proxy::proxy_and_server::ALWAYS;
use http::Method;

async fn leaves(client: &Tasker) {
    let answer = client.0.send(Method::DELETE, "/mcp", "").await.answer().await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, ""));
}

/// How many session deletes the server has received.
fn ended(world: &ProxyAndServer) -> usize {
    world.server.count(|seen| seen.http == Method::DELETE)
}

#[tokio::test]
async fn a_task_outlives_its_session_whose_delete_is_sent_afterwards() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let (second, second_call) = client.makes(&world).await;
    leaves(&client).await;
    let gone = client.of("tasks/get", &task).await;
    assert_eq!(gone.status, 404, "the session is over for its client");
    let back = Tasker::hello(&world).await;
    assert_eq!(back.get(&task).await["status"], "working");
    call.says("first");
    assert_eq!(back.result(&task).await.text(), "first");
    assert_eq!(ended(&world), 0, "another task runs in it");
    let mut waiting = back.waits(&second).await;
    second_call.says("second");
    assert_eq!(beyond_status(&mut waiting).await["result"]["content"][0]["text"], "second");
    let seen = world.server.seen(|seen| seen.http == Method::DELETE).await;
    assert_eq!(seen.session(), "s1");
    assert_eq!((ended(&world), world.server.messages("notifications/cancelled")), (1, 0));
}

#[tokio::test]
async fn an_input_request_of_a_task_can_be_answered_from_another_session() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, id, events) = client.makes_stream(&world).await;
    leaves(&client).await;
    events.send(&question(3, "who?"));
    let back = Tasker::hello(&world).await;
    back.becomes(&task, "input_required").await;
    let mut waiting = back.waits(&task).await;
    let put = beyond_status(&mut waiting).await;
    assert_eq!(put["method"], "elicitation/create");
    back.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    let seen = world.server.seen(|seen| seen.answers(&json!(3))).await;
    assert_eq!((seen.session(), &seen.json["result"]["action"]), ("s1", &json!("accept")));
    events.result(&id, json!({ "content": [] }));
    assert_eq!(beyond_status(&mut waiting).await["result"]["content"], json!([]));
    world.server.seen(|seen| seen.http == Method::DELETE).await;
}

#[tokio::test]
async fn a_cancel_from_another_session_ends_the_deleted_session() {
    let world = world(ALWAYS).await;
    let client = Tasker::bearing(&world, "a").await;
    let (task, _call) = client.makes(&world).await;
    leaves(&client).await;
    let back = Tasker::bearing(&world, "a").await;
    assert_eq!(back.of("tasks/cancel", &task).await.result()["status"], "cancelled");
    let seen = world.server.seen(|seen| seen.http == Method::DELETE).await;
    assert_eq!((seen.session(), seen.header("authorization")), ("s1", Some("Bearer a")));
    assert_eq!(world.server.message("notifications/cancelled").await.session(), "s1");
}

#[tokio::test]
async fn a_session_without_tasks_is_ended_at_its_server_at_once() {
    let world = world(ALWAYS).await;
    let (client, other) = (Tasker::hello(&world).await, Tasker::hello(&world).await);
    let (task, call) = client.makes(&world).await;
    call.says("done");
    client.becomes(&task, "completed").await;
    let (_others, _call) = other.makes(&world).await;
    // The call is given back a moment after its task has ended.
    while ended(&world) == 0 {
        client.0.send(Method::DELETE, "/mcp", "").await.answer().await;
    }
    let seen = world.server.seen(|seen| seen.http == Method::DELETE).await;
    assert_eq!(seen.session(), "s1");
}

#[tokio::test]
async fn a_session_that_began_as_2025_11_25_is_one_although_a_request_lacks_the_header() {
    for sse in [false, true] {
        let world = setup().route(ALWAYS).server(|options| options.sse = sse).start().await;
        let client = Tasker::hello(&world).await;
        let silent = Tasker(client.0.with("mcp-protocol-version", ""));
        let (task, call) = silent.makes(&world).await;
        assert_eq!(call.seen.header("mcp-protocol-version"), None, "nothing is added");
        assert_eq!(silent.get(&task).await["status"], "working");
        call.says("done");
        assert_eq!(silent.result(&task).await.text(), "done");
        // One that names another revision, or is of another session, is not.
        for other in [
            client.0.with("mcp-protocol-version", "2025-06-18"),
            LegacyClient::new(world.addr()).with("mcp-session-id", "s9"),
        ] {
            let waiting = Tasker(other).send("tasks/get", json!({ "taskId": task })).await;
            assert_eq!(world.server.call().await.method(), "tasks/get");
            waiting.leave();
        }
    }
}
