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

/// A task as it is stored. Contains no handles, channels or instants, because stores compare and swap
/// records, and a record outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The id of the task, which is also its handle.
    pub id: TaskId,
    /// The principal and the route to which the task belongs.
    pub owner: TaskPrincipal,
    /// The tool that was called.
    pub tool: Box<str>,
    /// The time at which the task was created.
    pub created: Timestamp,
    /// The offset of the wall clock at the creation, with which all times of the task are displayed. So a
    /// displayed time never changes, and the difference of two displayed times is a real duration, whatever
    /// steps the wall clock makes.
    pub clock_offset: ClockOffset,
    /// How long the call had run when it became a task.
    pub elapsed_before_task: Duration,
    /// The time of the last change that a client can see; an extension of `ttl` alone does not count.
    pub updated: Timestamp,
    /// The time of the last change of the status; the poll interval grows with the time since then.
    pub status_since: Timestamp,
    /// The lifetime that clients see, counted from `created`, in whole milliseconds. Never shortened while
    /// the task works; at the end of the task it becomes the elapsed time plus `retention`.
    pub ttl: Duration,
    /// How long the result is kept after the end of the task.
    pub retention: Duration,
    /// The server's `serverInfo`, a raw object of at most [`MAX_SERVER_INFO`] bytes; `None` until the server
    /// has sent it. Tasks of one server share the bytes.
    pub server_info: Option<Bytes>,
    /// The trace context of the request that made the call; `None` without tracing.
    pub trace: Option<Box<TraceContext>>,
    /// The form in which the task is shown to the client of its call.
    pub view: TaskView,
    /// Whether the proxy has translated the result to 2026-07-28.
    pub is_translated: bool,
    /// The status message: the server's last progress message, or the reason why the task ended.
    pub message: Option<String>,
    /// All keys that the task's input requests have used, so that no key is used twice (tasks extension,
    /// *Task Update Requests*). Shared, because it rarely changes.
    pub keys_used: Arc<BTreeSet<String>>,
    /// Input responses that the server may not have received, by key. Present only while the task works, and
    /// only if another process may have to deliver them.
    pub undelivered: BTreeMap<String, InputAnswer>,
    /// How the call became a task. Shared, as it never changes.
    pub cause: Option<Arc<TaskCause>>,
    /// The history of the task's changes, for operators.
    pub history: TaskHistory,
    /// The state of the task, with the data of the state.
    pub state: TaskState,
}

/// The maximum size of a stored `serverInfo`, in bytes. The limit exists because icons may take megabytes.
pub const MAX_SERVER_INFO: usize = 1 << 10;

/// The form in which a task is shown to the client of its call. A task is visible to the principal's other
/// clients, too, but a ticket is not: its client does not support tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskView {
    /// A task of the tasks extension (SEP-2663).
    Extension,
    /// An experimental task of 2025-11-25.
    Experimental,
    /// A ticket, for a client without task support.
    Ticket,
}

/// The response to an input request: the raw JSON-RPC result (`Ok`) or error (`Err`) object.
pub type InputAnswer = Result<Bytes, Bytes>;

/// The state of a task. Each state contains exactly what is valid in it. Raw values are on one line, because
/// views are sent in events, which end at line breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    Working,
    /// The task waits for input responses of the client. `outstanding` holds the unanswered input requests by
    /// key, as raw `{method, params}` objects; never empty.
    InputRequired {
        outstanding: BTreeMap<String, Bytes>,
    },
    /// The call returned a result. `result` is the raw result object; `is_error` tells whether it is a tool
    /// error.
    Completed {
        result: Bytes,
        is_error: bool,
    },
    /// The call failed. `error` is the raw JSON-RPC error object.
    Failed {
        error: Bytes,
    },
    /// The task was cancelled and has no result.
    Cancelled,
}

// === impl Record ===

impl Record {
    /// Creates a task that starts to work at `now`. Its result will be kept for `retention` (from
    /// [`retention::MIN_RETENTION`] to [`retention::MAX_RETENTION`]) after its end.
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
            elapsed_before_task: Duration::ZERO,
            server_info: None,
            updated: now,
            status_since: now,
            ttl: retention::grant_length(retention),
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

    /// Converts a time of the record to the wall-clock time that is displayed.
    pub fn to_wall_time(&self, time: Timestamp) -> WallTime {
        time + self.clock_offset
    }

    /// Sets the `serverInfo`; only its name, version and title if the whole object is larger than
    /// [`MAX_SERVER_INFO`].
    pub fn set_server_info(&mut self, server_info: &Bytes) {
        let Ok(info) = JsonObject::read(server_info) else { return };
        let fits = |server_info: &Bytes| server_info.len() <= MAX_SERVER_INFO;
        self.server_info =
            Some(server_info).filter(|whole| fits(whole)).cloned().map(to_single_line).or_else(|| {
                let members = ["name", "version", "title"].map(|key| Some((key, info.string(key)?)));
                let reduced: BTreeMap<_, _> = members.into_iter().flatten().collect();
                let reduced_json = Bytes::from(serde_json::to_vec(&reduced).expect("text is JSON"));
                Some(reduced_json).filter(fits)
            });
    }

    /// Returns the size of the variable parts of this record, in bytes: the server's results, input requests
    /// and messages. Counted against the quota of stored bytes.
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
        let answer_size = |(key, answer): (&String, &InputAnswer)| {
            key.len() + answer.as_ref().map_or_else(|error| error.len(), |result| result.len())
        };
        let undelivered: usize = self.undelivered.iter().map(answer_size).sum();
        let message = self.message.as_ref().map_or(0, String::len);
        let server_info = self.server_info.as_ref().map_or(0, Bytes::len);
        state + keys + undelivered + message + server_info + self.tool.len()
    }
}

// === impl TaskState ===

impl TaskState {
    /// Returns the `status` of the task in messages of both revisions, without the conversion of tool errors
    /// that 2025-11-25 requires.
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
