//! A task as its server describes it, in either era.

use super::LEAST_POLL_INTERVAL;
use serde::Deserialize;
use std::time::Duration;

/// A task as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: String,
    pub status: TaskStatus,
    pub message: Option<String>,
    pub poll_interval: Duration,
    /// From its creation; `None` for ever.
    pub ttl: Option<Duration>,
}

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
    /// Delay before the next poll.
    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_interval.max(LEAST_POLL_INTERVAL)
    }
}

// === impl TaskStatus ===

impl TaskStatus {
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
