//! The only place that asks what time it is.
//!
//! There are two kinds of time: [`std::time::Instant`] for waiting, and [`Timestamp`] for what is
//! stored or shown. Both arrive as arguments everywhere else.

use super::{PooledTimer, TimerKind, or_pending};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use crate::protocol::Timestamp;

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// For waiting.
    fn now(&self) -> Instant;

    /// For what is stored or shown.
    fn timestamp(&self) -> Timestamp;
}

/// Reads tokio's clock, so a test that pauses time pauses this too.
///
/// The wall clock is read once and moved on by the monotonic one: a stepped wall clock neither
/// ends tasks early nor keeps them for ever.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

/// What the wall clock shows, for the log alone: a line must have the time that other programs on
/// this machine write beside theirs, even where somebody moves the clock.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

// === impl SystemClock ===

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            started: tokio::time::Instant::now().into_std(),
            started_at: Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn timestamp(&self) -> Timestamp {
        self.started_at + (self.now() - self.started)
    }
}

/// Resolves at a moment, if there is one.
pub async fn wait_until(due: Option<Instant>) {
    or_pending(due.map(|due| PooledTimer::at(due, TimerKind::Response))).await;
}
