//! Records in memory: every unfinished one that this process has used, and as many finished ones as fit.
//!
//! Only the writer changes them, after a commit: a record that is read here survives the process. A reader
//! may add a record that it has read from the database, if none has been removed since.

use crate::{
    runtime::Mutex,
    store::RecordVersion,
    task::{Record, TaskId},
};
use dashmap::DashMap;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// A record in memory.
#[derive(Clone, Debug)]
pub(super) struct CachedRecord {
    pub(super) version: RecordVersion,
    pub(super) record: Arc<Record>,
    /// The number of its row.
    pub(super) number: i64,
}

/// The records in memory.
#[derive(Debug)]
pub(super) struct RecordCache {
    live: DashMap<TaskId, CachedRecord>,
    ended: Mutex<EndedRecords>,
}

/// Finished records, the last used last.
#[derive(Debug, Default)]
struct EndedRecords {
    records: HashMap<TaskId, (u64, CachedRecord)>,
    order: BTreeMap<u64, TaskId>,
    next: u64,
    bytes: usize,
    /// Count of removals: a record that was read before one may be gone.
    removals: u64,
}

/// Bytes of finished records in memory.
const ENDED_BYTES: usize = 32 << 20;
/// Estimated bytes of a record without its results and input requests.
const RECORD_OVERHEAD: usize = 1024;

// === impl RecordCache ===

impl RecordCache {
    pub(super) fn new() -> Self {
        Self { live: DashMap::new(), ended: Mutex::default() }
    }

    pub(super) fn get(&self, id: &TaskId) -> Option<(RecordVersion, Arc<Record>)> {
        if let Some(kept) = self.live.get(id) {
            return Some((kept.version, Arc::clone(&kept.record)));
        }
        self.ended.lock().get(id)
    }

    pub(super) fn live(&self, id: &TaskId) -> Option<CachedRecord> {
        self.live.get(id).map(|kept| kept.clone())
    }

    /// The count of removals, to be read before the database.
    pub(super) fn removals(&self) -> u64 {
        self.ended.lock().removals
    }

    /// Adds a finished record that was read from the database.
    pub(super) fn add(&self, forgotten: u64, kept: CachedRecord) {
        let mut ended = self.ended.lock();
        if ended.removals == forgotten {
            ended.add(kept);
        }
    }

    /// Stores the committed state of a record; `None` if it was removed.
    pub(super) fn commit(&self, id: TaskId, kept: Option<CachedRecord>) {
        match kept {
            Some(kept) if !kept.record.state.is_ended() => drop(self.live.insert(id, kept)),
            kept => {
                let mut ended = self.ended.lock();
                ended.remove(&id);
                match kept {
                    Some(kept) => ended.add(kept),
                    None => ended.removals += 1,
                }
                // Remove it here last: a reader finds it in one of the two maps.
                drop(ended);
                self.live.remove(&id);
            }
        }
    }

    /// Removes all records: the database may have been replaced.
    pub(super) fn clear(&self) {
        self.live.clear();
        let mut ended = self.ended.lock();
        let forgotten = ended.removals + 1;
        *ended = EndedRecords { removals: forgotten, ..EndedRecords::default() };
    }
}

// === impl EndedRecords ===

impl EndedRecords {
    fn get(&mut self, id: &TaskId) -> Option<(RecordVersion, Arc<Record>)> {
        let (position, kept) = self.records.get_mut(id)?;
        let id = self.order.remove(position)?;
        (*position, self.next) = (self.next, self.next + 1);
        self.order.insert(*position, id);
        Some((kept.version, Arc::clone(&kept.record)))
    }

    fn add(&mut self, kept: CachedRecord) {
        let id = kept.record.id.clone();
        self.remove(&id);
        self.bytes += bytes(&kept);
        self.order.insert(self.next, id.clone());
        self.records.insert(id, (self.next, kept));
        self.next += 1;
        while self.bytes > ENDED_BYTES
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &TaskId) {
        if let Some((position, kept)) = self.records.remove(id) {
            self.order.remove(&position);
            self.bytes -= bytes(&kept);
        }
    }
}

fn bytes(kept: &CachedRecord) -> usize {
    kept.record.stored_bytes() + RECORD_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::Timestamp,
        task::{TaskEvent, TaskPrincipal, TaskSharing, apply},
    };
    use std::time::Duration;

    fn ended(number: u8, bytes: usize) -> CachedRecord {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let now = Timestamp::from_millis(1);
        let record = Record::new(TaskId::from_entropy([number; 16]), owner, "slow", Duration::ZERO, now);
        let result = TaskEvent::Returned { result: vec![b'x'; bytes].into() };
        let record = Arc::new(apply(&record, result, now).expect("alive").0);
        CachedRecord { version: RecordVersion(1), record, number: i64::from(number) }
    }

    #[test]
    fn finished_records_are_evicted_least_recently_used_first() {
        let cache = RecordCache::new();
        let all: Vec<_> = (0..4).map(|number| ended(number, ENDED_BYTES / 4)).collect();
        let is_cached = |number: usize| cache.get(&all[number].record.id).is_some();
        for kept in &all[..3] {
            cache.commit(kept.record.id.clone(), Some(kept.clone()));
        }
        assert!(is_cached(0) && is_cached(1) && is_cached(2));
        assert!(is_cached(0), "and is the last used");
        cache.commit(all[3].record.id.clone(), Some(all[3].clone()));
        assert_eq!([0, 1, 2, 3].map(is_cached), [true, false, true, true]);
        assert!(cache.ended.lock().bytes <= ENDED_BYTES);
        // A record larger than the bound is not kept, and does not count.
        let large = ended(9, ENDED_BYTES);
        cache.commit(large.record.id.clone(), Some(large.clone()));
        assert!(cache.get(&large.record.id).is_none());
        assert_eq!(cache.ended.lock().bytes, 0);
    }

    #[test]
    fn a_record_read_before_a_removal_is_not_added() {
        let cache = RecordCache::new();
        let one = ended(1, 1);
        let read = cache.removals();
        cache.commit(one.record.id.clone(), None);
        cache.add(read, one.clone());
        assert!(cache.get(&one.record.id).is_none());
        cache.add(cache.removals(), one.clone());
        assert!(cache.get(&one.record.id).is_some());
    }
}
