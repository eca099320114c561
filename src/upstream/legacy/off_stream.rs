//! A call in a client's own session, as whoever reads the session's GET stream sees it: some servers ask
//! there, and tell of progress, and name no call.

use std::{fmt, sync::Arc};

use super::{attribution, mailbox::Said, message, session::Session};
use crate::{
    protocol::{Frame, Id, Kind, Method, code::INTERNAL_ERROR},
    upstream::wire::Wire,
};

/// A call that may be spoken of elsewhere than on its own stream. Clones are the same.
#[derive(Clone)]
pub struct OffStream {
    session: Arc<dyn Spoken>,
    call: u64,
}

/// A client's own session, in which the call is the only one.
trait Spoken: Send + Sync {
    fn is_in_flight(&self, call: u64) -> bool;
    fn has_left(&self) -> bool;
    fn has_asked(&self, call: u64, id: &Id) -> bool;
    fn hear(self: Arc<Self>, call: u64, frame: Frame);
    fn refuse(self: Arc<Self>, id: &Id, words: &str);
}

// === impl OffStream ===

impl OffStream {
    pub(super) fn new<W: Wire>(session: Arc<Session<W>>, call: u64) -> Self {
        Self { session, call }
    }

    /// Whether the server has the call, or may have it, and has not ended it.
    pub fn is_in_flight(&self) -> bool {
        self.session.is_in_flight(self.call)
    }

    /// Whether it has left without its end: the server may still be at it.
    pub fn has_left(&self) -> bool {
        self.session.has_left()
    }

    /// Whether this question of the server was put to it, and the server does not have its answer.
    pub fn has_asked(&self, id: &Id) -> bool {
        self.session.has_asked(self.call, id)
    }

    /// Gives it what the server said of it. A question that is open already is not put again: a stream
    /// that is taken up may bring it twice.
    pub fn hear(&self, frame: Frame) {
        Arc::clone(&self.session).hear(self.call, frame);
    }

    /// Refuses a question of the server that cannot be told to be this call's, in the background.
    pub fn refuse(&self, id: &Id, reason: &str) {
        let words = format!("cannot be attributed to one call: {reason}");
        Arc::clone(&self.session).refuse(id, &words);
    }
}

impl<W: Wire> Spoken for Session<W> {
    fn is_in_flight(&self, call: u64) -> bool {
        self.inside.lock().calls.contains_key(&call)
    }

    fn has_left(&self) -> bool {
        self.inside.lock().abandoned
    }

    fn has_asked(&self, call: u64, id: &Id) -> bool {
        self.inside.lock().calls.get(&call).is_some_and(|call| call.questions.contains(id))
    }

    fn hear(self: Arc<Self>, call: u64, frame: Frame) {
        let Some(mailbox) = self.inside.lock().calls.get(&call).map(|call| call.mailbox.clone()) else {
            return;
        };
        match frame.kind() {
            Kind::Request { id, .. } if self.has_asked(call, id) => {}
            Kind::Request { id, .. } => {
                let id = id.clone();
                mailbox.push(self.put(call, id, frame));
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

    fn refuse(self: Arc<Self>, id: &Id, words: &str) {
        self.respond_later(id, &message::refusal(INTERNAL_ERROR, words));
    }
}

impl fmt::Debug for OffStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffStream").field("call", &self.call).finish_non_exhaustive()
    }
}
