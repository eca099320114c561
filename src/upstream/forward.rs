//! One HTTP request of a legacy client on its way to a server, and the answer on its way back.
//!
//! Where the server is spoken to over Streamable HTTP both pass as they are (`http`), and the client's session is
//! the server's own. Where it is not, its sessions are kept here, and what answers is made
//! (`legacy::hosted`). Whoever relays the answer cannot tell which.

use super::{
    CallError, ClientSession,
    http::{ERROR_BODY, ERROR_BODY_TIME, RelayedBody as Relayed, not_taken_up, retry_after, status_error},
};
use crate::{
    dialect::{Principal, legacy::ResumePosition},
    protocol::{
        ErrorObject, Frame, RequestId,
        accept::{EVENT_STREAM, is_media},
    },
};
use ::http::{HeaderMap, Method, StatusCode, header};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::{
    future::{Future, poll_fn},
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// A request as the client sent it.
pub struct HttpRequest {
    /// Who sends it.
    pub principal: Principal,
    pub method: Method,
    /// The query of the URL that the client called.
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub purpose: RequestPurpose,
    /// The calls in it: where the proxy ends before they do, or their time is up, the server is told that
    /// they are cancelled.
    pub calls: SmallVec<[RequestId; 1]>,
    /// Who waits for the answer, where it can be taken back.
    pub interest: Option<Arc<dyn ResponseInterest>>,
    /// How long its calls may take, where that is not [`UpstreamTimeouts::call`](super::UpstreamTimeouts::call).
    pub timeout: Option<Duration>,
}

/// What a request is for, as far as passing it on goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPurpose {
    /// To hear what the server says: GET.
    Listen,
    /// To hear what follows in an answer that has broken off: GET. A server that cannot be reached may be
    /// about to come back, and is asked again for a while.
    Resume,
    /// To say that the handshake is over: the client will listen now, if it does at all.
    Initialized,
    /// To have something done during which the server may ask.
    Call,
    /// To be answered with something that can be asked for twice.
    Idempotent,
    /// To be answered otherwise: what it does, nobody here knows.
    NonIdempotent,
    /// To tell something, or to end the session.
    Notify,
}

/// The answer as the server gives it.
pub struct HttpResponse {
    pub status: StatusCode,
    /// Without those of the hop.
    pub headers: HeaderMap,
    pub body: HttpResponseBody,
    /// For one message of it, in bytes, where it has to be held ([`UpstreamLimits::result_bytes`](super::UpstreamLimits::result_bytes)).
    pub limit: usize,
}

/// The body of an answer, as it comes. Dropped before its end, the client has left.
pub enum HttpResponseBody {
    /// The server's own.
    Relayed(Relayed),
    /// Made here, from what a server says on another transport.
    Generated(Box<dyn StreamedBody>),
}

/// The body of an answer. What is made here breaks with its call: there is no more of it to be taken up, and
/// nothing to be left to the server.
pub trait StreamedBody: Send {
    /// The next chunk.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>>;

    /// Whether there is nothing more to come.
    fn is_end(&self) -> bool;

    /// How many bytes are still to come, where that is known.
    fn length(&self) -> Option<u64> {
        None
    }

    /// Begins to take up an event stream that broke, behind this event ([`StreamedBody::poll_resumed`]). Waits
    /// as long as the server wants, and asks one that cannot be reached for a while.
    fn begin_resume(&mut self, _from: ResumePosition) {}

    /// Whether it has been taken up; what it gives from then on follows the last event.
    ///
    /// # Errors
    /// [`CallError::SessionEnded`] or [`CallError::Broken`] where the server has nothing more to give;
    /// [`CallError::CallTimeout`] where the answer is due.
    fn poll_resumed(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Err(CallError::SessionEnded))
    }

    /// The server is told that what is not answered yet is cancelled.
    fn cancel(&mut self, _why: &'static str) {}

    /// Everything that was asked has been answered: the rest need not be read at any price.
    fn mark_answered(&mut self) {}

    /// The client goes on with it by itself: it is dropped without a word to the server, which keeps the
    /// rest for it.
    fn release(&mut self) {}
}

/// Somebody who waits for an answer. A departure says nothing of whether it is still wanted; the answer to
/// a call that was cancelled is not worth a connection that may stay busy for as long as a call may take.
/// Kept for as long as the answer is read, whoever listens.
pub trait ResponseInterest: Send + Sync {
    /// Cancelled once the server has been told that the answer is not wanted.
    fn cancellation(&self) -> &CancellationToken;

    /// The answer has come to its end although nobody listened any more: the server is done with what was
    /// asked.
    fn mark_answered(&self);

    /// Whoever reads the answer to its end after its client has left.
    fn background_read(&self) -> &BackgroundRead;
}

/// The reading of an answer whose client has left, as its client sees it that comes back for the rest.
///
/// A server may give a stream to one connection at a time (the TypeScript SDK answers 409 to a second), and sees ours
/// where the client's is gone. So ours is closed before the client's is opened.
#[derive(Debug, Default)]
pub struct BackgroundRead(OnceLock<BackgroundReadState>);

#[derive(Debug, Default)]
struct BackgroundReadState {
    end_requested: CancellationToken,
    readers: TaskTracker,
}

// === impl ReadingOn ===

impl BackgroundRead {
    /// One begins to read on: when it has to end, and what says that it has when it is dropped.
    pub(super) fn begin(&self) -> (CancellationToken, TaskTrackerToken) {
        let reading = self.0.get_or_init(BackgroundReadState::default);
        (reading.end_requested.clone(), reading.readers.token())
    }

    /// Ends it, and keeps it from beginning. Resolves when its connection is closed.
    pub async fn end(&self) {
        let reading = self.0.get_or_init(BackgroundReadState::default);
        reading.end_requested.cancel();
        reading.readers.close();
        reading.readers.wait().await;
    }
}

// === impl ClientSession ===

impl ClientSession {
    /// A request of ours in it.
    pub fn request(self, method: Method, body: Bytes, purpose: RequestPurpose) -> HttpRequest {
        let Self { principal, query, headers } = self;
        let calls = SmallVec::new();
        HttpRequest { principal, method, query, headers, body, purpose, calls, interest: None, timeout: None }
    }
}

// === impl Forwarded ===

impl HttpResponse {
    /// Whether the answer is an event stream that can be read as it goes by.
    pub fn is_events(&self) -> bool {
        is_media(self.headers.get(header::CONTENT_TYPE), EVENT_STREAM)
            && !self.headers.contains_key(header::CONTENT_ENCODING)
    }

    /// The whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`CallError::TooLarge`] and [`CallError::Broken`]; [`CallError::CallTimeout`] where it is due.
    pub fn collect(self, limit: usize) -> impl Future<Output = Result<Bytes, CallError>> + Send {
        // The head is not kept for as long as the body takes.
        let mut body = self.body;
        async move {
            let mut whole = BytesMut::new();
            while let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await {
                let chunk = chunk?;
                if whole.len() + chunk.len() > limit {
                    return Err(CallError::TooLarge { limit });
                }
                // The usual case, one chunk, is not copied.
                if whole.is_empty() && body.is_end() {
                    return Ok(chunk);
                }
                whole.extend_from_slice(&chunk);
            }
            Ok(whole.freeze())
        }
    }

    /// What it means that a client is answered like this that has come back for the rest of an answer.
    /// `in_session` is whether it named a session.
    pub async fn resume_refusal(self, in_session: bool) -> CallError {
        let (status, headers, body) = self.into_error_parts().await;
        not_taken_up(status, &headers, &body, in_session)
    }

    /// What an HTTP error says: a JSON-RPC error, or what else it means.
    pub async fn read_error(self) -> Result<ErrorObject, CallError> {
        let (status, headers, body) = self.into_error_parts().await;
        if !status.is_redirection()
            && let Some(error) = Frame::parse(body.clone()).ok().and_then(|frame| ErrorObject::of(&frame))
        {
            return Ok(match retry_after(&headers) {
                Some(after) => error.with_retry_after(&after),
                None => error,
            });
        }
        Err(status_error(status, &headers, &body))
    }

    /// The head, and the body of an error. Where that does not come, the status says enough.
    async fn into_error_parts(mut self) -> (StatusCode, HeaderMap, Bytes) {
        self.body.mark_answered();
        let (status, headers) = (self.status, std::mem::take(&mut self.headers));
        let body = timeout(ERROR_BODY_TIME, self.collect(ERROR_BODY)).await;
        (status, headers, body.unwrap_or(Ok(Bytes::new())).unwrap_or_default())
    }
}

// === impl Passing ===

impl Deref for HttpResponseBody {
    type Target = dyn StreamedBody;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Relayed(body) => body,
            Self::Generated(body) => &**body,
        }
    }
}

impl DerefMut for HttpResponseBody {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Relayed(body) => body,
            Self::Generated(body) => &mut **body,
        }
    }
}
