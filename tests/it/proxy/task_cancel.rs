//! `tasks/cancel`.

use super::proxy_and_server::{ALWAYS, ProxyAndServer};
use crate::support::modern_client::indistinguishable;
use http::Method;
use serde_json::json;

#[tokio::test]
async fn a_cancel_reaches_the_server_once_and_ends_the_task_at_once() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (id, session) = (call.id(), call.session().to_owned());

    let acknowledged = client.of_task("tasks/cancel", &task).await;

    assert_eq!(acknowledged.apart_from_meta(), json!({ "resultType": "complete" }));
    let ended = client.task(&task).await;
    assert_eq!(ended["status"], "cancelled", "the very next look shows it");
    assert!(ended.get("result").is_none() && ended.get("error").is_none());
    let again = client.of_task("tasks/cancel", &task).await;
    assert_eq!(again.apart_from_meta(), json!({ "resultType": "complete" }));
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!((told.session(), &told.json["params"]["requestId"]), (&*session, &id));
    call.left().await;
    world.server.seen(|seen| seen.http == Method::DELETE && seen.session() == session).await;
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn a_cancel_ends_only_the_call_it_names() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let (one, other) = (client.call("one").await, client.call("other").await);
    let (a, b) = (world.server.call().await, world.server.call().await);
    let (a, b) = if a.name() == "one" { (a, b) } else { (b, a) };
    let (one, other) = (one.answer().await.task(), other.answer().await.task());
    client.of_task("tasks/cancel", &one).await;
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], a.id());
    b.says("unharmed");
    let ended = client.ended(&other).await;
    assert_eq!(ended["result"]["content"][0]["text"], "unharmed");
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn a_cancel_of_an_ended_task_is_acknowledged_and_changes_nothing() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says("done");
    client.ended(&task).await;
    let before = client.of_task("tasks/get", &task).await;
    let acknowledged = client.of_task("tasks/cancel", &task).await;
    assert_eq!(acknowledged.apart_from_meta(), json!({ "resultType": "complete" }));
    let after = client.of_task("tasks/get", &task).await;
    assert!(indistinguishable(&before, &after), "{before:?} {after:?}");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn the_late_result_of_a_cancelled_call_is_ignored() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (id, session) = (call.id(), call.session().to_owned());
    let events = call.stream();
    let own = world.server.listener(&session).await;
    client.of_task("tasks/cancel", &task).await;
    let before = client.of_task("tasks/get", &task).await;
    // On both ways it could come.
    events.result(&id, json!({ "content": [] }));
    own.result(&id, json!({ "content": [] }));
    world.server.seen(|seen| seen.http == Method::DELETE && seen.session() == session).await;
    let after = client.of_task("tasks/get", &task).await;
    assert!(indistinguishable(&before, &after), "{before:?} {after:?}");
}
