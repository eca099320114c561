//! What every call on a route needs.

use super::{
    CallRegistry, TaskLedger,
    admission::{CallLimitError, CallLimiters, GatePath, LimitedCall, LimiterRegistry, PendingAdmission},
    pending_credentials::PendingCredentials,
    relay::ReplayBuffers,
    server_profile::ServerProfile,
    session::LegacySessions,
    tool_lists::{ToolListCache, ToolListReader},
};
use crate::{
    bridge::{ToolParamHeaders, describe, request_state::SealKeyring},
    dialect::{Caller, ClientInfo, Credentials, Principal},
    policy::Route,
    protocol::{Capabilities, Method, method::RequiredCapability},
    runtime::{Clock, Drain, DrainWatch},
    task::{Record, TaskPrincipal, TaskSharing, view::experimental},
    telemetry::trace::Tracer,
    upstream::{CallError, CallerIdentity, Deferral, Upstream, UpstreamDescription, own_ids},
};
use bytes::Bytes;
use http::HeaderMap;
use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

/// What every call on a route needs: what the configuration says of it, as it was when the call began, and what
/// outlasts that.
pub(super) struct RouteContext {
    pub(super) route: Arc<Route>,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<SealKeyring>,
    /// Limits of its calls; `Missing` where there are none.
    pub(super) limiters: Option<Arc<CallLimiters>>,
    pub(super) state: Arc<RouteState>,
}

/// What of a route stays as long as its server does, whatever the configuration says of it.
pub(super) struct RouteState {
    pub(super) upstream: Arc<dyn Upstream>,
    /// The tasks of all routes.
    pub(super) ledger: Arc<TaskLedger>,
    /// The calls that are held in this process.
    pub(super) call_registry: Arc<CallRegistry>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tracer: Tracer,
    /// Begins when the proxy is told to stop: new calls are refused. Knows who is at work.
    pub(super) stopping: DrainWatch,
    /// Begins when the time to end by itself is over.
    pub(super) overdue: DrainWatch,
    /// Begins when nobody works any more: who only listens is told that it is over.
    pub(super) closing: DrainWatch,
    /// Knows the requests that are on their way here.
    pub(super) arrivals: (Drain, DrainWatch),
    /// Knows the calls and the tasks that are at work here.
    pub(super) active_work: Drain,
    /// Tells those who listen that the server is let go.
    pub(super) listeners: Drain,
    /// What was in this one's place before, and is not let go yet; the last first.
    pub(super) predecessors: Vec<Weak<Self>>,
    pub(super) tool_lists: ToolListCache,
    pub(super) server_profile: ServerProfile,
    /// Answers whose events got their ids here.
    pub(super) replay_buffers: Arc<ReplayBuffers>,
    /// The sessions of legacy clients.
    pub(super) sessions: LegacySessions,
    /// The callers whose calls wait to be taken up.
    pub(super) pending_credentials: Arc<PendingCredentials>,
    /// The gates and allowances of its calls.
    pub(super) limiter_registry: LimiterRegistry,
}

// === impl Shared ===

impl Deref for RouteContext {
    type Target = RouteState;

    fn deref(&self) -> &RouteState {
        &self.state
    }
}

impl RouteContext {
    pub(super) fn copy(&self) -> Self {
        let Self { route, keyring, limiters, state: lasting } = self;
        Self {
            route: Arc::clone(route),
            keyring: Arc::clone(keyring),
            limiters: limiters.clone(),
            state: Arc::clone(lasting),
        }
    }

    /// Admits a new call of this tool, or those of a batch. `Missing` where its route has no limits.
    ///
    /// # Errors
    /// [`CallLimitError`]: nothing is to be sent.
    pub(super) fn admit<'a>(
        &self,
        tools: impl Iterator<Item = &'a str>,
        principal: Principal,
    ) -> Result<Option<PendingAdmission>, CallLimitError> {
        let Some(limiters) = &self.limiters else { return Ok(None) };
        limiters.admit(&self.route, tools, principal, self.clock.now()).map(Some)
    }

    /// Whether a call may become a task: not once the proxy is to stop, where its tasks end with it.
    pub(super) fn makes_tasks(&self) -> bool {
        self.ledger.outlives() || !self.stopping.is_stopped()
    }

    /// What limits a driven call of this tool; `Missing` where nothing does.
    pub(super) fn call_limits(
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

    pub(super) fn task_owner(&self, caller: &Caller) -> TaskPrincipal {
        TaskPrincipal {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: TaskSharing::Principal,
        }
    }

    /// What a client shows the server, by the headers of its request.
    pub(super) fn credentials(&self, headers: &HeaderMap) -> Credentials {
        Credentials::from_request(headers, &self.route.forward)
    }

    /// The server as it described itself last. It is not asked: what is said of a task must not wait
    /// for it.
    pub(super) fn server(&self) -> Arc<UpstreamDescription> {
        self.upstream.last_description().unwrap_or_else(|| Arc::new(UpstreamDescription::unknown()))
    }

    /// Who serves the call of a task: the server as it was described when the call was made, else as it is now. A process
    /// that has taken over the task may not have heard of the server yet.
    pub(super) fn server_info_of(&self, record: &Record) -> Bytes {
        record.server_info.clone().unwrap_or_else(|| self.server().server_info.clone())
    }

    /// Whether the server declared what a method needs. What it did not declare is tried all the same: some servers
    /// declare less than they have.
    pub(super) fn declares(&self, method: &Method, server: &UpstreamDescription) -> bool {
        let needs = method.modern_requirement().unwrap_or(RequiredCapability::Nothing);
        describe::declares(&server.capabilities, needs)
    }

    /// Looks at what [`tool_list`](Self::tool_list) gives, where nobody has to be waited for.
    pub(super) fn peek_tool_list<T>(
        &self,
        caller: &Caller,
        look: impl FnOnce(Option<&ToolParamHeaders>) -> T,
    ) -> Option<T> {
        self.tool_lists.peek(caller, &*self.clock, look)
    }

    /// The tools of the server as this caller sees them, or nothing where they cannot be listed, or not in a moment.
    pub(super) async fn tool_list(&self, caller: &Caller) -> Option<Arc<ToolParamHeaders>> {
        let reader = ToolListReader {
            route: &self.route.path,
            upstream: &self.upstream,
            clock: &self.clock,
            closing: &self.closing,
            caller,
            next_id: own_ids::next,
        };
        self.tool_lists.get(reader).await
    }

    /// Whether the legacy server has tasks of its own.
    pub(super) async fn server_has_tasks(&self, principal: Principal, headers: &HeaderMap) -> bool {
        self.server_profile.has_tasks(&*self.upstream, || self.identity(principal, headers)).await
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
        let caller = || self.identity(principal, headers);
        self.server_profile.survives_delete(&*self.upstream, caller).await
    }

    /// Who asks the server what it is, with the credentials of a legacy client.
    fn identity(&self, principal: Principal, headers: &HeaderMap) -> CallerIdentity {
        CallerIdentity {
            principal,
            credentials: self.credentials(headers),
            capabilities: Arc::new(Capabilities::none()),
            client_info: ClientInfo::default(),
        }
    }

    /// How tasks of 2025-11-25 are shown here.
    pub(super) fn legacy_terms(&self) -> experimental::ViewOptions {
        experimental::ViewOptions {
            poll: self.ledger.quotas().poll_interval,
            tool_errors: match self.route.legacy_tasks.errors_complete {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
