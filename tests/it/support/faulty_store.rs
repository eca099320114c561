//! A store that fails on request.
//!
//! It keeps tasks in another store, and refuses the operations it is told to. A refused one has done nothing. It may
//! also take its time for a new task, or halt in the middle of an operation, and do nothing ever after: so it looks
//! to a process that is killed there. It may stall: operations stay pending until it goes on. And it may yield once
//! before and once behind each operation, as a store on a disk does, so that a request can be dropped there.

use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::{ClockReading, Timestamp},
    store::{
        DueTask, Durability, ListCursor, LoadedTask, MemoryStore, OrphanTask, ProcessId, RecentTask,
        RecordVersion, Store, StoreBounds, StoreError, StoreUsage, TaskOwnership, TaskTally,
    },
    task::{Record, TaskId, TaskPrincipal},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Barrier, watch},
    task::yield_now,
    time::{sleep, timeout},
};

/// The store.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    /// How long a new task takes.
    takes: Duration,
    /// New tasks that are being kept.
    busy: AtomicUsize,
    /// With the limit that has no room, where it is full.
    failing: Mutex<BTreeMap<Op, Option<&'static str>>>,
    /// Operations that stay pending.
    stalled: watch::Sender<BTreeSet<Op>>,
    yields: AtomicBool,
    /// Every operation that was refused, in its order.
    refused: watch::Sender<Vec<Op>>,
    /// Where it halts, and how many operations of that kind are still to come before.
    halt: Mutex<Option<(Halt, usize)>>,
    has_halted: watch::Sender<bool>,
    /// No change is made before so many are asked for.
    crowd: Option<Barrier>,
    /// The ownership of every task, in place of what the other store says.
    ownership: Mutex<Option<TaskOwnership>>,
}

/// Where a store halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Halt {
    pub(crate) op: Op,
    /// Counted from one.
    pub(crate) time: usize,
    /// The operation succeeded, and its caller gets an error.
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
    KeepClock,
}

/// Operations that requests wait for come first.
pub(crate) const EVERYTHING: [Op; 10] = [
    Op::Insert,
    Op::Load,
    Op::Swap,
    Op::Anchor,
    Op::Orphans,
    Op::Remove,
    Op::Due,
    Op::List,
    Op::Census,
    Op::KeepClock,
];

// === impl FaultyStore ===

impl FaultyStore {
    /// One that works, so far.
    pub(crate) fn new() -> Arc<Self> {
        Self::taking(Duration::ZERO)
    }

    /// One that takes so long to keep a new task.
    pub(crate) fn taking(takes: Duration) -> Arc<Self> {
        Arc::new(Self::of(Arc::new(MemoryStore::default()), takes))
    }

    /// One that works so far, and keeps tasks there.
    pub(crate) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self::of(inner, Duration::ZERO))
    }

    /// One that keeps tasks there, and halts so.
    pub(crate) fn halting(inner: MemoryStore, halt: Halt) -> Arc<Self> {
        let store = Self::around(Arc::new(inner));
        store.halts(halt);
        store
    }

    /// One of these records, which makes no change before so many are asked for at once.
    pub(crate) fn awaiting(inner: MemoryStore, changes: usize) -> Arc<Self> {
        Arc::new(Self { crowd: Some(Barrier::new(changes)), ..Self::of(Arc::new(inner), Duration::ZERO) })
    }

    fn of(inner: Arc<dyn Store>, takes: Duration) -> Self {
        Self {
            inner,
            takes,
            busy: AtomicUsize::new(0),
            failing: Mutex::default(),
            stalled: watch::Sender::default(),
            yields: AtomicBool::new(false),
            refused: watch::Sender::new(Vec::new()),
            halt: Mutex::default(),
            has_halted: watch::Sender::new(false),
            crowd: None,
            ownership: Mutex::default(),
        }
    }

    /// Every task has this owner and this lease.
    pub(crate) fn owned_as(&self, ownership: TaskOwnership) {
        *self.ownership.lock().unwrap_or_else(PoisonError::into_inner) = Some(ownership);
    }

    /// The ownership that is reported in place of this one.
    fn reported(&self, ownership: TaskOwnership) -> TaskOwnership {
        self.ownership.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(ownership)
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

    /// From now on each operation yields once before it is done, and once behind that.
    pub(crate) fn yields(&self) {
        self.yields.store(true, Ordering::Relaxed);
    }

    /// From now on these stay pending, and no others do.
    pub(crate) fn stalls(&self, ops: &[Op]) {
        self.stalled.send_replace(ops.iter().copied().collect());
    }

    async fn may_yield(&self) {
        if self.yields.load(Ordering::Relaxed) {
            yield_now().await;
        }
    }

    /// Before an operation is done.
    async fn begins(&self, op: Op) -> Result<(), StoreError> {
        self.may_yield().await;
        if self.stalled.borrow().contains(&op) {
            let _ = self.stalled.subscribe().wait_for(|stalled| !stalled.contains(&op)).await;
        }
        self.ask(op)
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
        self.fails_with(ops, None);
    }

    /// From now on these find no room, which this limit bounds, and nothing else fails.
    pub(crate) fn is_full(&self, ops: &[Op], limit: &'static str) {
        self.fails_with(ops, Some(limit));
    }

    fn fails_with(&self, ops: &[Op], limit: Option<&'static str>) {
        let failing = ops.iter().map(|op| (*op, limit)).collect();
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failing;
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
        let limit = match self.failing.lock().unwrap_or_else(PoisonError::into_inner).get(&op) {
            Some(limit) => *limit,
            None => return Ok(()),
        };
        self.refused.send_modify(|refused| refused.push(op));
        Err(match limit {
            Some(limit) => StoreError::Full(limit),
            None => StoreError::Unavailable("the test says so".to_owned()),
        })
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn process(&self) -> ProcessId {
        self.inner.process()
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.insert_reserved(record, Box::new(())).await
    }

    async fn insert_reserved(
        &self,
        record: Arc<Record>,
        reservation: Box<dyn Send>,
    ) -> Result<(), StoreError> {
        self.begins(Op::Insert).await?;
        self.passes(Op::Insert, false).await;
        if self.takes > Duration::ZERO {
            self.busy.fetch_add(1, Ordering::Relaxed);
            sleep(self.takes).await;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        let done = self.inner.insert_reserved(record, reservation).await;
        self.passes(Op::Insert, true).await;
        self.may_yield().await;
        done
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        self.begins(Op::Load).await?;
        let done = self.inner.load(id).await;
        self.may_yield().await;
        done.map(|found| found.map(|task| LoadedTask { ownership: self.reported(task.ownership), ..task }))
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        flush: Durability,
    ) -> Result<bool, StoreError> {
        self.begins(Op::Swap).await?;
        if let Some(crowd) = &self.crowd {
            crowd.wait().await;
        }
        self.passes(Op::Swap, false).await;
        let done = self.inner.swap(version, record, flush).await;
        self.passes(Op::Swap, true).await;
        self.may_yield().await;
        done
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.begins(Op::Anchor).await?;
        self.passes(Op::Anchor, false).await;
        let done = self.inner.set_anchor(id, anchor).await;
        self.passes(Op::Anchor, true).await;
        self.may_yield().await;
        done
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        self.begins(Op::Orphans).await?;
        let done = self.inner.take_orphans(limit).await;
        self.may_yield().await;
        done
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.begins(Op::Remove).await?;
        self.passes(Op::Remove, false).await;
        let done = self.inner.remove(id).await;
        self.passes(Op::Remove, true).await;
        self.may_yield().await;
        done
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        self.begins(Op::Due).await?;
        let done = self.inner.due(now, limit).await;
        self.may_yield().await;
        let reported = |due: DueTask| DueTask { ownership: self.reported(due.ownership), ..due };
        done.map(|due| due.into_iter().map(reported).collect())
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.begins(Op::List).await?;
        let done = self.inner.list(owner, after, limit).await;
        self.may_yield().await;
        done
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        self.begins(Op::List).await?;
        let done = self.inner.recent(is_ended, below, limit).await;
        self.may_yield().await;
        done
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        self.begins(Op::Census).await?;
        let done = self.inner.census().await;
        self.may_yield().await;
        done
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.inner.stored_clock()
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        self.begins(Op::KeepClock).await?;
        // A halted store does nothing.
        self.passes(Op::KeepClock, false).await;
        let done = self.inner.store_clock(reading).await;
        self.may_yield().await;
        done
    }

    fn is_durable(&self) -> bool {
        self.inner.is_durable()
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.inner.set_bounds(bounds);
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
