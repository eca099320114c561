//! What stands under a request's id in a session, for as long as somebody holds it.

use super::Key;
use crate::protocol::Id;
use dashmap::{DashMap, mapref::one::RefMut};
use std::sync::Arc;

/// Such things, by session and request.
#[derive(Debug)]
pub(in crate::proxy) struct ByRequest<V>(pub(super) DashMap<(Key, Id), V>);

/// One of them, until it is dropped.
pub(in crate::proxy) struct Registered<V> {
    of: Arc<ByRequest<V>>,
    name: (Key, Id),
}

// === impl ByRequest ===

impl<V> Default for ByRequest<V> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<V> ByRequest<V> {
    /// Whether there are any. Cheap.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::proxy) fn get(&self, session: Key, request: Id) -> Option<V>
    where
        V: Clone,
    {
        Some(self.0.get(&(session, request))?.clone())
    }

    pub(in crate::proxy) fn register(
        self: &Arc<Self>,
        session: Key,
        request: &Id,
        value: V,
    ) -> Registered<V> {
        let name = (session, request.detached());
        self.0.insert(name.clone(), value);
        Registered { of: Arc::clone(self), name }
    }
}

// === impl Registered ===

impl<V> Registered<V> {
    pub(super) fn is_there(&self) -> bool {
        self.of.0.contains_key(&self.name)
    }

    pub(super) fn get_mut(&self) -> Option<RefMut<'_, (Key, Id), V>> {
        self.of.0.get_mut(&self.name)
    }
}

impl<V> Drop for Registered<V> {
    fn drop(&mut self) {
        self.of.0.remove(&self.name);
    }
}
