//! What the server asks: requests of its own, on whatever stream they come.

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

/// The questions of one session that have no answer yet.
///
/// Their keys are those the proxy gives them: `elicitation-1`, counted by kind.
#[derive(Default)]
pub(super) struct InputRequests {
    keys: InputKeys,
    open: Vec<OpenInputRequest>,
    /// Every id that was heard: a stream that is taken up may bring a question again.
    seen: HashSet<RequestId>,
}

struct OpenInputRequest {
    key: String,
    id: RequestId,
    request: InputRequest,
    /// The task it belongs to, as the question says it.
    related: Option<Bytes>,
}

// === impl Questions ===

impl InputRequests {
    /// Takes a question; `false` for a request that is none.
    pub(super) fn add(&mut self, frame: &Frame) -> bool {
        let Kind::Request { id, params, .. } = frame.kind() else { return false };
        let Some(request) = InputRequest::of(frame) else { return false };
        if self.seen.insert(id.clone()) {
            let key = self.keys.next_key(request.kind());
            let meta = params.as_ref().and_then(|params| JsonObject::read(params).ok()?.get("_meta"));
            let related = meta.and_then(|meta| JsonObject::read(&meta).ok()?.get(meta::RELATED_TASK));
            self.open.push(OpenInputRequest { key, id: id.clone(), request, related });
        }
        true
    }

    /// The server does not want to know any more.
    pub(super) fn cancel(&mut self, id: &RequestId) {
        self.open.retain(|question| question.id != *id);
    }

    /// Those that wait for their answers, in the order they came.
    pub(super) fn open(&self) -> Vec<RequestedInput> {
        let asked = |question: &OpenInputRequest| RequestedInput {
            key: question.key.clone(),
            method: question.request.kind().method().as_str().to_owned(),
            request: Some(question.request.clone()),
        };
        self.open.iter().map(asked).collect()
    }

    /// The id of a question and the answer to it, as it is to be sent; `Missing` where it was withdrawn.
    pub(super) fn answer(&mut self, key: &str, answer: &RawValue) -> Option<(RequestId, Bytes)> {
        let at = self.open.iter().position(|question| question.key == key)?;
        let question = self.open.remove(at);
        let answer = Bytes::copy_from_slice(answer.get().as_bytes());
        let answer = match &question.related {
            Some(related) => with_related_task(&answer, related),
            None => answer,
        };
        Some((question.id, answer))
    }
}

/// An answer that says which task it belongs to (2025-11-25, *Related Task Metadata*); `related` is
/// what stood in the question.
fn with_related_task(answer: &Bytes, related: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(answer) else { return answer.clone() };
    let inside = object.get("_meta").unwrap_or_else(|| Bytes::from_static(b"{}"));
    let Ok(inside) = JsonObject::read(&inside) else { return answer.clone() };
    let mut member = ObjectEdit::new(&inside);
    member.set(meta::RELATED_TASK, related.clone());
    let mut edit = ObjectEdit::new(&object);
    edit.set("_meta", member.apply());
    edit.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes())).expect("a message")
    }

    fn keys(questions: &InputRequests) -> Vec<String> {
        questions.open().into_iter().map(|asked| asked.key).collect()
    }

    #[test]
    fn each_question_is_asked_until_it_is_answered_and_its_answer_names_its_task() {
        let mut questions = InputRequests::default();
        let plain = frame(r#"{"id":1,"method":"elicitation/create","params":{"message":"a"}}"#);
        let in_task = frame(
            r#"{"id":"x","method":"elicitation/create","params":{"message":"b","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
        );
        assert!(questions.add(&plain) && questions.add(&in_task) && questions.add(&plain));
        assert!(!questions.add(&frame(r#"{"id":2,"method":"ping"}"#)));
        assert_eq!(keys(&questions), ["elicitation-1", "elicitation-2"], "and the first only once");
        let answer: Box<RawValue> =
            serde_json::from_str(r#"{"action":"decline","_meta":{"a":1.0}}"#).unwrap();
        let (id, sent) = questions.answer("elicitation-2", &answer).expect("it is open");
        assert_eq!(
            (id.to_string(), std::str::from_utf8(&sent).unwrap()),
            (
                r#""x""#.to_owned(),
                r#"{"action":"decline","_meta":{"a":1.0,"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#
            )
        );
        assert_eq!(keys(&questions), ["elicitation-1"]);
        let (_, sent) = questions.answer("elicitation-1", &answer).expect("it is open");
        assert_eq!(sent, answer.get().as_bytes());
        assert!(questions.answer("elicitation-1", &answer).is_none());
    }

    #[test]
    fn a_question_that_was_withdrawn_is_not_asked() {
        let mut questions = InputRequests::default();
        questions.add(&frame(r#"{"id":1,"method":"roots/list"}"#));
        questions.cancel(&RequestId::from_number(2));
        assert_eq!(keys(&questions), ["roots-1"]);
        questions.cancel(&RequestId::from_number(1));
        assert!(questions.open().is_empty());
    }
}
