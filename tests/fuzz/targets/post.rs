//! The messages of a legacy client's POST: those that serde_json finds there, in their order.

use bytes::Bytes;
use deferral::internals::{
    dialect::legacy::{ClientMessage, LegacyPost},
    protocol::{MessageReader, RequestId, splice::JsonObject},
};
use serde_json::{Value, value::RawValue};
use std::collections::HashSet;

/// `body` is what a client posts.
pub fn target(body: &[u8]) {
    let mut messages = MessageReader::new(Bytes::copy_from_slice(body));
    let read = LegacyPost::read(&mut messages);
    let Ok(post) = read else { return };
    let waiting = post.request_ids();
    assert_eq!(waiting.iter().collect::<HashSet<_>>().len(), waiting.len(), "each is waited for once");
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        // Numbers out of range, halves of characters and deep nesting are passed on unread.
        return;
    };
    let (values, raw): (Vec<Value>, Vec<&RawValue>) = match value {
        Value::Array(values) => (values, serde_json::from_slice(body).expect("it is an array")),
        one => (vec![one], vec![serde_json::from_slice(body).expect("it is JSON")]),
    };
    assert_eq!(post.messages.len(), values.len());
    for ((message, value), raw) in post.messages.iter().zip(&values).zip(raw) {
        agrees(message, value, &Bytes::copy_from_slice(raw.get().as_bytes()));
    }
}

fn agrees(message: &ClientMessage, value: &Value, raw: &Bytes) {
    match message {
        ClientMessage::Request { id, method, target } => {
            assert_eq!((&is(id), Some(method.as_str())), (&value["id"], value["method"].as_str()));
            if let Some(target) = target {
                let named = match method.as_str() {
                    "tools/call" | "prompts/get" => "name",
                    "tasks/get" | "tasks/result" | "tasks/cancel" => "taskId",
                    _ => "uri",
                };
                assert_eq!(Some(target.as_str()), value["params"][named].as_str());
            } else if method.as_str() == "tools/call" && value["params"]["name"].is_string() {
                // What a server would run is known here, unless there are two to choose from.
                let params = JsonObject::read(raw).ok().and_then(|object| object.get("params"));
                let params = params.and_then(|params| JsonObject::read(&params).ok()).expect("an object");
                assert!(params.repeated_key().is_some() || !is_plain(value), "{value}");
            }
        }
        ClientMessage::Notification(method) => {
            assert_eq!((None, Some(method.as_str())), (value.get("id"), value["method"].as_str()));
        }
        ClientMessage::Cancelled(id) => {
            assert_eq!((None, Some("notifications/cancelled")), (value.get("id"), value["method"].as_str()));
            let named = &value["params"]["requestId"];
            assert_eq!(id.as_ref().map(is), (named.is_string() || named.is_number()).then(|| named.clone()));
        }
        ClientMessage::Response(id) => {
            let sent = value.get("id").filter(|id| !id.is_null());
            assert_eq!(id.as_ref().map(is).as_ref(), sent);
            assert!(value.get("method").is_none_or(Value::is_null));
        }
    }
}

/// Whether the other members that may name what a request is about are texts, where they are there.
fn is_plain(value: &Value) -> bool {
    ["name", "uri", "taskId"].iter().all(|key| value["params"].get(key).is_none_or(Value::is_string))
}

fn is(id: &RequestId) -> Value {
    serde_json::from_slice(id.as_bytes()).expect("an id is JSON")
}
