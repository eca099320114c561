//! Values that a reload replaces while they are used.

use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A value that may be replaced at any time. A reader sees the old or the new value whole; reading neither
/// locks nor waits. Clones share the value.
#[derive(Debug)]
pub struct SwapCell<T>(Arc<ArcSwap<T>>);

// === impl SwapCell ===

impl<T> SwapCell<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(value)))
    }

    /// The current value, to be used briefly; see [`load_full`](Self::load_full) for longer use.
    pub fn load(&self) -> Guard<Arc<T>> {
        self.0.load()
    }

    /// The current value, to be kept.
    pub fn load_full(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Replaces the value for all later readers.
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

/// Changes the number of permits of a semaphore from `from` to `to`. Surplus permits that are in use are
/// removed when they are released.
pub fn resize_semaphore(semaphore: &Arc<Semaphore>, from: usize, to: usize) {
    let [from, to] = [from, to].map(|count| count.min(Semaphore::MAX_PERMITS));
    semaphore.add_permits(to.saturating_sub(from));
    let surplus = from.saturating_sub(to);
    let in_use = surplus - semaphore.forget_permits(surplus);
    for _ in 0..in_use {
        let semaphore = Arc::clone(semaphore);
        tokio::spawn(async move {
            if let Ok(permit) = semaphore.acquire_owned().await {
                permit.forget();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn permits_are_added_at_once_and_removed_when_released() {
        let semaphore = Arc::new(Semaphore::new(2));
        resize_semaphore(&semaphore, 2, 3);
        let taken: Vec<_> = (0..3).filter_map(|_| Arc::clone(&semaphore).try_acquire_owned().ok()).collect();
        assert_eq!((taken.len(), semaphore.available_permits()), (3, 0));
        resize_semaphore(&semaphore, 3, 1);
        tokio::task::yield_now().await;
        for (released, permit) in taken.into_iter().enumerate() {
            drop(permit);
            tokio::task::yield_now().await;
            assert_eq!(semaphore.available_permits(), usize::from(released == 2), "{released}");
        }
    }

    #[test]
    fn a_loaded_value_does_not_change() {
        let live = SwapCell::new(1);
        let (same, kept) = (live.clone(), live.load_full());
        same.set(2);
        assert_eq!((*kept, **live.load()), (1, 2));
    }
}
