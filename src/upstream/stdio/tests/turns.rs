//! Turns in a shared process, and abandoned calls in it.

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

use super::{ASKABLE, Call, MUTE, Process, World, outgoing};
use crate::{
    dialect::{Principal, modern},
    protocol::Method,
    runtime::Clock,
    telemetry::metrics::limit_snapshots,
    upstream::{
        CallError, Deferral, OutgoingCall, PendingServerRequest, UpstreamEvent, stdio::ProcessSharing,
    },
};

#[tokio::test(start_paused = true)]
async fn a_process_is_shared_until_its_first_request_and_clients_take_turns_then() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
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
async fn once_a_server_has_sent_a_request_each_client_has_a_process() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(3));
    let (mut process, _first, _question) = asked(&mut world, 1).await;
    let mut others = [world.call(2, ASKABLE), world.call(3, ASKABLE)];
    let mut beside = [world.next_initialized().await, world.next_initialized().await];
    let mut ids = [beside[0].read_call().await, beside[1].read_call().await];
    // Each request reaches the only call of its process.
    for (process, id) in beside.iter_mut().zip(ids) {
        process.send_request("q").await;
        let call = &mut others[id as usize - 2];
        let UpstreamEvent::ServerRequest(question) = call.next().await else { panic!("it is asked") };
        process.answers(id).await;
        call.is_answered().await;
        question.responder.discard();
    }
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
    // The next call of a client is made in the process that it used last, although another is free, too.
    let mut again = world.call_of(Principal::derive(&[&2u64.to_be_bytes()]), 4, ASKABLE);
    let [one, other] = &mut beside;
    let used = tokio::select! {
        id = one.read_call() => { assert_eq!(id, 4); one }
        id = other.read_call() => { assert_eq!(id, 4); other }
    };
    used.answers(4).await;
    again.is_answered().await;
    assert!(world.has_no_start());
    process.answers(1).await;
}

/// A process whose only call was sent an input request, the call, and the request.
async fn asked(world: &mut World, id: u64) -> (Process, Call, PendingServerRequest) {
    let mut call = world.call(id, ASKABLE);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, id);
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = call.next().await else { panic!("it is asked") };
    (process, call, question)
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_request_ends_after_a_turn_if_another_principal_waits() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let (mut process, mut first, question) = asked(&mut world, 1).await;
    let began = world.clock.now();
    // Alone, the client has time.
    sleep(Duration::from_secs(60)).await;
    assert!(process.stdin.next_line().now_or_never().is_none());
    let hits = |key: &str| {
        let limits = limit_snapshots();
        limits.into_iter().find(|limit| limit.limit == key).map(|limit| limit.hits)
    };
    let before = hits("questions.turn");
    let mut second = world.call(2, ASKABLE);
    let answer = process.reads().await;
    assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&json!("q"), Some(-32603)));
    assert!(matches!(first.next().await, UpstreamEvent::RequestCancelled { .. }));
    assert_eq!(hits("questions.turn"), before.map(|hits| hits + 1));
    // A late response is not sent.
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"accept"}"#)));
    process.answers(1).await;
    first.is_answered().await;
    assert_eq!(process.read_call().await, 2);
    assert!((60..63).contains(&(world.clock.now() - began).as_secs()));
    // A new request has its time.
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = second.next().await else { panic!("it is asked") };
    let _third = world.call(3, ASKABLE);
    sleep(Duration::from_secs(28)).await;
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    assert_eq!(process.reads().await["result"]["action"], "decline");
    process.answers(2).await;
    second.is_answered().await;
    assert_eq!(process.read_call().await, 3);
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_principal_wait_for_its_own_input_request() {
    let mut world = World::with(|command, config| {
        command.instances = ProcessSharing::Shared(1);
        config.timeouts.queue = Duration::from_secs(600);
    });
    let alice = Principal::derive(&[b"alice"]);
    let mut first = world.call_of(alice, 1, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = first.next().await else { panic!("it is asked") };
    let _second = world.call_of(alice, 2, ASKABLE);
    sleep(Duration::from_secs(300)).await;
    assert!(process.stdin.next_line().now_or_never().is_none());
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    assert_eq!(process.reads().await["id"], "q");
    process.answers(1).await;
    assert_eq!(process.read_call().await, 2);
}

#[tokio::test(start_paused = true)]
async fn of_several_principals_the_one_without_a_process_is_served_first() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let (mut process, _first, _question) = asked(&mut world, 1).await;
    let alice = Principal::derive(&[&1u64.to_be_bytes()]);
    let mut second = world.call_of(alice, 2, ASKABLE);
    let mut beside = world.next_initialized().await;
    assert_eq!(beside.read_call().await, 2);
    let _waiting = [world.call_of(alice, 3, ASKABLE), world.call_of(alice, 4, ASKABLE)];
    sleep(Duration::from_secs(1)).await;
    let _bob = world.call(9, ASKABLE);
    sleep(Duration::from_secs(1)).await;
    beside.answers(2).await;
    second.is_answered().await;
    assert_eq!(beside.read_call().await, 9);
    process.answers(1).await;
    assert_eq!(process.read_call().await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_too_long_for_a_turn_gets_the_reason() {
    let mut world = World::with(|command, config| {
        command.instances = ProcessSharing::Shared(1);
        config.timeouts.turn = Duration::from_secs(600);
    });
    let (_process, _first, _question) = asked(&mut world, 1).await;
    let lost = world.call(2, ASKABLE).lost().await;
    assert!(matches!(lost, CallError::QueueTimeout { .. }), "{lost:?}");
    assert!(lost.to_string().contains("all 1 are busy (upstream.instances)"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_no_process_until_another_call_would_wait() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let [alice, bob] = ["alice", "bob"].map(|name| Principal::derive(&[name.as_bytes()]));
    let mut call = world.call_of(alice, 1, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.send_request("q").await;
    assert!(matches!(call.next().await, UpstreamEvent::ServerRequest(_)));
    assert_eq!(process.reads().await["id"], "q", "the request was dropped");
    call.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    // The cancelled call may send requests, so the next one is made in another process, where its own reach it.
    let mut next = world.call_of(alice, 2, ASKABLE);
    let mut beside = world.next_initialized().await;
    assert_eq!(beside.read_call().await, 2);
    beside.send_request("q").await;
    let UpstreamEvent::ServerRequest(_question) = next.next().await else { panic!("it is asked") };
    process.send_request("whose").await;
    assert_eq!(process.reads().await["error"]["code"], -32603);
    assert!(process.stdin.next_line().now_or_never().is_none(), "it goes on");
    // A call that would have to wait gets a fresh process in its place.
    let mut other = world.call_of(bob, 3, ASKABLE);
    process.has_no_more_to_read().await;
    process.ends("exit status: 0").await;
    let mut fresh = world.next_initialized().await;
    assert_eq!(fresh.read_call().await, 3);
    fresh.answers(3).await;
    other.is_answered().await;
}

/// A call that shares the process of a task frees it when it is cancelled.
#[tokio::test(start_paused = true)]
async fn a_cancelled_call_beside_a_task_lets_the_next_one_share() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let deferral = Deferral::default();
    let mut task = world.call_deferred(1, ASKABLE, &deferral);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 1);
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = task.next().await else { panic!("it is asked") };
    deferral.mark_deferred();
    let beside = world.call(2, ASKABLE);
    assert_eq!(process.read_call().await, 2);
    let _waiting = world.call(3, ASKABLE);
    sleep(Duration::from_secs(2)).await;
    assert!(process.stdin.next_line().now_or_never().is_none());
    beside.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    assert_eq!(process.read_call().await, 3);
    question.responder.discard();
}

/// The cancelled calls that are not recorded one by one keep the process from other clients.
#[tokio::test(start_paused = true)]
async fn a_process_is_not_free_while_one_of_very_many_cancelled_calls_may_run() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let alice = Principal::derive(&[b"alice"]);
    let mut process = None;
    for id in 1..=300 {
        let call = world.call_of(alice, id, ASKABLE);
        let process = match &mut process {
            Some(process) => process,
            none => none.insert(world.next_initialized().await),
        };
        assert_eq!(process.read_call().await, id);
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
    }
    let mut process = process.expect("it runs");
    for id in 1..=256 {
        process.answers(id).await;
    }
    process.send_request("of one of the last").await;
    assert_eq!(process.reads().await["error"]["code"], -32603);
    let _bob = world.call(1000, ASKABLE);
    process.has_no_more_to_read().await;
    process.ends("exit status: 0").await;
    assert_eq!(world.next_initialized().await.read_call().await, 1000);
}

#[tokio::test(start_paused = true)]
async fn once_a_cancelled_call_is_answered_other_clients_use_its_process() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let (mut process, call, question) = asked(&mut world, 1).await;
    call.work.abort();
    drop(question);
    let mut lines = [process.reads().await, process.reads().await];
    lines.sort_by_key(|line| line["method"].is_null());
    assert_eq!(lines[0]["method"], "notifications/cancelled");
    process.answers(1).await;
    sleep(Duration::from_secs(1)).await;
    let mut other = world.call(3, ASKABLE);
    assert_eq!(process.read_call().await, 3);
    // Its requests can be attributed again.
    process.send_request("q").await;
    assert!(matches!(other.next().await, UpstreamEvent::ServerRequest(_)));
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_of_any_number_end_no_process() {
    for capabilities in [MUTE, ASKABLE] {
        let mut world = World::new();
        let keeper = world.call(0, capabilities);
        let mut process = world.next_initialized().await;
        process.read_call().await;
        for id in 1..=600 {
            let outgoing = match id % 2 {
                0 => outgoing(Principal::derive(&[b"calls"]), id, capabilities, r#"{"name":"t"}"#),
                _ => OutgoingCall {
                    call: Arc::new(modern::build_call(&Method::ToolsList, "{}")),
                    ..outgoing(Principal::derive(&[b"lists"]), id, capabilities, "{}")
                },
            };
            let call = world.send(outgoing);
            assert_eq!(process.reads().await["id"], id);
            call.work.abort();
            assert_eq!(process.reads().await["method"], "notifications/cancelled");
        }
        let _last = world.call(1000, capabilities);
        assert_eq!(process.read_call().await, 1000);
        assert!(world.has_no_start());
        drop(keeper);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_with_cancelled_calls_of_very_many_clients_is_used_by_none_of_them() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let mut first = world.call(0, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    for id in 1..=300 {
        let call = world.call(id, ASKABLE);
        assert_eq!(process.read_call().await, id);
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
    }
    process.send_request("whose").await;
    assert_eq!(process.reads().await["error"]["code"], -32603);
    process.answers(0).await;
    first.is_answered().await;
    let _next = world.call(1000, ASKABLE);
    process.has_no_more_to_read().await;
    process.ends("exit status: 0").await;
    assert_eq!(world.next_initialized().await.read_call().await, 1000);
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
