//! Streamable HTTP (2025-03-26 to 2025-11-25) as a [`Transport`].
//!
//! A call is a POST, whose response is a document or an event stream (`messages`), a refusal (`refusal`), or
//! a 202; a broken stream is resumed (`resume`). The session's GET stream carries messages outside calls
//! (`listen`; that of a client's own session is read by the relaying code). `server` is the server, `session`
//! one session with it, `channel` the handshake of one. `forward` forwards requests of legacy clients, in the order of `stream_before_call`
//! and without the headers of `hop`; `relayed_body` is the response body. `http1` beside this folder has the
//! connections. Begin with the `Transport` implementation in this file.

mod channel;
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
use http::{HeaderMap, Uri};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ClientSession, Config, HttpOrigin, ServerUrl,
    UpstreamSetupError,
    background::BackgroundTasks,
    forward::{HttpRequest, HttpResponse},
    http1::{ConnectionReuse, PendingResponse},
    legacy::LegacyUpstream,
    transport::{
        CallEvent, CallProgress, CallRefusal, ResumePoint, RetryOnLoss, SessionEvent, SessionKind, Transport,
        TransportSession,
    },
};
use crate::{dialect::Credentials, runtime::Network};
use channel::HttpChannel;
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
    type Channel = HttpChannel;

    const SESSIONS: SessionKind = SessionKind::Http;

    async fn open(self: &Arc<Self>, caller: &CallerIdentity) -> Result<HttpChannel, CallError> {
        Ok(HttpChannel::new(Arc::clone(self), self.post_headers(&caller.credentials)))
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

    fn last_attempt(&self) -> Option<Result<(), Arc<str>>> {
        self.client.last_attempt()
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
