//! What a message is, told from its first bytes.

/// What a JSON-RPC message is, as far as its sender is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gist {
    /// A response with a `result`.
    Result,
    /// A response with an `error`.
    Error,
    /// A request or a notification.
    Method,
}

/// Reads one message in pieces, until it is clear what it is.
///
/// Of a batch it tells what the first message is. It does not judge whether the JSON is valid:
/// what it cannot make sense of is nothing.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    gist: Option<Gist>,
    depth: u32,
    /// The message is an element of an array.
    in_batch: bool,
    place: Place,
    /// The beginning of a key of the message itself; longer ones are none we look for.
    key: Text,
}

/// Where in the JSON the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Between,
    /// Between members of the message itself, before a key.
    BeforeKey,
    Key,
    /// Behind the key of a member that tells, if it is not null.
    BeforeValue(Gist),
    /// In such a key, after a backslash; then in the digits of `\u`, of which so many are still to come.
    KeyEscape,
    KeyCode {
        left: u8,
        code: u16,
    },
    /// In a string that is no key of the message. The flag: after a backslash.
    String {
        escaped: bool,
    },
}

/// The beginning of a text, and whether there was more of it than fits.
#[derive(Clone, Copy, Debug, Default)]
struct Text {
    bytes: [u8; 8],
    len: usize,
}

// === impl Glance ===

impl Glance {
    /// What a whole message is.
    pub fn of(message: &[u8]) -> Option<Gist> {
        let mut glance = Self::default();
        glance.see(message);
        glance.gist
    }

    /// What the message is, as far as it has been seen.
    pub fn gist(&self) -> Option<Gist> {
        self.gist
    }

    /// Takes the next piece of the message.
    pub fn see(&mut self, piece: &[u8]) {
        let mut at = 0;
        while at < piece.len() && self.gist.is_none() {
            if let Place::String { escaped: false } = self.place {
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
        self.place = match (self.place, byte) {
            (Place::String { escaped: true }, _) => Place::String { escaped: false },
            (Place::String { escaped: false }, b'\\') => Place::String { escaped: true },
            (Place::String { escaped: false }, b'"') => Place::Between,
            (Place::String { escaped: false }, _) => self.place,
            (Place::Key, b'"') => match self.key.get() {
                Some(b"method") => Place::BeforeValue(Gist::Method),
                Some(b"result") => Place::BeforeValue(Gist::Result),
                Some(b"error") => Place::BeforeValue(Gist::Error),
                _ => Place::Between,
            },
            (Place::BeforeValue(_), b':' | b' ' | b'\t' | b'\n' | b'\r') => self.place,
            // Some servers write all members there are, and null where one is not meant.
            (Place::BeforeValue(Gist::Method | Gist::Error), b'n') => Place::Between,
            (Place::BeforeValue(gist), _) => {
                self.gist = Some(gist);
                Place::Between
            }
            (Place::Key, b'\\') => Place::KeyEscape,
            (Place::KeyEscape, b'u') => Place::KeyCode { left: 4, code: 0 },
            // No key we look for has in it what else is written so.
            (Place::KeyEscape, _) => {
                self.key.push(0);
                Place::Key
            }
            (Place::KeyCode { left, code }, _) => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                let code = code << 4 | digit as u16;
                match left {
                    1 => {
                        self.key.push(u8::try_from(code).unwrap_or(0));
                        Place::Key
                    }
                    _ => Place::KeyCode { left: left - 1, code },
                }
            }
            (Place::Key, _) => {
                self.key.push(byte);
                Place::Key
            }
            (Place::BeforeKey, b'"') => {
                self.key = Text::default();
                Place::Key
            }
            (Place::Between, b'"') => Place::String { escaped: false },
            (Place::Between | Place::BeforeKey, b'{' | b'[') => {
                self.in_batch |= self.depth == 0 && byte == b'[';
                self.depth = self.depth.saturating_add(1);
                if byte == b'{' && self.is_top() { Place::BeforeKey } else { Place::Between }
            }
            (Place::Between | Place::BeforeKey, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                Place::Between
            }
            (Place::Between, b',') if self.is_top() => Place::BeforeKey,
            (place @ (Place::Between | Place::BeforeKey), _) => place,
        };
    }

    /// Whether the members here are the message's own.
    fn is_top(&self) -> bool {
        self.depth == if self.in_batch { 2 } else { 1 }
    }
}

// === impl Text ===

impl Text {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
        }
        self.len = (self.len + 1).min(self.bytes.len() + 1);
    }

    /// The text, unless it was longer than fits.
    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_counts_however_it_is_spelled_and_not_if_it_is_null() {
        assert_eq!(Glance::of(br#"{"\u0069d":1,"r\u0065sul\u0074":{}}"#), Some(Gist::Result));
        assert_eq!(Glance::of(br#"{"method":null,"error" : null,"result":{}}"#), Some(Gist::Result));
        assert_eq!(Glance::of(br#"{"\nmethod":1,"\u0101error":0,"x\"error":0}"#), None);
    }

    #[test]
    fn a_message_is_told_by_its_own_members_in_any_order() {
        for (message, gist) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Some(Gist::Result)),
            (r#"{"result":{"method":1},"jsonrpc":"2.0","id":1}"#, Some(Gist::Result)),
            (r#"{ "id" : "result" , "error" : {} }"#, Some(Gist::Error)),
            (r#"{"jsonrpc":"2.0","method":"a","params":{"result":1}}"#, Some(Gist::Method)),
            (r#"{"params":{"result":[{"error":1}],"x":"\"}{"},"method":"a"}"#, Some(Gist::Method)),
            (r#"{"x":"result","method":"a"}"#, Some(Gist::Method)),
            (r#"{"a\\":1,"\"error":2,"results":3,"id":4,"result":5}"#, Some(Gist::Result)),
            (r#"[{"jsonrpc":"2.0","id":1,"error":{}}]"#, Some(Gist::Error)),
            (r#"[[{"result":1}]]"#, None),
            (r#"{"id":1}"#, None),
            ("", None),
            ("result", None),
        ] {
            assert_eq!(Glance::of(message.as_bytes()), gist, "{message}");
        }
    }
}
