//! The body of an answer to a legacy client's request, and what becomes of it where nobody listens.
//!
//! A departure is no cancel (2025-11-25, *Sending Messages to the Server*). A server sees its
//! connection with us, not the client's: closed in the middle of a call, many take it for one. So
//! what a client has sent is sent to the end, and what it waits for is read to its end, by work of
//! our own if the client has left. Nobody hears what is read then; it is the server that keeps it
//! for a client that resumes with `Last-Event-ID`.
//!
//! An answer whose connection breaks is taken up here, behind the last event ([`Passing::take_up`]): the
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
    resume::{self, Reached, Refused},
    server::{Http, error_body},
};
use crate::{
    dialect::legacy::{self, Anchor},
    protocol::{
        Id, accept,
        headers::LAST_EVENT_ID,
        sse::{BYTE_ORDER_MARK, Watch},
    },
    runtime::or_never,
    telemetry::Limit,
    upstream::{
        CallError,
        forward::{AnswerBody, Interest},
        http1::{self, Answering, Incoming, Reuse, SendOptions, Traffic},
        root_cause,
    },
};

/// The body of an answer, as it comes.
pub struct Passing {
    pub(super) source: Source,
    /// It has just been taken up: a byte order mark may come that would stand in the middle of the stream.
    pub(super) may_have_mark: bool,
    pub(super) rest: Rest,
}

/// Where the next of a body comes from.
pub(super) enum Source {
    Body(Incoming),
    /// It broke, and is asked for again.
    TakingUp(BoxFuture<'static, Result<Incoming, CallError>>),
    Over,
}

/// What becomes of an answer whose client leaves.
pub(super) struct Rest {
    pub(super) server: Arc<Http>,
    pub(super) wanted: Wanted,
    pub(super) interest: Option<Arc<dyn Interest>>,
    /// When time is up, and what is to be said of it then; `None` for what has no time.
    pub(super) due: Option<(Pin<Box<Sleep>>, CallError)>,
    /// How more is asked for, and told, in the client's name; `None` where neither can be.
    pub(super) way: Option<Arc<Way>>,
    /// It is an event stream, which can be taken up where it breaks.
    pub(super) is_events: bool,
    pub(super) ending: Ending,
    /// The calls that it answers; none once they are answered, or the server has heard that they are over.
    pub(super) calls: SmallVec<[Id; 1]>,
}

/// How something else is said to the server in the client's name.
pub(super) struct Way {
    /// With the client's query, where it has one.
    pub(super) path: Option<String>,
    /// The header lines of the request that is answered.
    pub(super) lines: Vec<u8>,
    /// There is a session that the server can have lost.
    pub(super) in_session: bool,
}

/// How much the rest of an answer is wanted when nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It is read to its end, so that the server is not disturbed at what the client asked.
    AtAnyPrice,
    /// It is read if that is quick, so that its connection can serve the next request.
    IfQuick,
    No,
}

/// What ends the call that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The end of the answer.
    Document,
    /// A response in it, and its end: a batch has several.
    Events,
    /// Nothing in it.
    Elsewhere,
}

/// Waits for the head of an answer.
pub(super) struct Asking {
    /// `None` once the head is here.
    pub(super) asked: Option<Asked>,
    pub(super) rest: Option<Rest>,
}

/// A request on its way to the server.
pub(super) enum Asked {
    Sent(Answering),
    /// It is sent when this is over: also where its client has left by then.
    Waiting {
        wait: BoxFuture<'static, ()>,
        send: Box<dyn FnOnce() -> Answering + Send>,
    },
    /// It is about to be sent.
    Sending,
}

/// What is quick.
const QUICK: Duration = Duration::from_secs(1);

// === impl Passing ===

impl Passing {
    fn body(&self) -> Option<&Incoming> {
        match &self.source {
            Source::Body(body) => Some(body),
            Source::TakingUp(_) | Source::Over => None,
        }
    }
}

impl AnswerBody for Passing {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        loop {
            let Source::Body(body) = &mut self.source else { return Poll::Ready(None) };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                return self.rest.poll_due(cx).map(|lost| Some(Err(lost)));
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
                    self.source = Source::Over;
                    Some(Err(CallError::Broken(root_cause(&error))))
                }
                None => {
                    self.source = Source::Over;
                    None
                }
            });
        }
    }

    fn is_over(&self) -> bool {
        self.body().is_none_or(Body::is_end_stream)
    }

    fn length(&self) -> Option<u64> {
        self.body().map_or(Some(0), |body| body.size_hint().exact())
    }

    fn take_up(&mut self, from: Anchor) {
        let way = self.rest.way.as_ref().filter(|_| self.rest.is_events).map(|way| Way {
            path: way.path.clone(),
            lines: way.going_on(&from.last_id),
            in_session: way.in_session,
        });
        let server = self.rest.server.clone();
        self.source = Source::TakingUp(
            async move {
                let Some(way) = way else {
                    return Err(CallError::Invalid("it is no event stream".to_owned()).when_resuming());
                };
                sleep(resume::first_pause(from.retry, from.fruitless)).await;
                resume::persist(from.retry, |reached| way.rest(&server, reached)).await
            }
            .boxed(),
        );
    }

    fn poll_taken_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let Source::TakingUp(taking_up) = &mut self.source else {
            let lost = CallError::Broken("nothing of it has come".to_owned());
            return Poll::Ready(Err(lost));
        };
        let body = match taking_up.poll_unpin(cx) {
            Poll::Ready(body) => body,
            Poll::Pending => Err(ready!(self.rest.poll_due(cx))),
        };
        self.source = Source::Over;
        self.source = Source::Body(body?);
        self.may_have_mark = true;
        // The server keeps the rest for a client that leaves now.
        self.rest.wanted = Wanted::No;
        Poll::Ready(Ok(()))
    }

    fn cancel(&mut self, why: &'static str) {
        self.rest.cancel(why);
    }

    fn answered(&mut self) {
        self.rest.soften();
    }

    fn release(&mut self) {
        self.rest.wanted = Wanted::No;
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        match mem::replace(&mut self.source, Source::Over) {
            Source::Body(body) if !body.is_end_stream() => self.rest.read_on(drain(body, self.rest.ending)),
            Source::Body(_) | Source::TakingUp(_) | Source::Over => {}
        }
    }
}

// === impl Way ===

impl Way {
    pub(super) fn send(
        &self,
        server: &Http,
        method: &Method,
        body: Bytes,
        reuse: Reuse,
        traffic: Traffic,
    ) -> Answering {
        let path = self.path.as_deref().unwrap_or(&server.path);
        let options = SendOptions { reuse, traffic, cookies: None };
        server.client.send(method, path, [&self.lines, &[]], body, options)
    }

    /// Asks for what the server has for its client.
    pub(super) fn get(&self, server: &Http) -> Answering {
        self.send(server, &Method::GET, Bytes::new(), Reuse::Any, Traffic::Call)
    }

    /// Tells the server that these calls are cancelled (2025-11-25, *Cancellation*).
    async fn cancel(&self, server: &Http, calls: &[Id], why: &str) {
        for call in calls {
            let cancelled = legacy::cancelled(call, why);
            // It is told once: one that does not take it sees the connection break.
            let told = self.send(server, &Method::POST, cancelled, Reuse::Proven, Traffic::InPassing);
            drop(server.taken(told).await);
        }
    }

    /// The header lines of the GET that asks for what followed this event.
    fn going_on(&self, last_id: &HeaderValue) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.lines.len());
        for header in self.lines.split_inclusive(|&byte| byte == b'\n') {
            let name = header.split(|&byte| byte == b':').next().unwrap_or_default();
            let replaced = [&header::CONTENT_TYPE, &header::ACCEPT, &LAST_EVENT_ID];
            if !replaced.iter().any(|replaced| replaced.as_str().as_bytes() == name) {
                lines.extend_from_slice(header);
            }
        }
        http1::line(&mut lines, &header::ACCEPT, &HeaderValue::from_static(accept::EVENT_STREAM));
        http1::line(&mut lines, &LAST_EVENT_ID, last_id);
        lines
    }

    /// Asks once for the rest of an answer.
    async fn rest(&self, server: &Http, reached: Reached) -> Result<Incoming, Refused<CallError>> {
        let answer = reached.by(self.get(server)).await;
        let (head, body) = answer.map_err(|lost| Refused::ForNow(lost.when_resuming()))?.into_parts();
        if head.status.is_success() && messages::is_events(&head.headers) {
            return Ok(body);
        }
        let body = error_body(body).await;
        let lost = resume::refusal(head.status, &head.headers, &body, self.in_session);
        Err(if resume::is_for_now(head.status) { Refused::ForNow(lost) } else { Refused::ForGood(lost) })
    }
}

// === impl Rest ===

impl Rest {
    /// Nothing more is waited for.
    pub(super) fn soften(&mut self) {
        self.calls.clear();
        if self.wanted == Wanted::AtAnyPrice {
            self.wanted = Wanted::IfQuick;
        }
    }

    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let Some((due, lost)) = &mut self.due else { return Poll::Pending };
        ready!(due.as_mut().poll(cx));
        let lost = lost.clone();
        self.cancel("it took longer than a call may");
        Poll::Ready(lost)
    }

    fn is_lost(&self) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.lost().is_cancelled())
    }

    /// Tells the server that what is not answered yet is cancelled, in the background. What it still says
    /// of it is for nobody.
    fn cancel(&mut self, why: &'static str) {
        let calls = mem::take(&mut self.calls);
        let Some(way) = self.way.clone().filter(|_| !calls.is_empty() && !self.is_lost()) else { return };
        self.wanted = Wanted::No;
        let server = self.server.clone();
        self.server.work.spawn(async move { way.cancel(&server, &calls, why).await });
    }

    /// The client has left. `reading` tells whether what it asked has been answered.
    fn read_on(&mut self, reading: impl Future<Output = bool> + Send + 'static) {
        if self.is_lost() {
            self.soften();
        }
        let reading_on = self.interest.as_ref().map(|interest| interest.reading_on().begin());
        if reading_on.as_ref().is_some_and(|(ends, _)| ends.is_cancelled()) {
            return;
        }
        let server = &self.server;
        let (place, due) = match self.wanted {
            Wanted::No => return,
            Wanted::IfQuick => (None, None),
            Wanted::AtAnyPrice => {
                let Ok(place) = server.departed.clone().try_acquire_owned() else {
                    let limit = server.config.now().limits.departed;
                    Limit::Departed.hit();
                    tracing::warn!(target: "deferral::upstream", event = "departed_full", limit);
                    return;
                };
                (Some((place, Limit::Departed.take(1))), self.due.take())
            }
        };
        let closing = server.work.closing.clone();
        let (way, interest) = (self.way.take(), self.interest.take());
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
            let lost = interest.as_ref().map(|interest| interest.lost());
            let is_lost = || lost.is_some_and(CancellationToken::is_cancelled);
            let not_wanted = async {
                or_never(lost.map(CancellationToken::cancelled)).await;
                sleep(QUICK).await;
            };
            tokio::select! {
                // The client has come back for the rest, which the server keeps for it.
                () = or_never(ends.as_ref().map(CancellationToken::cancelled)) => {}
                is_answered = reading => {
                    if let Some(interest) = interest.as_ref().filter(|_| is_answered) {
                        interest.answered();
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

impl Future for Asked {
    type Output = Result<http::Response<Incoming>, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Self::Waiting { wait, .. } = this {
            ready!(wait.poll_unpin(cx));
            if let Self::Waiting { send, .. } = mem::replace(this, Self::Sending) {
                *this = Self::Sent(send());
            }
        }
        match this {
            Self::Sent(answering) => Pin::new(answering).poll(cx),
            Self::Waiting { .. } | Self::Sending => unreachable!("it has just been sent"),
        }
    }
}

// === impl Asking ===

impl Future for Asking {
    type Output = Result<(http::Response<Incoming>, Rest), (CallError, Rest)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asked: Some(answering), rest: Some(rest) } = &mut *self else {
            unreachable!("a head is asked for once")
        };
        let answer = match Pin::new(answering).poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(ready!(rest.poll_due(cx))),
        };
        self.asked = None;
        let rest = self.rest.take().expect("it was there a moment ago");
        Poll::Ready(match answer {
            Ok(response) => Ok((response, rest)),
            Err(lost) => Err((lost, rest)),
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (Some(answering), Some(mut rest)) = (self.asked.take(), self.rest.take()) else { return };
        rest.read_on(async move {
            let Ok(response) = answering.await else { return false };
            let (head, body) = response.into_parts();
            drain(body, Ending::of(&head)).await
        });
    }
}

/// Reads an answer to its end. Whether the call has ended with it.
async fn drain(mut body: Incoming, ending: Ending) -> bool {
    // Of an event that had begun to go by nothing is known: a response in it goes unseen.
    let mut watch = Watch::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(chunk)) if ending == Ending::Events => watch.see(&chunk),
            Ok(_) => {}
            Err(_broken) => return false,
        }
    }
    match ending {
        Ending::Document => true,
        Ending::Events => watch.response().is_some(),
        Ending::Elsewhere => false,
    }
}

// === impl Ending ===

impl Ending {
    pub(super) fn of(head: &Parts) -> Self {
        let runs_on = || {
            CallError::Status { status: head.status, detail: String::new(), retry_after: None }
                .leaves_it_running()
        };
        match head.status {
            StatusCode::ACCEPTED => Self::Elsewhere,
            _ if messages::is_events(&head.headers) => Self::Events,
            _ if runs_on() => Self::Elsewhere,
            _ => Self::Document,
        }
    }
}
