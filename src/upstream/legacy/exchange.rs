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
    group::{Group, Holder, Lease},
    mailbox::{Mailbox, Said},
    request::Request,
    server::Server,
    session::{Session, Stay},
};
use crate::{
    dialect::{Further, Response, raise},
    protocol::{Frame, Id, InputRequest, Kind, Method},
    runtime::{Alarm, Clock, Of},
    upstream::{
        Anchor, Asked, CallError, Deferral, Event, Question,
        own_ids::{self, InUse},
        wire::{Heard, Line, Place, Progress, Refusal, Wire},
    },
};

/// One call on its way.
pub(super) struct Exchange<W: Wire> {
    home: Home<W>,
    /// Whether what is said stays as it is; else it is raised.
    is_native: bool,
    request: Request,
    /// Of the request's id.
    _in_use: InUse,
    stage: Stage<W>,
    /// Once there is a session. Dropped in this order: the call leaves the session before another
    /// may lease it.
    stay: Option<Stay<W>>,
    lease: Option<Lease<W>>,
    mailbox: Arc<Mailbox>,
    timers: Option<Timers>,
    /// It was lost with its connection, or with a process that had ended, and sent again.
    again: bool,
    /// The number of the first session that was made after it was sent.
    next_session: u64,
    /// What its client gets where no fresh session can be opened: what the session said in which it was refused before.
    refused: Option<Box<Event>>,
    /// The event behind which it can be taken up, as far as that has been told.
    told_anchor: Option<Option<Box<str>>>,
}

/// Where a call finds its session.
enum Home<W: Wire> {
    Group(Arc<Group<W>>),
    /// The session that its client has opened itself.
    Own(Arc<Session<W>>),
}

enum Stage<W: Wire> {
    New,
    /// Waits for a session.
    Leasing(BoxFuture<'static, Result<Lease<W>, CallError>>),
    Sent(<W::Line as Line>::Answer),
    /// The server has the call, and answers beside it. What it was sent by is held until it has.
    Elsewhere(<W::Line as Line>::Answer),
    Over,
}

/// What ends a call that takes too long.
struct Timers {
    call: Alarm,
    /// For the next byte; not for calls proper, where silence is work.
    step: Option<(Alarm, Step)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    FirstByte,
    Idle,
}

// === impl Exchange ===

impl<W: Wire> Exchange<W> {
    pub(super) fn new(group: Arc<Group<W>>, request: Request) -> Self {
        Self::at(Home::Group(group), request, false)
    }

    /// A call in the server's own words, in whichever session it is given.
    pub(super) fn native(group: Arc<Group<W>>, request: Request) -> Self {
        Self::at(Home::Group(group), request, true)
    }

    /// A call in the session of its client.
    pub(super) fn within(session: Arc<Session<W>>, request: Request) -> Self {
        Self::at(Home::Own(session), request, true)
    }

    fn at(home: Home<W>, request: Request, is_native: bool) -> Self {
        Self {
            home,
            is_native,
            _in_use: own_ids::in_use(request.id),
            request,
            stage: Stage::New,
            stay: None,
            lease: None,
            mailbox: Arc::default(),
            timers: None,
            again: false,
            next_session: 0,
            refused: None,
            told_anchor: None,
        }
    }

    /// A call that the process before this one has made, in a session that nobody else is given. `answer` is what
    /// becomes of it.
    pub(super) fn taken_up(
        session: Arc<Session<W>>,
        request: Request,
        answer: <W::Line as Line>::Answer,
        open: &[Id],
    ) -> Option<Self> {
        let is_native = session.is_clients;
        let mut call = Self::at(Home::Own(session.clone()), request, is_native);
        let stay = session.enter(&call.request, &call.mailbox, true)?;
        session.takes_up(call.request.id, open);
        // Where it is ours it serves this call and no other.
        session.retire();
        (call.stay, call.lease) = (Some(stay), Some(Lease::shared(session)));
        call.stage = Stage::Sent(answer);
        Some(call)
    }

    /// Says where the call is, if that has changed and is of use to anybody.
    fn tell_where(&mut self) {
        let Some(deferral) = self.request.deferral.as_ref().filter(|deferral| deferral.wants_anchor()) else {
            return;
        };
        let (Stage::Sent(answer), Some(stay)) = (&self.stage, &self.stay) else { return };
        let session = &stay.session;
        let Some(Place { session: id, revision, last_event }) = session.line.anchor(answer) else { return };
        session.has_come_to(last_event);
        if self.told_anchor.as_ref().is_some_and(|told| told.as_deref() == last_event) {
            return;
        }
        let anchor = Anchor {
            session: id.to_owned(),
            revision: revision.to_owned(),
            call: self.request.id,
            last_event: last_event.map(str::to_owned),
            server_info: String::from_utf8_lossy(&session.description.server_info).into_owned(),
            is_clients: session.is_clients,
        };
        self.told_anchor = Some(last_event.map(Box::from));
        deferral.moves(anchor);
    }

    /// Looks for a session, and sends the call where there is one.
    fn begin(&mut self) {
        if self.home.server().work.is_closing() {
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
                    session.line.settled().await;
                    Ok(Lease::shared(session))
                };
                Stage::Leasing(lease.boxed())
            }
        };
    }

    fn send(&mut self, lease: Lease<W>) {
        let session = lease.session.clone();
        if self.refused.is_some() && session.number < self.next_session {
            // The server may have forgotten all that were made before.
            session.retire();
            self.stage = Stage::New;
            return;
        }
        self.next_session = session.server.sessions_made();
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
        self.stage = Stage::Sent(session.line.send(self.request.body.clone(), &self.request.headers));
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
        if let Stage::Sent(answer) = std::mem::replace(&mut self.stage, Stage::Over)
            && let Some(stay) = &self.stay
        {
            stay.session.line.finish(answer);
        }
        self.leave();
        self.timers = None;
        Poll::Ready(Some(event))
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
        let progress = self.progress();
        let _stage = std::mem::replace(&mut self.stage, Stage::Over);
        let Some(mut stay) = self.stay.take() else { return };
        if self.request.deferral.as_ref().is_some_and(Deferral::is_released) {
            return stay.release();
        }
        match progress {
            Progress::Sent | Progress::Begun { .. } => stay.cancel(reason),
            // What the refusal says is not known.
            Progress::Refused => drop(stay.abandon()),
            Progress::Unsent => {}
        }
    }

    fn lost(&mut self, lost: CallError) -> Poll<Option<Event>> {
        if matches!(lost, CallError::TooLarge { .. }) {
            return self.give_up(lost);
        }
        if matches!(self.progress(), Progress::Sent | Progress::Begun { .. }) {
            self.abandon();
        }
        self.end(Event::Lost(lost))
    }

    /// How far the call has come.
    fn progress(&mut self) -> Progress {
        match &mut self.stage {
            Stage::New | Stage::Leasing(_) | Stage::Over => Progress::Unsent,
            Stage::Sent(answer) => W::Line::progress(answer),
            Stage::Elsewhere(_) => Progress::Begun { moved: false },
        }
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
        let is_native = self.is_native;
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
                let session = &self.stay.as_ref().expect("an answered call has a session").session;
                Event::Final(Response::raised(frame, session.description.server_info.clone()))
            }
            Said::Lost(lost) => Event::Lost(lost),
        })
    }

    /// Checks the session where the call ended in it with an error: the server may have lost it.
    fn check_session(&self, said: &Said) {
        let is_error = match said {
            Said::Response(frame) => matches!(frame.kind(), Kind::Failure { .. }),
            Said::Lost(CallError::Status { status, .. }) => status.is_server_error(),
            Said::Lost(_) | Said::Notification(_) | Said::Request(..) | Said::Withdrawn(_) => false,
        };
        if let (true, Home::Group(_), Some(stay)) = (is_error, &self.home, &self.stay) {
            check_later(&stay.session);
        }
    }

    /// Moves on as far as it goes without waiting; `None` means there is no event in it.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            match &mut self.stage {
                Stage::New => self.begin(),
                Stage::Leasing(leasing) => match leasing.poll_unpin(cx) {
                    Poll::Ready(Ok(lease)) => self.send(lease),
                    Poll::Ready(Err(lost)) => match self.refused.take() {
                        Some(refused) if matches!(lost, CallError::NotSent(_)) => return self.end(*refused),
                        Some(_) | None => return self.lost(lost),
                    },
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Sent(answer) => {
                    let session = &self.stay.as_ref().expect("a call that was sent has a session").session;
                    let event = match ready!(session.line.poll_answer(answer, self.request.id, cx)) {
                        Heard::Message(frame) => {
                            let said = session.hear_on_stream(self.request.id, frame);
                            said.and_then(|said| {
                                self.check_session(&said);
                                self.event(said)
                            })
                        }
                        Heard::Served => {
                            self.served();
                            None
                        }
                        Heard::Elsewhere => {
                            let is_deaf = session.is_deaf();
                            self.served();
                            if let Stage::Sent(answer) = std::mem::replace(&mut self.stage, Stage::Over) {
                                self.stage = Stage::Elsewhere(answer);
                            }
                            if is_deaf {
                                let why = "it took the request without a response".to_owned();
                                return self.lost(CallError::Invalid(why));
                            }
                            None
                        }
                        Heard::Refused(refusal) => match self.refused(refusal) {
                            Some(said) => {
                                self.check_session(&said);
                                match self.event(said) {
                                    Some(event) => return self.end(event),
                                    None => None,
                                }
                            }
                            None => None,
                        },
                        Heard::Lost(lost) if self.may_repeat(&lost) => {
                            self.again = true;
                            self.repeat();
                            None
                        }
                        Heard::Gone(_) if !self.again && matches!(self.home, Home::Group(_)) => {
                            // It is found out before the session's reader has come to its end.
                            session.retire();
                            self.again = true;
                            self.repeat();
                            None
                        }
                        Heard::Gone(lost) | Heard::Lost(lost) => return self.lost(lost),
                    };
                    if event.is_some() {
                        return Poll::Ready(event);
                    }
                }
                Stage::Elsewhere(_) => {
                    if self.mailbox.is_ended() {
                        let session =
                            &self.stay.as_ref().expect("a call that was sent has a session").session;
                        let lost = session.line.lost();
                        return self.lost(lost);
                    }
                    return Poll::Pending;
                }
                Stage::Over => return Poll::Ready(None),
            }
        }
    }

    /// The server has the call.
    fn served(&mut self) {
        // It is not sent again from here on, and may be megabytes.
        self.request.body = Bytes::new();
        self.request.headers = Further::default();
    }

    fn refused(&mut self, refusal: Refusal) -> Option<Said> {
        match refusal {
            Refusal::Answer(frame) => Some(Said::Response(frame)),
            Refusal::Lost(lost) => {
                if lost.leaves_it_running() {
                    self.abandon();
                }
                Some(Said::Lost(lost))
            }
            Refusal::NoSession { is_certain, words } => self.has_no_session(is_certain, words),
        }
    }

    /// The call was refused, perhaps because the server does not know its session. It is made once more, in a session
    /// that is opened from now on; what it is refused with there is the answer.
    fn has_no_session(&mut self, is_certain: bool, words: Result<Frame, CallError>) -> Option<Said> {
        let session = self.stay.as_ref().expect("a call that was sent has a session").session.clone();
        if is_certain {
            session.ended();
        }
        let words = words.map_or_else(Said::Lost, Said::Response);
        let Home::Group(group) = &self.home else { return Some(words) };
        if self.refused.is_some() {
            group.note_refused_again(&session);
            return Some(words);
        }
        if !group.may_try_again(&session) {
            return Some(words);
        }
        session.retire();
        session.server.offer.forget();
        self.refused = self.event(words).map(Box::new);
        self.repeat();
        None
    }

    /// Whether a request whose connection broke may be sent again: only what asks for something,
    /// and only once.
    fn may_repeat(&self, lost: &CallError) -> bool {
        let is_unheard = !self.request.body.is_empty();
        matches!(lost, CallError::Broken(_)) && is_unheard && !self.again && !is_call(&self.request.method)
    }

    fn repeat(&mut self) {
        self.leave();
        self.mailbox = Arc::default();
        self.stage = Stage::New;
    }

    /// Whether time is up. Polled when nothing else happened.
    fn overdue(&mut self, cx: &mut Context<'_>) -> Option<CallError> {
        let server = self.home.server();
        let (limits, clock) = (server.config.now().timeouts, server.clock);
        let call = self.request.timeout.unwrap_or(limits.call);
        let (is_sent, progress) = (matches!(self.stage, Stage::Sent(_)), self.progress());
        let alarm = |limit| Alarm::at(clock.now() + limit, Of::Answer);
        let timers = self.timers.get_or_insert_with(|| Timers { call: alarm(call), step: None });
        let lost = |error: CallError| match progress {
            Progress::Unsent => error.before_sending(),
            Progress::Sent | Progress::Begun { .. } | Progress::Refused => error,
        };
        if timers.call.poll(cx).is_ready() {
            return Some(lost(CallError::CallTimeout(call)));
        }
        if is_call(&self.request.method) {
            return None;
        }
        // What is to be waited for next: nothing in the queue, then the first byte, then any.
        let (step, limit, moved) = match progress {
            Progress::Unsent if is_sent => (Step::FirstByte, limits.first_byte, false),
            Progress::Sent => (Step::FirstByte, limits.first_byte, false),
            Progress::Begun { moved } => (Step::Idle, limits.idle, moved),
            Progress::Unsent | Progress::Refused => {
                timers.step = None;
                return None;
            }
        };
        let timer = match &mut timers.step {
            Some((timer, armed)) if *armed == step && !moved => timer,
            other => &mut other.insert((alarm(limit), step)).0,
        };
        timer.poll(cx).is_ready().then(|| match step {
            Step::FirstByte => lost(CallError::FirstByteTimeout(limit)),
            Step::Idle => CallError::IdleTimeout(limit),
        })
    }
}

impl<W: Wire> Exchange<W> {
    /// The route of its server.
    pub(super) fn route(&self) -> Arc<str> {
        Arc::clone(&self.home.server().route)
    }
}

// === impl Home ===

impl<W: Wire> Home<W> {
    fn server(&self) -> &Arc<Server<W>> {
        match self {
            Self::Group(group) => group.server(),
            Self::Own(session) => &session.server,
        }
    }
}

/// Calls proper: they may take as long as they like, and must not be made twice.
fn is_call(method: &Method) -> bool {
    method.may_ask()
}

impl<W: Wire> Stream for Exchange<W> {
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
                    this.check_session(&said);
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
                None => {
                    this.tell_where();
                    Poll::Pending
                }
            },
        }
    }
}

impl<W: Wire> Drop for Exchange<W> {
    fn drop(&mut self) {
        self.cancel("the client no longer waits");
    }
}
