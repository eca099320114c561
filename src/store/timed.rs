//! How long a store takes for what it is asked, for operators.

use super::{Bounds, Due, Flush, Orphan, Place, Store, StoreError, Tally, Usage, Version};
use crate::{
    protocol::Timestamp,
    runtime::{Clock, SystemClock},
    task::{Owner, Record, TaskId},
    telemetry::metrics,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// A store whose time is taken.
pub struct Timed {
    inner: Arc<dyn Store>,
    clock: SystemClock,
}

/// What is timed.
const OPERATIONS: [&str; 9] =
    ["insert", "load", "swap", "anchor", "orphans", "remove", "due", "list", "recent"];

// === impl Timed ===

impl Timed {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        metrics::store_operations(&OPERATIONS);
        Self { inner, clock: SystemClock::new() }
    }

    async fn take<T>(&self, op: &str, asked: impl Future<Output = T>) -> T {
        debug_assert!(
            OPERATIONS.contains(&op),
            "{op} is not among the operations that are counted from the start"
        );
        let since = self.clock.now();
        let answer = asked.await;
        metrics::stored(op, self.clock.now() - since);
        answer
    }
}

#[async_trait]
impl Store for Timed {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.take("insert", self.inner.insert(record)).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        self.take("load", self.inner.load(id)).await
    }

    async fn swap(&self, version: Version, record: Arc<Record>, flush: Flush) -> Result<bool, StoreError> {
        self.take("swap", self.inner.swap(version, record, flush)).await
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.take("anchor", self.inner.anchor(id, anchor)).await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        self.take("orphans", self.inner.orphans(limit)).await
    }

    fn outlives(&self) -> bool {
        self.inner.outlives()
    }

    fn bound_by(&self, bounds: Bounds) {
        self.inner.bound_by(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.take("remove", self.inner.remove(id)).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
        self.take("due", self.inner.due(now, limit)).await
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.take("list", self.inner.list(owner, after, limit)).await
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        self.take("recent", self.inner.recent(is_ended, below, limit)).await
    }

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        self.inner.census().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
