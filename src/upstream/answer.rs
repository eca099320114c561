//! The way back for the answer to a server's question.

use bytes::Bytes;
use std::sync::Arc;

use super::{Answer, message, session::Session};
use crate::protocol::{Id, code::INTERNAL_ERROR};

/// Answers one question of a server, in the session that asked, once.
pub(super) struct Reply {
    session: Arc<Session>,
    /// Taken when the question has been answered.
    id: Option<Id>,
}

// === impl Reply ===

impl Reply {
    pub(super) fn new(session: Arc<Session>, id: Id) -> Self {
        Self { session, id: Some(id) }
    }

    fn give(&mut self, outcome: &Result<Bytes, Bytes>) {
        if let Some(id) = self.id.take() {
            self.session.tell_later(message::response(&id, outcome));
        }
    }
}

impl Answer for Reply {
    fn send(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        self.give(&outcome);
    }

    fn withdrawn(mut self: Box<Self>) {
        self.id = None;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.give(&message::refusal(INTERNAL_ERROR, "not answered"));
        }
    }
}
