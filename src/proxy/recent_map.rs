//! What was used lately, up to a bound.
//!
//! A map that is full forgets the eighth of it that was used least lately, not all: a storm of strangers
//! costs the others nothing. An eighth, so that it is seldom looked for.

use dashmap::DashMap;
use std::{
    hash::Hash,
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

/// A sharded map of at most so many entries.
pub(super) struct RecentMap<K, V> {
    entries: DashMap<K, RecentEntry<V>>,
    most: usize,
    /// How often something was used that was not what was used last.
    uses: AtomicU64,
    /// Held by whoever makes room, so that it is done once.
    evicting: Mutex<()>,
}

struct RecentEntry<V> {
    value: V,
    used: AtomicU64,
}

// === impl Recent ===

impl<K: Eq + Hash + Clone, V: Clone> RecentMap<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            entries: DashMap::new(),
            most: most.max(1),
            uses: AtomicU64::new(0),
            evicting: Mutex::default(),
        }
    }

    /// What is kept under this key; now it is what was used last.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.with(key, V::clone)
    }

    /// The same, looked at where it is.
    pub(super) fn with<T>(&self, key: &K, look: impl FnOnce(&V) -> T) -> Option<T> {
        let kept = self.entries.get(key)?;
        // Written only where another was used in between: threads that all use the same one need not meet here.
        if kept.used.load(Ordering::Relaxed) != self.uses.load(Ordering::Relaxed) {
            kept.used.store(self.now(), Ordering::Relaxed);
        }
        Some(look(&kept.value))
    }

    /// What is kept under this key, or from now on.
    pub(super) fn get_or_insert_with(&self, key: K, fresh: impl FnOnce() -> V) -> V {
        if let Some(value) = self.get(&key) {
            return value;
        }
        if self.entries.len() >= self.most {
            self.evict();
        }
        let used = AtomicU64::new(self.now());
        self.entries.entry(key).or_insert_with(|| RecentEntry { value: fresh(), used }).value.clone()
    }

    pub(super) fn remove(&self, key: &K) {
        self.entries.remove(key);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn now(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn evict(&self) {
        let _making = match self.evicting.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            // Somebody does it right now.
            Err(TryLockError::WouldBlock) => return,
        };
        let mut all: Vec<_> =
            self.entries.iter().map(|kept| (kept.used.load(Ordering::Relaxed), kept.key().clone())).collect();
        let eighth = all.len().div_ceil(8);
        if eighth < all.len() {
            all.select_nth_unstable_by_key(eighth, |(used, _)| *used);
            all.truncate(eighth);
        }
        for (used, key) in all {
            // Unless somebody has used it meanwhile.
            self.entries.remove_if(&key, |_, kept| kept.used.load(Ordering::Relaxed) == used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_forgets_the_eighth_that_was_used_least_lately() {
        let map = RecentMap::new(16);
        for n in 0..16 {
            map.get_or_insert_with(n, || n);
        }
        // The oldest is used again.
        assert_eq!(map.get(&0), Some(0));
        map.get_or_insert_with(16, || 16);
        let there: Vec<_> = (0..=16).filter(|n| map.entries.contains_key(n)).collect();
        assert_eq!(there, (0..=16).filter(|n| ![1, 2].contains(n)).collect::<Vec<_>>());
    }

    #[test]
    fn a_map_for_one_holds_the_last() {
        let map = RecentMap::new(0);
        for n in 0..5 {
            assert_eq!(map.get_or_insert_with(n, || n), n);
            assert_eq!(map.entries.len(), 1);
        }
        map.remove(&4);
        assert_eq!(map.get(&4), None);
    }
}
