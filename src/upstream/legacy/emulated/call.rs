//! A client's call in a pooled session: translates its messages to the ids and the progress token of the
//! client.

use futures_util::{Stream, StreamExt};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    super::{exchange::CallExchange, listeners::BroadcastListener},
    rewrite_ids,
    session::EmulatedSession,
};
use crate::{
    protocol::{Frame, Kind, Method, RequestId, code},
    runtime::Mutex,
    upstream::{PendingServerRequest, Responder, ServerRequest, UpstreamEvent, transport::Transport},
};
use bytes::Bytes;

/// A call of an emulated session, as a stream of events in the client's ids. Its messages are in the legacy
/// revision.
pub(in crate::upstream::legacy) struct EmulatedCall<W: Transport> {
    pub(super) session: Arc<EmulatedSession<W>>,
    exchange: CallExchange<W>,
    /// Progress token of the client; `None` if it requested no progress.
    token: Option<Bytes>,
    /// Created with the first request of the server.
    open: Option<Arc<RequestIdMap>>,
}

/// Open requests of the server in a call, as pairs of the server's id and the client's: each pooled session
/// counts its own ids.
type RequestIdMap = Mutex<Vec<(RequestId, RequestId)>>;

/// Responder of one open request.
struct TranslatedResponder {
    inner: Option<Box<dyn Responder>>,
    client_id: RequestId,
    open: Arc<RequestIdMap>,
}

// === impl EmulatedCall ===

impl<W: Transport> EmulatedCall<W> {
    /// Creates a call of this session; `token` is the client's progress token.
    pub(super) fn new(
        session: &Arc<EmulatedSession<W>>,
        exchange: CallExchange<W>,
        token: Option<Bytes>,
    ) -> Self {
        Self { session: session.clone(), exchange, token, open: None }
    }

    /// Converts an event for the client; `None` if it is not sent.
    fn translate_event(&mut self, event: UpstreamEvent) -> Option<UpstreamEvent> {
        Some(match event {
            UpstreamEvent::Notification(frame) => {
                UpstreamEvent::Notification(self.translate_notification(frame)?)
            }
            UpstreamEvent::ServerRequest(request) if !self.accepts_request(&request.request) => {
                request.refuse(
                    &self.exchange.route(),
                    code::METHOD_NOT_FOUND,
                    "the client did not declare the capability for this request",
                );
                return None;
            }
            UpstreamEvent::ServerRequest(PendingServerRequest {
                request: ServerRequest::Native(frame),
                id,
                responder,
            }) => {
                let client_id = self.session.next_request_id();
                let frame = Frame::parse(rewrite_ids::with_id(&frame, &client_id)?).ok()?;
                let open = self.open.get_or_insert_default();
                open.lock().push((id, client_id.clone()));
                let responder = Box::new(TranslatedResponder {
                    inner: Some(responder),
                    client_id: client_id.clone(),
                    open: open.clone(),
                });
                UpstreamEvent::ServerRequest(PendingServerRequest {
                    request: ServerRequest::Native(frame),
                    id: client_id,
                    responder,
                })
            }
            UpstreamEvent::RequestCancelled { id } => {
                let mut open = self.open.as_ref()?.lock();
                let index = open.iter().position(|(server_id, _)| *server_id == id)?;
                UpstreamEvent::RequestCancelled { id: open.swap_remove(index).1 }
            }
            UpstreamEvent::ServerRequest(_)
            | UpstreamEvent::InputRequired(_)
            | UpstreamEvent::Final(_)
            | UpstreamEvent::Lost(_) => event,
        })
    }

    fn accepts_request(&self, request: &ServerRequest) -> bool {
        match request {
            ServerRequest::Native(frame) => self.session.accepts_request(frame),
            ServerRequest::Canonical(_) => true,
        }
    }

    fn translate_notification(&self, frame: Frame) -> Option<Frame> {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, .. } => {
                Frame::parse(rewrite_ids::with_token(&frame, self.token.as_ref()?)?).ok()
            }
            _ => self.session.is_wanted(&frame).then_some(frame),
        }
    }
}

impl<W: Transport> Stream for EmulatedCall<W> {
    type Item = UpstreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        loop {
            let Some(event) = ready!(self.exchange.poll_next_unpin(cx)) else { return Poll::Ready(None) };
            if let Some(event) = self.translate_event(event) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

// === impl TranslatedResponder ===

impl Responder for TranslatedResponder {
    fn respond(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        if let Some(inner) = self.inner.take() {
            inner.respond(outcome);
        }
    }

    fn discard(mut self: Box<Self>) {
        if let Some(inner) = self.inner.take() {
            inner.discard();
        }
    }
}

impl Drop for TranslatedResponder {
    fn drop(&mut self) {
        self.open.lock().retain(|(_, client_id)| *client_id != self.client_id);
    }
}
