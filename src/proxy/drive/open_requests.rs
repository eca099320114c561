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

/// The input requests of one call that have no response yet, by number.
pub(super) struct OpenRequests {
    /// The path of the route, for the log and the metrics.
    route: Arc<str>,
    /// Generates the key of each request.
    keys: InputKeys,
    /// The number of the next request.
    next: InputNumber,
    /// The number of `input_required` results that were sent to the client.
    pub(super) round: u32,
    open: BTreeMap<InputNumber, OpenRequest>,
    /// Incremented whenever a request is recorded or closed: shows whether the stored anchor is out of date.
    pub(super) changes: u32,
    /// Input responses that came with the call itself.
    supplied: InputResponses,
}

/// An input request without a response.
pub(super) struct OpenRequest {
    /// The key by which clients respond to the request; unique within the call.
    pub(super) key: String,
    /// The request of the server.
    pub(super) asked: ServerRequest,
    /// The server's request id; `None` for a request of an `input_required` result.
    pub(super) id: Option<RequestId>,
    /// How the response reaches the server.
    pub(super) target: AnswerTarget,
    /// Whether the task record contains the request.
    pub(super) is_recorded: bool,
    /// Set if the request was sent on the stream of the call itself, before the call became a task.
    pub(super) inline: Option<InlineRequest>,
    /// Whether the request was sent to a client that waited with a ticket, in the reply to its request: the
    /// client will call again with the response.
    pub(super) mark_sent: bool,
    /// Counts the request as open until it is closed.
    metric: metrics::OpenInputRequest,
}

/// How the response to an input request reaches the server.
pub(super) enum AnswerTarget {
    /// Directly: the call at the server waits for the response.
    Direct(Box<dyn Responder>),
    /// When the call is made again, under this key of the server: the server ended the call with
    /// `input_required`.
    Retry(String),
}

/// An input request that was sent on the stream of the call itself.
pub(super) struct InlineRequest {
    /// The registration for the client's response, which is relayed. `None` if the session has no id: then
    /// the response cannot be attributed.
    pub(super) relayed: Option<RelayedInputRequest>,
}

/// The maximum number of open input requests of one call; further ones are refused with an error.
pub(in crate::proxy) const MAX_OPEN: usize = 64;
/// The maximum total size of the open input requests of one call, in bytes. A single request may be larger.
const MAX_OPEN_BYTES: usize = 16 << 20;

// === impl OpenRequests ===

impl OpenRequests {
    /// Creates an empty collection. `keys` are the configured keys for the first requests; `supplied` are the
    /// input responses that came with the call itself.
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

    /// Whether the limits of a call allow this further request.
    pub(super) fn has_room(&self, asked: &ServerRequest) -> bool {
        let bytes = self.open.values().map(|open| open.asked.len()).sum::<usize>();
        self.open.len() < MAX_OPEN && (self.open.is_empty() || bytes + asked.len() <= MAX_OPEN_BYTES)
    }

    /// Adds a request with a new key and number. `id` is the server's request id. Returns the number, and the
    /// valid response for the key if one came with the call itself.
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

    /// Adds a request that the task record contains, under its recorded key.
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

    /// Counts a request as open, by its route, caller and method.
    fn count_open(&self, asked: &ServerRequest, origin: CallOrigin) -> metrics::OpenInputRequest {
        metrics::OpenInputRequest::open(
            &self.route,
            origin,
            asked.method().as_ref().map_or("", Method::as_str),
        )
    }

    /// The open input request with this number.
    pub(super) fn get(&self, ask: InputNumber) -> Option<&OpenRequest> {
        self.open.get(&ask)
    }

    /// The open input request with this number.
    pub(super) fn get_mut(&mut self, ask: InputNumber) -> Option<&mut OpenRequest> {
        self.open.get_mut(&ask)
    }

    /// All open input requests with their numbers, in the order of their arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = (InputNumber, &OpenRequest)> {
        self.open.iter().map(|(ask, open)| (*ask, open))
    }

    /// The numbers of all open requests, in ascending order.
    pub(super) fn ids(&self) -> Vec<InputNumber> {
        self.open.keys().copied().collect()
    }

    /// Records that the task record contains the request.
    pub(super) fn mark_recorded(&mut self, ask: InputNumber) {
        self.changes += 1;
        if let Some(open) = self.open.get_mut(&ask) {
            open.is_recorded = true;
        }
    }

    /// Records that the request with this key was sent to a client that waited with a ticket, and will call
    /// again with the response.
    pub(super) fn mark_sent(&mut self, key: &str) {
        if let Some(open) = self.open.values_mut().find(|open| open.key == *key) {
            open.mark_sent = true;
        }
    }

    /// The number of the open request with this request id of the server.
    pub(super) fn by_id(&self, id: &RequestId) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.id.as_ref() == Some(id)).map(|(ask, _)| ask)
    }

    /// The number of the open request with this key.
    pub(super) fn by_key(&self, key: &str) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.key == key).map(|(ask, _)| ask)
    }

    /// Removes the request without any message to the server or the client, which the caller sends.
    pub(super) fn close(&mut self, ask: InputNumber) -> Option<OpenRequest> {
        self.changes += 1;
        self.open.remove(&ask)
    }

    /// Removes all requests without any message to the server or the client.
    pub(super) fn close_all(&mut self) -> Vec<OpenRequest> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Closes a request with the client's response, a result or an error, and sends the response to the
    /// server. If the server gets it when the call is made again, returns the server's key and the response
    /// instead.
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

    /// Closes a request that cannot be sent to the client, and sends the server this JSON-RPC error.
    pub(super) fn refuse(&mut self, ask: InputNumber, code: i64, reason: &str) {
        if let Some(open) = self.close(ask) {
            open.refuse(&self.route, code, reason);
        }
    }

    /// Closes a request that gets no response from the client, and notifies the server.
    pub(super) fn decline(&mut self, ask: InputNumber) {
        let Some(open) = self.close(ask) else { return };
        open.decline(&self.route);
    }

    /// Closes the requests to which the client has responded on the stream of the call itself. Returns their
    /// numbers.
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
    /// Whether a client with these capabilities can receive the request.
    pub(super) fn can_be_put_to(&self, askable: &Askable) -> bool {
        match &self.asked {
            ServerRequest::Canonical(request) => askable.allows(request),
            ServerRequest::Native(frame) => match frame.kind() {
                Kind::Request { method, params, .. } => askable.allows_method(method, params.as_deref()),
                Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => true,
            },
        }
    }

    /// Whether the client's response was relayed on the stream of the call itself.
    pub(super) fn is_answered_inline(&self) -> bool {
        let relayed = self.inline.as_ref().and_then(|put| put.relayed.as_ref());
        relayed.is_some_and(|relayed| !relayed.is_open())
    }

    /// Notifies the server that the client gives no response: with a `cancel` result, or an error.
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
            // The responder is dropped, which refuses the request at the server.
            (ServerRequest::Native(_), _) | (_, AnswerTarget::Retry(_)) => counted.close_declined(),
        }
    }

    /// Sends the server this JSON-RPC error as the response, and logs the refusal.
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
    /// Drops the responder without a message to the server: the server needs no response, or gets it in
    /// another way.
    pub(super) fn withdraw(self) {
        if let Self::Direct(answer) = self {
            answer.discard();
        }
    }
}
