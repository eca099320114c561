//! The messages of a legacy client's POST: those that serde_json finds there, in their order.

use bytes::Bytes;
use deferral::internals::{
    dialect::legacy::{Message, Post},
    protocol::{Id, Messages, splice::Object},
};
use serde_json::{Value, value::RawValue};
use std::collections::HashSet;

/// `body` is what a client posts.
pub fn target(body: &[u8]) {
    let mut messages = Messages::of(Bytes::copy_from_slice(body));
    let read = Post::read(&mut messages);
    let Ok(post) = read else { return };
    let waiting = post.waiting();
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

fn agrees(message: &Message, value: &Value, raw: &Bytes) {
    match message {
        Message::Request { id, method, target } => {
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
                let params = Object::read(raw).ok().and_then(|object| object.get("params"));
                let params = params.and_then(|params| Object::read(&params).ok()).expect("an object");
                assert!(params.repeated().is_some() || !is_plain(value), "{value}");
            }
        }
        Message::Notification(method) => {
            assert_eq!((None, Some(method.as_str())), (value.get("id"), value["method"].as_str()));
        }
        Message::Cancelled(id) => {
            assert_eq!((None, Some("notifications/cancelled")), (value.get("id"), value["method"].as_str()));
            let named = &value["params"]["requestId"];
            assert_eq!(id.as_ref().map(is), (named.is_string() || named.is_number()).then(|| named.clone()));
        }
        Message::Response(id) => {
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

fn is(id: &Id) -> Value {
    serde_json::from_slice(id.as_bytes()).expect("an id is JSON")
}
