//! What happens to a call, as whoever made it hears of it.

use super::CallError;
use crate::{
    dialect::CallResponse,
    protocol::{ErrorObject, Frame, InputKind, InputRequest, Kind, Method, RequestId},
    telemetry::{InputRequestRefused, metrics::InputRequestOutcome},
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::{collections::BTreeMap, fmt};

/// What becomes of one call, in order. [`UpstreamEvent::Final`], [`UpstreamEvent::InputRequired`] or [`UpstreamEvent::Lost`] is the last.
pub type UpstreamEvents = BoxStream<'static, UpstreamEvent>;

/// Something that happened to a call.
#[derive(Debug)]
pub enum UpstreamEvent {
    /// A notification that belongs to the call: progress, a log message, or one unknown to us.
    Notification(Frame),
    /// The server asks the client something and waits for the answer.
    ServerRequest(PendingServerRequest),
    /// The server withdrew a question it had asked.
    RequestCancelled { id: RequestId },
    /// The server asks, and ends the call with that (2026-07-28, *Multi Round-Trip Requests*): nothing is in
    /// flight until it is made again. The last event of its stream.
    InputRequired(InputRequired),
    /// The server has answered.
    Final(CallResponse),
    /// There will be no response.
    Lost(CallError),
}

/// What a server asks in the course of one call.
pub struct PendingServerRequest {
    pub request: ServerRequest,
    /// The server's id for it.
    pub id: RequestId,
    /// Takes the answer back to the session that asked. Dropped without one, the question is
    /// refused with an error.
    pub responder: Box<dyn Responder>,
}

/// What is asked, as it is put to the client.
#[derive(Debug)]
pub enum ServerRequest {
    /// In the words of 2026-07-28.
    Canonical(InputRequest),
    /// A request of the server's, as it is.
    Native(Frame),
}

/// A call that the server has turned over.
pub struct InputRequired {
    /// What it asks, by its own keys.
    pub requests: Vec<(String, InputRequest)>,
    /// Makes the call again, with the answers by those keys. What else must be sent again, the server's state
    /// among it, is known to whoever made this.
    pub retry: Box<dyn FnOnce(BTreeMap<String, Bytes>) -> UpstreamEvents + Send + Sync>,
}

/// Takes one answer back to the server.
pub trait Responder: Send + Sync {
    /// Sends the JSON-RPC response `{"jsonrpc":"2.0","id":…, <payload>}` where payload is a raw
    /// `result` or `error` value.
    fn respond(self: Box<Self>, outcome: Result<Bytes, Bytes>);

    /// The server took the question back, and wants to hear nothing (2025-11-25, *Cancellation*).
    fn discard(self: Box<Self>);
}

// === impl Asked ===

impl ServerRequest {
    /// The question in the words of 2026-07-28, where it is in those.
    pub fn canonical(&self) -> Option<&InputRequest> {
        match self {
            Self::Canonical(request) => Some(request),
            Self::Native(_) => None,
        }
    }

    /// What may be asked by one of the two names the revisions have for it, if it is that.
    pub fn kind(&self) -> Option<InputKind> {
        match self {
            Self::Canonical(request) => Some(request.kind()),
            Self::Native(frame) => InputRequest::of(frame).map(|request| request.kind()),
        }
    }

    /// Its bytes, as the server put it.
    #[expect(clippy::len_without_is_empty, reason = "a question is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Canonical(request) => request.as_bytes().len(),
            Self::Native(frame) => frame.as_bytes().len(),
        }
    }

    /// Its method, as the server named it.
    pub fn method(&self) -> Option<Method> {
        match self {
            Self::Canonical(request) => Some(request.kind().method()),
            Self::Native(frame) => match frame.kind() {
                Kind::Request { method, .. } => Some(method.clone()),
                Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => None,
            },
        }
    }
}

// === impl TurnedOver ===

impl fmt::Debug for InputRequired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnedOver").field("asked", &self.requests).finish_non_exhaustive()
    }
}

// === impl Question ===

impl PendingServerRequest {
    /// Answers that it cannot be put to the client.
    pub fn refuse(self, route: &str, code: i64, reason: &str) {
        if let Some(method) = self.request.method() {
            let outcome = InputRequestOutcome::Refused;
            InputRequestRefused { route, method: method.as_str(), reason, outcome }.emit();
        }
        self.responder.respond(Err(ErrorObject::new(code, reason).as_bytes().clone()));
    }
}

impl fmt::Debug for PendingServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("asked", &self.request).finish_non_exhaustive()
    }
}
