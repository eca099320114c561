//! One call, from the search for a session to its last event.
//!
//! A hand-written stream, so that a call that waits for hours is one small allocation. Rare states (waiting
//! for a session, reading an error, resuming a broken stream) are boxed when they occur.

use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use super::{
    check::check_later,
    mailbox::{CallMessage, SessionMailbox},
    pool::{LeaseHolder, SessionLease, SessionPool},
    request::CallRequest,
    server::ServerContext,
    session::{SessionHold, UpstreamSession},
};
use crate::{
    dialect::{CallResponse, ExtraHeaders, translate},
    protocol::{Frame, InputRequest, Kind, Method, RequestId},
    runtime::{Clock, PooledTimer, TimerKind},
    upstream::{
        CallAnchor, CallError, Deferral, PendingServerRequest, ServerRequest, UpstreamEvent,
        own_ids::{self, IdInUse},
        transport::{CallEvent, CallProgress, CallRefusal, ResumePoint, Transport, TransportSession},
    },
};

/// One call to a legacy server, as a stream of its [`UpstreamEvent`]s. Dropping it cancels the call.
pub(super) struct CallExchange<W: Transport> {
    source: SessionSource<W>,
    /// Whether messages are passed in the server's revision; else they are translated.
    is_native: bool,
    request: CallRequest,
    /// Keeps the request id in use.
    _in_use: IdInUse,
    stage: CallStage<W>,
    /// Hold on the session, and its lease. Dropped in this order: the call leaves the session before another
    /// may lease it.
    hold: Option<SessionHold<W>>,
    lease: Option<SessionLease<W>>,
    mailbox: Arc<SessionMailbox>,
    timers: Option<CallTimers>,
    /// Whether the call was sent again after its connection, or an ended process, lost it.
    was_resent: bool,
    /// Lower bound of the numbers of sessions created after the call was sent.
    next_session: u64,
    /// Event for the client if no new session can be opened: the refusal in the previous session.
    refused: Option<Box<UpstreamEvent>>,
    /// Last event id of the position reported to the deferral. Outer `None`: none was reported; inner `None`:
    /// the reported position has no event id.
    reported_anchor: Option<Option<Box<str>>>,
}

/// Source of the call's session.
enum SessionSource<W: Transport> {
    Pool(Arc<SessionPool<W>>),
    /// Session that the client opened.
    Client(Arc<UpstreamSession<W>>),
}

enum CallStage<W: Transport> {
    New,
    /// Waits for a session.
    Leasing(BoxFuture<'static, Result<SessionLease<W>, CallError>>),
    Sent(<W::Session as TransportSession>::CallHandle),
    /// The server answers off-stream. The transport's handle is kept until the response arrives.
    AnsweredOffStream(<W::Session as TransportSession>::CallHandle),
    Ended,
}

/// Timeouts of a call.
struct CallTimers {
    call: PooledTimer,
    /// Timeout of the next byte; not for calls that may take long.
    step: Option<(PooledTimer, TimeoutStep)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeoutStep {
    FirstByte,
    Idle,
}

// === impl CallExchange ===

impl<W: Transport> CallExchange<W> {
    /// A call whose messages are translated from the server's revision, in any session of the pool.
    pub(super) fn new(pool: Arc<SessionPool<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Pool(pool), request, false)
    }

    /// A call in the server's revision, in any session of the pool.
    pub(super) fn native(pool: Arc<SessionPool<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Pool(pool), request, true)
    }

    /// A call in its client's own session.
    pub(super) fn in_client_session(session: Arc<UpstreamSession<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Client(session), request, true)
    }

    fn from_source(source: SessionSource<W>, request: CallRequest, is_native: bool) -> Self {
        Self {
            source,
            is_native,
            _in_use: own_ids::mark_in_use(request.id),
            request,
            stage: CallStage::New,
            hold: None,
            lease: None,
            mailbox: Arc::default(),
            timers: None,
            was_resent: false,
            next_session: 0,
            refused: None,
            reported_anchor: None,
        }
    }

    /// A call of the previous process, in a session that no other call uses. `handle` is the transport's
    /// handle of the call, `open` the ids of its unanswered server requests. `None` if the session has ended.
    pub(super) fn resumed(
        session: Arc<UpstreamSession<W>>,
        request: CallRequest,
        handle: <W::Session as TransportSession>::CallHandle,
        open: &[RequestId],
    ) -> Option<Self> {
        let is_native = session.is_client_session;
        let mut call = Self::from_source(SessionSource::Client(session.clone()), request, is_native);
        let hold = session.register_call(&call.request, &call.mailbox, true)?;
        session.restore_requests(call.request.id, open);
        // A session of the proxy serves this call only.
        session.retire();
        (call.hold, call.lease) = (Some(hold), Some(SessionLease::shared(session)));
        call.stage = CallStage::Sent(handle);
        Some(call)
    }

    /// Reports the call's position if it has changed and is needed.
    fn report_anchor(&mut self) {
        let Some(deferral) = self.request.deferral.as_ref().filter(|deferral| deferral.needs_anchor()) else {
            return;
        };
        let (CallStage::Sent(answer), Some(hold)) = (&self.stage, &self.hold) else { return };
        let session = &hold.session;
        let Some(ResumePoint { session: session_id, revision, last_event }) =
            session.transport.resume_point(answer)
        else {
            return;
        };
        session.note_event(last_event);
        if self.reported_anchor.as_ref().is_some_and(|reported| reported.as_deref() == last_event) {
            return;
        }
        let anchor = CallAnchor {
            session: session_id.to_owned(),
            revision: revision.to_owned(),
            call: self.request.id,
            last_event: last_event.map(str::to_owned),
            server_info: String::from_utf8_lossy(&session.description.server_info).into_owned(),
            is_clients: session.is_client_session,
        };
        self.reported_anchor = Some(last_event.map(Box::from));
        deferral.set_anchor(anchor);
    }

    /// Leases a session, and sends the call if that succeeds at once.
    fn begin(&mut self) {
        if self.source.server().work.is_closing() {
            self.stage = CallStage::Leasing(std::future::ready(Err(CallError::Closing)).boxed());
            return;
        }
        self.stage = match &self.source {
            SessionSource::Pool(pool) => {
                let lease = pool.try_lease(&self.request);
                // The deferral of a call in a shared session changes nothing for the queue.
                if lease.as_ref().is_none_or(SessionLease::is_exclusive)
                    && let Some(deferral) = &self.request.deferral
                {
                    let pool: Weak<SessionPool<W>> = Arc::downgrade(pool);
                    deferral.set_observer(pool);
                }
                match lease {
                    Some(lease) => return self.send(lease),
                    None => {
                        let holder = LeaseHolder::new(&self.request);
                        CallStage::Leasing(pool.clone().lease(self.request.method.clone(), holder).boxed())
                    }
                }
            }
            SessionSource::Client(session) => {
                let session = session.clone();
                let lease = async move {
                    session.transport.wait_ready().await;
                    Ok(SessionLease::shared(session))
                };
                CallStage::Leasing(lease.boxed())
            }
        };
    }

    fn send(&mut self, lease: SessionLease<W>) {
        let session = lease.session.clone();
        if self.refused.is_some() && session.number < self.next_session {
            // The server may have lost all older sessions.
            session.retire();
            self.stage = CallStage::New;
            return;
        }
        self.next_session = session.server.sessions_created();
        let Some(hold) = session.register_call(&self.request, &self.mailbox, lease.is_exclusive()) else {
            // The session ended after this call got it, which may have happened long before the call was
            // polled. Another session may exist; at shutdown there is none. Remove the session here, because
            // the task that ended it may not have done so yet.
            if let SessionSource::Pool(pool) = &self.source {
                pool.remove(&session);
            }
            self.stage = CallStage::New;
            return;
        };
        self.hold = Some(hold);
        self.lease = Some(lease);
        self.stage =
            CallStage::Sent(session.transport.send_call(self.request.body.clone(), &self.request.headers));
    }

    /// Releases the session.
    fn release_session(&mut self) {
        if let Some(mut hold) = self.hold.take() {
            hold.finish();
        }
        let lease = self.lease.take();
        if let SessionSource::Pool(pool) = &self.source
            && lease.is_some_and(|lease| !lease.is_exclusive())
            && is_call(&self.request.method)
        {
            pool.shared_call_ended();
        }
    }

    /// Ends a call that completed by itself.
    fn end(&mut self, event: UpstreamEvent) -> Poll<Option<UpstreamEvent>> {
        if let CallStage::Sent(answer) = std::mem::replace(&mut self.stage, CallStage::Ended)
            && let Some(hold) = &self.hold
        {
            hold.session.transport.finish(answer);
        }
        self.release_session();
        self.timers = None;
        Poll::Ready(Some(event))
    }

    /// Ends the call and cancels it at the server.
    fn abort(&mut self, error: CallError) -> Poll<Option<UpstreamEvent>> {
        let reason = match &error {
            CallError::TooLarge { .. } => "the answer is too large",
            CallError::Closing => "the proxy is shutting down",
            CallError::ResponseUndelivered(_) => "a response could not be delivered",
            CallError::Invalid(_) => "a message of the server is not valid",
            _ => "the call took too long",
        };
        self.cancel(reason);
        self.end(UpstreamEvent::Lost(error))
    }

    fn cancel(&mut self, reason: &'static str) {
        let progress = self.progress();
        let _stage = std::mem::replace(&mut self.stage, CallStage::Ended);
        let Some(mut hold) = self.hold.take() else { return };
        if self.request.deferral.as_ref().is_some_and(Deferral::is_released) {
            return hold.release();
        }
        match progress {
            CallProgress::Sent | CallProgress::Begun { .. } => hold.cancel(reason),
            // The reason of the refusal is unknown.
            CallProgress::Refused => drop(hold.abandon()),
            CallProgress::Unsent => {}
        }
    }

    fn fail(&mut self, error: CallError) -> Poll<Option<UpstreamEvent>> {
        if matches!(error, CallError::TooLarge { .. }) {
            return self.abort(error);
        }
        if matches!(self.progress(), CallProgress::Sent | CallProgress::Begun { .. }) {
            self.abandon();
        }
        self.end(UpstreamEvent::Lost(error))
    }

    /// Returns how far the call has got at the server.
    fn progress(&mut self) -> CallProgress {
        match &mut self.stage {
            CallStage::New | CallStage::Leasing(_) | CallStage::Ended => CallProgress::Unsent,
            CallStage::Sent(answer) => W::Session::progress(answer),
            CallStage::AnsweredOffStream(_) => CallProgress::Begun { has_new_bytes: false },
        }
    }

    /// Marks the call as abandoned: the server may still execute it, and its requests on the session's GET
    /// stream could reach another client. Requests during which the server sends none need no mark.
    fn abandon(&mut self) {
        if let Some(hold) = &mut self.hold
            && is_call(&self.request.method)
        {
            hold.abandon();
        }
    }

    /// Converts a message for the caller; `None` if its revision has no equivalent.
    fn to_event(&self, message: CallMessage) -> Option<UpstreamEvent> {
        let is_native = self.is_native;
        Some(match message {
            CallMessage::Notification(frame) => match frame.kind() {
                Kind::Notification { method, .. } if !is_native && !translate::is_forwarded(method) => {
                    return None;
                }
                _ => UpstreamEvent::Notification(frame),
            },
            CallMessage::Request(frame, answer) => {
                let Kind::Request { id, .. } = frame.kind() else { return None };
                let id = id.detached();
                let request = match is_native {
                    true => ServerRequest::Native(frame),
                    // No other request reaches a call; it would be rejected.
                    false => ServerRequest::Canonical(InputRequest::from_frame(&frame)?),
                };
                UpstreamEvent::ServerRequest(PendingServerRequest { request, id, responder: answer })
            }
            CallMessage::RequestCancelled(id) => UpstreamEvent::RequestCancelled { id },
            CallMessage::Response(frame) if is_native => UpstreamEvent::Final(CallResponse::relayed(frame)),
            CallMessage::Response(frame) => {
                let session = &self.hold.as_ref().expect("an answered call has a session").session;
                UpstreamEvent::Final(CallResponse::translated(frame, session.description.server_info.clone()))
            }
            CallMessage::Lost(lost) => UpstreamEvent::Lost(lost),
        })
    }

    /// Checks the session if the call ended with an error: the server may have lost it.
    fn check_session(&self, message: &CallMessage) {
        let is_error = match message {
            CallMessage::Response(frame) => matches!(frame.kind(), Kind::Failure { .. }),
            CallMessage::Lost(CallError::Status { status, .. }) => status.is_server_error(),
            CallMessage::Lost(_)
            | CallMessage::Notification(_)
            | CallMessage::Request(..)
            | CallMessage::RequestCancelled(_) => false,
        };
        if let (true, SessionSource::Pool(_), Some(hold)) = (is_error, &self.source, &self.hold) {
            check_later(&hold.session);
        }
    }

    /// Advances the call without waiting. `Ready(None)` means that the call has ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        loop {
            match &mut self.stage {
                CallStage::New => self.begin(),
                CallStage::Leasing(leasing) => match leasing.poll_unpin(cx) {
                    Poll::Ready(Ok(lease)) => self.send(lease),
                    Poll::Ready(Err(lost)) => match self.refused.take() {
                        Some(refused) if matches!(lost, CallError::NotSent(_)) => return self.end(*refused),
                        Some(_) | None => return self.fail(lost),
                    },
                    Poll::Pending => return Poll::Pending,
                },
                CallStage::Sent(answer) => {
                    let session = &self.hold.as_ref().expect("a call that was sent has a session").session;
                    let event = match ready!(session.transport.poll_call(answer, self.request.id, cx)) {
                        CallEvent::Message(frame) => {
                            let message = session.receive_on_stream(self.request.id, frame);
                            message.and_then(|message| {
                                self.check_session(&message);
                                self.to_event(message)
                            })
                        }
                        CallEvent::Accepted => {
                            self.release_request();
                            None
                        }
                        CallEvent::AnsweredOffStream => {
                            let is_unanswerable = session.has_no_off_stream();
                            self.release_request();
                            if let CallStage::Sent(handle) =
                                std::mem::replace(&mut self.stage, CallStage::Ended)
                            {
                                self.stage = CallStage::AnsweredOffStream(handle);
                            }
                            if is_unanswerable {
                                let why =
                                    "the server accepted the request (202) and sent no response".to_owned();
                                return self.fail(CallError::Invalid(why));
                            }
                            None
                        }
                        CallEvent::Refused(refusal) => match self.message_for_refusal(refusal) {
                            Some(message) => {
                                self.check_session(&message);
                                match self.to_event(message) {
                                    Some(event) => return self.end(event),
                                    None => None,
                                }
                            }
                            None => None,
                        },
                        CallEvent::Lost(lost) if self.can_send_again(&lost) => {
                            self.was_resent = true;
                            self.send_again();
                            None
                        }
                        CallEvent::SessionGone(_)
                            if !self.was_resent && matches!(self.source, SessionSource::Pool(_)) =>
                        {
                            // Retire it here: its reader may not have reached the end yet.
                            session.retire();
                            self.was_resent = true;
                            self.send_again();
                            None
                        }
                        CallEvent::SessionGone(lost) | CallEvent::Lost(lost) => return self.fail(lost),
                    };
                    if event.is_some() {
                        return Poll::Ready(event);
                    }
                }
                CallStage::AnsweredOffStream(_) => {
                    if self.mailbox.is_ended() {
                        let session =
                            &self.hold.as_ref().expect("a call that was sent has a session").session;
                        let lost = session.transport.loss_error();
                        return self.fail(lost);
                    }
                    return Poll::Pending;
                }
                CallStage::Ended => return Poll::Ready(None),
            }
        }
    }

    /// Releases the request once the server has the call.
    fn release_request(&mut self) {
        // The request is not sent again, and may be megabytes.
        self.request.body = Bytes::new();
        self.request.headers = ExtraHeaders::default();
    }

    fn message_for_refusal(&mut self, refusal: CallRefusal) -> Option<CallMessage> {
        match refusal {
            CallRefusal::Response(frame) => Some(CallMessage::Response(frame)),
            CallRefusal::Lost(lost) => {
                if lost.may_still_run() {
                    self.abandon();
                }
                Some(CallMessage::Lost(lost))
            }
            CallRefusal::NoSession { is_certain, response } => {
                self.retry_in_new_session(is_certain, response)
            }
        }
    }

    /// Handles a refusal that may mean that the server does not know the session. The call is sent once more,
    /// in a session opened from now on; a refusal there is the result.
    fn retry_in_new_session(
        &mut self,
        is_certain: bool,
        response: Result<Frame, CallError>,
    ) -> Option<CallMessage> {
        let session = self.hold.as_ref().expect("a call that was sent has a session").session.clone();
        if is_certain {
            session.mark_ended();
        }
        let response = response.map_or_else(CallMessage::Lost, CallMessage::Response);
        let SessionSource::Pool(pool) = &self.source else { return Some(response) };
        if self.refused.is_some() {
            pool.note_repeated_refusal(&session);
            return Some(response);
        }
        if !pool.can_retry(&session) {
            return Some(response);
        }
        session.retire();
        session.server.remembered_offer.clear();
        self.refused = self.to_event(response).map(Box::new);
        self.send_again();
        None
    }

    /// Whether a request whose connection broke may be sent again: only an idempotent one, and only once.
    fn can_send_again(&self, lost: &CallError) -> bool {
        let is_unanswered = !self.request.body.is_empty();
        matches!(lost, CallError::Broken(_))
            && is_unanswered
            && !self.was_resent
            && !is_call(&self.request.method)
    }

    fn send_again(&mut self) {
        self.release_session();
        self.mailbox = Arc::default();
        self.stage = CallStage::New;
    }

    /// Returns the error of an expired timeout. Polled when nothing else happened.
    fn poll_timeouts(&mut self, cx: &mut Context<'_>) -> Option<CallError> {
        let server = self.source.server();
        let (limits, clock) = (server.config.load().timeouts, server.clock);
        let call_limit = self.request.timeout.unwrap_or(limits.call);
        let (is_sent, progress) = (matches!(self.stage, CallStage::Sent(_)), self.progress());
        let timer_after = |limit| PooledTimer::at(clock.now() + limit, TimerKind::Response);
        let timers =
            self.timers.get_or_insert_with(|| CallTimers { call: timer_after(call_limit), step: None });
        let sent_or_not = |error: CallError| match progress {
            CallProgress::Unsent => error.into_not_sent(),
            CallProgress::Sent | CallProgress::Begun { .. } | CallProgress::Refused => error,
        };
        if timers.call.poll(cx).is_ready() {
            return Some(sent_or_not(CallError::CallTimeout(call_limit)));
        }
        if is_call(&self.request.method) {
            return None;
        }
        // Next awaited step: none in the queue, then the first byte, then any byte.
        let (step, limit, moved) = match progress {
            CallProgress::Unsent if is_sent => (TimeoutStep::FirstByte, limits.first_byte, false),
            CallProgress::Sent => (TimeoutStep::FirstByte, limits.first_byte, false),
            CallProgress::Begun { has_new_bytes: moved } => (TimeoutStep::Idle, limits.idle, moved),
            CallProgress::Unsent | CallProgress::Refused => {
                timers.step = None;
                return None;
            }
        };
        let timer = match &mut timers.step {
            Some((timer, armed)) if *armed == step && !moved => timer,
            other => &mut other.insert((timer_after(limit), step)).0,
        };
        timer.poll(cx).is_ready().then(|| match step {
            TimeoutStep::FirstByte => sent_or_not(CallError::FirstByteTimeout(limit)),
            TimeoutStep::Idle => CallError::IdleTimeout(limit),
        })
    }
}

impl<W: Transport> CallExchange<W> {
    /// Route of the server, its name for operators.
    pub(super) fn route(&self) -> Arc<str> {
        Arc::clone(&self.source.server().route)
    }
}

// === impl SessionSource ===

impl<W: Transport> SessionSource<W> {
    fn server(&self) -> &Arc<ServerContext<W>> {
        match self {
            Self::Pool(pool) => pool.server(),
            Self::Client(session) => &session.server,
        }
    }
}

/// Whether the method is a call: it may take any time, and must not be sent twice.
fn is_call(method: &Method) -> bool {
    method.can_request_input()
}

impl<W: Transport> Stream for CallExchange<W> {
    type Item = UpstreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        let this = &mut *self;
        if matches!(this.stage, CallStage::Ended) {
            return Poll::Ready(None);
        }
        // Handle off-stream messages first: they arrived before a response that is ready as well.
        let event = loop {
            match this.mailbox.poll(cx) {
                Poll::Ready(message) => {
                    this.check_session(&message);
                    if let Some(event) = this.to_event(message) {
                        break Poll::Ready(Some(event));
                    }
                }
                Poll::Pending => break this.advance(cx),
            }
        };
        match event {
            Poll::Ready(Some(
                event @ (UpstreamEvent::Final(_) | UpstreamEvent::Lost(CallError::Closing)),
            )) => this.end(event),
            // A call that completed by itself needs no cancellation.
            Poll::Ready(Some(UpstreamEvent::Lost(lost))) => this.abort(lost),
            Poll::Ready(event) => Poll::Ready(event),
            Poll::Pending => match this.poll_timeouts(cx) {
                Some(lost) => this.abort(lost),
                None => {
                    this.report_anchor();
                    Poll::Pending
                }
            },
        }
    }
}

impl<W: Transport> Drop for CallExchange<W> {
    fn drop(&mut self) {
        self.cancel("the client no longer waits");
        self.release_session();
    }
}
