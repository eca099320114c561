//! Whether the task store answers, for operators.

use crate::{
    runtime::Mutex,
    telemetry::{StoreFailed, StoreRecovered},
};
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// What is known of the store by what became of what it was asked.
#[derive(Default)]
pub(super) struct StoreHealth {
    is_failing: AtomicBool,
    /// When that was said last.
    logged_at: Mutex<Option<Instant>>,
}

/// A store that goes on failing is said so again after this.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

// === impl StoreHealth ===

impl StoreHealth {
    /// Whether it took the last change that it was asked for.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// It has not done this.
    pub(super) fn record_failure(&self, doing: &str, error: &dyn fmt::Display, now: Instant) {
        self.is_failing.store(true, Ordering::Relaxed);
        let mut said = self.logged_at.lock();
        if said.is_none_or(|said| now.saturating_duration_since(said) >= LOG_INTERVAL) {
            *said = Some(now);
            StoreFailed { doing, error }.emit();
        }
    }

    /// It has taken a change.
    pub(super) fn record_success(&self) {
        if self.is_failing() && self.is_failing.swap(false, Ordering::Relaxed) {
            *self.logged_at.lock() = None;
            StoreRecovered.emit();
        }
    }
}
