//! One call, from the search for a session to its last event.
//!
//! A stream written by hand, so that a call that waits for hours is one small allocation. What is
//! rare (waiting for a session, reading an error, taking up a broken stream) is boxed when it
//! happens.

use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use std::{
    pin::Pin,
    sync::Arc,
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

/// One call on its way.
pub(super) struct CallExchange<W: Transport> {
    source: SessionSource<W>,
    /// Whether what is said stays as it is; else it is raised.
    is_native: bool,
    request: CallRequest,
    /// Of the request's id.
    _in_use: IdInUse,
    stage: CallStage<W>,
    /// Once there is a session. Dropped in this order: the call leaves the session before another
    /// may lease it.
    hold: Option<SessionHold<W>>,
    lease: Option<SessionLease<W>>,
    mailbox: Arc<SessionMailbox>,
    timers: Option<CallTimers>,
    /// It was lost with its connection, or with a process that had ended, and sent again.
    was_repeated: bool,
    /// The number of the first session that was made after it was sent.
    next_session: u64,
    /// What its client gets where no fresh session can be opened: what the session said in which it was refused before.
    refused: Option<Box<UpstreamEvent>>,
    /// The event behind which it can be taken up, as far as that has been told.
    reported_anchor: Option<Option<Box<str>>>,
}

/// Where a call finds its session.
enum SessionSource<W: Transport> {
    Pool(Arc<SessionPool<W>>),
    /// The session that its client has opened itself.
    Client(Arc<UpstreamSession<W>>),
}

enum CallStage<W: Transport> {
    New,
    /// Waits for a session.
    Leasing(BoxFuture<'static, Result<SessionLease<W>, CallError>>),
    Sent(<W::Line as TransportSession>::Answer),
    /// The server has the call, and answers beside it. What it was sent by is held until it has.
    AnsweredOffStream(<W::Line as TransportSession>::Answer),
    Ended,
}

/// What ends a call that takes too long.
struct CallTimers {
    call: PooledTimer,
    /// For the next byte; not for calls proper, where silence is work.
    step: Option<(PooledTimer, TimeoutStep)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeoutStep {
    FirstByte,
    Idle,
}

// === impl Exchange ===

impl<W: Transport> CallExchange<W> {
    pub(super) fn new(group: Arc<SessionPool<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Pool(group), request, false)
    }

    /// A call in the server's own words, in whichever session it is given.
    pub(super) fn native(group: Arc<SessionPool<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Pool(group), request, true)
    }

    /// A call in the session of its client.
    pub(super) fn in_client_session(session: Arc<UpstreamSession<W>>, request: CallRequest) -> Self {
        Self::from_source(SessionSource::Client(session), request, true)
    }

    fn from_source(home: SessionSource<W>, request: CallRequest, is_native: bool) -> Self {
        Self {
            source: home,
            is_native,
            _in_use: own_ids::in_use(request.id),
            request,
            stage: CallStage::New,
            hold: None,
            lease: None,
            mailbox: Arc::default(),
            timers: None,
            was_repeated: false,
            next_session: 0,
            refused: None,
            reported_anchor: None,
        }
    }

    /// A call that the process before this one has made, in a session that nobody else is given. `responder` is what
    /// becomes of it.
    pub(super) fn resumed(
        session: Arc<UpstreamSession<W>>,
        request: CallRequest,
        answer: <W::Line as TransportSession>::Answer,
        open: &[RequestId],
    ) -> Option<Self> {
        let is_native = session.is_clients;
        let mut call = Self::from_source(SessionSource::Client(session.clone()), request, is_native);
        let stay = session.register_call(&call.request, &call.mailbox, true)?;
        session.restore_requests(call.request.id, open);
        // Where it is ours it serves this call and no other.
        session.retire();
        (call.hold, call.lease) = (Some(stay), Some(SessionLease::shared(session)));
        call.stage = CallStage::Sent(answer);
        Some(call)
    }

    /// Says where the call is, if that has changed and is of use to anybody.
    fn report_anchor(&mut self) {
        let Some(deferral) = self.request.deferral.as_ref().filter(|deferral| deferral.needs_anchor()) else {
            return;
        };
        let (CallStage::Sent(answer), Some(stay)) = (&self.stage, &self.hold) else { return };
        let session = &stay.session;
        let Some(ResumePoint { session: id, revision, last_event }) = session.transport.resume_point(answer)
        else {
            return;
        };
        session.note_event(last_event);
        if self.reported_anchor.as_ref().is_some_and(|told| told.as_deref() == last_event) {
            return;
        }
        let anchor = CallAnchor {
            session: id.to_owned(),
            revision: revision.to_owned(),
            call: self.request.id,
            last_event: last_event.map(str::to_owned),
            server_info: String::from_utf8_lossy(&session.description.server_info).into_owned(),
            is_clients: session.is_clients,
        };
        self.reported_anchor = Some(last_event.map(Box::from));
        deferral.set_anchor(anchor);
    }

    /// Looks for a session, and sends the call where there is one.
    fn begin(&mut self) {
        if self.source.server().work.is_closing() {
            self.stage = CallStage::Leasing(std::future::ready(Err(CallError::Closing)).boxed());
            return;
        }
        self.stage = match &self.source {
            SessionSource::Pool(group) => match group.try_lease(&self.request) {
                Some(lease) => return self.send(lease),
                None => {
                    let who = LeaseHolder::of(&self.request);
                    CallStage::Leasing(group.clone().lease(self.request.method.clone(), who).boxed())
                }
            },
            SessionSource::Client(session) => {
                let session = session.clone();
                let lease = async move {
                    session.transport.wait_settled().await;
                    Ok(SessionLease::shared(session))
                };
                CallStage::Leasing(lease.boxed())
            }
        };
    }

    fn send(&mut self, lease: SessionLease<W>) {
        let session = lease.session.clone();
        if self.refused.is_some() && session.number < self.next_session {
            // The server may have forgotten all that were made before.
            session.retire();
            self.stage = CallStage::New;
            return;
        }
        self.next_session = session.server.sessions_made();
        let Some(stay) = session.register_call(&self.request, &self.mailbox, lease.is_exclusive()) else {
            // The session ended after it was given to this call, which may have waited long before anybody
            // polled it. There may be another; where everything closes, there is none. Whoever ended it may
            // not have come to take it out yet, and it must not be found again.
            if let SessionSource::Pool(group) = &self.source {
                group.remove(&session);
            }
            self.stage = CallStage::New;
            return;
        };
        self.hold = Some(stay);
        self.lease = Some(lease);
        self.stage =
            CallStage::Sent(session.transport.send_call(self.request.body.clone(), &self.request.headers));
    }

    /// Gives back what the call held of its session.
    fn release_session(&mut self) {
        if let Some(mut stay) = self.hold.take() {
            stay.finish();
        }
        let lease = self.lease.take();
        if let SessionSource::Pool(group) = &self.source
            && lease.is_some_and(|lease| !lease.is_exclusive())
            && is_call(&self.request.method)
        {
            group.shared_call_ended();
        }
    }

    /// The call has ended by itself.
    fn end(&mut self, event: UpstreamEvent) -> Poll<Option<UpstreamEvent>> {
        if let CallStage::Sent(answer) = std::mem::replace(&mut self.stage, CallStage::Ended)
            && let Some(stay) = &self.hold
        {
            stay.session.transport.finish(answer);
        }
        self.release_session();
        self.timers = None;
        Poll::Ready(Some(event))
    }

    /// We end the call, and tell the server.
    fn abort(&mut self, lost: CallError) -> Poll<Option<UpstreamEvent>> {
        let reason = match &lost {
            CallError::TooLarge { .. } => "the answer is too large",
            CallError::Closing => "the proxy is shutting down",
            CallError::ResponseUndelivered(_) => "an answer could not be delivered",
            CallError::Invalid(_) => "what was said is not valid",
            _ => "the call took too long",
        };
        self.cancel(reason);
        self.end(UpstreamEvent::Lost(lost))
    }

    fn cancel(&mut self, reason: &'static str) {
        let progress = self.progress();
        let _stage = std::mem::replace(&mut self.stage, CallStage::Ended);
        let Some(mut stay) = self.hold.take() else { return };
        if self.request.deferral.as_ref().is_some_and(Deferral::is_released) {
            return stay.release();
        }
        match progress {
            CallProgress::Sent | CallProgress::Begun { .. } => stay.cancel(reason),
            // What the refusal says is not known.
            CallProgress::Refused => drop(stay.abandon()),
            CallProgress::Unsent => {}
        }
    }

    fn fail(&mut self, lost: CallError) -> Poll<Option<UpstreamEvent>> {
        if matches!(lost, CallError::TooLarge { .. }) {
            return self.abort(lost);
        }
        if matches!(self.progress(), CallProgress::Sent | CallProgress::Begun { .. }) {
            self.abandon();
        }
        self.end(UpstreamEvent::Lost(lost))
    }

    /// How far the call has come.
    fn progress(&mut self) -> CallProgress {
        match &mut self.stage {
            CallStage::New | CallStage::Leasing(_) | CallStage::Ended => CallProgress::Unsent,
            CallStage::Sent(answer) => W::Line::progress(answer),
            CallStage::AnsweredOffStream(_) => CallProgress::Begun { moved: false },
        }
    }

    /// The server may still be at it, and what it asks of this call on the session's own stream would be
    /// put to somebody else in the session. What only asks for something asks nobody back.
    fn abandon(&mut self) {
        if let Some(stay) = &mut self.hold
            && is_call(&self.request.method)
        {
            stay.abandon();
        }
    }

    /// What the server said, in the words of whoever made the call; `Missing` of what those have no word for.
    fn event(&self, said: CallMessage) -> Option<UpstreamEvent> {
        let is_native = self.is_native;
        Some(match said {
            CallMessage::Notification(frame) => match frame.kind() {
                Kind::Notification { method, .. } if !is_native && !translate::is_forwarded(method) => {
                    return None;
                }
                _ => UpstreamEvent::Notification(frame),
            },
            CallMessage::Request(frame, answer) => {
                let Kind::Request { id, .. } = frame.kind() else { return None };
                let id = id.detached();
                let asked = match is_native {
                    true => ServerRequest::Native(frame),
                    // Nothing else is put to a call; it would be refused.
                    false => ServerRequest::Canonical(InputRequest::of(&frame)?),
                };
                UpstreamEvent::ServerRequest(PendingServerRequest { request: asked, id, responder: answer })
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

    /// Checks the session where the call ended in it with an error: the server may have lost it.
    fn check_session(&self, said: &CallMessage) {
        let is_error = match said {
            CallMessage::Response(frame) => matches!(frame.kind(), Kind::Failure { .. }),
            CallMessage::Lost(CallError::Status { status, .. }) => status.is_server_error(),
            CallMessage::Lost(_)
            | CallMessage::Notification(_)
            | CallMessage::Request(..)
            | CallMessage::RequestCancelled(_) => false,
        };
        if let (true, SessionSource::Pool(_), Some(stay)) = (is_error, &self.source, &self.hold) {
            check_later(&stay.session);
        }
    }

    /// Moves on as far as it goes without waiting; `Missing` means there is no event in it.
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
                            let said = session.receive_on_stream(self.request.id, frame);
                            said.and_then(|said| {
                                self.check_session(&said);
                                self.event(said)
                            })
                        }
                        CallEvent::Accepted => {
                            self.release_request();
                            None
                        }
                        CallEvent::AnsweredOffStream => {
                            let is_deaf = session.is_deaf();
                            self.release_request();
                            if let CallStage::Sent(answer) =
                                std::mem::replace(&mut self.stage, CallStage::Ended)
                            {
                                self.stage = CallStage::AnsweredOffStream(answer);
                            }
                            if is_deaf {
                                let why = "it took the request without a response".to_owned();
                                return self.fail(CallError::Invalid(why));
                            }
                            None
                        }
                        CallEvent::Refused(refusal) => match self.resolve_refusal(refusal) {
                            Some(said) => {
                                self.check_session(&said);
                                match self.event(said) {
                                    Some(event) => return self.end(event),
                                    None => None,
                                }
                            }
                            None => None,
                        },
                        CallEvent::Lost(lost) if self.can_repeat(&lost) => {
                            self.was_repeated = true;
                            self.repeat();
                            None
                        }
                        CallEvent::SessionGone(_)
                            if !self.was_repeated && matches!(self.source, SessionSource::Pool(_)) =>
                        {
                            // It is found out before the session's reader has come to its end.
                            session.retire();
                            self.was_repeated = true;
                            self.repeat();
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

    /// The server has the call.
    fn release_request(&mut self) {
        // It is not sent again from here on, and may be megabytes.
        self.request.body = Bytes::new();
        self.request.headers = ExtraHeaders::default();
    }

    fn resolve_refusal(&mut self, refusal: CallRefusal) -> Option<CallMessage> {
        match refusal {
            CallRefusal::Response(frame) => Some(CallMessage::Response(frame)),
            CallRefusal::Lost(lost) => {
                if lost.may_still_run() {
                    self.abandon();
                }
                Some(CallMessage::Lost(lost))
            }
            CallRefusal::NoSession { is_certain, response: words } => {
                self.retry_in_new_session(is_certain, words)
            }
        }
    }

    /// The call was refused, perhaps because the server does not know its session. It is made once more, in a session
    /// that is opened from now on; what it is refused with there is the answer.
    fn retry_in_new_session(
        &mut self,
        is_certain: bool,
        words: Result<Frame, CallError>,
    ) -> Option<CallMessage> {
        let session = self.hold.as_ref().expect("a call that was sent has a session").session.clone();
        if is_certain {
            session.mark_ended();
        }
        let words = words.map_or_else(CallMessage::Lost, CallMessage::Response);
        let SessionSource::Pool(group) = &self.source else { return Some(words) };
        if self.refused.is_some() {
            group.note_repeated_refusal(&session);
            return Some(words);
        }
        if !group.can_retry(&session) {
            return Some(words);
        }
        session.retire();
        session.server.offer.clear();
        self.refused = self.event(words).map(Box::new);
        self.repeat();
        None
    }

    /// Whether a request whose connection broke may be sent again: only what asks for something,
    /// and only once.
    fn can_repeat(&self, lost: &CallError) -> bool {
        let is_unheard = !self.request.body.is_empty();
        matches!(lost, CallError::Broken(_))
            && is_unheard
            && !self.was_repeated
            && !is_call(&self.request.method)
    }

    fn repeat(&mut self) {
        self.release_session();
        self.mailbox = Arc::default();
        self.stage = CallStage::New;
    }

    /// Whether time is up. Polled when nothing else happened.
    fn poll_timeouts(&mut self, cx: &mut Context<'_>) -> Option<CallError> {
        let server = self.source.server();
        let (limits, clock) = (server.config.load().timeouts, server.clock);
        let call = self.request.timeout.unwrap_or(limits.call);
        let (is_sent, progress) = (matches!(self.stage, CallStage::Sent(_)), self.progress());
        let alarm = |limit| PooledTimer::at(clock.now() + limit, TimerKind::Response);
        let timers = self.timers.get_or_insert_with(|| CallTimers { call: alarm(call), step: None });
        let lost = |error: CallError| match progress {
            CallProgress::Unsent => error.into_not_sent(),
            CallProgress::Sent | CallProgress::Begun { .. } | CallProgress::Refused => error,
        };
        if timers.call.poll(cx).is_ready() {
            return Some(lost(CallError::CallTimeout(call)));
        }
        if is_call(&self.request.method) {
            return None;
        }
        // What is to be waited for next: nothing in the queue, then the first byte, then any.
        let (step, limit, moved) = match progress {
            CallProgress::Unsent if is_sent => (TimeoutStep::FirstByte, limits.first_byte, false),
            CallProgress::Sent => (TimeoutStep::FirstByte, limits.first_byte, false),
            CallProgress::Begun { moved } => (TimeoutStep::Idle, limits.idle, moved),
            CallProgress::Unsent | CallProgress::Refused => {
                timers.step = None;
                return None;
            }
        };
        let timer = match &mut timers.step {
            Some((timer, armed)) if *armed == step && !moved => timer,
            other => &mut other.insert((alarm(limit), step)).0,
        };
        timer.poll(cx).is_ready().then(|| match step {
            TimeoutStep::FirstByte => lost(CallError::FirstByteTimeout(limit)),
            TimeoutStep::Idle => CallError::IdleTimeout(limit),
        })
    }
}

impl<W: Transport> CallExchange<W> {
    /// The route of its server.
    pub(super) fn route(&self) -> Arc<str> {
        Arc::clone(&self.source.server().route)
    }
}

// === impl Home ===

impl<W: Transport> SessionSource<W> {
    fn server(&self) -> &Arc<ServerContext<W>> {
        match self {
            Self::Pool(group) => group.server(),
            Self::Client(session) => &session.server,
        }
    }
}

/// Calls proper: they may take as long as they like, and must not be made twice.
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
        // First what came outside the response: it came earlier than a response that is ready too.
        let event = loop {
            match this.mailbox.poll(cx) {
                Poll::Ready(said) => {
                    this.check_session(&said);
                    if let Some(event) = this.event(said) {
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
            // Where it has ended by itself already, there is nothing left to give up.
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
    }
}
