//! Moves a task from one state to the next.
//!
//! [`apply`] reads no clock, draws no random numbers and touches no store. The same record, event
//! and time give the same answer, so a store may call it again after losing a race.

use super::Record;
use crate::protocol::Timestamp;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server reported progress, in words.
    Progressed { message: String },
    /// The server asks the client something. `request` is the raw `{method, params}` object.
    Asked { key: String, request: Bytes },
    /// The server took a question back.
    Withdrawn { key: String },
    /// The client answered some questions, raw. Keys that are not outstanding are ignored.
    Answered { answers: BTreeMap<String, Bytes> },
    /// The call returned a result, raw (also one with `isError: true`).
    Returned { result: Bytes },
    /// The call ended in a JSON-RPC error, raw; `message` says it in words.
    Failed { error: Bytes, message: Option<String> },
    /// The client cancelled the task.
    Cancelled,
    /// Time to look whether the task's life must be extended while it works.
    Renewed,
}

/// What the caller is to do once the new record is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give the server the answer to the question under this key.
    AnswerUpstream { key: String, response: Bytes },
    /// Tell the server the call is cancelled.
    CancelUpstream,
    /// Tell those who listen to the task.
    Announce,
}

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the task has already ended")]
    Ended,
    #[error("the answer matches no outstanding request")]
    NotAsked,
    #[error("nothing would change")]
    Unchanged,
}

/// Applies `event` at `now`, giving the record to store and the effects to carry out after.
pub fn apply(record: &Record, event: Event, now: Timestamp) -> Result<(Record, Vec<Effect>), Refusal> {
    let _ = (record, event, now);
    todo!()
}
