//! What a transport must do for the sessions of a legacy server.
//!
//! A [`Transport`] is one way to one server; a [`TransportSession`] carries the messages of one session there. What is sent on
//! a line as a call has an answer of its own, which is polled; what the server says beside its answers is told
//! to whoever [listens](TransportSession::listen). A transport that has one stream for everything says of each call that
//! its answer comes [elsewhere](CallEvent::AnsweredOffStream), and tells all that arrives to the listener.
//!
//! Nothing here is boxed, and no transport knows what a session is used for: which call a message belongs to,
//! who may use which session and what is told in which order is the same for all.

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, HttpRequest, HttpResponse,
    OriginRequest, OriginResponse, ProcessTable, ServerUrl, UpstreamDescription, UpstreamLimits,
    UpstreamSetupError, negotiation::RevisionOffers,
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

/// A way to a server.
pub trait Transport: Send + Sync + 'static {
    type Line: TransportSession;

    /// Whether it is Streamable HTTP: what a legacy client sends can be passed on as it is, and its session is the
    /// server's own. Else the sessions of legacy clients are hosted, and their calls are made in those of the pool.
    const IS_HTTP: bool = false;
    /// Whether a session costs as much as a process does. Then one is shared until it shows that what is asked in it
    /// cannot be told apart, it is kept where a call was cancelled until something is asked, and there are no more
    /// groups of callers than [`UpstreamLimits::identities`](super::UpstreamLimits::identities): a further one shares another's.
    const IS_COSTLY: bool = false;
    /// Why there are no more sessions for calls, in an operator's words.
    const BOUND: &'static str = "limits.sessions";
    /// How long closing all sessions may take.
    const FAREWELL: Duration = Duration::from_secs(2);

    /// Who a caller is to the server. Those who are the same share sessions.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        caller.clone()
    }

    /// How many sessions there may be, where each costs more than what is configured is meant for.
    fn limits(&self, limits: UpstreamLimits) -> UpstreamLimits {
        limits
    }

    /// Gets ready to speak to the server in another way.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] where it cannot be.
    fn prepare_reload(self: &Arc<Self>, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let _ = config;
        Ok(Box::new(|| {}))
    }

    /// How long unused sessions are kept.
    fn idle_rounds(&self) -> IdleRounds {
        IdleRounds::default()
    }

    /// Where the server is, where that is an address.
    fn address(&self) -> Option<&ServerUrl> {
        None
    }

    /// Says [`InitializeRequest`] on behalf of somebody. Gives what the server said of itself, and what carries the session
    /// that begins with it.
    fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
        hello: &mut InitializeRequest,
    ) -> impl Future<Output = Result<(UpstreamDescription, Self::Line), CallError>> + Send;

    /// What carries the session that a legacy client has opened itself, where it can have.
    fn join_client_session(self: &Arc<Self>, session: &ClientSession) -> Option<Self::Line> {
        let _ = session;
        None
    }

    /// What carries a session that the process before this one has used; and what becomes of its call, whose stream
    /// is taken up behind the last event that is known. `Missing` where the transport knows no such thing.
    fn resume_session(
        self: &Arc<Self>,
        credentials: &Credentials,
        anchor: &CallAnchor,
    ) -> ResumedSession<Self::Line, Self> {
        let _ = (credentials, anchor);
        None
    }

    /// Resolves when somebody waits for a session that there is no place for: one that nobody uses should give way.
    fn eviction_requested(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether there is no place for another session now.
    fn is_full(&self) -> bool {
        false
    }

    /// Nothing gives way: whoever waits for [`Transport::eviction_failed`] is told.
    fn report_eviction_failed(&self) {}

    /// Resolves when somebody waits for a session that there is no place for, and all that take one are in use.
    fn eviction_failed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Lets go of what nobody has used for a while. Called once a minute.
    fn sweep(&self) {}

    /// Closes a connection that nobody uses, if there is one.
    fn close_idle(&self) -> bool {
        false
    }

    /// [`super::Upstream::forward`].
    fn forward(
        self: &Arc<Self>,
        request: HttpRequest,
    ) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        drop(request);
        ready(Err(CallError::not_over_http())).boxed()
    }

    /// [`super::Upstream::fetch`].
    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>> {
        let _ = (path, credentials);
        ready(Err(CallError::not_over_http())).boxed()
    }

    /// [`super::Upstream::passes_authorization`].
    fn passes_authorization(&self) -> bool {
        false
    }

    /// [`super::Upstream::request_origin`].
    fn request_origin(
        self: &Arc<Self>,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        ready(Err(CallError::not_over_http())).boxed()
    }

    /// Whether the server could be reached when that was tried last; none where it was not tried.
    fn is_up(&self) -> Option<bool> {
        None
    }

    /// Why the server could not be reached, or did not start, when that was tried last.
    fn failure(&self) -> Option<Arc<str>> {
        None
    }

    /// [`super::Upstream::processes`].
    fn processes(&self) -> Option<ProcessTable> {
        None
    }

    /// [`super::Upstream::is_own_hop`].
    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }
}

/// After how many looks, one a minute, a session is closed that was used in none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleRounds {
    /// The session of a set of callers that lists come from.
    pub lists: u32,
    /// Each further one of the set.
    pub others: u32,
}

/// Rounds (minutes) after which a session that is not used is closed.
const QUIET: u32 = 5;
/// The same for the session that lists come from: what it reports may be waited for.
const QUIET_LISTS: u32 = 30;

/// What becomes of a call on a line of this wire.
pub type CallHandleOf<W> = <<W as Transport>::Line as TransportSession>::Answer;

/// What carries the session of a call that is taken up, and what becomes of that, if it can be heard.
pub type ResumedSession<S, W> = Option<(Arc<S>, Option<CallHandleOf<W>>)>;

/// What carries the messages of one session.
pub trait TransportSession: Send + Sync + 'static {
    /// What becomes of a call that was sent. Dropping it closes what is open for it.
    type Answer: Send + Unpin;

    /// Waits, a moment at most, for what the client of the session does before it calls.
    fn wait_settled(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Sends a call; `headers` are further ones of the client, where the transport has any.
    fn send_call(&self, body: Bytes, headers: &HeaderMap) -> Self::Answer;

    /// What is next heard of it. Not polled again once that is the last.
    fn poll_call(
        self: &Arc<Self>,
        answer: &mut Self::Answer,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent>;

    /// How far the call has come.
    fn progress(answer: &mut Self::Answer) -> CallProgress;

    /// Where a call is, if another process could go on with it.
    fn resume_point<'a>(&'a self, answer: &'a Self::Answer) -> Option<ResumePoint<'a>> {
        let _ = answer;
        None
    }

    /// The call is over: what is open for it may serve another.
    fn finish(&self, answer: Self::Answer) {
        drop(answer);
    }

    /// Sends what is answered with nothing: a notification or a response. Resolves when the server has it.
    fn send_message(
        &self,
        body: Bytes,
        again: RetryOnLoss,
    ) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Hears what the server says beside its answers, until the session is over.
    fn listen(self: Arc<Self>, tell: impl FnMut(SessionEvent) + Send) -> impl Future<Output = ()> + Send;

    /// What is said of calls that were answered beside, once the server no longer knows the session.
    fn loss_error(&self) -> CallError {
        CallError::SessionEnded
    }

    /// Ends the session, as far as the server survives that.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Where a call is at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint<'a> {
    /// The id of the session.
    pub session: &'a str,
    /// The revision that is spoken there.
    pub revision: &'a str,
    /// The last event of the call's own stream that had an id.
    pub last_event: Option<&'a str>,
}

/// The first message of a session: `initialize`, with the revision that is offered now.
pub struct InitializeRequest {
    number: u64,
    pub(super) offers: RevisionOffers,
    write_body: Box<dyn Fn(Revision) -> Bytes + Send + Sync>,
}

/// What a message of the server means for the handshake.
pub(super) enum InitializeReply {
    /// The server's answer.
    Description(UpstreamDescription),
    /// It refuses the revision; the handshake goes on with [`InitializeRequest::body`], which offers another.
    Refused,
    /// It is no answer to `initialize`.
    Other,
}

/// What is heard of a call that was sent.
pub enum CallEvent {
    /// The server has it, and begins to answer: it need not be sent again.
    Accepted,
    /// A message in its own answer.
    Message(Frame),
    /// The server has it, and answers beside. The last.
    AnsweredOffStream,
    /// The last, likewise.
    Refused(CallRefusal),
    /// The session had ended before it was sent: another may take it, and this is what is said where none does.
    SessionGone(CallError),
    /// There will be nothing more.
    Lost(CallError),
}

/// How a transport refuses a call.
pub enum CallRefusal {
    /// With its answer: a JSON-RPC error.
    Response(Frame),
    Lost(CallError),
    /// The call was not served, perhaps because the server does not know the session.
    NoSession {
        /// It does not know the session (HTTP 404 and 410 in one that has an id).
        is_certain: bool,
        /// The refusal for the client: the server's JSON-RPC error, or else ours.
        response: Result<Frame, CallError>,
    },
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProgress {
    /// The server does not have it.
    Unsent,
    /// The server may have it, and has said nothing yet.
    Sent,
    /// Its answer has begun; `moved` where something has arrived since this was last asked.
    Begun { moved: bool },
    /// It is being read why it was refused.
    Refused,
}

/// What is said beside answers.
pub enum SessionEvent {
    Message(Frame),
    /// The answer to this call, which is too large to be kept.
    TooLarge(u64),
    /// The answer to this call, which is no message, and why.
    Invalid(u64, String),
    /// It is known by now whether there is anything to hear.
    Settled,
    /// What was said for a while was not heard.
    Gap,
    /// Nothing is heard here, or not any more.
    Unavailable,
    /// The server may no longer know the session. Nothing more is heard here.
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

// === impl QuietRounds ===

impl Default for IdleRounds {
    fn default() -> Self {
        Self { lists: QUIET_LISTS, others: QUIET }
    }
}

// === impl Hello ===

impl InitializeRequest {
    /// `write_body` makes the request with this id for a revision.
    pub(super) fn new(
        number: u64,
        first: Revision,
        write: impl Fn(Revision) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        Self { number, offers: RevisionOffers::starting_with(first), write_body: Box::new(write) }
    }

    /// The request.
    pub(super) fn body(&self) -> Bytes {
        (self.write_body)(self.offers.current())
    }

    /// Reads a message of the server. One that comes before the answer concerns no handshake.
    ///
    /// # Errors
    /// [`CallError::ModernOnly`] and [`CallError::Invalid`]: it refuses, or does not say what it must.
    pub(super) fn read_reply(&mut self, said: &Frame) -> Result<InitializeReply, CallError> {
        match said.kind() {
            Kind::Success { id, result } if is_answer_to(id, self.number) => {
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

    /// In words that the server does not open a session.
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
        capabilities: Payload::read(translate::capabilities(&capabilities)),
        // Kept with each task: a slice would keep the whole answer.
        server_info: Bytes::copy_from_slice(&result.get("serverInfo").unwrap_or_else(empty)),
        instructions: result.get("instructions"),
        result: result.as_bytes().clone(),
    })
}

/// What an error says of a server that gives it: that it speaks none of the revisions with a handshake
/// (2026-07-28, *Versioning and Compatibility*).
pub(super) fn modern_only_error(error: &Bytes) -> Option<CallError> {
    let said = ErrorObject::from_raw(error.clone());
    let data =
        JsonObject::read(error).ok()?.get("data").filter(|_| said.code() == code::UNSUPPORTED_VERSION)?;
    modern_only_versions(&JsonObject::read(&data).ok()?.get("supported")?)
}

/// The same, of the versions that it names.
pub(super) fn modern_only_versions(versions: &Bytes) -> Option<CallError> {
    let versions: Vec<String> = serde_json::from_slice(versions).ok()?;
    let is_modern =
        |version: &String| Revision::parse(version).is_none_or(|revision| revision.era() == Era::Modern);
    versions.iter().all(is_modern).then(|| CallError::ModernOnly(versions.join(", ")))
}

/// Whether a response answers the call with this number.
pub(super) fn is_answer_to(id: &RequestId, call: u64) -> bool {
    id.echoed_number() == Some(call)
}
