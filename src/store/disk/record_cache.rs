//! What is kept in memory, too: every live record that has passed here, and of those that have ended as many as
//! fit.
//!
//! Only the writer changes it, once a change is committed: what is read here survives the process. Who has read a
//! record from the database may add it, if nothing has been forgotten since.

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
    /// Of its row.
    pub(super) number: i64,
}

/// The records in memory.
#[derive(Debug)]
pub(super) struct RecordCache {
    live: DashMap<TaskId, CachedRecord>,
    ended: Mutex<EndedRecords>,
}

/// Those that have ended, the last used last.
#[derive(Debug, Default)]
struct EndedRecords {
    records: HashMap<TaskId, (u64, CachedRecord)>,
    order: BTreeMap<u64, TaskId>,
    next: u64,
    bytes: usize,
    /// Counts what was forgotten: a record that was read before may be gone.
    removals: u64,
}

/// Bytes of ended records in memory.
const ENDED_BYTES: usize = 32 << 20;
/// What a record takes besides what grows, about.
const RECORD_OVERHEAD: usize = 1024;

// === impl Held ===

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

    /// What was forgotten so far, to be asked before the database is.
    pub(super) fn removals(&self) -> u64 {
        self.ended.lock().removals
    }

    /// Adds an ended record that was read from the database.
    pub(super) fn add(&self, forgotten: u64, kept: CachedRecord) {
        let mut ended = self.ended.lock();
        if ended.removals == forgotten {
            ended.add(kept);
        }
    }

    /// A record is committed as this; `Missing` where it was removed.
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
                // After it is there: a reader finds it in one of the two.
                drop(ended);
                self.live.remove(&id);
            }
        }
    }

    /// Forgets all: the database may have come back as something else.
    pub(super) fn clear(&self) {
        self.live.clear();
        let mut ended = self.ended.lock();
        let forgotten = ended.removals + 1;
        *ended = EndedRecords { removals: forgotten, ..EndedRecords::default() };
    }
}

// === impl Ended ===

impl EndedRecords {
    fn get(&mut self, id: &TaskId) -> Option<(RecordVersion, Arc<Record>)> {
        let (place, kept) = self.records.get_mut(id)?;
        let id = self.order.remove(place)?;
        (*place, self.next) = (self.next, self.next + 1);
        self.order.insert(*place, id);
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
        if let Some((place, kept)) = self.records.remove(id) {
            self.order.remove(&place);
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
    fn of_those_that_have_ended_the_last_used_stay_as_far_as_they_fit() {
        let held = RecordCache::new();
        let all: Vec<_> = (0..4).map(|number| ended(number, ENDED_BYTES / 4)).collect();
        let is_held = |number: usize| held.get(&all[number].record.id).is_some();
        for kept in &all[..3] {
            held.commit(kept.record.id.clone(), Some(kept.clone()));
        }
        assert!(is_held(0) && is_held(1) && is_held(2));
        assert!(is_held(0), "and is the last used");
        held.commit(all[3].record.id.clone(), Some(all[3].clone()));
        assert_eq!([0, 1, 2, 3].map(is_held), [true, false, true, true]);
        assert!(held.ended.lock().bytes <= ENDED_BYTES);
        // One that is larger than all room is not held, and counts for nothing.
        let large = ended(9, ENDED_BYTES);
        held.commit(large.record.id.clone(), Some(large.clone()));
        assert!(held.get(&large.record.id).is_none());
        assert_eq!(held.ended.lock().bytes, 0);
    }

    #[test]
    fn what_was_read_before_something_was_forgotten_is_not_added() {
        let held = RecordCache::new();
        let one = ended(1, 1);
        let read = held.removals();
        held.commit(one.record.id.clone(), None);
        held.add(read, one.clone());
        assert!(held.get(&one.record.id).is_none());
        held.add(held.removals(), one.clone());
        assert!(held.get(&one.record.id).is_some());
    }
}
