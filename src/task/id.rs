//! Task ids that cannot be guessed.

use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Identifies one task: 128 random bits in 32 hexadecimal digits.
///
/// The id is the only secret of an anonymous caller, so it must not be guessable (tasks extension, *Security
/// Considerations*).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct TaskId(Arc<str>);

/// The first 8 digits of a task id, for the log: they distinguish tasks, but do not give access to them.
#[derive(Clone, Copy, Debug)]
pub struct TaskTag<'a>(&'a TaskId);

/// Error: the text does not have the form of a task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task id is 32 lower-case hexadecimal digits")]
pub struct InvalidTaskId;

// === impl TaskId ===

impl TaskId {
    /// Creates an id from 128 random bits.
    pub fn from_entropy(entropy: [u8; 16]) -> Self {
        Self(format!("{:032x}", u128::from_be_bytes(entropy)).into())
    }

    /// Parses an id; `None` if the text is not 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_valid.then(|| Self(text.into()))
    }

    /// Returns the whole id, 32 hexadecimal digits; a secret of the caller, not for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the short form for the log.
    pub fn tag(&self) -> TaskTag<'_> {
        TaskTag(self)
    }

    /// Returns the 128 random bits of the id.
    pub fn entropy(&self) -> [u8; 16] {
        u128::from_str_radix(&self.0, 16).expect("an id is 32 hexadecimal digits").to_be_bytes()
    }
}

impl TaskTag<'_> {
    /// The length of a tag, in hexadecimal digits.
    pub const DIGITS: usize = 8;
}

impl TryFrom<String> for TaskId {
    type Error = InvalidTaskId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidTaskId)
    }
}

// `TaskId` has no `Display`, so that callers must choose between the secret id and its tag.
impl fmt::Display for TaskTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.0[..TaskTag::DIGITS])
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({}…)", self.tag())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_nothing_else_does() {
        let id = TaskId::from_entropy([7; 16]);
        assert_eq!(TaskId::parse(id.as_str()), Some(id));
        for other in ["", "7", "0707070707070707070707070707070G", "0707070707070707070707070707070A"] {
            assert_eq!(TaskId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn an_id_is_checked_when_it_is_read_from_json() {
        let id = TaskId::from_entropy([0xab; 16]);
        let json = serde_json::to_string(&id).expect("written");
        assert_eq!(json, r#""abababababababababababababababab""#);
        assert_eq!(serde_json::from_str::<TaskId>(&json).expect("read"), id);
        assert!(serde_json::from_str::<TaskId>(r#""../etc""#).is_err());
    }
}
