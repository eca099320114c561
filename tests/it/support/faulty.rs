//! A store that fails when a test says so.
//!
//! It keeps tasks in another store, and refuses the operations it is told to. A refused one has done nothing. It may
//! also take its time for a new task, or halt in the middle of an operation, and do nothing ever after: so it looks
//! to a process that is killed there.

use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    store::{Bounds, Due, Flush, Memory, Orphan, Place, Store, StoreError, Tally, Usage, Version},
    task::{Owner, Record, TaskId},
};
use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Barrier, watch},
    time::{sleep, timeout},
};

/// The store.
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    /// How long a new task takes.
    takes: Duration,
    /// New tasks that are being kept.
    busy: AtomicUsize,
    failing: Mutex<BTreeSet<Op>>,
    /// Every operation that was refused, in its order.
    refused: watch::Sender<Vec<Op>>,
    /// Where it halts, and how many operations of that kind are still to come before.
    halt: Mutex<Option<(Halt, usize)>>,
    has_halted: watch::Sender<bool>,
    /// No change is made before so many are asked for.
    crowd: Option<Barrier>,
}

/// Where a store halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Halt {
    pub(crate) op: Op,
    /// Counted from one.
    pub(crate) time: usize,
    /// It has been done, and nobody is told so.
    pub(crate) is_done: bool,
}

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    Insert,
    Load,
    Swap,
    Anchor,
    Orphans,
    Remove,
    Due,
    List,
    Census,
}

pub(crate) const EVERYTHING: [Op; 9] =
    [Op::Insert, Op::Load, Op::Swap, Op::Anchor, Op::Orphans, Op::Remove, Op::Due, Op::List, Op::Census];

// === impl Faulty ===

impl Faulty {
    /// One that works, so far.
    pub(crate) fn new() -> Arc<Self> {
        Self::taking(Duration::ZERO)
    }

    /// One that takes so long to keep a new task.
    pub(crate) fn taking(takes: Duration) -> Arc<Self> {
        Arc::new(Self::of(Arc::new(Memory::default()), takes))
    }

    /// One that works so far, and keeps tasks there.
    pub(crate) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self::of(inner, Duration::ZERO))
    }

    /// One that keeps tasks there, and halts so.
    pub(crate) fn halting(inner: Memory, halt: Halt) -> Arc<Self> {
        let store = Self::around(Arc::new(inner));
        store.halts(halt);
        store
    }

    /// One of these records, which makes no change before so many are asked for at once.
    pub(crate) fn awaiting(inner: Memory, changes: usize) -> Arc<Self> {
        Arc::new(Self { crowd: Some(Barrier::new(changes)), ..Self::of(Arc::new(inner), Duration::ZERO) })
    }

    fn of(inner: Arc<dyn Store>, takes: Duration) -> Self {
        Self {
            inner,
            takes,
            busy: AtomicUsize::new(0),
            failing: Mutex::default(),
            refused: watch::Sender::new(Vec::new()),
            halt: Mutex::default(),
            has_halted: watch::Sender::new(false),
            crowd: None,
        }
    }

    /// It halts there, counted from now.
    pub(crate) fn halts(&self, halt: Halt) {
        *self.halt.lock().unwrap_or_else(PoisonError::into_inner) = Some((halt, halt.time));
    }

    /// It halts nowhere, if it has not.
    pub(crate) fn goes_on(&self) {
        *self.halt.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Resolves when it has halted.
    pub(crate) async fn halted(&self) {
        let _ = self.has_halted.subscribe().wait_for(|halted| *halted).await;
    }

    /// Goes on unless it is to halt here, or has halted.
    async fn passes(&self, op: Op, is_done: bool) {
        if *self.has_halted.borrow() {
            return pending().await;
        }
        let halts = match &mut *self.halt.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((halt, left)) if halt.op == op && halt.is_done == is_done => {
                *left -= 1;
                *left == 0
            }
            _ => false,
        };
        if halts {
            self.has_halted.send_replace(true);
            pending().await
        }
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
        self.passes(Op::Insert, false).await;
        if self.takes > Duration::ZERO {
            self.busy.fetch_add(1, Ordering::Relaxed);
            sleep(self.takes).await;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        let done = self.inner.insert(record).await;
        self.passes(Op::Insert, true).await;
        done
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        self.ask(Op::Load)?;
        self.inner.load(id).await
    }

    async fn swap(&self, version: Version, record: Arc<Record>, flush: Flush) -> Result<bool, StoreError> {
        self.ask(Op::Swap)?;
        if let Some(crowd) = &self.crowd {
            crowd.wait().await;
        }
        self.passes(Op::Swap, false).await;
        let done = self.inner.swap(version, record, flush).await;
        self.passes(Op::Swap, true).await;
        done
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.ask(Op::Anchor)?;
        self.passes(Op::Anchor, false).await;
        let done = self.inner.anchor(id, anchor).await;
        self.passes(Op::Anchor, true).await;
        done
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        self.ask(Op::Orphans)?;
        self.inner.orphans(limit).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.ask(Op::Remove)?;
        self.passes(Op::Remove, false).await;
        let done = self.inner.remove(id).await;
        self.passes(Op::Remove, true).await;
        done
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
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

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        self.ask(Op::List)?;
        self.inner.recent(is_ended, below, limit).await
    }

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        self.ask(Op::Census)?;
        self.inner.census().await
    }

    fn outlives(&self) -> bool {
        self.inner.outlives()
    }

    fn bound_by(&self, bounds: Bounds) {
        self.inner.bound_by(bounds);
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
