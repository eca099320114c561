//! Tasks in this process.
//!
//! Records are in a sharded map, so that polls of different tasks do not contend. The due times and the
//! counts of all records are in one small index behind one lock; a change that does not affect them does not
//! take the lock.

use super::{
    DueTask, Durability, ListCursor, OrphanTask, RecordVersion, Recount, Store, StoreBounds, StoreError,
    StoreUsage, TaskTally,
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
    /// Identifies this process among those that use the store one after the other. The store of node 0 is not
    /// durable.
    node: u64,
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
    version: RecordVersion,
    record: Arc<Record>,
    /// Position in the order of insertion.
    number: u64,
    /// The process that owns the record.
    node: u64,
    anchor: Option<Bytes>,
}

/// Index of all records.
#[derive(Debug, Default)]
struct RecordIndex {
    due: BTreeSet<(Timestamp, TaskId)>,
    /// The tasks of each owner in their order; an owner without tasks has no entry.
    owners: HashMap<TaskPrincipal, BTreeSet<ListCursor>>,
    /// Unfinished and finished tasks by their numbers.
    recent: [BTreeMap<u64, TaskId>; 2],
    counts: StoreCounts,
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    /// A store without bounds.
    fn default() -> Self {
        Self::bounded(StoreBounds::NONE)
    }
}

impl MemoryStore {
    /// A store with these bounds.
    pub fn bounded(bounds: StoreBounds) -> Self {
        let kept = SharedRecords {
            bounds: SwapCell::new(bounds),
            records: DashMap::new(),
            inserted: AtomicU64::new(0),
            clock: Mutex::default(),
            index: Mutex::default(),
        };
        Self { shared: Arc::new(kept), node: 0 }
    }

    /// Counts the records anew, for tests; they must not change meanwhile.
    pub fn recount(&self) -> Recount {
        let mut counts = StoreCounts::default();
        self.shared.records.iter().for_each(|kept| counts.add(&CountedTask::of(&kept.record)));
        counts.compare(&self.shared.index.lock().counts)
    }

    /// The same records for the next process: a restart without a disk, for tests.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), node: self.node + 1 }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        match self.shared.records.entry(record.id.clone()) {
            Entry::Occupied(_) => Err(StoreError::Exists),
            Entry::Vacant(slot) => {
                let number = self.shared.inserted.fetch_add(1, Ordering::Relaxed);
                // Keep the entry locked until the index has the record: it must not be removed in between.
                let _kept = slot.insert(MemoryEntry {
                    version: RecordVersion::FIRST,
                    record: Arc::clone(&record),
                    number,
                    node: self.node,
                    anchor: None,
                });
                self.shared.index.lock().add(&record, number);
                Ok(())
            }
        }
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(RecordVersion, Arc<Record>)>, StoreError> {
        Ok(self.shared.records.get(id).map(|kept| (kept.version, Arc::clone(&kept.record))))
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        _: Durability,
    ) -> Result<bool, StoreError> {
        let Some(mut kept) = self.shared.records.get_mut(&record.id).filter(|kept| kept.version == version)
        else {
            return Ok(false);
        };
        if IndexedFields::of(&kept.record) != IndexedFields::of(&record) {
            let mut index = self.shared.index.lock();
            let was = kept.record.stored_bytes();
            self.shared.bounds.load().admit(was, &record, index.counts.usage(&record.owner.principal))?;
            index.subtract(&kept.record, kept.number);
            index.add(&record, kept.number);
        }
        if record.state.is_ended() && record.state != TaskState::Cancelled {
            kept.anchor = None;
        }
        (kept.version, kept.record) = (version.next(), record);
        Ok(true)
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        if let Some(mut kept) = self.shared.records.get_mut(id) {
            kept.anchor = anchor;
        }
        Ok(())
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        let mut found = Vec::new();
        // This runs at a start, and in tests: it needs no index.
        for mut kept in self.shared.records.iter_mut() {
            if found.len() == limit {
                break;
            }
            if kept.node != self.node && (!kept.record.state.is_ended() || kept.anchor.is_some()) {
                kept.node = self.node;
                let (record, anchor) = (Arc::clone(&kept.record), kept.anchor.clone());
                found.push(OrphanTask { version: kept.version, record, anchor });
            }
        }
        Ok(found)
    }

    fn kept_clock(&self) -> Option<ClockReading> {
        *self.shared.clock.lock()
    }

    async fn keep_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        *self.shared.clock.lock() = Some(reading);
        Ok(())
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        if let Entry::Occupied(slot) = self.shared.records.entry(id.clone()) {
            self.shared.index.lock().subtract(&slot.get().record, slot.get().number);
            slot.remove();
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        self.node > 0
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
        let is_ended = |id: &TaskId| Some(self.shared.records.get(id)?.record.state.is_ended());
        Ok(ids.into_iter().filter_map(|id| is_ended(&id).map(|is_ended| DueTask { id, is_ended })).collect())
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
            // Records that were removed in this moment are made up for by later ones. Their id may even be
            // that of another record by now.
            let there = |cursor: &ListCursor| {
                let record = Arc::clone(&self.shared.records.get(&cursor.id)?.record);
                (record.owner == *owner && ListCursor::of(&record) == *cursor).then_some(record)
            };
            found.extend(page.iter().filter_map(there));
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
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        let mut found = Vec::new();
        let mut below = below.unwrap_or(u64::MAX);
        loop {
            let page: Vec<_> = {
                let index = self.shared.index.lock();
                let young = index.recent[usize::from(is_ended)].range(..below).rev();
                young.take(limit - found.len()).map(|(number, id)| (*number, id.clone())).collect()
            };
            // Records that have changed in this moment are made up for by later ones.
            let there = |(number, id): &(u64, TaskId)| {
                let kept = self.shared.records.get(id)?;
                let is_it = kept.number == *number && kept.record.state.is_ended() == is_ended;
                is_it.then(|| (*number, Arc::clone(&kept.record)))
            };
            found.extend(page.iter().filter_map(there));
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
        let facts = IndexedFields::of(record);
        self.due.insert((facts.due, record.id.clone()));
        self.counts.add(&CountedTask::of(record));
        self.recent[usize::from(record.state.is_ended())].insert(number, record.id.clone());
        self.owners.entry(facts.owner.clone()).or_default().insert(ListCursor::of(record));
    }

    fn subtract(&mut self, record: &Record, number: u64) {
        let facts = IndexedFields::of(record);
        self.due.remove(&(facts.due, record.id.clone()));
        let was_there = self.counts.subtract(&CountedTask::of(record));
        debug_assert!(was_there, "what is subtracted was added: {record:?}");
        self.recent[usize::from(record.state.is_ended())].remove(&number);
        if let Some(cursors) = self.owners.get_mut(facts.owner) {
            cursors.remove(&ListCursor::of(record));
            if cursors.is_empty() {
                self.owners.remove(facts.owner);
            }
        }
    }
}

/// The indexed fields of a record, besides its id.
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
    fn of(record: &'a Record) -> Self {
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
