//! A call in a client's own session, as whoever reads the session's GET stream sees it: some servers ask
//! there, and tell of progress, and name no call.

use std::{sync::Arc, time::Instant};

use super::{attribution, mailbox::Said, message, session::Session};
use crate::{
    protocol::{Frame, Id, Kind, Method, code::INTERNAL_ERROR},
    upstream::wire::Wire,
};

/// A call that may be spoken of elsewhere than on its own stream: the only one in its client's own session, as
/// far as that is known here.
pub trait OffStream: Send + Sync {
    /// Whether the server has the call, or may have it, and has not ended it.
    fn is_in_flight(&self) -> bool;

    /// Whether it has left without its end: the server may still be at it.
    fn has_left(&self) -> bool;

    /// When it was cancelled, where it has left because of that: the server has been told, or is about to be.
    fn cancelled_at(&self) -> Option<Instant>;

    /// Whether this question of the server was put to it, and the server does not have its answer.
    fn has_asked(&self, id: &Id) -> bool;

    /// Gives it what the server said of it. A question that is open already is not put again: a stream
    /// that is taken up may bring it twice.
    fn hear(self: Arc<Self>, frame: Frame);

    /// Refuses a question of the server that cannot be told to be this call's, in the background.
    fn refuse(self: Arc<Self>, id: &Id, reason: &str);
}

impl<W: Wire> OffStream for Session<W> {
    fn is_in_flight(&self) -> bool {
        !self.inside.lock().calls.is_empty()
    }

    fn has_left(&self) -> bool {
        !self.inside.lock().abandoned.is_empty()
    }

    fn cancelled_at(&self) -> Option<Instant> {
        self.inside.lock().cancelled_at
    }

    fn has_asked(&self, id: &Id) -> bool {
        self.inside.lock().calls.values().any(|call| call.questions.contains(id))
    }

    fn hear(self: Arc<Self>, frame: Frame) {
        let only = self.inside.lock().calls.iter().next().map(|(id, call)| (*id, call.mailbox.clone()));
        let Some((call, mailbox)) = only else { return };
        match frame.kind() {
            Kind::Request { id, .. } if self.has_asked(id) => {}
            Kind::Request { id, .. } => {
                let id = id.clone();
                if let Some(said) = self.put(call, id, frame) {
                    mailbox.push(said);
                }
            }
            Kind::Notification { method: Method::Cancelled, params } => {
                if let Some(id) = attribution::cancelled_id(params.as_ref()) {
                    mailbox.push(Said::Withdrawn(id));
                }
            }
            Kind::Notification { .. } => mailbox.push(Said::Notification(frame)),
            Kind::Success { .. } | Kind::Failure { .. } => {}
        }
    }

    fn refuse(self: Arc<Self>, id: &Id, reason: &str) {
        let words = format!("cannot be attributed to one call: {reason}");
        self.respond_later(id, &message::refusal(INTERNAL_ERROR, &words));
    }
}
