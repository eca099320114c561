//! Every state under every event, and what a record keeps.

use super::{RETENTION, START, after, asked, events, progressed, returned, states, task, told};
use bytes::Bytes;
use deferral::internals::task::{EventRefusal, MAX_SERVER_INFO, TaskEffect, TaskEvent, TaskState, apply};
use expect_test::expect;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

fn done(effects: &[TaskEffect]) -> String {
    let word = |effect: &TaskEffect| match effect {
        TaskEffect::AnswerUpstream { key, response } => {
            format!("answer {key} {}", String::from_utf8_lossy(response.as_ref().expect("a result")))
        }
        TaskEffect::CancelUpstream => "cancel".to_owned(),
        TaskEffect::Announce => "announce".to_owned(),
    };
    effects.iter().map(word).collect::<Vec<_>>().join(" + ")
}

#[test]
fn an_answer_that_is_kept_is_there_until_it_is_delivered_or_the_task_ends() {
    let answers = BTreeMap::from([("a".to_owned(), Ok(Bytes::from_static(b"{}")))]);
    let kept = |are_kept| {
        after([asked("a"), TaskEvent::InputAnswered { answers: answers.clone(), are_stored: are_kept }])
    };
    assert!(kept(false).undelivered.is_empty());
    let waits = kept(true);
    assert_eq!(waits.undelivered, answers);
    let bytes = waits.stored_bytes() - kept(false).stored_bytes();
    assert_eq!(bytes, "a{}".len());
    let apply = |event| apply(&waits, event, START);
    let (delivered, effects) =
        apply(TaskEvent::InputDelivered { keys: vec!["a".into()] }).expect("it was not");
    assert!(delivered.undelivered.is_empty() && effects.is_empty());
    assert_eq!(delivered.updated, waits.updated, "nobody can see it");
    assert_eq!(apply(TaskEvent::InputDelivered { keys: vec!["b".into()] }), Err(EventRefusal::Unchanged));
    for end in [TaskEvent::CANCELLED_BY_CLIENT, TaskEvent::Returned { result: "{}".into() }] {
        assert!(apply(end).expect("it works").0.undelivered.is_empty());
    }
}

#[test]
fn server_info_is_stored_with_the_task_within_bounds() {
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

    let described =
        |server_info: &str| TaskEvent::ServerDescribed { server_info: server_info.to_owned().into() };
    let (next, effects) = apply(&task(), described("{\n}"), START).expect("it is new");
    assert_eq!((next.server_info.as_deref(), effects), (Some(&b"{ }"[..]), vec![]));
    assert_eq!(next.stored_bytes() - task().stored_bytes(), 3);
    assert_eq!(apply(&next, described("{ }"), START), Err(EventRefusal::Unchanged));
    let (ended, _) = apply(&next, returned(), START).expect("it works");
    assert_eq!(ended.server_info, next.server_info);
}

#[test]
fn every_state_meets_every_event() {
    let mut table = String::new();
    let soon = |(event, happens)| (event, happens, START + Duration::from_secs(60));
    let late = ("is renewed late", TaskEvent::TtlRenewed, START + RETENTION / 2);
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
        working    answers a        - the input response matches no outstanding input request
        working    answers b, a, c  - the input response matches no outstanding input request
        working    answers old      - the input response matches no outstanding input request
        working    answers nothing  - the input response matches no outstanding input request
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
        asks a     answers old      - the input response matches no outstanding input request
        asks a     answers nothing  - the input response matches no outstanding input request
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
        asks a, b  answers old      - the input response matches no outstanding input request
        asks a, b  answers nothing  - the input response matches no outstanding input request
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
fn a_cancelled_task_has_no_open_input_requests() {
    let record = after([asked("a"), TaskEvent::CANCELLED_BY_CLIENT]);
    assert_eq!(record.message.as_deref(), Some("the task was cancelled by its client"));
    assert_eq!(record.state, TaskState::Cancelled);
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
    let result = TaskEvent::Returned { result: "{12345}".into() };
    assert_eq!(after([result]).stored_bytes(), empty + 7);
    assert_eq!(after([progressed("half")]).stored_bytes(), empty + 4);
    let question = TaskEvent::InputRequested { key: "k".into(), request: "{}".into() };
    // The key is kept twice: beside its question, and among those that were used.
    assert_eq!(after([question]).stored_bytes(), empty + 4);
}
