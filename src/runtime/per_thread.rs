//! One of something for each of a few threads, so that threads seldom meet at it.
//!
//! What two cores write by turns travels between them each time, and so does whatever stands beside it: a count of
//! references that each call moves costs more than the work it counts. A thread has a *stripe* of its own, or shares
//! one with few others; which one a value is on means nothing, and any thread may use any of them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// As many of a value as there are stripes.
#[derive(Debug, Default)]
pub struct PerThread<T>([CachePadded<T>; STRIPES]);

/// How many threads have a stripe to themselves.
pub const STRIPES: usize = 8;

/// Two lines of a cache, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

thread_local! {
    /// The stripe of a thread.
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

// === impl Striped ===

impl<T> PerThread<T> {
    /// What `make` makes, for each stripe.
    pub fn from_fn(mut make: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| CachePadded(make())))
    }

    /// That of the thread that asks.
    pub fn local(&self) -> &T {
        // A thread that ends has no stripe any more.
        &self.0[STRIPE.try_with(|stripe| *stripe).unwrap_or(0)].0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|apart| &apart.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ptr, thread};

    #[test]
    fn a_thread_keeps_to_its_stripe_and_none_is_lost() {
        let striped = PerThread::<AtomicUsize>::default();
        thread::scope(|threads| {
            for _ in 0..STRIPES {
                threads.spawn(|| {
                    assert!(ptr::eq(striped.local(), striped.local()));
                    striped.local().fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(striped.iter().map(|one| one.load(Ordering::Relaxed)).sum::<usize>(), STRIPES);
    }

    #[test]
    fn no_two_stand_on_one_line() {
        let striped = PerThread::from_fn(|| 0_u8);
        let at: Vec<_> = striped.iter().map(|one| ptr::from_ref(one).addr()).collect();
        assert!(at.windows(2).all(|two| two[1] - two[0] >= 128), "{at:x?}");
    }
}
