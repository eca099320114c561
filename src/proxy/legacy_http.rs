//! One HTTP request of a legacy client, and what it is answered with.

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
    /// For which rollouts of the route the caller is in.
    pub standing: crate::policy::RolloutMembership,
    pub method: http::Method,
    /// The query of the URL that was called.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The one message that the body holds; none where it is a batch, or none.
    pub message: Option<Frame>,
    /// What the body holds, as far as it could be read.
    pub post: LegacyPost,
    /// After this much silence an event stream that the server has begun gets a comment.
    pub keep_alive: Duration,
    /// The span of the request, where it is traced.
    pub trace: Option<Arc<TraceContext>>,
}

/// What a legacy client is answered with.
pub struct LegacyResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: ResponseBody,
}

/// The body of a legacy client's answer.
pub enum ResponseBody {
    /// It is there, or there is none.
    Whole(Bytes, AccessSummary),
    /// The same with the end of a task, to be confirmed once the client's socket has taken it.
    TaskEnd(Bytes, Box<(AccessSummary, DeliveryCommit)>),
    /// It is still coming.
    Pieces(BodyStream),
}

/// A body as it comes. Dropping the stream before its end means the client has left, which
/// cancels nothing.
pub type BodyStream = BoxStream<'static, BodyPiece>;

/// The next of a body.
#[derive(Debug)]
pub struct BodyPiece {
    pub bytes: Bytes,
    /// Once all that was asked has been answered, with this piece or before.
    pub account: Option<AccessSummary>,
    pub then: BodyContinuation,
    /// Of the end of a task: to be confirmed once the client's socket has taken the bytes.
    pub commit: Option<DeliveryCommit>,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyContinuation {
    More,
    /// The body ends.
    End,
    /// The body breaks off: the client must not take it for whole.
    Break,
}

// === impl Piece ===

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

// === impl Passage ===

impl LegacyRequest {
    /// The params of the one request or notification that it is.
    pub(super) fn params(&self) -> Option<&Payload> {
        self.message.as_ref()?.params()
    }

    /// The client's session, as calls in it are made.
    pub(super) fn session(&self) -> ClientSession {
        ClientSession { principal: self.principal, query: self.query.clone(), headers: self.headers.clone() }
    }
}

/// A result of ours.
pub(super) fn success(id: &RequestId, result: &[u8], account: AccessSummary) -> LegacyResponse {
    json_response(legacy::success(id, result), account)
}

/// A refusal of ours.
pub(super) fn refusal(id: &RequestId, error: &ErrorObject) -> LegacyResponse {
    let account = AccessSummary::failed(RequestOutcome::Refused, error);
    refused(StatusCode::OK, std::slice::from_ref(id), error, account)
}

/// A refusal of these requests; of none where nothing waits, so that the status alone tells.
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

/// The same with the end of a task, where it has ended.
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

/// What answers a message that is no request, or a request that wants no result.
pub(super) fn empty_response(status: StatusCode) -> LegacyResponse {
    LegacyResponse {
        status,
        headers: HeaderMap::new(),
        body: ResponseBody::Whole(Bytes::new(), AccessSummary::default()),
    }
}

/// An event stream of ours.
pub(super) fn stream_response(body: ResponseBody) -> LegacyResponse {
    LegacyResponse { status: StatusCode::OK, headers: event_stream(), body }
}
