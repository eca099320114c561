//! What a POST of a hosted client is answered with.
//!
//! A call is polled in place while its client waits. One whose client leaves before the end goes on, for a departure
//! is no cancel (2025-11-25, *Sending Messages to the Server*); nobody hears what comes of it.

use bytes::Bytes;
use futures_util::StreamExt;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{super::server::Server, call::HostedCall, session::InFlight, words};
use crate::{
    dialect::legacy,
    protocol::{Id, code::INTERNAL_ERROR, frame::on_one_line, sse},
    telemetry::Limit,
    upstream::{
        Asked, CallError, Event, Question,
        forward::{AnswerBody, Interest},
        wire::Wire,
    },
};

/// The answer to one request: messages, the last of which is the response.
pub(super) struct Answering<W: Wire>(State<W>);

enum State<W: Wire> {
    /// It is the response.
    There(Bytes),
    Waiting(Box<Waiting<W>>),
    Over,
}

/// A call whose client waits.
struct Waiting<W: Wire> {
    /// Dropped in this order: the call leaves the server before its questions leave the session.
    call: HostedCall<W>,
    in_flight: InFlight<W>,
    id: Id,
    taken_back: CancellationToken,
    /// The same, to be polled.
    taking_back: Pin<Box<WaitForCancellationFutureOwned>>,
    interest: Option<Arc<dyn Interest>>,
    server: Arc<Server<W>>,
    departed: Arc<Semaphore>,
    /// The client takes nothing but the response.
    is_quiet: bool,
}

/// A stream of events with the answers to some requests.
pub(super) struct Events<W: Wire> {
    first: Option<Bytes>,
    answers: Vec<Answering<W>>,
    /// Why some have no response, said once the others have theirs.
    lost: Option<CallError>,
}

/// One document, or nothing.
pub(super) struct Document(pub(super) Option<Bytes>);

// === impl Answering ===

impl<W: Wire> Answering<W> {
    pub(super) fn there(response: Bytes) -> Self {
        Self(State::There(response))
    }

    /// Nothing is sent before it is polled. `id` is the client's, `number` ours.
    pub(super) fn begun(
        call: HostedCall<W>,
        id: Id,
        number: u64,
        interest: Option<Arc<dyn Interest>>,
        (server, departed): (&Arc<Server<W>>, &Arc<Semaphore>),
        takes_events: bool,
    ) -> Self {
        let (in_flight, taken_back) = call.session.enter(&id, number);
        let taking_back = Box::pin(taken_back.clone().cancelled_owned());
        let (server, departed, is_quiet) = (server.clone(), departed.clone(), !takes_events);
        let waiting =
            Waiting { call, in_flight, id, taken_back, taking_back, interest, server, departed, is_quiet };
        Self(State::Waiting(Box::new(waiting)))
    }

    /// The next message; none where the client has taken the request back.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.0, State::Over)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let waiting = match &mut self.0 {
            State::Waiting(waiting) => waiting,
            State::There(_) | State::Over => {
                return Poll::Ready(match std::mem::replace(&mut self.0, State::Over) {
                    State::There(response) => Some(Ok(response)),
                    State::Waiting(_) | State::Over => None,
                });
            }
        };
        loop {
            if waiting.taking_back.as_mut().poll(cx).is_ready() {
                self.0 = State::Over;
                return Poll::Ready(None);
            }
            let Poll::Ready(event) = waiting.call.poll_next_unpin(cx) else { return Poll::Pending };
            let is_last = event.as_ref().is_none_or(is_end);
            let said = match event {
                Some(Event::Notification(_) | Event::Withdrawn { .. }) if waiting.is_quiet => continue,
                Some(Event::Asked(question)) if waiting.is_quiet => {
                    question.refuse(
                        &waiting.server.route,
                        INTERNAL_ERROR,
                        "the client takes no event stream",
                    );
                    continue;
                }
                Some(Event::Notification(frame)) => Ok(on_one_line(frame.as_bytes().clone())),
                Some(Event::Asked(Question { asked: Asked::Native(frame), id, answer })) => {
                    waiting.in_flight.asks(id, answer);
                    Ok(on_one_line(frame.as_bytes().clone()))
                }
                // A call in the server's own words is asked nothing in others.
                Some(Event::Asked(Question { asked: Asked::Canonical(_), .. })) => continue,
                Some(Event::Withdrawn { id }) => {
                    waiting.in_flight.withdrawn(&id);
                    Ok(legacy::cancelled(&id, "the server has taken it back"))
                }
                Some(Event::Final(response)) => words::with_id(response.frame(), &waiting.id)
                    .map(on_one_line)
                    .ok_or_else(|| CallError::Invalid("it is not a response".to_owned())),
                Some(Event::Lost(lost)) => Err(lost),
                Some(Event::TurnOver(_)) => {
                    Err(CallError::Invalid("it asks in words of another revision".to_owned()))
                }
                None => Err(CallError::Closing),
            };
            if is_last {
                self.0 = State::Over;
            }
            return Poll::Ready(Some(said));
        }
    }

    /// The server is told that it is cancelled.
    fn cancel(&mut self) {
        if let State::Waiting(waiting) = &self.0 {
            waiting.taken_back.cancel();
        }
        self.0 = State::Over;
    }
}

impl<W: Wire> Drop for Answering<W> {
    /// The client may have left.
    fn drop(&mut self) {
        let State::Waiting(waiting) = std::mem::replace(&mut self.0, State::Over) else { return };
        if !waiting.taken_back.is_cancelled() {
            waiting.go_on();
        }
    }
}

fn is_end(event: &Event) -> bool {
    match event {
        Event::Final(_) | Event::Lost(_) | Event::TurnOver(_) => true,
        Event::Notification(_) | Event::Asked(_) | Event::Withdrawn { .. } => false,
    }
}

// === impl Waiting ===

impl<W: Wire> Waiting<W> {
    /// Brings the call to its end, which nobody hears. What its client has been asked it can still answer, and it
    /// can take the call back.
    fn go_on(self: Box<Self>) {
        let Ok(place) = self.departed.clone().try_acquire_owned() else {
            let limit = self.server.config.now().limits.departed;
            Limit::Departed.hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
            return;
        };
        let (server, route) = (self.server.clone(), Arc::clone(&self.server.route));
        server.work.spawn(async move {
            let Self { mut call, in_flight, taken_back, interest, .. } = *self;
            let _place = (place, Limit::Departed.take(1));
            let mut goes_on = async || {
                while let Some(event) = call.next().await {
                    match event {
                        Event::Asked(question) => {
                            question.refuse(&route, INTERNAL_ERROR, "the client has left")
                        }
                        Event::Withdrawn { id } => in_flight.withdrawn(&id),
                        Event::Notification(_) => {}
                        Event::Lost(lost) => return !lost.leaves_it_running(),
                        Event::Final(_) | Event::TurnOver(_) => return true,
                    }
                }
                false
            };
            let is_answered = tokio::select! {
                is_answered = goes_on() => is_answered,
                () = taken_back.cancelled() => false,
            };
            if let Some(interest) = interest.filter(|_| is_answered) {
                interest.answered();
            }
        });
    }
}

// === impl Events ===

impl<W: Wire> Events<W> {
    /// The answers to a batch, or to nothing.
    pub(super) fn of(answers: Vec<Answering<W>>) -> Self {
        Self { first: None, answers, lost: None }
    }

    /// The answer to one request, of which this has come already.
    pub(super) fn begun(first: Bytes, answering: Answering<W>) -> Self {
        Self { first: Some(first), answers: vec![answering], lost: None }
    }
}

impl<W: Wire> AnswerBody for Events<W> {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(sse::message(&first))));
        }
        let mut at = 0;
        while let Some(answering) = self.answers.get_mut(at) {
            match answering.poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => return Poll::Ready(Some(Ok(sse::message(&message)))),
                Poll::Ready(said) => {
                    self.answers.swap_remove(at);
                    self.lost = said.and_then(Result::err).or_else(|| self.lost.take());
                }
                Poll::Pending => at += 1,
            }
        }
        match self.answers.is_empty() {
            true => Poll::Ready(self.lost.take().map(Err)),
            false => Poll::Pending,
        }
    }

    fn is_over(&self) -> bool {
        self.first.is_none() && self.lost.is_none() && self.answers.iter().all(Answering::is_over)
    }

    fn cancel(&mut self, _why: &'static str) {
        self.answers.iter_mut().for_each(Answering::cancel);
    }
}

// === impl Document ===

impl AnswerBody for Document {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }

    fn length(&self) -> Option<u64> {
        Some(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}
