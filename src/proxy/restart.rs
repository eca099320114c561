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
    shared::Shared,
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::Capabilities,
    runtime::Stopping,
    store::Orphan,
    task::{Record, State},
    telemetry::TakenOver,
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
}

/// How a task ends that nobody can go on with.
enum End {
    /// It had not ended: its call is lost.
    Lost(Custody),
    /// It is cancelled, and nobody can be told.
    Forgotten(Custody),
}

// === impl Ledger ===

impl Ledger {
    /// Sees to all that was left behind, or to as much as there is time for.
    pub(super) async fn take_over(self: &Arc<Self>, endpoints: &[Endpoint], overdue: &Stopping) {
        let mut told = TakenOver::default();
        loop {
            let orphans = tokio::select! {
                biased;
                () = overdue.stopped() => return,
                orphans = self.orphans(BATCH) => orphans,
            };
            match orphans {
                Ok(orphans) if orphans.is_empty() => break,
                Ok(orphans) => {
                    let ends = orphans.into_iter().filter_map(|one| self.see_to(one, endpoints, &mut told));
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
        if told != TakenOver::default() {
            told.emit();
        }
    }

    /// Goes on with the call in the background; or gives how it ends, where nothing else can be done for it.
    fn see_to(
        self: &Arc<Self>,
        Orphan { version, record, anchor }: Orphan,
        endpoints: &[Endpoint],
        told: &mut TakenOver,
    ) -> Option<End> {
        let anchor = self.anchored(&record.id, anchor.as_ref());
        let shared =
            endpoints.iter().map(Endpoint::shared).find(|shared| shared.route.path == record.owner.route);
        let custody = self.adopt(version, &record);
        match (shared, anchor) {
            (Some(shared), Some(anchor)) => {
                let needs_credentials = anchor.needs_credentials;
                own_ids::begin_behind(anchor.call.call);
                let left = LeftBehind { custody, record, anchor };
                match () {
                    () if left.record.state.is_ended() => told.cancelled += 1,
                    () if needs_credentials => told.waiting += 1,
                    () => told.resumed += 1,
                }
                match needs_credentials {
                    true => left.wait(shared),
                    false => left.take_up(shared, Credentials::default()),
                }
                None
            }
            _ if record.state.is_ended() => Some(End::Forgotten(custody)),
            _ => {
                told.failed += 1;
                Some(End::Lost(custody))
            }
        }
    }
}

// === impl End ===

impl End {
    async fn keep(self, ledger: &Ledger, overdue: &Stopping) {
        match self {
            Self::Lost(custody) => drop(custody.keep(lost(), overdue).await),
            Self::Forgotten(custody) => drop(ledger.let_go(&custody.id).await),
        }
    }
}

// === impl LeftBehind ===

impl LeftBehind {
    /// Goes on with the call, or says why that cannot be; in the background.
    fn take_up(self, shared: &Arc<Shared>, credentials: Credentials) {
        let Self { custody, record, anchor } = self;
        if record.state.is_ended() {
            return tell_cancelled(shared, custody, &record, &anchor, credentials);
        }
        if let Err(custody) = drive::take_up(shared, custody, &record, &anchor, credentials.clone()) {
            let work = Arc::clone(shared);
            shared.stopping.spawn(async move {
                drop(custody.keep(lost(), &work.overdue).await);
                // While the store failed its client may have come first, and cancelled it.
                if let Some(record) = work.ledger.last_kept(&record.id)
                    && record.state == State::Cancelled
                {
                    tell_cancelled(&work, custody, &record, &anchor, credentials);
                }
            });
        }
    }

    /// The same once its caller comes, if it does so in time; in the background.
    fn wait(self, shared: &Arc<Shared>) {
        let principal = Principal::from_bytes(self.record.owner.principal);
        let mut came = shared.absent.await_caller(principal);
        let shared = Arc::clone(shared);
        let Self { custody, record, anchor } = self;
        let waits = shared.ledger.waits();
        // Nothing that a proxy that stops waits for: the next process waits anew.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.overdue.stopped() => {}
                Ok(credentials) = &mut came => {
                    // It may have come to cancel the task.
                    drop(waits);
                    match shared.ledger.last_kept(&record.id) {
                        Some(record) if !record.state.is_ended() || record.state == State::Cancelled => {
                            Self { custody, record, anchor }.take_up(&shared, credentials);
                        }
                        _ => {}
                    }
                }
                () = sleep(shared.route.resume.wait) => {
                    drop(came);
                    shared.absent.given_up(principal);
                    match record.state.is_ended() {
                        true => drop(shared.ledger.let_go(&record.id).await),
                        false => drop(custody.keep(lost(), &shared.overdue).await),
                    }
                }
            }
        });
    }
}

/// Tells the server that nobody waits any more for the call of a cancelled task, in the background.
fn tell_cancelled(
    shared: &Arc<Shared>,
    custody: Custody,
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
            () = work.upstream.cancel_at(&caller, &anchor) => {}
        }
        let _ = work.ledger.let_go(&id).await;
        drop(custody);
    });
}
