//! The body of an answer to a legacy client's request, and what becomes of it where nobody listens.
//!
//! A departure is no cancel (2025-11-25, *Sending Messages to the Server*). A server sees its
//! connection with us, not the client's: closed in the middle of a call, many take it for one. So
//! what a client has sent is sent to the end, and what it waits for is read to its end, by work of
//! our own if the client has left. Nobody hears what is read then; it is the server that keeps it
//! for a client that resumes with `Response-Event-ID`.
//!
//! An answer whose connection breaks is taken up here, behind the last event ([`RelayedBody::begin_resume`]): the
//! client cannot know whether its server is still there, and some never ask.

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

/// The body of an answer, as it comes.
pub struct RelayedBody {
    pub(super) source: BodySource,
    /// It has just been taken up: a byte order mark may come that would stand in the middle of the stream.
    pub(super) may_have_mark: bool,
    pub(super) context: ForwardContext,
}

/// Where the next of a body comes from.
pub(super) enum BodySource {
    Body(IncomingBody),
    /// It broke, and is asked for again.
    Resuming(BoxFuture<'static, Result<IncomingBody, CallError>>),
    Ended,
}

/// What becomes of an answer whose client leaves.
pub(super) struct ForwardContext {
    pub(super) server: Arc<StreamableHttp>,
    pub(super) drain: DrainPolicy,
    pub(super) interest: Option<Arc<dyn ResponseInterest>>,
    /// When time is up, and what is to be said of it then; `Missing` for what has no time.
    pub(super) deadline: Option<(Pin<Box<Sleep>>, CallError)>,
    /// How more is asked for, and told, in the client's name; `Missing` where neither can be.
    pub(super) template: Option<Arc<RequestTemplate>>,
    /// It is an event stream, which can be taken up where it breaks.
    pub(super) is_events: bool,
    pub(super) completion: CompletionSignal,
    /// The calls that it answers; none once they are answered, or the server has heard that they are over.
    pub(super) calls: SmallVec<[RequestId; 1]>,
}

/// How something else is said to the server in the client's name.
pub(super) struct RequestTemplate {
    /// With the client's query, where it has one.
    pub(super) path: Option<String>,
    /// The header lines of the request that is answered.
    pub(super) lines: Vec<u8>,
    /// There is a session that the server can have lost.
    pub(super) in_session: bool,
}

/// How much the rest of an answer is wanted when nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainPolicy {
    /// It is read to its end, so that the server is not disturbed at what the client asked.
    Always,
    /// It is read if that is quick, so that its connection can serve the next request.
    IfQuick,
    Never,
}

/// What ends the call that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionSignal {
    /// The end of the answer.
    Document,
    /// A response in it, and its end: a batch has several.
    Events,
    /// Nothing in it.
    OffStream,
}

/// Waits for the head of an answer.
pub(super) struct ResponseHeadFuture {
    /// `Missing` once the head is here.
    pub(super) attempt: Option<ForwardAttempt>,
    pub(super) context: Option<ForwardContext>,
}

/// A request on its way to the server.
pub(super) enum ForwardAttempt {
    Sent(PendingResponse),
    /// It is sent when this is over: also where its client has left by then.
    Queued {
        wait: BoxFuture<'static, ()>,
        send: Box<dyn FnOnce() -> PendingResponse + Send>,
    },
    /// It is about to be sent.
    Starting,
}

/// What is quick.
const QUICK: Duration = Duration::from_secs(1);

// === impl Passing ===

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
                        if mem::take(&mut self.may_have_mark) && chunk.starts_with(BYTE_ORDER_MARK) {
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

    fn begin_resume(&mut self, from: ResumePosition) {
        let way =
            self.context.template.as_ref().filter(|_| self.context.is_events).map(|way| RequestTemplate {
                path: way.path.clone(),
                lines: way.resume_lines(&from.last_id),
                in_session: way.in_session,
            });
        let server = self.context.server.clone();
        self.source = BodySource::Resuming(
            async move {
                let Some(way) = way else {
                    return Err(CallError::Invalid("it is no event stream".to_owned()).into_resume_failure());
                };
                sleep(resume::first_pause(from.retry, from.fruitless_resumes)).await;
                resume::retry_resume(from.retry, |reached| way.resume_once(&server, reached)).await
            }
            .boxed(),
        );
    }

    fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let BodySource::Resuming(taking_up) = &mut self.source else {
            let lost = CallError::Broken("nothing of it has come".to_owned());
            return Poll::Ready(Err(lost));
        };
        let body = match taking_up.poll_unpin(cx) {
            Poll::Ready(body) => body,
            Poll::Pending => Err(ready!(self.context.poll_deadline(cx))),
        };
        self.source = BodySource::Ended;
        self.source = BodySource::Body(body?);
        self.may_have_mark = true;
        // The server keeps the rest for a client that leaves now.
        self.context.drain = DrainPolicy::Never;
        Poll::Ready(Ok(()))
    }

    fn cancel(&mut self, why: &'static str) {
        self.context.cancel(why);
    }

    fn mark_answered(&mut self) {
        self.context.relax_drain();
    }

    fn release(&mut self) {
        self.context.drain = DrainPolicy::Never;
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

// === impl Way ===

impl RequestTemplate {
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

    /// Asks for what the server has for its client.
    pub(super) fn get(&self, server: &StreamableHttp) -> PendingResponse {
        self.send(server, &Method::GET, Bytes::new(), ConnectionReuse::Any, TrafficClass::Call)
    }

    /// Tells the server that these calls are cancelled (2025-11-25, *Cancellation*).
    async fn cancel(&self, server: &StreamableHttp, calls: &[RequestId], why: &str) {
        for call in calls {
            let cancelled = legacy::cancelled_notification(call, why);
            // It is told once: one that does not take it sees the connection break.
            let told =
                self.send(server, &Method::POST, cancelled, ConnectionReuse::Proven, TrafficClass::Control);
            drop(server.await_head(told).await);
        }
    }

    /// The header lines of the GET that asks for what followed this event.
    fn resume_lines(&self, last_id: &HeaderValue) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.lines.len());
        for header in self.lines.split_inclusive(|&byte| byte == b'\n') {
            let name = header.split(|&byte| byte == b':').next().unwrap_or_default();
            let replaced = [&header::CONTENT_TYPE, &header::ACCEPT, &LAST_EVENT_ID];
            if !replaced.iter().any(|replaced| replaced.as_str().as_bytes() == name) {
                lines.extend_from_slice(header);
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

    /// Asks once for the rest of an answer.
    async fn resume_once(
        &self,
        server: &StreamableHttp,
        reached: ReachedFlag,
    ) -> Result<IncomingBody, AttemptFailure<CallError>> {
        let answer = reached.track(self.get(server)).await;
        let (head, body) =
            answer.map_err(|lost| AttemptFailure::Transient(lost.into_resume_failure()))?.into_parts();
        if head.status.is_success() && messages::is_events(&head.headers) {
            return Ok(body);
        }
        let body = error_body(body).await;
        let lost = resume::resume_error(head.status, &head.headers, &body, self.in_session);
        Err(if resume::is_transient(head.status) {
            AttemptFailure::Transient(lost)
        } else {
            AttemptFailure::Permanent(lost)
        })
    }
}

// === impl Rest ===

impl ForwardContext {
    /// Nothing more is waited for.
    pub(super) fn relax_drain(&mut self) {
        self.calls.clear();
        if self.drain == DrainPolicy::Always {
            self.drain = DrainPolicy::IfQuick;
        }
    }

    pub(super) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let Some((due, lost)) = &mut self.deadline else { return Poll::Pending };
        ready!(due.as_mut().poll(cx));
        let lost = lost.clone();
        self.cancel("it took longer than a call may");
        Poll::Ready(lost)
    }

    fn is_cancelled(&self) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.cancellation().is_cancelled())
    }

    /// Tells the server that what is not answered yet is cancelled, in the background. What it still says
    /// of it is for nobody.
    fn cancel(&mut self, why: &'static str) {
        let calls = mem::take(&mut self.calls);
        let Some(way) = self.template.clone().filter(|_| !calls.is_empty() && !self.is_cancelled()) else {
            return;
        };
        self.drain = DrainPolicy::Never;
        let server = self.server.clone();
        self.server.work.spawn(async move { way.cancel(&server, &calls, why).await });
    }

    /// The client has left. `reading` tells whether what it asked has been answered.
    fn drain_in_background(&mut self, reading: impl Future<Output = bool> + Send + 'static) {
        if self.is_cancelled() {
            self.relax_drain();
        }
        let reading_on = self.interest.as_ref().map(|interest| interest.background_read().begin());
        if reading_on.as_ref().is_some_and(|(ends, _)| ends.is_cancelled()) {
            return;
        }
        let server = &self.server;
        let (place, due) = match self.drain {
            DrainPolicy::Never => return,
            DrainPolicy::IfQuick => (None, None),
            DrainPolicy::Always => {
                let Ok(place) = server.departed.clone().try_acquire_owned() else {
                    let limit = server.config.load().limits.departed;
                    Limit::Departed.record_hit();
                    tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
                    return;
                };
                (Some((place, Limit::Departed.take(1))), self.deadline.take())
            }
        };
        let closing = server.work.closing.clone();
        let (way, interest) = (self.template.take(), self.interest.take());
        let (to, calls) = (server.clone(), mem::take(&mut self.calls));
        server.work.spawn(async move {
            let _place = place;
            let (ends, _reader) = reading_on.unzip();
            // Made here: a destructor may run where there is no timer.
            let due = async {
                match due {
                    Some((due, _)) => due.await,
                    None => sleep(QUICK).await,
                }
            };
            // Its client may take it back although it has left.
            let lost = interest.as_ref().map(|interest| interest.cancellation());
            let is_lost = || lost.is_some_and(CancellationToken::is_cancelled);
            let not_wanted = async {
                or_pending(lost.map(CancellationToken::cancelled)).await;
                sleep(QUICK).await;
            };
            tokio::select! {
                // The client has come back for the rest, which the server keeps for it.
                () = or_pending(ends.as_ref().map(CancellationToken::cancelled)) => {}
                is_answered = reading => {
                    if let Some(interest) = interest.as_ref().filter(|_| is_answered) {
                        interest.mark_answered();
                    }
                }
                () = due => {}
                () = not_wanted => {}
                () = closing.cancelled() => {
                    // The connection breaks, which is no cancel; nobody will hear the answer.
                    if let Some(way) = way.filter(|_| !is_lost()) {
                        way.cancel(&to, &calls, "the proxy is shutting down").await;
                    }
                }
            }
        });
    }
}

// === impl Asked ===

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
            Self::Sent(answering) => Pin::new(answering).poll(cx),
            Self::Queued { .. } | Self::Starting => unreachable!("it has just been sent"),
        }
    }
}

// === impl Asking ===

impl Future for ResponseHeadFuture {
    type Output = Result<(http::Response<IncomingBody>, ForwardContext), (CallError, ForwardContext)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { attempt: Some(answering), context: Some(rest) } = &mut *self else {
            unreachable!("a head is asked for once")
        };
        let answer = match Pin::new(answering).poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(ready!(rest.poll_deadline(cx))),
        };
        self.attempt = None;
        let rest = self.context.take().expect("it was there a moment ago");
        Poll::Ready(match answer {
            Ok(response) => Ok((response, rest)),
            Err(lost) => Err((lost, rest)),
        })
    }
}

impl Drop for ResponseHeadFuture {
    fn drop(&mut self) {
        let (Some(answering), Some(mut rest)) = (self.attempt.take(), self.context.take()) else { return };
        rest.drain_in_background(async move {
            let Ok(response) = answering.await else { return false };
            let (head, body) = response.into_parts();
            drain(body, CompletionSignal::of(&head)).await
        });
    }
}

/// Reads an answer to its end. Whether the call has ended with it.
async fn drain(mut body: IncomingBody, ending: CompletionSignal) -> bool {
    // Of an event that had begun to go by nothing is known: a response in it goes unseen.
    let mut watch = StreamObserver::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(chunk)) if ending == CompletionSignal::Events => watch.observe(&chunk),
            Ok(_) => {}
            Err(_broken) => return false,
        }
    }
    match ending {
        CompletionSignal::Document => true,
        CompletionSignal::Events => watch.response().is_some(),
        CompletionSignal::OffStream => false,
    }
}

// === impl Ending ===

impl CompletionSignal {
    pub(super) fn of(head: &Parts) -> Self {
        let runs_on = || {
            CallError::Status { status: head.status, detail: String::new(), retry_after: None }
                .may_still_run()
        };
        match head.status {
            StatusCode::ACCEPTED => Self::OffStream,
            _ if messages::is_events(&head.headers) => Self::Events,
            _ if runs_on() => Self::OffStream,
            _ => Self::Document,
        }
    }
}
