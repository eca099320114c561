//! `update` where another writer was first.

use super::{START, asked, id, inserted, kept, progressed, record};
use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::{ClockReading, Timestamp},
    store::{
        DueTask, Durability, ListCursor, LoadedTask, MemoryStore, OrphanTask, ProcessId, RecentTask,
        RecordVersion, Store, StoreBounds, StoreError, StoreUsage, TaskTally, UpdateOutcome, update,
    },
    task::{EventRefusal, Record, TaskEvent, TaskId, TaskPrincipal},
};

use std::sync::{Arc, Mutex};

/// A store in which another writer is first, a few times.
struct Contended {
    inner: MemoryStore,
    /// What the others do, the next one last.
    others: Mutex<Vec<TaskEvent>>,
}

#[async_trait]
impl Store for Contended {
    fn process(&self) -> ProcessId {
        self.inner.process()
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.inner.stored_clock()
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        self.inner.store_clock(reading).await
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.inner.set_bounds(bounds);
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.inner.insert(record).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError> {
        let other = self.others.lock().expect("unharmed").pop();
        if let Some(other) = other {
            update(&self.inner, &record.id, &other, START).await?;
        }
        self.inner.swap(version, record, flush).await
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.inner.set_anchor(id, anchor).await
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        self.inner.take_orphans(limit).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.inner.remove(id).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        self.inner.due(now, limit).await
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.inner.list(owner, after, limit).await
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        self.inner.recent(is_ended, below, limit).await
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        self.inner.census().await
    }
}

#[tokio::test]
async fn an_update_that_loses_a_race_is_applied_to_what_won() {
    let others = Mutex::new(vec![asked("b"), asked("a")]);
    let store = Contended { inner: MemoryStore::default(), others };
    inserted(&store, record(1)).await;
    let mine = update(&store, &id(1), &asked("mine"), START).await.expect("answers");
    let UpdateOutcome::Applied { before, after, .. } = mine else { panic!("applied: {mine:?}") };
    assert_eq!(before.keys_used.len(), 2);
    assert_eq!(after.record.keys_used.iter().collect::<Vec<_>>(), ["a", "b", "mine"]);
    assert_eq!(kept(&store, 1).await, Some(after.record));
}

#[tokio::test]
async fn an_update_that_loses_to_the_end_of_the_task_is_refused() {
    let store =
        Contended { inner: MemoryStore::default(), others: Mutex::new(vec![TaskEvent::CANCELLED_BY_CLIENT]) };
    inserted(&store, record(1)).await;
    let late = update(&store, &id(1), &progressed("late"), START).await.expect("answers");
    assert!(matches!(late, UpdateOutcome::Refused(EventRefusal::Ended)), "{late:?}");
}
