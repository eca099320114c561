//! The state machine of a task.
//!
//! [`apply`] reads no clock, draws no random numbers and touches no store. The same record, event and time
//! give the same result, so a store may apply an event again after a concurrent update.

use super::{HistoryKind, InputAnswer, Record, TaskState, retention};
use crate::protocol::{Timestamp, frame::to_single_line, status_message::truncate, tool_result};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// An event that may change a task record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEvent {
    /// The server reported progress as text. Long messages are truncated, here and in the other events,
    /// because they are sent with every poll.
    Progressed { message: String },
    /// The server sent an input request. `request` is the raw `{method, params}` object; `key` must be new to
    /// the task.
    InputRequested { key: String, request: Bytes },
    /// The server withdrew an input request, or no client can answer it any more.
    InputWithdrawn { key: String },
    /// The client sent input responses, by key. Keys that are not outstanding are ignored. `are_stored` keeps
    /// the responses in the record, so that another process can deliver them to the server.
    InputAnswered { answers: BTreeMap<String, InputAnswer>, are_stored: bool },
    /// The server has received the responses under these keys.
    InputDelivered { keys: Vec<String> },
    /// The call returned a result, a raw object that may have `isError: true`.
    Returned { result: Bytes },
    /// The call ended with a JSON-RPC error, a raw object; `message` is the text of the error.
    Failed { error: Bytes, message: Option<String> },
    /// The task was cancelled.
    Cancelled { canceller: Canceller },
    /// The server sent its `serverInfo` after the task was created.
    ServerDescribed { server_info: Bytes },
    /// The sweeper checks whether the `ttl` of a working task must be extended.
    TtlRenewed,
}

/// Who cancelled a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceller {
    /// The client that made the call.
    Client,
    /// An operator of the proxy.
    Operator,
}

/// An action to carry out once the new record is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEffect {
    /// Send the server the response to the input request under this key.
    AnswerUpstream { key: String, response: InputAnswer },
    /// Cancel the call at the server.
    CancelUpstream,
    /// Notify the watchers of the task.
    Announce,
}

/// The reason why an event does not change a task record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventRefusal {
    #[error("the task has already ended")]
    Ended,
    #[error("the input response matches no outstanding input request")]
    NotOutstanding,
    #[error("nothing would change")]
    Unchanged,
}

// === impl TaskEvent ===

impl TaskEvent {
    /// The cancellation of a task by its client.
    pub const CANCELLED_BY_CLIENT: Self = Self::Cancelled { canceller: Canceller::Client };

    /// Whether the event ends the task.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Returned { .. } | Self::Failed { .. } | Self::Cancelled { .. } => true,
            Self::Progressed { .. }
            | Self::InputRequested { .. }
            | Self::InputWithdrawn { .. }
            | Self::InputAnswered { .. }
            | Self::InputDelivered { .. }
            | Self::ServerDescribed { .. }
            | Self::TtlRenewed => false,
        }
    }
}

/// Applies `event` at `now`. Returns the record to store and the effects to carry out afterwards: responses
/// and cancellation for the server first, the notification last.
///
/// # Errors
/// [`EventRefusal`] if the event changes nothing; then there is nothing to store.
pub fn apply(
    record: &Record,
    event: TaskEvent,
    now: Timestamp,
) -> Result<(Record, Vec<TaskEffect>), EventRefusal> {
    if record.state.is_ended() {
        return Err(EventRefusal::Ended);
    }
    // The clock of another replica may be behind. A task's time never goes back, neither before its last
    // change nor before its last renewal, which its ttl determines.
    let now = now.max(record.updated).max(record.granted_at());
    match event {
        TaskEvent::Progressed { message } => apply_progress(record, message, now),
        TaskEvent::InputRequested { key, request } => {
            apply_input_request(record, key, to_single_line(request), now)
        }
        TaskEvent::InputWithdrawn { key } => apply_withdrawal(record, &key, now),
        TaskEvent::InputAnswered { answers, are_stored } => apply_answers(record, answers, are_stored, now),
        TaskEvent::InputDelivered { keys } => apply_delivery(record, &keys),
        TaskEvent::ServerDescribed { server_info } => apply_description(record, &server_info),
        TaskEvent::Returned { result } => {
            // The last progress message is removed, because it would be misleading beside a result; a tool
            // error gets its text as the message.
            let is_error = tool_result::is_error(&result);
            let message = is_error
                .then(|| failure_message(tool_result::first_text(&result), DEFAULT_TOOL_ERROR_MESSAGE));
            let result = to_single_line(result);
            let kind = if is_error { HistoryKind::ToolFailed } else { HistoryKind::Completed };
            let next = Record {
                message,
                ..transition(record, TaskState::Completed { result, is_error }, kind, now)
            };
            Ok((next, vec![TaskEffect::Announce]))
        }
        TaskEvent::Failed { error, message } => {
            let message = Some(failure_message(message, DEFAULT_FAILURE_MESSAGE));
            let error = to_single_line(error);
            let next = Record {
                message,
                ..transition(record, TaskState::Failed { error }, HistoryKind::Failed, now)
            };
            Ok((next, vec![TaskEffect::Announce]))
        }
        TaskEvent::Cancelled { canceller } => {
            let next = Record {
                message: Some(cancellation_message(canceller).to_owned()),
                ..transition(record, TaskState::Cancelled, HistoryKind::Cancelled, now)
            };
            Ok((next, vec![TaskEffect::CancelUpstream, TaskEffect::Announce]))
        }
        TaskEvent::TtlRenewed => apply_renewal(record, now),
    }
}

/// The new record and the effects of an event, or the reason why the event changes nothing.
type TransitionResult = Result<(Record, Vec<TaskEffect>), EventRefusal>;

fn apply_progress(record: &Record, message: String, now: Timestamp) -> TransitionResult {
    let message = truncate(message);
    if record.message.as_ref() == Some(&message) {
        return Err(EventRefusal::Unchanged);
    }
    let next = Record {
        message: Some(message),
        ..transition(record, record.state.clone(), HistoryKind::Progressed, now)
    };
    Ok((next, vec![TaskEffect::Announce]))
}

fn apply_input_request(record: &Record, key: String, request: Bytes, now: Timestamp) -> TransitionResult {
    // A client answers each key once and matches input requests by key, so a key identifies one input request
    // for the task's whole life (tasks extension, *Task Update Requests*).
    if record.keys_used.contains(&key) {
        return Err(EventRefusal::Unchanged);
    }
    let mut keys_used = Arc::clone(&record.keys_used);
    Arc::make_mut(&mut keys_used).insert(key.clone());
    let mut outstanding = outstanding_requests(record).cloned().unwrap_or_default();
    outstanding.insert(key, request);
    let next = Record {
        keys_used,
        ..transition(record, TaskState::InputRequired { outstanding }, HistoryKind::Asked, now)
    };
    Ok((next, vec![TaskEffect::Announce]))
}

fn apply_withdrawal(record: &Record, key: &str, now: Timestamp) -> TransitionResult {
    let mut remaining = outstanding_requests(record).cloned().unwrap_or_default();
    if remaining.remove(key).is_none() {
        return Err(EventRefusal::Unchanged);
    }
    Ok((transition(record, state_for(remaining), HistoryKind::Withdrawn, now), vec![TaskEffect::Announce]))
}

fn apply_answers(
    record: &Record,
    answers: BTreeMap<String, InputAnswer>,
    are_stored: bool,
    now: Timestamp,
) -> TransitionResult {
    let mut remaining = outstanding_requests(record).cloned().unwrap_or_default();
    let mut effects: Vec<_> = answers
        .into_iter()
        .filter(|(key, _)| remaining.remove(key).is_some())
        .map(|(key, response)| TaskEffect::AnswerUpstream { key, response })
        .collect();
    if effects.is_empty() {
        return Err(EventRefusal::NotOutstanding);
    }
    let mut next = transition(record, state_for(remaining), HistoryKind::Answered, now);
    if are_stored {
        let undelivered = effects.iter().filter_map(|effect| match effect {
            TaskEffect::AnswerUpstream { key, response } => Some((key.clone(), response.clone())),
            TaskEffect::CancelUpstream | TaskEffect::Announce => None,
        });
        next.undelivered.extend(undelivered);
    }
    effects.push(TaskEffect::Announce);
    Ok((next, effects))
}

fn apply_delivery(record: &Record, keys: &[String]) -> TransitionResult {
    let mut next = record.clone();
    next.undelivered.retain(|key, _| !keys.contains(key));
    if next.undelivered.len() == record.undelivered.len() {
        return Err(EventRefusal::Unchanged);
    }
    // Delivery is invisible to clients, so no watcher is notified.
    Ok((next, vec![]))
}

fn apply_description(record: &Record, server_info: &Bytes) -> TransitionResult {
    let mut next = record.clone();
    next.set_server_info(server_info);
    if next.server_info == record.server_info {
        return Err(EventRefusal::Unchanged);
    }
    // The server info is not part of the task's state, so no watcher is notified.
    Ok((next, vec![]))
}

fn apply_renewal(record: &Record, now: Timestamp) -> TransitionResult {
    let ttl = retention::live_ttl(record, now);
    if ttl == record.ttl {
        return Err(EventRefusal::Unchanged);
    }
    // An extended `ttl` is no change that a client has to be notified of.
    Ok((Record { ttl, ..record.clone() }, vec![]))
}

/// Returns the outstanding input requests by key; `None` if there are none.
fn outstanding_requests(record: &Record) -> Option<&BTreeMap<String, Bytes>> {
    match &record.state {
        TaskState::InputRequired { outstanding } => Some(outstanding),
        TaskState::Working
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled => None,
    }
}

/// Returns the state of a live task with these outstanding input requests.
fn state_for(remaining: BTreeMap<String, Bytes>) -> TaskState {
    if remaining.is_empty() {
        TaskState::Working
    } else {
        TaskState::InputRequired { outstanding: remaining }
    }
}

/// Returns the record with this state, which may be the same, and with its times and its history updated.
fn transition(record: &Record, state: TaskState, kind: HistoryKind, now: Timestamp) -> Record {
    let has_same_status = state.status() == record.state.status();
    Record {
        id: record.id.clone(),
        owner: record.owner.clone(),
        tool: record.tool.clone(),
        created: record.created,
        clock_offset: record.clock_offset,
        updated: now,
        status_since: if has_same_status { record.status_since } else { now },
        ttl: if state.is_ended() {
            retention::final_ttl(record, now)
        } else {
            retention::live_ttl(record, now)
        },
        retention: record.retention,
        elapsed_before_task: record.elapsed_before_task,
        server_info: record.server_info.clone(),
        trace: record.trace.clone(),
        view: record.view,
        is_translated: record.is_translated,
        message: record.message.clone(),
        keys_used: Arc::clone(&record.keys_used),
        cause: record.cause.clone(),
        history: record.history.with_change(kind, now),
        undelivered: if state.is_ended() { BTreeMap::new() } else { record.undelivered.clone() },
        state,
    }
}

/// Returns the status message of a failed task: never empty, even if the reason is unknown (2025-11-25,
/// *Tasks, Task Execution Errors*).
fn failure_message(text: Option<String>, fallback: &str) -> String {
    let text = text.filter(|text| !text.trim().is_empty());
    text.map_or_else(|| fallback.to_owned(), truncate)
}

/// Returns the status message of a cancelled task.
const fn cancellation_message(canceller: Canceller) -> &'static str {
    match canceller {
        Canceller::Client => "the task was cancelled by its client",
        Canceller::Operator => "the task was cancelled by an operator",
    }
}

/// The status message for a tool error without text.
const DEFAULT_TOOL_ERROR_MESSAGE: &str = "the tool failed without a message";
/// The status message for a JSON-RPC error without a message.
const DEFAULT_FAILURE_MESSAGE: &str = "the call failed without a message";
