//! The task machine: its whole table, what clients are shown, and what holds whatever happens.

use bytes::Bytes;
use deferral::{
    protocol::Timestamp,
    task::{Effect, Event, Owner, PollBounds, Record, Refusal, Scope, State, TaskId, apply, view},
};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

/// 2026-07-28T10:30:00Z
const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);
const RETENTION: Duration = Duration::from_secs(3600);
const BOUNDS: PollBounds = (Duration::from_millis(500), Duration::from_secs(30));

fn task() -> Record {
    let owner = Owner { principal: [1; 16], route: "/mcp".into(), scope: Scope::Principal };
    Record::new(TaskId::from_entropy([0xab; 16]), owner, "train", RETENTION, START)
}

/// What becomes of a new task to which these events happen, one a second.
fn after(events: impl IntoIterator<Item = Event>) -> Record {
    events.into_iter().zip(1..).fold(task(), |task, (event, second)| {
        apply(&task, event, START + Duration::from_secs(second)).expect("applies").0
    })
}

fn progressed(message: &str) -> Event {
    Event::Progressed { message: message.into() }
}

fn asked(key: &str) -> Event {
    let request = format!(r#"{{"method":"elicitation/create","params":{{"message":"{key}?"}}}}"#);
    Event::Asked { key: key.into(), request: request.into() }
}

fn withdrawn(key: &str) -> Event {
    Event::Withdrawn { key: key.into() }
}

fn answered(keys: &[&str]) -> Event {
    let answer = |key: &&str| ((*key).to_owned(), Bytes::from(format!(r#"{{"action":"{key}"}}"#)));
    Event::Answered { answers: keys.iter().map(answer).collect() }
}

fn returned() -> Event {
    Event::Returned { result: r#"{"content":[],"resultType":"complete"}"#.into() }
}

fn failed() -> Event {
    Event::Failed { error: r#"{"code":-32603,"message":"boom"}"#.into(), message: Some("boom".into()) }
}

/// Every state, each with `half` as its message where it has kept one, and `old` a key of the past.
fn states() -> Vec<(&'static str, Record)> {
    let past = [progressed("half"), asked("old"), answered(&["old"])];
    let then = |events: &[Event]| after(past.iter().chain(events).cloned());
    vec![
        ("working", then(&[])),
        ("asks a", then(&[asked("a")])),
        ("asks a, b", then(&[asked("a"), asked("b")])),
        ("completed", then(&[asked("a"), returned()])),
        ("failed", then(&[asked("a"), failed()])),
        ("cancelled", then(&[asked("a"), Event::Cancelled])),
    ]
}

/// Every event, in each way that matters.
fn events() -> Vec<(&'static str, Event)> {
    vec![
        ("says more", progressed("more")),
        ("says half again", progressed("half")),
        ("asks c", asked("c")),
        ("asks a", asked("a")),
        ("asks old again", asked("old")),
        ("withdraws a", withdrawn("a")),
        ("withdraws old", withdrawn("old")),
        ("answers a", answered(&["a"])),
        ("answers b, a, c", answered(&["b", "a", "c"])),
        ("answers old", answered(&["old"])),
        ("answers nothing", answered(&[])),
        ("returns", returned()),
        ("fails", failed()),
        ("is cancelled", Event::Cancelled),
        ("is renewed early", Event::Renewed),
    ]
}

/// A record in one line: where it stands and what it says.
fn told(record: &Record) -> String {
    let asks = match &record.state {
        State::InputRequired { outstanding } => outstanding.keys().cloned().collect::<Vec<_>>().join(","),
        State::Working | State::Completed { .. } | State::Failed { .. } | State::Cancelled => String::new(),
    };
    let message = record.message.as_deref().unwrap_or("-");
    format!("{} [{asks}] {message:?}", record.state.status())
}

fn done(effects: &[Effect]) -> String {
    let word = |effect: &Effect| match effect {
        Effect::AnswerUpstream { key, response } => {
            format!("answer {key} {}", String::from_utf8_lossy(response))
        }
        Effect::CancelUpstream => "cancel".to_owned(),
        Effect::Announce => "announce".to_owned(),
    };
    effects.iter().map(word).collect::<Vec<_>>().join(" + ")
}

#[test]
fn every_state_meets_every_event() {
    let mut table = String::new();
    let soon = |(event, happens)| (event, happens, START + Duration::from_secs(60));
    let late = ("is renewed late", Event::Renewed, START + RETENTION / 2);
    for (state, record) in states() {
        for (event, happens, now) in events().into_iter().map(soon).chain([late.clone()]) {
            let outcome = match apply(&record, happens, now) {
                Ok((next, effects)) => format!("{:36} {}", told(&next), done(&effects)),
                Err(refusal) => format!("- {refusal}"),
            };
            writeln!(table, "{state:10} {event:16} {}", outcome.trim_end()).expect("written to memory");
        }
    }
    expect![[r#"
        working    says more        working [] "more"                    announce
        working    says half again  - nothing would change
        working    asks c           input_required [c] "half"            announce
        working    asks a           input_required [a] "half"            announce
        working    asks old again   - nothing would change
        working    withdraws a      - nothing would change
        working    withdraws old    - nothing would change
        working    answers a        - the answer matches no outstanding request
        working    answers b, a, c  - the answer matches no outstanding request
        working    answers old      - the answer matches no outstanding request
        working    answers nothing  - the answer matches no outstanding request
        working    returns          completed [] "-"                     announce
        working    fails            failed [] "boom"                     announce
        working    is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        working    is renewed early - nothing would change
        working    is renewed late  working [] "half"
        asks a     says more        input_required [a] "more"            announce
        asks a     says half again  - nothing would change
        asks a     asks c           input_required [a,c] "half"          announce
        asks a     asks a           - nothing would change
        asks a     asks old again   - nothing would change
        asks a     withdraws a      working [] "half"                    announce
        asks a     withdraws old    - nothing would change
        asks a     answers a        working [] "half"                    answer a {"action":"a"} + announce
        asks a     answers b, a, c  working [] "half"                    answer a {"action":"a"} + announce
        asks a     answers old      - the answer matches no outstanding request
        asks a     answers nothing  - the answer matches no outstanding request
        asks a     returns          completed [] "-"                     announce
        asks a     fails            failed [] "boom"                     announce
        asks a     is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        asks a     is renewed early - nothing would change
        asks a     is renewed late  input_required [a] "half"
        asks a, b  says more        input_required [a,b] "more"          announce
        asks a, b  says half again  - nothing would change
        asks a, b  asks c           input_required [a,b,c] "half"        announce
        asks a, b  asks a           - nothing would change
        asks a, b  asks old again   - nothing would change
        asks a, b  withdraws a      input_required [b] "half"            announce
        asks a, b  withdraws old    - nothing would change
        asks a, b  answers a        input_required [b] "half"            answer a {"action":"a"} + announce
        asks a, b  answers b, a, c  working [] "half"                    answer a {"action":"a"} + answer b {"action":"b"} + announce
        asks a, b  answers old      - the answer matches no outstanding request
        asks a, b  answers nothing  - the answer matches no outstanding request
        asks a, b  returns          completed [] "-"                     announce
        asks a, b  fails            failed [] "boom"                     announce
        asks a, b  is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        asks a, b  is renewed early - nothing would change
        asks a, b  is renewed late  input_required [a,b] "half"
        completed  says more        - the task has already ended
        completed  says half again  - the task has already ended
        completed  asks c           - the task has already ended
        completed  asks a           - the task has already ended
        completed  asks old again   - the task has already ended
        completed  withdraws a      - the task has already ended
        completed  withdraws old    - the task has already ended
        completed  answers a        - the task has already ended
        completed  answers b, a, c  - the task has already ended
        completed  answers old      - the task has already ended
        completed  answers nothing  - the task has already ended
        completed  returns          - the task has already ended
        completed  fails            - the task has already ended
        completed  is cancelled     - the task has already ended
        completed  is renewed early - the task has already ended
        completed  is renewed late  - the task has already ended
        failed     says more        - the task has already ended
        failed     says half again  - the task has already ended
        failed     asks c           - the task has already ended
        failed     asks a           - the task has already ended
        failed     asks old again   - the task has already ended
        failed     withdraws a      - the task has already ended
        failed     withdraws old    - the task has already ended
        failed     answers a        - the task has already ended
        failed     answers b, a, c  - the task has already ended
        failed     answers old      - the task has already ended
        failed     answers nothing  - the task has already ended
        failed     returns          - the task has already ended
        failed     fails            - the task has already ended
        failed     is cancelled     - the task has already ended
        failed     is renewed early - the task has already ended
        failed     is renewed late  - the task has already ended
        cancelled  says more        - the task has already ended
        cancelled  says half again  - the task has already ended
        cancelled  asks c           - the task has already ended
        cancelled  asks a           - the task has already ended
        cancelled  asks old again   - the task has already ended
        cancelled  withdraws a      - the task has already ended
        cancelled  withdraws old    - the task has already ended
        cancelled  answers a        - the task has already ended
        cancelled  answers b, a, c  - the task has already ended
        cancelled  answers old      - the task has already ended
        cancelled  answers nothing  - the task has already ended
        cancelled  returns          - the task has already ended
        cancelled  fails            - the task has already ended
        cancelled  is cancelled     - the task has already ended
        cancelled  is renewed early - the task has already ended
        cancelled  is renewed late  - the task has already ended
    "#]].assert_eq(&table);
}

#[test]
fn each_state_is_shown_in_three_views() {
    let mut shown = String::new();
    let now = START + Duration::from_secs(65);
    for (state, record) in states() {
        let text = |view: Vec<u8>| String::from_utf8(view).expect("utf-8");
        writeln!(shown, "{state}").expect("written to memory");
        for (name, view) in [
            ("created", text(view::extension::created(&record, now, BOUNDS, None))),
            ("detailed", text(view::extension::detailed(&record, now, BOUNDS, None))),
            ("notified", text(view::extension::notified(&record, now, BOUNDS, None))),
        ] {
            writeln!(shown, "  {name:8} {view}").expect("written to memory");
        }
    }
    expect![[r#"
        working
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"working","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:03.000Z","ttlMs":3600000,"pollIntervalMs":6200}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"working","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:03.000Z","ttlMs":3600000,"pollIntervalMs":6200}
          notified {"taskId":"abababababababababababababababab","status":"working","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:03.000Z","ttlMs":3600000,"pollIntervalMs":6200}
        asks a
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:04.000Z","ttlMs":3600000,"pollIntervalMs":6100}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:04.000Z","ttlMs":3600000,"pollIntervalMs":6100,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"a?"}}}}
          notified {"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:04.000Z","ttlMs":3600000,"pollIntervalMs":6100,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"a?"}}}}
        asks a, b
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3600000,"pollIntervalMs":6100}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3600000,"pollIntervalMs":6100,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"a?"}},"b":{"method":"elicitation/create","params":{"message":"b?"}}}}
          notified {"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3600000,"pollIntervalMs":6100,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"a?"}},"b":{"method":"elicitation/create","params":{"message":"b?"}}}}
        completed
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"completed","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"completed","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"result":{"content":[],"resultType":"complete"}}
          notified {"taskId":"abababababababababababababababab","status":"completed","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"result":{"content":[],"resultType":"complete"}}
        failed
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"failed","statusMessage":"boom","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"failed","statusMessage":"boom","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"error":{"code":-32603,"message":"boom"}}
          notified {"taskId":"abababababababababababababababab","status":"failed","statusMessage":"boom","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"error":{"code":-32603,"message":"boom"}}
        cancelled
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"cancelled","statusMessage":"the task was cancelled by its client","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"cancelled","statusMessage":"the task was cancelled by its client","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
          notified {"taskId":"abababababababababababababababab","status":"cancelled","statusMessage":"the task was cancelled by its client","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
    "#]].assert_eq(&shown);
}

#[test]
fn a_view_carries_the_meta_it_is_given() {
    let meta = br#"{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}"#;
    for view in [view::extension::created, view::extension::detailed, view::extension::notified] {
        for (state, record) in states() {
            let plain = json(&view(&record, START, BOUNDS, None));
            let mut with = json(&view(&record, START, BOUNDS, Some(meta)));
            let moved = with.as_object_mut().expect("an object").remove("_meta");
            assert_eq!(moved, Some(json(meta)), "{state}");
            assert_eq!(with, plain, "{state}");
        }
    }
}

#[test]
fn an_inlined_result_keeps_its_bytes_and_gets_a_result_type_once() {
    for (result, shown) in [
        (
            r#"{"x":1e400,"n":9007199254740993}"#,
            r#"{"resultType":"complete","x":1e400,"n":9007199254740993}"#,
        ),
        (r#"{ "a" : 1 , "resultType" : "complete" }"#, r#"{ "a" : 1 , "resultType" : "complete" }"#),
        (r#"{"resultType":"other"}"#, r#"{"resultType":"other"}"#),
        (r#"{"result\u0054ype":"complete"}"#, r#"{"result\u0054ype":"complete"}"#),
        (r#"{"a":{"resultType":"x"}}"#, r#"{"resultType":"complete","a":{"resultType":"x"}}"#),
        ("{}", r#"{"resultType":"complete"}"#),
        (" { } ", r#"{"resultType":"complete" } "#),
    ] {
        let record = after([Event::Returned { result: result.into() }]);
        let view = view::extension::detailed(&record, START, BOUNDS, None);
        let view = String::from_utf8(view).expect("utf-8");
        assert!(view.ends_with(&format!(r#","result":{shown}}}"#)), "{result}: {view}");
    }
}

#[test]
fn what_clients_are_told_is_escaped() {
    let odd = "line\n\"quoted\" \u{1} \u{2028}";
    let record = after([progressed(odd), Event::Asked { key: odd.into(), request: "{}".into() }]);
    let view = json(&view::extension::detailed(&record, START, BOUNDS, None));
    assert_eq!(view["statusMessage"], odd);
    assert_eq!(view["inputRequests"][odd], json(b"{}"));
}

#[test]
fn a_large_result_is_copied_once_into_a_buffer_of_its_size() {
    let result = format!(r#"{{"content":"{}"}}"#, "x".repeat(1 << 20));
    let record = after([Event::Returned { result: result.clone().into() }]);
    let view = view::extension::detailed(&record, START, BOUNDS, None);
    assert!(view.capacity() < result.len() + 1024, "{} for {}", view.capacity(), result.len());
}

#[test]
fn cancelling_says_so_and_what_was_outstanding_is_gone() {
    let record = after([asked("a"), Event::Cancelled]);
    assert_eq!(record.message.as_deref(), Some("the task was cancelled by its client"));
    assert_eq!(record.state, State::Cancelled);
}

#[test]
fn a_clock_that_runs_behind_does_not_turn_a_task_back() {
    let record = after([progressed("later")]);
    let (next, _) = apply(&record, asked("a"), START).expect("applies");
    assert_eq!((next.updated, next.status_since), (record.updated, record.updated));
}

#[test]
fn what_a_record_holds_is_counted() {
    let empty = task().stored_bytes();
    let result = Event::Returned { result: "{12345}".into() };
    assert_eq!(after([result]).stored_bytes(), empty + 7);
    assert_eq!(after([progressed("half")]).stored_bytes(), empty + 4);
    let question = Event::Asked { key: "k".into(), request: "{}".into() };
    // The key is kept twice: beside its question, and among those that were used.
    assert_eq!(after([question]).stored_bytes(), empty + 4);
}

/// One thing that happens in a random life.
#[derive(Clone, Debug)]
struct Step {
    event: Event,
    /// Seconds that pass before it; the clock may also be a replica's that runs behind.
    seconds: i64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = prop::sample::select(vec!["a", "b", "c", "d"]);
    let event = prop_oneof![
        4 => "[xy]{0,1}".prop_map(|message| Event::Progressed { message }),
        6 => key.clone().prop_map(asked),
        2 => key.clone().prop_map(withdrawn),
        4 => prop::collection::vec(key, 0..3).prop_map(|keys| answered(&keys)),
        4 => Just(Event::Renewed),
        1 => Just(returned()),
        1 => Just(failed()),
        1 => Just(Event::Cancelled),
    ];
    let seconds = prop_oneof![3 => 0..5i64, 2 => 0..4000i64, 1 => -10..0i64];
    let step = (event, seconds).prop_map(|(event, seconds)| Step { event, seconds });
    prop::collection::vec(step, 0..60)
}

/// Lives through `steps` with a sweeper that renews in time, showing each step to `watch`: the
/// record before, the event, the time, what came of it.
fn live(
    retention: Duration,
    steps: Vec<Step>,
    mut watch: impl FnMut(&Record, &Event, Timestamp, &Result<(Record, Vec<Effect>), Refusal>),
) -> Record {
    let owner = Owner { principal: [1; 16], route: "/mcp".into(), scope: Scope::Principal };
    let mut task = Record::new(TaskId::from_entropy([7; 16]), owner, "train", retention, START);
    let mut now = START;
    for Step { event, seconds } in steps {
        let then = match u64::try_from(seconds) {
            Ok(ahead) => now + Duration::from_secs(ahead),
            Err(_) => Timestamp::from_millis(now.as_millis() - seconds.unsigned_abs() * 1000),
        };
        let before = (task.state.is_ended(), task.due());
        let mut meet = |event: Event, at| {
            let outcome = apply(&task, event.clone(), at);
            watch(&task, &event, at, &outcome);
            if let Ok((next, _)) = outcome {
                task = next;
            }
            (task.state.is_ended(), task.due())
        };
        let (mut ended, mut due) = before;
        while !ended && due <= then {
            let renewed = meet(Event::Renewed, due);
            assert!(due < renewed.1, "a renewed task is due again at once");
            (ended, due) = renewed;
        }
        meet(event, then);
        now = now.max(then);
    }
    task
}

fn retentions() -> impl Strategy<Value = Duration> {
    (0..7200u64).prop_map(Duration::from_secs)
}

proptest! {
    #[test]
    fn an_ended_task_never_changes_and_a_live_one_is_never_called_ended(retention in retentions(), steps in steps()) {
        live(retention, steps, |before, _, _, outcome| {
            assert_eq!(before.state.is_ended(), matches!(outcome, Err(Refusal::Ended)));
        });
    }

    #[test]
    fn a_ttl_never_shrinks_and_a_live_tasks_end_lies_ahead(retention in retentions(), steps in steps()) {
        live(retention, steps, |before, _, now, outcome| {
            let after = outcome.as_ref().map_or(before, |(next, _)| next);
            assert!(before.ttl <= after.ttl);
            if !after.state.is_ended() {
                // Never less than half of the ten minutes that are granted at least.
                assert!(after.created + after.ttl >= now + Duration::from_secs(300));
                assert!(after.due() > now);
            }
        });
    }

    #[test]
    fn a_result_can_be_fetched_for_the_whole_retention(retention in retentions(), steps in steps()) {
        let last = live(retention, steps, |_, _, _, _| {});
        if last.state.is_ended() {
            assert!(last.due() >= last.updated + retention);
            assert!(!last.is_expired(Timestamp::from_millis(last.due().as_millis() - 1)));
            assert!(last.is_expired(last.due()));
        }
    }

    #[test]
    fn time_goes_forward_and_the_status_keeps_its_own(retention in retentions(), steps in steps()) {
        live(retention, steps, |before, event, _, outcome| {
            let Ok((after, _)) = outcome else { return };
            assert!(before.created <= before.status_since && before.status_since <= before.updated);
            assert!(before.updated <= after.updated);
            let turned = before.state.status() != after.state.status();
            assert_eq!(after.status_since, if turned { after.updated } else { before.status_since });
            assert_eq!(*event == Event::Renewed, Record { ttl: after.ttl, ..before.clone() } == *after);
        });
    }

    #[test]
    fn a_poll_interval_stays_within_its_bounds(
        retention in retentions(), steps in steps(), least in 1..2000u64, more in 0..100_000u64,
    ) {
        let bounds = (Duration::from_millis(least), Duration::from_millis(least + more));
        live(retention, steps, |before, _, now, _| {
            let interval = before.poll_interval(now, bounds);
            assert!(bounds.0 <= interval && interval <= bounds.1);
            assert_eq!(interval.subsec_nanos() % 1_000_000, 0);
        });
    }

    #[test]
    fn a_key_is_asked_once_answered_once_and_never_comes_back(retention in retentions(), steps in steps()) {
        let (mut open, mut closed) = (BTreeMap::new(), BTreeSet::new());
        live(retention, steps, |_, _, _, outcome| {
            let Ok((after, effects)) = outcome else { return };
            let now_open = match &after.state {
                State::InputRequired { outstanding } => {
                    assert!(!outstanding.is_empty());
                    outstanding.clone()
                }
                State::Working | State::Completed { .. } | State::Failed { .. } | State::Cancelled => BTreeMap::new(),
            };
            for effect in effects {
                if let Effect::AnswerUpstream { key, .. } = effect {
                    assert!(open.contains_key(key) && !now_open.contains_key(key), "{key} is answered once");
                }
            }
            closed.extend(open.keys().filter(|key| !now_open.contains_key(*key)).cloned());
            for (key, request) in &now_open {
                assert!(!closed.contains(key), "{key} came back");
                assert!(open.get(key).is_none_or(|known| known == request), "{key} changed");
            }
            open = now_open;
        });
    }

    #[test]
    fn whoever_listens_hears_of_every_visible_change_and_of_nothing_else(
        retention in retentions(), steps in steps(),
    ) {
        // The ttl aside, which moves on by itself.
        let seen = |record: &Record| {
            let mut shown = json(&view::extension::notified(record, START, BOUNDS, None));
            for by_itself in ["ttlMs", "lastUpdatedAt"] {
                shown.as_object_mut().expect("an object").remove(by_itself);
            }
            shown
        };
        live(retention, steps, |before, _, _, outcome| {
            let Ok((after, effects)) = outcome else { return };
            assert_eq!(seen(before) != seen(after), effects.contains(&Effect::Announce));
        });
    }

    #[test]
    fn views_agree_with_each_other(retention in retentions(), steps in steps(), seconds in 0..9999u64) {
        let record = live(retention, steps, |_, _, _, _| {});
        let now = START + Duration::from_secs(seconds);
        let take = |view: Vec<u8>, result_type: Option<&str>, details: &[&str]| {
            let mut view = json(&view);
            let object = view.as_object_mut().expect("an object");
            assert_eq!(object.remove("resultType"), result_type.map(Value::from));
            details.iter().for_each(|detail| drop(object.remove(*detail)));
            view
        };
        let all = ["result", "error", "inputRequests"];
        let created = take(view::extension::created(&record, now, BOUNDS, None), Some("task"), &[]);
        let detailed = || view::extension::detailed(&record, now, BOUNDS, None);
        let notified = take(view::extension::notified(&record, now, BOUNDS, None), None, &[]);
        prop_assert_eq!(&take(detailed(), Some("complete"), &[]), &notified);
        prop_assert_eq!(take(detailed(), Some("complete"), &all), created);
        for number in ["ttlMs", "pollIntervalMs"] {
            prop_assert!(notified[number].as_u64().is_some_and(|number| number > 0));
        }
    }
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}
