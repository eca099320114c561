//! Streamable HTTP (2025-03-26 to 2025-11-25), as a [`Wire`].
//!
//! A call is a POST, whose answer is one document or a stream of events (`messages`), a refusal
//! (`refusal`), or a 202; a stream that breaks is taken up (`resume`). What the server says of its own
//! accord comes on the session's GET stream (`listen`; that of a client's own session is read by whoever
//! passes it on). `server` is the server, `line` one session with it. `forward` passes on what a legacy
//! client sends as it is, in `stream_before_call`, but for what `hop` keeps back, and `passing` is the
//! answer's body. `http1` beside this folder is the way there.

mod forward;
mod hop;
mod line;
mod listen;
mod messages;
mod old_transport;
mod passing;
mod refusal;
mod resume;
mod server;
mod stream_before_call;
mod via;

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::time::timeout;

use super::{
    Anchor, CallError, Change, ClientSession, Config, Description, Document, Identity, NotStarted,
    OriginRequest, ServerUrl,
    forward::{Forward, Forwarded},
    http1::{self, Answering, CookieJar, Reuse, SendOptions, Traffic},
    legacy::Legacy,
    wire::{Again, Beside, Heard, Hello, Line, Place, Progress, Refusal, Reply, Wire, modern_only},
    work::Work,
};
use crate::{
    dialect::Credentials,
    protocol::{headers, splice::Object},
    runtime::Net,
};
use line::HttpLine;
use messages::{Messages, Opening, Resumption, Stop};
use server::{Http, error_body};

pub use passing::Passing;
pub(super) use resume::refusal as not_taken_up;
pub(super) use server::{ERROR_BODY, ERROR_BODY_TIME, refused, retry_after};

/// A server of the older era, over Streamable HTTP.
pub type Streamable = Legacy<Http>;

/// What comes of a POST that is a call.
pub struct Answer(Stage);

enum Stage {
    /// Its head is waited for.
    Sent(Answering),
    Reading(Messages),
    /// Takes up a stream that broke.
    Resuming(BoxFuture<'static, Result<Messages, CallError>>),
    /// Reads what an HTTP error says.
    Refused(BoxFuture<'static, Refusal>),
}

// === impl Http ===

impl Wire for Http {
    type Line = HttpLine;

    const IS_HTTP: bool = true;

    fn address(&self) -> Option<&ServerUrl> {
        Some(&self.url)
    }

    async fn open(
        self: &Arc<Self>,
        caller: &Identity,
        hello: &mut Hello,
    ) -> Result<(Description, HttpLine), CallError> {
        let limit = self.config.now().timeouts.first_byte;
        let posting = self.posting(&caller.credentials);
        let cookies = Arc::new(CookieJar::new(self.url.uri()));
        let said = timeout(limit, self.hello(&posting, hello, &cookies)).await;
        let (description, id) = said.unwrap_or(Err(CallError::FirstByteTimeout(limit)))?;
        let line = HttpLine::begun(Arc::clone(self), &description, posting, id, cookies)?;
        Ok((description, line))
    }

    fn join(self: &Arc<Self>, session: &ClientSession) -> Option<HttpLine> {
        Some(HttpLine::of_client(Arc::clone(self), session))
    }

    fn take_up(
        self: &Arc<Self>,
        credentials: &Credentials,
        anchor: &Anchor,
    ) -> Option<(Arc<HttpLine>, Option<Answer>)> {
        let line = Arc::new(HttpLine::taken_up(Arc::clone(self), self.posting(credentials), anchor)?);
        let answer = anchor.last_event.clone().map(|last_id| {
            let from = Resumption { last_id: Some(last_id), ..Resumption::default() };
            Answer(Stage::Resuming(resume::resume(Arc::clone(&line), from).boxed()))
        });
        Some((line, answer))
    }

    fn otherwise(self: &Arc<Self>, config: &Config) -> Result<Change, NotStarted> {
        Self::otherwise(self, config)
    }

    fn sweep(&self) {
        self.client.sweep();
    }

    fn is_up(&self) -> Option<bool> {
        self.client.reached()
    }

    fn failure(&self) -> Option<Arc<str>> {
        self.client.failure()
    }

    fn close_idle(&self) -> bool {
        self.client.close_idle()
    }

    fn forward(self: &Arc<Self>, request: Forward) -> BoxFuture<'static, Result<Forwarded, CallError>> {
        forward::forward(Arc::clone(self), request).boxed()
    }

    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>> {
        self.document(path, credentials).boxed()
    }

    fn passes_authorization(&self) -> bool {
        !self.config.now().headers.contains_key(http::header::AUTHORIZATION)
    }

    fn ask_origin(
        self: &Arc<Self>,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<Document, CallError>> {
        let server = Arc::clone(self);
        async move { server.send_to_origin(request).await }.boxed()
    }

    fn has_sent(&self, headers: &HeaderMap) -> bool {
        self.via.is_in(headers)
    }
}

impl Http {
    /// Sends `initialize`, again for each revision that is offered. Gives the server's description and the id of the
    /// session.
    async fn hello(
        &self,
        posting: &HeaderMap,
        hello: &mut Hello,
        cookies: &Arc<CookieJar>,
    ) -> Result<(Description, Option<HeaderValue>), CallError> {
        let mut lines = http1::lines(posting);
        lines.extend_from_slice(self.agent(posting));
        loop {
            let (body, ours) = (hello.body(), self.ours());
            let both: [&[u8]; 2] = [&lines, &ours];
            let options = SendOptions { reuse: Reuse::Any, traffic: Traffic::Call, cookies: Some(cookies) };
            let sent = self.client.send(&Method::POST, &self.path, both, body, options);
            let response = self.taken(sent).await?;
            let id = response.headers().get(&headers::SESSION_ID).cloned();
            let status = response.status();
            match Opening::of(response, self)? {
                Opening::Messages(messages) => {
                    if let Some(description) = self.read_reply(messages, hello).await? {
                        return Ok((description, id));
                    }
                }
                Opening::Accepted => {
                    let why = format!("initialize was answered with HTTP {status} and no body");
                    return Err(CallError::Invalid(why));
                }
                Opening::Refused(head, body) => {
                    let body = error_body(body).await;
                    let words = unwelcome(head.status, &body);
                    let is_modern = matches!(words, Some(CallError::ModernOnly(_)));
                    if !is_modern && hello.offers.change_after_status(head.status, &body) {
                        continue;
                    }
                    if let Some(error) = words {
                        return Err(error);
                    }
                    let error = refused(head.status, &head.headers, &body);
                    return Err(self.explain(error, posting).await);
                }
            }
        }
    }

    /// The same error, with what may be wrong with the URL where nothing is served there.
    async fn explain(&self, error: CallError, posting: &HeaderMap) -> CallError {
        let CallError::Status { status, detail, retry_after } = error else { return error };
        if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return CallError::Status { status, detail, retry_after };
        }
        let detail = match old_transport::is_spoken(self, posting).await {
            true => format!(
                "{detail}; the server speaks HTTP+SSE (2024-11-05), which is supported towards clients alone: name its \
                 Streamable HTTP endpoint in upstream.url, or update the server to one that has it"
            ),
            false => format!(
                "{detail}; is the path of upstream.url that of its MCP endpoint? With most servers it is /mcp"
            ),
        };
        CallError::Status { status, detail, retry_after }
    }

    /// The server's answer among its messages; notifications before it concern no handshake. None where it refuses the
    /// revision and another is offered.
    async fn read_reply(
        &self,
        mut messages: Messages,
        hello: &mut Hello,
    ) -> Result<Option<Description>, CallError> {
        let reply = loop {
            let frame = poll_fn(|cx| messages.poll_next(cx)).await?;
            match hello.read(&frame)? {
                Reply::Description(description) => break Some(description),
                Reply::Refused => break None,
                Reply::Other => {}
            }
        };
        if let Some(rest) = messages.into_rest() {
            self.drain_later(rest);
        }
        Ok(reply)
    }
}

// === impl HttpLine ===

impl Line for HttpLine {
    type Answer = Answer;

    /// Waits for the GET stream that the client has asked for before it called.
    async fn settled(&self) {
        if let Some(id) = self.id() {
            self.http.order.wait(id).await;
        }
    }

    fn send(&self, body: Bytes, headers: &HeaderMap) -> Answer {
        Answer(Stage::Sent(self.call(body, headers)))
    }

    fn poll_answer(self: &Arc<Self>, answer: &mut Answer, call: u64, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            match &mut answer.0 {
                Stage::Sent(answering) => {
                    let response = match ready!(Pin::new(answering).poll(cx)) {
                        Ok(response) => response,
                        Err(lost) => return Poll::Ready(Heard::Lost(lost)),
                    };
                    match Opening::of(response, &self.http) {
                        Ok(Opening::Messages(messages)) => {
                            answer.0 = Stage::Reading(messages);
                            return Poll::Ready(Heard::Served);
                        }
                        Ok(Opening::Accepted) => return Poll::Ready(Heard::Elsewhere),
                        Ok(Opening::Refused(head, body)) => {
                            answer.0 = Stage::Refused(refusal::read(self.has_id, call, head, body).boxed());
                        }
                        Err(lost) => return Poll::Ready(Heard::Lost(lost)),
                    }
                }
                Stage::Reading(messages) => match ready!(messages.poll_next(cx)) {
                    Ok(frame) => return Poll::Ready(Heard::Message(frame)),
                    // The stream ended before the response.
                    Err(stop) => match (stop, messages.resumption()) {
                        (Stop::Ended(_), Some(resumption)) if resumption.last_id.is_some() => {
                            let resuming = resume::resume(Arc::clone(self), resumption.clone());
                            answer.0 = Stage::Resuming(resuming.boxed());
                        }
                        (stop, _) => return Poll::Ready(Heard::Lost(stop.into())),
                    },
                },
                Stage::Resuming(resuming) => match ready!(resuming.poll_unpin(cx)) {
                    Ok(messages) => answer.0 = Stage::Reading(messages),
                    Err(lost) => return Poll::Ready(Heard::Lost(lost)),
                },
                Stage::Refused(reading) => return reading.poll_unpin(cx).map(Heard::Refused),
            }
        }
    }

    fn progress(answer: &mut Answer) -> Progress {
        match &mut answer.0 {
            Stage::Sent(answering) if answering.is_connecting() => Progress::Unsent,
            Stage::Sent(_) => Progress::Sent,
            Stage::Reading(messages) => Progress::Begun { moved: messages.took_progress() },
            Stage::Resuming(_) => Progress::Begun { moved: false },
            Stage::Refused(_) => Progress::Refused,
        }
    }

    fn anchor<'a>(&'a self, answer: &'a Answer) -> Option<Place<'a>> {
        let (session, revision) = self.can_be_taken_up()?;
        let last_event = match &answer.0 {
            Stage::Reading(messages) => messages.resumption()?.last_id.as_deref(),
            // Known already, or there is none.
            Stage::Sent(_) | Stage::Resuming(_) | Stage::Refused(_) => return None,
        };
        Some(Place { session, revision, last_event })
    }

    /// Reads the rest of an answer, so that its connection can be used again. Mostly it is there.
    fn finish(&self, answer: Answer) {
        if let Stage::Reading(messages) = answer.0
            && let Some(rest) = messages.into_rest()
        {
            self.http.drain_later(rest);
        }
    }

    async fn tell(&self, body: Bytes, again: Again) -> Result<(), CallError> {
        let reuse = match again {
            Again::Yes => Reuse::Any,
            Again::No => Reuse::Proven,
        };
        let response = self.http.taken(self.post(body, reuse)).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            // The status is the whole answer. What a server leaves open behind it (a 202 whose body
            // has neither length nor end) keeps nobody waiting.
            self.http.drain_later(body);
            return Ok(());
        }
        Err(refused(head.status, &head.headers, &error_body(body).await))
    }

    async fn listen(self: Arc<Self>, tell: impl FnMut(Beside) + Send) {
        listen::listen(&self, tell).await;
    }

    async fn close(&self) {
        let Some(told) = self.delete() else { return };
        match self.http.taken(told).await {
            Ok(response) => self.http.drain_later(response.into_body()),
            Err(lost) => tracing::debug!(error = %lost, "the end of a session could not be told"),
        }
    }
}

// === impl Streamable ===

impl Streamable {
    /// A server at this URL. Nothing is sent before it is called.
    ///
    /// # Errors
    /// [`NotStarted`] where the URL is not one to speak HTTP to, the system's certificates cannot be
    /// read, or there is no tokio runtime around.
    pub fn new(url: &Uri, config: Config) -> Result<Self, NotStarted> {
        Self::on("", &url.clone().into(), config, &Net::System)
    }

    /// The same for this route, on a network of the caller's choice.
    ///
    /// # Errors
    /// As [`Streamable::new`].
    pub fn on(route: &str, url: &ServerUrl, config: Config, net: &Net) -> Result<Self, NotStarted> {
        let work = Work::new()?;
        let http = Http::new(route, url, config.clone(), work.clone(), net)?;
        Ok(Self::over(http, route, config, work, net))
    }
}

/// The server's words, where an HTTP error carries a JSON-RPC error; not for refused credentials.
fn unwelcome(status: StatusCode, body: &Bytes) -> Option<CallError> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = Object::read(body).ok()?.get("error")?;
    let refused = || CallError::Status { status, detail: Hello::refused(&error), retry_after: None };
    Some(modern_only(&error).unwrap_or_else(refused))
}
