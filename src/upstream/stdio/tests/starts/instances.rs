//! Several processes of one server: which calls share one, and how many there may be.

use super::{
    super::{ASKABLE, Call, MORE, MUTE, Process, World, outgoing},
    idle_process,
};
use crate::{
    dialect::Principal,
    runtime::Clock,
    telemetry::Limit,
    upstream::{
        CallError, Deferral, OutgoingCall, Upstream, UpstreamEvent, UpstreamLimits,
        stdio::{ProcessSharing, command::MAX_PROCESSES_PER_CALLER},
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::time::Duration;
use tokio::time::{advance, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn other_capabilities_have_a_process_of_their_own_up_to_the_limit() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let mut mute = world.call(1, MUTE);
    let mut for_mute = world.next_initialized().await;
    assert_eq!(for_mute.read_call().await, 1);
    let mut more = world.call(2, MORE);
    let mut for_more = world.next_initialized().await;
    assert_eq!(for_more.read_call().await, 2);
    // A third set shares the process that declares most, while both are in use.
    let mut third = world.call(3, ASKABLE);
    assert_eq!(for_more.read_call().await, 3);
    for (process, call, id) in [(&mut for_mute, &mut mute, 1), (&mut for_more, &mut more, 2)] {
        process.answers(id).await;
        call.is_answered().await;
    }
    for_more.answers(3).await;
    third.is_answered().await;
    // An idle process is not ended for a caller that can share another.
    let mut fourth = world.call(4, ASKABLE);
    assert_eq!(for_more.read_call().await, 4);
    for_more.answers(4).await;
    fourth.is_answered().await;
    // A process unused for a while is evicted.
    for id in 5..9 {
        sleep(Duration::from_secs(30)).await;
        let mut more = world.call(id, MORE);
        assert_eq!(for_more.read_call().await, id);
        for_more.answers(id).await;
        more.is_answered().await;
    }
    let mut again = world.call(9, ASKABLE);
    for_mute.has_no_more_to_read().await;
    for_mute.ends("exit status: 0").await;
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 9);
    process.answers(9).await;
    again.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn the_description_of_a_shared_process_is_available_at_once_and_sharing_is_counted_once() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let _for_askable = idle_process(&mut world, 1, ASKABLE).await;
    let mut for_more = idle_process(&mut world, 2, MORE).await;
    let OutgoingCall { id, call, caller, .. } = outgoing(Principal::ANONYMOUS, 3, MUTE, "{}");
    let before = Limit::Instances.snapshot().hits;
    let known = world.server.ready_server(&caller).expect("what the others know");
    let mut replies = known.calls.call(id, &call, (caller.principal, &caller.credentials), None);
    let call = tokio::spawn(async move { replies.next().await });
    assert_eq!(for_more.read_call().await, 3);
    for_more.answers(3).await;
    assert!(matches!(call.await.expect("it is heard"), Some(UpstreamEvent::Final(_))));
    assert_eq!(Limit::Instances.snapshot().hits, before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_shared_process_is_the_one_that_accepts_most_requests() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let wordy = r#"{"experimental":{"a":{},"b":{},"c":{},"d":{},"e":{},"f":{},"g":{},"h":{},"i":{},"j":{}}}"#;
    let _wordy = world.call(1, wordy);
    let mut for_wordy = world.next_initialized().await;
    assert_eq!(for_wordy.read_call().await, 1);
    let _more = world.call(2, MORE);
    let mut for_more = world.next_initialized().await;
    assert_eq!(for_more.read_call().await, 2);
    let _third = world.call(3, ASKABLE);
    assert_eq!(for_more.read_call().await, 3);
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_is_evicted_for_a_caller_whose_requests_could_be_sent_nowhere() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let mut processes = Vec::new();
    for (id, capabilities) in [(1, MUTE), (2, ASKABLE)] {
        processes.push(idle_process(&mut world, id, capabilities).await);
    }
    let mut more = world.call(3, MORE);
    let mut for_mute = processes.swap_remove(0);
    for_mute.has_no_more_to_read().await;
    for_mute.ends("exit status: 0").await;
    let mut for_more = world.next_initialized().await;
    assert_eq!(for_more.read_call().await, 3);
    for_more.answers(3).await;
    more.is_answered().await;
    // The callers of the evicted process declare nothing beyond the others.
    let mut mute = world.call(4, MUTE);
    assert_eq!(for_more.read_call().await, 4);
    for_more.answers(4).await;
    mute.is_answered().await;
}

/// The usual steps of a call: look up the server's description, query the server, then call.
#[tokio::test(start_paused = true)]
async fn one_process_is_evicted_for_a_further_set() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(3));
    let mut processes = Vec::new();
    for (id, capabilities) in [(1, MUTE), (2, ASKABLE), (3, r#"{"roots":{}}"#)] {
        processes.push(idle_process(&mut world, id, capabilities).await);
    }
    let caller = outgoing(Principal::ANONYMOUS, 4, MORE, "{}").caller;
    assert!(world.server.ready_server(&caller).is_none());
    let server = world.server.clone();
    let described = tokio::spawn(async move { server.describe(&caller).await.is_ok() });
    let mut for_mute = processes.remove(0);
    for_mute.has_no_more_to_read().await;
    // Looked up while that process ends.
    let mut more = world.call(4, MORE);
    sleep(Duration::from_millis(500)).await;
    for_mute.ends("exit status: 0").await;
    let mut for_more = world.next_initialized().await;
    assert!(described.await.expect("a response"));
    assert_eq!(for_more.read_call().await, 4);
    for_more.answers(4).await;
    more.is_answered().await;
    for (id, capabilities) in [(5, ASKABLE), (6, r#"{"roots":{}}"#)] {
        let mut call = world.call(id, capabilities);
        let process = &mut processes[id as usize - 5];
        assert_eq!(process.read_call().await, id);
        process.answers(id).await;
        call.is_answered().await;
    }
    assert!(world.has_no_start());
}

/// A task whose process has sent one request and got the response.
async fn task_with_input_request(world: &mut World, id: u64) -> (Process, (Call, Deferral)) {
    let deferral = Deferral::default();
    let mut call = world.call_deferred(id, ASKABLE, &deferral);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, id);
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = call.next().await else { panic!("it is asked") };
    question.responder.respond(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    assert_eq!(process.reads().await["id"], "q");
    deferral.mark_deferred();
    (process, (call, deferral))
}

/// Two tasks hold two processes, which is the limit.
async fn processes_held_by_tasks(world: &mut World) -> ([Process; 2], [(Call, Deferral); 2]) {
    let (process, first) = task_with_input_request(world, 1).await;
    let second = Deferral::default();
    let other = world.call_deferred(2, ASKABLE, &second);
    let mut beside = world.next_initialized().await;
    assert_eq!(beside.read_call().await, 2);
    second.mark_deferred();
    ([process, beside], [first, (other, second)])
}

#[tokio::test(start_paused = true)]
async fn calls_share_the_processes_if_tasks_hold_all() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let ([mut first, mut second], mut tasks) = processes_held_by_tasks(&mut world).await;
    let began = world.clock.now();
    let mut call = world.call(3, ASKABLE);
    let (process, other) = tokio::select! {
        called = first.read_call() => { assert_eq!(called, 3); (&mut first, &mut second) }
        called = second.read_call() => { assert_eq!(called, 3); (&mut second, &mut first) }
    };
    // The request cannot be attributed to a call, and is rejected.
    process.send_request("whose").await;
    let refused = process.reads().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("whose"), &json!(-32603)));
    // Nor can this notification.
    process.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n").await;
    // The next call uses the other process, which has fewer.
    let mut next = world.call(4, ASKABLE);
    assert_eq!(other.read_call().await, 4);
    process.answers(3).await;
    call.is_answered().await;
    other.answers(4).await;
    next.is_answered().await;
    assert!(world.clock.now() - began < Duration::from_secs(1), "no call waited");
    // A task without other calls receives requests again.
    process.send_request("its own").await;
    let (one, other) = tasks.split_at_mut(1);
    let question = tokio::select! {
        question = one[0].0.heard.recv() => question,
        question = other[0].0.heard.recv() => question,
    };
    assert!(matches!(question, Some(UpstreamEvent::ServerRequest(_))), "{question:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_with_other_capabilities_share_the_processes_of_tasks() {
    for capabilities in [MUTE, MORE] {
        let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
        let ([mut first, mut second], _tasks) = processes_held_by_tasks(&mut world).await;
        let mut call = world.call(3, capabilities);
        let process = tokio::select! {
            called = first.read_call() => { assert_eq!(called, 3); &mut first }
            called = second.read_call() => { assert_eq!(called, 3); &mut second }
        };
        process.answers(3).await;
        call.is_answered().await;
        assert!(world.has_no_start());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_shares_the_process_of_a_task_of_its_own_set() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let task = Deferral::default();
    let _task = world.call_deferred(1, ASKABLE, &task);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 1);
    process.send_request("q").await;
    task.mark_deferred();
    let _mute = world.call(2, MUTE);
    let mut for_mute = world.next_initialized().await;
    assert_eq!(for_mute.read_call().await, 2);
    // One more process of its set is allowed, but not of all; perhaps in a moment.
    let began = world.clock.now();
    let mut call = world.call(3, ASKABLE);
    assert_eq!(process.read_call().await, 3);
    assert!((1..3).contains(&(world.clock.now() - began).as_secs()));
    process.answers(3).await;
    call.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_process_is_evicted_for_tasks_that_need_one() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let mut mute = world.call(1, MUTE);
    let mut for_mute = world.next_initialized().await;
    assert_eq!(for_mute.read_call().await, 1);
    let [task, another] = [Deferral::default(), Deferral::default()];
    let first = world.call_deferred(2, ASKABLE, &task);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 2);
    process.send_request("q").await;
    task.mark_deferred();
    let mut second = world.call_deferred(3, ASKABLE, &another);
    another.mark_deferred();
    // The other process is in use.
    sleep(Duration::from_secs(1)).await;
    assert!(world.has_no_start());
    for_mute.answers(1).await;
    mute.is_answered().await;
    drop(mute);
    for_mute.has_no_more_to_read().await;
    for_mute.ends("exit status: 0").await;
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 3);
    process.answers(3).await;
    second.is_answered().await;
    drop(first);
}

/// A process that a cancelled call keeps from all others is ended for a further set, which could share.
#[tokio::test(start_paused = true)]
async fn a_process_that_no_call_will_use_is_ended_for_a_further_set() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let _mute = idle_process(&mut world, 1, MUTE).await;
    let mut cancelled = world.call(2, MORE);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 2);
    process.send_request("q").await;
    let UpstreamEvent::ServerRequest(question) = cancelled.next().await else { panic!("it is asked") };
    question.responder.discard();
    cancelled.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    sleep(Duration::from_millis(10)).await;
    let mut other = world.call(3, ASKABLE);
    process.has_no_more_to_read().await;
    process.ends("exit status: 0").await;
    let mut fresh = world.next_initialized().await;
    assert_eq!(fresh.read_call().await, 3);
    fresh.answers(3).await;
    other.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_processes_is_bounded_and_a_long_wait_is_an_error() {
    let mut world = World::with(|command, config| {
        command.instances = ProcessSharing::Shared(1);
        config.limits = UpstreamLimits { sessions: 99, ..UpstreamLimits::default() };
    });
    let (mut first, second) = (world.call(1, ASKABLE), world.call(2, ASKABLE));
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.read_call().await;
    process.send_request("q").await;
    assert_eq!(process.reads().await["id"], "q");
    // An abandoned call may continue in it, so it takes no calls of others, and it stays until the first has
    // ended.
    second.work.abort();
    assert_eq!(process.reads().await["method"], "notifications/cancelled");
    let lost = world.call(3, ASKABLE).lost().await;
    assert!(matches!(lost, CallError::QueueTimeout { limit: 1, .. }), "{lost:?}");
    let mut fourth = world.call(4, ASKABLE);
    process.answers(1).await;
    first.is_answered().await;
    process.has_no_more_to_read().await;
    assert!(world.has_no_start());
    process.ends("exit status: 0").await;
    let mut process = world.next_initialized().await;
    process.read_call().await;
    process.answers(4).await;
    fourth.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_can_have_a_process_of_its_own() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::PerCaller);
    let [a, b] = ["a", "b"].map(|name| Principal::derive(&[name.as_bytes()]));
    let mut calls = [world.call_of(a, 1, MUTE), world.call_of(b, 2, MUTE)];
    let mut processes = [world.next_initialized().await, world.next_initialized().await];
    for process in &mut processes {
        let id = process.read_call().await;
        process.answers(id).await;
    }
    for call in &mut calls {
        call.is_answered().await;
    }
    let mut again = world.call_of(a, 3, MUTE);
    let [first, second] = &mut processes;
    let called = tokio::select! {
        called = first.read_call() => (called, first),
        called = second.read_call() => (called, second),
    };
    called.1.answers(3).await;
    again.is_answered().await;
    assert!(world.has_no_start());
}

#[tokio::test(start_paused = true)]
async fn a_caller_above_the_process_limit_gets_an_error() {
    let most = MAX_PROCESSES_PER_CALLER as u64;
    let mut world = World::with(|command, _| command.instances = ProcessSharing::PerCaller);
    let mut processes = Vec::new();
    let mut calls = Vec::new();
    for id in 1..=most {
        calls.push(world.call(id, MUTE));
        // One start each: more in a minute would exceed the limit.
        advance(Duration::from_secs(2)).await;
        let mut process = world.next_initialized().await;
        process.read_call().await;
        processes.push(process);
    }
    let lost = world.call(most + 1, MUTE).lost().await;
    assert!(matches!(lost, CallError::ProcessesInUse { .. }), "{lost:?}");
    // An idle process is evicted; the other idle ones are not.
    for (at, id) in [(0, 1), (1, 2)] {
        processes[at].answers(id).await;
        calls[at].is_answered().await;
    }
    let mut next = world.call(most + 2, MUTE);
    let mut resting = processes.swap_remove(0);
    resting.has_no_more_to_read().await;
    resting.ends("exit status: 0").await;
    let mut process = world.next_initialized().await;
    let id = process.read_call().await;
    process.answers(id).await;
    next.is_answered().await;
    assert!(processes[1].stdin.next_line().now_or_never().is_none(), "another has been ended");
}

/// Capability of a set whose input requests can be sent nowhere else.
const SAMPLING: &str = r#"{"sampling":{}}"#;

#[tokio::test(start_paused = true)]
async fn a_caller_whose_requests_could_be_sent_nowhere_waits_while_calls_hold_all_processes() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let task = Deferral::default();
    let _task = world.call_deferred(1, ASKABLE, &task);
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 1);
    process.send_request("q").await;
    task.mark_deferred();
    let mut call = world.call(2, ASKABLE);
    let mut beside = world.next_initialized().await;
    assert_eq!(beside.read_call().await, 2);
    let mut sampling = world.call(3, SAMPLING);
    sleep(Duration::from_secs(5)).await;
    assert!(world.has_no_start());
    for process in [&mut process, &mut beside] {
        assert!(process.stdin.next_line().now_or_never().is_none(), "it shares");
    }
    beside.answers(2).await;
    call.is_answered().await;
    beside.has_no_more_to_read().await;
    beside.ends("exit status: 0").await;
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 3);
    process.answers(3).await;
    sampling.is_answered().await;
}

#[tokio::test(start_paused = true)]
async fn as_many_processes_are_evicted_as_are_waited_for() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(3));
    let mut resting = Vec::new();
    for (id, capabilities) in [(1, MUTE), (2, r#"{"experimental":{}}"#)] {
        resting.push(idle_process(&mut world, id, capabilities).await);
    }
    let deferrals = [(); 3].map(|()| Deferral::default());
    let mut tasks = vec![world.call_deferred(3, ASKABLE, &deferrals[0])];
    let mut process = world.next_initialized().await;
    assert_eq!(process.read_call().await, 3);
    process.send_request("q").await;
    deferrals[0].mark_deferred();
    for (id, deferral) in [(4, &deferrals[1]), (5, &deferrals[2])] {
        tasks.push(world.call_deferred(id, ASKABLE, deferral));
        deferral.mark_deferred();
        // One process is ending when the next call waits.
        sleep(Duration::from_millis(250)).await;
    }
    // Each gets the request to end, whether or not the other has ended.
    let began = world.clock.now();
    for process in &mut resting {
        process.has_no_more_to_read().await;
    }
    assert!(world.clock.now() - began < Duration::from_secs(1), "one has waited for the other");
    for process in resting {
        process.ends("exit status: 0").await;
    }
    let mut processes = [world.next_initialized().await, world.next_initialized().await];
    let [one, other] = &mut processes;
    let called = [one.read_call().await, other.read_call().await];
    assert!(called == [4, 5] || called == [5, 4], "{called:?}");
}

/// An idle process is evicted even if a task holds another one of its set.
#[tokio::test(start_paused = true)]
async fn an_unused_process_of_a_set_with_a_task_is_evicted() {
    for at_rest in [0, 1] {
        let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
        let (processes, mut tasks) = processes_held_by_tasks(&mut world).await;
        let mut processes = Vec::from(processes);
        let mut resting = processes.swap_remove(at_rest);
        resting.answers(at_rest as u64 + 1).await;
        tasks[at_rest].0.is_answered().await;
        let mut call = world.call(3, SAMPLING);
        timeout(Duration::from_secs(1), resting.has_no_more_to_read()).await.expect("it gives way");
        resting.ends("exit status: 0").await;
        let mut process = world.next_initialized().await;
        assert_eq!(process.read_call().await, 3);
        process.answers(3).await;
        call.is_answered().await;
        // The task continues in the other process.
        let [mut at_work] = processes.try_into().ok().expect("the other");
        at_work.answers(2 - at_rest as u64).await;
        tasks[1 - at_rest].0.is_answered().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_process_gets_a_free_session_of_its_own_set() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(2));
    let _mute = world.call(1, MUTE);
    let mut for_mute = world.next_initialized().await;
    assert_eq!(for_mute.read_call().await, 1);
    let (mut process, (mut first, _task)) = task_with_input_request(&mut world, 2).await;
    let mut call = world.call(3, ASKABLE);
    sleep(Duration::from_millis(50)).await;
    process.answers(2).await;
    first.is_answered().await;
    let began = world.clock.now();
    assert_eq!(process.read_call().await, 3);
    assert!(world.clock.now() - began < Duration::from_secs(1), "it waits for another");
    process.answers(3).await;
    call.is_answered().await;
}
