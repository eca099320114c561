//! A call in a client's own session, as whoever reads the session's GET stream sees it: some servers ask
//! there, and tell of progress, and name no call.

use std::{fmt, sync::Arc};

use super::{attribution, mailbox::Said, message, session::Session};
use crate::protocol::{Frame, Id, Kind, Method, code::INTERNAL_ERROR};

/// A call that may be spoken of elsewhere than on its own stream. Clones are the same.
#[derive(Clone)]
pub struct OffStream {
    /// The call is the only one in it.
    session: Arc<Session>,
    call: u64,
}

// === impl OffStream ===

impl OffStream {
    pub(super) fn new(session: Arc<Session>, call: u64) -> Self {
        Self { session, call }
    }

    /// Whether the server has the call, or may have it, and has not ended it.
    pub fn is_in_flight(&self) -> bool {
        self.session.inside().calls.contains_key(&self.call)
    }

    /// Whether it has left without its end: the server may still be at it.
    pub fn has_left(&self) -> bool {
        self.session.inside().abandoned
    }

    /// Whether this question of the server was put to it, and the server does not have its answer.
    pub fn has_asked(&self, id: &Id) -> bool {
        self.session.inside().calls.get(&self.call).is_some_and(|call| call.questions.contains(id))
    }

    /// Gives it what the server said of it. A question that is open already is not put again: a stream
    /// that is taken up may bring it twice.
    pub fn hear(&self, frame: Frame) {
        let Some(mailbox) = self.session.inside().calls.get(&self.call).map(|call| call.mailbox.clone())
        else {
            return;
        };
        match frame.kind() {
            Kind::Request { id, .. } if self.has_asked(id) => {}
            Kind::Request { id, .. } => {
                let id = id.clone();
                mailbox.push(self.session.put(self.call, id, frame));
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

    /// Refuses a question of the server that cannot be told to be this call's, in the background.
    pub fn refuse(&self, id: &Id, reason: &str) {
        let words = format!("cannot be attributed to one call: {reason}");
        self.session.respond_later(id, &message::refusal(INTERNAL_ERROR, &words));
    }
}

impl fmt::Debug for OffStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffStream").field("call", &self.call).finish_non_exhaustive()
    }
}
