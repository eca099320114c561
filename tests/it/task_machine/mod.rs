//! The state machine of tasks: its whole table, views and invariants.

mod invariants;
mod transitions;
mod views;

use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    task::{
        PollBounds, Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState, apply,
        view::experimental::{ToolErrors, ViewOptions},
    },
};

use serde_json::{Value, json};
use std::time::Duration;

/// 2026-07-28T10:30:00Z
const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);

const RETENTION: Duration = Duration::from_secs(3600);

const BOUNDS: PollBounds = (Duration::from_millis(500), Duration::from_secs(30));

const TERMS: ViewOptions = ViewOptions { poll: BOUNDS, tool_errors: ToolErrors::Failed };

/// For clients that drop the result of a failed task.
const LENIENT: ViewOptions = ViewOptions { poll: BOUNDS, tool_errors: ToolErrors::Completed };

fn task() -> Record {
    let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    Record::new(TaskId::from_entropy([0xab; 16]), owner, "train", RETENTION, START)
}

/// What becomes of a new task to which these events happen, one a second.
fn after(events: impl IntoIterator<Item = TaskEvent>) -> Record {
    events.into_iter().zip(1..).fold(task(), |task, (event, second)| {
        apply(&task, event, START + Duration::from_secs(second)).expect("applies").0
    })
}

fn progressed(message: &str) -> TaskEvent {
    TaskEvent::Progressed { message: message.into() }
}

fn asked(key: &str) -> TaskEvent {
    let request = format!(r#"{{"method":"elicitation/create","params":{{"message":"{key}?"}}}}"#);
    TaskEvent::InputRequested { key: key.into(), request: request.into() }
}

fn withdrawn(key: &str) -> TaskEvent {
    TaskEvent::InputWithdrawn { key: key.into() }
}

fn answered(keys: &[&str]) -> TaskEvent {
    let answer = |key: &&str| ((*key).to_owned(), Ok(Bytes::from(format!(r#"{{"action":"{key}"}}"#))));
    TaskEvent::InputAnswered { answers: keys.iter().map(answer).collect(), are_stored: false }
}

fn returned() -> TaskEvent {
    TaskEvent::Returned { result: r#"{"content":[],"resultType":"complete"}"#.into() }
}

fn tool_failed() -> TaskEvent {
    let result = r#"{"content":[{"type":"text","text":"no disk"}],"isError":true,"resultType":"complete"}"#;
    TaskEvent::Returned { result: result.into() }
}

fn failed() -> TaskEvent {
    TaskEvent::Failed { error: r#"{"code":-32603,"message":"boom"}"#.into(), message: Some("boom".into()) }
}

/// Every state, each with `half` as its message where it has kept one, and `old` a key of the past.
fn states() -> Vec<(&'static str, Record)> {
    let past = [progressed("half"), asked("old"), answered(&["old"])];
    let then = |events: &[TaskEvent]| after(past.iter().chain(events).cloned());
    vec![
        ("working", then(&[])),
        ("asks a", then(&[asked("a")])),
        ("asks a, b", then(&[asked("a"), asked("b")])),
        ("completed", then(&[asked("a"), returned()])),
        ("tool error", then(&[asked("a"), tool_failed()])),
        ("failed", then(&[asked("a"), failed()])),
        ("cancelled", then(&[asked("a"), TaskEvent::CANCELLED_BY_CLIENT])),
    ]
}

/// Every event, in each way that matters.
fn events() -> Vec<(&'static str, TaskEvent)> {
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
        ("is cancelled", TaskEvent::CANCELLED_BY_CLIENT),
        ("is served by x", TaskEvent::ServerDescribed { server_info: r#"{"name":"x"}"#.into() }),
        ("is renewed early", TaskEvent::TtlRenewed),
    ]
}

/// A record in one line: where it stands and what it says.
fn told(record: &Record) -> String {
    let asks = match &record.state {
        TaskState::InputRequired { outstanding } => outstanding.keys().cloned().collect::<Vec<_>>().join(","),
        TaskState::Working
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => String::new(),
    };
    let message = record.message.as_deref().unwrap_or("-");
    let but = match record.state {
        TaskState::Completed { is_error: true, .. } => " with an error",
        TaskState::Completed { is_error: false, .. }
        | TaskState::Working
        | TaskState::InputRequired { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => "",
    };
    format!("{}{but} [{asks}] {message:?}", record.state.status())
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn text(bytes: impl Into<Vec<u8>>) -> String {
    String::from_utf8(bytes.into()).expect("utf-8")
}
