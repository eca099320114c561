//! Records in memory: every unfinished one that this process has used, and as many finished ones as fit.
//!
//! Only the writer changes the cache, after a commit, so a record that is read from the cache survives the
//! process. A reader may add a record that it has read from the database, if no record has been removed
//! since.

use crate::{runtime::Mutex, store::LoadedTask, task::TaskId};
use dashmap::DashMap;
use std::collections::{BTreeMap, HashMap};

/// A record in memory.
#[derive(Clone, Debug)]
pub(super) struct CachedRecord {
    pub(super) task: LoadedTask,
    /// The number of the record's row.
    pub(super) number: i64,
}

/// The records in memory.
#[derive(Debug)]
pub(super) struct RecordCache {
    /// Unfinished records.
    live: DashMap<TaskId, CachedRecord>,
    ended: Mutex<EndedRecords>,
}

/// Finished records, in the order of their last use.
#[derive(Debug, Default)]
struct EndedRecords {
    records: HashMap<TaskId, (u64, CachedRecord)>,
    /// The ids by the position of their last use.
    order: BTreeMap<u64, TaskId>,
    /// The next position.
    next: u64,
    bytes: usize,
    /// The number of removals so far. A record that was read from the database before a removal may be the
    /// removed one.
    removals: u64,
}

/// Maximum bytes of finished records in memory.
const ENDED_BYTES: usize = 32 << 20;
/// Estimated bytes of a record without its results and input requests.
const RECORD_OVERHEAD: usize = 1024;

// === impl RecordCache ===

impl RecordCache {
    pub(super) fn new() -> Self {
        Self { live: DashMap::new(), ended: Mutex::default() }
    }

    /// The task with this id, if it is in memory.
    pub(super) fn get(&self, id: &TaskId) -> Option<LoadedTask> {
        if let Some(cached) = self.live.get(id) {
            return Some(cached.task.clone());
        }
        self.ended.lock().get(id)
    }

    /// The unfinished record with this id, if it is in memory.
    pub(super) fn get_live(&self, id: &TaskId) -> Option<CachedRecord> {
        self.live.get(id).map(|cached| cached.clone())
    }

    /// The number of removals so far, for [`RecordCache::add`]. To be read before the database is read.
    pub(super) fn removals(&self) -> u64 {
        self.ended.lock().removals
    }

    /// Adds a finished record that was read from the database, unless a record has been removed since the
    /// number of removals was read.
    pub(super) fn add(&self, removals: u64, cached: CachedRecord) {
        let mut ended = self.ended.lock();
        if ended.removals == removals {
            ended.add(cached);
        }
    }

    /// Stores the committed state of a record; `None` removes it.
    pub(super) fn commit(&self, id: TaskId, cached: Option<CachedRecord>) {
        match cached {
            Some(cached) if !cached.task.record.state.is_ended() => drop(self.live.insert(id, cached)),
            cached => {
                let mut ended = self.ended.lock();
                ended.remove(&id);
                match cached {
                    Some(cached) => ended.add(cached),
                    None => ended.removals += 1,
                }
                // Remove the record from `live` last, so that a reader always finds it in one of the two
                // maps.
                drop(ended);
                self.live.remove(&id);
            }
        }
    }

    /// Removes all records, because the database may have been replaced.
    pub(super) fn clear(&self) {
        self.live.clear();
        let mut ended = self.ended.lock();
        let removals = ended.removals + 1;
        *ended = EndedRecords { removals, ..EndedRecords::default() };
    }
}

// === impl EndedRecords ===

impl EndedRecords {
    fn get(&mut self, id: &TaskId) -> Option<LoadedTask> {
        let (position, cached) = self.records.get_mut(id)?;
        let id = self.order.remove(position)?;
        (*position, self.next) = (self.next, self.next + 1);
        self.order.insert(*position, id);
        Some(cached.task.clone())
    }

    fn add(&mut self, cached: CachedRecord) {
        let id = cached.task.record.id.clone();
        self.remove(&id);
        self.bytes += cached_bytes(&cached);
        self.order.insert(self.next, id.clone());
        self.records.insert(id, (self.next, cached));
        self.next += 1;
        while self.bytes > ENDED_BYTES
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &TaskId) {
        if let Some((position, cached)) = self.records.remove(id) {
            self.order.remove(&position);
            self.bytes -= cached_bytes(&cached);
        }
    }
}

/// The estimated bytes of a record in memory.
fn cached_bytes(cached: &CachedRecord) -> usize {
    cached.task.record.stored_bytes() + RECORD_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::Timestamp,
        store::{ProcessId, RecordVersion, TaskOwnership},
        task::{Record, TaskEvent, TaskPrincipal, TaskSharing, apply},
    };
    use std::{sync::Arc, time::Duration};

    fn ended(number: u8, bytes: usize) -> CachedRecord {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let now = Timestamp::from_millis(1);
        let record = Record::new(TaskId::from_entropy([number; 16]), owner, "slow", Duration::ZERO, now);
        let result = TaskEvent::Returned { result: vec![b'x'; bytes].into() };
        let record = Arc::new(apply(&record, result, now).expect("alive").0);
        let ownership = TaskOwnership::unlimited(ProcessId(1));
        let task = LoadedTask { version: RecordVersion(1), record, ownership };
        CachedRecord { task, number: i64::from(number) }
    }

    #[test]
    fn finished_records_are_evicted_least_recently_used_first() {
        let cache = RecordCache::new();
        let all: Vec<_> = (0..4).map(|number| ended(number, ENDED_BYTES / 4)).collect();
        let is_cached = |number: usize| cache.get(&all[number].task.record.id).is_some();
        for kept in &all[..3] {
            cache.commit(kept.task.record.id.clone(), Some(kept.clone()));
        }
        assert!(is_cached(0) && is_cached(1) && is_cached(2));
        assert!(is_cached(0), "and is the last used");
        cache.commit(all[3].task.record.id.clone(), Some(all[3].clone()));
        assert_eq!([0, 1, 2, 3].map(is_cached), [true, false, true, true]);
        assert!(cache.ended.lock().bytes <= ENDED_BYTES);
        // A record larger than the bound is not kept, and does not count.
        let large = ended(9, ENDED_BYTES);
        cache.commit(large.task.record.id.clone(), Some(large.clone()));
        assert!(cache.get(&large.task.record.id).is_none());
        assert_eq!(cache.ended.lock().bytes, 0);
    }

    #[test]
    fn a_record_read_before_a_removal_is_not_added() {
        let cache = RecordCache::new();
        let one = ended(1, 1);
        let read = cache.removals();
        cache.commit(one.task.record.id.clone(), None);
        cache.add(read, one.clone());
        assert!(cache.get(&one.task.record.id).is_none());
        cache.add(cache.removals(), one.clone());
        assert!(cache.get(&one.task.record.id).is_some());
    }
}
