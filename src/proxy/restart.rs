//! What a process before this one has left behind in a store that lasts.
//!
//! What had ended is there, and needs nobody. A task that had not is this process's from its start on, so that
//! none is ever `working` that nobody works at: its call is taken up where it is, if its server keeps what it says
//! for that, and otherwise its task ends, with an error that says that the call may have run. It is never made
//! again. A task that was cancelled, and whose server may not have heard of it, is told to the server.
//!
//! Credentials are not kept. A call whose caller showed any is taken up when the caller next comes, whatever it
//! comes for, as that request shows them again; it is waited for no longer than `resume.wait`.

use super::{
    Ledger,
    anchor::Anchor,
    drive,
    endpoint::Endpoint,
    keep::STORE_PAUSE,
    ledger::{Custody, lost},
    orphan_report::{OrphanFate, OrphanReport},
    shared::Shared,
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::Capabilities,
    runtime::Stopping,
    store::Orphan,
    task::{Record, State},
    upstream::{Identity, own_ids},
};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::time::sleep;

/// How many are asked for at a time.
const BATCH: usize = 256;

/// A task of a process that is gone, and what is known of its call.
struct LeftBehind {
    custody: Custody,
    record: Arc<Record>,
    anchor: Anchor,
    fate: OrphanFate,
}

/// How a task ends that nobody can go on with.
enum End {
    /// It had not ended: its call is lost.
    Lost(Custody, OrphanFate),
    /// It is cancelled, and nobody can be told.
    Forgotten(Custody, OrphanFate),
}

// === impl Ledger ===

impl Ledger {
    /// Sees to all that was left behind, or to as much as there is time for.
    pub(super) async fn take_over(self: &Arc<Self>, endpoints: &[Endpoint], overdue: &Stopping) {
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
                        orphans.into_iter().filter_map(|one| self.see_to(one, endpoints, report.found()));
                    // All of them at once: in a store that flushes they share one.
                    join_all(ends.map(|end| end.keep(self, overdue))).await;
                }
                // Nothing of them is lost meanwhile: they are nobody's.
                Err(_) => tokio::select! {
                    () = overdue.stopped() => return,
                    () = sleep(STORE_PAUSE) => {}
                },
            }
        }
        // Nothing that a proxy that stops waits for.
        tokio::spawn(report.write(overdue.clone()));
    }

    /// Goes on with the call in the background; or gives how it ends, where nothing else can be done for it.
    fn see_to(
        self: &Arc<Self>,
        Orphan { version, record, anchor }: Orphan,
        endpoints: &[Endpoint],
        fate: OrphanFate,
    ) -> Option<End> {
        let anchor = self.anchored(&record.id, anchor.as_ref());
        let shared =
            endpoints.iter().map(Endpoint::shared).find(|shared| shared.route.path == record.owner.route);
        let custody = self.adopt(version, &record);
        match (shared, anchor) {
            (Some(shared), Some(anchor)) => {
                let needs_credentials = anchor.needs_credentials;
                own_ids::begin_behind(anchor.call.call);
                let left = LeftBehind { custody, record, anchor, fate };
                match needs_credentials {
                    true => left.wait(shared),
                    false => left.take_up(shared, Credentials::default()),
                }
                None
            }
            _ if record.state.is_ended() => Some(End::Forgotten(custody, fate)),
            _ => Some(End::Lost(custody, fate)),
        }
    }
}

// === impl End ===

impl End {
    async fn keep(self, ledger: &Ledger, overdue: &Stopping) {
        match self {
            Self::Lost(custody, fate) => lose(ledger, &custody, fate, overdue).await,
            Self::Forgotten(custody, fate) => {
                let _ = ledger.let_go(&custody.id).await;
                fate.cancelled(false);
            }
        }
    }
}

// === impl LeftBehind ===

impl LeftBehind {
    /// Goes on with the call, or says why that cannot be; in the background.
    fn take_up(self, shared: &Arc<Shared>, credentials: Credentials) {
        let Self { custody, record, anchor, fate } = self;
        if record.state.is_ended() {
            return tell_cancelled(shared, (custody, fate), &record, &anchor, credentials);
        }
        let taken_up = drive::take_up(shared, (custody, fate), &record, &anchor, credentials.clone());
        if let Err((custody, fate)) = taken_up {
            let work = Arc::clone(shared);
            shared.stopping.spawn(async move {
                drop(custody.keep(lost(), &work.overdue).await);
                match work.ledger.last_kept(&record.id) {
                    // While the store failed its client may have come first, and cancelled it.
                    Some(record) if record.state == State::Cancelled => {
                        tell_cancelled(&work, (custody, fate), &record, &anchor, credentials);
                    }
                    Some(record) => fate.ended(&record.state),
                    None => {}
                }
            });
        }
    }

    /// The same once its caller comes, if it does so in time; in the background.
    fn wait(mut self, shared: &Arc<Shared>) {
        self.fate.waits();
        let principal = Principal::from_bytes(self.record.owner.principal);
        let mut came = shared.absent.await_caller(principal);
        let shared = Arc::clone(shared);
        let Self { custody, record, anchor, mut fate } = self;
        let waits = shared.ledger.waits();
        // Nothing that a proxy that stops waits for: the next process waits anew.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.overdue.stopped() => {}
                Ok(credentials) = &mut came => {
                    // It may have come to cancel the task.
                    drop(waits);
                    fate.goes_on();
                    match shared.ledger.last_kept(&record.id) {
                        Some(record) if !record.state.is_ended() || record.state == State::Cancelled => {
                            Self { custody, record, anchor, fate }.take_up(&shared, credentials);
                        }
                        _ => {}
                    }
                }
                () = sleep(shared.route.resume.wait) => {
                    drop(came);
                    shared.absent.given_up(principal);
                    match record.state.is_ended() {
                        true => {
                            let _ = shared.ledger.let_go(&record.id).await;
                            fate.cancelled(false);
                        }
                        false => lose(&shared.ledger, &custody, fate, &shared.overdue).await,
                    }
                }
            }
        });
    }
}

/// Ends a task whose call is lost, if nobody else has ended it first.
async fn lose(ledger: &Ledger, custody: &Custody, fate: OrphanFate, overdue: &Stopping) {
    drop(custody.keep(lost(), overdue).await);
    if let Some(record) = ledger.last_kept(&custody.id) {
        fate.ended(&record.state);
    }
}

/// Tells the server that nobody waits any more for the call of a cancelled task, in the background.
fn tell_cancelled(
    shared: &Arc<Shared>,
    (custody, fate): (Custody, OrphanFate),
    record: &Record,
    anchor: &Anchor,
    credentials: Credentials,
) {
    let principal = Principal::from_bytes(record.owner.principal);
    let (capabilities, client_info) = (Arc::new(Capabilities::none()), ClientInfo::default());
    let caller = Identity { principal, credentials, capabilities, client_info };
    let (work, id, anchor) = (Arc::clone(shared), record.id.clone(), anchor.call.clone());
    shared.stopping.spawn(async move {
        tokio::select! {
            () = work.overdue.stopped() => return,
            is_told = work.upstream.cancel_at(&caller, &anchor) => fate.cancelled(is_told),
        }
        let _ = work.ledger.let_go(&id).await;
        drop(custody);
    });
}
