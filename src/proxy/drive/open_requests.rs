//! The open input requests of one call.

use crate::{
    bridge::{
        elicit::{self, InputKeys},
        exchange::InputNumber,
        offer,
    },
    protocol::{ErrorObject, Kind, Method, RequestId, input::InputResponses},
    proxy::{session::RelayedInputRequest, task_watchers::Askable},
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

/// The open input requests of one call, by number.
pub(super) struct OpenRequests {
    route: Arc<str>,
    keys: InputKeys,
    next: InputNumber,
    /// The number of `input_required` results that were sent to the client.
    pub(super) round: u32,
    open: BTreeMap<InputNumber, OpenRequest>,
    /// Counts recorded and closed requests.
    pub(super) changes: u32,
    /// Input responses that came with the call itself.
    supplied: InputResponses,
}

/// An input request without a response.
pub(super) struct OpenRequest {
    /// The key within the call.
    pub(super) key: String,
    pub(super) asked: ServerRequest,
    /// The server's id; none in an `input_required` result.
    pub(super) id: Option<RequestId>,
    pub(super) target: AnswerTarget,
    /// Whether the task record holds the request.
    pub(super) is_recorded: bool,
    /// Set if it was sent on the stream of the call itself, before there was a task.
    pub(super) inline: Option<InlineRequest>,
    /// It was the answer to a request that waited with a ticket, and another is to bring its answer.
    pub(super) mark_sent: bool,
    metric: metrics::OpenInputRequest,
}

/// How the response reaches the server.
pub(super) enum AnswerTarget {
    /// Directly: the call waits for it.
    Direct(Box<dyn Responder>),
    /// Under this key, when the call is made again.
    Retry(String),
}

/// An input request that was sent on the stream of the call itself.
pub(super) struct InlineRequest {
    /// The registration for the client's response, which is relayed. None if the session has no id: then the
    /// response cannot be attributed.
    pub(super) relayed: Option<RelayedInputRequest>,
}

/// Open input requests of one call; further ones are refused with an error.
pub(in crate::proxy) const MAX_OPEN: usize = 64;
/// Their total bytes. A single one may be larger.
const MAX_OPEN_BYTES: usize = 16 << 20;

// === impl OpenRequests ===

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

    /// Whether there is space for this request.
    pub(super) fn has_room(&self, asked: &ServerRequest) -> bool {
        let bytes = self.open.values().map(|open| open.asked.len()).sum::<usize>();
        self.open.len() < MAX_OPEN && (self.open.is_empty() || bytes + asked.len() <= MAX_OPEN_BYTES)
    }

    /// Adds a request with a new key and number. If the call came with a response for that key, the response
    /// is returned.
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
                self.supplied.take(&key).and_then(|given| elicit::check_input_response(request, &given).ok())
            }
            ServerRequest::Native(_) => None,
        };
        let counted = self.count_open(&asked, origin);
        self.open.insert(
            ask,
            OpenRequest {
                key,
                asked,
                id,
                target: way,
                is_recorded: false,
                inline: None,
                mark_sent: false,
                metric: counted,
            },
        );
        (ask, supplied)
    }

    /// Marks keys that earlier requests of the call have used.
    pub(super) fn mark_keys_used(&mut self, keys: &BTreeSet<String>) {
        keys.iter().for_each(|key| self.keys.mark_used(key));
    }

    /// Restores a request that the record holds.
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
            OpenRequest {
                key,
                asked,
                id,
                target: way,
                is_recorded: true,
                inline: None,
                mark_sent: false,
                metric: counted,
            },
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

    /// Marks the request as held by the task record.
    pub(super) fn mark_recorded(&mut self, ask: InputNumber) {
        self.changes += 1;
        if let Some(open) = self.open.get_mut(&ask) {
            open.is_recorded = true;
        }
    }

    /// A client has been sent the question, and comes back with an answer.
    pub(super) fn mark_sent(&mut self, key: &str) {
        if let Some(open) = self.open.values_mut().find(|open| open.key == *key) {
            open.mark_sent = true;
        }
    }

    /// The request with this id of the server.
    pub(super) fn by_id(&self, id: &RequestId) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.id.as_ref() == Some(id)).map(|(ask, _)| ask)
    }

    pub(super) fn by_key(&self, key: &str) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.key == key).map(|(ask, _)| ask)
    }

    /// Removes the request. The caller handles its end.
    pub(super) fn close(&mut self, ask: InputNumber) -> Option<OpenRequest> {
        self.changes += 1;
        self.open.remove(&ask)
    }

    /// Removes all requests.
    pub(super) fn close_all(&mut self) -> Vec<OpenRequest> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Handles the client's response, a result or an error. Returns the response with its key if the server
    /// gets it when the call is made again.
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
            // A retry cannot carry errors.
            AnswerTarget::Retry(key) => {
                let declined = || asked.kind().and_then(|kind| elicit::cancelled_response(kind).ok());
                outcome.ok().or_else(declined).map(|answer| (key, answer))
            }
        }
    }

    /// Refuses a request that cannot be sent to the client.
    pub(super) fn refuse(&mut self, ask: InputNumber, code: i64, reason: &str) {
        if let Some(open) = self.close(ask) {
            open.refuse(&self.route, code, reason);
        }
    }

    /// Declines a request without a response, in the way of its target.
    pub(super) fn decline(&mut self, ask: InputNumber) {
        let Some(open) = self.close(ask) else { return };
        open.decline(&self.route);
    }

    /// Closes the requests that the client has answered on the stream of the call itself.
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

// === impl OpenRequest ===

impl OpenRequest {
    /// Whether it is something that a client can be asked.
    pub(super) fn can_be_put_to(&self, askable: &Askable) -> bool {
        match &self.asked {
            ServerRequest::Canonical(request) => askable.allows(request),
            ServerRequest::Native(frame) => match frame.kind() {
                Kind::Request { method, params, .. } => askable.allows_method(method, params.as_deref()),
                Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => true,
            },
        }
    }

    /// Whether the response was relayed on the stream of the call itself.
    pub(super) fn is_answered_inline(&self) -> bool {
        let relayed = self.inline.as_ref().and_then(|put| put.relayed.as_ref());
        relayed.is_some_and(|relayed| !relayed.is_open())
    }

    /// Notifies the server that there is no response.
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
                InputRequestRefused { route, method, reason: "no response", outcome }.emit();
                answer.respond(
                    elicit::cancelled_response(request.kind()).map_err(|error| error.as_bytes().clone()),
                );
            }
            // Dropping the responder refuses the request.
            (ServerRequest::Native(_), _) | (_, AnswerTarget::Retry(_)) => counted.close_declined(),
        }
    }

    pub(super) fn refuse(self, route: &str, code: i64, reason: &str) {
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

// === impl AnswerTarget ===

impl AnswerTarget {
    /// Drops the request without any response to the server.
    pub(super) fn withdraw(self) {
        if let Self::Direct(answer) = self {
            answer.discard();
        }
    }
}
