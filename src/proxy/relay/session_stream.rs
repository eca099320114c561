//! A legacy session's own stream while it is relayed, without messages about the proxy's calls.
//!
//! Some servers send input requests and progress on the session's GET stream. The stream belongs to the
//! client, but an input request during a task belongs to the task: it must name its task, and must be sent
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under a
//! token of the proxy is meaningless to the client. Such events are removed and passed to the call
//! ([`InFlightCalls`]). All other bytes are relayed unchanged: as they arrive while no call of the proxy is
//! in flight, otherwise event by event, because an event must be complete before it can be attributed to a
//! call.

use crate::{
    protocol::sse::MessageFilter,
    proxy::session::{GetStream, InFlightCalls, LegacySessions, SessionKey},
};
use bytes::Bytes;
use std::sync::Arc;

/// The GET stream of one session while it is relayed.
pub(super) struct SessionStream {
    route: Arc<str>,
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    filter: MessageFilter,
    /// The registration of the stream, with the proxy's messages to insert into it.
    pub(super) stream: GetStream,
}

// === impl SessionStream ===

impl SessionStream {
    /// Opens the stream of a session. `is_resumed` tells whether the stream continues a broken one; `limit`
    /// is the maximum length of one event, in bytes.
    pub(super) fn open(
        (route, sessions): (&Arc<str>, &LegacySessions),
        key: SessionKey,
        is_resumed: bool,
        limit: usize,
    ) -> Self {
        Self {
            route: Arc::clone(route),
            in_flight: Arc::clone(&sessions.in_flight),
            key,
            filter: MessageFilter::new(limit),
            stream: sessions.streams.open(key, is_resumed),
        }
    }

    /// Takes the next chunk of the server; returns the bytes to relay. An empty result does not mean the end.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Bytes {
        let (route, in_flight, key) = (&self.route, &self.in_flight, self.key);
        self.filter.feed(
            chunk,
            || in_flight.has_proxy_call(key),
            |frame| in_flight.dispatch(route, key, frame),
        )
    }

    /// Returns the bytes that are still buffered at the end of the stream.
    pub(super) fn finish(&mut self) -> Bytes {
        self.filter.finish()
    }
}
