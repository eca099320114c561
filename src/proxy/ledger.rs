//! The tasks of all routes: their records, within quotas, for as long as clients may fetch them.
//!
//! All changes of a task are stored here, whichever process owns its call. A failure of the store is logged
//! once a minute while it lasts, and is visible in the return types: a change that was not stored is neither
//! shown nor acknowledged.

use super::{
    DeliveryCommit,
    anchor::{AnchorSeal, TaskAnchor},
    fetch_metrics::FetchMetrics,
    persist::NO_SPACE_EVENT_BYTES,
    principal_limits::PrincipalLimits,
    reservations::{Reservation, Reservations},
    store_clock::StoredClock,
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
use futures_util::future::BoxFuture;
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// The tasks of all routes.
pub struct TaskLedger {
    pub(super) store: Arc<dyn Store>,
    pub(super) kept_clock: StoredClock,
    /// Seals resume anchors, if the store outlives the process.
    seal: Option<AnchorSeal>,
    health: StoreHealth,
    quotas: SwapCell<TaskQuotas>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: SwapCell<PrincipalLimits>,
    pub(super) watchers: Arc<TaskWatchers>,
    /// The tasks whose calls this process runs. Sharded.
    leased: DashMap<TaskId, LeasedTask>,
    /// Reservations for parked calls, and for tasks that are being stored.
    reservations: Arc<Reservations>,
    /// Changes by requests, which continue if their request is dropped.
    changes: TaskTracker,
    /// Bytes of results that a failed store has not taken.
    unstored_bytes: AtomicUsize,
    /// Ended tasks whose results have not been fetched: shutdown waits for them, unless the next process has
    /// them, too. Bounded by the number of tasks.
    unfetched: DashMap<TaskId, ()>,
    fetch_metrics: FetchMetrics,
    /// Notified whenever one of them is removed.
    fetched: Notify,
    /// The number of tasks made.
    made: AtomicUsize,
    /// The number of tasks left to the next process.
    released: AtomicUsize,
    /// Tasks of a former process that wait for their callers' credentials: no call runs for them.
    pending: AtomicUsize,
}

/// Counts a task of a former process that waits for its caller's credentials.
pub(super) struct PendingTaskGuard(Arc<TaskLedger>);

/// The state of a task whose call runs in this process.
struct LeasedTask {
    /// The record as last stored: used while the store does not respond.
    version: RecordVersion,
    record: Arc<Record>,
    /// The store has not taken the latest change.
    has_unstored: bool,
}

/// The lease of a task whose call runs in this process: renewed while the task works. Dropping it gives the
/// task up, and an unfinished task then ends.
pub struct TaskLease {
    pub(super) ledger: Arc<TaskLedger>,
    pub(super) id: TaskId,
    /// The task has been counted ([`TaskLease::begin`]).
    is_counted: bool,
}

/// Bytes that wait for a failed store; subtracted when dropped.
pub(super) struct UnstoredBytes {
    ledger: Arc<TaskLedger>,
    bytes: usize,
}

/// The reason why no task can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskAdmissionError {
    /// The name of the limit in the configuration.
    #[error("no space for another task; the limit is {0}")]
    Full(&'static str),
    #[error("the task store does not answer; try again")]
    StoreFailed,
}

/// The status message of a task whose latest change is not stored.
const WAITS_FOR_STORE: &str = "the call has moved on; the change is shown once the task store has stored it";

/// The error of a task whose call no process runs any more.
const LOST_MESSAGE: &str = "the process that made the call is gone, or lost its lease; the call may have run, and its outcome is unknown";

// === impl TaskLedger ===

impl TaskLedger {
    /// `secret` is stored beside a store that outlives the process.
    pub fn new(
        store: Arc<dyn Store>,
        secret: Option<&StoreSecret>,
        quotas: TaskQuotas,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            kept_clock: StoredClock::new(store.kept_clock()),
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

    /// The number of tasks whose calls this process runs.
    pub fn working(&self) -> usize {
        self.leased.len().saturating_sub(self.pending.load(Ordering::Relaxed))
    }

    /// The number of tasks made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// The number of unfetched results that end with the process.
    pub fn unfetched(&self) -> usize {
        self.unfetched.len()
    }

    /// Resolves when every result that ends with the process has been fetched or has expired.
    pub async fn all_fetched(&self) {
        loop {
            let fetched = self.fetched.notified();
            if self.unfetched.is_empty() {
                return;
            }
            fetched.await;
        }
    }

    /// Counts that a task is shown to a client. Returns the commit of its delivery if the task has ended.
    pub(super) fn record_shown(self: &Arc<Self>, record: &Record) -> Option<DeliveryCommit> {
        self.fetch_metrics.task_shown(&record.id);
        record.state.is_ended().then(|| self.delivery(&record.id))
    }

    /// The commit for the end of a task: the result counts as fetched once it is confirmed.
    pub(super) fn delivery(self: &Arc<Self>, id: &TaskId) -> DeliveryCommit {
        let (ledger, id) = (Arc::clone(self), id.clone());
        DeliveryCommit::new(move || ledger.fetched(&id))
    }

    /// Records that the task's result has been fetched.
    fn fetched(&self, id: &TaskId) {
        self.fetch_metrics.task_fetched(id);
        self.remove_unfetched(id);
    }

    /// Removes a result that was fetched or no longer exists.
    fn remove_unfetched(&self, id: &TaskId) {
        if self.unfetched.remove(id).is_some() {
            self.fetched.notify_waiters();
        }
    }

    /// Stores a new task whose call runs in this process. Running tasks are never evicted for it. Its space
    /// in the quotas is reserved by the caller (`is_reserved`), or here. It counts as a task from
    /// [`TaskLease::begin`] on.
    ///
    /// # Errors
    /// [`TaskAdmissionError`].
    pub async fn admit(self: &Arc<Self>, record: Record) -> Result<TaskLease, TaskAdmissionError> {
        let reservation = self.reserve(principal_of(&record.owner.principal))?;
        self.insert(record, reservation).await
    }

    /// The same of a call that has a reservation, as it was parked.
    ///
    /// # Errors
    /// The reservation, where there is no room or the store fails: the call goes on.
    pub(super) async fn admit_parked(
        self: &Arc<Self>,
        record: Record,
        reservation: Reservation,
    ) -> Result<TaskLease, Reservation> {
        let principal = principal_of(&record.owner.principal);
        let (of_principal, total) = self.reservations.count(principal);
        match self.has_room(principal, of_principal.saturating_sub(1), total.saturating_sub(1)) {
            Ok(()) => {}
            Err(_full) => return Err(reservation),
        }
        let inserted = self.insert(record, reservation).await;
        inserted.map_err(|_no_room| self.reservations.restore(principal))
    }

    async fn insert(
        self: &Arc<Self>,
        record: Record,
        reservation: Reservation,
    ) -> Result<TaskLease, TaskAdmissionError> {
        let principal = principal_of(&record.owner.principal);
        let (id, record) = (record.id.clone(), Arc::new(record));
        // Inserted before the record is stored: a client that finds the record may change it at once.
        let held =
            LeasedTask { version: RecordVersion::FIRST, record: Arc::clone(&record), has_unstored: false };
        self.leased.insert(id.clone(), held);
        let custody = TaskLease { ledger: Arc::clone(self), id, is_counted: false };
        self.keep_clock().await;
        let stored = self.store.insert_reserved(record, Box::new(reservation)).await;
        stored.map_err(|error| self.admission_error("storing a task", &error, principal))?;
        self.health.record_success();
        Ok(custody)
    }

    /// Reserves space for one more task, or for one more parked call: both keep a call at the server for as
    /// long as the client likes.
    ///
    /// # Errors
    /// [`TaskAdmissionError::Full`].
    pub(super) fn reserve(&self, principal: Principal) -> Result<Reservation, TaskAdmissionError> {
        let has_room = |of_principal, total| self.has_room(principal, of_principal, total);
        self.reservations.reserve(principal, has_room)
    }

    /// Runs a change by a request to its end, with everything that follows from it, even if the request is
    /// dropped because its client disconnected.
    ///
    /// # Errors
    /// Those of `change`; [`StoreError::Unavailable`] if the process ends first.
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

    /// Forgets a task that nobody needs, once it is stored; also where what is given back is dropped. That resolves when
    /// it is forgotten.
    pub(super) fn discard_once_stored<E: Send + 'static>(
        &self,
        storing: BoxFuture<'static, Result<TaskLease, E>>,
    ) -> BoxFuture<'static, ()> {
        let forgotten = self.changes.spawn(async move {
            if let Ok(task) = storing.await {
                task.discard().await;
            }
        });
        Box::pin(async move { drop(forgotten.await) })
    }

    /// The current quotas.
    pub(super) fn quotas(&self) -> TaskQuotas {
        **self.quotas.load()
    }

    /// Applies new quotas. Existing tasks beyond them stay.
    pub fn set_quotas(&self, quotas: TaskQuotas) {
        if self.quotas() != quotas {
            let TaskQuotas { stored_bytes, stored_bytes_per_principal, .. } = quotas;
            self.store.set_bounds(StoreBounds { stored_bytes, stored_bytes_per_principal });
            self.limits.set(self.limits.load().reconfigured(&quotas));
            self.quotas.set(quotas);
        }
    }

    /// Checks whether a principal may have one more task in addition to the stored ones and to these
    /// reservations, of the principal and in total.
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

    /// Whether the last operation of the store failed.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// The number of tasks by route and status, and the total usage; for operators.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn census(&self) -> Result<(Vec<TaskTally>, StoreUsage), StoreError> {
        let census =
            self.store.census().await.inspect_err(|error| self.log_failure("counting tasks", error))?;
        Ok((census, self.store.usage(Principal::ANONYMOUS.as_bytes())))
    }

    /// The current time for tasks, with the offset of the wall clock.
    pub(super) fn now(&self) -> ClockReading {
        self.clock.reading()
    }

    /// Tasks of all owners; see [`Store::recent`].
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(super) async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        let found = self.store.recent(is_ended, below, limit).await;
        found.inspect_err(|error| self.log_failure("listing tasks", error))
    }

    /// Whether this process runs the call of a task, and whether a change of the task waits for the store.
    pub(super) fn lease_status(&self, id: &TaskId) -> (bool, bool) {
        self.leased.get(id).map_or((false, false), |held| (true, held.has_unstored))
    }

    /// Whether the store outlives the process.
    pub fn outlives(&self) -> bool {
        self.store.is_durable()
    }

    /// Stores the resume anchor of a task's call.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(super) async fn store_anchor(&self, id: &TaskId, anchor: &TaskAnchor) -> Result<(), StoreError> {
        let sealed = self.seal.as_ref().map(|seal| seal.seal(id, anchor));
        let kept = self.store.anchor(id, sealed).await;
        kept.inspect_err(|error| self.log_failure("storing an anchor", error))
    }

    /// Opens the anchor of a task, if it was sealed with this secret.
    pub(super) fn open_anchor(&self, id: &TaskId, sealed: Option<&Bytes>) -> Option<TaskAnchor> {
        self.seal.as_ref()?.open(id, sealed?)
    }

    /// Removes the resume anchor of a task's call.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(super) async fn remove_anchor(&self, id: &TaskId) -> Result<(), StoreError> {
        let kept = self.store.anchor(id, None).await;
        kept.inspect_err(|error| self.log_failure("removing an anchor", error))
    }

    /// Excludes a task from the running ones while it waits for its caller's credentials, until the guard is
    /// dropped.
    pub(super) fn count_pending(self: &Arc<Self>) -> PendingTaskGuard {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingTaskGuard(Arc::clone(self))
    }

    /// Counts a task that is left to the next process.
    pub(super) fn count_released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of tasks left to the next process.
    pub fn released(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }

    /// Waits for the changes by requests, and closes the store, which flushes its writes.
    pub async fn close(&self) {
        self.changes.close();
        self.changes.wait().await;
        self.keep_last_clock().await;
        self.store.close().await;
    }

    /// Takes over the lease of a task of another process.
    pub(super) fn adopt(self: &Arc<Self>, version: RecordVersion, record: &Arc<Record>) -> TaskLease {
        let held = LeasedTask { version, record: Arc::clone(record), has_unstored: false };
        if !record.state.is_ended() {
            self.fetch_metrics.task_adopted(record);
        }
        self.leased.insert(record.id.clone(), held);
        TaskLease { ledger: Arc::clone(self), id: record.id.clone(), is_counted: true }
    }

    /// The record of a held task as the store has it now. Unlike [`TaskLedger::load`] it is never one that was kept earlier.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub(super) async fn reload(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.store.load(id).await;
        let found = found.inspect_err(|error| self.log_failure("loading a task", error))?;
        Ok(found.map(|(version, record)| {
            self.update_leased(version, &record);
            record
        }))
    }

    /// Tasks of a process that is gone; see [`Store::take_orphans`].
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
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

    /// Counts bytes of a result that waits for a failed store. Small events are always allowed.
    ///
    /// # Errors
    /// The limit, if the total is too large: the bytes stay in memory.
    pub(super) fn buffer_result(self: &Arc<Self>, bytes: usize) -> Result<UnstoredBytes, StoreError> {
        let aside = UnstoredBytes { ledger: Arc::clone(self), bytes };
        let before = self.unstored_bytes.fetch_add(bytes, Ordering::Relaxed);
        match bytes > NO_SPACE_EVENT_BYTES && before.saturating_add(bytes) > self.quotas().stored_bytes {
            true => Err(StoreError::Full("limits.stored_bytes")),
            false => Ok(aside),
        }
    }

    /// Logs a failure of the store, once a minute. A limit of the configuration is not a failure, and is
    /// logged by the caller; a full disk affects every operation.
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

    /// Logs and counts that a storage limit refused a change of a task.
    pub(super) fn log_quota_full(&self, id: &TaskId, limit: &str) {
        let owner = self.last_stored(id).map_or([0; 16], |record| record.owner.principal);
        QuotaExceeded { limit, principal: &principal_of(&owner) }.emit();
    }

    /// The record as stored. For a task of this process the last known record is used while the store does
    /// not respond.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn load(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        match self.store.load(id).await {
            Ok(found) => Ok(found.map(|(_, record)| record)),
            Err(error) => {
                self.log_failure("loading a task", &error);
                self.last_stored(id).map(Some).ok_or(error)
            }
        }
    }

    /// The record of a task of this process, as last stored.
    pub fn last_stored(&self, id: &TaskId) -> Option<Arc<Record>> {
        self.leased.get(id).map(|held| Arc::clone(&held.record))
    }

    /// Updates the last stored record of a task of this process.
    fn update_leased(&self, version: RecordVersion, record: &Arc<Record>) {
        if let Some(mut held) = self.leased.get_mut(&record.id)
            // Of two changes the later one may be noted first.
            && held.version < version
        {
            (held.version, held.record) = (version, Arc::clone(record));
        }
    }

    /// Sets whether a change of the task waits for the store.
    pub(super) fn set_unstored(&self, id: &TaskId, waits: bool) {
        if let Some(mut held) = self.leased.get_mut(id) {
            held.has_unstored = waits;
        }
    }

    /// Applies `event`, logs a change of the status, and notifies the watchers.
    ///
    /// # Errors
    /// [`StoreError`], which is logged: nothing has changed.
    pub async fn change(&self, id: &TaskId, event: &TaskEvent) -> Result<UpdateOutcome, StoreError> {
        let is_result = matches!(event, TaskEvent::Returned { .. } | TaskEvent::Failed { .. });
        if is_result && !self.outlives() {
            // Inserted before any client can fetch it.
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

    /// The record, with a status message if the latest change waits for the store.
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
    /// [`StoreError`], which is logged.
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

    /// Renews working tasks and removes expired ones. A working task without a lease has lost its call, and
    /// ends, unless the proxy is `stopping`: then the task may belong to the next process. Called
    /// periodically.
    pub(super) async fn sweep(&self, batch: usize, stopping: &DrainWatch) -> Result<usize, StoreError> {
        let now = self.clock.timestamp();
        let due = self.store.due(now, batch).await?;
        let mut failed = None;
        for DueTask { id, is_ended } in &due {
            // An unreadable record does not delay the others.
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
            // A lease is dropped only after the end of its call is stored, so no process runs this call; or
            // at the end of the proxy, which leaves it to the next process.
            if !stopping.is_stopped() {
                self.change(id, &lost_event()).await?;
            }
        }
        Ok(())
    }
}

// === impl TaskLease ===

impl TaskLease {
    /// Counts and logs the stored task, when its handle is sent to a client. A task that is discarded before
    /// never counts.
    pub fn begin(&mut self) {
        let Some(record) = self.ledger.last_stored(&self.id).filter(|_| !self.is_counted) else { return };
        self.is_counted = true;
        let principal = principal_of(&record.owner.principal);
        let (task, route, tool) = (self.id.tag(), &record.owner.route, &record.tool);
        TaskCreated { task: &task, route, tool, principal: &principal }.emit();
        self.ledger.fetch_metrics.task_created(&record);
        self.ledger.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Discards a task whose handle reached no client; if it was counted, it ends as cancelled. If the store
    /// fails, the sweep finds it later: a working task without a lease.
    pub async fn discard(mut self) {
        match self.ledger.store.remove(&self.id).await {
            Ok(()) => {
                let record = self.ledger.last_stored(&self.id);
                self.ledger.fetch_metrics.task_discarded(&self.id);
                self.ledger.remove_unfetched(&self.id);
                if let Some(record) = record.filter(|record| self.is_counted && !record.state.is_ended()) {
                    let age = self.ledger.clock.timestamp().since(record.created);
                    let end =
                        TaskEnd { waited: record.elapsed_before_task, age, code: None, is_tool_error: false };
                    emit_transition(&record, record.state.status(), TaskState::Cancelled.status(), Some(end));
                }
            }
            Err(error) => {
                self.begin();
                self.ledger.log_failure("removing a task", &error);
            }
        }
    }
}

impl Drop for TaskLease {
    fn drop(&mut self) {
        self.ledger.leased.remove(&self.id);
    }
}

// === impl PendingTaskGuard ===

impl Drop for PendingTaskGuard {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl UnstoredBytes ===

impl Drop for UnstoredBytes {
    fn drop(&mut self) {
        self.ledger.unstored_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The failure of a task whose call no process runs any more.
pub(super) fn lost_event() -> TaskEvent {
    let error = ErrorObject::new(code::OUTCOME_UNKNOWN, LOST_MESSAGE);
    TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(LOST_MESSAGE.to_owned()) }
}

/// How the task ended, if it has.
fn task_end(record: &Record) -> Option<TaskEnd> {
    let code = match &record.state {
        TaskState::Working | TaskState::InputRequired { .. } => return None,
        TaskState::Failed { error } => Some(ErrorObject::from_raw(error.clone()).code()),
        TaskState::Completed { .. } | TaskState::Cancelled => None,
    };
    let is_tool_error = matches!(record.state, TaskState::Completed { is_error: true, .. });
    let age = record.status_since.since(record.created);
    Some(TaskEnd { waited: record.elapsed_before_task, age, code, is_tool_error })
}

/// Logs and counts a change of the status.
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

/// The reason why a task failed, if it did. Only the code of a server's error: its text may contain the
/// arguments of the call.
fn reason(record: &Record) -> Option<String> {
    let TaskState::Failed { error } = &record.state else { return None };
    let error = ErrorObject::from_raw(error.clone());
    Some(if code::is_own(error.code()) { error.message() } else { format!("error {}", error.code()) })
}

fn principal_of(principal: &[u8; 16]) -> Principal {
    Principal::from_bytes(*principal)
}
