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

/// Future of a response: resolves with its head.
pub(in crate::upstream) struct PendingResponse {
    stage: ExchangeStage,
    request: BufferedRequest,
    connector: Arc<ConnectorConfig>,
    redirects: u8,
    /// Whether the request was sent again because its first connection failed.
    is_repeated: bool,
}

/// A request, kept until the response head has arrived. Shares its allocations with the bytes being sent.
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

/// Redirects followed for one request. In a redirect loop the last redirect is the response.
const REDIRECTS: u8 = 3;

// === impl PendingResponse ===

impl PendingResponse {
    pub(super) fn new(connector: Arc<ConnectorConfig>, request: BufferedRequest) -> Self {
        let stage = ExchangeStage::begin(&connector, &request, false);
        Self { stage, request, connector, redirects: 0, is_repeated: false }
    }

    /// Whether there is no connection yet, so that nothing has reached the server.
    pub(in crate::upstream) fn is_connecting(&self) -> bool {
        match &self.stage {
            ExchangeStage::Connecting(_) => true,
            ExchangeStage::Sending(_) => false,
        }
    }

    /// Whether a request whose connection failed may be sent on another: it is idempotent, or no byte of it
    /// was sent.
    fn can_repeat(&self, untouched: bool, error: &io::Error) -> bool {
        let may_be_sent_again = untouched || self.request.reuse == ConnectionReuse::Any;
        let is_about_connection =
            !tls::is_certificate_refusal(error) && error.kind() != io::ErrorKind::InvalidData;
        may_be_sent_again && is_about_connection && !self.is_repeated
    }

    /// Sends the request again.
    fn send_again(&mut self, on_new_connection: bool) {
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
                    if !this.can_repeat(is_untouched, &error) {
                        return Poll::Ready(Err(connection_error(&error)));
                    }
                    this.is_repeated = true;
                    this.send_again(true);
                }
                Ok(response) => {
                    if let Some(cookies) = &this.request.cookies {
                        cookies.store(response.headers(), this.request.path());
                    }
                    match this.connector.redirect(&response, this.request.path()) {
                        Some(to) if this.redirects < REDIRECTS => {
                            this.redirects += 1;
                            this.request.head = this.request.head_for(&this.connector.target(&to));
                            this.send_again(false);
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
        let kept = if on_new_connection { None } else { connector.pool.take(request.reuse) };
        match kept {
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
    /// Requested path with its query.
    fn path(&self) -> &str {
        let target = self.head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        let target = std::str::from_utf8(target).unwrap_or_default();
        // For a proxy the target is a whole URL.
        match target.split_once("://") {
            Some((_, rest)) if !target.starts_with('/') => rest.find('/').map_or("/", |at| &rest[at..]),
            Some(_) | None => target,
        }
    }

    /// The head with another target.
    fn head_for(&self, target: &str) -> Bytes {
        let mut parts = self.head.splitn(3, |&byte| byte == b' ');
        let (method, _, rest) = (parts.next(), parts.next(), parts.next());
        let parts = [method.unwrap_or_default(), b" ", target.as_bytes(), b" ", rest.unwrap_or_default()];
        Bytes::from(parts.concat())
    }
}

/// Error of a connection that failed after it was established: how far the request got is unknown.
fn connection_error(error: &io::Error) -> CallError {
    match error.kind() {
        _ if tls::is_certificate_refusal(error) => {
            CallError::Unreachable(format!("it rejects the client certificate (upstream.tls): {error}"))
        }
        io::ErrorKind::InvalidData => CallError::Invalid(error.to_string()),
        _ => CallError::Broken(root_cause(error)),
    }
}
