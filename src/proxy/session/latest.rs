//! The last so many of something: the oldest makes room.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// A map of the last `MOST` that were put into it.
#[derive(Debug)]
pub(super) struct Latest<K, V, const MOST: usize> {
    all: HashMap<K, V>,
    /// The oldest first. What has been removed since may still be here.
    order: VecDeque<K>,
}

// === impl Latest ===

impl<K, V, const MOST: usize> Default for Latest<K, V, MOST> {
    fn default() -> Self {
        Self { all: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V, const MOST: usize> Latest<K, V, MOST> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.all.get(key)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.all.contains_key(key)
    }

    /// Gives what has been forgotten for it.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<K> {
        if self.all.insert(key.clone(), value).is_some() {
            return None;
        }
        self.order.push_back(key);
        let oldest = (self.order.len() > MOST).then(|| self.order.pop_front())??;
        self.all.remove(&oldest).map(|_| oldest)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        self.all.remove(key).is_some()
    }

    /// Keeps only these. Looks at all.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&K) -> bool) {
        self.all.retain(|key, _| stays(key));
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.all.len(), self.order.len())
    }
}
