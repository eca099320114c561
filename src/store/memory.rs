//! Tasks kept in this process.
//!
//! Records lie in a sharded map, so that polls of different tasks do not wait for each other. What
//! must be known across all of them, which are due and how much there is, stands in one small
//! index behind one lock; a change that leaves it as it is does not take the lock.

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

/// Forgets everything at exit.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<SharedRecords>,
    /// Which of the processes that use it one after the other this is. The first forgets everything at exit.
    node: u64,
}

#[derive(Debug)]
struct SharedRecords {
    bounds: SwapCell<StoreBounds>,
    records: DashMap<TaskId, MemoryEntry>,
    /// How many records there have been.
    inserted: AtomicU64,
    clock: Mutex<Option<ClockReading>>,
    /// Taken after the entry of `records` that it is about, where one is held, never before.
    index: Mutex<RecordIndex>,
}

#[derive(Debug)]
struct MemoryEntry {
    version: RecordVersion,
    record: Arc<Record>,
    /// In the order in which they were inserted.
    number: u64,
    /// Who holds it.
    node: u64,
    anchor: Option<Bytes>,
}

/// What is known of all records together.
#[derive(Debug, Default)]
struct RecordIndex {
    due: BTreeSet<(Timestamp, TaskId)>,
    /// The tasks of each owner in their order; one that has none is not in it.
    owners: HashMap<TaskPrincipal, BTreeSet<ListCursor>>,
    /// Those that have not ended, and those that have, by their numbers.
    recent: [BTreeMap<u64, TaskId>; 2],
    counts: StoreCounts,
}

// === impl Memory ===

impl Default for MemoryStore {
    /// Without bounds.
    fn default() -> Self {
        Self::bounded(StoreBounds::NONE)
    }
}

impl MemoryStore {
    /// Keeps no more than this.
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

    /// Counts the records anew, for tests; no other may change them meanwhile.
    pub fn recount(&self) -> Recount {
        let mut counts = StoreCounts::default();
        self.shared.records.iter().for_each(|kept| counts.add(&CountedTask::of(&kept.record)));
        counts.compare(&self.shared.index.lock().counts)
    }

    /// The same records as the next process finds them: a restart without a disk, for tests.
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
                // Held until the index knows the record too: nobody may remove it in between.
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
        // Asked at a start, and in tests: no index is kept for it.
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
        let mut from = after.map_or(Bound::Unbounded, |place| Bound::Excluded(place.clone()));
        loop {
            let page: Vec<_> = {
                let index = self.shared.index.lock();
                let places = index.owners.get(owner).into_iter();
                let places = places.flat_map(|places| places.range((from.clone(), Bound::Unbounded)));
                places.take(limit - found.len()).cloned().collect()
            };
            // What has been forgotten in this moment is made up for by what comes behind it. An id may
            // even be somebody else's by now.
            let there = |place: &ListCursor| {
                let record = Arc::clone(&self.shared.records.get(&place.id)?.record);
                (record.owner == *owner && ListCursor::of(&record) == *place).then_some(record)
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
            // What has changed in this moment is made up for by what comes behind it.
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

// === impl Index ===

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
        if let Some(places) = self.owners.get_mut(facts.owner) {
            places.remove(&ListCursor::of(record));
            if places.is_empty() {
                self.owners.remove(facts.owner);
            }
        }
    }
}

/// What the index knows of one record, besides its id.
#[derive(PartialEq, Eq)]
struct IndexedFields<'a> {
    due: Timestamp,
    owner: &'a TaskPrincipal,
    created: Timestamp,
    stored_bytes: usize,
    status: &'static str,
}

// === impl Facts ===

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
    async fn nothing_stays_behind_of_what_is_forgotten() {
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
