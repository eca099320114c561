//! What the server has asked in one call and not yet been told.

use crate::{
    bridge::{
        elicit::{self, InputKeys},
        exchange::InputNumber,
        offer,
    },
    protocol::{ErrorObject, Method, RequestId, input::InputResponses},
    proxy::session::RelayedInputRequest,
    telemetry::{
        CallOrigin, InputRequestRefused,
        metrics::{self, InputRequestOutcome},
    },
    upstream::{Responder, ServerRequest},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The questions of one call, by number.
pub(super) struct OpenRequests {
    route: Arc<str>,
    keys: InputKeys,
    next: InputNumber,
    /// How often the client has been sent back with questions.
    pub(super) round: u32,
    open: BTreeMap<InputNumber, OpenRequest>,
    /// Counts what has been recorded and closed.
    pub(super) changes: u32,
    /// Answers that came with the call itself, before anything was asked.
    supplied: InputResponses,
}

/// A question that has not been answered.
pub(super) struct OpenRequest {
    /// Names it within its call.
    pub(super) key: String,
    pub(super) asked: ServerRequest,
    /// The server's id for it; none where it has turned the call over.
    pub(super) id: Option<RequestId>,
    pub(super) target: AnswerTarget,
    /// Whether the task's record speaks of it.
    pub(super) is_recorded: bool,
    /// It was put on the stream of the call itself, before there was a task.
    pub(super) inline: Option<InlineRequest>,
    metric: metrics::OpenInputRequest,
}

/// How the answer goes to the server.
pub(super) enum AnswerTarget {
    /// By itself: the call waits for it.
    Direct(Box<dyn Responder>),
    /// Under this key, when the call is made again.
    Retry(String),
}

/// A question that stands on the stream of the call itself.
pub(super) struct InlineRequest {
    /// The client's answer passes there; none where the session has no id, so that it cannot be told.
    pub(super) relayed: Option<RelayedInputRequest>,
}

/// Questions one call may have open at a time; a server that asks more is answered with an error.
pub(in crate::proxy) const MAX_OPEN: usize = 64;
/// Bytes of them. One that is alone may be larger.
const MAX_OPEN_BYTES: usize = 16 << 20;

// === impl Book ===

impl OpenRequests {
    pub(super) fn new(route: &Arc<str>, keys: &[String], supplied: InputResponses) -> Self {
        Self {
            route: Arc::clone(route),
            keys: InputKeys::new(keys.iter().cloned()),
            next: 0,
            round: 0,
            open: BTreeMap::new(),
            changes: 0,
            supplied,
        }
    }

    /// Whether there is room for this question, too.
    pub(super) fn has_room(&self, asked: &ServerRequest) -> bool {
        let bytes = self.open.values().map(|open| open.asked.len()).sum::<usize>();
        self.open.len() < MAX_OPEN && (self.open.is_empty() || bytes + asked.len() <= MAX_OPEN_BYTES)
    }

    /// Gives a question its key and its number. Where it was answered beforehand, it is closed again at once,
    /// and that is its answer.
    pub(super) fn insert(
        &mut self,
        asked: ServerRequest,
        id: Option<RequestId>,
        way: AnswerTarget,
        origin: CallOrigin,
    ) -> (InputNumber, Option<Bytes>) {
        let ask = self.next;
        self.next += 1;
        let key = asked.kind().map_or_else(|| format!("request-{ask}"), |kind| self.keys.next_key(kind));
        let supplied = match &asked {
            ServerRequest::Canonical(request) => {
                self.supplied.take(&key).and_then(|given| elicit::check_answer(request, &given).ok())
            }
            ServerRequest::Native(_) => None,
        };
        let counted = self.count_open(&asked, origin);
        self.open.insert(
            ask,
            OpenRequest { key, asked, id, target: way, is_recorded: false, inline: None, metric: counted },
        );
        (ask, supplied)
    }

    /// These keys have been given to questions of the call before.
    pub(super) fn mark_keys_used(&mut self, keys: &BTreeSet<String>) {
        keys.iter().for_each(|key| self.keys.mark_used(key));
    }

    /// A question of which the record speaks already.
    pub(super) fn restore(
        &mut self,
        key: String,
        asked: ServerRequest,
        id: RequestId,
        way: AnswerTarget,
        origin: CallOrigin,
    ) {
        let ask = self.next;
        self.next += 1;
        let (id, counted) = (Some(id), self.count_open(&asked, origin));
        self.open.insert(
            ask,
            OpenRequest { key, asked, id, target: way, is_recorded: true, inline: None, metric: counted },
        );
    }

    fn count_open(&self, asked: &ServerRequest, origin: CallOrigin) -> metrics::OpenInputRequest {
        metrics::OpenInputRequest::open(
            &self.route,
            origin,
            asked.method().as_ref().map_or("", Method::as_str),
        )
    }

    pub(super) fn get(&self, ask: InputNumber) -> Option<&OpenRequest> {
        self.open.get(&ask)
    }

    pub(super) fn get_mut(&mut self, ask: InputNumber) -> Option<&mut OpenRequest> {
        self.open.get_mut(&ask)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InputNumber, &OpenRequest)> {
        self.open.iter().map(|(ask, open)| (*ask, open))
    }

    pub(super) fn ids(&self) -> Vec<InputNumber> {
        self.open.keys().copied().collect()
    }

    /// The task's record speaks of the question.
    pub(super) fn mark_recorded(&mut self, ask: InputNumber) {
        self.changes += 1;
        if let Some(open) = self.open.get_mut(&ask) {
            open.is_recorded = true;
        }
    }

    /// The question to which the server gave this id.
    pub(super) fn by_id(&self, id: &RequestId) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.id.as_ref() == Some(id)).map(|(ask, _)| ask)
    }

    pub(super) fn by_key(&self, key: &str) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.key == key).map(|(ask, _)| ask)
    }

    /// The question is open no more; what becomes of it is the caller's business.
    pub(super) fn close(&mut self, ask: InputNumber) -> Option<OpenRequest> {
        self.changes += 1;
        self.open.remove(&ask)
    }

    /// All of them.
    pub(super) fn close_all(&mut self) -> Vec<OpenRequest> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// The client answered, with a result or an error. Gives the answer, with its key, where the server is to
    /// have it in its next turn.
    pub(super) fn answer(
        &mut self,
        ask: InputNumber,
        outcome: Result<Bytes, Bytes>,
    ) -> Option<(String, Bytes)> {
        let OpenRequest { asked, target: way, metric: counted, .. } = self.close(ask)?;
        counted.close_answered();
        match way {
            AnswerTarget::Direct(answer) => {
                answer.respond(outcome.map(|result| offer::without_related_task(&result)));
                None
            }
            // There are no errors among the answers of a retry.
            AnswerTarget::Retry(key) => {
                let declined = || asked.kind().and_then(|kind| elicit::cancelled_answer(kind).ok());
                outcome.ok().or_else(declined).map(|answer| (key, answer))
            }
        }
    }

    /// A question that cannot be put to the client after all.
    pub(super) fn refuse(&mut self, ask: InputNumber, code: i64, reason: &str) {
        if let Some(open) = self.close(ask) {
            open.refuse(&self.route, code, reason);
        }
    }

    /// Nobody answers any more: the server is told so in the way of the question.
    pub(super) fn decline(&mut self, ask: InputNumber) {
        let Some(open) = self.close(ask) else { return };
        open.decline(&self.route);
    }

    /// Those that the client has answered on the stream of the call itself are open no more.
    pub(super) fn close_answered_inline(&mut self) -> Vec<InputNumber> {
        let is_over = |open: &OpenRequest| open.is_answered_inline();
        let over: Vec<_> = self.iter().filter(|(_, open)| is_over(open)).map(|(ask, _)| ask).collect();
        for ask in &over {
            if let Some(open) = self.close(*ask) {
                open.metric.close_answered();
                open.target.withdraw();
            }
        }
        over
    }
}

// === impl OpenQuestion ===

impl OpenRequest {
    /// Whether its answer has passed on the stream where it stood before there was a task.
    pub(super) fn is_answered_inline(&self) -> bool {
        let relayed = self.inline.as_ref().and_then(|put| put.relayed.as_ref());
        relayed.is_some_and(|relayed| !relayed.is_open())
    }

    /// Tells the server that nobody answers.
    pub(super) fn decline(self, route: &str) {
        let is_answered = self.is_answered_inline();
        let Self { asked, target: way, metric: counted, .. } = self;
        match (asked, way) {
            (ServerRequest::Native(_), way) if is_answered => {
                counted.close_answered();
                way.withdraw();
            }
            (ServerRequest::Canonical(request), AnswerTarget::Direct(answer)) => {
                let method = request.kind().method();
                counted.close_uncounted(InputRequestOutcome::Declined);
                let (method, outcome) = (method.as_str(), InputRequestOutcome::Declined);
                InputRequestRefused { route, method, reason: "nobody answered", outcome }.emit();
                answer.respond(
                    elicit::cancelled_answer(request.kind()).map_err(|error| error.as_bytes().clone()),
                );
            }
            // Dropped unanswered, which refuses it.
            (ServerRequest::Native(_), _) | (_, AnswerTarget::Retry(_)) => counted.close_declined(),
        }
    }

    fn refuse(self, route: &str, code: i64, reason: &str) {
        self.metric.close_uncounted(InputRequestOutcome::Refused);
        if let Some(method) = self.asked.method() {
            let outcome = InputRequestOutcome::Refused;
            InputRequestRefused { route, method: method.as_str(), reason, outcome }.emit();
        }
        if let AnswerTarget::Direct(answer) = self.target {
            answer.respond(Err(ErrorObject::new(code, reason).as_bytes().clone()));
        }
    }
}

// === impl Way ===

impl AnswerTarget {
    /// The server wants to hear nothing.
    pub(super) fn withdraw(self) {
        if let Self::Direct(answer) = self {
            answer.discard();
        }
    }
}
