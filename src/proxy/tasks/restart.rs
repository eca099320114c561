//! Recovery of the tasks that a former process left in a durable store.
//!
//! Ended tasks stay as they are. Unfinished tasks belong to this process from its start on, so that no task
//! is `working` without a call. The call of an unfinished task is resumed if its server allows that;
//! otherwise the task fails with an error that says that the call may have run. The call is never sent again.
//! If a task was cancelled and its server may not have been notified, the server is notified now.
//!
//! Credentials are not stored. A call whose caller sent credentials is resumed with the caller's next request
//! of any kind, because that request carries them again. The call waits no longer than `resume.wait`.

use super::{
    anchor::TaskAnchor,
    ledger::{TaskLease, lost_call_event},
    orphan_report::{OrphanFate, OrphanReport},
    persist::{FIRST_RETRY_DELAY, STORE_RETRY_DELAY},
};
use crate::{
    dialect::{Credentials, Principal},
    proxy::{
        TaskLedger,
        drive::{self, Resumption},
        endpoint::Endpoint,
        route_context::RouteContext,
    },
    runtime::DrainWatch,
    store::OrphanTask,
    task::{Record, TaskState},
    upstream::{CallerIdentity, own_ids},
};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::time::sleep;

/// Orphaned tasks that are taken over with one request to the store.
const BATCH_SIZE: usize = 256;

/// A task of a process that is gone, and the anchor of its call.
struct OrphanedTask {
    lease: TaskLease,
    /// The record as it was found in the store.
    record: Arc<Record>,
    anchor: TaskAnchor,
    fate: OrphanFate,
}

// === impl TaskLedger ===

impl TaskLedger {
    /// Recovers all tasks of former processes. Stops early when the drain time is over (`overdue`).
    pub(in crate::proxy) async fn recover_orphans(
        self: &Arc<Self>,
        endpoints: &[Endpoint],
        overdue: &DrainWatch,
    ) {
        let report = Arc::<OrphanReport>::default();
        loop {
            let orphans = tokio::select! {
                biased;
                () = overdue.stopped() => return,
                orphans = self.take_orphans(BATCH_SIZE) => orphans,
            };
            match orphans {
                Ok(orphans) if orphans.is_empty() => break,
                Ok(orphans) => {
                    let unresumable = orphans
                        .into_iter()
                        .filter_map(|orphan| self.recover(orphan, endpoints, report.add()));
                    // Concurrent: a store that flushes its writes uses one flush for all.
                    join_all(unresumable.map(|(lease, fate)| fail_orphan(self, lease, fate, overdue))).await;
                }
                // Safe to retry: orphans stay unowned in the store.
                Err(_) => tokio::select! {
                    () = overdue.stopped() => return,
                    () = sleep(STORE_RETRY_DELAY) => {}
                },
            }
        }
        // Not tracked: shutdown does not wait for the report.
        tokio::spawn(report.emit(overdue.clone()));
    }

    /// Takes over an orphaned task, and resumes its call in the background. Returns the lease and the fate if
    /// the call cannot be resumed, because its route or its anchor is missing: then the caller ends the task.
    fn recover(
        self: &Arc<Self>,
        OrphanTask { version, record, anchor }: OrphanTask,
        endpoints: &[Endpoint],
        fate: OrphanFate,
    ) -> Option<(TaskLease, OrphanFate)> {
        let anchor = self.open_anchor(&record.id, anchor.as_ref());
        let shared = endpoints
            .iter()
            .map(Endpoint::call_context)
            .find(|shared| shared.route.path == record.owner.route);
        let lease = self.adopt(version, &record);
        let (Some(shared), Some(anchor)) = (shared, anchor) else { return Some((lease, fate)) };
        let needs_credentials = anchor.needs_credentials;
        own_ids::skip_past(anchor.call.call);
        let orphan = OrphanedTask { lease, record, anchor, fate };
        match needs_credentials {
            true => orphan.wait_for_credentials(shared),
            false => orphan.resume(shared, Credentials::default()),
        }
        None
    }
}

// === impl OrphanedTask ===

impl OrphanedTask {
    /// Resumes the call in the background, or ends the task if resuming is impossible.
    fn resume(self, shared: &Arc<RouteContext>, credentials: Credentials) {
        let Self { lease, record: _, anchor, fate } = self;
        let registration = shared.ledger.call_registry.register_for_resumption(lease.id.clone());
        let resumption = Resumption { registration, lease, fate };
        let context = Arc::clone(shared);
        shared.stopping.spawn(async move {
            let Some(record) = load_record(&context, &resumption.lease).await else { return };
            match &record.state {
                TaskState::Working | TaskState::InputRequired { .. } => {
                    let resumed =
                        drive::resume_call(&context, resumption, &record, &anchor, credentials.clone());
                    if let Err(resumption) = resumed {
                        fail_unresumable(&context, resumption, &anchor, credentials).await;
                    }
                }
                TaskState::Cancelled => {
                    notify_cancelled(&context, resumption, &record, &anchor, credentials).await
                }
                TaskState::Completed { .. } | TaskState::Failed { .. } => {
                    resumption.fate.record_ended(&record.state)
                }
            }
        });
    }

    /// Waits in the background for the next request of the task's caller, and resumes the call with the
    /// credentials of that request. Ends the task if none arrives within `resume.wait`.
    fn wait_for_credentials(mut self, shared: &Arc<RouteContext>) {
        self.fate.mark_waiting();
        let principal = Principal::from_bytes(self.record.owner.principal);
        let mut receiver = shared.pending_credentials.wait_for(principal);
        let shared = Arc::clone(shared);
        let pending_guard = shared.ledger.count_pending();
        // Not tracked: shutdown does not wait for the caller, and the next process waits anew.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.overdue.stopped() => {}
                Ok(credentials) = &mut receiver => {
                    // The request may be one that cancels the task.
                    drop(pending_guard);
                    self.fate.mark_pending();
                    self.resume(&shared, credentials);
                }
                () = sleep(shared.route.resume.credentials_timeout) => {
                    drop(receiver);
                    shared.pending_credentials.remove_abandoned(principal);
                    fail_orphan(&shared.ledger, self.lease, self.fate, &shared.overdue).await;
                }
            }
        });
    }
}

/// Loads the current record of the leased task, with retries until the store responds. `None` if the record
/// was removed or the drain time is over.
async fn load_record(shared: &RouteContext, lease: &TaskLease) -> Option<Arc<Record>> {
    let mut pause = FIRST_RETRY_DELAY;
    loop {
        tokio::select! {
            biased;
            () = shared.overdue.stopped() => return None,
            found = shared.ledger.load_leased(&lease.id) => if let Ok(found) = found {
                return found;
            },
        }
        tokio::select! {
            biased;
            () = shared.overdue.stopped() => return None,
            () = sleep(pause) => pause = (pause * 2).min(STORE_RETRY_DELAY),
        }
    }
}

/// Fails a task whose call cannot be resumed. If its client cancelled the task first, notifies the server of
/// the cancellation instead.
async fn fail_unresumable(
    shared: &Arc<RouteContext>,
    resumption: Resumption,
    anchor: &TaskAnchor,
    credentials: Credentials,
) {
    drop(resumption.lease.persist(lost_call_event(), &shared.overdue).await);
    match shared.ledger.last_stored(&resumption.lease.id) {
        Some(record) if record.state == TaskState::Cancelled => {
            notify_cancelled(shared, resumption, &record, anchor, credentials).await;
        }
        Some(record) => resumption.fate.record_ended(&record.state),
        None => {}
    }
}

/// Fails a task whose call is lost. If the task was cancelled before, its server cannot be notified.
async fn fail_orphan(ledger: &Arc<TaskLedger>, lease: TaskLease, fate: OrphanFate, overdue: &DrainWatch) {
    drop(lease.persist(lost_call_event(), overdue).await);
    match ledger.load_leased(&lease.id).await {
        Ok(Some(record)) if record.state == TaskState::Cancelled => {
            let _ = ledger.remove_anchor(&lease.id).await;
            fate.record_cancelled(false);
        }
        Ok(Some(record)) => fate.record_ended(&record.state),
        // Left to the next process.
        Ok(None) | Err(_) => {}
    }
}

/// Notifies the server that the call of a cancelled task is cancelled.
async fn notify_cancelled(
    shared: &RouteContext,
    Resumption { registration, lease, fate }: Resumption,
    record: &Record,
    anchor: &TaskAnchor,
    credentials: Credentials,
) {
    // The call does not run here: it must not receive further messages.
    drop(registration);
    let principal = Principal::from_bytes(record.owner.principal);
    let caller = CallerIdentity { credentials, ..CallerIdentity::of_principal(principal) };
    let cancelling = async {
        match shared.upstream.resumption() {
            Some(server) => server.cancel_at(&caller, &anchor.call).await,
            None => false,
        }
    };
    tokio::select! {
        () = shared.overdue.stopped() => return,
        is_notified = cancelling => fate.record_cancelled(is_notified),
    }
    let _ = shared.ledger.remove_anchor(&lease.id).await;
}
