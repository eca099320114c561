//! One JSON-RPC message: what is read of it is what serde_json reads, in the bytes that were sent.

use bytes::Bytes;
use deferral::internals::protocol::{
    Frame, FrameError, Kind, Payload, RequestId,
    frame::{bracket_depth, to_single_line},
    glance::{KindSniffer, MessageKind},
    splice::JsonObject,
};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};
use std::fmt;

/// `message` is the body of a request, or of an answer.
pub fn target(message: &[u8]) {
    let bytes = Bytes::copy_from_slice(message);
    // A byte order mark is skipped, and is no part of the message (RFC 8259, 8.1).
    let message = message.strip_prefix(b"\xef\xbb\xbf").unwrap_or(message);
    let value = serde_json::from_slice::<Value>(message);
    depth(message);
    match Frame::parse(bytes.clone()) {
        Ok(frame) => {
            assert_eq!(frame.as_bytes(), message);
            assert!(serde_json::from_slice::<&RawValue>(message).is_ok(), "it is no JSON");
            assert_eq!(frame.depth(), bracket_depth(message));
            parts_are_slices(&bytes, frame.kind());
            carries(frame.kind());
            // Numbers out of range, halves of characters and deep nesting are passed on unread.
            if let Ok(value) = &value {
                agrees(frame.kind(), value);
                assert_eq!(KindSniffer::sniff(message), Some(gist(frame.kind())));
            }
            breaks_are_spaces(frame.as_bytes(), value.ok());
        }
        Err(FrameError::Syntax(_)) => {
            assert!(serde_json::from_slice::<&RawValue>(message).is_err(), "it is JSON: {value:?}");
        }
        // A member that is there twice, or a name that is no text, is not read at all.
        Err(FrameError::Member { id, .. }) => {
            if let Ok(Value::Object(members)) = value {
                assert!(
                    members.get("method").is_some_and(|name| !name.is_string()) || is_doubtful(message),
                    "serde_json reads {members:?}"
                );
                assert!(id.is_none_or(|id| is(&id) == members["id"]));
            }
        }
        Err(FrameError::Id) => {
            let id = value.ok().and_then(|value| value.get("id").cloned());
            assert!(id.is_none_or(|id| !(id.is_string() || id.is_number())));
        }
        Err(FrameError::Shape { id }) => {
            if let (Some(id), Ok(value)) = (id, value) {
                assert_eq!(is(&id), value["id"]);
            }
        }
        Err(FrameError::Depth { .. }) => panic!("depth is not judged here"),
    }
}

/// Whether a member we route by is there twice.
fn is_doubtful(message: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(message);
    let object = JsonObject::read(&bytes).expect("an object");
    let keys: Vec<_> = object.members().map(|(key, _)| key).collect();
    ["id", "method", "params", "result", "error"]
        .iter()
        .any(|name| keys.iter().filter(|key| key == name).count() > 1)
}

fn is(id: &RequestId) -> Value {
    serde_json::from_slice(id.as_bytes()).expect("an id is JSON")
}

fn gist(kind: &Kind) -> MessageKind {
    match kind {
        Kind::Request { .. } | Kind::Notification { .. } => MessageKind::Method,
        Kind::Success { .. } => MessageKind::Result,
        Kind::Failure { .. } => MessageKind::Error,
    }
}

fn parts_are_slices(bytes: &Bytes, kind: &Kind) {
    let parts = match kind {
        Kind::Request { id, params, .. } => vec![Some(id.as_bytes()), params.as_deref()],
        Kind::Notification { params, .. } => vec![params.as_deref()],
        Kind::Success { id, result } => vec![Some(id.as_bytes()), Some(result)],
        Kind::Failure { id, error } => vec![id.as_ref().map(RequestId::as_bytes), Some(error)],
    };
    for part in parts.into_iter().flatten() {
        assert!(bytes.as_ptr_range().contains(&part.as_ptr()), "{part:?} is a copy");
    }
}

/// What is known of the members of params and results is what is read of them alone.
fn carries(kind: &Kind) {
    let payload = match kind {
        Kind::Request { params: Some(params), .. } | Kind::Notification { params: Some(params), .. } => {
            params
        }
        Kind::Success { result, .. } => result,
        Kind::Request { .. } | Kind::Notification { .. } | Kind::Failure { .. } => return,
    };
    let alone = Payload::read(Bytes::clone(payload));
    let places = |object: Option<&JsonObject>| {
        let object = object?;
        let members = object.members().map(|(key, value)| (key.into_owned(), value.as_ptr_range()));
        Some((object.as_bytes().as_ptr_range(), members.collect::<Vec<_>>()))
    };
    assert_eq!(places(payload.object()), places(alone.object()));
    assert_eq!(places(payload.meta()), places(alone.meta()));
}

fn agrees(kind: &Kind, value: &Value) {
    let member = |name: &str| value.get(name).filter(|member| !member.is_null());
    let read = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).expect("a part is JSON");
    let params = |params: &Option<Payload>| params.as_deref().map(read);
    match kind {
        Kind::Request { id, method, params: sent } => {
            assert_eq!((Some(&is(id)), Some(method.as_str())), (member("id"), value["method"].as_str()));
            assert_eq!(params(sent).as_ref(), member("params"));
        }
        Kind::Notification { method, params: sent } => {
            assert_eq!((None, Some(method.as_str())), (value.get("id"), value["method"].as_str()));
            assert_eq!(params(sent).as_ref(), member("params"));
        }
        Kind::Success { id, result } => {
            assert_eq!((Some(&is(id)), Some(&read(result))), (member("id"), value.get("result")));
        }
        Kind::Failure { id, error } => {
            assert_eq!((id.as_ref().map(is).as_ref(), Some(&read(error))), (member("id"), member("error")));
        }
    }
}

fn breaks_are_spaces(message: &Bytes, value: Option<Value>) {
    let line = to_single_line(message.clone());
    assert_eq!(line.len(), message.len());
    assert!(line.iter().all(|byte| !matches!(byte, b'\n' | b'\r')));
    assert_eq!(serde_json::from_slice::<Value>(&line).ok(), value);
}

fn depth(json: &[u8]) {
    if let Ok(Levels(depth)) = serde_json::from_slice(json) {
        assert_eq!(bracket_depth(json), depth);
    }
}

/// How deep a value is nested, members included that another of their name replaces.
struct Levels(usize);

impl<'de> Deserialize<'de> for Levels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Nested)
    }
}

struct Nested;

impl<'de> Visitor<'de> for Nested {
    type Value = Levels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Levels, A::Error> {
        let mut deepest = 0;
        while let Some(Levels(levels)) = elements.next_element()? {
            deepest = deepest.max(levels);
        }
        Ok(Levels(deepest + 1))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Levels, A::Error> {
        let mut deepest = 0;
        while let Some((_, Levels(levels))) = members.next_entry::<String, _>()? {
            deepest = deepest.max(levels);
        }
        Ok(Levels(deepest + 1))
    }

    fn visit_unit<E>(self) -> Result<Levels, E> {
        Ok(Levels(0))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Levels, E> {
        Ok(Levels(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Levels, E> {
        Ok(Levels(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Levels, E> {
        Ok(Levels(0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Levels, E> {
        Ok(Levels(0))
    }

    fn visit_str<E>(self, _: &str) -> Result<Levels, E> {
        Ok(Levels(0))
    }
}
