//! Invariants under random events and results.

use super::{
    BOUNDS, LENIENT, START, TERMS, after, answered, asked, failed, json, returned, text, tool_failed,
    withdrawn,
};
use crate::support::random_json::{Member, member, members, mixed, object, unknown_members, value};
use bytes::Bytes;
use deferral::internals::{
    dialect::raise,
    protocol::{Method, Payload, Timestamp, meta},
    task::{
        EventRefusal, Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState, apply,
        view::{
            self,
            experimental::{TaskOutcome, TaskResultFormat, ToolErrors},
        },
    },
};

use proptest::prelude::*;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One thing that happens in a random life.
#[derive(Clone, Debug)]
struct Step {
    event: TaskEvent,
    /// Seconds that pass before it; the clock may also be a replica's that runs behind.
    seconds: i64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = prop::sample::select(vec!["a", "b", "c", "d"]);
    let event = prop_oneof![
        4 => "[xy]{0,1}".prop_map(|message| TaskEvent::Progressed { message }),
        6 => key.clone().prop_map(asked),
        2 => key.clone().prop_map(withdrawn),
        4 => prop::collection::vec(key, 0..3).prop_map(|keys| answered(&keys)),
        4 => Just(TaskEvent::TtlRenewed),
        1 => Just(returned()),
        1 => Just(tool_failed()),
        1 => Just(failed()),
        1 => Just(TaskEvent::CANCELLED_BY_CLIENT),
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
    mut watch: impl FnMut(&Record, &TaskEvent, Timestamp, &Result<(Record, Vec<TaskEffect>), EventRefusal>),
) -> Record {
    let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    let mut task = Record::new(TaskId::from_entropy([7; 16]), owner, "train", retention, START);
    let mut now = START;
    for Step { event, seconds } in steps {
        let then = match u64::try_from(seconds) {
            Ok(ahead) => now + Duration::from_secs(ahead),
            Err(_) => Timestamp::from_millis(now.as_millis() - seconds.unsigned_abs() * 1000),
        };
        let before = (task.state.is_ended(), task.due_at());
        let mut meet = |event: TaskEvent, at| {
            let outcome = apply(&task, event.clone(), at);
            watch(&task, &event, at, &outcome);
            if let Ok((next, _)) = outcome {
                task = next;
            }
            (task.state.is_ended(), task.due_at())
        };
        let (mut ended, mut due) = before;
        while !ended && due <= then {
            let renewed = meet(TaskEvent::TtlRenewed, due);
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
            assert_eq!(before.state.is_ended(), matches!(outcome, Err(EventRefusal::Ended)));
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
                assert!(after.due_at() > now);
            }
        });
    }

    #[test]
    fn a_result_can_be_fetched_for_the_whole_retention_and_no_longer(retention in retentions(), steps in steps()) {
        let last = live(retention, steps, |_, _, _, _| {});
        if last.state.is_ended() {
            assert_eq!(last.due_at(), last.updated + retention.max(Duration::from_secs(1)));
            assert!(!last.is_expired(Timestamp::from_millis(last.due_at().as_millis() - 1)));
            assert!(last.is_expired(last.due_at()));
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
            assert_eq!(*event == TaskEvent::TtlRenewed, Record { ttl: after.ttl, ..before.clone() } == *after);
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
    fn a_key_is_asked_once_answered_once_and_never_returns(retention in retentions(), steps in steps()) {
        let (mut open, mut closed) = (BTreeMap::new(), BTreeSet::new());
        live(retention, steps, |_, _, _, outcome| {
            let Ok((after, effects)) = outcome else { return };
            let now_open = match &after.state {
                TaskState::InputRequired { outstanding } => {
                    assert!(!outstanding.is_empty());
                    outstanding.clone()
                }
                TaskState::Working | TaskState::Completed { .. } | TaskState::Failed { .. } | TaskState::Cancelled => BTreeMap::new(),
            };
            for effect in effects {
                if let TaskEffect::AnswerUpstream { key, .. } = effect {
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
    fn subscriptions_report_every_visible_change_and_nothing_else(
        retention in retentions(), steps in steps(),
    ) {
        // The ttl aside, which moves on by itself.
        let seen = |record: &Record| {
            let mut shown = json(&view::extension::notification_params(record, START, BOUNDS, None));
            for by_itself in ["ttlMs", "lastUpdatedAt"] {
                shown.as_object_mut().expect("an object").remove(by_itself);
            }
            shown
        };
        live(retention, steps, |before, _, _, outcome| {
            let Ok((after, effects)) = outcome else { return };
            assert_eq!(seen(before) != seen(after), effects.contains(&TaskEffect::Announce));
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
        let created = take(view::extension::create_task_result(&record, now, BOUNDS, None), Some("task"), &[]);
        let detailed = || view::extension::get_task_result(&record, now, BOUNDS, None);
        let notified = take(view::extension::notification_params(&record, now, BOUNDS, None), None, &[]);
        prop_assert_eq!(&take(detailed(), Some("complete"), &[]), &notified);
        prop_assert_eq!(take(detailed(), Some("complete"), &all), created);
        for number in ["ttlMs", "pollIntervalMs"] {
            prop_assert!(notified[number].as_u64().is_some_and(|number| number > 0));
        }
    }

    #[test]
    fn the_legacy_view_goes_only_where_its_revision_allows(retention in retentions(), steps in steps()) {
        for terms in [TERMS, LENIENT] {
            let mut seen = None;
            live(retention, steps.clone(), |before, _, now, outcome| {
                let after = outcome.as_ref().map_or(before, |(next, _)| next);
                let status = |record| view::experimental::task_status(record, terms.tool_errors);
                let shown = json(&view::experimental::task_object(after, now, terms));
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
        let newer = json(&view::extension::get_task_result(&record, now, BOUNDS, None));
        let is_tool_error = newer["result"]["isError"] == true;
        for terms in [TERMS, LENIENT] {
            let older = json(&view::experimental::task_object(&record, now, terms));
            for same in ["taskId", "statusMessage", "createdAt", "lastUpdatedAt"] {
                prop_assert_eq!(older.get(same), newer.get(same));
            }
            prop_assert_eq!(&older["ttl"], &newer["ttlMs"]);
            prop_assert_eq!(&older["pollInterval"], &newer["pollIntervalMs"]);
            match terms.tool_errors {
                ToolErrors::Failed if is_tool_error => prop_assert_eq!(&older["status"], "failed"),
                ToolErrors::Failed | ToolErrors::Completed => prop_assert_eq!(&older["status"], &newer["status"]),
            }
            let made = json(&view::experimental::create_task_result(&record, now, terms, TaskResultFormat::Published, None));
            prop_assert_eq!(&made["task"], &older);
            let listed = json(&view::experimental::task_list([&record], None, now, terms));
            prop_assert_eq!(&listed["tasks"][0], &older);
        }
        match view::experimental::task_outcome(&record) {
            None => prop_assert!(["working", "input_required"].iter().any(|live| newer["status"] == *live)),
            Some(TaskOutcome::Cancelled) => prop_assert_eq!(&newer["status"], "cancelled"),
            Some(TaskOutcome::Error(error)) => prop_assert_eq!(json(&error), newer["error"].clone()),
            Some(TaskOutcome::Result(result)) => {
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
    fn the_outcome_of_a_task_is_final_and_absent_before_the_end(
        retention in retentions(), steps in steps(), raised: bool,
    ) {
        let outcome = |record: &Record| view::experimental::task_outcome(&Record { is_translated: raised, ..record.clone() });
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
    fn an_outcome_is_the_result_with_the_related_task(kept in results(), raised: bool) {
        let record = Record { is_translated: raised, ..after([TaskEvent::Returned { result: kept.clone().into() }]) };
        let Some(TaskOutcome::Result(given)) = view::experimental::task_outcome(&record) else {
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
    fn a_translated_result_is_restored_for_the_other_era(said in plain_results()) {
        let said = Bytes::from(said);
        let raised = raise::translate_bare_result(&Method::ToolsCall, &Payload::read(said.clone()), br#"{"name":"x","version":"1"}"#).expect("an object");
        let outcome = |raised, result| {
            view::experimental::task_outcome(&Record { is_translated: raised, ..after([TaskEvent::Returned { result }]) })
        };
        let (Some(TaskOutcome::Result(lowered)), Some(TaskOutcome::Result(never_raised))) =
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
