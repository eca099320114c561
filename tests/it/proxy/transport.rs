//! HTTP through the whole proxy. `front` tests the details; these tests show that the proxy keeps them.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup};
use crate::support::{limit_hits::LimitHits, modern_client::Version};
use serde_json::json;

#[tokio::test]
async fn an_unknown_host_or_origin_is_refused() {
    let world = ProxyAndServer::new().await;
    let host = world.addr().to_string();
    for (client, status) in [
        (world.client().with("host", "evil.example.com"), 403),
        (world.client().with("origin", "http://evil.example.com"), 403),
        (world.client().with("origin", "null"), 403),
        (world.client().with("origin", &format!("http://{host}")), 200),
        (world.client(), 200),
    ] {
        let answer = client.ask("server/discover", json!({})).await;
        assert_eq!(answer.status, status, "{client:?}");
    }
}

#[tokio::test]
async fn there_are_no_sessions_to_listen_to_or_to_end() {
    let world = ProxyAndServer::new().await;
    for method in ["GET", "DELETE", "PUT"] {
        let mut request = world.client().request("server/discover", json!({}));
        *request.method_mut() = method.parse().expect("a method");
        let answer = world.client().send_request(request).await.answer().await;
        assert_eq!(answer.status, 405, "{method}");
    }
    assert_eq!(world.server.log().len(), 0);
}

#[tokio::test]
async fn http_2_serves_calls_tasks_and_listeners_on_one_connection() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker().over(Version::Http2);
    let mut kept = client.kept().await;
    let task = kept.ask("tools/call", json!({ "name": "slow" })).await.task();
    let asked = json!({ "notifications": { "taskIds": [task] } });
    let mut stream = kept.begin(client.request("subscriptions/listen", asked)).await.stream().await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    world.server.call().await.says("done");
    assert_eq!(stream.notice("notifications/tasks").await["status"], "completed");
    let ended = kept.ask("tasks/get", json!({ "taskId": task })).await.result();
    assert_eq!(ended["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_message_too_large_or_too_deep_never_reaches_the_server() {
    let large_ones = LimitHits::of("limits.body_bytes");
    let deep_ones = LimitHits::of("limits.depth");
    let world = Setup::new().top("limits: { body_bytes: 4KiB, depth: 16 }").start().await;
    let large = json!({ "name": "t", "arguments": { "a": "x".repeat(8 << 10) } });
    let answer = world.client().ask("tools/call", large).await;
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("limits.body_bytes"), "{}", answer.body);
    let deep = (0..20).fold(json!(1), |inner, _| json!([inner]));
    let answer = world.client().ask("tools/call", json!({ "name": "t", "arguments": { "a": deep } })).await;
    assert_eq!(answer.refusal(), (400, -32600));
    assert_eq!(world.server.log().len(), 0);
    tokio::join!(large_ones.are(1), deep_ones.are(1));
}

#[tokio::test]
async fn headers_that_disagree_with_the_message_are_refused_and_not_sent() {
    let world = ProxyAndServer::new().await;
    for (name, value) in [
        ("mcp-method", "tools/list"),
        ("mcp-method", "Tools/Call"),
        ("mcp-method", ""),
        ("mcp-name", "other"),
        ("mcp-name", "T"),
        ("mcp-name", ""),
        ("mcp-protocol-version", "2025-11-25"),
    ] {
        let answer = world.client().with(name, value).ask("tools/call", json!({ "name": "t" })).await;
        assert_eq!(answer.refusal(), (400, -32020), "{name}: {value}");
    }
    assert_eq!(world.server.log().len(), 0);
    let encoded = world.client().with("mcp-name", "=?base64?dMO8?=");
    let waiting = encoded.send("tools/call", json!({ "name": "t\u{fc}" })).await;
    world.server.call().await.says("read");
    assert_eq!(waiting.answer().await.text(), "read");
}

#[tokio::test]
async fn a_task_must_be_named_alike_in_header_and_message() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let asked = json!({ "taskId": task });
    assert_eq!(
        client.with("mcp-name", "other").ask("tasks/get", asked.clone()).await.refusal(),
        (400, -32020)
    );
    let bare = client.with("mcp-name", "").ask("tasks/get", asked).await;
    assert_eq!(bare.result()["status"], "working", "some released clients leave it out");
    call.says("done");
}

#[tokio::test]
async fn requests_may_follow_each_other_on_one_connection_whatever_their_outcome() {
    let world = ProxyAndServer::new().await;
    for version in [Version::Http1, Version::Http2] {
        let mut kept = world.client().over(version).kept().await;
        for id in [json!(500), json!(500), json!("500")] {
            assert_eq!(kept.ask_as(&id, "x/unknown", json!({})).await.status, 404);
            let answer = kept.ask_as(&id, "server/discover", json!({})).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["id"]), (200, &id));
        }
    }
}
