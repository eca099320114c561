//! The places of calls in flight.

use crate::telemetry::Limit;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The places of calls in flight, of all configurations. Counted, without a queue: nobody waits for one.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    calls: Count,
    /// For those that are read although there is no place for them.
    waiting: Count,
}

#[derive(Debug)]
struct Count {
    taken: AtomicUsize,
    places: AtomicUsize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(in crate::front) struct Place {
    counts: Arc<Counts>,
    is_calls: bool,
}

/// Requests that are read at a time although there is no place for them.
const WAITING_ROOM: usize = 64;

// === impl Places ===

impl Places {
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(Counts { calls: Count::of(limit), waiting: Count::of(WAITING_ROOM) }))
    }

    /// From now on there are so many; calls in flight keep theirs.
    pub(super) fn bound_by(&self, limit: usize) {
        self.0.calls.places.store(limit, Ordering::Relaxed);
    }

    /// One for a call, if there is one.
    pub(super) fn call(&self) -> Option<Place> {
        self.0.calls.take().then(|| {
            Limit::Calls.used(1);
            Place { counts: Arc::clone(&self.0), is_calls: true }
        })
    }

    /// One for a request that is read to be told that there is no other.
    pub(super) fn wait(&self) -> Option<Place> {
        self.0.waiting.take().then(|| Place { counts: Arc::clone(&self.0), is_calls: false })
    }
}

// === impl Count ===

impl Count {
    fn of(places: usize) -> Self {
        Self { taken: AtomicUsize::new(0), places: AtomicUsize::new(places) }
    }

    /// Whether there was one.
    fn take(&self) -> bool {
        let places = self.places.load(Ordering::Relaxed);
        let one_more = |taken| (taken < places).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let count = if self.is_calls { &self.counts.calls } else { &self.counts.waiting };
        count.taken.fetch_sub(1, Ordering::Relaxed);
        if self.is_calls {
            Limit::Calls.used(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_also_after_there_were_to_be_fewer() {
        let places = Places::new(3);
        let taken = || std::iter::from_fn(|| places.call()).collect::<Vec<_>>();
        let mut calls = taken();
        assert_eq!(calls.len(), 3);
        places.bound_by(1);
        for left in [2, 1] {
            calls.pop();
            assert_eq!((calls.len(), taken().len()), (left, 0), "those that are taken are kept");
        }
        calls.pop();
        assert_eq!(taken().len(), 1);
        places.bound_by(5);
        assert_eq!(taken().len(), 5);
        let waiting: Vec<_> = std::iter::from_fn(|| places.wait()).collect();
        assert_eq!((waiting.len(), taken().len()), (WAITING_ROOM, 5), "one has nothing to do with the other");
    }
}
