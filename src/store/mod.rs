//! Where tasks are kept.
//!
//! A store keeps [`Record`]s, one version at a time. It changes none by itself: who wants a change
//! loads, applies an event, and swaps; a lost race means loading again ([`update`]).

use crate::{
    protocol::Timestamp,
    task::{Effect, Event, Record, Refusal, TaskId, apply},
};
use async_trait::async_trait;

mod memory;
pub use memory::Memory;

/// Keeps task records, one version at a time.
///
/// What every store promises is written as tests (`tests/it/stores.rs`), and each store is asked
/// the same questions.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Keeps a new record. Once this returns, [`Store::load`] finds it, here and in every replica.
    async fn insert(&self, record: Record) -> Result<(), StoreError>;

    /// The record and its version, or `None` where there is none.
    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Record)>, StoreError>;

    /// Keeps `record` where the kept version is still `version`; says whether it was.
    async fn swap(&self, version: Version, record: Record) -> Result<bool, StoreError>;

    /// Forgets a record; unknown ids are no error.
    async fn remove(&self, id: &TaskId) -> Result<(), StoreError>;

    /// At most `limit` ids of records whose [`Record::due`] is not after `now`, the longest due first.
    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, StoreError>;
}

/// Counts the changes of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("a task with this id exists already")]
    Exists,
    #[error("the task store does not answer: {0}")]
    Unavailable(String),
}

/// What became of an [`update`].
#[derive(Debug)]
pub enum Updated {
    /// The record as it is kept now, and what is to be done about it.
    Done(Record, Vec<Effect>),
    /// The event changes nothing.
    Refused(Refusal),
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
    event: &Event,
    now: Timestamp,
) -> Result<Updated, StoreError> {
    loop {
        let Some((version, record)) = store.load(id).await? else {
            return Ok(Updated::Unknown);
        };
        let (next, effects) = match apply(&record, event.clone(), now) {
            Ok(applied) => applied,
            Err(refusal) => return Ok(Updated::Refused(refusal)),
        };
        if store.swap(version, next.clone()).await? {
            return Ok(Updated::Done(next, effects));
        }
    }
}
