//! Speaking to servers.
//!
//! An [`Upstream`] is one server as the rest of the house sees it: calls go in, in the words of 2026-07-28,
//! and for each a stream of [`UpstreamEvent`]s in those words comes out. Sessions, handshakes, transports, eras and
//! resumption are hidden behind it.
//!
//! `legacy` is a server of the older era, over whatever transport carries its messages: a `transport`. There are two:
//! `http`, over connections of `http1`, and `stdio`, over the pipes of a process. `event` is what a caller hears, `background` what goes on beside
//! calls.

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
pub use legacy::{OffStreamCall, ToolChanges};
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

/// A server that can be called.
pub trait Upstream: Send + Sync + 'static {
    /// Makes a call. Nothing happens until the stream is polled; it is polled to its end by
    /// whoever holds it. Dropping it before [`UpstreamEvent::Final`] or [`UpstreamEvent::Lost`] cancels the call
    /// at the server, once. Its events are in the words of 2026-07-28.
    fn call(&self, call: OutgoingCall) -> UpstreamEvents;

    /// As [`Upstream::call`], in the session that a legacy client has opened itself, and in the words of
    /// both. Its events are all that arrives on the call's own stream, whatever the server asks or tells
    /// there; the session's GET stream is the client's, and what it says of the call is told to the
    /// [`OffStreamCall`]. A server that has lost the session is not sent the call again.
    fn call_in(
        &self,
        session: ClientSession,
        call: NativeCall,
    ) -> (UpstreamEvents, Option<Arc<dyn OffStreamCall>>) {
        drop((session, call));
        let lost = CallError::not_over_http();
        (Box::pin(futures_util::stream::once(std::future::ready(UpstreamEvent::Lost(lost)))), None)
    }

    /// Goes on hearing of a call that the process before this one has made, where it was when that ended. Nothing
    /// is called. `Missing` where that cannot be: the server is none that sessions and streams can be taken up with.
    /// The events are in the words of 2026-07-28, or in the client's own where the session is its own; a question
    /// that is open comes again as it came, where the server sends it again.
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

    /// Tells the server that nobody waits any more for a call that the process before this one has made. Resolves when
    /// it has been told, or cannot be: whether it has.
    fn cancel_at(&self, caller: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool> {
        let _ = (caller, anchor);
        Box::pin(std::future::ready(false))
    }

    /// Tells the server, in the background and in the session that a legacy client has opened itself, that
    /// nobody waits for these of the client's calls any more.
    fn cancel_in(&self, session: ClientSession, calls: &[RequestId], reason: &str) {
        let _ = (session, calls, reason);
    }

    /// A call of this caller has become a task: nobody waits for it any more, and it may take as long
    /// as it likes. From now on what it holds is counted by [`UpstreamLimits::task_sessions`], so that it keeps
    /// no other call from its turn.
    fn mark_deferred(&self, caller: &CallerIdentity, deferral: &Deferral) {
        let _ = caller;
        deferral.mark_deferred();
    }

    /// Whether calls take turns: one that waits for an answer of its client keeps others from theirs.
    fn is_turn_based(&self) -> bool {
        false
    }

    /// What the server said of itself when a session was opened for this caller; opens one if
    /// there is none.
    fn describe(&self, caller: &CallerIdentity)
    -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>>;

    /// The same, where nobody has to be waited for, and where the caller's calls go then.
    fn ready_server(&self, caller: &CallerIdentity) -> Option<ReadyServer> {
        let _ = caller;
        None
    }

    /// What the server said of itself last, to whomever; `Missing` where it has not been spoken to. Nothing
    /// is sent for it.
    fn last_description(&self) -> Option<Arc<UpstreamDescription>> {
        None
    }

    /// What the server reports of its own accord in any session of this principal. A session is
    /// kept open for that until the receiver is dropped.
    fn watch(&self, principal: Principal) -> broadcast::Receiver<ChangeNotification>;

    /// Whether the tools of this principal change from now on. Nothing is kept open for it; a change that
    /// could have gone unheard is taken for one.
    fn tool_changes(&self, principal: Principal) -> ToolChanges;

    /// Asks the server to report changes of a resource to this caller, until the guard is dropped.
    fn subscribe<'a>(
        &'a self,
        caller: &'a CallerIdentity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>>;

    /// Fetches a document beside the MCP endpoint (protected-resource metadata) as it is.
    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// Whether the server sees the `Authorization` of callers: not where it is spoken to over no HTTP, or the
    /// configuration has another.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Asks the server's origin for something beside the MCP endpoint, with the client's headers. A redirect is not
    /// followed.
    fn request_origin(
        &self,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Passes one HTTP request of a legacy client on as it is. Dropping the future or the body
    /// before a POST has been answered is the client's departure, which is no cancel: the answer
    /// is read to its end, within [`UpstreamTimeouts::call`] and [`UpstreamLimits::departed`].
    ///
    /// A server that is not spoken to over Streamable HTTP has no such requests.
    fn forward(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Whether a request with these headers is one that was sent to this server from here, and has
    /// come back (RFC 9110, 7.6.3).
    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// What an operator is shown of how it is.
    fn health(&self) -> UpstreamHealth {
        UpstreamHealth::default()
    }

    /// Where it is, where that is an address.
    fn address(&self) -> Option<&ServerUrl> {
        None
    }

    /// What an operator is shown of its processes, where it is some.
    fn processes(&self) -> Option<ProcessTable> {
        None
    }

    /// Gets ready to speak to the server in another way: with other limits, times and credentials of ours. What is
    /// given makes it so, for what is sent from then on; sessions and processes stay.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] where it cannot be; nothing has changed then.
    fn prepare_reload(&self, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let _ = config;
        Ok(Box::new(|| {}))
    }

    /// Closes every session; resolves when the server has been told, or after a short while.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Makes a change that was got ready.
pub type ApplyReload = Box<dyn FnOnce() + Send>;

/// On whose behalf a session is opened. Two callers that differ in any of it share none.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    pub principal: Principal,
    pub credentials: Credentials,
    /// Declared to the server word for word.
    pub capabilities: Arc<Capabilities>,
    /// Who it says it is. Servers over HTTP are told so in the handshake.
    pub client_info: ClientInfo,
}

/// A session that a legacy client has opened through us: the server's own, so it is what the
/// client's requests carry beside their bodies.
#[derive(Clone, Debug)]
pub struct ClientSession {
    /// Whose it is.
    pub principal: Principal,
    /// The query of the URL that the client calls.
    pub query: Option<String>,
    pub headers: HeaderMap,
}

/// A server that a caller has been told of ([`Upstream::ready_server`]).
pub struct ReadyServer {
    pub description: Arc<UpstreamDescription>,
    /// Where the caller's calls go. Not for longer than the next: who has it keeps what is there for the caller.
    pub calls: Arc<dyn CallTarget>,
}

/// Where the calls of one caller go, once it has been looked for.
pub trait CallTarget: Send + Sync {
    /// What [`Upstream::call`] does.
    fn call(self: Arc<Self>, id: u64, call: &Call, deferral: Option<Deferral>) -> UpstreamEvents;
}

/// A call in the words of 2026-07-28, whatever its server speaks.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// Of our hop: unique in this process, so also in any session.
    pub id: u64,
    pub call: Arc<Call>,
    pub caller: CallerIdentity,
    /// For a call that may become a task: whether it has.
    pub deferral: Option<Deferral>,
}

/// A call in the words of its client, which are its server's too. It is made in the client's own session.
#[derive(Clone, Debug)]
pub struct NativeCall {
    /// As in [`OutgoingCall`].
    pub id: u64,
    pub method: Method,
    /// The whole JSON-RPC message, with that id. Its progress token may be the client's own.
    pub body: Bytes,
    /// As in [`OutgoingCall`].
    pub deferral: Option<Deferral>,
}

/// Whether a call has become a task ([`Upstream::mark_deferred`]), and what its task wants of it. Clones speak of the
/// same call.
#[derive(Clone, Debug, Default)]
pub struct Deferral(Arc<DeferralState>);

#[derive(Debug, Default)]
struct DeferralState {
    is_deferred: AtomicBool,
    is_released: AtomicBool,
    /// Where its call is, for a task that outlives the process.
    anchor: Option<AnchorUpdates>,
}

#[derive(Debug, Default)]
struct AnchorUpdates {
    /// What has not been taken yet.
    anchor: Mutex<Option<Box<CallAnchor>>>,
    changed: Notify,
}

/// A call that is taken up, the ways back for the answers to what was open, and what may be told of it elsewhere.
pub struct ResumedCall {
    pub replies: UpstreamEvents,
    pub open: Vec<Box<dyn Responder>>,
    pub off_stream: Option<Arc<dyn OffStreamCall>>,
}

/// Why there will be no response. Each knows what can be said about whether the call ran.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    #[error("no connection to the server within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no answer from the server within {0:?}")]
    CallTimeout(Duration),
    #[error("the server began no answer within {0:?}")]
    FirstByteTimeout(Duration),
    #[error("the server fell silent for {0:?} in mid-answer")]
    IdleTimeout(Duration),
    #[error("the connection to the server was lost before it answered: {0}; whether the call ran is unknown")]
    Broken(String),
    #[error("the server's session ended before it answered; whether the call ran is unknown")]
    SessionEnded,
    #[error("the server's process ended before it answered: {0}; whether the call ran is unknown")]
    Exited(String),
    #[error(
        "an answer to what the server asked could not be delivered: {0}; whether the call ran is unknown"
    )]
    ResponseUndelivered(String),
    #[error("the server refused the credentials (HTTP {status})")]
    Unauthorized { status: StatusCode, challenge: Option<HeaderValue> },
    /// HTTP 403 without a challenge: no other credentials would help.
    #[error("the server refused the request (HTTP 403): {detail}")]
    Forbidden {
        detail: String,
        /// The server's JSON-RPC error, where it gave one.
        error: Option<ErrorObject>,
    },
    #[error("the server answered HTTP {status}: {detail}")]
    Status {
        status: StatusCode,
        detail: String,
        /// When the server wants the request again (`RetryRequest-After`), as it said it.
        retry_after: Option<String>,
    },
    #[error("the server's answer is not valid: {0}")]
    Invalid(String),
    /// With the versions that it names.
    #[error(
        "the server speaks {0} only, and a server is spoken to here in revisions up to 2025-11-25; a client of its own revision can use it without the proxy"
    )]
    ModernOnly(String),
    /// The handshake of its session failed, or its time ended before it was sent: the request did not run.
    #[error("no session with the server: {}; no call was sent", .0.without_outcome())]
    NotSent(Box<Self>),
    #[error("the server's answer is larger than {limit} bytes (limits.result_bytes)")]
    TooLarge { limit: usize },
    #[error(
        "all {limit} sessions with the server are busy ({bound}), and {queue} calls wait for one, as many as may (limits.queue)"
    )]
    QueueFull { limit: usize, bound: &'static str, queue: usize },
    #[error(
        "no session with the server came free within {after:?} (timeouts.queue): all {limit} are busy ({bound})"
    )]
    QueueTimeout { limit: usize, bound: &'static str, after: Duration },
    #[error(
        "all {limit} processes of the server are in use (upstream.instances), and none came free within {after:?} (timeouts.queue)"
    )]
    ProcessesInUse { limit: usize, after: Duration },
    /// `scope` is what may run so many calls at a time.
    #[error(
        "as many calls of {scope} run as may at a time (concurrency), and none ended within {after:?} (timeouts.queue); \
         nothing was sent"
    )]
    ConcurrencyTimeout { scope: String, after: Duration },
    #[error("the server's process does not read what it is sent: {waiting} messages wait for it already")]
    InputBacklogFull { waiting: usize },
    #[error("all {limit} connections to servers are in use (limits.upstream_connections)")]
    ConnectionsInUse { limit: usize },
    #[error("the proxy is shutting down; if the call had been sent, whether it ran is unknown")]
    Closing,
}

/// Connections to servers at a time, of all of them, where the system allows the process as many: a call
/// and its session's stream for each client of the front's own default. Each is a descriptor.
pub const CONNECTIONS: usize = 20_000;

/// How a server is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamHealth {
    /// Whether it could be reached when that was tried last; none where it was not tried.
    pub is_up: Option<bool>,
    /// Why it could not be reached when that was tried last.
    pub failure: Option<Arc<str>>,
    /// Sessions that are open with it, but for those that legacy clients have opened themselves.
    pub sessions: usize,
}

/// Why a server cannot be spoken to at all.
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
    #[error("a server is spoken to from within a tokio runtime")]
    NoRuntime,
}

/// A server as it is configured, for this route.
///
/// # Errors
/// [`UpstreamSetupError`].
pub fn to(
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

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamDescription {
    /// The newest revision that it has been heard to speak, as it spelled it.
    pub version: String,
    /// Raw JSON, in the words of 2026-07-28.
    pub capabilities: Payload,
    /// Whether its clients here can use tasks of its own, of whatever revision.
    pub has_tasks: bool,
    /// Raw JSON.
    pub server_info: Bytes,
    /// Raw JSON, where given.
    pub instructions: Option<Bytes>,
    /// All of it, as the server wrote it: the result of `initialize`, raw. Empty where it has said nothing.
    pub result: Bytes,
}

impl UpstreamDescription {
    /// The lists of which it says that it reports their changes.
    pub(crate) fn reported_lists(&self) -> impl Iterator<Item = ListKind> + use<> {
        let capabilities = self.capabilities.clone();
        ListKind::ALL.into_iter().filter(move |list| {
            let list = capabilities.get(list.capability());
            let reports = list.and_then(|list| JsonObject::read(&list).ok()?.get("listChanged"));
            reports.is_some_and(|reports| reports == "true")
        })
    }
}

/// Something a server reports of its own accord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeNotification {
    ListChanged(ListKind),
    /// A resource changed. `params` are the notification's own, raw.
    ResourceUpdated {
        uri: String,
        params: Bytes,
    },
}

/// Keeps a resource subscribed; dropping it lets go.
pub type Subscription = Box<dyn std::any::Any + Send + Sync>;

/// A document beside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A request to a server's origin, beside the MCP endpoint.
#[derive(Clone, Debug)]
pub struct OriginRequest {
    pub method: HttpMethod,
    /// With its query.
    pub path: String,
    /// As the client sent them.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTarget {
    /// At this MCP endpoint, over Streamable HTTP.
    Url(ServerUrl),
    /// In processes that are started by this, over their standard input and output.
    Command(Box<ServerCommand>),
}

/// How a server is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub timeouts: UpstreamTimeouts,
    pub limits: UpstreamLimits,
    /// Of every request over HTTP, in the place of its caller's own. Their values are marked as sensitive.
    pub headers: Arc<HeaderMap>,
    /// `Missing` where nothing is particular: the system's roots, no certificate of ours.
    pub tls: Option<Arc<UpstreamTls>>,
    /// What stands between us and the server.
    pub proxy: Option<Arc<Proxy>>,
    /// Whether the requests of clients say in `HttpResponse` where they came from. The front adds it. Default off.
    pub forwarded: bool,
}

/// How long to wait for what. Each ends a call with an error of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// For a connection, TLS included. Default 10 s.
    pub connect: Duration,
    /// For the first byte of an answer to what is not a call (`initialize`, lists, …). Calls
    /// (`tools/call`, `prompts/get`, `resources/read`) are exempt: a JSON-only server sends no
    /// byte until it is done. Default 30 s.
    pub first_byte: Duration,
    /// For the next byte of an answer that has begun; calls are exempt likewise. Default 60 s.
    pub idle: Duration,
    /// For a call as a whole. Default 24 h.
    pub call: Duration,
    /// For a session, where all that there may be are busy. A call that has become a task meanwhile
    /// waits on. Default 30 s.
    pub queue: Duration,
    /// For the next use of a session of a legacy client that is kept here; then it ends. Looked at once a
    /// minute. Default 24 h.
    pub idle_session: Duration,
}

/// How much of what a server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Sessions for one principal and set of capabilities; calls that need one more wait. Each costs
    /// two connections. Default 64.
    pub sessions: usize,
    /// Sessions that tasks hold beside [`UpstreamLimits::sessions`], for one principal and set of capabilities,
    /// so that tasks keep no calls waiting. A task beyond them counts as a call. Each costs two
    /// connections for as long as the task runs. Default 256.
    pub task_sessions: usize,
    /// Calls that wait for a session, for one principal and set of capabilities; a further one is
    /// refused. Each costs its request. Default 1024.
    pub queue: usize,
    /// Messages on their way to the server at the same time that are no calls: answers to what it
    /// asks, its pings among it, and cancellations. Further ones wait. Each costs a connection.
    /// Default 64.
    pub messages: usize,
    /// Callers whose sessions are kept, each with what it declares, as a client may declare
    /// something else every time. For a further one those of the caller that has called least
    /// lately, and has nothing in flight, are closed. Each costs a session and its stream.
    /// Default 4096.
    pub identities: usize,
    /// Bytes of what those callers declare and are known by, with the same end. Default 64 MiB.
    pub identity_bytes: usize,
    /// One message of the server, in bytes. Default 64 MiB.
    pub result_bytes: usize,
    /// Calls of legacy clients that left, whose answers are read on so that the server does not
    /// take the departure for a cancel; a further one is closed. Each costs a connection and its
    /// buffer. Default 1000.
    pub departed: usize,
    /// Sessions of legacy clients that are kept here, where the server is not spoken to over HTTP. For a
    /// further one those that nobody has used for the longest end, if there are any. Each costs about a
    /// kilobyte, and what is kept for its GET stream. Default 10 000.
    pub client_sessions: usize,
}

/// The deepest reason of an error, which is where libraries put the telling one.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

// === impl OriginRequest ===

impl OriginRequest {
    /// For a document at this path.
    pub fn get(path: String, headers: HeaderMap) -> Self {
        Self { method: HttpMethod::GET, path, headers, body: Bytes::new() }
    }
}

// === impl Deferral ===

impl Deferral {
    /// Of a call whose task `is_durable` the process, or does not.
    pub fn new(outlives: bool) -> Self {
        let whereabouts = outlives.then(AnchorUpdates::default);
        Self(Arc::new(DeferralState { anchor: whereabouts, ..DeferralState::default() }))
    }

    /// It is one.
    pub fn mark_deferred(&self) {
        self.0.is_deferred.store(true, Ordering::Relaxed);
    }

    /// Whether it is one.
    pub fn is_deferred(&self) -> bool {
        self.0.is_deferred.load(Ordering::Relaxed)
    }

    /// Waits until the call can be taken up from elsewhere than was said last, and says from where. Never, where
    /// its task does not outlive the process.
    pub async fn next_anchor(&self) -> Box<CallAnchor> {
        let Some(AnchorUpdates { anchor, changed: moved }) = &self.0.anchor else { return pending().await };
        loop {
            let again = moved.notified();
            if let Some(anchor) = anchor.lock().take() {
                return anchor;
            }
            again.await;
        }
    }

    /// Whether its task outlives the process.
    pub fn is_durable(&self) -> bool {
        self.0.anchor.is_some()
    }

    /// Whether it is of use to know where the call is.
    pub fn needs_anchor(&self) -> bool {
        self.0.anchor.is_some() && self.is_deferred()
    }

    /// From now on the call can be taken up from here.
    pub fn set_anchor(&self, to: CallAnchor) {
        if let Some(AnchorUpdates { anchor, changed: moved }) = &self.0.anchor {
            *anchor.lock() = Some(Box::new(to));
            moved.notify_one();
        }
    }

    /// Another process goes on with the call: dropping its replies from now on neither cancels it nor ends its
    /// session.
    pub fn release(&self) {
        self.0.is_released.store(true, Ordering::Relaxed);
    }

    /// Whether dropping the replies neither cancels the call nor ends its session.
    pub fn is_released(&self) -> bool {
        self.0.is_released.load(Ordering::Relaxed)
    }
}

// === impl Timeouts ===

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            call: Duration::from_secs(24 * 60 * 60),
            queue: Duration::from_secs(30),
            idle_session: Duration::from_secs(24 * 60 * 60),
        }
    }
}

// === impl Limits ===

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
