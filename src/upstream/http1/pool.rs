//! The way to the server: connections made, kept and reused; TLS; a limit on how long connecting
//! may take.
//!
//! HTTP/1.1 only, on purpose. Calls are parked for hours on their own responses; on HTTP/2 they
//! would share one connection's streams, and a server that allows a hundred of them would leave
//! the hundred and first call, and every cancellation, waiting for ever.

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use http::{Method, Uri};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::time::timeout;

use super::{
    connection::{Connection, Incoming, Io, Sending},
    head::request_head,
    proxy::Proxy,
    tls::{self, Secure},
};
use crate::{
    runtime::{Clock, Connector, Live, Mutex, Net, SystemClock},
    upstream::{CallError, Config, NotStarted, Tls, root_cause},
};

/// Sends requests with whole bodies to one server.
pub(in crate::upstream) struct HttpClient {
    url: Uri,
    tcp: Connector,
    way: Live<Way>,
}

/// How the server is reached.
#[derive(Clone)]
pub(in crate::upstream) struct Way {
    proxy: Option<Arc<Proxy>>,
    /// As it is configured, and so set up.
    tls: (Option<Arc<Tls>>, Option<Secure>),
    /// For a connection, a tunnel and TLS included.
    limit: Duration,
    /// Connections that were made so.
    pool: Arc<Pool>,
}

/// Connections that wait for their next request.
#[derive(Default)]
pub(super) struct Pool {
    /// Guarded for a few lines each time.
    idle: Mutex<Shelves>,
    clock: SystemClock,
    /// Whether the last connection that was tried came about.
    reached: Mutex<Option<bool>>,
}

/// The last used last, on each.
#[derive(Default)]
struct Shelves {
    proven: Vec<Idle>,
    /// Those whose last answer only said that a message was taken (202). Some servers close such a
    /// connection without saying so, when the next request may be on its way.
    doubtful: Vec<Idle>,
}

/// Which kept connections a request may go on. A reset before the first byte of an answer proves nothing,
/// so what must not be sent twice is lost with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Reuse {
    /// Those first that other requests are kept off.
    Any,
    /// Not those whose last answer was a 202.
    Proven,
}

/// What a request is, and so which places are there for a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Traffic {
    /// It may take as long as it likes.
    Call,
    /// It is over soon and must not wait for calls: an answer to a question of theirs, a cancel, a farewell.
    InPassing,
}

struct Idle {
    connection: Box<Connection>,
    since: Instant,
}

/// An answer on its way: its head, then.
pub(in crate::upstream) struct Answering(Stage);

enum Stage {
    Connecting(BoxFuture<'static, Result<Sending, CallError>>),
    Sending(Sending),
}

/// How long an idle connection is kept. Shorter than the five seconds after which Node and uvicorn
/// close one themselves: a request written at that moment would be lost without being served.
const IDLE: Duration = Duration::from_secs(4);
/// Idle connections kept at most. Each is a socket and a few hundred bytes.
const IDLE_CONNECTIONS: usize = 1024;
/// A peer that vanished is noticed by TCP probes after this long: calls may be silent for hours.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

// === impl HttpClient ===

impl HttpClient {
    /// Where the server is.
    pub(in crate::upstream) const fn url(&self) -> &Uri {
        &self.url
    }

    /// A client for the server of `url`, which is reached as it is configured.
    ///
    /// # Errors
    /// [`NotStarted`] where the URL is not one to speak HTTP to, or the system's certificates
    /// cannot be read.
    pub(in crate::upstream) fn new(url: Uri, config: &Config, net: &Net) -> Result<Self, NotStarted> {
        let tls = (config.tls.clone(), tls::secure(&url, config.tls.as_deref())?);
        let (proxy, limit) = (config.proxy.clone(), config.timeouts.connect);
        let way = Way { proxy, tls, limit, pool: Arc::default() }.into();
        Ok(Self { url, tcp: net.connector(TCP_KEEP_ALIVE), way })
    }

    /// Another way to the same server. Connections are kept where they would be made as they were.
    ///
    /// # Errors
    /// As [`HttpClient::new`].
    pub(in crate::upstream) fn otherwise(&self, config: &Config) -> Result<Way, NotStarted> {
        let now = self.way.kept();
        let (proxy, limit) = (config.proxy.clone(), config.timeouts.connect);
        if now.proxy == proxy && now.tls.0 == config.tls {
            return Ok(Way { limit, ..Way::clone(&now) });
        }
        let tls = (config.tls.clone(), tls::secure(&self.url, config.tls.as_deref())?);
        Ok(Way { proxy, tls, limit, pool: Arc::default() })
    }

    /// Goes this way from now on.
    pub(in crate::upstream) fn goes(&self, way: Way) {
        self.way.set(way);
    }

    /// Sends a request. `lines` are header lines ([`super::lines`]): the same for many requests, and those of
    /// this one.
    pub(in crate::upstream) fn send(
        &self,
        method: &Method,
        path: &str,
        lines: [&[u8]; 2],
        body: Bytes,
        reuse: Reuse,
        traffic: Traffic,
    ) -> Answering {
        let head = request_head(method, path, lines, body.len());
        let way = self.way.now();
        Answering(match way.pool.take(reuse) {
            Some(connection) => Stage::Sending(Sending::new(connection, head, body, way.pool.clone())),
            None => Stage::Connecting(Box::pin(self.connect(head, body, traffic))),
        })
    }

    fn connect(
        &self,
        head: Bytes,
        body: Bytes,
        traffic: Traffic,
    ) -> impl Future<Output = Result<Sending, CallError>> + 'static {
        let mut tcp = self.tcp.clone();
        let Way { proxy, tls: (_, tls), limit, pool } = Way::clone(&self.way.now());
        let (place, places) = (tcp.place(traffic == Traffic::InPassing), tcp.places());
        let tcp = match &proxy {
            None => tcp.connect(self.url.clone()).map_err(|error| root_cause(&*error)).boxed(),
            Some(proxy) => proxy.connect(&tcp, &self.url),
        };
        let connecting = async move {
            let tcp = tcp.await.map_err(CallError::Unreachable)?;
            Ok(match tls {
                None => Io::Left(tcp),
                Some(Secure { connector, name }) => {
                    let stream = connector.connect(name, tcp).await;
                    Io::Right(Box::new(stream.map_err(|error| CallError::Unreachable(error.to_string()))?))
                }
            })
        };
        async move {
            let place = timeout(limit, place).await.map_err(|_| CallError::NoRoom { limit: places })?;
            let io = timeout(limit, connecting).await.unwrap_or(Err(CallError::ConnectTimeout(limit)));
            *pool.reached.lock() = Some(io.is_ok());
            let io = io?;
            Ok(Sending::new(Box::new(Connection::new(io, place)), head, body, pool))
        }
    }

    /// Whether the last connection that was tried came about; none where none was.
    pub(in crate::upstream) fn reached(&self) -> Option<bool> {
        *self.way.now().pool.reached.lock()
    }

    /// Closes all idle connections; says whether there were any.
    pub(in crate::upstream) fn close_idle(&self) -> bool {
        let Shelves { proven, doubtful } = std::mem::take(&mut *self.way.now().pool.idle.lock());
        !(proven.is_empty() && doubtful.is_empty())
    }

    /// Closes idle connections that are too old to be used.
    pub(in crate::upstream) fn sweep(&self) {
        self.way.now().pool.sweep();
    }
}

// === impl Pool ===

impl Pool {
    /// The connection that was used last, if the server has kept it.
    fn take(&self, reuse: Reuse) -> Option<Box<Connection>> {
        let doubtful = match reuse {
            Reuse::Any => self.take_from(|shelves| &mut shelves.doubtful),
            Reuse::Proven => None,
        };
        doubtful.or_else(|| self.take_from(|shelves| &mut shelves.proven))
    }

    fn take_from(&self, shelf: impl Fn(&mut Shelves) -> &mut Vec<Idle>) -> Option<Box<Connection>> {
        loop {
            let Idle { mut connection, since } = shelf(&mut self.idle.lock()).pop()?;
            if self.clock.now().saturating_duration_since(since) >= IDLE {
                // So are all before it.
                let old = std::mem::take(shelf(&mut self.idle.lock()));
                drop(old);
                return None;
            }
            if connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request. `accepted` is whether its last answer was a 202.
    pub(super) fn put_back(&self, connection: Box<Connection>, accepted: bool) {
        let since = self.clock.now();
        let mut idle = self.idle.lock();
        if idle.proven.len() + idle.doubtful.len() < IDLE_CONNECTIONS && connection.may_be_kept() {
            let shelf = if accepted { &mut idle.doubtful } else { &mut idle.proven };
            shelf.push(Idle { connection, since });
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
            let Shelves { proven, doubtful } = &mut *idle;
            let old_of = |shelf: &mut Vec<Idle>| {
                let young = shelf.partition_point(|idle| now.saturating_duration_since(idle.since) >= IDLE);
                shelf.drain(..young).collect::<Vec<_>>()
            };
            [old_of(proven), old_of(doubtful)]
        };
        drop(old);
    }
}

// === impl Answering ===

impl Answering {
    /// Whether there is no connection yet, so that nothing can have reached the server.
    pub(in crate::upstream) fn is_connecting(&self) -> bool {
        match &self.0 {
            Stage::Connecting(_) => true,
            Stage::Sending(_) => false,
        }
    }
}

impl Future for Answering {
    type Output = Result<http::Response<Incoming>, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Stage::Connecting(connecting) => {
                    let sending = ready!(connecting.as_mut().poll(cx))?;
                    self.0 = Stage::Sending(sending);
                }
                Stage::Sending(sending) => {
                    let answer = ready!(Pin::new(sending).poll(cx));
                    return Poll::Ready(answer.map_err(|error| lost(&error)));
                }
            }
        }
    }
}

/// What a connection that failed after it was made means: how far the request got is not known.
fn lost(error: &io::Error) -> CallError {
    match error.kind() {
        _ if tls::is_refusal(error) => {
            CallError::Unreachable(format!("in TLS it refuses whom it is called by (upstream.tls): {error}"))
        }
        io::ErrorKind::InvalidData => CallError::Invalid(error.to_string()),
        _ => CallError::Broken(root_cause(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Place;
    use tokio::io::{AsyncReadExt, BufWriter, duplex};

    #[tokio::test(start_paused = true)]
    async fn so_many_idle_connections_are_kept_and_not_for_long() {
        let pool = Pool::default();
        let mut servers = Vec::new();
        for n in 0..IDLE_CONNECTIONS + 10 {
            let (ours, theirs) = duplex(8);
            let io = Io::Right(Box::new(BufWriter::new(ours)));
            pool.put_back(Box::new(Connection::new(io, Place::default())), n % 2 == 0);
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
        assert!(pool.take(Reuse::Any).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pool.take(Reuse::Proven).is_none(), "the server may be closing it");
        pool.sweep();
        assert_eq!(kept(), 0);
    }
}
