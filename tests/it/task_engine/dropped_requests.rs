//! A client that closes its connection right after a request: the request has its whole effect or none.
//!
//! The future of each request is polled so many times and dropped, for each number of polls until it is done or waits
//! for something else. The store yields around each operation, so that a request can be dropped at each of them. What
//! is kept, what the server and other clients have received, and what is counted is compared with a run in which the
//! request is never sent, and with one in which its client stays.

use super::engine_and_server::{
    AFTER, EngineAndServer, Legacy, Modern, Polled, Received, Request, Setup, Sign, TICKET_AFTER, messages,
    runtime, settle,
};
use crate::support::limit_hits::counts;
use deferral::internals::{
    protocol::Timestamp,
    store::{Store as _, StoreUsage},
    task::{Record, TaskState},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::sleep;

/// A request, in a world where it has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Cancel,
    Update,
    Get,
    GetEnded,
    Listen,
    Retry,
    OperatorCancel,
    TicketResult,
    TicketResultEnded,
    TicketAnswer,
    TicketCancel,
    LegacyCancel,
    LegacyGet,
    LegacyResult,
    LegacyResultEnded,
    LegacyAnswer,
    LegacyCancelled,
    LegacyTaskCall,
    LegacyUnaskedCall,
    LegacyTicketResult,
    LegacyTicketResultEnded,
    LegacyTicketCancel,
}

/// What can be observed once everything has come to rest.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    tasks: Vec<String>,
    server: Vec<String>,
    /// What the other clients have received.
    observers: Vec<Vec<String>>,
    counts: BTreeMap<String, f64>,
    usage: StoreUsage,
    made: usize,
    working: usize,
    unfetched: usize,
}

/// The request is made, and others watch.
struct Prepared {
    request: Request,
    observers: Vec<Received>,
}

macro_rules! requests {
    ($($name:ident $asked:ident)*) => { $(
        #[test]
        fn $name() {
            for outlives in [false, true] {
                has_its_whole_effect_or_none(Asked::$asked, outlives);
            }
        }
    )* };
}

requests! {
    a_dropped_cancel_of_a_task_has_its_whole_effect_or_none Cancel
    a_dropped_update_of_a_task_has_its_whole_effect_or_none Update
    a_dropped_poll_of_a_task_has_its_whole_effect_or_none Get
    a_dropped_poll_of_an_ended_task_has_its_whole_effect_or_none GetEnded
    a_dropped_listen_stream_has_its_whole_effect_or_none Listen
    a_dropped_retry_has_its_whole_effect_or_none Retry
    a_dropped_cancel_of_an_operator_has_its_whole_effect_or_none OperatorCancel
    a_dropped_wait_with_a_ticket_has_its_whole_effect_or_none TicketResult
    a_dropped_fetch_with_a_ticket_has_its_whole_effect_or_none TicketResultEnded
    a_dropped_answer_with_a_ticket_has_its_whole_effect_or_none TicketAnswer
    a_dropped_cancel_with_a_ticket_has_its_whole_effect_or_none TicketCancel
    a_dropped_legacy_cancel_of_a_task_has_its_whole_effect_or_none LegacyCancel
    a_dropped_legacy_poll_of_a_task_has_its_whole_effect_or_none LegacyGet
    a_dropped_legacy_wait_for_a_result_has_its_whole_effect_or_none LegacyResult
    a_dropped_legacy_fetch_of_a_result_has_its_whole_effect_or_none LegacyResultEnded
    a_dropped_legacy_answer_has_its_whole_effect_or_none LegacyAnswer
    a_dropped_legacy_cancelled_notification_has_its_whole_effect_or_none LegacyCancelled
    a_dropped_legacy_call_for_a_task_has_its_whole_effect_or_none LegacyTaskCall
    a_dropped_legacy_call_that_may_become_a_task_has_its_whole_effect_or_none LegacyUnaskedCall
    a_dropped_legacy_wait_with_a_ticket_has_its_whole_effect_or_none LegacyTicketResult
    a_dropped_legacy_fetch_with_a_ticket_has_its_whole_effect_or_none LegacyTicketResultEnded
    a_dropped_legacy_cancel_with_a_ticket_has_its_whole_effect_or_none LegacyTicketCancel
}

fn has_its_whole_effect_or_none(asked: Asked, outlives: bool) {
    // With the first call of all the tool becomes one that is counted by its name.
    run(asked, outlives, usize::MAX);
    let (never_sent, _) = run(asked, outlives, 0);
    let (whole, ends) = run(asked, outlives, usize::MAX);
    assert_ne!(ends, Polled::Dropped);
    if !matches!(
        asked,
        Asked::Get
            | Asked::LegacyGet
            | Asked::Listen
            | Asked::TicketResult
            | Asked::LegacyResult
            | Asked::LegacyTicketResult
    ) {
        assert_ne!(never_sent, whole, "{asked:?} does nothing here");
    }
    for polls in 1.. {
        let (outcome, polled) = run(asked, outlives, polls);
        assert!(
            outcome == never_sent || outcome == whole,
            "{asked:?}, outlives={outlives}, dropped after {polls} polls:\n{outcome:#?}\nnever sent:\n{never_sent:#?}\nwhole:\n{whole:#?}"
        );
        if polled != Polled::Dropped {
            return;
        }
    }
}

#[test]
fn a_dropped_call_leaves_no_task_and_is_cancelled_at_the_server() {
    for outlives in [false, true] {
        for polls in 1.. {
            let polled = runtime().block_on(async {
                let setup = if outlives { Setup::new().outlives() } else { Setup::new() };
                let world = setup.always().start();
                world.store.yields();
                let client = Modern { takes_tasks: true, ..Modern::default() };
                let before = counts();
                let polled = world.ask(&client, "tools/call", json!({ "name": "t" })).polled(polls).await;
                settle().await;
                let Outcome { tasks, usage, working, counts, .. } = outcome(&world, &[], &before).await;
                let about = format!("outlives={outlives}, dropped after {polls} polls: {counts:#?}");
                if polled == Polled::Dropped {
                    assert_eq!(tasks, [""; 0], "{about}");
                    assert_eq!((usage, working), (StoreUsage::default(), 0), "{about}");
                    assert_eq!(world.server.open(), [0; 0], "it works for nobody: {about}");
                } else {
                    assert_eq!(tasks.len(), 1, "{about}");
                }
                let sum = |family: &str| -> f64 {
                    counts.iter().filter(|(name, _)| name.starts_with(family)).map(|(_, count)| count).sum()
                };
                let live = sum("deferral_tasks_created_total") - sum("deferral_tasks_ended_total");
                assert_eq!(live, tasks.len() as f64, "{about}");
                polled
            });
            if polled != Polled::Dropped {
                break;
            }
        }
    }
}

/// What a request that is dropped after so many polls leaves behind: at first, and when each call has ended.
fn run(asked: Asked, outlives: bool, polls: usize) -> ([Outcome; 2], Polled) {
    let runtime = runtime();
    runtime.block_on(async {
        let mut setup = Setup::new();
        if outlives {
            setup = setup.outlives();
        }
        let world = setup.start();
        let Prepared { request, observers } = prepare(asked, &world).await;
        settle().await;
        world.store.yields();
        let before = counts();
        let polled = request.polled(polls).await;
        settle().await;
        let at_first = outcome(&world, &observers, &before).await;
        // What is still to come is the same in each run.
        for call in world.server.open() {
            world.server.says(call, "done");
        }
        sleep(AFTER + Duration::from_secs(1)).await;
        ([at_first, outcome(&world, &observers, &before).await], polled)
    })
}

async fn outcome(world: &EngineAndServer, observers: &[Received], before: &BTreeMap<String, f64>) -> Outcome {
    let mut tasks = Vec::new();
    for due in world.store.due(Timestamp::from_millis(u64::MAX), usize::MAX).await.expect("it answers") {
        let record = world.store.load(&due.id).await.expect("it answers").expect("it is there").record;
        tasks.push(shown(&record));
    }
    let principal = [1; 16];
    let is_counted = |name: &str| {
        (name.contains("_total") || name.contains("_count"))
            && !name.contains("deferral_store_seconds")
            && !name.contains("process_")
    };
    let difference = |(name, now): (String, f64)| {
        let difference = now - before.get(&name).copied().unwrap_or_default();
        (difference != 0.0 && is_counted(&name)).then_some((name, difference))
    };
    Outcome {
        tasks,
        server: world.server.received(),
        observers: observers.iter().map(|received| messages(received).iter().map(told).collect()).collect(),
        counts: counts().into_iter().filter_map(difference).collect(),
        usage: world.store.usage(&principal),
        made: world.ledger.created_count(),
        working: world.ledger.working_count(),
        unfetched: world.ledger.unfetched_count(),
    }
}

/// A record without ids and times.
fn shown(record: &Record) -> String {
    let Record { state, message, undelivered, .. } = record;
    let state = match state {
        TaskState::InputRequired { outstanding } => format!("asks {} questions", outstanding.len()),
        TaskState::Completed { result, .. } => format!("completed {}", String::from_utf8_lossy(result)),
        TaskState::Failed { error } => format!("failed {}", String::from_utf8_lossy(error)),
        TaskState::Working | TaskState::Cancelled => state.status().to_owned(),
    };
    format!("{state}, {message:?}, {} answers on their way", undelivered.len())
}

/// A message without ids and times.
fn told(message: &Value) -> String {
    let about = if message["params"].is_object() { &message["params"] } else { &message["result"] };
    let (content, structured) = (&about["result"]["content"], &about["content"]);
    format!("{} {} {content} {structured} {}", message["method"], about["status"], message["error"])
}

/// Who listens to a task of 2026-07-28.
async fn listener(world: &EngineAndServer, client: &Modern, task: &str) -> Received {
    let params = json!({ "notifications": { "taskIds": [task] } });
    let sent = world.ask(client, "subscriptions/listen", params).sent();
    settle().await;
    sent.received
}

/// Who waits for the result of a task of 2025-11-25.
async fn waiter(world: &EngineAndServer, client: &Legacy, task: &str) -> Received {
    let sent = world.legacy_ask(client, "tasks/result", json!({ "taskId": task })).sent();
    settle().await;
    sent.received
}

fn use_ticket(tool: &str, ticket: &str) -> Value {
    json!({ "name": tool, "arguments": { "ticket": ticket } })
}

async fn prepare(asked: Asked, world: &EngineAndServer) -> Prepared {
    match asked {
        Asked::Cancel
        | Asked::Update
        | Asked::Get
        | Asked::GetEnded
        | Asked::Listen
        | Asked::OperatorCancel => {
            let client = Modern { takes_tasks: true, can_be_asked: true, ..Modern::default() };
            prepare_task(asked, world, &client).await
        }
        Asked::Retry => {
            let client = Modern { can_be_asked: true, ..Modern::default() };
            let call = world.ask(&client, "tools/call", json!({ "name": "t" })).sent();
            settle().await;
            world.server.asks(0, "q");
            sleep(Duration::from_millis(100)).await;
            let said = messages(&call.received).pop().expect("it is asked");
            let request = world.ask(&client, "tools/call", answered(json!({ "name": "t" }), &said["result"]));
            Prepared { request, observers: Vec::new() }
        }
        Asked::TicketResult | Asked::TicketResultEnded | Asked::TicketAnswer | Asked::TicketCancel => {
            prepare_ticket(asked, world).await
        }
        Asked::LegacyTicketResult | Asked::LegacyTicketResultEnded | Asked::LegacyTicketCancel => {
            prepare_legacy_ticket(asked, world).await
        }
        Asked::LegacyCancel
        | Asked::LegacyGet
        | Asked::LegacyResult
        | Asked::LegacyResultEnded
        | Asked::LegacyAnswer
        | Asked::LegacyCancelled
        | Asked::LegacyTaskCall
        | Asked::LegacyUnaskedCall => prepare_legacy(asked, world).await,
    }
}

/// These params with an answer to each question of a result.
fn answered(mut params: Value, asks: &Value) -> Value {
    let answer = |(key, _): (&String, &Value)| (key.clone(), json!({ "action": "accept", "content": {} }));
    let questions = asks["inputRequests"].as_object().unwrap_or_else(|| panic!("no questions: {asks}"));
    params["inputResponses"] = questions.iter().map(answer).collect();
    params["requestState"] = asks["requestState"].clone();
    params
}

async fn prepare_task(asked: Asked, world: &EngineAndServer, client: &Modern) -> Prepared {
    let task = world.task(client).await;
    let about = json!({ "taskId": task });
    let mut observers = Vec::new();
    if asked != Asked::GetEnded {
        observers.push(listener(world, client, &task).await);
    }
    let request = match asked {
        Asked::Cancel => world.ask(client, "tasks/cancel", about),
        Asked::Get => world.ask(client, "tasks/get", about),
        Asked::Update => {
            world.server.asks(0, "q");
            settle().await;
            let shown = world.ask(client, "tasks/get", about.clone()).served().await;
            let mut params = answered(about, &shown["result"]);
            params.as_object_mut().expect("an object").remove("requestState");
            world.ask(client, "tasks/update", params)
        }
        Asked::GetEnded => {
            world.server.says(0, "done");
            settle().await;
            world.ask(client, "tasks/get", about)
        }
        Asked::Listen => {
            let params = json!({ "notifications": { "taskIds": [task] } });
            world.ask(client, "subscriptions/listen", params)
        }
        _ => {
            let operators = Arc::clone(&world.operators);
            Request::of(async move { drop(operators.cancel(&task).await) })
        }
    };
    Prepared { request, observers }
}

async fn prepare_ticket(asked: Asked, world: &EngineAndServer) -> Prepared {
    let client = Modern { can_be_asked: true, holds_tickets: true, ..Modern::default() };
    let said = world.ask(&client, "tools/call", json!({ "name": "t" })).served().await;
    let ticket = EngineAndServer::ticket_in(&said);
    let result = use_ticket("deferral_result", &ticket);
    let mut observers = Vec::new();
    if asked != Asked::TicketResultEnded {
        let waits = world.ask(&client, "tools/call", result.clone()).sent();
        settle().await;
        observers.push(waits.received);
    }
    let request = match asked {
        Asked::TicketCancel => world.ask(&client, "tools/call", use_ticket("deferral_cancel", &ticket)),
        Asked::TicketResultEnded => {
            world.server.says(0, "done");
            settle().await;
            world.ask(&client, "tools/call", result)
        }
        Asked::TicketAnswer => {
            world.server.asks(0, "q");
            settle().await;
            let said = messages(&observers[0]).pop().expect("it is asked");
            world.ask(&client, "tools/call", answered(result, &said["result"]))
        }
        _ => world.ask(&client, "tools/call", result),
    };
    Prepared { request, observers }
}

async fn prepare_legacy_ticket(asked: Asked, world: &EngineAndServer) -> Prepared {
    let client = world.legacy(Sign::HoldsTickets, json!({})).await;
    let call = world.legacy_ask(&client, "tools/call", json!({ "name": "t" })).sent();
    sleep(2 * TICKET_AFTER).await;
    let ticket = EngineAndServer::ticket_in(&messages(&call.received).pop().expect("a ticket"));
    let result = use_ticket("deferral_result", &ticket);
    let mut observers = Vec::new();
    if asked != Asked::LegacyTicketResultEnded {
        let waits = world.legacy_ask(&client, "tools/call", result.clone()).sent();
        settle().await;
        observers.push(waits.received);
    }
    let request = match asked {
        Asked::LegacyTicketCancel => {
            world.legacy_ask(&client, "tools/call", use_ticket("deferral_cancel", &ticket))
        }
        Asked::LegacyTicketResultEnded => {
            world.server.says(0, "done");
            settle().await;
            world.legacy_ask(&client, "tools/call", result)
        }
        _ => world.legacy_ask(&client, "tools/call", result),
    };
    Prepared { request, observers }
}

async fn prepare_legacy(asked: Asked, world: &EngineAndServer) -> Prepared {
    let sign = if asked == Asked::LegacyTaskCall { Sign::Nothing } else { Sign::TakesTasks };
    let client = world.legacy(sign, json!({ "elicitation": {} })).await;
    let own = world.listen(&client).sent();
    settle().await;
    let mut observers = vec![Arc::clone(&own.received)];
    let task_call = json!({ "name": "t", "task": { "ttl": 60_000 } });
    let request = match asked {
        Asked::LegacyTaskCall => world.legacy_ask(&client, "tools/call", task_call),
        Asked::LegacyUnaskedCall => world.legacy_ask(&client, "tools/call", json!({ "name": "t" })),
        Asked::LegacyCancelled => {
            let call =
                json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": "t" } });
            let waits = world.tell(&client, &call).sent();
            settle().await;
            observers.push(waits.received);
            let params = json!({ "requestId": 7 });
            let method = "notifications/cancelled";
            world.tell(&client, &json!({ "jsonrpc": "2.0", "method": method, "params": params }))
        }
        _ => {
            let task = legacy_task(world, &client).await;
            let about = json!({ "taskId": task });
            if asked != Asked::LegacyResultEnded {
                observers.push(waiter(world, &client, &task).await);
            }
            match asked {
                Asked::LegacyCancel => world.legacy_ask(&client, "tasks/cancel", about),
                Asked::LegacyGet => world.legacy_ask(&client, "tasks/get", about),
                Asked::LegacyAnswer => {
                    world.server.asks(0, "q");
                    settle().await;
                    let received = observers.iter().flat_map(messages);
                    let mut put = received.filter(|message| message["method"] == "elicitation/create");
                    let id = put.next().expect("it is asked")["id"].clone();
                    let result = json!({ "action": "accept", "content": {} });
                    world.tell(&client, &json!({ "jsonrpc": "2.0", "id": id, "result": result }))
                }
                Asked::LegacyResultEnded => {
                    world.server.says(0, "done");
                    settle().await;
                    world.legacy_ask(&client, "tasks/result", about)
                }
                _ => world.legacy_ask(&client, "tasks/result", about),
            }
        }
    };
    Prepared { request, observers }
}

/// A call of a client that takes tasks, which has become one after its time.
async fn legacy_task(world: &EngineAndServer, client: &Legacy) -> String {
    let call = world.legacy_ask(client, "tools/call", json!({ "name": "t" })).sent();
    sleep(2 * AFTER).await;
    let said = messages(&call.received).pop().expect("a handle");
    let id = &said["result"]["task"]["taskId"];
    id.as_str().unwrap_or_else(|| panic!("no task: {said}")).to_owned()
}
