//! Writes a task record as a task of the tasks extension (SEP-2663).
//!
//! Three messages show a task: the handle that replaces a call's result, the response to `tasks/get`, and the
//! notification. Each is written into one buffer, because a result may be megabytes long: it is copied once,
//! and never parsed into values. Every field of the extension is in every view, and numbers are integers:
//! clients refuse a task without `ttlMs` or with a fraction.
//!
//! `meta` is the raw `_meta` object for the message, with the server info or the subscription id.

use super::ObjectWriter;
use crate::{
    protocol::{
        ErrorObject, Timestamp, meta,
        splice::{JsonObject, ObjectEdit},
    },
    task::{PollBounds, Record, TaskState},
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Writes the `CreateTaskResult` of the extension: the members of the task at the top level with `resultType:
/// "task"`, without result, error or input requests in any state.
pub fn create_task_result(
    record: &Record,
    now: Timestamp,
    bounds: PollBounds,
    meta: Option<&[u8]>,
) -> Vec<u8> {
    let mut view = ExtensionWriter::with_capacity(record, meta, 0);
    view.0.write_string("resultType", "task");
    view.write_task(record, now, bounds);
    view.finish(meta)
}

/// Writes the `GetTaskResult` of the extension: `resultType: "complete"` and the detailed task. The result of
/// the call inside the task has its own `resultType` (added if the server's result has none).
pub fn get_task_result(record: &Record, now: Timestamp, bounds: PollBounds, meta: Option<&[u8]>) -> Vec<u8> {
    let mut view = ExtensionWriter::with_capacity(record, meta, record.stored_bytes());
    view.0.write_string("resultType", "complete");
    view.write_task(record, now, bounds);
    view.write_details(record);
    view.finish(meta)
}

/// Writes the params of `notifications/tasks`: the detailed task, identical to the response of `tasks/get` at
/// this moment except for `resultType`, which belongs to results.
pub fn notification_params(
    record: &Record,
    now: Timestamp,
    bounds: PollBounds,
    meta: Option<&[u8]>,
) -> Vec<u8> {
    let mut view = ExtensionWriter::with_capacity(record, meta, record.stored_bytes());
    view.write_task(record, now, bounds);
    view.write_details(record);
    view.finish(meta)
}

/// Writes the messages of this view.
struct ExtensionWriter(ObjectWriter);

// === impl ExtensionWriter ===

impl ExtensionWriter {
    /// Allocates space for the whole message, so that a large result is not copied again.
    fn with_capacity(record: &Record, meta: Option<&[u8]>, details: usize) -> Self {
        // The fixed fields take about 260 bytes; few keys need quoting.
        let message = record.message.as_ref().map_or(0, String::len);
        Self(ObjectWriter::with_capacity(384 + message + details + meta.map_or(0, <[u8]>::len)))
    }

    /// Writes the members that every message about a task has.
    fn write_task(&mut self, record: &Record, now: Timestamp, bounds: PollBounds) {
        self.0.write_string("taskId", record.id.as_str());
        self.0.write_string("status", record.state.status());
        if let Some(message) = &record.message {
            self.0.write_string("statusMessage", message);
        }
        self.0.write_string("createdAt", &record.to_wall_time(record.created).to_string());
        self.0.write_string("lastUpdatedAt", &record.to_wall_time(record.updated).to_string());
        self.0.write_number("ttlMs", record.ttl.as_millis());
        self.0.write_number("pollIntervalMs", record.poll_interval(now, bounds).as_millis());
    }

    /// Writes the members that depend on the status: input requests, result or error.
    fn write_details(&mut self, record: &Record) {
        match &record.state {
            TaskState::Working | TaskState::Cancelled => {}
            TaskState::InputRequired { outstanding } => self.write_input_requests(outstanding),
            TaskState::Completed { result, .. } if record.is_translated => self.write_result(result),
            TaskState::Completed { result, .. } => self.write_result(&to_modern(result)),
            TaskState::Failed { error } if record.is_translated => self.write_error(error),
            TaskState::Failed { error } => {
                self.write_error(ErrorObject::from_raw(error.clone()).into_modern().as_bytes());
            }
        }
    }

    fn write_input_requests(&mut self, outstanding: &BTreeMap<String, Bytes>) {
        self.0.write_key("inputRequests");
        self.0.write_raw(b"{");
        for (index, (key, request)) in outstanding.iter().enumerate() {
            if index > 0 {
                self.0.write_raw(b",");
            }
            self.0.write_quoted(key);
            self.0.write_raw(b":");
            self.0.write_raw(request);
        }
        self.0.write_raw(b"}");
    }

    /// Writes the result of the call. A missing `resultType` is added: the published client library refuses a
    /// completed task whose result lacks the member, although the extension's own example lacks it, too.
    fn write_result(&mut self, result: &Bytes) {
        self.0.write_key("result");
        let rest = match JsonObject::read(result) {
            Ok(object) if !object.contains("resultType") => {
                let open =
                    result.iter().position(|&byte| byte == b'{').expect("an object begins with a brace");
                self.0.write_raw(br#"{"resultType":"complete""#);
                if object.members().next().is_some() {
                    self.0.write_raw(b",");
                }
                &result[open + 1..]
            }
            Ok(_) | Err(_) => result,
        };
        self.0.write_raw(rest);
    }

    fn write_error(&mut self, error: &[u8]) {
        self.0.write_key("error");
        self.0.write_raw(error);
    }

    fn finish(mut self, meta: Option<&[u8]>) -> Vec<u8> {
        if let Some(meta) = meta {
            self.0.write_key("_meta");
            self.0.write_raw(meta);
        }
        self.0.finish()
    }
}

/// Removes the members of a legacy result that have another meaning in 2026-07-28: `resultType`, which is an
/// unknown member in legacy revisions, and the related task, which would be a task of the server's own.
fn to_modern(result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let mut edit = ObjectEdit::new(&object);
    edit.remove("resultType");
    if let Some(Ok(meta_object)) = object.get("_meta").map(|raw| JsonObject::read(&raw))
        && meta_object.contains(meta::RELATED_TASK)
    {
        let mut inner = ObjectEdit::new(&meta_object);
        inner.remove(meta::RELATED_TASK);
        edit.set("_meta", inner.apply());
    }
    edit.apply()
}
