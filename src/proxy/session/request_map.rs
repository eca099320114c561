//! A map of values that are registered for requests of sessions, each for as long as its registration is
//! held.

use super::SessionKey;
use crate::protocol::RequestId;
use dashmap::DashMap;
use std::sync::Arc;

/// Values of requests, by session and request id.
#[derive(Debug)]
pub(in crate::proxy) struct RequestMap<V>(pub(super) DashMap<(SessionKey, RequestId), V>);

/// The registration of one value; removed when dropped.
pub(in crate::proxy) struct RequestRegistration<V> {
    pub(super) map: Arc<RequestMap<V>>,
    pub(super) key: (SessionKey, RequestId),
}

// === impl RequestMap ===

impl<V> Default for RequestMap<V> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<V> RequestMap<V> {
    /// Whether no value is registered. Cheap.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A clone of the value that is registered for this request.
    pub(in crate::proxy) fn get(&self, session: SessionKey, request: RequestId) -> Option<V>
    where
        V: Clone,
    {
        Some(self.0.get(&(session, request))?.clone())
    }

    /// Registers a value for this request until the returned registration is dropped. Replaces an earlier
    /// value of the same request.
    pub(in crate::proxy) fn register(
        self: &Arc<Self>,
        session: SessionKey,
        request: &RequestId,
        value: V,
    ) -> RequestRegistration<V> {
        let key = (session, request.detached());
        self.0.insert(key.clone(), value);
        RequestRegistration { map: Arc::clone(self), key }
    }
}

// === impl RequestRegistration ===

impl<V> Drop for RequestRegistration<V> {
    fn drop(&mut self) {
        self.map.0.remove(&self.key);
    }
}
