//! What a task is, at rest.

use super::{TaskCause, TaskHistory, TaskId, TaskPrincipal, retention};
use crate::protocol::{
    ClockOffset, Timestamp, TraceContext, WallTime, frame::to_single_line, splice::JsonObject,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// A task as a store keeps it. Holds no handles, channels or instants: it is compared, swapped,
/// and outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: TaskId,
    pub owner: TaskPrincipal,
    /// The tool that was called.
    pub tool: Box<str>,
    pub created: Timestamp,
    /// How far the wall clock was ahead then. Every time of the task is shown with this offset: what was shown stays what it
    /// was, and what lies between two times of it is a real duration, whatever steps the wall clock makes meanwhile.
    pub clock_offset: ClockOffset,
    /// How long its call had run by then.
    pub waited: Duration,
    /// The last change a client can see. A mere extension of `ttl` is none.
    pub updated: Timestamp,
    /// When the status last changed; the poll interval follows the time since.
    pub status_since: Timestamp,
    /// Counts from `created`, in whole milliseconds. Never shortened while the task works; its end sets
    /// it to what has elapsed and `retention`.
    pub ttl: Duration,
    /// How long a result stays once the task has ended.
    pub retention: Duration,
    /// Who serves the call: a raw `serverInfo` object, of [`MAX_SERVER_INFO`] at most. `Missing` while the server has not
    /// described itself. Tasks of one server share the bytes.
    pub server_info: Option<Bytes>,
    /// The span of the request that made the call, where it is traced.
    pub trace: Option<Box<TraceContext>>,
    /// How the task is shown to whoever made the call.
    pub view: TaskView,
    /// Whether the result is one of 2026-07-28, made so by us.
    pub is_translated: bool,
    /// What the server last said of its progress, or why the task ended.
    pub message: Option<String>,
    /// Every key a question of this task has had, so that none is used twice (tasks extension,
    /// *Task Update Requests*). Shared, as it seldom changes.
    pub keys_used: Arc<BTreeSet<String>>,
    /// What the client has answered and the server may not have, by key. Only while the task works, and only where
    /// another process may have to deliver it.
    pub undelivered: BTreeMap<String, InputAnswer>,
    /// How the call became a task. Shared, as it never changes.
    pub cause: Option<Arc<TaskCause>>,
    /// What has become of it since.
    pub history: TaskHistory,
    pub state: TaskState,
}

/// Bytes of what is kept with a task of what its server says of itself. Icons may be megabytes.
pub const MAX_SERVER_INFO: usize = 1 << 10;

/// How a task is shown. It is one for others, too, but a ticket: whoever holds one knows no task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskView {
    /// As the tasks extension has it.
    Extension,
    /// As 2025-11-25 has it.
    Experimental,
    /// As a ticket.
    Ticket,
}

/// An answer to a question, as JSON-RPC has it: a result or an error, raw.
pub type InputAnswer = Result<Bytes, Bytes>;

/// Where a task stands. Each state holds exactly what is true in it. What is raw is on one line, as
/// views of it are sent in events, which end with theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    Working,
    /// Waiting for the client. Never empty. Values are raw `{method, params}` objects.
    InputRequired {
        outstanding: BTreeMap<String, Bytes>,
    },
    /// `result` is the raw result object of the call; `is_error` whether it says that the tool
    /// failed.
    Completed {
        result: Bytes,
        is_error: bool,
    },
    /// `error` is the raw JSON-RPC error object.
    Failed {
        error: Bytes,
    },
    Cancelled,
}

// === impl Record ===

impl Record {
    /// A task that begins to work at `now`. Its result, once there is one, stays for `retention`
    /// (from [`retention::SHORTEST`] to [`retention::LONGEST`]).
    pub fn new(
        id: TaskId,
        owner: TaskPrincipal,
        tool: impl Into<Box<str>>,
        retention: Duration,
        now: Timestamp,
    ) -> Self {
        let retention = retention::clamp_retention(retention);
        Self {
            id,
            owner,
            tool: tool.into(),
            created: now,
            clock_offset: ClockOffset::ZERO,
            waited: Duration::ZERO,
            server_info: None,
            updated: now,
            status_since: now,
            ttl: retention::grant(retention),
            retention,
            trace: None,
            view: TaskView::Extension,
            is_translated: true,
            message: None,
            keys_used: Arc::default(),
            undelivered: BTreeMap::new(),
            cause: None,
            history: TaskHistory::default(),
            state: TaskState::Working,
        }
    }

    /// One of the record's times as it is shown.
    pub fn wall(&self, time: Timestamp) -> WallTime {
        time + self.clock_offset
    }

    /// Notes who serves the call, by what the server says of itself: its name, version and title alone where all of
    /// it is too large to be kept with each task.
    pub fn set_server_info(&mut self, server_info: &Bytes) {
        let Ok(about) = JsonObject::read(server_info) else { return };
        let fits = |server_info: &Bytes| server_info.len() <= MAX_SERVER_INFO;
        self.server_info =
            Some(server_info).filter(|all| fits(all)).cloned().map(to_single_line).or_else(|| {
                let members = ["name", "version", "title"].map(|key| Some((key, about.string(key)?)));
                let short: BTreeMap<_, _> = members.into_iter().flatten().collect();
                let short = Bytes::from(serde_json::to_vec(&short).expect("text is JSON"));
                Some(short).filter(fits)
            });
    }

    /// The bytes this record holds beyond its fixed part: what grows with the server's results,
    /// questions and messages. Counted against the quota of stored bytes.
    pub fn stored_bytes(&self) -> usize {
        let state = match &self.state {
            TaskState::Working | TaskState::Cancelled => 0,
            TaskState::InputRequired { outstanding } => {
                outstanding.iter().map(|(key, request)| key.len() + request.len()).sum()
            }
            TaskState::Completed { result, .. } => result.len(),
            TaskState::Failed { error } => error.len(),
        };
        let keys: usize = self.keys_used.iter().map(String::len).sum();
        let answer = |(key, answer): (&String, &InputAnswer)| {
            key.len() + answer.as_ref().map_or_else(|error| error.len(), |result| result.len())
        };
        let undelivered: usize = self.undelivered.iter().map(answer).sum();
        let message = self.message.as_ref().map_or(0, String::len);
        let server_info = self.server_info.as_ref().map_or(0, Bytes::len);
        state + keys + undelivered + message + server_info + self.tool.len()
    }
}

// === impl State ===

impl TaskState {
    /// The status as every dialect spells it.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired { .. } => "input_required",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing can happen to the task any more.
    pub const fn is_ended(&self) -> bool {
        match self {
            Self::Working | Self::InputRequired { .. } => false,
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled => true,
        }
    }
}
