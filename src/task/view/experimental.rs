//! Writes a task record as an experimental task of 2025-11-25 (*Tasks*).
//!
//! The members of the task are at the top level of every response but the first, in which the task is nested;
//! the result of the call is never in the task. Every view has every member of the revision: clients of that
//! time refuse a task without `ttl` or `lastUpdatedAt` (`WIRE`, B 1, rule 11).

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

/// The options of a route for this view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// The minimum and the maximum `pollInterval`.
    pub poll: PollBounds,
    /// The status of tasks whose tool returned an error.
    pub tool_errors: ToolErrors,
}

/// The status of a task whose tool returned `isError: true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolErrors {
    /// `failed`, as the revision requires (2025-11-25, *Tasks, Task Execution Errors*).
    #[default]
    Failed,
    /// `completed`, because clients in the field drop the result of a failed task (`WIRE`, B 1, rule 4).
    Completed,
}

/// The form of a `CreateTaskResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskResultFormat {
    /// As published in the revision.
    Published,
    /// The published form and, in addition, that of a draft of SEP-1686, which FastMCP 2.14 reads: a call
    /// result with `content`, whose `_meta` names the task under `modelcontextprotocol.io/task`.
    Draft,
}

/// The outcome of a call that became a task: the response that the call itself would have had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The raw result object, whose `_meta` names the task.
    Result(Bytes),
    /// The raw error object.
    Error(Bytes),
    /// The task was cancelled and has no result.
    Cancelled,
}

/// Writes the `CreateTaskResult`. `immediate_response` is a text with which the model can continue
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

/// Writes the task object: the result of `tasks/get` and `tasks/cancel`, and the params of
/// `notifications/tasks/status`.
pub fn task_object(record: &Record, now: Timestamp, terms: ViewOptions) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(384 + record.message.as_ref().map_or(0, String::len));
    task(&mut out, record, now, terms);
    out.finish()
}

/// Writes the result of `tasks/list`: one page of tasks; `next` is the cursor of the next page, if there is
/// one.
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

/// Returns the status of a task for this revision, with the configured handling of tool errors.
pub fn status(record: &Record, tool_errors: ToolErrors) -> &'static str {
    match (&record.state, tool_errors) {
        (TaskState::Completed { is_error: true, .. }, ToolErrors::Failed) => "failed",
        (state, ToolErrors::Failed | ToolErrors::Completed) => state.status(),
    }
}

/// Returns the outcome for the response to `tasks/result`; `None` until the task has ended.
///
/// A result that was translated to 2026-07-28 loses the members of that revision, `resultType` and the server
/// info.
pub fn outcome(record: &Record) -> Option<TaskOutcome> {
    match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => None,
        TaskState::Completed { result, .. } => Some(TaskOutcome::Result(related_result(record, result))),
        TaskState::Failed { error } => Some(TaskOutcome::Error(error.clone())),
        TaskState::Cancelled => Some(TaskOutcome::Cancelled),
    }
}

/// Returns the value of `io.modelcontextprotocol/related-task` in `_meta`, which names the task.
pub fn related_task(record: &Record) -> Vec<u8> {
    json!({ "taskId": record.id.as_str() }).to_string().into()
}

/// Adds the related task to the `_meta` of a result, and removes the members of 2026-07-28.
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

/// Writes the members of a task.
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
