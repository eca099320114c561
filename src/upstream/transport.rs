//! Interface of a transport for sessions with a legacy server.
//!
//! A [`Transport`] reaches one server; a [`TransportSession`] carries the messages of one session. Each call
//! has a handle that is polled for events; messages outside the calls' responses are delivered by
//! [`listen`](TransportSession::listen). A transport with one stream for all messages reports each call as
//! [answered off-stream](CallEvent::AnsweredOffStream) and delivers everything to the listener.
//!
//! Nothing here is boxed, and a transport does not know what a session is used for: attribution of messages,
//! leases of sessions and the order of messages are the same for all transports.

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, HttpOrigin, HttpRequest,
    HttpResponse, ProcessTable, UpstreamDescription, UpstreamLimits, UpstreamSetupError,
    negotiation::RevisionOffers,
};
use crate::{
    dialect::{Credentials, translate},
    protocol::{Era, ErrorObject, Frame, Kind, Payload, RequestId, Revision, code, splice::JsonObject},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::HeaderMap;
use std::{
    future::{Future, ready},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// Means of reaching one server: opens sessions, and states what they cost.
pub trait Transport: Send + Sync + 'static {
    /// Session over this transport.
    type Session: TransportSession;

    /// Whether the transport is Streamable HTTP: requests of legacy clients are relayed unchanged, and their
    /// sessions are the server's own. Otherwise the proxy emulates their sessions, and makes their calls in
    /// pooled sessions.
    const IS_HTTP: bool = false;
    /// Whether a session costs as much as a process. Such a session is shared until its server sends a
    /// request that cannot be attributed to a call, and survives cancelled calls until then; there are at
    /// most [`UpstreamLimits::identities`](super::UpstreamLimits::identities) pools, and further callers
    /// share one.
    const IS_COSTLY: bool = false;
    /// Reason why no further session is opened for calls, for error messages.
    const SESSION_LIMIT_REASON: &'static str = "limits.sessions";
    /// Time limit for closing all sessions at shutdown.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

    /// Returns the identity under which a caller's sessions are pooled. Callers with equal identities share
    /// sessions.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        caller.clone()
    }

    /// Returns the effective limits, for transports whose sessions cost more than the configured limits
    /// assume.
    fn limits(&self, limits: UpstreamLimits) -> UpstreamLimits {
        limits
    }

    /// Prepares a reload with this configuration; the returned closure applies it.
    ///
    /// # Errors
    /// [`UpstreamSetupError`].
    fn prepare_reload(self: &Arc<Self>, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let _ = config;
        Ok(Box::new(|| {}))
    }

    /// Number of sweeps after which unused sessions are closed.
    fn idle_rounds(&self) -> IdleRounds {
        IdleRounds::default()
    }

    /// Sends an [`InitializeRequest`] on behalf of a caller. Returns the server's description and the opened
    /// session.
    fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
        request: &mut InitializeRequest,
    ) -> impl Future<Output = Result<(UpstreamDescription, Self::Session), CallError>> + Send;

    /// Attaches to a session that a legacy client opened, if the transport supports it.
    fn join_client_session(self: &Arc<Self>, session: &ClientSession) -> Option<Self::Session> {
        let _ = session;
        None
    }

    /// Resumes a session of the previous process. Returns the session, and the handle of its call if the
    /// stream of the call can be resumed after its last known event. `None` if the transport supports no
    /// resumption.
    fn resume_session(
        self: &Arc<Self>,
        credentials: &Credentials,
        anchor: &CallAnchor,
    ) -> ResumedSession<Self::Session, Self> {
        let _ = (credentials, anchor);
        None
    }

    /// Resolves when a caller waits for a session while the transport is full: an unused session should be
    /// evicted.
    fn eviction_requested(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether no further session can be opened now, because the transport's own limit is reached.
    fn is_full(&self) -> bool {
        false
    }

    /// Wakes the waiters of [`Transport::eviction_failed`]: no session could be evicted.
    fn report_eviction_failed(&self) {}

    /// Resolves when a caller waits for a session, the transport is full, and no session can be evicted.
    fn eviction_failed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Closes connections that have been idle for too long. Called once a minute.
    fn sweep(&self) {}

    /// Closes idle connections. Returns whether there were any.
    fn close_idle(&self) -> bool {
        false
    }

    /// Implements [`super::HttpRelay::forward`].
    fn forward(
        self: &Arc<Self>,
        request: HttpRequest,
    ) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        drop(request);
        ready(Err(CallError::not_over_http())).boxed()
    }

    /// Whether the last connection attempt or process start succeeded; `None` before the first one.
    fn is_up(&self) -> Option<bool> {
        None
    }

    /// Reason of the last failed connection attempt or process start.
    fn failure(&self) -> Option<Arc<str>> {
        None
    }

    /// Implements [`super::Upstream::processes`].
    fn processes(&self) -> Option<ProcessTable> {
        None
    }

    /// Implements [`super::Upstream::http_origin`].
    fn http_origin(&self) -> Option<&dyn HttpOrigin> {
        None
    }
}

/// Numbers of sweeps without use, one sweep a minute, after which a session is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleRounds {
    /// For the list session of a pool.
    pub list_session: u32,
    /// For each further session.
    pub other_sessions: u32,
}

/// Default number of sweeps (minutes) without use after which a session is closed.
const IDLE_SWEEPS: u32 = 5;
/// Default number of sweeps for the list session, which is kept longer because its change notifications may
/// be awaited.
const LIST_IDLE_SWEEPS: u32 = 30;

/// Handle of a call in a session of this transport.
pub type CallHandleOf<W> = <<W as Transport>::Session as TransportSession>::CallHandle;

/// A resumed session, and the handle of its call if its stream can be resumed.
pub type ResumedSession<S, W> = Option<(Arc<S>, Option<CallHandleOf<W>>)>;

/// Carrier of the messages of one session.
pub trait TransportSession: Send + Sync + 'static {
    /// Handle of a call that was sent. Dropping it releases its resources, such as its connection.
    type CallHandle: Send + Unpin;

    /// Waits briefly for actions that a client starts before its call, such as opening its GET stream.
    fn wait_ready(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Sends a call; `headers` are additional headers of the client, for transports that have headers.
    fn send_call(&self, body: Bytes, headers: &HeaderMap) -> Self::CallHandle;

    /// Polls the next event of the call with this id. Must not be polled after the last event.
    fn poll_call(
        self: &Arc<Self>,
        handle: &mut Self::CallHandle,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent>;

    /// Returns how far the call has got at the server.
    fn progress(handle: &mut Self::CallHandle) -> CallProgress;

    /// Position at which another process could resume the call; `None` if that is impossible or not known
    /// yet.
    fn resume_point<'a>(&'a self, handle: &'a Self::CallHandle) -> Option<ResumePoint<'a>> {
        let _ = handle;
        None
    }

    /// Ends a call that completed: its resources may be reused.
    fn finish(&self, handle: Self::CallHandle) {
        drop(handle);
    }

    /// Sends a notification or a response. Resolves once the server has received it.
    fn send_message(
        &self,
        body: Bytes,
        retry: RetryOnLoss,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Delivers messages outside the calls' responses, until the session ends.
    fn listen(self: Arc<Self>, deliver: impl FnMut(SessionEvent) + Send) -> impl Future<Output = ()> + Send;

    /// Error of calls answered off-stream that cannot complete, because the session has ended.
    fn loss_error(&self) -> CallError {
        CallError::SessionEnded
    }

    /// Ends the session at the server, unless the server would not survive that.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Position of a call at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint<'a> {
    /// Id of the session.
    pub session: &'a str,
    /// Revision of the session.
    pub revision: &'a str,
    /// Last event id of the call's own stream; `None` if there is none.
    pub last_event: Option<&'a str>,
}

/// Request that opens a session: `initialize` with the revision offered now.
pub struct InitializeRequest {
    id: u64,
    /// Revisions offered so far, and the one offered now.
    pub(super) offers: RevisionOffers,
    write_body: Box<dyn Fn(Revision) -> Bytes + Send + Sync>,
}

/// Meaning of a server's message during the handshake.
pub(super) enum InitializeReply {
    /// The server's result.
    Description(UpstreamDescription),
    /// The server rejected the revision; the handshake continues with [`InitializeRequest::body`], which
    /// offers another.
    Refused,
    /// Not a response to `initialize`.
    Other,
}

/// Event of a call that was sent.
pub enum CallEvent {
    /// The server has accepted the call and begins its response: it need not be sent again.
    Accepted,
    /// A message in the call's own response.
    Message(Frame),
    /// The server has the call and answers it off-stream. The last event.
    AnsweredOffStream,
    /// The call was refused. The last event.
    Refused(CallRefusal),
    /// The session ended before the call was sent. The call may be sent in another session; the error is the
    /// outcome if there is none.
    SessionGone(CallError),
    /// The call failed. The last event.
    Lost(CallError),
}

/// Refusal of a call by the server, or by the transport.
pub enum CallRefusal {
    /// A JSON-RPC error response.
    Response(Frame),
    /// The call failed without a JSON-RPC error.
    Lost(CallError),
    /// The call did not run, perhaps because the server does not know the session.
    NoSession {
        /// Whether the server certainly does not know the session (HTTP 404 or 410, if it has an id).
        is_certain: bool,
        /// Refusal for the client: the server's JSON-RPC error, or the proxy's error.
        response: Result<Frame, CallError>,
    },
}

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProgress {
    /// The server does not have the call.
    Unsent,
    /// The server may have the call and has sent nothing yet.
    Sent,
    /// The response has begun; `has_new_bytes` says whether bytes have arrived since the last query.
    Begun { has_new_bytes: bool },
    /// The call was refused; the reason is being read.
    Refused,
}

/// Event of a session outside its calls' responses.
pub enum SessionEvent {
    /// A message of the server.
    Message(Frame),
    /// The response to the call with this id is too large to be kept.
    TooLarge(u64),
    /// The response to the call with this id is not a valid message, for this reason.
    Invalid(u64, String),
    /// The server has shown whether it provides messages outside calls.
    Settled,
    /// Messages may have been missed for a while.
    Gap,
    /// The server provides no messages outside calls, or no longer does.
    Unavailable,
    /// The server may no longer know the session. No further event follows.
    Suspect,
    /// The server no longer knows the session.
    Ended,
}

/// Whether a message that is lost with its connection is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOnLoss {
    Yes,
    No,
}

// === impl IdleRounds ===

impl Default for IdleRounds {
    fn default() -> Self {
        Self { list_session: LIST_IDLE_SWEEPS, other_sessions: IDLE_SWEEPS }
    }
}

// === impl InitializeRequest ===

impl InitializeRequest {
    /// Creates the request with this id and the first revision to offer; `write` serializes the request for a
    /// revision.
    pub(super) fn new(
        id: u64,
        first: Revision,
        write: impl Fn(Revision) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        Self { id, offers: RevisionOffers::starting_with(first), write_body: Box::new(write) }
    }

    /// Serializes the request with the revision that is offered now.
    pub(super) fn body(&self) -> Bytes {
        (self.write_body)(self.offers.current())
    }

    /// Reads a message of the server during the handshake. Messages before the response do not concern the
    /// handshake.
    ///
    /// # Errors
    /// [`CallError::ModernOnly`] and [`CallError::Invalid`]: the server refuses, or its result is incomplete.
    pub(super) fn read_reply(&mut self, frame: &Frame) -> Result<InitializeReply, CallError> {
        match frame.kind() {
            Kind::Success { id, result } if is_answer_to(id, self.id) => {
                describe(result).map(InitializeReply::Description)
            }
            Kind::Failure { error, .. } => match modern_only_error(error) {
                Some(lost) => Err(lost),
                None if self.offers.offer_next_after_error(error) => Ok(InitializeReply::Refused),
                None => Err(CallError::Invalid(Self::refusal_text(error))),
            },
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => {
                Ok(InitializeReply::Other)
            }
        }
    }

    /// Error text for an `initialize` that was rejected with this JSON-RPC error object.
    pub(super) fn refusal_text(error: &Bytes) -> String {
        let error = ErrorObject::from_raw(error.clone());
        format!("initialize was refused: {} ({})", error.message(), error.code())
    }
}

fn describe(result: &Payload) -> Result<UpstreamDescription, CallError> {
    let invalid = |what: &str| CallError::Invalid(format!("the answer to initialize {what}"));
    let result = result.object().ok_or_else(|| invalid("is not an object"))?;
    let empty = || Bytes::from_static(b"{}");
    let capabilities = result.get("capabilities").unwrap_or_else(empty);
    Ok(UpstreamDescription {
        version: result.string("protocolVersion").ok_or_else(|| invalid("names no protocolVersion"))?,
        has_tasks: JsonObject::read(&capabilities).is_ok_and(|object| object.contains("tasks")),
        capabilities: Payload::read(translate::without_legacy_tasks(&capabilities)),
        // Copied, because it is stored with each task, and a slice would keep the whole response.
        server_info: Bytes::copy_from_slice(&result.get("serverInfo").unwrap_or_else(empty)),
        instructions: result.get("instructions"),
        result: result.as_bytes().clone(),
    })
}

/// Returns the error of a server that supports only revisions without a handshake (2026-07-28, *Versioning
/// and Compatibility*), from its JSON-RPC error; `None` if the error is another.
pub(super) fn modern_only_error(error: &Bytes) -> Option<CallError> {
    let parsed = ErrorObject::from_raw(error.clone());
    let data =
        JsonObject::read(error).ok()?.get("data").filter(|_| parsed.code() == code::UNSUPPORTED_VERSION)?;
    modern_only_versions(&JsonObject::read(&data).ok()?.get("supported")?)
}

/// As [`modern_only_error`], from the JSON array of the versions that the server names.
pub(super) fn modern_only_versions(versions: &Bytes) -> Option<CallError> {
    let versions: Vec<String> = serde_json::from_slice(versions).ok()?;
    let is_modern =
        |version: &String| Revision::parse(version).is_none_or(|revision| revision.era() == Era::Modern);
    versions.iter().all(is_modern).then(|| CallError::ModernOnly(versions.join(", ")))
}

/// Whether a response with this id answers the proxy's request `call`.
pub(super) fn is_answer_to(id: &RequestId, call: u64) -> bool {
    id.echoed_number() == Some(call)
}
