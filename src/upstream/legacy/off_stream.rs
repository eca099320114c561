//! [`OffStreamCall`] of a call in a client's own session.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{sync::Arc, time::Instant};

use super::{attribution, mailbox::CallMessage, message, session::UpstreamSession};
use crate::{
    protocol::{Frame, Kind, Method, RequestId, code::INTERNAL_ERROR},
    upstream::{
        GetStreamEvent, OffStreamCall,
        transport::{SessionEvent, Transport, TransportSession},
    },
};

impl<W: Transport> OffStreamCall for UpstreamSession<W> {
    fn is_in_flight(&self) -> bool {
        !self.state.lock().calls.is_empty()
    }

    fn is_abandoned(&self) -> bool {
        !self.state.lock().abandoned.is_empty()
    }

    fn cancelled_at(&self) -> Option<Instant> {
        self.state.lock().cancelled_at
    }

    fn has_open_request(&self, id: &RequestId) -> bool {
        self.state.lock().calls.values().any(|call| call.has_request(id))
    }

    fn receive(self: Arc<Self>, frame: Frame) {
        let sole_call = self.state.lock().calls.iter().next().map(|(id, call)| (*id, call.mailbox.clone()));
        let Some((call, mailbox)) = sole_call else { return };
        match frame.kind() {
            Kind::Request { id, .. } if self.has_open_request(id) => {}
            Kind::Request { id, .. } => {
                let id = id.clone();
                if let Some(message) = self.note_request(call, id, frame) {
                    mailbox.push(message);
                }
            }
            Kind::Notification { method: Method::Cancelled, params } => {
                if let Some(id) = attribution::cancelled_id(params.as_ref()) {
                    mailbox.push(CallMessage::RequestCancelled(id));
                }
            }
            Kind::Notification { .. } => mailbox.push(CallMessage::Notification(frame)),
            Kind::Success { .. } | Kind::Failure { .. } => {}
        }
    }

    fn refuse(self: Arc<Self>, id: &RequestId, reason: &str) {
        let reason_text = format!("cannot be attributed to one call: {reason}");
        self.respond_later(id, &message::refusal(INTERNAL_ERROR, &reason_text));
    }

    fn listen(
        self: Arc<Self>,
        mut on_event: Box<dyn FnMut(GetStreamEvent) + Send>,
    ) -> BoxFuture<'static, ()> {
        let session = Arc::clone(&self);
        let deliver = move |event| match event {
            SessionEvent::Message(frame) => match frame.kind() {
                Kind::Request { id, method: Method::Ping, .. } => {
                    session.respond_later(id, &Ok(Bytes::from_static(b"{}")));
                }
                Kind::Request { .. }
                | Kind::Notification { .. }
                | Kind::Success { .. }
                | Kind::Failure { .. } => on_event(GetStreamEvent::Message(frame)),
            },
            SessionEvent::Settled => on_event(GetStreamEvent::Settled),
            SessionEvent::TooLarge(_)
            | SessionEvent::Invalid(..)
            | SessionEvent::Gap
            | SessionEvent::Unavailable
            | SessionEvent::Suspect
            | SessionEvent::Ended => {}
        };
        Box::pin(async move {
            tokio::select! {
                () = self.stop_reader.cancelled() => {}
                () = Arc::clone(&self.transport).listen(deliver) => {}
            }
        })
    }
}
