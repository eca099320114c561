//! What may be changed while it is used: settings that are read again.

use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A value that may be replaced at any time. Who reads it sees one value or the other, whole; reading neither
/// locks nor waits. Clones are the same.
#[derive(Debug)]
pub struct SwapCell<T>(Arc<ArcSwap<T>>);

// === impl Live ===

impl<T> SwapCell<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// What it is now, for a few lines.
    pub fn load(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// What it is now, to be kept.
    pub fn load_full(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Replaces it for everybody who reads it from now on.
    pub fn set(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

impl<T> Clone for SwapCell<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<T> for SwapCell<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: Default> Default for SwapCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Makes `places` of which there were `from` so many as `to`. Where there are to be fewer, those that are taken
/// go as they are given back.
pub fn resize_semaphore(places: &Arc<Semaphore>, from: usize, to: usize) {
    let [from, to] = [from, to].map(|count| count.min(Semaphore::MAX_PERMITS));
    places.add_permits(to.saturating_sub(from));
    let surplus = from.saturating_sub(to);
    let taken = surplus - places.forget_permits(surplus);
    for _ in 0..taken {
        let places = Arc::clone(places);
        tokio::spawn(async move {
            if let Ok(place) = places.acquire_owned().await {
                place.forget();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_added_at_once_and_taken_away_as_they_are_given_back() {
        let places = Arc::new(Semaphore::new(2));
        resize_semaphore(&places, 2, 3);
        let taken: Vec<_> = (0..3).filter_map(|_| Arc::clone(&places).try_acquire_owned().ok()).collect();
        assert_eq!((taken.len(), places.available_permits()), (3, 0));
        resize_semaphore(&places, 3, 1);
        tokio::task::yield_now().await;
        for (given_back, place) in taken.into_iter().enumerate() {
            drop(place);
            tokio::task::yield_now().await;
            assert_eq!(places.available_permits(), usize::from(given_back == 2), "{given_back}");
        }
    }

    #[test]
    fn who_reads_it_sees_what_it_is_and_who_keeps_it_what_it_was() {
        let live = SwapCell::new(1);
        let (same, kept) = (live.clone(), live.load_full());
        same.set(2);
        assert_eq!((*kept, **live.load()), (1, 2));
    }
}
