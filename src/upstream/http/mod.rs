//! Streamable HTTP (2025-03-26 to 2025-11-25) as a [`Transport`].
//!
//! A call is a POST, whose response is a document or an event stream (`messages`), a refusal (`refusal`), or
//! a 202; a broken stream is resumed (`resume`). The session's GET stream carries messages outside calls
//! (`listen`; that of a client's own session is read by the relaying code). `server` is the server, `session`
//! one session with it. `forward` forwards requests of legacy clients, in the order of `stream_before_call`
//! and without the headers of `hop`; `relayed_body` is the response body. `http1` beside this folder has the
//! connections. Begin with the `Transport` implementation in this file.

mod forward;
mod hop;
mod http_sse_probe;
mod listen;
mod messages;
mod refusal;
mod relayed_body;
mod resume;
mod server;
mod session;
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
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, OriginRequest, OriginResponse,
    ServerUrl, UpstreamDescription, UpstreamSetupError,
    background::BackgroundTasks,
    forward::{HttpRequest, HttpResponse},
    http1::{self, ConnectionReuse, CookieJar, PendingResponse, SendOptions, TrafficClass},
    legacy::LegacyUpstream,
    transport::{
        CallEvent, CallProgress, CallRefusal, InitializeReply, InitializeRequest, ResumePoint, RetryOnLoss,
        SessionEvent, Transport, TransportSession, modern_only_error,
    },
};
use crate::{
    dialect::Credentials,
    protocol::{headers, splice::JsonObject},
    runtime::Network,
};
use messages::{ReadEnd, ResponseClass, ResponseReader, SseResumption};
use server::{StreamableHttp, error_body};
use session::HttpSession;

pub use relayed_body::RelayedBody;
pub(super) use resume::resume_error;
pub(super) use server::{ERROR_BODY, ERROR_BODY_TIME, retry_after, status_error};

/// A legacy server over Streamable HTTP.
pub type HttpUpstream = LegacyUpstream<StreamableHttp>;

/// A call sent as a POST.
pub struct HttpCall(HttpCallStage);

enum HttpCallStage {
    /// Waits for the response head.
    Sent(PendingResponse),
    Reading(ResponseReader),
    /// Resumes a broken stream.
    Resuming(BoxFuture<'static, Result<ResponseReader, CallError>>),
    /// Reads an HTTP error.
    Refused(BoxFuture<'static, CallRefusal>),
}

// === impl StreamableHttp ===

impl Transport for StreamableHttp {
    type Line = HttpSession;

    const IS_HTTP: bool = true;

    fn address(&self) -> Option<&ServerUrl> {
        Some(&self.url)
    }

    async fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
        request: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, HttpSession), CallError> {
        let limit = self.config.load().timeouts.first_byte;
        let posting = self.post_headers(&caller.credentials);
        let cookies = Arc::new(CookieJar::new(self.url.uri()));
        let answer = timeout(limit, self.initialize(&posting, request, &cookies)).await;
        let (description, id) = answer.unwrap_or(Err(CallError::FirstByteTimeout(limit)))?;
        let line = HttpSession::from_initialize(Arc::clone(self), &description, posting, id, cookies)?;
        Ok((description, line))
    }

    fn join_client_session(self: &Arc<Self>, session: &ClientSession) -> Option<HttpSession> {
        Some(HttpSession::of_client(Arc::clone(self), session))
    }

    fn resume_session(
        self: &Arc<Self>,
        credentials: &Credentials,
        anchor: &CallAnchor,
    ) -> Option<(Arc<HttpSession>, Option<HttpCall>)> {
        let line = Arc::new(HttpSession::resumed(Arc::clone(self), self.post_headers(credentials), anchor)?);
        let answer = anchor.last_event.clone().map(|last_id| {
            let from = SseResumption { last_id: Some(last_id), ..SseResumption::default() };
            HttpCall(HttpCallStage::Resuming(resume::resume(Arc::clone(&line), from).boxed()))
        });
        Some((line, answer))
    }

    fn prepare_reload(self: &Arc<Self>, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        Self::prepare_reload(self, config)
    }

    fn sweep(&self) {
        self.client.sweep();
    }

    fn is_up(&self) -> Option<bool> {
        self.client.last_connect_succeeded()
    }

    fn failure(&self) -> Option<Arc<str>> {
        self.client.failure()
    }

    fn close_idle(&self) -> bool {
        self.client.close_idle()
    }

    fn forward(
        self: &Arc<Self>,
        request: HttpRequest,
    ) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        forward::forward(Arc::clone(self), request).boxed()
    }

    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>> {
        self.fetch_document(path, credentials).boxed()
    }

    fn passes_authorization(&self) -> bool {
        !self.config.load().headers.contains_key(http::header::AUTHORIZATION)
    }

    fn request_origin(
        self: &Arc<Self>,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        let server = Arc::clone(self);
        async move { server.send_to_origin(request).await }.boxed()
    }

    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        self.via.is_in(headers)
    }
}

impl StreamableHttp {
    /// Sends `initialize`, again for each offered revision. Returns the server's description and the session
    /// id.
    async fn initialize(
        &self,
        posting: &HeaderMap,
        request: &mut InitializeRequest,
        cookies: &Arc<CookieJar>,
    ) -> Result<(UpstreamDescription, Option<HeaderValue>), CallError> {
        let mut lines = http1::header_lines(posting);
        lines.extend_from_slice(self.user_agent_line(posting));
        loop {
            let (body, ours) = (request.body(), self.configured_lines());
            let both: [&[u8]; 2] = [&lines, &ours];
            let options = SendOptions {
                reuse: ConnectionReuse::Any,
                traffic: TrafficClass::Call,
                cookies: Some(cookies),
            };
            let sent = self.client.send(&Method::POST, &self.path, both, body, options);
            let response = self.await_head(sent).await?;
            let id = response.headers().get(&headers::SESSION_ID).cloned();
            let status = response.status();
            match ResponseClass::of(response, self)? {
                ResponseClass::Messages(messages) => {
                    if let Some(description) = self.read_initialize_reply(messages, request).await? {
                        return Ok((description, id));
                    }
                }
                ResponseClass::Accepted => {
                    let why = format!("initialize was answered with HTTP {status} and no body");
                    return Err(CallError::Invalid(why));
                }
                ResponseClass::Refused(head, body) => {
                    let body = error_body(body).await;
                    let json_error = json_rpc_refusal(head.status, &body);
                    let is_modern = matches!(json_error, Some(CallError::ModernOnly(_)));
                    if !is_modern && request.offers.offer_next_after_status(head.status, &body) {
                        continue;
                    }
                    if let Some(error) = json_error {
                        return Err(error);
                    }
                    let error = status_error(head.status, &head.headers, &body);
                    return Err(self.explain_missing_endpoint(error, posting).await);
                }
            }
        }
    }

    /// Adds a hint about a wrong URL to an error that means that nothing is served there.
    async fn explain_missing_endpoint(&self, error: CallError, posting: &HeaderMap) -> CallError {
        let CallError::Status { status, detail, retry_after } = error else { return error };
        if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return CallError::Status { status, detail, retry_after };
        }
        let detail = match http_sse_probe::is_http_sse(self, posting).await {
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

    /// Reads the server's response; notifications before it do not concern the handshake. `None` if the
    /// server rejects the revision and another is offered.
    async fn read_initialize_reply(
        &self,
        mut messages: ResponseReader,
        request: &mut InitializeRequest,
    ) -> Result<Option<UpstreamDescription>, CallError> {
        let reply = loop {
            let frame = poll_fn(|cx| messages.poll_next(cx)).await?;
            match request.read_reply(&frame)? {
                InitializeReply::Description(description) => break Some(description),
                InitializeReply::Refused => break None,
                InitializeReply::Other => {}
            }
        };
        if let Some(rest) = messages.into_rest() {
            self.drain_later(rest);
        }
        Ok(reply)
    }
}

// === impl HttpSession ===

impl TransportSession for HttpSession {
    type Answer = HttpCall;

    /// Waits for the GET stream that the client requested before its call.
    async fn wait_settled(&self) {
        if let Some(id) = self.id() {
            self.http.stream_order.wait(id).await;
        }
    }

    fn send_call(&self, body: Bytes, headers: &HeaderMap) -> HttpCall {
        HttpCall(HttpCallStage::Sent(self.call(body, headers)))
    }

    fn poll_call(
        self: &Arc<Self>,
        answer: &mut HttpCall,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent> {
        loop {
            match &mut answer.0 {
                HttpCallStage::Sent(answering) => {
                    let response = match ready!(Pin::new(answering).poll(cx)) {
                        Ok(response) => response,
                        Err(lost) => return Poll::Ready(CallEvent::Lost(lost)),
                    };
                    match ResponseClass::of(response, &self.http) {
                        Ok(ResponseClass::Messages(messages)) => {
                            answer.0 = HttpCallStage::Reading(messages);
                            return Poll::Ready(CallEvent::Accepted);
                        }
                        Ok(ResponseClass::Accepted) => return Poll::Ready(CallEvent::AnsweredOffStream),
                        Ok(ResponseClass::Refused(head, body)) => {
                            answer.0 = HttpCallStage::Refused(
                                refusal::read_refusal(self.has_id, call, head, body).boxed(),
                            );
                        }
                        Err(lost) => return Poll::Ready(CallEvent::Lost(lost)),
                    }
                }
                HttpCallStage::Reading(messages) => match ready!(messages.poll_next(cx)) {
                    Ok(frame) => return Poll::Ready(CallEvent::Message(frame)),
                    // The stream ended before the response.
                    Err(stop) => match (stop, messages.resumption()) {
                        (ReadEnd::Ended(_), Some(resumption)) if resumption.last_id.is_some() => {
                            let resuming = resume::resume(Arc::clone(self), resumption.clone());
                            answer.0 = HttpCallStage::Resuming(resuming.boxed());
                        }
                        (stop, _) => return Poll::Ready(CallEvent::Lost(stop.into())),
                    },
                },
                HttpCallStage::Resuming(resuming) => match ready!(resuming.poll_unpin(cx)) {
                    Ok(messages) => answer.0 = HttpCallStage::Reading(messages),
                    Err(lost) => return Poll::Ready(CallEvent::Lost(lost)),
                },
                HttpCallStage::Refused(reading) => return reading.poll_unpin(cx).map(CallEvent::Refused),
            }
        }
    }

    fn progress(answer: &mut HttpCall) -> CallProgress {
        match &mut answer.0 {
            HttpCallStage::Sent(answering) if answering.is_connecting() => CallProgress::Unsent,
            HttpCallStage::Sent(_) => CallProgress::Sent,
            HttpCallStage::Reading(messages) => CallProgress::Begun { moved: messages.take_progress() },
            HttpCallStage::Resuming(_) => CallProgress::Begun { moved: false },
            HttpCallStage::Refused(_) => CallProgress::Refused,
        }
    }

    fn resume_point<'a>(&'a self, answer: &'a HttpCall) -> Option<ResumePoint<'a>> {
        let (session, revision) = self.resume_ids()?;
        let last_event = match &answer.0 {
            HttpCallStage::Reading(messages) => messages.resumption()?.last_id.as_deref(),
            // The position is known already, or there is none.
            HttpCallStage::Sent(_) | HttpCallStage::Resuming(_) | HttpCallStage::Refused(_) => return None,
        };
        Some(ResumePoint { session, revision, last_event })
    }

    /// Reads the remainder of a response, so that its connection can be reused. Usually it has arrived.
    fn finish(&self, answer: HttpCall) {
        if let HttpCallStage::Reading(messages) = answer.0
            && let Some(rest) = messages.into_rest()
        {
            self.http.drain_later(rest);
        }
    }

    async fn send_message(&self, body: Bytes, again: RetryOnLoss) -> Result<(), CallError> {
        let reuse = match again {
            RetryOnLoss::Yes => ConnectionReuse::Any,
            RetryOnLoss::No => ConnectionReuse::Proven,
        };
        let response = self.http.await_head(self.post(body, reuse)).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            // The status is the whole answer. A body that the server leaves open behind it (a 202 without
            // length or end) delays nothing.
            self.http.drain_later(body);
            return Ok(());
        }
        Err(status_error(head.status, &head.headers, &error_body(body).await))
    }

    async fn listen(self: Arc<Self>, deliver: impl FnMut(SessionEvent) + Send) {
        listen::listen(&self, deliver).await;
    }

    async fn close(&self) {
        let Some(sent) = self.delete() else { return };
        match self.http.await_head(sent).await {
            Ok(response) => self.http.drain_later(response.into_body()),
            Err(lost) => tracing::debug!(error = %lost, "a session could not be ended at the server"),
        }
    }
}

// === impl HttpUpstream ===

impl HttpUpstream {
    /// Creates an upstream for this URL. Sends nothing before the first call.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] if the URL is not an HTTP URL, the system's certificates cannot be read, or
    /// there is no tokio runtime.
    pub fn new(url: &Uri, config: Config) -> Result<Self, UpstreamSetupError> {
        Self::for_route("", &url.clone().into(), config, &Network::System)
    }

    /// Creates an upstream for a route, on the given network.
    ///
    /// # Errors
    /// As [`HttpUpstream::new`].
    pub fn for_route(
        route: &str,
        url: &ServerUrl,
        config: Config,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let work = BackgroundTasks::new()?;
        let http = StreamableHttp::new(route, url, config.clone(), work.clone(), net)?;
        Ok(Self::with_transport(http, route, config, work, net))
    }
}

/// JSON-RPC error in the body of an HTTP error; `None` for refused credentials.
fn json_rpc_refusal(status: StatusCode, body: &Bytes) -> Option<CallError> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = JsonObject::read(body).ok()?.get("error")?;
    let refused =
        || CallError::Status { status, detail: InitializeRequest::refusal_text(&error), retry_after: None };
    Some(modern_only_error(&error).unwrap_or_else(refused))
}
