//! The service of one route.

use super::{
    CallReply, LegacyRequest, LegacyResponse, ReplyItem, ReplyStream, RouteService, TaskLedger,
    admission::LimiterRegistry,
    answers::extension,
    drive::InlineCall,
    legacy,
    listen::ListenStream,
    reply::{self, CallEnd, call_reply::ReplySource},
    route_context::{RouteContext, RouteState},
    server_profile::ServerProfile,
    session::{self, LegacySessions},
    tickets,
    tickets::modern_call::TicketToolCall,
    tool_lists::ToolListCache,
};
use crate::{
    bridge::{describe, request_state::SealKeyring},
    dialect::{Call, Caller, Credentials},
    policy::Route,
    protocol::{Method, frame::to_single_line, input::request_state},
    runtime::{Clock, Drain, DrainWatch, PerThread, TaskToken},
    telemetry::trace::Tracer,
    upstream::{CallError, CallerIdentity, OriginRequest, OriginResponse, ServerUrl, Upstream},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, Uri, header::VIA};
use std::{
    future::{Future, ready},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};
use tokio::time::sleep;

/// The service of one route: its configuration, the server behind it, and access to the tasks of all routes.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<RouteContext>,
    /// A copy of the context for each thread, which calls hold for their lifetime: threads do not contend for
    /// one reference count. Created with the first call.
    per_thread: Arc<OnceLock<PerThread<Arc<RouteContext>>>>,
}

// === impl Endpoint ===

impl Endpoint {
    /// Creates the endpoint of a new route. `stopping` signals that no new call may begin, `overdue` that the
    /// drain time of running calls is over, `closing` that listening streams end.
    pub fn new(
        route: Arc<Route>,
        upstream: Arc<dyn Upstream>,
        ledger: Arc<TaskLedger>,
        clock: Arc<dyn Clock>,
        keyring: Arc<SealKeyring>,
        [stopping, overdue, closing]: [DrainWatch; 3],
    ) -> Self {
        let (active_work, stopping) = stopping.child();
        let (listeners, closing) = closing.child();
        let state = RouteState {
            takes_turns: upstream.status().takes_turns,
            upstream,
            ledger,
            clock,
            tracer: Tracer::default(),
            stopping,
            overdue,
            closing,
            arrivals: Drain::new(),
            active_work,
            listeners,
            predecessors: Vec::new(),
            tool_lists: ToolListCache::default(),
            server_profile: ServerProfile::default(),
            replay_buffers: Arc::default(),
            sessions: LegacySessions::default(),
            pending_credentials: Arc::default(),
            limiter_registry: LimiterRegistry::default(),
        };
        Self::from_context(RouteContext { route, keyring, limiters: None, state: Arc::new(state) })
    }

    fn from_context(context: RouteContext) -> Self {
        Self { shared: Arc::new(context), per_thread: Arc::default() }
    }

    /// Sets the tracer that records the spans of the route's calls.
    ///
    /// # Panics
    /// If the endpoint is already shared.
    pub fn with_tracer(mut self, tracer: Tracer) -> Self {
        self.state_mut().tracer = tracer;
        self
    }

    /// Makes this endpoint the successor of `other`, which has another server. Sessions with the former
    /// server continue there until that server is removed ([`Endpoint::retire`]).
    ///
    /// # Panics
    /// If the endpoint is already shared.
    pub fn replacing(mut self, other: &Self) -> Self {
        let other_state = &other.shared.state;
        let former = other_state.predecessors.iter().filter(|former| former.strong_count() > 0);
        let former = [Arc::downgrade(other_state)].into_iter().chain(former.cloned()).collect();
        let state = self.state_mut();
        state.predecessors = former;
        state.pending_credentials = Arc::clone(&other_state.pending_credentials);
        self
    }

    fn state_mut(&mut self) -> &mut RouteState {
        let shared = Arc::get_mut(&mut self.shared).expect("it is new");
        Arc::get_mut(&mut shared.state).expect("it is new")
    }

    /// Returns an endpoint with the same server and state, and with another configuration. Running calls keep
    /// the former configuration.
    pub fn reconfigured(&self, route: Arc<Route>, keyring: Arc<SealKeyring>) -> Self {
        Self::from_context(RouteContext {
            route,
            keyring,
            limiters: None,
            state: Arc::clone(&self.shared.state),
        })
    }

    /// Applies the limits of this configuration, also to queued calls. Without this, the first call of the
    /// endpoint applies them.
    pub fn apply_limits(&self) {
        self.call_context();
    }

    /// Removes a server that is no longer configured, and closes its connections. Its sessions continue for
    /// the time `grace_period`; its calls and tasks continue until they end, or also end grace_period that time if `ends`.
    pub async fn retire(self, grace_period: Duration, ends_calls: bool) {
        let state = Arc::clone(&self.shared.state);
        drop(self);
        sleep(grace_period).await;
        state.arrivals.0.completed().await;
        if !ends_calls {
            state.active_work.completed().await;
        }
        state.listeners.start();
        state.upstream.close().await;
    }

    /// The context for a call on this thread; creates and applies the call limits on first use.
    pub(super) fn call_context(&self) -> &Arc<RouteContext> {
        let create_copies = || {
            let limiters = self.shared.limiter_registry.limiters(&self.shared.route);
            PerThread::from_fn(|| Arc::new(RouteContext { limiters: limiters.clone(), ..self.shared.copy() }))
        };
        self.per_thread.get_or_init(create_copies).local()
    }

    /// The context of the former server that owns the session of this request, if there is one.
    fn session_owner(&self, request: &LegacyRequest) -> Option<Arc<RouteContext>> {
        let mut former = self.shared.predecessors.iter().filter_map(Weak::upgrade).peekable();
        former.peek()?;
        let session = session::SessionKey::from_headers(request.principal, &request.headers)?;
        if self.shared.sessions.presence.is_known(session) {
            return None;
        }
        let owner = former.find(|state| state.sessions.presence.is_known(session))?;
        Some(Arc::new(RouteContext { state: owner, ..self.call_context().copy() }))
    }
}

impl RouteService for Endpoint {
    fn route(&self) -> &Arc<Route> {
        &self.shared.route
    }

    fn call(&self, call: Arc<Call>, caller: Caller) -> ReplyStream {
        let shared = Arc::clone(self.call_context());
        shared.pending_credentials.provide_credentials(caller.principal, || caller.credentials.clone());
        if call.method == Method::ToolsCall
            && tickets::modern_ticket_action(
                &shared,
                &call,
                &caller,
                call.target.as_deref().unwrap_or_default(),
            )
            .is_some()
        {
            return reply_stream(TicketToolCall::new(shared, call, caller));
        }
        if shared.stopping.is_stopped() && is_new_call(&call) {
            return single_reply(async move { reply::shutdown_refusal(&call) });
        }
        match call.method {
            Method::Discover => single_reply(async move {
                let _work = shared.stopping.track();
                discover(&shared, &call, &caller).await
            }),
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => {
                single_reply(async move { extension::serve(&shared, &call, &caller).await })
            }
            Method::Listen => reply_stream(ListenStream::new(shared, call, caller)),
            _ => reply_stream(InlineCall::new(shared, call, caller)),
        }
    }

    fn is_reachable(&self) -> bool {
        self.shared.upstream.status().is_up == Some(true)
    }

    fn is_loop(&self, headers: &HeaderMap) -> bool {
        // Most requests have passed no proxy and carry no `Via`.
        headers.contains_key(VIA)
            && self.shared.upstream.http_origin().is_some_and(|origin| origin.is_own_hop(headers))
    }

    fn track_arrival(&self) -> Option<TaskToken> {
        Some(self.shared.arrivals.1.track())
    }

    fn relay(&self, request: LegacyRequest) -> BoxFuture<'static, LegacyResponse> {
        self.shared
            .pending_credentials
            .provide_credentials(request.principal, || self.shared.credentials(&request.headers));
        let shared = self.session_owner(&request).unwrap_or_else(|| Arc::clone(self.call_context()));
        legacy::serve(shared, request).boxed()
    }

    fn fetch_metadata<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>> {
        match self.shared.upstream.http_origin() {
            Some(origin) => origin.fetch(path, credentials),
            None => ready(Err(CallError::not_over_http())).boxed(),
        }
    }

    fn server_url(&self) -> Option<&Uri> {
        self.shared.server_url().map(ServerUrl::uri)
    }

    fn passes_authorization(&self) -> bool {
        self.shared.upstream.http_origin().is_some_and(|origin| origin.passes_authorization())
    }

    fn request_origin(
        &self,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        let shared = Arc::clone(&self.shared);
        async move {
            match shared.upstream.http_origin() {
                Some(origin) => origin.request(request).await,
                None => Err(CallError::not_over_http()),
            }
        }
        .boxed()
    }
}

/// Whether a call is new: neither a request about a task, nor a retry, nor a subscription.
fn is_new_call(call: &Call) -> bool {
    match call.method {
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::Listen => false,
        // An invalid state is reported where it is opened.
        _ => matches!(request_state(call.params.as_ref()), Ok(None)),
    }
}

/// A stream of one reply, without notifications.
fn single_reply(reply: impl Future<Output = CallReply> + Send + 'static) -> ReplyStream {
    stream::once(reply.map(ReplyItem::Reply)).boxed()
}

/// The messages of a source as a stream; dropping the stream drops the source. The stream is a generator,
/// because `stream::unfold` would move the source (1 KiB) into each step and out again.
fn reply_stream(mut source: impl ReplySource) -> ReplyStream {
    async_stream::stream! {
        while let Some(item) = source.next().await {
            yield item;
        }
    }
    .boxed()
}

/// Responds to `server/discover` with the description of the server.
async fn discover(shared: &RouteContext, call: &Call, caller: &Caller) -> CallReply {
    match shared.upstream.describe(&CallerIdentity::from_caller(caller)).await {
        Ok(server) => {
            let result = describe::build_discover_result(describe::ServerDescription {
                capabilities: &server.capabilities,
                server_info: &server.server_info,
                instructions: server.instructions.as_ref(),
            });
            reply::result_reply(call, &to_single_line(result.into()))
        }
        Err(error) => reply::call_end_reply(call, &shared.route, CallEnd::Lost(error), None),
    }
}
