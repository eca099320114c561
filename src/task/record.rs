//! What a task is, at rest.

use super::{Owner, TaskId};
use crate::protocol::Timestamp;
use bytes::Bytes;
use std::{collections::BTreeMap, time::Duration};

/// A task as a store keeps it. Holds no handles, channels or instants: it is compared, swapped,
/// and outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: TaskId,
    pub owner: Owner,
    /// The tool that was called.
    pub tool: String,
    pub created: Timestamp,
    /// The last change a client can see.
    pub updated: Timestamp,
    /// When the status last changed; the poll interval follows the time since.
    pub status_since: Timestamp,
    /// Counts from `created`. Never shortened.
    pub ttl: Duration,
    /// How long a result stays once the task has ended.
    pub retention: Duration,
    /// What the server last said of its progress, or why the task ended.
    pub message: Option<String>,
    /// Every key a question of this task has had, so that none is used twice.
    pub keys_used: u32,
    pub state: State,
}

/// Where a task stands. Each state holds exactly what is true in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Working,
    /// Waiting for the client. Never empty. Values are raw `{method, params}` objects.
    InputRequired {
        outstanding: BTreeMap<String, Bytes>,
    },
    /// `result` is the raw result object of the call.
    Completed {
        result: Bytes,
    },
    /// `error` is the raw JSON-RPC error object.
    Failed {
        error: Bytes,
    },
    Cancelled,
}
