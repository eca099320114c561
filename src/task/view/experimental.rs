//! A record as 2025-11-25 shows it (*Tasks*).
//!
//! The task is flat in every response but the first, where it is nested; its result is never in it. Every
//! view has every member of the revision: clients of that time refuse a task without `ttl` or `lastUpdatedAt`
//! (`WIRE`, B 1, rule 11).

use super::ObjectWriter;
use crate::{
    protocol::{
        Timestamp, meta,
        splice::{JsonObject, ObjectEdit},
    },
    task::{PollBounds, Record, TaskState},
};
use bytes::Bytes;
use serde_json::json;

/// The options of the view on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// The least and the greatest `pollInterval`.
    pub poll: PollBounds,
    pub tool_errors: ToolErrors,
}

/// The status of a task whose tool returned `isError: true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolErrors {
    /// `failed`, as in the revision (2025-11-25, *Tasks, Task Execution Errors*).
    #[default]
    Failed,
    /// `completed`: clients in the field drop the result of a failed task (`WIRE`, B 1, rule 4).
    Completed,
}

/// The form of a `CreateTaskResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskResultFormat {
    /// As published in the revision.
    Published,
    /// For a client that reads it as the call's own result, which must have `content`, and finds its task by
    /// `modelcontextprotocol.io/task` in `_meta`. FastMCP 2.14 does so, by a draft of SEP-1686. The task is
    /// also where the revision has it.
    Draft,
}

/// The outcome of a call that became a task, as the call itself would have been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The raw result object, with the task it belongs to in `_meta`.
    Result(Bytes),
    /// The raw error object.
    Error(Bytes),
    /// The task was cancelled and has no result.
    Cancelled,
}

/// The `CreateTaskResult`. `immediate` is a text with which the model can continue
/// (`io.modelcontextprotocol/model-immediate-response`).
pub fn created(
    record: &Record,
    now: Timestamp,
    terms: ViewOptions,
    reader: TaskResultFormat,
    immediate: Option<&str>,
) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(512 + immediate.map_or(0, str::len));
    if reader == TaskResultFormat::Draft {
        out.key("content");
        out.raw(b"[]");
    }
    out.key("task");
    out.raw(b"{");
    task(&mut out, record, now, terms);
    out.raw(b"}");
    out.key("_meta");
    out.raw(b"{");
    out.key(meta::RELATED_TASK);
    out.raw(&related_task(record));
    if reader == TaskResultFormat::Draft {
        out.key(meta::DRAFT_TASK);
        let status = status(record, terms.tool_errors);
        out.raw(json!({ "taskId": record.id.as_str(), "status": status }).to_string().as_bytes());
    }
    if let Some(immediate) = immediate {
        out.string(meta::IMMEDIATE_RESPONSE, immediate);
    }
    out.raw(b"}");
    out.finish()
}

/// The task object: the result of `tasks/get` and `tasks/cancel`, the params of `notifications/tasks/status`.
pub fn task_object(record: &Record, now: Timestamp, terms: ViewOptions) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(384 + record.message.as_ref().map_or(0, String::len));
    task(&mut out, record, now, terms);
    out.finish()
}

/// The result of `tasks/list`: one page, and the cursor of the next if there is one.
pub fn task_list<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    next: Option<&str>,
    now: Timestamp,
    terms: ViewOptions,
) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(1024);
    out.key("tasks");
    out.raw(b"[");
    for (at, record) in records.into_iter().enumerate() {
        out.raw(if at == 0 { b"{" } else { b",{" });
        task(&mut out, record, now, terms);
        out.raw(b"}");
    }
    out.raw(b"]");
    if let Some(next) = next {
        out.string("nextCursor", next);
    }
    out.finish()
}

/// The status, with this revision's handling of tool errors.
pub fn status(record: &Record, tool_errors: ToolErrors) -> &'static str {
    match (&record.state, tool_errors) {
        (TaskState::Completed { is_error: true, .. }, ToolErrors::Failed) => "failed",
        (state, ToolErrors::Failed | ToolErrors::Completed) => state.status(),
    }
}

/// The response of `tasks/result`; `None` until the task has ended.
///
/// The result of a 2026-07-28 client's call is in that revision: `resultType` and the server info are
/// removed.
pub fn outcome(record: &Record) -> Option<TaskOutcome> {
    match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => None,
        TaskState::Completed { result, .. } => Some(TaskOutcome::Result(related_result(record, result))),
        TaskState::Failed { error } => Some(TaskOutcome::Error(error.clone())),
        TaskState::Cancelled => Some(TaskOutcome::Cancelled),
    }
}

/// The value of `io.modelcontextprotocol/related_task-task`.
pub fn related_task(record: &Record) -> Vec<u8> {
    json!({ "taskId": record.id.as_str() }).to_string().into()
}

fn related_result(record: &Record, result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let mut edit = ObjectEdit::new(&object);
    if record.is_translated {
        edit.remove("resultType");
    }
    let about = match object.get("_meta").map(|raw| JsonObject::read(&raw)) {
        Some(Ok(about)) => {
            let mut inner = ObjectEdit::new(&about);
            if record.is_translated {
                inner.remove(meta::SERVER_INFO);
            }
            inner.set(meta::RELATED_TASK, related_task(record));
            inner.apply()
        }
        _ => [b"{\"", meta::RELATED_TASK.as_bytes(), b"\":", &related_task(record), b"}"].concat().into(),
    };
    edit.set("_meta", about);
    edit.apply()
}

/// The members of a task.
fn task(out: &mut ObjectWriter, record: &Record, now: Timestamp, terms: ViewOptions) {
    out.string("taskId", record.id.as_str());
    out.string("status", status(record, terms.tool_errors));
    if let Some(message) = &record.message {
        out.string("statusMessage", message);
    }
    out.string("createdAt", &record.wall(record.created).to_string());
    out.string("lastUpdatedAt", &record.wall(record.updated).to_string());
    out.number("ttl", record.ttl.as_millis());
    out.number("pollInterval", record.poll_interval(now, terms.poll).as_millis());
}
