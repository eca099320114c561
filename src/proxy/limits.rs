//! How often a principal may ask.

use crate::{dialect::Principal, policy::Quotas};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;

/// Limits on what one principal may ask of the tasks.
pub(super) struct Limits {
    polls: DefaultKeyedRateLimiter<Principal>,
    misses: DefaultKeyedRateLimiter<Principal>,
}

// === impl Limits ===

impl Limits {
    pub(super) fn new(quotas: &Quotas) -> Self {
        let at_least_one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        Self {
            polls: RateLimiter::keyed(Quota::per_second(at_least_one(quotas.polls_per_second))),
            misses: RateLimiter::keyed(Quota::per_minute(at_least_one(quotas.misses_per_minute))),
        }
    }

    /// Whether the principal may make one more `tasks/*` call now.
    pub(super) fn admits_poll(&self, principal: Principal) -> bool {
        self.polls.check_key(&principal).is_ok()
    }

    /// Whether the principal may be told once more that a task is unknown.
    pub(super) fn admits_miss(&self, principal: Principal) -> bool {
        self.misses.check_key(&principal).is_ok()
    }

    /// Forgets those who have been silent.
    pub(super) fn forget_silent(&self) {
        self.polls.retain_recent();
        self.misses.retain_recent();
    }
}
