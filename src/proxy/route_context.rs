//! The context of calls on a route.

use super::{
    TaskLedger,
    admission::{CallLimitError, CallLimiters, GatePath, LimitedCall, LimiterRegistry, PendingAdmission},
    relay::ReplayBuffers,
    server_profile::ServerProfile,
    session::LegacySessions,
    tasks::pending_credentials::PendingCredentials,
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
    upstream::{
        CallError, CallerIdentity, Deferral, HttpRequest, HttpResponse, ServerUrl, Upstream,
        UpstreamDescription, own_ids,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::HeaderMap;
use std::{
    future::ready,
    ops::Deref,
    sync::{Arc, Weak},
};

/// The context of calls on a route: the configuration as of the start of the call, and the route's state,
/// which outlives a configuration.
pub(super) struct RouteContext {
    /// The configuration of the route.
    pub(super) route: Arc<Route>,
    /// Seals and opens `requestState`.
    pub(super) keyring: Arc<SealKeyring>,
    /// The limits on calls of the route and of its tools; `None` if none are configured.
    pub(super) limiters: Option<Arc<CallLimiters>>,
    /// The state that outlives a configuration.
    pub(super) state: Arc<RouteState>,
}

/// The state of a route that lives as long as its server, across reloads.
pub(super) struct RouteState {
    /// The server behind the route.
    pub(super) upstream: Arc<dyn Upstream>,
    /// Whether calls take turns in a session of the server ([`UpstreamStatus`](crate::upstream::UpstreamStatus)).
    pub(super) takes_turns: bool,
    /// The tasks of all routes.
    pub(super) ledger: Arc<TaskLedger>,
    pub(super) clock: Arc<dyn Clock>,
    /// Records the trace spans of the route's calls.
    pub(super) tracer: Tracer,
    /// Signals shutdown: new calls are refused. Tracks the calls in flight, which shutdown waits for.
    pub(super) stopping: DrainWatch,
    /// Signals that the drain time is over.
    pub(super) overdue: DrainWatch,
    /// Signals that no work is left: listening streams end.
    pub(super) closing: DrainWatch,
    /// Tracks requests that have been received and have not reached the route yet; the server is not removed
    /// meanwhile.
    pub(super) arrivals: (Drain, DrainWatch),
    /// Tracks running calls and tasks.
    pub(super) active_work: Drain,
    /// Ends listening streams when the server is removed.
    pub(super) listeners: Drain,
    /// The states of former servers of the route that are not removed yet; the latest first.
    pub(super) predecessors: Vec<Weak<Self>>,
    /// The tool lists of the server, as each caller sees them.
    pub(super) tool_lists: ToolListCache,
    /// Known properties of a legacy server.
    pub(super) server_profile: ServerProfile,
    /// Buffered responses whose events have ids of the proxy, for clients that resume.
    pub(super) replay_buffers: Arc<ReplayBuffers>,
    /// The sessions of legacy clients.
    pub(super) sessions: LegacySessions,
    /// Calls of a former process that wait for their callers' credentials.
    pub(super) pending_credentials: Arc<PendingCredentials>,
    /// The concurrency gates and rate allowances of the route's calls, kept across reloads.
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
    /// A copy that shares the route, the keyring, the limits and the state with this context.
    pub(super) fn copy(&self) -> Self {
        let Self { route, keyring, limiters, state } = self;
        Self {
            route: Arc::clone(route),
            keyring: Arc::clone(keyring),
            limiters: limiters.clone(),
            state: Arc::clone(state),
        }
    }

    /// Admits a new call, or the calls of a batch: `tools` are the names of their tools. `None` if the route
    /// has no limits.
    ///
    /// # Errors
    /// [`CallLimitError`] if a limit is reached: then no call may be sent.
    pub(super) fn admit<'a>(
        &self,
        tools: impl Iterator<Item = &'a str>,
        principal: Principal,
    ) -> Result<Option<PendingAdmission>, CallLimitError> {
        let Some(limiters) = &self.limiters else { return Ok(None) };
        limiters.admit(&self.route, tools, principal, self.clock.now()).map(Some)
    }

    /// Whether a call may become a task now: not during shutdown if tasks are lost with the process.
    pub(super) fn can_make_tasks(&self) -> bool {
        self.ledger.is_durable() || !self.stopping.is_stopped()
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

    /// The owner of the tasks of this caller on this route.
    pub(super) fn task_owner(&self, caller: &Caller) -> TaskPrincipal {
        TaskPrincipal {
            principal: *caller.principal.as_bytes(),
            route: Arc::clone(&self.route.path),
            scope: TaskSharing::Principal,
        }
    }

    /// The credentials in the headers of a client's request: those headers that the route forwards.
    pub(super) fn credentials(&self, headers: &HeaderMap) -> Credentials {
        Credentials::from_request(headers, &self.route.session_headers)
    }

    /// URL of the server; `None` for a stdio server.
    pub(super) fn server_url(&self) -> Option<&ServerUrl> {
        self.upstream.http_origin().map(|origin| origin.url())
    }

    /// Forwards one HTTP request of a legacy client to the server.
    pub(super) fn forward(
        &self,
        request: HttpRequest,
    ) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        match self.upstream.http_relay() {
            Some(relay) => relay.forward(request),
            None => ready(Err(CallError::not_over_http())).boxed(),
        }
    }

    /// The last known description of the server; a placeholder if there is none. Sends no request, because
    /// replies about tasks must not wait for the server.
    pub(super) fn server_description(&self) -> Arc<UpstreamDescription> {
        self.upstream.status().description.unwrap_or_else(|| Arc::new(UpstreamDescription::unknown()))
    }

    /// The server info (raw JSON) for replies about a task: as recorded with the task, otherwise the last
    /// known one. A process that has recovered the task may not have described the server yet.
    pub(super) fn task_server_info(&self, record: &Record) -> Bytes {
        record.server_info.clone().unwrap_or_else(|| self.server_description().server_info.clone())
    }

    /// Whether the server declared the capability that a method needs. Undeclared methods are sent
    /// nevertheless: some servers declare less than they support.
    pub(super) fn server_declares(&self, method: &Method, server: &UpstreamDescription) -> bool {
        let requirement = method.modern_requirement().unwrap_or(RequiredCapability::Nothing);
        describe::has_capability(&server.capabilities, requirement)
    }

    /// Passes the result of [`tool_list`](Self::tool_list) to `inspect`, if it is available without waiting.
    /// `None` otherwise.
    pub(super) fn peek_tool_list<T>(
        &self,
        caller: &Caller,
        inspect: impl FnOnce(Option<&ToolParamHeaders>) -> T,
    ) -> Option<T> {
        self.tool_lists.peek(caller, &*self.clock, inspect)
    }

    /// The mirrored parameters (`Mcp-Param-*`) of the server's tools, as this caller sees the tools; `None`
    /// if the tools cannot be listed in time.
    pub(super) async fn tool_list(&self, caller: &Caller) -> Option<Arc<ToolParamHeaders>> {
        let reader = ToolListReader {
            route: &self.route.path,
            upstream: &self.upstream,
            clock: &self.clock,
            closing: &self.closing,
            caller,
            next_id: own_ids::next_in_pool,
        };
        self.tool_lists.get(reader).await
    }

    /// Whether the legacy server supports the tasks of 2025-11-25 itself.
    pub(super) async fn server_has_tasks(&self, principal: Principal, headers: &HeaderMap) -> bool {
        self.server_profile.has_tasks(&*self.upstream, || self.description_identity(principal, headers)).await
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
        let caller = || self.description_identity(principal, headers);
        self.server_profile.survives_delete(&*self.upstream, caller).await
    }

    /// The identity with which the proxy initializes a session of its own, with the credentials of a legacy
    /// client.
    fn description_identity(&self, principal: Principal, headers: &HeaderMap) -> CallerIdentity {
        CallerIdentity {
            principal,
            credentials: self.credentials(headers),
            capabilities: Arc::new(Capabilities::none()),
            client_info: ClientInfo::default(),
        }
    }

    /// The options of this route for showing tasks in the form of 2025-11-25.
    pub(super) fn legacy_view_options(&self) -> experimental::ViewOptions {
        experimental::ViewOptions {
            poll: self.ledger.quotas().poll_interval,
            tool_errors: match self.route.legacy_tasks.completes_on_tool_error {
                true => experimental::ToolErrors::Completed,
                false => experimental::ToolErrors::Failed,
            },
        }
    }
}
