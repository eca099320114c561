//! The places of calls in flight.

use crate::telemetry::Limit;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The places of calls in flight, of all configurations. Counted, without a queue: nobody waits for one.
#[derive(Clone, Debug)]
pub(super) struct CallPermits(Arc<PermitCounts>);

#[derive(Debug)]
struct PermitCounts {
    calls: PermitCount,
    /// For those that are read although there is no place for them.
    shed: PermitCount,
}

#[derive(Debug)]
struct PermitCount {
    taken: AtomicUsize,
    limit: AtomicUsize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(in crate::front) struct CallPermit {
    counts: Arc<PermitCounts>,
    is_calls: bool,
}

/// Requests that are read at a time although there is no place for them.
const MAX_SHED_READS: usize = 64;

// === impl Places ===

impl CallPermits {
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(PermitCounts { calls: PermitCount::of(limit), shed: PermitCount::of(MAX_SHED_READS) }))
    }

    /// From now on there are so many; calls in flight keep theirs.
    pub(super) fn set_limit(&self, limit: usize) {
        self.0.calls.limit.store(limit, Ordering::Relaxed);
    }

    /// One for a call, if there is one.
    pub(super) fn try_acquire(&self) -> Option<CallPermit> {
        self.0.calls.try_take().then(|| {
            Limit::Calls.add_used(1);
            CallPermit { counts: Arc::clone(&self.0), is_calls: true }
        })
    }

    /// One for a request that is read to be told that there is no other.
    pub(super) fn try_acquire_shed(&self) -> Option<CallPermit> {
        self.0.shed.try_take().then(|| CallPermit { counts: Arc::clone(&self.0), is_calls: false })
    }
}

// === impl Count ===

impl PermitCount {
    fn of(places: usize) -> Self {
        Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(places) }
    }

    /// Whether there was one.
    fn try_take(&self) -> bool {
        let places = self.limit.load(Ordering::Relaxed);
        let one_more = |taken| (taken < places).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

// === impl Place ===

impl Drop for CallPermit {
    fn drop(&mut self) {
        let count = if self.is_calls { &self.counts.calls } else { &self.counts.shed };
        count.taken.fetch_sub(1, Ordering::Relaxed);
        if self.is_calls {
            Limit::Calls.add_used(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_also_after_there_were_to_be_fewer() {
        let places = CallPermits::new(3);
        let taken = || std::iter::from_fn(|| places.try_acquire()).collect::<Vec<_>>();
        let mut calls = taken();
        assert_eq!(calls.len(), 3);
        places.set_limit(1);
        for left in [2, 1] {
            calls.pop();
            assert_eq!((calls.len(), taken().len()), (left, 0), "those that are taken are kept");
        }
        calls.pop();
        assert_eq!(taken().len(), 1);
        places.set_limit(5);
        assert_eq!(taken().len(), 5);
        let waiting: Vec<_> = std::iter::from_fn(|| places.try_acquire_shed()).collect();
        assert_eq!(
            (waiting.len(), taken().len()),
            (MAX_SHED_READS, 5),
            "one has nothing to do with the other"
        );
    }
}
