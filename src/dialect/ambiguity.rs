//! Detects messages of a legacy client that its server may parse differently than the proxy.
//!
//! A legacy client's messages are relayed byte for byte, and its server may accept more than the proxy, read
//! the other of two members of one name, or ignore the case of names. Where a decision depends on the content
//! of a message, the message must therefore be unambiguous, not only readable to the proxy.

use crate::protocol::{
    ErrorObject, Frame, FrameError, Kind, Method, Payload, code, frame::is_like, splice::JsonObject,
};
use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// The reason why a message is ambiguous.
#[derive(Debug, thiserror::Error)]
pub enum MessageAmbiguity {
    #[error("the body is not a readable message: {0}")]
    Unreadable(#[source] FrameError),
    /// A member on which a decision depends occurs twice, or in a spelling of another case that some parsers
    /// accept.
    #[error("`{0}` occurs twice, or differs in case")]
    Member(&'static str),
    #[error("`params.name` must be a string")]
    NoName,
    #[error("tools/call must have an `id`")]
    NoId,
}

/// Collects the values of `method` in a JSON text, even if the text is cut off or repeats the member.
struct MethodCollector<'a>(&'a mut Vec<String>);

/// The maximum number of collected methods.
const MAX_METHODS: usize = 8;
/// The maximum length of a collected method, in characters.
const MAX_METHOD_CHARS: usize = 200;

/// Returns the methods in a body that contains no valid messages, separated by commas, for the log; empty if
/// none is found.
pub fn collect_methods(body: &[u8]) -> String {
    let mut methods = Vec::new();
    // A syntax error ends the search; the methods found before it are kept.
    let _ = MethodCollector(&mut methods).deserialize(&mut serde_json::Deserializer::from_slice(body));
    methods.join(",")
}

/// Returns the reason why it is unknown which tool a server would call for this message; `None` if it is
/// known. `target` is the tool that the message names, if it names exactly one.
pub(super) fn find_ambiguity(frame: &Frame, target: Option<&str>) -> Option<MessageAmbiguity> {
    if let Some(member) = frame.ambiguous_member() {
        return Some(MessageAmbiguity::Member(member));
    }
    match frame.kind() {
        Kind::Request { method: Method::ToolsCall, params, .. } => {
            let has_ambiguous_name =
                params.as_ref().and_then(Payload::object).is_some_and(has_ambiguous_tool_name);
            match target {
                _ if has_ambiguous_name => Some(MessageAmbiguity::Member("params.name")),
                None => Some(MessageAmbiguity::NoName),
                Some(_) => None,
            }
        }
        Kind::Notification { method: Method::ToolsCall, .. } => Some(MessageAmbiguity::NoId),
        Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => {
            None
        }
    }
}

/// Whether another parser might read the name of the tool from another member than `name`, or from a repeated
/// one.
fn has_ambiguous_tool_name(params: &JsonObject) -> bool {
    let mut candidates = params.members().map(|(key, _)| key).filter(|key| is_like(key, "name"));
    candidates.next().is_some_and(|key| key != "name") || candidates.next().is_some()
}

// === impl MessageAmbiguity ===

impl MessageAmbiguity {
    /// Builds the error to respond with. `reason` says which decision depends on the message.
    pub fn error(&self, reason: &str) -> ErrorObject {
        let code = match self {
            Self::Unreadable(FrameError::Syntax(_)) => code::PARSE_ERROR,
            Self::Unreadable(
                FrameError::Shape { .. }
                | FrameError::Member { .. }
                | FrameError::Id
                | FrameError::Depth { .. },
            )
            | Self::Member("id" | "method" | "params")
            | Self::NoId => code::INVALID_REQUEST,
            Self::Member(_) | Self::NoName => code::INVALID_PARAMS,
        };
        ErrorObject::new(code, format!("{self}; {reason}"))
    }
}

// === impl MethodCollector ===

impl<'de> DeserializeSeed<'de> for MethodCollector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MethodCollector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message or a batch of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<String>()? {
            if !is_like(&key, "method") {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let method: String = members.next_value()?;
            if self.0.len() < MAX_METHODS {
                self.0.push(method.chars().take(MAX_METHOD_CHARS).collect());
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        while messages.next_element_seed(MethodCollector(self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::legacy::LegacyPost, *};

    fn ambiguity_of(text: &str) -> Option<MessageAmbiguity> {
        LegacyPost::from_frame(&Frame::parse(text.to_owned().into()).expect("a message"))
            .ambiguity
            .map(|ambiguity| *ambiguity)
    }

    #[test]
    fn what_is_read_in_one_way_is_clear() {
        for clear in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","x":1,"x":2}}"#,
            r#"{"id":1,"m\u0065thod":"tools/call","params":{"n\u0061me":"a","arguments":{"name":1,"NAME":2}}}"#,
            r#"{"id":1,"method":"resources/read","params":{"name":1,"name":2}}"#,
            r#"{"id":1,"result":{}}"#,
        ] {
            assert!(ambiguity_of(clear).is_none(), "{clear}: {:?}", ambiguity_of(clear));
        }
    }

    #[test]
    fn a_tool_that_is_named_twice_or_not_at_all_is_ambiguous() {
        for params in [r#"{"name":"a","name":"b"}"#, r#"{"Name":"a"}"#, r#"{"name":"a","n\u0041me":"b"}"#] {
            let text = format!(r#"{{"id":1,"method":"tools/call","params":{params}}}"#);
            assert!(matches!(ambiguity_of(&text), Some(MessageAmbiguity::Member("params.name"))), "{params}");
        }
        for params in ["{}", "[]", r#"{"name":7}"#] {
            let text = format!(r#"{{"id":1,"method":"tools/call","params":{params}}}"#);
            assert!(matches!(ambiguity_of(&text), Some(MessageAmbiguity::NoName)), "{params}");
        }
        assert!(matches!(ambiguity_of(r#"{"method":"tools/call"}"#), Some(MessageAmbiguity::NoId)));
        assert!(matches!(
            ambiguity_of(r#"{"id":1,"method":"m","Params":{}}"#),
            Some(MessageAmbiguity::Member("params"))
        ));
    }

    #[test]
    fn methods_are_found_in_any_json_text() {
        for (body, found) in [
            (r#"{"id":null,"method":"a","params":{"method":"no"}}"#, "a"),
            (r#"[{"method":"a","METHOD":"b"},{"method":"c","x":NaN,"method":"d"}"#, "a,b,c"),
            (r#"{"method":7}"#, ""),
            ("nothing", ""),
        ] {
            assert_eq!(collect_methods(body.as_bytes()), found, "{body}");
        }
        let many = format!("[{}", r#"{"method":"m"},"#.repeat(20));
        assert_eq!(collect_methods(many.as_bytes()).split(',').count(), MAX_METHODS);
    }
}
