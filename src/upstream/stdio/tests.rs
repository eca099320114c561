//! Processes as the rest meets them, on paused time: the test is the process, and its supervisor.

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, duplex},
    sync::mpsc,
    task::JoinHandle,
    time::{advance, sleep, timeout},
};

use super::{Command, Ends, Instances, Stdio, supervisor::Report};
use crate::{
    dialect::{Credentials, Principal, modern},
    protocol::{Capabilities, Method},
    runtime::{Clock, Net, SystemClock},
    upstream::{CallError, Config, Deferral, Event, Identity, Limits, Outgoing, Replies, Upstream},
};

/// A server, and its processes as they are started.
struct World {
    server: Stdio,
    started: mpsc::UnboundedReceiver<Process>,
    clock: SystemClock,
}

/// The other side of everything.
struct Process {
    stdin: Lines<BufReader<DuplexStream>>,
    stdout: DuplexStream,
    stderr: DuplexStream,
    control: DuplexStream,
}

const MUTE: &str = "{}";
const ASKABLE: &str = r#"{"elicitation":{}}"#;
const MORE: &str = r#"{"elicitation":{},"roots":{},"sampling":{}}"#;
/// What fits into each pipe.
const PIPE: usize = 1 << 12;

impl World {
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut Command, &mut Config)) -> Self {
        let (sender, started) = mpsc::unbounded_channel();
        let spawn = move |_: &Command| {
            let [input, output, remarks, control] = [(); 4].map(|()| duplex(PIPE));
            let stdin = BufReader::new(input.1).lines();
            let process = Process { stdin, stdout: output.1, stderr: remarks.1, control: control.1 };
            let _ = sender.send(process);
            Ok(Ends {
                stdin: Box::new(input.0),
                stdout: Box::new(output.0),
                stderr: Box::new(remarks.0),
                control: Box::new(control.0),
                reaped: std::future::ready(()).boxed(),
            })
        };
        let (mut command, mut config) = (Command::new(vec!["server".to_owned()]), Config::default());
        change(&mut command, &mut config);
        let server = Stdio::spawned_by(Box::new(spawn), "/mcp", command, config, &Net::System);
        Self { server: server.expect("a runtime is entered"), started, clock: SystemClock::new() }
    }

    async fn next(&mut self) -> Process {
        self.started.recv().await.expect("a process")
    }

    /// A process that has come up.
    async fn up(&mut self) -> Process {
        let mut process = self.next().await;
        process.comes_up().await;
        process
    }

    /// A call of a caller that makes no other.
    fn call(&self, id: u64, capabilities: &'static str) -> Call {
        self.call_with(id, capabilities, "")
    }

    fn call_with(&self, id: u64, capabilities: &'static str, argument: &str) -> Call {
        self.made(Principal::of(&[&id.to_be_bytes()]), id, capabilities, argument)
    }

    fn call_of(&self, principal: Principal, id: u64, capabilities: &'static str) -> Call {
        self.made(principal, id, capabilities, "")
    }

    /// A call, polled to its end.
    fn made(&self, principal: Principal, id: u64, capabilities: &'static str, argument: &str) -> Call {
        let params = json!({ "name": "t", "arguments": { "a": argument } }).to_string();
        self.sent(outgoing(principal, id, capabilities, &params))
    }

    /// A call that may become a task.
    fn call_deferred(&self, id: u64, capabilities: &'static str, deferral: &Deferral) -> Call {
        let call = outgoing(Principal::of(&[&id.to_be_bytes()]), id, capabilities, r#"{"name":"t"}"#);
        self.sent(Outgoing { deferral: Some(deferral.clone()), ..call })
    }

    fn sent(&self, outgoing: Outgoing) -> Call {
        let mut replies: Replies = self.server.call(outgoing);
        let (said, heard) = mpsc::unbounded_channel();
        let work = tokio::spawn(async move {
            while let Some(event) = replies.next().await {
                let _ = said.send(event);
            }
        });
        Call { heard, work }
    }

    /// How many processes have been started that nobody has looked at.
    fn is_quiet(&mut self) -> bool {
        self.started.try_recv().is_err()
    }
}

fn outgoing(principal: Principal, id: u64, capabilities: &'static str, params: &str) -> Outgoing {
    let capabilities = Capabilities::read(Bytes::from_static(capabilities.as_bytes())).expect("an object");
    let caller =
        Identity { principal, credentials: Credentials::default(), capabilities: Arc::new(capabilities) };
    let call = Arc::new(modern::request(&Method::ToolsCall, params));
    Outgoing { id, call, caller, deferral: None }
}

struct Call {
    heard: mpsc::UnboundedReceiver<Event>,
    work: JoinHandle<()>,
}

impl Call {
    async fn next(&mut self) -> Event {
        self.heard.recv().await.expect("it goes on")
    }

    async fn lost(&mut self) -> CallError {
        match self.next().await {
            Event::Lost(lost) => lost,
            other => panic!("it is lost, not {other:?}"),
        }
    }

    async fn is_answered(&mut self) {
        let event = self.next().await;
        assert!(matches!(event, Event::Final(_)), "{event:?}");
    }
}

impl Process {
    async fn reads(&mut self) -> Value {
        let line = self.stdin.next_line().await.expect("it can be read").expect("it is open");
        serde_json::from_str(&line).expect("JSON")
    }

    async fn has_no_more_to_read(&mut self) {
        assert_eq!(self.stdin.next_line().await.expect("it can be read"), None);
    }

    async fn says(&mut self, text: &str) {
        self.stdout.write_all(text.as_bytes()).await.expect("it is read");
    }

    async fn answers(&mut self, id: u64) {
        self.says(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[]}}}}\n")).await;
    }

    async fn asks(&mut self, id: &str) {
        let question = json!({
            "jsonrpc": "2.0", "id": id, "method": "elicitation/create",
            "params": { "message": "?", "requestedSchema": { "type": "object" } },
        });
        self.says(&format!("{question}\n")).await;
    }

    async fn comes_up(&mut self) {
        let hello = self.reads().await;
        assert_eq!(hello["method"], "initialize");
        let result = json!({
            "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "process", "version": "1" },
        });
        self.says(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": hello["id"], "result": result }))).await;
        assert_eq!(self.reads().await["method"], "notifications/initialized");
    }

    async fn refuses(&mut self, error: &Value) {
        let hello = self.reads().await;
        assert_eq!(hello["method"], "initialize");
        self.says(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": hello["id"], "error": error }))).await;
    }

    /// The call that it is sent next.
    async fn called(&mut self) -> u64 {
        let call = self.reads().await;
        assert_eq!(call["method"], "tools/call", "{call}");
        call["id"].as_u64().expect("a number")
    }

    async fn ends(mut self, how: &str) {
        let report = Report::Ended { how: how.to_owned() }.to_line();
        self.control.write_all(report.as_bytes()).await.expect("it is heard");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_many_wait_for_happens_once_and_all_callers_share_the_process() {
    let mut world = World::new();
    let mut calls: Vec<_> = (1..=20).map(|id| world.call(id, ASKABLE)).collect();
    let mut process = world.up().await;
    for _ in 0..20 {
        let id = process.called().await;
        process.answers(id).await;
    }
    for call in &mut calls {
        call.is_answered().await;
    }
    assert!(world.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_server_of_2026_07_28_alone_is_told_apart_and_not_started_again_for_a_while() {
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
            process.says(&format!("{answer}\n")).await;
        }
        let lost = call.lost().await;
        assert!(matches!(&lost, CallError::ModernOnly(versions) if versions == "2026-07-28"), "{lost:?}");
        process.has_no_more_to_read().await;
        let again = world.call(2, MUTE).lost().await;
        assert!(matches!(again, CallError::ModernOnly(_)) && world.is_quiet(), "{again:?}");
        advance(Duration::from_secs(301)).await;
        let mut call = world.call(3, MUTE);
        let mut process = world.up().await;
        let id = process.called().await;
        process.answers(id).await;
        call.is_answered().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_initialize_that_says_nothing_of_revisions_keeps_its_words() {
    let refusal = json!({ "code": -32000, "message": "not today" });
    // The probe is answered with an error, or with a result of an older server's, or not at all.
    for answer in [Some(json!({ "error": refusal.clone() })), Some(json!({ "result": {} })), None] {
        let mut world = World::new();
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        process.refuses(&refusal).await;
        let probe = process.reads().await;
        if let Some(mut answer) = answer {
            answer["id"] = probe["id"].clone();
            process.says(&format!("{answer}\n")).await;
        }
        let lost = call.lost().await.to_string();
        assert!(lost.contains("initialize was refused: not today (-32000)"), "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_hangs_at_its_start_is_given_up_told_and_killed() {
    let mut world = World::with(|command, _| command.start_timeout = Duration::from_secs(7));
    let began = world.clock.now();
    let mut call = world.call(1, MUTE);
    let mut process = world.next().await;
    assert_eq!(process.reads().await["method"], "initialize");
    let lost = call.lost().await.to_string();
    assert!(lost.contains("`initialize` within 7s (upstream.start_timeout)"), "{lost}");
    assert_eq!((world.clock.now() - began).as_secs(), 7);
    // Its input ends, then its group is sent SIGTERM, then everything is killed.
    process.has_no_more_to_read().await;
    assert_eq!(process.control.read_u8().await.expect("an order"), b't');
    assert_eq!((world.clock.now() - began).as_secs(), 9);
    assert!(process.control.read_u8().await.is_err(), "the end");
    assert_eq!((world.clock.now() - began).as_secs(), 11);
}

#[tokio::test(start_paused = true)]
async fn what_ends_again_and_again_is_started_ever_later_and_whoever_would_wait_long_is_told() {
    let mut world = World::new();
    let began = world.clock.now();
    for seconds in [0, 1, 3, 7] {
        let mut call = world.call(1, MUTE);
        world.next().await.ends("exit status: 1").await;
        let lost = call.lost().await.to_string();
        assert!(lost.contains("is not there any more: exit status: 1"), "{lost}");
        assert_eq!((world.clock.now() - began).as_secs(), seconds);
    }
    let lost = world.call(1, MUTE).lost().await.to_string();
    assert!(lost.contains("is not started for 8 s") || lost.contains("is not started for 9 s"), "{lost}");
    assert!(world.is_quiet());
    advance(Duration::from_secs(4)).await;
    let mut call = world.call(1, MUTE);
    let mut process = world.up().await;
    let id = process.called().await;
    process.answers(id).await;
    call.is_answered().await;
}

/// Tasks that come and go in bursts have processes that come and go: that is no server that ends again and again.
#[tokio::test(start_paused = true)]
async fn processes_that_are_ended_because_nobody_needs_them_are_no_reason_to_start_no_more() {
    let mut world = World::new();
    let began = world.clock.now();
    for id in 0..70 {
        let mut call = world.call(id, ASKABLE);
        let up = timeout(Duration::from_secs(5), world.up()).await;
        let mut process = up.unwrap_or_else(|_| panic!("process {id} is not started"));
        assert_eq!(process.called().await, id);
        process.asks("q").await;
        assert!(matches!(call.next().await, Event::Asked(_)));
        // It has been seen to ask, so that a cancelled call costs it.
        call.work.abort();
        while process.stdin.next_line().await.expect("it can be read").is_some() {}
        process.ends("exit status: 0").await;
    }
    assert!((world.clock.now() - began).as_secs() < 60, "a minute has gone by");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_fails_its_calls_with_how_it_ended_and_not_with_what_it_said() {
    let mut world = World::new();
    let mut calls = [world.call(1, MUTE), world.call(2, MUTE)];
    let mut process = world.up().await;
    process.called().await;
    process.called().await;
    process.stderr.write_all(b"the password is secret\n").await.expect("it is read");
    process.says(r#"{"jsonrpc":"2.0","id":1,"#).await;
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
async fn a_process_that_says_nothing_more_and_lives_is_ended() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.up().await;
    process.called().await;
    process.stdout.shutdown().await.expect("it is open");
    let lost = call.lost().await.to_string();
    assert!(lost.contains("it says nothing any more"), "{lost}");
    process.has_no_more_to_read().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_ended_while_it_writes_is_read_on_until_it_has_ended() {
    for fails_at_its_start in [false, true] {
        let mut world = World::with(|command, _| command.start_timeout = Duration::from_secs(7));
        let mut call = world.call(1, MUTE);
        let mut process = world.next().await;
        let server = world.server.clone();
        if fails_at_its_start {
            process.reads().await;
            call.lost().await;
        } else {
            process.comes_up().await;
            let id = process.called().await;
            process.answers(id).await;
            call.is_answered().await;
            tokio::spawn(async move { server.close().await });
        }
        process.has_no_more_to_read().await;
        // It meets no closed pipe, however much it has still to say.
        process.says(&"x".repeat(3 * PIPE)).await;
        sleep(Duration::from_secs(1)).await;
        process.says(&"y".repeat(3 * PIPE)).await;
        // What it has left behind has nothing to say, and is not read for ever.
        let report = Report::Ended { how: "exit status: 0".to_owned() }.to_line();
        process.control.write_all(report.as_bytes()).await.expect("it is heard");
        sleep(Duration::from_secs(10)).await;
        process.stdout.write_all(b"z").await.expect_err("nobody reads it any more");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_skipped_and_one_that_is_too_large_fails_its_call_alone() {
    let mut world = World::with(|_, config| config.limits.result_bytes = 200);
    let mut calls = [world.call(1, MUTE), world.call(2, MUTE), world.call(3, MUTE)];
    let mut process = world.up().await;
    for _ in 0..3 {
        process.called().await;
    }
    process.says("Listening on nothing\n\n{\"a\": 1}\n[1, 2]\n").await;
    process.says(&format!("{{\"result\":\"{}\",\"id\":2}}\n", "x".repeat(3000))).await;
    process.says(&format!("{}\n", "y".repeat(3000))).await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":3,"result":{}}]"#;
    process.says(&format!("{batch}\n")).await;
    let lost = calls[1].lost().await;
    assert!(matches!(lost, CallError::TooLarge { limit: 200 }), "{lost:?}");
    calls[0].is_answered().await;
    calls[2].is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_read_is_waited_for_by_so_many_and_the_next_is_told() {
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.up().await;
    let id = process.called().await;
    let mut calls: Vec<_> = (2..=super::child::WAITING as u64 + 200).map(|id| world.call(id, MUTE)).collect();
    sleep(Duration::from_secs(1)).await;
    let mut told = 0;
    for call in &mut calls {
        if let Ok(event) = call.heard.try_recv() {
            assert!(matches!(&event, Event::Lost(CallError::Unread { .. })), "{event:?}");
            told += 1;
        }
    }
    assert!((100..200).contains(&told), "{told}");
    // Nobody is kept from an answer by that.
    process.answers(id).await;
    first.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_is_shared_until_it_asks_and_those_who_can_be_asked_take_turns_then() {
    let mut world = World::new();
    let mut calls = [world.call(1, ASKABLE), world.call(2, ASKABLE)];
    let mut process = world.up().await;
    process.called().await;
    process.called().await;
    // It cannot be told whom this is for.
    process.asks("q1").await;
    let answer = process.reads().await;
    assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&json!("q1"), Some(-32603)));
    process.answers(1).await;
    process.answers(2).await;
    for call in &mut calls {
        call.is_answered().await;
    }
    let mut first = world.call(3, ASKABLE);
    assert_eq!(process.called().await, 3);
    let mut second = world.call(4, ASKABLE);
    process.asks("q2").await;
    let Event::Asked(question) = first.next().await else { panic!("it is asked") };
    question.answer.send(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    // The second is sent once the first is over.
    assert_eq!(process.reads().await["id"], "q2");
    process.answers(3).await;
    first.is_answered().await;
    assert_eq!(process.called().await, 4);
    process.answers(4).await;
    second.is_answered().await;
    assert!(world.is_quiet(), "there is one process for all of them");
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_for_a_turn_is_told_what_it_waited_for() {
    let mut world = World::new();
    let _first = world.call(1, ASKABLE);
    let mut process = world.up().await;
    process.called().await;
    process.asks("q").await;
    // One that cannot be asked waits for nobody.
    let lost = world.call(2, ASKABLE).lost().await;
    assert!(matches!(lost, CallError::Waited { .. }), "{lost:?}");
    assert!(lost.to_string().contains("(callers that can be asked take turns in a process)"), "{lost}");
    let mut mute = world.call(3, MUTE);
    let mut other = world.up().await;
    other.called().await;
    other.answers(3).await;
    mute.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_declare_otherwise_have_a_process_of_their_own_until_there_are_enough() {
    let mut world = World::with(|command, _| command.instances = Instances::Shared(2));
    let mut mute = world.call(1, MUTE);
    let mut for_mute = world.up().await;
    assert_eq!(for_mute.called().await, 1);
    let mut more = world.call(2, MORE);
    let mut for_more = world.up().await;
    assert_eq!(for_more.called().await, 2);
    // A third is with those who declare most, as long as both are in use.
    let mut third = world.call(3, ASKABLE);
    assert_eq!(for_more.called().await, 3);
    for (process, call, id) in [(&mut for_mute, &mut mute, 1), (&mut for_more, &mut more, 2)] {
        process.answers(id).await;
        call.is_answered().await;
    }
    for_more.answers(3).await;
    third.is_answered().await;
    // Once there is one that nobody uses, it gives way.
    drop((mute, more, third));
    let mut again = world.call(4, ASKABLE);
    for_mute.has_no_more_to_read().await;
    for_mute.ends("exit status: 0").await;
    let mut process = world.up().await;
    assert_eq!(process.called().await, 4);
    process.answers(4).await;
    again.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_nobody_uses_gives_way_to_tasks_that_need_one() {
    let mut world = World::with(|command, _| command.instances = Instances::Shared(2));
    let mut mute = world.call(1, MUTE);
    let mut for_mute = world.up().await;
    assert_eq!(for_mute.called().await, 1);
    let [task, another] = [Deferral::default(), Deferral::default()];
    let first = world.call_deferred(2, ASKABLE, &task);
    let mut process = world.up().await;
    assert_eq!(process.called().await, 2);
    process.asks("q").await;
    task.comes();
    let mut second = world.call_deferred(3, ASKABLE, &another);
    another.comes();
    // The other process is in use.
    sleep(Duration::from_secs(1)).await;
    assert!(world.is_quiet());
    for_mute.answers(1).await;
    mute.is_answered().await;
    drop(mute);
    for_mute.has_no_more_to_read().await;
    for_mute.ends("exit status: 0").await;
    let mut process = world.up().await;
    assert_eq!(process.called().await, 3);
    process.answers(3).await;
    second.is_answered().await;
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn no_more_processes_are_started_than_there_may_be_and_who_waits_too_long_is_told() {
    let mut world = World::with(|command, config| {
        command.instances = Instances::Shared(1);
        config.limits = Limits { sessions: 99, ..Limits::default() };
    });
    let (mut first, second) = (world.call(1, ASKABLE), world.call(2, ASKABLE));
    let mut process = world.up().await;
    process.called().await;
    process.called().await;
    process.asks("q").await;
    assert_eq!(process.reads().await["id"], "q");
    // What has been given up may go on in it, so it takes no more calls; and it is there until the first has ended.
    second.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    let lost = world.call(3, ASKABLE).lost().await;
    assert!(matches!(lost, CallError::AllInUse { limit: 1, .. }), "{lost:?}");
    let mut fourth = world.call(4, ASKABLE);
    process.answers(1).await;
    first.is_answered().await;
    process.has_no_more_to_read().await;
    assert!(world.is_quiet());
    process.ends("exit status: 0").await;
    let mut process = world.up().await;
    process.called().await;
    process.answers(4).await;
    fourth.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_costs_a_process_only_where_what_it_asks_could_be_put_to_others() {
    for capabilities in [MUTE, ASKABLE] {
        let mut world = World::new();
        let call = world.call(1, capabilities);
        let mut process = world.up().await;
        process.called().await;
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
        let mut next = world.call(2, capabilities);
        assert_eq!(process.called().await, 2);
        if capabilities == ASKABLE {
            // It may be the cancelled call that asks. Nobody can be asked in this process any more.
            process.asks("q").await;
            assert_eq!(process.reads().await["error"]["code"], -32603);
        }
        process.answers(2).await;
        next.is_answered().await;
        let mut third = world.call(3, capabilities);
        if capabilities == ASKABLE {
            process.has_no_more_to_read().await;
            process = world.up().await;
        }
        assert_eq!(process.called().await, 3);
        // It has been seen to ask.
        third.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
        if capabilities == ASKABLE {
            process.has_no_more_to_read().await;
        }
        let _ = &mut third;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_that_is_answered_is_over_and_what_names_no_call_is_told_again() {
    let mut world = World::new();
    let call = world.call(1, MUTE);
    let mut process = world.up().await;
    process.called().await;
    call.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    let mut next = world.call(2, MUTE);
    assert_eq!(process.called().await, 2);
    let line = |text: &str| {
        let params = json!({ "level": "info", "data": text });
        format!("{}\n", json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }))
    };
    process.says(&line("of either")).await;
    process.answers(1).await;
    process.says(&line("of the second")).await;
    let Event::Notification(heard) = next.next().await else { panic!("a notification") };
    assert!(String::from_utf8_lossy(heard.as_bytes()).contains("of the second"), "{heard:?}");
    process.answers(2).await;
    next.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_answers_none_of_many_cancelled_calls_is_given_up() {
    let mut world = World::new();
    let keeper = world.call(0, MUTE);
    let mut process = world.up().await;
    process.called().await;
    for id in 1..=256 {
        let call = world.call(id, MUTE);
        assert_eq!(process.called().await, id);
        call.work.abort();
        assert_eq!(process.reads().await["method"], "notifications/cancelled");
    }
    let mut last = world.call(257, MUTE);
    let mut another = world.up().await;
    assert_eq!(another.called().await, 257);
    another.answers(257).await;
    last.is_answered().await;
    drop(keeper);
}

#[tokio::test(start_paused = true)]
async fn a_caller_can_have_a_process_of_its_own() {
    let mut world = World::with(|command, _| command.instances = Instances::PerCaller);
    let [a, b] = ["a", "b"].map(|name| Principal::of(&[name.as_bytes()]));
    let mut calls = [world.call_of(a, 1, MUTE), world.call_of(b, 2, MUTE)];
    let mut processes = [world.up().await, world.up().await];
    for process in &mut processes {
        let id = process.called().await;
        process.answers(id).await;
    }
    for call in &mut calls {
        call.is_answered().await;
    }
    let mut again = world.call_of(a, 3, MUTE);
    let [first, second] = &mut processes;
    let called = tokio::select! {
        called = first.called() => (called, first),
        called = second.called() => (called, second),
    };
    called.1.answers(3).await;
    again.is_answered().await;
    assert!(world.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_caller_more_than_may_have_a_process_is_told() {
    let most = super::command::PER_CALLER as u64;
    let mut world = World::with(|command, _| command.instances = Instances::PerCaller);
    let mut processes = Vec::new();
    let mut calls = Vec::new();
    for id in 1..=most {
        calls.push(world.call(id, MUTE));
        // A start for each: more of them in a minute would be too many.
        advance(Duration::from_secs(2)).await;
        let mut process = world.up().await;
        process.called().await;
        processes.push(process);
    }
    let lost = world.call(most + 1, MUTE).lost().await;
    assert!(matches!(lost, CallError::AllInUse { .. }), "{lost:?}");
    // Once one of them rests, it gives way.
    processes[0].answers(1).await;
    calls[0].is_answered().await;
    let mut next = world.call(most + 2, MUTE);
    let mut resting = processes.swap_remove(0);
    resting.has_no_more_to_read().await;
    resting.ends("exit status: 0").await;
    let mut process = world.up().await;
    let id = process.called().await;
    process.answers(id).await;
    next.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_process_that_does_not_read_is_bounded_in_bytes() {
    let large = 1 << 20;
    let mut world = World::new();
    let mut first = world.call(1, MUTE);
    let mut process = world.up().await;
    let id = process.called().await;
    let mut calls: Vec<_> = (2..30).map(|id| world.call_with(id, MUTE, &"x".repeat(large))).collect();
    sleep(Duration::from_secs(1)).await;
    let lost = |call: &mut Call| matches!(call.heard.try_recv(), Ok(Event::Lost(CallError::Unread { .. })));
    let told = calls.iter_mut().filter_map(|call| lost(call).then_some(())).count();
    let room = super::child::WAITING_BYTES / large;
    assert!((28 - room..=28 - room + 2).contains(&told), "{told}");
    process.answers(id).await;
    first.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_process_leaves_behind_is_killed_after_a_moment_and_not_waited_for_for_ever() {
    let mut world = World::with(|command, _| command.instances = Instances::Shared(1));
    let mut call = world.call(1, MUTE);
    let mut process = world.up().await;
    process.called().await;
    let began = world.clock.now();
    let report = Report::Ended { how: "exit status: 0".to_owned() }.to_line();
    process.control.write_all(report.as_bytes()).await.expect("it is heard");
    assert!(matches!(call.lost().await, CallError::Exited(_)));
    let _next = world.call(2, MUTE);
    // The supervisor is told by the end of what it hears, and never says that nothing is left.
    assert!(process.control.read_u8().await.is_err());
    assert_eq!((world.clock.now() - began).as_secs(), 1);
    world.up().await;
    assert_eq!((world.clock.now() - began).as_secs(), 6, "the place of what cannot be killed is given back");
}

#[tokio::test(start_paused = true)]
async fn what_a_process_remarks_takes_bounded_memory_and_holds_it_up_never() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.up().await;
    process.called().await;
    let flood = [b'x'; PIPE];
    for _ in 0..(50 << 20) / PIPE {
        process.stderr.write_all(&flood).await.expect("it is read");
    }
    process.answers(1).await;
    call.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_ends_its_processes_in_order_and_waits_for_them() {
    let mut world = World::new();
    let mut call = world.call(1, MUTE);
    let mut process = world.up().await;
    process.called().await;
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
