//! A task as its server shows it, whichever the dialect.

use super::LEAST_POLL_INTERVAL;
use serde::Deserialize;
use std::time::Duration;

/// A task as its server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: String,
    pub status: TaskStatus,
    pub message: Option<String>,
    pub poll_interval: Duration,
    /// From its creation; `Missing` for ever.
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
    /// How long to leave it alone after a poll.
    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_interval.max(LEAST_POLL_INTERVAL)
    }
}

// === impl Status ===

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

    /// Whether nothing comes after it.
    pub const fn is_ended(self) -> bool {
        match self {
            Self::Working | Self::InputRequired => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}
