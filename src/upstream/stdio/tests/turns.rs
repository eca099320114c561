//! Turns in a shared process, and abandoned calls in it.

use bytes::Bytes;
use serde_json::json;
use std::sync::Arc;

use super::{ASKABLE, MUTE, World, outgoing};
use crate::{
    dialect::{Principal, modern},
    protocol::Method,
    upstream::{CallError, OutgoingCall, Upstream, UpstreamEvent},
};

#[tokio::test(start_paused = true)]
async fn a_process_is_shared_until_its_first_request_and_calls_take_turns_then() {
    let mut world = World::new();
    let mut calls = [world.call(1, ASKABLE), world.call(2, ASKABLE)];
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.read_call().await;
    // The request cannot be attributed to a call.
    process.send_request("q1").await;
    let answer = process.reads().await;
    assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&json!("q1"), Some(-32603)));
    process.answers(1).await;
    process.answers(2).await;
    for call in &mut calls {
        call.is_answered().await;
    }
    let mut first = world.call(3, ASKABLE);
    assert_eq!(process.read_call().await, 3);
    let mut second = world.call(4, ASKABLE);
    process.send_request("q2").await;
    let UpstreamEvent::ServerRequest(question) = first.next().await else { panic!("it is asked") };
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    // The second call is sent after the first has ended.
    assert_eq!(process.reads().await["id"], "q2");
    process.answers(3).await;
    first.is_answered().await;
    assert_eq!(process.read_call().await, 4);
    process.answers(4).await;
    second.is_answered().await;
    assert!(world.has_no_start(), "there is one process for all of them");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_too_long_for_a_turn_gets_the_reason() {
    let mut world = World::new();
    let _first = world.call(1, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.send_request("q").await;
    // A call whose client accepts no input requests waits for none.
    let lost = world.call(2, ASKABLE).lost().await;
    assert!(matches!(lost, CallError::QueueTimeout { .. }), "{lost:?}");
    assert!(
        lost.to_string().contains("(callers that accept input requests take turns in a process)"),
        "{lost}"
    );
    let mut mute = world.call(3, MUTE);
    let mut other = world.next_initialized().await;
    other.read_call().await;
    other.answers(3).await;
    mute.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_retires_its_process_only_if_its_requests_could_reach_others() {
    for capabilities in [MUTE, ASKABLE] {
        let mut world = World::new();
        let call = world.call(1, capabilities);
        let mut process = world.next_initialized().await;
        process.read_call().await;
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
        let mut next = world.call(2, capabilities);
        assert_eq!(process.read_call().await, 2);
        if capabilities == ASKABLE {
            // The cancelled call may have sent it. No requests can be sent to clients in this process any
            // more.
            process.send_request("q").await;
            assert_eq!(process.reads().await["error"]["code"], -32603);
        }
        process.answers(2).await;
        next.is_answered().await;
        let mut third = world.call(3, capabilities);
        if capabilities == ASKABLE {
            process.has_no_more_to_read().await;
            process = world.next_initialized().await;
        }
        assert_eq!(process.read_call().await, 3);
        // The server has sent requests.
        third.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
        if capabilities == ASKABLE {
            process.has_no_more_to_read().await;
        }
        let _ = &mut third;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retired_process_with_a_call_in_flight_ends_with_its_server() {
    let mut world = World::new();
    let (first, mut second) = (world.call(1, ASKABLE), world.call(2, ASKABLE));
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.read_call().await;
    first.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    process.send_request("q").await;
    assert_eq!(process.reads().await["error"]["code"], -32603);
    let server = world.server.clone();
    let closing = tokio::spawn(async move { server.close().await });
    let lost = second.lost().await;
    assert!(matches!(lost, CallError::Closing), "{lost:?}");
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    process.has_no_more_to_read().await;
    process.ends("exit status: 0").await;
    closing.await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_list_costs_no_process_until_there_are_many() {
    let mut world = World::new();
    let list = |id| OutgoingCall {
        call: Arc::new(modern::build_call(&Method::ToolsList, "{}")),
        ..outgoing(Principal::derive(&[b"lists"]), id, ASKABLE, "{}")
    };
    let _other = world.call(0, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    for id in 1..=256 {
        let call = world.send(list(id));
        assert_eq!(process.reads().await["method"], "tools/list");
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
        if id == 1 {
            // The abandoned call sends no requests.
            let _next = world.call(1000, ASKABLE);
            assert_eq!(process.read_call().await, 1000);
            process.answers(1000).await;
            process.answers(1).await;
        }
    }
    assert!(world.has_no_start());
    let _last = [257, 258].map(|id| world.call(id, ASKABLE));
    assert_eq!([process.read_call().await, process.read_call().await], [257, 258]);
    // The first was answered after all, so this is the 256th without an answer.
    let call = world.send(list(259));
    assert_eq!(process.reads().await["method"], "tools/list");
    call.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    let _elsewhere = world.call(260, ASKABLE);
    assert_eq!(world.next_initialized().await.read_call().await, 260);
}

#[tokio::test(start_paused = true)]
async fn after_a_cancelled_call_is_answered_messages_without_a_call_are_delivered_again() {
    let mut world = World::new();
    let call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    call.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    let mut next = world.call(2, MUTE);
    assert_eq!(process.read_call().await, 2);
    let line = |text: &str| {
        let params = json!({ "level": "info", "data": text });
        format!("{}\n", json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }))
    };
    process.write(&line("of either")).await;
    process.answers(1).await;
    process.write(&line("of the second")).await;
    let UpstreamEvent::Notification(heard) = next.next().await else { panic!("a notification") };
    assert!(String::from_utf8_lossy(heard.as_bytes()).contains("of the second"), "{heard:?}");
    process.answers(2).await;
    next.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_answers_none_of_many_cancelled_calls_is_retired() {
    let mut world = World::new();
    let keeper = world.call(0, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    for id in 1..=256 {
        let call = world.call(id, MUTE);
        assert_eq!(process.read_call().await, id);
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
    }
    let mut last = world.call(257, MUTE);
    let mut another = world.next_initialized().await;
    assert_eq!(another.read_call().await, 257);
    another.answers(257).await;
    last.is_answered().await;
    drop(keeper);
}
