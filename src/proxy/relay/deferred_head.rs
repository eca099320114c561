//! The body of an answer, also of one that was begun here because its server had said nothing for too
//! long.
//!
//! What the server says then comes as the rest of an event stream. An event stream of its own goes on
//! as it is; a document becomes the last event, and so does what an HTTP error means. The status and
//! the headers come too late and are dropped: for a call they say nothing that the body does not.

use super::requester::Requester;
use crate::{
    dialect::{legacy, modern},
    protocol::{Frame, Id, frame},
    upstream::{self, CallError, Forwarded},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::StatusCode;
use smallvec::smallvec;
use std::task::{Context, Poll, ready};

/// The body of an answer.
pub(super) enum Body {
    /// The server's.
    Here(upstream::Passing),
    /// The server has not begun.
    Coming(BoxFuture<'static, Arrived>),
    /// The server has said everything, and it has been passed on.
    Over,
}

/// What the server began with after all.
pub(super) enum Arrived {
    Events(upstream::Passing),
    /// The response, on one line.
    Said(Bytes),
    Lost(CallError),
}

/// Waits for what the server begins with, and for all of it where it is one document. `id` is the one
/// request that it answers.
async fn arrive(
    forwarding: BoxFuture<'static, Result<Forwarded, CallError>>,
    id: Id,
    requester: Requester,
) -> Result<Arrived, CallError> {
    let forwarded = forwarding.await.map_err(|lost| match &requester.resumed {
        Some(_) => lost.when_resuming(),
        None => lost,
    })?;
    if requester.resumed.is_some() {
        return match forwarded.status.is_success() && forwarded.is_events() {
            true => Ok(Arrived::Events(forwarded.body)),
            false => Err(forwarded.not_taken_up(requester.is_in_session()).await),
        };
    }
    if !forwarded.status.is_success() {
        let error = forwarded.error().await?;
        return Ok(match requester.asked.owed(smallvec![id.clone()]).await.is_empty() {
            true => Arrived::Said(Bytes::new()),
            false => Arrived::Said(modern::error_response(Some(&id), &error)),
        });
    }
    if forwarded.is_events() {
        return Ok(Arrived::Events(forwarded.body));
    }
    let (limit, status) = (forwarded.limit, forwarded.status);
    let document = forwarded.whole(limit).await?;
    if document.is_empty() {
        // What was only taken is perhaps being served.
        return Err(match status {
            StatusCode::ACCEPTED => CallError::Broken("the answer was empty".to_owned()),
            _ => empty(),
        });
    }
    // A client would choke on anything else, and some would then wait for ever.
    match Frame::parse(document) {
        Ok(frame) => Ok(Arrived::Said(frame::on_one_line(frame.as_bytes().clone()))),
        Err(error) => Err(CallError::Invalid(error.to_string())),
    }
}

/// A request was answered with nothing: no response to it will come.
pub(super) fn empty() -> CallError {
    CallError::Invalid("it is empty, without a response to the request".to_owned())
}

// === impl Body ===

impl Body {
    /// Of an answer that was begun here; `forwarding` is still waited for.
    pub(super) fn late(
        forwarding: BoxFuture<'static, Result<Forwarded, CallError>>,
        id: Id,
        requester: Requester,
    ) -> Self {
        Self::Coming(
            arrive(forwarding, id, requester).map(|arrived| arrived.unwrap_or_else(Arrived::Lost)).boxed(),
        )
    }

    /// The next chunk.
    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            let chunk = match self {
                Self::Here(body) => return body.poll_chunk(cx),
                Self::Coming(coming) => match ready!(coming.poll_unpin(cx)) {
                    Arrived::Events(body) => {
                        *self = Self::Here(body);
                        continue;
                    }
                    Arrived::Said(nothing) if nothing.is_empty() => None,
                    Arrived::Said(message) => Some(Ok(legacy::event(&message))),
                    Arrived::Lost(lost) => Some(Err(lost)),
                },
                Self::Over => None,
            };
            *self = Self::Over;
            return Poll::Ready(chunk);
        }
    }

    /// Whether there is nothing more to come.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Here(body) => body.is_over(),
            Self::Coming(_) => false,
            Self::Over => true,
        }
    }

    /// The server's, once it is there.
    pub(super) fn here(&mut self) -> Option<&mut upstream::Passing> {
        match self {
            Self::Here(body) => Some(body),
            Self::Coming(_) | Self::Over => None,
        }
    }

    /// Whether it has been taken up where it broke.
    pub(super) fn poll_taken_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        // Nothing of it was the server's: there is nothing to go on from.
        let nothing = || Poll::Ready(Err(CallError::Broken("nothing of it has come".to_owned())));
        self.here().map_or_else(nothing, |body| body.poll_taken_up(cx))
    }

    /// Everything that was asked has been answered: the rest need not be read at any price.
    pub(super) fn answered(&mut self) {
        self.here().into_iter().for_each(|body| body.answered());
    }
}
