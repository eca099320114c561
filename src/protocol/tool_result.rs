//! What the result of a `tools/call` says of the tool.

use super::{splice::Object, words::shorten};
use bytes::Bytes;
use serde::Deserialize;

/// Whether the result says that the tool failed: `isError: true`.
pub fn is_error(result: &Bytes) -> bool {
    Object::read(result).ok().and_then(|object| object.get("isError")).is_some_and(|value| value == "true")
}

/// The first text of the result's content, shortened.
pub fn words(result: &Bytes) -> Option<String> {
    let Content { content } = serde_json::from_slice(result).ok()?;
    content.into_iter().find_map(|block| block.text.filter(|text| !text.is_empty())).map(shorten)
}

#[derive(Deserialize)]
struct Content {
    content: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    text: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_failed_says_so_and_why() {
        let result = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let failed = result(
            r#"{"content":[{"type":"image","data":""},{"type":"text","text":"no disk"}],"isError":true}"#,
        );
        assert!(is_error(&failed));
        assert_eq!(words(&failed).as_deref(), Some("no disk"));
        for good in [r#"{"content":[]}"#, r#"{"content":[],"isError":false}"#, r#"{"x":{"isError":true}}"#] {
            assert!(!is_error(&result(good)), "{good}");
        }
        assert_eq!(words(&result(r#"{"content":[]}"#)), None);
        assert_eq!(words(&result(r#"{"isError":true}"#)), None);
    }
}
