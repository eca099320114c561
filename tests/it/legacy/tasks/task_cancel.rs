//! `tasks/cancel`, and events that do not cancel a task.

use super::task_client::{Tasker, beyond_status, heard, json, question, setup, soon, world};
use crate::proxy::proxy_and_server::ALWAYS;
use http::Method;

#[tokio::test]
async fn a_cancelled_task_is_cancelled_at_the_server_once_and_its_session_lives() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, call) = client.makes(&world).await;
    let (others, others_call) = client.makes(&world).await;
    let shown = client.of("tasks/cancel", &task).await.result();
    assert_eq!((&shown["taskId"], &shown["status"]), (&json!(task), &json!("cancelled")));
    assert_eq!(shown.get("_meta"), None);
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], call.id(), "ours, not the client's");
    assert_ne!(call.id(), json!(7));
    assert_eq!(cancelled.session(), "s1");
    assert_eq!(heard(&mut listening).await["params"]["status"], "cancelled");
    // The connection of the cancelled call is given up, the other call's is not.
    soon("the call is left", call.left()).await;
    others_call.says("the session goes on");
    assert_eq!(client.result(&others).await.text(), "the session goes on");
    let (next, next_call) = client.makes(&world).await;
    assert_eq!(next_call.session(), "s1");
    next_call.says("also for new ones");
    assert_eq!(client.result(&next).await.text(), "also for new ones");
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
    assert_eq!(world.server.messages("initialize"), 1);
    assert_eq!(world.server.count(|seen| seen.http == Method::DELETE), 0);
}

#[tokio::test]
async fn a_task_that_has_ended_cannot_be_cancelled() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (completed, call) = client.makes(&world).await;
    call.says("done");
    client.becomes(&completed, "completed").await;
    let (failed, call) = client.makes(&world).await;
    call.result(json!({ "content": [], "isError": true }));
    client.becomes(&failed, "failed").await;
    let (cancelled, _call) = client.makes(&world).await;
    client.of("tasks/cancel", &cancelled).await.result();
    for (task, status) in [(completed, "completed"), (failed, "failed"), (cancelled, "cancelled")] {
        let answer = client.of("tasks/cancel", &task).await;
        assert_eq!(answer.refusal(), (200, -32602));
        let message = answer.error()["message"].as_str().expect("words").to_owned();
        assert!(message.contains(status), "{message}");
        assert_eq!(client.get(&task).await["status"], status);
    }
}

#[tokio::test]
async fn a_cancelled_task_stays_cancelled_whatever_its_server_says() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, id, events) = client.makes_stream(&world).await;
    let mut waiting = client.waits(&task).await;
    client.of("tasks/cancel", &task).await.result();
    events.result(&id, json!({ "content": [] }));
    assert_eq!(beyond_status(&mut waiting).await["error"]["code"], -32602);
    assert_eq!(client.result(&task).await.refusal(), (200, -32602));
    assert_eq!(client.get(&task).await["status"], "cancelled");
    events.left().await;
}

#[tokio::test]
async fn a_task_that_requires_input_can_be_cancelled() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    client.becomes(&task, "input_required").await;
    client.of("tasks/cancel", &task).await.result();
    let back = beyond_status(&mut listening).await;
    assert_eq!(
        (&back["method"], &back["params"]["requestId"]),
        (&json!("notifications/cancelled"), &put["id"])
    );
    let cancelled = world.server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], id);
    // The input request is refused after the cancellation, and a response to it is ignored.
    world.server.seen(|seen| seen.answers(&json!(0)) && seen.json["error"].is_object()).await;
    client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
    let log = world.server.log();
    let at = |fits: &dyn Fn(&crate::support::legacy_server::Seen) -> bool| log.iter().position(fits);
    assert!(at(&|seen| seen.method() == "notifications/cancelled") < at(&|seen| seen.answers(&json!(0))));
    assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 1);
}

#[tokio::test]
async fn the_end_of_a_session_is_the_servers_business_and_a_clear_end_of_its_tasks() {
    let world = world(ALWAYS).await;
    let client = Tasker::bearing(&world, "a").await;
    let other = Tasker::bearing(&world, "a").await;
    let (task, _, events) = client.makes_stream(&world).await;
    assert_eq!(client.0.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    assert_eq!(other.get(&task).await["status"], "working", "its server goes on");
    drop(events);
    let error = other.result(&task).await.error();
    assert_eq!(error["code"], -31002);
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
    assert_eq!(world.server.count(|seen| seen.http == Method::DELETE), 1);
}

#[tokio::test]
async fn a_disconnect_does_not_cancel_a_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let listening = client.listens().await;
    let begun = client.send("tools/call", json!({ "name": "slow", "task": {} })).await;
    let (id, events) = {
        let call = world.server.call().await;
        (call.id(), call.stream())
    };
    // Before it has heard which task it is.
    begun.leave();
    listening.leave();
    let task = client.list().await.pop().expect("the task");
    client.waits(&task).await.leave();
    events.notify("notifications/message", json!({ "data": "to nobody" }));
    events.send(&question(0, "nobody there?"));
    client.becomes(&task, "input_required").await;
    let mut waiting = client.waits(&task).await;
    let put = beyond_status(&mut waiting).await;
    client.answers(&put["id"], json!({ "action": "decline" })).await;
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [] }));
    client.becomes(&task, "completed").await;
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_notification_that_cancels_a_request_cancels_no_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let cancels =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    client.posts(&cancels).await;
    assert_eq!(world.server.message("notifications/cancelled").await.json, cancels, "it passes");
    assert_eq!(client.get(&task).await["status"], "working");
    call.says("done");
    assert_eq!(client.result(&task).await.text(), "done");
}

#[tokio::test]
async fn at_the_shutdown_tasks_are_cancelled_and_waiting_requests_get_an_error() {
    let world = setup().route(ALWAYS).top("drain: 0s").start().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    let mut waiting = client.waits(&task).await;
    let id = call.id();
    let super::task_client::ProxyAndServer { server, proxy } = world;
    let stopping = tokio::spawn(proxy.stop());
    let error = beyond_status(&mut waiting).await["error"].take();
    assert_eq!(error["code"], -31007, "{error}");
    let cancelled = server.message("notifications/cancelled").await;
    assert_eq!(cancelled.json["params"]["requestId"], id);
    soon("the proxy stops", stopping).await.expect("it does not panic");
    assert_eq!(server.count(|seen| seen.http == Method::DELETE), 0, "the session is the client's");
}
