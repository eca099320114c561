//! Responses: one JSON body or an event stream, comments, large bodies, several requests on a connection.

use super::{
    BOTH,
    listener_and_service::{
        FrontAndService, ScriptedService, Version, call, channel, frame, items, notice, once, post, reply,
    },
};
use deferral::internals::{protocol::RequestId, proxy::ReplyItem};

use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;

use std::sync::Mutex;

#[tokio::test]
async fn a_reply_at_once_is_one_json_response() {
    for version in BOTH {
        let desk = ScriptedService::prompt();
        let world = FrontAndService::new(&[&desk], |_| {});
        let answer = world.client(version).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":7,"result":"done"}"#);
        assert_eq!(answer.header("content-length"), answer.body.len().to_string());
        assert_eq!(desk.seen.lock().unwrap()[0].0.target.as_deref(), Some("greet"));
    }
}

#[tokio::test]
async fn a_reply_at_once_has_its_own_status_and_headers() {
    let desk = ScriptedService::new(|call| {
        let mut reply = reply(&call.id, "{}");
        reply.status = StatusCode::FORBIDDEN;
        reply.headers.insert("x-seen", HeaderValue::from_static("yes"));
        once(reply)
    });
    let answer = FrontAndService::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("greet")).await;
    assert_eq!((answer.status, answer.header("x-seen")), (StatusCode::FORBIDDEN, "yes"));
}

#[tokio::test]
async fn a_notification_begins_an_event_stream_that_ends_with_the_response() {
    for version in BOTH {
        let desk = ScriptedService::new(|call| {
            let mut reply = reply(&call.id, "{}");
            reply.status = StatusCode::BAD_REQUEST;
            items([notice("1"), notice("2"), ReplyItem::Reply(reply)])
        });
        let answer = FrontAndService::new(&[&desk], |_| {}).client(version).await.ask(call("work")).await;
        assert_eq!(answer.status, StatusCode::OK, "a stream that has begun is 200 for good");
        assert_eq!(answer.header("content-type"), "text/event-stream");
        assert_eq!(answer.header("cache-control"), "no-cache");
        assert_eq!(answer.header("x-accel-buffering"), "no");
        let want = concat!(
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":\"1\"}\n\n",
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":\"2\"}\n\n",
            "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n",
        );
        assert_eq!(answer.body, want);
    }
}

#[tokio::test]
async fn silence_begins_an_event_stream_and_is_broken_by_comments() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::paced(20, move |_| stream.lock().unwrap().take().expect("one call"));
        let world = FrontAndService::new(&[&desk], |_| {});
        let response = world.client(version).await.send(call("work")).await.expect("an answer");
        let (head, mut body) = response.into_parts();
        assert_eq!(head.headers["content-type"], "text/event-stream");
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
        assert_eq!(frame(&mut body).await.as_deref(), Some(":\n\n"));
        let id = RequestId::from_number(7);
        sender.send(ReplyItem::Reply(reply(&id, "{}"))).expect("it is listened to");
        let rest = String::from_utf8(body.collect().await.expect("an end").to_bytes().to_vec()).unwrap();
        assert!(rest.ends_with("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"), "{rest}");
    }
}

#[tokio::test]
async fn each_message_goes_out_as_it_comes() {
    for version in BOTH {
        let (sender, stream) = channel();
        let stream = Mutex::new(Some(stream));
        let desk = ScriptedService::new(move |_| stream.lock().unwrap().take().expect("one call"));
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let answer = client.send(call("work"));
        sender.send(notice("1")).expect("it is listened to");
        let mut body = answer.await.expect("an answer").into_body();
        assert!(frame(&mut body).await.expect("an event").contains("\"1\""));
        sender.send(notice("2")).expect("it is listened to");
        assert!(frame(&mut body).await.expect("an event").contains("\"2\""));
    }
}

#[tokio::test]
async fn a_large_reply_is_one_event_and_one_json_body() {
    let large = format!("\"{}\"", "x".repeat(3 << 20));
    for version in BOTH {
        for first in [None, Some("1")] {
            let result = large.clone();
            let desk = ScriptedService::new(move |call| {
                let reply = ReplyItem::Reply(reply(&call.id, &result));
                items(first.map(notice).into_iter().chain([reply]).collect::<Vec<_>>())
            });
            let answer = FrontAndService::new(&[&desk], |_| {}).client(version).await.ask(call("work")).await;
            let last = answer.body.trim_end().rsplit('\n').next().expect("a line");
            let message: serde_json::Value =
                serde_json::from_str(last.strip_prefix("data: ").unwrap_or(last)).expect("JSON");
            assert_eq!(message["result"].as_str().map(str::len), Some(3 << 20));
        }
    }
}

#[tokio::test]
async fn a_call_that_ends_without_a_reply_is_answered_all_the_same() {
    let desk = ScriptedService::new(|_| items([]));
    let answer = FrontAndService::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("work")).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (500, -32603));
    assert_eq!(answer.json()["id"], 7);

    let desk = ScriptedService::new(|_| items([notice("1")]));
    let answer = FrontAndService::new(&[&desk], |_| {}).client(Version::Http1).await.ask(call("work")).await;
    assert!(answer.body.contains(r#""id":7,"error":{"code":-32603"#), "{}", answer.body);
}

#[tokio::test]
async fn a_notification_is_accepted_without_a_body() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let body = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
    let answer = world.client(Version::Http1).await.ask(post(body, &[])).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (202, ""));
    assert!(desk.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    for version in BOTH {
        let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
        let mut client = world.client(version).await;
        for _ in 0..5 {
            assert_eq!(client.ask(call("greet")).await.status, StatusCode::OK);
        }
    }
}
