//! The body of a response, including one that the proxy began because its server was silent for too long.
//!
//! The server's response then becomes the rest of an event stream. An event stream continues as it is; a
//! document becomes the last event, and so does the error of an HTTP status. The late status and headers are
//! dropped: for a call they add nothing to the body.

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

/// The body of a response.
pub(super) enum UpstreamBody {
    /// The server's body.
    Streaming(upstream::HttpResponseBody),
    /// The server has not begun.
    Pending(BoxFuture<'static, UpstreamStart>),
    /// The server's body has been relayed completely.
    Ended,
}

/// The beginning of the server's response.
pub(super) enum UpstreamStart {
    Events(upstream::HttpResponseBody),
    /// The response, on one line.
    Document(Bytes),
    Lost(CallError),
}

/// Waits for the server to begin, and for the complete body if it is a document. `id` is the single request
/// that it answers.
async fn await_start(
    forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    id: RequestId,
    requester: Requester,
) -> Result<UpstreamStart, CallError> {
    let forwarded = forwarding.await.map_err(|lost| match &requester.resumed {
        Some(_) => lost.into_resume_failure(),
        None => lost,
    })?;
    if requester.resumed.is_some() {
        return match forwarded.status.is_success() && forwarded.is_events() {
            true => Ok(UpstreamStart::Events(forwarded.body)),
            false => Err(forwarded.resume_refusal(requester.is_in_session()).await),
        };
    }
    if !forwarded.status.is_success() {
        let error = forwarded.read_error().await?;
        return Ok(match requester.pending.owed(smallvec![id.clone()]).await.is_empty() {
            true => UpstreamStart::Document(Bytes::new()),
            false => UpstreamStart::Document(modern::error_response(Some(&id), &error)),
        });
    }
    if forwarded.is_events() {
        return Ok(UpstreamStart::Events(forwarded.body));
    }
    let (limit, status) = (forwarded.limit, forwarded.status);
    let document = forwarded.collect(limit).await?;
    if document.is_empty() {
        // A request that was only accepted may still be served.
        return Err(match status {
            StatusCode::ACCEPTED => CallError::Broken("the answer was empty".to_owned()),
            _ => empty_response_error(),
        });
    }
    // Clients cannot parse anything else, and some would then wait for ever.
    match Frame::parse(document) {
        Ok(frame) => Ok(UpstreamStart::Document(frame::to_single_line(frame.as_bytes().clone()))),
        Err(error) => Err(CallError::Invalid(error.to_string())),
    }
}

/// A request with an empty response: there will be no other.
pub(super) fn empty_response_error() -> CallError {
    CallError::Invalid("it is empty, without a response to the request".to_owned())
}

// === impl UpstreamBody ===

impl UpstreamBody {
    /// The body of a response that the proxy has begun; `forwarding` is still pending.
    pub(super) fn deferred(
        forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
        id: RequestId,
        requester: Requester,
    ) -> Self {
        Self::Pending(
            await_start(forwarding, id, requester)
                .map(|arrived| arrived.unwrap_or_else(UpstreamStart::Lost))
                .boxed(),
        )
    }

    /// The next chunk.
    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            let chunk = match self {
                Self::Streaming(body) => return body.poll_chunk(cx),
                Self::Pending(coming) => match ready!(coming.poll_unpin(cx)) {
                    UpstreamStart::Events(body) => {
                        *self = Self::Streaming(body);
                        continue;
                    }
                    UpstreamStart::Document(nothing) if nothing.is_empty() => None,
                    UpstreamStart::Document(message) => Some(Ok(legacy::event(&message))),
                    UpstreamStart::Lost(lost) => Some(Err(lost)),
                },
                Self::Ended => None,
            };
            *self = Self::Ended;
            return Poll::Ready(chunk);
        }
    }

    /// Whether nothing more is to come.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Streaming(body) => body.is_end(),
            Self::Pending(_) => false,
            Self::Ended => true,
        }
    }

    /// The server's body, if it has begun.
    pub(super) fn streaming(&mut self) -> Option<&mut upstream::HttpResponseBody> {
        match self {
            Self::Streaming(body) => Some(body),
            Self::Pending(_) | Self::Ended => None,
        }
    }

    /// Resolves with whether the broken body was resumed.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        // The server has not begun: there is nothing to resume.
        let nothing = || Poll::Ready(Err(CallError::Broken("the response has not begun".to_owned())));
        self.streaming().map_or_else(nothing, |body| body.poll_resumed(cx))
    }

    /// All requests have been answered: the rest of the body need not be read to its end.
    pub(super) fn mark_answered(&mut self) {
        self.streaming().into_iter().for_each(|body| body.mark_answered());
    }
}
