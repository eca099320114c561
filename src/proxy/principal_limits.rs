//! How often a principal may ask, and how much of it at a time.

use crate::{dialect::Principal, policy::TaskQuotas};
use dashmap::DashMap;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::{num::NonZeroU32, sync::Arc};

/// Limits on what one principal may ask of the tasks.
pub(super) struct PrincipalLimits {
    polls: DefaultKeyedRateLimiter<Principal>,
    misses: DefaultKeyedRateLimiter<Principal>,
    /// How many streams each principal listens on; those that listen on none are not in it.
    listeners: Arc<DashMap<Principal, usize>>,
    listens_per_principal: usize,
}

/// One of the streams a principal listens on; dropping it gives the place back.
pub(super) struct ListenPermit {
    listeners: Arc<DashMap<Principal, usize>>,
    principal: Principal,
}

// === impl Limits ===

impl PrincipalLimits {
    pub(super) fn new(quotas: &TaskQuotas) -> Self {
        let at_least_one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        Self {
            polls: RateLimiter::keyed(Quota::per_second(at_least_one(quotas.polls_per_second))),
            misses: RateLimiter::keyed(Quota::per_minute(at_least_one(quotas.misses_per_minute))),
            listeners: Arc::default(),
            listens_per_principal: quotas.listens_per_principal,
        }
    }

    /// The same streams, within these bounds.
    pub(super) fn reconfigured(&self, quotas: &TaskQuotas) -> Self {
        Self { listeners: Arc::clone(&self.listeners), ..Self::new(quotas) }
    }

    /// Whether the principal may make one more `tasks/*` call now.
    pub(super) fn try_poll(&self, principal: Principal) -> bool {
        self.polls.check_key(&principal).is_ok()
    }

    /// Whether the principal may be told once more that a task is unknown.
    pub(super) fn try_miss(&self, principal: Principal) -> bool {
        self.misses.check_key(&principal).is_ok()
    }

    /// A place for one more stream to listen on, if the principal may have one.
    pub(super) fn try_listen(&self, principal: Principal) -> Option<ListenPermit> {
        let mut open = self.listeners.entry(principal).or_default();
        if *open >= self.listens_per_principal {
            drop(open);
            self.listeners.remove_if(&principal, |_, open| *open == 0);
            return None;
        }
        *open += 1;
        Some(ListenPermit { listeners: Arc::clone(&self.listeners), principal })
    }

    /// Forgets those who have been silent.
    pub(super) fn remove_idle(&self) {
        self.polls.retain_recent();
        self.misses.retain_recent();
    }
}

// === impl Place ===

impl Drop for ListenPermit {
    fn drop(&mut self) {
        self.listeners.remove_if_mut(&self.principal, |_, open| {
            *open -= 1;
            *open == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_principal_that_no_longer_listens() {
        let [alice, bob] = [1, 2].map(|n| Principal::from_bytes([n; 16]));
        let limits = PrincipalLimits::new(&TaskQuotas { listens_per_principal: 2, ..TaskQuotas::default() });
        let places = [limits.try_listen(alice), limits.try_listen(alice)];
        assert!(places.iter().all(Option::is_some));
        assert!(limits.try_listen(alice).is_none());
        assert!(limits.try_listen(bob).is_some(), "others are not concerned");
        drop(places);
        assert!(limits.listeners.is_empty());
        assert!(
            PrincipalLimits::new(&TaskQuotas { listens_per_principal: 0, ..TaskQuotas::default() })
                .try_listen(bob)
                .is_none()
        );
    }
}
