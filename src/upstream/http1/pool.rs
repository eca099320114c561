//! The way to the server: connections made, kept and reused; TLS; a limit on how long connecting
//! may take.
//!
//! HTTP/1.1 only, on purpose. Calls are parked for hours on their own responses; on HTTP/2 they
//! would share one connection's streams, and a server that allows a hundred of them would leave
//! the hundred and first call, and every cancellation, waiting for ever.

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

/// Sends requests with whole bodies to one server.
pub(in crate::upstream) struct HttpClient {
    origin: Arc<ServerOrigin>,
    connector: SwapCell<ConnectorConfig>,
}

/// Which server it is, and what connects to it.
struct ServerOrigin {
    url: Uri,
    /// As it is shown: a path that a variable of the environment has a part in is not logged.
    shown: ServerUrl,
    tcp: NetworkConnector,
    /// That it redirects has been logged.
    has_redirected: AtomicBool,
}

/// How the server is reached.
#[derive(Clone)]
pub(in crate::upstream) struct ConnectorConfig {
    origin: Arc<ServerOrigin>,
    proxy: Option<Arc<Proxy>>,
    /// As it is configured, and so set up.
    tls: (Option<Arc<UpstreamTls>>, Option<TlsEndpoint>),
    /// For a connection, a tunnel and TLS included.
    limit: Duration,
    /// Connections that were made so.
    pub(super) pool: Arc<ConnectionPool>,
}

/// Connections that wait for their next request.
#[derive(Default)]
pub(super) struct ConnectionPool {
    /// Guarded for a few lines each time.
    idle: Mutex<ReusableConnections>,
    clock: SystemClock,
    /// Whether the last connection that was tried came about.
    reached: Mutex<Option<bool>>,
    /// Why it did not come about.
    failure: Mutex<Option<Arc<str>>>,
}

/// The last used last, on each.
#[derive(Default)]
struct ReusableConnections {
    proven: Vec<IdleConnection>,
    /// Those whose last answer only said that a message was taken (202). Some servers close such a
    /// connection without saying so, when the next request may be on its way.
    doubtful: Vec<IdleConnection>,
}

/// Which kept connections a request may go on. A reset before the first byte of an answer proves nothing,
/// so what must not be sent twice is lost with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum ConnectionReuse {
    /// Any; the request may be sent twice, and is where its connection fails. Those first that other requests are
    /// kept off.
    Any,
    /// Those that the server has certainly not closed by itself: not those whose last answer was a 202, and none
    /// that has been idle for longer than [`CERTAIN`], or than the server announces.
    Proven,
}

/// What a request is, and so which places are there for a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum TrafficClass {
    /// It may take as long as it likes.
    Call,
    /// It is over soon and must not wait for calls: an answer to a question of theirs, a cancel, a farewell.
    Control,
}

/// How one request is sent.
#[derive(Clone, Copy)]
pub(in crate::upstream) struct SendOptions<'a> {
    pub(in crate::upstream) reuse: ConnectionReuse,
    pub(in crate::upstream) traffic: TrafficClass,
    /// Those of the session, where the proxy owns it.
    pub(in crate::upstream) cookies: Option<&'a Arc<CookieJar>>,
}

struct IdleConnection {
    connection: Box<UpstreamConnection>,
    since: Instant,
}

/// How long an idle connection is kept whose server announces nothing. Shorter than the five seconds after which
/// Node and uvicorn close one themselves: a request written at that moment would be lost without being served.
const IDLE: Duration = Duration::from_secs(4);
/// How long an idle connection is used for what must not be sent twice, where the server announces nothing. Shorter
/// than the two seconds after which gunicorn closes one, which is the shortest time of a widely used server.
const CERTAIN: Duration = Duration::from_secs(1);
/// How much earlier than a server announces (`Keep-Alive: timeout`) an idle connection is given up: a request may be
/// on its way for so long.
const MARGIN: Duration = Duration::from_secs(1);
/// The longest time that a server can announce to effect.
const LONGEST_IDLE: Duration = Duration::from_secs(60);
/// Idle connections kept at most. Each is a socket and a few hundred bytes.
const IDLE_CONNECTIONS: usize = 1024;
/// A peer that vanished is noticed by TCP probes after this long: calls may be silent for hours.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

// === impl HttpClient ===

impl HttpClient {
    /// A client for the server of `url`, which is reached as it is configured.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] where the URL is not one to speak HTTP to, or the system's certificates
    /// cannot be read.
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
        let way = ConnectorConfig { origin: site.clone(), proxy, tls, limit, pool: Arc::default() }.into();
        Ok(Self { origin: site, connector: way })
    }

    /// Another way to the same server. Connections are kept where they would be made as they were.
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

    /// Goes this way from now on.
    pub(in crate::upstream) fn apply(&self, way: ConnectorConfig) {
        self.connector.set(way);
    }

    /// Sends a request. `lines` are header lines ([`super::header_lines`]): the same for many requests, and those of
    /// this one.
    pub(in crate::upstream) fn send(
        &self,
        method: &Method,
        path: &str,
        lines: [&[u8]; 2],
        body: Bytes,
        options: SendOptions<'_>,
    ) -> PendingResponse {
        let SendOptions { reuse, traffic, cookies } = options;
        let way = self.connector.load_full();
        let head = request_head(method, &way.target(path), lines, way.proxy_line(), body.len());
        let cookies = cookies.cloned();
        PendingResponse::new(way, BufferedRequest { head, body, cookies, reuse, traffic })
    }

    /// Whether the last connection that was tried came about; none where none was.
    pub(in crate::upstream) fn last_connect_succeeded(&self) -> Option<bool> {
        *self.connector.load().pool.reached.lock()
    }

    /// Why the last connection that was tried did not come about.
    pub(in crate::upstream) fn failure(&self) -> Option<Arc<str>> {
        self.connector.load().pool.failure.lock().clone()
    }

    /// Closes all idle connections; says whether there were any.
    pub(in crate::upstream) fn close_idle(&self) -> bool {
        let ReusableConnections { proven, doubtful } =
            std::mem::take(&mut *self.connector.load().pool.idle.lock());
        !(proven.is_empty() && doubtful.is_empty())
    }

    /// Closes idle connections that are too old to be used.
    pub(in crate::upstream) fn sweep(&self) {
        self.connector.load().pool.sweep();
    }
}

// === impl Way ===

impl ConnectorConfig {
    /// A connection of its own for a request, which then goes on it.
    pub(super) fn connect(
        &self,
        head: Bytes,
        body: Bytes,
        traffic: TrafficClass,
    ) -> impl Future<Output = Result<ExchangeFuture, CallError>> + use<> {
        let mut tcp = self.origin.tcp.clone();
        let Self { origin: site, proxy, tls: (_, tls), limit, pool } = self.clone();
        let (place, places) = (tcp.permit(traffic == TrafficClass::Control), tcp.connection_limit());
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
            let place =
                timeout(limit, place).await.map_err(|_| CallError::ConnectionsInUse { limit: places })?;
            let io = timeout(limit, connecting).await.unwrap_or(Err(CallError::ConnectTimeout(limit)));
            *pool.reached.lock() = Some(io.is_ok());
            *pool.failure.lock() = io.as_ref().err().map(|error| error.to_string().into());
            let io = io?;
            Ok(ExchangeFuture::new(Box::new(UpstreamConnection::new(io, place)), head, body, pool))
        }
    }

    /// The proxy that is asked for each request, as it is where the server has no TLS (RFC 9110, 7.1; RFC 9112,
    /// 3.2.2).
    fn forwarding_proxy(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.tls.1.is_none())
    }

    /// What a request for a path names: the path, or towards a proxy the whole URL.
    pub(super) fn target<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let host = || self.origin.url.authority().map_or("", |authority| host_and_port(authority.as_str()));
        match self.forwarding_proxy() {
            Some(_) => format!("http://{}{path}", host()).into(),
            None => path.into(),
        }
    }

    /// The credentials of the proxy that is asked.
    fn proxy_line(&self) -> &[u8] {
        self.forwarding_proxy().map_or(&[], Proxy::authorization_line)
    }

    /// Where a response sends the request at this path, if that is at the same server. Logged once.
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

/// Without its query, which may hold a key.
fn path_alone(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// Without the user.
fn host_and_port(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

// === impl Pool ===

impl ConnectionPool {
    /// The connection that was used last, if the server has kept it.
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
                // Dropped. Those before it may be of a server that announces more.
                continue;
            }
            if reuse == ConnectionReuse::Proven && age >= idle.reuse_limit() {
                // The last used is the last: all others are as uncertain, but for what the server has announced.
                shelf(&mut self.idle.lock()).push(idle);
                return None;
            }
            if idle.connection.is_idle() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection for the next request. `accepted` is whether its last answer was a 202.
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
        // Closed outside the lock.
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

// === impl Idle ===

impl IdleConnection {
    /// How long it is kept.
    fn limit(&self) -> Duration {
        self.announced().unwrap_or(IDLE)
    }

    /// How long it may be used for what must not be sent twice.
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
    async fn so_many_idle_connections_are_kept_and_not_for_long() {
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
    /// A connection whose last response announced this.
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
