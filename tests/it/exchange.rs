//! One call in flight: its whole table.

use deferral::bridge::{Action, Exchange, exchange::Phase};
use deferral::runtime::{Clock, SystemClock};
use expect_test::expect;
use std::time::{Duration, Instant};

const AFTER: Duration = Duration::from_secs(5);

/// Brings an exchange into a phase and empties its actions.
fn in_phase(phase: &str, start: Instant) -> Exchange<&'static str> {
    let mut exchange = Exchange::new(Some(start + AFTER));
    let path: &[fn(&mut Exchange<&'static str>, Instant)] = match phase {
        "inline" => &[],
        "inline for good" => &[|e, now| e.handle_timeout(now), |e, _| e.handle_stored(false)],
        "deferring" => &[|e, now| e.handle_timeout(now)],
        "deferring, answered" => &[|e, now| e.handle_timeout(now), |e, _| e.handle_final("word")],
        "abandoned" => &[|e, now| e.handle_timeout(now), |e, _| e.handle_departed()],
        "handing" => &[|e, now| e.handle_timeout(now), |e, _| e.handle_stored(true)],
        "handing, settled" => {
            &[|e, now| e.handle_timeout(now), |e, _| e.handle_stored(true), |e, _| e.handle_final("word")]
        }
        "deferred" => {
            &[|e, now| e.handle_timeout(now), |e, _| e.handle_stored(true), |e, _| e.handle_committed()]
        }
        "done" => &[|e, _| e.handle_final("word")],
        other => panic!("no phase {other}"),
    };
    for step in path {
        step(&mut exchange, start + AFTER);
        while exchange.poll_action().is_some() {}
    }
    exchange
}

const PHASES: [&str; 9] = [
    "inline",
    "inline for good",
    "deferring",
    "deferring, answered",
    "abandoned",
    "handing",
    "handing, settled",
    "deferred",
    "done",
];

type Step = fn(&mut Exchange<&'static str>, Instant);

const EVENTS: [(&str, Step); 8] = [
    ("final", |e, _| e.handle_final("final")),
    ("too early", |e, start| e.handle_timeout(start)),
    ("deadline", |e, start| e.handle_timeout(start + AFTER)),
    ("stored", |e, _| e.handle_stored(true)),
    ("not stored", |e, _| e.handle_stored(false)),
    ("committed", |e, _| e.handle_committed()),
    ("departed", |e, _| e.handle_departed()),
    ("cancelled", |e, _| e.handle_cancelled()),
];

#[test]
fn every_phase_meets_every_event() {
    let start = SystemClock::new().now();
    let mut table = String::new();
    for phase in PHASES {
        for (name, event) in EVENTS {
            let mut exchange = in_phase(phase, start);
            event(&mut exchange, start);
            let actions: Vec<_> =
                std::iter::from_fn(|| exchange.poll_action()).map(|action| format!("{action:?}")).collect();
            let after = format!("{:?}", exchange.phase());
            table += &format!("{phase:19} | {name:10} | {after:9} | {}", actions.join(", "));
            table = table.trim_end().to_owned() + "\n";
        }
    }
    expect![[r#"
        inline              | final      | Done      | Reply("final")
        inline              | too early  | Inline    |
        inline              | deadline   | Deferring | Store
        inline              | stored     | Inline    |
        inline              | not stored | Inline    |
        inline              | committed  | Inline    |
        inline              | departed   | Done      | CancelUpstream
        inline              | cancelled  | Inline    |
        inline for good     | final      | Done      | Reply("final")
        inline for good     | too early  | Inline    |
        inline for good     | deadline   | Inline    |
        inline for good     | stored     | Inline    |
        inline for good     | not stored | Inline    |
        inline for good     | committed  | Inline    |
        inline for good     | departed   | Done      | CancelUpstream
        inline for good     | cancelled  | Inline    |
        deferring           | final      | Deferring |
        deferring           | too early  | Deferring |
        deferring           | deadline   | Deferring |
        deferring           | stored     | Handing   | ReplyTask
        deferring           | not stored | Inline    |
        deferring           | committed  | Deferring |
        deferring           | departed   | Abandoned | CancelUpstream
        deferring           | cancelled  | Deferring |
        deferring, answered | final      | Deferring |
        deferring, answered | too early  | Deferring |
        deferring, answered | deadline   | Deferring |
        deferring, answered | stored     | Done      | Forget, Reply("word")
        deferring, answered | not stored | Done      | Reply("word")
        deferring, answered | committed  | Deferring |
        deferring, answered | departed   | Abandoned |
        deferring, answered | cancelled  | Deferring |
        abandoned           | final      | Abandoned |
        abandoned           | too early  | Abandoned |
        abandoned           | deadline   | Abandoned |
        abandoned           | stored     | Done      | Forget
        abandoned           | not stored | Done      |
        abandoned           | committed  | Abandoned |
        abandoned           | departed   | Abandoned |
        abandoned           | cancelled  | Abandoned |
        handing             | final      | Handing   | Settle("final")
        handing             | too early  | Handing   |
        handing             | deadline   | Handing   |
        handing             | stored     | Handing   |
        handing             | not stored | Handing   |
        handing             | committed  | Deferred  |
        handing             | departed   | Done      | CancelUpstream, Forget
        handing             | cancelled  | Done      | CancelUpstream
        handing, settled    | final      | Handing   |
        handing, settled    | too early  | Handing   |
        handing, settled    | deadline   | Handing   |
        handing, settled    | stored     | Handing   |
        handing, settled    | not stored | Handing   |
        handing, settled    | committed  | Done      |
        handing, settled    | departed   | Done      | Forget
        handing, settled    | cancelled  | Done      |
        deferred            | final      | Done      | Settle("final")
        deferred            | too early  | Deferred  |
        deferred            | deadline   | Deferred  |
        deferred            | stored     | Deferred  |
        deferred            | not stored | Deferred  |
        deferred            | committed  | Deferred  |
        deferred            | departed   | Deferred  |
        deferred            | cancelled  | Done      | CancelUpstream
        done                | final      | Done      |
        done                | too early  | Done      |
        done                | deadline   | Done      |
        done                | stored     | Done      |
        done                | not stored | Done      |
        done                | committed  | Done      |
        done                | departed   | Done      |
        done                | cancelled  | Done      |
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_call_without_a_threshold_never_asks_for_the_time() {
    let mut exchange = Exchange::<()>::new(None);
    assert_eq!(exchange.poll_timeout(), None);
    exchange.handle_timeout(SystemClock::new().now());
    assert_eq!(exchange.phase(), Phase::Inline);
    exchange.handle_final(());
    assert_eq!(exchange.poll_action(), Some(Action::Reply(())));
}
