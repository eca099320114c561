//! Channel for the handshake: each request is a POST.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::{future::poll_fn, sync::Arc, time::Duration};

use super::{
    http_sse_probe,
    messages::{ResponseClass, ResponseReader},
    server::{StreamableHttp, error_body, status_error},
    session::HttpSession,
};
use crate::{
    protocol::headers::SESSION_ID,
    upstream::{
        CallError,
        http1::{self, ConnectionReuse, CookieJar, PendingResponse, SendOptions, TrafficClass},
        transport::{HandshakeChannel, HandshakeEvent},
    },
};

/// Channel to a server over Streamable HTTP.
pub struct HttpChannel {
    server: Arc<StreamableHttp>,
    post_headers: HeaderMap,
    cookies: Arc<CookieJar>,
    time_limit: Duration,
    /// The last request.
    method: &'static str,
    /// Its response, until the head has arrived.
    pending: Option<PendingResponse>,
    /// Its response, from the head on.
    messages: Option<ResponseReader>,
    /// Session id in the head, if the server assigned one.
    id: Option<HeaderValue>,
}

// === impl HttpChannel ===

impl HttpChannel {
    /// Creates a channel whose POSTs have these headers.
    pub(super) fn new(server: Arc<StreamableHttp>, post_headers: HeaderMap) -> Self {
        Self {
            cookies: Arc::new(CookieJar::new(server.url.uri())),
            time_limit: server.config.load().timeouts.first_byte,
            server,
            post_headers,
            method: "",
            pending: None,
            messages: None,
            id: None,
        }
    }

    /// Reads the remainder of the last response, so that its connection can be reused.
    fn finish_response(&mut self) {
        if let Some(remainder) = self.messages.take().and_then(ResponseReader::into_remainder) {
            self.server.drain_later(remainder);
        }
    }
}

impl HandshakeChannel for HttpChannel {
    type Session = HttpSession;

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn send(&mut self, method: &'static str, body: Bytes) -> Result<(), CallError> {
        self.finish_response();
        let server = &self.server;
        let mut lines = http1::header_lines(&self.post_headers);
        lines.extend_from_slice(server.user_agent_line(&self.post_headers));
        let options = SendOptions {
            reuse: ConnectionReuse::Any,
            traffic: TrafficClass::Call,
            cookies: Some(&self.cookies),
        };
        let lines: [&[u8]; 2] = [&lines, &server.configured_lines()];
        self.pending = Some(server.client.send(&Method::POST, &server.path, lines, body, options));
        self.method = method;
        Ok(())
    }

    async fn receive(&mut self) -> Result<HandshakeEvent, CallError> {
        if let Some(pending) = self.pending.take() {
            let response = self.server.await_head(pending).await?;
            let status = response.status();
            self.id = response.headers().get(&SESSION_ID).cloned();
            match ResponseClass::classify(response, &self.server)? {
                ResponseClass::Messages(messages) => self.messages = Some(messages),
                ResponseClass::Accepted => {
                    let why = format!("{} was answered with HTTP {status} and no body", self.method);
                    return Err(CallError::Invalid(why));
                }
                ResponseClass::Refused(head, body) => {
                    let body = error_body(body).await;
                    let error = status_error(status, &head.headers, &body);
                    return Ok(HandshakeEvent::Refused { status, body, error });
                }
            }
        }
        let messages = self.messages.as_mut().ok_or(CallError::SessionEnded)?;
        Ok(HandshakeEvent::Message(poll_fn(|cx| messages.poll_next(cx)).await?))
    }

    /// Adds a hint about a wrong URL to an error that means that no MCP endpoint exists there.
    async fn explain(&mut self, refusal: CallError) -> CallError {
        let CallError::Status { status, detail, retry_after } = refusal else { return refusal };
        if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return CallError::Status { status, detail, retry_after };
        }
        let detail = match http_sse_probe::is_http_sse(&self.server, &self.post_headers).await {
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

    fn into_session(mut self, revision: &str) -> Result<HttpSession, CallError> {
        self.finish_response();
        HttpSession::from_handshake(self.server, revision, self.post_headers, self.id, self.cookies)
    }
}
