//! The task machine: its whole table, what clients are shown, and what holds whatever happens.

use crate::support::random_json::{Member, member, members, mixed, object, unknown_members, value};
use bytes::Bytes;
use deferral::internals::{
    dialect::raise,
    protocol::{Method, Payload, Timestamp, meta, status_message},
    task::{
        Effect, Event, MAX_SERVER_INFO, Owner, PollBounds, Record, Refusal, Scope, State, TaskId, apply,
        view::{
            self,
            experimental::{Outcome, Reader, Terms, ToolErrors},
        },
    },
};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

/// 2026-07-28T10:30:00Z
const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);
const RETENTION: Duration = Duration::from_secs(3600);
const BOUNDS: PollBounds = (Duration::from_millis(500), Duration::from_secs(30));
const TERMS: Terms = Terms { poll: BOUNDS, tool_errors: ToolErrors::Failed };
/// For clients that drop the result of a failed task.
const LENIENT: Terms = Terms { poll: BOUNDS, tool_errors: ToolErrors::Completed };

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
    let answer = |key: &&str| ((*key).to_owned(), Ok(Bytes::from(format!(r#"{{"action":"{key}"}}"#))));
    Event::Answered { answers: keys.iter().map(answer).collect(), are_kept: false }
}

fn returned() -> Event {
    Event::Returned { result: r#"{"content":[],"resultType":"complete"}"#.into() }
}

fn tool_failed() -> Event {
    let result = r#"{"content":[{"type":"text","text":"no disk"}],"isError":true,"resultType":"complete"}"#;
    Event::Returned { result: result.into() }
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
        ("tool error", then(&[asked("a"), tool_failed()])),
        ("failed", then(&[asked("a"), failed()])),
        ("cancelled", then(&[asked("a"), Event::CANCELLED_BY_CLIENT])),
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
        ("its tool fails", tool_failed()),
        ("fails", failed()),
        ("is cancelled", Event::CANCELLED_BY_CLIENT),
        ("is served by x", Event::Described { server_info: r#"{"name":"x"}"#.into() }),
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
    let but = match record.state {
        State::Completed { is_error: true, .. } => " with an error",
        State::Completed { is_error: false, .. }
        | State::Working
        | State::InputRequired { .. }
        | State::Failed { .. }
        | State::Cancelled => "",
    };
    format!("{}{but} [{asks}] {message:?}", record.state.status())
}

fn done(effects: &[Effect]) -> String {
    let word = |effect: &Effect| match effect {
        Effect::AnswerUpstream { key, response } => {
            format!("answer {key} {}", String::from_utf8_lossy(response.as_ref().expect("a result")))
        }
        Effect::CancelUpstream => "cancel".to_owned(),
        Effect::Announce => "announce".to_owned(),
    };
    effects.iter().map(word).collect::<Vec<_>>().join(" + ")
}

#[test]
fn an_answer_that_is_kept_is_there_until_it_is_delivered_or_the_task_ends() {
    let answers = BTreeMap::from([("a".to_owned(), Ok(Bytes::from_static(b"{}")))]);
    let kept = |are_kept| after([asked("a"), Event::Answered { answers: answers.clone(), are_kept }]);
    assert!(kept(false).undelivered.is_empty());
    let waits = kept(true);
    assert_eq!(waits.undelivered, answers);
    let bytes = waits.stored_bytes() - kept(false).stored_bytes();
    assert_eq!(bytes, "a{}".len());
    let apply = |event| apply(&waits, event, START);
    let (delivered, effects) = apply(Event::Delivered { keys: vec!["a".into()] }).expect("it was not");
    assert!(delivered.undelivered.is_empty() && effects.is_empty());
    assert_eq!(delivered.updated, waits.updated, "nobody can see it");
    assert_eq!(apply(Event::Delivered { keys: vec!["b".into()] }), Err(Refusal::Unchanged));
    for end in [Event::CANCELLED_BY_CLIENT, Event::Returned { result: "{}".into() }] {
        assert!(apply(end).expect("it works").0.undelivered.is_empty());
    }
}

#[test]
fn what_a_server_says_of_itself_is_kept_with_its_task_within_bounds() {
    let of = |server_info: &Value| {
        let mut record = task();
        record.set_server_info(&server_info.to_string().into());
        record.server_info.map(|kept| serde_json::from_slice::<Value>(&kept).expect("JSON"))
    };
    let mut about = json!({ "name": "x", "version": "1", "title": "X", "icons": [{ "src": "data:" }] });
    assert_eq!(of(&about), Some(about.clone()), "all of it");
    about["icons"][0]["src"] = "x".repeat(MAX_SERVER_INFO).into();
    assert_eq!(of(&about), Some(json!({ "name": "x", "version": "1", "title": "X" })));
    about["title"] = "x".repeat(MAX_SERVER_INFO).into();
    assert_eq!((of(&about), of(&json!("x"))), (None, None));

    let described = |server_info: &str| Event::Described { server_info: server_info.to_owned().into() };
    let (next, effects) = apply(&task(), described("{\n}"), START).expect("it is new");
    assert_eq!((next.server_info.as_deref(), effects), (Some(&b"{ }"[..]), vec![]));
    assert_eq!(next.stored_bytes() - task().stored_bytes(), 3);
    assert_eq!(apply(&next, described("{ }"), START), Err(Refusal::Unchanged));
    let (ended, _) = apply(&next, returned(), START).expect("it works");
    assert_eq!(ended.server_info, next.server_info);
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
        working    its tool fails   completed with an error [] "no disk" announce
        working    fails            failed [] "boom"                     announce
        working    is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        working    is served by x   working [] "half"
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
        asks a     its tool fails   completed with an error [] "no disk" announce
        asks a     fails            failed [] "boom"                     announce
        asks a     is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        asks a     is served by x   input_required [a] "half"
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
        asks a, b  its tool fails   completed with an error [] "no disk" announce
        asks a, b  fails            failed [] "boom"                     announce
        asks a, b  is cancelled     cancelled [] "the task was cancelled by its client" cancel + announce
        asks a, b  is served by x   input_required [a,b] "half"
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
        completed  its tool fails   - the task has already ended
        completed  fails            - the task has already ended
        completed  is cancelled     - the task has already ended
        completed  is served by x   - the task has already ended
        completed  is renewed early - the task has already ended
        completed  is renewed late  - the task has already ended
        tool error says more        - the task has already ended
        tool error says half again  - the task has already ended
        tool error asks c           - the task has already ended
        tool error asks a           - the task has already ended
        tool error asks old again   - the task has already ended
        tool error withdraws a      - the task has already ended
        tool error withdraws old    - the task has already ended
        tool error answers a        - the task has already ended
        tool error answers b, a, c  - the task has already ended
        tool error answers old      - the task has already ended
        tool error answers nothing  - the task has already ended
        tool error returns          - the task has already ended
        tool error its tool fails   - the task has already ended
        tool error fails            - the task has already ended
        tool error is cancelled     - the task has already ended
        tool error is served by x   - the task has already ended
        tool error is renewed early - the task has already ended
        tool error is renewed late  - the task has already ended
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
        failed     its tool fails   - the task has already ended
        failed     fails            - the task has already ended
        failed     is cancelled     - the task has already ended
        failed     is served by x   - the task has already ended
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
        cancelled  its tool fails   - the task has already ended
        cancelled  fails            - the task has already ended
        cancelled  is cancelled     - the task has already ended
        cancelled  is served by x   - the task has already ended
        cancelled  is renewed early - the task has already ended
        cancelled  is renewed late  - the task has already ended
    "#]].assert_eq(&table);
}

#[test]
fn each_state_is_shown_in_three_views() {
    let mut shown = String::new();
    let now = START + Duration::from_secs(65);
    for (state, record) in states() {
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
        tool error
          created  {"resultType":"task","taskId":"abababababababababababababababab","status":"completed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500}
          detailed {"resultType":"complete","taskId":"abababababababababababababababab","status":"completed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"result":{"content":[{"type":"text","text":"no disk"}],"isError":true,"resultType":"complete"}}
          notified {"taskId":"abababababababababababababababab","status":"completed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttlMs":3605000,"pollIntervalMs":500,"result":{"content":[{"type":"text","text":"no disk"}],"isError":true,"resultType":"complete"}}
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
fn each_state_is_shown_in_the_older_views() {
    let mut shown = String::new();
    let now = START + Duration::from_secs(65);
    for (state, record) in states() {
        let came_to = match view::experimental::outcome(&record) {
            None => "-".to_owned(),
            Some(Outcome::Result(result)) => format!("result {}", text(result)),
            Some(Outcome::Error(error)) => format!("error {}", text(error)),
            Some(Outcome::Cancelled) => "cancelled".to_owned(),
        };
        writeln!(shown, "{state}").expect("written to memory");
        for (name, view) in [
            ("created", text(view::experimental::created(&record, now, TERMS, Reader::Published, None))),
            ("shown", text(view::experimental::shown(&record, now, TERMS))),
            ("outcome", came_to),
        ] {
            writeln!(shown, "  {name:8} {view}").expect("written to memory");
        }
        // What else the operator may choose makes a difference to a tool that failed, and to nothing
        // else.
        let lenient = text(view::experimental::shown(&record, now, LENIENT));
        if lenient != text(view::experimental::shown(&record, now, TERMS)) {
            writeln!(shown, "  or       {lenient}").expect("written to memory");
        }
    }
    expect![[r#"
        working
          created  {"task":{"taskId":"abababababababababababababababab","status":"working","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:03.000Z","ttl":3600000,"pollInterval":6200},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"working","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:03.000Z","ttl":3600000,"pollInterval":6200}
          outcome  -
        asks a
          created  {"task":{"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:04.000Z","ttl":3600000,"pollInterval":6100},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:04.000Z","ttl":3600000,"pollInterval":6100}
          outcome  -
        asks a, b
          created  {"task":{"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3600000,"pollInterval":6100},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"input_required","statusMessage":"half","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3600000,"pollInterval":6100}
          outcome  -
        completed
          created  {"task":{"taskId":"abababababababababababababababab","status":"completed","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"completed","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500}
          outcome  result {"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
        tool error
          created  {"task":{"taskId":"abababababababababababababababab","status":"failed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"failed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500}
          outcome  result {"content":[{"type":"text","text":"no disk"}],"isError":true,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          or       {"taskId":"abababababababababababababababab","status":"completed","statusMessage":"no disk","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500}
        failed
          created  {"task":{"taskId":"abababababababababababababababab","status":"failed","statusMessage":"boom","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"failed","statusMessage":"boom","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500}
          outcome  error {"code":-32603,"message":"boom"}
        cancelled
          created  {"task":{"taskId":"abababababababababababababababab","status":"cancelled","statusMessage":"the task was cancelled by its client","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}}}
          shown    {"taskId":"abababababababababababababababab","status":"cancelled","statusMessage":"the task was cancelled by its client","createdAt":"2026-07-28T10:30:00.000Z","lastUpdatedAt":"2026-07-28T10:30:05.000Z","ttl":3605000,"pollInterval":500}
          outcome  cancelled
    "#]].assert_eq(&shown);
}

#[test]
fn a_page_of_tasks_shows_each_as_it_is_and_where_the_next_begins() {
    let now = START + Duration::from_secs(65);
    for terms in [TERMS, LENIENT] {
        let records: Vec<_> = states().into_iter().map(|(_, record)| record).collect();
        let each: Vec<_> =
            records.iter().map(|record| text(view::experimental::shown(record, now, terms))).collect();
        for many in [0, 1, records.len()] {
            let page = |next| text(view::experimental::listed(&records[..many], next, now, terms));
            let tasks = each[..many].join(",");
            assert_eq!(page(None), format!(r#"{{"tasks":[{tasks}]}}"#));
            assert_eq!(page(Some("a\"b")), format!(r#"{{"tasks":[{tasks}],"nextCursor":"a\"b"}}"#));
        }
    }
}

#[test]
fn a_model_gets_words_to_go_on_with_where_there_are_some() {
    let words = "Started.\nAsk for \"it\" later. \u{2028}";
    let made = json(&view::experimental::created(&task(), START, TERMS, Reader::Published, Some(words)));
    assert_eq!(made["_meta"][meta::IMMEDIATE_RESPONSE], words);
    let mut without = made;
    without["_meta"].as_object_mut().expect("an object").remove(meta::IMMEDIATE_RESPONSE);
    assert_eq!(json(&view::experimental::created(&task(), START, TERMS, Reader::Published, None)), without);
}

#[test]
fn who_reads_a_task_as_a_draft_had_it_finds_it_in_a_result_without_content_beside_that_of_the_revision() {
    let mut made = json(&view::experimental::created(&task(), START, TERMS, Reader::Draft, Some("wait")));
    let draft = made["_meta"].as_object_mut().expect("an object").remove(meta::DRAFT_TASK);
    assert_eq!(draft, Some(serde_json::json!({ "taskId": made["task"]["taskId"], "status": "working" })));
    assert_eq!(made.as_object_mut().expect("an object").remove("content"), Some(serde_json::json!([])));
    assert_eq!(
        made,
        json(&view::experimental::created(&task(), START, TERMS, Reader::Published, Some("wait")))
    );
}

#[test]
fn the_older_view_escapes_what_clients_are_told() {
    let odd = "line\n\"quoted\" \u{1} \u{2028}";
    let record = after([progressed(odd)]);
    assert_eq!(json(&view::experimental::shown(&record, START, TERMS))["statusMessage"], odd);
    let listed = json(&view::experimental::listed([&record], Some(odd), START, TERMS));
    assert_eq!((&listed["tasks"][0]["statusMessage"], &listed["nextCursor"]), (&odd.into(), &odd.into()));
}

/// The older views have the members the schema of 2025-11-25 has for them, of its types, all those
/// it requires, and none that it does not know.
#[test]
fn every_older_view_is_what_the_schema_of_its_revision_describes() {
    for (state, record) in states() {
        for terms in [TERMS, LENIENT] {
            for now in [START, START + Duration::from_secs(65)] {
                let shown = json(&view::experimental::shown(&record, now, terms));
                is_a_task(&shown, state);

                let made =
                    json(&view::experimental::created(&record, now, terms, Reader::Published, Some("wait")));
                let about = has_members(&made, &["task", "_meta"], &[], state)["_meta"].clone();
                is_a_task(&made["task"], state);
                let about = has_members(&about, &[meta::RELATED_TASK, meta::IMMEDIATE_RESPONSE], &[], state);
                let related = has_members(&about[meta::RELATED_TASK], &["taskId"], &[], state);
                assert_eq!(related["taskId"], made["task"]["taskId"], "{state}");
                assert!(about[meta::IMMEDIATE_RESPONSE].is_string(), "{state}");

                for next in [None, Some("cursor")] {
                    let page = json(&view::experimental::listed([&record, &record], next, now, terms));
                    has_members(&page, &["tasks"], &["nextCursor"], state);
                    assert_eq!(page.get("nextCursor").and_then(Value::as_str), next, "{state}");
                    let tasks = page["tasks"].as_array().expect("a list");
                    assert_eq!(tasks.len(), 2, "{state}");
                    tasks.iter().for_each(|task| is_a_task(task, state));
                }
            }
        }
    }
}

/// `Task` of the 2025-11-25 schema. `pollInterval` may be absent there, but never is with us.
fn is_a_task(value: &Value, state: &str) {
    let required = ["taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"];
    let task = has_members(value, &required, &["statusMessage"], state);
    let statuses = ["working", "input_required", "completed", "failed", "cancelled"];
    assert!(statuses.iter().any(|status| task["status"] == *status), "{state}: {value}");
    for moment in ["createdAt", "lastUpdatedAt"] {
        let moment = task[moment].as_str().expect("a string");
        moment.parse::<jiff::Timestamp>().unwrap_or_else(|error| panic!("{state}: {moment}: {error}"));
    }
    for whole in ["ttl", "pollInterval"] {
        assert!(task[whole].as_u64().is_some_and(|number| number > 0), "{state}: {value}");
    }
    assert!(task["taskId"].is_string(), "{state}: {value}");
    assert!(task.get("statusMessage").is_none_or(Value::is_string), "{state}: {value}");
}

/// The members of an object that has all of `required`, perhaps some of `optional`, and no others.
fn has_members<'a>(
    value: &'a Value,
    required: &[&str],
    optional: &[&str],
    state: &str,
) -> &'a serde_json::Map<String, Value> {
    let object = value.as_object().unwrap_or_else(|| panic!("{state}: an object, not {value}"));
    for key in required {
        assert!(object.contains_key(*key), "{state}: no {key} in {value}");
    }
    for key in object.keys() {
        assert!(required.contains(&&**key) || optional.contains(&&**key), "{state}: {key} in {value}");
    }
    object
}

#[test]
fn what_a_task_came_to_is_what_its_call_was_answered() {
    let related = r#""io.modelcontextprotocol/related-task":{"taskId":"abababababababababababababababab"}"#;
    for (raised, kept, given) in [
        // As the server said it, and whose it is.
        (false, r#"{ "content" : [ ] }"#, r#"{ "content" : [ ],"_meta":{RELATED} }"#),
        (false, "{}", r#"{"_meta":{RELATED}}"#),
        (false, r#"{"n":1e400,"_meta":{ "x" : 1.10 }}"#, r#"{"n":1e400,"_meta":{ "x" : 1.10,RELATED }}"#),
        (false, r#"{"_meta":{}}"#, r#"{"_meta":{RELATED}}"#),
        // A server with tasks of its own knows it by another name.
        (
            false,
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"x":1}}"#,
            r#"{"_meta":{RELATED,"x":1}}"#,
        ),
        // No object can be kept where there is none.
        (false, r#"{"_meta":null}"#, r#"{"_meta":{RELATED}}"#),
        // These are the server's own where nobody else put them in, and ours where we did.
        (
            false,
            r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#,
            r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{},RELATED}}"#,
        ),
        (
            true,
            r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#,
            r#"{"_meta":{RELATED}}"#,
        ),
        (true, r#"{"resultType":"complete"}"#, r#"{"_meta":{RELATED}}"#),
        (
            true,
            r#"{"a":{"resultType":"x"},"resultType":"complete"}"#,
            r#"{"a":{"resultType":"x"},"_meta":{RELATED}}"#,
        ),
    ] {
        let record = Record { raised, ..after([Event::Returned { result: kept.into() }]) };
        let Some(Outcome::Result(result)) = view::experimental::outcome(&record) else {
            panic!("{kept}: a result")
        };
        assert_eq!(text(result), given.replace("RELATED", related), "{kept}");
    }
}

#[test]
fn why_a_task_failed_is_told_in_words_but_not_in_too_many() {
    let status = |event| json(&view::experimental::shown(&after([event]), START, TERMS));
    let tool = |content: &str| Event::Returned {
        result: format!(r#"{{"content":{content},"isError":true}}"#).into(),
    };
    let call = |message: Option<String>| Event::Failed { error: "{}".into(), message };
    let long = "é".repeat(5000);
    for (event, words) in [
        (tool(r#"[{"type":"text","text":"no disk"}]"#), Some("no disk")),
        // What is no text does not hide what is.
        (tool(r#"[5,null,{"type":"x","text":5},{"type":"text","text":"no disk"}]"#), Some("no disk")),
        (tool(r#"[{"type":"text","text":" \n"},{"type":"text","text":"no disk"}]"#), Some("no disk")),
        (tool("[]"), None),
        (tool("null"), None),
        (tool(&format!(r#"[{{"type":"text","text":"{long}"}}]"#)), Some(&long[..status_message::LONGEST])),
        (call(Some("boom".into())), Some("boom")),
        (call(Some(long.clone())), Some(&long[..status_message::LONGEST])),
        (call(Some(String::new())), None),
        (call(None), None),
    ] {
        let shown = status(event);
        assert_eq!(shown["status"], "failed");
        let told = shown["statusMessage"].as_str().expect("a failed task says why");
        match words {
            Some(words) => assert_eq!(told, words),
            // 2025-11-25, *Task Execution Errors*: something is said even where nothing is known.
            None => assert!(!told.trim().is_empty()),
        }
    }
    // Nor are there too many of them while it works: every poll and every list repeats them.
    let works = status(progressed(&long));
    assert_eq!(works["statusMessage"].as_str(), Some(&long[..status_message::LONGEST]));
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
fn what_a_legacy_call_left_behind_is_inlined_as_a_result_of_the_newer_era() {
    for (kept, shown) in [
        (r#"{"content":[]}"#, r#"{"resultType":"complete","content":[]}"#),
        // There it says nothing; here a client would take it for another kind of result.
        (r#"{"resultType":"input_required","n":1.10}"#, r#"{"resultType":"complete","n":1.10}"#),
        (
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"x":1}}"#,
            r#"{"resultType":"complete","_meta":{"x":1}}"#,
        ),
    ] {
        let record = Record { raised: false, ..after([Event::Returned { result: kept.into() }]) };
        let view = text(view::extension::detailed(&record, START, BOUNDS, None));
        assert!(view.ends_with(&format!(r#","result":{shown}}}"#)), "{kept}: {view}");
    }
}

#[test]
fn what_a_server_spread_over_lines_is_kept_on_one() {
    let spread = "{\n  \"code\": 1,\r\n  \"message\": \"a\\nb\"\n}";
    let line = r#"{   "code": 1,    "message": "a\nb" }"#;
    // An event of a stream ends with its line: views of the task are sent in such.
    let one_line = |record: &Record| {
        let views = [
            view::extension::detailed(record, START, BOUNDS, None),
            view::extension::notified(record, START, BOUNDS, None),
            view::experimental::shown(record, START, TERMS),
        ];
        views.iter().all(|view| !text(&view[..]).contains(['\n', '\r']))
    };
    let failed = after([Event::Failed { error: spread.into(), message: None }]);
    assert_eq!(failed.state, State::Failed { error: line.into() });
    assert!(one_line(&failed));
    let returned = after([Event::Returned { result: spread.into() }]);
    assert_eq!(returned.state, State::Completed { result: line.into(), is_error: false });
    assert!(one_line(&returned));
    let asks = after([Event::Asked { key: "a".into(), request: spread.into() }]);
    assert!(one_line(&asks));
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
    let record = after([asked("a"), Event::CANCELLED_BY_CLIENT]);
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
        1 => Just(tool_failed()),
        1 => Just(failed()),
        1 => Just(Event::CANCELLED_BY_CLIENT),
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
    fn a_live_tasks_ttl_never_shrinks_and_its_end_lies_ahead(retention in retentions(), steps in steps()) {
        live(retention, steps, |before, _, now, outcome| {
            let after = outcome.as_ref().map_or(before, |(next, _)| next);
            // Only where a result stays for less than the minute that is granted at least does the end set
            // it lower.
            assert!(before.ttl <= after.ttl || after.state.is_ended() && retention < Duration::from_secs(60));
            if !after.state.is_ended() {
                // Never less than half of that minute.
                assert!(after.created + after.ttl >= now + Duration::from_secs(30));
                assert!(after.due() > now);
            }
        });
    }

    #[test]
    fn a_result_can_be_fetched_for_the_whole_retention_and_no_longer(retention in retentions(), steps in steps()) {
        let last = live(retention, steps, |_, _, _, _| {});
        if last.state.is_ended() {
            assert_eq!(last.due(), last.updated + retention.max(Duration::from_secs(1)));
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

    #[test]
    fn the_older_view_goes_only_where_its_revision_allows(retention in retentions(), steps in steps()) {
        for terms in [TERMS, LENIENT] {
            let mut seen = None;
            live(retention, steps.clone(), |before, _, now, outcome| {
                let after = outcome.as_ref().map_or(before, |(next, _)| next);
                let status = |record| view::experimental::status(record, terms.tool_errors);
                let shown = json(&view::experimental::shown(after, now, terms));
                assert_eq!(shown["status"], status(after));
                assert!(may_follow(seen, status(before)));
                assert!(may_follow(Some(status(before)), status(after)));
                seen = Some(status(after));
            });
        }
    }

    #[test]
    fn two_views_of_a_task_agree(retention in retentions(), steps in steps(), seconds in 0..9999u64) {
        let record = live(retention, steps, |_, _, _, _| {});
        let now = START + Duration::from_secs(seconds);
        let newer = json(&view::extension::detailed(&record, now, BOUNDS, None));
        let is_tool_error = newer["result"]["isError"] == true;
        for terms in [TERMS, LENIENT] {
            let older = json(&view::experimental::shown(&record, now, terms));
            for same in ["taskId", "statusMessage", "createdAt", "lastUpdatedAt"] {
                prop_assert_eq!(older.get(same), newer.get(same));
            }
            prop_assert_eq!(&older["ttl"], &newer["ttlMs"]);
            prop_assert_eq!(&older["pollInterval"], &newer["pollIntervalMs"]);
            match terms.tool_errors {
                ToolErrors::Failed if is_tool_error => prop_assert_eq!(&older["status"], "failed"),
                ToolErrors::Failed | ToolErrors::Completed => prop_assert_eq!(&older["status"], &newer["status"]),
            }
            let made = json(&view::experimental::created(&record, now, terms, Reader::Published, None));
            prop_assert_eq!(&made["task"], &older);
            let listed = json(&view::experimental::listed([&record], None, now, terms));
            prop_assert_eq!(&listed["tasks"][0], &older);
        }
        match view::experimental::outcome(&record) {
            None => prop_assert!(["working", "input_required"].iter().any(|live| newer["status"] == *live)),
            Some(Outcome::Cancelled) => prop_assert_eq!(&newer["status"], "cancelled"),
            Some(Outcome::Error(error)) => prop_assert_eq!(json(&error), newer["error"].clone()),
            Some(Outcome::Result(result)) => {
                let bare = |mut result: Value| {
                    let members = result.as_object_mut().expect("an object");
                    members.remove("resultType");
                    members.remove("_meta");
                    result
                };
                prop_assert_eq!(bare(json(&result)), bare(newer["result"].clone()));
            }
        }
    }

    #[test]
    fn what_a_task_came_to_is_said_once_and_for_all_and_not_before(
        retention in retentions(), steps in steps(), raised: bool,
    ) {
        let outcome = |record: &Record| view::experimental::outcome(&Record { raised, ..record.clone() });
        let mut said = None;
        live(retention, steps, |before, _, _, applied| {
            let after = applied.as_ref().map_or(before, |(next, _)| next);
            assert_eq!(outcome(after).is_some(), after.state.is_ended());
            if said.is_some() {
                assert_eq!((outcome(before), outcome(after)), (said.clone(), said.clone()));
            }
            said = outcome(after);
        });
    }

    #[test]
    fn an_outcome_is_the_result_and_whose_it_is_and_nothing_else(kept in results(), raised: bool) {
        let record = Record { raised, ..after([Event::Returned { result: kept.clone().into() }]) };
        let Some(Outcome::Result(given)) = view::experimental::outcome(&record) else {
            panic!("a result")
        };
        let ours = (meta::RELATED_TASK.to_owned(), r#"{"taskId":"abababababababababababababababab"}"#.to_owned());
        let about = member(&kept, "_meta").filter(|about| about.starts_with('{'));
        let mut about = about.map_or_else(Vec::new, |about| members(&about));
        about.retain(|(key, _)| !raised || key != meta::SERVER_INFO);
        put(&mut about, ours);

        let mut given = members(&text(given));
        for (key, value) in &mut given {
            if key == "_meta" {
                prop_assert_eq!(members(value), about.clone());
                *value = "ours".to_owned();
            }
        }
        let mut wanted = members(&kept);
        wanted.retain(|(key, _)| !raised || key != "resultType");
        put(&mut wanted, ("_meta".to_owned(), "ours".to_owned()));
        prop_assert_eq!(given, wanted);
    }

    #[test]
    fn what_was_raised_for_one_era_is_what_the_server_said_in_the_other(said in plain_results()) {
        let said = Bytes::from(said);
        let raised = raise::result(&Method::ToolsCall, &Payload::read(said.clone()), br#"{"name":"x","version":"1"}"#).expect("an object");
        let outcome = |raised, result| {
            view::experimental::outcome(&Record { raised, ..after([Event::Returned { result }]) })
        };
        let (Some(Outcome::Result(lowered)), Some(Outcome::Result(never_raised))) =
            (outcome(true, raised), outcome(false, said))
        else {
            panic!("two results")
        };
        // The keys we put in or took out may leave others in another order: objects have none.
        let sorted = |result: Bytes| {
            let mut all = members(&text(result));
            for (key, value) in &mut all {
                if key == "_meta" {
                    let mut about = members(value);
                    about.sort();
                    *value = object(&about, "");
                }
            }
            all.sort();
            all
        };
        prop_assert_eq!(sorted(lowered), sorted(never_raised));
    }
}

/// Whether 2025-11-25 lets a task go from one status to another (*Task Status Lifecycle*); it
/// begins from nowhere. That nothing changes is no step.
fn may_follow(from: Option<&str>, to: &str) -> bool {
    match from {
        None => to == "working",
        Some("working" | "input_required") => true,
        Some(ended) => ended == to,
    }
}

/// Gives a list of members one more, in the place of the one that has its key.
fn put(members: &mut Vec<Member>, (key, value): Member) {
    match members.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => *known = value,
        None => members.push((key, value)),
    }
}

/// Results of a call, with everything a server may put in.
fn results() -> impl Strategy<Value = String> {
    let server_info = (meta::SERVER_INFO.to_owned(), r#"{"name":"x","version":"1"}"#.to_owned());
    let about = prop_oneof![
        1 => Just(None),
        1 => Just(Some("null".to_owned())),
        4 => (plain_meta(), prop::option::of(Just(server_info))).prop_map(|(mut about, server_info)| {
            about.extend(server_info);
            Some(object(&about, " "))
        }),
    ];
    let result_type = prop::option::of(Just(("resultType".to_owned(), r#""complete""#.to_owned())));
    (known_members(), about, result_type).prop_flat_map(|(mut known, about, result_type)| {
        known.extend(about.map(|about| ("_meta".to_owned(), about)));
        known.extend(result_type);
        mixed(known)
    })
}

/// Results of a call to a legacy server, which knows nothing of 2026-07-28.
fn plain_results() -> impl Strategy<Value = String> {
    (known_members(), prop::option::of(plain_meta())).prop_flat_map(|(mut known, about)| {
        known.extend(about.map(|about| ("_meta".to_owned(), object(&about, ""))));
        mixed(known)
    })
}

fn known_members() -> impl Strategy<Value = Vec<Member>> {
    let is_error = prop::option::of(prop::sample::select(vec!["true", "false"]));
    (prop::option::of(value()), is_error).prop_map(|(structured, is_error)| {
        let content = r#"[{"type":"text","text":"caf\u00e9"}]"#;
        let mut members = vec![("content".to_owned(), content.to_owned())];
        members.extend(structured.map(|value| ("structuredContent".to_owned(), value)));
        members.extend(is_error.map(|value| ("isError".to_owned(), value.to_owned())));
        members
    })
}

/// A `_meta`, perhaps of a server that has tasks of its own.
fn plain_meta() -> impl Strategy<Value = Vec<Member>> {
    let theirs = (meta::RELATED_TASK.to_owned(), r#"{"taskId":"theirs"}"#.to_owned());
    (unknown_members(), prop::option::of(Just(theirs))).prop_flat_map(|(mut about, theirs)| {
        about.extend(theirs);
        Just(about).prop_shuffle()
    })
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn text(bytes: impl Into<Vec<u8>>) -> String {
    String::from_utf8(bytes.into()).expect("utf-8")
}
