//! Event-stream bytes to events and back, a chunk at a time (WHATWG HTML, *Server-sent events*).

use bytes::Bytes;
use std::time::Duration;

/// One event as dispatched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The event's own `id:` field, where it had one (an empty one resets the last id).
    pub id: Option<String>,
    /// `event:`; absent means `message`.
    pub event: Option<String>,
    /// The joined `data:` lines; empty for a priming event.
    pub data: Bytes,
    /// `retry:`, where it had one. An event may consist of nothing else.
    pub retry: Option<Duration>,
}

/// Turns chunks into events. Never holds more than `limit` bytes of an unfinished event.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
}

/// An event grew beyond the decoder's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server-sent event is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

impl Decoder {
    pub fn new(limit: usize) -> Self {
        Self { limit }
    }

    /// Takes a chunk of the body. Then [`Decoder::next_event`] until it gives `None`.
    pub fn feed(&mut self, chunk: Bytes) {
        let _ = (chunk, self.limit);
        todo!()
    }

    /// The next whole event. Where an event's data lies within one chunk it shares its allocation.
    ///
    /// # Errors
    /// [`EventTooLarge`]; the stream cannot be read on.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, EventTooLarge> {
        todo!()
    }
}

/// One message as an event: a single `data:` line. `json` holds no line break
/// ([`super::frame::on_one_line`]).
pub fn message(json: &[u8]) -> Bytes {
    let _ = json;
    todo!()
}

/// A comment, which keeps a silent stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");
