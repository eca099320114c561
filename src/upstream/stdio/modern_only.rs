//! Memory of a server that supports only 2026-07-28.

use std::time::{Duration, Instant};

use crate::{runtime::Mutex, upstream::CallError};

/// Remembers that a server supports only 2026-07-28, so that the server is not started again in vain.
#[derive(Debug, Default)]
pub(super) struct ModernOnlyCache(Mutex<Option<(Instant, CallError)>>);

/// Time for which the rejection is remembered. The server may have been replaced meanwhile.
const VERDICT_LIFETIME: Duration = Duration::from_secs(5 * 60);

// === impl ModernOnlyCache ===

impl ModernOnlyCache {
    /// Returns the remembered rejection, if it is recent.
    ///
    /// # Errors
    /// [`CallError::ModernOnly`]
    pub(super) fn check(&self, now: Instant) -> Result<(), CallError> {
        match &*self.0.lock() {
            Some((since, error)) if now.duration_since(*since) < VERDICT_LIFETIME => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Stores the error of a failed start, if the error is [`CallError::ModernOnly`].
    pub(super) fn remember(&self, now: Instant, error: &CallError) {
        if let CallError::ModernOnly(_) = error {
            *self.0.lock() = Some((now, error.clone()));
        }
    }
}
