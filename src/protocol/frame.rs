//! One JSON-RPC message, indexed but not rebuilt.
//!
//! A [`Frame`] keeps the bytes the peer sent and remembers where the parts we route by begin and
//! end. Members we have never heard of therefore reach the other side exactly as they were sent.

use super::{Id, Method};
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// One JSON-RPC message as received.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Bytes,
    kind: Kind,
}

/// Which of the four JSON-RPC shapes a frame has. All parts share the frame's allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sender named its request and expects an answer.
    Request { id: Id, method: Method, params: Option<Bytes> },
    /// The sender expects no answer.
    Notification { method: Method, params: Option<Bytes> },
    /// An answer that carries a result.
    Success { id: Id, result: Bytes },
    /// An answer that carries an error; `id` is `None` where the peer could not read ours.
    Failure { id: Option<Id>, error: Bytes },
}

/// Why some bytes are not a JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("not valid JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// `id` is the message's own, where it could be read.
    #[error("neither a request, a notification nor a response")]
    Shape { id: Option<Id> },
    #[error("`id` must be a string or a number")]
    Id,
    #[error("nested deeper than {limit} levels")]
    Depth { limit: usize },
}

// === impl Frame ===

impl Frame {
    /// Indexes one message.
    ///
    /// # Errors
    /// [`FrameError`] says what is wrong with the bytes. Nesting is not bounded here; see
    /// [`check_depth`].
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        // An array would be read as the members in their order, and nobody after us reads it so.
        if bytes.trim_ascii_start().starts_with(b"[") {
            let syntax: Result<&RawValue, _> = serde_json::from_slice(&bytes);
            return Err(syntax.map_or_else(FrameError::Syntax, |_| FrameError::Shape { id: None }));
        }
        let outline: Outline<'_> = serde_json::from_slice(&bytes).map_err(FrameError::Syntax)?;
        let span = |raw: &RawValue| bytes.slice_ref(raw.get().as_bytes());
        let id = |raw: &RawValue| Id::from_token(span(raw)).ok_or(FrameError::Id);
        let kind = match outline {
            Outline { method: Some(method), id: None, params, result: None, error: None } => {
                Kind::Notification { method: method.into(), params: params.map(span) }
            }
            Outline { method: Some(method), id: Some(raw), params, result: None, error: None } => {
                Kind::Request { id: id(raw)?, method: method.into(), params: params.map(span) }
            }
            Outline { method: None, id: Some(raw), result: Some(result), error: None, .. } => {
                Kind::Success { id: id(raw)?, result: span(result) }
            }
            Outline { method: None, id: raw, result: None, error: Some(error), .. } => Kind::Failure {
                id: raw.filter(|raw| raw.get() != "null").map(id).transpose()?,
                error: span(error),
            },
            Outline { id: raw, .. } => {
                return Err(FrameError::Shape { id: raw.and_then(|raw| Id::from_token(span(raw))) });
            }
        };
        Ok(Self { bytes, kind })
    }

    /// The message exactly as the peer sent it.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }
}

/// Refuses JSON nested deeper than `limit`, without recursion.
///
/// Indexing a frame does not recurse, but later readers of a part might; this bounds them all.
///
/// # Errors
/// [`FrameError::Depth`].
pub fn check_depth(json: &[u8], limit: usize) -> Result<(), FrameError> {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return Err(FrameError::Depth { limit });
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(json, at),
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The index of the quote that ends the string opened at `open`, or the last index there is.
fn end_of_string(json: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(step) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += step;
        if json[at] == b'"' {
            return at;
        }
        at += 2;
    }
    json.len()
}

/// The message on one line: line breaks between tokens become spaces.
///
/// JSON strings cannot hold a raw line break, so none is touched. Clients read a response, and an
/// event stream's `data:`, line by line (`WIRE`: split data fails real ones).
pub fn on_one_line(json: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &json).is_none() {
        return json;
    }
    let mut line = Vec::from(json);
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.into()
}

/// The members we route by. Everything else stays untouched in the frame's bytes.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Name<'a>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// A borrowed string: plain `Option<Cow<str>>` would always copy.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl From<Name<'_>> for Method {
    fn from(name: Name<'_>) -> Self {
        name.0.into()
    }
}

/// Keeps an explicit `null` apart from a missing member.
fn present<'de, D: Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Frame, FrameError> {
        Frame::parse(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn unknown_members_and_long_numbers_survive() {
        let text = r#"{ "jsonrpc":"2.0","id":9007199254740993 ,"x-new":[1.0e400], "method":"a/b","params":{"k" : 1}}"#;
        let frame = parse(text).expect("valid");
        assert_eq!(frame.as_bytes(), text.as_bytes());
        let Kind::Request { id, params, .. } = frame.kind() else { panic!("a request") };
        assert_eq!(id.as_bytes(), "9007199254740993");
        assert_eq!(params.as_deref(), Some(&br#"{"k" : 1}"#[..]));
    }

    #[test]
    fn parts_share_the_frames_allocation() {
        let frame = parse(r#"{"id":"x","result":{"a":1}}"#).expect("valid");
        let Kind::Success { result, .. } = frame.kind() else { panic!("a success") };
        let whole = frame.as_bytes().as_ptr_range();
        assert!(whole.contains(&result.as_ptr()));
    }

    #[test]
    fn null_id_is_not_a_notification() {
        assert!(matches!(parse(r#"{"id":null,"method":"m"}"#), Err(FrameError::Id)));
    }

    #[test]
    fn null_result_is_a_success() {
        let frame = parse(r#"{"id":1,"result":null}"#).expect("valid");
        assert!(matches!(frame.kind(), Kind::Success { .. }));
    }

    #[test]
    fn an_array_is_no_message() {
        for text in [r#"[1,"tools/call",{}]"#, r#" [1,"m"]"#, "[]"] {
            assert!(matches!(parse(text), Err(FrameError::Shape { id: None })), "{text}");
        }
        assert!(matches!(parse("[1,"), Err(FrameError::Syntax(_))));
    }

    #[test]
    fn repeated_method_is_refused() {
        assert!(matches!(parse(r#"{"id":1,"method":"a","method":"b"}"#), Err(FrameError::Syntax(_))));
    }

    #[test]
    fn a_shapeless_message_still_tells_its_id() {
        let Err(FrameError::Shape { id: Some(id) }) = parse(r#"{"id":7}"#) else { panic!("shapeless") };
        assert_eq!(id.as_bytes(), "7");
    }

    #[test]
    fn depth_counts_brackets_outside_strings_only() {
        assert!(check_depth(br#"{"a":["[[[\"[["]}"#, 2).is_ok());
        assert!(matches!(check_depth(b"[[[]]]", 2), Err(FrameError::Depth { limit: 2 })));
        assert!(check_depth(b"[[],[],[]]", 2).is_ok());
        assert!(check_depth(br#"["unterminated \"#, 2).is_ok());
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        let json = on_one_line(Bytes::from_static(b"{\r\n  \"a\": \"x\\n\"\n}"));
        assert_eq!(json, &b"{    \"a\": \"x\\n\" }"[..]);
    }
}
