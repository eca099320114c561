//! Storage of tasks.
//!
//! A store keeps [`Record`]s, one version at a time. It changes none by itself: a caller loads a record,
//! applies an event, and swaps it; if another change was faster, it loads again ([`update`]). Records are
//! shared, not copied: a result of megabytes is in memory once however many read it.
//!
//! A record is owned by the process that inserted it, until another takes it over. A record without a running
//! owner is an orphan: a durable store gives the next process the orphans and their [anchors](Store::anchor),
//! by which calls may be resumed.
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

/// Keeps task records, one version at a time.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Inserts a new record, as [`RecordVersion::FIRST`], owned by this process. Once this returns,
    /// [`Store::load`] finds it, here and in every replica, after a loss of power, too, if the store [is
    /// durable](Store::is_durable).
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the id is taken; the existing record is not changed.
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError>;

    /// As [`Store::insert`], of a record for which room was reserved: the reservation is dropped in the moment from which
    /// [`Store::usage`] counts the record, or with a failure.
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

    /// The record and its version, or `None` where there is none.
    async fn load(&self, id: &TaskId) -> Result<Option<(RecordVersion, Arc<Record>)>, StoreError>;

    /// Replaces the record if its version is still `version`, by the [next](RecordVersion::next); returns
    /// whether it did. A removed record has no version, and stays removed. The anchor of a record that has
    /// ended by itself is removed.
    ///
    /// # Errors
    /// [`StoreError::Full`] where it would grow beyond the store's [`StoreBounds`]; the record is not
    /// changed.
    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError>;

    /// Stores a task's anchor: the bytes by which its call can be resumed or cancelled. `None` removes it.
    /// Survives the process, not a loss of power. Unknown ids are no error.
    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError>;

    /// Takes over at most `limit` orphans: unfinished records of former processes, and cancelled ones that
    /// still have an anchor. They are owned by this process from then on, so each is returned once.
    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError>;

    /// The clock that the former process stored. `None` if there is none: the time line then starts at the wall clock.
    fn kept_clock(&self) -> Option<ClockReading>;

    /// Stores, for the next process, the current time of the records' time line and the offset of the wall clock. It
    /// survives a loss of power with the next change that does.
    async fn keep_clock(&self, reading: ClockReading) -> Result<(), StoreError>;

    /// Whether the records are there for the next process.
    fn is_durable(&self) -> bool {
        false
    }

    /// Changes the bounds; stored records are kept.
    fn set_bounds(&self, bounds: StoreBounds);

    /// Removes a record; unknown ids are no error.
    async fn remove(&self, id: &TaskId) -> Result<(), StoreError>;

    /// At most `limit` of the records whose [`Record::due_at`] is not after `now`, the longest due first.
    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError>;

    /// At most `limit` records of one owner in the order of their [`ListCursor`], after `after`; fewer only
    /// if there are no more. Their results may be left out (empty), because lists show none. Paging from the
    /// last record of each page returns every record once that exists all the while, whatever is added or
    /// removed meanwhile.
    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError>;

    /// At most `limit` finished or unfinished records of all owners, the last inserted first, below number
    /// `below`; fewer only if there are no more. Each has its number in that order; results may be left out
    /// as in [`Store::list`]. For operators: reads all unfinished records, and no more finished ones than
    /// requested.
    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError>;

    /// Usage in all and of one principal ([`TaskPrincipal::principal`]), for the quotas. Answered
    /// from memory, so that a quota can be checked under a lock.
    fn usage(&self, principal: &[u8; 16]) -> StoreUsage;

    /// Number of records of each route and status, in no order, without zeros. The cost does not depend on
    /// the number of records.
    async fn census(&self) -> Result<Vec<TaskTally>, StoreError>;

    /// Flushes pending changes, and releases the storage. The store must not be used afterwards.
    async fn close(&self) {}
}

/// What a change must survive once it is acknowledged, if the store is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of the process.
    Process,
    /// A loss of power, too.
    Machine,
}

/// A record that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTask {
    pub id: TaskId,
    /// Whether it may be removed; otherwise its lease is to be renewed.
    pub is_ended: bool,
}

/// A record of a former process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanTask {
    pub version: RecordVersion,
    pub record: Arc<Record>,
    pub anchor: Option<Bytes>,
}

/// Version of a record; a later change has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordVersion(pub u64);

/// Position of a record among those of its owner: by age, then by id. The record may have been removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    pub created: Timestamp,
    pub id: TaskId,
}

/// Usage of a store. Finished tasks count until they are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Tasks of the principal, on all routes.
    pub tasks_of_principal: usize,
    /// Tasks in all.
    pub tasks: usize,
    /// The sum of [`Record::stored_bytes`].
    pub stored_bytes: usize,
    /// The sum for the principal.
    pub stored_bytes_of_principal: usize,
}

/// Number of tasks of one route and status.
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
    pub stored_bytes: usize,
    /// Bytes of one principal, so that none uses up the store.
    pub stored_bytes_per_principal: usize,
}

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("a task with this id exists already")]
    Exists,
    /// The store is full; with the name of the limit in the configuration, or
    /// [`DISK_SPACE`](Self::DISK_SPACE).
    #[error("the task store has no space for it ({0})")]
    Full(&'static str),
    #[error("the task store does not answer: {0}")]
    Unavailable(String),
}

/// Outcome of an [`update`].
#[derive(Debug)]
pub enum UpdateOutcome {
    /// The event is applied and stored.
    Applied {
        /// The record before the event.
        before: Arc<Record>,
        /// The record as stored, and its version.
        after: Arc<Record>,
        version: RecordVersion,
        /// The effects to carry out.
        effects: Vec<TaskEffect>,
    },
    /// The event changes nothing.
    Refused(EventRefusal),
    /// There is no such record.
    Unknown,
}

/// Applies `event` to the record under `id`, and retries until no other change was faster.
///
/// # Errors
/// [`StoreError`] where the store fails.
pub async fn update(
    store: &dyn Store,
    id: &TaskId,
    event: &TaskEvent,
    now: Timestamp,
) -> Result<UpdateOutcome, StoreError> {
    // The loop ends: a swap fails only if another change was stored.
    loop {
        let Some((version, before)) = store.load(id).await? else {
            return Ok(UpdateOutcome::Unknown);
        };
        let (after, effects) = match apply(&before, event.clone(), now) {
            Ok(applied) => applied,
            Err(refusal) => return Ok(UpdateOutcome::Refused(refusal)),
        };
        let after = Arc::new(after);
        if store.swap(version, Arc::clone(&after), Durability::of(event)).await? {
            return Ok(UpdateOutcome::Applied { before, after, version: version.next(), effects });
        }
    }
}

// === impl StoreError ===

impl StoreError {
    /// The limit where the disk has no space left, or its quota is exhausted.
    pub const DISK_SPACE: &str = "free space of store.disk";
}

// === impl Durability ===

impl Durability {
    /// The durability of an event: the end of a task must survive a loss of power, because it was shown and
    /// cannot be repeated. Input requests and responses matter only to the call, which a loss of power ends.
    pub fn of(event: &TaskEvent) -> Self {
        if event.is_end() { Self::Machine } else { Self::Process }
    }
}

// === impl StoreBounds ===

impl StoreBounds {
    /// No bounds.
    pub const NONE: Self = Self { stored_bytes: usize::MAX, stored_bytes_per_principal: usize::MAX };

    /// A record of at most so many bytes is always admitted, and a record may grow by as many when it ends:
    /// an error that says why a result was not stored must fit. The number of records is bounded elsewhere.
    pub const ALWAYS_ADMITTED: usize = 1 << 10;

    /// Whether `after` may replace a record of `was` bytes, given the current usage.
    ///
    /// # Errors
    /// [`StoreError::Full`] names the limit.
    fn admit(&self, was: usize, after: &Record, kept: StoreUsage) -> Result<(), StoreError> {
        let grows = after.stored_bytes().saturating_sub(was);
        if Self::is_always_admitted(was, after) {
            return Ok(());
        }
        let of_principal = kept.stored_bytes_of_principal.saturating_add(grows);
        if of_principal > self.stored_bytes_per_principal {
            return Err(StoreError::Full("limits.stored_bytes_per_principal"));
        }
        if kept.stored_bytes.saturating_add(grows) > self.stored_bytes {
            return Err(StoreError::Full("limits.stored_bytes"));
        }
        Ok(())
    }

    /// Whether `after` may replace a record of `was` bytes whatever the usage is.
    fn is_always_admitted(was: usize, after: &Record) -> bool {
        let is = after.stored_bytes();
        let grows = is.saturating_sub(was);
        grows == 0 || (if after.state.is_ended() { grows } else { is }) <= Self::ALWAYS_ADMITTED
    }
}

// === impl RecordVersion ===

impl RecordVersion {
    /// The version of an unchanged record.
    pub const FIRST: Self = Self(0);

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

// === impl ListCursor ===

impl ListCursor {
    pub fn of(record: &Record) -> Self {
        Self { created: record.created, id: record.id.clone() }
    }
}
