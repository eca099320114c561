//! Log throttling for events that may occur by the thousand.

use std::time::{Duration, Instant};

/// Throttles the log lines of one event: counts its occurrences between two lines.
#[derive(Debug, Default)]
pub struct EventThrottle {
    /// When the event was last logged.
    last_logged: Option<Instant>,
    /// Occurrences since the last log line.
    count: u64,
}

/// Minimum time between two log lines of one event.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

// === impl EventThrottle ===

impl EventThrottle {
    /// Counts one occurrence. If the event is to be logged now, returns the number of occurrences since the
    /// last log line, this one included; otherwise `None`.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count_many(1, now)
    }

    /// Counts `times` occurrences; returns the same as [`count`](Self::count).
    pub fn count_many(&mut self, times: usize, now: Instant) -> Option<u64> {
        self.count += times as u64;
        if self.last_logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        self.last_logged = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}
