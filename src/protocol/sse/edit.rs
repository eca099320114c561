//! Edits one message of a response stream.

use super::{EventSplitter, SseField, StreamPiece, byte_joiner::ByteJoiner};
use crate::protocol::{Frame, Kind};
use bytes::Bytes;

/// Edits the response in an event stream as it is relayed.
///
/// All other bytes are those of the server: comments, ids, event names and line ends. An event is buffered
/// until its end, because its message is not known before; most events arrive in one chunk.
#[derive(Debug)]
pub struct ResponseEditor {
    events: EventSplitter,
    /// Every response is edited, not only the first.
    edits_all: bool,
}

// === impl ResponseEditor ===

impl ResponseEditor {
    /// Creates an editor of the first response with a result. An event of more than `limit` bytes, and the
    /// rest of the stream after it, is passed through unparsed.
    pub fn new(limit: usize) -> Self {
        Self { events: EventSplitter::new(limit), edits_all: false }
    }

    /// Creates an editor of every response with a result, for a stream that may contain several.
    pub fn for_all_responses(limit: usize) -> Self {
        Self { edits_all: true, ..Self::new(limit) }
    }

    /// Takes the next chunk; returns the bytes to forward, possibly none. `edit` gets the first response with
    /// a result, and returns the message to send instead, or `None` to keep it. `edit` is called once, or for
    /// each response ([`ResponseEditor::for_all_responses`]).
    pub fn feed(&mut self, chunk: Bytes, mut edit: impl FnMut(&Frame) -> Option<Bytes>) -> Bytes {
        self.events.feed(chunk);
        let mut out = ByteJoiner::default();
        while let Some(event) = self.events.next_piece() {
            let response = event.message().filter(|frame| matches!(frame.kind(), Kind::Success { .. }));
            let edited = response.and_then(|response| {
                if !self.edits_all {
                    // Pass later events through without buffering them.
                    self.events.stop_splitting();
                }
                edit(&response)
            });
            out.push(edited.map_or_else(|| event.bytes.clone(), |edited| with_message(&event, &edited)));
        }
        out.into()
    }

    /// Returns the buffered bytes at the end of the stream.
    pub fn finish(&mut self) -> Bytes {
        self.events.take_buffered()
    }

    /// Drops the incomplete event: the stream was resumed, and the event arrives again.
    pub fn restart_event(&mut self) {
        self.events.restart_event();
    }
}

/// The event with `message` as its data.
fn with_message(event: &StreamPiece, message: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(event.bytes.len() + message.len());
    let mut message = Some(message);
    for line in event.lines() {
        if line.field != Some(SseField::Data) {
            // The line before may end differently than the removed data line: its CR would merge with the LF
            // of a blank line.
            if line.field.is_none() && line.end == b"\n" && out.ends_with(b"\r") {
                out.push(b'\n');
            }
            out.extend_from_slice(line.text);
            out.extend_from_slice(line.end);
        } else if let Some(message) = message.take() {
            // The message has a line break where its data had several lines.
            for part in message.split(|&byte| byte == b'\n') {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(part);
                out.extend_from_slice(line.end);
            }
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hi\r\nid: 0\r\nretry: 5\r\ndata:\r\n\r\nevent: message\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\nid: 2\revent: message\rdata: {\"jsonrpc\":\"2.0\",\"id\":1,\rdata:\"result\":{\"a\" : 1}}\r\rdata: {\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}\n\n: end";

    fn edit(response: &Frame) -> Option<Bytes> {
        let text = String::from_utf8(response.as_bytes().to_vec()).expect("utf-8");
        Some(text.replace("1}", "1,\"b\":2}").into())
    }

    proptest! {
        #[test]
        fn only_the_response_is_changed_however_the_stream_is_cut(cuts in proptest::collection::vec(0..STREAM.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            cuts.push(STREAM.len());
            let mut editor = ResponseEditor::new(1 << 20);
            let (mut out, mut from) = (Vec::new(), 0);
            for cut in cuts {
                out.extend_from_slice(&editor.feed(Bytes::copy_from_slice(&STREAM.as_bytes()[from..cut]), edit));
                from = cut;
            }
            out.extend_from_slice(&editor.finish());
            let wanted = STREAM
                .replace("\rdata:\"result\":{\"a\" : 1}}", "\rdata: \"result\":{\"a\" : 1,\"b\":2}}");
            prop_assert_eq!(String::from_utf8(out).expect("utf-8"), wanted);
        }
    }

    #[test]
    fn every_response_of_a_stream_that_may_hold_several_is_changed() {
        let mut editor = ResponseEditor::for_all_responses(1 << 20);
        let out = editor.feed(Bytes::from_static(STREAM.as_bytes()), |_| Some(Bytes::from_static(b"{}")));
        let out = [&out[..], &editor.finish()[..]].concat();
        assert_eq!(String::from_utf8(out).expect("utf-8").matches("data: {}").count(), 2);
    }

    #[test]
    fn events_after_an_unchanged_response_keep_their_order() {
        let mut editor = ResponseEditor::new(1 << 20);
        let mut out =
            editor.feed(Bytes::from_static(b"data: {\"id\":1,\"result\":{}}\n\nda"), |_| None).to_vec();
        out.extend_from_slice(&editor.feed(Bytes::from_static(b"ta: x\n\n"), |_| None));
        out.extend_from_slice(&editor.finish());
        assert_eq!(out, b"data: {\"id\":1,\"result\":{}}\n\ndata: x\n\n");
    }

    #[test]
    fn a_response_behind_a_byte_order_mark_is_changed_too() {
        let mut editor = ResponseEditor::new(1 << 20);
        let stream = "\u{feff}data: {\"id\":1,\"result\":{\"a\":1}}\n\n".as_bytes();
        let out = editor.feed(Bytes::from_static(stream), edit);
        assert_eq!(out, "\u{feff}data: {\"id\":1,\"result\":{\"a\":1,\"b\":2}}\n\n".as_bytes());
    }

    #[test]
    fn a_response_whose_last_byte_is_a_cr_is_changed_and_does_not_wait() {
        let mut editor = ResponseEditor::new(1 << 20);
        let out = editor.feed(Bytes::from_static(b"data: {\"id\":1,\"result\":{\"a\":1}}\r\r"), edit);
        assert_eq!(out, "data: {\"id\":1,\"result\":{\"a\":1,\"b\":2}}\r\r");
        assert_eq!(editor.finish(), "");
    }

    #[test]
    fn an_event_whose_line_ends_differ_ends_where_it_did() {
        for (event, wanted) in [
            (
                "data: {\"id\":1,\rdata: \"result\":{\"a\":1}}\n\n",
                "data: {\"id\":1,\rdata: \"result\":{\"a\":1,\"b\":2}}\r\n\n",
            ),
            (
                "data: {\"id\":1,\"result\":{\"a\":1}}\rid: 1\rdata:\n\n",
                "data: {\"id\":1,\"result\":{\"a\":1,\"b\":2}}\rdata: \rid: 1\r\n\n",
            ),
        ] {
            let mut editor = ResponseEditor::new(1 << 20);
            let out = editor.feed(Bytes::from(format!("{event}data: next\n\n")), edit);
            assert_eq!(out, format!("{wanted}data: next\n\n"));
        }
    }

    #[test]
    fn unchanged_events_are_passed_through() {
        let mut editor = ResponseEditor::new(1 << 20);
        let out = editor.feed(Bytes::from_static(STREAM.as_bytes()), |_| None);
        assert_eq!([&out[..], &editor.finish()[..]].concat(), STREAM.as_bytes());
    }

    #[test]
    fn an_event_that_is_too_large_is_not_held() {
        let mut editor = ResponseEditor::new(16);
        let out = editor.feed(Bytes::from_static(b"data: {\"jsonrpc\":\"2.0\""), edit);
        assert_eq!(out, "data: {\"jsonrpc\":\"2.0\"");
        assert_eq!(editor.feed(Bytes::from_static(b"}"), edit), "}");
    }
}
