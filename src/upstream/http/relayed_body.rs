//! Body of a response that is relayed to a legacy client, and how it is read after the client disconnected.
//!
//! A disconnect is not a cancellation (2025-11-25, *Sending Messages to the Server*). A server sees the
//! proxy's connection, and many servers treat the end of a connection during a call as a cancellation. So a
//! request is sent to its end, and its response is read to its end, by a background task if the client
//! disconnected. The proxy discards what it reads then; the server keeps the events for a client that resumes
//! with `Last-Event-ID`.
//!
//! A response whose connection breaks is resumed here, after its last event ([`RelayedBody::begin_resume`]):
//! the client cannot know whether the server is still there, and some clients never resume.

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Method, StatusCode, header, response::Parts};
use http_body::Body;
use smallvec::SmallVec;
use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    messages,
    resume::{self, AttemptFailure, ReachedFlag},
    server::{StreamableHttp, error_body},
};
use crate::{
    dialect::legacy::{self, ResumePosition},
    protocol::{
        RequestId, accept,
        headers::LAST_EVENT_ID,
        sse::{BYTE_ORDER_MARK, StreamObserver},
    },
    runtime::or_pending,
    telemetry::Limit,
    upstream::{
        CallError,
        forward::{ResponseInterest, StreamedBody},
        http1::{self, ConnectionReuse, IncomingBody, PendingResponse, SendOptions, TrafficClass},
        root_cause,
    },
};

/// Body of a server's response that is relayed to a legacy client.
pub struct RelayedBody {
    pub(super) source: BodySource,
    /// Whether the stream was just resumed: a byte order mark may follow, which would be in the middle of the
    /// client's stream and is removed.
    pub(super) may_have_bom: bool,
    pub(super) context: ForwardContext,
}

/// Source of the next chunk.
pub(super) enum BodySource {
    Body(IncomingBody),
    /// The connection broke; the remainder is being requested by GET.
    Resuming(BoxFuture<'static, Result<IncomingBody, CallError>>),
    Ended,
}

/// State of a forwarded request that is needed when its client disconnects.
pub(super) struct ForwardContext {
    pub(super) server: Arc<StreamableHttp>,
    pub(super) drain_policy: DrainPolicy,
    /// Waiter for the response, if the request can be cancelled.
    pub(super) interest: Option<Arc<dyn ResponseInterest>>,
    /// Deadline, and the error when it passes; `None` without a deadline.
    pub(super) deadline: Option<(Pin<Box<Sleep>>, CallError)>,
    /// Template for further requests in the client's name; `None` if no further request can be needed.
    pub(super) template: Option<Arc<RequestTemplate>>,
    /// Whether the response is an event stream, which can be resumed.
    pub(super) is_events: bool,
    /// Part of the response that completes its calls.
    pub(super) completion: CompletionSignal,
    /// Ids of the calls that the response answers; empty once all are answered or cancelled.
    pub(super) calls: SmallVec<[RequestId; 1]>,
}

/// Target and headers for further requests to the server in the client's name.
pub(super) struct RequestTemplate {
    /// Path with the client's query; `None` for the server's own path.
    pub(super) path: Option<String>,
    /// Header lines of the client's request.
    pub(super) lines: Vec<u8>,
    /// Whether the request names a session that the server can lose.
    pub(super) in_session: bool,
}

/// How the remainder of a response is read after the client disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainPolicy {
    /// To its end, so that the server is not disturbed.
    Always,
    /// Only if that is quick, so that the connection can be reused.
    IfQuick,
    /// Not at all: the connection is closed.
    Never,
}

/// Part of a response that completes its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionSignal {
    /// The end of the response.
    Document,
    /// A JSON-RPC response in the event stream, once the stream has ended: a batch has several responses.
    Events,
    /// No part of it: the response arrives on another stream.
    OffStream,
}

/// Future of the head of a forwarded request's response. If it is dropped before, the response is read in the
/// background as the drain policy says.
pub(super) struct ResponseHeadFuture {
    /// `None` once the head has arrived.
    pub(super) attempt: Option<ForwardAttempt>,
    pub(super) context: Option<ForwardContext>,
}

/// An attempt to send a forwarded request.
pub(super) enum ForwardAttempt {
    Sent(PendingResponse),
    /// The request waits for another stream; it is sent even if its client disconnects meanwhile.
    Queued {
        wait: BoxFuture<'static, ()>,
        send: Box<dyn FnOnce() -> PendingResponse + Send>,
    },
    /// The request is about to be sent.
    Starting,
}

/// Time limit of reading a remainder only for the reuse of its connection.
const QUICK_DRAIN: Duration = Duration::from_secs(1);

// === impl RelayedBody ===

impl RelayedBody {
    fn body(&self) -> Option<&IncomingBody> {
        match &self.source {
            BodySource::Body(body) => Some(body),
            BodySource::Resuming(_) | BodySource::Ended => None,
        }
    }
}

impl StreamedBody for RelayedBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            let BodySource::Body(body) = &mut self.source else { return Poll::Ready(None) };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                return self.context.poll_deadline(cx).map(|lost| Some(Err(lost)));
            };
            return Poll::Ready(match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut chunk) => {
                        if mem::take(&mut self.may_have_bom) && chunk.starts_with(BYTE_ORDER_MARK) {
                            chunk.advance(BYTE_ORDER_MARK.len());
                        }
                        Some(Ok(chunk))
                    }
                    Err(_trailers) => continue,
                },
                Some(Err(error)) => {
                    self.source = BodySource::Ended;
                    Some(Err(CallError::Broken(root_cause(&error))))
                }
                None => {
                    self.source = BodySource::Ended;
                    None
                }
            });
        }
    }

    fn is_end(&self) -> bool {
        self.body().is_none_or(Body::is_end_stream)
    }

    fn length(&self) -> Option<u64> {
        self.body().map_or(Some(0), |body| body.size_hint().exact())
    }

    fn begin_resume(&mut self, position: ResumePosition) {
        let template = self.context.template.as_ref().filter(|_| self.context.is_events).map(|template| {
            RequestTemplate {
                path: template.path.clone(),
                lines: template.resume_lines(&position.last_id),
                in_session: template.in_session,
            }
        });
        let server = self.context.server.clone();
        self.source = BodySource::Resuming(
            async move {
                let Some(template) = template else {
                    return Err(
                        CallError::Invalid("it is not an event stream".to_owned()).into_resume_failure()
                    );
                };
                sleep(resume::first_pause(position.retry, position.fruitless_resumes)).await;
                resume::retry_resume(position.retry, |reached| template.resume_once(&server, reached)).await
            }
            .boxed(),
        );
    }

    fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let BodySource::Resuming(resuming) = &mut self.source else {
            let error = CallError::Broken("none of it has arrived".to_owned());
            return Poll::Ready(Err(error));
        };
        let body = match resuming.poll_unpin(cx) {
            Poll::Ready(body) => body,
            Poll::Pending => Err(ready!(self.context.poll_deadline(cx))),
        };
        self.source = BodySource::Ended;
        self.source = BodySource::Body(body?);
        self.may_have_bom = true;
        // The server keeps the remainder for a client that disconnects now.
        self.context.drain_policy = DrainPolicy::Never;
        Poll::Ready(Ok(()))
    }

    fn cancel(&mut self, reason: &'static str) {
        self.context.cancel(reason);
    }

    fn mark_answered(&mut self) {
        self.context.relax_drain();
    }

    fn release(&mut self) {
        self.context.drain_policy = DrainPolicy::Never;
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        match mem::replace(&mut self.source, BodySource::Ended) {
            BodySource::Body(body) if !body.is_end_stream() => {
                self.context.drain_in_background(drain(body, self.context.completion))
            }
            BodySource::Body(_) | BodySource::Resuming(_) | BodySource::Ended => {}
        }
    }
}

// === impl RequestTemplate ===

impl RequestTemplate {
    /// Sends a request without cookies of the proxy.
    pub(super) fn send(
        &self,
        server: &StreamableHttp,
        method: &Method,
        body: Bytes,
        reuse: ConnectionReuse,
        traffic: TrafficClass,
    ) -> PendingResponse {
        let path = self.path.as_deref().unwrap_or(&server.path);
        let options = SendOptions { reuse, traffic, cookies: None };
        server.client.send(method, path, [&self.lines, &[]], body, options)
    }

    /// Requests the messages that the server has for the client, by GET.
    pub(super) fn get(&self, server: &StreamableHttp) -> PendingResponse {
        self.send(server, &Method::GET, Bytes::new(), ConnectionReuse::Any, TrafficClass::Call)
    }

    /// Cancels these calls at the server (2025-11-25, *Cancellation*).
    async fn cancel(&self, server: &StreamableHttp, calls: &[RequestId], reason: &str) {
        for call in calls {
            let notification = legacy::cancelled_notification(call, reason);
            // Sent once: a server that does not receive it sees the connection break.
            let pending = self.send(
                server,
                &Method::POST,
                notification,
                ConnectionReuse::Proven,
                TrafficClass::Control,
            );
            drop(server.await_head(pending).await);
        }
    }

    /// Header lines of the GET that resumes the stream after the event `last_id`.
    fn resume_lines(&self, last_id: &HeaderValue) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.lines.len());
        for line in self.lines.split_inclusive(|&byte| byte == b'\n') {
            let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
            let replaced_headers = [&header::CONTENT_TYPE, &header::ACCEPT, &LAST_EVENT_ID];
            if !replaced_headers.iter().any(|replaced_name| replaced_name.as_str().as_bytes() == name) {
                lines.extend_from_slice(line);
            }
        }
        http1::write_header_line(
            &mut lines,
            &header::ACCEPT,
            &HeaderValue::from_static(accept::EVENT_STREAM),
        );
        http1::write_header_line(&mut lines, &LAST_EVENT_ID, last_id);
        lines
    }

    /// Requests the remainder of a response once.
    async fn resume_once(
        &self,
        server: &StreamableHttp,
        reached: ReachedFlag,
    ) -> Result<IncomingBody, AttemptFailure<CallError>> {
        let result = reached.track(self.get(server)).await;
        let (head, body) =
            result.map_err(|error| AttemptFailure::Transient(error.into_resume_failure()))?.into_parts();
        if head.status.is_success() && messages::is_events(&head.headers) {
            return Ok(body);
        }
        let body = error_body(body).await;
        let error = resume::resume_error(head.status, &head.headers, &body, self.in_session);
        Err(if resume::is_transient(head.status) {
            AttemptFailure::Transient(error)
        } else {
            AttemptFailure::Permanent(error)
        })
    }
}

// === impl ForwardContext ===

impl ForwardContext {
    /// Notes that no further response is awaited: the remainder is only read if that is quick.
    pub(super) fn relax_drain(&mut self) {
        self.calls.clear();
        if self.drain_policy == DrainPolicy::Always {
            self.drain_policy = DrainPolicy::IfQuick;
        }
    }

    /// Polls the deadline. When it passes, cancels the calls at the server and returns the error.
    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let Some((deadline, error)) = &mut self.deadline else { return Poll::Pending };
        ready!(deadline.as_mut().poll(cx));
        let error = error.clone();
        self.cancel("the call exceeded its time limit");
        Poll::Ready(error)
    }

    fn is_cancelled(&self) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.cancellation().is_cancelled())
    }

    /// Cancels unanswered calls at the server, in the background. Later messages of the server about them are
    /// dropped.
    fn cancel(&mut self, reason: &'static str) {
        let calls = mem::take(&mut self.calls);
        let is_needed = !calls.is_empty() && !self.is_cancelled();
        let Some(template) = self.template.clone().filter(|_| is_needed) else { return };
        self.drain_policy = DrainPolicy::Never;
        let server = self.server.clone();
        self.server.work.spawn(async move { template.cancel(&server, &calls, reason).await });
    }

    /// Continues to read the response after the client disconnected. `reading` resolves to whether the
    /// response answered the request.
    fn drain_in_background(&mut self, reading: impl Future<Output = bool> + Send + 'static) {
        if self.is_cancelled() {
            self.relax_drain();
        }
        let background_read = self.interest.as_ref().map(|interest| interest.background_read().begin());
        if background_read.as_ref().is_some_and(|(end_requested, _)| end_requested.is_cancelled()) {
            return;
        }
        let server = &self.server;
        let (permit, deadline) = match self.drain_policy {
            DrainPolicy::Never => return,
            DrainPolicy::IfQuick => (None, None),
            DrainPolicy::Always => {
                let Ok(permit) = server.disconnected_permits.clone().try_acquire_owned() else {
                    let limit = server.config.load().limits.departed;
                    Limit::Departed.record_hit();
                    tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
                    return;
                };
                (Some((permit, Limit::Departed.acquire(1))), self.deadline.take())
            }
        };
        let closing = server.work.closing.clone();
        let (template, interest) = (self.template.take(), self.interest.take());
        let (server_handle, calls) = (server.clone(), mem::take(&mut self.calls));
        server.work.spawn(async move {
            let _permit = permit;
            let (end_requested, _reader) = background_read.unzip();
            // Created here: a destructor may run outside a runtime with timers.
            let deadline = async {
                match deadline {
                    Some((deadline, _)) => deadline.await,
                    None => sleep(QUICK_DRAIN).await,
                }
            };
            // The client may cancel the call after it disconnected.
            let cancellation = interest.as_ref().map(|interest| interest.cancellation());
            let is_cancelled = || cancellation.is_some_and(CancellationToken::is_cancelled);
            let cancelled_for_a_while = async {
                or_pending(cancellation.map(CancellationToken::cancelled)).await;
                sleep(QUICK_DRAIN).await;
            };
            tokio::select! {
                // The client resumes the response, which the server keeps for the client.
                () = or_pending(end_requested.as_ref().map(CancellationToken::cancelled)) => {}
                is_answered = reading => {
                    if let Some(interest) = interest.as_ref().filter(|_| is_answered) {
                        interest.mark_answered();
                    }
                }
                () = deadline => {}
                () = cancelled_for_a_while => {}
                () = closing.cancelled() => {
                    // The connection breaks, which is not a cancellation; nothing would read the response.
                    if let Some(template) = template.filter(|_| !is_cancelled()) {
                        template.cancel(&server_handle, &calls, "the proxy is shutting down").await;
                    }
                }
            }
        });
    }
}

// === impl ForwardAttempt ===

impl Future for ForwardAttempt {
    type Output = Result<http::Response<IncomingBody>, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Self::Queued { wait, .. } = this {
            ready!(wait.poll_unpin(cx));
            if let Self::Queued { send, .. } = mem::replace(this, Self::Starting) {
                *this = Self::Sent(send());
            }
        }
        match this {
            Self::Sent(pending) => Pin::new(pending).poll(cx),
            Self::Queued { .. } | Self::Starting => unreachable!("it has just been sent"),
        }
    }
}

// === impl ResponseHeadFuture ===

impl Future for ResponseHeadFuture {
    type Output = Result<(http::Response<IncomingBody>, ForwardContext), (CallError, ForwardContext)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { attempt: Some(attempt), context: Some(context) } = &mut *self else {
            unreachable!("a head is asked for once")
        };
        let result = match Pin::new(attempt).poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(ready!(context.poll_deadline(cx))),
        };
        self.attempt = None;
        let context = self.context.take().expect("it was there a moment ago");
        Poll::Ready(match result {
            Ok(response) => Ok((response, context)),
            Err(error) => Err((error, context)),
        })
    }
}

impl Drop for ResponseHeadFuture {
    fn drop(&mut self) {
        let (Some(attempt), Some(mut context)) = (self.attempt.take(), self.context.take()) else { return };
        context.drain_in_background(async move {
            let Ok(response) = attempt.await else { return false };
            let (head, body) = response.into_parts();
            drain(body, CompletionSignal::from_head(&head)).await
        });
    }
}

/// Reads a response to its end. Returns whether the response completed the call, as `ending` determines.
async fn drain(mut body: IncomingBody, ending: CompletionSignal) -> bool {
    // Events that had begun before are unknown: a response within one is not seen.
    let mut observer = StreamObserver::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(chunk)) if ending == CompletionSignal::Events => observer.observe(&chunk),
            Ok(_) => {}
            Err(_broken) => return false,
        }
    }
    match ending {
        CompletionSignal::Document => true,
        CompletionSignal::Events => observer.response().is_some(),
        CompletionSignal::OffStream => false,
    }
}

// === impl CompletionSignal ===

impl CompletionSignal {
    /// Determines from the response head which part completes the calls.
    pub(super) fn from_head(head: &Parts) -> Self {
        let may_still_run = || {
            CallError::Status { status: head.status, detail: String::new(), retry_after: None }
                .may_still_run()
        };
        match head.status {
            StatusCode::ACCEPTED => Self::OffStream,
            _ if messages::is_events(&head.headers) => Self::Events,
            _ if may_still_run() => Self::OffStream,
            _ => Self::Document,
        }
    }
}
