//! Storage of tasks.
//!
//! A store keeps the current version of each [`Record`]. The caller changes a record: it loads the record,
//! applies an event, and swaps the result in; if another change was stored in between, it loads the record
//! again ([`update`]). Records are shared, not copied: a result of megabytes is in memory once, however many
//! readers it has.
//!
//! A record is owned by the process that inserted it, until another takes it over ([`TaskOwnership`]). A record
//! whose owner no longer runs is an orphan: a durable store gives the next process the orphans and their
//! [anchors](Store::set_anchor), by which calls may be resumed.
//!
//! The guarantees of every store are tests (`tests/it/stores.rs`). [`MemoryStore`] keeps tasks in this
//! process, [`DiskStore`] in a folder.

use crate::{
    protocol::{ClockReading, Timestamp},
    task::{EventRefusal, Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, apply},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

mod counts;
pub mod disk;
mod memory;
mod secret;
mod timed_store;

pub use counts::Recount;
pub use disk::DiskStore;
pub use memory::MemoryStore;
pub use secret::{KeyPurpose, StoreSecret};
pub use timed_store::TimedStore;

/// Keeps the current version of each task record.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The id of this process among those that use the store, at the same time or one after the other.
    fn process(&self) -> ProcessId;

    /// Inserts a new record as [`RecordVersion::FIRST`], owned by this process. Once this returns,
    /// [`Store::load`] finds the record, here and in every replica; also after a loss of power, if the store
    /// [is durable](Store::is_durable).
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the id is taken; the existing record is not changed.
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError>;

    /// As [`Store::insert`], for a record for which quota is reserved. `reservation` is dropped when
    /// [`Store::usage`] begins to count the record, or when the insertion fails.
    ///
    /// # Errors
    /// As [`Store::insert`].
    async fn insert_reserved(
        &self,
        record: Arc<Record>,
        reservation: Box<dyn Send>,
    ) -> Result<(), StoreError> {
        let inserted = self.insert(record).await;
        drop(reservation);
        inserted
    }

    /// Returns the task with this id; `None` if there is no such record.
    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError>;

    /// Replaces the record if its current version is still `version`, and gives it the
    /// [next](RecordVersion::next); returns whether it did. A removed record stays removed. The anchor of a
    /// record that has completed or failed is removed.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the record would grow beyond the store's [`StoreBounds`]; the record is not
    /// changed.
    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        durability: Durability,
    ) -> Result<bool, StoreError>;

    /// Stores a task's anchor: opaque bytes by which the next process can resume or cancel its call. `None`
    /// removes the anchor. It survives the end of the process, but not a loss of power. An unknown id is no
    /// error.
    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError>;

    /// Takes over at most `limit` orphans: unfinished records of former processes, and cancelled ones that
    /// still have an anchor. This process owns them from then on, so each is returned once. Each has a new
    /// version: a swap that succeeds proves that the task still has the owner that was loaded with it.
    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError>;

    /// The reading of the clock that the former process stored last. `None` if there is none: the time line
    /// of the records then starts at the wall clock.
    fn stored_clock(&self) -> Option<ClockReading>;

    /// Stores, for the next process, the current time of the records' time line and the offset of the wall
    /// clock. The reading survives a loss of power once a later change that must survive one is stored.
    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError>;

    /// Whether records survive the end of the process.
    fn is_durable(&self) -> bool {
        false
    }

    /// Changes the bounds of the store. Records that exceed the new bounds are kept.
    fn set_bounds(&self, bounds: StoreBounds);

    /// Removes a record; unknown ids are no error.
    async fn remove(&self, id: &TaskId) -> Result<(), StoreError>;

    /// Returns at most `limit` of the records whose [`Record::due_at`] is not after `now`, the longest due
    /// first. Tasks of other processes are among them.
    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError>;

    /// Returns at most `limit` records of one owner, in the order of their [`ListCursor`], beginning after
    /// `after`; fewer only if there are no more. Results may be left out (empty), because lists do not show
    /// them. Paging from the last record of each page returns each record that exists throughout exactly
    /// once, whatever is added or removed meanwhile.
    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError>;

    /// Returns at most `limit` finished (`is_ended`) or unfinished records of all owners with a number less
    /// than `below`, the last inserted first; fewer only if there are no more. Results may be left out as in [`Store::list`]. For operators: reads all
    /// unfinished records, and no more finished ones than requested.
    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError>;

    /// The usage of the store in all and by one principal ([`TaskPrincipal::principal`]), for the quotas.
    /// Answered from memory, so that a quota can be checked under a lock.
    fn usage(&self, principal: &[u8; 16]) -> StoreUsage;

    /// The number of records of each route and status, in no order, without zeros. The cost does not depend
    /// on the number of records.
    async fn census(&self) -> Result<Vec<TaskTally>, StoreError>;

    /// Flushes pending changes and releases the storage. The store must not be used afterwards.
    async fn close(&self) {}
}

/// The failure that a change must survive once it is acknowledged, if the store is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of the process.
    Process,
    /// A loss of power, and the end of the process.
    Machine,
}

/// The id of a process that uses a store. No other process of this store has it, before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(i64);

/// The process that runs the call of a task, and until when; of an ended task, the process that ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOwnership {
    pub owner: ProcessId,
    /// The end of the lease, unless the owner renews it. `None` in a store that one process uses at a time:
    /// its lease has no end, and the next process takes its tasks over ([`Store::take_orphans`]).
    pub lease_until: Option<Timestamp>,
}

/// A task as loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedTask {
    pub version: RecordVersion,
    pub record: Arc<Record>,
    pub ownership: TaskOwnership,
}

/// A record whose [`Record::due_at`] has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTask {
    pub id: TaskId,
    /// Whether the task has ended, so that its record may be removed; otherwise its owner must renew it.
    pub is_ended: bool,
    pub ownership: TaskOwnership,
}

/// A task in the order of insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentTask {
    /// The position in the order.
    pub number: u64,
    pub record: Arc<Record>,
    pub ownership: TaskOwnership,
}

/// A record whose former owner no longer runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanTask {
    pub version: RecordVersion,
    pub record: Arc<Record>,
    /// The bytes by which the call can be resumed or cancelled, if any.
    pub anchor: Option<Bytes>,
}

/// The version of a record, which each change increases by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordVersion(pub u64);

/// The position of a record among those of its owner: by time of creation, then by id. The record may have
/// been removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    pub created: Timestamp,
    pub id: TaskId,
}

/// The usage of a store. Finished tasks count until they are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Tasks of the principal, on all routes.
    pub tasks_of_principal: usize,
    /// Tasks in all.
    pub tasks: usize,
    /// The sum of [`Record::stored_bytes`] of all tasks.
    pub stored_bytes: usize,
    /// The sum of [`Record::stored_bytes`] of the principal's tasks.
    pub stored_bytes_of_principal: usize,
}

/// The number of tasks of one route and status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskTally {
    pub route: Arc<str>,
    /// See [`TaskState::status`](crate::task::TaskState::status).
    pub status: &'static str,
    pub tasks: usize,
}

/// Bounds of a store, in bytes of [`Record::stored_bytes`]. A change that makes a record grow beyond them is
/// refused, except for the bytes that every task may need to report its end
/// ([`StoreBounds::ALWAYS_ADMITTED`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    /// Maximum bytes of all records.
    pub stored_bytes: usize,
    /// Maximum bytes of the records of one principal, so that no principal uses up the store.
    pub stored_bytes_per_principal: usize,
}

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("a task with this id exists already")]
    Exists,
    /// The store is full; with the name of the limit in the configuration, or
    /// [`DISK_SPACE`](Self::DISK_SPACE).
    #[error("the task store is full ({0})")]
    Full(&'static str),
    #[error("the task store does not respond: {0}")]
    Unavailable(String),
}

/// The outcome of an [`update`].
#[derive(Debug)]
pub enum UpdateOutcome {
    /// The event is applied and stored.
    Applied {
        /// The record before the event.
        before: Arc<Record>,
        /// The task as stored.
        after: LoadedTask,
        /// The effects to carry out.
        effects: Vec<TaskEffect>,
    },
    /// The task does not accept the event, and is unchanged.
    Refused(EventRefusal),
    /// There is no record with this id.
    Unknown,
}

/// Applies `event` to the record with this id and stores the result. Tries again as long as another change of
/// the record is stored first.
///
/// # Errors
/// [`StoreError`] if the store fails.
pub async fn update(
    store: &dyn Store,
    id: &TaskId,
    event: &TaskEvent,
    now: Timestamp,
) -> Result<UpdateOutcome, StoreError> {
    // The loop ends: a swap fails only if another change was stored.
    loop {
        let Some(LoadedTask { version, record: before, ownership }) = store.load(id).await? else {
            return Ok(UpdateOutcome::Unknown);
        };
        let (after, effects) = match apply(&before, event.clone(), now) {
            Ok(applied) => applied,
            Err(refusal) => return Ok(UpdateOutcome::Refused(refusal)),
        };
        let after = LoadedTask { version: version.next(), record: Arc::new(after), ownership };
        if store.swap(version, Arc::clone(&after.record), Durability::required_for(event)).await? {
            return Ok(UpdateOutcome::Applied { before, after, effects });
        }
    }
}

// === impl StoreError ===

impl StoreError {
    /// The name of the limit in [`StoreError::Full`] if the disk has no space left, or its quota is
    /// exhausted.
    pub const DISK_SPACE: &str = "free space of store.disk";
}

// === impl Durability ===

impl Durability {
    /// The durability that an event requires. The end of a task must survive a loss of power, because clients
    /// may have seen it and it cannot be repeated. Input requests and responses matter only to the call,
    /// which a loss of power ends.
    pub fn required_for(event: &TaskEvent) -> Self {
        if event.is_end() { Self::Machine } else { Self::Process }
    }
}

// === impl TaskOwnership ===

impl TaskOwnership {
    /// Ownership without an end, in a store that one process uses at a time.
    const fn unlimited(owner: ProcessId) -> Self {
        Self { owner, lease_until: None }
    }

    /// Whether the lease has lapsed, so that no process runs the call any more.
    pub fn has_lapsed(&self, now: Timestamp) -> bool {
        self.lease_until.is_some_and(|end| end <= now)
    }
}

// === impl StoreBounds ===

impl StoreBounds {
    /// No bounds.
    pub const NONE: Self = Self { stored_bytes: usize::MAX, stored_bytes_per_principal: usize::MAX };

    /// Bytes of a record that are admitted even if the store is full, and by which a record may grow when its
    /// task ends: an error that says why a result was not stored must fit. The number of records is bounded
    /// elsewhere.
    pub const ALWAYS_ADMITTED: usize = 1 << 10;

    /// Checks whether `after` may replace a record of `old_bytes` bytes, given the current usage.
    ///
    /// # Errors
    /// [`StoreError::Full`] names the limit.
    fn admit(&self, old_bytes: usize, after: &Record, usage: StoreUsage) -> Result<(), StoreError> {
        let growth = after.stored_bytes().saturating_sub(old_bytes);
        if Self::is_always_admitted(old_bytes, after) {
            return Ok(());
        }
        let of_principal = usage.stored_bytes_of_principal.saturating_add(growth);
        if of_principal > self.stored_bytes_per_principal {
            return Err(StoreError::Full("limits.stored_bytes_per_principal"));
        }
        if usage.stored_bytes.saturating_add(growth) > self.stored_bytes {
            return Err(StoreError::Full("limits.stored_bytes"));
        }
        Ok(())
    }

    /// Whether `after` may replace a record of `old_bytes` bytes, whatever the usage is.
    fn is_always_admitted(old_bytes: usize, after: &Record) -> bool {
        let new_bytes = after.stored_bytes();
        let growth = new_bytes.saturating_sub(old_bytes);
        growth == 0 || (if after.state.is_ended() { growth } else { new_bytes }) <= Self::ALWAYS_ADMITTED
    }
}

// === impl RecordVersion ===

impl RecordVersion {
    /// The version of a record that has not been changed since its insertion.
    pub const FIRST: Self = Self(0);

    /// The version after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

// === impl ListCursor ===

impl ListCursor {
    /// The position of this record.
    pub fn from_record(record: &Record) -> Self {
        Self { created: record.created, id: record.id.clone() }
    }
}
