//! The messages in a stream of lines.
//!
//! MCP over stdio is a message a line (2025-11-25, *Transports, stdio*). A line that is longer than may be is not
//! kept: it is read through for the id of the call it answers, so that this call alone fails.

use bytes::Bytes;

use crate::protocol::RequestId;

/// Takes a stream apart into lines. Keeps no more than one line, and of one that is too long next to nothing.
#[derive(Default)]
pub struct OutputLines {
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    /// What is known of a line that is too long.
    outline: Option<ResponseOutline>,
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    /// Never blank, without its end, in an allocation of its own.
    Whole(Bytes),
    /// It was longer than may be. `answers` is the call it is a response to, where that could be told.
    TooLong { answers: Option<u64> },
}

/// The members of one object that tell which call it answers, read in pieces.
///
/// It does not judge whether the JSON is valid: what it cannot make sense of is nothing.
#[derive(Debug, Default)]
struct ResponseOutline {
    depth: u32,
    text: StringState,
    /// A string that begins now is a key of the object itself.
    before_key: bool,
    key: ShortToken,
    /// The member whose value is being read, where that is one of the two below.
    reading: Option<TrackedMember>,
    id: ShortToken,
    version: ShortToken,
    /// It has a `method`: its id is its sender's.
    is_request: bool,
    /// It has a `result` or an `error`.
    has_outcome: bool,
}

/// A member whose value counts.
#[derive(Clone, Copy, Debug)]
enum TrackedMember {
    Id,
    Version,
}

/// Whether one is in a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Key,
    Value,
    /// After a backslash.
    Escape {
        is_key: bool,
    },
}

/// The beginning of something short.
#[derive(Debug, Default)]
struct ShortToken {
    bytes: Vec<u8>,
    is_longer: bool,
}

/// Bytes of a token that are looked at: an id of ours is a number of at most 20 digits.
const TOKEN: usize = 24;

// === impl Lines ===

impl OutputLines {
    /// The next line, once its end is in `input`, of which what has been read is taken off. `Missing` means that all
    /// of it has been. `limit` is how many bytes a line may have.
    pub fn next(&mut self, input: &mut &[u8], limit: usize) -> Option<OutputLine> {
        while !input.is_empty() {
            let (piece, rest, has_ended) = match memchr::memchr(b'\n', input) {
                Some(end) => (&input[..end], &input[end + 1..], true),
                None => (*input, &input[input.len()..], false),
            };
            *input = rest;
            if let Some(line) = self.take(piece, has_ended, limit) {
                return Some(line);
            }
        }
        None
    }

    /// Whether a line has begun and not ended.
    pub fn is_within(&self) -> bool {
        self.outline.is_some() || !self.begun.trim_ascii().is_empty()
    }

    fn take(&mut self, piece: &[u8], has_ended: bool, limit: usize) -> Option<OutputLine> {
        if self.outline.is_none() && self.begun.len() + piece.len() > limit {
            let mut outline = ResponseOutline::default();
            outline.feed(&std::mem::take(&mut self.begun));
            self.outline = Some(outline);
        }
        if let Some(outline) = &mut self.outline {
            outline.feed(piece);
            if !has_ended {
                return None;
            }
            let answers = outline.answers();
            self.outline = None;
            return Some(OutputLine::TooLong { answers });
        }
        if !has_ended {
            self.begun.extend_from_slice(piece);
            return None;
        }
        // Mostly a line is whole in what has been read: it is copied once, to its own size.
        if self.begun.is_empty() {
            let line = piece.trim_ascii();
            return (!line.is_empty()).then(|| OutputLine::Whole(Bytes::copy_from_slice(line)));
        }
        let mut line = std::mem::take(&mut self.begun);
        line.extend_from_slice(piece);
        line.truncate(line.trim_ascii_end().len());
        // What stands before it would be kept as long as any part of it.
        let line = match line.trim_ascii_start() {
            text if text.len() < line.len() => Bytes::copy_from_slice(text),
            _ => Bytes::from(line.into_boxed_slice()),
        };
        (!line.is_empty()).then_some(OutputLine::Whole(line))
    }
}

/// The call that a line answers which is no message, where that can be told. What a program prints beside its messages
/// may have an `id` too: an answer has an outcome.
pub fn answered_call(line: &[u8]) -> Option<u64> {
    let mut outline = ResponseOutline::default();
    if line.first() == Some(&b'{') {
        outline.feed(line);
    }
    outline.answers().filter(|_| outline.has_outcome)
}

// === impl Outline ===

impl ResponseOutline {
    fn feed(&mut self, piece: &[u8]) {
        let mut at = 0;
        while at < piece.len() {
            // All that such a line mostly is.
            if self.text == StringState::Value && self.reading.is_none() {
                match memchr::memchr2(b'"', b'\\', &piece[at..]) {
                    Some(step) => at += step,
                    None => return,
                }
            }
            self.step(piece[at]);
            at += 1;
        }
    }

    fn step(&mut self, byte: u8) {
        match (self.text, byte) {
            (StringState::Escape { is_key: true }, _) => {
                // None of the keys that are looked for need be written so.
                self.key.is_longer = true;
                self.text = StringState::Key;
            }
            (StringState::Escape { is_key: false }, _) => self.text = StringState::Value,
            (StringState::Key, b'\\') => self.text = StringState::Escape { is_key: true },
            (StringState::Value, b'\\') => self.text = StringState::Escape { is_key: false },
            (StringState::Key, b'"') => {
                self.text = StringState::Outside;
                self.reading = match () {
                    () if self.key.is(b"id") => Some(TrackedMember::Id),
                    () if self.key.is(b"jsonrpc") => Some(TrackedMember::Version),
                    () => None,
                };
                self.is_request |= self.key.is(b"method");
                self.has_outcome |= self.key.is(b"result") || self.key.is(b"error");
                if let Some(value) = self.tracked_value() {
                    *value = ShortToken::default();
                }
            }
            (StringState::Key, _) => self.key.push(byte),
            (StringState::Value, b'"') => {
                self.text = StringState::Outside;
                self.push_value(byte);
            }
            (StringState::Value, _) => self.push_value(byte),
            (StringState::Outside, b'"') if self.before_key => {
                self.before_key = false;
                self.key = ShortToken::default();
                self.text = StringState::Key;
            }
            (StringState::Outside, b'"') => {
                self.text = StringState::Value;
                self.push_value(byte);
            }
            (StringState::Outside, b'{' | b'[') => {
                self.push_value(byte);
                self.depth += 1;
                self.before_key = self.depth == 1 && byte == b'{';
            }
            (StringState::Outside, b'}' | b']') => {
                if self.depth <= 1 {
                    self.reading = None;
                }
                self.depth = self.depth.saturating_sub(1);
            }
            (StringState::Outside, b',') if self.depth == 1 => {
                self.reading = None;
                self.before_key = true;
            }
            (StringState::Outside, b':' | b' ' | b'\t' | b'\r') => {}
            (StringState::Outside, _) => self.push_value(byte),
        }
    }

    /// The value that is being read, where it counts.
    fn tracked_value(&mut self) -> Option<&mut ShortToken> {
        Some(match self.reading? {
            TrackedMember::Id => &mut self.id,
            TrackedMember::Version => &mut self.version,
        })
    }

    fn push_value(&mut self, byte: u8) {
        if let Some(value) = self.tracked_value() {
            value.push(byte);
        }
    }

    /// The call of ours that it answers. What does not declare JSON-RPC 2.0 answers none.
    fn answers(&self) -> Option<u64> {
        if self.is_request || self.id.is_longer || !self.version.is(br#""2.0""#) {
            return None;
        }
        RequestId::from_token(Bytes::copy_from_slice(&self.id.bytes))?.echoed_number()
    }
}

// === impl Token ===

impl ShortToken {
    fn push(&mut self, byte: u8) {
        match self.bytes.len() < TOKEN {
            true => self.bytes.push(byte),
            false => self.is_longer = true,
        }
    }

    fn is(&self, text: &[u8]) -> bool {
        !self.is_longer && self.bytes == text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(limit: usize, text: &str) -> Vec<OutputLine> {
        let (mut lines, mut input) = (OutputLines::default(), text.as_bytes());
        std::iter::from_fn(|| lines.next(&mut input, limit)).collect()
    }

    fn whole(text: &str) -> OutputLine {
        OutputLine::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_end_as_they_do_anywhere_and_blank_ones_say_nothing() {
        assert_eq!(lines(99, "{}\n\n \r\n[1] \r\nx\nrest"), [whole("{}"), whole("[1]"), whole("x")]);
        let mut lines = OutputLines::default();
        assert_eq!(lines.next(&mut &b" {\"a\""[..], 99), None);
        assert!(lines.is_within());
        assert_eq!(lines.next(&mut &b":1}\n"[..], 99), Some(whole(r#"{"a":1}"#)));
        assert!(!lines.is_within());
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        assert_eq!(lines(4, "1234\n"), [whole("1234")]);
        assert_eq!(lines(4, "12345\n1\n"), [OutputLine::TooLong { answers: None }, whole("1")]);
    }

    #[test]
    fn a_limit_that_changes_holds_for_the_line_that_has_begun() {
        let mut lines = OutputLines::default();
        assert_eq!(lines.next(&mut &b"1234"[..], 4), None);
        assert_eq!(lines.next(&mut &b"56\n"[..], 6), Some(whole("123456")));
        assert_eq!(lines.next(&mut &b"1234"[..], 4), None);
        assert_eq!(lines.next(&mut &b"\n"[..], 3), Some(OutputLine::TooLong { answers: None }));
    }

    #[test]
    fn of_a_line_that_is_too_long_the_call_is_found_wherever_its_id_is_written() {
        for (text, answers) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":8,"a":["id",9]}}"#, Some(7)),
            (r#"{"result":{"a":"\"id\":8,"},"jsonrpc":"2.0", "id" : 7 }"#, Some(7)),
            (r#"{"id":"7","error":{"code":1,"message":"m","jsonrpc":"1.0"},"jsonrpc" : "2.0"}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}"#, None),
            (r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7}}"#, None),
            (r#"{"jsonrpc":"2.0","id":{"id":7},"result":{}}"#, None),
            (r#"{"jsonrpc":"2.0","id":12345678901234567890123456,"result":{}}"#, None),
            (r#"["jsonrpc","2.0","id",7]"#, None),
            (r#"[{"jsonrpc":"2.0","id":7}]"#, None),
            (r#"{"jsonrpc":"2.0","i\u0064":7}"#, None),
            (r#"{"id":7,"result":{"jsonrpc":"2.0"}}"#, None),
            (r#"{"jsonrpc":2.0,"id":7,"result":{}}"#, None),
            (r#"{"jsonrpc":"1.0","id":7,"result":{}}"#, None),
            ("it is no JSON", None),
        ] {
            assert_eq!(lines(3, &format!("{text}\n")), [OutputLine::TooLong { answers }], "{text}");
        }
    }
}
