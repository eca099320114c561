//! Log throttling for events that may occur by the thousand.

use std::time::{Duration, Instant};

/// Counts an event between its log lines.
#[derive(Debug, Default)]
pub struct EventThrottle {
    logged: Option<Instant>,
    /// Occurrences since the last log line.
    count: u64,
}

/// Least time between two log lines of one event.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

// === impl EventThrottle ===

impl EventThrottle {
    /// Counts one occurrence. Returns the occurrences since the last log line if the event is to be logged
    /// now.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count_all(1, now)
    }

    /// Counts `times` occurrences, as [`count`](Self::count).
    pub fn count_all(&mut self, times: usize, now: Instant) -> Option<u64> {
        self.count += times as u64;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}
