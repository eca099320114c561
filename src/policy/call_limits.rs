//! Limits on the concurrency and rate of calls of a route, or of the tools of a rule.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

/// Limits on the `tools/call` requests of a route, or of all tools of one rule together. A call must satisfy
/// the limits of its rule and those of its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Concurrent calls at the server, of all callers. Further calls wait in a queue. Default none.
    pub concurrency: Option<NonZeroUsize>,
    /// Calls of one caller in a minute. A further call is refused. Default none.
    pub calls_per_minute: Option<NonZeroU32>,
}

/// The queue of calls that wait for a permit ([`CallLimits::concurrency`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallQueue {
    /// The maximum number of queued calls of one caller (`limits.queue`). A further call is refused. Default
    /// 1024.
    pub length: usize,
    /// How long a call that is not a task may wait in the queue (`timeouts.queue`). Default 30 s.
    pub max_wait: Duration,
}

// === impl CallLimits ===

impl CallLimits {
    /// Whether there are no limits.
    pub const fn is_empty(&self) -> bool {
        self.concurrency.is_none() && self.calls_per_minute.is_none()
    }
}

// === impl CallQueue ===

impl Default for CallQueue {
    fn default() -> Self {
        Self { length: 1024, max_wait: Duration::from_secs(30) }
    }
}
