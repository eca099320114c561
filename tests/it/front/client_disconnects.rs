//! Clients that disconnect, and the deadline of a call: both cancel it.

use super::{
    BOTH, NEVER,
    listener_and_service::{
        FrontAndService, Lines, ScriptedService, Version, call, channel, frame, message, once, post, reply,
    },
};
use crate::support::paused_time::passes;
use deferral::internals::{policy, protocol::RequestId, proxy::ReplyItem};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::json;
use std::{sync::Mutex, time::Duration};

#[tokio::test]
async fn a_client_that_disconnects_while_waiting_abandons_its_call() {
    for version in BOTH {
        let (desk, mut given_up) = ScriptedService::silent(NEVER);
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let waiting = tokio::spawn(client.send(call("work")));
        while desk.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        drop(client);
        given_up.recv().await.expect("the call is dropped");
    }
}

/// A call with a progress token; the client declares this.
fn watched(capabilities: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let body = message("tools/call", r#""name":"work","#)
        .replace(r#""_meta":{"#, r#""_meta":{"progressToken":"t","#)
        .replace(r#"clientCapabilities":{}"#, &format!(r#"clientCapabilities":{capabilities}"#));
    post(&body, &[("mcp-method", "tools/call"), ("mcp-name", "work")])
}

#[tokio::test]
async fn a_client_with_a_progress_token_and_without_tasks_gets_progress() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let pace =
            |route: &mut policy::Route| route.wait_policy.progress_after = Some(Duration::from_millis(20));
        let desk =
            ScriptedService::on("/mcp", pace, move |_| stream.lock().unwrap().take().expect("one call"));
        let world = FrontAndService::new(&[&desk], |_| {});
        let response = world.client(version).await.send(watched("{}")).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        let progress = |event: Option<String>| {
            let event = event.expect("it goes on");
            let data = event.strip_prefix("data: ").expect("an event");
            let message: serde_json::Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"]["progressToken"], "t");
            let said = message["params"]["message"].as_str().expect("a text");
            let seconds = said.strip_prefix("still running, ").and_then(|rest| rest.strip_suffix(" s"));
            // None, where the machine is not busy.
            seconds.and_then(|seconds| seconds.parse::<u8>().ok()).unwrap_or_else(|| panic!("{said}"));
            message["params"]["progress"].as_f64().expect("a number")
        };
        let first = progress(frame(&mut body).await);
        let second = progress(frame(&mut body).await);
        assert!(0.0 < first && first < second, "{first} {second}");
        let said = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":3}}"#;
        sender.send(ReplyItem::Notification(said.into())).expect("it is listened to");
        let mut third = second;
        while third <= 3.0 {
            let event = frame(&mut body).await;
            match event.as_deref() == Some(&*format!("data: {said}\n\n")) {
                true => third = 3.0_f64.next_up(),
                false => third = progress(event),
            }
        }
        assert!(progress(frame(&mut body).await) > 3.0);
        sender.send(ReplyItem::Reply(reply(&RequestId::from_number(7), "{}"))).expect("it is listened to");
        let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
        assert!(rest.ends_with("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"), "{rest}");
    }
}

#[tokio::test]
async fn a_client_with_tasks_gets_progress_in_its_task() {
    let pace = |route: &mut policy::Route| {
        route.wait_policy.progress_after = Some(Duration::from_millis(5));
        route.wait_policy.comment_after = Duration::from_millis(20);
    };
    let desk = ScriptedService::on("/mcp", pace, |_| stream::pending().boxed());
    let world = FrontAndService::new(&[&desk], |_| {});
    let tasks = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let response = world.client(Version::Http1).await.send(watched(tasks)).await.expect("an answer");
    let mut body = response.into_body();
    for _ in 0..2 {
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
    }
}

#[tokio::test]
async fn a_call_over_the_deadline_gets_an_error_and_is_cancelled_by_the_front() {
    for version in BOTH {
        for comments in [NEVER, Duration::from_millis(5)] {
            let (desk, mut given_up) = ScriptedService::silent(comments);
            // The same desk with a deadline.
            let desk = desk.with(|route| route.wait_policy.deadline = Some(Duration::from_secs(10)));
            let lines = Lines::record();
            let world = FrontAndService::new(&[&desk], |_| {});
            let mut client = world.client(version).await;
            let waiting = client.send(call("work"));
            // Its time is over once it is silent; where it gets comments, once it has got one.
            let silent = async {
                while desk.seen.lock().unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
                if comments == NEVER {
                    passes(Duration::from_secs(10)).await;
                }
            };
            let (response, ()) = tokio::join!(waiting, silent);
            let (head, mut body) = response.expect("an answer").into_parts();
            let kind = if comments == NEVER { "application/json" } else { "text/event-stream" };
            assert_eq!((head.status.as_u16(), &head.headers["content-type"]), (200, &kind.parse().unwrap()));
            if comments != NEVER {
                assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
                passes(Duration::from_secs(10)).await;
            }
            let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
            given_up.recv().await.expect("the call is dropped");
            let body = match comments == NEVER {
                true => &*rest,
                false => rest.rsplit_once("data: ").expect("an event").1,
            };
            let message: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!((&message["id"], &message["error"]["code"]), (&json!(7), &json!(-31003)));
            let why = message["error"]["message"].as_str().expect("a text");
            assert!(why.contains("10s (held.deadline)"), "{why}");
            assert_eq!(lines.until(1).await[0]["outcome"], "timed_out");
        }
    }
}

#[tokio::test]
async fn what_is_no_call_has_no_deadline() {
    let (sender, stream) = channel();
    let stream = Mutex::new(Some(stream));
    let pace = |route: &mut policy::Route| {
        route.wait_policy.comment_after = Duration::from_millis(10);
        route.wait_policy.deadline = Some(Duration::from_millis(15));
    };
    let desk =
        ScriptedService::on("/mcp", pace, move |_| stream.lock().unwrap().take().expect("one request"));
    let world = FrontAndService::new(&[&desk], |_| {});
    let list = post(&message("tools/list", ""), &[("mcp-method", "tools/list")]);
    let mut body = world.client(Version::Http1).await.send(list).await.expect("an answer").into_body();
    for _ in 0..4 {
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
    }
    sender.send(ReplyItem::Reply(reply(&RequestId::from_number(7), "{}"))).expect("it is listened to");
    assert!(frame(&mut body).await.is_some_and(|event| event.contains("result")));
}

#[tokio::test]
async fn a_client_that_disconnects_an_event_stream_abandons_its_call() {
    for version in BOTH {
        let (desk, mut given_up) = ScriptedService::silent(Duration::from_millis(5));
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let response = client.send(call("work")).await.expect("an event stream");
        drop(response);
        drop(client);
        given_up.recv().await.expect("the call is dropped");
    }
}

#[tokio::test]
async fn abandoning_one_http_2_request_leaves_the_others_alone() {
    let (sender, stream) = channel();
    let stream = Mutex::new(Some(stream));
    let desk = ScriptedService::new(move |call| match call.target.as_deref() {
        Some("slow") => stream.lock().unwrap().take().expect("one call"),
        _ => once(reply(&call.id, "{}")),
    });
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http2).await;
    let slow = tokio::spawn(client.send(call("slow")));
    while desk.seen.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    slow.abort();
    sender.closed().await;
    assert_eq!(client.ask(call("fast")).await.status, StatusCode::OK);
}
