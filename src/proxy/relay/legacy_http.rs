//! One HTTP request of a legacy client, and its response.

use crate::{
    dialect::{
        Principal,
        legacy::{self, LegacyPost},
    },
    protocol::{ErrorObject, Frame, Payload, RequestId, TraceContext, accept::event_stream_headers},
    proxy::{AccessSummary, DeliveryCommit},
    telemetry::RequestOutcome,
    upstream::ClientSession,
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use std::{sync::Arc, time::Duration};

/// One HTTP request of a legacy client.
#[derive(Debug)]
pub struct LegacyRequest {
    pub principal: Principal,
    /// The rollouts of the route that include the caller.
    pub rollout_membership: crate::policy::RolloutMembership,
    /// The HTTP method.
    pub method: http::Method,
    /// The query of the requested URL.
    pub query: Option<String>,
    /// The request headers.
    pub headers: HeaderMap,
    /// The raw request body.
    pub body: Bytes,
    /// The JSON-RPC message in the body; `None` if the body is a batch, or is not one message.
    pub message: Option<Frame>,
    /// All JSON-RPC messages in the body, as far as they could be parsed.
    pub post: LegacyPost,
    /// How long an event stream of the server may be silent before the client is sent an SSE comment.
    pub keep_alive: Duration,
    /// The span of the request, if it is traced.
    pub trace: Option<Arc<TraceContext>>,
}

/// The response to a legacy client.
pub struct LegacyResponse {
    /// The HTTP status.
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: ResponseBody,
}

/// The body of a response to a legacy client.
pub enum ResponseBody {
    /// Complete, or empty.
    Complete(Bytes, AccessSummary),
    /// Complete, with the end of a task. The commit is confirmed once the bytes are written to the client's
    /// socket.
    TaskEnd(Bytes, Box<(AccessSummary, DeliveryCommit)>),
    /// Streamed.
    Stream(BodyStream),
}

/// A streamed body. If the stream is dropped before its end, the client has disconnected; this does not
/// cancel a request.
pub type BodyStream = BoxStream<'static, BodyPiece>;

/// One piece of a streamed body.
#[derive(Debug)]
pub struct BodyPiece {
    /// The bytes to send; may be empty.
    pub bytes: Bytes,
    /// The summary for the access log; `None` until all requests have been answered, in this piece or an
    /// earlier one.
    pub summary: Option<AccessSummary>,
    /// Whether more pieces follow.
    pub continuation: BodyContinuation,
    /// For the end of a task: confirmed once the bytes are written to the client's socket.
    pub commit: Option<DeliveryCommit>,
}

/// What follows a piece of a streamed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyContinuation {
    /// Another piece follows.
    More,
    /// The body is complete.
    End,
    /// The body is incomplete: the connection is aborted, so that the client does not take the body for
    /// complete.
    Abort,
}

// === impl BodyPiece ===

impl BodyPiece {
    /// A piece that is followed by others.
    pub(in crate::proxy) fn from_bytes(bytes: Bytes) -> Self {
        Self { bytes, summary: None, continuation: BodyContinuation::More, commit: None }
    }

    /// The last piece of a body, with the summary for the access log.
    pub(in crate::proxy) fn last(bytes: Bytes, summary: AccessSummary) -> Self {
        Self { summary: Some(summary), continuation: BodyContinuation::End, ..Self::from_bytes(bytes) }
    }

    /// An empty last piece, which ends the body.
    pub fn end() -> Self {
        Self { continuation: BodyContinuation::End, ..Self::from_bytes(Bytes::new()) }
    }
}

// === impl LegacyRequest ===

impl LegacyRequest {
    /// The params of the message; `None` if the body is not a single message with params.
    pub(in crate::proxy) fn params(&self) -> Option<&Payload> {
        self.message.as_ref()?.params()
    }

    /// The client's session and credentials, with which the proxy sends its own requests in that session.
    pub(in crate::proxy) fn client_session(&self) -> ClientSession {
        ClientSession { principal: self.principal, query: self.query.clone(), headers: self.headers.clone() }
    }
}

/// A response with a result of the proxy.
pub(in crate::proxy) fn result_response(
    id: &RequestId,
    result: &[u8],
    summary: AccessSummary,
) -> LegacyResponse {
    json_response(legacy::success_response(id, result), summary)
}

/// A response in which the proxy refuses one request: a JSON-RPC error with HTTP status 200.
pub(in crate::proxy) fn refusal_response(id: &RequestId, error: &ErrorObject) -> LegacyResponse {
    let summary = AccessSummary::failed(RequestOutcome::Refused, error);
    refuse_requests(StatusCode::OK, std::slice::from_ref(id), error, summary)
}

/// A response in which the proxy refuses these requests, each with the same error. Without requests the error
/// has no id, and clients see only the HTTP status.
pub(in crate::proxy) fn refuse_requests(
    status: StatusCode,
    requests: &[RequestId],
    error: &ErrorObject,
    summary: AccessSummary,
) -> LegacyResponse {
    LegacyResponse { status, ..json_response(legacy::error_responses(requests, error), summary) }
}

/// A response with this JSON body and status 200.
pub(in crate::proxy) fn json_response(body: Bytes, summary: AccessSummary) -> LegacyResponse {
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    LegacyResponse { status: StatusCode::OK, headers, body: ResponseBody::Complete(body, summary) }
}

/// A response with this JSON body and status 200. `commit` is given if the body contains the end of a task.
pub(in crate::proxy) fn task_end_response(
    body: Bytes,
    summary: AccessSummary,
    commit: Option<DeliveryCommit>,
) -> LegacyResponse {
    let response = json_response(body, summary);
    match (response.body, commit) {
        (ResponseBody::Complete(body, summary), Some(commit)) => {
            LegacyResponse { body: ResponseBody::TaskEnd(body, Box::new((summary, commit))), ..response }
        }
        (body, _) => LegacyResponse { body, ..response },
    }
}

/// The response to a message that is not a request, or to a request without a result.
pub(in crate::proxy) fn empty_response(status: StatusCode) -> LegacyResponse {
    LegacyResponse {
        status,
        headers: HeaderMap::new(),
        body: ResponseBody::Complete(Bytes::new(), AccessSummary::default()),
    }
}

/// A response with this body as an event stream of the proxy.
pub(in crate::proxy) fn stream_response(body: ResponseBody) -> LegacyResponse {
    LegacyResponse { status: StatusCode::OK, headers: event_stream_headers(), body }
}
