//! Exchanges and task steps: what deciding costs, beside what it decides about.
//!
//! `cargo bench --bench machine`

mod support;

use bytes::Bytes;
use deferral::internals::{
    bridge::{
        Exchange, ExchangeAction,
        exchange::{CallDeadlines, InputDelivery},
    },
    protocol::Timestamp,
    runtime::{Clock, SystemClock},
    task::{PollBounds, Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, apply, view},
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use support::Group;

const RETENTION: Duration = Duration::from_secs(3600);
const BOUNDS: PollBounds = (Duration::from_millis(500), Duration::from_secs(30));

fn main() {
    let now = SystemClock::new().now();
    exchanges(now);
    steps();
    for size in [200, 16 << 10, 256 << 10] {
        views(size);
    }
}

/// A task at once, so that the deadline is there when it is looked for.
const DEADLINES: CallDeadlines = CallDeadlines {
    defer_after: Some(Duration::ZERO),
    settle: Duration::from_millis(25),
    park: Duration::from_secs(300),
    input_timeout: None,
};

fn exchanges(now: Instant) {
    Group::new("an exchange, from its start to its one outcome")
        .case("answered inline", 0, || inline(black_box(now)))
        .case("deferred, then answered", 0, || deferred(black_box(now)))
        .case("deferred, then cancelled", 0, || cancelled(black_box(now)))
        .run();
}

fn inline(now: Instant) -> Option<ExchangeAction<u64>> {
    let mut exchange = Exchange::new(InputDelivery::RoundTrips, DEADLINES, now);
    exchange.handle_final(7);
    exchange.poll_action()
}

fn deferred(now: Instant) -> Option<ExchangeAction<u64>> {
    let mut exchange = in_hand(now);
    exchange.handle_final(7);
    exchange.poll_action()
}

fn cancelled(now: Instant) -> Option<ExchangeAction<u64>> {
    let mut exchange = in_hand(now);
    exchange.handle_task_cancelled();
    exchange.poll_action()
}

/// An exchange whose client has the handle of its task.
fn in_hand(now: Instant) -> Exchange<u64> {
    let mut exchange = Exchange::new(InputDelivery::RoundTrips, DEADLINES, now);
    exchange.handle_timeout(now);
    exchange.poll_action();
    exchange.handle_stored(true, now);
    exchange.poll_action();
    exchange.handle_committed();
    exchange
}

fn steps() {
    let record = working();
    let asked = step(&record, question("a"));
    let answer = [("a".to_owned(), Ok(Bytes::from_static(br#"{"action":"accept"}"#)))];
    let result = result(200);
    Group::new("one step of a task")
        .case("returned", 0, || step(&record, TaskEvent::Returned { result: result.clone() }))
        .case("progressed", 0, || step(&record, TaskEvent::Progressed { message: "half (1/2)".into() }))
        .case("asked", 0, || step(&record, question("a")))
        .case("answered", 0, || {
            step(&asked, TaskEvent::InputAnswered { answers: answer.clone().into(), are_stored: false })
        })
        .case("cancelled", 0, || step(&record, TaskEvent::CANCELLED_BY_CLIENT))
        .run();
}

/// What `tasks/get` shows. A copy of the result is what it is measured by: no view needs less.
fn views(size: usize) {
    let record = working();
    let result = result(size);
    let completed = step(&record, TaskEvent::Returned { result: result.clone() });
    let now = Timestamp::from_millis(5_000);
    Group::new(format!("a task with a result of {size} bytes, as it is shown"))
        .case("a copy of the result, for comparison", size, || black_box(&result).to_vec())
        .case("view::extension::detailed, completed", size, || {
            view::extension::get_task_result(&completed, now, BOUNDS, None)
        })
        .case("view::extension::detailed, working", 0, || {
            view::extension::get_task_result(&record, now, BOUNDS, None)
        })
        .case("view::extension::created", 0, || {
            view::extension::create_task_result(&record, now, BOUNDS, None)
        })
        .run();
}

fn working() -> Record {
    let owner = TaskPrincipal { principal: [0; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    Record::new(TaskId::from_entropy([7; 16]), owner, "slow", RETENTION, Timestamp::from_millis(1_000))
}

fn step(record: &Record, event: TaskEvent) -> Record {
    let (next, _effects) = apply(record, event, Timestamp::from_millis(2_000)).expect("the event applies");
    next
}

fn question(key: &str) -> TaskEvent {
    let request = Bytes::from_static(
        br#"{"method":"elicitation/create","params":{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}}"#,
    );
    TaskEvent::InputRequested { key: key.to_owned(), request }
}

fn result(size: usize) -> Bytes {
    let (before, after) =
        (r#"{"resultType":"complete","content":[{"type":"text","text":""#, r#""}],"isError":false}"#);
    [before, &".".repeat(size - before.len() - after.len()), after].concat().into()
}
