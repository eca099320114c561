//! Output of a process, input that it does not read, and its end.

use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
    time::sleep,
};

use super::{ASKABLE, Call, MUTE, PIPE, World, outgoing, soon};
use crate::{
    dialect::Principal,
    runtime::Clock,
    upstream::{
        CallError, ChangeNotification as Reported, Config, Upstream, UpstreamEvent, UpstreamLimits,
        stdio::{
            ProcessSharing,
            child::{MAX_WAITING_BYTES, STDERR_READ_BYTES},
            supervisor::SupervisorReport,
        },
    },
};

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_fails_its_calls_with_its_status_and_without_its_output() {
    let mut world = World::new();
    let mut calls = [world.call(1, MUTE), world.call(2, MUTE)];
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.read_call().await;
    process.stderr.write_all(b"the password is secret\n").await.expect("it is read");
    process.write(r#"{"jsonrpc":"2.0","id":1,"#).await;
    process.ends("signal: 11 (SIGSEGV)").await;
    for call in &mut calls {
        let lost = call.lost().await;
        assert!(matches!(lost, CallError::Exited(_)), "{lost:?}");
        let lost = lost.to_string();
        assert!(lost.contains("signal: 11 (SIGSEGV), in the middle of a message; whether"), "{lost}");
        assert!(!lost.contains("secret"), "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_closes_its_output_is_ended() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.stdout.shutdown().await.expect("it is open");
    let lost = call.lost().await.to_string();
    assert!(lost.contains("it closed its standard output"), "{lost}");
    process.has_no_more_to_read().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_process_is_known_although_it_arrives_a_second_after_its_output() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.stdout.shutdown().await.expect("it is open");
    sleep(Duration::from_secs(1)).await;
    process.ends("exit status: 3").await;
    let lost = call.lost().await.to_string();
    assert!(lost.contains("exit status: 3"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn the_output_of_a_process_that_is_being_ended_is_read_to_its_end() {
    for fails_at_its_start in [false, true] {
        let mut world = World::with(|command, _| command.start_timeout = Duration::from_secs(7));
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        let server = world.server.clone();
        if fails_at_its_start {
            process.reads().await;
            call.lost().await;
        } else {
            process.complete_handshake().await;
            let id = process.read_call().await;
            process.answers(id).await;
            call.is_answered().await;
            tokio::spawn(async move { server.close().await });
        }
        process.has_no_more_to_read().await;
        // The process can write to its pipe until it ends.
        process.write(&"x".repeat(3 * PIPE)).await;
        sleep(Duration::from_secs(1)).await;
        process.write(&"y".repeat(3 * PIPE)).await;
        // Descendants that keep the output open are not read on.
        let report = SupervisorReport::Ended { status: "exit status: 0".to_owned() }.to_line();
        process.control.write_all(report.as_bytes()).await.expect("it is heard");
        sleep(Duration::from_secs(10)).await;
        process.stdout.write_all(b"z").await.expect_err("its pipe is closed");
    }
}

/// A response above the limit.
fn too_large(id: u64, bytes: usize) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"result\":\"{}\",\"id\":{id}}}\n", "x".repeat(bytes))
}

/// Output of programs that log JSON to standard output, and messages without the version.
fn without_version(id: u64) -> String {
    [
        json!({ "level": "error", "error": "dial tcp 10.0.0.1:5432: connection refused" }),
        json!({ "level": "warn", "id": "job-7", "error": "timeout" }),
        json!({ "level": "info", "method": "GET", "path": "/me?token=secret", "status": 200 }),
        json!({ "level": "info", "id": "job-7", "method": "POST", "path": "/jobs" }),
        json!({ "id": id, "error": { "code": -32600, "message": "refused" } }),
        json!({ "id": id, "result": { "content": [], "level": "info" } }),
        json!({ "jsonrpc": 2.0, "id": id, "result": {} }),
        json!({ "jsonrpc": "1.0", "id": id, "result": {} }),
        json!({ "id": "q", "method": "elicitation/create", "params": { "message": "secret?" } }),
        json!({ "method": "notifications/message", "params": { "level": "info", "data": "secret" } }),
        json!([{ "id": id, "result": {} }, { "method": "notifications/tools/list_changed" }]),
        json!("text"),
        json!(7),
        json!(null),
        json!([]),
        json!([[{ "jsonrpc": "2.0", "id": id, "result": {} }]]),
    ]
    .map(|line| format!("{line}\n"))
    .concat()
}

#[tokio::test(start_paused = true)]
async fn json_that_declares_no_json_rpc_is_no_message_before_the_handshake_and_behind_it() {
    let mut world = World::new();
    let mut reported = world.server.watch(Principal::ANONYMOUS).subscribe();
    let mut call = world.call(1, ASKABLE);
    let mut process = world.next().await;
    process.write(&without_version(0)).await;
    process.complete_handshake().await;
    let id = process.read_call().await;
    process.write(&without_version(id)).await;
    // Of a batch, the elements that declare the version are messages.
    let change = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    process.write(&format!("[{{\"id\":{id},\"result\":{{}}}},{change}]\n")).await;
    process.answers(id).await;
    call.is_answered().await;
    assert!(matches!(reported.recv().await, Ok(Reported::ListChanged(_))));
    assert!(futures_util::poll!(std::pin::pin!(reported.recv())).is_pending(), "one of them was a message");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_omits_the_version_from_its_messages_does_not_start_and_the_error_says_so() {
    let mut world = World::with(|command, _| command.start_timeout = Duration::from_secs(7));
    let mut call = world.call(1, MUTE);
    let mut process = world.next().await;
    let id = process.reads().await["id"].clone();
    let result = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {} });
    process.write(&format!("{}\n", json!({ "id": id, "result": result }))).await;
    let lost = call.lost().await.to_string();
    assert!(lost.contains("upstream.start_timeout") && lost.contains(r#"without "jsonrpc":"2.0""#), "{lost}");
}

/// `reads` checks that each line is one message for every reader of lines.
#[tokio::test(start_paused = true)]
async fn no_message_of_a_client_reaches_a_process_on_more_than_one_line() {
    const BREAKS: &str = "{\"elicitation\":{},\r\n\"x\":\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}\r,\n\"a\u{2028}b\":\"\u{85}\u{2029}\"}";
    let mut world = World::new();
    let mut call = world.send(outgoing(
        Principal::ANONYMOUS,
        1,
        BREAKS,
        "{\n\"name\":\"t\",\n\"arguments\":{\"a\":\"\u{2028}\"\r}}",
    ));
    let mut process = world.next().await;
    let declared = &process.complete_handshake().await["params"]["capabilities"];
    assert_eq!(declared, &serde_json::from_str::<Value>(BREAKS).expect("JSON"));
    let sent = process.reads().await;
    assert_eq!(sent["params"]["arguments"]["a"], "\u{2028}");
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = call.next().await else { panic!("it is asked") };
    let response = "{\"action\":\"accept\",\n\"content\":\r{\"name\":\"\u{2029}\"}\n}";
    question.responder.respond(Ok(response.into()));
    let answer = process.reads().await;
    assert_eq!((&answer["id"], &answer["result"]["content"]["name"]), (&json!("q"), &json!("\u{2029}")));
    call.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
}

#[tokio::test(start_paused = true)]
async fn invalid_lines_are_skipped_and_a_too_large_response_fails_its_call_alone() {
    let mut world = World::with(|_, config| config.limits.result_bytes = 200);
    let mut calls = [world.call(1, MUTE), world.call(2, MUTE), world.call(3, MUTE)];
    let mut process = world.next_initialized().await;
    for _ in 0..3 {
        process.read_call().await;
    }
    process.write("Listening on nothing\n\n{\"a\": 1}\n[1, 2]\n").await;
    process.write(&too_large(2, 3000)).await;
    process.write(&format!("{}\n", "y".repeat(3000))).await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":3,"result":{}}]"#;
    process.write(&format!("{batch}\n")).await;
    let lost = calls[1].lost().await;
    assert!(matches!(lost, CallError::TooLarge { limit: 200 }), "{lost:?}");
    calls[0].is_answered().await;
    calls[2].is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_too_large_resource_update_is_not_delivered() {
    let mut world = World::new();
    let mut heard = world.server.watch(Principal::ANONYMOUS).subscribe();
    let _call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    let updated = |uri: &str, more: usize| {
        let params = json!({ "uri": uri, "more": "x".repeat(more) });
        json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }).to_string()
    };
    process.write(&format!("{}\n{}\n", updated("large", 64 << 10), updated("small", 1000))).await;
    match heard.recv().await.expect("a report") {
        Reported::ResourceUpdated { uri, .. } => assert_eq!(uri, "small"),
        other => panic!("a resource has changed, not {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_runs_keeps_to_a_limit_that_is_changed() {
    let mut world = World::new();
    let (mut small, mut large) = (world.call(1, MUTE), world.call(2, MUTE));
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.read_call().await;
    let otherwise = |result_bytes| {
        let limits = UpstreamLimits { result_bytes, ..UpstreamLimits::default() };
        world.server.prepare_reload(&Config { limits, ..Config::default() }).expect("it can be changed")();
    };
    otherwise(200);
    process.write(&too_large(1, 300)).await;
    let lost = small.lost().await;
    assert!(matches!(lost, CallError::TooLarge { limit: 200 }), "{lost:?}");
    otherwise(400);
    process
        .write(&format!("{{\"jsonrpc\":\"2.0\",\"result\":{{\"a\":\"{}\"}},\"id\":2}}\n", "x".repeat(300)))
        .await;
    large.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_is_too_large_is_over_and_leaves_nothing_behind() {
    let mut world = World::with(|_, config| config.limits.result_bytes = 200);
    let mut large = world.call(1, ASKABLE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.write(&too_large(1, 300)).await;
    let lost = large.lost().await;
    assert!(matches!(lost, CallError::TooLarge { limit: 200 }), "{lost:?}");
    let mut next = world.call(2, ASKABLE);
    assert_eq!(process.read_call().await, 2, "what has been answered is not cancelled");
    // Both can belong to the only call.
    process.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n").await;
    assert!(matches!(next.next().await, UpstreamEvent::Notification(_)));
    process.send_request("q").await;
    assert!(matches!(next.next().await, UpstreamEvent::ServerRequest(_)));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_response_fails_its_call_and_other_output_with_an_id_does_not() {
    let mut world = World::new();
    let broken: [&[u8]; 3] = [
        br#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}"#,
        br#"{"jsonrpc":"2.0","id":1,"error":null}"#,
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"name\":\"\xe9\"}}",
    ];
    let mut other = world.call(0, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    for line in [
        &br#"{"id":0,"level":"info"}"#[..],
        br#"{"jsonrpc":"2.0","id":0,"method":5,"result":{}}"#,
        br#"[{"jsonrpc":"2.0","id":0,"error":null}]"#,
        br#"{"id":0,"error":null}"#,
        br#"{"id":0,"result":{},"error":"both"}"#,
    ] {
        process.stdout.write_all(&[line, b"\n"].concat()).await.expect("it is read");
    }
    for (id, line) in (1..).zip(broken) {
        let mut call = world.call(id, MUTE);
        assert_eq!(process.read_call().await, id);
        let at = line.windows(6).position(|part| part == br#""id":1"#).expect("an id");
        let line = [&line[..at], format!("\"id\":{id}").as_bytes(), &line[at + 6..], b"\n"].concat();
        process.stdout.write_all(&line).await.expect("it is read");
        let lost = call.lost().await;
        assert!(matches!(lost, CallError::Invalid(_)), "{lost:?}");
    }
    process.answers(0).await;
    other.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_with_much_output_does_not_block_other_tasks() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.write(&format!("[1{}]", ",1".repeat(50_000))).await;
    let turns = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&turns);
    let others = tokio::spawn(async move {
        loop {
            count.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    process.write("\n").await;
    process.answers(1).await;
    call.is_answered().await;
    others.abort();
    assert!(turns.load(Ordering::Relaxed) > 100, "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_for_a_process_that_does_not_read_are_bounded_in_number() {
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    let id = process.read_call().await;
    let mut calls: Vec<_> = (2..=crate::upstream::stdio::child::MAX_WAITING_MESSAGES as u64 + 200)
        .map(|id| world.call(id, MUTE))
        .collect();
    sleep(Duration::from_secs(1)).await;
    let mut refused = 0;
    for call in &mut calls {
        if let Ok(event) = call.heard.try_recv() {
            assert!(matches!(&event, UpstreamEvent::Lost(CallError::InputBacklogFull { .. })), "{event:?}");
            refused += 1;
        }
    }
    assert!((100..200).contains(&refused), "{refused}");
    // Other calls get their responses all the same.
    process.answers(id).await;
    first.is_answered().await;
}

/// All calls arrive before the process runs, which does not mean that it has stopped reading.
#[tokio::test(start_paused = true)]
async fn as_many_calls_as_are_admitted_may_arrive_at_once() {
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    let id = process.read_call().await;
    process.answers(id).await;
    first.is_answered().await;
    // The default of `limits.calls`.
    let mut calls: Vec<_> = (0..10_000).map(|id| world.call(id, MUTE)).collect();
    for _ in &calls {
        let id = process.read_call().await;
        process.answers(id).await;
    }
    for call in &mut calls {
        call.is_answered().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_for_a_process_that_does_not_read_are_bounded_in_bytes() {
    let large = 1 << 20;
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    let id = process.read_call().await;
    let mut calls: Vec<_> = (2..30).map(|id| world.call_with(id, MUTE, &"x".repeat(large))).collect();
    sleep(Duration::from_secs(1)).await;
    let lost = |call: &mut Call| {
        matches!(call.heard.try_recv(), Ok(UpstreamEvent::Lost(CallError::InputBacklogFull { .. })))
    };
    let refused = calls.iter_mut().filter_map(|call| lost(call).then_some(())).count();
    let room = MAX_WAITING_BYTES / large;
    assert!((28 - room..=28 - room + 2).contains(&refused), "{refused}");
    process.answers(id).await;
    first.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn descendants_of_a_process_are_killed_after_a_moment() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    let began = world.clock.now();
    let report = SupervisorReport::Ended { status: "exit status: 0".to_owned() }.to_line();
    process.control.write_all(report.as_bytes()).await.expect("it is heard");
    assert!(matches!(call.lost().await, CallError::Exited(_)));
    let _next = world.call(2, MUTE);
    // The proxy closes the socket, and the supervisor never reports that nothing is left.
    assert!(process.control.read_u8().await.is_err());
    assert_eq!((world.clock.now() - began).as_secs(), 1);
    world.next_initialized().await;
    assert_eq!((world.clock.now() - began).as_secs(), 6, "the place of what cannot be killed is given back");
}

#[tokio::test(start_paused = true)]
async fn stderr_takes_bounded_memory_and_never_blocks_the_process() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    let flood = [b'x'; PIPE];
    for _ in 0..(50 << 20) / PIPE {
        process.stderr.write_all(&flood).await.expect("it is read");
    }
    process.answers(1).await;
    call.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_writes_to_stderr_without_end_does_not_block_its_input_or_other_tasks() {
    let (mut world, taken) = World::with_endless_stderr();
    let calls = [1, 2, 3].map(|id| world.call(id, MUTE));
    let mut process = soon(world.next_initialized()).await;
    let mut ids = Vec::new();
    for _ in &calls {
        ids.push(soon(process.read_call()).await);
    }
    for (id, mut call) in ids.into_iter().zip(calls) {
        soon(process.answers(id)).await;
        soon(call.is_answered()).await;
    }
    let before = taken.load(Ordering::Relaxed);
    yield_now().await;
    let meanwhile = taken.load(Ordering::Relaxed) - before;
    assert!((1..=4 * STDERR_READ_BYTES).contains(&meanwhile), "{meanwhile} bytes in one turn");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_ends_its_processes_in_order_and_waits_for_them() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    let server = world.server.clone();
    let closing = tokio::spawn(async move { server.close().await });
    assert!(matches!(call.lost().await, CallError::Closing));
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    process.has_no_more_to_read().await;
    assert!(!closing.is_finished());
    process.ends("exit status: 0").await;
    closing.await.expect("it ends");
    assert!(matches!(world.call(2, MUTE).lost().await, CallError::Closing));
}
