//! What every call on a route needs.

use super::{
    Ledger, Switchboard,
    catalogues::Catalogues,
    ids,
    legacy::{Offering, Waiting},
    relay::Minted,
    session::{Ended, Plain, Residents, Revisions, Sessions, Streams, Unfinished},
};
use crate::{
    bridge::{Catalogue, describe, resume::Keyring},
    dialect::Caller,
    policy::Route,
    protocol::{Method, method::Needs},
    runtime::{Clock, Stopping},
    task::{Owner, Scope},
    upstream::{Description, Upstream},
};
use std::sync::Arc;

/// What every call on a route needs.
pub(super) struct Shared {
    pub(super) route: Arc<Route>,
    pub(super) upstream: Arc<dyn Upstream>,
    /// The tasks of all routes.
    pub(super) ledger: Arc<Ledger>,
    /// The calls that are held in this process.
    pub(super) switchboard: Arc<Switchboard>,
    pub(super) clock: Arc<dyn Clock>,
    /// Begins when the proxy is told to stop: new calls are refused. Knows who is at work.
    pub(super) stopping: Stopping,
    /// Begins when the time to end by itself is over.
    pub(super) overdue: Stopping,
    /// Begins when nobody works any more: who only listens is told that it is over.
    pub(super) closing: Stopping,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<Keyring>,
    catalogues: Catalogues,
    /// What is known of the tasks of the server's own.
    pub(super) offering: Offering,
    /// Answers whose events got their ids here.
    pub(super) minted: Arc<Minted>,
    /// The sessions of legacy clients that are there.
    pub(super) sessions: Arc<Sessions>,
    /// Those of them that are of 2025-11-25.
    pub(super) revisions: Revisions,
    /// Those of them in which calls of ours are in flight.
    pub(super) residents: Residents,
    /// What legacy clients are asked in calls that are no tasks yet.
    pub(super) plain: Plain,
    /// The calls of legacy clients that may become tasks unasked.
    pub(super) waiting: Waiting,
    /// The streams on which legacy sessions listen.
    pub(super) streams: Arc<Streams>,
    /// What legacy clients have taken back.
    pub(super) ended: Arc<Ended>,
    /// What streams have left unanswered whose clients may come back.
    pub(super) unfinished: Arc<Unfinished>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(
        route: Arc<Route>,
        upstream: Arc<dyn Upstream>,
        ledger: Arc<Ledger>,
        switchboard: Arc<Switchboard>,
        clock: Arc<dyn Clock>,
        keyring: Arc<Keyring>,
        [stopping, overdue, closing]: [Stopping; 3],
    ) -> Self {
        Self {
            route,
            upstream,
            ledger,
            switchboard,
            clock,
            stopping,
            overdue,
            closing,
            keyring,
            catalogues: Catalogues::default(),
            offering: Offering::default(),
            minted: Arc::default(),
            sessions: Arc::default(),
            revisions: Revisions::default(),
            residents: Residents::default(),
            plain: Plain::default(),
            waiting: Waiting::default(),
            streams: Arc::default(),
            ended: Arc::default(),
            unfinished: Arc::default(),
        }
    }

    pub(super) fn owner(&self, caller: &Caller) -> Owner {
        Owner {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: Scope::Principal,
        }
    }

    /// The server as it described itself last. It is not asked: what is said of a task must not wait
    /// for it.
    pub(super) fn server(&self) -> Arc<Description> {
        self.upstream.described().unwrap_or_else(|| Arc::new(Description::unknown()))
    }

    /// Whether the server declared what a method needs. What it did not declare is not served
    /// (2026-07-28, *Discovery*): its own error would have any code.
    pub(super) fn serves(&self, method: &Method, server: &Description) -> bool {
        let needs = method.modern().unwrap_or(Needs::Nothing);
        describe::declares(&server.capabilities, needs)
    }

    /// The tools of the server as this caller sees them, or nothing where they cannot be listed.
    pub(super) async fn catalogue(&self, caller: &Caller) -> Option<Arc<Catalogue>> {
        self.catalogues.get(&*self.upstream, caller, &*self.clock, ids::next).await
    }
}
