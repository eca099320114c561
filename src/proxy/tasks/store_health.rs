//! The health of the task store, for operators.

use crate::{
    runtime::Mutex,
    telemetry::{StoreFailed, StoreRecovered},
};
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Store health, derived from the outcome of its last operations.
#[derive(Default)]
pub(in crate::proxy) struct StoreHealth {
    is_failing: AtomicBool,
    /// When the failure was last logged.
    logged_at: Mutex<Option<Instant>>,
}

/// The shortest time between two log lines about a persistent failure.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

// === impl StoreHealth ===

impl StoreHealth {
    /// Whether the last operation failed.
    pub(in crate::proxy) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Records the failure of an operation; `operation` names the operation for the log.
    pub(in crate::proxy) fn record_failure(&self, operation: &str, error: &dyn fmt::Display, now: Instant) {
        self.is_failing.store(true, Ordering::Relaxed);
        let mut logged_at = self.logged_at.lock();
        if logged_at.is_none_or(|logged_at| now.saturating_duration_since(logged_at) >= LOG_INTERVAL) {
            *logged_at = Some(now);
            StoreFailed { operation, error }.emit();
        }
    }

    /// Records a successful operation; logs the recovery after a failure.
    pub(in crate::proxy) fn record_success(&self) {
        if self.is_failing() && self.is_failing.swap(false, Ordering::Relaxed) {
            *self.logged_at.lock() = None;
            StoreRecovered.emit();
        }
    }
}
