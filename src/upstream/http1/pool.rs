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
    redirect::redirect,
    tls::{self, TlsEndpoint},
};
use crate::{
    runtime::{Clock, Mutex, Network, NetworkConnector, SwapCell, SystemClock},
    upstream::{CallError, Config, ServerUrl, UpstreamSetupError, UpstreamTls, root_cause},
};

/// HTTP client of one server.
pub(in crate::upstream) struct HttpClient {
    origin: Arc<ServerOrigin>,
    connector: SwapCell<ConnectorConfig>,
}

/// The server, and the connector for it.
struct ServerOrigin {
    url: Uri,
    /// URL for display: a path that contains a variable is not logged.
    shown: ServerUrl,
    tcp: NetworkConnector,
    /// Whether a redirect has been logged.
    has_redirected: AtomicBool,
}

/// Configuration of connecting, with the connections made by it.
#[derive(Clone)]
pub(in crate::upstream) struct ConnectorConfig {
    origin: Arc<ServerOrigin>,
    proxy: Option<Arc<Proxy>>,
    /// TLS as configured, and the connector made from it.
    tls: (Option<Arc<UpstreamTls>>, Option<TlsEndpoint>),
    /// Time limit of connecting, with tunnel and TLS.
    limit: Duration,
    /// Connections made with this configuration.
    pub(super) pool: Arc<ConnectionPool>,
}

/// Idle connections of one server.
#[derive(Default)]
pub(super) struct ConnectionPool {
    /// Locked for a few statements only.
    idle: Mutex<ReusableConnections>,
    clock: SystemClock,
    /// Whether the last connection attempt succeeded.
    reached: Mutex<Option<bool>>,
    /// Reason of its failure.
    failure: Mutex<Option<Arc<str>>>,
}

/// Idle connections; in each list the last used is last.
#[derive(Default)]
struct ReusableConnections {
    proven: Vec<IdleConnection>,
    /// Connections whose last response was a 202. Some servers close such a connection without notice,
    /// perhaps while the next request is in flight.
    doubtful: Vec<IdleConnection>,
}

/// Kept connections that a request may use. A reset before the first byte of a response proves nothing, so a
/// request that must not be sent twice is lost with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum ConnectionReuse {
    /// Any connection: the request is idempotent, and is sent again if its connection fails. Connections that
    /// other requests must not use are taken first.
    Any,
    /// Connections that the server has certainly not closed: not those whose last response was a 202, and
    /// none that was idle for longer than [`CERTAIN`], or than the server announces.
    Proven,
}

/// Request class; selects the connection limit it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum TrafficClass {
    /// A request of unlimited duration.
    Call,
    /// A short message that must not wait for calls: a response to a server's request, a cancellation, the
    /// end of a session.
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
    since: Instant,
}

/// Idle time after which a connection is closed, if the server announces none. Shorter than the five seconds
/// of Node and uvicorn: a request written when they close would be lost.
const IDLE: Duration = Duration::from_secs(4);
/// Idle time up to which a connection is used for a request that must not be sent twice, if the server
/// announces none. Shorter than the two seconds of gunicorn, the shortest of a widely used server.
const CERTAIN: Duration = Duration::from_secs(1);
/// Margin before the announced end (`Keep-Alive: timeout`), for the travel time of a request.
const MARGIN: Duration = Duration::from_secs(1);
/// Upper bound of an announced idle time.
const LONGEST_IDLE: Duration = Duration::from_secs(60);
/// Limit of kept idle connections. Each costs a socket and a few hundred bytes.
const IDLE_CONNECTIONS: usize = 1024;
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
        let (shown, url) = (url.clone(), url.uri().clone());
        let tls = (config.tls.clone(), tls::tls_endpoint(&url, config.tls.as_deref())?);
        let (proxy, limit) = (config.proxy.clone(), config.timeouts.connect);
        let (tcp, has_redirected) = (net.connector(TCP_KEEP_ALIVE), AtomicBool::new(false));
        let site = Arc::new(ServerOrigin { url, shown, tcp, has_redirected });
        let connector = ConnectorConfig { origin: site.clone(), proxy, tls, limit, pool: Arc::default() };
        Ok(Self { origin: site, connector: connector.into() })
    }

    /// Prepares another configuration for the same server. Idle connections are kept if they would be made in
    /// the same way.
    ///
    /// # Errors
    /// As [`HttpClient::new`].
    pub(in crate::upstream) fn prepare_reload(
        &self,
        config: &Config,
    ) -> Result<ConnectorConfig, UpstreamSetupError> {
        let now = self.connector.load_full();
        let (proxy, limit) = (config.proxy.clone(), config.timeouts.connect);
        if now.proxy == proxy && now.tls.0 == config.tls {
            return Ok(ConnectorConfig { limit, ..ConnectorConfig::clone(&now) });
        }
        let tls = (config.tls.clone(), tls::tls_endpoint(&self.origin.url, config.tls.as_deref())?);
        Ok(ConnectorConfig { origin: self.origin.clone(), proxy, tls, limit, pool: Arc::default() })
    }

    /// Applies a prepared configuration.
    pub(in crate::upstream) fn apply(&self, connector: ConnectorConfig) {
        self.connector.set(connector);
    }

    /// Sends a request. `lines` are header lines ([`super::header_lines`]): common ones of many requests, and
    /// those of this one.
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

    /// Whether the last connection attempt succeeded; `None` before the first one.
    pub(in crate::upstream) fn last_connect_succeeded(&self) -> Option<bool> {
        *self.connector.load().pool.reached.lock()
    }

    /// Reason of the last failed connection attempt.
    pub(in crate::upstream) fn failure(&self) -> Option<Arc<str>> {
        self.connector.load().pool.failure.lock().clone()
    }

    /// Closes all idle connections. Returns whether there were any.
    pub(in crate::upstream) fn close_idle(&self) -> bool {
        let ReusableConnections { proven, doubtful } =
            std::mem::take(&mut *self.connector.load().pool.idle.lock());
        !(proven.is_empty() && doubtful.is_empty())
    }

    /// Closes idle connections that are too old for use.
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
        let Self { origin: site, proxy, tls: (_, tls), limit, pool } = self.clone();
        let (permit, limit_count) = (tcp.permit(traffic == TrafficClass::Control), tcp.connection_limit());
        let tcp = match &proxy {
            None => {
                let address = site.shown.authority();
                let why = move |error: Box<dyn std::error::Error + Send + Sync>| {
                    format!("{address}: {}", root_cause(&*error))
                };
                tcp.connect(site.url.clone()).map_err(why).boxed()
            }
            Some(proxy) => proxy.connect(&tcp, &site.url),
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
            let permit = timeout(limit, permit)
                .await
                .map_err(|_| CallError::ConnectionsInUse { limit: limit_count })?;
            let io = timeout(limit, connecting).await.unwrap_or(Err(CallError::ConnectTimeout(limit)));
            *pool.reached.lock() = Some(io.is_ok());
            *pool.failure.lock() = io.as_ref().err().map(|error| error.to_string().into());
            let io = io?;
            Ok(ExchangeFuture::new(Box::new(UpstreamConnection::new(io, permit)), head, body, pool))
        }
    }

    /// Proxy that forwards each request: the configured one, if the server has no TLS (RFC 9110, 7.1; RFC
    /// 9112, 3.2.2).
    fn forwarding_proxy(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.tls.1.is_none())
    }

    /// Request target for a path: the path, or the whole URL if a proxy forwards the request.
    pub(super) fn target<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let host = || self.origin.url.authority().map_or("", |authority| host_and_port(authority.as_str()));
        match self.forwarding_proxy() {
            Some(_) => format!("http://{}{path}", host()).into(),
            None => path.into(),
        }
    }

    /// `Proxy-Authorization` line for the forwarding proxy.
    fn proxy_line(&self) -> &[u8] {
        self.forwarding_proxy().map_or(&[], Proxy::authorization_line)
    }

    /// Path to which a response redirects the request, if it is on the same server. Logs the first redirect.
    pub(super) fn redirect(&self, response: &http::Response<RawBody>, path: &str) -> Option<String> {
        let to = redirect(&self.origin.url, path, response.status(), response.headers())?;
        if !self.origin.has_redirected.swap(true, Ordering::Relaxed) {
            let status = response.status().as_u16();
            let [path, shown_to] =
                [path, &to].map(|path| (!self.origin.shown.has_variables()).then(|| path_alone(path)));
            tracing::info!(target: "deferral::upstream", event = "redirected", status, path, to = shown_to,
                "the server redirects each request: name the new path in upstream.url to save a round trip");
        }
        Some(to)
    }
}

/// Path without its query, which may hold a key.
fn path_alone(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// Authority without the user.
fn host_and_port(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

// === impl ConnectionPool ===

impl ConnectionPool {
    /// Takes the connection that was used last, if the server has kept it open.
    pub(super) fn take(&self, reuse: ConnectionReuse) -> Option<Box<UpstreamConnection>> {
        let doubtful = match reuse {
            ConnectionReuse::Any => self.take_from(reuse, |shelves| &mut shelves.doubtful),
            ConnectionReuse::Proven => None,
        };
        doubtful.or_else(|| self.take_from(reuse, |shelves| &mut shelves.proven))
    }

    fn take_from(
        &self,
        reuse: ConnectionReuse,
        shelf: impl Fn(&mut ReusableConnections) -> &mut Vec<IdleConnection>,
    ) -> Option<Box<UpstreamConnection>> {
        let now = self.clock.now();
        loop {
            let mut idle = shelf(&mut self.idle.lock()).pop()?;
            let age = now.saturating_duration_since(idle.since);
            if age >= idle.limit() {
                // Dropped. An older one may have a longer announced time.
                continue;
            }
            if reuse == ConnectionReuse::Proven && age >= idle.reuse_limit() {
                // The last used is the newest: all older ones are as uncertain, unless the server announced a
                // time.
                shelf(&mut self.idle.lock()).push(idle);
                return None;
            }
            if idle.connection.is_idle() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection for the next request. `accepted` is whether its last response was a 202.
    pub(super) fn put_back(&self, connection: Box<UpstreamConnection>, accepted: bool) {
        let since = self.clock.now();
        let mut idle = self.idle.lock();
        if idle.proven.len() + idle.doubtful.len() < IDLE_CONNECTIONS && connection.is_poolable() {
            let shelf = if accepted { &mut idle.doubtful } else { &mut idle.proven };
            shelf.push(IdleConnection { connection, since });
        }
    }

    #[cfg(test)]
    pub(super) fn holds_one(&self) -> bool {
        let idle = self.idle.lock();
        idle.proven.len() + idle.doubtful.len() == 1
    }

    fn sweep(&self) {
        let now = self.clock.now();
        // Close outside the lock.
        let old = {
            let mut idle = self.idle.lock();
            let ReusableConnections { proven, doubtful } = &mut *idle;
            let old_of = |shelf: &mut Vec<IdleConnection>| {
                shelf
                    .extract_if(.., |idle| now.saturating_duration_since(idle.since) >= idle.limit())
                    .collect::<Vec<_>>()
            };
            [old_of(proven), old_of(doubtful)]
        };
        drop(old);
    }
}

// === impl IdleConnection ===

impl IdleConnection {
    /// Idle time after which the connection is closed.
    fn limit(&self) -> Duration {
        self.announced().unwrap_or(IDLE)
    }

    /// Idle time up to which the connection is used for requests that must not be sent twice.
    fn reuse_limit(&self) -> Duration {
        self.announced().unwrap_or(CERTAIN)
    }

    fn announced(&self) -> Option<Duration> {
        self.connection.announced_idle().map(|time| time.min(LONGEST_IDLE).saturating_sub(MARGIN))
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
        for n in 0..IDLE_CONNECTIONS + 10 {
            let (ours, theirs) = duplex(8);
            let io = UpstreamIo::Right(Box::new(BufWriter::new(ours)));
            pool.put_back(Box::new(UpstreamConnection::new(io, ConnectionPermit::default())), n % 2 == 0);
            servers.push(theirs);
        }
        let kept = || {
            let idle = pool.idle.lock();
            idle.proven.len() + idle.doubtful.len()
        };
        assert_eq!(kept(), IDLE_CONNECTIONS);
        let mut last = servers.pop().expect("there are many");
        assert_eq!(last.read_u8().await.ok(), None, "what is not kept is closed");

        tokio::time::advance(IDLE - Duration::from_millis(1)).await;
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
        tokio::time::advance(CERTAIN).await;
        assert!(pool.take(ConnectionReuse::Proven).is_none());
        assert!(pool.holds_one());
        assert!(pool.take(ConnectionReuse::Any).is_some());
    }
}
