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
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, HttpOrigin, ServerUrl,
    UpstreamDescription, UpstreamSetupError,
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
pub(super) use server::{ERROR_BODY_TIMEOUT, MAX_ERROR_BODY_BYTES, retry_after, status_error};

/// An [`Upstream`](super::Upstream) for a legacy server over Streamable HTTP.
pub type HttpUpstream = LegacyUpstream<StreamableHttp>;

/// Handle of a call that was sent as a POST.
pub struct HttpCall(HttpCallStage);

enum HttpCallStage {
    /// Waits for the response head.
    Sent(PendingResponse),
    /// Reads the messages of the response.
    Reading(ResponseReader),
    /// Resumes a broken stream.
    Resuming(BoxFuture<'static, Result<ResponseReader, CallError>>),
    /// Reads the body of an HTTP error.
    Refused(BoxFuture<'static, CallRefusal>),
}

// === impl StreamableHttp ===

impl Transport for StreamableHttp {
    type Session = HttpSession;

    const IS_HTTP: bool = true;

    async fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
        request: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, HttpSession), CallError> {
        let limit = self.config.load().timeouts.first_byte;
        let post_headers = self.post_headers(&caller.credentials);
        let cookies = Arc::new(CookieJar::new(self.url.uri()));
        let result = timeout(limit, self.initialize(&post_headers, request, &cookies)).await;
        let (description, id) = result.unwrap_or(Err(CallError::FirstByteTimeout(limit)))?;
        let session =
            HttpSession::from_initialize(Arc::clone(self), &description, post_headers, id, cookies)?;
        Ok((description, session))
    }

    fn join_client_session(self: &Arc<Self>, session: &ClientSession) -> Option<HttpSession> {
        Some(HttpSession::opened_by_client(Arc::clone(self), session))
    }

    fn resume_session(
        self: &Arc<Self>,
        credentials: &Credentials,
        anchor: &CallAnchor,
    ) -> Option<(Arc<HttpSession>, Option<HttpCall>)> {
        let session =
            Arc::new(HttpSession::resumed(Arc::clone(self), self.post_headers(credentials), anchor)?);
        let handle = anchor.last_event.clone().map(|last_id| {
            let position = SseResumption { last_id: Some(last_id), ..SseResumption::default() };
            HttpCall(HttpCallStage::Resuming(resume::resume(Arc::clone(&session), position).boxed()))
        });
        Some((session, handle))
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

    fn http_origin(&self) -> Option<&dyn HttpOrigin> {
        Some(self)
    }
}

impl StreamableHttp {
    /// Sends `initialize`, repeatedly with other revisions while the server rejects the offered one. Returns
    /// the server's description, and the session id if it assigned one.
    async fn initialize(
        &self,
        post_headers: &HeaderMap,
        request: &mut InitializeRequest,
        cookies: &Arc<CookieJar>,
    ) -> Result<(UpstreamDescription, Option<HeaderValue>), CallError> {
        let mut lines = http1::header_lines(post_headers);
        lines.extend_from_slice(self.user_agent_line(post_headers));
        loop {
            let (body, configured_lines) = (request.body(), self.configured_lines());
            let all_lines: [&[u8]; 2] = [&lines, &configured_lines];
            let options = SendOptions {
                reuse: ConnectionReuse::Any,
                traffic: TrafficClass::Call,
                cookies: Some(cookies),
            };
            let pending = self.client.send(&Method::POST, &self.path, all_lines, body, options);
            let response = self.await_head(pending).await?;
            let id = response.headers().get(&headers::SESSION_ID).cloned();
            let status = response.status();
            match ResponseClass::classify(response, self)? {
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
                    return Err(self.explain_missing_endpoint(error, post_headers).await);
                }
            }
        }
    }

    /// Adds a hint about a wrong URL to an error that means that no MCP endpoint exists there.
    async fn explain_missing_endpoint(&self, error: CallError, post_headers: &HeaderMap) -> CallError {
        let CallError::Status { status, detail, retry_after } = error else { return error };
        if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return CallError::Status { status, detail, retry_after };
        }
        let detail = match http_sse_probe::is_http_sse(self, post_headers).await {
            true => format!(
                "{detail}; the server speaks HTTP+SSE (2024-11-05), which is supported for clients only: name its \
                 Streamable HTTP endpoint in upstream.url, or update the server to one that has it"
            ),
            false => format!(
                "{detail}; is the path of upstream.url that of its MCP endpoint? With most servers it is /mcp"
            ),
        };
        CallError::Status { status, detail, retry_after }
    }

    /// Reads the server's response to `initialize`; notifications before it do not concern the handshake.
    /// `None` if the server rejects the revision and another must be offered.
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
        if let Some(remainder) = messages.into_remainder() {
            self.drain_later(remainder);
        }
        Ok(reply)
    }
}

// === impl HttpSession ===

impl TransportSession for HttpSession {
    type CallHandle = HttpCall;

    /// Waits for the GET stream that the client requested before its call, if it did.
    async fn wait_ready(&self) {
        if let Some(id) = self.id() {
            self.http.stream_order.wait_for_stream(id).await;
        }
    }

    fn send_call(&self, body: Bytes, headers: &HeaderMap) -> HttpCall {
        HttpCall(HttpCallStage::Sent(self.post_call(body, headers)))
    }

    fn poll_call(
        self: &Arc<Self>,
        handle: &mut HttpCall,
        call: u64,
        cx: &mut Context<'_>,
    ) -> Poll<CallEvent> {
        loop {
            match &mut handle.0 {
                HttpCallStage::Sent(pending) => {
                    let response = match ready!(Pin::new(pending).poll(cx)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(CallEvent::Lost(error)),
                    };
                    match ResponseClass::classify(response, &self.http) {
                        Ok(ResponseClass::Messages(messages)) => {
                            handle.0 = HttpCallStage::Reading(messages);
                            return Poll::Ready(CallEvent::Accepted);
                        }
                        Ok(ResponseClass::Accepted) => return Poll::Ready(CallEvent::AnsweredOffStream),
                        Ok(ResponseClass::Refused(head, body)) => {
                            handle.0 = HttpCallStage::Refused(
                                refusal::read_refusal(self.has_id, call, head, body).boxed(),
                            );
                        }
                        Err(error) => return Poll::Ready(CallEvent::Lost(error)),
                    }
                }
                HttpCallStage::Reading(messages) => match ready!(messages.poll_next(cx)) {
                    Ok(frame) => return Poll::Ready(CallEvent::Message(frame)),
                    // The stream ended before the response.
                    Err(end) => match (end, messages.resumption()) {
                        (ReadEnd::Ended(_), Some(resumption)) if resumption.last_id.is_some() => {
                            let resuming = resume::resume(Arc::clone(self), resumption.clone());
                            handle.0 = HttpCallStage::Resuming(resuming.boxed());
                        }
                        (end, _) => return Poll::Ready(CallEvent::Lost(end.into())),
                    },
                },
                HttpCallStage::Resuming(resuming) => match ready!(resuming.poll_unpin(cx)) {
                    Ok(messages) => handle.0 = HttpCallStage::Reading(messages),
                    Err(error) => return Poll::Ready(CallEvent::Lost(error)),
                },
                HttpCallStage::Refused(reading) => return reading.poll_unpin(cx).map(CallEvent::Refused),
            }
        }
    }

    fn progress(handle: &mut HttpCall) -> CallProgress {
        match &mut handle.0 {
            HttpCallStage::Sent(pending) if pending.is_connecting() => CallProgress::Unsent,
            HttpCallStage::Sent(_) => CallProgress::Sent,
            HttpCallStage::Reading(messages) => {
                CallProgress::Begun { has_new_bytes: messages.take_progress() }
            }
            HttpCallStage::Resuming(_) => CallProgress::Begun { has_new_bytes: false },
            HttpCallStage::Refused(_) => CallProgress::Refused,
        }
    }

    fn resume_point<'a>(&'a self, handle: &'a HttpCall) -> Option<ResumePoint<'a>> {
        let (session, revision) = self.resume_ids()?;
        let last_event = match &handle.0 {
            HttpCallStage::Reading(messages) => messages.resumption()?.last_id.as_deref(),
            // The caller knows the position already, or there is none.
            HttpCallStage::Sent(_) | HttpCallStage::Resuming(_) | HttpCallStage::Refused(_) => return None,
        };
        Some(ResumePoint { session, revision, last_event })
    }

    /// Reads the remainder of a response, so that its connection can be reused. Usually it has arrived.
    fn finish(&self, handle: HttpCall) {
        if let HttpCallStage::Reading(messages) = handle.0
            && let Some(remainder) = messages.into_remainder()
        {
            self.http.drain_later(remainder);
        }
    }

    async fn send_message(&self, body: Bytes, retry: RetryOnLoss) -> Result<(), CallError> {
        let reuse = match retry {
            RetryOnLoss::Yes => ConnectionReuse::Any,
            RetryOnLoss::No => ConnectionReuse::Proven,
        };
        let response = self.http.await_head(self.post_message(body, reuse)).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            // The status is the whole answer. A body that the server does not end (a 202 without length or
            // end) delays nothing.
            self.http.drain_later(body);
            return Ok(());
        }
        Err(status_error(head.status, &head.headers, &error_body(body).await))
    }

    async fn listen(self: Arc<Self>, deliver: impl FnMut(SessionEvent) + Send) {
        listen::listen(&self, deliver).await;
    }

    async fn close(&self) {
        let Some(pending) = self.send_delete() else { return };
        match self.http.await_head(pending).await {
            Ok(response) => self.http.drain_later(response.into_body()),
            Err(error) => tracing::debug!(error = %error, "a session could not be ended at the server"),
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

/// Error for an HTTP error response to `initialize` whose body holds a JSON-RPC error; `None` without one, or
/// if the status is about credentials.
fn json_rpc_refusal(status: StatusCode, body: &Bytes) -> Option<CallError> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = JsonObject::read(body).ok()?.get("error")?;
    let status_error =
        || CallError::Status { status, detail: InitializeRequest::refusal_text(&error), retry_after: None };
    Some(modern_only_error(&error).unwrap_or_else(status_error))
}
