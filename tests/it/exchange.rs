//! One call in flight: its whole table.

use deferral::internals::bridge::{
    Action, Exchange,
    exchange::{Patience, Phase},
};
use deferral::internals::runtime::{Clock, SystemClock};
use expect_test::expect;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const AFTER: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(25);
const PARK: Duration = Duration::from_secs(300);
const PATIENCE: Patience = Patience { defer_after: Some(AFTER), settle: SETTLE, park: PARK };

/// The time as the tests tell it: the call's start, and how long ago it was.
type Step = fn(&mut Exchange<&'static str>, Instant);

const DEADLINE: Step = |e, start| e.handle_timeout(start + AFTER);
const ASK: Step = |e, start| e.handle_question(1, start);
const SETTLED: Step = |e, start| e.handle_timeout(start + SETTLE);
const FINAL: Step = |e, _| e.handle_final("word");
const STORED: Step = |e, start| e.handle_stored(true, start + AFTER);
const NOT_STORED: Step = |e, start| e.handle_stored(false, start + AFTER);

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
    ("abandoned", &[DEADLINE, |e, _| e.handle_departed()]),
    ("handing", &[DEADLINE, STORED]),
    ("handing, settled", &[DEADLINE, STORED, FINAL]),
    ("deferred", &[DEADLINE, STORED, |e, _| e.handle_committed()]),
    ("done", &[FINAL]),
    ("done, parked", &[ASK, SETTLED, |e, start| e.handle_timeout(start + SETTLE + PARK)]),
];

const EVENTS: [(&str, Step); 15] = [
    ("final", |e, _| e.handle_final("final")),
    ("question", |e, start| e.handle_question(2, start)),
    ("late question", |e, start| e.handle_question(2, start + AFTER)),
    ("withdrawn", |e, _| e.handle_withdrawn(1)),
    ("retry, answered", |e, start| e.handle_retry(&BTreeSet::from([1]), Some(AFTER), start)),
    ("retry, nothing", |e, start| e.handle_retry(&BTreeSet::new(), None, start)),
    ("too early", |e, start| e.handle_timeout(start)),
    ("deadline", DEADLINE),
    ("park is over", |e, start| e.handle_timeout(start + SETTLE + PARK)),
    ("stopping", |e, start| e.handle_stopping(start)),
    ("stored", STORED),
    ("not stored", NOT_STORED),
    ("committed", |e, _| e.handle_committed()),
    ("departed", |e, _| e.handle_departed()),
    ("cancelled", |e, _| e.handle_cancelled()),
];

#[test]
fn every_phase_meets_every_event() {
    let start = SystemClock::new().now();
    let mut table = String::new();
    for (phase, path) in PHASES {
        for (name, event) in EVENTS {
            let mut exchange = Exchange::new(PATIENCE, start);
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
    expect![[r#"
        inline              | final           | Done               | Reply("final")
        inline              | question        | Inline    25ms     |
        inline              | late question   | Deferring          | Store
        inline              | withdrawn       | Inline    5s       |
        inline              | retry, answered | Inline    5s       |
        inline              | retry, nothing  | Inline    5s       |
        inline              | too early       | Inline    5s       |
        inline              | deadline        | Deferring          | Store
        inline              | park is over    | Deferring          | Store
        inline              | stopping        | Inline    5s       |
        inline              | stored          | Inline    5s       |
        inline              | not stored      | Inline    5s       |
        inline              | committed       | Inline    5s       |
        inline              | departed        | Done               | CancelUpstream
        inline              | cancelled       | Inline    5s       |
        inline for good     | final           | Done               | Reply("final")
        inline for good     | question        | Inline    25ms     |
        inline for good     | late question   | Inline    5.025s   |
        inline for good     | withdrawn       | Inline             |
        inline for good     | retry, answered | Inline             |
        inline for good     | retry, nothing  | Inline             |
        inline for good     | too early       | Inline             |
        inline for good     | deadline        | Inline             |
        inline for good     | park is over    | Inline             |
        inline for good     | stopping        | Inline             |
        inline for good     | stored          | Inline             |
        inline for good     | not stored      | Inline             |
        inline for good     | committed       | Inline             |
        inline for good     | departed        | Done               | CancelUpstream
        inline for good     | cancelled       | Inline             |
        inline, asked       | final           | Done               | Reply("final")
        inline, asked       | question        | Inline    25ms     |
        inline, asked       | late question   | Inline    25ms     |
        inline, asked       | withdrawn       | Inline    5s       |
        inline, asked       | retry, answered | Inline    5s       |
        inline, asked       | retry, nothing  | Inline    25ms     |
        inline, asked       | too early       | Inline    25ms     |
        inline, asked       | deadline        | Parked    305s     | Ask({1})
        inline, asked       | park is over    | Parked    600.025s | Ask({1})
        inline, asked       | stopping        | Inline    25ms     |
        inline, asked       | stored          | Inline    25ms     |
        inline, asked       | not stored      | Inline    25ms     |
        inline, asked       | committed       | Inline    25ms     |
        inline, asked       | departed        | Done               | CancelUpstream
        inline, asked       | cancelled       | Inline    25ms     |
        parked              | final           | Parked    300.025s |
        parked              | question        | Parked    300.025s |
        parked              | late question   | Parked    300.025s |
        parked              | withdrawn       | Parked    300.025s |
        parked              | retry, answered | Inline    5s       |
        parked              | retry, nothing  | Inline    25ms     |
        parked              | too early       | Parked    300.025s |
        parked              | deadline        | Parked    300.025s |
        parked              | park is over    | Done               | Decline(1), CancelUpstream
        parked              | stopping        | Done               | Decline(1), CancelUpstream
        parked              | stored          | Parked    300.025s |
        parked              | not stored      | Parked    300.025s |
        parked              | committed       | Parked    300.025s |
        parked              | departed        | Parked    300.025s |
        parked              | cancelled       | Parked    300.025s |
        parked, answered    | final           | Parked    300.025s |
        parked, answered    | question        | Parked    300.025s |
        parked, answered    | late question   | Parked    300.025s |
        parked, answered    | withdrawn       | Parked    300.025s |
        parked, answered    | retry, answered | Done               | Reply("word")
        parked, answered    | retry, nothing  | Done               | Reply("word")
        parked, answered    | too early       | Parked    300.025s |
        parked, answered    | deadline        | Parked    300.025s |
        parked, answered    | park is over    | Done               | Decline(1)
        parked, answered    | stopping        | Done               | Decline(1)
        parked, answered    | stored          | Parked    300.025s |
        parked, answered    | not stored      | Parked    300.025s |
        parked, answered    | committed       | Parked    300.025s |
        parked, answered    | departed        | Parked    300.025s |
        parked, answered    | cancelled       | Parked    300.025s |
        deferring           | final           | Deferring          |
        deferring           | question        | Deferring          |
        deferring           | late question   | Deferring          |
        deferring           | withdrawn       | Deferring          |
        deferring           | retry, answered | Deferring          |
        deferring           | retry, nothing  | Deferring          |
        deferring           | too early       | Deferring          |
        deferring           | deadline        | Deferring          |
        deferring           | park is over    | Deferring          |
        deferring           | stopping        | Deferring          |
        deferring           | stored          | Handing            | ReplyTask
        deferring           | not stored      | Inline             |
        deferring           | committed       | Deferring          |
        deferring           | departed        | Abandoned          | CancelUpstream
        deferring           | cancelled       | Deferring          |
        deferring, asked    | final           | Deferring          |
        deferring, asked    | question        | Deferring          |
        deferring, asked    | late question   | Deferring          |
        deferring, asked    | withdrawn       | Deferring          |
        deferring, asked    | retry, answered | Deferring          |
        deferring, asked    | retry, nothing  | Deferring          |
        deferring, asked    | too early       | Deferring          |
        deferring, asked    | deadline        | Deferring          |
        deferring, asked    | park is over    | Deferring          |
        deferring, asked    | stopping        | Deferring          |
        deferring, asked    | stored          | Handing            | ReplyTask, AskInTask(1)
        deferring, asked    | not stored      | Inline    5s       |
        deferring, asked    | committed       | Deferring          |
        deferring, asked    | departed        | Abandoned          | CancelUpstream
        deferring, asked    | cancelled       | Deferring          |
        deferring, answered | final           | Deferring          |
        deferring, answered | question        | Deferring          |
        deferring, answered | late question   | Deferring          |
        deferring, answered | withdrawn       | Deferring          |
        deferring, answered | retry, answered | Deferring          |
        deferring, answered | retry, nothing  | Deferring          |
        deferring, answered | too early       | Deferring          |
        deferring, answered | deadline        | Deferring          |
        deferring, answered | park is over    | Deferring          |
        deferring, answered | stopping        | Deferring          |
        deferring, answered | stored          | Done               | Forget, Reply("word")
        deferring, answered | not stored      | Done               | Reply("word")
        deferring, answered | committed       | Deferring          |
        deferring, answered | departed        | Abandoned          |
        deferring, answered | cancelled       | Deferring          |
        abandoned           | final           | Abandoned          |
        abandoned           | question        | Abandoned          | Decline(2)
        abandoned           | late question   | Abandoned          | Decline(2)
        abandoned           | withdrawn       | Abandoned          |
        abandoned           | retry, answered | Abandoned          |
        abandoned           | retry, nothing  | Abandoned          |
        abandoned           | too early       | Abandoned          |
        abandoned           | deadline        | Abandoned          |
        abandoned           | park is over    | Abandoned          |
        abandoned           | stopping        | Abandoned          |
        abandoned           | stored          | Done               | Forget
        abandoned           | not stored      | Done               |
        abandoned           | committed       | Abandoned          |
        abandoned           | departed        | Abandoned          |
        abandoned           | cancelled       | Abandoned          |
        handing             | final           | Handing            | Settle("final")
        handing             | question        | Handing            | AskInTask(2)
        handing             | late question   | Handing            | AskInTask(2)
        handing             | withdrawn       | Handing            | WithdrawInTask(1)
        handing             | retry, answered | Handing            |
        handing             | retry, nothing  | Handing            |
        handing             | too early       | Handing            |
        handing             | deadline        | Handing            |
        handing             | park is over    | Handing            |
        handing             | stopping        | Handing            |
        handing             | stored          | Handing            |
        handing             | not stored      | Handing            |
        handing             | committed       | Deferred           |
        handing             | departed        | Done               | CancelUpstream, Forget
        handing             | cancelled       | Done               | CancelUpstream
        handing, settled    | final           | Handing            |
        handing, settled    | question        | Handing            | Decline(2)
        handing, settled    | late question   | Handing            | Decline(2)
        handing, settled    | withdrawn       | Handing            |
        handing, settled    | retry, answered | Handing            |
        handing, settled    | retry, nothing  | Handing            |
        handing, settled    | too early       | Handing            |
        handing, settled    | deadline        | Handing            |
        handing, settled    | park is over    | Handing            |
        handing, settled    | stopping        | Handing            |
        handing, settled    | stored          | Handing            |
        handing, settled    | not stored      | Handing            |
        handing, settled    | committed       | Done               |
        handing, settled    | departed        | Done               | Forget
        handing, settled    | cancelled       | Done               |
        deferred            | final           | Done               | Settle("final")
        deferred            | question        | Deferred           | AskInTask(2)
        deferred            | late question   | Deferred           | AskInTask(2)
        deferred            | withdrawn       | Deferred           | WithdrawInTask(1)
        deferred            | retry, answered | Deferred           |
        deferred            | retry, nothing  | Deferred           |
        deferred            | too early       | Deferred           |
        deferred            | deadline        | Deferred           |
        deferred            | park is over    | Deferred           |
        deferred            | stopping        | Deferred           |
        deferred            | stored          | Deferred           |
        deferred            | not stored      | Deferred           |
        deferred            | committed       | Deferred           |
        deferred            | departed        | Deferred           |
        deferred            | cancelled       | Done               | CancelUpstream
        done                | final           | Done               |
        done                | question        | Done               | Decline(2)
        done                | late question   | Done               | Decline(2)
        done                | withdrawn       | Done               |
        done                | retry, answered | Done               |
        done                | retry, nothing  | Done               |
        done                | too early       | Done               |
        done                | deadline        | Done               |
        done                | park is over    | Done               |
        done                | stopping        | Done               |
        done                | stored          | Done               |
        done                | not stored      | Done               |
        done                | committed       | Done               |
        done                | departed        | Done               |
        done                | cancelled       | Done               |
        done, parked        | final           | Done               |
        done, parked        | question        | Done               | Decline(2)
        done, parked        | late question   | Done               | Decline(2)
        done, parked        | withdrawn       | Done               |
        done, parked        | retry, answered | Done               |
        done, parked        | retry, nothing  | Done               |
        done, parked        | too early       | Done               |
        done, parked        | deadline        | Done               |
        done, parked        | park is over    | Done               |
        done, parked        | stopping        | Done               |
        done, parked        | stored          | Done               |
        done, parked        | not stored      | Done               |
        done, parked        | committed       | Done               |
        done, parked        | departed        | Done               |
        done, parked        | cancelled       | Done               |
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_call_without_a_threshold_never_asks_for_the_time() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(Patience { defer_after: None, ..PATIENCE }, start);
    assert_eq!(exchange.poll_timeout(), None);
    exchange.handle_timeout(start + PARK);
    assert_eq!(exchange.phase(), Phase::Inline);
    exchange.handle_final(());
    assert_eq!(exchange.poll_action(), Some(Action::Reply(())));
}

#[test]
fn a_call_that_is_a_task_at_once_asks_inside_it_even_if_the_question_is_seen_first() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(Patience { defer_after: Some(Duration::ZERO), ..PATIENCE }, start);
    exchange.handle_question(1, start);
    assert_eq!(exchange.poll_action(), Some(Action::Store));
    exchange.handle_stored(true, start);
    assert_eq!(exchange.poll_action(), Some(Action::ReplyTask));
    assert_eq!(exchange.poll_action(), Some(Action::AskInTask(1)));
}

#[test]
fn a_call_that_is_a_task_at_once_is_one_whatever_arrives_meanwhile() {
    let start = SystemClock::new().now();
    let at_once = Patience { defer_after: Some(Duration::ZERO), ..PATIENCE };
    let while_stored: Step = |e, start| e.handle_timeout(start);
    for before in [&[][..], &[while_stored], &[while_stored, ASK]] {
        let mut exchange = Exchange::new(at_once, start);
        before.iter().for_each(|step| step(&mut exchange, start));
        exchange.handle_final("word");
        assert_eq!(exchange.poll_action(), Some(Action::Store));
        assert_eq!(exchange.poll_action(), None, "nothing before it is stored");
        exchange.handle_stored(true, start);
        assert_eq!(exchange.poll_action(), Some(Action::ReplyTask));
        if before.len() == 2 {
            assert_eq!(exchange.poll_action(), Some(Action::Decline(1)), "the server has answered");
        }
        assert_eq!(exchange.poll_action(), Some(Action::Settle("word")));
        assert_eq!((exchange.phase(), exchange.poll_action()), (Phase::Handing, None));
        exchange.handle_committed();
        assert!(exchange.is_done());
    }
    // Where there is no room for a task the call is answered all the same.
    let mut exchange = Exchange::new(at_once, start);
    exchange.handle_final("word");
    exchange.handle_stored(false, start);
    let actions: Vec<_> = std::iter::from_fn(|| exchange.poll_action()).collect();
    assert_eq!(actions, [Action::Store, Action::Reply("word")]);
}

#[test]
fn the_threshold_begins_again_with_each_retry() {
    let start = SystemClock::new().now();
    let mut exchange = Exchange::<()>::new(PATIENCE, start);
    exchange.handle_question(1, start);
    exchange.handle_timeout(start + SETTLE);
    let later = start + AFTER * 10;
    exchange.handle_retry(&BTreeSet::from([1]), Some(AFTER), later);
    assert_eq!(exchange.poll_timeout(), Some(later + AFTER));
}
