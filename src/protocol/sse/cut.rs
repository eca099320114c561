//! A stream in its events, as they were sent.

use super::{Field, Part, Reader};
use crate::protocol::Frame;
use bytes::{Bytes, BytesMut};
use std::{mem, ops::Range};

/// Cuts a stream into its events as they were sent, line ends, comments and all.
///
/// Two things belong to no event, and are pieces of their own: a byte order mark before the first, and the
/// LF of a CR LF whose CR has ended an event already, because no more had come. A CR ends an event whatever
/// follows: perhaps nothing does, and somebody waits for it.
///
/// Holds what has come of the event that has not ended, up to a limit: a larger one goes by unread, and
/// what follows too, in pieces as they come.
#[derive(Debug, Default)]
pub struct Cutter {
    limit: usize,
    reader: Reader,
    /// What came of the event in earlier chunks.
    held: BytesMut,
    /// What is left of the last chunk, and how much of that is the event's.
    input: Bytes,
    read: usize,
    data: Data,
    has_id: bool,
    /// Events are no longer told apart.
    is_over: bool,
}

/// An event, or what belongs to none.
#[derive(Clone, Debug)]
pub struct Piece {
    /// As they were sent. What lies within one chunk shares its allocation.
    pub bytes: Bytes,
    /// It has an `id:` field, be its value one or not.
    pub has_id: bool,
    data: Data,
}

/// Where an event has its data.
#[derive(Clone, Debug, Default)]
enum Data {
    #[default]
    Nowhere,
    Line(Range<usize>),
    /// On several lines.
    Lines,
    /// The beginning of the event is not here.
    Unknown,
}

/// A line of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// None of a blank one.
    pub(super) field: Option<Field>,
    pub(super) text: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) end: &'a [u8],
}

// === impl Cutter ===

impl Cutter {
    /// `limit` is for one event, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Takes a chunk of the body. Then [`Cutter::next_piece`] until it gives `None`.
    pub fn feed(&mut self, chunk: Bytes) {
        debug_assert!(self.input.is_empty(), "the chunk before has been read");
        self.input = chunk;
    }

    /// What has ended next.
    pub fn next_piece(&mut self) -> Option<Piece> {
        while !self.is_over
            && let Some((part, length)) = self.reader.next(&self.input[self.read..])
        {
            let at = self.held.len() + self.read;
            self.read += length;
            match part {
                Part::Field(Field::Data) => self.data.begin(at + length),
                Part::Value(Field::Data) => self.data.go_on(at..at + length),
                Part::End(Field::Id) => self.has_id = true,
                Part::Mark | Part::Blank => return Some(self.cut()),
                Part::LineFeed if self.reader.is_between_events() => return Some(self.cut()),
                Part::LineFeed | Part::Name | Part::Field(_) | Part::Value(_) | Part::End(_) => {}
            }
        }
        self.read = self.input.len();
        self.is_over |= self.held.len() + self.read > self.limit;
        if self.is_over || matches!(self.data, Data::Unknown) {
            let rest = Piece { data: Data::Unknown, ..self.cut() };
            self.data = Data::Unknown;
            return Some(rest).filter(|rest| !rest.bytes.is_empty());
        }
        self.held.extend_from_slice(&mem::take(&mut self.input));
        self.read = 0;
        None
    }

    /// What follows is not to be told apart any more: it goes by as it comes, what is held before it.
    pub fn stop(&mut self) {
        self.is_over = true;
    }

    /// Gives away what is held, once there is no next piece. The rest of that event goes by as it comes.
    pub fn pass(&mut self) -> Bytes {
        if !self.held.is_empty() {
            self.data = Data::Unknown;
        }
        self.held.split().freeze()
    }

    /// The stream goes on elsewhere, where the event comes again that has not ended.
    pub fn begin_event(&mut self) {
        self.held.clear();
        (self.data, self.has_id) = (Data::default(), false);
        self.reader.begin_event();
    }

    fn cut(&mut self) -> Piece {
        let end = self.input.split_to(mem::take(&mut self.read));
        let bytes = if self.held.is_empty() {
            end
        } else {
            self.held.extend_from_slice(&end);
            self.held.split().freeze()
        };
        Piece { bytes, has_id: mem::take(&mut self.has_id), data: mem::take(&mut self.data) }
    }
}

// === impl Piece ===

impl Piece {
    /// The message in it, where there is one.
    pub fn message(&self) -> Option<Frame> {
        let data = match &self.data {
            Data::Nowhere | Data::Unknown => return None,
            Data::Line(place) => self.bytes.slice(place.clone()),
            Data::Lines => {
                let mut joined = Vec::with_capacity(self.bytes.len());
                for line in self.lines().filter(|line| line.field == Some(Field::Data)) {
                    joined.extend_from_slice(line.value);
                    joined.push(b'\n');
                }
                joined.pop();
                joined.into()
            }
        };
        Frame::parse(data).ok()
    }

    /// Whether readers are told something by it.
    pub fn has_data(&self) -> bool {
        matches!(self.data, Data::Line(_) | Data::Lines)
    }

    /// The same, or it is not known.
    pub fn may_have_data(&self) -> bool {
        !matches!(self.data, Data::Nowhere)
    }

    /// The lines of an event.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut reader = Reader::within();
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (mut at, mut value) = (0, 0..0);
            while let Some((part, length)) = reader.next(&rest[at..]) {
                match part {
                    Part::Field(_) => value = at + length..at + length,
                    Part::Value(_) => value.end = at + length,
                    Part::Mark | Part::LineFeed | Part::Name => {}
                    Part::End(_) | Part::Blank => {
                        let (line, after) = rest.split_at(at + length);
                        rest = after;
                        let field = if let Part::End(field) = part { Some(field) } else { None };
                        return Some(Line {
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

// === impl Data ===

impl Data {
    /// Another line of it begins here, where its value does.
    fn begin(&mut self, at: usize) {
        *self = match self {
            Self::Nowhere => Self::Line(at..at),
            Self::Line(_) | Self::Lines => Self::Lines,
            Self::Unknown => Self::Unknown,
        };
    }

    /// More of the line's value, which stands here.
    fn go_on(&mut self, piece: Range<usize>) {
        if let Self::Line(place) = self {
            let from = if place.start == place.end { piece.start } else { place.start };
            *place = from..piece.end;
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
        let mut cutter = Cutter::new(99);
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
            let mut cutter = Cutter::new(1 << 20);
            let (mut rest, mut events) = (&stream[..], Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                cutter.feed(Bytes::copy_from_slice(chunk.as_bytes()));
                while let Some(event) = cutter.next_piece() {
                    events.push(text(&event.bytes));
                }
            }
            let left = text(&cutter.pass());
            prop_assert_eq!(events.concat() + &left, stream);
            let lines = |event: &str| {
                let event = event.replace("\r\n", "\n").replace('\r', "\n");
                event.split('\n').map(str::to_owned).collect::<Vec<_>>()
            };
            for event in &events {
                let lines = lines(event);
                let blank = lines.iter().position(String::is_empty);
                // One blank line, which is the last; behind its end nothing comes.
                prop_assert_eq!(blank, Some(lines.len() - 2), "{:?}", event);
            }
            let lines = lines(&left);
            prop_assert!(!lines[..lines.len() - 1].contains(&String::new()), "{:?}", left);
        }
    }
}
