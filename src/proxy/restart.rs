//! Recovery of the tasks that a former process left in a durable store.
//!
//! Ended tasks need nothing. An unfinished task belongs to this process from its start on, so that no task is
//! `working` without a call: the call is resumed if its server allows that, otherwise the task fails with an
//! error that says that the call may have run. It is never sent again. A cancelled task whose server may not
//! have been notified is cancelled there.
//!
//! Credentials are not stored. A call whose caller sent any is resumed with the caller's next request,
//! whatever it is, because that request carries them again; it waits no longer than `resume.wait`.

use super::{
    TaskLedger,
    anchor::TaskAnchor,
    drive,
    endpoint::Endpoint,
    ledger::{TaskLease, lost_event},
    orphan_report::{OrphanFate, OrphanReport},
    persist::STORE_RETRY_DELAY,
    route_context::RouteContext,
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::Capabilities,
    runtime::DrainWatch,
    store::OrphanTask,
    task::{Record, TaskState},
    upstream::{CallerIdentity, own_ids},
};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::time::sleep;

/// Tasks in one request to the store.
const BATCH: usize = 256;

/// A task of a process that is gone, and the anchor of its call.
struct OrphanedTask {
    custody: TaskLease,
    record: Arc<Record>,
    anchor: TaskAnchor,
    fate: OrphanFate,
}

/// The end of a task that cannot be resumed.
enum OrphanOutcome {
    /// It was unfinished: its call is lost.
    Lost(TaskLease, OrphanFate),
    /// It is cancelled, and the server cannot be notified.
    ServerNotNotified(TaskLease, OrphanFate),
}

// === impl TaskLedger ===

impl TaskLedger {
    /// Recovers all tasks of former processes, or as many as there is time for.
    pub(super) async fn recover_orphans(self: &Arc<Self>, endpoints: &[Endpoint], overdue: &DrainWatch) {
        let report = Arc::<OrphanReport>::default();
        loop {
            let orphans = tokio::select! {
                biased;
                () = overdue.stopped() => return,
                orphans = self.orphans(BATCH) => orphans,
            };
            match orphans {
                Ok(orphans) if orphans.is_empty() => break,
                Ok(orphans) => {
                    let ends =
                        orphans.into_iter().filter_map(|one| self.recover(one, endpoints, report.add()));
                    // All at once: a store that flushes shares one flush.
                    join_all(ends.map(|end| end.store(self, overdue))).await;
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

    /// Resumes the call in the background, or returns how the task ends if that is impossible.
    fn recover(
        self: &Arc<Self>,
        OrphanTask { version, record, anchor }: OrphanTask,
        endpoints: &[Endpoint],
        fate: OrphanFate,
    ) -> Option<OrphanOutcome> {
        let anchor = self.open_anchor(&record.id, anchor.as_ref());
        let shared =
            endpoints.iter().map(Endpoint::shared).find(|shared| shared.route.path == record.owner.route);
        let custody = self.adopt(version, &record);
        match (shared, anchor) {
            (Some(shared), Some(anchor)) => {
                let needs_credentials = anchor.needs_credentials;
                own_ids::skip_to(anchor.call.call);
                let left = OrphanedTask { custody, record, anchor, fate };
                match needs_credentials {
                    true => left.wait_for_credentials(shared),
                    false => left.resume(shared, Credentials::default()),
                }
                None
            }
            _ if record.state.is_ended() => Some(OrphanOutcome::ServerNotNotified(custody, fate)),
            _ => Some(OrphanOutcome::Lost(custody, fate)),
        }
    }
}

// === impl OrphanOutcome ===

impl OrphanOutcome {
    async fn store(self, ledger: &TaskLedger, overdue: &DrainWatch) {
        match self {
            Self::Lost(custody, fate) => fail_orphan(ledger, &custody, fate, overdue).await,
            Self::ServerNotNotified(custody, fate) => {
                let _ = ledger.remove_anchor(&custody.id).await;
                fate.record_cancelled(false);
            }
        }
    }
}

// === impl OrphanedTask ===

impl OrphanedTask {
    /// Resumes the call, or ends the task if that is impossible; in the background.
    fn resume(self, shared: &Arc<RouteContext>, credentials: Credentials) {
        let Self { custody, record, anchor, fate } = self;
        if record.state.is_ended() {
            return notify_cancelled(shared, (custody, fate), &record, &anchor, credentials);
        }
        let taken_up = drive::resume_call(shared, (custody, fate), &record, &anchor, credentials.clone());
        if let Err((custody, fate)) = taken_up {
            let work = Arc::clone(shared);
            shared.stopping.spawn(async move {
                drop(custody.persist(lost_event(), &work.overdue).await);
                match work.ledger.last_stored(&record.id) {
                    // The client may have cancelled it while the store failed.
                    Some(record) if record.state == TaskState::Cancelled => {
                        notify_cancelled(&work, (custody, fate), &record, &anchor, credentials);
                    }
                    Some(record) => fate.record_ended(&record.state),
                    None => {}
                }
            });
        }
    }

    /// The same once its caller sends a request in time; in the background.
    fn wait_for_credentials(mut self, shared: &Arc<RouteContext>) {
        self.fate.mark_waiting();
        let principal = Principal::from_bytes(self.record.owner.principal);
        let mut came = shared.pending_credentials.wait_for(principal);
        let shared = Arc::clone(shared);
        let Self { custody, record, anchor, mut fate } = self;
        let waits = shared.ledger.count_pending();
        // Not tracked: shutdown does not wait for it, and the next process waits anew.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.overdue.stopped() => {}
                Ok(credentials) = &mut came => {
                    // The request may be one that cancels the task.
                    drop(waits);
                    fate.mark_pending();
                    match shared.ledger.last_stored(&record.id) {
                        Some(record) if !record.state.is_ended() || record.state == TaskState::Cancelled => {
                            Self { custody, record, anchor, fate }.resume(&shared, credentials);
                        }
                        _ => {}
                    }
                }
                () = sleep(shared.route.resume.wait) => {
                    drop(came);
                    shared.pending_credentials.remove_abandoned(principal);
                    match record.state.is_ended() {
                        true => {
                            let _ = shared.ledger.remove_anchor(&record.id).await;
                            fate.record_cancelled(false);
                        }
                        false => fail_orphan(&shared.ledger, &custody, fate, &shared.overdue).await,
                    }
                }
            }
        });
    }
}

/// Fails a task whose call is lost, unless it has ended meanwhile.
async fn fail_orphan(ledger: &TaskLedger, custody: &TaskLease, fate: OrphanFate, overdue: &DrainWatch) {
    drop(custody.persist(lost_event(), overdue).await);
    if let Some(record) = ledger.last_stored(&custody.id) {
        fate.record_ended(&record.state);
    }
}

/// Notifies the server of a cancelled task, in the background.
fn notify_cancelled(
    shared: &Arc<RouteContext>,
    (custody, fate): (TaskLease, OrphanFate),
    record: &Record,
    anchor: &TaskAnchor,
    credentials: Credentials,
) {
    let principal = Principal::from_bytes(record.owner.principal);
    let (capabilities, client_info) = (Arc::new(Capabilities::none()), ClientInfo::default());
    let caller = CallerIdentity { principal, credentials, capabilities, client_info };
    let (work, id, anchor) = (Arc::clone(shared), record.id.clone(), anchor.call.clone());
    shared.stopping.spawn(async move {
        tokio::select! {
            () = work.overdue.stopped() => return,
            is_told = work.upstream.cancel_at(&caller, &anchor) => fate.record_cancelled(is_told),
        }
        let _ = work.ledger.remove_anchor(&id).await;
        drop(custody);
    });
}
