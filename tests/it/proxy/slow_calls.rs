//! Slow calls of clients without tasks: comments, progress, log messages.

use super::proxy_and_server::{ProxyAndServer, Setup};
use crate::support::modern_client::Event;
use serde_json::{Value, json};

#[tokio::test]
async fn a_long_silence_is_broken_by_comments_until_the_result() {
    let world =
        Setup::new().route("defer: { after: 0s }").top("timeouts: { keep_alive: 20ms }").start().await;
    let waiting = world.client().call("slow").await;
    let call = world.server.call().await;
    let mut stream = waiting.stream().await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert_eq!(stream.headers["x-accel-buffering"], "no");
    for _ in 0..3 {
        assert_eq!(stream.event().await, Some(Event::Comment));
    }
    call.says("done");
    let response = stream.next().await;
    assert_eq!(response["result"]["content"][0]["text"], "done");
    assert_eq!(response["id"], 1);
    assert_eq!(stream.event().await, None);
}

#[tokio::test]
async fn an_error_after_the_comments_have_begun_travels_in_the_stream() {
    let world = Setup::new().top("timeouts: { keep_alive: 20ms }").start().await;
    let waiting = world.client().call("slow").await;
    let call = world.server.call().await;
    let mut stream = waiting.stream().await;
    assert_eq!(stream.event().await, Some(Event::Comment));
    call.error(json!({ "code": 7, "message": "no" }));
    let response = stream.next().await;
    assert_eq!((stream.status.as_u16(), &response["error"]), (200, &json!({ "code": 7, "message": "no" })));
}

#[tokio::test]
async fn progress_comes_with_the_clients_own_token_before_the_result() {
    for token in [json!("progress-test-1"), json!(0), json!(9007199254740993_i64), json!("")] {
        let world = ProxyAndServer::new().await;
        let params = json!({ "name": "slow", "_meta": { "progressToken": token } });
        let waiting = world.client().send("tools/call", params).await;
        let call = world.server.call().await;
        let ours = call.seen.json["params"]["_meta"]["progressToken"].clone();
        assert_eq!(ours, call.id(), "tokens are unique in a session that may be shared");
        let id = call.id();
        let events = call.stream();
        for progress in 1..=3 {
            events.notify(
                "notifications/progress",
                json!({ "progressToken": ours, "progress": progress, "x": [] }),
            );
        }
        events.result(&id, json!({ "content": [] }));
        let messages = waiting.answer().await.messages();
        assert_eq!(messages.len(), 4, "{messages:?}");
        for (message, progress) in messages.iter().zip(1..=3) {
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"], json!({ "progressToken": token, "progress": progress, "x": [] }));
        }
        assert_eq!(messages[3]["result"]["content"], json!([]));
    }
}

#[tokio::test]
async fn two_clients_with_one_token_each_get_their_own_progress() {
    let world = ProxyAndServer::new().await;
    let params = |name| json!({ "name": name, "_meta": { "progressToken": 1 } });
    let one = world.client().send("tools/call", params("one")).await;
    let a = world.server.call().await;
    let two = world.client().send("tools/call", params("two")).await;
    let b = world.server.call().await;
    assert_eq!(a.session(), b.session(), "they share a session, so tokens must not collide");
    let own = world.server.listener(a.session()).await;
    for (call, progress) in [(&b, 2), (&a, 1)] {
        let token = &call.seen.json["params"]["_meta"]["progressToken"];
        own.notify("notifications/progress", json!({ "progressToken": token, "progress": progress }));
    }
    let (mut one, mut two) = (one.stream().await, two.stream().await);
    assert_eq!(one.notice("notifications/progress").await, json!({ "progressToken": 1, "progress": 1 }));
    assert_eq!(two.notice("notifications/progress").await, json!({ "progressToken": 1, "progress": 2 }));
    a.says("one");
    b.says("two");
    assert_eq!(one.next().await["result"]["content"][0]["text"], "one");
    assert_eq!(two.next().await["result"]["content"][0]["text"], "two");
}

#[tokio::test]
async fn progress_without_a_token_is_dropped() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("slow").await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": id, "progress": 1 }));
    events.result(&id, json!({ "content": [] }));
    let answer = waiting.answer().await;
    assert!(answer.is_json(), "nothing went before the result: {answer:?}");
}

/// What of these log messages reaches a client that names this level, or none.
async fn logged(level: Option<&str>) -> Vec<Value> {
    let world = ProxyAndServer::new().await;
    let mut params = json!({ "name": "t" });
    if let Some(level) = level {
        params["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
    }
    let waiting = world.client().send("tools/call", params).await;
    let call = world.server.call().await;
    assert_eq!(call.seen.json["params"].get("_meta"), None, "the level is our era's own");
    let id = call.id();
    let events = call.stream();
    for level in ["debug", "warning", "nonsense", "info", "error", "emergency"] {
        events.notify("notifications/message", json!({ "level": level, "data": { "n": 1.0 } }));
    }
    events.result(&id, json!({ "content": [] }));
    let answer = waiting.answer().await;
    assert_eq!(answer.is_json(), answer.messages().len() == 1);
    answer
        .messages()
        .iter()
        .filter(|message| message["method"] == "notifications/message")
        .map(|message| message["params"]["level"].clone())
        .collect()
}

#[tokio::test]
async fn log_messages_come_from_the_level_that_was_named() {
    assert_eq!(logged(None).await, Vec::<Value>::new());
    assert_eq!(logged(Some("warning")).await, ["warning", "error", "emergency"]);
    assert_eq!(logged(Some("emergency")).await, ["emergency"]);
    assert_eq!(logged(Some("debug")).await, ["debug", "warning", "info", "error", "emergency"]);
}

#[tokio::test]
async fn an_unknown_log_level_is_refused() {
    let world = ProxyAndServer::new().await;
    let params = json!({ "name": "t", "_meta": { "io.modelcontextprotocol/logLevel": "loud" } });
    assert_eq!(world.client().ask("tools/call", params).await.refusal(), (400, -32602));
    assert_eq!(world.server.log().len(), 0);
}

#[tokio::test]
async fn a_log_message_on_the_sessions_own_stream_reaches_only_a_call_it_can_be_about() {
    let world = ProxyAndServer::new().await;
    let params = json!({ "name": "t", "_meta": { "io.modelcontextprotocol/logLevel": "info" } });
    let one = world.client().send("tools/call", params.clone()).await;
    let a = world.server.call().await;
    let own = world.server.listener(a.session()).await;
    let log = |text: &str| json!({ "level": "info", "data": text });
    own.notify("notifications/message", log("the only one"));
    let mut one = one.stream().await;
    assert_eq!(one.notice("notifications/message").await["data"], "the only one");

    let two = world.client().send("tools/call", params).await;
    let b = world.server.call().await;
    own.notify("notifications/message", log("whose?"));
    let token = &a.seen.json["params"]["_meta"]["progressToken"];
    assert_eq!(token, &Value::Null);
    a.says("one");
    assert_eq!(one.next().await["result"]["content"][0]["text"], "one");
    own.notify("notifications/message", log("b alone"));
    let mut two = two.stream().await;
    assert_eq!(two.notice("notifications/message").await["data"], "b alone");
    b.says("two");
}
