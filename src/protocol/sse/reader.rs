//! Classifies the bytes of an event stream, however they are chunked.
//!
//! This is the only implementation of lines, fields and their ends (WHATWG HTML, *Parsing an event stream*).
//! The other files of this folder use [`StreamToken`]s: each classifies the next bytes of the chunk. A token
//! ends at the end of the chunk at the latest, so a value may consist of several tokens.

use super::BYTE_ORDER_MARK;

/// A tokenizer of an event stream. It keeps the position in the stream, and none of its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventStreamReader {
    position: LinePosition,
    /// The last byte was a CR that ended a line; an LF that follows belongs to that line end.
    after_cr: bool,
    /// The first bytes of the stream have been read, so a byte order mark is no longer recognised.
    has_begun: bool,
    /// The current event has a line, possibly incomplete.
    in_event: bool,
}

/// The class of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamToken {
    /// The byte order mark, which belongs to no event. Its bytes in earlier chunks were classified as a name.
    Mark,
    /// The LF of a CR LF whose CR, at the end of a chunk, has already ended the line.
    LineFeed,
    /// Part of a field name, or of the separator behind it.
    Name,
    /// The end of a field name, when the field is known. Each line that is not blank has one of these,
    /// possibly without bytes.
    Field(SseField),
    /// Part of the field's value.
    Value(SseField),
    /// The end of the field's line.
    End(SseField),
    /// A blank line, which ends an event.
    Blank,
}

/// The field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseField {
    Data,
    Event,
    Id,
    Retry,
    /// A comment or an unknown field, which readers ignore.
    Other,
}

/// The position of the next byte in its line.
#[derive(Clone, Copy, Debug)]
enum LinePosition {
    /// The line has begun with `seen` bytes of the name of this field; for `Other`, with anything else.
    Name {
        candidate: SseField,
        seen: u8,
    },
    /// Directly behind the colon, where one space is not part of the value.
    Space(SseField),
    Value(SseField),
}

// === impl EventStreamReader ===

impl EventStreamReader {
    /// Creates a reader for the continuation of a stream: a byte order mark is not recognised.
    pub fn after_start() -> Self {
        Self { has_begun: true, ..Self::default() }
    }

    /// Classifies the next bytes of `chunk`; returns the token and the number of its bytes, or `None` if the
    /// chunk is empty.
    #[inline(always)]
    pub fn next(&mut self, chunk: &[u8]) -> Option<(StreamToken, usize)> {
        let first = *chunk.first()?;
        if (self.after_cr || !self.has_begun)
            && let Some(token) = self.read_line_feed_or_mark(chunk)
        {
            return Some(token);
        }
        Some(match (self.position, first) {
            (LinePosition::Name { seen: 0, .. }, b'\n' | b'\r') => {
                self.in_event = false;
                (StreamToken::Blank, self.read_line_end(chunk))
            }
            // A line without a colon is a field without a value.
            (LinePosition::Name { candidate, seen }, b'\n' | b'\r') => {
                let field = candidate.if_complete(seen);
                self.position = LinePosition::Value(field);
                (StreamToken::Field(field), 0)
            }
            (LinePosition::Space(field) | LinePosition::Value(field), b'\n' | b'\r') => {
                self.position = LinePosition::default();
                (StreamToken::End(field), self.read_line_end(chunk))
            }
            (LinePosition::Name { candidate, seen }, _) => {
                self.in_event = true;
                match SseField::match_prefix(chunk) {
                    Some((field, length)) if seen == 0 => self.end_name(field, chunk, length),
                    Some(_) | None => self.read_name(chunk, candidate, seen),
                }
            }
            (LinePosition::Space(field), b' ') => {
                self.position = LinePosition::Value(field);
                (StreamToken::Name, 1)
            }
            (LinePosition::Space(field) | LinePosition::Value(field), _) => {
                self.position = LinePosition::Value(field);
                (StreamToken::Value(field), memchr::memchr2(b'\n', b'\r', chunk).unwrap_or(chunk.len()))
            }
        })
    }

    /// Restarts at the beginning of a line and of an event, as after a resumption of the stream.
    pub fn restart_event(&mut self) {
        *self = Self::after_start();
    }

    /// Whether the next byte would begin a new event.
    pub fn is_between_events(&self) -> bool {
        !self.in_event
    }

    /// The field of the incomplete line, as if the line ended here; `None` at the beginning of a line.
    pub fn unfinished_line(&self) -> Option<SseField> {
        match self.position {
            LinePosition::Name { seen: 0, .. } => None,
            LinePosition::Name { candidate, seen } => Some(candidate.if_complete(seen)),
            LinePosition::Space(field) | LinePosition::Value(field) => Some(field),
        }
    }

    /// Classifies bytes that may precede a line: the LF of a CR LF, or at the beginning of the stream the
    /// byte order mark, whole or in part. `None` if there are none.
    #[cold]
    fn read_line_feed_or_mark(&mut self, chunk: &[u8]) -> Option<(StreamToken, usize)> {
        if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
            return Some((StreamToken::LineFeed, 1));
        }
        let LinePosition::Name { seen, .. } = self.position else { return None };
        if self.has_begun {
            return None;
        }
        let expected = &BYTE_ORDER_MARK[usize::from(seen)..];
        let common = chunk.iter().zip(expected).take_while(|(byte, expected)| byte == expected).count();
        if common == expected.len() {
            self.restart_event();
            return Some((StreamToken::Mark, common));
        }
        self.has_begun = common < chunk.len();
        if self.has_begun {
            return None;
        }
        self.in_event = true;
        self.position = LinePosition::Name { candidate: SseField::Other, seen: seen + common as u8 };
        Some((StreamToken::Name, common))
    }

    /// Reads a name that is incomplete or unknown.
    fn read_name(&mut self, chunk: &[u8], candidate: SseField, seen: u8) -> (StreamToken, usize) {
        let end = memchr::memchr3(b':', b'\n', b'\r', chunk).unwrap_or(chunk.len());
        let (candidate, seen) = candidate.extend_name(seen, &chunk[..end]);
        if chunk.get(end) == Some(&b':') {
            return self.end_name(candidate.if_complete(seen), chunk, end + 1);
        }
        self.position = LinePosition::Name { candidate, seen };
        (StreamToken::Name, end)
    }

    /// Ends a field name; `after_colon` is the position behind its colon.
    #[inline]
    fn end_name(&mut self, field: SseField, chunk: &[u8], after_colon: usize) -> (StreamToken, usize) {
        let next = chunk.get(after_colon);
        self.position = if next.is_some() { LinePosition::Value(field) } else { LinePosition::Space(field) };
        (StreamToken::Field(field), after_colon + usize::from(next == Some(&b' ')))
    }

    /// Reads the line end at the start of the chunk, and returns its length.
    #[inline]
    fn read_line_end(&mut self, chunk: &[u8]) -> usize {
        self.after_cr = chunk == b"\r";
        if chunk.starts_with(b"\r\n") { 2 } else { 1 }
    }
}

// === impl SseField ===

impl SseField {
    /// The name of the field; empty for `Other`.
    fn name(self) -> &'static [u8] {
        match self {
            Self::Data => b"data",
            Self::Event => b"event",
            Self::Id => b"id",
            Self::Retry => b"retry",
            Self::Other => b"",
        }
    }

    /// The field whose name and colon begin the chunk, and the length of both. Most names are complete, so
    /// this avoids a search.
    #[inline(always)]
    fn match_prefix(chunk: &[u8]) -> Option<(Self, usize)> {
        match chunk {
            [b'd', b'a', b't', b'a', b':', ..] => Some((Self::Data, 5)),
            [b'e', b'v', b'e', b'n', b't', b':', ..] => Some((Self::Event, 6)),
            [b'i', b'd', b':', ..] => Some((Self::Id, 3)),
            [b':', ..] => Some((Self::Other, 1)),
            _ => None,
        }
    }

    /// Extends a name of which `seen` bytes have been read by `piece`; returns the field that it may become,
    /// and the number of bytes read.
    fn extend_name(self, seen: u8, piece: &[u8]) -> (Self, u8) {
        let field = match (seen, piece.first()) {
            (0, Some(b'd')) => Self::Data,
            (0, Some(b'e')) => Self::Event,
            (0, Some(b'i')) => Self::Id,
            (0, Some(b'r')) => Self::Retry,
            (0, _) => Self::Other,
            _ => self,
        };
        match field.name().get(usize::from(seen)..) {
            Some(rest) if rest.starts_with(piece) => (field, seen + piece.len() as u8),
            _ => (Self::Other, 1),
        }
    }

    /// This field if its name is complete, else `Other`.
    fn if_complete(self, seen: u8) -> Self {
        if usize::from(seen) == self.name().len() { self } else { Self::Other }
    }
}

// === impl LinePosition ===

impl Default for LinePosition {
    fn default() -> Self {
        Self::Name { candidate: SseField::Other, seen: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    /// The tokens of a stream in these chunks, each with its bytes; those of a name or a value are joined.
    fn parts<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(StreamToken, String)> {
        let mut reader = EventStreamReader::default();
        let mut parts: Vec<(StreamToken, String)> = Vec::new();
        for chunk in chunks {
            let mut rest = chunk;
            while let Some((part, length)) = reader.next(rest) {
                let (piece, after) = rest.split_at(length);
                let piece = piece.escape_ascii().to_string();
                rest = after;
                match parts.last_mut() {
                    Some((last, bytes))
                        if *last == StreamToken::Name
                            && matches!(part, StreamToken::Field(_) | StreamToken::Mark) =>
                    {
                        *last = part;
                        bytes.push_str(&piece);
                    }
                    // The space behind the colon, or a continuation.
                    Some((StreamToken::Field(_), bytes)) if part == StreamToken::Name => {
                        bytes.push_str(&piece)
                    }
                    Some((last, bytes)) if *last == part && !matches!(part, StreamToken::Blank) => {
                        bytes.push_str(&piece)
                    }
                    Some((StreamToken::End(_) | StreamToken::Blank, bytes))
                        if part == StreamToken::LineFeed =>
                    {
                        bytes.push_str(&piece)
                    }
                    _ => parts.push((part, piece)),
                }
            }
            assert!(rest.is_empty(), "all is something");
        }
        parts
    }

    #[test]
    fn a_stream_is_lines_of_fields_and_their_ends() {
        let stream = "\u{feff}data: a: b\r\nid\n:c\rdate:  x\n\n\u{feff}data\n";
        let lines: Vec<_> =
            parts([stream.as_bytes()]).into_iter().map(|(part, bytes)| format!("{part:?} {bytes}")).collect();
        expect![[r#"
            Mark \xef\xbb\xbf
            Field(Data) data: 
            Value(Data) a: b
            End(Data) \r\n
            Field(Id) id
            End(Id) \n
            Field(Other) :
            Value(Other) c
            End(Other) \r
            Field(Other) date: 
            Value(Other)  x
            End(Other) \n
            Blank \n
            Field(Other) \xef\xbb\xbfdata
            End(Other) \n"#]]
        .assert_eq(&lines.join("\n"));
    }

    proptest! {
        #[test]
        fn how_it_is_cut_does_not_matter(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "data", "event", "id", "retry", "dat", "x", ":", ": ", " ", "\u{feff}", "\n", "\r", "\r\n",
                ]),
                0..24,
            ),
            cuts in prop::collection::vec(0usize..9, 0..24),
        ) {
            let stream = pieces.concat().into_bytes();
            let (mut rest, mut chunks) = (&stream[..], Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                chunks.push(chunk);
            }
            prop_assert_eq!(parts(chunks), parts([&stream[..]]));
        }
    }
}
