//! Tasks in the memory of this process.
//!
//! Records are in a sharded map, so that polls of different tasks do not contend. The due times and the
//! counts of all records are in one small index behind one lock; a change that does not affect them does not
//! take the lock.

use super::{
    DueTask, Durability, ListCursor, LoadedTask, OrphanTask, ProcessId, RecentTask, RecordVersion, Recount,
    Store, StoreBounds, StoreError, StoreUsage, TaskOwnership, TaskTally,
    counts::{CountedTask, StoreCounts},
};
use crate::{
    protocol::{ClockReading, Timestamp},
    runtime::{Mutex, SwapCell},
    task::{Record, TaskId, TaskPrincipal, TaskState},
};
use async_trait::async_trait;
use bytes::Bytes;
use dashmap::{DashMap, Entry};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A store in memory, which ends with the process.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<SharedRecords>,
    /// The number of the process among those that use the records one after the other
    /// ([`MemoryStore::restarted`]). Only the store of the first process, 0, is not durable.
    process: ProcessId,
}

#[derive(Debug)]
struct SharedRecords {
    bounds: SwapCell<StoreBounds>,
    records: DashMap<TaskId, MemoryEntry>,
    /// Number of records ever inserted.
    inserted: AtomicU64,
    clock: Mutex<Option<ClockReading>>,
    /// Locked after the entry of `records`, never before.
    index: Mutex<RecordIndex>,
}

#[derive(Debug)]
struct MemoryEntry {
    task: LoadedTask,
    /// Position in the order of insertion.
    number: u64,
    /// See [`Store::set_anchor`].
    anchor: Option<Bytes>,
}

/// Index of all records.
#[derive(Debug, Default)]
struct RecordIndex {
    due: BTreeSet<(Timestamp, TaskId)>,
    /// The tasks of each owner in their order; an owner without tasks has no entry.
    owners: HashMap<TaskPrincipal, BTreeSet<ListCursor>>,
    /// Unfinished tasks, and finished tasks, by their numbers.
    recent: [BTreeMap<u64, TaskId>; 2],
    counts: StoreCounts,
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    /// Creates a store without bounds.
    fn default() -> Self {
        Self::bounded(StoreBounds::NONE)
    }
}

impl MemoryStore {
    /// Creates a store with these bounds.
    pub fn bounded(bounds: StoreBounds) -> Self {
        let shared = SharedRecords {
            bounds: SwapCell::new(bounds),
            records: DashMap::new(),
            inserted: AtomicU64::new(0),
            clock: Mutex::default(),
            index: Mutex::default(),
        };
        Self { shared: Arc::new(shared), process: ProcessId(0) }
    }

    /// Counts the records anew and compares the maintained counts with them, for tests. The records must not
    /// change meanwhile.
    pub fn recount(&self) -> Recount {
        let mut counts = StoreCounts::default();
        self.shared
            .records
            .iter()
            .for_each(|entry| counts.add(&CountedTask::from_record(&entry.task.record)));
        counts.compare(&self.shared.index.lock().counts)
    }

    /// A store of the next process with the same records: simulates a restart in tests.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), process: ProcessId(self.process.0 + 1) }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn process(&self) -> ProcessId {
        self.process
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        match self.shared.records.entry(record.id.clone()) {
            Entry::Occupied(_) => Err(StoreError::Exists),
            Entry::Vacant(slot) => {
                let number = self.shared.inserted.fetch_add(1, Ordering::Relaxed);
                // Keep the entry locked until the index has the record, so that the record is not removed in
                // between.
                let task = LoadedTask {
                    version: RecordVersion::FIRST,
                    record: Arc::clone(&record),
                    ownership: TaskOwnership::unlimited(self.process),
                };
                let _entry = slot.insert(MemoryEntry { task, number, anchor: None });
                self.shared.index.lock().add(&record, number);
                Ok(())
            }
        }
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        Ok(self.shared.records.get(id).map(|entry| entry.task.clone()))
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        _: Durability,
    ) -> Result<bool, StoreError> {
        let Some(mut entry) =
            self.shared.records.get_mut(&record.id).filter(|entry| entry.task.version == version)
        else {
            return Ok(false);
        };
        if IndexedFields::from_record(&entry.task.record) != IndexedFields::from_record(&record) {
            let mut index = self.shared.index.lock();
            let old_bytes = entry.task.record.stored_bytes();
            self.shared.bounds.load().admit(
                old_bytes,
                &record,
                index.counts.usage(&record.owner.principal),
            )?;
            index.subtract(&entry.task.record, entry.number);
            index.add(&record, entry.number);
        }
        if record.state.is_ended() && record.state != TaskState::Cancelled {
            entry.anchor = None;
        }
        (entry.task.version, entry.task.record) = (version.next(), record);
        Ok(true)
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        if let Some(mut entry) = self.shared.records.get_mut(id) {
            entry.anchor = anchor;
        }
        Ok(())
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        let mut found = Vec::new();
        // Scan all records without an index: orphans are taken only at a start, and in tests.
        for mut entry in self.shared.records.iter_mut() {
            if found.len() == limit {
                break;
            }
            let MemoryEntry { task, anchor, .. } = &mut *entry;
            if task.ownership.owner != self.process && (!task.record.state.is_ended() || anchor.is_some()) {
                (task.version, task.ownership.owner) = (task.version.next(), self.process);
                let (record, anchor) = (Arc::clone(&task.record), anchor.clone());
                found.push(OrphanTask { version: task.version, record, anchor });
            }
        }
        Ok(found)
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        *self.shared.clock.lock()
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        *self.shared.clock.lock() = Some(reading);
        Ok(())
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        if let Entry::Occupied(slot) = self.shared.records.entry(id.clone()) {
            self.shared.index.lock().subtract(&slot.get().task.record, slot.get().number);
            slot.remove();
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        self.process.0 > 0
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.shared.bounds.set(bounds);
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        let ids: Vec<_> = {
            let index = self.shared.index.lock();
            let due = index.due.iter().take_while(|(due, _)| *due <= now);
            due.take(limit).map(|(_, id)| id.clone()).collect()
        };
        let due_task = |id| {
            let entry = self.shared.records.get(&id)?;
            let (is_ended, ownership) = (entry.task.record.state.is_ended(), entry.task.ownership);
            drop(entry);
            Some(DueTask { id, is_ended, ownership })
        };
        Ok(ids.into_iter().filter_map(due_task).collect())
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        let mut found = Vec::new();
        let mut from = after.map_or(Bound::Unbounded, |cursor| Bound::Excluded(cursor.clone()));
        loop {
            let page: Vec<_> = {
                let index = self.shared.index.lock();
                let cursors = index.owners.get(owner).into_iter();
                let cursors = cursors.flat_map(|cursors| cursors.range((from.clone(), Bound::Unbounded)));
                cursors.take(limit - found.len()).cloned().collect()
            };
            // Records that have been removed since are made up for by later ones. Another record may even
            // have the same id by now.
            let current_record = |cursor: &ListCursor| {
                let record = Arc::clone(&self.shared.records.get(&cursor.id)?.task.record);
                (record.owner == *owner && ListCursor::from_record(&record) == *cursor).then_some(record)
            };
            found.extend(page.iter().filter_map(current_record));
            match page.last() {
                Some(last) if found.len() < limit => from = Bound::Excluded(last.clone()),
                _ => return Ok(found),
            }
        }
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        let mut found = Vec::new();
        let mut below = below.unwrap_or(u64::MAX);
        loop {
            let page: Vec<_> = {
                let index = self.shared.index.lock();
                let newest_first = index.recent[usize::from(is_ended)].range(..below).rev();
                newest_first.take(limit - found.len()).map(|(number, id)| (*number, id.clone())).collect()
            };
            // Records that have been removed or have ended since are made up for by later ones.
            let current_record = |(number, id): &(u64, TaskId)| {
                let entry = self.shared.records.get(id)?;
                let LoadedTask { record, ownership, .. } = &entry.task;
                let is_current = entry.number == *number && record.state.is_ended() == is_ended;
                is_current.then(|| RecentTask {
                    number: *number,
                    record: Arc::clone(record),
                    ownership: *ownership,
                })
            };
            found.extend(page.iter().filter_map(current_record));
            match page.last() {
                Some((last, _)) if found.len() < limit => below = *last,
                _ => return Ok(found),
            }
        }
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.shared.index.lock().counts.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        Ok(self.shared.index.lock().counts.census())
    }
}

// === impl RecordIndex ===

impl RecordIndex {
    fn add(&mut self, record: &Record, number: u64) {
        let fields = IndexedFields::from_record(record);
        self.due.insert((fields.due, record.id.clone()));
        self.counts.add(&CountedTask::from_record(record));
        self.recent[usize::from(record.state.is_ended())].insert(number, record.id.clone());
        self.owners.entry(fields.owner.clone()).or_default().insert(ListCursor::from_record(record));
    }

    fn subtract(&mut self, record: &Record, number: u64) {
        let fields = IndexedFields::from_record(record);
        self.due.remove(&(fields.due, record.id.clone()));
        let was_counted = self.counts.subtract(&CountedTask::from_record(record));
        debug_assert!(was_counted, "what is subtracted was added: {record:?}");
        self.recent[usize::from(record.state.is_ended())].remove(&number);
        if let Some(cursors) = self.owners.get_mut(fields.owner) {
            cursors.remove(&ListCursor::from_record(record));
            if cursors.is_empty() {
                self.owners.remove(fields.owner);
            }
        }
    }
}

/// The fields of a record that the index depends on, besides its id.
#[derive(PartialEq, Eq)]
struct IndexedFields<'a> {
    due: Timestamp,
    owner: &'a TaskPrincipal,
    created: Timestamp,
    stored_bytes: usize,
    status: &'static str,
}

// === impl IndexedFields ===

impl<'a> IndexedFields<'a> {
    fn from_record(record: &'a Record) -> Self {
        Self {
            due: record.due_at(),
            owner: &record.owner,
            created: record.created,
            stored_bytes: record.stored_bytes(),
            status: record.state.status(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TaskSharing;
    use std::time::Duration;

    #[tokio::test]
    async fn a_removed_record_leaves_no_index_entries() {
        let store = MemoryStore::default();
        for number in 0..100 {
            let owner = TaskPrincipal {
                principal: [number; 16],
                route: "/mcp".into(),
                scope: TaskSharing::Principal,
            };
            let id = TaskId::from_entropy([number; 16]);
            let start = Timestamp::from_millis(u64::from(number));
            let record = Record::new(id.clone(), owner, "slow", Duration::ZERO, start);
            store.insert(Arc::new(record)).await.expect("inserted");
            store.remove(&id).await.expect("removed");
        }
        assert!(store.shared.records.is_empty());
        let RecordIndex { due, owners, recent, counts } = &*store.shared.index.lock();
        assert!(due.is_empty() && owners.is_empty() && counts.is_empty());
        assert!(recent.iter().all(BTreeMap::is_empty));
    }
}
