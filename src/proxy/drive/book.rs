//! What the server has asked in one call and not yet been told.

use crate::{
    bridge::{
        elicit::{self, Keys},
        exchange::Ask,
        offer,
    },
    protocol::{ErrorObject, Id, Method, input::InputResponses},
    proxy::session::RelayedQuestion,
    telemetry::{
        CallOrigin, QuestionRefused,
        metrics::{self, QuestionOutcome},
    },
    upstream::{Answer, Asked},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The questions of one call, by number.
pub(super) struct Book {
    route: Arc<str>,
    keys: Keys,
    next: Ask,
    /// How often the client has been sent back with questions.
    pub(super) round: u32,
    open: BTreeMap<Ask, OpenQuestion>,
    /// Counts what has been recorded and closed.
    pub(super) changes: u32,
    /// Answers that came with the call itself, before anything was asked.
    supplied: InputResponses,
}

/// A question that has not been answered.
pub(super) struct OpenQuestion {
    /// Names it within its call.
    pub(super) key: String,
    pub(super) asked: Asked,
    /// The server's id for it; none where it has turned the call over.
    pub(super) id: Option<Id>,
    pub(super) way: Way,
    /// Whether the task's record speaks of it.
    pub(super) is_recorded: bool,
    /// It was put on the stream of the call itself, before there was a task.
    pub(super) put: Option<Put>,
    counted: metrics::OpenQuestion,
}

/// How the answer goes to the server.
pub(super) enum Way {
    /// By itself: the call waits for it.
    Answer(Box<dyn Answer>),
    /// Under this key, when the call is made again.
    Turn(String),
}

/// A question that stands on the stream of the call itself.
pub(super) struct Put {
    /// The client's answer passes there; none where the session has no id, so that it cannot be told.
    pub(super) relayed: Option<RelayedQuestion>,
}

/// Questions one call may have open at a time; a server that asks more is answered with an error.
pub(in crate::proxy) const MAX_OPEN: usize = 64;
/// Bytes of them. One that is alone may be larger.
const MAX_OPEN_BYTES: usize = 16 << 20;

// === impl Book ===

impl Book {
    pub(super) fn new(route: &Arc<str>, keys: &[String], supplied: InputResponses) -> Self {
        Self {
            route: Arc::clone(route),
            keys: Keys::new(keys.iter().cloned()),
            next: 0,
            round: 0,
            open: BTreeMap::new(),
            changes: 0,
            supplied,
        }
    }

    /// Whether there is room for this question, too.
    pub(super) fn has_room(&self, asked: &Asked) -> bool {
        let bytes = self.open.values().map(|open| open.asked.len()).sum::<usize>();
        self.open.len() < MAX_OPEN && (self.open.is_empty() || bytes + asked.len() <= MAX_OPEN_BYTES)
    }

    /// Gives a question its key and its number. Where it was answered beforehand, it is closed again at once,
    /// and that is its answer.
    pub(super) fn take_in(
        &mut self,
        asked: Asked,
        id: Option<Id>,
        way: Way,
        origin: CallOrigin,
    ) -> (Ask, Option<Bytes>) {
        let ask = self.next;
        self.next += 1;
        let key = asked.kind().map_or_else(|| format!("request-{ask}"), |kind| self.keys.give(kind));
        let supplied = match &asked {
            Asked::Canonical(request) => {
                self.supplied.take(&key).and_then(|given| elicit::check_answer(request, &given).ok())
            }
            Asked::Native(_) => None,
        };
        let counted = self.counted(&asked, origin);
        self.open.insert(ask, OpenQuestion { key, asked, id, way, is_recorded: false, put: None, counted });
        (ask, supplied)
    }

    /// These keys have been given to questions of the call before.
    pub(super) fn has_used(&mut self, keys: &BTreeSet<String>) {
        keys.iter().for_each(|key| self.keys.has_used(key));
    }

    /// A question of which the record speaks already.
    pub(super) fn restore(&mut self, key: String, asked: Asked, id: Id, way: Way, origin: CallOrigin) {
        let ask = self.next;
        self.next += 1;
        let (id, counted) = (Some(id), self.counted(&asked, origin));
        self.open.insert(ask, OpenQuestion { key, asked, id, way, is_recorded: true, put: None, counted });
    }

    fn counted(&self, asked: &Asked, origin: CallOrigin) -> metrics::OpenQuestion {
        metrics::OpenQuestion::asked(&self.route, origin, asked.method().as_ref().map_or("", Method::as_str))
    }

    pub(super) fn get(&self, ask: Ask) -> Option<&OpenQuestion> {
        self.open.get(&ask)
    }

    pub(super) fn get_mut(&mut self, ask: Ask) -> Option<&mut OpenQuestion> {
        self.open.get_mut(&ask)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Ask, &OpenQuestion)> {
        self.open.iter().map(|(ask, open)| (*ask, open))
    }

    pub(super) fn asks(&self) -> Vec<Ask> {
        self.open.keys().copied().collect()
    }

    /// The task's record speaks of the question.
    pub(super) fn is_recorded(&mut self, ask: Ask) {
        self.changes += 1;
        if let Some(open) = self.open.get_mut(&ask) {
            open.is_recorded = true;
        }
    }

    /// The question to which the server gave this id.
    pub(super) fn by_id(&self, id: &Id) -> Option<Ask> {
        self.iter().find(|(_, open)| open.id.as_ref() == Some(id)).map(|(ask, _)| ask)
    }

    pub(super) fn by_key(&self, key: &str) -> Option<Ask> {
        self.iter().find(|(_, open)| open.key == key).map(|(ask, _)| ask)
    }

    /// The question is open no more; what becomes of it is the caller's business.
    pub(super) fn close(&mut self, ask: Ask) -> Option<OpenQuestion> {
        self.changes += 1;
        self.open.remove(&ask)
    }

    /// All of them.
    pub(super) fn close_all(&mut self) -> Vec<OpenQuestion> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// The client answered, with a result or an error. Gives the answer, with its key, where the server is to
    /// have it in its next turn.
    pub(super) fn answer(&mut self, ask: Ask, outcome: Result<Bytes, Bytes>) -> Option<(String, Bytes)> {
        let OpenQuestion { asked, way, counted, .. } = self.close(ask)?;
        counted.answered();
        match way {
            Way::Answer(answer) => {
                answer.send(outcome.map(|result| offer::unrelated(&result)));
                None
            }
            // There are no errors among the answers of a retry.
            Way::Turn(key) => {
                let declined = || asked.kind().and_then(|kind| elicit::cancelled_answer(kind).ok());
                outcome.ok().or_else(declined).map(|answer| (key, answer))
            }
        }
    }

    /// A question that cannot be put to the client after all.
    pub(super) fn refuse(&mut self, ask: Ask, code: i64, reason: &str) {
        if let Some(open) = self.close(ask) {
            open.refuse(&self.route, code, reason);
        }
    }

    /// Nobody answers any more: the server is told so in the way of the question.
    pub(super) fn decline(&mut self, ask: Ask) {
        let Some(open) = self.close(ask) else { return };
        open.decline(&self.route);
    }

    /// Those that the client has answered on the stream of the call itself are open no more.
    pub(super) fn close_answered_elsewhere(&mut self) -> Vec<Ask> {
        let is_over = |open: &OpenQuestion| open.was_answered_elsewhere();
        let over: Vec<_> = self.iter().filter(|(_, open)| is_over(open)).map(|(ask, _)| ask).collect();
        for ask in &over {
            if let Some(open) = self.close(*ask) {
                open.counted.answered();
                open.way.withdrawn();
            }
        }
        over
    }
}

// === impl OpenQuestion ===

impl OpenQuestion {
    /// Whether its answer has passed on the stream where it stood before there was a task.
    pub(super) fn was_answered_elsewhere(&self) -> bool {
        let relayed = self.put.as_ref().and_then(|put| put.relayed.as_ref());
        relayed.is_some_and(|relayed| !relayed.is_open())
    }

    /// Tells the server that nobody answers.
    pub(super) fn decline(self, route: &str) {
        let is_answered = self.was_answered_elsewhere();
        let Self { asked, way, counted, .. } = self;
        match (asked, way) {
            (Asked::Native(_), way) if is_answered => {
                counted.answered();
                way.withdrawn();
            }
            (Asked::Canonical(request), Way::Answer(answer)) => {
                let method = request.kind().method();
                counted.told(QuestionOutcome::Declined);
                let (method, outcome) = (method.as_str(), QuestionOutcome::Declined);
                QuestionRefused { route, method, reason: "nobody answered", outcome }.emit();
                answer
                    .send(elicit::cancelled_answer(request.kind()).map_err(|error| error.as_bytes().clone()));
            }
            // Dropped unanswered, which refuses it.
            (Asked::Native(_), _) | (_, Way::Turn(_)) => counted.declined(),
        }
    }

    fn refuse(self, route: &str, code: i64, reason: &str) {
        self.counted.told(QuestionOutcome::Refused);
        if let Some(method) = self.asked.method() {
            let outcome = QuestionOutcome::Refused;
            QuestionRefused { route, method: method.as_str(), reason, outcome }.emit();
        }
        if let Way::Answer(answer) = self.way {
            answer.send(Err(ErrorObject::new(code, reason).as_bytes().clone()));
        }
    }
}

// === impl Way ===

impl Way {
    /// The server wants to hear nothing.
    pub(super) fn withdrawn(self) {
        if let Self::Answer(answer) = self {
            answer.withdrawn();
        }
    }
}
