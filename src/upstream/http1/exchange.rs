//! One request until its response head: on a kept or new connection, sent again if that is safe, and
//! redirected to another path of the same server.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    connection::ExchangeFuture,
    content::{IncomingBody, decode},
    cookies::CookieJar,
    pool::{ConnectionReuse, ConnectorConfig, TrafficClass},
    tls,
};
use crate::upstream::{CallError, root_cause};

/// Future of a response: resolves once its head has arrived.
pub(in crate::upstream) struct PendingResponse {
    stage: ExchangeStage,
    request: BufferedRequest,
    connector: Arc<ConnectorConfig>,
    redirects: u8,
    /// Whether the request was sent again because its first connection failed.
    was_resent: bool,
}

/// A serialized request, kept until the response head has arrived. Shares its allocations with the bytes
/// being sent.
pub(super) struct BufferedRequest {
    /// Head without the session's cookies.
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// Cookies of a session that the proxy owns.
    pub(super) cookies: Option<Arc<CookieJar>>,
    pub(super) reuse: ConnectionReuse,
    pub(super) traffic: TrafficClass,
}

enum ExchangeStage {
    Connecting(BoxFuture<'static, Result<ExchangeFuture, CallError>>),
    Sending(ExchangeFuture),
}

/// Limit of redirects followed for one request. In a redirect loop the last redirect is the response.
const MAX_REDIRECTS: u8 = 3;

// === impl PendingResponse ===

impl PendingResponse {
    /// Starts to send the request: on a pooled connection, or on a new one.
    pub(super) fn new(connector: Arc<ConnectorConfig>, request: BufferedRequest) -> Self {
        let stage = ExchangeStage::begin(&connector, &request, false);
        Self { stage, request, connector, redirects: 0, was_resent: false }
    }

    /// Whether there is no connection yet, so that no byte has reached the server.
    pub(in crate::upstream) fn is_connecting(&self) -> bool {
        match &self.stage {
            ExchangeStage::Connecting(_) => true,
            ExchangeStage::Sending(_) => false,
        }
    }

    /// Whether a request whose connection failed with `error` may be sent on another connection: it is
    /// idempotent, or no byte of it was sent (`is_untouched`).
    fn can_resend(&self, is_untouched: bool, error: &io::Error) -> bool {
        let is_safe_to_resend = is_untouched || self.request.reuse == ConnectionReuse::Any;
        let is_about_connection =
            !tls::is_certificate_refusal(error) && error.kind() != io::ErrorKind::InvalidData;
        is_safe_to_resend && is_about_connection && !self.was_resent
    }

    /// Sends the request again.
    fn resend(&mut self, on_new_connection: bool) {
        self.stage = ExchangeStage::begin(&self.connector, &self.request, on_new_connection);
    }
}

impl Future for PendingResponse {
    type Output = Result<http::Response<IncomingBody>, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let sending = match &mut this.stage {
                ExchangeStage::Connecting(connecting) => {
                    this.stage = ExchangeStage::Sending(ready!(connecting.as_mut().poll(cx))?);
                    continue;
                }
                ExchangeStage::Sending(sending) => sending,
            };
            match ready!(Pin::new(&mut *sending).poll(cx)) {
                Err(error) => {
                    let is_untouched = sending.is_untouched();
                    if !this.can_resend(is_untouched, &error) {
                        return Poll::Ready(Err(connection_error(&error)));
                    }
                    this.was_resent = true;
                    this.resend(true);
                }
                Ok(response) => {
                    if let Some(cookies) = &this.request.cookies {
                        cookies.store(response.headers(), this.request.path());
                    }
                    match this.connector.redirect_target(&response, this.request.path()) {
                        Some(target_path) if this.redirects < MAX_REDIRECTS => {
                            this.redirects += 1;
                            this.request.head =
                                this.request.with_target(&this.connector.target(&target_path));
                            this.resend(false);
                        }
                        Some(_) | None => return Poll::Ready(decode(response)),
                    }
                }
            }
        }
    }
}

// === impl ExchangeStage ===

impl ExchangeStage {
    fn begin(connector: &Arc<ConnectorConfig>, request: &BufferedRequest, on_new_connection: bool) -> Self {
        let head = match &request.cookies {
            Some(cookies) => cookies.add_to(&request.head, request.path()),
            None => request.head.clone(),
        };
        let pooled = if on_new_connection { None } else { connector.pool.take(request.reuse) };
        match pooled {
            Some(connection) => {
                let (body, pool) = (request.body.clone(), connector.pool.clone());
                Self::Sending(ExchangeFuture::new(connection, head, body, pool))
            }
            None => {
                let connecting = connector.connect(head, request.body.clone(), request.traffic);
                Self::Connecting(Box::pin(connecting))
            }
        }
    }
}

// === impl BufferedRequest ===

impl BufferedRequest {
    /// Requested path with its query, from the request line.
    fn path(&self) -> &str {
        let target = self.head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        let target = std::str::from_utf8(target).unwrap_or_default();
        // For a proxy the target is a whole URL.
        match target.split_once("://") {
            Some((_, authority_and_path)) if !target.starts_with('/') => {
                authority_and_path.find('/').map_or("/", |index| &authority_and_path[index..])
            }
            Some(_) | None => target,
        }
    }

    /// Returns the head with another request target.
    fn with_target(&self, target: &str) -> Bytes {
        let mut parts = self.head.splitn(3, |&byte| byte == b' ');
        let (method, _, remainder) = (parts.next(), parts.next(), parts.next());
        let parts =
            [method.unwrap_or_default(), b" ", target.as_bytes(), b" ", remainder.unwrap_or_default()];
        Bytes::from(parts.concat())
    }
}

/// Converts the error of a connection that failed after it was established: how far the request got is
/// unknown.
fn connection_error(error: &io::Error) -> CallError {
    match error.kind() {
        _ if tls::is_certificate_refusal(error) => {
            CallError::Unreachable(format!("it rejects the client certificate (upstream.tls): {error}"))
        }
        io::ErrorKind::InvalidData => CallError::Invalid(error.to_string()),
        _ => CallError::Broken(root_cause(error)),
    }
}
