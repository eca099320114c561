//! A record as the tasks extension shows it.
//!
//! Three messages show a task: the handle that stands in for a call's result, the answer to
//! `tasks/get`, and the notification. Each is written straight into one buffer, as a result may be
//! megabytes long: it is copied once, and never parsed into values. Every field of the extension is
//! in every view, numbers are whole: clients refuse a task without `ttlMs` or with a fraction.
//!
//! `meta` is a raw `_meta` object to put in, for what the caller knows: who serves, which
//! subscription.

use super::{Record, State};
use crate::protocol::{Timestamp, splice::Object};
use bytes::Bytes;
use std::collections::BTreeMap;

pub use super::retention::PollBounds;

/// The `CreateTaskResult` of the extension: flat, `resultType: "task"`, without result, error or
/// input requests whatever the state.
pub fn created(record: &Record, now: Timestamp, bounds: PollBounds, meta: Option<&[u8]>) -> Vec<u8> {
    let mut view = View::sized(record, meta, 0);
    view.string("resultType", "task");
    view.task(record, now, bounds);
    view.finish(meta)
}

/// The `GetTaskResult` of the extension: `resultType: "complete"` and the detailed task. The inlined
/// result carries its own `resultType` (added where the server's had none).
pub fn detailed(record: &Record, now: Timestamp, bounds: PollBounds, meta: Option<&[u8]>) -> Vec<u8> {
    let mut view = View::sized(record, meta, record.stored_bytes());
    view.string("resultType", "complete");
    view.task(record, now, bounds);
    view.details(&record.state);
    view.finish(meta)
}

/// The params of `notifications/tasks`: the detailed task, identical to what `tasks/get` would say
/// at this moment but for `resultType`, which belongs to results.
pub fn notified(record: &Record, now: Timestamp, bounds: PollBounds, meta: Option<&[u8]>) -> Vec<u8> {
    let mut view = View::sized(record, meta, record.stored_bytes());
    view.task(record, now, bounds);
    view.details(&record.state);
    view.finish(meta)
}

/// A JSON object that is being written.
struct View(Vec<u8>);

// === impl View ===

impl View {
    /// With room for the whole view, so that a large result is not copied again on the way.
    fn sized(record: &Record, meta: Option<&[u8]>, details: usize) -> Self {
        // The fixed fields take about 260 bytes; quotes around keys are few.
        let message = record.message.as_ref().map_or(0, String::len);
        let mut out = Vec::with_capacity(384 + message + details + meta.map_or(0, <[u8]>::len));
        out.push(b'{');
        Self(out)
    }

    /// The members that every view of a task has.
    fn task(&mut self, record: &Record, now: Timestamp, bounds: PollBounds) {
        self.string("taskId", record.id.as_str());
        self.string("status", record.state.status());
        if let Some(message) = &record.message {
            self.string("statusMessage", message);
        }
        self.string("createdAt", &record.created.to_string());
        self.string("lastUpdatedAt", &record.updated.to_string());
        self.number("ttlMs", record.ttl.as_millis());
        self.number("pollIntervalMs", record.poll_interval(now, bounds).as_millis());
    }

    /// The members that belong to one status.
    fn details(&mut self, state: &State) {
        match state {
            State::Working | State::Cancelled => {}
            State::InputRequired { outstanding } => self.input_requests(outstanding),
            State::Completed { result } => self.result(result),
            State::Failed { error } => {
                self.key("error");
                self.0.extend_from_slice(error);
            }
        }
    }

    fn input_requests(&mut self, outstanding: &BTreeMap<String, Bytes>) {
        self.key("inputRequests");
        self.0.push(b'{');
        for (at, (key, request)) in outstanding.iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            self.quoted(key);
            self.0.push(b':');
            self.0.extend_from_slice(request);
        }
        self.0.push(b'}');
    }

    /// The result of the call. A `resultType` goes in front where it has none: the published client
    /// library refuses a completed task whose result lacks it, although the extension's own example
    /// does.
    fn result(&mut self, result: &Bytes) {
        self.key("result");
        let rest = match Object::read(result) {
            Ok(object) if !object.contains("resultType") => {
                let open =
                    result.iter().position(|&byte| byte == b'{').expect("an object begins with a brace");
                self.0.extend_from_slice(br#"{"resultType":"complete""#);
                if object.members().next().is_some() {
                    self.0.push(b',');
                }
                &result[open + 1..]
            }
            Ok(_) | Err(_) => result,
        };
        self.0.extend_from_slice(rest);
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quoted(value);
    }

    fn number(&mut self, key: &str, value: u128) {
        self.key(key);
        self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// The key of the next member. All our keys are plain.
    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn quoted(&mut self, text: &str) {
        serde_json::to_writer(&mut self.0, text).expect("a string is written to memory");
    }

    fn finish(mut self, meta: Option<&[u8]>) -> Vec<u8> {
        if let Some(meta) = meta {
            self.key("_meta");
            self.0.extend_from_slice(meta);
        }
        self.0.push(b'}');
        self.0
    }
}
