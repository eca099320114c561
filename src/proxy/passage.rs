//! One HTTP request of a legacy client, and what it is answered with.

use super::{AccessSummary, Commit};
use crate::{
    dialect::{
        Principal,
        legacy::{self, Post},
    },
    protocol::{ErrorObject, Frame, Id, Payload, TraceContext, accept::event_stream},
    telemetry::Outcome,
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
pub struct Passage {
    pub principal: Principal,
    /// For which rollouts of the route the caller is in.
    pub standing: crate::policy::Standing,
    pub method: http::Method,
    /// The query of the URL that was called.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The one message that the body holds; none where it is a batch, or none.
    pub message: Option<Frame>,
    /// What the body holds, as far as it could be read.
    pub post: Post,
    /// After this much silence an event stream that the server has begun gets a comment.
    pub keep_alive: Duration,
    /// The span of the request, where it is traced.
    pub trace: Option<Arc<TraceContext>>,
}

/// What a legacy client is answered with.
pub struct Passed {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Passing,
}

/// The body of a legacy client's answer.
pub enum Passing {
    /// It is there, or there is none.
    Whole(Bytes, AccessSummary),
    /// The same with the end of a task, to be confirmed once the client's socket has taken it.
    TaskEnd(Bytes, Box<(AccessSummary, Commit)>),
    /// It is still coming.
    Pieces(Pieces),
}

/// A body as it comes. Dropping the stream before its end means the client has left, which
/// cancels nothing.
pub type Pieces = BoxStream<'static, Piece>;

/// The next of a body.
#[derive(Debug)]
pub struct Piece {
    pub bytes: Bytes,
    /// Once all that was asked has been answered, with this piece or before.
    pub account: Option<AccessSummary>,
    pub then: Then,
    /// Of the end of a task: to be confirmed once the client's socket has taken the bytes.
    pub commit: Option<Commit>,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    More,
    /// The body ends.
    End,
    /// The body breaks off: the client must not take it for whole.
    Break,
}

// === impl Piece ===

impl Piece {
    pub(super) fn of(bytes: Bytes) -> Self {
        Self { bytes, account: None, then: Then::More, commit: None }
    }

    pub(super) fn last(bytes: Bytes, account: AccessSummary) -> Self {
        Self { account: Some(account), then: Then::End, ..Self::of(bytes) }
    }

    /// The end of the body, without a byte.
    pub fn end() -> Self {
        Self { then: Then::End, ..Self::of(Bytes::new()) }
    }
}

// === impl Passage ===

impl Passage {
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
pub(super) fn success(id: &Id, result: &[u8], account: AccessSummary) -> Passed {
    document(legacy::success(id, result), account)
}

/// A refusal of ours.
pub(super) fn refusal(id: &Id, error: &ErrorObject) -> Passed {
    let account = AccessSummary::failed(Outcome::Refused, error);
    refused(StatusCode::OK, std::slice::from_ref(id), error, account)
}

/// A refusal of these requests; of none where nothing waits, so that the status alone tells.
pub(super) fn refused(
    status: StatusCode,
    waiting: &[Id],
    error: &ErrorObject,
    account: AccessSummary,
) -> Passed {
    Passed { status, ..document(legacy::refusal(waiting, error), account) }
}

pub(super) fn document(body: Bytes, account: AccessSummary) -> Passed {
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, body.len().into()),
    ]);
    Passed { status: StatusCode::OK, headers, body: Passing::Whole(body, account) }
}

/// The same with the end of a task, where it has ended.
pub(super) fn task_end(body: Bytes, account: AccessSummary, commit: Option<Commit>) -> Passed {
    let passed = document(body, account);
    match (passed.body, commit) {
        (Passing::Whole(body, account), Some(commit)) => {
            Passed { body: Passing::TaskEnd(body, Box::new((account, commit))), ..passed }
        }
        (body, _) => Passed { body, ..passed },
    }
}

/// What answers a message that is no request, or a request that wants no result.
pub(super) fn nothing(status: StatusCode) -> Passed {
    Passed { status, headers: HeaderMap::new(), body: Passing::Whole(Bytes::new(), AccessSummary::default()) }
}

/// An event stream of ours.
pub(super) fn events(body: Passing) -> Passed {
    Passed { status: StatusCode::OK, headers: event_stream(), body }
}
