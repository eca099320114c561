//! The only place that reads the time.
//!
//! There are two kinds of time: [`std::time::Instant`] for waiting, and [`Timestamp`] for values that are
//! stored or shown. Everywhere else both are arguments.

use super::{PooledTimer, TimerKind, or_pending};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use crate::protocol::Timestamp;

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// The time for waiting.
    fn now(&self) -> Instant;

    /// The time for values that are stored or shown.
    fn timestamp(&self) -> Timestamp;
}

/// The system's clock. It reads tokio's clock, so a test that pauses time pauses this too.
///
/// The wall clock is read once and advanced by the monotonic one: a stepped wall clock neither ends tasks
/// early nor keeps them for ever.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

/// The wall clock, for the log alone: its lines must have the same time as those of other programs on this
/// machine, even where the clock is stepped.
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

/// Resolves at `due`; never for `None`.
pub async fn wait_until(due: Option<Instant>) {
    or_pending(due.map(|due| PooledTimer::at(due, TimerKind::Response))).await;
}
