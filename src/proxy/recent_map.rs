//! A bounded map that evicts the least recently used entries.
//!
//! A full map evicts the least recently used eighth, not everything, so that a burst of new keys does not
//! evict entries in use. An eighth at a time keeps the search for the oldest entries rare.

use dashmap::DashMap;
use std::{
    hash::Hash,
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

/// A sharded map with a maximum number of entries, which evicts the least recently used ones.
pub(super) struct RecentMap<K, V> {
    entries: DashMap<K, RecentEntry<V>>,
    /// The maximum number of entries, at least 1.
    most: usize,
    /// The logical clock of uses. Repeated uses of the last used entry do not advance it.
    uses: AtomicU64,
    /// Held during eviction, so that only one thread evicts.
    evicting: Mutex<()>,
}

struct RecentEntry<V> {
    value: V,
    /// The value of `uses` at the last use of this entry.
    used: AtomicU64,
}

// === impl RecentMap ===

impl<K: Eq + Hash + Clone, V: Clone> RecentMap<K, V> {
    /// Creates a map of at most `most` entries; at least one.
    pub(super) fn new(most: usize) -> Self {
        Self {
            entries: DashMap::new(),
            most: most.max(1),
            uses: AtomicU64::new(0),
            evicting: Mutex::default(),
        }
    }

    /// Returns a clone of the value of this key, and marks the entry as the last used one.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.with(key, V::clone)
    }

    /// Passes the value of this key to `look` by reference, and marks the entry as the last used one. `None`
    /// if there is no entry. Holds the lock of a shard while `look` runs.
    pub(super) fn with<T>(&self, key: &K, look: impl FnOnce(&V) -> T) -> Option<T> {
        let kept = self.entries.get(key)?;
        // Written only if another entry was used in between: threads that all use the same entry do not
        // contend.
        if kept.used.load(Ordering::Relaxed) != self.uses.load(Ordering::Relaxed) {
            kept.used.store(self.now(), Ordering::Relaxed);
        }
        Some(look(&kept.value))
    }

    /// Returns the value of this key. Inserts the value of `fresh` if there is none, evicting entries if the
    /// map is full.
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

    /// Removes the entry of this key, if there is one.
    pub(super) fn remove(&self, key: &K) {
        self.entries.remove(key);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Advances the logical clock of uses.
    fn now(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Evicts the least recently used eighth of the entries.
    fn evict(&self) {
        let _making = match self.evicting.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            // Another thread is evicting.
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
            // An entry that was used meanwhile stays.
            self.entries.remove_if(&key, |_, kept| kept.used.load(Ordering::Relaxed) == used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_evicts_the_least_recently_used_eighth() {
        let map = RecentMap::new(16);
        for n in 0..16 {
            map.get_or_insert_with(n, || n);
        }
        // The oldest entry is used again.
        assert_eq!(map.get(&0), Some(0));
        map.get_or_insert_with(16, || 16);
        let there: Vec<_> = (0..=16).filter(|n| map.entries.contains_key(n)).collect();
        assert_eq!(there, (0..=16).filter(|n| ![1, 2].contains(n)).collect::<Vec<_>>());
    }

    #[test]
    fn a_map_for_one_entry_holds_the_last() {
        let map = RecentMap::new(0);
        for n in 0..5 {
            assert_eq!(map.get_or_insert_with(n, || n), n);
            assert_eq!(map.entries.len(), 1);
        }
        map.remove(&4);
        assert_eq!(map.get(&4), None);
    }
}
