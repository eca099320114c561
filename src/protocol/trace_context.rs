//! The trace of a message, as defined by W3C Trace Context: `traceparent` and `tracestate`.
//!
//! A message carries both unprefixed in `params._meta` (2026-07-28, *Base Protocol, `_meta`*; SEP-414), a
//! request over HTTP also in headers of these names, with the same values.

use super::{
    frame::Frame,
    splice::{BytesPatch, JsonObject, ObjectEdit},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::{fmt, sync::Arc};

/// A span of a trace, as one side sends it to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace id, never all zeros.
    pub trace: [u8; 16],
    /// The id of the span in the trace, never all zeros.
    pub span: [u8; 8],
    /// The known flags ([`SAMPLED`], [`RANDOM`]).
    pub flags: u8,
    /// The `tracestate` of other vendors, as it was received.
    pub state: Option<Arc<str>>,
}

/// The name of `traceparent`, in `_meta` and as a header.
pub const TRACEPARENT: &str = "traceparent";
/// The name of `tracestate`, in `_meta` and as a header.
pub const TRACESTATE: &str = "tracestate";

/// The flag of a trace that its sender records.
pub const SAMPLED: u8 = 1;
/// The flag of a trace with a random id (Trace Context, level 2).
pub const RANDOM: u8 = 2;

/// The maximum length of a forwarded `tracestate`, in characters; a longer one is dropped (Trace Context,
/// 3.3.1.5).
pub const MAX_STATE_CHARS: usize = 512;

const PARENT_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
const STATE_HEADER: HeaderName = HeaderName::from_static(TRACESTATE);

// === impl TraceContext ===

impl TraceContext {
    /// Parses a `traceparent` (Trace Context, 3.2). Of a later version, the part that is known is read.
    /// `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let [version] = parse_hex(parts.next()?)?;
        let (trace, span, [flags]) =
            (parse_hex(parts.next()?)?, parse_hex(parts.next()?)?, parse_hex(parts.next()?)?);
        let is_whole = parts.next().is_none()
            && match version {
                0 => rest.is_empty(),
                0xff => false,
                _ => rest.is_empty() || rest.starts_with('-'),
            };
        let has_ids = trace != [0; 16] && span != [0; 8];
        (is_whole && has_ids).then_some(Self { trace, span, flags: flags & (SAMPLED | RANDOM), state: None })
    }

    /// Reads the context of a message from its `_meta`; `None` without a valid `traceparent`.
    pub fn from_meta(meta: &JsonObject) -> Option<Self> {
        let parent = Self::parse(&meta.string(TRACEPARENT)?)?;
        Some(parent.with_state(meta.string(TRACESTATE).as_deref()))
    }

    /// Reads the context of a request from its headers; `None` without a valid `traceparent`. A repeated
    /// `traceparent` is ignored, because it is ambiguous.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(PARENT_HEADER).iter();
        let parent = Self::parse(parents.next()?.to_str().ok()?)?;
        if parents.next().is_some() {
            return None;
        }
        let states: Option<Vec<_>> =
            headers.get_all(STATE_HEADER).iter().map(|line| line.to_str().ok()).collect();
        Some(parent.with_state(states.filter(|all| !all.is_empty()).map(|all| all.join(",")).as_deref()))
    }

    /// The context with this `tracestate`; without one if it is too long or not visible ASCII.
    fn with_state(self, state: Option<&str>) -> Self {
        let is_valid = |text: &&str| {
            !text.is_empty()
                && text.len() <= MAX_STATE_CHARS
                && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        };
        Self { state: state.filter(is_valid).map(Arc::from), ..self }
    }

    /// The same trace with another span id.
    pub fn with_span(&self, span: [u8; 8]) -> Self {
        Self { span, ..self.clone() }
    }

    /// Whether the sender records the trace ([`SAMPLED`]).
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Writes the context to `_meta`, in place of any context there.
    pub fn write_to_meta(&self, meta: &mut ObjectEdit<'_>) {
        meta.set(TRACEPARENT, format!("\"{self}\""));
        match &self.state {
            Some(state) => meta.set(TRACESTATE, quoted(state)),
            None => meta.remove(TRACESTATE),
        };
    }

    /// Builds a `_meta` object from these members (`"key":value`, raw JSON, separated by commas) and the
    /// context.
    pub fn meta_with(&self, members: &str) -> Bytes {
        let mut meta =
            format!(r#"{{{members}{}"{TRACEPARENT}":"{self}""#, if members.is_empty() { "" } else { "," });
        if let Some(state) = &self.state {
            meta.push_str(&format!(r#","{TRACESTATE}":{}"#, quoted(state)));
        }
        meta.push('}');
        meta.into()
    }

    /// Returns the request or notification with the context in its `_meta`. `None` if its `params` or its
    /// `_meta` is no object; the message is then sent unchanged.
    pub fn inject(&self, message: &Frame) -> Option<Bytes> {
        let params = message.params()?;
        let object = params.object()?;
        let mut patch = BytesPatch::new(message.as_bytes().clone());
        match params.meta() {
            Some(meta) => {
                let mut edit = ObjectEdit::new(meta);
                self.write_to_meta(&mut edit);
                edit.add_to(&mut patch);
            }
            None if object.contains("_meta") => return None,
            None => {
                let mut edit = ObjectEdit::new(object);
                edit.set("_meta", self.meta_with(""));
                edit.add_to(&mut patch);
            }
        }
        Some(patch.apply())
    }

    /// Writes the context to headers, in place of any context there.
    pub fn write_to_headers(&self, headers: &mut HeaderMap) {
        let value = |text: &str| HeaderValue::from_str(text).expect("it is visible ASCII");
        headers.insert(PARENT_HEADER, value(&self.to_string()));
        match &self.state {
            Some(state) => drop(headers.insert(STATE_HEADER, value(state))),
            None => drop(headers.remove(STATE_HEADER)),
        }
    }
}

impl fmt::Display for TraceContext {
    /// The `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is written to memory")
}

/// Parses `N` bytes in lower-case hexadecimal digits.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context() -> TraceContext {
        TraceContext::parse(TEXT).expect("it is the specification's own")
    }

    #[test]
    fn a_parent_is_written_as_it_was_read() {
        assert_eq!(context().to_string(), TEXT);
        assert!(context().is_sampled());
        // Unknown flags are not forwarded (Trace Context, 3.2.2.5).
        let unknown = TraceContext::parse(&TEXT.replace("-01", "-fe")).expect("a parent");
        assert_eq!(unknown.to_string(), TEXT.replace("-01", "-02"));
        assert!(!unknown.is_sampled());
    }

    #[test]
    fn what_is_no_parent_is_none() {
        for text in [
            "",
            "00",
            &TEXT[..54],
            &format!("{TEXT}-"),
            &format!("{TEXT}0"),
            &TEXT.replace("00-", "ff-"),
            &TEXT.replace("4bf9", "4BF9"),
            &TEXT.replace("4bf9", "4bg9"),
            &TEXT.replace("00f067aa0ba902b7", "0000000000000000"),
            &TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &TEXT.replace('-', "_"),
            &"ü".repeat(28),
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
        let later = TEXT.replace("00-4", "cc-4");
        assert!(TraceContext::parse(&later).is_some());
        assert!(TraceContext::parse(&format!("{later}-what-will-be")).is_some());
        assert_eq!(TraceContext::parse(&format!("{later}.what-will-not")), None);
    }

    #[test]
    fn nothing_but_its_members_changes_in_a_message() {
        let state = context().with_state(Some("rojo=\"1\""));
        let cases = [
            (
                r#"{ "id":1, "method":"tools/call","params":{"name":"t", "_meta":{ "a":1.0 , "traceparent" : "old"} } }"#,
                Some(
                    r#"{ "id":1, "method":"tools/call","params":{"name":"t", "_meta":{ "a":1.0 , "traceparent" : PARENT,"tracestate":STATE} } }"#,
                ),
            ),
            (
                r#"{"id":1,"method":"ping","params":{}}"#,
                Some(
                    r#"{"id":1,"method":"ping","params":{"_meta":{"traceparent":PARENT,"tracestate":STATE}}}"#,
                ),
            ),
            (r#"{"id":1,"method":"ping"}"#, None),
            (r#"{"id":1,"method":"ping","params":{"_meta":7}}"#, None),
        ];
        for (before, after) in cases {
            let frame = Frame::parse(Bytes::from_static(before.as_bytes())).expect("a message");
            let expected = after.map(|text| {
                text.replace("PARENT", &format!("\"{TEXT}\"")).replace("STATE", r#""rojo=\"1\"""#)
            });
            assert_eq!(state.inject(&frame), expected.map(Bytes::from), "{before}");
        }
    }

    #[test]
    fn a_foreign_tracestate_is_removed_with_its_parent() {
        let message = r#"{"id":1,"method":"m","params":{"_meta":{"tracestate":"a=1"}}}"#;
        let frame = Frame::parse(Bytes::from_static(message.as_bytes())).expect("a message");
        let injected = context().inject(&frame).expect("it has params");
        assert_eq!(
            injected,
            format!(r#"{{"id":1,"method":"m","params":{{"_meta":{{"traceparent":"{TEXT}"}}}}}}"#)
        );
        let mut headers = HeaderMap::from_iter([(STATE_HEADER, HeaderValue::from_static("a=1"))]);
        context().write_to_headers(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[PARENT_HEADER], TEXT);
    }

    #[test]
    fn headers_are_read_as_meta_is() {
        let headers = |pairs: &[(HeaderName, &str)]| -> HeaderMap {
            pairs.iter().map(|(name, text)| (name.clone(), HeaderValue::from_str(text).unwrap())).collect()
        };
        let read = TraceContext::from_headers(&headers(&[
            (PARENT_HEADER, TEXT),
            (STATE_HEADER, "a=1"),
            (STATE_HEADER, "b=2"),
        ]));
        assert_eq!(read.expect("a parent").state.as_deref(), Some("a=1,b=2"));
        assert_eq!(
            TraceContext::from_headers(&headers(&[(PARENT_HEADER, TEXT), (PARENT_HEADER, TEXT)])),
            None
        );
        let long = "x".repeat(MAX_STATE_CHARS + 1);
        let read = TraceContext::from_headers(&headers(&[(PARENT_HEADER, TEXT), (STATE_HEADER, &long)]));
        assert_eq!(read, Some(context()), "the parent holds without it");
    }
}
