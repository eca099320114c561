//! Tasks kept in this process.
//!
//! Records lie in a sharded map, so that polls of different tasks do not wait for each other. What
//! must be known across all of them, which are due and how much there is, stands in one small
//! index behind one lock; a change that leaves it as it is does not take the lock.

use super::{
    Bounds, Due, Flush, Orphan, Place, Recount, Store, StoreError, Tally, Usage, Version,
    counts::{Counted, Counts},
};
use crate::{
    protocol::Timestamp,
    runtime::{Live, Mutex},
    task::{Owner, Record, State, TaskId},
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
pub struct Memory {
    kept: Arc<Records>,
    /// Which of the processes that use it one after the other this is. The first forgets everything at exit.
    node: u64,
}

#[derive(Debug)]
struct Records {
    bounds: Live<Bounds>,
    records: DashMap<TaskId, Kept>,
    /// How many records there have been.
    inserted: AtomicU64,
    /// Taken after the entry of `records` that it is about, where one is held, never before.
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Kept {
    version: Version,
    record: Arc<Record>,
    /// In the order in which they were inserted.
    number: u64,
    /// Who holds it.
    node: u64,
    anchor: Option<Bytes>,
}

/// What is known of all records together.
#[derive(Debug, Default)]
struct Index {
    due: BTreeSet<(Timestamp, TaskId)>,
    /// The tasks of each owner in their order; one that has none is not in it.
    owners: HashMap<Owner, BTreeSet<Place>>,
    /// Those that have not ended, and those that have, by their numbers.
    recent: [BTreeMap<u64, TaskId>; 2],
    counts: Counts,
}

// === impl Memory ===

impl Default for Memory {
    /// Without bounds.
    fn default() -> Self {
        Self::bounded(Bounds::NONE)
    }
}

impl Memory {
    /// Keeps no more than this.
    pub fn bounded(bounds: Bounds) -> Self {
        let kept = Records {
            bounds: Live::new(bounds),
            records: DashMap::new(),
            inserted: AtomicU64::new(0),
            index: Mutex::default(),
        };
        Self { kept: Arc::new(kept), node: 0 }
    }

    /// Counts the records anew, for tests; no other may change them meanwhile.
    pub fn recount(&self) -> Recount {
        let mut counts = Counts::default();
        self.kept.records.iter().for_each(|kept| counts.add(&Counted::of(&kept.record)));
        counts.compare(&self.kept.index.lock().counts)
    }

    /// The same records as the next process finds them: a restart without a disk, for tests.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self { kept: Arc::clone(&self.kept), node: self.node + 1 }
    }
}

#[async_trait]
impl Store for Memory {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        match self.kept.records.entry(record.id.clone()) {
            Entry::Occupied(_) => Err(StoreError::Exists),
            Entry::Vacant(slot) => {
                let number = self.kept.inserted.fetch_add(1, Ordering::Relaxed);
                // Held until the index knows the record too: nobody may remove it in between.
                let _kept = slot.insert(Kept {
                    version: Version::FIRST,
                    record: Arc::clone(&record),
                    number,
                    node: self.node,
                    anchor: None,
                });
                self.kept.index.lock().add(&record, number);
                Ok(())
            }
        }
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        Ok(self.kept.records.get(id).map(|kept| (kept.version, Arc::clone(&kept.record))))
    }

    async fn swap(&self, version: Version, record: Arc<Record>, _: Flush) -> Result<bool, StoreError> {
        let Some(mut kept) = self.kept.records.get_mut(&record.id).filter(|kept| kept.version == version)
        else {
            return Ok(false);
        };
        if Facts::of(&kept.record) != Facts::of(&record) {
            let mut index = self.kept.index.lock();
            let was = kept.record.stored_bytes();
            self.kept.bounds.now().admit(was, &record, index.counts.usage(&record.owner.principal))?;
            index.subtract(&kept.record, kept.number);
            index.add(&record, kept.number);
        }
        if record.state.is_ended() && record.state != State::Cancelled {
            kept.anchor = None;
        }
        (kept.version, kept.record) = (version.next(), record);
        Ok(true)
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        if let Some(mut kept) = self.kept.records.get_mut(id) {
            kept.anchor = anchor;
        }
        Ok(())
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        let mut found = Vec::new();
        // Asked at a start, and in tests: no index is kept for it.
        for mut kept in self.kept.records.iter_mut() {
            if found.len() == limit {
                break;
            }
            if kept.node != self.node && (!kept.record.state.is_ended() || kept.anchor.is_some()) {
                kept.node = self.node;
                let (record, anchor) = (Arc::clone(&kept.record), kept.anchor.clone());
                found.push(Orphan { version: kept.version, record, anchor });
            }
        }
        Ok(found)
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        if let Entry::Occupied(slot) = self.kept.records.entry(id.clone()) {
            self.kept.index.lock().subtract(&slot.get().record, slot.get().number);
            slot.remove();
        }
        Ok(())
    }

    fn outlives(&self) -> bool {
        self.node > 0
    }

    fn bound_by(&self, bounds: Bounds) {
        self.kept.bounds.set(bounds);
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
        let ids: Vec<_> = {
            let index = self.kept.index.lock();
            let due = index.due.iter().take_while(|(due, _)| *due <= now);
            due.take(limit).map(|(_, id)| id.clone()).collect()
        };
        let is_ended = |id: &TaskId| Some(self.kept.records.get(id)?.record.state.is_ended());
        Ok(ids.into_iter().filter_map(|id| is_ended(&id).map(|is_ended| Due { id, is_ended })).collect())
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        let mut found = Vec::new();
        let mut from = after.map_or(Bound::Unbounded, |place| Bound::Excluded(place.clone()));
        loop {
            let page: Vec<_> = {
                let index = self.kept.index.lock();
                let places = index.owners.get(owner).into_iter();
                let places = places.flat_map(|places| places.range((from.clone(), Bound::Unbounded)));
                places.take(limit - found.len()).cloned().collect()
            };
            // What has been forgotten in this moment is made up for by what comes behind it. An id may
            // even be somebody else's by now.
            let there = |place: &Place| {
                let record = Arc::clone(&self.kept.records.get(&place.id)?.record);
                (record.owner == *owner && Place::of(&record) == *place).then_some(record)
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
                let index = self.kept.index.lock();
                let young = index.recent[usize::from(is_ended)].range(..below).rev();
                young.take(limit - found.len()).map(|(number, id)| (*number, id.clone())).collect()
            };
            // What has changed in this moment is made up for by what comes behind it.
            let there = |(number, id): &(u64, TaskId)| {
                let kept = self.kept.records.get(id)?;
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

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.kept.index.lock().counts.usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        Ok(self.kept.index.lock().counts.census())
    }
}

// === impl Index ===

impl Index {
    fn add(&mut self, record: &Record, number: u64) {
        let facts = Facts::of(record);
        self.due.insert((facts.due, record.id.clone()));
        self.counts.add(&Counted::of(record));
        self.recent[usize::from(record.state.is_ended())].insert(number, record.id.clone());
        self.owners.entry(facts.owner.clone()).or_default().insert(Place::of(record));
    }

    fn subtract(&mut self, record: &Record, number: u64) {
        let facts = Facts::of(record);
        self.due.remove(&(facts.due, record.id.clone()));
        let was_there = self.counts.subtract(&Counted::of(record));
        debug_assert!(was_there, "what is subtracted was added: {record:?}");
        self.recent[usize::from(record.state.is_ended())].remove(&number);
        if let Some(places) = self.owners.get_mut(facts.owner) {
            places.remove(&Place::of(record));
            if places.is_empty() {
                self.owners.remove(facts.owner);
            }
        }
    }
}

/// What the index knows of one record, besides its id.
#[derive(PartialEq, Eq)]
struct Facts<'a> {
    due: Timestamp,
    owner: &'a Owner,
    created: Timestamp,
    stored_bytes: usize,
    status: &'static str,
}

// === impl Facts ===

impl<'a> Facts<'a> {
    fn of(record: &'a Record) -> Self {
        Self {
            due: record.due(),
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
    use crate::task::Scope;
    use std::time::Duration;

    #[tokio::test]
    async fn nothing_stays_behind_of_what_is_forgotten() {
        let store = Memory::default();
        for number in 0..100 {
            let owner = Owner { principal: [number; 16], route: "/mcp".into(), scope: Scope::Principal };
            let id = TaskId::from_entropy([number; 16]);
            let start = Timestamp::from_millis(u64::from(number));
            let record = Record::new(id.clone(), owner, "slow", Duration::ZERO, start);
            store.insert(Arc::new(record)).await.expect("inserted");
            store.remove(&id).await.expect("removed");
        }
        assert!(store.kept.records.is_empty());
        let Index { due, owners, recent, counts } = &*store.kept.index.lock();
        assert!(due.is_empty() && owners.is_empty() && counts.is_empty());
        assert!(recent.iter().all(BTreeMap::is_empty));
    }
}
