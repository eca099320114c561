//! What a server may read otherwise than we do in the POST of a legacy client.
//!
//! What a legacy client sends is passed on byte for byte, and its server may be more lenient than we
//! are, or pick the other of two members of one name, or not care for the case of a name. Where
//! something depends on what a message asks for, it is therefore not enough that we can read it: it
//! must be read in one way alone.

use crate::protocol::{ErrorObject, Frame, FrameError, Kind, Method, Payload, code, splice::Object};
use bytes::Bytes;
use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// Why it cannot be told what a server would read.
#[derive(Debug, thiserror::Error)]
pub enum Ambiguity {
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
struct Named<'a>(&'a mut Vec<String>);

/// How many methods are collected, and of each how many characters.
const SHOWN: usize = 8;
const SHOWN_OF_ONE: usize = 200;

/// Why it cannot be told which tools a server would call for this body; `None` where it can. Linear in
/// the body's length.
pub fn ambiguity(body: &Bytes) -> Option<Ambiguity> {
    if !is_batch(body) {
        return of_message(body.clone());
    }
    match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(parts) => parts.into_iter().find_map(|part| of_message(body.slice_ref(part.get().as_bytes()))),
        Err(error) => Some(Ambiguity::Unreadable(FrameError::Syntax(error))),
    }
}

/// Whether a body is a batch (2025-03-26), or would be one.
pub fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"[")
}

/// The methods that a body names which holds no messages, for people; empty where it names none.
pub fn methods(body: &[u8]) -> String {
    let mut methods = Vec::new();
    // What was found before the end counts, whatever ended it.
    let _ = Named(&mut methods).deserialize(&mut serde_json::Deserializer::from_slice(body));
    methods.join(",")
}

fn of_message(bytes: Bytes) -> Option<Ambiguity> {
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) => return Some(Ambiguity::Unreadable(error)),
    };
    let message = Object::read(frame.as_bytes()).expect("a frame is an object");
    if let Some(member) = ambiguous(&message, &["id", "method", "params"]) {
        return Some(Ambiguity::Member(member));
    }
    let params = match frame.kind() {
        Kind::Request { method: Method::ToolsCall, params, .. } => params,
        Kind::Notification { method: Method::ToolsCall, .. } => return Some(Ambiguity::NoId),
        Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => {
            return None;
        }
    };
    let Some(params) = params.as_ref().and_then(Payload::object) else { return Some(Ambiguity::NoName) };
    match ambiguous(params, &["name"]) {
        Some(_) => Some(Ambiguity::Member("params.name")),
        None => params.string("name").is_none().then_some(Ambiguity::NoName),
    }
}

/// Which of these members another reader might take from another place of the object.
fn ambiguous(object: &Object, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| {
        let mut alike = object.members().filter(|(key, _)| is_like(key, name));
        alike.next().is_some_and(|(key, _)| key != *name) || alike.next().is_some()
    })
}

/// Whether a reader that does not care for case takes `key` for `name`. Go's also takes the two
/// letters beyond ASCII that fold to one within.
fn is_like(key: &str, name: &str) -> bool {
    key.eq_ignore_ascii_case(name)
        || !key.is_ascii() && key.to_lowercase().to_uppercase() == name.to_ascii_uppercase()
}

// === impl Ambiguity ===

impl Ambiguity {
    /// As it is answered. `why` says what depends on it.
    pub fn error(&self, why: &str) -> ErrorObject {
        let code = match self {
            Self::Unreadable(FrameError::Syntax(_)) => code::PARSE_ERROR,
            Self::Unreadable(FrameError::Shape { .. } | FrameError::Id | FrameError::Depth { .. })
            | Self::Member("id" | "method" | "params")
            | Self::NoId => code::INVALID_REQUEST,
            Self::Member(_) | Self::NoName => code::INVALID_PARAMS,
        };
        ErrorObject::new(code, format!("{self}; {why}"))
    }
}

// === impl Named ===

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Named<'_> {
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
        while messages.next_element_seed(Named(self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Ambiguity> {
        ambiguity(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn what_is_read_in_one_way_is_clear() {
        for clear in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","x":1,"x":2}}"#,
            r#"{"id":1,"m\u0065thod":"tools/call","params":{"n\u0061me":"a","arguments":{"name":1,"NAME":2}}}"#,
            r#"{"id":1,"method":"resources/read","params":{"name":1,"name":2}}"#,
            r#"[{"method":"n"},{"id":1,"result":{}},{"id":2,"error":{}}]"#,
            "[]",
        ] {
            assert!(of(clear).is_none(), "{clear}: {:?}", of(clear));
        }
    }

    #[test]
    fn letters_that_some_readers_take_for_others_are_ambiguous() {
        for key in ["PARAMS", "param\u{17f}", "Params"] {
            let text = format!(r#"{{"id":1,"method":"m","params":{{}},"{key}":{{}}}}"#);
            assert!(matches!(of(&text), Some(Ambiguity::Member("params"))), "{key}");
        }
        assert!(of(r#"{"id":1,"method":"m","ñame":{}}"#).is_none());
    }

    #[test]
    fn methods_are_found_in_whatever_names_them() {
        for (body, found) in [
            (r#"{"id":null,"method":"a","params":{"method":"no"}}"#, "a"),
            (r#"[{"method":"a","METHOD":"b"},{"method":"c","x":NaN,"method":"d"}"#, "a,b,c"),
            (r#"{"method":7}"#, ""),
            ("nothing", ""),
        ] {
            assert_eq!(methods(body.as_bytes()), found, "{body}");
        }
        let many = format!("[{}", r#"{"method":"m"},"#.repeat(20));
        assert_eq!(methods(many.as_bytes()).split(',').count(), SHOWN);
    }
}
