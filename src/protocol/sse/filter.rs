//! Removes messages from a stream.

use super::{EventSplitter, SseField, StreamPiece, byte_joiner::ByteJoiner};
use crate::protocol::Frame;
use bytes::Bytes;

/// Removes messages from an event stream, and passes everything else through.
#[derive(Debug)]
pub struct MessageFilter {
    events: EventSplitter,
}

// === impl MessageFilter ===

impl MessageFilter {
    /// Creates a filter. An event of more than `limit` bytes, and the rest of the stream after it, is passed
    /// through unparsed.
    pub fn new(limit: usize) -> Self {
        Self { events: EventSplitter::new(limit) }
    }

    /// Takes the next chunk; returns the bytes to forward. `must_buffer` returns whether an incomplete event
    /// is held back until its message can be examined; `should_remove` returns whether a message is removed.
    pub fn feed(
        &mut self,
        chunk: Bytes,
        must_buffer: impl FnOnce() -> bool,
        mut should_remove: impl FnMut(Frame) -> bool,
    ) -> Bytes {
        self.events.feed(chunk);
        let mut out = ByteJoiner::default();
        while let Some(event) = self.events.next_piece() {
            let is_removed = event.message().is_some_and(&mut should_remove);
            out.push(if is_removed { without_message(&event) } else { event.bytes });
        }
        if !must_buffer() {
            out.push(self.events.take_buffered());
        }
        out.into()
    }

    /// Returns the buffered bytes at the end of the stream.
    pub fn finish(&mut self) -> Bytes {
        self.events.take_buffered()
    }
}

/// What stays of an event whose message is removed: its id, from which the client resumes the stream, and all
/// lines but its data and name.
fn without_message(event: &StreamPiece) -> Bytes {
    let mut out = Vec::new();
    for line in event.lines() {
        match line.field {
            None | Some(SseField::Data | SseField::Event) => {}
            Some(SseField::Id | SseField::Retry | SseField::Other) => {
                out.extend_from_slice(line.text);
                out.push(b'\n');
            }
        }
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"method":"m"}"#;

    #[test]
    fn a_removed_event_leaves_its_id() {
        for (event, left) in [
            ("data: M\n\n", ""),
            ("event: message\r\ndata: M\r\ndata: \r\n\r\n", ""),
            ("id: 7\nevent: message\ndata: M\nretry: 5\n\n", "id: 7\nretry: 5\n\n"),
            (": hi\rid: 7\rdata: M\r\r", ": hi\nid: 7\n\n"),
        ] {
            let mut sieve = MessageFilter::new(99);
            let out = sieve.feed(event.replace('M', MESSAGE).into(), || true, |_| true);
            assert_eq!(out, left, "{event}");
        }
    }
}
