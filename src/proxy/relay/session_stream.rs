//! A legacy session's own stream while it is relayed, without messages about the proxy's calls.
//!
//! Some servers send input requests and progress on the session's GET stream. The stream belongs to the
//! client, but an input request during a task belongs to the task: it must name its task, and must be sent
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under a
//! token of the proxy is meaningless to the client. Such events are removed and passed to the call
//! ([`InFlightCalls`]). Everything else is relayed byte for byte: as it comes while no call of the proxy is
//! in flight, otherwise event by event, because an event must be complete before it can be attributed.

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
    /// Messages of the proxy for the stream.
    pub(super) stream: GetStream,
}

// === impl SessionStream ===

impl SessionStream {
    /// `resumed` is whether it continues a broken stream; `limit` is for one event, in bytes.
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

    /// Takes the next chunk; returns the bytes to relay. An empty result is not the end.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Bytes {
        let (route, in_flight, key) = (&self.route, &self.in_flight, self.key);
        self.sieve.feed(
            chunk,
            || in_flight.has_proxy_call(key),
            |frame| in_flight.dispatch(route, key, frame),
        )
    }

    /// The buffered rest at the end of the stream.
    pub(super) fn rest(&mut self) -> Bytes {
        self.sieve.finish()
    }
}
