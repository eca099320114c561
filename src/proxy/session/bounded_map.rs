//! A bounded map that evicts the oldest entry.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// A map of at most `CAPACITY` entries: inserting a further one evicts the entry that was inserted first.
#[derive(Debug)]
pub(super) struct BoundedMap<K, V, const CAPACITY: usize> {
    entries: HashMap<K, V>,
    /// The keys in the order of insertion, the oldest first; may contain keys of removed entries.
    order: VecDeque<K>,
}

// === impl BoundedMap ===

impl<K, V, const CAPACITY: usize> Default for BoundedMap<K, V, CAPACITY> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V, const CAPACITY: usize> BoundedMap<K, V, CAPACITY> {
    /// The value of this key. Does not change the order of eviction.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Inserts or replaces an entry. Returns the key of the entry that was evicted to make space, if any.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<K> {
        if self.entries.insert(key.clone(), value).is_some() {
            return None;
        }
        self.order.push_back(key);
        let oldest = (self.order.len() > CAPACITY).then(|| self.order.pop_front())??;
        self.entries.remove(&oldest).map(|_| oldest)
    }

    /// Removes an entry. Returns whether the map contained it.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        self.entries.remove(key).is_some()
    }

    /// Keeps the entries whose keys satisfy the predicate. Visits all entries.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }

    /// The numbers of entries and of keys in the order list.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.entries.len(), self.order.len())
    }
}
