//! The duration of store operations, as a metric.

use super::{
    DueTask, Durability, ListCursor, LoadedTask, OrphanTask, ProcessId, RecentTask, RecordVersion, Store,
    StoreBounds, StoreError, StoreUsage, TaskTally,
};
use crate::{
    protocol::{ClockReading, Timestamp},
    runtime::{Clock, SystemClock},
    task::{Record, TaskId, TaskPrincipal},
    telemetry::metrics,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// Wraps a store, and records the duration of each operation as a metric.
pub struct TimedStore {
    inner: Arc<dyn Store>,
    clock: SystemClock,
}

/// The names of the timed operations in the metric.
const OPERATIONS: [&str; 9] =
    ["insert", "load", "swap", "anchor", "orphans", "remove", "due", "list", "recent"];

// === impl TimedStore ===

impl TimedStore {
    /// Wraps `inner`, and registers the metric of each operation.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        metrics::register_store_operations(&OPERATIONS);
        Self { inner, clock: SystemClock::new() }
    }

    /// Awaits an operation, and records its duration under its name.
    async fn time<T>(&self, name: &str, operation: impl Future<Output = T>) -> T {
        debug_assert!(
            OPERATIONS.contains(&name),
            "{name} is not among the operations that are counted from the start"
        );
        let started = self.clock.now();
        let output = operation.await;
        metrics::record_store_operation(name, self.clock.now() - started);
        output
    }
}

#[async_trait]
impl Store for TimedStore {
    fn process(&self) -> ProcessId {
        self.inner.process()
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.time("insert", self.inner.insert(record)).await
    }

    async fn insert_reserved(
        &self,
        record: Arc<Record>,
        reservation: Box<dyn Send>,
    ) -> Result<(), StoreError> {
        self.time("insert", self.inner.insert_reserved(record, reservation)).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        self.time("load", self.inner.load(id)).await
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        durability: Durability,
    ) -> Result<bool, StoreError> {
        self.time("swap", self.inner.swap(version, record, durability)).await
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.time("anchor", self.inner.set_anchor(id, anchor)).await
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        self.time("orphans", self.inner.take_orphans(limit)).await
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.inner.stored_clock()
    }

    /// Not timed, because this is not an operation on a task.
    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        self.inner.store_clock(reading).await
    }

    fn is_durable(&self) -> bool {
        self.inner.is_durable()
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.inner.set_bounds(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.time("remove", self.inner.remove(id)).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        self.time("due", self.inner.due(now, limit)).await
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.time("list", self.inner.list(owner, after, limit)).await
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        self.time("recent", self.inner.recent(is_ended, below, limit)).await
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        self.inner.census().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
