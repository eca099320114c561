//! The way back for the answer to a server's question.

use bytes::Bytes;
use std::sync::Arc;

use super::{message, session::Session};
use crate::{
    protocol::{Id, code::INTERNAL_ERROR},
    upstream::{Answer, wire::Wire},
};

/// Answers one question of a server, in the session that asked, once.
pub(super) struct Reply<W: Wire> {
    session: Arc<Session<W>>,
    /// In the course of which it was asked.
    call: u64,
    /// Taken when the question has been answered.
    id: Option<Id>,
}

// === impl Reply ===

impl<W: Wire> Reply<W> {
    pub(super) fn new(session: Arc<Session<W>>, call: u64, id: Id) -> Self {
        Self { session, call, id: Some(id) }
    }

    fn give(&mut self, outcome: &Result<Bytes, Bytes>) {
        if let Some(id) = self.id.take() {
            self.session.answer_later(self.call, id, outcome);
        }
    }
}

impl<W: Wire> Answer for Reply<W> {
    fn send(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        self.give(&outcome);
    }

    fn withdrawn(mut self: Box<Self>) {
        if let Some(id) = self.id.take() {
            self.session.was_answered(self.call, &id);
        }
    }
}

impl<W: Wire> Drop for Reply<W> {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.give(&message::refusal(INTERNAL_ERROR, "not answered"));
        }
    }
}
