//! Responder for one request of a server.

use bytes::Bytes;
use std::sync::Arc;

use super::{message, session::UpstreamSession};
use crate::{
    protocol::{RequestId, code::INTERNAL_ERROR},
    upstream::{Responder, transport::Transport},
};

/// Sends one response to a request of a server, in the session in which the request arrived. Dropping it
/// unanswered sends an error response.
pub(super) struct SessionResponder<W: Transport> {
    session: Arc<UpstreamSession<W>>,
    /// Id of the call during which the request arrived.
    call: u64,
    /// Id of the request; `None` once it has been answered.
    id: Option<RequestId>,
}

// === impl SessionResponder ===

impl<W: Transport> SessionResponder<W> {
    pub(super) fn new(session: Arc<UpstreamSession<W>>, call: u64, id: RequestId) -> Self {
        Self { session, call, id: Some(id) }
    }

    fn respond_once(&mut self, outcome: &Result<Bytes, Bytes>) {
        if let Some(id) = self.id.take()
            && self.session.is_open(self.call, &id)
        {
            self.session.respond_in_call(self.call, id, outcome);
        }
    }
}

impl<W: Transport> Responder for SessionResponder<W> {
    fn respond(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        self.respond_once(&outcome);
    }

    fn discard(mut self: Box<Self>) {
        if let Some(id) = self.id.take() {
            self.session.finish_request(self.call, &id);
        }
    }
}

impl<W: Transport> Drop for SessionResponder<W> {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.respond_once(&message::refusal(INTERNAL_ERROR, "not answered"));
        }
    }
}
