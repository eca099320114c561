//! Response to a POST in an emulated session.
//!
//! A call is polled in place while its client waits. After a disconnect the call continues, because that is
//! not a cancellation (2025-11-25, *Sending Messages to the Server*); its result is dropped.

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

use super::{super::server::ServerContext, call::EmulatedCall, rewrite_ids, session::EmulatedCallGuard};
use crate::{
    dialect::legacy,
    protocol::{RequestId, code::INTERNAL_ERROR, frame::to_single_line, sse},
    telemetry::Limit,
    upstream::{
        CallError, PendingServerRequest, ServerRequest, UpstreamEvent,
        forward::{ResponseInterest, StreamedBody},
        transport::Transport,
    },
};

/// Messages that answer one request; the last is the response.
pub(super) struct MessageResponse<W: Transport>(ResponseState<W>);

enum ResponseState<W: Transport> {
    /// The response is available.
    There(Bytes),
    Waiting(Box<WaitingCall<W>>),
    Over,
}

/// A call whose client waits.
struct WaitingCall<W: Transport> {
    /// Dropped in this order: the call ends before its requests leave the session.
    call: EmulatedCall<W>,
    in_flight: EmulatedCallGuard<W>,
    id: RequestId,
    cancelled: CancellationToken,
    /// Future of `cancelled`.
    cancellation: Pin<Box<WaitForCancellationFutureOwned>>,
    interest: Option<Arc<dyn ResponseInterest>>,
    server: Arc<ServerContext<W>>,
    departed: Arc<Semaphore>,
    /// Whether the client accepts the response only, without an event stream.
    is_quiet: bool,
}

/// Event stream with the answers to one or more requests.
pub(super) struct EventStreamBody<W: Transport> {
    first: Option<Bytes>,
    answers: Vec<MessageResponse<W>>,
    /// Error of requests without a response, sent once the others have theirs.
    lost: Option<CallError>,
}

/// A JSON document, or an empty body.
pub(super) struct JsonBody(pub(super) Option<Bytes>);

// === impl MessageResponse ===

impl<W: Transport> MessageResponse<W> {
    pub(super) fn ready(response: Bytes) -> Self {
        Self(ResponseState::There(response))
    }

    /// Creates the response of a call, which is sent when it is polled. `id` is the client's, `number` the
    /// proxy's.
    pub(super) fn for_call(
        call: EmulatedCall<W>,
        id: RequestId,
        number: u64,
        interest: Option<Arc<dyn ResponseInterest>>,
        (server, departed): (&Arc<ServerContext<W>>, &Arc<Semaphore>),
        takes_events: bool,
    ) -> Self {
        let (in_flight, cancelled) = call.session.register_call(&id, number);
        let taking_back = Box::pin(cancelled.clone().cancelled_owned());
        let (server, departed, is_quiet) = (server.clone(), departed.clone(), !takes_events);
        let waiting = WaitingCall {
            call,
            in_flight,
            id,
            cancelled,
            cancellation: taking_back,
            interest,
            server,
            departed,
            is_quiet,
        };
        Self(ResponseState::Waiting(Box::new(waiting)))
    }

    /// Next message; `None` if the client cancelled the request.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.0, ResponseState::Over)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let waiting = match &mut self.0 {
            ResponseState::Waiting(waiting) => waiting,
            ResponseState::There(_) | ResponseState::Over => {
                return Poll::Ready(match std::mem::replace(&mut self.0, ResponseState::Over) {
                    ResponseState::There(response) => Some(Ok(response)),
                    ResponseState::Waiting(_) | ResponseState::Over => None,
                });
            }
        };
        loop {
            if waiting.cancellation.as_mut().poll(cx).is_ready() {
                self.0 = ResponseState::Over;
                return Poll::Ready(None);
            }
            let Poll::Ready(event) = waiting.call.poll_next_unpin(cx) else { return Poll::Pending };
            let is_last = event.as_ref().is_none_or(is_end);
            let message = match event {
                Some(UpstreamEvent::Notification(_) | UpstreamEvent::RequestCancelled { .. })
                    if waiting.is_quiet =>
                {
                    continue;
                }
                Some(UpstreamEvent::ServerRequest(question)) if waiting.is_quiet => {
                    question.refuse(
                        &waiting.server.route,
                        INTERNAL_ERROR,
                        "the client accepts no event stream",
                    );
                    continue;
                }
                Some(UpstreamEvent::Notification(frame)) => Ok(to_single_line(frame.as_bytes().clone())),
                Some(UpstreamEvent::ServerRequest(PendingServerRequest {
                    request: ServerRequest::Native(frame),
                    id,
                    responder: answer,
                })) => {
                    waiting.in_flight.register_request(id, answer);
                    Ok(to_single_line(frame.as_bytes().clone()))
                }
                // A call in the server's revision gets no canonical requests.
                Some(UpstreamEvent::ServerRequest(PendingServerRequest {
                    request: ServerRequest::Canonical(_),
                    ..
                })) => continue,
                Some(UpstreamEvent::RequestCancelled { id }) => {
                    waiting.in_flight.discard_request(&id);
                    Ok(legacy::cancelled_notification(&id, "the server cancelled it"))
                }
                Some(UpstreamEvent::Final(response)) => rewrite_ids::with_id(response.frame(), &waiting.id)
                    .map(to_single_line)
                    .ok_or_else(|| CallError::Invalid("it is not a response".to_owned())),
                Some(UpstreamEvent::Lost(lost)) => Err(lost),
                Some(UpstreamEvent::InputRequired(_)) => {
                    Err(CallError::Invalid("it sends input requests of another revision".to_owned()))
                }
                None => Err(CallError::Closing),
            };
            if is_last {
                self.0 = ResponseState::Over;
            }
            return Poll::Ready(Some(message));
        }
    }

    /// Cancels the call at the server.
    fn cancel(&mut self) {
        if let ResponseState::Waiting(waiting) = &self.0 {
            waiting.cancelled.cancel();
        }
        self.0 = ResponseState::Over;
    }
}

impl<W: Transport> Drop for MessageResponse<W> {
    /// The client may have disconnected.
    fn drop(&mut self) {
        let ResponseState::Waiting(waiting) = std::mem::replace(&mut self.0, ResponseState::Over) else {
            return;
        };
        if !waiting.cancelled.is_cancelled() {
            waiting.finish_in_background();
        }
    }
}

fn is_end(event: &UpstreamEvent) -> bool {
    match event {
        UpstreamEvent::Final(_) | UpstreamEvent::Lost(_) | UpstreamEvent::InputRequired(_) => true,
        UpstreamEvent::Notification(_)
        | UpstreamEvent::ServerRequest(_)
        | UpstreamEvent::RequestCancelled { .. } => false,
    }
}

// === impl WaitingCall ===

impl<W: Transport> WaitingCall<W> {
    /// Runs the call to its end after a disconnect. The client can still answer its requests, and cancel it.
    fn finish_in_background(self: Box<Self>) {
        let Ok(permit) = self.departed.clone().try_acquire_owned() else {
            let limit = self.server.config.load().limits.departed;
            Limit::Departed.record_hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
            return;
        };
        let (server, route) = (self.server.clone(), Arc::clone(&self.server.route));
        server.work.spawn(async move {
            let Self { mut call, in_flight, cancelled, interest, .. } = *self;
            let _permit = (permit, Limit::Departed.take(1));
            let mut run = async || {
                while let Some(event) = call.next().await {
                    match event {
                        UpstreamEvent::ServerRequest(question) => {
                            question.refuse(&route, INTERNAL_ERROR, "the client has left")
                        }
                        UpstreamEvent::RequestCancelled { id } => in_flight.discard_request(&id),
                        UpstreamEvent::Notification(_) => {}
                        UpstreamEvent::Lost(lost) => return !lost.may_still_run(),
                        UpstreamEvent::Final(_) | UpstreamEvent::InputRequired(_) => return true,
                    }
                }
                false
            };
            let is_answered = tokio::select! {
                is_answered = run() => is_answered,
                () = cancelled.cancelled() => false,
            };
            if let Some(interest) = interest.filter(|_| is_answered) {
                interest.mark_answered();
            }
        });
    }
}

// === impl EventStreamBody ===

impl<W: Transport> EventStreamBody<W> {
    /// Answers to the requests of a batch, or none.
    pub(super) fn of(answers: Vec<MessageResponse<W>>) -> Self {
        Self { first: None, answers, lost: None }
    }

    /// Answer to one request, with its first message.
    pub(super) fn begun(first: Bytes, answering: MessageResponse<W>) -> Self {
        Self { first: Some(first), answers: vec![answering], lost: None }
    }
}

impl<W: Transport> StreamedBody for EventStreamBody<W> {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(sse::message(&first))));
        }
        let mut at = 0;
        while let Some(answering) = self.answers.get_mut(at) {
            match answering.poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => return Poll::Ready(Some(Ok(sse::message(&message)))),
                Poll::Ready(message) => {
                    self.answers.swap_remove(at);
                    self.lost = message.and_then(Result::err).or_else(|| self.lost.take());
                }
                Poll::Pending => at += 1,
            }
        }
        match self.answers.is_empty() {
            true => Poll::Ready(self.lost.take().map(Err)),
            false => Poll::Pending,
        }
    }

    fn is_end(&self) -> bool {
        self.first.is_none() && self.lost.is_none() && self.answers.iter().all(MessageResponse::is_over)
    }

    fn cancel(&mut self, _why: &'static str) {
        self.answers.iter_mut().for_each(MessageResponse::cancel);
    }
}

// === impl JsonBody ===

impl StreamedBody for JsonBody {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn is_end(&self) -> bool {
        self.0.is_none()
    }

    fn length(&self) -> Option<u64> {
        Some(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}
