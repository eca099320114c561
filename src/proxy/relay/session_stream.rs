//! A legacy session's own stream as it goes by, without what it says of calls of ours.
//!
//! Some servers ask, and tell of progress, on the session's GET stream. The stream is the client's, but a
//! question in the course of a task is the task's: it must say which task it belongs to, and be asked
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under
//! a token of ours means nothing to a client. So such events are taken out, and told to the call
//! ([`Residents`](crate::proxy::session::Residents)). All else goes by, byte for byte: as it comes while no call of ours is
//! in flight, and else event by event, for an event cannot be known before what it says.

use crate::{
    protocol::sse::Sieve,
    proxy::{session::Key, shared::Shared},
};
use bytes::Bytes;
use std::sync::Arc;

/// One stream of a session.
pub(in crate::proxy) struct Heard {
    shared: Arc<Shared>,
    key: Key,
    sieve: Sieve,
}

// === impl Heard ===

impl Heard {
    pub(in crate::proxy) fn new(shared: &Arc<Shared>, key: Key, limit: usize) -> Self {
        Self { shared: Arc::clone(shared), key, sieve: Sieve::new(limit) }
    }

    /// Takes the next chunk; gives what goes on. Nothing is not the end of it.
    pub(in crate::proxy) fn feed(&mut self, chunk: Bytes) -> Bytes {
        let (residents, key) = (&self.shared.residents, self.key);
        self.sieve.feed(chunk, || residents.has_ours(key), |frame| residents.take(key, frame))
    }

    /// The stream has ended: what was held of it.
    pub(in crate::proxy) fn rest(&mut self) -> Bytes {
        self.sieve.rest()
    }
}
