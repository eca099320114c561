//! The parts of a `tools/call` result that the proxy reads.

use super::{
    splice::{JsonObject, array_items},
    status_message::truncate,
};
use bytes::Bytes;

/// Whether a `tools/call` result reports that the tool failed: `isError: true`.
pub fn is_error(result: &Bytes) -> bool {
    JsonObject::read(result)
        .ok()
        .and_then(|object| object.get("isError"))
        .is_some_and(|value| value == "true")
}

/// Whether a message, or a piece of one, contains a member `isError` that is true. A text search instead of
/// parsing, because the access log must cost nothing for relayed bytes; within a string the key would have
/// escaped quotes.
pub fn contains_error_flag(message: &[u8]) -> bool {
    const KEY: &[u8] = br#""isError""#;
    memchr::memmem::find_iter(message, KEY).any(|at| {
        let value = message[at + KEY.len()..].trim_ascii_start().strip_prefix(b":");
        value.is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
    })
}

/// The first non-blank text of a result's `content`, truncated to the size of a status message. Invalid
/// content is ignored.
pub fn first_text(result: &Bytes) -> Option<String> {
    let content = JsonObject::read(result).ok()?.get("content")?;
    array_items(&content)?.iter().find_map(|block| {
        let text = JsonObject::read(block).ok()?.string("text")?;
        (!text.trim().is_empty()).then(|| truncate(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_error_sets_the_status_message() {
        let result = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let failed = result(
            r#"{"content":[{"type":"image","data":""},{"type":"text","text":"no disk"}],"isError":true}"#,
        );
        assert!(is_error(&failed));
        assert_eq!(first_text(&failed).as_deref(), Some("no disk"));
        assert!(contains_error_flag(&failed) && contains_error_flag(b"{\"isError\" :\n true}"));
        for good in [r#"{"text":"{\"isError\":true}"}"#, r#"{"isError":false}"#, r#""isError""#, "true"] {
            assert!(!contains_error_flag(good.as_bytes()), "{good}");
        }
        for good in [r#"{"content":[]}"#, r#"{"content":[],"isError":false}"#, r#"{"x":{"isError":true}}"#] {
            assert!(!is_error(&result(good)), "{good}");
        }
        let odd = result(r#"{"content":[5,{"text":5},{"text":" "},{"text":"no disk"}]}"#);
        assert_eq!(first_text(&odd).as_deref(), Some("no disk"));
        assert_eq!(first_text(&result(r#"{"content":[]}"#)), None);
        assert_eq!(first_text(&result(r#"{"isError":true}"#)), None);
    }
}
