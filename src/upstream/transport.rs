//! Interface of a transport for sessions with a legacy server.
//!
//! A [`Transport`] reaches one server. It opens a [`HandshakeChannel`] and knows nothing of the handshake, which
//! `legacy::handshake` makes; a [`TransportSession`] carries the messages of the session. Each call
//! has a handle that is polled for events; messages outside the calls' responses are delivered by
//! [`listen`](TransportSession::listen). A transport with one stream for all messages reports each call as
//! [answered off-stream](CallEvent::AnsweredOffStream) and delivers everything to the listener.
//!
//! Nothing here is boxed, and a transport does not know what a session is used for: attribution of messages,
//! leases of sessions and the order of messages are the same for all transports.

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, HttpOrigin, HttpRequest,
    HttpResponse, ProcessTable, UpstreamLimits, UpstreamSetupError,
};
use crate::{dialect::Credentials, protocol::Frame};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, StatusCode};
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
    /// Channel that becomes a session.
    type Channel: HandshakeChannel<Session = Self::Session>;

    /// Kind of the sessions.
    const SESSIONS: SessionKind;
    /// Whether a session costs as much as a process.
    const IS_COSTLY: bool = matches!(Self::SESSIONS, SessionKind::Process);
    /// Reason why no further session is opened for calls, for error messages.
    const SESSION_LIMIT_REASON: &'static str = "limits.sessions";
    /// Time limit for closing all sessions at shutdown.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

    /// Returns the identity under which a caller's sessions are pooled. Callers with equal identities share
    /// sessions.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        caller.clone()
    }

    /// Whether only clients on this machine reach the proxy, so that anonymous calls belong to one user.
    fn is_local(&self) -> bool {
        false
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

    /// Opens a channel on behalf of a caller, for the handshake of a session.
    fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
    ) -> impl Future<Output = Result<Self::Channel, CallError>> + Send;

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

    /// Number of callers that wait for sessions to end, because the transport's own limit is reached, without
    /// those for which sessions are ending.
    fn waiters(&self) -> usize {
        0
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

    /// Outcome of the last connection attempt or process start, with the reason of its failure; `None` before
    /// the first one.
    fn last_attempt(&self) -> Option<Result<(), Arc<str>>> {
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

/// What a session costs, and whom it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// Session over Streamable HTTP. Requests of legacy clients are relayed unchanged, and their sessions are
    /// the server's own.
    Http,
    /// Process, or as costly. Such a session is shared by all clients until its server sends a request outside
    /// calls' streams, then used by one client at a time, and survives cancelled calls; there are at most
    /// [`UpstreamLimits::identities`](super::UpstreamLimits::identities) pools, and further callers share one.
    /// The proxy emulates the sessions of legacy clients, and makes their calls in pooled sessions.
    Process,
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

/// Channel to the server on which no session exists yet: carries the messages of a handshake, of any revision.
pub trait HandshakeChannel: Send {
    /// Session that the channel becomes.
    type Session;

    /// Whether the server of a refused handshake can be asked for its revisions on the same channel.
    const CAN_PROBE: bool = false;

    /// Time limit of the handshake.
    fn time_limit(&self) -> Duration;

    /// Error of a handshake whose request `method` was not answered within the time limit.
    fn timeout_error(&self, method: &str) -> CallError {
        let _ = method;
        CallError::FirstByteTimeout(self.time_limit())
    }

    /// Sends a request. Its failure may also be reported by [`HandshakeChannel::receive`].
    ///
    /// # Errors
    /// [`CallError`] if the channel has ended.
    fn send(&mut self, method: &'static str, body: Bytes) -> Result<(), CallError>;

    /// Receives the server's next message, or its refusal of the last request.
    fn receive(&mut self) -> impl Future<Output = Result<HandshakeEvent, CallError>> + Send;

    /// Adds to the error of a refusal what the transport can find out about its reason.
    fn explain(&mut self, refusal: CallError) -> impl Future<Output = CallError> + Send {
        ready(refusal)
    }

    /// Converts the channel to the session that the handshake opened in this revision.
    ///
    /// # Errors
    /// [`CallError::Invalid`] if the transport cannot carry that revision.
    fn into_session(self, revision: &str) -> Result<Self::Session, CallError>;

    /// Closes the channel after a failed handshake. Returns the error for the caller.
    fn abandon(self, error: CallError) -> impl Future<Output = CallError> + Send
    where
        Self: Sized,
    {
        ready(error)
    }
}

/// Event of a handshake.
pub enum HandshakeEvent {
    /// A message of the server.
    Message(Frame),
    /// The request was refused with an HTTP error. `error` is the error if the body says no more.
    Refused { status: StatusCode, body: Bytes, error: CallError },
}

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
