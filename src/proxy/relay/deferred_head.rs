//! The body of a response, including a response that the proxy began because its server was silent for too
//! long.
//!
//! In the latter case the server's response becomes the rest of an event stream. An event stream of the
//! server is continued unchanged; a document, or the error of an HTTP status, becomes the last event. The
//! server's status and headers are dropped: for a call they add nothing to the body.

use super::requester::Requester;
use crate::{
    dialect::{legacy, modern},
    protocol::{Frame, RequestId, frame},
    upstream::{self, CallError, HttpResponse},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::StatusCode;
use smallvec::smallvec;
use std::task::{Context, Poll, ready};

/// The source of the body of a relayed response.
pub(super) enum UpstreamBody {
    /// The server's body.
    Streaming(upstream::HttpResponseBody),
    /// The server has not begun its response; the proxy has begun an event stream.
    Pending(BoxFuture<'static, UpstreamStart>),
    /// The server's body has been relayed completely.
    Ended,
}

/// The beginning of a server's response that arrives after the proxy has begun an event stream.
pub(super) enum UpstreamStart {
    /// The body of an event stream.
    Events(upstream::HttpResponseBody),
    /// A complete JSON-RPC message on one line; empty if no response is owed any more.
    Document(Bytes),
    /// The failure of the request.
    Lost(CallError),
}

/// Waits until the server begins its response, and for the complete body if the response is a document. `id`
/// is the single request that the response answers.
async fn await_start(
    forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    id: RequestId,
    requester: Requester,
) -> Result<UpstreamStart, CallError> {
    let response = forwarding.await.map_err(|error| match &requester.resumed_after {
        Some(_) => error.into_resume_failure(),
        None => error,
    })?;
    if requester.resumed_after.is_some() {
        return match response.status.is_success() && response.is_events() {
            true => Ok(UpstreamStart::Events(response.body)),
            false => Err(response.resume_refusal(requester.is_in_session()).await),
        };
    }
    if !response.status.is_success() {
        let error = response.read_error().await?;
        return Ok(match requester.pending.still_owed(smallvec![id.clone()]).await.is_empty() {
            true => UpstreamStart::Document(Bytes::new()),
            false => UpstreamStart::Document(modern::error_response(Some(&id), &error)),
        });
    }
    if response.is_events() {
        return Ok(UpstreamStart::Events(response.body));
    }
    let (limit, status) = (response.limit, response.status);
    let document = response.collect(limit).await?;
    if document.is_empty() {
        // A request that was accepted with 202 may still run at the server.
        return Err(match status {
            StatusCode::ACCEPTED => CallError::Broken("the answer was empty".to_owned()),
            _ => empty_response_error(),
        });
    }
    // Only JSON-RPC messages are relayed: clients cannot parse anything else, and some would then wait for
    // ever.
    match Frame::parse(document) {
        Ok(frame) => Ok(UpstreamStart::Document(frame::to_single_line(frame.as_bytes().clone()))),
        Err(error) => Err(CallError::Invalid(error.to_string())),
    }
}

/// Returns the error for an empty response to a request: no further response will follow.
pub(super) fn empty_response_error() -> CallError {
    CallError::Invalid("it is an empty response to a request".to_owned())
}

// === impl UpstreamBody ===

impl UpstreamBody {
    /// Creates the body of a response that the proxy has begun; `forwarding` resolves to the server's
    /// response.
    pub(super) fn deferred(
        forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
        id: RequestId,
        requester: Requester,
    ) -> Self {
        Self::Pending(
            await_start(forwarding, id, requester)
                .map(|result| result.unwrap_or_else(UpstreamStart::Lost))
                .boxed(),
        )
    }

    /// Polls for the next chunk of the body.
    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            let chunk = match self {
                Self::Streaming(body) => return body.poll_chunk(cx),
                Self::Pending(start) => match ready!(start.poll_unpin(cx)) {
                    UpstreamStart::Events(body) => {
                        *self = Self::Streaming(body);
                        continue;
                    }
                    UpstreamStart::Document(document) if document.is_empty() => None,
                    UpstreamStart::Document(message) => Some(Ok(legacy::message_event(&message))),
                    UpstreamStart::Lost(error) => Some(Err(error)),
                },
                Self::Ended => None,
            };
            *self = Self::Ended;
            return Poll::Ready(chunk);
        }
    }

    /// Whether the body has ended.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Streaming(body) => body.is_end(),
            Self::Pending(_) => false,
            Self::Ended => true,
        }
    }

    /// Returns the server's body, if the server has begun its response.
    pub(super) fn streaming(&mut self) -> Option<&mut upstream::HttpResponseBody> {
        match self {
            Self::Streaming(body) => Some(body),
            Self::Pending(_) | Self::Ended => None,
        }
    }

    /// Polls the resumption of a body that broke off; `Ok` if the body was resumed.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        // The server has not begun: there is nothing to resume.
        let not_begun = || Poll::Ready(Err(CallError::Broken("the response has not begun".to_owned())));
        self.streaming().map_or_else(not_begun, |body| body.poll_resumed(cx))
    }

    /// Records that all requests have been answered, so that the body need not be read to its end.
    pub(super) fn mark_answered(&mut self) {
        self.streaming().into_iter().for_each(|body| body.mark_answered());
    }
}
