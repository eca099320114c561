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

/// One call. Its events are native.
pub(in crate::upstream::legacy) struct EmulatedCall<W: Transport> {
    pub(super) session: Arc<EmulatedSession<W>>,
    exchange: CallExchange<W>,
    /// Progress token of the client.
    token: Option<Bytes>,
    /// Created with the first request of the server.
    open: Option<Arc<RequestIdMap>>,
}

/// Open requests of a call, by the server's ids and by the client's: each pooled session counts separately.
type RequestIdMap = Mutex<Vec<(RequestId, RequestId)>>;

/// Responder of one open request.
struct TranslatedResponder {
    answer: Option<Box<dyn Responder>>,
    own: RequestId,
    open: Arc<RequestIdMap>,
}

// === impl EmulatedCall ===

impl<W: Transport> EmulatedCall<W> {
    pub(super) fn new(
        session: &Arc<EmulatedSession<W>>,
        exchange: CallExchange<W>,
        token: Option<Bytes>,
    ) -> Self {
        Self { session: session.clone(), exchange, token, open: None }
    }

    /// Converts an event for the client; `None` if it is not sent.
    fn event(&mut self, event: UpstreamEvent) -> Option<UpstreamEvent> {
        Some(match event {
            UpstreamEvent::Notification(frame) => UpstreamEvent::Notification(self.notification(frame)?),
            UpstreamEvent::ServerRequest(question) if !self.can_be_asked(&question.request) => {
                question.refuse(
                    &self.exchange.route(),
                    code::METHOD_NOT_FOUND,
                    "the client did not declare that it can be asked this",
                );
                return None;
            }
            UpstreamEvent::ServerRequest(PendingServerRequest {
                request: ServerRequest::Native(frame),
                id,
                responder: answer,
            }) => {
                let own = self.session.next_request_id();
                let frame = Frame::parse(rewrite_ids::with_id(&frame, &own)?).ok()?;
                let open = self.open.get_or_insert_default();
                open.lock().push((id, own.clone()));
                let answer = Box::new(TranslatedResponder {
                    answer: Some(answer),
                    own: own.clone(),
                    open: open.clone(),
                });
                UpstreamEvent::ServerRequest(PendingServerRequest {
                    request: ServerRequest::Native(frame),
                    id: own,
                    responder: answer,
                })
            }
            UpstreamEvent::RequestCancelled { id } => {
                let mut open = self.open.as_ref()?.lock();
                let at = open.iter().position(|(theirs, _)| *theirs == id)?;
                UpstreamEvent::RequestCancelled { id: open.swap_remove(at).1 }
            }
            UpstreamEvent::ServerRequest(_)
            | UpstreamEvent::InputRequired(_)
            | UpstreamEvent::Final(_)
            | UpstreamEvent::Lost(_) => event,
        })
    }

    fn can_be_asked(&self, asked: &ServerRequest) -> bool {
        match asked {
            ServerRequest::Native(frame) => self.session.can_be_asked(frame),
            ServerRequest::Canonical(_) => true,
        }
    }

    fn notification(&self, frame: Frame) -> Option<Frame> {
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
            if let Some(event) = self.event(event) {
                return Poll::Ready(Some(event));
            }
        }
    }
}

// === impl TranslatedResponder ===

impl Responder for TranslatedResponder {
    fn respond(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        if let Some(answer) = self.answer.take() {
            answer.respond(outcome);
        }
    }

    fn discard(mut self: Box<Self>) {
        if let Some(answer) = self.answer.take() {
            answer.discard();
        }
    }
}

impl Drop for TranslatedResponder {
    fn drop(&mut self) {
        self.open.lock().retain(|(_, own)| *own != self.own);
    }
}
