//! Calls and their notifications.

use super::proxy_and_stdio_server::{ProxyAndStdioServer, ask, heard, settle, tell};
use crate::{front::listener_and_service::Lines, support::modern_client::soon};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn an_answer_alone_is_one_document_and_the_servers_bytes_but_for_the_id() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({})).await;
    for id in ["\"a\"", "1.0", "9007199254740993"] {
        let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"vendor/x","params":{{"n":1.50}}}}"#);
        let waiting = client.post(&request).await;
        let line = child.told("vendor/x").await;
        child
            .says_raw(&format!(r#"{{"jsonrpc":"2.0", "id":{},"result":{{"n":1.50,"b":[ ]}}}}"#, line["id"]))
            .await;
        let answer = waiting.answer().await;
        assert!(answer.is_json());
        assert_eq!(answer.body, format!(r#"{{"jsonrpc":"2.0", "id":{id},"result":{{"n":1.50,"b":[ ]}}}}"#));
    }
    let waiting = ask(&client, &json!(1), "tools/call", json!({ "name": "t" })).await;
    let call = child.told("tools/call").await;
    child
        .says(json!({ "jsonrpc": "2.0", "id": call["id"], "error": { "code": -32602, "message": "no" } }))
        .await;
    assert_eq!(
        heard(&waiting).await,
        [json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32602, "message": "no" } })]
    );
}

#[tokio::test(start_paused = true)]
async fn notifications_of_a_call_are_sent_on_its_stream() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({})).await;
    let params = json!({ "name": "t", "_meta": { "progressToken": "p" } });
    let waiting = ask(&client, &json!("a"), "tools/call", params).await;
    let call = child.told("tools/call").await;
    assert_eq!(call["params"]["_meta"]["progressToken"], call["id"]);
    child.notifies("notifications/message", json!({ "level": "info", "data": "x" })).await;
    child.notifies("notifications/progress", json!({ "progressToken": call["id"], "progress": 1 })).await;
    child.answers(&call, json!({ "content": [] })).await;
    let said = heard(&waiting).await;
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(said[0]["params"]["data"], "x");
    assert_eq!(said[1]["params"], json!({ "progressToken": "p", "progress": 1 }));
    assert_eq!((&said[2]["id"], waiting.is_over()), (&json!("a"), true));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_cancelled_at_the_server_under_its_id() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({})).await;
    let waiting = ask(&client, &json!("a"), "tools/call", json!({ "name": "t" })).await;
    let call = child.told("tools/call").await;
    let cancelled = json!({ "requestId": "a", "reason": "enough" });
    tell(&client, json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }))
        .await;
    assert_eq!(child.told("notifications/cancelled").await["params"]["requestId"], call["id"]);
    assert!(heard(&waiting).await.is_empty() && waiting.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_cancels_nothing_and_a_session_delete_cancels_all() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({})).await;
    let waiting = ask(&client, &json!("a"), "tools/call", json!({ "name": "t" })).await;
    let first = child.told("tools/call").await;
    settle().await;
    waiting.leave();
    let waiting = ask(&client, &json!("b"), "tools/call", json!({ "name": "t" })).await;
    let second = child.told("tools/call").await;
    child.answers(&first, json!({ "content": [] })).await;
    child.answers(&second, json!({ "content": [] })).await;
    assert_eq!(heard(&waiting).await.len(), 1);
    // A call of a disconnected client can still be cancelled.
    let waiting = ask(&client, &json!("c"), "tools/call", json!({ "name": "t" })).await;
    let third = child.told("tools/call").await;
    settle().await;
    waiting.leave();
    settle().await;
    let cancelled = json!({ "requestId": "c" });
    tell(&client, json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }))
        .await;
    assert_eq!(child.told("notifications/cancelled").await["params"]["requestId"], third["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_stops_ends_what_is_in_flight_and_its_children() {
    let mut world = ProxyAndStdioServer::new("defer: { mode: never }");
    let (client, mut child) = world.begin(json!({})).await;
    let listening = client.listen().await.follow();
    let waiting = ask(&client, &json!("a"), "tools/call", json!({ "name": "t" })).await;
    let call = child.told("tools/call").await;
    let stopping = tokio::spawn(world.proxy.stop());
    let cancelled = loop {
        let Some(message) = child.later().await else { panic!("it is told") };
        if message["method"] == "notifications/cancelled" {
            break message;
        }
    };
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
    assert_eq!(child.later().await, None, "its input ends");
    soon("it stops", stopping).await.expect("it stops");
    assert_eq!(heard(&waiting).await[0]["error"]["code"], -31007);
    assert!(listening.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_call_in_front_of_a_process_is_observed_where_it_took_longer_than_the_threshold() {
    let mut world = ProxyAndStdioServer::new("defer: { mode: observe, after: 5s }");
    let (client, mut child) = world.begin(json!({})).await;
    for (takes, is_left, observed) in [(3, false, 0), (7, false, 1), (3, true, 0), (7, true, 1)] {
        let lines = Lines::record();
        let waiting = ask(&client, &json!(1), "tools/call", json!({ "name": "t" })).await;
        let call = child.told("tools/call").await;
        sleep(Duration::from_secs(takes)).await;
        if is_left {
            drop(waiting);
            settle().await;
        } else {
            child.answers(&call, json!({ "content": [] })).await;
            heard(&waiting).await;
        }
        let counted = lines.of("would_defer");
        assert_eq!(counted.len(), observed, "{takes} {is_left}: {counted:?}");
        if is_left {
            child.answers(&call, json!({ "content": [] })).await;
            settle().await;
        }
    }
}
