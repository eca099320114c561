//! Connections to one server: connecting with TLS and a time limit, keeping and reuse.
//!
//! HTTP/1.1 only, on purpose. Calls are parked for hours on their responses; on HTTP/2 they would share one
//! connection's streams, and a server that allows a hundred streams would block the next call, and every
//! cancellation, without end.

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use http::{Method, Uri};
use std::{
    borrow::Cow,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::timeout;

use super::{
    connection::{ExchangeFuture, RawBody, UpstreamConnection, UpstreamIo},
    cookies::CookieJar,
    exchange::{BufferedRequest, PendingResponse},
    head::request_head,
    proxy::Proxy,
    redirect::redirect_target,
    tls::{self, TlsEndpoint},
};
use crate::{
    runtime::{Clock, Mutex, Network, NetworkConnector, SwapCell, SystemClock},
    upstream::{CallError, Config, ServerUrl, UpstreamSetupError, UpstreamTls, root_cause},
};

/// HTTP/1.1 client of one server, with its connection pool.
pub(in crate::upstream) struct HttpClient {
    origin: Arc<ServerOrigin>,
    connector: SwapCell<ConnectorConfig>,
}

/// URL of a server, and the TCP connector for it.
struct ServerOrigin {
    url: Uri,
    /// URL for display: the path of a URL with an environment variable is not logged.
    display_url: ServerUrl,
    tcp: NetworkConnector,
    /// Whether a redirect has been logged.
    has_redirected: AtomicBool,
}

/// Configuration of connecting, with the connections made by it.
#[derive(Clone)]
pub(in crate::upstream) struct ConnectorConfig {
    origin: Arc<ServerOrigin>,
    proxy: Option<Arc<Proxy>>,
    /// TLS settings as configured, and the TLS endpoint made from them; `None` without TLS.
    tls: (Option<Arc<UpstreamTls>>, Option<TlsEndpoint>),
    /// Time limit of connecting, including tunnel and TLS handshake; also of the wait for a permit.
    connect_timeout: Duration,
    /// Connections made with this configuration.
    pub(super) pool: Arc<ConnectionPool>,
}

/// Idle connections of one server.
#[derive(Default)]
pub(super) struct ConnectionPool {
    /// Locked for a few statements only.
    idle: Mutex<ReusableConnections>,
    clock: SystemClock,
    /// Outcome of the last connection attempt, with the reason of its failure; `None` before the first.
    last_attempt: Mutex<Option<Result<(), Arc<str>>>>,
}

/// Idle connections in two lists; the last used connection is the last of its list.
#[derive(Default)]
struct ReusableConnections {
    /// Connections whose last response was not a 202.
    proven: Vec<IdleConnection>,
    /// Connections whose last response was a 202. Some servers close such a connection without notice,
    /// perhaps while the next request is in flight.
    after_accepted: Vec<IdleConnection>,
}

/// Kinds of pooled connections that a request may use. A reset before the first byte of a response does not
/// show whether the request ran, so a request that must not be sent twice is lost with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum ConnectionReuse {
    /// Any connection: the request is idempotent, and is sent again if its connection fails. Connections that
    /// other requests must not use are preferred.
    Any,
    /// Only connections that the server has certainly not closed: not after a 202, and not after a longer
    /// idle time than [`SAFE_IDLE`] or than the server announces.
    Proven,
}

/// Class of a request; selects the connection limit that it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum TrafficClass {
    /// A request of unlimited duration.
    Call,
    /// A short message that must not wait behind calls: a response to a server's request, a cancellation, or
    /// the DELETE of a session.
    Control,
}

/// Options of sending one request.
#[derive(Clone, Copy)]
pub(in crate::upstream) struct SendOptions<'a> {
    pub(in crate::upstream) reuse: ConnectionReuse,
    pub(in crate::upstream) traffic: TrafficClass,
    /// Cookies of the session, if the proxy owns it.
    pub(in crate::upstream) cookies: Option<&'a Arc<CookieJar>>,
}

struct IdleConnection {
    connection: Box<UpstreamConnection>,
    idle_since: Instant,
}

/// Idle time after which a connection is closed, if the server announces none. Shorter than the five seconds
/// after which Node and uvicorn close: a request written at that moment would be lost.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// Idle time up to which a connection is used for a request that must not be sent twice, if the server
/// announces none. Shorter than the two seconds of gunicorn, the shortest of the widely used servers.
const SAFE_IDLE: Duration = Duration::from_secs(1);
/// Margin before the end of the announced idle time (`Keep-Alive: timeout`), for the travel time of a
/// request.
const IDLE_MARGIN: Duration = Duration::from_secs(1);
/// Upper bound of the idle time that a server announces.
const MAX_ANNOUNCED_IDLE: Duration = Duration::from_secs(60);
/// Limit of kept idle connections. Each costs a socket and a few hundred bytes.
const MAX_IDLE_CONNECTIONS: usize = 1024;
/// Time after which TCP probes detect a vanished peer: calls may be silent for hours.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

// === impl HttpClient ===

impl HttpClient {
    /// Creates a client for the server of `url`.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] if the URL is not an HTTP URL, or the system's certificates cannot be read.
    pub(in crate::upstream) fn new(
        url: &ServerUrl,
        config: &Config,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let (display_url, url) = (url.clone(), url.uri().clone());
        let tls = (config.tls.clone(), tls::tls_endpoint(&url, config.tls.as_deref())?);
        let (proxy, connect_timeout) = (config.proxy.clone(), config.timeouts.connect);
        let (tcp, has_redirected) = (net.connector(TCP_KEEP_ALIVE), AtomicBool::new(false));
        let origin = Arc::new(ServerOrigin { url, display_url, tcp, has_redirected });
        let connector =
            ConnectorConfig { origin: origin.clone(), proxy, tls, connect_timeout, pool: Arc::default() };
        Ok(Self { origin, connector: connector.into() })
    }

    /// Prepares another configuration for the same server. Idle connections are kept unless proxy or TLS
    /// settings differ.
    ///
    /// # Errors
    /// As [`HttpClient::new`].
    pub(in crate::upstream) fn prepare_reload(
        &self,
        config: &Config,
    ) -> Result<ConnectorConfig, UpstreamSetupError> {
        let current = self.connector.load_full();
        let (proxy, connect_timeout) = (config.proxy.clone(), config.timeouts.connect);
        if current.proxy == proxy && current.tls.0 == config.tls {
            return Ok(ConnectorConfig { connect_timeout, ..ConnectorConfig::clone(&current) });
        }
        let tls = (config.tls.clone(), tls::tls_endpoint(&self.origin.url, config.tls.as_deref())?);
        Ok(ConnectorConfig { origin: self.origin.clone(), proxy, tls, connect_timeout, pool: Arc::default() })
    }

    /// Applies a prepared configuration.
    pub(in crate::upstream) fn apply(&self, connector: ConnectorConfig) {
        self.connector.set(connector);
    }

    /// Sends a request for `path`. `lines` are serialized headers ([`super::header_lines`]): those common to
    /// many requests, and those of this request.
    pub(in crate::upstream) fn send(
        &self,
        method: &Method,
        path: &str,
        lines: [&[u8]; 2],
        body: Bytes,
        options: SendOptions<'_>,
    ) -> PendingResponse {
        let SendOptions { reuse, traffic, cookies } = options;
        let connector = self.connector.load_full();
        let head = request_head(method, &connector.target(path), lines, connector.proxy_line(), body.len());
        let cookies = cookies.cloned();
        PendingResponse::new(connector, BufferedRequest { head, body, cookies, reuse, traffic })
    }

    /// Outcome of the last connection attempt, with the reason of its failure; `None` before the first one.
    pub(in crate::upstream) fn last_attempt(&self) -> Option<Result<(), Arc<str>>> {
        self.connector.load().pool.last_attempt.lock().clone()
    }

    /// Closes all idle connections. Returns whether there were any.
    pub(in crate::upstream) fn close_idle(&self) -> bool {
        let ReusableConnections { proven, after_accepted: doubtful } =
            std::mem::take(&mut *self.connector.load().pool.idle.lock());
        !(proven.is_empty() && doubtful.is_empty())
    }

    /// Closes connections that have been idle for too long.
    pub(in crate::upstream) fn sweep(&self) {
        self.connector.load().pool.sweep();
    }
}

// === impl ConnectorConfig ===

impl ConnectorConfig {
    /// Connects, and sends a request on the new connection.
    pub(super) fn connect(
        &self,
        head: Bytes,
        body: Bytes,
        traffic: TrafficClass,
    ) -> impl Future<Output = Result<ExchangeFuture, CallError>> + use<> {
        let mut tcp = self.origin.tcp.clone();
        let Self { origin, proxy, tls: (_, tls), connect_timeout, pool } = self.clone();
        let (permit, max_connections) =
            (tcp.acquire_permit(traffic == TrafficClass::Control), tcp.connection_limit());
        let tcp = match &proxy {
            None => {
                let address = origin.display_url.authority();
                let to_text = move |error: Box<dyn std::error::Error + Send + Sync>| {
                    format!("{address}: {}", root_cause(&*error))
                };
                tcp.connect(origin.url.clone()).map_err(to_text).boxed()
            }
            Some(proxy) => proxy.connect(&tcp, &origin.url),
        };
        let connecting = async move {
            let tcp = tcp.await.map_err(CallError::Unreachable)?;
            Ok(match tls {
                None => UpstreamIo::Left(tcp),
                Some(TlsEndpoint { connector, name }) => {
                    let stream = connector.connect(name, tcp).await;
                    UpstreamIo::Right(Box::new(
                        stream.map_err(|error| CallError::Unreachable(error.to_string()))?,
                    ))
                }
            })
        };
        async move {
            let permit = timeout(connect_timeout, permit)
                .await
                .map_err(|_| CallError::ConnectionsInUse { limit: max_connections })?;
            let io = timeout(connect_timeout, connecting)
                .await
                .unwrap_or(Err(CallError::ConnectTimeout(connect_timeout)));
            let failure = io.as_ref().err().map(|error| error.to_string().into());
            *pool.last_attempt.lock() = Some(failure.map_or(Ok(()), Err));
            let io = io?;
            Ok(ExchangeFuture::new(Box::new(UpstreamConnection::new(io, permit)), head, body, pool))
        }
    }

    /// Proxy that receives each request with its whole URL: the configured one, if the server has no TLS (RFC
    /// 9110, 7.1; RFC 9112, 3.2.2).
    fn forwarding_proxy(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.tls.1.is_none())
    }

    /// Request target for a path: the path, or the whole URL if a proxy forwards the request.
    pub(super) fn target<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let host = || self.origin.url.authority().map_or("", |authority| without_user(authority.as_str()));
        match self.forwarding_proxy() {
            Some(_) => format!("http://{}{path}", host()).into(),
            None => path.into(),
        }
    }

    /// `Proxy-Authorization` header line for the forwarding proxy; empty without one.
    fn proxy_line(&self) -> &[u8] {
        self.forwarding_proxy().map_or(&[], Proxy::authorization_line)
    }

    /// Path to which a response redirects the request, if that is on the same server; else `None`. Logs the
    /// first redirect.
    pub(super) fn redirect_target(&self, response: &http::Response<RawBody>, path: &str) -> Option<String> {
        let target_path = redirect_target(&self.origin.url, path, response.status(), response.headers())?;
        if !self.origin.has_redirected.swap(true, Ordering::Relaxed) {
            let status = response.status().as_u16();
            let [path, shown_target] = [path, &target_path]
                .map(|path| (!self.origin.display_url.has_variables()).then(|| without_query(path)));
            tracing::info!(target: "deferral::upstream", event = "redirected", status, path, to = shown_target,
                "the server redirects each request: name the new path in upstream.url to save a round trip");
        }
        Some(target_path)
    }
}

/// Path without its query, which may hold a key.
fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// Authority without the user.
fn without_user(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

// === impl ConnectionPool ===

impl ConnectionPool {
    /// Takes the most recently used connection that `reuse` allows and that the server has kept open; `None`
    /// if there is none.
    pub(super) fn take(&self, reuse: ConnectionReuse) -> Option<Box<UpstreamConnection>> {
        let found = match reuse {
            ConnectionReuse::Any => self.take_from(reuse, |idle| &mut idle.after_accepted),
            ConnectionReuse::Proven => None,
        };
        found.or_else(|| self.take_from(reuse, |idle| &mut idle.proven))
    }

    fn take_from(
        &self,
        reuse: ConnectionReuse,
        list: impl Fn(&mut ReusableConnections) -> &mut Vec<IdleConnection>,
    ) -> Option<Box<UpstreamConnection>> {
        let now = self.clock.now();
        loop {
            let mut candidate = list(&mut self.idle.lock()).pop()?;
            let age = now.saturating_duration_since(candidate.idle_since);
            if age >= candidate.max_idle() {
                // Dropped. An older connection may have a longer announced idle time.
                continue;
            }
            if reuse == ConnectionReuse::Proven && age >= candidate.max_safe_idle() {
                // The connection is the newest of its list: all older ones are as uncertain, unless the
                // server announced an idle time.
                list(&mut self.idle.lock()).push(candidate);
                return None;
            }
            if candidate.connection.is_idle() {
                return Some(candidate.connection);
            }
        }
    }

    /// Returns a connection for the next request. `accepted` says whether its last response was a 202. Closes
    /// the connection if the pool is full.
    pub(super) fn put_back(&self, connection: Box<UpstreamConnection>, accepted: bool) {
        let since = self.clock.now();
        let mut idle = self.idle.lock();
        if idle.proven.len() + idle.after_accepted.len() < MAX_IDLE_CONNECTIONS && connection.is_poolable() {
            let list = if accepted { &mut idle.after_accepted } else { &mut idle.proven };
            list.push(IdleConnection { connection, idle_since: since });
        }
    }

    /// Whether exactly one connection is idle.
    #[cfg(test)]
    pub(super) fn holds_one(&self) -> bool {
        let idle = self.idle.lock();
        idle.proven.len() + idle.after_accepted.len() == 1
    }

    fn sweep(&self) {
        let now = self.clock.now();
        // Close outside the lock.
        let expired = {
            let mut idle = self.idle.lock();
            let ReusableConnections { proven, after_accepted: doubtful } = &mut *idle;
            let take_expired = |list: &mut Vec<IdleConnection>| {
                list.extract_if(.., |idle| now.saturating_duration_since(idle.idle_since) >= idle.max_idle())
                    .collect::<Vec<_>>()
            };
            [take_expired(proven), take_expired(doubtful)]
        };
        drop(expired);
    }
}

// === impl IdleConnection ===

impl IdleConnection {
    /// Idle time after which the connection is closed.
    fn max_idle(&self) -> Duration {
        self.announced_max_idle().unwrap_or(MAX_IDLE)
    }

    /// Idle time up to which the connection is used for requests that must not be sent twice.
    fn max_safe_idle(&self) -> Duration {
        self.announced_max_idle().unwrap_or(SAFE_IDLE)
    }

    fn announced_max_idle(&self) -> Option<Duration> {
        self.connection
            .announced_idle()
            .map(|announced| announced.min(MAX_ANNOUNCED_IDLE).saturating_sub(IDLE_MARGIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ConnectionPermit;
    use tokio::io::{AsyncReadExt, BufWriter, duplex};

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_bounded_in_number_and_time() {
        let pool = ConnectionPool::default();
        let mut servers = Vec::new();
        for n in 0..MAX_IDLE_CONNECTIONS + 10 {
            let (ours, theirs) = duplex(8);
            let io = UpstreamIo::Right(Box::new(BufWriter::new(ours)));
            pool.put_back(Box::new(UpstreamConnection::new(io, ConnectionPermit::default())), n % 2 == 0);
            servers.push(theirs);
        }
        let kept = || {
            let idle = pool.idle.lock();
            idle.proven.len() + idle.after_accepted.len()
        };
        assert_eq!(kept(), MAX_IDLE_CONNECTIONS);
        let mut last = servers.pop().expect("there are many");
        assert_eq!(last.read_u8().await.ok(), None, "what is not kept is closed");

        tokio::time::advance(MAX_IDLE - Duration::from_millis(1)).await;
        assert!(pool.take(ConnectionReuse::Any).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pool.take(ConnectionReuse::Any).is_none(), "the server may be closing it");
        pool.sweep();
        assert_eq!(kept(), 0);
    }
    /// A kept connection whose last response had this header.
    async fn kept(pool: &Arc<ConnectionPool>, announced: &str) -> tokio::io::DuplexStream {
        let (ours, mut theirs) = duplex(1024);
        let io = UpstreamIo::Right(Box::new(BufWriter::new(ours)));
        let connection = Box::new(UpstreamConnection::new(io, ConnectionPermit::default()));
        let request = (Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"), Bytes::new());
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{announced}\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut theirs, response.as_bytes()).await.expect("it fits");
        let sent = ExchangeFuture::new(connection, request.0, request.1, Arc::clone(pool)).await;
        sent.expect("a response");
        theirs
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated() {
        for (announced, certain, limit) in [
            ("", 1000, 4000),
            ("keep-alive: timeout=10\r\n", 9000, 9000),
            ("Keep-Alive: max=100, TIMEOUT=3\r\n", 2000, 2000),
            ("keep-alive: timeout=86400\r\n", 59_000, 59_000),
            ("keep-alive: timeout=1\r\n", 0, 0),
            ("keep-alive: timeout=soon\r\n", 1000, 4000),
        ] {
            let is_usable = async |reuse, idle: u64| {
                let pool = Arc::new(ConnectionPool::default());
                let _server = kept(&pool, announced).await;
                tokio::time::advance(Duration::from_millis(idle)).await;
                pool.take(reuse).is_some()
            };
            for (reuse, time) in [(ConnectionReuse::Proven, certain), (ConnectionReuse::Any, limit)] {
                assert!(time == 0 || is_usable(reuse, time - 1).await, "{announced:?} {reuse:?}");
                assert!(!is_usable(reuse, time).await, "{announced:?} {reuse:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_too_old_for_a_call_is_kept_for_what_may_be_repeated() {
        let pool = Arc::new(ConnectionPool::default());
        let _server = kept(&pool, "").await;
        tokio::time::advance(SAFE_IDLE).await;
        assert!(pool.take(ConnectionReuse::Proven).is_none());
        assert!(pool.holds_one());
        assert!(pool.take(ConnectionReuse::Any).is_some());
    }
}
