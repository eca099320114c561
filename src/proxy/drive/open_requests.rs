//! The open input requests of one call.

use crate::{
    bridge::{
        elicit::{self, InputKeys},
        exchange::InputNumber,
        offer,
    },
    protocol::{ErrorObject, Kind, Method, RequestId, input::InputResponses},
    proxy::{session::RelayedInputRequest, tasks::watchers::InputFilter},
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
    key_generator: InputKeys,
    /// The number of the next request.
    next_number: InputNumber,
    /// The number of `input_required` results that were sent to the client.
    pub(super) round: u32,
    open: BTreeMap<InputNumber, OpenRequest>,
    /// Incremented whenever a request is recorded or closed: shows whether the stored anchor is out of date.
    pub(super) change_count: u32,
    /// Input responses that came with the call itself.
    supplied: InputResponses,
}

/// An input request without a response.
pub(super) struct OpenRequest {
    /// The key by which clients respond to the request; unique within the call.
    pub(super) key: String,
    /// The request of the server.
    pub(super) request: ServerRequest,
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
    pub(super) is_sent: bool,
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
            key_generator: InputKeys::new(keys.iter().cloned()),
            next_number: 0,
            round: 0,
            open: BTreeMap::new(),
            change_count: 0,
            supplied,
        }
    }

    /// Whether the limits of a call allow this further request.
    pub(super) fn has_capacity_for(&self, server_request: &ServerRequest) -> bool {
        let bytes = self.open.values().map(|open| open.request.len()).sum::<usize>();
        self.open.len() < MAX_OPEN && (self.open.is_empty() || bytes + server_request.len() <= MAX_OPEN_BYTES)
    }

    /// Adds a request with a new key and number. `id` is the server's request id. Returns the number, and the
    /// valid response for the key if one came with the call itself.
    pub(super) fn insert(
        &mut self,
        server_request: ServerRequest,
        id: Option<RequestId>,
        target: AnswerTarget,
        origin: CallOrigin,
    ) -> (InputNumber, Option<Bytes>) {
        let input = self.next_number;
        self.next_number += 1;
        let key = server_request
            .kind()
            .map_or_else(|| format!("request-{input}"), |kind| self.key_generator.next_key(kind));
        let supplied = match &server_request {
            ServerRequest::Canonical(request) => {
                self.supplied.take(&key).and_then(|given| elicit::check_input_response(request, &given).ok())
            }
            ServerRequest::Native(_) => None,
        };
        let metric = self.count_as_open(&server_request, origin);
        self.open.insert(
            input,
            OpenRequest {
                key,
                request: server_request,
                id,
                target,
                is_recorded: false,
                inline: None,
                is_sent: false,
                metric,
            },
        );
        (input, supplied)
    }

    /// Marks keys that earlier requests of the call have used.
    pub(super) fn mark_keys_used(&mut self, keys: &BTreeSet<String>) {
        keys.iter().for_each(|key| self.key_generator.mark_used(key));
    }

    /// Adds a request that the task record contains, under its recorded key.
    pub(super) fn restore(
        &mut self,
        key: String,
        server_request: ServerRequest,
        id: RequestId,
        target: AnswerTarget,
        origin: CallOrigin,
    ) {
        let input = self.next_number;
        self.next_number += 1;
        let (id, metric) = (Some(id), self.count_as_open(&server_request, origin));
        self.open.insert(
            input,
            OpenRequest {
                key,
                request: server_request,
                id,
                target,
                is_recorded: true,
                inline: None,
                is_sent: false,
                metric,
            },
        );
    }

    /// Counts a request as open, by its route, caller and method.
    fn count_as_open(&self, server_request: &ServerRequest, origin: CallOrigin) -> metrics::OpenInputRequest {
        metrics::OpenInputRequest::open(
            &self.route,
            origin,
            server_request.method().as_ref().map_or("", Method::as_str),
        )
    }

    /// The open input request with this number.
    pub(super) fn get(&self, input: InputNumber) -> Option<&OpenRequest> {
        self.open.get(&input)
    }

    /// The open input request with this number.
    pub(super) fn get_mut(&mut self, input: InputNumber) -> Option<&mut OpenRequest> {
        self.open.get_mut(&input)
    }

    /// All open input requests with their numbers, in the order of their arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = (InputNumber, &OpenRequest)> {
        self.open.iter().map(|(input, open)| (*input, open))
    }

    /// The numbers of all open requests, in ascending order.
    pub(super) fn numbers(&self) -> Vec<InputNumber> {
        self.open.keys().copied().collect()
    }

    /// Records that the task record contains the request.
    pub(super) fn mark_recorded(&mut self, input: InputNumber) {
        self.change_count += 1;
        if let Some(open) = self.open.get_mut(&input) {
            open.is_recorded = true;
        }
    }

    /// Records that the request with this key was sent to a client that waited with a ticket, and will call
    /// again with the response.
    pub(super) fn mark_sent(&mut self, key: &str) {
        if let Some(open) = self.open.values_mut().find(|open| open.key == *key) {
            open.is_sent = true;
        }
    }

    /// The number of the open request with this request id of the server.
    pub(super) fn find_by_id(&self, id: &RequestId) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.id.as_ref() == Some(id)).map(|(input, _)| input)
    }

    /// The number of the open request with this key.
    pub(super) fn find_by_key(&self, key: &str) -> Option<InputNumber> {
        self.iter().find(|(_, open)| open.key == key).map(|(input, _)| input)
    }

    /// Removes the request without any message to the server or the client, which the caller sends.
    pub(super) fn close(&mut self, input: InputNumber) -> Option<OpenRequest> {
        self.change_count += 1;
        self.open.remove(&input)
    }

    /// Removes all requests without any message to the server or the client.
    pub(super) fn close_all(&mut self) -> Vec<OpenRequest> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Closes a request with the client's response, a result or an error, and sends the response to the
    /// server. If the server gets it when the call is made again, returns the server's key and the response
    /// instead.
    pub(super) fn respond(
        &mut self,
        input: InputNumber,
        outcome: Result<Bytes, Bytes>,
    ) -> Option<(String, Bytes)> {
        let OpenRequest { request: server_request, target, metric, .. } = self.close(input)?;
        metric.close_answered();
        match target {
            AnswerTarget::Direct(responder) => {
                responder.respond(outcome.map(|result| offer::without_related_task(&result)));
                None
            }
            // A retry cannot carry errors.
            AnswerTarget::Retry(key) => {
                let cancelled =
                    || server_request.kind().and_then(|kind| elicit::cancelled_response(kind).ok());
                outcome.ok().or_else(cancelled).map(|response| (key, response))
            }
        }
    }

    /// Closes a request that cannot be sent to the client, and logs the refusal. A server that waits for the
    /// response gets this JSON-RPC error.
    pub(super) fn refuse(&mut self, input: InputNumber, code: i64, reason: &str) {
        if let Some(open) = self.close(input) {
            open.refuse(&self.route, code, reason);
        }
    }

    /// Closes a request that gets no response from the client, and notifies the server.
    pub(super) fn decline(&mut self, input: InputNumber) {
        let Some(open) = self.close(input) else { return };
        open.decline(&self.route);
    }

    /// Closes the requests to which the client has responded on the stream of the call itself. Returns their
    /// numbers.
    pub(super) fn close_answered_inline(&mut self) -> Vec<InputNumber> {
        let is_answered = |open: &OpenRequest| open.is_answered_inline();
        let closed: Vec<_> =
            self.iter().filter(|(_, open)| is_answered(open)).map(|(input, _)| input).collect();
        for input in &closed {
            if let Some(open) = self.close(*input) {
                open.metric.close_answered();
                open.target.withdraw();
            }
        }
        closed
    }
}

// === impl OpenRequest ===

impl OpenRequest {
    /// Whether a client with these capabilities can receive the request.
    pub(super) fn can_be_sent_to(&self, filter: &InputFilter) -> bool {
        match &self.request {
            ServerRequest::Canonical(request) => filter.allows(request),
            ServerRequest::Native(frame) => match frame.kind() {
                Kind::Request { method, params, .. } => filter.allows_method(method, params.as_deref()),
                Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => true,
            },
        }
    }

    /// Whether the client's response was relayed on the stream of the call itself.
    pub(super) fn is_answered_inline(&self) -> bool {
        let relayed = self.inline.as_ref().and_then(|inline| inline.relayed.as_ref());
        relayed.is_some_and(|relayed| !relayed.is_open())
    }

    /// Notifies the server that the client gives no response: with a `cancel` result, or an error.
    pub(super) fn decline(self, route: &str) {
        let is_answered = self.is_answered_inline();
        let Self { request: server_request, target, metric, .. } = self;
        match (server_request, target) {
            (ServerRequest::Native(_), target) if is_answered => {
                metric.close_answered();
                target.withdraw();
            }
            (ServerRequest::Canonical(request), AnswerTarget::Direct(responder)) => {
                let method = request.kind().method();
                metric.close_uncounted(InputRequestOutcome::Declined);
                let (method, outcome) = (method.as_str(), InputRequestOutcome::Declined);
                InputRequestRefused { route, method, reason: "no response", outcome }.emit();
                responder.respond(
                    elicit::cancelled_response(request.kind()).map_err(|error| error.as_bytes().clone()),
                );
            }
            // The responder is dropped, which refuses the request at the server.
            (ServerRequest::Native(_), _) | (_, AnswerTarget::Retry(_)) => metric.close_declined(),
        }
    }

    /// Logs the refusal. A server that waits for the response gets this JSON-RPC error.
    pub(super) fn refuse(self, route: &str, code: i64, reason: &str) {
        self.metric.close_uncounted(InputRequestOutcome::Refused);
        if let Some(method) = self.request.method() {
            let outcome = InputRequestOutcome::Refused;
            InputRequestRefused { route, method: method.as_str(), reason, outcome }.emit();
        }
        if let AnswerTarget::Direct(responder) = self.target {
            responder.respond(Err(ErrorObject::new(code, reason).as_bytes().clone()));
        }
    }
}

// === impl AnswerTarget ===

impl AnswerTarget {
    /// Drops the responder without a message to the server: the server needs no response, or gets it in
    /// another way.
    pub(super) fn withdraw(self) {
        if let Self::Direct(responder) = self {
            responder.discard();
        }
    }
}
