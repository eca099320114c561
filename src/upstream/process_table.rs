//! Processes of a server at one moment, for its operator.

use crate::protocol::{ClockOffset, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Processes of a server at one moment, for operators.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTable {
    /// Number of process starts since the proxy started.
    pub starts: u64,
    /// Running processes, in the order of their starts.
    pub running: Vec<RunningProcess>,
    /// The last process that ended by itself; if there is none, the last that the proxy ended.
    pub last_ended: Option<EndedProcess>,
}

/// A running process, as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct RunningProcess {
    /// Process id; `None` until the supervisor has reported it.
    pub pid: Option<i32>,
    /// Time of the start.
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    /// The only caller of the process, as named in the log; `None` if all callers with the same capabilities
    /// share the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Capabilities that the callers of the process declare: raw JSON.
    pub capabilities: Box<RawValue>,
    /// Number of pending calls.
    pub calls: usize,
}

/// An ended process, as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct EndedProcess {
    /// Process id; `None` if it did not start.
    pub pid: Option<i32>,
    /// Time of the start.
    #[serde(serialize_with = "shown")]
    pub since: Timestamp,
    /// Time of the end.
    #[serde(serialize_with = "shown")]
    pub at: Timestamp,
    /// Exit status, as text.
    pub how: String,
    /// Whether the proxy requested the end.
    pub is_wanted: bool,
    /// The last lines on standard error, the oldest first.
    pub said: Vec<String>,
}

/// Serializes a time as its displayed text in UTC.
fn shown<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&(*time + ClockOffset::ZERO))
}
