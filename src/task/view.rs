//! A record as each dialect shows it.

use super::Record;
use crate::protocol::Timestamp;
use std::time::Duration;

/// The bounds of `pollIntervalMs`.
pub type PollBounds = (Duration, Duration);

/// The `CreateTaskResult` of the extension: flat, `resultType: "task"`, without result, error or
/// input requests.
pub fn created(record: &Record, now: Timestamp, bounds: PollBounds) -> Vec<u8> {
    let _ = (record, now, bounds);
    todo!()
}

/// The `GetTaskResult` of the extension: `resultType: "complete"` and the detailed task. The inlined
/// result carries its own `resultType` (added where the server's had none).
pub fn detailed(record: &Record, now: Timestamp, bounds: PollBounds) -> Vec<u8> {
    let _ = (record, now, bounds);
    todo!()
}

/// The params of `notifications/tasks`: the detailed task, identical to what `tasks/get` would say
/// but for `resultType`; `meta` is the raw `_meta` object to put in.
pub fn notified(record: &Record, now: Timestamp, bounds: PollBounds, meta: &[u8]) -> Vec<u8> {
    let _ = (record, now, bounds, meta);
    todo!()
}
