//! Tasks kept in this process.
//!
//! Records lie in a sharded map, so that polls of different tasks do not wait for each other. What
//! must be known across all of them, which are due and how much there is, stands in one small
//! index behind one lock; a change that leaves it as it is does not take the lock.

use super::{Bounds, Place, Store, StoreError, Usage, Version};
use crate::{
    protocol::Timestamp,
    runtime::Mutex,
    task::{Owner, Record, TaskId},
};
use async_trait::async_trait;
use dashmap::{DashMap, Entry};
use std::{
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

/// Forgets everything at exit.
#[derive(Debug)]
pub struct Memory {
    bounds: Bounds,
    records: DashMap<TaskId, Kept>,
    /// Taken after the entry of `records` that it is about, where one is held, never before.
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Kept {
    version: Version,
    record: Arc<Record>,
}

/// What is known of all records together.
#[derive(Debug, Default)]
struct Index {
    due: BTreeSet<(Timestamp, TaskId)>,
    /// What each principal has; one that has no task is not in it.
    principals: HashMap<[u8; 16], Share>,
    /// The tasks of each owner in their order; one that has none is not in it.
    owners: HashMap<Owner, BTreeSet<Place>>,
    stored_bytes: usize,
}

/// What one principal has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    tasks: usize,
    stored_bytes: usize,
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
        Self { bounds, records: DashMap::new(), index: Mutex::default() }
    }
}

#[async_trait]
impl Store for Memory {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        match self.records.entry(record.id.clone()) {
            Entry::Occupied(_) => Err(StoreError::Exists),
            Entry::Vacant(slot) => {
                // Held until the index knows the record too: nobody may remove it in between.
                let _kept = slot.insert(Kept { version: Version::FIRST, record: Arc::clone(&record) });
                self.index.lock().add(&record);
                Ok(())
            }
        }
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        Ok(self.records.get(id).map(|kept| (kept.version, Arc::clone(&kept.record))))
    }

    async fn swap(&self, version: Version, record: Arc<Record>) -> Result<bool, StoreError> {
        let Some(mut kept) = self.records.get_mut(&record.id).filter(|kept| kept.version == version) else {
            return Ok(false);
        };
        if Facts::of(&kept.record) != Facts::of(&record) {
            let mut index = self.index.lock();
            self.bounds.admit(&kept.record, &record, index.usage(&record.owner.principal))?;
            index.subtract(&kept.record);
            index.add(&record);
        }
        *kept = Kept { version: version.next(), record };
        Ok(true)
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        if let Entry::Occupied(slot) = self.records.entry(id.clone()) {
            self.index.lock().subtract(&slot.get().record);
            slot.remove();
        }
        Ok(())
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, StoreError> {
        let index = self.index.lock();
        let due = index.due.iter().take_while(|(due, _)| *due <= now);
        Ok(due.take(limit).map(|(_, id)| id.clone()).collect())
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
                let index = self.index.lock();
                let places = index.owners.get(owner).into_iter();
                let places = places.flat_map(|places| places.range((from.clone(), Bound::Unbounded)));
                places.take(limit - found.len()).cloned().collect()
            };
            // What has been forgotten in this moment is made up for by what comes behind it. An id may
            // even be somebody else's by now.
            let there = |place: &Place| {
                let record = Arc::clone(&self.records.get(&place.id)?.record);
                (record.owner == *owner && Place::of(&record) == *place).then_some(record)
            };
            found.extend(page.iter().filter_map(there));
            match page.last() {
                Some(last) if found.len() < limit => from = Bound::Excluded(last.clone()),
                _ => return Ok(found),
            }
        }
    }

    async fn usage(&self, principal: &[u8; 16]) -> Result<Usage, StoreError> {
        Ok(self.index.lock().usage(principal))
    }
}

// === impl Index ===

impl Index {
    fn usage(&self, principal: &[u8; 16]) -> Usage {
        let share = self.principals.get(principal).copied().unwrap_or_default();
        Usage {
            tasks_of_principal: share.tasks,
            // Every record is due some time, so this is all of them.
            tasks: self.due.len(),
            stored_bytes: self.stored_bytes,
            stored_bytes_of_principal: share.stored_bytes,
        }
    }

    fn add(&mut self, record: &Record) {
        let facts = Facts::of(record);
        self.due.insert((facts.due, record.id.clone()));
        let share = self.principals.entry(facts.owner.principal).or_default();
        share.tasks += 1;
        share.stored_bytes += facts.stored_bytes;
        self.stored_bytes += facts.stored_bytes;
        self.owners.entry(facts.owner.clone()).or_default().insert(Place::of(record));
    }

    fn subtract(&mut self, record: &Record) {
        let facts = Facts::of(record);
        self.due.remove(&(facts.due, record.id.clone()));
        self.stored_bytes -= facts.stored_bytes;
        if let Some(share) = self.principals.get_mut(&facts.owner.principal) {
            share.tasks -= 1;
            share.stored_bytes -= facts.stored_bytes;
            if share.tasks == 0 {
                self.principals.remove(&facts.owner.principal);
            }
        }
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
}

// === impl Facts ===

impl<'a> Facts<'a> {
    fn of(record: &'a Record) -> Self {
        Self {
            due: record.due(),
            owner: &record.owner,
            created: record.created,
            stored_bytes: record.stored_bytes(),
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
        assert!(store.records.is_empty());
        let Index { due, principals, owners, stored_bytes } = &*store.index.lock();
        assert_eq!((due.len(), principals.len(), owners.len(), *stored_bytes), (0, 0, 0, 0));
    }
}
