//! A store that fails now and then: its folder is moved away, or the store refuses every operation.

use crate::support::faulty_store::{EVERYTHING, FaultyStore};
use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::{ClockReading, Timestamp},
    store::{
        DueTask, Durability, ListCursor, LoadedTask, OrphanTask, ProcessId, RecentTask, RecordVersion, Store,
        StoreBounds, StoreError, StoreUsage, TaskTally,
    },
    task::{Record, TaskId, TaskPrincipal},
};

use std::{
    fs, mem,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// It is in trouble while every third thing is asked for; what was refused then is asked for again.
pub(super) struct Troubled {
    inner: Arc<dyn Store>,
    trouble: Trouble,
    asked: AtomicUsize,
    /// Whether a failure was injected.
    is_in_trouble: Mutex<bool>,
}

/// What makes a store fail.
pub(super) enum Trouble {
    /// The folder is away.
    Away(PathBuf),
    Refused(Arc<FaultyStore>),
}

/// Asks again for what was refused.
macro_rules! asked {
    ($self:ident, $answer:expr) => {{
        let mut troubles = $self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        loop {
            let made = if mem::take(&mut troubles) { $self.make() } else { None };
            let answer = $answer.await;
            drop(made);
            match answer {
                Err(StoreError::Unavailable(words)) => {
                    assert!(words.contains(&$self.trouble.words()), "it says why: {words}");
                    tokio::task::yield_now().await;
                }
                answer => return answer,
            }
        }
    }};
}

// === impl Troubled ===

impl Troubled {
    pub(super) fn new(inner: Arc<dyn Store>, trouble: Trouble) -> Self {
        Self { inner, trouble, asked: AtomicUsize::new(0), is_in_trouble: Mutex::default() }
    }

    /// Makes trouble until what is given is dropped; `Missing` where there is some already.
    fn make(&self) -> Option<Made<'_>> {
        let mut is_in_trouble = self.is_in_trouble.lock().expect("unharmed");
        if mem::replace(&mut *is_in_trouble, true) {
            return None;
        }
        match &self.trouble {
            Trouble::Away(path) => fs::rename(path, path.with_extension("away")).expect("moved"),
            Trouble::Refused(store) => store.fails(&EVERYTHING),
        }
        Some(Made(self))
    }
}

// === impl Trouble ===

impl Trouble {
    /// What is said then.
    fn words(&self) -> String {
        match self {
            Self::Away(path) => path.display().to_string(),
            Self::Refused(_) => "the test says so".to_owned(),
        }
    }
}

/// There is trouble.
struct Made<'a>(&'a Troubled);

// === impl Made ===

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let mut is_in_trouble = self.0.is_in_trouble.lock().expect("unharmed");
        match &self.0.trouble {
            Trouble::Away(path) => fs::rename(path.with_extension("away"), path).expect("moved back"),
            Trouble::Refused(store) => store.works(),
        }
        *is_in_trouble = false;
    }
}

#[async_trait]
impl Store for Troubled {
    fn process(&self) -> ProcessId {
        self.inner.process()
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        asked!(self, self.inner.insert(Arc::clone(&record)))
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        asked!(self, self.inner.load(id))
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError> {
        asked!(self, self.inner.swap(version, Arc::clone(&record), flush))
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        asked!(self, self.inner.set_anchor(id, anchor.clone()))
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.inner.stored_clock()
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        asked!(self, self.inner.store_clock(reading))
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        asked!(self, self.inner.take_orphans(limit))
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.inner.set_bounds(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        asked!(self, self.inner.remove(id))
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        asked!(self, self.inner.due(now, limit))
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        asked!(self, self.inner.list(owner, after, limit))
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        asked!(self, self.inner.recent(is_ended, below, limit))
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        asked!(self, self.inner.census())
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
