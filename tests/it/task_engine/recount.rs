//! Counts of tasks agree with a recount of their records, however they ended: quotas, metrics and memory.

use super::engine_and_server::{
    AFTER, EngineAndServer, Legacy, Modern, RETENTION, Request, Sent, Setup, Sign, runtime, settle,
};
use crate::{
    admin::Operator,
    proxy::proxy_and_server::{self as proxy, SLOW},
    support::{
        faulty_store::{FaultyStore, Op},
        limit_hits::counts,
    },
};
use deferral::internals::{
    policy::TaskQuotas,
    protocol::Timestamp,
    store::{RecentTask, Store as _},
    task::Record,
    telemetry::limit_snapshots,
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::sleep;

/// How tasks end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Fetched,
    Expired,
    FailedByServer,
    ToolError,
    CancelledByClient,
    CancelledByOperator,
    ConnectionLost,
    /// The result comes while the task is being stored.
    AnsweredWhileStored,
    ResultTooLarge,
    /// There is room for the results of half of them.
    StoreFull,
    HandleNeverTaken,
    Shutdown,
}

/// Who makes calls that become tasks, and how they are shown.
#[derive(Clone, Debug)]
enum Client {
    Modern(Modern),
    Legacy(Legacy),
}

/// What such a client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Tasks,
    Tickets,
    LegacyTickets,
}

/// Tasks that end in each way.
const TASKS: usize = 1_000;
/// How much there is room for, where a test fills it.
const ROOM: usize = TASKS * 1_500;

macro_rules! endings {
    ($holds:ident: $($name:ident $ending:ident)*) => { $(
        #[test]
        fn $name() {
            counts_agree_with_a_recount(Holds::$holds, Ending::$ending);
        }
    )* };
}

endings! { Tasks:
    counts_agree_after_results_were_fetched Fetched
    counts_agree_after_results_expired_unfetched Expired
    counts_agree_after_errors_of_the_server FailedByServer
    counts_agree_after_tool_errors ToolError
    counts_agree_after_cancels_of_clients CancelledByClient
    counts_agree_after_cancels_of_an_operator CancelledByOperator
    counts_agree_after_lost_connections ConnectionLost
    counts_agree_after_results_that_came_while_their_tasks_were_stored AnsweredWhileStored
    counts_agree_after_results_that_were_too_large ResultTooLarge
    counts_agree_after_results_that_found_the_store_full StoreFull
    counts_agree_after_handles_that_were_never_taken HandleNeverTaken
    counts_agree_after_a_shutdown Shutdown
}

endings! { Tickets:
    counts_of_tickets_agree_after_results_were_fetched Fetched
    counts_of_tickets_agree_after_results_expired_unfetched Expired
    counts_of_tickets_agree_after_errors_of_the_server FailedByServer
    counts_of_tickets_agree_after_tool_errors ToolError
    counts_of_tickets_agree_after_cancels_of_clients CancelledByClient
    counts_of_tickets_agree_after_cancels_of_an_operator CancelledByOperator
    counts_of_tickets_agree_after_lost_connections ConnectionLost
    counts_of_tickets_agree_after_results_that_came_while_their_tasks_were_stored AnsweredWhileStored
    counts_of_tickets_agree_after_results_that_were_too_large ResultTooLarge
    counts_of_tickets_agree_after_results_that_found_the_store_full StoreFull
    counts_of_tickets_agree_after_tickets_that_were_never_taken HandleNeverTaken
    counts_of_tickets_agree_after_a_shutdown Shutdown
}

endings! { LegacyTickets:
    counts_of_legacy_tickets_agree_after_results_were_fetched Fetched
    counts_of_legacy_tickets_agree_after_results_expired_unfetched Expired
    counts_of_legacy_tickets_agree_after_errors_of_the_server FailedByServer
    counts_of_legacy_tickets_agree_after_tool_errors ToolError
    counts_of_legacy_tickets_agree_after_cancels_of_clients CancelledByClient
    counts_of_legacy_tickets_agree_after_cancels_of_an_operator CancelledByOperator
    counts_of_legacy_tickets_agree_after_lost_connections ConnectionLost
    counts_of_legacy_tickets_agree_after_results_that_came_while_their_tasks_were_stored AnsweredWhileStored
    counts_of_legacy_tickets_agree_after_results_that_were_too_large ResultTooLarge
    counts_of_legacy_tickets_agree_after_results_that_found_the_store_full StoreFull
    counts_of_legacy_tickets_agree_after_a_shutdown Shutdown
}

fn counts_agree_with_a_recount(holds: Holds, ending: Ending) {
    runtime().block_on(async {
        let setup = Setup::new().quotas(|quotas| {
            quotas.tasks_per_principal = TASKS;
            quotas.stored_result_bytes = if ending == Ending::ResultTooLarge { 1_000 } else { 1 << 20 };
            quotas.stored_bytes_per_principal = if ending == Ending::StoreFull { ROOM } else { 1 << 30 };
        });
        let world = setup.bounded().start();
        let client = client(&world, holds, ending).await;
        // So that what is kept for good is there.
        let taking = client.taking();
        end_tasks(&world, &taking, Ending::Fetched, 2).await;
        expire().await;
        let (memory, before) = (Memory::of(&world), counts());
        let full_before = hits("limits.stored_bytes_per_principal");

        end_tasks(&world, &client, ending, TASKS).await;

        let records = recount(&world, &before).await;
        let ended = |status: &str| records.iter().filter(|record| record.state.status() == status).count();
        let counted = |status: &str| {
            let labels = format!("status=\"{status}\"");
            usize_of(since(&before, "deferral_tasks_ended_total", &labels))
        };
        match ending {
            Ending::Fetched | Ending::Expired | Ending::ToolError => {
                assert_eq!([ended("completed"), counted("completed")], [TASKS; 2]);
            }
            Ending::FailedByServer | Ending::ConnectionLost | Ending::ResultTooLarge | Ending::Shutdown => {
                assert_eq!([ended("failed"), counted("failed")], [TASKS; 2]);
            }
            Ending::CancelledByClient | Ending::CancelledByOperator => {
                assert_eq!([ended("cancelled"), counted("cancelled")], [TASKS; 2]);
            }
            Ending::StoreFull => {
                let (completed, failed) = (ended("completed"), ended("failed"));
                assert_eq!([counted("completed"), counted("failed")], [completed, failed]);
                assert!(completed > TASKS / 4 && failed > TASKS / 4, "{completed} {failed}");
                let met = hits("limits.stored_bytes_per_principal") - full_before;
                assert_eq!(met, failed as u64, "each result that had no room is one hit");
            }
            Ending::AnsweredWhileStored | Ending::HandleNeverTaken => assert_eq!(records.len(), 0),
        }
        drop(records);
        let fetched = || usize_of(since(&before, "deferral_task_polls_count", ""));
        let uncollected = || usize_of(since(&before, "deferral_results_uncollected_total", ""));
        let are_fetched = if ending == Ending::Fetched { TASKS } else { 0 };
        assert_eq!((fetched(), uncollected()), (are_fetched, 0));
        let tickets = |outcome: &str| {
            usize_of(since(&before, "deferral_tickets_total", &format!("outcome=\"{outcome}\"")))
        };
        let given = match (holds, ending) {
            (Holds::Tasks, _) | (_, Ending::AnsweredWhileStored) => 0,
            (Holds::Tickets | Holds::LegacyTickets, _) => TASKS,
        };
        let collected = if holds == Holds::Tasks { 0 } else { are_fetched };
        assert_eq!(
            (tickets("given"), tickets("collected"), tickets("never_collected")),
            (given, collected, 0)
        );
        if ending == Ending::Shutdown {
            return;
        }

        expire().await;

        assert_eq!(recount(&world, &before).await.len(), 0);
        let has_results = matches!(
            ending,
            Ending::Expired
                | Ending::FailedByServer
                | Ending::ToolError
                | Ending::ConnectionLost
                | Ending::ResultTooLarge
                | Ending::StoreFull
        );
        let never = if has_results { TASKS } else { 0 };
        assert_eq!((fetched(), uncollected()), (are_fetched, never));
        let never = if holds == Holds::Tasks { 0 } else { never };
        assert_eq!((tickets("collected"), tickets("never_collected")), (collected, never));
        assert_eq!(Memory::of(&world), memory, "something is left in memory");
        assert_eq!((world.ledger.working_count(), world.ledger.unfetched_count()), (0, 0));

        // Neither more nor less than the quota.
        world.ledger.set_quotas(TaskQuotas { tasks_per_principal: 3, ..world.quotas });
        let sent = call_as(&world, &taking, 5).await;
        let made = sent.iter().filter(|sent| sent.is_done()).count();
        assert_eq!(made, 3, "places were lost or won");
    });
}

/// How often what belongs to tasks is referred to.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    /// By each record and by each task whose result is not fetched.
    path: usize,
    /// By each task that is held here.
    ledger: usize,
    switchboard: usize,
}

impl Memory {
    fn of(world: &EngineAndServer) -> Self {
        Self {
            path: Arc::strong_count(&world.path),
            ledger: Arc::strong_count(&world.ledger),
            switchboard: Arc::strong_count(&world.switchboard),
        }
    }
}

/// Lets all that has ended outlive its time.
async fn expire() {
    sleep(RETENTION + Duration::from_secs(30)).await;
}

/// All records; what is counted of them agrees.
async fn recount(world: &EngineAndServer, before: &BTreeMap<String, f64>) -> Vec<Arc<Record>> {
    let mut records = Vec::new();
    for due in world.store.due(Timestamp::from_millis(u64::MAX), usize::MAX).await.expect("it answers") {
        records.push(world.store.load(&due.id).await.expect("it answers").expect("it is there").record);
    }
    let (tallies, usage) = world.ledger.census().await.expect("it answers");
    let bytes: usize = records.iter().map(|record| record.stored_bytes()).sum();
    assert_eq!((usage.tasks, usage.stored_bytes), (records.len(), bytes));
    let of_principal = world.store.usage(&[1; 16]);
    assert_eq!(of_principal.tasks_of_principal, records.len(), "all are of one principal");
    assert_eq!(of_principal.stored_bytes_of_principal, bytes);
    let mut statuses = BTreeMap::new();
    for record in &records {
        *statuses.entry(record.state.status()).or_insert(0) += 1;
    }
    let tallied: BTreeMap<_, _> = tallies.iter().map(|tally| (tally.status, tally.tasks)).collect();
    assert_eq!(tallied, statuses);
    let live = records.iter().filter(|record| !record.state.is_ended()).count();
    let (created, ended) =
        (since(before, "deferral_tasks_created_total", ""), since(before, "deferral_tasks_ended_total", ""));
    assert_eq!(usize_of(created - ended), live, "{created} were made and {ended} have ended");
    assert_eq!(since(before, "deferral_task_duration_seconds_count", ""), ended);
    records
}

/// How much more has been counted since then, of all samples with these labels.
fn since(before: &BTreeMap<String, f64>, family: &str, labels: &str) -> f64 {
    let is_one = |name: &str| name.split('{').next() == Some(family) && name.contains(labels);
    let sum = |counts: &BTreeMap<String, f64>| -> f64 {
        counts.iter().filter(|(name, _)| is_one(name)).map(|(_, count)| count).sum()
    };
    sum(&counts()) - sum(before)
}

fn usize_of(count: f64) -> usize {
    assert!(count >= 0.0 && count.fract() == 0.0, "{count}");
    count as usize
}

fn hits(limit: &str) -> u64 {
    limit_snapshots().iter().find(|it| it.limit == limit).expect("it is counted").hits
}

async fn client(world: &EngineAndServer, holds: Holds, ending: Ending) -> Client {
    let loses_handles = ending == Ending::HandleNeverTaken;
    match holds {
        Holds::Tasks => Client::Modern(Modern { takes_tasks: true, loses_handles, ..Modern::default() }),
        Holds::Tickets => Client::Modern(Modern { holds_tickets: true, loses_handles, ..Modern::default() }),
        Holds::LegacyTickets => Client::Legacy(world.legacy(Sign::HoldsTickets, json!({})).await),
    }
}

impl Client {
    /// The same, which takes what it is given.
    fn taking(&self) -> Self {
        match self {
            Self::Modern(client) => Self::Modern(Modern { loses_handles: false, ..client.clone() }),
            Self::Legacy(client) => Self::Legacy(client.clone()),
        }
    }

    fn ask(&self, world: &EngineAndServer, method: &str, params: Value) -> Request {
        match self {
            Self::Modern(client) => world.ask(client, method, params),
            Self::Legacy(client) => world.legacy_ask(client, method, params),
        }
    }

    fn holds_tickets(&self) -> bool {
        matches!(self, Self::Legacy(_) | Self::Modern(Modern { holds_tickets: true, .. }))
    }

    /// Asks for what its call came to.
    fn fetch(&self, world: &EngineAndServer, sent: &Sent) -> Request {
        match self.holds_tickets() {
            true => self.ask(world, "tools/call", with_ticket("deferral_result", sent)),
            false => self.ask(world, "tasks/get", json!({ "taskId": task_id(sent) })),
        }
    }

    fn cancel(&self, world: &EngineAndServer, sent: &Sent) -> Request {
        match self.holds_tickets() {
            true => self.ask(world, "tools/call", with_ticket("deferral_cancel", sent)),
            false => self.ask(world, "tasks/cancel", json!({ "taskId": task_id(sent) })),
        }
    }
}

fn with_ticket(tool: &str, sent: &Sent) -> Value {
    json!({ "name": tool, "arguments": { "ticket": EngineAndServer::ticket_in(&sent.last().expect("a ticket")) } })
}

fn task_id(sent: &Sent) -> String {
    let said = sent.last().expect("a handle");
    said["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {said}")).to_owned()
}

/// So many calls that have run for longer than until they are tasks.
async fn call_as(world: &EngineAndServer, client: &Client, calls: usize) -> Vec<Sent> {
    let sent = (0..calls).map(|_| client.ask(world, "tools/call", json!({ "name": "t" })).sent());
    let sent = sent.collect();
    sleep(AFTER + Duration::from_millis(100)).await;
    sent
}

async fn end_tasks(world: &EngineAndServer, client: &Client, ending: Ending, tasks: usize) {
    if ending == Ending::AnsweredWhileStored {
        world.store.stalls(&[Op::Insert]);
    }
    let first = world.server.calls();
    let sent = call_as(world, client, tasks).await;
    let calls = first..world.server.calls();
    assert_eq!(calls.len(), tasks);
    match ending {
        Ending::Fetched | Ending::Expired => {
            calls.for_each(|call| world.server.says(call, "done"));
        }
        Ending::FailedByServer => calls.for_each(|call| world.server.fails(call)),
        Ending::ToolError => {
            calls.for_each(|call| world.server.answers(call, json!({ "content": [], "isError": true })));
        }
        Ending::ResultTooLarge | Ending::StoreFull => {
            let large = "x".repeat(2 * ROOM / TASKS);
            calls.for_each(|call| world.server.says(call, &large));
        }
        Ending::ConnectionLost => world.server.dies(),
        Ending::CancelledByClient => {
            let cancels = sent.iter().map(|sent| client.cancel(world, sent).served());
            for said in join_all(cancels).await {
                assert!(said["error"].is_null(), "{said}");
            }
        }
        Ending::CancelledByOperator => {
            // A ticket does not say which task it is.
            let recent = world.store.recent(false, None, tasks).await.expect("it answers");
            assert_eq!(recent.len(), tasks);
            let cancels = recent.into_iter().map(|RecentTask { record, .. }| {
                let operators = Arc::clone(&world.operators);
                async move { operators.cancel(record.id.as_str()).await.map(drop) }
            });
            assert!(join_all(cancels).await.iter().all(Result::is_ok));
        }
        Ending::AnsweredWhileStored => {
            calls.for_each(|call| world.server.says(call, "done"));
            settle().await;
            let answered = sent.iter().filter(|sent| {
                sent.last().is_some_and(|said| said["result"]["content"][0]["text"] == "done")
            });
            assert_eq!(answered.count(), tasks, "whoever waits is answered at once");
            world.store.stalls(&[]);
        }
        Ending::HandleNeverTaken => {}
        Ending::Shutdown => {
            world.drains[0].start();
            settle().await;
            world.drains[1].start();
        }
    }
    settle().await;
    sleep(Duration::from_secs(1)).await;
    if ending == Ending::Fetched {
        for said in join_all(sent.iter().map(|sent| client.fetch(world, sent).served())).await {
            match client.holds_tickets() {
                true => assert_eq!(said["result"]["content"][0]["text"], "done", "{said}"),
                false => assert_eq!(said["result"]["status"], "completed", "{said}"),
            }
        }
    }
}

/// Tasks of each kind that operators are shown.
const SHOWN: usize = 10;

#[tokio::test]
async fn what_operators_are_shown_agrees_with_a_recount() {
    let store = FaultyStore::new();
    let setup = proxy::Setup::new().top("admin: 127.0.0.1:0").route(SLOW).store(&store);
    let world = setup.start().await;
    let operator = Operator::of(world.proxy.admin.as_ref().expect("there is one"));
    let client = world.tasker();
    let mut open = Vec::new();
    for kind in 0..6 {
        for _ in 0..SHOWN {
            let waiting = client.call("t").await;
            let call = world.server.call().await;
            let task = waiting.answer().await.task();
            match kind {
                0 => {
                    call.says("done");
                    client.ended(&task).await;
                }
                1 => {
                    call.error(json!({ "code": -32050, "message": "no" }));
                    client.ended(&task).await;
                }
                2 => {
                    call.result(json!({ "content": [], "isError": true }));
                    client.ended(&task).await;
                }
                3 => {
                    client.of_task("tasks/cancel", &task).await.result();
                }
                4 => {
                    let answer = operator.post(&format!("/tasks/{task}/cancel")).await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                }
                _ => open.push(call),
            }
        }
    }
    let text = operator.get("/metrics").await.body;
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let samples: Vec<(&str, f64)> =
        samples.map(|(name, value)| (name, value.parse().expect("a number"))).collect();
    let sum = |family: &str, labels: &str| -> f64 {
        let is_one = |name: &str| name.split('{').next() == Some(family) && name.contains(labels);
        samples.iter().filter(|(name, _)| is_one(name)).map(|(_, value)| value).sum()
    };
    let of_each = SHOWN as f64;
    for (status, kinds) in [("completed", 2.0), ("failed", 1.0), ("cancelled", 2.0)] {
        let labels = format!("status=\"{status}\"");
        assert_eq!(sum("deferral_tasks", &labels), kinds * of_each, "{status}");
        assert_eq!(sum("deferral_tasks_ended_total", &labels), kinds * of_each, "{status}");
    }
    assert_eq!(sum("deferral_tasks", "status=\"working\""), of_each);
    let given = sum("deferral_calls_total", "method=\"tools/call\",outcome=\"task\"");
    assert_eq!((sum("deferral_tasks_created_total", ""), given), (6.0 * of_each, 6.0 * of_each));
    assert_eq!(sum("deferral_task_polls_count", ""), 3.0 * of_each, "ends that were fetched");
    let (mut tasks, mut bytes) = (0, 0);
    for due in store.due(Timestamp::from_millis(u64::MAX), usize::MAX).await.expect("it answers") {
        tasks += 1;
        bytes += store.load(&due.id).await.expect("it answers").expect("it is there").record.stored_bytes();
    }
    let limits = operator.json("/limits").await;
    let used = |key: &str| {
        let limits = limits.as_array().expect("a list");
        limits.iter().find(|limit| limit["limit"] == key).expect("it is a limit")["used"].clone()
    };
    assert_eq!((used("limits.tasks"), used("limits.stored_bytes")), (json!(tasks), json!(bytes)));
    assert_eq!(tasks, 6 * SHOWN);
    let counts = operator.json("/tasks").await["counts"].clone();
    let counted =
        json!({ "cancelled": 2 * SHOWN, "completed": 2 * SHOWN, "failed": SHOWN, "working": SHOWN });
    assert_eq!(counts, counted);
    open.into_iter().for_each(|call| call.says("done"));
}
