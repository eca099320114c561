//! A call in a client's own session, as whoever reads the session's GET stream sees it: some servers ask
//! there, and tell of progress, and name no call.

use std::{sync::Arc, time::Instant};

use super::{attribution, mailbox::CallMessage, message, session::UpstreamSession};
use crate::{
    protocol::{Frame, Kind, Method, RequestId, code::INTERNAL_ERROR},
    upstream::transport::Transport,
};

/// A call that may be spoken of elsewhere than on its own stream: the only one in its client's own session, as
/// far as that is known here.
pub trait OffStreamCall: Send + Sync {
    /// Whether the server has the call, or may have it, and has not ended it.
    fn is_in_flight(&self) -> bool;

    /// Whether it has left without its end: the server may still be at it.
    fn is_abandoned(&self) -> bool;

    /// When it was cancelled, where it has left because of that: the server has been told, or is about to be.
    fn cancelled_at(&self) -> Option<Instant>;

    /// Whether this question of the server was put to it, and the server does not have its answer.
    fn has_open_request(&self, id: &RequestId) -> bool;

    /// Gives it what the server said of it. A question that is open already is not put again: a stream
    /// that is taken up may bring it twice.
    fn receive(self: Arc<Self>, frame: Frame);

    /// Refuses a question of the server that cannot be told to be this call's, in the background.
    fn refuse(self: Arc<Self>, id: &RequestId, reason: &str);
}

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
        self.state.lock().calls.values().any(|call| call.requests.contains(id))
    }

    fn receive(self: Arc<Self>, frame: Frame) {
        let only = self.state.lock().calls.iter().next().map(|(id, call)| (*id, call.mailbox.clone()));
        let Some((call, mailbox)) = only else { return };
        match frame.kind() {
            Kind::Request { id, .. } if self.has_open_request(id) => {}
            Kind::Request { id, .. } => {
                let id = id.clone();
                if let Some(said) = self.note_request(call, id, frame) {
                    mailbox.push(said);
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
        let words = format!("cannot be attributed to one call: {reason}");
        self.respond_later(id, &message::refusal(INTERNAL_ERROR, &words));
    }
}
