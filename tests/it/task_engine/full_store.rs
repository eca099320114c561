//! A full store is reported, and does not stop running calls from ending.

use super::engine_and_server::{
    AFTER, EngineAndServer, Modern, Sent, Setup, Sign, messages, runtime, settle, until,
};
use crate::{
    front::listener_and_service::Lines,
    support::{faulty_store::Op, limit_hits::LimitHits},
};
use deferral::internals::{
    proxy::CancelOutcome,
    store::{DiskStore, MemoryStore, Store, StoreBounds},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// The bytes that one caller may keep.
const ROOM: usize = 61_000;
/// What a store is full of that is not the caller's.
const DISK_FULL: &str = "store.max_bytes";

/// A request about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Update,
    Cancel,
    OperatorCancel,
    TicketAnswer,
    TicketCancel,
    LegacyAnswer,
    LegacyCancel,
    LegacyTicketCancel,
}

const ABOUT: [About; 8] = [
    About::Update,
    About::Cancel,
    About::OperatorCancel,
    About::TicketAnswer,
    About::TicketCancel,
    About::LegacyAnswer,
    About::LegacyCancel,
    About::LegacyTicketCancel,
];

// === impl About ===

impl About {
    fn answers(self) -> bool {
        matches!(self, Self::Update | Self::TicketAnswer | Self::LegacyAnswer)
    }
}

/// Stores of so many bytes for a caller.
fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::bounded(bounds()).restarted())
}

fn bounds() -> StoreBounds {
    StoreBounds { stored_bytes_per_principal: ROOM, ..StoreBounds::NONE }
}

fn setup(store: Arc<dyn Store>) -> Setup {
    Setup::new().keeps(store).quotas(|quotas| quotas.stored_bytes_per_principal = ROOM)
}

/// A call that has become a task or has a ticket, and whose server has asked something where it is to be answered.
/// Gives what is to be sent about it.
async fn begin(world: &EngineAndServer, about: About, content: &Value) -> Begun {
    let accepted = json!({ "action": "accept", "content": content });
    let asks = about.answers();
    match about {
        About::Update | About::Cancel | About::OperatorCancel => {
            let client = Modern { takes_tasks: true, can_be_asked: true, ..Modern::default() };
            let task = world.task(&client).await;
            let mut params = json!({ "taskId": task });
            is_called(world).await;
            if asks {
                world.server.asks(0, "q");
                let shown = loop {
                    let shown = world.ask(&client, "tasks/get", params.clone()).served().await;
                    if shown["result"]["status"] == "input_required" {
                        break shown;
                    }
                    settle().await;
                };
                params["inputResponses"] = answers(&shown["result"], &accepted);
            }
            match about {
                About::OperatorCancel => Begun::Operator(task),
                About::Update => Begun::Modern(client, "tasks/update", params),
                _ => Begun::Modern(client, "tasks/cancel", params),
            }
        }
        About::TicketAnswer | About::TicketCancel => {
            let client = Modern { can_be_asked: true, holds_tickets: true, ..Modern::default() };
            let said = world.ask(&client, "tools/call", json!({ "name": "t" })).served().await;
            let ticket = json!({ "ticket": EngineAndServer::ticket_in(&said) });
            is_called(world).await;
            if !asks {
                let params = json!({ "name": "deferral_cancel", "arguments": ticket });
                return Begun::Modern(client, "tools/call", params);
            }
            let mut params = json!({ "name": "deferral_result", "arguments": ticket });
            world.server.asks(0, "q");
            let said = world.ask(&client, "tools/call", params.clone()).served().await;
            params["inputResponses"] = answers(&said["result"], &accepted);
            params["requestState"] = said["result"]["requestState"].clone();
            Begun::Modern(client, "tools/call", params)
        }
        About::LegacyAnswer | About::LegacyCancel => {
            let client = world.legacy(Sign::Nothing, json!({ "elicitation": {} })).await;
            let task = world.legacy_task(&client).await;
            is_called(world).await;
            if !asks {
                let params = json!({ "taskId": task });
                let message =
                    json!({ "jsonrpc": "2.0", "id": 9, "method": "tasks/cancel", "params": params });
                return Begun::Legacy(client, message);
            }
            let waits = world.legacy_ask(&client, "tasks/result", json!({ "taskId": task })).sent();
            until("the result is waited for", || waits.has_begun()).await;
            world.server.asks(0, "q");
            let is_put = |message: &Value| message["method"] == "elicitation/create";
            until("it is asked", || messages(&waits.received).iter().any(is_put)).await;
            let put = messages(&waits.received).into_iter().find(is_put).expect("it is asked");
            Begun::Legacy(client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": accepted }))
        }
        About::LegacyTicketCancel => {
            let client = world.legacy(Sign::HoldsTickets, json!({})).await;
            let said = world.legacy_ask(&client, "tools/call", json!({ "name": "t" })).served().await;
            let ticket = json!({ "ticket": EngineAndServer::ticket_in(&said) });
            is_called(world).await;
            let params = json!({ "name": "deferral_cancel", "arguments": ticket });
            let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params });
            Begun::Legacy(client, message)
        }
    }
}

/// What is to be sent.
enum Begun {
    Modern(Modern, &'static str, Value),
    Legacy(super::engine_and_server::Legacy, Value),
    Operator(String),
}

/// An answer to each question of a result.
fn answers(asks: &Value, accepted: &Value) -> Value {
    let questions = asks["inputRequests"].as_object().unwrap_or_else(|| panic!("no questions: {asks}"));
    questions.keys().map(|key| (key.clone(), accepted.clone())).collect()
}

/// Waits until the call has arrived.
async fn is_called(world: &EngineAndServer) {
    until("the call arrives", || world.server.calls() == 1).await;
}

/// Sends what was begun; what is said of it, in text. Who waits for a result is not answered before there is one.
async fn send(world: &EngineAndServer, begun: Begun) -> String {
    let sent = match begun {
        Begun::Modern(client, method, params) => world.ask(&client, method, params).sent(),
        Begun::Legacy(client, message) => world.tell(&client, &message).sent(),
        Begun::Operator(task) => {
            return match world.operators.cancel(&task).await {
                Ok(CancelOutcome::Cancelled(_)) => "done".to_owned(),
                Ok(_) => "nothing".to_owned(),
                Err(error) => error.to_string(),
            };
        }
    };
    until("it has an effect", || sent.is_done() || world.server.received().len() > 1).await;
    settle().await;
    messages(&sent.received).iter().map(Value::to_string).collect()
}

/// The caller's results fill what it may keep.
async fn fill(world: &EngineAndServer) {
    let client = Modern { takes_tasks: true, ..Modern::default() };
    let first = world.server.calls();
    let sent: Vec<Sent> =
        (0..4).map(|_| world.ask(&client, "tools/call", json!({ "name": "t" })).sent()).collect();
    until("they are tasks", || sent.iter().all(Sent::is_done)).await;
    until("all have arrived", || world.server.calls() == first + 4).await;
    for call in first..first + 4 {
        world.server.says(call, &"x".repeat(30_000));
    }
    until("they have ended", || world.ledger.working_count() == 1).await;
    let usage = world.store.usage(&[1; 16]);
    assert!(usage.stored_bytes_of_principal > ROOM - 3_000, "{usage:?}");
}

/// The answer of a caller whose results have filled what it may keep.
async fn answer_without_room(world: &EngineAndServer, about: About) {
    let begun = begin(world, about, &json!({ "a": "x".repeat(2_000) })).await;
    fill(world).await;
    let said = send(world, begun).await;
    assert!(!said.contains("does not answer"), "{about:?}: {said}");
    assert!(!said.contains("error"), "{about:?}: {said}");
    let is_answer = |it: &String| it.starts_with("\"q\" <-") && it.contains("xxx");
    until("the server has the answer", || world.server.received().iter().any(is_answer)).await;
}

#[test]
fn answers_are_taken_although_results_have_filled_what_their_caller_may_keep() {
    for about in ABOUT.into_iter().filter(|about| about.answers()) {
        runtime().block_on(async {
            answer_without_room(&setup(memory()).start(), about).await;
        });
    }
}

#[test]
fn answers_are_taken_although_results_have_filled_what_their_caller_may_keep_on_a_disk() {
    for about in ABOUT.into_iter().filter(|about| about.answers()) {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let store = DiskStore::open(folder.path(), bounds(), None).expect("it opens");
            answer_without_room(&setup(Arc::new(store)).start(), about).await;
        });
    }
}

#[test]
fn a_full_store_is_reported_or_delays_no_request() {
    for about in ABOUT {
        runtime().block_on(async {
            let world = Setup::new().outlives().start();
            let begun = begin(&world, about, &json!({})).await;
            settle().await;
            let (lines, hits) = (Lines::record(), LimitHits::of(DISK_FULL));
            world.store.is_full(&[Op::Swap], DISK_FULL);
            let said = send(&world, begun).await;
            assert!(!said.contains("does not answer"), "{about:?}: {said}");
            let received = world.server.received();
            let reached = match about.answers() {
                true => received.iter().any(|it| it.starts_with("\"q\" <-")),
                false => received.iter().any(|it| it == "cancelled 0"),
            };
            let full = lines.of("quota_full");
            if reached {
                // What ends work needs no room.
                assert!(!said.contains("error"), "{about:?}: {said}");
            } else {
                assert!(said.contains(DISK_FULL), "{about:?}: {said}");
                assert!(full.iter().any(|line| line["limit"] == DISK_FULL), "{about:?}: not in the log");
                assert!(hits.now() > 0, "{about:?} is not counted");
            }
        });
    }
}

#[test]
fn a_legacy_call_for_a_task_that_finds_the_store_full_gets_an_error() {
    runtime().block_on(async {
        let world = Setup::new().outlives().start();
        let client = world.legacy(Sign::Nothing, json!({})).await;
        let (lines, hits) = (Lines::record(), LimitHits::of(DISK_FULL));
        world.store.is_full(&[Op::Insert], DISK_FULL);
        let params = json!({ "name": "t", "task": {} });
        let said = world.legacy_ask(&client, "tools/call", params).served().await;
        assert!(said["error"]["message"].as_str().is_some_and(|said| said.contains(DISK_FULL)), "{said}");
        assert_eq!(world.server.calls(), 0);
        assert_eq!(lines.of("quota_full").len(), 1);
        assert_eq!(lines.of("store_failed").len(), 0, "a store that is full does not fail");
        hits.are(1).await;
    });
}

#[test]
fn a_call_that_finds_the_store_full_stays_a_call_and_is_counted() {
    runtime().block_on(async {
        let world = Setup::new().outlives().start();
        let (lines, hits) = (Lines::record(), LimitHits::of(DISK_FULL));
        world.store.is_full(&[Op::Insert], DISK_FULL);
        let client = Modern { takes_tasks: true, ..Modern::default() };
        let sent = world.ask(&client, "tools/call", json!({ "name": "t" })).sent();
        sleep(2 * AFTER).await;
        assert_eq!(sent.last(), None);
        world.server.says(0, "done");
        settle().await;
        assert_eq!(sent.last().expect("an answer")["result"]["content"][0]["text"], "done");
        assert_eq!(lines.of("quota_full").len(), 1);
        assert_eq!(lines.of("store_failed").len(), 0, "a store that is full does not fail");
        hits.are(1).await;
        assert_eq!((world.ledger.working_count(), world.store.usage(&[1; 16]).tasks), (0, 0));
    });
}

#[test]
fn a_result_that_finds_the_disk_full_fails_its_task_with_the_limit_named_and_is_counted_as_one() {
    runtime().block_on(async {
        let world = Setup::new().outlives().start();
        let client = Modern { takes_tasks: true, ..Modern::default() };
        let task = world.task(&client).await;
        let (lines, hits) = (Lines::record(), LimitHits::of(DISK_FULL));
        world.store.is_full(&[Op::Swap], DISK_FULL);
        world.server.says(0, "done");
        // Not even the error has room.
        sleep(Duration::from_secs(50)).await;
        let about = json!({ "taskId": task });
        let shown = world.ask(&client, "tasks/get", about.clone()).served().await;
        assert_eq!(shown["result"]["status"], "working", "{shown}");
        world.store.works();
        sleep(Duration::from_secs(6)).await;
        let shown = world.ask(&client, "tasks/get", about).served().await;
        assert_eq!(shown["result"]["status"], "failed", "{shown}");
        let words = shown["result"]["error"]["message"].as_str().expect("words");
        assert!(words.contains(DISK_FULL), "{shown}");
        assert_eq!((lines.of("quota_full").len(), hits.now()), (1, 1), "one result had no room");
    });
}
