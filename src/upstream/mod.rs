//! Connections to MCP servers.
//!
//! An [`Upstream`] is one server for the other folders: it takes calls in the format of 2026-07-28 and
//! returns for each a stream of [`UpstreamEvent`]s in that format. It hides sessions, handshakes, transports,
//! eras and resumption.
//!
//! `legacy` implements it for legacy servers over a `transport`: `http` (Streamable HTTP, over connections of
//! `http1`) or `stdio` (pipes of a process). `event` has the events of a call, `background` the tasks that
//! outlive calls. Begin with the trait, then `legacy/mod.rs`.

mod anchor;
mod background;
mod call_error;
mod duplex;
mod event;
mod forward;
mod http;
pub mod http1;
mod legacy;
mod negotiation;
pub mod own_ids;
mod server_url;
pub mod stdio;
mod transport;

pub use self::http::HttpUpstream;
pub use anchor::CallAnchor;
pub use duplex::in_memory;
pub use event::{
    InputRequired, PendingServerRequest, Responder, ServerRequest, UpstreamEvent, UpstreamEvents,
};
pub use forward::{
    BackgroundRead, HttpRequest, HttpResponse, HttpResponseBody, RequestPurpose, ResponseInterest,
};
pub use http1::{Proxy, ProxyUrlError, TlsError, TlsFiles, UpstreamTls};
pub use legacy::{GetStreamEvent, OffStreamCall, ToolChanges};
pub use server_url::ServerUrl;
pub use stdio::{ProcessTable, ServerCommand, StdioUpstream};

pub(crate) use legacy::sole_call;

use crate::{
    dialect::{Call, ClientInfo, Credentials, Principal},
    protocol::{Capabilities, ErrorObject, ListKind, Method, Payload, RequestId, splice::JsonObject},
    runtime::{Mutex, Network},
};
use ::http::{HeaderMap, HeaderValue, Method as HttpMethod, StatusCode, Uri};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, broadcast};

/// An MCP server.
pub trait Upstream: Send + Sync + 'static {
    /// Makes a call. The stream does nothing until it is polled, and is polled to its end. Dropping it before
    /// [`UpstreamEvent::Final`] or [`UpstreamEvent::Lost`] cancels the call at the server, once. Events are
    /// in the format of 2026-07-28.
    fn call(&self, call: OutgoingCall) -> UpstreamEvents;

    /// Makes a call as [`Upstream::call`], in a session that a legacy client opened, in the revision of
    /// client and server. The events are the messages on the call's own stream. The client reads the
    /// session's GET stream; messages on the GET stream that concern the call must be given to the returned
    /// [`OffStreamCall`]. The call is not sent again if the server lost the session.
    fn call_in(
        &self,
        session: ClientSession,
        call: NativeCall,
    ) -> (UpstreamEvents, Option<Arc<dyn OffStreamCall>>) {
        drop((session, call));
        let lost = CallError::not_over_http();
        (Box::pin(futures_util::stream::once(std::future::ready(UpstreamEvent::Lost(lost)))), None)
    }

    /// Resumes the stream of a call of the previous process, without sending the call again. `open` are the
    /// ids of the server's unanswered requests. `None` if the server's sessions and streams cannot be
    /// resumed. Events are in the format of 2026-07-28, or in the client's revision if the client opened the
    /// session. An open request arrives again if the server sends it again.
    fn resume_call(
        &self,
        caller: &CallerIdentity,
        anchor: &CallAnchor,
        open: Vec<RequestId>,
        deferral: Deferral,
    ) -> Option<ResumedCall> {
        let _ = (caller, anchor, open, deferral);
        None
    }

    /// Cancels a call of the previous process at the server. Resolves to whether the server received the
    /// cancellation.
    fn cancel_at(&self, caller: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool> {
        let _ = (caller, anchor);
        Box::pin(std::future::ready(false))
    }

    /// Sends cancellations for these calls of a legacy client in its own session, in the background.
    fn cancel_in(&self, session: ClientSession, calls: &[RequestId], reason: &str) {
        let _ = (session, calls, reason);
    }

    /// Marks a call of this caller as deferred. From now on the call's session counts towards
    /// [`UpstreamLimits::task_sessions`], so that the call delays no other call.
    fn mark_deferred(&self, caller: &CallerIdentity, deferral: &Deferral) {
        let _ = caller;
        deferral.mark_deferred();
    }

    /// Whether calls take turns in a session, so that a call that awaits an input response delays others.
    fn is_turn_based(&self) -> bool {
        false
    }

    /// Returns the description of the server from this caller's session; opens a session if there is none.
    fn describe(&self, caller: &CallerIdentity)
    -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>>;

    /// Description and call target for this caller, if they are available without waiting.
    fn ready_server(&self, caller: &CallerIdentity) -> Option<ReadyServer> {
        let _ = caller;
        None
    }

    /// Last description of the server, from any session; `None` before the first one. Sends nothing.
    fn last_description(&self) -> Option<Arc<UpstreamDescription>> {
        None
    }

    /// Subscribes to the change notifications of the server in any session of this principal. A session is
    /// kept open until the receiver is dropped.
    fn subscribe_changes(&self, principal: Principal) -> broadcast::Receiver<ChangeNotification>;

    /// Returns a tracker of changes to the server's tools in sessions of this principal from now on. Keeps no
    /// session open; a change that may have been missed counts as a change.
    fn tool_changes(&self, principal: Principal) -> ToolChanges;

    /// Subscribes this caller to changes of the resource at `uri`, until the returned guard is dropped.
    fn subscribe<'a>(
        &'a self,
        caller: &'a CallerIdentity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>>;

    /// Fetches a document by GET from the server's origin, such as protected-resource metadata. `path`
    /// includes the query.
    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// Whether the server receives the `Authorization` header of callers: not over stdio, and not if the
    /// configuration sets another.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Sends a request to the server's origin, outside the MCP endpoint, with the client's headers. Does not
    /// follow redirects.
    fn request_origin(
        &self,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Forwards one HTTP request of a legacy client unchanged. Dropping the future or the body before a POST
    /// is answered is a disconnect, not a cancellation: the response is read to its end in the background,
    /// within [`UpstreamTimeouts::call`] and [`UpstreamLimits::departed`].
    ///
    /// Fails for servers without Streamable HTTP.
    fn forward(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Whether this proxy sent a request with these headers to this server before, so that forwarding it
    /// again would be a loop (RFC 9110, 7.6.3).
    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// State of the server for operators.
    fn health(&self) -> UpstreamHealth {
        UpstreamHealth::default()
    }

    /// URL of the server; `None` for a stdio server.
    fn address(&self) -> Option<&ServerUrl> {
        None
    }

    /// Processes of the server for operators; `None` unless it is a stdio server.
    fn processes(&self) -> Option<ProcessTable> {
        None
    }

    /// Prepares a reload with other limits, timeouts and credentials. The returned closure applies them to
    /// later requests; sessions and processes stay.
    ///
    /// # Errors
    /// [`UpstreamSetupError`]; nothing has changed then.
    fn prepare_reload(&self, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let _ = config;
        Ok(Box::new(|| {}))
    }

    /// Closes all sessions. Resolves once the server has been informed, or after a few seconds.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Applies a prepared reload.
pub type ApplyReload = Box<dyn FnOnce() + Send>;

/// Caller on whose behalf a session is opened. Callers that differ in any field share no session, unless the
/// transport ignores the field.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    pub principal: Principal,
    pub credentials: Credentials,
    /// Capabilities, declared to the server unchanged.
    pub capabilities: Arc<Capabilities>,
    /// The client's own `clientInfo`. Sent in the handshake over HTTP only.
    pub client_info: ClientInfo,
}

/// A session that a legacy client opened at the server through the proxy: the parts that all its requests
/// share.
#[derive(Clone, Debug)]
pub struct ClientSession {
    /// Owner of the session.
    pub principal: Principal,
    /// Query of the URL that the client requests, without `?`.
    pub query: Option<String>,
    /// Headers of the client's requests, with its session id.
    pub headers: HeaderMap,
}

/// Server whose description is available to a caller ([`Upstream::ready_server`]).
pub struct ReadyServer {
    pub description: Arc<UpstreamDescription>,
    /// Target of the caller's calls. Hold it for one call only: it keeps the caller's sessions from being
    /// evicted.
    pub calls: Arc<dyn CallTarget>,
}

/// Target of one caller's calls, once resolved.
pub trait CallTarget: Send + Sync {
    /// Makes a call of this caller as [`Upstream::call`] does.
    fn call(
        self: Arc<Self>,
        id: u64,
        call: &Call,
        caller: (Principal, &Credentials),
        deferral: Option<Deferral>,
    ) -> UpstreamEvents;
}

/// A call in the format of 2026-07-28, independent of the server's revision.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// Request id towards the server: unique in this process, and so in any session.
    pub id: u64,
    pub call: Arc<Call>,
    pub caller: CallerIdentity,
    /// Deferral state, for a call that may become a task.
    pub deferral: Option<Deferral>,
}

/// A call in the revision of its client and server, sent in the client's own session.
#[derive(Clone, Debug)]
pub struct NativeCall {
    /// As in [`OutgoingCall`].
    pub id: u64,
    pub method: Method,
    /// The JSON-RPC message with that id. Its progress token may be the client's own.
    pub body: Bytes,
    /// As in [`OutgoingCall`].
    pub deferral: Option<Deferral>,
}

/// Deferral state of a call ([`Upstream::mark_deferred`]), and requests of its task to the call. Clones share
/// the state.
#[derive(Clone, Debug, Default)]
pub struct Deferral(Arc<DeferralState>);

#[derive(Debug, Default)]
struct DeferralState {
    is_deferred: AtomicBool,
    is_released: AtomicBool,
    /// Resume position of the call, for a task that outlives the process.
    anchor: Option<AnchorUpdates>,
}

#[derive(Debug, Default)]
struct AnchorUpdates {
    /// Last position that [`Deferral::next_anchor`] has not returned yet.
    anchor: Mutex<Option<Box<CallAnchor>>>,
    changed: Notify,
}

/// A call of the previous process that was resumed ([`Upstream::resume_call`]).
pub struct ResumedCall {
    /// Events of the call from now on.
    pub replies: UpstreamEvents,
    /// Responders of the server's requests that were open, in the order of their ids in the argument.
    pub open_requests: Vec<Box<dyn Responder>>,
    /// Counterpart for messages outside the call's stream, if the client opened the session.
    pub off_stream: Option<Arc<dyn OffStreamCall>>,
}

/// Reason why a call or message has no response. Each text states whether the call may have run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No connection could be made, or the process did not start.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    #[error("no connection to the server within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no answer from the server within {0:?}")]
    CallTimeout(Duration),
    #[error("the server began no response within {0:?}")]
    FirstByteTimeout(Duration),
    #[error("the server sent nothing for {0:?} during its answer")]
    IdleTimeout(Duration),
    /// The connection ended before the response; the text is the reason.
    #[error("the connection to the server was lost before it answered: {0}; whether the call ran is unknown")]
    Broken(String),
    #[error("the server's session ended before it answered; whether the call ran is unknown")]
    SessionEnded,
    /// The server's process ended with this status.
    #[error("the server's process ended before it answered: {0}; whether the call ran is unknown")]
    Exited(String),
    /// A response to the server's request could not be sent; the text is the reason.
    #[error(
        "a response to a request of the server could not be delivered: {0}; whether the call ran is unknown"
    )]
    ResponseUndelivered(String),
    /// HTTP 401, or 403 with a challenge (`WWW-Authenticate`).
    #[error("the server refused the credentials (HTTP {status})")]
    Unauthorized { status: StatusCode, challenge: Option<HeaderValue> },
    /// HTTP 403 without a challenge: other credentials would not help.
    #[error("the server refused the request (HTTP 403): {detail}")]
    Forbidden {
        detail: String,
        /// The server's JSON-RPC error, if it sent one.
        error: Option<ErrorObject>,
    },
    /// HTTP error without a JSON-RPC error.
    #[error("the server answered HTTP {status}: {detail}")]
    Status {
        status: StatusCode,
        detail: String,
        /// Value of the server's `Retry-After`.
        retry_after: Option<String>,
    },
    /// A response or message of the server that is not valid, for this reason.
    #[error("invalid response from the server: {0}")]
    Invalid(String),
    /// The server supports modern revisions only; holds the revisions that the server names.
    #[error(
        "the server supports {0} only, and the proxy supports servers up to revision 2025-11-25; a client of the server's revision can use it without the proxy"
    )]
    ModernOnly(String),
    /// The handshake failed, or a limit was reached, before the request was sent: the call did not run.
    #[error("no session with the server: {}; no call was sent", .0.without_outcome())]
    NotSent(Box<Self>),
    #[error("the server's answer is larger than {limit} bytes (limits.result_bytes)")]
    TooLarge { limit: usize },
    #[error("no free upstream session: {limit} in use ({bound}), queue full at {queue} (limits.queue)")]
    QueueFull { limit: usize, bound: &'static str, queue: usize },
    #[error(
        "no session with the server came free within {after:?} (timeouts.queue): all {limit} are busy ({bound})"
    )]
    QueueTimeout { limit: usize, bound: &'static str, after: Duration },
    #[error(
        "all {limit} processes of the server are in use (upstream.instances), and none came free within {after:?} (timeouts.queue)"
    )]
    ProcessesInUse { limit: usize, after: Duration },
    /// Concurrency limit was reached; `scope` names what the limit applies to.
    #[error(
        "the concurrency limit of {scope} is reached (concurrency), and no call ended within {after:?} (timeouts.queue); \
         nothing was sent"
    )]
    ConcurrencyTimeout { scope: String, after: Duration },
    #[error("the server's process does not read its input: {waiting} messages are waiting")]
    InputBacklogFull { waiting: usize },
    #[error("all {limit} connections to servers are in use (limits.upstream_connections)")]
    ConnectionsInUse { limit: usize },
    #[error("the proxy is shutting down; if the call had been sent, whether it ran is unknown")]
    Closing,
}

/// Default limit of connections to all servers, if the system allows the process as many: one for a call and
/// one for its session's stream, for each client connection of the front's default. Each needs a descriptor.
pub const DEFAULT_MAX_CONNECTIONS: usize = 20_000;

/// State of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamHealth {
    /// Whether the last connection attempt succeeded; `None` before the first one.
    pub is_up: Option<bool>,
    /// Reason of the last failed connection attempt.
    pub failure: Option<Arc<str>>,
    /// Open sessions, without those that legacy clients opened.
    pub sessions: usize,
}

/// Reason why an upstream cannot be created or reconfigured.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamSetupError {
    #[error("the upstream URL {0} must begin with http:// or https://")]
    Scheme(Uri),
    #[error("the upstream URL {0} names no host")]
    NoHost(Uri),
    #[error(
        "no usable certificate authority on this system; set SSL_CERT_FILE, name it by upstream.tls.ca, or install its certificates {0}"
    )]
    NoRoots(String),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
    #[error("an upstream needs a tokio runtime")]
    NoRuntime,
}

/// Creates the upstream of a route, without connecting to the server.
///
/// # Errors
/// [`UpstreamSetupError`].
pub fn create_upstream(
    server: UpstreamTarget,
    route: &str,
    config: Config,
    net: &Network,
) -> Result<Arc<dyn Upstream>, UpstreamSetupError> {
    Ok(match server {
        UpstreamTarget::Url(url) => Arc::new(HttpUpstream::for_route(route, &url, config, net)?),
        UpstreamTarget::Command(command) => Arc::new(StdioUpstream::new(route, *command, config, net)?),
    })
}

/// Description of a server from its `initialize` result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamDescription {
    /// Revision of the session in which the server was described, as the server spelled it.
    pub version: String,
    /// Server capabilities: raw JSON in the format of 2026-07-28.
    pub capabilities: Payload,
    /// Whether the server's own tasks, of any revision, are available to clients.
    pub has_tasks: bool,
    /// `serverInfo`: raw JSON.
    pub server_info: Bytes,
    /// `instructions`: raw JSON string, if present.
    pub instructions: Option<Bytes>,
    /// Result of `initialize` as the server sent it, raw JSON; empty if unknown.
    pub result: Bytes,
}

impl UpstreamDescription {
    /// Lists whose changes the server reports (`listChanged`).
    pub(crate) fn reported_lists(&self) -> impl Iterator<Item = ListKind> + use<> {
        let capabilities = self.capabilities.clone();
        ListKind::ALL.into_iter().filter(move |list| {
            let list = capabilities.get(list.capability());
            let list_changed = list.and_then(|list| JsonObject::read(&list).ok()?.get("listChanged"));
            list_changed.is_some_and(|reports| reports == "true")
        })
    }
}

/// A change notification of a server: one of its lists, or a resource, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeNotification {
    ListChanged(ListKind),
    /// A resource changed. `params` are the raw parameters of the notification.
    ResourceUpdated {
        uri: String,
        params: Bytes,
    },
}

/// Guard of a resource subscription; dropping it unsubscribes.
pub type Subscription = Box<dyn std::any::Any + Send + Sync>;

/// Response of the server's origin, outside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A request to the server's origin, outside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginRequest {
    pub method: HttpMethod,
    /// Path with query.
    pub path: String,
    /// The client's headers.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Target of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTarget {
    /// MCP endpoint over Streamable HTTP.
    Url(ServerUrl),
    /// Command that starts stdio servers.
    Command(Box<ServerCommand>),
}

/// Configuration of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub timeouts: UpstreamTimeouts,
    pub limits: UpstreamLimits,
    /// Headers for every HTTP request, replacing the caller's. Their values are marked as sensitive.
    pub headers: Arc<HeaderMap>,
    /// TLS settings; `None` for the system's roots and no client certificate.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Proxy between this process and the server.
    pub proxy: Option<Arc<Proxy>>,
    /// Whether requests of clients carry the header `Forwarded`, which the front end adds. Default off.
    pub forwarded: bool,
}

/// Timeouts of an upstream. Each ends a call with its own error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// Limit of connecting, including TLS. Default 10 s.
    pub connect: Duration,
    /// Limit of the first byte of a response. Calls (`tools/call`, `prompts/get`, `resources/read`) are
    /// exempt, because a server that answers with JSON sends no byte until it is done. Default 30 s.
    pub first_byte: Duration,
    /// Limit of the pause between two bytes of a response; calls are exempt as well. Default 60 s.
    pub idle: Duration,
    /// Limit of a whole call. Default 24 h.
    pub call: Duration,
    /// Limit of the wait for a session while all are busy. A call that became a task meanwhile continues to
    /// wait. Default 30 s.
    pub queue: Duration,
    /// Time after which an unanswered input request of a process may end because clients of other principals
    /// wait for the process. Default 30 s.
    pub turn: Duration,
    /// Idle time after which an emulated session of a legacy client expires. Checked once a minute. Default
    /// 24 h.
    pub idle_session: Duration,
}

/// Resource limits of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Sessions of one principal and set of capabilities; calls that need one more are queued. Each costs two
    /// connections. Default 64.
    pub sessions: usize,
    /// Sessions that tasks hold beside [`UpstreamLimits::sessions`], for one principal and set of
    /// capabilities, so that tasks do not delay calls. A task above the limit counts as a call. Each costs
    /// two connections while the task runs. Default 256.
    pub task_sessions: usize,
    /// Calls that wait for a session, for one principal and set of capabilities; a further call is refused.
    /// Each costs its request. Default 1024.
    pub queue: usize,
    /// Messages in flight to the server that are not calls: responses to its requests, pings included, and
    /// cancellations. Further ones wait. Each costs a connection. Default 64.
    pub messages: usize,
    /// Identities with sessions; a client may declare other capabilities with every request. Above the limit,
    /// the sessions of the idle identity with the oldest last call are closed. Each costs a session and its
    /// stream. Default 4096.
    pub identities: usize,
    /// Bytes of credentials, capabilities and `clientInfo` that those identities keep, with the same effect.
    /// Default 64 MiB.
    pub identity_bytes: usize,
    /// Limit of one message of the server, in bytes. Default 64 MiB.
    pub result_bytes: usize,
    /// Calls of disconnected legacy clients whose responses are read on, so that the server does not take the
    /// disconnect for a cancellation; a further one is closed. Each costs a connection and its buffer.
    /// Default 1000.
    pub departed: usize,
    /// Emulated sessions of legacy clients. Above the limit, the longest idle ones end, if any are idle. Each
    /// costs about a kilobyte, and its stored stream events. Default 10 000.
    pub client_sessions: usize,
}

/// Returns the text of the innermost source of an error, which is where libraries put the useful reason.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

// === impl OriginRequest ===

impl OriginRequest {
    /// Creates a GET request for this path, with these headers.
    pub fn get(path: String, headers: HeaderMap) -> Self {
        Self { method: HttpMethod::GET, path, headers, body: Bytes::new() }
    }
}

// === impl Deferral ===

impl Deferral {
    /// State of a call; `outlives_process` says whether its task must outlive the process, so that resume
    /// positions are needed.
    pub fn new(outlives_process: bool) -> Self {
        let anchor = outlives_process.then(AnchorUpdates::default);
        Self(Arc::new(DeferralState { anchor, ..DeferralState::default() }))
    }

    /// Marks the call as deferred.
    pub fn mark_deferred(&self) {
        self.0.is_deferred.store(true, Ordering::Relaxed);
    }

    /// Whether the call is deferred.
    pub fn is_deferred(&self) -> bool {
        self.0.is_deferred.load(Ordering::Relaxed)
    }

    /// Waits until the resume position of the call changes, and returns it. Pending without end if the task
    /// does not outlive the process.
    pub async fn next_anchor(&self) -> Box<CallAnchor> {
        let Some(AnchorUpdates { anchor, changed }) = &self.0.anchor else { return pending().await };
        loop {
            let notified = changed.notified();
            if let Some(anchor) = anchor.lock().take() {
                return anchor;
            }
            notified.await;
        }
    }

    /// Whether the task of the call outlives the process.
    pub fn is_durable(&self) -> bool {
        self.0.anchor.is_some()
    }

    /// Whether the resume position of the call must be recorded.
    pub fn needs_anchor(&self) -> bool {
        self.0.anchor.is_some() && self.is_deferred()
    }

    /// Sets the resume position of the call, and wakes [`Deferral::next_anchor`].
    pub fn set_anchor(&self, position: CallAnchor) {
        if let Some(AnchorUpdates { anchor, changed }) = &self.0.anchor {
            *anchor.lock() = Some(Box::new(position));
            changed.notify_one();
        }
    }

    /// Hands the call over to another process: from now on, dropping its events neither cancels the call nor
    /// ends its session.
    pub fn release(&self) {
        self.0.is_released.store(true, Ordering::Relaxed);
    }

    /// Whether the call was handed over to another process.
    pub fn is_released(&self) -> bool {
        self.0.is_released.load(Ordering::Relaxed)
    }
}

// === impl UpstreamTimeouts ===

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            call: Duration::from_secs(24 * 60 * 60),
            queue: Duration::from_secs(30),
            turn: Duration::from_secs(30),
            idle_session: Duration::from_secs(24 * 60 * 60),
        }
    }
}

// === impl UpstreamLimits ===

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            sessions: 64,
            task_sessions: 256,
            queue: 1024,
            messages: 64,
            identities: 4096,
            identity_bytes: 64 << 20,
            result_bytes: 64 << 20,
            departed: 1000,
            client_sessions: 10_000,
        }
    }
}
