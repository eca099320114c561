//! What every call on a route needs.

use super::{
    Ledger, Switchboard,
    absent::Absent,
    admission::{CallLimiters, GatePath, Gates, LimitedCall, NotAdmitted, Turn},
    catalogues::{Catalogues, Reader},
    relay::Minted,
    server_profile::ServerProfile,
    session::Sessions,
};
use crate::{
    bridge::{Catalogue, describe, resume::Keyring},
    dialect::{Caller, ClientInfo, Credentials, Principal},
    policy::Route,
    protocol::{Capabilities, Method, method::Needs},
    runtime::{Clock, Drain, Stopping},
    task::{Owner, Record, Scope, view::experimental},
    telemetry::trace::Tracer,
    upstream::{CallError, Deferral, Description, Identity, Upstream, own_ids},
};
use bytes::Bytes;
use http::HeaderMap;
use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

/// What every call on a route needs: what the configuration says of it, as it was when the call began, and what
/// outlasts that.
pub(super) struct Shared {
    pub(super) route: Arc<Route>,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<Keyring>,
    /// Limits of its calls; `None` where there are none.
    pub(super) limiters: Option<Arc<CallLimiters>>,
    pub(super) lasting: Arc<Lasting>,
}

/// What of a route stays as long as its server does, whatever the configuration says of it.
pub(super) struct Lasting {
    pub(super) upstream: Arc<dyn Upstream>,
    /// The tasks of all routes.
    pub(super) ledger: Arc<Ledger>,
    /// The calls that are held in this process.
    pub(super) switchboard: Arc<Switchboard>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tracer: Tracer,
    /// Begins when the proxy is told to stop: new calls are refused. Knows who is at work.
    pub(super) stopping: Stopping,
    /// Begins when the time to end by itself is over.
    pub(super) overdue: Stopping,
    /// Begins when nobody works any more: who only listens is told that it is over.
    pub(super) closing: Stopping,
    /// Knows the requests that are on their way here.
    pub(super) arrivals: (Drain, Stopping),
    /// Knows the calls and the tasks that are at work here.
    pub(super) in_hand: Drain,
    /// Tells those who listen that the server is let go.
    pub(super) listening: Drain,
    /// What was in this one's place before, and is not let go yet; the last first.
    pub(super) former: Vec<Weak<Self>>,
    pub(super) catalogues: Catalogues,
    pub(super) server_profile: ServerProfile,
    /// Answers whose events got their ids here.
    pub(super) minted: Arc<Minted>,
    /// The sessions of legacy clients.
    pub(super) sessions: Sessions,
    /// The callers whose calls wait to be taken up.
    pub(super) absent: Arc<Absent>,
    /// The gates and allowances of its calls.
    pub(super) gates: Gates,
}

// === impl Shared ===

impl Deref for Shared {
    type Target = Lasting;

    fn deref(&self) -> &Lasting {
        &self.lasting
    }
}

impl Shared {
    pub(super) fn copy(&self) -> Self {
        let Self { route, keyring, limiters, lasting } = self;
        Self {
            route: Arc::clone(route),
            keyring: Arc::clone(keyring),
            limiters: limiters.clone(),
            lasting: Arc::clone(lasting),
        }
    }

    /// Admits a new call of this tool, or those of a batch. `None` where its route has no limits.
    ///
    /// # Errors
    /// [`NotAdmitted`]: nothing is to be sent.
    pub(super) fn admit<'a>(
        &self,
        tools: impl Iterator<Item = &'a str>,
        principal: Principal,
    ) -> Result<Option<Turn>, NotAdmitted> {
        let Some(limiters) = &self.limiters else { return Ok(None) };
        limiters.admit(&self.route, tools, principal, self.clock.now()).map(Some)
    }

    /// Whether a call may become a task: not once the proxy is to stop, where its tasks end with it.
    pub(super) fn makes_tasks(&self) -> bool {
        self.ledger.outlives() || !self.stopping.is_stopped()
    }

    /// What limits a driven call of this tool; `None` where nothing does.
    pub(super) fn limited(
        &self,
        tool: &str,
        principal: Principal,
        deferral: Option<&Deferral>,
    ) -> Option<Box<LimitedCall>> {
        let timeout = self.route.has_timeouts().then(|| self.route.call_timeout(tool)).flatten();
        let path = self.limiters.as_ref();
        let path = path.and_then(|limiters| GatePath::of(limiters, &self.route, tool, principal));
        let is_limited = timeout.is_some() || path.is_some();
        is_limited.then(|| Box::new(LimitedCall { path, timeout, deferral: deferral.cloned() }))
    }

    pub(super) fn owner(&self, caller: &Caller) -> Owner {
        Owner {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: Scope::Principal,
        }
    }

    /// What a client shows the server, by the headers of its request.
    pub(super) fn credentials(&self, headers: &HeaderMap) -> Credentials {
        Credentials::of(headers, &self.route.forward)
    }

    /// The server as it described itself last. It is not asked: what is said of a task must not wait
    /// for it.
    pub(super) fn server(&self) -> Arc<Description> {
        self.upstream.described().unwrap_or_else(|| Arc::new(Description::unknown()))
    }

    /// Who serves the call of a task: the server as it was described when the call was made, else as it is now. A process
    /// that has taken over the task may not have heard of the server yet.
    pub(super) fn server_info_of(&self, record: &Record) -> Bytes {
        record.server_info.clone().unwrap_or_else(|| self.server().server_info.clone())
    }

    /// Whether the server declared what a method needs. What it did not declare is tried all the same: some servers
    /// declare less than they have.
    pub(super) fn declares(&self, method: &Method, server: &Description) -> bool {
        let needs = method.modern().unwrap_or(Needs::Nothing);
        describe::declares(&server.capabilities, needs)
    }

    /// Looks at what [`catalogue`](Self::catalogue) gives, where nobody has to be waited for.
    pub(super) fn known_catalogue<T>(
        &self,
        caller: &Caller,
        look: impl FnOnce(Option<&Catalogue>) -> T,
    ) -> Option<T> {
        self.catalogues.known(caller, &*self.clock, look)
    }

    /// The tools of the server as this caller sees them, or nothing where they cannot be listed, or not in a moment.
    pub(super) async fn catalogue(&self, caller: &Caller) -> Option<Arc<Catalogue>> {
        let reader = Reader {
            route: &self.route.path,
            upstream: &self.upstream,
            clock: &self.clock,
            closing: &self.closing,
            caller,
            next_id: own_ids::next,
        };
        self.catalogues.get(reader).await
    }

    /// Whether the legacy server has tasks of its own.
    pub(super) async fn server_has_tasks(&self, principal: Principal, headers: &HeaderMap) -> bool {
        self.server_profile.has_tasks(&*self.upstream, || self.asker(principal, headers)).await
    }

    /// Whether the legacy server goes on serving after a DELETE.
    ///
    /// # Errors
    /// [`CallError`] where the server cannot be reached.
    pub(super) async fn server_survives_delete(
        &self,
        principal: Principal,
        headers: &HeaderMap,
    ) -> Result<bool, CallError> {
        let caller = || self.asker(principal, headers);
        self.server_profile.survives_delete(&*self.upstream, caller).await
    }

    /// Who asks the server what it is, with the credentials of a legacy client.
    fn asker(&self, principal: Principal, headers: &HeaderMap) -> Identity {
        Identity {
            principal,
            credentials: self.credentials(headers),
            capabilities: Arc::new(Capabilities::none()),
            client_info: ClientInfo::default(),
        }
    }

    /// How tasks of 2025-11-25 are shown here.
    pub(super) fn legacy_terms(&self) -> experimental::Terms {
        experimental::Terms {
            poll: self.ledger.quotas().poll_interval,
            tool_errors: match self.route.legacy_tasks.errors_complete {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
