//! Request ids: exactly as a peer sent them, and our own on each hop.

use bytes::Bytes;
use std::fmt;

/// A JSON-RPC request id as the raw JSON token that was sent: a string with its quotes and
/// escapes, or a number with its spelling (`9007199254740993` and `1.0` are kept as they are).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

// === impl Id ===

impl Id {
    /// Takes a raw JSON token, or gives `None` where it is neither a string nor a number.
    pub fn from_token(token: Bytes) -> Option<Self> {
        matches!(token.first(), Some(b'"' | b'-' | b'0'..=b'9')).then_some(Self(token))
    }

    /// An id of our own.
    pub fn from_number(number: u64) -> Self {
        Self(Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes()))
    }

    /// The raw JSON token.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The same id in memory of its own, where it was a slice of a message.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The number, where it is one we could have minted with [`Id::from_number`].
    pub fn as_number(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }

    /// The number that an id or a token of ours came back as. We send numbers alone, but some servers
    /// hand them back as strings.
    pub fn came_back(&self) -> Option<u64> {
        let bare = self.0.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(&self.0);
        std::str::from_utf8(bare).ok()?.parse().ok()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strings_and_numbers_are_ids() {
        for good in ["0", "-1", "9007199254740993", "1.0", r#""x\n""#] {
            let id = Id::from_token(Bytes::copy_from_slice(good.as_bytes())).expect(good);
            assert_eq!(id.as_bytes(), good.as_bytes());
        }
        for bad in ["null", "true", "{}", "[]", ""] {
            assert_eq!(Id::from_token(Bytes::copy_from_slice(bad.as_bytes())), None, "{bad}");
        }
    }

    #[test]
    fn our_own_ids_come_back_as_numbers() {
        assert_eq!(Id::from_number(u64::MAX).as_number(), Some(u64::MAX));
        assert_eq!(Id::from_number(0).as_bytes(), "0");
        assert_eq!(Id::from_token(Bytes::from_static(b"\"7\"")).and_then(|id| id.as_number()), None);
    }
}
