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
    capacity: usize,
    /// The logical clock of uses. Repeated uses of the last used entry do not advance it.
    uses: AtomicU64,
    /// Held during eviction, so that only one thread evicts.
    eviction_lock: Mutex<()>,
}

struct RecentEntry<V> {
    value: V,
    /// The value of `uses` at the last use of this entry.
    last_use: AtomicU64,
}

// === impl RecentMap ===

impl<K: Eq + Hash + Clone, V: Clone> RecentMap<K, V> {
    /// Creates a map of at capacity `capacity` entries; at least one.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: DashMap::new(),
            capacity: capacity.max(1),
            uses: AtomicU64::new(0),
            eviction_lock: Mutex::default(),
        }
    }

    /// Returns a clone of the value of this key, and marks the entry as the last used one.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.with_value(key, V::clone)
    }

    /// Passes the value of this key to `inspect` by reference, and marks the entry as the last used one. `None`
    /// if there is no entry. Holds the lock of a shard while `inspect` runs.
    pub(super) fn with_value<T>(&self, key: &K, inspect: impl FnOnce(&V) -> T) -> Option<T> {
        let entry = self.entries.get(key)?;
        // Written only if another entry was used in between: threads that all use the same entry do not
        // contend.
        if entry.last_use.load(Ordering::Relaxed) != self.uses.load(Ordering::Relaxed) {
            entry.last_use.store(self.next_use(), Ordering::Relaxed);
        }
        Some(inspect(&entry.value))
    }

    /// Returns the value of this key. Inserts the value of `create` if there is none, evicting entries if the
    /// map is full.
    pub(super) fn get_or_insert_with(&self, key: K, create: impl FnOnce() -> V) -> V {
        if let Some(value) = self.get(&key) {
            return value;
        }
        if self.entries.len() >= self.capacity {
            self.evict();
        }
        let used = AtomicU64::new(self.next_use());
        self.entries
            .entry(key)
            .or_insert_with(|| RecentEntry { value: create(), last_use: used })
            .value
            .clone()
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
    fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Evicts the least recently used eighth of the entries.
    fn evict(&self) {
        let _guard = match self.eviction_lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            // Another thread is evicting.
            Err(TryLockError::WouldBlock) => return,
        };
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|entry| (entry.last_use.load(Ordering::Relaxed), entry.key().clone()))
            .collect();
        let eighth = entries.len().div_ceil(8);
        if eighth < entries.len() {
            entries.select_nth_unstable_by_key(eighth, |(used, _)| *used);
            entries.truncate(eighth);
        }
        for (used, key) in entries {
            // An entry that was used meanwhile stays.
            self.entries.remove_if(&key, |_, entry| entry.last_use.load(Ordering::Relaxed) == used);
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
