//! Rate limits of a principal, and its number of listening streams.

use crate::{dialect::Principal, policy::TaskQuotas};
use dashmap::DashMap;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::{num::NonZeroU32, sync::Arc};

/// The limits on the task requests and listening streams of each principal.
pub(in crate::proxy) struct PrincipalLimits {
    /// Limits requests about tasks, per second.
    polls: DefaultKeyedRateLimiter<Principal>,
    /// Limits look-ups of unknown tasks, per minute.
    misses: DefaultKeyedRateLimiter<Principal>,
    /// The number of listening streams of each principal; principals without any are absent.
    open_streams: Arc<DashMap<Principal, usize>>,
    listens_per_principal: usize,
}

/// A permit for one listening stream; released when dropped.
pub(in crate::proxy) struct ListenPermit {
    open_streams: Arc<DashMap<Principal, usize>>,
    principal: Principal,
}

// === impl PrincipalLimits ===

impl PrincipalLimits {
    /// Creates the limits that these quotas configure, without any use so far.
    pub(in crate::proxy) fn new(quotas: &TaskQuotas) -> Self {
        let at_least_one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        Self {
            polls: RateLimiter::keyed(Quota::per_second(at_least_one(quotas.polls_per_second))),
            misses: RateLimiter::keyed(Quota::per_minute(at_least_one(quotas.misses_per_minute))),
            open_streams: Arc::default(),
            listens_per_principal: quotas.listens_per_principal,
        }
    }

    /// Applies new quotas. Open streams are kept.
    pub(in crate::proxy) fn reconfigured(&self, quotas: &TaskQuotas) -> Self {
        Self { open_streams: Arc::clone(&self.open_streams), ..Self::new(quotas) }
    }

    /// Counts one more `tasks/*` request. Returns whether it is allowed now.
    pub(in crate::proxy) fn try_poll(&self, principal: Principal) -> bool {
        self.polls.check_key(&principal).is_ok()
    }

    /// Counts one more look-up of an unknown task. Returns whether it is allowed now.
    pub(in crate::proxy) fn try_miss(&self, principal: Principal) -> bool {
        self.misses.check_key(&principal).is_ok()
    }

    /// Returns a permit for one more listening stream; `None` if the principal has reached its limit.
    pub(in crate::proxy) fn try_listen(&self, principal: Principal) -> Option<ListenPermit> {
        let mut open = self.open_streams.entry(principal).or_default();
        if *open >= self.listens_per_principal {
            drop(open);
            self.open_streams.remove_if(&principal, |_, open| *open == 0);
            return None;
        }
        *open += 1;
        Some(ListenPermit { open_streams: Arc::clone(&self.open_streams), principal })
    }

    /// Removes the rate-limit state of principals without recent requests.
    pub(in crate::proxy) fn remove_idle(&self) {
        self.polls.retain_recent();
        self.misses.retain_recent();
    }
}

// === impl ListenPermit ===

impl Drop for ListenPermit {
    fn drop(&mut self) {
        self.open_streams.remove_if_mut(&self.principal, |_, open| {
            *open -= 1;
            *open == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_without_streams_is_removed() {
        let [alice, bob] = [1, 2].map(|n| Principal::from_bytes([n; 16]));
        let limits = PrincipalLimits::new(&TaskQuotas { listens_per_principal: 2, ..TaskQuotas::default() });
        let places = [limits.try_listen(alice), limits.try_listen(alice)];
        assert!(places.iter().all(Option::is_some));
        assert!(limits.try_listen(alice).is_none());
        assert!(limits.try_listen(bob).is_some(), "others are not concerned");
        drop(places);
        assert!(limits.open_streams.is_empty());
        assert!(
            PrincipalLimits::new(&TaskQuotas { listens_per_principal: 0, ..TaskQuotas::default() })
                .try_listen(bob)
                .is_none()
        );
    }
}
