//! The records, as they are kept from one process to the next; and what is known of each beside.

use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::{ClockOffset, ClockReading, Timestamp},
    store::{
        DueTask, Durability, ListCursor, LoadedTask, MemoryStore, OrphanTask, ProcessId, RecentTask,
        RecordVersion, Store, StoreBounds, StoreError, StoreUsage, TaskTally,
    },
    task::{Record, TaskId, TaskPrincipal, TaskState},
};
use futures_util::FutureExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A store in memory which the next process finds as it is. Clones are the same, in the same process.
#[derive(Clone)]
pub(super) struct Records {
    kept: Arc<MemoryStore>,
    notes: Arc<Mutex<BTreeMap<TaskId, Note>>>,
}

/// What is known of a record beside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Note {
    /// An anchor exists, by which its call can be resumed or cancelled.
    pub(super) is_anchored: bool,
    /// Keys of questions that were kept after that was written.
    pub(super) unanchored: BTreeSet<String>,
    /// Keys of input requests that were answered and not withdrawn.
    pub(super) answered: BTreeSet<String>,
}

// === impl Records ===

impl Records {
    pub(super) fn new() -> Self {
        // The first process of all would forget everything at exit.
        Self { kept: Arc::new(MemoryStore::default().restarted()), notes: Arc::default() }
    }

    /// As the next process finds them.
    pub(super) fn restarted(&self) -> Self {
        Self { kept: Arc::new(self.kept.restarted()), notes: Arc::clone(&self.notes) }
    }

    /// The record as it is kept now.
    pub(super) fn get(&self, id: &TaskId) -> Option<Arc<Record>> {
        let found = self.kept.load(id).now_or_never().expect("memory does not wait");
        found.expect("memory does not fail").map(|task| task.record)
    }

    pub(super) fn all(&self) -> Vec<Arc<Record>> {
        let far = Timestamp::from_millis(u64::MAX);
        let due = self.kept.due(far, usize::MAX).now_or_never().expect("memory does not wait");
        due.expect("memory does not fail").iter().filter_map(|due| self.get(&due.id)).collect()
    }

    /// The stored offset of the wall clock, as the next process reads it.
    pub(super) fn clock_offset(&self) -> ClockOffset {
        self.kept.stored_clock().map_or(ClockOffset::ZERO, |kept| kept.offset)
    }

    /// What is counted for a principal.
    pub(super) fn counted(&self, principal: &[u8; 16]) -> StoreUsage {
        self.kept.usage(principal)
    }

    pub(super) fn note(&self, id: &TaskId) -> Note {
        self.notes().get(id).cloned().unwrap_or_default()
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<TaskId, Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Records {
    fn process(&self) -> ProcessId {
        self.kept.process()
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.kept.insert(record).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        self.kept.load(id).await
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError> {
        let before = self.get(&record.id);
        let swapped = self.kept.swap(version, Arc::clone(&record), flush).await?;
        if let (true, Some(before)) = (swapped, before) {
            assert!(!before.state.is_ended(), "{before:?} has ended, and becomes {record:?}");
            assert!(record.updated >= before.updated && record.created == before.created, "{record:?}");
            assert_eq!(record.clock_offset, before.clock_offset, "{record:?}");
            assert!(record.keys_used.is_superset(&before.keys_used), "a key is used twice: {record:?}");
            let mut notes = self.notes();
            let note = notes.entry(record.id.clone()).or_default();
            note.unanchored.extend(record.keys_used.difference(&before.keys_used).cloned());
            note.answered.extend(record.undelivered.keys().cloned());
            note.is_anchored &= !record.state.is_ended() || record.state == TaskState::Cancelled;
        }
        Ok(swapped)
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        let is_anchored = anchor.is_some();
        self.kept.set_anchor(id, anchor).await?;
        let mut notes = self.notes();
        let note = notes.entry(id.clone()).or_default();
        note.is_anchored = is_anchored;
        note.unanchored.clear();
        Ok(())
    }

    /// In the order in which the calls were made, so that a seed is lived the same way again.
    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        let mut orphans = self.kept.take_orphans(limit).await?;
        orphans.sort_by(|one, other| one.record.tool.cmp(&other.record.tool));
        Ok(orphans)
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.kept.stored_clock()
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        self.kept.store_clock(reading).await
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.kept.set_bounds(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.kept.remove(id).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        self.kept.due(now, limit).await
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.kept.list(owner, after, limit).await
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        self.kept.recent(is_ended, below, limit).await
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.kept.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        self.kept.census().await
    }
}
