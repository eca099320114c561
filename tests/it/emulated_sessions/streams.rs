//! The GET stream of a session.

use super::proxy_and_stdio_server::{ProxyAndStdioServer, ask, heard, hello, settle};
use serde_json::json;

/// Sets the level of a session.
async fn wants(client: &crate::legacy::proxy_and_client::LegacyClient, level: &str) {
    let answer = ask(client, &json!(1), "logging/setLevel", json!({ "level": level })).await;
    assert_eq!(heard(&answer).await[0]["result"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn notifications_outside_any_call_reach_every_client_of_the_process_that_wants_them() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (first, mut child) = world.begin(json!({})).await;
    let second = hello(&world.client(), json!({})).await;
    let streams = [first.listen().await.follow(), second.listen().await.follow()];
    child.notifies("notifications/message", json!({ "level": "debug", "data": "all of it" })).await;
    settle().await;
    wants(&first, "warning").await;
    assert_eq!(child.told("logging/setLevel").await["params"]["level"], "warning");
    wants(&second, "debug").await;
    assert_eq!(child.told("logging/setLevel").await["params"]["level"], "debug");
    let subscribed = ask(&second, &json!(2), "resources/subscribe", json!({ "uri": "file:///a" })).await;
    let request = child.told("resources/subscribe").await;
    child.answers(&request, json!({})).await;
    heard(&subscribed).await;
    child.notifies("notifications/tools/list_changed", json!({})).await;
    child.notifies("notifications/message", json!({ "level": "info", "data": "fine" })).await;
    child.notifies("notifications/message", json!({ "level": "error", "data": "broken" })).await;
    child.notifies("notifications/resources/updated", json!({ "uri": "file:///a/b" })).await;
    child.notifies("notifications/resources/updated", json!({ "uri": "file:///c" })).await;
    let summary = |message: &serde_json::Value| match &message["params"]["data"] {
        serde_json::Value::String(data) => data.clone(),
        _ => message["method"].as_str().expect("a method").rsplit('/').next().expect("a name").to_owned(),
    };
    let one: Vec<_> = heard(&streams[0]).await.iter().map(summary).collect();
    assert_eq!(one, ["all of it", "list_changed", "broken"]);
    let other: Vec<_> = streams[1].messages().iter().map(summary).collect();
    assert_eq!(other, ["all of it", "list_changed", "fine", "broken", "updated"]);
    // A client that unsubscribes gets no more updates, and the last one unsubscribes at the server.
    let let_go = ask(&second, &json!(3), "resources/unsubscribe", json!({ "uri": "file:///a" })).await;
    assert_eq!(child.told("resources/unsubscribe").await["params"]["uri"], "file:///a");
    assert_eq!(heard(&let_go).await[0]["result"], json!({}));
    let wrong = ask(&second, &json!(4), "logging/setLevel", json!({ "level": "loud" })).await;
    assert_eq!(heard(&wrong).await[0]["error"]["code"], -32602);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_broke_is_resumed_behind_the_last_event_and_the_newest_is_the_one_there_is() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({})).await;
    let first = client.listen().await.follow();
    for n in 1..=2 {
        child.notifies("notifications/message", json!({ "level": "info", "data": n })).await;
    }
    assert_eq!(heard(&first).await.len(), 2);
    first.leave();
    child.notifies("notifications/message", json!({ "level": "info", "data": 3 })).await;
    settle().await;
    let again = client.with("last-event-id", "get-1").listen().await.follow();
    let said: Vec<_> = heard(&again).await.iter().map(|message| message["params"]["data"].clone()).collect();
    assert_eq!(said, [json!(2), json!(3)]);
    let newest = client.listen().await.follow();
    settle().await;
    assert!(again.is_over() && !newest.is_over());
    child.notifies("notifications/message", json!({ "level": "info", "data": 4 })).await;
    assert_eq!(heard(&newest).await.len(), 1);
    assert_eq!(client.with("accept", "application/json").listen().await.answer().await.status, 406);
}
