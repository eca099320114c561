//! Where tasks are kept.
//!
//! A store keeps [`Record`]s, one version at a time. It changes none by itself: who wants a change
//! loads, applies an event, and swaps; a lost race means loading again ([`update`]). Records are
//! shared, not copied: a result of megabytes is kept once however many ask for it.
//!
//! A record is held by the process that inserted it, until another takes it over. What no process works at any
//! more is an orphan: a store that outlives its process gives the next one what it left behind, and its
//! [anchor](Store::anchor), by which a call may be taken up again.
//!
//! What every store promises is written as tests (`tests/it/stores/mod.rs`), and each store is asked
//! the same questions. [`MemoryStore`] keeps tasks in this process, [`DiskStore`] in a folder.

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
    /// Keeps a new record, as [`RecordVersion::FIRST`], held by this process. Once this returns, [`Store::load`] finds
    /// it, here and in every replica, and does so after a loss of power if the store [outlives](Store::is_durable)
    /// its process.
    ///
    /// # Errors
    /// [`StoreError::Exists`] where the id is taken; the record there is left alone.
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError>;

    /// The record and its version, or `Missing` where there is none.
    async fn load(&self, id: &TaskId) -> Result<Option<(RecordVersion, Arc<Record>)>, StoreError>;

    /// Keeps `record` where the kept version is still `version`, as the [next](RecordVersion::next); says whether
    /// it was. A record that was removed meanwhile has no version, and stays removed. What has ended by
    /// itself needs its anchor no more.
    ///
    /// # Errors
    /// [`StoreError::Full`] where it would grow beyond the store's [`StoreBounds`]; the record stays as it was.
    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError>;

    /// Keeps by what the call of a task can be taken up again, or told that it is cancelled: bytes of whoever
    /// holds it. `Missing` where there is nothing of the kind, or no need of it any more. Survives the process,
    /// not a loss of power. Unknown ids are no error.
    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError>;

    /// At most `limit` of the records that a process held which is gone, and that somebody must see to: those
    /// that have not ended, and those that were cancelled and still have an anchor. They are this process's
    /// from then on, so each is given once.
    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError>;

    /// What the process before had kept of its clock; `Missing` where none has: its time line and the wall clock agree then.
    fn kept_clock(&self) -> Option<ClockReading>;

    /// Keeps for the next process where the time line of the records is, and how far the wall clock is ahead. Whatever is
    /// kept later survives a loss of power only with this.
    async fn keep_clock(&self, reading: ClockReading) -> Result<(), StoreError>;

    /// Whether what it keeps is there for the next process.
    fn is_durable(&self) -> bool {
        false
    }

    /// From now on it keeps no more than this; what is kept already stays.
    fn set_bounds(&self, bounds: StoreBounds);

    /// Forgets a record; unknown ids are no error.
    async fn remove(&self, id: &TaskId) -> Result<(), StoreError>;

    /// At most `limit` of the records whose [`Record::due`] is not after `now`, the longest due first.
    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError>;

    /// At most `limit` records of one owner in the order of their [`ListCursor`], from behind `after` on, whose
    /// results may be left out (empty), as lists show none;
    /// fewer only where there are no more. Going on behind the last of one page, page by page, meets
    /// every record once that is there all the while, whatever comes and goes meanwhile.
    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError>;

    /// At most `limit` records of all owners, of those that have ended or of those that have not, the last inserted
    /// first, from below `below` on, each with its number in that order, whose results may be left out as in
    /// [`Store::list`]; fewer only where there are no more. For operators: those that have not ended are all looked
    /// at, of the others no more than are asked for.
    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError>;

    /// How much is kept, in all and for one principal ([`TaskPrincipal::principal`](crate::task::TaskPrincipal)), for
    /// the quotas. Answered from memory, so that a quota can be checked under a lock.
    fn usage(&self, principal: &[u8; 16]) -> StoreUsage;

    /// How many records there are of each route and status, in no order; none of which there are none. Costs the
    /// same however many that are.
    async fn census(&self) -> Result<Vec<TaskTally>, StoreError>;

    /// Writes what is not written yet, and lets go of what it is kept in. Nothing is asked of it afterwards.
    async fn close(&self) {}
}

/// What a change must survive once it is acknowledged, where the store outlives its process.
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
    /// It may be forgotten; else it is to be renewed.
    pub is_ended: bool,
}

/// A record that a process held which is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanTask {
    pub version: RecordVersion,
    pub record: Arc<Record>,
    pub anchor: Option<Bytes>,
}

/// Counts the changes of one record, so that the later of two is known by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordVersion(pub u64);

/// Where a record stands among those of its owner: by age, then by id. There may be no record there
/// any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    pub created: Timestamp,
    pub id: TaskId,
}

/// How much a store keeps. Ended tasks count until they are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Tasks of the principal that was asked about, on all routes.
    pub tasks_of_principal: usize,
    /// Tasks in all.
    pub tasks: usize,
    /// The sum of [`Record::stored_bytes`].
    pub stored_bytes: usize,
    /// The same for the principal that was asked about.
    pub stored_bytes_of_principal: usize,
}

/// How many tasks of one route and status are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskTally {
    pub route: Arc<str>,
    /// See [`State::status`](crate::task::State::status).
    pub status: &'static str,
    pub tasks: usize,
}

/// How much a store keeps at most, in bytes of [`Record::stored_bytes`]. A change that makes a record grow
/// beyond is refused, except for what every task may need to say how it ended ([`StoreBounds::ALWAYS_ADMITTED`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    pub stored_bytes: usize,
    /// Of one principal, so that none takes the room of all.
    pub stored_bytes_per_principal: usize,
}

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("a task with this id exists already")]
    Exists,
    /// There is no room for what was to be kept; the name of the limit in the configuration, or
    /// [`DISK_SPACE`](Self::DISK_SPACE).
    #[error("there is no room for it ({0})")]
    Full(&'static str),
    #[error("the task store does not answer: {0}")]
    Unavailable(String),
}

/// What became of an [`update`].
#[derive(Debug)]
pub enum UpdateOutcome {
    /// The event is applied and stored.
    Applied {
        /// The record as it was when the event met it.
        before: Arc<Record>,
        /// The record as it is kept now, and as which version.
        after: Arc<Record>,
        version: RecordVersion,
        /// What is to be done about it.
        effects: Vec<TaskEffect>,
    },
    /// The event changes nothing.
    Refused(EventRefusal),
    /// There is no such record.
    Unknown,
}

/// Applies `event` to the record under `id`, again and again until no one else was faster.
///
/// # Errors
/// [`StoreError`] where the store fails.
pub async fn update(
    store: &dyn Store,
    id: &TaskId,
    event: &TaskEvent,
    now: Timestamp,
) -> Result<UpdateOutcome, StoreError> {
    // Ends: a race is only lost to a change that was kept.
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
    /// The limit that is met where the disk has no space left, or its quota is used up.
    pub const DISK_SPACE: &str = "free space of store.disk";
}

// === impl Flush ===

impl Durability {
    /// What must survive of what happened to a task: its end does, as it was shown, and cannot be made to happen
    /// again. What a task asks, or was answered, is of use to nobody but the call, which a loss of power ends.
    pub fn of(event: &TaskEvent) -> Self {
        if event.is_end() { Self::Machine } else { Self::Process }
    }
}

// === impl Bounds ===

impl StoreBounds {
    /// No bounds.
    pub const NONE: Self = Self { stored_bytes: usize::MAX, stored_bytes_per_principal: usize::MAX };

    /// A record of so many bytes is kept however full the store is, and one may grow by as many when it
    /// ends: an error that says why a result was not kept must always fit. How many records there are is
    /// bounded elsewhere.
    pub const ALWAYS_ADMITTED: usize = 1 << 10;

    /// Whether `after` may take the place of a record of `was` bytes, as so much is kept.
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

    /// Whether `after` may take the place of a record of `was` bytes however much is kept.
    fn is_always_admitted(was: usize, after: &Record) -> bool {
        let is = after.stored_bytes();
        let grows = is.saturating_sub(was);
        grows == 0 || (if after.state.is_ended() { grows } else { is }) <= Self::ALWAYS_ADMITTED
    }
}

// === impl Version ===

impl RecordVersion {
    /// That of a record nobody has changed.
    pub const FIRST: Self = Self(0);

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

// === impl Place ===

impl ListCursor {
    pub fn of(record: &Record) -> Self {
        Self { created: record.created, id: record.id.clone() }
    }
}
