//! How many calls a route, or the tools of a rule, may have at a time and in a minute.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

/// Limits on the `tools/call` of a route, or of the tools of one rule together. A call must keep within those of its
/// rule and those of its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls at the server at a time, of all callers. Further ones wait in a queue. Default none.
    pub concurrency: Option<NonZeroUsize>,
    /// Calls of one caller in a minute. A further one is refused. Default none.
    pub calls_per_minute: Option<NonZeroU32>,
}

/// The queue of calls that wait for a permit ([`CallLimits::concurrency`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallQueue {
    /// Calls of one caller in one queue (`limits.queue`). A further one is refused.
    pub length: usize,
    /// The longest wait of a call that is no task (`timeouts.queue`).
    pub max_wait: Duration,
}

// === impl CallLimits ===

impl CallLimits {
    /// Whether there are none.
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
