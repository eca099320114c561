//! The context of calls on a route.

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

/// The context of calls on a route: the configuration at the start of the call, and the state that outlives
/// it.
pub(super) struct RouteContext {
    pub(super) route: Arc<Route>,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<SealKeyring>,
    /// The limits of its calls; `None` if there are none.
    pub(super) limiters: Option<Arc<CallLimiters>>,
    pub(super) state: Arc<RouteState>,
}

/// The state of a route that lives as long as its server, across reloads.
pub(super) struct RouteState {
    pub(super) upstream: Arc<dyn Upstream>,
    /// The tasks of all routes.
    pub(super) ledger: Arc<TaskLedger>,
    /// The calls that run in this process.
    pub(super) call_registry: Arc<CallRegistry>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tracer: Tracer,
    /// Signals shutdown: new calls are refused. Tracks running work.
    pub(super) stopping: DrainWatch,
    /// Signals that the drain time is over.
    pub(super) overdue: DrainWatch,
    /// Signals that no work is left: listening streams end.
    pub(super) closing: DrainWatch,
    /// Tracks the requests on their way to the route.
    pub(super) arrivals: (Drain, DrainWatch),
    /// Tracks running calls and tasks.
    pub(super) active_work: Drain,
    /// Ends listening streams when the server is removed.
    pub(super) listeners: Drain,
    /// Former states of the route that are not removed yet; the last first.
    pub(super) predecessors: Vec<Weak<Self>>,
    pub(super) tool_lists: ToolListCache,
    pub(super) server_profile: ServerProfile,
    /// Responses whose events have ids of the proxy.
    pub(super) replay_buffers: Arc<ReplayBuffers>,
    /// The sessions of legacy clients.
    pub(super) sessions: LegacySessions,
    /// Callers whose calls wait to be resumed with their credentials.
    pub(super) pending_credentials: Arc<PendingCredentials>,
    /// The gates and allowances of its calls.
    pub(super) limiter_registry: LimiterRegistry,
}

// === impl RouteContext ===

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

    /// Admits a new call of this tool, or those of a batch. `None` if the route has no limits.
    ///
    /// # Errors
    /// [`CallLimitError`]: nothing may be sent.
    pub(super) fn admit<'a>(
        &self,
        tools: impl Iterator<Item = &'a str>,
        principal: Principal,
    ) -> Result<Option<PendingAdmission>, CallLimitError> {
        let Some(limiters) = &self.limiters else { return Ok(None) };
        limiters.admit(&self.route, tools, principal, self.clock.now()).map(Some)
    }

    /// Whether a call may become a task: not during shutdown if tasks end with the process.
    pub(super) fn makes_tasks(&self) -> bool {
        self.ledger.outlives() || !self.stopping.is_stopped()
    }

    /// The limits of a driven call of this tool; `None` if there are none.
    pub(super) fn call_limits(
        &self,
        tool: &str,
        principal: Principal,
        deferral: Option<&Deferral>,
    ) -> Option<Box<LimitedCall>> {
        let timeout = self.route.has_timeouts().then(|| self.route.call_timeout(tool)).flatten();
        let path = self.limiters.as_ref();
        let path = path.and_then(|limiters| GatePath::for_tool(limiters, &self.route, tool, principal));
        let is_limited = timeout.is_some() || path.is_some();
        is_limited.then(|| Box::new(LimitedCall { gate_path: path, timeout, deferral: deferral.cloned() }))
    }

    pub(super) fn task_owner(&self, caller: &Caller) -> TaskPrincipal {
        TaskPrincipal {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: TaskSharing::Principal,
        }
    }

    /// A client's credentials, from the headers of its request.
    pub(super) fn credentials(&self, headers: &HeaderMap) -> Credentials {
        Credentials::from_request(headers, &self.route.session_headers)
    }

    /// The last description of the server. The server is not asked: information about a task must not wait
    /// for it.
    pub(super) fn server(&self) -> Arc<UpstreamDescription> {
        self.upstream.last_description().unwrap_or_else(|| Arc::new(UpstreamDescription::unknown()))
    }

    /// The server info of a task: from when its call was made, otherwise the current one. A process that has
    /// recovered the task may not have described the server yet.
    pub(super) fn server_info_of(&self, record: &Record) -> Bytes {
        record.server_info.clone().unwrap_or_else(|| self.server().server_info.clone())
    }

    /// Whether the server declared what a method needs. Undeclared methods are tried all the same: some
    /// servers declare less than they have.
    pub(super) fn declares(&self, method: &Method, server: &UpstreamDescription) -> bool {
        let needs = method.modern_requirement().unwrap_or(RequiredCapability::Nothing);
        describe::has_capability(&server.capabilities, needs)
    }

    /// Passes the list of [`tool_list`](Self::tool_list) to `look`, if it is cached.
    pub(super) fn peek_tool_list<T>(
        &self,
        caller: &Caller,
        look: impl FnOnce(Option<&ToolParamHeaders>) -> T,
    ) -> Option<T> {
        self.tool_lists.peek(caller, &*self.clock, look)
    }

    /// The server's tools as this caller sees them; `None` if they cannot be listed, or not in time.
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

    /// Whether the legacy server keeps serving after a DELETE.
    ///
    /// # Errors
    /// [`CallError`] if the server cannot be reached.
    pub(super) async fn server_survives_delete(
        &self,
        principal: Principal,
        headers: &HeaderMap,
    ) -> Result<bool, CallError> {
        let caller = || self.identity(principal, headers);
        self.server_profile.survives_delete(&*self.upstream, caller).await
    }

    /// The identity for describing the server, with the credentials of a legacy client.
    fn identity(&self, principal: Principal, headers: &HeaderMap) -> CallerIdentity {
        CallerIdentity {
            principal,
            credentials: self.credentials(headers),
            capabilities: Arc::new(Capabilities::none()),
            client_info: ClientInfo::default(),
        }
    }

    /// The view options for tasks of 2025-11-25.
    pub(super) fn legacy_terms(&self) -> experimental::ViewOptions {
        experimental::ViewOptions {
            poll: self.ledger.quotas().poll_interval,
            tool_errors: match self.route.legacy_tasks.completes_on_tool_error {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
