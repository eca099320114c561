//! What the server asks: requests of its own, on whatever stream they come.

use super::super::Asked;
use crate::protocol::{
    Frame, Id, InputRequest, Kind,
    input_keys::Keys,
    meta,
    splice::{Edit, Object},
};
use bytes::Bytes;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// The questions of one session that have no answer yet.
///
/// Their keys are those the proxy gives them: `elicitation-1`, counted by kind.
#[derive(Default)]
pub(super) struct Questions {
    keys: Keys,
    open: Vec<Question>,
    /// Every id that was heard: a stream that is taken up may bring a question again.
    heard: HashSet<Id>,
}

struct Question {
    key: String,
    id: Id,
    request: InputRequest,
    /// The task it belongs to, as the question says it.
    related: Option<Bytes>,
}

// === impl Questions ===

impl Questions {
    /// Takes a question; `false` for a request that is none.
    pub(super) fn take(&mut self, frame: &Frame) -> bool {
        let Kind::Request { id, params, .. } = frame.kind() else { return false };
        let Some(request) = InputRequest::of(frame) else { return false };
        if self.heard.insert(id.clone()) {
            let key = self.keys.give(request.kind());
            let meta = params.as_ref().and_then(|params| Object::read(params).ok()?.get("_meta"));
            let related = meta.and_then(|meta| Object::read(&meta).ok()?.get(meta::RELATED_TASK));
            self.open.push(Question { key, id: id.clone(), request, related });
        }
        true
    }

    /// The server does not want to know any more.
    pub(super) fn withdraw(&mut self, id: &Id) {
        self.open.retain(|question| question.id != *id);
    }

    /// Those that wait for their answers, in the order they came.
    pub(super) fn open(&self) -> Vec<Asked> {
        let asked = |question: &Question| Asked {
            key: question.key.clone(),
            method: question.request.kind().method().as_str().to_owned(),
            request: Some(question.request.clone()),
        };
        self.open.iter().map(asked).collect()
    }

    /// The id of a question and the answer to it, as it is to be sent; `None` where it was withdrawn.
    pub(super) fn answer(&mut self, key: &str, answer: &RawValue) -> Option<(Id, Bytes)> {
        let at = self.open.iter().position(|question| question.key == key)?;
        let question = self.open.remove(at);
        let answer = Bytes::copy_from_slice(answer.get().as_bytes());
        let answer = match &question.related {
            Some(related) => about(&answer, related),
            None => answer,
        };
        Some((question.id, answer))
    }
}

/// An answer that says which task it belongs to (2025-11-25, *Related Task Metadata*); `related` is
/// what stood in the question.
fn about(answer: &Bytes, related: &Bytes) -> Bytes {
    let Ok(object) = Object::read(answer) else { return answer.clone() };
    let inside = object.get("_meta").unwrap_or_else(|| Bytes::from_static(b"{}"));
    let Ok(inside) = Object::read(&inside) else { return answer.clone() };
    let mut member = Edit::new(&inside);
    member.set(meta::RELATED_TASK, related.clone());
    let mut edit = Edit::new(&object);
    edit.set("_meta", member.apply());
    edit.apply()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes())).expect("a message")
    }

    fn keys(questions: &Questions) -> Vec<String> {
        questions.open().into_iter().map(|asked| asked.key).collect()
    }

    #[test]
    fn each_question_is_asked_until_it_is_answered_and_its_answer_names_its_task() {
        let mut questions = Questions::default();
        let plain = frame(r#"{"id":1,"method":"elicitation/create","params":{"message":"a"}}"#);
        let in_task = frame(
            r#"{"id":"x","method":"elicitation/create","params":{"message":"b","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
        );
        assert!(questions.take(&plain) && questions.take(&in_task) && questions.take(&plain));
        assert!(!questions.take(&frame(r#"{"id":2,"method":"ping"}"#)));
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
        let mut questions = Questions::default();
        questions.take(&frame(r#"{"id":1,"method":"roots/list"}"#));
        questions.withdraw(&Id::from_number(2));
        assert_eq!(keys(&questions), ["roots-1"]);
        questions.withdraw(&Id::from_number(1));
        assert!(questions.open().is_empty());
    }
}
