//! What is kept of the tasks of all routes: their records, within quotas, for as long as they are to be found.
//!
//! Whoever learns what has become of a task has it kept here, wherever its call is held. A store that fails
//! is said so in the log, once a minute while that lasts, and whoever asked is told by the type of what they get:
//! what was not kept is neither shown nor acknowledged.

use super::{
    DeliveryCommit,
    anchor::{AnchorSeal, TaskAnchor},
    fetch_metrics::FetchMetrics,
    persist::NO_SPACE_EVENT_BYTES,
    principal_limits::PrincipalLimits,
    reservations::{Reservation, Reservations},
    store_clock::KeptClock,
    store_health::StoreHealth,
    task_watchers::TaskWatchers,
};
use crate::{
    dialect::Principal,
    policy::TaskQuotas,
    protocol::{ClockReading, ErrorObject, code},
    runtime::{Clock, DrainWatch, SwapCell},
    store::{
        self, DueTask, ListCursor, OrphanTask, RecordVersion, Store, StoreBounds, StoreError, StoreSecret,
        StoreUsage, TaskTally, UpdateOutcome,
    },
    task::{Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskState},
    telemetry::{QuotaExceeded, TaskCreated, TaskEnd, TaskTransition},
};
use bytes::Bytes;
use dashmap::DashMap;
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// The tasks of all routes, as they are kept.
pub struct TaskLedger {
    pub(super) store: Arc<dyn Store>,
    pub(super) kept_clock: KeptClock,
    /// Where the store outlives the process: seals what a call can be taken up with.
    seal: Option<AnchorSeal>,
    health: StoreHealth,
    quotas: SwapCell<TaskQuotas>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: SwapCell<PrincipalLimits>,
    pub(super) watchers: Arc<TaskWatchers>,
    /// The tasks whose calls are held in this process. Sharded.
    leased: DashMap<TaskId, LeasedTask>,
    /// Room for calls that wait for answers of their client, and for tasks that are being stored.
    reservations: Arc<Reservations>,
    /// Changes that requests made, and that go on when their request is dropped.
    changes: TaskTracker,
    /// Bytes of results that a failing store has not taken.
    unstored_bytes: AtomicUsize,
    /// Tasks that have ended, and nobody has fetched how: a proxy that stops waits for that, unless the next
    /// process has them, too. Its size is bounded with the number of tasks.
    unfetched: DashMap<TaskId, ()>,
    fetch_metrics: FetchMetrics,
    /// Told whenever there is one less of them.
    fetched: Notify,
    /// Tasks that have been made.
    made: AtomicUsize,
    /// Tasks that have been left to the next process.
    released: AtomicUsize,
    /// Tasks of a former process whose callers are waited for: nobody works at them meanwhile.
    pending: AtomicUsize,
}

/// A task of a former process whose caller is waited for.
pub(super) struct PendingTaskGuard(Arc<TaskLedger>);

/// What is known of a task whose call is held here.
struct LeasedTask {
    /// Its record as it was last kept: while the store does not answer, this does.
    version: RecordVersion,
    record: Arc<Record>,
    /// Something of it is not kept yet, because the store did not take it.
    has_unstored: bool,
}

/// A task whose call is held in this process: it is renewed while it works. Dropped, it is held by nobody,
/// and ends if it has not.
pub struct TaskLease {
    pub(super) ledger: Arc<TaskLedger>,
    pub(super) id: TaskId,
    /// The task has been counted as one ([`TaskLease::begin`]).
    is_counted: bool,
}

/// Bytes that wait for a store that fails; given back when dropped.
pub(super) struct UnstoredBytes {
    ledger: Arc<TaskLedger>,
    bytes: usize,
}

/// Why a call cannot be held for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskAdmissionError {
    /// The name of the limit in the configuration.
    #[error("no room for one more task; the limit is {0}")]
    Full(&'static str),
    #[error("the task store does not answer; try again")]
    StoreFailed,
}

/// The status message of a task whose store does not take what has become of it.
const WAITS_FOR_STORE: &str = "the call has gone on, which cannot be shown before the task store takes it";

/// Why a task failed whose call no process holds any more.
const LOST_MESSAGE: &str = "the proxy that had made the call is gone, or lost hold of it; the call may have run, and its outcome is unknown";

// === impl Ledger ===

impl TaskLedger {
    /// `secret` is what lies beside a store that outlives the process.
    pub fn new(
        store: Arc<dyn Store>,
        secret: Option<&StoreSecret>,
        quotas: TaskQuotas,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            kept_clock: KeptClock::new(store.kept_clock()),
            store,
            seal: secret.map(AnchorSeal::new),
            health: StoreHealth::default(),
            limits: PrincipalLimits::new(&quotas).into(),
            quotas: quotas.into(),
            clock,
            watchers: Arc::new(TaskWatchers::default()),
            leased: DashMap::new(),
            reservations: Arc::default(),
            changes: TaskTracker::new(),
            unstored_bytes: AtomicUsize::new(0),
            unfetched: DashMap::new(),
            fetch_metrics: FetchMetrics::default(),
            fetched: Notify::new(),
            made: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
        })
    }

    /// The tasks whose calls this process holds.
    pub fn working(&self) -> usize {
        self.leased.len().saturating_sub(self.pending.load(Ordering::Relaxed))
    }

    /// How many tasks have been made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// The results that have not been fetched by anybody, and end with the process.
    pub fn unfetched(&self) -> usize {
        self.unfetched.len()
    }

    /// Resolves when every result that ends with the process has been fetched or has outlived its time.
    pub async fn all_fetched(&self) {
        loop {
            let fetched = self.fetched.notified();
            if self.unfetched.is_empty() {
                return;
            }
            fetched.await;
        }
    }

    /// A client is shown the task. Gives what is to be confirmed once it has that, where it is the end of the task.
    pub(super) fn record_shown(self: &Arc<Self>, record: &Record) -> Option<DeliveryCommit> {
        self.fetch_metrics.task_shown(&record.id);
        record.state.is_ended().then(|| self.delivery(&record.id))
    }

    /// The end of a task on its way to a client: fetched once that has it, and not before.
    pub(super) fn delivery(self: &Arc<Self>, id: &TaskId) -> DeliveryCommit {
        let (ledger, id) = (Arc::clone(self), id.clone());
        DeliveryCommit::new(move || ledger.fetched(&id))
    }

    /// The task's result has been fetched.
    fn fetched(&self, id: &TaskId) {
        self.fetch_metrics.task_fetched(id);
        self.remove_unfetched(id);
    }

    /// The task's result has been fetched, or is there no more.
    fn remove_unfetched(&self, id: &TaskId) {
        if self.unfetched.remove(id).is_some() {
            self.fetched.notify_waiters();
        }
    }

    /// Stores a new task, whose call is held here. Nothing that runs is evicted for it. Its room in the quotas is
    /// reserved before, by the caller (`is_reserved`) or here. It counts as a task from [`TaskLease::begin`] on.
    ///
    /// # Errors
    /// [`TaskAdmissionError`].
    pub async fn admit(
        self: &Arc<Self>,
        record: Record,
        is_reserved: bool,
    ) -> Result<TaskLease, TaskAdmissionError> {
        let principal = principal_of(&record.owner.principal);
        // Until the store counts the task.
        let _reservation = match is_reserved {
            true => {
                let (of_principal, total) = self.reservations.count(principal);
                self.has_room(principal, of_principal.saturating_sub(1), total.saturating_sub(1))?;
                None
            }
            false => Some(self.reserve(principal)?),
        };
        let (id, record) = (record.id.clone(), Arc::new(record));
        // Before it is stored: whoever finds it in the store may change it at once.
        let held =
            LeasedTask { version: RecordVersion::FIRST, record: Arc::clone(&record), has_unstored: false };
        self.leased.insert(id.clone(), held);
        let custody = TaskLease { ledger: Arc::clone(self), id, is_counted: false };
        self.keep_clock().await;
        let stored = self.store.insert(Arc::clone(&record)).await;
        stored.map_err(|error| self.admission_error("storing a task", &error, principal))?;
        self.health.record_success();
        Ok(custody)
    }

    /// Reserves room for one more task, or for one more call that waits for answers of its client: either holds a
    /// call at the server for as long as the client likes.
    ///
    /// # Errors
    /// [`TaskAdmissionError::Full`].
    pub(super) fn reserve(&self, principal: Principal) -> Result<Reservation, TaskAdmissionError> {
        let has_room = |of_principal, total| self.has_room(principal, of_principal, total);
        self.reservations.reserve(principal, has_room)
    }

    /// Runs a change that a request asked for, with everything that follows from it, to its end: also where the
    /// request is dropped meanwhile, as its client has disconnected.
    ///
    /// # Errors
    /// Those of `change`; [`StoreError::Unavailable`] where the process ends first.
    pub(super) async fn run_to_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.changes.spawn(change).await {
            Ok(result) => result,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
            },
        }
    }

    /// Forgets a task that nobody needs, once it is stored. Its room in the quotas is kept until then.
    pub(super) fn discard_once_stored(
        &self,
        storing: impl Future<Output = Option<TaskLease>> + Send + 'static,
        reservation: Option<Reservation>,
    ) {
        self.changes.spawn(async move {
            if let Some(task) = storing.await {
                task.discard().await;
            }
            drop(reservation);
        });
    }

    /// The bounds that hold now.
    pub(super) fn quotas(&self) -> TaskQuotas {
        **self.quotas.load()
    }

    /// From now on these bounds hold. What there is beyond them stays.
    pub fn set_quotas(&self, quotas: TaskQuotas) {
        if self.quotas() != quotas {
            let TaskQuotas { stored_bytes, stored_bytes_per_principal, .. } = quotas;
            self.store.set_bounds(StoreBounds { stored_bytes, stored_bytes_per_principal });
            self.limits.set(self.limits.load().reconfigured(&quotas));
            self.quotas.set(quotas);
        }
    }

    /// Whether a principal may have one more task besides those that are stored and these reservations, of the
    /// principal and in total.
    fn has_room(
        &self,
        principal: Principal,
        of_principal: usize,
        total: usize,
    ) -> Result<(), TaskAdmissionError> {
        let usage = self.store.usage(principal.as_bytes());
        let quotas = self.quotas();
        let full = [
            (
                "limits.tasks_per_principal",
                usage.tasks_of_principal + of_principal,
                quotas.tasks_per_principal,
            ),
            ("limits.tasks", usage.tasks + total, quotas.tasks),
            ("limits.stored_bytes", usage.stored_bytes, quotas.stored_bytes),
            (
                "limits.stored_bytes_per_principal",
                usage.stored_bytes_of_principal,
                quotas.stored_bytes_per_principal,
            ),
        ];
        match full.into_iter().find(|(_, used, limit)| used >= limit) {
            None => Ok(()),
            Some((limit, ..)) => {
                QuotaExceeded { limit, principal: &principal }.emit();
                Err(TaskAdmissionError::Full(limit))
            }
        }
    }

    /// Whether the store took the last change that it was asked for.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// How many tasks there are of each route and status, and how much is kept in all; for operators.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn census(&self) -> Result<(Vec<TaskTally>, StoreUsage), StoreError> {
        let census =
            self.store.census().await.inspect_err(|error| self.log_failure("counting tasks", error))?;
        Ok((census, self.store.usage(Principal::ANONYMOUS.as_bytes())))
    }

    /// What time it is for tasks, and by the wall clock.
    pub(super) fn now(&self) -> ClockReading {
        self.clock.reading()
    }

    /// Tasks of all owners; see [`Store::recent`].
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        let found = self.store.recent(is_ended, below, limit).await;
        found.inspect_err(|error| self.log_failure("listing tasks", error))
    }

    /// Whether the call of a task is held here, and whether something of it waits for the store.
    pub(super) fn lease_status(&self, id: &TaskId) -> (bool, bool) {
        self.leased.get(id).map_or((false, false), |held| (true, held.has_unstored))
    }

    /// Whether what is kept is there for the next process.
    pub fn outlives(&self) -> bool {
        self.store.is_durable()
    }

    /// Keeps where the call of a task can be taken up.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn store_anchor(&self, id: &TaskId, anchor: &TaskAnchor) -> Result<(), StoreError> {
        let sealed = self.seal.as_ref().map(|seal| seal.seal(id, anchor));
        let kept = self.store.anchor(id, sealed).await;
        kept.inspect_err(|error| self.log_failure("keeping where a call is", error))
    }

    /// What was kept so of a task, if it was sealed with this secret.
    pub(super) fn open_anchor(&self, id: &TaskId, sealed: Option<&Bytes>) -> Option<TaskAnchor> {
        self.seal.as_ref()?.open(id, sealed?)
    }

    /// Nothing need be known any more of where the call of a task is.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn remove_anchor(&self, id: &TaskId) -> Result<(), StoreError> {
        let kept = self.store.anchor(id, None).await;
        kept.inspect_err(|error| self.log_failure("forgetting where a call is", error))
    }

    /// A task of a former process whose caller is waited for is no work, until this is dropped.
    pub(super) fn count_pending(self: &Arc<Self>) -> PendingTaskGuard {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingTaskGuard(Arc::clone(self))
    }

    /// A task is left to the next process.
    pub(super) fn count_released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// The tasks that have been left to the next process.
    pub fn released(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }

    /// Waits for the changes that requests made, and closes the store, which writes what is not written.
    pub async fn close(&self) {
        self.changes.close();
        self.changes.wait().await;
        self.keep_last_clock().await;
        self.store.close().await;
    }

    /// A task that another process held is held by this one from here on.
    pub(super) fn adopt(self: &Arc<Self>, version: RecordVersion, record: &Arc<Record>) -> TaskLease {
        let held = LeasedTask { version, record: Arc::clone(record), has_unstored: false };
        if !record.state.is_ended() {
            self.fetch_metrics.task_adopted(record);
        }
        self.leased.insert(record.id.clone(), held);
        TaskLease { ledger: Arc::clone(self), id: record.id.clone(), is_counted: true }
    }

    /// Tasks of a process that is gone; see [`Store::take_orphans`].
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        let found = self.store.take_orphans(limit).await;
        found.inspect_err(|error| self.log_failure("looking for tasks of a former process", error))
    }

    fn admission_error(&self, doing: &str, error: &StoreError, principal: Principal) -> TaskAdmissionError {
        self.log_failure(doing, error);
        match error {
            StoreError::Full(limit) => {
                QuotaExceeded { limit, principal: &principal }.emit();
                TaskAdmissionError::Full(limit)
            }
            StoreError::Exists | StoreError::Unavailable(_) => TaskAdmissionError::StoreFailed,
        }
    }

    /// So much of a result waits for a store that fails. Little enough always may.
    ///
    /// # Errors
    /// The limit where that is too much, as it is kept in memory meanwhile.
    pub(super) fn buffer_result(self: &Arc<Self>, bytes: usize) -> Result<UnstoredBytes, StoreError> {
        let aside = UnstoredBytes { ledger: Arc::clone(self), bytes };
        let before = self.unstored_bytes.fetch_add(bytes, Ordering::Relaxed);
        match bytes > NO_SPACE_EVENT_BYTES && before.saturating_add(bytes) > self.quotas().stored_bytes {
            true => Err(StoreError::Full("limits.stored_bytes")),
            false => Ok(aside),
        }
    }

    /// Logs a failure of the store, once a minute. A limit of the configuration that is met is none, and is logged by its
    /// caller; a disk without space concerns every operation.
    pub(crate) fn log_failure(&self, doing: &str, error: &StoreError) {
        match error {
            StoreError::Full(StoreError::DISK_SPACE) => {
                self.health.record_failure(doing, error, self.clock.now())
            }
            StoreError::Full(_) => {}
            StoreError::Exists | StoreError::Unavailable(_) => {
                self.health.record_failure(doing, error, self.clock.now())
            }
        }
    }

    /// Logs and counts that a limit on what is stored refused a change of a task.
    pub(super) fn log_quota_full(&self, id: &TaskId, limit: &str) {
        let owner = self.last_stored(id).map_or([0; 16], |record| record.owner.principal);
        QuotaExceeded { limit, principal: &principal_of(&owner) }.emit();
    }

    /// The record as it is kept. What is held here is known while the store does not answer, too.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn load(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        match self.store.load(id).await {
            Ok(found) => Ok(found.map(|(_, record)| record)),
            Err(error) => {
                self.log_failure("loading a task", &error);
                self.last_stored(id).map(Some).ok_or(error)
            }
        }
    }

    /// The record of a task that is held here, as it was last kept.
    pub fn last_stored(&self, id: &TaskId) -> Option<Arc<Record>> {
        self.leased.get(id).map(|held| Arc::clone(&held.record))
    }

    /// Remembers what has been kept of a task that is held here.
    fn update_leased(&self, version: RecordVersion, record: &Arc<Record>) {
        if let Some(mut held) = self.leased.get_mut(&record.id)
            // Of two changes the later may be noted first.
            && held.version < version
        {
            (held.version, held.record) = (version, Arc::clone(record));
        }
    }

    /// Whether something of a held task waits for the store.
    pub(super) fn set_unstored(&self, id: &TaskId, waits: bool) {
        if let Some(mut held) = self.leased.get_mut(id) {
            held.has_unstored = waits;
        }
    }

    /// Applies `event`, says so in the log where the status changed, and tells the listeners.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then: nothing has changed.
    pub async fn change(&self, id: &TaskId, event: &TaskEvent) -> Result<UpdateOutcome, StoreError> {
        let is_result = matches!(event, TaskEvent::Returned { .. } | TaskEvent::Failed { .. });
        if is_result && !self.outlives() {
            // Before anybody can fetch it.
            self.unfetched.insert(id.clone(), ());
        }
        if event.is_end() {
            self.keep_clock().await;
        }
        let updated = store::update(&*self.store, id, event, self.clock.timestamp()).await;
        if is_result && !matches!(updated, Ok(UpdateOutcome::Applied { .. })) {
            self.remove_unfetched(id);
        }
        let updated = updated.inspect_err(|error| self.log_failure("updating a task", error))?;
        if let UpdateOutcome::Applied { before, after, version, effects } = &updated {
            self.update_leased(*version, after);
            self.health.record_success();
            let (from, to) = (before.state.status(), after.state.status());
            if after.state == TaskState::Cancelled {
                self.fetch_metrics.task_cancelled(id);
            }
            if from != to {
                emit_transition(after, from, to, task_end(after));
            }
            if effects.contains(&TaskEffect::Announce) {
                self.watchers.notify(id);
            }
        }
        Ok(updated)
    }

    /// The record with a word on why it stands still, where the call has gone on and the store has not.
    pub fn with_store_status(&self, record: Arc<Record>) -> Arc<Record> {
        let waits = || self.leased.get(&record.id).is_some_and(|held| held.has_unstored);
        if record.state.is_ended() || !waits() {
            return record;
        }
        Arc::new(Record { message: Some(WAITS_FOR_STORE.to_owned()), ..Record::clone(&record) })
    }

    /// One page of an owner's tasks, the oldest first, and whether there are more.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn page(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        size: usize,
    ) -> Result<(Vec<Arc<Record>>, bool), StoreError> {
        let found = self.store.list(owner, after, size + 1).await;
        let mut found = found.inspect_err(|error| self.log_failure("listing tasks", error))?;
        let more = found.len() > size;
        found.truncate(size);
        Ok((found, more))
    }

    /// Renews what works and forgets what has outlived its time. What works and is held by nobody has
    /// lost its call: it ends. Called now and then, until the proxy is `stopping`: nothing is left at work.
    pub(super) async fn sweep(&self, batch: usize, stopping: &DrainWatch) -> Result<usize, StoreError> {
        let now = self.clock.timestamp();
        let due = self.store.due(now, batch).await?;
        let mut failed = None;
        for DueTask { id, is_ended } in &due {
            // A record that cannot be read any more keeps no other from its turn.
            if let Err(error) = self.process_due(id, *is_ended, stopping).await {
                failed.get_or_insert(error);
            }
        }
        self.limits.load().remove_idle();
        failed.map_or(Ok(due.len()), Err)
    }

    async fn process_due(
        &self,
        id: &TaskId,
        is_ended: bool,
        stopping: &DrainWatch,
    ) -> Result<(), StoreError> {
        if is_ended {
            self.store.remove(id).await?;
            self.fetch_metrics.task_expired(id);
            self.remove_unfetched(id);
            tracing::debug!(target: "deferral::task", event = "forgotten", task = %id.tag());
        } else if self.leased.contains_key(id) {
            self.change(id, &TaskEvent::TtlRenewed).await?;
        } else {
            // A call leaves its place only once its end is kept, so this one is not at work anywhere; or once the
            // proxy is at its end, and has left it to the next process.
            if !stopping.is_stopped() {
                self.change(id, &lost_event()).await?;
            }
        }
        Ok(())
    }
}

// === impl Custody ===

impl TaskLease {
    /// Counts and logs the stored task as one, in the moment in which its handle is given to a client. A task that
    /// is forgotten before that has never been one.
    pub fn begin(&mut self) {
        let Some(record) = self.ledger.last_stored(&self.id).filter(|_| !self.is_counted) else { return };
        self.is_counted = true;
        let principal = principal_of(&record.owner.principal);
        let (task, route, tool) = (self.id.tag(), &record.owner.route, &record.tool);
        TaskCreated { task: &task, route, tool, principal: &principal }.emit();
        self.ledger.fetch_metrics.task_created(&record);
        self.ledger.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets a task whose handle nobody has; one that was counted ends as cancelled. Where the store fails, the
    /// sweeper finds it later: a task that works and is held by nobody.
    pub async fn discard(mut self) {
        match self.ledger.store.remove(&self.id).await {
            Ok(()) => {
                let record = self.ledger.last_stored(&self.id);
                self.ledger.fetch_metrics.task_discarded(&self.id);
                self.ledger.remove_unfetched(&self.id);
                if let Some(record) = record.filter(|record| self.is_counted && !record.state.is_ended()) {
                    let age = self.ledger.clock.timestamp().since(record.created);
                    let end = TaskEnd { waited: record.waited, age, code: None, is_tool_error: false };
                    emit_transition(&record, record.state.status(), TaskState::Cancelled.status(), Some(end));
                }
            }
            Err(error) => {
                self.begin();
                self.ledger.log_failure("forgetting a task", &error);
            }
        }
    }
}

impl Drop for TaskLease {
    fn drop(&mut self) {
        self.ledger.leased.remove(&self.id);
    }
}

// === impl Waits ===

impl Drop for PendingTaskGuard {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Aside ===

impl Drop for UnstoredBytes {
    fn drop(&mut self) {
        self.ledger.unstored_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The end of a task whose call no process holds any more.
pub(super) fn lost_event() -> TaskEvent {
    let error = ErrorObject::new(code::OUTCOME_UNKNOWN, LOST_MESSAGE);
    TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(LOST_MESSAGE.to_owned()) }
}

/// How a task ended, where it has.
fn task_end(record: &Record) -> Option<TaskEnd> {
    let code = match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => return None,
        TaskState::Failed { error } => Some(ErrorObject::from_raw(error.clone()).code()),
        TaskState::Completed { .. } | TaskState::Cancelled => None,
    };
    let is_tool_error = matches!(record.state, TaskState::Completed { is_error: true, .. });
    let age = record.status_since.since(record.created);
    Some(TaskEnd { waited: record.waited, age, code, is_tool_error })
}

/// Logs and counts that a task has another status.
fn emit_transition(record: &Record, from: &str, to: &str, end: Option<TaskEnd>) {
    TaskTransition {
        task: &record.id.tag(),
        route: &record.owner.route,
        tool: &record.tool,
        principal: &principal_of(&record.owner.principal),
        from,
        to,
        end,
        reason: reason(record).as_deref(),
    }
    .emit();
}

/// Why a task failed, where it has. Of a server's error its code and not its words, which may hold what it was asked
/// about.
fn reason(record: &Record) -> Option<String> {
    let TaskState::Failed { error } = &record.state else { return None };
    let error = ErrorObject::from_raw(error.clone());
    Some(if code::is_own(error.code()) { error.message() } else { format!("error {}", error.code()) })
}

fn principal_of(principal: &[u8; 16]) -> Principal {
    Principal::from_bytes(*principal)
}
