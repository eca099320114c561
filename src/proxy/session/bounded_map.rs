//! A bounded map that evicts the oldest entry.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// A map of the last `MOST` inserted entries.
#[derive(Debug)]
pub(super) struct BoundedMap<K, V, const MOST: usize> {
    entries: HashMap<K, V>,
    /// The keys, the oldest first; may contain removed ones.
    order: VecDeque<K>,
}

// === impl BoundedMap ===

impl<K, V, const MOST: usize> Default for BoundedMap<K, V, MOST> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V, const MOST: usize> BoundedMap<K, V, MOST> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Inserts an entry. Returns the key that was evicted for it.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<K> {
        if self.entries.insert(key.clone(), value).is_some() {
            return None;
        }
        self.order.push_back(key);
        let oldest = (self.order.len() > MOST).then(|| self.order.pop_front())??;
        self.entries.remove(&oldest).map(|_| oldest)
    }

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        self.entries.remove(key).is_some()
    }

    /// Keeps only these entries. Visits all.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&K) -> bool) {
        self.entries.retain(|key, _| stays(key));
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.entries.len(), self.order.len())
    }
}
