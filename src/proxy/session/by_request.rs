//! What stands under a request's id in a session, for as long as somebody holds it.

use super::Key;
use crate::protocol::Id;
use dashmap::DashMap;
use std::sync::Arc;

/// Such things, by session and request.
#[derive(Debug)]
pub(in crate::proxy) struct ByRequest<V>(pub(super) DashMap<(Key, Id), V>);

/// One of them, until it is dropped.
pub(in crate::proxy) struct Registered<V> {
    pub(super) of: Arc<ByRequest<V>>,
    pub(super) name: (Key, Id),
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

impl<V> Drop for Registered<V> {
    fn drop(&mut self) {
        self.of.0.remove(&self.name);
    }
}
