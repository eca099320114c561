//! One value for each of a few threads, to avoid contention.
//!
//! A cache line that two cores write by turns travels between them each time, and so do its neighbours: a
//! reference count that each call changes costs more than the work it counts. A thread has a *stripe* of its
//! own, or shares one with few others. Which stripe a value is in has no meaning, and any thread may use any
//! stripe.

use std::sync::atomic::{AtomicUsize, Ordering};

/// An array with one value for each stripe of threads.
#[derive(Debug, Default)]
pub struct PerThread<T>([CachePadded<T>; STRIPES]);

/// Number of stripes: so many threads have a stripe to themselves.
pub const STRIPES: usize = 8;

/// A value that shares its two cache lines with no other, because processors fetch lines in pairs.
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

// === impl PerThread ===

impl<T> PerThread<T> {
    /// Creates the values: calls `make` once for each stripe.
    pub fn from_fn(mut make: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| CachePadded(make())))
    }

    /// The value in the stripe of the current thread.
    pub fn local(&self) -> &T {
        // A thread that is ending has no stripe any more, and uses the first.
        &self.0[STRIPE.try_with(|stripe| *stripe).unwrap_or(0)].0
    }

    /// The values of all stripes.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ptr, thread};

    #[test]
    fn a_thread_keeps_its_stripe() {
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
    fn no_two_values_share_a_cache_line() {
        let striped = PerThread::from_fn(|| 0_u8);
        let at: Vec<_> = striped.iter().map(|one| ptr::from_ref(one).addr()).collect();
        assert!(at.windows(2).all(|two| two[1] - two[0] >= 128), "{at:x?}");
    }
}
