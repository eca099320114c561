//! The kind of a message, detected from its first bytes.

/// The kind of a JSON-RPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A response with a `result`.
    Result,
    /// A response with an `error`.
    Error,
    /// A request or a notification.
    Method,
}

/// Detects the kind of a message that arrives in pieces, without buffering it.
///
/// For a batch, this is the kind of the first message. The JSON is not validated; input that cannot be
/// interpreted has no kind.
#[derive(Clone, Debug, Default)]
pub struct KindSniffer {
    kind: Option<MessageKind>,
    depth: u32,
    /// The message is an element of an array.
    in_batch: bool,
    state: ScanState,
    /// The current key of the message itself. Only its first bytes are kept: no key of interest is longer.
    key: KeyPrefix,
}

/// The position of the next byte in the JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    /// Outside strings, where no key of the message itself is expected.
    #[default]
    Between,
    /// Between members of the message itself, before a key.
    BeforeKey,
    /// In a key of the message itself.
    Key,
    /// Behind the key of a member that determines the kind, unless its value is null.
    BeforeValue(MessageKind),
    /// In a key of the message itself: directly after a backslash (`KeyEscape`), then in the digits of a `\u`
    /// escape (`KeyCode`), of which `digits_left` are missing.
    KeyEscape,
    KeyCode {
        digits_left: u8,
        code: u16,
    },
    /// In a string that is no key of the message; `escaped` directly after a backslash.
    String {
        escaped: bool,
    },
}

/// The first bytes of a key; `len` exceeds the array's length if the key is longer.
#[derive(Clone, Copy, Debug, Default)]
struct KeyPrefix {
    bytes: [u8; 8],
    len: usize,
}

// === impl KindSniffer ===

impl KindSniffer {
    /// The kind of a complete message; `None` if no member of it determines the kind.
    pub fn sniff(message: &[u8]) -> Option<MessageKind> {
        let mut sniffer = Self::default();
        sniffer.feed(message);
        sniffer.kind
    }

    /// The kind of the message; `None` until the bytes so far determine it.
    pub fn kind(&self) -> Option<MessageKind> {
        self.kind
    }

    /// Reads the next piece of the message.
    pub fn feed(&mut self, piece: &[u8]) {
        let mut at = 0;
        while at < piece.len() && self.kind.is_none() {
            if let ScanState::String { escaped: false } = self.state {
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
        self.state = match (self.state, byte) {
            (ScanState::String { escaped: true }, _) => ScanState::String { escaped: false },
            (ScanState::String { escaped: false }, b'\\') => ScanState::String { escaped: true },
            (ScanState::String { escaped: false }, b'"') => ScanState::Between,
            (ScanState::String { escaped: false }, _) => self.state,
            (ScanState::Key, b'"') => match self.key.get() {
                Some(b"method") => ScanState::BeforeValue(MessageKind::Method),
                Some(b"result") => ScanState::BeforeValue(MessageKind::Result),
                Some(b"error") => ScanState::BeforeValue(MessageKind::Error),
                _ => ScanState::Between,
            },
            (ScanState::BeforeValue(_), b':' | b' ' | b'\t' | b'\n' | b'\r') => self.state,
            // Some servers write all possible members, with null for those that do not apply.
            (ScanState::BeforeValue(MessageKind::Method | MessageKind::Error), b'n') => ScanState::Between,
            (ScanState::BeforeValue(kind), _) => {
                self.kind = Some(kind);
                ScanState::Between
            }
            (ScanState::Key, b'\\') => ScanState::KeyEscape,
            (ScanState::KeyEscape, b'u') => ScanState::KeyCode { digits_left: 4, code: 0 },
            // No key of interest contains a character that needs such an escape.
            (ScanState::KeyEscape, _) => {
                self.key.push(0);
                ScanState::Key
            }
            (ScanState::KeyCode { digits_left, code }, _) => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                let code = code << 4 | digit as u16;
                match digits_left {
                    1 => {
                        self.key.push(u8::try_from(code).unwrap_or(0));
                        ScanState::Key
                    }
                    _ => ScanState::KeyCode { digits_left: digits_left - 1, code },
                }
            }
            (ScanState::Key, _) => {
                self.key.push(byte);
                ScanState::Key
            }
            (ScanState::BeforeKey, b'"') => {
                self.key = KeyPrefix::default();
                ScanState::Key
            }
            (ScanState::Between, b'"') => ScanState::String { escaped: false },
            (ScanState::Between | ScanState::BeforeKey, b'{' | b'[') => {
                self.in_batch |= self.depth == 0 && byte == b'[';
                self.depth = self.depth.saturating_add(1);
                if byte == b'{' && self.is_top_level() { ScanState::BeforeKey } else { ScanState::Between }
            }
            (ScanState::Between | ScanState::BeforeKey, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                ScanState::Between
            }
            (ScanState::Between, b',') if self.is_top_level() => ScanState::BeforeKey,
            (state @ (ScanState::Between | ScanState::BeforeKey), _) => state,
        };
    }

    /// Whether the current members are the message's own.
    fn is_top_level(&self) -> bool {
        self.depth == if self.in_batch { 2 } else { 1 }
    }
}

// === impl KeyPrefix ===

impl KeyPrefix {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
        }
        self.len = (self.len + 1).min(self.bytes.len() + 1);
    }

    /// The key, unless it is longer than the array.
    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_counts_however_it_is_spelled_and_not_if_it_is_null() {
        assert_eq!(KindSniffer::sniff(br#"{"\u0069d":1,"r\u0065sul\u0074":{}}"#), Some(MessageKind::Result));
        assert_eq!(
            KindSniffer::sniff(br#"{"method":null,"error" : null,"result":{}}"#),
            Some(MessageKind::Result)
        );
        assert_eq!(KindSniffer::sniff(br#"{"\nmethod":1,"\u0101error":0,"x\"error":0}"#), None);
    }

    #[test]
    fn the_kind_is_detected_from_top_level_members_in_any_order() {
        for (message, gist) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Some(MessageKind::Result)),
            (r#"{"result":{"method":1},"jsonrpc":"2.0","id":1}"#, Some(MessageKind::Result)),
            (r#"{ "id" : "result" , "error" : {} }"#, Some(MessageKind::Error)),
            (r#"{"jsonrpc":"2.0","method":"a","params":{"result":1}}"#, Some(MessageKind::Method)),
            (r#"{"params":{"result":[{"error":1}],"x":"\"}{"},"method":"a"}"#, Some(MessageKind::Method)),
            (r#"{"x":"result","method":"a"}"#, Some(MessageKind::Method)),
            (r#"{"a\\":1,"\"error":2,"results":3,"id":4,"result":5}"#, Some(MessageKind::Result)),
            (r#"[{"jsonrpc":"2.0","id":1,"error":{}}]"#, Some(MessageKind::Error)),
            (r#"[[{"result":1}]]"#, None),
            (r#"{"id":1}"#, None),
            ("", None),
            ("result", None),
        ] {
            assert_eq!(KindSniffer::sniff(message.as_bytes()), gist, "{message}");
        }
    }
}
