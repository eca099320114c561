//! A slow or stalled store delays only requests that depend on it.

use super::engine_and_server::{
    AFTER, EngineAndServer, Legacy, Modern, Sent, Setup, Sign, TICKET_AFTER, WAIT, messages, runtime, settle,
};
use crate::support::faulty_store::Op;
use deferral::internals::store::DiskStore;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// Clients whose calls may become tasks, each in its way.
#[derive(Clone, Debug)]
enum Client {
    Modern(Modern),
    Legacy(Legacy),
}

fn tasker() -> Modern {
    Modern { takes_tasks: true, ..Modern::default() }
}

fn holder() -> Modern {
    Modern { holds_tickets: true, ..Modern::default() }
}

/// One of each kind.
async fn clients(world: &EngineAndServer) -> Vec<Client> {
    vec![
        Client::Modern(tasker()),
        Client::Modern(holder()),
        Client::Legacy(world.legacy(Sign::TakesTasks, json!({})).await),
        Client::Legacy(world.legacy(Sign::HoldsTickets, json!({})).await),
    ]
}

fn send(world: &EngineAndServer, client: &Client, params: Value) -> Sent {
    match client {
        Client::Modern(client) => world.ask(client, "tools/call", params).sent(),
        Client::Legacy(client) => world.legacy_ask(client, "tools/call", params).sent(),
    }
}

/// What a client has been answered with, which is done.
fn text(sent: &Sent) -> Option<String> {
    Some(sent.last()?["result"]["content"][0]["text"].as_str()?.to_owned())
}

#[test]
fn a_result_that_is_there_is_answered_at_once_while_its_task_is_being_stored() {
    for (kind, is_error) in [(0, false), (1, false), (2, false), (3, false), (0, true), (2, true)] {
        runtime().block_on(async {
            let world = Setup::new().start();
            let client = clients(&world).await.swap_remove(kind);
            world.store.stalls(&[Op::Insert]);
            let sent = send(&world, &client, json!({ "name": "t" }));
            sleep(AFTER + Duration::from_millis(100)).await;
            assert_eq!(sent.last(), None, "{client:?}");
            if is_error {
                world.server.fails(0)
            } else {
                world.server.says(0, "done")
            }
            settle().await;
            let about = format!("{client:?}: {:?}", sent.last());
            assert!(sent.is_done(), "{about}");
            match is_error {
                true => assert!(
                    sent.last().expect("an answer")["error"].to_string().contains("-32050"),
                    "{about}"
                ),
                false => assert_eq!(text(&sent).as_deref(), Some("done"), "{about}"),
            }
            // The task whose handle was not delivered is removed afterwards.
            world.store.stalls(&[]);
            settle().await;
            let (tallies, usage) = world.ledger.census().await.expect("it answers");
            assert_eq!((tallies, usage.tasks), (Vec::new(), 0), "{about}");
            assert_eq!((world.ledger.working_count(), world.ledger.unfetched_count()), (0, 0), "{about}");
            assert_eq!(world.server.received(), ["call 0"], "nothing was cancelled: {about}");
        });
    }
}

#[test]
fn in_mode_always_a_call_is_a_task_however_long_that_takes_to_store() {
    runtime().block_on(async {
        let world = Setup::new().always().start();
        world.store.stalls(&[Op::Insert]);
        let sent = send(&world, &Client::Modern(tasker()), json!({ "name": "t" }));
        settle().await;
        world.server.says(0, "done");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(sent.last(), None);
        world.store.stalls(&[]);
        settle().await;
        assert_eq!(sent.last().expect("a handle")["result"]["resultType"], "task");
    });
}

#[test]
fn a_client_that_disconnects_while_its_task_is_being_stored_cancels_its_call_at_once() {
    runtime().block_on(async {
        let world = Setup::new().start();
        world.store.stalls(&[Op::Insert]);
        let sent = send(&world, &Client::Modern(tasker()), json!({ "name": "t" }));
        sleep(AFTER + Duration::from_millis(100)).await;
        sent.leaves();
        settle().await;
        assert_eq!(world.server.received(), ["call 0", "cancelled 0"]);
        world.store.stalls(&[]);
        settle().await;
        assert_eq!(
            (world.ledger.census().await.expect("it answers").1.tasks, world.ledger.working_count()),
            (0, 0)
        );
    });
}

/// Its first client leaves while the task is stored, and it comes back before the task is forgotten.
#[test]
fn a_client_that_comes_back_is_not_given_a_task_that_is_about_to_be_forgotten() {
    runtime().block_on(async {
        let world = Setup::new().start();
        let client = Modern { takes_tasks: true, can_be_asked: true, ..Modern::default() };
        let first = world.ask(&client, "tools/call", json!({ "name": "t" })).sent();
        settle().await;
        world.server.asks(0, "q");
        sleep(Duration::from_millis(100)).await;
        let asked = first.last().expect("a question")["result"].take();
        let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
        let again = json!({
            "name": "t", "requestState": asked["requestState"],
            "inputResponses": { key: { "action": "accept", "content": {} } },
        });
        let second = world.ask(&client, "tools/call", again.clone()).sent();
        settle().await;
        world.store.stalls(&[Op::Insert]);
        sleep(AFTER + Duration::from_millis(100)).await;
        second.leaves();
        settle().await;
        world.store.stalls(&[Op::Remove]);
        settle().await;
        let third = world.ask(&client, "tools/call", again).sent();
        settle().await;
        assert_eq!(third.last(), None, "it is not known yet whether the task is forgotten");
        world.store.stalls(&[]);
        settle().await;
        let said = third.last().expect("an answer");
        assert_eq!(said["error"]["code"], -32602, "{said}");
        assert_eq!(world.ledger.census().await.expect("it answers").1.tasks, 0);
    });
}

/// What is asked while the task is being stored has the room of its record, and keeps it where that cannot be stored.
#[test]
fn a_call_that_is_asked_while_its_task_is_stored_counts_once() {
    for is_stored in [true, false] {
        runtime().block_on(async {
            let world = Setup::new().quotas(|quotas| quotas.tasks_per_principal = 2).start();
            let client =
                |number| Modern { takes_tasks: true, can_be_asked: true, number, ..Modern::default() };
            world.store.stalls(&[Op::Insert]);
            let first = world.ask(&client(1), "tools/call", json!({ "name": "t" })).sent();
            sleep(AFTER + Duration::from_millis(100)).await;
            world.server.asks(0, "q");
            settle().await;
            let second = world.ask(&client(2), "tools/call", json!({ "name": "t" })).sent();
            settle().await;
            world.server.asks(1, "r");
            sleep(Duration::from_millis(100)).await;
            let asked = second.last().expect("there is room for two");
            assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
            if !is_stored {
                world.store.fails(&[Op::Insert]);
            }
            world.store.stalls(&[]);
            sleep(Duration::from_millis(100)).await;
            let shown = first.last().expect("an answer");
            let expected = if is_stored { "task" } else { "input_required" };
            assert_eq!(shown["result"]["resultType"], expected, "{shown}");
            // Neither less nor more than both: a third has no room.
            world.store.works();
            let third = world.ask(&client(3), "tools/call", json!({ "name": "t" })).sent();
            settle().await;
            world.server.asks(2, "s");
            settle().await;
            let received = world.server.received();
            assert!(received.iter().any(|it| it.contains("limits.tasks_per_principal")), "{received:?}");
            drop(third);
        });
    }
}

#[test]
fn of_a_burst_of_calls_no_more_become_tasks_than_the_quota_allows() {
    for is_of_all in [false, true] {
        runtime().block_on(async {
            let setup = Setup::new().quotas(|quotas| match is_of_all {
                true => quotas.tasks = 5,
                false => quotas.tasks_per_principal = 5,
            });
            let world = setup.start();
            world.store.yields();
            burst(&world).await;
        });
    }
}

#[test]
fn of_a_burst_of_calls_no_more_become_tasks_than_the_quota_allows_with_a_store_on_a_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let store = DiskStore::open(folder.path(), deferral::internals::store::StoreBounds::NONE, None)
            .expect("it opens");
        let setup = Setup::new().keeps(Arc::new(store)).quotas(|quotas| quotas.tasks_per_principal = 5);
        burst(&setup.start()).await;
    });
}

/// Exactly five of sixty become tasks, and the others are answered by their server.
async fn burst(world: &EngineAndServer) {
    let sent: Vec<_> =
        (0..60).map(|_| send(world, &Client::Modern(tasker()), json!({ "name": "t" }))).collect();
    sleep(AFTER + Duration::from_secs(1)).await;
    let are_tasks = |sent: &&Sent| {
        sent.last().is_some_and(|said| said["result"]["resultType"] == "task" && sent.is_done())
    };
    assert_eq!(sent.iter().filter(are_tasks).count(), 5);
    let (tallies, usage) = world.ledger.census().await.expect("it answers");
    assert_eq!((usage.tasks, tallies.len()), (5, 1), "{tallies:?}");
    for call in world.server.open() {
        world.server.says(call, "done");
    }
    sleep(Duration::from_millis(500)).await;
    let are_plain = |sent: &&Sent| text(sent).as_deref() == Some("done");
    assert_eq!(sent.iter().filter(are_plain).count(), 55);
}

#[test]
fn of_a_burst_of_input_requests_no_more_calls_wait_for_their_clients_than_the_quota_allows() {
    runtime().block_on(async {
        let world = Setup::new().quotas(|quotas| quotas.tasks_per_principal = 5).start();
        world.store.yields();
        let client = |number| Modern { can_be_asked: true, number, ..Modern::default() };
        let sent: Vec<_> = (1..=60)
            .map(|number| world.ask(&client(number), "tools/call", json!({ "name": "t" })).sent())
            .collect();
        settle().await;
        assert_eq!(world.server.calls(), 60);
        for call in 0..60 {
            world.server.asks(call, &format!("q{call}"));
        }
        sleep(Duration::from_millis(500)).await;
        let are_asked =
            |sent: &&Sent| sent.last().is_some_and(|said| said["result"]["resultType"] == "input_required");
        assert_eq!(sent.iter().filter(are_asked).count(), 5);
        let refused =
            world.server.received().iter().filter(|it| it.contains("limits.tasks_per_principal")).count();
        assert_eq!(refused, 55, "{:?}", world.server.received());
    });
}

/// A call with a ticket, whose result the store refuses.
async fn refused_result(world: &EngineAndServer, client: &Client) -> Value {
    let sent = send(world, client, json!({ "name": "t" }));
    sleep(2 * TICKET_AFTER).await;
    let ticket = EngineAndServer::ticket_in(&sent.last().expect("a ticket"));
    world.store.fails(&[Op::Swap]);
    world.server.says(0, "done");
    settle().await;
    json!({ "name": "deferral_result", "arguments": { "ticket": ticket } })
}

#[test]
fn each_waiting_request_for_an_unstored_result_is_answered_in_time() {
    for is_legacy in [false, true] {
        runtime().block_on(async {
            let world = Setup::new().start();
            let client = match is_legacy {
                true => Client::Legacy(world.legacy(Sign::HoldsTickets, json!({})).await),
                false => Client::Modern(holder()),
            };
            let result = refused_result(&world, &client).await;
            for number in 1..=12 {
                let sent = send(&world, &client, result.clone());
                sleep(WAIT + Duration::from_secs(1)).await;
                assert!(sent.is_done(), "request {number} of a {client:?} is not answered");
                let said = sent.last().expect("an answer");
                assert!(said["error"].is_null(), "{said}");
            }
            world.store.works();
            let sent = send(&world, &client, result);
            sleep(WAIT).await;
            assert_eq!(text(&sent).as_deref(), Some("done"), "{client:?}");
        });
    }
}

#[test]
fn concurrent_waiting_requests_for_an_unstored_result_are_answered_in_time() {
    runtime().block_on(async {
        let world = Setup::new().start();
        let client = Client::Legacy(world.legacy(Sign::HoldsTickets, json!({})).await);
        let result = refused_result(&world, &client).await;
        let sent: Vec<_> = (0..500).map(|_| send(&world, &client, result.clone())).collect();
        sleep(WAIT + Duration::from_secs(1)).await;
        let unanswered = sent.iter().filter(|sent| !sent.is_done()).count();
        assert_eq!(unanswered, 0);
    });
}

#[test]
fn each_wait_for_the_result_of_a_legacy_task_has_a_head_while_the_store_refuses_it() {
    runtime().block_on(async {
        let world = Setup::new().start();
        let client = world.legacy(Sign::Nothing, json!({})).await;
        let task = world.legacy_task(&client).await;
        world.store.fails(&[Op::Swap]);
        world.server.says(0, "done");
        settle().await;
        let about = json!({ "taskId": task });
        let mut waiting = Vec::new();
        for number in 1..=12 {
            let sent = world.legacy_ask(&client, "tasks/result", about.clone()).sent();
            settle().await;
            assert!(sent.has_begun(), "request {number} has no head");
            waiting.push(sent);
        }
        world.store.works();
        sleep(Duration::from_secs(10)).await;
        for sent in waiting {
            // Every refused request has its error.
            let said = sent.last().expect("an answer");
            assert!(
                sent.is_done() && (text(&sent).as_deref() == Some("done") || said["error"].is_object()),
                "{said}"
            );
        }
    });
}

#[test]
fn a_call_keeps_reading_its_server_while_the_store_refuses_its_input_request() {
    runtime().block_on(async {
        let world = Setup::new().start();
        let client = world.legacy(Sign::Nothing, json!({ "elicitation": {} })).await;
        let params = json!({ "name": "t", "task": {}, "_meta": { "progressToken": "p" } });
        let said = world.legacy_ask(&client, "tools/call", params).served().await;
        let task = said["result"]["task"]["taskId"].as_str().expect("a task").to_owned();
        let waits = world.legacy_ask(&client, "tasks/result", json!({ "taskId": task })).sent();
        settle().await;
        world.store.fails(&[Op::Swap]);
        world.server.asks(0, "q");
        settle().await;
        world.server.reports(0);
        settle().await;
        let progress = |sent: &Sent| {
            messages(&sent.received).iter().any(|said| said["method"] == "notifications/progress")
        };
        assert!(progress(&waits), "{:?}", messages(&waits.received));
        world.store.works();
        sleep(Duration::from_secs(10)).await;
        let asked = messages(&waits.received);
        assert!(asked.iter().any(|said| said["method"] == "elicitation/create"), "{asked:?}");
    });
}

#[test]
fn requests_about_a_task_are_answered_while_the_store_refuses_its_result() {
    runtime().block_on(async {
        let world = Setup::new().start();
        let client = tasker();
        let task = {
            let sent = send(&world, &Client::Modern(client.clone()), json!({ "name": "t" }));
            sleep(AFTER + Duration::from_millis(100)).await;
            sent.last().expect("a handle")["result"]["taskId"].as_str().expect("a task").to_owned()
        };
        world.store.fails(&[Op::Swap]);
        world.server.says(0, "done");
        settle().await;
        let about = json!({ "taskId": task });
        let answers = json!({ "taskId": task, "inputResponses": {} });
        let asks = (0..20).flat_map(|_| {
            [("tasks/get", &about), ("tasks/cancel", &about), ("tasks/update", &answers)]
                .map(|(method, params)| world.ask(&client, method, params.clone()).served())
        });
        let answered = timeout(Duration::from_secs(1), join_all(asks)).await;
        assert_eq!(answered.expect("all are answered").len(), 60);
    });
}
