//! A task as its server describes it, in either era.

use super::MIN_POLL_INTERVAL;
use serde::Deserialize;
use std::time::Duration;

/// A task as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: String,
    pub status: TaskStatus,
    /// The status message, if the server gives one.
    pub message: Option<String>,
    /// The poll interval that the server requests, or the default.
    pub poll_interval: Duration,
    /// Retention of the task, counted from its creation; `None` for unlimited.
    pub ttl: Option<Duration>,
}

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

// === impl Task ===

impl Task {
    /// Returns the delay before the next poll.
    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_interval.max(MIN_POLL_INTERVAL)
    }
}

// === impl TaskStatus ===

impl TaskStatus {
    /// Returns the status as the protocol spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the status is final.
    pub const fn is_ended(self) -> bool {
        match self {
            Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}
