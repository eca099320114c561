//! What clients of each revision are shown of a task.

use super::{BOUNDS, LENIENT, START, TERMS, after, json, progressed, states, task, text};

use deferral::internals::{
    protocol::{meta, status_message},
    task::{
        Record, TaskEvent, TaskState,
        view::{
            self,
            experimental::{TaskOutcome, TaskResultFormat},
        },
    },
};
use expect_test::expect;
use serde_json::Value;
use std::{fmt::Write as _, time::Duration};

#[test]
fn each_state_is_shown_in_three_views() {
    let mut shown = String::new();
    let now = START + Duration::from_secs(65);
    for (state, record) in states() {
        writeln!(shown, "{state}").expect("written to memory");
        for (name, view) in [
            ("created", text(view::extension::create_task_result(&record, now, BOUNDS, None))),
            ("detailed", text(view::extension::get_task_result(&record, now, BOUNDS, None))),
            ("notified", text(view::extension::notification_params(&record, now, BOUNDS, None))),
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
fn each_state_is_shown_in_the_legacy_views() {
    let mut shown = String::new();
    let now = START + Duration::from_secs(65);
    for (state, record) in states() {
        let came_to = match view::experimental::task_outcome(&record) {
            None => "-".to_owned(),
            Some(TaskOutcome::Result(result)) => format!("result {}", text(result)),
            Some(TaskOutcome::Error(error)) => format!("error {}", text(error)),
            Some(TaskOutcome::Cancelled) => "cancelled".to_owned(),
        };
        writeln!(shown, "{state}").expect("written to memory");
        for (name, view) in [
            (
                "created",
                text(view::experimental::create_task_result(
                    &record,
                    now,
                    TERMS,
                    TaskResultFormat::Published,
                    None,
                )),
            ),
            ("shown", text(view::experimental::task_object(&record, now, TERMS))),
            ("outcome", came_to),
        ] {
            writeln!(shown, "  {name:8} {view}").expect("written to memory");
        }
        // What else the operator may choose makes a difference to a tool that failed, and to nothing
        // else.
        let lenient = text(view::experimental::task_object(&record, now, LENIENT));
        if lenient != text(view::experimental::task_object(&record, now, TERMS)) {
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
            records.iter().map(|record| text(view::experimental::task_object(record, now, terms))).collect();
        for many in [0, 1, records.len()] {
            let page = |next| text(view::experimental::task_list(&records[..many], next, now, terms));
            let tasks = each[..many].join(",");
            assert_eq!(page(None), format!(r#"{{"tasks":[{tasks}]}}"#));
            assert_eq!(page(Some("a\"b")), format!(r#"{{"tasks":[{tasks}],"nextCursor":"a\"b"}}"#));
        }
    }
}

#[test]
fn the_immediate_response_for_the_model_is_included_where_configured() {
    let words = "Started.\nAsk for \"it\" later. \u{2028}";
    let made = json(&view::experimental::create_task_result(
        &task(),
        START,
        TERMS,
        TaskResultFormat::Published,
        Some(words),
    ));
    assert_eq!(made["_meta"][meta::IMMEDIATE_RESPONSE], words);
    let mut without = made;
    without["_meta"].as_object_mut().expect("an object").remove(meta::IMMEDIATE_RESPONSE);
    assert_eq!(
        json(&view::experimental::create_task_result(
            &task(),
            START,
            TERMS,
            TaskResultFormat::Published,
            None
        )),
        without
    );
}

#[test]
fn the_draft_form_of_a_task_result_is_included_beside_the_revisions_form() {
    let mut made = json(&view::experimental::create_task_result(
        &task(),
        START,
        TERMS,
        TaskResultFormat::Draft,
        Some("wait"),
    ));
    let draft = made["_meta"].as_object_mut().expect("an object").remove(meta::DRAFT_TASK);
    assert_eq!(draft, Some(serde_json::json!({ "taskId": made["task"]["taskId"], "status": "working" })));
    assert_eq!(made.as_object_mut().expect("an object").remove("content"), Some(serde_json::json!([])));
    assert_eq!(
        made,
        json(&view::experimental::create_task_result(
            &task(),
            START,
            TERMS,
            TaskResultFormat::Published,
            Some("wait")
        ))
    );
}

#[test]
fn the_legacy_view_escapes_its_texts() {
    let odd = "line\n\"quoted\" \u{1} \u{2028}";
    let record = after([progressed(odd)]);
    assert_eq!(json(&view::experimental::task_object(&record, START, TERMS))["statusMessage"], odd);
    let listed = json(&view::experimental::task_list([&record], Some(odd), START, TERMS));
    assert_eq!((&listed["tasks"][0]["statusMessage"], &listed["nextCursor"]), (&odd.into(), &odd.into()));
}

/// The older views have the members the schema of 2025-11-25 has for them, of its types, all those
/// it requires, and none that it does not know.
#[test]
fn every_legacy_view_is_what_the_schema_of_its_revision_describes() {
    for (state, record) in states() {
        for terms in [TERMS, LENIENT] {
            for now in [START, START + Duration::from_secs(65)] {
                let shown = json(&view::experimental::task_object(&record, now, terms));
                is_a_task(&shown, state);

                let made = json(&view::experimental::create_task_result(
                    &record,
                    now,
                    terms,
                    TaskResultFormat::Published,
                    Some("wait"),
                ));
                let about = has_members(&made, &["task", "_meta"], &[], state)["_meta"].clone();
                is_a_task(&made["task"], state);
                let about = has_members(&about, &[meta::RELATED_TASK, meta::IMMEDIATE_RESPONSE], &[], state);
                let related = has_members(&about[meta::RELATED_TASK], &["taskId"], &[], state);
                assert_eq!(related["taskId"], made["task"]["taskId"], "{state}");
                assert!(about[meta::IMMEDIATE_RESPONSE].is_string(), "{state}");

                for next in [None, Some("cursor")] {
                    let page = json(&view::experimental::task_list([&record, &record], next, now, terms));
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
fn the_outcome_of_a_task_is_the_response_of_its_call() {
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
        let record = Record { is_translated: raised, ..after([TaskEvent::Returned { result: kept.into() }]) };
        let Some(TaskOutcome::Result(result)) = view::experimental::task_outcome(&record) else {
            panic!("{kept}: a result")
        };
        assert_eq!(text(result), given.replace("RELATED", related), "{kept}");
    }
}

#[test]
fn the_reason_of_a_failed_task_is_a_bounded_text() {
    let status = |event| json(&view::experimental::task_object(&after([event]), START, TERMS));
    let tool = |content: &str| TaskEvent::Returned {
        result: format!(r#"{{"content":{content},"isError":true}}"#).into(),
    };
    let call = |message: Option<String>| TaskEvent::Failed { error: "{}".into(), message };
    let long = "é".repeat(5000);
    for (event, words) in [
        (tool(r#"[{"type":"text","text":"no disk"}]"#), Some("no disk")),
        // What is no text does not hide what is.
        (tool(r#"[5,null,{"type":"x","text":5},{"type":"text","text":"no disk"}]"#), Some("no disk")),
        (tool(r#"[{"type":"text","text":" \n"},{"type":"text","text":"no disk"}]"#), Some("no disk")),
        (tool("[]"), None),
        (tool("null"), None),
        (
            tool(&format!(r#"[{{"type":"text","text":"{long}"}}]"#)),
            Some(&long[..status_message::MAX_STATUS_MESSAGE_BYTES]),
        ),
        (call(Some("boom".into())), Some("boom")),
        (call(Some(long.clone())), Some(&long[..status_message::MAX_STATUS_MESSAGE_BYTES])),
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
    assert_eq!(works["statusMessage"].as_str(), Some(&long[..status_message::MAX_STATUS_MESSAGE_BYTES]));
}

#[test]
fn a_view_carries_the_meta_it_is_given() {
    let meta = br#"{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}"#;
    for view in [
        view::extension::create_task_result,
        view::extension::get_task_result,
        view::extension::notification_params,
    ] {
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
        let record = after([TaskEvent::Returned { result: result.into() }]);
        let view = view::extension::get_task_result(&record, START, BOUNDS, None);
        let view = String::from_utf8(view).expect("utf-8");
        assert!(view.ends_with(&format!(r#","result":{shown}}}"#)), "{result}: {view}");
    }
}

#[test]
fn a_legacy_result_is_inlined_as_a_modern_result() {
    for (kept, shown) in [
        (r#"{"content":[]}"#, r#"{"resultType":"complete","content":[]}"#),
        // There it says nothing; here a client would take it for another kind of result.
        (r#"{"resultType":"input_required","n":1.10}"#, r#"{"resultType":"complete","n":1.10}"#),
        (
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"x":1}}"#,
            r#"{"resultType":"complete","_meta":{"x":1}}"#,
        ),
    ] {
        let record = Record { is_translated: false, ..after([TaskEvent::Returned { result: kept.into() }]) };
        let view = text(view::extension::get_task_result(&record, START, BOUNDS, None));
        assert!(view.ends_with(&format!(r#","result":{shown}}}"#)), "{kept}: {view}");
    }
}

#[test]
fn a_result_over_several_lines_is_stored_on_one() {
    let spread = "{\n  \"code\": 1,\r\n  \"message\": \"a\\nb\"\n}";
    let line = r#"{   "code": 1,    "message": "a\nb" }"#;
    // An event of a stream ends with its line: views of the task are sent in such.
    let one_line = |record: &Record| {
        let views = [
            view::extension::get_task_result(record, START, BOUNDS, None),
            view::extension::notification_params(record, START, BOUNDS, None),
            view::experimental::task_object(record, START, TERMS),
        ];
        views.iter().all(|view| !text(&view[..]).contains(['\n', '\r']))
    };
    let failed = after([TaskEvent::Failed { error: spread.into(), message: None }]);
    assert_eq!(failed.state, TaskState::Failed { error: line.into() });
    assert!(one_line(&failed));
    let returned = after([TaskEvent::Returned { result: spread.into() }]);
    assert_eq!(returned.state, TaskState::Completed { result: line.into(), is_error: false });
    assert!(one_line(&returned));
    let asks = after([TaskEvent::InputRequested { key: "a".into(), request: spread.into() }]);
    assert!(one_line(&asks));
}

#[test]
fn texts_of_views_are_escaped() {
    let odd = "line\n\"quoted\" \u{1} \u{2028}";
    let record =
        after([progressed(odd), TaskEvent::InputRequested { key: odd.into(), request: "{}".into() }]);
    let view = json(&view::extension::get_task_result(&record, START, BOUNDS, None));
    assert_eq!(view["statusMessage"], odd);
    assert_eq!(view["inputRequests"][odd], json(b"{}"));
}

#[test]
fn a_large_result_is_copied_once_into_a_buffer_of_its_size() {
    let result = format!(r#"{{"content":"{}"}}"#, "x".repeat(1 << 20));
    let record = after([TaskEvent::Returned { result: result.clone().into() }]);
    let view = view::extension::get_task_result(&record, START, BOUNDS, None);
    assert!(view.capacity() < result.len() + 1024, "{} for {}", view.capacity(), result.len());
}
