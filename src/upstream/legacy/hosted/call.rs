//! A call of a hosted client in a session of the pool: what the server says of it, with the ids and the token that
//! its client knows.

use futures_util::{Stream, StreamExt};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    super::{audience::Listener, exchange::Exchange},
    session::Hosted,
    words,
};
use crate::{
    protocol::{Frame, Id, Kind, Method, code},
    runtime::Mutex,
    upstream::{Answer, Asked, Event, Question, wire::Wire},
};
use bytes::Bytes;

/// One call. Its events are native.
pub(in crate::upstream::legacy) struct HostedCall<W: Wire> {
    pub(super) session: Arc<Hosted<W>>,
    exchange: Exchange<W>,
    /// The client's own progress token.
    token: Option<Bytes>,
    /// Made with the first question.
    open: Option<Arc<Open>>,
}

/// The questions of a call that wait for their answers, by the server's ids and by those that the client knows: the
/// sessions of the pool count each for themselves.
type Open = Mutex<Vec<(Id, Id)>>;

/// Takes the answer to one of them.
struct Closing {
    answer: Option<Box<dyn Answer>>,
    own: Id,
    open: Arc<Open>,
}

// === impl HostedCall ===

impl<W: Wire> HostedCall<W> {
    pub(super) fn new(session: &Arc<Hosted<W>>, exchange: Exchange<W>, token: Option<Bytes>) -> Self {
        Self { session: session.clone(), exchange, token, open: None }
    }

    /// An event as the client is to hear it, where it is.
    fn event(&mut self, event: Event) -> Option<Event> {
        Some(match event {
            Event::Notification(frame) => Event::Notification(self.notification(frame)?),
            Event::Asked(question) if !self.can_be_asked(&question.asked) => {
                question.refuse(
                    &self.exchange.route(),
                    code::METHOD_NOT_FOUND,
                    "the client did not declare that it can be asked this",
                );
                return None;
            }
            Event::Asked(Question { asked: Asked::Native(frame), id, answer }) => {
                let own = self.session.next_question();
                let frame = Frame::parse(words::with_id(&frame, &own)?).ok()?;
                let open = self.open.get_or_insert_default();
                open.lock().push((id, own.clone()));
                let answer = Box::new(Closing { answer: Some(answer), own: own.clone(), open: open.clone() });
                Event::Asked(Question { asked: Asked::Native(frame), id: own, answer })
            }
            Event::Withdrawn { id } => {
                let mut open = self.open.as_ref()?.lock();
                let at = open.iter().position(|(theirs, _)| *theirs == id)?;
                Event::Withdrawn { id: open.swap_remove(at).1 }
            }
            Event::Asked(_) | Event::TurnOver(_) | Event::Final(_) | Event::Lost(_) => event,
        })
    }

    fn can_be_asked(&self, asked: &Asked) -> bool {
        match asked {
            Asked::Native(frame) => self.session.can_be_asked(frame),
            Asked::Canonical(_) => true,
        }
    }

    fn notification(&self, frame: Frame) -> Option<Frame> {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, .. } => {
                Frame::parse(words::with_token(&frame, self.token.as_ref()?)?).ok()
            }
            _ => self.session.wants(&frame).then_some(frame),
        }
    }
}

impl<W: Wire> Stream for HostedCall<W> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            let Some(event) = ready!(self.exchange.poll_next_unpin(cx)) else { return Poll::Ready(None) };
            if let Some(event) = self.event(event) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

// === impl Closing ===

impl Answer for Closing {
    fn send(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        if let Some(answer) = self.answer.take() {
            answer.send(outcome);
        }
    }

    fn withdrawn(mut self: Box<Self>) {
        if let Some(answer) = self.answer.take() {
            answer.withdrawn();
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.open.lock().retain(|(_, own)| *own != self.own);
    }
}
