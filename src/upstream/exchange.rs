//! One call, from the search for a session to its last event.
//!
//! A stream written by hand, so that a call that waits for hours is one small allocation. What is
//! rare (waiting for a session, reading an error, taking up a broken stream) is boxed when it
//! happens.

use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use http::HeaderMap;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::{Sleep, sleep};

use super::{
    Asked, CallError, Deferral, Event, Question,
    group::{Group, Holder, Lease},
    http1::Answering,
    mailbox::{Mailbox, Said},
    messages::{Messages, Opening, Stop},
    refusal::{self, Verdict},
    resume,
    server::Server,
    session::{Session, Stay},
};
use crate::{
    dialect::{Response, raise},
    protocol::{InputRequest, Kind, Method},
};

/// A request ready to be sent.
pub(super) struct Request {
    /// The id that `body` carries: unique in this process, so also in any session.
    pub(super) id: u64,
    pub(super) method: Method,
    /// The whole JSON-RPC message, in the server's words. Its progress token, if it has one, is `id` as a
    /// number; in a legacy client's session it may be the client's own.
    pub(super) body: Bytes,
    /// Further headers of the client to pass on.
    pub(super) headers: HeaderMap,
    pub(super) deferral: Option<Deferral>,
}

/// One call on its way.
pub(super) struct Exchange {
    home: Home,
    request: Request,
    stage: Stage,
    /// Once there is a session. Dropped in this order: the call leaves the session before another
    /// may lease it.
    stay: Option<Stay>,
    lease: Option<Lease>,
    mailbox: Arc<Mailbox>,
    timers: Option<Timers>,
    /// It was refused where it should have been served, certainly not served, and sent again.
    again: bool,
}

/// Where a call finds its session.
enum Home {
    /// What is said there is raised.
    Group(Arc<Group>),
    /// The session that its client has opened itself: what is said there stays as it is.
    Own(Arc<Session>),
}

enum Stage {
    New,
    /// Waits for a session.
    Leasing(BoxFuture<'static, Result<Lease, CallError>>),
    /// Waits for the head of the answer.
    Sent(Answering),
    Reading(Messages),
    /// The server took the call and will answer on the GET stream.
    Elsewhere,
    /// Takes up a stream that broke.
    Resuming(BoxFuture<'static, Result<Messages, CallError>>),
    /// Reads what an HTTP error says.
    Refused(BoxFuture<'static, Verdict>),
    Over,
}

/// What ends a call that takes too long.
struct Timers {
    call: Pin<Box<Sleep>>,
    /// For the next byte; not for calls proper, where silence is work.
    step: Option<(Pin<Box<Sleep>>, Step)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    FirstByte,
    Idle,
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn new(group: Arc<Group>, request: Request) -> Self {
        Self::at(Home::Group(group), request)
    }

    /// A call in the session of its client.
    pub(super) fn within(session: Arc<Session>, request: Request) -> Self {
        Self::at(Home::Own(session), request)
    }

    fn at(home: Home, request: Request) -> Self {
        Self {
            home,
            request,
            stage: Stage::New,
            stay: None,
            lease: None,
            mailbox: Arc::default(),
            timers: None,
            again: false,
        }
    }

    /// Looks for a session, and sends the call where there is one.
    fn begin(&mut self) {
        if self.home.server().closing.is_cancelled() {
            self.stage = Stage::Leasing(std::future::ready(Err(CallError::Closing)).boxed());
            return;
        }
        self.stage = match &self.home {
            Home::Group(group) => match group.take(&self.request) {
                Some(lease) => return self.send(lease),
                None => {
                    let who = Holder::of(&self.request);
                    Stage::Leasing(group.clone().lease(self.request.method.clone(), who).boxed())
                }
            },
            Home::Own(session) => {
                let session = session.clone();
                let lease = async move {
                    session.wait_for_stream().await;
                    Ok(Lease::shared(session))
                };
                Stage::Leasing(lease.boxed())
            }
        };
    }

    fn send(&mut self, lease: Lease) {
        let session = lease.session.clone();
        let Some(stay) = session.enter(&self.request, &self.mailbox, lease.is_exclusive()) else {
            // The session ended after it was given to this call, which may have waited long before anybody
            // polled it. There may be another; where everything closes, there is none. Whoever ended it may
            // not have come to take it out yet, and it must not be found again.
            if let Home::Group(group) = &self.home {
                group.remove(&session);
            }
            self.stage = Stage::New;
            return;
        };
        self.stay = Some(stay);
        self.lease = Some(lease);
        self.stage = Stage::Sent(session.post(self.request.body.clone(), &self.request.headers));
    }

    /// Gives back what the call held of its session.
    fn leave(&mut self) {
        if let Some(mut stay) = self.stay.take() {
            stay.finish();
        }
        let lease = self.lease.take();
        if let Home::Group(group) = &self.home
            && lease.is_some_and(|lease| !lease.is_exclusive())
            && is_call(&self.request.method)
        {
            group.unshared();
        }
    }

    /// The call has ended by itself.
    fn end(&mut self, event: Event) -> Poll<Option<Event>> {
        if let Stage::Reading(messages) = std::mem::replace(&mut self.stage, Stage::Over) {
            self.free(messages);
        }
        self.leave();
        self.timers = None;
        Poll::Ready(Some(event))
    }

    /// Reads the rest of an answer, so that its connection can be used again. Mostly it is there.
    fn free(&self, messages: Messages) {
        if let Some(rest) = messages.into_rest() {
            self.home.server().drain_later(rest);
        }
    }

    /// We end the call, and tell the server.
    fn give_up(&mut self, lost: CallError) -> Poll<Option<Event>> {
        let reason = match &lost {
            CallError::TooLarge { .. } => "the answer is too large",
            CallError::Closing => "the proxy is shutting down",
            CallError::Untold(_) => "an answer could not be delivered",
            CallError::Invalid(_) => "what was said is not valid",
            _ => "the call took too long",
        };
        self.cancel(reason);
        self.end(Event::Lost(lost))
    }

    fn cancel(&mut self, reason: &'static str) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let Some(mut stay) = self.stay.take() else { return };
        if is_with_server(&stage) {
            stay.cancel(reason);
        } else if matches!(stage, Stage::Refused(_)) {
            // What the refusal says is not known.
            stay.abandon();
        }
    }

    fn lost(&mut self, lost: CallError) -> Poll<Option<Event>> {
        if matches!(lost, CallError::TooLarge { .. }) {
            return self.give_up(lost);
        }
        if is_with_server(&self.stage) {
            self.abandon();
        }
        self.end(Event::Lost(lost))
    }

    /// The server may still be at it, and what it asks of this call on the session's own stream would be
    /// put to somebody else in the session. What only asks for something asks nobody back.
    fn abandon(&mut self) {
        if let Some(stay) = &mut self.stay
            && is_call(&self.request.method)
        {
            stay.abandon();
        }
    }

    /// What the server said, in the words of whoever made the call; `None` of what those have no word for.
    fn event(&self, said: Said) -> Option<Event> {
        let is_native = matches!(self.home, Home::Own(_));
        Some(match said {
            Said::Notification(frame) => match frame.kind() {
                Kind::Notification { method, .. } if !is_native && !raise::passes(method) => return None,
                _ => Event::Notification(frame),
            },
            Said::Request(frame, answer) => {
                let Kind::Request { id, .. } = frame.kind() else { return None };
                let id = id.detached();
                let asked = match is_native {
                    true => Asked::Native(frame),
                    // Nothing else is put to a call; it would be refused.
                    false => Asked::Canonical(InputRequest::of(&frame)?),
                };
                Event::Asked(Question { asked, id, answer })
            }
            Said::Withdrawn(id) => Event::Withdrawn { id },
            Said::Response(frame) if is_native => Event::Final(Response::as_it_is(frame)),
            Said::Response(frame) => {
                let session = self.stay.as_ref().expect("an answered call has a session").session();
                Event::Final(Response::raised(frame, session.description.server_info.clone()))
            }
            Said::Lost(lost) => Event::Lost(lost),
        })
    }

    /// Moves on as far as it goes without waiting; `None` means there is no event in it.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            match &mut self.stage {
                Stage::New => self.begin(),
                Stage::Leasing(leasing) => match leasing.poll_unpin(cx) {
                    Poll::Ready(Ok(lease)) => self.send(lease),
                    Poll::Ready(Err(lost)) => return self.lost(lost),
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Sent(answer) => match answer.poll_unpin(cx) {
                    Poll::Ready(Ok(response)) => {
                        let limit = self.home.server().config.limits.result_bytes;
                        match Opening::of(response, limit) {
                            Ok(opening) => self.opened(opening),
                            Err(lost) => return self.lost(lost),
                        }
                    }
                    Poll::Ready(Err(lost)) => {
                        if !self.may_repeat(&lost) {
                            return self.lost(lost);
                        }
                        self.again = true;
                        self.repeat();
                    }
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Reading(messages) => match messages.poll_next(cx) {
                    Poll::Ready(Ok(frame)) => {
                        let session = self.stay.as_ref().expect("a call that reads has a session").session();
                        let said = session.hear_on_stream(self.request.id, frame);
                        if let Some(event) = said.and_then(|said| self.event(said)) {
                            return Poll::Ready(Some(event));
                        }
                    }
                    Poll::Ready(Err(stop)) => match self.stopped(stop) {
                        Ok(()) => {}
                        Err(lost) => return self.lost(lost),
                    },
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Elsewhere => {
                    if self.mailbox.is_ended() {
                        return self.lost(CallError::SessionEnded);
                    }
                    return Poll::Pending;
                }
                Stage::Resuming(resuming) => match resuming.poll_unpin(cx) {
                    Poll::Ready(Ok(messages)) => self.stage = Stage::Reading(messages),
                    Poll::Ready(Err(lost)) => return self.lost(lost),
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Refused(reading) => match reading.poll_unpin(cx) {
                    Poll::Ready(verdict) => {
                        if let Some(event) = self.refused(verdict).and_then(|said| self.event(said)) {
                            return self.end(event);
                        }
                    }
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Over => return Poll::Ready(None),
            }
        }
    }

    fn opened(&mut self, opening: Opening) {
        let stay = self.stay.as_ref().expect("an answered call has a session");
        let session = stay.session();
        if !matches!(opening, Opening::Refused(..)) {
            session.serves();
            // It is not sent again from here on, and may be megabytes.
            self.request.body = Bytes::new();
            self.request.headers = HeaderMap::new();
        }
        self.stage = match opening {
            Opening::Messages(messages) => Stage::Reading(messages),
            Opening::Accepted if session.is_deaf() => {
                let lost = CallError::Invalid("it took the request without a response".to_owned());
                Stage::Refused(std::future::ready(Verdict::Lost(lost)).boxed())
            }
            Opening::Accepted => Stage::Elsewhere,
            Opening::Refused(head, body) => {
                Stage::Refused(refusal::read(session.clone(), self.request.id, head, body).boxed())
            }
        };
    }

    /// The stream ended before the response.
    fn stopped(&mut self, stop: Stop) -> Result<(), CallError> {
        let Stage::Reading(messages) = &self.stage else { return Err(stop.into()) };
        let session = self.stay.as_ref().expect("a call that reads has a session").session();
        match (stop, messages.resumption()) {
            (Stop::Ended(_), Some(resumption)) if resumption.last_id.is_some() => {
                self.stage = Stage::Resuming(resume::resume(session.clone(), resumption.clone()).boxed());
                Ok(())
            }
            (stop, _) => Err(stop.into()),
        }
    }

    fn refused(&mut self, verdict: Verdict) -> Option<Said> {
        match verdict {
            Verdict::Answer(frame) => Some(Said::Response(frame)),
            Verdict::Lost(lost) => {
                if lost.leaves_it_running() {
                    self.abandon();
                }
                Some(Said::Lost(lost))
            }
            Verdict::NoSession { not_served, said } => {
                let mut was_there = false;
                if let Some(stay) = &self.stay {
                    was_there = stay.session().has_served();
                    stay.session().ended();
                }
                // Only what certainly was not served, or may be served twice, is sent again. A server that
                // was started anew has forgotten all sessions: each that was there once is found out and
                // taken out like this, until one is opened. One that it has just opened is refused only once.
                let is_own = matches!(self.home, Home::Own(_));
                let was_refused = self.again && !was_there;
                if was_refused || is_own || !not_served && is_call(&self.request.method) {
                    return Some(said);
                }
                self.again |= !was_there;
                self.repeat();
                None
            }
        }
    }

    /// Whether a request whose connection broke may be sent again: only what asks for something,
    /// and only once.
    fn may_repeat(&self, lost: &CallError) -> bool {
        matches!(lost, CallError::Broken(_)) && !self.again && !is_call(&self.request.method)
    }

    fn repeat(&mut self) {
        self.leave();
        self.mailbox = Arc::default();
        self.stage = Stage::New;
    }

    /// Whether time is up. Polled when nothing else happened.
    fn overdue(&mut self, cx: &mut Context<'_>) -> Option<CallError> {
        let limits = self.home.server().config.timeouts;
        let timers =
            self.timers.get_or_insert_with(|| Timers { call: Box::pin(sleep(limits.call)), step: None });
        if timers.call.as_mut().poll(cx).is_ready() {
            return Some(CallError::CallTimeout(limits.call));
        }
        if is_call(&self.request.method) {
            return None;
        }
        // What is to be waited for next: nothing in the queue, then the first byte, then any.
        let (step, limit, moved) = match &mut self.stage {
            Stage::Sent(_) => (Step::FirstByte, limits.first_byte, false),
            Stage::Reading(messages) => (Step::Idle, limits.idle, messages.took_progress()),
            Stage::Elsewhere | Stage::Resuming(_) => (Step::Idle, limits.idle, false),
            Stage::New | Stage::Leasing(_) | Stage::Refused(_) | Stage::Over => {
                timers.step = None;
                return None;
            }
        };
        let timer = match &mut timers.step {
            Some((timer, armed)) if *armed == step && !moved => timer,
            other => &mut other.insert((Box::pin(sleep(limit)), step)).0,
        };
        timer.as_mut().poll(cx).is_ready().then(|| match step {
            Step::FirstByte => CallError::FirstByteTimeout(limit),
            Step::Idle => CallError::IdleTimeout(limit),
        })
    }
}

// === impl Home ===

impl Home {
    fn server(&self) -> &Arc<Server> {
        match self {
            Self::Group(group) => group.server(),
            Self::Own(session) => &session.server,
        }
    }
}

/// Whether the server has the call, or may have it.
fn is_with_server(stage: &Stage) -> bool {
    match stage {
        Stage::New | Stage::Leasing(_) | Stage::Refused(_) | Stage::Over => false,
        Stage::Sent(answer) => !answer.is_connecting(),
        Stage::Reading(_) | Stage::Elsewhere | Stage::Resuming(_) => true,
    }
}

/// Calls proper: they may take as long as they like, and must not be made twice.
fn is_call(method: &Method) -> bool {
    method.may_ask()
}

impl Stream for Exchange {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        if matches!(this.stage, Stage::Over) {
            return Poll::Ready(None);
        }
        // First what came outside the response: it came earlier than a response that is ready too.
        let event = loop {
            match this.mailbox.poll(cx) {
                Poll::Ready(said) => {
                    if let Some(event) = this.event(said) {
                        break Poll::Ready(Some(event));
                    }
                }
                Poll::Pending => break this.advance(cx),
            }
        };
        match event {
            Poll::Ready(Some(event @ (Event::Final(_) | Event::Lost(CallError::Closing)))) => this.end(event),
            // Where it has ended by itself already, there is nothing left to give up.
            Poll::Ready(Some(Event::Lost(lost))) => this.give_up(lost),
            Poll::Ready(event) => Poll::Ready(event),
            Poll::Pending => match this.overdue(cx) {
                Some(lost) => this.give_up(lost),
                None => Poll::Pending,
            },
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.cancel("the client no longer waits");
    }
}
