//! Events of a call, as its caller receives them.

use super::CallError;
use crate::{
    dialect::CallResponse,
    protocol::{ErrorObject, Frame, InputKind, InputRequest, Kind, Method, RequestId},
    telemetry::{InputRequestRefused, metrics::InputRequestOutcome},
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::{collections::BTreeMap, fmt};

/// Events of one call, in order. [`UpstreamEvent::Final`], [`UpstreamEvent::InputRequired`] or
/// [`UpstreamEvent::Lost`] is the last.
pub type UpstreamEvents = BoxStream<'static, UpstreamEvent>;

/// An event of a call.
#[derive(Debug)]
pub enum UpstreamEvent {
    /// A notification that belongs to the call: progress, a log message, or an unknown method.
    Notification(Frame),
    /// A request of the server to the client, whose response the server awaits.
    ServerRequest(PendingServerRequest),
    /// The server cancelled the request with this id, which it had sent before.
    RequestCancelled { id: RequestId },
    /// The server ended the call with input requests (2026-07-28, *Multi Round-Trip Requests*); nothing is in
    /// flight until the call is retried. The last event of its stream.
    InputRequired(InputRequired),
    /// The server's response.
    Final(CallResponse),
    /// The call failed: no response will arrive.
    Lost(CallError),
}

/// A request of the server during a call, with the way to respond.
pub struct PendingServerRequest {
    pub request: ServerRequest,
    /// The server's request id.
    pub id: RequestId,
    /// Sends the response in the session of the request. The request is rejected with an error if this is
    /// dropped unused.
    pub responder: Box<dyn Responder>,
}

/// A request of the server, in the form in which the client gets it.
#[derive(Debug)]
pub enum ServerRequest {
    /// An input request in the format of 2026-07-28.
    Canonical(InputRequest),
    /// The server's request unchanged.
    Native(Frame),
}

/// A call that ended with an `input_required` result.
pub struct InputRequired {
    /// Input requests by the server's keys.
    pub requests: Vec<(String, InputRequest)>,
    /// Retries the call with the responses under those keys. The closure holds what else must be sent again,
    /// such as the server's request state.
    pub retry: Box<dyn FnOnce(BTreeMap<String, Bytes>) -> UpstreamEvents + Send + Sync>,
}

/// Sends the response to one request of a server.
pub trait Responder: Send + Sync {
    /// Sends the response: `Ok` holds the raw JSON of `result`, `Err` that of `error`.
    fn respond(self: Box<Self>, outcome: Result<Bytes, Bytes>);

    /// Drops the request without a response, because the server has cancelled it (2025-11-25,
    /// *Cancellation*).
    fn discard(self: Box<Self>);
}

// === impl ServerRequest ===

impl ServerRequest {
    /// The input request, if it is in the format of 2026-07-28.
    pub fn canonical(&self) -> Option<&InputRequest> {
        match self {
            Self::Canonical(request) => Some(request),
            Self::Native(_) => None,
        }
    }

    /// Kind of the input request, by either of its two method names; `None` for other requests.
    pub fn kind(&self) -> Option<InputKind> {
        match self {
            Self::Canonical(request) => Some(request.kind()),
            Self::Native(frame) => InputRequest::from_frame(frame).map(|request| request.kind()),
        }
    }

    /// Size of the request in bytes, as the server sent it.
    #[expect(clippy::len_without_is_empty, reason = "a question is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Canonical(request) => request.as_bytes().len(),
            Self::Native(frame) => frame.as_bytes().len(),
        }
    }

    /// Method, as the server named it.
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

// === impl InputRequired ===

impl fmt::Debug for InputRequired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputRequired").field("requests", &self.requests).finish_non_exhaustive()
    }
}

// === impl PendingServerRequest ===

impl PendingServerRequest {
    /// Rejects the request with an error of this code and reason, and counts it as refused in the metrics of
    /// the route.
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
        f.debug_struct("PendingServerRequest").field("request", &self.request).finish_non_exhaustive()
    }
}
