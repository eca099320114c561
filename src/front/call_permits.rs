//! The limit of calls in flight.

use crate::telemetry::Limit;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The permits of calls in flight, shared across reloads: a counter with a limit and no queue, because no
/// call waits for a permit.
#[derive(Clone, Debug)]
pub(super) struct CallPermits(Arc<PermitCounts>);

/// The counters behind [`CallPermits`].
#[derive(Debug)]
struct PermitCounts {
    /// Permits of admitted calls.
    calls: PermitCount,
    /// Permits of requests that are read only to be refused.
    shed: PermitCount,
}

#[derive(Debug)]
struct PermitCount {
    taken: AtomicUsize,
    limit: AtomicUsize,
}

/// A permit of a call in flight, or of a request that is read only to be refused. Returned when dropped.
#[derive(Debug)]
pub(in crate::front) struct CallPermit {
    counts: Arc<PermitCounts>,
    /// Whether the permit is that of an admitted call, not of a request that is read only to be refused.
    is_admitted: bool,
}

/// Number of requests above the limit of calls that are read at the same time, only to be refused by their
/// JSON-RPC id.
const MAX_SHED_READS: usize = 64;

// === impl CallPermits ===

impl CallPermits {
    /// Creates the permits of `limit` calls.
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(PermitCounts {
            calls: PermitCount::with_limit(limit),
            shed: PermitCount::with_limit(MAX_SHED_READS),
        }))
    }

    /// Changes the limit; calls in flight keep their permits.
    pub(super) fn set_limit(&self, limit: usize) {
        self.0.calls.limit.store(limit, Ordering::Relaxed);
    }

    /// Takes a permit for a call; `None` if all are taken.
    pub(super) fn try_acquire(&self) -> Option<CallPermit> {
        self.0.calls.try_take().then(|| {
            Limit::Calls.add_used(1);
            CallPermit { counts: Arc::clone(&self.0), is_admitted: true }
        })
    }

    /// Takes a permit for a request that is read only to be refused; `None` if all are taken.
    pub(super) fn try_acquire_shed(&self) -> Option<CallPermit> {
        self.0.shed.try_take().then(|| CallPermit { counts: Arc::clone(&self.0), is_admitted: false })
    }
}

// === impl PermitCount ===

impl PermitCount {
    fn with_limit(limit: usize) -> Self {
        Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    /// Takes a permit; returns whether one was free.
    fn try_take(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let increment = |taken| (taken < limit).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).is_ok()
    }
}

// === impl CallPermit ===

impl Drop for CallPermit {
    fn drop(&mut self) {
        let count = if self.is_admitted { &self.counts.calls } else { &self.counts.shed };
        count.taken.fetch_sub(1, Ordering::Relaxed);
        if self.is_admitted {
            Limit::Calls.add_used(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_calls_can_be_lowered_and_raised() {
        let permits = CallPermits::new(3);
        let taken = || std::iter::from_fn(|| permits.try_acquire()).collect::<Vec<_>>();
        let mut calls = taken();
        assert_eq!(calls.len(), 3);
        permits.set_limit(1);
        for left in [2, 1] {
            calls.pop();
            assert_eq!((calls.len(), taken().len()), (left, 0), "those that are taken are kept");
        }
        calls.pop();
        assert_eq!(taken().len(), 1);
        permits.set_limit(5);
        assert_eq!(taken().len(), 5);
        let waiting: Vec<_> = std::iter::from_fn(|| permits.try_acquire_shed()).collect();
        assert_eq!(
            (waiting.len(), taken().len()),
            (MAX_SHED_READS, 5),
            "one has nothing to do with the other"
        );
    }
}
