//! Input requests of the server, on any stream.

use super::super::RequestedInput;
use crate::protocol::{
    Frame, InputRequest, Kind, RequestId,
    input_keys::InputKeys,
    meta,
    splice::{JsonObject, ObjectEdit},
};
use bytes::Bytes;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// The open input requests of one session.
///
/// The key of a request is made as the proxy makes it: its kind, and a number counted by kind, as in
/// `elicitation-1`.
#[derive(Default)]
pub(super) struct InputRequests {
    keys: InputKeys,
    open: Vec<OpenInputRequest>,
    /// Ids of all input requests so far: a resumed stream may repeat a request.
    seen: HashSet<RequestId>,
}

struct OpenInputRequest {
    key: String,
    id: RequestId,
    request: InputRequest,
    /// The member of `_meta` that names the task of the request, as the server sent it.
    related_task: Option<Bytes>,
}

// === impl InputRequests ===

impl InputRequests {
    /// Adds an input request, once. Returns `false` for any other message.
    pub(super) fn add(&mut self, frame: &Frame) -> bool {
        let Kind::Request { id, params, .. } = frame.kind() else { return false };
        let Some(request) = InputRequest::from_frame(frame) else { return false };
        if self.seen.insert(id.clone()) {
            let key = self.keys.next_key(request.kind());
            let meta = params.as_ref().and_then(|params| JsonObject::read(params).ok()?.get("_meta"));
            let related = meta.and_then(|meta| JsonObject::read(&meta).ok()?.get(meta::RELATED_TASK));
            self.open.push(OpenInputRequest { key, id: id.clone(), request, related_task: related });
        }
        true
    }

    /// Removes an input request that the server has cancelled.
    pub(super) fn cancel(&mut self, id: &RequestId) {
        self.open.retain(|pending| pending.id != *id);
    }

    /// Returns the open input requests, in the order of arrival.
    pub(super) fn open(&self) -> Vec<RequestedInput> {
        let requested = |pending: &OpenInputRequest| RequestedInput {
            key: pending.key.clone(),
            method: pending.request.kind().method().as_str().to_owned(),
            request: Some(pending.request.clone()),
        };
        self.open.iter().map(requested).collect()
    }

    /// Removes an open input request. Returns its id, and the response as it is to be sent; `None` if the
    /// server has cancelled the request.
    pub(super) fn take(&mut self, key: &str, response: &RawValue) -> Option<(RequestId, Bytes)> {
        let index = self.open.iter().position(|pending| pending.key == key)?;
        let pending = self.open.remove(index);
        let response = Bytes::copy_from_slice(response.get().as_bytes());
        let response = match &pending.related_task {
            Some(related) => with_related_task(&response, related),
            None => response,
        };
        Some((pending.id, response))
    }
}

/// Adds to a response the task that it belongs to (2025-11-25, *Related Task Metadata*); `related` is the
/// member of the input request.
fn with_related_task(response: &Bytes, related: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(response) else { return response.clone() };
    let old_meta = object.get("_meta").unwrap_or_else(|| Bytes::from_static(b"{}"));
    let Ok(old_meta) = JsonObject::read(&old_meta) else { return response.clone() };
    let mut meta_edit = ObjectEdit::new(&old_meta);
    meta_edit.set(meta::RELATED_TASK, related.clone());
    let mut edit = ObjectEdit::new(&object);
    edit.set("_meta", meta_edit.apply());
    edit.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes())).expect("a message")
    }

    fn keys(requests: &InputRequests) -> Vec<String> {
        requests.open().into_iter().map(|request| request.key).collect()
    }

    #[test]
    fn each_input_request_is_returned_until_answered_and_its_response_names_its_task() {
        let mut requests = InputRequests::default();
        let plain = frame(r#"{"id":1,"method":"elicitation/create","params":{"message":"a"}}"#);
        let in_task = frame(
            r#"{"id":"x","method":"elicitation/create","params":{"message":"b","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
        );
        assert!(requests.add(&plain) && requests.add(&in_task) && requests.add(&plain));
        assert!(!requests.add(&frame(r#"{"id":2,"method":"ping"}"#)));
        assert_eq!(keys(&requests), ["elicitation-1", "elicitation-2"], "and the first only once");
        let answer: Box<RawValue> =
            serde_json::from_str(r#"{"action":"decline","_meta":{"a":1.0}}"#).unwrap();
        let (id, sent) = requests.take("elicitation-2", &answer).expect("it is open");
        assert_eq!(
            (id.to_string(), std::str::from_utf8(&sent).unwrap()),
            (
                r#""x""#.to_owned(),
                r#"{"action":"decline","_meta":{"a":1.0,"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#
            )
        );
        assert_eq!(keys(&requests), ["elicitation-1"]);
        let (_, sent) = requests.take("elicitation-1", &answer).expect("it is open");
        assert_eq!(sent, answer.get().as_bytes());
        assert!(requests.take("elicitation-1", &answer).is_none());
    }

    #[test]
    fn a_cancelled_input_request_is_not_returned() {
        let mut requests = InputRequests::default();
        requests.add(&frame(r#"{"id":1,"method":"roots/list"}"#));
        requests.cancel(&RequestId::from_number(2));
        assert_eq!(keys(&requests), ["roots-1"]);
        requests.cancel(&RequestId::from_number(1));
        assert!(requests.open().is_empty());
    }
}
