//! A legacy session's own stream as it goes by, without what it says of calls of ours.
//!
//! Some servers ask, and tell of progress, on the session's GET stream. The stream is the client's, but a
//! question in the course of a task is the task's: it must say which task it belongs to, and be asked
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under
//! a token of ours means nothing to a client. So such events are taken out, and told to the call
//! ([`Residents`](crate::proxy::session::Residents)). All else goes by, byte for byte: as it comes while no call of ours is
//! in flight, and else event by event, for an event cannot be known before what it says.

use super::sse_edit::{data, lines, message};
use crate::{
    protocol::{Frame, sse::Cutter},
    proxy::{session::Key, shared::Shared},
};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// One stream of a session.
pub(in crate::proxy) struct Heard {
    shared: Arc<Shared>,
    key: Key,
    sieve: Sieve,
}

/// Takes messages out of an event stream, and lets all else go by.
pub struct Sieve {
    events: Cutter,
    /// For one event, in bytes. A larger one goes by unread, and what follows too.
    limit: usize,
    over: bool,
    /// How much of the event that has not ended has gone by already, because nothing was looked for.
    passed: usize,
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

// === impl Sieve ===

impl Sieve {
    /// `limit` is in bytes.
    pub fn new(limit: usize) -> Self {
        Self { events: Cutter::default(), limit, over: false, passed: 0 }
    }

    /// Takes the next chunk; gives what goes on. `looks` says whether an event that has not ended is worth
    /// holding; `takes`, whether a message is taken out.
    pub fn feed(
        &mut self,
        chunk: Bytes,
        looks: impl FnOnce() -> bool,
        mut takes: impl FnMut(Frame) -> bool,
    ) -> Bytes {
        if self.over {
            return chunk;
        }
        self.events.feed(&chunk);
        let mut out = BytesMut::new();
        while let Some(event) = self.events.next_event() {
            let passed = std::mem::take(&mut self.passed);
            match passed == 0 && message(&event).is_some_and(&mut takes) {
                true => out.extend_from_slice(&remains(&event)),
                false => out.extend_from_slice(&event[passed..]),
            }
        }
        let is_too_large = self.events.held() > self.limit;
        if is_too_large || self.passed > 0 || !looks() {
            out.extend_from_slice(&self.events.unfinished()[self.passed..]);
            self.passed = self.events.held();
        }
        if is_too_large {
            self.over = true;
            // Nothing is left of it to go by.
            (self.events, self.passed) = (Cutter::default(), 0);
        }
        out.freeze()
    }

    /// The stream has ended: what was held of it.
    pub fn rest(&mut self) -> Bytes {
        self.events.rest().slice(std::mem::take(&mut self.passed)..)
    }
}

/// What is left of an event that was taken: its id, by which the client takes the stream up again, and
/// whatever else is not said to it.
fn remains(event: &[u8]) -> Vec<u8> {
    let kept = |line: &[u8]| !line.is_empty() && data(line).is_none() && !line.starts_with(b"event");
    let mut out = Vec::new();
    for (line, _) in lines(event).filter(|(line, _)| kept(line)) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_taken_leaves_its_id_behind() {
        for (event, left) in [
            ("data: {}\n\n", ""),
            ("event: message\r\ndata: {\r\ndata: }\r\n\r\n", ""),
            ("id: 7\nevent: message\ndata: {}\nretry: 5\n\n", "id: 7\nretry: 5\n\n"),
            (": hi\rid: 7\rdata: {}\r\r", ": hi\nid: 7\n\n"),
        ] {
            assert_eq!(String::from_utf8(remains(event.as_bytes())).expect("text"), left, "{event}");
        }
    }
}
