//! The state machine of one call: its whole table.

use deferral::internals::bridge::{
    Exchange, ExchangeAction,
    exchange::{CallDeadlines, ExchangePhase, InputDelivery},
};
use deferral::internals::runtime::{Clock, SystemClock};
use expect_test::expect_file;
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const AFTER: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(25);
const PARK: Duration = Duration::from_secs(300);
const DEADLINES: CallDeadlines =
    CallDeadlines { defer_after: Some(AFTER), settle: SETTLE, park: PARK, input_timeout: None };

/// The time as the tests tell it: the call's start, and how long ago it was.
type Step = fn(&mut Exchange<&'static str>, Instant);

const DEADLINE: Step = |e, start| e.handle_timeout(start + AFTER);
const ASK: Step = |e, start| e.handle_input_request(1, start);
const SETTLED: Step = |e, start| e.handle_timeout(start + SETTLE);
const FINAL: Step = |e, _| e.handle_final("word");
const TURN_OVER: Step = |e, start| e.handle_input_required(BTreeSet::from([1, 2]), start);
const STORED: Step = |e, start| e.handle_stored(true, start + AFTER);
const NOT_STORED: Step = |e, start| e.handle_stored(false, start + AFTER);
const DEPARTED: Step = |e, _| e.handle_disconnect();

/// Each phase, and how a call gets there.
const PHASES: [(&str, &[Step]); 14] = [
    ("inline", &[]),
    ("inline for good", &[DEADLINE, NOT_STORED]),
    ("inline, asked", &[ASK]),
    ("parked", &[ASK, SETTLED]),
    ("parked, answered", &[ASK, SETTLED, FINAL]),
    ("deferring", &[DEADLINE]),
    ("deferring, asked", &[DEADLINE, ASK]),
    ("deferring, answered", &[DEADLINE, FINAL]),
    ("abandoned", &[DEADLINE, DEPARTED]),
    ("handing", &[DEADLINE, STORED]),
    ("handing, settled", &[DEADLINE, STORED, FINAL]),
    ("deferred", &[DEADLINE, STORED, |e, _| e.handle_committed()]),
    ("done", &[FINAL]),
    ("done, parked", &[ASK, SETTLED, |e, start| e.handle_timeout(start + SETTLE + PARK)]),
];

/// Each phase of a call whose client is asked on its stream.
const ON_STREAM: [(&str, &[Step]); 7] = [
    ("inline", &[]),
    ("inline for good", &[DEADLINE, NOT_STORED]),
    ("inline, asked", &[ASK]),
    ("inline, left", &[DEADLINE, NOT_STORED, DEPARTED]),
    ("deferring, asked", &[DEADLINE, ASK]),
    ("deferring, answered", &[DEADLINE, FINAL]),
    ("deferred", &[DEADLINE, STORED]),
];

/// Each phase of a call whose client, which knows no tasks, may be answered with a ticket.
const WITH_TICKET: [(&str, &[Step]); 11] = [
    ("inline", &[]),
    ("inline, asked", &[ASK]),
    ("inline, left", &[DEPARTED]),
    ("inline, asked, left", &[ASK, DEPARTED]),
    ("inline for good", &[DEADLINE, NOT_STORED]),
    ("deferring", &[DEADLINE]),
    ("deferring, asked", &[DEADLINE, ASK]),
    ("deferring, answered", &[DEADLINE, FINAL]),
    ("deferring, left", &[DEADLINE, DEPARTED]),
    ("deferred", &[DEADLINE, STORED]),
    ("done", &[FINAL]),
];

/// Each phase in which the server has turned the call over for two questions.
const TURNED_OVER: [(&str, &[Step]); 5] = [
    ("parked", &[TURN_OVER]),
    ("parked, one left", &[TURN_OVER, |e, start| e.handle_retry(&BTreeSet::from([1]), None, start)]),
    ("deferring", &[DEADLINE, TURN_OVER]),
    ("deferred", &[DEADLINE, STORED, |e, _| e.handle_committed(), TURN_OVER]),
    (
        "deferred, one left",
        &[DEADLINE, STORED, |e, _| e.handle_committed(), TURN_OVER, |e, _| e.handle_input_answered(1)],
    ),
];

const EVENTS: [(&str, Step); 21] = [
    ("final", |e, _| e.handle_final("final")),
    ("question", |e, start| e.handle_input_request(2, start)),
    ("late question", |e, start| e.handle_input_request(2, start + AFTER)),
    ("withdrawn", |e, _| e.handle_input_withdrawn(1)),
    ("retry, answered", |e, start| e.handle_retry(&BTreeSet::from([1]), Some(AFTER), start)),
    ("retry, nothing", |e, start| e.handle_retry(&BTreeSet::new(), None, start)),
    ("too early", |e, start| e.handle_timeout(start)),
    ("deadline", DEADLINE),
    ("park is over", |e, start| e.handle_timeout(start + SETTLE + PARK)),
    ("draining", |e, start| e.handle_drain(start)),
    ("no more tasks", |e, _| e.handle_tasks_disabled()),
    ("stopping", |e, start| e.handle_shutdown(start)),
    ("stored", STORED),
    ("not stored", NOT_STORED),
    ("committed", |e, _| e.handle_committed()),
    ("departed", DEPARTED),
    ("cancelled", |e, _| e.handle_task_cancelled()),
    ("taken back", |e, _| e.handle_request_cancelled()),
    ("turned over", TURN_OVER),
    ("first answered", |e, _| e.handle_input_answered(1)),
    ("other answered", |e, _| e.handle_input_answered(2)),
];

/// Every phase under every event: where it leads, when it wants to hear of the time, and what is done.
fn table(manner: InputDelivery, phases: &[(&str, &[Step])]) -> String {
    let start = SystemClock::new().now();
    let mut table = String::new();
    for (phase, path) in phases {
        for (name, event) in EVENTS {
            let mut exchange = Exchange::new(manner, DEADLINES, start);
            path.iter().for_each(|step| step(&mut exchange, start));
            while exchange.poll_action().is_some() {}
            event(&mut exchange, start);
            let actions: Vec<_> =
                std::iter::from_fn(|| exchange.poll_action()).map(|action| format!("{action:?}")).collect();
            let after = format!("{:?}", exchange.phase());
            let due = exchange.poll_timeout().map_or_else(String::new, |at| format!("{:?}", at - start));
            table += &format!("{phase:19} | {name:15} | {after:9} {due:8} | {}", actions.join(", "));
            table = table.trim_end().to_owned() + "\n";
        }
    }
    table
}

#[test]
fn every_phase_meets_every_event() {
    expect_file!["../golden/exchange-rounds.txt"].assert_eq(&table(InputDelivery::RoundTrips, &PHASES));
}

#[test]
fn every_phase_meets_every_event_where_input_requests_go_on_the_calls_stream() {
    expect_file!["../golden/exchange-stream.txt"].assert_eq(&table(InputDelivery::Stream, &ON_STREAM));
}

#[test]
fn every_phase_meets_every_event_where_the_client_may_be_answered_with_a_ticket() {
    expect_file!["../golden/exchange-ticket.txt"].assert_eq(&table(InputDelivery::Ticket, &WITH_TICKET));
}

#[test]
fn every_phase_meets_every_event_where_the_server_has_turned_the_call_over() {
    expect_file!["../golden/exchange-turned-over.txt"]
        .assert_eq(&table(InputDelivery::RoundTrips, &TURNED_OVER));
}

#[test]
fn an_input_request_in_a_task_lapses_where_it_blocks_other_calls() {
    let start = SystemClock::new().now();
    let turn = Some(PARK);
    let mut exchange = Exchange::<()>::new(
        InputDelivery::RoundTrips,
        CallDeadlines { input_timeout: turn, ..DEADLINES },
        start,
    );
    exchange.handle_timeout(start + AFTER);
    exchange.handle_input_request(1, start + AFTER);
    exchange.handle_stored(true, start + AFTER);
    exchange.handle_committed();
    exchange.handle_input_request(2, start + AFTER * 2);
    exchange.handle_input_request(3, start + AFTER * 2);
    exchange.handle_input_request(4, start + AFTER * 3);
    while exchange.poll_action().is_some() {}
    assert_eq!(exchange.poll_timeout(), Some(start + AFTER + PARK));
    exchange.handle_input_answered(2);
    exchange.handle_input_withdrawn(3);
    assert_eq!(exchange.poll_action(), Some(ExchangeAction::Withdraw(3)));
    exchange.handle_timeout(start + AFTER + PARK);
    assert_eq!(
        (exchange.poll_action(), exchange.poll_action()),
        (Some(ExchangeAction::ExpireInput(1)), None)
    );
    assert_eq!(exchange.poll_timeout(), Some(start + AFTER * 3 + PARK));
    exchange.handle_final(());
    assert_eq!(exchange.poll_timeout(), None, "the call is over");
}

#[test]
fn an_input_request_of_an_input_required_result_blocks_no_other_call() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::stored_task(
        InputDelivery::RoundTrips,
        CallDeadlines { input_timeout: Some(PARK), ..DEADLINES },
    );
    exchange.handle_input_required(BTreeSet::from([1]), start);
    assert_eq!(
        (exchange.poll_action(), exchange.poll_timeout()),
        (Some(ExchangeAction::RequestInTask(1)), None)
    );
}

#[test]
fn a_call_without_a_threshold_never_reads_the_clock() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(
        InputDelivery::RoundTrips,
        CallDeadlines { defer_after: None, ..DEADLINES },
        start,
    );
    assert_eq!(exchange.poll_timeout(), None);
    exchange.handle_timeout(start + PARK);
    assert_eq!(exchange.phase(), ExchangePhase::Inline);
    exchange.handle_final(());
    assert_eq!(exchange.poll_action(), Some(ExchangeAction::Reply(())));
}

#[test]
fn an_immediate_task_owns_an_input_request_that_arrives_before_it_is_stored() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(
        InputDelivery::RoundTrips,
        CallDeadlines { defer_after: Some(Duration::ZERO), ..DEADLINES },
        start,
    );
    exchange.handle_input_request(1, start);
    assert_eq!(exchange.poll_action(), Some(ExchangeAction::Store));
    exchange.handle_stored(true, start);
    assert_eq!(exchange.poll_action(), Some(ExchangeAction::ReplyTask));
    assert_eq!(exchange.poll_action(), Some(ExchangeAction::RequestInTask(1)));
}

#[test]
fn a_call_that_is_a_task_at_once_is_one_whatever_arrives_meanwhile() {
    let start = SystemClock::new().now();
    let at_once = CallDeadlines { defer_after: Some(Duration::ZERO), ..DEADLINES };
    let while_stored: Step = |e, start| e.handle_timeout(start);
    for before in [&[][..], &[while_stored], &[while_stored, ASK]] {
        let mut exchange = Exchange::new(InputDelivery::RoundTrips, at_once, start);
        before.iter().for_each(|step| step(&mut exchange, start));
        exchange.handle_final("word");
        assert_eq!(exchange.poll_action(), Some(ExchangeAction::Store));
        assert_eq!(exchange.poll_action(), None, "nothing before it is stored");
        exchange.handle_stored(true, start);
        assert_eq!(exchange.poll_action(), Some(ExchangeAction::ReplyTask));
        if before.len() == 2 {
            assert_eq!(exchange.poll_action(), Some(ExchangeAction::Decline(1)), "the server has answered");
        }
        assert_eq!(exchange.poll_action(), Some(ExchangeAction::StoreResult("word")));
        assert_eq!((exchange.phase(), exchange.poll_action()), (ExchangePhase::CommittingHandle, None));
        exchange.handle_committed();
        assert!(exchange.is_done());
    }
    // Where there is no room for a task the call is answered all the same.
    let mut exchange = Exchange::new(InputDelivery::RoundTrips, at_once, start);
    exchange.handle_final("word");
    exchange.handle_stored(false, start);
    let actions: Vec<_> = std::iter::from_fn(|| exchange.poll_action()).collect();
    assert_eq!(actions, [ExchangeAction::Store, ExchangeAction::Reply("word")]);
}

#[test]
fn the_threshold_begins_again_with_each_retry() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(InputDelivery::RoundTrips, DEADLINES, start);
    exchange.handle_input_request(1, start);
    exchange.handle_timeout(start + SETTLE);
    let later = start + AFTER * 10;
    exchange.handle_retry(&BTreeSet::from([1]), Some(AFTER), later);
    assert_eq!(exchange.poll_timeout(), Some(later + AFTER));
}

/// One step of a call, for a call that defers and for one that is only observed.
fn stepped(exchange: &mut Exchange<()>, step: u8, now: Instant, threshold: Option<Duration>) {
    match step {
        0 | 1 => {}
        2 => exchange.handle_input_request(1, now),
        3 => exchange.handle_input_request(2, now),
        4 => exchange.handle_input_withdrawn(1),
        5 => exchange.handle_retry(&BTreeSet::from([1, 2]), threshold, now),
        6 => exchange.handle_retry(&BTreeSet::new(), threshold, now),
        7 => exchange.handle_input_required(BTreeSet::from([1]), now),
        8 => exchange.handle_tasks_disabled(),
        9 => exchange.handle_final(()),
        _ => exchange.handle_disconnect(),
    }
}

proptest! {
    #[test]
    fn a_call_is_observed_to_pass_its_threshold_exactly_where_it_would_have_been_stored(
        steps in prop::collection::vec((0..4_000_u64, 0..11_u8), 1..12),
    ) {
        let start = SystemClock::new().now();
        let mut deferring = Exchange::new(InputDelivery::RoundTrips, DEADLINES, start);
        let mut observed =
            Exchange::new(InputDelivery::RoundTrips, CallDeadlines { defer_after: None, ..DEADLINES }, start);
        observed.observe(AFTER, start);
        let (mut now, mut is_stored) = (start, false);
        for (millis, step) in steps {
            let next = now + Duration::from_millis(millis);
            // Each receives the time when its deadline passes.
            for exchange in [&mut deferring, &mut observed] {
                while let Some(due) = exchange.poll_timeout().filter(|due| *due <= next) {
                    exchange.handle_timeout(due.max(now));
                    if exchange.poll_timeout() == Some(due) {
                        break;
                    }
                }
            }
            now = next;
            observed.observe_time(now);
            // From then on they are two different calls.
            is_stored = is_stored || matches!(deferring.phase(), ExchangePhase::Deferring);
            if is_stored {
                break;
            }
            stepped(&mut deferring, step, now, Some(AFTER));
            stepped(&mut observed, step, now, None);
            is_stored = is_stored || matches!(deferring.phase(), ExchangePhase::Deferring);
        }
        prop_assert_eq!(observed.would_defer(), is_stored);
    }
}
