//! Writes a task record as an experimental task of 2025-11-25 (*Tasks*).
//!
//! The members of the task are at the top level of every response but the first, in which the task is nested;
//! the result of the call is never in the task. Every view has every member of the revision: clients of that
//! time refuse a task without `ttl` or `lastUpdatedAt`.

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
    /// `completed`, because clients in the field drop the result of a failed task.
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
pub fn create_task_result(
    record: &Record,
    now: Timestamp,
    options: ViewOptions,
    format: TaskResultFormat,
    immediate_response: Option<&str>,
) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(512 + immediate_response.map_or(0, str::len));
    if format == TaskResultFormat::Draft {
        out.write_key("content");
        out.write_raw(b"[]");
    }
    out.write_key("task");
    out.write_raw(b"{");
    write_task_members(&mut out, record, now, options);
    out.write_raw(b"}");
    out.write_key("_meta");
    out.write_raw(b"{");
    out.write_key(meta::RELATED_TASK);
    out.write_raw(&related_task_value(record));
    if format == TaskResultFormat::Draft {
        out.write_key(meta::DRAFT_TASK);
        let status = task_status(record, options.tool_errors);
        out.write_raw(json!({ "taskId": record.id.as_str(), "status": status }).to_string().as_bytes());
    }
    if let Some(immediate) = immediate_response {
        out.write_string(meta::IMMEDIATE_RESPONSE, immediate);
    }
    out.write_raw(b"}");
    out.finish()
}

/// Writes the task object: the result of `tasks/get` and `tasks/cancel`, and the params of
/// `notifications/tasks/status`.
pub fn task_object(record: &Record, now: Timestamp, options: ViewOptions) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(384 + record.message.as_ref().map_or(0, String::len));
    write_task_members(&mut out, record, now, options);
    out.finish()
}

/// Writes the result of `tasks/list`: one page of tasks; `next` is the cursor of the next page, if there is
/// one.
pub fn task_list<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    next: Option<&str>,
    now: Timestamp,
    options: ViewOptions,
) -> Vec<u8> {
    let mut out = ObjectWriter::with_capacity(1024);
    out.write_key("tasks");
    out.write_raw(b"[");
    for (index, record) in records.into_iter().enumerate() {
        out.write_raw(if index == 0 { b"{" } else { b",{" });
        write_task_members(&mut out, record, now, options);
        out.write_raw(b"}");
    }
    out.write_raw(b"]");
    if let Some(next) = next {
        out.write_string("nextCursor", next);
    }
    out.finish()
}

/// Returns the status of a task for this revision, with the configured handling of tool errors.
pub fn task_status(record: &Record, tool_errors: ToolErrors) -> &'static str {
    match (&record.state, tool_errors) {
        (TaskState::Completed { is_error: true, .. }, ToolErrors::Failed) => "failed",
        (state, ToolErrors::Failed | ToolErrors::Completed) => state.status(),
    }
}

/// Returns the outcome for the response to `tasks/result`; `None` until the task has ended.
///
/// A result that was translated to 2026-07-28 loses the members of that revision, `resultType` and the server
/// info.
pub fn task_outcome(record: &Record) -> Option<TaskOutcome> {
    match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => None,
        TaskState::Completed { result, .. } => Some(TaskOutcome::Result(related_result(record, result))),
        TaskState::Failed { error } => Some(TaskOutcome::Error(error.clone())),
        TaskState::Cancelled => Some(TaskOutcome::Cancelled),
    }
}

/// Returns the value of `io.modelcontextprotocol/related-task` in `_meta`, which names the task.
pub fn related_task_value(record: &Record) -> Vec<u8> {
    json!({ "taskId": record.id.as_str() }).to_string().into()
}

/// Adds the related task to the `_meta` of a result, and removes the members of 2026-07-28.
fn related_result(record: &Record, result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let mut edit = ObjectEdit::new(&object);
    if record.is_translated {
        edit.remove("resultType");
    }
    let meta_object = match object.get("_meta").map(|raw| JsonObject::read(&raw)) {
        Some(Ok(original_meta)) => {
            let mut inner = ObjectEdit::new(&original_meta);
            if record.is_translated {
                inner.remove(meta::SERVER_INFO);
            }
            inner.set(meta::RELATED_TASK, related_task_value(record));
            inner.apply()
        }
        _ => {
            [b"{\"", meta::RELATED_TASK.as_bytes(), b"\":", &related_task_value(record), b"}"].concat().into()
        }
    };
    edit.set("_meta", meta_object);
    edit.apply()
}

/// Writes the members of a task.
fn write_task_members(out: &mut ObjectWriter, record: &Record, now: Timestamp, options: ViewOptions) {
    out.write_string("taskId", record.id.as_str());
    out.write_string("status", task_status(record, options.tool_errors));
    if let Some(message) = &record.message {
        out.write_string("statusMessage", message);
    }
    out.write_string("createdAt", &record.to_wall_time(record.created).to_string());
    out.write_string("lastUpdatedAt", &record.to_wall_time(record.updated).to_string());
    out.write_number("ttl", record.ttl.as_millis());
    out.write_number("pollInterval", record.poll_interval(now, options.poll).as_millis());
}
