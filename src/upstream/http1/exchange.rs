//! One request, until the head of its response: on a kept connection or a new one, once more where that repeats
//! nothing, and at another path of the same server where it redirects there.

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

/// A response on its way: its head, then.
pub(in crate::upstream) struct PendingResponse {
    stage: ExchangeStage,
    request: BufferedRequest,
    connector: Arc<ConnectorConfig>,
    redirects: u8,
    /// It was sent once more, because its first connection failed.
    is_repeated: bool,
}

/// What is sent. Kept until the head of the response is there: it shares its allocations with what is being sent.
pub(super) struct BufferedRequest {
    /// Without the cookies of the session.
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// Those of a session that the proxy owns.
    pub(super) cookies: Option<Arc<CookieJar>>,
    pub(super) reuse: ConnectionReuse,
    pub(super) traffic: TrafficClass,
}

enum ExchangeStage {
    Connecting(BoxFuture<'static, Result<ExchangeFuture, CallError>>),
    Sending(ExchangeFuture),
}

/// Redirects that are followed for one request. A server that sends it round in a circle is answered for by its
/// last redirect.
const REDIRECTS: u8 = 3;

// === impl Answering ===

impl PendingResponse {
    pub(super) fn new(way: Arc<ConnectorConfig>, request: BufferedRequest) -> Self {
        let stage = ExchangeStage::begin(&way, &request, false);
        Self { stage, request, connector: way, redirects: 0, is_repeated: false }
    }

    /// Whether there is no connection yet, so that nothing can have reached the server.
    pub(in crate::upstream) fn is_connecting(&self) -> bool {
        match &self.stage {
            ExchangeStage::Connecting(_) => true,
            ExchangeStage::Sending(_) => false,
        }
    }

    /// Whether a request whose connection failed may be sent on another one: it may be repeated, or not a byte of
    /// it was sent.
    fn can_repeat(&self, untouched: bool, error: &io::Error) -> bool {
        let may_be_sent_again = untouched || self.request.reuse == ConnectionReuse::Any;
        let is_about_connection =
            !tls::is_certificate_refusal(error) && error.kind() != io::ErrorKind::InvalidData;
        may_be_sent_again && is_about_connection && !self.is_repeated
    }

    /// Sends the request once more.
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

// === impl Stage ===

impl ExchangeStage {
    fn begin(way: &Arc<ConnectorConfig>, request: &BufferedRequest, on_new_connection: bool) -> Self {
        let head = match &request.cookies {
            Some(cookies) => cookies.add_to(&request.head, request.path()),
            None => request.head.clone(),
        };
        let kept = if on_new_connection { None } else { way.pool.take(request.reuse) };
        match kept {
            Some(connection) => {
                Self::Sending(ExchangeFuture::new(connection, head, request.body.clone(), way.pool.clone()))
            }
            None => Self::Connecting(Box::pin(way.connect(head, request.body.clone(), request.traffic))),
        }
    }
}

// === impl Request ===

impl BufferedRequest {
    /// The path that is asked for, its query included.
    fn path(&self) -> &str {
        let target = self.head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        let target = std::str::from_utf8(target).unwrap_or_default();
        // Towards a proxy it is a whole URL.
        match target.split_once("://") {
            Some((_, rest)) if !target.starts_with('/') => rest.find('/').map_or("/", |at| &rest[at..]),
            Some(_) | None => target,
        }
    }

    /// The same head for another target.
    fn head_for(&self, target: &str) -> Bytes {
        let mut parts = self.head.splitn(3, |&byte| byte == b' ');
        let (method, _, rest) = (parts.next(), parts.next(), parts.next());
        let parts = [method.unwrap_or_default(), b" ", target.as_bytes(), b" ", rest.unwrap_or_default()];
        Bytes::from(parts.concat())
    }
}

/// What a connection that failed after it was made means: how far the request got is not known.
fn connection_error(error: &io::Error) -> CallError {
    match error.kind() {
        _ if tls::is_certificate_refusal(error) => {
            CallError::Unreachable(format!("in TLS it refuses whom it is called by (upstream.tls): {error}"))
        }
        io::ErrorKind::InvalidData => CallError::Invalid(error.to_string()),
        _ => CallError::Broken(root_cause(error)),
    }
}
