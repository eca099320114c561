//! A legacy session's own stream as it goes by, without what it says of calls of ours.
//!
//! Some servers ask, and tell of progress, on the session's GET stream. The stream is the client's, but a
//! question in the course of a task is the task's: it must say which task it belongs to, and be asked
//! where the client waits for the result (2025-11-25, *Tasks, Input Required Status*); and progress under
//! a token of ours means nothing to a client. So such events are taken out, and told to the call
//! ([`Residents`](super::Residents)). All else goes by, byte for byte: as it comes while no call of ours is
//! in flight, and else event by event, for an event cannot be known before what it says.

use super::{
    augmented::IDS,
    edited::{data, lines},
    residents::{InFlight, Whose, number},
    run::MAX_OPEN,
    streams::Key,
};
use crate::{
    dialect::legacy,
    protocol::{
        ErrorObject, Frame, Id, Kind, Method, code, headers::LAST_EVENT_ID, splice::Object, sse::Cutter,
    },
    proxy::endpoint::Shared,
    telemetry::QuestionRefused,
    upstream::{Answer, ClientSession, Event, Forward, Purpose, Question},
};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue,
    header::{ACCEPT, CONTENT_TYPE},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// One stream of a session.
pub(super) struct Heard {
    speaks: Speaks,
    events: Cutter,
    /// For one event, in bytes. A larger one goes by unread, and what follows too.
    limit: usize,
    over: bool,
    /// How much of that event has gone by already, because no call of ours was in flight.
    passed: usize,
}

/// How something is told in the session.
#[derive(Clone)]
struct Speaks {
    shared: Arc<Shared>,
    key: Key,
    session: Arc<ClientSession>,
}

/// Takes the answer to a question that was asked on the session's own stream.
struct Reply {
    speaks: Speaks,
    call: Arc<InFlight>,
    /// Taken when there is nothing more to say.
    id: Option<Id>,
}

// === impl Heard ===

impl Heard {
    /// The stream that `session` asked for.
    pub(super) fn new(shared: &Arc<Shared>, key: Key, mut session: ClientSession, limit: usize) -> Self {
        session.headers.remove(&LAST_EVENT_ID);
        session.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        session.headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let speaks = Speaks { shared: Arc::clone(shared), key, session: Arc::new(session) };
        Self { speaks, events: Cutter::default(), limit, over: false, passed: 0 }
    }

    /// Takes the next chunk; gives what goes on. Nothing is not the end of it.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Bytes {
        if self.over {
            return chunk;
        }
        self.events.feed(&chunk);
        let mut out = BytesMut::new();
        while let Some(event) = self.events.next_event() {
            let passed = std::mem::take(&mut self.passed);
            match passed == 0 && self.take(&event) {
                true => out.extend_from_slice(&remains(&event)),
                false => out.extend_from_slice(&event[passed..]),
            }
        }
        let is_too_large = self.events.held() > self.limit;
        if is_too_large || self.passed > 0 || !self.speaks.shared.residents.has_ours(self.speaks.key) {
            out.extend_from_slice(&self.events.unfinished()[self.passed..]);
            self.passed = self.events.held();
        }
        if is_too_large {
            self.over = true;
            // Nothing is left of it to go by.
            (self.events, self.passed) = (Cutter::default(), 0);
        }
        out.freeze()
    }

    /// The stream has ended: what was held of it.
    pub(super) fn rest(&mut self) -> Bytes {
        self.events.rest().slice(std::mem::take(&mut self.passed)..)
    }

    /// Whether an event is for a call of ours, and has been told to it.
    fn take(&self, event: &[u8]) -> bool {
        let said: Vec<&[u8]> = lines(event).filter_map(|(line, _)| data(line)).collect();
        // In memory of its own: it outlives the event.
        let Ok(frame) = Frame::parse(Bytes::from(said.join(&b'\n'))) else { return false };
        let Speaks { shared, key, .. } = &self.speaks;
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let token = Object::read(params).ok().and_then(|params| params.get("progressToken"));
                let Some(token) = token else { return false };
                match shared.residents.by_token(*key, &token) {
                    Some(call) => call.tell(Event::Notice(frame)),
                    // Of a call of ours that has ended.
                    None => return number(&token).is_some_and(|number| number >= IDS),
                }
                true
            }
            Kind::Notification { method: Method::Cancelled, params: Some(params) } => {
                let id =
                    Object::read(params).ok().and_then(|params| Id::from_token(params.get("requestId")?));
                let Some(id) = id else { return false };
                let Some(call) = shared.residents.by_question(*key, &id) else { return false };
                call.tell(Event::Withdrawn { id: id.detached() });
                true
            }
            Kind::Request {
                id, method: Method::Elicit | Method::CreateMessage | Method::RootsList, ..
            } => {
                let id = id.detached();
                self.asked(frame, id)
            }
            Kind::Request { .. }
            | Kind::Notification { .. }
            | Kind::Success { .. }
            | Kind::Failure { .. } => false,
        }
    }

    /// The server asks something: whether it is not the client's to answer as it is.
    fn asked(&self, frame: Frame, id: Id) -> bool {
        let Speaks { shared, key, .. } = &self.speaks;
        let call = match shared.residents.whose(*key) {
            Whose::Client => return false,
            Whose::Call(call) if call.open() >= MAX_OPEN => {
                self.refuse(&frame, &id, "too many questions are open in one call");
                return true;
            }
            Whose::Call(call) => call,
            Whose::Unclear(reason) => {
                self.refuse(&frame, &id, reason);
                return true;
            }
        };
        if call.asks(&id) {
            let answer = Reply { speaks: self.speaks.clone(), call: Arc::clone(&call), id: Some(id) };
            call.tell(Event::Question(Question { frame, answer: Box::new(answer) }));
        }
        true
    }

    fn refuse(&self, frame: &Frame, id: &Id, reason: &'static str) {
        let Kind::Request { method, .. } = frame.kind() else { return };
        QuestionRefused { method: method.as_str(), reason }.emit();
        let words = format!("cannot be attributed to one call: {reason}");
        let error = ErrorObject::new(code::INTERNAL_ERROR, words);
        self.speaks.tell(legacy::refusal(std::slice::from_ref(id), &error));
    }
}

/// What is left of an event that was taken: its id, by which the client takes the stream up again, and
/// whatever else is not said to it.
fn remains(event: &[u8]) -> Vec<u8> {
    let kept = |line: &[u8]| !line.is_empty() && data(line).is_none() && !line.starts_with(b"event");
    let mut out = Vec::new();
    for (line, _) in lines(event).filter(|(line, _)| kept(line)) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out
}

// === impl Speaks ===

impl Speaks {
    /// Says a message in the session, in the background.
    fn tell(&self, body: Bytes) {
        let ClientSession { query, headers } = &*self.session;
        let told = self.shared.upstream.forward(Forward {
            method: http::Method::POST,
            query: query.clone(),
            headers: headers.clone(),
            body,
            purpose: Purpose::Tell,
            calls: SmallVec::new(),
            interest: None,
        });
        self.shared.stopping.spawn(async move {
            if let Err(lost) = told.await {
                tracing::warn!(target: "deferral::question", event = "answer_lost", error = %lost);
            }
        });
    }
}

// === impl Reply ===

impl Reply {
    fn give(&mut self, outcome: Result<Bytes, Bytes>) {
        let Some(id) = self.id.take() else { return };
        self.call.settled(&id);
        self.speaks.tell(match outcome {
            Ok(result) => legacy::success(&id, &result),
            Err(error) => legacy::refusal(std::slice::from_ref(&id), &ErrorObject::from_raw(error)),
        });
    }
}

impl Answer for Reply {
    fn send(mut self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        self.give(outcome);
    }

    fn withdrawn(mut self: Box<Self>) {
        if let Some(id) = self.id.take() {
            self.call.settled(&id);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // A call that is over wants no answers any more, and some servers lose the session over one that
        // arrives while they cancel.
        if self.call.is_over() {
            return;
        }
        let error = ErrorObject::new(code::INTERNAL_ERROR, "the question was not answered");
        self.give(Err(error.as_bytes().clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_taken_leaves_its_id_behind() {
        for (event, left) in [
            ("data: {}\n\n", ""),
            ("event: message\r\ndata: {\r\ndata: }\r\n\r\n", ""),
            ("id: 7\nevent: message\ndata: {}\nretry: 5\n\n", "id: 7\nretry: 5\n\n"),
            (": hi\rid: 7\rdata: {}\r\r", ": hi\nid: 7\n\n"),
        ] {
            assert_eq!(String::from_utf8(remains(event.as_bytes())).expect("text"), left, "{event}");
        }
    }
}
