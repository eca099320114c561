//! Splits a stream into its events, as they were sent.

use super::{EventStreamReader, SseField, StreamToken};
use crate::protocol::Frame;
use bytes::{Bytes, BytesMut};
use std::{mem, ops::Range};

/// Splits a stream into its events as they were sent, with line ends and comments.
///
/// Two things belong to no event and are pieces of their own: a byte order mark before the first event, and
/// the LF of a CR LF whose CR has already ended an event. A CR ends an event at once, because a client may be
/// waiting and no further byte may arrive.
///
/// Buffers the incomplete event, up to a limit. A larger event is passed through unparsed in the chunks in
/// which it arrives, and so is the rest of the stream.
#[derive(Debug, Default)]
pub struct EventSplitter {
    limit: usize,
    reader: EventStreamReader,
    /// The bytes of the current event that arrived in earlier chunks.
    buffered: BytesMut,
    /// The rest of the last chunk.
    input: Bytes,
    /// The number of bytes of `input` that belong to the current event.
    read: usize,
    data: DataLines,
    has_id: bool,
    /// The rest of the stream is passed through without being split.
    is_stopped: bool,
}

/// An event, or bytes that belong to no event.
#[derive(Clone, Debug)]
pub struct StreamPiece {
    /// The bytes as they were sent. A piece within one chunk shares its allocation.
    pub bytes: Bytes,
    /// The event has an `id:` field, valid or not.
    pub has_id: bool,
    data: DataLines,
}

/// The position of an event's data in its bytes.
#[derive(Clone, Debug, Default)]
enum DataLines {
    #[default]
    Absent,
    Single(Range<usize>),
    /// Several `data:` lines, which must be joined.
    Multiple,
    /// The data cannot be located, because the beginning of the event is not buffered.
    Unknown,
}

/// A line of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventLine<'a> {
    /// `None` for a blank line.
    pub(super) field: Option<SseField>,
    /// The line without its end.
    pub(super) text: &'a [u8],
    /// The value of the field; a part of `text`.
    pub(super) value: &'a [u8],
    /// The line end: CR, LF or CR LF.
    pub(super) end: &'a [u8],
}

// === impl EventSplitter ===

impl EventSplitter {
    /// Creates a splitter that buffers at most `limit` bytes of one event.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Takes the next chunk of the body. Call [`EventSplitter::next_piece`] until it returns `None` before
    /// the next chunk.
    pub fn feed(&mut self, chunk: Bytes) {
        debug_assert!(self.input.is_empty(), "the chunk before has been read");
        self.input = chunk;
    }

    /// The next complete piece; `None` if another chunk is needed.
    pub fn next_piece(&mut self) -> Option<StreamPiece> {
        while !self.is_stopped
            && let Some((token, length)) = self.reader.next(&self.input[self.read..])
        {
            let at = self.buffered.len() + self.read;
            self.read += length;
            match token {
                StreamToken::Field(SseField::Data) => self.data.begin_line(at + length),
                StreamToken::Value(SseField::Data) => self.data.extend(at..at + length),
                StreamToken::End(SseField::Id) => self.has_id = true,
                StreamToken::Mark | StreamToken::Blank => return Some(self.split_piece()),
                StreamToken::LineFeed if self.reader.is_between_events() => return Some(self.split_piece()),
                StreamToken::LineFeed
                | StreamToken::Name
                | StreamToken::Field(_)
                | StreamToken::Value(_)
                | StreamToken::End(_) => {}
            }
        }
        self.read = self.input.len();
        self.is_stopped |= self.buffered.len() + self.read > self.limit;
        if self.is_stopped || matches!(self.data, DataLines::Unknown) {
            let rest = StreamPiece { data: DataLines::Unknown, ..self.split_piece() };
            self.data = DataLines::Unknown;
            return Some(rest).filter(|rest| !rest.bytes.is_empty());
        }
        self.buffered.extend_from_slice(&mem::take(&mut self.input));
        self.read = 0;
        None
    }

    /// Stops splitting: the buffered bytes and the rest of the stream are passed through as they arrive.
    pub fn stop_splitting(&mut self) {
        self.is_stopped = true;
    }

    /// Returns the buffered bytes of the incomplete event, after [`EventSplitter::next_piece`] has returned
    /// `None`. The rest of the event is passed through as it arrives.
    pub fn take_buffered(&mut self) -> Bytes {
        if !self.buffered.is_empty() {
            self.data = DataLines::Unknown;
        }
        self.buffered.split().freeze()
    }

    /// Drops the incomplete event: the stream was resumed, and the event arrives again.
    pub fn restart_event(&mut self) {
        self.buffered.clear();
        (self.data, self.has_id) = (DataLines::default(), false);
        self.reader.restart_event();
    }

    fn split_piece(&mut self) -> StreamPiece {
        let tail = self.input.split_to(mem::take(&mut self.read));
        let bytes = if self.buffered.is_empty() {
            tail
        } else {
            self.buffered.extend_from_slice(&tail);
            self.buffered.split().freeze()
        };
        StreamPiece { bytes, has_id: mem::take(&mut self.has_id), data: mem::take(&mut self.data) }
    }
}

// === impl StreamPiece ===

impl StreamPiece {
    /// The JSON-RPC message in the event; `None` if it has none, or if its data is not available.
    pub fn message(&self) -> Option<Frame> {
        let data = match &self.data {
            DataLines::Absent | DataLines::Unknown => return None,
            DataLines::Single(range) => self.bytes.slice(range.clone()),
            DataLines::Multiple => {
                let mut joined = Vec::with_capacity(self.bytes.len());
                for line in self.lines().filter(|line| line.field == Some(SseField::Data)) {
                    joined.extend_from_slice(line.value);
                    joined.push(b'\n');
                }
                joined.pop();
                joined.into()
            }
        };
        Frame::parse(data).ok()
    }

    /// Whether the event has data that is available.
    pub fn has_data(&self) -> bool {
        matches!(self.data, DataLines::Single(_) | DataLines::Multiple)
    }

    /// Whether the event has data, or may have data that is not available.
    pub fn may_have_data(&self) -> bool {
        !matches!(self.data, DataLines::Absent)
    }

    /// The lines of an event.
    pub(super) fn lines(&self) -> impl Iterator<Item = EventLine<'_>> {
        let mut reader = EventStreamReader::after_start();
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (mut at, mut value) = (0, 0..0);
            while let Some((token, length)) = reader.next(&rest[at..]) {
                match token {
                    StreamToken::Field(_) => value = at + length..at + length,
                    StreamToken::Value(_) => value.end = at + length,
                    StreamToken::Mark | StreamToken::LineFeed | StreamToken::Name => {}
                    StreamToken::End(_) | StreamToken::Blank => {
                        let (line, after) = rest.split_at(at + length);
                        rest = after;
                        let field = if let StreamToken::End(field) = token { Some(field) } else { None };
                        return Some(EventLine {
                            field,
                            text: &line[..at],
                            value: &line[value],
                            end: &line[at..],
                        });
                    }
                }
                at += length;
            }
            None
        })
    }
}

// === impl DataLines ===

impl DataLines {
    /// A data line begins; its value starts at `at`.
    fn begin_line(&mut self, at: usize) {
        *self = match self {
            Self::Absent => Self::Single(at..at),
            Self::Single(_) | Self::Multiple => Self::Multiple,
            Self::Unknown => Self::Unknown,
        };
    }

    /// Extends the value of the current line.
    fn extend(&mut self, piece: Range<usize>) {
        if let Self::Single(range) = self {
            let from = if range.start == range.end { piece.start } else { range.start };
            *range = from..piece.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    fn cut(chunks: &[&str]) -> Vec<String> {
        let mut cutter = EventSplitter::new(99);
        let mut pieces = Vec::new();
        for chunk in chunks {
            cutter.feed(Bytes::copy_from_slice(chunk.as_bytes()));
            pieces.extend(std::iter::from_fn(|| cutter.next_piece()));
        }
        pieces.into_iter().map(|piece| text(&piece.bytes)).collect()
    }

    #[test]
    fn an_event_that_ends_in_a_cr_does_not_wait_for_what_follows() {
        assert_eq!(cut(&["data: x\r\r"]), ["data: x\r\r"]);
        assert_eq!(cut(&["data: x\r", "\r", "data: y\r\r"]), ["data: x\r\r", "data: y\r\r"]);
        assert_eq!(cut(&["data: x\r\n\r", "\n", "\n"]), ["data: x\r\n\r", "\n", "\n"]);
        assert_eq!(cut(&["data: x\r", "\ndata: y\r", "\n\r\n"]), ["data: x\r\ndata: y\r\n\r\n"]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_an_event() {
        assert_eq!(cut(&["\u{feff}data: x\n\n\u{feff}y\n\n"]), ["\u{feff}", "data: x\n\n", "\u{feff}y\n\n"]);
        assert_eq!(cut(&["\u{feff}\ndata: x\n\n"]), ["\u{feff}", "\n", "data: x\n\n"]);
        assert_eq!(cut(&["", "\n"]), ["\n"]);
    }

    proptest! {
        #[test]
        fn a_stream_is_cut_behind_blank_lines_wherever_its_chunks_end(
            pieces in prop::collection::vec(
                prop::sample::select(vec!["data: x", "id", ":", "\n", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n"]), 0..24,
            ),
            cuts in prop::collection::vec(0usize..9, 0..24),
        ) {
            let stream = pieces.concat();
            let mut cutter = EventSplitter::new(1 << 20);
            let (mut rest, mut events) = (&stream[..], Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                cutter.feed(Bytes::copy_from_slice(chunk.as_bytes()));
                while let Some(event) = cutter.next_piece() {
                    events.push(text(&event.bytes));
                }
            }
            let left = text(&cutter.take_buffered());
            prop_assert_eq!(events.concat() + &left, stream);
            let lines = |event: &str| {
                let event = event.replace("\r\n", "\n").replace('\r', "\n");
                event.split('\n').map(str::to_owned).collect::<Vec<_>>()
            };
            for event in &events {
                let lines = lines(event);
                let blank = lines.iter().position(String::is_empty);
                // The only blank line is the last line; nothing follows its end.
                prop_assert_eq!(blank, Some(lines.len() - 2), "{:?}", event);
            }
            let lines = lines(&left);
            prop_assert!(!lines[..lines.len() - 1].contains(&String::new()), "{:?}", left);
        }
    }
}
