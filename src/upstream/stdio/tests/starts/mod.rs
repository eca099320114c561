//! Starts of processes: when, for which callers, and how many.

mod instances;

use super::{ASKABLE, MUTE, Process, World};
use crate::{
    runtime::{Clock, Mutex},
    telemetry::{LineFormat, LogLayer},
    upstream::{
        CallError, UpstreamEvent,
        stdio::{ProcessSharing, supervisor::SupervisorReport},
    },
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{advance, sleep, timeout},
};
use tracing_subscriber::layer::SubscriberExt;

#[tokio::test(start_paused = true)]
async fn a_start_that_many_wait_for_happens_once_and_all_callers_share_the_process() {
    let mut world = World::new();
    let mut calls: Vec<_> = (1..=20).map(|id| world.call(id, ASKABLE)).collect();
    let mut process = world.next_initialized().await;
    for _ in 0..20 {
        let id = process.read_call().await;
        process.answers(id).await;
    }
    for call in &mut calls {
        call.is_answered().await;
    }
    assert!(world.has_no_start());
}

#[tokio::test(start_paused = true)]
async fn a_server_of_2026_07_28_alone_is_recognised_and_not_started_again_for_a_while() {
    let unsupported =
        json!({ "code": -32022, "message": "no", "data": { "supported": ["2026-07-28"], "requested": "x" } });
    let unknown = json!({ "code": -32601, "message": "what?" });
    let discovered = json!({ "result": { "resultType": "complete", "supportedVersions": ["2026-07-28"] } });
    for (refusal, probed) in [
        (&unsupported, None),
        (&unknown, Some(discovered)),
        (&unknown, Some(json!({ "error": unsupported.clone() }))),
    ] {
        let mut world = World::new();
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        process.refuses(refusal).await;
        if let Some(mut answer) = probed {
            let probe = process.reads().await;
            assert_eq!(probe["method"], "server/discover");
            assert_eq!(probe["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = probe["id"].clone();
            process.write(&format!("{answer}\n")).await;
        }
        let lost = call.lost().await;
        assert!(matches!(&lost, CallError::ModernOnly(versions) if versions == "2026-07-28"), "{lost:?}");
        process.has_no_more_to_read().await;
        let again = world.call(2, MUTE).lost().await;
        assert!(matches!(again, CallError::ModernOnly(_)) && world.has_no_start(), "{again:?}");
        advance(Duration::from_secs(301)).await;
        let mut call = world.call(3, MUTE);
        let mut process = world.next_initialized().await;
        let id = process.read_call().await;
        process.answers(id).await;
        call.is_answered().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_of_initialize_without_revisions_keeps_its_text() {
    let refusal = json!({ "code": -32000, "message": "not today" });
    // The probe is answered with an error, with the result of an older server, or not at all.
    for answer in [Some(json!({ "error": refusal.clone() })), Some(json!({ "result": {} })), None] {
        let mut world = World::new();
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        process.refuses(&refusal).await;
        let probe = process.reads().await;
        if let Some(mut answer) = answer {
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = probe["id"].clone();
            process.write(&format!("{answer}\n")).await;
        }
        let lost = call.lost().await.to_string();
        assert!(lost.contains("initialize was refused: not today (-32000)"), "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_refuses_the_revision_is_offered_another() {
    let refusal = json!({ "code": -32602, "message": "Unsupported protocol version", "data": { "supported": ["2024-11-05"] } });
    // The process continues after its rejection, or exits and is started again.
    for goes_on in [true, false] {
        let mut world = World::new();
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        process.refuses(&refusal).await;
        if !goes_on {
            drop(process);
            call.lost().await;
            call = world.call(2, MUTE);
            process = world.next().await;
        }
        let hello = process.reads().await;
        assert_eq!(hello["params"]["protocolVersion"], "2024-11-05");
        process.accept_initialize(&hello).await;
        let id = process.read_call().await;
        process.answers(id).await;
        call.is_answered().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_hangs_at_its_start_is_ended_and_killed() {
    let mut world = World::with(|command, _| command.start_timeout = Duration::from_secs(7));
    let began = world.clock.now();
    let mut call = world.call(1, MUTE);
    let mut process = world.next().await;
    assert_eq!(process.reads().await["method"], "initialize");
    let lost = call.lost().await.to_string();
    assert!(lost.contains("`initialize` within 7s (upstream.start_timeout)"), "{lost}");
    assert_eq!((world.clock.now() - began).as_secs(), 7);
    // Its input ends, then its group gets SIGTERM, then everything is killed.
    process.has_no_more_to_read().await;
    assert_eq!(process.control.read_u8().await.expect("an order"), b't');
    assert_eq!((world.clock.now() - began).as_secs(), 9);
    assert!(process.control.read_u8().await.is_err(), "the end");
    assert_eq!((world.clock.now() - began).as_secs(), 11);
}

#[tokio::test(start_paused = true)]
async fn pauses_between_starts_grow_and_a_long_wait_is_an_error() {
    let mut world = World::new();
    let began = world.clock.now();
    for seconds in [0, 1, 3, 7] {
        let mut call = world.call(1, MUTE);
        world.next().await.ends("exit status: 1").await;
        let lost = call.lost().await.to_string();
        assert!(lost.contains("ended before it answered `initialize`: exit status: 1"), "{lost}");
        assert_eq!((world.clock.now() - began).as_secs(), seconds);
    }
    let lost = world.call(1, MUTE).lost().await.to_string();
    assert!(lost.contains("is not started for 8 s") || lost.contains("is not started for 9 s"), "{lost}");
    assert!(world.has_no_start());
    advance(Duration::from_secs(4)).await;
    let mut call = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    let id = process.read_call().await;
    process.answers(id).await;
    call.is_answered().await;
}

/// Processes started for bursts of tasks and ended by the proxy do not count as failures.
#[tokio::test(start_paused = true)]
async fn unused_processes_that_were_ended_do_not_count_as_failures() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let began = world.clock.now();
    let mut ended: Option<Process> = None;
    for id in 0..70 {
        let mut call = world.call(id, ASKABLE);
        // A call of another client ends the process that a cancelled one was made in.
        if let Some(mut process) = ended.take() {
            while process.stdin.next_line().await.expect("it can be read").is_some() {}
            process.ends("exit status: 0").await;
        }
        let up = timeout(Duration::from_secs(5), world.next_initialized()).await;
        let mut process = up.unwrap_or_else(|_| panic!("process {id} is not started"));
        assert_eq!(process.read_call().await, id);
        process.send_request("q").await;
        assert!(matches!(call.next().await, UpstreamEvent::ServerRequest(_)));
        call.work.abort();
        ended = Some(process);
    }
    assert!((world.clock.now() - began).as_secs() < 60, "a minute has gone by");
}

/// A process that was started for a call and has answered it.
pub(super) async fn idle_process(world: &mut World, id: u64, capabilities: &'static str) -> Process {
    let mut call = world.call(id, capabilities);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, id);
    process.answers(id).await;
    call.is_answered().await;
    process
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_when_its_process_has_ended_is_made_in_another() {
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.answers(1).await;
    first.is_answered().await;
    // Its end is known before its output has ended.
    let report = SupervisorReport::Ended { status: "exit status: 1".to_owned() }.to_line();
    process.control.write_all(report.as_bytes()).await.expect("it is heard");
    sleep(Duration::from_millis(50)).await;
    let mut second = world.call(2, MUTE);
    let mut other = world.next_initialized().await;
    assert_eq!(other.read_call().await, 2);
    other.answers(2).await;
    second.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_names_the_limit_of_starts_in_a_minute() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::PerCaller);
    let mut kept = Vec::new();
    for id in 0..60 {
        let call = world.call(id, MUTE);
        let mut process = world.next_initialized().await;
        process.read_call().await;
        kept.push((call, process));
    }
    let lost = world.call(60, MUTE).lost().await.to_string();
    assert!(lost.contains("60 of its processes were started within a minute"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn callers_on_this_machine_get_the_last_line_of_a_server_that_does_not_start() {
    for (tells_remarks, ends) in [(true, true), (true, false), (false, true)] {
        let mut world = World::with(|command, _| {
            command.reveals_stderr = tells_remarks;
            command.start_timeout = Duration::from_secs(7);
        });
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        process.stderr.write_all(b"Traceback:\n  line 1\nKeyError: 'API_KEY'\n").await.expect("it is read");
        let process = match ends {
            true => {
                process.ends("exit status: 1").await;
                None
            }
            false => Some(process),
        };
        let lost = call.lost().await.to_string();
        let has_last_line = lost.contains("; its last line on standard error: KeyError: 'API_KEY'");
        assert_eq!(has_last_line, tells_remarks, "{lost}");
        assert!(!lost.contains("line 1"), "{lost}");
        assert_eq!(lost.contains("exit status: 1"), ends, "{lost}");
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_when_and_why_a_server_runs_as_one_more_process() {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::clone(&lines);
    let take = move |_: &tracing::Level, line: &str| kept.lock().push(line.to_owned());
    let layer = LogLayer::new(LineFormat::Text, || std::time::SystemTime::UNIX_EPOCH, take);
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let added = || {
        let lines = lines.lock();
        lines.iter().filter(|line| line.contains("event=process_added")).cloned().collect::<Vec<_>>()
    };
    let mut world = World::new();
    let _first = idle_process(&mut world, 1, MUTE).await;
    assert_eq!(added(), [""; 0], "one is what anybody expects");
    let _second = idle_process(&mut world, 2, ASKABLE).await;
    let said = added();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("route=/mcp processes=2 why=\"its callers declare other capabilities"),
        "{said:?}"
    );
    assert!(said[0].contains("upstream.instances (--instances)"), "{said:?}");
    let mut own = World::with(|command, _| command.instances = ProcessSharing::PerCaller);
    let _first = idle_process(&mut own, 1, MUTE).await;
    let _second = idle_process(&mut own, 2, MUTE).await;
    assert!(
        added().last().is_some_and(|line| line.contains("why=\"each caller has its own\"")),
        "{:?}",
        added()
    );
}

#[tokio::test(start_paused = true)]
async fn a_process_without_calls_is_kept_for_the_configured_time() {
    let minute = Duration::from_secs(60);
    for (idle, kept, ended) in [
        (Some(2 * minute), Some(minute), Some(4 * minute)),
        (Some(minute / 60), None, Some(3 * minute)),
        (None, Some(1440 * minute), None),
    ] {
        let mut world = World::with(|command, _| command.idle = idle);
        let mut process = idle_process(&mut world, 1, MUTE).await;
        let began = world.clock.now();
        let mut line = std::pin::pin!(process.stdin.next_line());
        if let Some(kept) = kept {
            timeout(kept, &mut line).await.expect_err("it is kept");
        }
        if let Some(ended) = ended {
            let left = ended.saturating_sub(world.clock.now() - began);
            let end = timeout(left, &mut line).await.expect("it is ended").expect("it can be read");
            assert_eq!(end, None);
        }
    }
}
