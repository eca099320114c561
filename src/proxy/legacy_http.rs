//! One HTTP request of a legacy client, and its response.

use super::{AccessSummary, DeliveryCommit};
use crate::{
    dialect::{
        Principal,
        legacy::{self, LegacyPost},
    },
    protocol::{ErrorObject, Frame, Payload, RequestId, TraceContext, accept::event_stream},
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
    pub standing: crate::policy::RolloutMembership,
    pub method: http::Method,
    /// The query of the requested URL.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The message, if the body holds exactly one outside of a batch.
    pub message: Option<Frame>,
    /// The messages in the body, as far as they could be read.
    pub post: LegacyPost,
    /// The silence after which an event stream of the server gets a comment.
    pub keep_alive: Duration,
    /// The span of the request, if it is traced.
    pub trace: Option<Arc<TraceContext>>,
}

/// The response to a legacy client.
pub struct LegacyResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: ResponseBody,
}

/// The body of a response to a legacy client.
pub enum ResponseBody {
    /// Complete, or empty.
    Whole(Bytes, AccessSummary),
    /// Complete, with the end of a task; the commit is confirmed once the client's socket has taken it.
    TaskEnd(Bytes, Box<(AccessSummary, DeliveryCommit)>),
    /// Streamed.
    Pieces(BodyStream),
}

/// A streamed body. The client has disconnected if the stream is dropped before its end, which cancels
/// nothing.
pub type BodyStream = BoxStream<'static, BodyPiece>;

/// The next piece of a body.
#[derive(Debug)]
pub struct BodyPiece {
    pub bytes: Bytes,
    /// Set when all requests have been answered, with this piece or before.
    pub account: Option<AccessSummary>,
    pub then: BodyContinuation,
    /// For the end of a task: confirmed once the client's socket has taken the bytes.
    pub commit: Option<DeliveryCommit>,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyContinuation {
    More,
    /// The body ends.
    End,
    /// The body breaks off: the client must not take it for complete.
    Break,
}

// === impl BodyPiece ===

impl BodyPiece {
    pub(super) fn of(bytes: Bytes) -> Self {
        Self { bytes, account: None, then: BodyContinuation::More, commit: None }
    }

    pub(super) fn last(bytes: Bytes, account: AccessSummary) -> Self {
        Self { account: Some(account), then: BodyContinuation::End, ..Self::of(bytes) }
    }

    /// The end of the body, without a byte.
    pub fn end() -> Self {
        Self { then: BodyContinuation::End, ..Self::of(Bytes::new()) }
    }
}

// === impl LegacyRequest ===

impl LegacyRequest {
    /// The params of the single request or notification.
    pub(super) fn params(&self) -> Option<&Payload> {
        self.message.as_ref()?.params()
    }

    /// The client's session, for calls in it.
    pub(super) fn session(&self) -> ClientSession {
        ClientSession { principal: self.principal, query: self.query.clone(), headers: self.headers.clone() }
    }
}

/// A result of the proxy.
pub(super) fn success(id: &RequestId, result: &[u8], account: AccessSummary) -> LegacyResponse {
    json_response(legacy::success_response(id, result), account)
}

/// A refusal of the proxy.
pub(super) fn refusal(id: &RequestId, error: &ErrorObject) -> LegacyResponse {
    let account = AccessSummary::failed(RequestOutcome::Refused, error);
    refused(StatusCode::OK, std::slice::from_ref(id), error, account)
}

/// A refusal of these requests; if there are none, only the status reports it.
pub(super) fn refused(
    status: StatusCode,
    waiting: &[RequestId],
    error: &ErrorObject,
    account: AccessSummary,
) -> LegacyResponse {
    LegacyResponse { status, ..json_response(legacy::error_responses(waiting, error), account) }
}

pub(super) fn json_response(body: Bytes, account: AccessSummary) -> LegacyResponse {
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    LegacyResponse { status: StatusCode::OK, headers, body: ResponseBody::Whole(body, account) }
}

/// The same with the end of a task, if it has ended.
pub(super) fn task_end(
    body: Bytes,
    account: AccessSummary,
    commit: Option<DeliveryCommit>,
) -> LegacyResponse {
    let passed = json_response(body, account);
    match (passed.body, commit) {
        (ResponseBody::Whole(body, account), Some(commit)) => {
            LegacyResponse { body: ResponseBody::TaskEnd(body, Box::new((account, commit))), ..passed }
        }
        (body, _) => LegacyResponse { body, ..passed },
    }
}

/// The response to a message that is not a request, or to a request without a result.
pub(super) fn empty_response(status: StatusCode) -> LegacyResponse {
    LegacyResponse {
        status,
        headers: HeaderMap::new(),
        body: ResponseBody::Whole(Bytes::new(), AccessSummary::default()),
    }
}

/// An event stream of the proxy.
pub(super) fn stream_response(body: ResponseBody) -> LegacyResponse {
    LegacyResponse { status: StatusCode::OK, headers: event_stream(), body }
}
