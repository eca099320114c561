//! A record as a row: columns for the fields of queries, bytes for results and input requests, and JSON for
//! the other fields.
//!
//! The columns have the owner of a task, when the task is due and whether it has ended. `head` is a JSON
//! object, so that a member may be added without a new schema. `body` has the server's bytes unchanged: a
//! result or an error, or the open input requests, one after the other, with their lengths in the head.

use crate::{
    protocol::{ClockOffset, Timestamp, TraceContext},
    task::{
        InputAnswer, Record, TaskCause, TaskHistory, TaskId, TaskPrincipal, TaskSharing, TaskState, TaskView,
        retention,
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeSet, str, sync::Arc, time::Duration};

/// A record in the form of a row, to be written.
pub struct RecordRow {
    pub record: Arc<Record>,
    /// The fields without columns of their own, as JSON.
    pub head: String,
    /// The result or the error, or the open input requests one after the other; empty for other states.
    pub body: Bytes,
}

/// The columns of a row from which a record is read, without its body.
pub struct RowColumns<'a> {
    pub id: [u8; 16],
    /// The encoded owner; see [`encode_owner`].
    pub owner: &'a [u8],
    /// Milliseconds on the records' time line.
    pub created: i64,
    /// As [`RecordRow::head`].
    pub head: &'a str,
}

/// The fields of a record without columns of their own.
#[derive(Serialize, Deserialize)]
struct RowHead<'a> {
    #[serde(borrow)]
    tool: Cow<'a, str>,
    /// The offset of the wall clock from the time line when the task was created; absent if they agreed.
    #[serde(default, skip_serializing_if = "ClockOffset::is_zero")]
    clock_offset_ms: ClockOffset,
    updated: Timestamp,
    status_since: Timestamp,
    ttl_ms: u64,
    retention_ms: u64,
    view: TaskView,
    waited_ms: u64,
    /// Raw JSON.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    server_info: Option<&'a RawValue>,
    raised: bool,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    keys_used: Cow<'a, BTreeSet<String>>,
    /// Input responses that have not been delivered: the key, whether the response is a result (not an
    /// error), and the raw JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    undelivered: Vec<(String, bool, String)>,
    /// The trace as a `traceparent`. An unreadable one is left out, because the task does not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<Cow<'a, TaskCause>>,
    life: Cow<'a, TaskHistory>,
    #[serde(borrow)]
    state: StoredState<'a>,
}

/// A task's state without its bytes, but with their lengths.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredState<'a> {
    Working,
    InputRequired {
        #[serde(borrow)]
        outstanding: Vec<(Cow<'a, str>, usize)>,
    },
    Completed {
        is_error: bool,
        bytes: usize,
    },
    Failed {
        bytes: usize,
    },
    Cancelled,
}

/// Why a row cannot be read as a record: it was damaged, or written by another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error("its head cannot be read: {0}")]
    Head(String),
    #[error("its owner cannot be read")]
    Owner,
    #[error("its retention is out of range")]
    Retention,
    #[error("its state is not what its head says")]
    State,
    #[error("its head names no open input request, or one of them twice")]
    InputRequests,
    #[error("its body has {is} bytes, and should have {should}")]
    Body { is: usize, should: usize },
}

// === impl RecordRow ===

impl RecordRow {
    /// Converts a record to a row.
    pub fn from_record(record: Arc<Record>) -> Self {
        let (state, body) = match &record.state {
            TaskState::Working => (StoredState::Working, Bytes::new()),
            TaskState::InputRequired { outstanding } => {
                let lengths = outstanding.iter().map(|(key, request)| (key.as_str().into(), request.len()));
                let requests: Vec<_> = outstanding.values().map(|request| &request[..]).collect();
                (StoredState::InputRequired { outstanding: lengths.collect() }, requests.concat().into())
            }
            TaskState::Completed { result, is_error } => {
                (StoredState::Completed { is_error: *is_error, bytes: result.len() }, result.clone())
            }
            TaskState::Failed { error } => (StoredState::Failed { bytes: error.len() }, error.clone()),
            TaskState::Cancelled => (StoredState::Cancelled, Bytes::new()),
        };
        let head = RowHead {
            tool: (&*record.tool).into(),
            clock_offset_ms: record.clock_offset,
            updated: record.updated,
            status_since: record.status_since,
            ttl_ms: millis(record.ttl),
            retention_ms: millis(record.retention),
            view: record.view,
            waited_ms: millis(record.elapsed_before_task),
            server_info: record.server_info.as_ref().and_then(|raw| serde_json::from_slice(raw).ok()),
            raised: record.is_translated,
            message: record.message.as_ref().map(Into::into),
            keys_used: Cow::Borrowed(&record.keys_used),
            undelivered: record.undelivered.iter().map(undelivered_entry).collect(),
            trace: record.trace.as_ref().map(ToString::to_string),
            cause: record.cause.as_deref().map(Cow::Borrowed),
            life: Cow::Borrowed(&record.history),
            state,
        };
        let head = serde_json::to_string(&head).expect("text and numbers are JSON");
        Self { record, head, body }
    }
}

fn undelivered_entry((key, answer): (&String, &InputAnswer)) -> (String, bool, String) {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    match answer {
        Ok(result) => (key.clone(), true, text(result)),
        Err(error) => (key.clone(), false, text(error)),
    }
}

fn undelivered_answer((key, is_result, raw): (String, bool, String)) -> (String, InputAnswer) {
    (key, if is_result { Ok(raw.into()) } else { Err(raw.into()) })
}

// === impl RowColumns ===

impl RowColumns<'_> {
    /// Reads the record, with this body.
    ///
    /// # Errors
    /// [`RowError`].
    pub fn record(&self, body: Bytes) -> Result<Record, RowError> {
        self.read(Some(body))
    }

    /// Reads the record without its body: a result, an error or input requests are empty.
    ///
    /// # Errors
    /// [`RowError`].
    pub fn without_body(&self) -> Result<Record, RowError> {
        self.read(None)
    }

    fn read(&self, body: Option<Bytes>) -> Result<Record, RowError> {
        let head = parse_head(self.head)?;
        if !head.state.has_valid_input_requests() {
            return Err(RowError::InputRequests);
        }
        let retention = Duration::from_millis(head.retention_ms);
        if retention::clamp_retention(retention) != retention {
            return Err(RowError::Retention);
        }
        let should = head.state.body_length();
        let body = match body {
            Some(body) if body.len() == should => body,
            Some(body) => return Err(RowError::Body { is: body.len(), should }),
            None => Bytes::new(),
        };
        Ok(Record {
            id: TaskId::from_entropy(self.id),
            owner: decode_owner(self.owner).ok_or(RowError::Owner)?,
            tool: head.tool.into(),
            created: Timestamp::from_millis(self.created.cast_unsigned()),
            clock_offset: head.clock_offset_ms,
            updated: head.updated,
            status_since: head.status_since,
            ttl: Duration::from_millis(head.ttl_ms),
            retention,
            elapsed_before_task: Duration::from_millis(head.waited_ms),
            server_info: head.server_info.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes())),
            view: head.view,
            is_translated: head.raised,
            message: head.message.map(Cow::into_owned),
            keys_used: Arc::new(head.keys_used.into_owned()),
            undelivered: head.undelivered.into_iter().map(undelivered_answer).collect(),
            trace: head.trace.and_then(|text| TraceContext::parse(&text)).map(Box::new),
            cause: head.cause.map(|cause| Arc::new(cause.into_owned())),
            history: head.life.into_owned(),
            state: head.state.with_body(body),
        })
    }
}

// === impl StoredState ===

impl StoredState<'_> {
    /// The length of the body in bytes.
    fn body_length(&self) -> usize {
        match self {
            Self::Working | Self::Cancelled => 0,
            Self::InputRequired { outstanding } => {
                outstanding.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
            }
            Self::Completed { bytes, .. } | Self::Failed { bytes } => *bytes,
        }
    }

    /// Whether no input request occurs twice, and a state that waits for responses has at least one.
    fn has_valid_input_requests(&self) -> bool {
        match self {
            Self::InputRequired { outstanding } => {
                let keys: BTreeSet<_> = outstanding.iter().map(|(key, _)| key).collect();
                !keys.is_empty() && keys.len() == outstanding.len()
            }
            Self::Working | Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled => true,
        }
    }

    /// The state with its bytes from the body; they are empty if the body is.
    fn with_body(self, mut body: Bytes) -> TaskState {
        match self {
            Self::Working => TaskState::Working,
            Self::InputRequired { outstanding } => {
                let mut split_request = |(key, bytes): (Cow<'_, str>, usize)| {
                    (key.into_owned(), body.split_to(bytes.min(body.len())))
                };
                TaskState::InputRequired {
                    outstanding: outstanding.into_iter().map(&mut split_request).collect(),
                }
            }
            Self::Completed { is_error, .. } => TaskState::Completed { result: body, is_error },
            Self::Failed { .. } => TaskState::Failed { error: body },
            Self::Cancelled => TaskState::Cancelled,
        }
    }
}

fn parse_head(text: &str) -> Result<RowHead<'_>, RowError> {
    serde_json::from_str(text).map_err(|error| RowError::Head(error.to_string()))
}

/// The length in bytes of the body of a row with this head.
///
/// # Errors
/// [`RowError::Head`].
pub(super) fn body_length(head: &str) -> Result<usize, RowError> {
    Ok(parse_head(head)?.state.body_length())
}

/// Encodes an owner for the column `owner`: the principal, the scope of its tasks, and the route. Equal
/// owners have equal bytes.
pub fn encode_owner(owner: &TaskPrincipal) -> Vec<u8> {
    let TaskPrincipal { principal, route, scope } = owner;
    let mut bytes = Vec::with_capacity(principal.len() + 17 + route.len());
    bytes.extend(principal);
    match scope {
        TaskSharing::Principal => bytes.push(PRINCIPAL),
        TaskSharing::Legacy => bytes.push(LEGACY),
        TaskSharing::Session(session) => {
            bytes.push(SESSION);
            bytes.extend(session);
        }
    }
    bytes.extend(route.as_bytes());
    bytes
}

/// Decodes the column `owner`.
fn decode_owner(bytes: &[u8]) -> Option<TaskPrincipal> {
    let (principal, rest) = bytes.split_first_chunk()?;
    let (scope, rest) = rest.split_first()?;
    let (scope, route) = match *scope {
        PRINCIPAL => (TaskSharing::Principal, rest),
        LEGACY => (TaskSharing::Legacy, rest),
        SESSION => rest.split_first_chunk().map(|(session, rest)| (TaskSharing::Session(*session), rest))?,
        _ => return None,
    };
    Some(TaskPrincipal { principal: *principal, route: str::from_utf8(route).ok()?.into(), scope })
}

/// The principal of an encoded owner, or of the beginning of one.
pub(super) fn principal_of_owner(owner: &[u8]) -> Option<[u8; 16]> {
    owner.first_chunk().copied()
}

/// The principal and the route that a task of this encoded owner is counted for; `None` if it has no
/// principal. An unreadable route is empty.
pub(super) fn counted_for(owner: &[u8]) -> Option<([u8; 16], &str)> {
    let (principal, rest) = owner.split_first_chunk()?;
    let route = match rest.split_first() {
        Some((&(PRINCIPAL | LEGACY), route)) => route,
        Some((&SESSION, rest)) => rest.get(16..).unwrap_or_default(),
        _ => &[],
    };
    Some((*principal, str::from_utf8(route).unwrap_or_default()))
}

/// The status in the column `state`. An unknown one counts as `failed`.
pub(super) fn status_from_column(state: &str) -> &'static str {
    ["working", "input_required", "completed", "cancelled"]
        .into_iter()
        .find(|status| *status == state)
        .unwrap_or("failed")
}

/// Whether a task whose column `state` has this value has ended.
pub(super) fn is_ended(state: &str) -> bool {
    ![TaskState::Working.status(), "input_required"].contains(&state)
}

/// Converts a time to the value of a column.
pub(super) fn time_to_column(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const PRINCIPAL: u8 = b'p';
const LEGACY: u8 = b'l';
const SESSION: u8 = b's';
