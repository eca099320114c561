//! The tasks of all routes: their records, within quotas, for as long as clients may fetch them.
//!
//! All changes of a task are stored by this module, whichever process owns the task. A failure of the store
//! is logged once a minute while it lasts, and is visible in the return types: a change that was not stored
//! is neither shown nor acknowledged.

use super::{
    anchor::{AnchorSeal, TaskAnchor},
    bus::{LocalBus, TaskBus},
    drain_counts::{DrainCounts, PendingTaskGuard},
    fetch_metrics::FetchMetrics,
    principal_limits::PrincipalLimits,
    quotas::{QuotaState, TaskAdmissionError, UnstoredBytes},
    reservations::Reservation,
    store_clock::StoredClock,
    store_health::StoreHealth,
    watchers::TaskWatchers,
};
use crate::{
    dialect::Principal,
    policy::TaskQuotas,
    protocol::{ClockReading, ErrorObject, code},
    proxy::{CallRegistry, DeliveryCommit},
    runtime::{Clock, DrainWatch, SwapCell},
    store::{
        self, DueTask, ListCursor, LoadedTask, OrphanTask, ProcessId, RecentTask, RecordVersion, Store,
        StoreBounds, StoreError, StoreSecret, StoreUsage, TaskOwnership, TaskTally, UpdateOutcome,
    },
    task::{Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskState},
    telemetry::{QuotaExceeded, TaskCreated, TaskEnd, TaskTransition},
};
use bytes::Bytes;
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use std::{panic::resume_unwind, sync::Arc};
use tokio_util::task::TaskTracker;

/// The tasks of all routes: stores their records within the quotas, and holds the leases of those whose calls
/// run in this process.
pub struct TaskLedger {
    /// Where the task records are stored.
    pub(in crate::proxy) store: Arc<dyn Store>,
    /// The clock reading that the store has, for the next process.
    pub(in crate::proxy) stored_clock: StoredClock,
    /// Seals resume anchors, if the store outlives the process.
    seal: Option<AnchorSeal>,
    health: StoreHealth,
    quotas: Arc<QuotaState>,
    pub(in crate::proxy) clock: Arc<dyn Clock>,
    /// The rate limits of principals, and their listening streams.
    pub(in crate::proxy) principal_limits: SwapCell<PrincipalLimits>,
    /// The calls that run in this process.
    pub call_registry: Arc<CallRegistry>,
    /// Clients and calls of this process that are notified when a task changes.
    pub(in crate::proxy) watchers: Arc<TaskWatchers>,
    /// Messages to the calls and watchers of tasks, in whichever process they are.
    pub(in crate::proxy) bus: Box<dyn TaskBus>,
    /// The leases of this process: of the tasks whose calls it runs, and those that wait for credentials. A
    /// sharded map.
    leased: DashMap<TaskId, LeasedTask>,
    /// Tracks changes by client requests, which run to their end even if the request is dropped.
    changes: TaskTracker,
    drain_counts: Arc<DrainCounts>,
    fetch_metrics: FetchMetrics,
}

/// The state of a task that this process owns.
struct LeasedTask {
    /// The version of `record`.
    version: RecordVersion,
    /// The record as last stored: used while the store does not respond.
    record: Arc<Record>,
    /// Whether the latest change waits for the store.
    has_unstored: bool,
}

/// The state of the lease of an unfinished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// This process holds it.
    Own,
    /// Another process holds it.
    Foreign,
    /// No process holds it: the call is lost, and the task is about to fail.
    Lapsed,
}

/// This process's claim on a task whose call it runs. While the lease is held, the sweep renews the task.
/// After it is dropped, the sweep ends a task that is still unfinished: its call is lost.
pub struct TaskLease {
    pub(in crate::proxy) ledger: Arc<TaskLedger>,
    pub(in crate::proxy) id: TaskId,
    /// Whether the task has been counted and logged ([`TaskLease::mark_created`]).
    is_counted: bool,
}

/// The status message of a task whose latest change is not stored.
const UNSTORED_CHANGE_MESSAGE: &str =
    "the task has changed; the change is shown once the task store has stored it";

/// The error of a task whose call no process runs any more.
const LOST_CALL_MESSAGE: &str = "the process that made the call is gone, or lost its lease; the call may have run, and its outcome is unknown";

// === impl TaskLedger ===

impl TaskLedger {
    /// Creates the ledger of this store. `secret` seals resume anchors; it is stored beside a store that
    /// outlives the process, and is `None` for a store in memory.
    pub fn new(
        store: Arc<dyn Store>,
        secret: Option<&StoreSecret>,
        quotas: TaskQuotas,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let (process, call_registry) = (store.process(), Arc::<CallRegistry>::default());
        let watchers = Arc::<TaskWatchers>::default();
        let bus =
            LocalBus { process, call_registry: Arc::clone(&call_registry), watchers: Arc::clone(&watchers) };
        Arc::new(Self {
            stored_clock: StoredClock::new(store.stored_clock()),
            store,
            seal: secret.map(AnchorSeal::new),
            health: StoreHealth::default(),
            principal_limits: PrincipalLimits::new(&quotas).into(),
            quotas: Arc::new(QuotaState::new(quotas)),
            clock,
            call_registry,
            watchers,
            bus: Box::new(bus),
            leased: DashMap::new(),
            changes: TaskTracker::new(),
            drain_counts: Arc::default(),
            fetch_metrics: FetchMetrics::default(),
        })
    }

    /// The number of tasks whose calls this process runs.
    pub fn working_count(&self) -> usize {
        self.leased.len().saturating_sub(self.drain_counts.pending())
    }

    /// The number of tasks created since the start of the process.
    pub fn created_count(&self) -> usize {
        self.drain_counts.created()
    }

    /// The number of unfetched results that would be lost with the process; 0 if the store outlives it.
    pub fn unfetched_count(&self) -> usize {
        self.drain_counts.unfetched()
    }

    /// Resolves when every result that would be lost with the process has been fetched or has expired.
    pub async fn wait_until_all_fetched(&self) {
        self.drain_counts.wait_until_all_fetched().await;
    }

    /// Excludes a task from [`TaskLedger::working_count`] while it waits for its caller's credentials, until
    /// the guard is dropped.
    pub(in crate::proxy) fn count_pending(&self) -> PendingTaskGuard {
        self.drain_counts.count_pending()
    }

    /// Counts a task that is left to the next process.
    pub(in crate::proxy) fn count_released(&self) {
        self.drain_counts.count_released();
    }

    /// The number of tasks left to the next process.
    pub fn released_count(&self) -> usize {
        self.drain_counts.released()
    }

    /// Counts a response that shows the task to a client. If the task has ended, returns the commit with
    /// which the result counts as fetched.
    pub(in crate::proxy) fn record_shown(self: &Arc<Self>, record: &Record) -> Option<DeliveryCommit> {
        self.fetch_metrics.task_shown(&record.id);
        record.state.is_ended().then(|| self.delivery_commit(&record.id))
    }

    /// Creates the delivery commit for the end of a task: once it is confirmed, the result counts as fetched.
    pub(in crate::proxy) fn delivery_commit(self: &Arc<Self>, id: &TaskId) -> DeliveryCommit {
        let (ledger, id) = (Arc::clone(self), id.clone());
        DeliveryCommit::new(move || {
            ledger.fetch_metrics.task_fetched(&id);
            ledger.drain_counts.remove_unfetched(&id);
        })
    }

    /// Reserves space for a new task within the quotas, and stores it. The task's call runs in this process.
    /// Running tasks are never evicted for it. Metrics count the task from [`TaskLease::mark_created`] on.
    ///
    /// # Errors
    /// [`TaskAdmissionError`].
    pub async fn admit(self: &Arc<Self>, record: Record) -> Result<TaskLease, TaskAdmissionError> {
        let reservation = self.reserve(principal_of(&record.owner.principal))?;
        self.insert(record, reservation).await
    }

    /// Stores a new task for a call that was parked and already has a reservation.
    ///
    /// # Errors
    /// The reservation, if a quota is full or the store fails: the call continues without a task.
    pub(in crate::proxy) async fn admit_parked(
        self: &Arc<Self>,
        record: Record,
        reservation: Reservation,
    ) -> Result<TaskLease, Reservation> {
        let principal = principal_of(&record.owner.principal);
        if self.quotas.check_reserved(principal, self.store.usage(principal.as_bytes())).is_err() {
            return Err(reservation);
        }
        let inserted = self.insert(record, reservation).await;
        inserted.map_err(|_no_room| self.quotas.restore(principal))
    }

    /// Stores a new task with its reservation, which is released once the store counts the task.
    async fn insert(
        self: &Arc<Self>,
        record: Record,
        reservation: Reservation,
    ) -> Result<TaskLease, TaskAdmissionError> {
        let principal = principal_of(&record.owner.principal);
        let (id, record) = (record.id.clone(), Arc::new(record));
        // Inserted before the record is stored: a client that finds the record may change it at once.
        let leased =
            LeasedTask { version: RecordVersion::FIRST, record: Arc::clone(&record), has_unstored: false };
        self.leased.insert(id.clone(), leased);
        let lease = TaskLease { ledger: Arc::clone(self), id, is_counted: false };
        self.store_clock().await;
        let stored = self.store.insert_reserved(record, Box::new(reservation)).await;
        stored.map_err(|error| self.admission_error("storing a task", &error, principal))?;
        self.health.record_success();
        Ok(lease)
    }

    /// Reserves space in the quotas for one more task, or for one more parked call: the client decides how
    /// long either keeps a call open at the server.
    ///
    /// # Errors
    /// [`TaskAdmissionError::Full`].
    pub(in crate::proxy) fn reserve(&self, principal: Principal) -> Result<Reservation, TaskAdmissionError> {
        self.quotas.reserve(principal, || self.store.usage(principal.as_bytes()))
    }

    /// The current quotas.
    pub(in crate::proxy) fn quotas(&self) -> TaskQuotas {
        self.quotas.current()
    }

    /// Applies new quotas. Existing tasks are kept even if they exceed the new quotas.
    pub fn set_quotas(&self, quotas: TaskQuotas) {
        if self.quotas() != quotas {
            let TaskQuotas { stored_bytes, stored_bytes_per_principal, .. } = quotas;
            self.store.set_bounds(StoreBounds { stored_bytes, stored_bytes_per_principal });
            self.principal_limits.set(self.principal_limits.load().reconfigured(&quotas));
            self.quotas.set(quotas);
        }
    }

    /// Counts the bytes of a result that is kept in memory until a failed store takes it.
    ///
    /// # Errors
    /// [`StoreError::Full`] if all such results together would exceed `limits.stored_bytes`.
    pub(in crate::proxy) fn buffer_result(&self, bytes: usize) -> Result<UnstoredBytes, StoreError> {
        self.quotas.buffer_result(bytes)
    }

    /// Logs and counts that a storage limit refused a change of a task.
    pub(in crate::proxy) fn log_quota_full(&self, id: &TaskId, limit: &str) {
        let owner = self.last_stored(id).map_or([0; 16], |record| record.owner.principal);
        QuotaExceeded { limit, principal: &principal_of(&owner) }.emit();
    }

    /// Runs a change of a task, and the actions that follow from it, to the end, even if the request that
    /// caused the change is dropped because its client disconnected.
    ///
    /// # Errors
    /// Those of `change`; [`StoreError::Unavailable`] if the process ends first.
    pub(in crate::proxy) async fn run_to_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.changes.spawn(change).await {
            Ok(result) => result,
            Err(join_error) => match join_error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
            },
        }
    }

    /// Waits in the background until a task is stored, and then discards it: no client has its handle. The
    /// returned future resolves when the task is discarded; dropping the future does not stop the work.
    pub(in crate::proxy) fn discard_once_stored<E: Send + 'static>(
        &self,
        storing: BoxFuture<'static, Result<TaskLease, E>>,
    ) -> BoxFuture<'static, ()> {
        let discarded = self.changes.spawn(async move {
            if let Ok(task) = storing.await {
                task.discard().await;
            }
        });
        Box::pin(async move { drop(discarded.await) })
    }

    /// Whether the last operation of the store failed.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// Counts the tasks by route and status, and returns the counts with the total usage of the store; for
    /// operators.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn census(&self) -> Result<(Vec<TaskTally>, StoreUsage), StoreError> {
        let census =
            self.store.census().await.inspect_err(|error| self.log_failure("counting tasks", error))?;
        Ok((census, self.store.usage(Principal::ANONYMOUS.as_bytes())))
    }

    /// The current time for tasks, with the offset of the wall clock.
    pub(in crate::proxy) fn now(&self) -> ClockReading {
        self.clock.reading()
    }

    /// The youngest tasks of all owners; see [`Store::recent`].
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        let found = self.store.recent(is_ended, below, limit).await;
        found.inspect_err(|error| self.log_failure("listing tasks", error))
    }

    /// Whether a change of the task waits for the store.
    pub(in crate::proxy) fn has_unstored(&self, id: &TaskId) -> bool {
        self.leased.get(id).is_some_and(|leased| leased.has_unstored)
    }

    /// Whether tasks outlive the process: the store is durable.
    pub fn is_durable(&self) -> bool {
        self.store.is_durable()
    }

    /// Stores the resume anchor of a task's call.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn store_anchor(
        &self,
        id: &TaskId,
        anchor: &TaskAnchor,
    ) -> Result<(), StoreError> {
        let sealed = self.seal.as_ref().map(|seal| seal.seal(id, anchor));
        let stored = self.store.set_anchor(id, sealed).await;
        stored.inspect_err(|error| self.log_failure("storing an anchor", error))
    }

    /// Decrypts the stored anchor of a task. `None` if there is no anchor or no secret, or if the anchor was
    /// sealed with another secret.
    pub(in crate::proxy) fn open_anchor(&self, id: &TaskId, sealed: Option<&Bytes>) -> Option<TaskAnchor> {
        self.seal.as_ref()?.open(id, sealed?)
    }

    /// Removes the resume anchor of a task's call.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn remove_anchor(&self, id: &TaskId) -> Result<(), StoreError> {
        let stored = self.store.set_anchor(id, None).await;
        stored.inspect_err(|error| self.log_failure("removing an anchor", error))
    }

    /// Waits for running changes by client requests, stores the clock, and closes the store, which flushes
    /// its writes.
    pub async fn close(&self) {
        self.changes.close();
        self.changes.wait().await;
        self.store_final_clock().await;
        self.store.close().await;
    }

    /// Takes the lease of an orphaned task of a former process. `record` is the task as found in the store.
    pub(in crate::proxy) fn adopt(
        self: &Arc<Self>,
        version: RecordVersion,
        record: &Arc<Record>,
    ) -> TaskLease {
        let leased = LeasedTask { version, record: Arc::clone(record), has_unstored: false };
        if !record.state.is_ended() {
            self.fetch_metrics.task_adopted(record);
        }
        self.leased.insert(record.id.clone(), leased);
        TaskLease { ledger: Arc::clone(self), id: record.id.clone(), is_counted: true }
    }

    /// Loads the record of a leased task from the store. Unlike [`TaskLedger::load`], never returns the
    /// record of an earlier load.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn load_leased(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.store.load(id).await;
        let found = found.inspect_err(|error| self.log_failure("loading a task", error))?;
        Ok(found.map(|LoadedTask { version, record, .. }| {
            self.update_leased(version, &record);
            record
        }))
    }

    /// Takes over at most `limit` tasks of a former process that is gone; see [`Store::take_orphans`].
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        let found = self.store.take_orphans(limit).await;
        found.inspect_err(|error| self.log_failure("looking for tasks of a former process", error))
    }

    /// Logs and counts why a task could not be stored, and returns the reason for the caller.
    fn admission_error(
        &self,
        operation: &str,
        error: &StoreError,
        principal: Principal,
    ) -> TaskAdmissionError {
        self.log_failure(operation, error);
        match error {
            StoreError::Full(limit) => {
                QuotaExceeded { limit, principal: &principal }.emit();
                TaskAdmissionError::Full(limit)
            }
            StoreError::Exists | StoreError::Unavailable(_) => TaskAdmissionError::StoreFailed,
        }
    }

    /// Logs a failure of the store, once a minute. A limit of the configuration is not a failure, and is
    /// logged by the caller; a full disk affects every operation.
    pub(crate) fn log_failure(&self, operation: &str, error: &StoreError) {
        match error {
            StoreError::Full(StoreError::DISK_SPACE) => {
                self.health.record_failure(operation, error, self.clock.now())
            }
            StoreError::Full(_) => {}
            StoreError::Exists | StoreError::Unavailable(_) => {
                self.health.record_failure(operation, error, self.clock.now())
            }
        }
    }

    /// Loads the record of a task; `None` if there is no such task. While the store does not respond, returns
    /// the last stored record of a task that this process owns.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn load(&self, id: &TaskId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.load_task(id).await?.map(|task| task.record))
    }

    /// Loads a task as [`TaskLedger::load`], with its owner.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub(in crate::proxy) async fn load_task(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        match self.store.load(id).await {
            Ok(found) => Ok(found),
            Err(error) => {
                self.log_failure("loading a task", &error);
                let leased = self.leased.get(id).ok_or(error)?;
                let (version, record) = (leased.version, Arc::clone(&leased.record));
                let ownership = TaskOwnership { owner: self.process(), lease_until: None };
                Ok(Some(LoadedTask { version, record, ownership }))
            }
        }
    }

    /// The id of this process, by which other processes reach the tasks that it owns.
    pub(in crate::proxy) fn process(&self) -> ProcessId {
        self.store.process()
    }

    /// The record of a task that this process owns, as last stored; `None` for any other task. Does not
    /// access the store.
    pub fn last_stored(&self, id: &TaskId) -> Option<Arc<Record>> {
        self.leased.get(id).map(|leased| Arc::clone(&leased.record))
    }

    /// Updates the last stored record of a task that this process owns.
    fn update_leased(&self, version: RecordVersion, record: &Arc<Record>) {
        if let Some(mut leased) = self.leased.get_mut(&record.id)
            // Two changes may be recorded here in the reverse of their stored order.
            && leased.version < version
        {
            (leased.version, leased.record) = (version, Arc::clone(record));
        }
    }

    /// Sets whether a change of the task waits for the store.
    pub(in crate::proxy) fn set_unstored(&self, id: &TaskId, is_unstored: bool) {
        if let Some(mut leased) = self.leased.get_mut(id) {
            leased.has_unstored = is_unstored;
        }
    }

    /// Applies `event` to a task in the store, logs a change of the status, and notifies the watchers.
    ///
    /// # Errors
    /// [`StoreError`], which is logged: nothing has changed.
    pub async fn change(&self, id: &TaskId, event: &TaskEvent) -> Result<UpdateOutcome, StoreError> {
        let is_result = matches!(event, TaskEvent::Returned { .. } | TaskEvent::Failed { .. });
        if is_result && !self.is_durable() {
            // Inserted before any client can fetch it.
            self.drain_counts.insert_unfetched(id.clone());
        }
        if event.is_end() {
            self.store_clock().await;
        }
        let updated = store::update(&*self.store, id, event, self.clock.timestamp()).await;
        if is_result && !matches!(updated, Ok(UpdateOutcome::Applied { .. })) {
            self.drain_counts.remove_unfetched(id);
        }
        let updated = updated.inspect_err(|error| self.log_failure("updating a task", error))?;
        if let UpdateOutcome::Applied { before, after: LoadedTask { version, record: after, .. }, effects } =
            &updated
        {
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
                self.bus.notify(id);
            }
        }
        Ok(updated)
    }

    /// Returns the record for display: with a status message that says so if the task's latest change waits
    /// for the store, otherwise unchanged.
    pub fn with_unstored_message(&self, record: Arc<Record>) -> Arc<Record> {
        if record.state.is_ended() || !self.has_unstored(&record.id) {
            return record;
        }
        Arc::new(Record { message: Some(UNSTORED_CHANGE_MESSAGE.to_owned()), ..Record::clone(&record) })
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
        let has_more = found.len() > size;
        found.truncate(size);
        Ok((found, has_more))
    }

    /// Renews the working tasks of this process and removes expired ones. A working task whose lease has
    /// lapsed has lost its call, and ends, unless the proxy is `stopping`: then the task may belong to the
    /// next process. Called periodically. Returns whether more tasks may be due.
    pub(in crate::proxy) async fn sweep(
        &self,
        batch: usize,
        stopping: &DrainWatch,
    ) -> Result<bool, StoreError> {
        let due = self.store.due(self.clock.timestamp(), batch).await?;
        let (mut has_changed, mut failed) = (false, None);
        for task in &due {
            // An unreadable record does not delay the others.
            match self.process_due(task, stopping).await {
                Ok(is_changed) => has_changed |= is_changed,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        self.principal_limits.load().remove_idle();
        // Tasks that are left alone are still due: a batch of nothing else would be returned again.
        failed.map_or(Ok(has_changed && due.len() == batch), Err)
    }

    /// Handles one due task of the sweep: removes an expired task, renews a leased one, ends a lost one, and
    /// leaves a task alone whose owner renews it. Returns whether it has changed the task.
    async fn process_due(
        &self,
        DueTask { id, is_ended, ownership }: &DueTask,
        stopping: &DrainWatch,
    ) -> Result<bool, StoreError> {
        if *is_ended {
            self.store.remove(id).await?;
            self.fetch_metrics.task_expired(id);
            self.drain_counts.remove_unfetched(id);
            tracing::debug!(target: "deferral::task", event = "forgotten", task = %id.tag());
            return Ok(true);
        }
        let event = match self.lease_state(id, ownership) {
            LeaseState::Own => TaskEvent::TtlRenewed,
            // The end of the proxy leaves its tasks to the next process.
            LeaseState::Lapsed if !stopping.is_stopped() => lost_call_event(),
            LeaseState::Lapsed | LeaseState::Foreign => return Ok(false),
        };
        self.change(id, &event).await?;
        Ok(true)
    }

    /// The state of the lease of an unfinished task. This process gives a lease up when it drops the
    /// [`TaskLease`], which it does only after the end of the call is stored, or at the end of the proxy;
    /// the lease of another process lapses at its end.
    pub(in crate::proxy) fn lease_state(&self, id: &TaskId, ownership: &TaskOwnership) -> LeaseState {
        match ownership.owner == self.process() {
            true if self.leased.contains_key(id) => LeaseState::Own,
            false if !ownership.has_lapsed(self.clock.timestamp()) => LeaseState::Foreign,
            true | false => LeaseState::Lapsed,
        }
    }
}

// === impl TaskLease ===

impl TaskLease {
    /// Counts and logs the stored task; called when its handle is sent to a client. A task that is discarded
    /// before this is never counted. Idempotent.
    pub fn mark_created(&mut self) {
        let Some(record) = self.ledger.last_stored(&self.id).filter(|_| !self.is_counted) else { return };
        self.is_counted = true;
        let principal = principal_of(&record.owner.principal);
        let (task, route, tool) = (self.id.tag(), &record.owner.route, &record.tool);
        TaskCreated { task: &task, route, tool, principal: &principal }.emit();
        self.ledger.fetch_metrics.task_created(&record);
        self.ledger.drain_counts.count_created();
    }

    /// Removes a task whose handle reached no client; if it was counted, its end is logged as cancelled. If
    /// the store fails, the sweep later ends the task, which is then a working task without a lease.
    pub async fn discard(mut self) {
        match self.ledger.store.remove(&self.id).await {
            Ok(()) => {
                let record = self.ledger.last_stored(&self.id);
                self.ledger.fetch_metrics.task_discarded(&self.id);
                self.ledger.drain_counts.remove_unfetched(&self.id);
                if let Some(record) = record.filter(|record| self.is_counted && !record.state.is_ended()) {
                    let age = self.ledger.clock.timestamp().since(record.created);
                    let end =
                        TaskEnd { waited: record.elapsed_before_task, age, code: None, is_tool_error: false };
                    emit_transition(&record, record.state.status(), TaskState::Cancelled.status(), Some(end));
                }
            }
            Err(error) => {
                self.mark_created();
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

/// The event that fails a task whose call no process runs any more (`OUTCOME_UNKNOWN`).
pub(in crate::proxy) fn lost_call_event() -> TaskEvent {
    let error = ErrorObject::new(code::OUTCOME_UNKNOWN, LOST_CALL_MESSAGE);
    TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(LOST_CALL_MESSAGE.to_owned()) }
}

/// The details of the task's end, for the log and the metrics; `None` if the task has not ended.
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

/// Logs and counts a change of the task's status.
fn emit_transition(record: &Record, from: &str, to: &str, end: Option<TaskEnd>) {
    TaskTransition {
        task: &record.id.tag(),
        route: &record.owner.route,
        tool: &record.tool,
        principal: &principal_of(&record.owner.principal),
        from,
        to,
        end,
        reason: failure_reason(record).as_deref(),
    }
    .emit();
}

/// The reason why a task failed, if it did. Of a server's error only the code is returned, because its text
/// may contain the arguments of the call.
fn failure_reason(record: &Record) -> Option<String> {
    let TaskState::Failed { error } = &record.state else { return None };
    let error = ErrorObject::from_raw(error.clone());
    Some(if code::is_own(error.code()) { error.message() } else { format!("error {}", error.code()) })
}

/// The principal with this stored digest.
fn principal_of(principal: &[u8; 16]) -> Principal {
    Principal::from_bytes(*principal)
}
