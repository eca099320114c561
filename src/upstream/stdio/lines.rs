//! Splits standard output into lines.
//!
//! MCP over stdio has one message on a line (2025-11-25, *Transports, stdio*). A line above the limit is not
//! stored: it is scanned for the id of the call that it answers, so that only this call fails.

use bytes::Bytes;

use crate::protocol::RequestId;

/// Splits a byte stream into lines. Stores at most one line, and almost nothing of a line above the limit.
#[derive(Default)]
pub struct OutputLines {
    /// Start of a line that is incomplete.
    partial: Vec<u8>,
    /// Scanner of a line above the limit.
    outline: Option<ResponseOutline>,
}

/// A line of a process's standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    /// A complete line, never blank, without its line end, in an allocation of its own.
    Whole(Bytes),
    /// A line above the limit. `answers` is the id of the call that the line answers, if known.
    TooLong { answers: Option<u64> },
}

/// Incremental scanner of a JSON object, for the members that identify the call that the object answers.
///
/// Does not validate the JSON: parts that it cannot parse are ignored.
#[derive(Debug, Default)]
struct ResponseOutline {
    depth: u32,
    string_state: StringState,
    /// Whether the next string is a key of the object itself.
    expects_key: bool,
    key: ShortToken,
    /// Member whose value is being read, if it is tracked.
    tracked: Option<TrackedMember>,
    id: ShortToken,
    version: ShortToken,
    /// Whether there is a `method`: then the id is the sender's own.
    is_request: bool,
    /// Whether there is a `result` or an `error`.
    has_outcome: bool,
}

/// A member whose value is tracked.
#[derive(Clone, Copy, Debug)]
enum TrackedMember {
    Id,
    Version,
}

/// Whether the scanner is within a string.
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

/// A token, of which only the start is stored if it is long.
#[derive(Debug, Default)]
struct ShortToken {
    bytes: Vec<u8>,
    /// Whether the token is longer than the stored bytes.
    is_longer: bool,
}

/// Limit of a token's stored bytes: the proxy's ids are numbers of at most 20 digits.
const MAX_TOKEN_BYTES: usize = 24;

// === impl OutputLines ===

impl OutputLines {
    /// Takes the next complete line from `input`, and advances `input`. `None` means that all of `input` was
    /// consumed. `limit` is the limit of a line, in bytes.
    pub fn next(&mut self, input: &mut &[u8], limit: usize) -> Option<OutputLine> {
        while !input.is_empty() {
            let (piece, remaining, has_ended) = match memchr::memchr(b'\n', input) {
                Some(end) => (&input[..end], &input[end + 1..], true),
                None => (*input, &input[input.len()..], false),
            };
            *input = remaining;
            if let Some(line) = self.append(piece, has_ended, limit) {
                return Some(line);
            }
        }
        None
    }

    /// Whether the start of an incomplete line has been read.
    pub fn has_partial_line(&self) -> bool {
        self.outline.is_some() || !self.partial.trim_ascii().is_empty()
    }

    fn append(&mut self, piece: &[u8], has_ended: bool, limit: usize) -> Option<OutputLine> {
        if self.outline.is_none() && self.partial.len() + piece.len() > limit {
            let mut outline = ResponseOutline::default();
            outline.feed(&std::mem::take(&mut self.partial));
            self.outline = Some(outline);
        }
        if let Some(outline) = &mut self.outline {
            outline.feed(piece);
            if !has_ended {
                return None;
            }
            let call = outline.answered_call();
            self.outline = None;
            return Some(OutputLine::TooLong { answers: call });
        }
        if !has_ended {
            self.partial.extend_from_slice(piece);
            return None;
        }
        // A line is usually complete in what was read: copy it once, to its own size.
        if self.partial.is_empty() {
            let line = piece.trim_ascii();
            return (!line.is_empty()).then(|| OutputLine::Whole(Bytes::copy_from_slice(line)));
        }
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(piece);
        line.truncate(line.trim_ascii_end().len());
        // Leading white space would be kept with the line.
        let line = match line.trim_ascii_start() {
            trimmed if trimmed.len() < line.len() => Bytes::copy_from_slice(trimmed),
            _ => Bytes::from(line.into_boxed_slice()),
        };
        (!line.is_empty()).then_some(OutputLine::Whole(line))
    }
}

/// Id of the proxy's call that an invalid message answers, if known. Other output of a program may have an
/// `id` too, so the line must have a `result` or an `error` as well.
pub fn answered_call(line: &[u8]) -> Option<u64> {
    let mut outline = ResponseOutline::default();
    if line.first() == Some(&b'{') {
        outline.feed(line);
    }
    outline.answered_call().filter(|_| outline.has_outcome)
}

// === impl ResponseOutline ===

impl ResponseOutline {
    fn feed(&mut self, piece: &[u8]) {
        let mut index = 0;
        while index < piece.len() {
            // Skip long strings, most of such a line.
            if self.string_state == StringState::Value && self.tracked.is_none() {
                match memchr::memchr2(b'"', b'\\', &piece[index..]) {
                    Some(step) => index += step,
                    None => return,
                }
            }
            self.scan_byte(piece[index]);
            index += 1;
        }
    }

    fn scan_byte(&mut self, byte: u8) {
        match (self.string_state, byte) {
            (StringState::Escape { is_key: true }, _) => {
                // No tracked key needs an escape.
                self.key.is_longer = true;
                self.string_state = StringState::Key;
            }
            (StringState::Escape { is_key: false }, _) => self.string_state = StringState::Value,
            (StringState::Key, b'\\') => self.string_state = StringState::Escape { is_key: true },
            (StringState::Value, b'\\') => self.string_state = StringState::Escape { is_key: false },
            (StringState::Key, b'"') => {
                self.string_state = StringState::Outside;
                self.tracked = match () {
                    () if self.key.equals(b"id") => Some(TrackedMember::Id),
                    () if self.key.equals(b"jsonrpc") => Some(TrackedMember::Version),
                    () => None,
                };
                self.is_request |= self.key.equals(b"method");
                self.has_outcome |= self.key.equals(b"result") || self.key.equals(b"error");
                if let Some(value) = self.tracked_token() {
                    *value = ShortToken::default();
                }
            }
            (StringState::Key, _) => self.key.push(byte),
            (StringState::Value, b'"') => {
                self.string_state = StringState::Outside;
                self.push_value(byte);
            }
            (StringState::Value, _) => self.push_value(byte),
            (StringState::Outside, b'"') if self.expects_key => {
                self.expects_key = false;
                self.key = ShortToken::default();
                self.string_state = StringState::Key;
            }
            (StringState::Outside, b'"') => {
                self.string_state = StringState::Value;
                self.push_value(byte);
            }
            (StringState::Outside, b'{' | b'[') => {
                self.push_value(byte);
                self.depth += 1;
                self.expects_key = self.depth == 1 && byte == b'{';
            }
            (StringState::Outside, b'}' | b']') => {
                if self.depth <= 1 {
                    self.tracked = None;
                }
                self.depth = self.depth.saturating_sub(1);
            }
            (StringState::Outside, b',') if self.depth == 1 => {
                self.tracked = None;
                self.expects_key = true;
            }
            (StringState::Outside, b':' | b' ' | b'\t' | b'\r') => {}
            (StringState::Outside, _) => self.push_value(byte),
        }
    }

    /// Token of the tracked member whose value is being read; `None` if the value is not tracked.
    fn tracked_token(&mut self) -> Option<&mut ShortToken> {
        Some(match self.tracked? {
            TrackedMember::Id => &mut self.id,
            TrackedMember::Version => &mut self.version,
        })
    }

    fn push_value(&mut self, byte: u8) {
        if let Some(value) = self.tracked_token() {
            value.push(byte);
        }
    }

    /// Id of the proxy's call that the object answers; `None` for a request, or without `"jsonrpc":"2.0"`.
    fn answered_call(&self) -> Option<u64> {
        if self.is_request || self.id.is_longer || !self.version.equals(br#""2.0""#) {
            return None;
        }
        RequestId::from_token(Bytes::copy_from_slice(&self.id.bytes))?.echoed_number()
    }
}

// === impl ShortToken ===

impl ShortToken {
    fn push(&mut self, byte: u8) {
        match self.bytes.len() < MAX_TOKEN_BYTES {
            true => self.bytes.push(byte),
            false => self.is_longer = true,
        }
    }

    fn equals(&self, text: &[u8]) -> bool {
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
        assert!(lines.has_partial_line());
        assert_eq!(lines.next(&mut &b":1}\n"[..], 99), Some(whole(r#"{"a":1}"#)));
        assert!(!lines.has_partial_line());
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
    fn the_call_of_a_too_long_line_is_found_wherever_its_id_is() {
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
