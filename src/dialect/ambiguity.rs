//! What a server may read otherwise than we do in the POST of a legacy client.
//!
//! What a legacy client sends is passed on byte for byte, and its server may be more lenient than we
//! are, or pick the other of two members of one name, or not care for the case of a name. Where
//! something depends on what a message asks for, it is therefore not enough that we can read it: it
//! must be read in one way alone.

use crate::protocol::{
    ErrorObject, Frame, FrameError, Kind, Method, Payload, code, frame::is_like, splice::JsonObject,
};
use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// Why it cannot be told what a server would read.
#[derive(Debug, thiserror::Error)]
pub enum MessageAmbiguity {
    #[error("the body holds no message that can be read: {0}")]
    Unreadable(#[source] FrameError),
    /// A member that decides is there twice, or is spelled in a case that some readers accept.
    #[error("`{0}` occurs twice, or in another case than it is defined in")]
    Member(&'static str),
    #[error("`params.name` must be a string")]
    NoName,
    #[error("tools/call must have an `id`")]
    NoId,
}

/// Collects the methods that some JSON names, also where it breaks off or repeats them.
struct MethodCollector<'a>(&'a mut Vec<String>);

/// How many methods are collected, and of each how many characters.
const SHOWN: usize = 8;
const SHOWN_OF_ONE: usize = 200;

/// The methods that a body names which holds no messages, for people; empty where it names none.
pub fn named_methods(body: &[u8]) -> String {
    let mut methods = Vec::new();
    // What was found before the end counts, whatever ended it.
    let _ = MethodCollector(&mut methods).deserialize(&mut serde_json::Deserializer::from_slice(body));
    methods.join(",")
}

/// Why it cannot be told which tool a server would call for this message; `Missing` where it can. `target` is the tool that
/// it names, where it names one alone.
pub(super) fn find(frame: &Frame, target: Option<&str>) -> Option<MessageAmbiguity> {
    if let Some(member) = frame.ambiguous_member() {
        return Some(MessageAmbiguity::Member(member));
    }
    match frame.kind() {
        Kind::Request { method: Method::ToolsCall, params, .. } => {
            let alike = params.as_ref().and_then(Payload::object).is_some_and(has_two_names);
            match target {
                _ if alike => Some(MessageAmbiguity::Member("params.name")),
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

/// Whether another reader might take the name of a tool from another member.
fn has_two_names(params: &JsonObject) -> bool {
    let mut alike = params.members().map(|(key, _)| key).filter(|key| is_like(key, "name"));
    alike.next().is_some_and(|key| key != "name") || alike.next().is_some()
}

// === impl Ambiguity ===

impl MessageAmbiguity {
    /// As it is answered. `why` says what depends on it.
    pub fn error(&self, why: &str) -> ErrorObject {
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
        ErrorObject::new(code, format!("{self}; {why}"))
    }
}

// === impl Named ===

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
            if self.0.len() < SHOWN {
                self.0.push(method.chars().take(SHOWN_OF_ONE).collect());
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

    fn of(text: &str) -> Option<MessageAmbiguity> {
        LegacyPost::of(&Frame::parse(text.to_owned().into()).expect("a message"))
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
            assert!(of(clear).is_none(), "{clear}: {:?}", of(clear));
        }
    }

    #[test]
    fn a_tool_that_is_named_twice_or_not_at_all_is_ambiguous() {
        for params in [r#"{"name":"a","name":"b"}"#, r#"{"Name":"a"}"#, r#"{"name":"a","n\u0041me":"b"}"#] {
            let text = format!(r#"{{"id":1,"method":"tools/call","params":{params}}}"#);
            assert!(matches!(of(&text), Some(MessageAmbiguity::Member("params.name"))), "{params}");
        }
        for params in ["{}", "[]", r#"{"name":7}"#] {
            let text = format!(r#"{{"id":1,"method":"tools/call","params":{params}}}"#);
            assert!(matches!(of(&text), Some(MessageAmbiguity::NoName)), "{params}");
        }
        assert!(matches!(of(r#"{"method":"tools/call"}"#), Some(MessageAmbiguity::NoId)));
        assert!(matches!(
            of(r#"{"id":1,"method":"m","Params":{}}"#),
            Some(MessageAmbiguity::Member("params"))
        ));
    }

    #[test]
    fn methods_are_found_in_whatever_names_them() {
        for (body, found) in [
            (r#"{"id":null,"method":"a","params":{"method":"no"}}"#, "a"),
            (r#"[{"method":"a","METHOD":"b"},{"method":"c","x":NaN,"method":"d"}"#, "a,b,c"),
            (r#"{"method":7}"#, ""),
            ("nothing", ""),
        ] {
            assert_eq!(named_methods(body.as_bytes()), found, "{body}");
        }
        let many = format!("[{}", r#"{"method":"m"},"#.repeat(20));
        assert_eq!(named_methods(many.as_bytes()).split(',').count(), SHOWN);
    }
}
