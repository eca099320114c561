//! Moves a task from one state to the next.
//!
//! [`apply`] reads no clock, draws no random numbers and touches no store. The same record, event
//! and time give the same answer, so a store may call it again after losing a race.

use super::{Answer, Record, State, What, retention};
use crate::protocol::{Timestamp, frame::on_one_line, status_message::shorten, tool_result};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server reported progress, in words. Long ones are shortened, here and below: they are
    /// shown with every poll.
    Progressed { message: String },
    /// The server asks the client something. `request` is the raw `{method, params}` object; `key` must
    /// be new to the task.
    Asked { key: String, request: Bytes },
    /// The server took a question back, or nobody waits for its answer any more.
    Withdrawn { key: String },
    /// The client answered some questions. Keys that are not outstanding are ignored. Where they `are_kept`, another
    /// process can deliver them.
    Answered { answers: BTreeMap<String, Answer>, are_kept: bool },
    /// The server has the answers under these keys.
    Delivered { keys: Vec<String> },
    /// The call returned a result, raw (also one with `isError: true`).
    Returned { result: Bytes },
    /// The call ended in a JSON-RPC error, raw; `message` says it in words.
    Failed { error: Bytes, message: Option<String> },
    /// The task was cancelled.
    Cancelled { by: Canceller },
    /// The server has described itself, which is called since before that.
    Described { server_info: Bytes },
    /// Time to look whether the task's life must be extended while it works.
    Renewed,
}

/// Who cancelled a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceller {
    Client,
    Operator,
}

/// What the caller is to do once the new record is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give the server the answer to the question under this key.
    AnswerUpstream { key: String, response: Answer },
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

// === impl Event ===

impl Event {
    /// The client of the task cancelled it.
    pub const CANCELLED_BY_CLIENT: Self = Self::Cancelled { by: Canceller::Client };

    /// Whether the task has ended with it.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Returned { .. } | Self::Failed { .. } | Self::Cancelled { .. } => true,
            Self::Progressed { .. }
            | Self::Asked { .. }
            | Self::Withdrawn { .. }
            | Self::Answered { .. }
            | Self::Delivered { .. }
            | Self::Described { .. }
            | Self::Renewed => false,
        }
    }
}

/// Applies `event` at `now`, giving the record to store and the effects to carry out after: answers
/// and cancellation for the server first, the announcement last.
///
/// # Errors
/// [`Refusal`] where the event changes nothing; there is nothing to store then.
pub fn apply(record: &Record, event: Event, now: Timestamp) -> Result<(Record, Vec<Effect>), Refusal> {
    if record.state.is_ended() {
        return Err(Refusal::Ended);
    }
    // Another replica's clock may run behind: a task's time is never turned back, neither behind its last
    // change nor behind its last renewal, of which its ttl tells.
    let now = now.max(record.updated).max(record.granted());
    match event {
        Event::Progressed { message } => progressed(record, message, now),
        Event::Asked { key, request } => asked(record, key, on_one_line(request), now),
        Event::Withdrawn { key } => withdrawn(record, &key, now),
        Event::Answered { answers, are_kept } => answered(record, answers, are_kept, now),
        Event::Delivered { keys } => delivered(record, &keys),
        Event::Described { server_info } => described(record, &server_info),
        Event::Returned { result } => {
            // "Halfway there" beside a result would only confuse. Why a tool failed would not.
            let is_error = tool_result::is_error(&result);
            let message = is_error.then(|| why(tool_result::words(&result), TOOL_FAILED));
            let result = on_one_line(result);
            let what = if is_error { What::ToolFailed } else { What::Completed };
            let next = Record { message, ..moved(record, State::Completed { result, is_error }, what, now) };
            Ok((next, vec![Effect::Announce]))
        }
        Event::Failed { error, message } => {
            let message = Some(why(message, FAILED));
            let error = on_one_line(error);
            let next = Record { message, ..moved(record, State::Failed { error }, What::Failed, now) };
            Ok((next, vec![Effect::Announce]))
        }
        Event::Cancelled { by } => {
            let next = Record {
                message: Some(cancelled_by(by).to_owned()),
                ..moved(record, State::Cancelled, What::Cancelled, now)
            };
            Ok((next, vec![Effect::CancelUpstream, Effect::Announce]))
        }
        Event::Renewed => renewed(record, now),
    }
}

type Applied = Result<(Record, Vec<Effect>), Refusal>;

fn progressed(record: &Record, message: String, now: Timestamp) -> Applied {
    let message = shorten(message);
    if record.message.as_ref() == Some(&message) {
        return Err(Refusal::Unchanged);
    }
    let next =
        Record { message: Some(message), ..moved(record, record.state.clone(), What::Progressed, now) };
    Ok((next, vec![Effect::Announce]))
}

fn asked(record: &Record, key: String, request: Bytes, now: Timestamp) -> Applied {
    // A client answers each key once and compares what comes under it: a key names one question for
    // the task's whole life (tasks extension, *Task Update Requests*).
    if record.keys_used.contains(&key) {
        return Err(Refusal::Unchanged);
    }
    let mut keys_used = Arc::clone(&record.keys_used);
    Arc::make_mut(&mut keys_used).insert(key.clone());
    let mut outstanding = outstanding(record).cloned().unwrap_or_default();
    outstanding.insert(key, request);
    let next = Record { keys_used, ..moved(record, State::InputRequired { outstanding }, What::Asked, now) };
    Ok((next, vec![Effect::Announce]))
}

fn withdrawn(record: &Record, key: &str, now: Timestamp) -> Applied {
    let mut left = outstanding(record).cloned().unwrap_or_default();
    if left.remove(key).is_none() {
        return Err(Refusal::Unchanged);
    }
    Ok((moved(record, waiting_for(left), What::Withdrawn, now), vec![Effect::Announce]))
}

fn answered(record: &Record, answers: BTreeMap<String, Answer>, are_kept: bool, now: Timestamp) -> Applied {
    let mut left = outstanding(record).cloned().unwrap_or_default();
    let mut effects: Vec<_> = answers
        .into_iter()
        .filter(|(key, _)| left.remove(key).is_some())
        .map(|(key, response)| Effect::AnswerUpstream { key, response })
        .collect();
    if effects.is_empty() {
        return Err(Refusal::NotAsked);
    }
    let mut next = moved(record, waiting_for(left), What::Answered, now);
    if are_kept {
        let kept = effects.iter().filter_map(|effect| match effect {
            Effect::AnswerUpstream { key, response } => Some((key.clone(), response.clone())),
            Effect::CancelUpstream | Effect::Announce => None,
        });
        next.undelivered.extend(kept);
    }
    effects.push(Effect::Announce);
    Ok((next, effects))
}

fn delivered(record: &Record, keys: &[String]) -> Applied {
    let mut next = record.clone();
    next.undelivered.retain(|key, _| !keys.contains(key));
    if next.undelivered.len() == record.undelivered.len() {
        return Err(Refusal::Unchanged);
    }
    // Nothing that a client could see.
    Ok((next, vec![]))
}

fn described(record: &Record, server_info: &Bytes) -> Applied {
    let mut next = record.clone();
    next.set_server_info(server_info);
    if next.server_info == record.server_info {
        return Err(Refusal::Unchanged);
    }
    // Beside the task, not of it.
    Ok((next, vec![]))
}

fn renewed(record: &Record, now: Timestamp) -> Applied {
    let ttl = retention::while_live(record, now);
    if ttl == record.ttl {
        return Err(Refusal::Unchanged);
    }
    // Nothing a client would want to be woken for.
    Ok((Record { ttl, ..record.clone() }, vec![]))
}

/// The questions that wait for the client, if any.
fn outstanding(record: &Record) -> Option<&BTreeMap<String, Bytes>> {
    match &record.state {
        State::InputRequired { outstanding } => Some(outstanding),
        State::Working | State::Completed { .. } | State::Failed { .. } | State::Cancelled => None,
    }
}

/// The state of a live task with these questions left.
fn waiting_for(left: BTreeMap<String, Bytes>) -> State {
    if left.is_empty() { State::Working } else { State::InputRequired { outstanding: left } }
}

/// The record in another state, or changed within its state, with its times and its life brought along.
fn moved(record: &Record, state: State, what: What, now: Timestamp) -> Record {
    let same_status = state.status() == record.state.status();
    Record {
        id: record.id.clone(),
        owner: record.owner.clone(),
        tool: record.tool.clone(),
        created: record.created,
        updated: now,
        status_since: if same_status { record.status_since } else { now },
        ttl: if state.is_ended() {
            retention::at_end(record, now)
        } else {
            retention::while_live(record, now)
        },
        retention: record.retention,
        waited: record.waited,
        server_info: record.server_info.clone(),
        trace: record.trace.clone(),
        view: record.view,
        raised: record.raised,
        message: record.message.clone(),
        keys_used: Arc::clone(&record.keys_used),
        cause: record.cause.clone(),
        life: record.life.and(what, now),
        undelivered: if state.is_ended() { BTreeMap::new() } else { record.undelivered.clone() },
        state,
    }
}

/// The status message of a task that failed: something is said even where nobody gave a reason
/// (2025-11-25, *Tasks, Task Execution Errors*).
fn why(words: Option<String>, otherwise: &str) -> String {
    let words = words.filter(|words| !words.trim().is_empty());
    words.map_or_else(|| otherwise.to_owned(), shorten)
}

/// The status message of a cancelled task.
const fn cancelled_by(canceller: Canceller) -> &'static str {
    match canceller {
        Canceller::Client => "the task was cancelled by its client",
        Canceller::Operator => "the task was cancelled by an operator",
    }
}

/// That of a task whose tool failed and left no words.
const TOOL_FAILED: &str = "the tool failed without saying why";
/// That of a task whose call ended in an error without a message.
const FAILED: &str = "the call failed without saying why";
