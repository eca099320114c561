//! The HTTP client: pooled connections, TLS, and a limit on how long connecting may take.
//!
//! HTTP/1.1 only, on purpose. Calls are parked for hours on their own responses; on HTTP/2 they
//! would share one connection's streams, and a server that allows a hundred of them would leave
//! the hundred and first call, and every cancellation, waiting for ever.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::ClientConfig;
use std::{io, sync::Arc, time::Duration};
use tower_service::Service;

use super::{Lost, NotStarted};

/// Sends requests with whole bodies.
pub(super) type HttpClient = Client<Connector, Full<Bytes>>;

/// Connects, TLS included, within a limit.
#[derive(Clone)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector>,
    limit: Duration,
}

/// No connection within the limit.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
struct TooSlow(Duration);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Connection = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;

/// How long an idle connection is kept. Shorter than the five seconds after which Node and uvicorn
/// close one themselves: a request written at that moment would be lost without being served.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);
/// Idle connections kept at most.
const IDLE_CONNECTIONS: usize = 1024;
/// The largest read buffer of a connection. It begins with 8 KiB and grows only while large
/// answers arrive; costs this much for each connection in the middle of one.
const READ_BUFFER: usize = 64 << 10;
/// A peer that vanished is noticed by TCP probes after this long: calls may be silent for hours.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A client for `url`.
///
/// # Errors
/// [`NotStarted`] where the URL is not one to speak HTTP to, or the system's certificates cannot
/// be read.
pub(super) fn client(url: &Uri, connect: Duration) -> Result<HttpClient, NotStarted> {
    if url.host().is_none_or(str::is_empty) {
        return Err(NotStarted::NoHost(url.clone()));
    }
    let tls = match url.scheme_str() {
        Some("http") => without_roots()?,
        Some("https") => with_system_roots()?,
        _ => return Err(NotStarted::Scheme(url.clone())),
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEP_ALIVE));
    let inner =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_CONNECTION)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .http1_max_buf_size(READ_BUFFER)
        .build(Connector { inner, limit: connect }))
}

/// What a failed request means. A connection that was never made has carried nothing; of any other
/// failure it is not known how far the request got.
pub(super) fn lost(error: &Error) -> Lost {
    let mut cause: &dyn std::error::Error = error;
    loop {
        // A custom `io::Error` hides its payload from `source`.
        let payload = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(TooSlow(limit)) =
            cause.downcast_ref().or_else(|| payload.and_then(|payload| payload.downcast_ref()))
        {
            return Lost::ConnectTimeout(*limit);
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => break,
        }
    }
    if error.is_connect() { Lost::Unreachable(cause.to_string()) } else { Lost::Broken(cause.to_string()) }
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, NotStarted> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(NotStarted::Tls)
}

/// For a plain `http` server: the system's certificates are not even read.
fn without_roots() -> Result<ClientConfig, NotStarted> {
    Ok(builder()?.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

/// Trusts what the system trusts, or what `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
fn with_system_roots() -> Result<ClientConfig, NotStarted> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let problems: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(NotStarted::NoRoots(problems.join("; ")));
    }
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

// === impl Connector ===

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Connection, BoxError>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(url), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(Box::new(TooSlow(limit)) as BoxError),
            }
        })
    }
}
