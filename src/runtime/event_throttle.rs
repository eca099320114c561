//! Events that may come by the thousand, and that the log has only now and then.

use std::time::{Duration, Instant};

/// Counts an event between its lines in the log.
#[derive(Debug, Default)]
pub struct EventThrottle {
    logged: Option<Instant>,
    /// How often since it was logged.
    count: u64,
}

/// How long an event is not logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

// === impl Throttled ===

impl EventThrottle {
    /// The event has happened once more. Gives how often since it was logged, where it is to be logged again.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count_all(1, now)
    }

    /// The same of an event that has happened so often.
    pub fn count_all(&mut self, times: usize, now: Instant) -> Option<u64> {
        self.count += times as u64;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}
