//! A legacy session's own stream as it goes by, without what it says of calls of ours.
//!
//! Some servers ask, and tell of progress, on the session's GET stream. The stream is the client's, but a
//! question in the course of a task is the task's: it must say which task it belongs to, and be asked
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under
//! a token of ours means nothing to a client. So such events are taken out, and told to the call
//! ([`InFlightCalls`]). All else goes by, byte for byte: as it comes while no call of ours is in flight, and else
//! event by event, for an event cannot be known before what it says.

use crate::{
    protocol::sse::MessageFilter,
    proxy::session::{GetStream, InFlightCalls, LegacySessions, SessionKey},
};
use bytes::Bytes;
use std::sync::Arc;

/// One stream of a session.
pub(super) struct SessionStream {
    route: Arc<str>,
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    sieve: MessageFilter,
    /// What we say on it.
    pub(super) stream: GetStream,
}

// === impl SessionStream ===

impl SessionStream {
    /// `resumed` is whether it goes on where another stream broke, `limit` for one event, in bytes.
    pub(super) fn open(
        (route, sessions): (&Arc<str>, &LegacySessions),
        key: SessionKey,
        resumed: bool,
        limit: usize,
    ) -> Self {
        Self {
            route: Arc::clone(route),
            in_flight: Arc::clone(&sessions.in_flight),
            key,
            sieve: MessageFilter::new(limit),
            stream: sessions.streams.open(key, resumed),
        }
    }

    /// Takes the next chunk; gives what goes on. Nothing is not the end of it.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Bytes {
        let (route, in_flight, key) = (&self.route, &self.in_flight, self.key);
        self.sieve.feed(
            chunk,
            || in_flight.has_proxy_call(key),
            |frame| in_flight.dispatch(route, key, frame),
        )
    }

    /// The stream has ended: what was held of it.
    pub(super) fn rest(&mut self) -> Bytes {
        self.sieve.finish()
    }
}
