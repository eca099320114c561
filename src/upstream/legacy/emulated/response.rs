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

/// The messages that answer one request of a client; the last is the JSON-RPC response.
pub(super) struct MessageResponse<W: Transport>(ResponseState<W>);

enum ResponseState<W: Transport> {
    /// The response is available.
    Ready(Bytes),
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
    disconnected_permits: Arc<Semaphore>,
    /// Whether the client accepts only a JSON response, no event stream: notifications and requests are not
    /// sent.
    is_json_only: bool,
}

/// Event stream with the answers to one or more requests.
pub(super) struct EventStreamBody<W: Transport> {
    first: Option<Bytes>,
    responses: Vec<MessageResponse<W>>,
    /// Error of requests without a response; ends the stream once the other requests have been answered.
    error: Option<CallError>,
}

/// Response body of one JSON document, or an empty body.
pub(super) struct JsonBody(pub(super) Option<Bytes>);

// === impl MessageResponse ===

impl<W: Transport> MessageResponse<W> {
    /// A response that is complete: one message.
    pub(super) fn ready(response: Bytes) -> Self {
        Self(ResponseState::Ready(response))
    }

    /// Creates the response of a call; the call is sent when the response is polled. `id` is the client's
    /// request id, `number` the proxy's. `accepts_events` says whether the client accepts an event stream.
    pub(super) fn for_call(
        call: EmulatedCall<W>,
        id: RequestId,
        number: u64,
        interest: Option<Arc<dyn ResponseInterest>>,
        (server, permits): (&Arc<ServerContext<W>>, &Arc<Semaphore>),
        accepts_events: bool,
    ) -> Self {
        let (in_flight, cancelled) = call.session.register_call(&id, number);
        let cancellation = Box::pin(cancelled.clone().cancelled_owned());
        let (server, disconnected_permits, is_json_only) = (server.clone(), permits.clone(), !accepts_events);
        let waiting = WaitingCall {
            call,
            in_flight,
            id,
            cancelled,
            cancellation,
            interest,
            server,
            disconnected_permits,
            is_json_only,
        };
        Self(ResponseState::Waiting(Box::new(waiting)))
    }

    /// Next message; `None` if the client cancelled the request.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Whether the last message has been returned, or the request was cancelled.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.0, ResponseState::Over)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let waiting = match &mut self.0 {
            ResponseState::Waiting(waiting) => waiting,
            ResponseState::Ready(_) | ResponseState::Over => {
                return Poll::Ready(match std::mem::replace(&mut self.0, ResponseState::Over) {
                    ResponseState::Ready(response) => Some(Ok(response)),
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
            let is_last = event.as_ref().is_none_or(is_final);
            let message = match event {
                Some(UpstreamEvent::Notification(_) | UpstreamEvent::RequestCancelled { .. })
                    if waiting.is_json_only =>
                {
                    continue;
                }
                Some(UpstreamEvent::ServerRequest(request)) if waiting.is_json_only => {
                    request.refuse(
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
                    responder,
                })) => {
                    waiting.in_flight.register_request(id, responder);
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

fn is_final(event: &UpstreamEvent) -> bool {
    match event {
        UpstreamEvent::Final(_) | UpstreamEvent::Lost(_) | UpstreamEvent::InputRequired(_) => true,
        UpstreamEvent::Notification(_)
        | UpstreamEvent::ServerRequest(_)
        | UpstreamEvent::RequestCancelled { .. } => false,
    }
}

// === impl WaitingCall ===

impl<W: Transport> WaitingCall<W> {
    /// Runs the call to its end after a disconnect. The client can still answer its open requests, and cancel
    /// the call.
    fn finish_in_background(self: Box<Self>) {
        let Ok(permit) = self.disconnected_permits.clone().try_acquire_owned() else {
            let limit = self.server.config.load().limits.departed;
            Limit::Departed.record_hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
            return;
        };
        let (server, route) = (self.server.clone(), Arc::clone(&self.server.route));
        server.work.spawn(async move {
            let Self { mut call, in_flight, cancelled, interest, .. } = *self;
            let _permit = (permit, Limit::Departed.acquire(1));
            let mut run_to_end = async || {
                while let Some(event) = call.next().await {
                    match event {
                        UpstreamEvent::ServerRequest(request) => {
                            request.refuse(&route, INTERNAL_ERROR, "the client has disconnected")
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
                is_answered = run_to_end() => is_answered,
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
    /// Event stream that answers the requests of a batch, or that is empty.
    pub(super) fn new(responses: Vec<MessageResponse<W>>) -> Self {
        Self { first: None, responses, error: None }
    }

    /// Event stream that answers one request, whose first message has been received.
    pub(super) fn with_first(first: Bytes, response: MessageResponse<W>) -> Self {
        Self { first: Some(first), responses: vec![response], error: None }
    }
}

impl<W: Transport> StreamedBody for EventStreamBody<W> {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(sse::message(&first))));
        }
        let mut index = 0;
        while let Some(response) = self.responses.get_mut(index) {
            match response.poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => return Poll::Ready(Some(Ok(sse::message(&message)))),
                Poll::Ready(message) => {
                    self.responses.swap_remove(index);
                    self.error = message.and_then(Result::err).or_else(|| self.error.take());
                }
                Poll::Pending => index += 1,
            }
        }
        match self.responses.is_empty() {
            true => Poll::Ready(self.error.take().map(Err)),
            false => Poll::Pending,
        }
    }

    fn is_end(&self) -> bool {
        self.first.is_none() && self.error.is_none() && self.responses.iter().all(MessageResponse::is_over)
    }

    fn cancel(&mut self, _why: &'static str) {
        self.responses.iter_mut().for_each(MessageResponse::cancel);
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
