//! The stored form of a task.

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

/// A task as a store keeps it. It contains no handles, channels or instants, because it is compared, swapped,
/// and outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: TaskId,
    pub owner: TaskPrincipal,
    /// The tool that was called.
    pub tool: Box<str>,
    pub created: Timestamp,
    /// Offset of the wall clock at that time. All times of the task are displayed with it: a displayed time never
    /// changes, and differences between two of them are real durations, whatever steps the wall clock makes meanwhile.
    pub clock_offset: ClockOffset,
    /// How long its call had run when it became a task.
    pub waited: Duration,
    /// The last change that a client can see. An extension of `ttl` alone is none.
    pub updated: Timestamp,
    /// When the status last changed; the poll interval grows with the time since.
    pub status_since: Timestamp,
    /// Counts from `created`, in whole milliseconds. Never shortened while the task works; at its end it
    /// becomes the elapsed time plus `retention`.
    pub ttl: Duration,
    /// How long the result is kept after the end of the task.
    pub retention: Duration,
    /// The `serverInfo` of the upstream, a raw object of at most [`MAX_SERVER_INFO`]. `None` until the server
    /// has sent it. Tasks of one server share the bytes.
    pub server_info: Option<Bytes>,
    /// The span of the request that made the call, if it is traced.
    pub trace: Option<Box<TraceContext>>,
    /// How the task is shown to its client.
    pub view: TaskView,
    /// Whether the proxy has translated the result to 2026-07-28.
    pub is_translated: bool,
    /// The server's last progress message, or why the task ended.
    pub message: Option<String>,
    /// All keys of the task's input requests, so that none is used twice (tasks extension, *Task Update
    /// Requests*). Shared, because it rarely changes.
    pub keys_used: Arc<BTreeSet<String>>,
    /// Input responses that the server may not have received, by key. Only while the task works, and only if
    /// another process may have to deliver them.
    pub undelivered: BTreeMap<String, InputAnswer>,
    /// How the call became a task. Shared, as it never changes.
    pub cause: Option<Arc<TaskCause>>,
    /// The history of its changes.
    pub history: TaskHistory,
    pub state: TaskState,
}

/// The maximum size of the stored `serverInfo`, in bytes. Icons may take megabytes.
pub const MAX_SERVER_INFO: usize = 1 << 10;

/// How a task is shown to the client of its call. Other clients see a task, unless it is a ticket: a ticket
/// holder does not support tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskView {
    /// As in the tasks extension.
    Extension,
    /// As in 2025-11-25.
    Experimental,
    /// As a ticket.
    Ticket,
}

/// The response to an input request, as in JSON-RPC: a result or an error, raw.
pub type InputAnswer = Result<Bytes, Bytes>;

/// The state of a task. Each state contains exactly what is valid in it. Raw values are on one line, because
/// views are sent in events, which end at line breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    Working,
    /// Waiting for the client. Never empty. Values are raw `{method, params}` objects.
    InputRequired {
        outstanding: BTreeMap<String, Bytes>,
    },
    /// `result` is the raw result object of the call; `is_error` whether it is a tool error.
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
    /// A task that starts to work at `now`. Its result will be kept for `retention` (from
    /// [`retention::SHORTEST`] to [`retention::LONGEST`]).
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

    /// A time of the record as it is displayed.
    pub fn wall(&self, time: Timestamp) -> WallTime {
        time + self.clock_offset
    }

    /// Sets the `serverInfo`; only its name, version and title if the whole object is too large to be stored
    /// with each task.
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

    /// The size of the variable parts of this record, in bytes: the server's results, input requests and
    /// messages. Counted against the quota of stored bytes.
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

// === impl TaskState ===

impl TaskState {
    /// The status in both revisions.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired { .. } => "input_required",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether no event can change the task any more.
    pub const fn is_ended(&self) -> bool {
        match self {
            Self::Working | Self::InputRequired { .. } => false,
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled => true,
        }
    }
}
