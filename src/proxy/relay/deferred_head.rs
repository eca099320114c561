//! The body of an answer, also of one that was begun here because its server had said nothing for too
//! long.
//!
//! What the server says then comes as the rest of an event stream. An event stream of its own goes on
//! as it is; a document becomes the last event, and so does what an HTTP error means. The status and
//! the headers come too late and are dropped: for a call they say nothing that the body does not.

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

/// The body of an answer.
pub(super) enum UpstreamBody {
    /// The server's.
    Streaming(upstream::HttpResponseBody),
    /// The server has not begun.
    Pending(BoxFuture<'static, UpstreamStart>),
    /// The server has said everything, and it has been passed on.
    Ended,
}

/// What the server began with after all.
pub(super) enum UpstreamStart {
    Events(upstream::HttpResponseBody),
    /// The response, on one line.
    Document(Bytes),
    Lost(CallError),
}

/// Waits for what the server begins with, and for all of it where it is one document. `id` is the one
/// request that it answers.
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
        // What was only taken is perhaps being served.
        return Err(match status {
            StatusCode::ACCEPTED => CallError::Broken("the answer was empty".to_owned()),
            _ => empty_response_error(),
        });
    }
    // A client would choke on anything else, and some would then wait for ever.
    match Frame::parse(document) {
        Ok(frame) => Ok(UpstreamStart::Document(frame::to_single_line(frame.as_bytes().clone()))),
        Err(error) => Err(CallError::Invalid(error.to_string())),
    }
}

/// A request was answered with nothing: no response to it will come.
pub(super) fn empty_response_error() -> CallError {
    CallError::Invalid("it is empty, without a response to the request".to_owned())
}

// === impl Body ===

impl UpstreamBody {
    /// Of an answer that was begun here; `forwarding` is still waited for.
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

    /// Whether there is nothing more to come.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Streaming(body) => body.is_end(),
            Self::Pending(_) => false,
            Self::Ended => true,
        }
    }

    /// The server's, once it is there.
    pub(super) fn streaming(&mut self) -> Option<&mut upstream::HttpResponseBody> {
        match self {
            Self::Streaming(body) => Some(body),
            Self::Pending(_) | Self::Ended => None,
        }
    }

    /// Whether it has been taken up where it broke.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        // Nothing of it was the server's: there is nothing to go on from.
        let nothing = || Poll::Ready(Err(CallError::Broken("nothing of it has come".to_owned())));
        self.streaming().map_or_else(nothing, |body| body.poll_resumed(cx))
    }

    /// Everything that was asked has been answered: the rest need not be read at any price.
    pub(super) fn mark_answered(&mut self) {
        self.streaming().into_iter().for_each(|body| body.mark_answered());
    }
}
