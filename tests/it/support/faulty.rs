//! A store that fails when a test says so.
//!
//! It keeps tasks in memory, and refuses the operations it is told to. A refused one has done nothing. It may
//! also take its time for a new task.

use async_trait::async_trait;
use deferral::internals::{
    protocol::Timestamp,
    store::{Memory, Place, Store, StoreError, Usage, Version},
    task::{Owner, Record, TaskId},
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// The store.
pub(crate) struct Faulty {
    inner: Memory,
    /// How long a new task takes.
    takes: Duration,
    /// New tasks that are being kept.
    busy: AtomicUsize,
    failing: Mutex<BTreeSet<Op>>,
    /// Every operation that was refused, in its order.
    refused: watch::Sender<Vec<Op>>,
}

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    Insert,
    Load,
    Swap,
    Remove,
    Due,
    List,
    Usage,
}

pub(crate) const EVERYTHING: [Op; 7] =
    [Op::Insert, Op::Load, Op::Swap, Op::Remove, Op::Due, Op::List, Op::Usage];

// === impl Faulty ===

impl Faulty {
    /// One that works, so far.
    pub(crate) fn new() -> Arc<Self> {
        Self::taking(Duration::ZERO)
    }

    /// One that takes so long to keep a new task.
    pub(crate) fn taking(takes: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner: Memory::default(),
            takes,
            busy: AtomicUsize::new(0),
            failing: Mutex::default(),
            refused: watch::Sender::new(Vec::new()),
        })
    }

    /// Whether a new task is being kept.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// From now on these fail, and nothing else.
    pub(crate) fn fails(&self, ops: &[Op]) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = ops.iter().copied().collect();
    }

    /// From now on nothing fails.
    pub(crate) fn works(&self) {
        self.fails(&[]);
    }

    /// Waits until an operation of this kind has been refused.
    pub(crate) async fn refused(&self, op: Op) {
        let mut refused = self.refused.subscribe();
        let seen = refused.wait_for(|refused| refused.contains(&op));
        timeout(Duration::from_secs(10), seen).await.expect("it is asked").expect("the store is there");
    }

    fn ask(&self, op: Op) -> Result<(), StoreError> {
        if !self.failing.lock().unwrap_or_else(PoisonError::into_inner).contains(&op) {
            return Ok(());
        }
        self.refused.send_modify(|refused| refused.push(op));
        Err(StoreError::Unavailable("the test says so".to_owned()))
    }
}

#[async_trait]
impl Store for Faulty {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.ask(Op::Insert)?;
        if self.takes > Duration::ZERO {
            self.busy.fetch_add(1, Ordering::Relaxed);
            sleep(self.takes).await;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        self.inner.insert(record).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        self.ask(Op::Load)?;
        self.inner.load(id).await
    }

    async fn swap(&self, version: Version, record: Arc<Record>) -> Result<bool, StoreError> {
        self.ask(Op::Swap)?;
        self.inner.swap(version, record).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.ask(Op::Remove)?;
        self.inner.remove(id).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, StoreError> {
        self.ask(Op::Due)?;
        self.inner.due(now, limit).await
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.ask(Op::List)?;
        self.inner.list(owner, after, limit).await
    }

    async fn usage(&self, principal: &[u8; 16]) -> Result<Usage, StoreError> {
        self.ask(Op::Usage)?;
        self.inner.usage(principal).await
    }
}
