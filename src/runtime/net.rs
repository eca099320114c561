//! The network: the system's, or pipes within this process.
//!
//! The pipes are for simulations: a whole proxy, its clients and its servers run on one paused clock,
//! independent of the machine's time.

use futures_util::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::io::Errno;
use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{DuplexStream, duplex},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    time::sleep,
};
use tokio_util::either::Either;
use tower_service::Service;

use super::{ConnectionLimiter, ConnectionPermit, Mutex};

/// A network on which the proxy listens and connects.
#[derive(Clone, Debug, Default)]
pub enum Network {
    /// The system's network.
    #[default]
    System,
    /// The system's network, with a limit on connections to servers.
    Limited(ConnectionLimiter),
    /// A simulated network within this process.
    Pipes(PipeNetwork),
}

/// A simulated network within this process: listeners by address. Cheap to clone; clones share the listeners.
#[derive(Clone, Debug, Default)]
pub struct PipeNetwork {
    /// The listeners. Locked only briefly.
    listeners: Arc<Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>>>,
}

/// A connection: a TCP stream, or a pipe.
pub type NetworkStream = Either<TcpStream, DuplexStream>;

/// Accepts connections at one address.
#[derive(Debug)]
pub struct NetworkListener(ListenerKind);

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Pipes(mpsc::UnboundedReceiver<DuplexStream>),
}

/// Opens connections on a network.
#[derive(Clone, Debug)]
pub struct NetworkConnector {
    kind: ConnectorKind,
    limiter: Option<ConnectionLimiter>,
}

#[derive(Clone, Debug)]
enum ConnectorKind {
    // Uses hyper's connector, with its resolver and its order of addresses.
    Tcp(HttpConnector),
    Pipes(PipeNetwork),
}

/// Number of connections that the system queues until they are accepted.
const BACKLOG: u32 = 1024;
/// The time that idle connections get to close when no descriptor is left.
const CLOSE_WAIT: Duration = Duration::from_millis(100);
/// Bytes in flight in each direction of a pipe.
const PIPE_BUFFER: usize = 64 << 10;

// === impl Network ===

impl Network {
    /// Listens at an address. Port 0 is any free port, which [`NetworkListener::address`] returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(&self, address: SocketAddr) -> io::Result<NetworkListener> {
        match self {
            Self::System | Self::Limited(_) => listen_tcp(address).map(NetworkListener::from),
            Self::Pipes(pipes) => Ok(pipes.listen(address)),
        }
    }

    /// Creates a connector. `keep_alive` is the interval of TCP keep-alive probes.
    pub fn connector(&self, keep_alive: Duration) -> NetworkConnector {
        let kind = match self {
            Self::System | Self::Limited(_) => {
                let mut tcp = HttpConnector::new();
                tcp.enforce_http(false);
                tcp.set_nodelay(true);
                tcp.set_keepalive(Some(keep_alive));
                ConnectorKind::Tcp(tcp)
            }
            Self::Pipes(pipes) => ConnectorKind::Pipes(pipes.clone()),
        };
        NetworkConnector { kind, limiter: self.limiter().cloned() }
    }

    /// The limit on connections to servers; `None` without one.
    pub fn limiter(&self) -> Option<&ConnectionLimiter> {
        match self {
            Self::Limited(limiter) => Some(limiter),
            Self::System | Self::Pipes(_) => None,
        }
    }
}

/// Whether an error, or one of its causes, is that no file descriptor was left.
pub fn is_out_of_descriptors(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if number
            .is_some_and(|number| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&number))
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The address of the peer; `None` for a pipe.
pub fn peer_address(stream: &NetworkStream) -> Option<IpAddr> {
    match stream {
        NetworkStream::Left(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
        NetworkStream::Right(_) => None,
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allow a port whose last owner closed connections a moment ago.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

// === impl PipeNetwork ===

impl PipeNetwork {
    /// Listens at an address, and replaces a former listener there.
    pub fn listen(&self, address: SocketAddr) -> NetworkListener {
        let (sender, connections) = mpsc::unbounded_channel();
        self.listeners.lock().insert(address, sender);
        NetworkListener(ListenerKind::Pipes(connections))
    }

    /// Connects to the listener at an address.
    ///
    /// # Errors
    /// `ConnectionRefused` if there is no listener.
    pub fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let (local, remote) = duplex(PIPE_BUFFER);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listeners = self.listeners.lock();
        listeners.get(&address).ok_or_else(refused)?.send(remote).map_err(|_| refused())?;
        Ok(local)
    }
}

// === impl NetworkListener ===

impl NetworkListener {
    /// The address of the listener; `None` for pipes, whose address is the given one.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            ListenerKind::Tcp(listener) => listener.local_addr().ok(),
            ListenerKind::Pipes(_) => None,
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The system's error, which may be temporary.
    pub async fn accept(&mut self) -> io::Result<NetworkStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Accepts the next connection, for a task with several listeners.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<NetworkStream>> {
        match &mut self.0 {
            ListenerKind::Tcp(listener) => {
                let (stream, _peer) = ready!(listener.poll_accept(cx))?;
                // Responses are written whole; Nagle's algorithm would only delay them.
                let _ = stream.set_nodelay(true);
                Poll::Ready(Ok(NetworkStream::Left(stream)))
            }
            ListenerKind::Pipes(connections) => match ready!(connections.poll_recv(cx)) {
                Some(pipe) => Poll::Ready(Ok(NetworkStream::Right(pipe))),
                // Another listener has replaced this one.
                None => Poll::Pending,
            },
        }
    }
}

impl From<TcpListener> for NetworkListener {
    fn from(listener: TcpListener) -> Self {
        Self(ListenerKind::Tcp(listener))
    }
}

// === impl NetworkConnector ===

impl NetworkConnector {
    /// Acquires a permit for one connection, to be held while it is open. Waits for a free one; control
    /// messages (`is_control`) have permits of their own.
    pub fn acquire_permit(&self, is_control: bool) -> impl Future<Output = ConnectionPermit> + Send + use<> {
        let limiter = self.limiter.clone();
        async move {
            match limiter {
                Some(limiter) => limiter.acquire(is_control).await,
                None => ConnectionPermit::default(),
            }
        }
    }

    /// The limit on connections; `usize::MAX` without one.
    pub fn connection_limit(&self) -> usize {
        self.limiter.as_ref().map_or(usize::MAX, ConnectionLimiter::limit)
    }

    /// Connects to the host and port of a URL.
    ///
    /// # Errors
    /// Why the connection failed; the root cause is the last of its sources.
    pub fn connect(
        &mut self,
        url: Uri,
    ) -> BoxFuture<'static, Result<NetworkStream, Box<dyn std::error::Error + Send + Sync>>> {
        match &mut self.kind {
            ConnectorKind::Tcp(tcp) => {
                let (mut tcp, limiter) = (tcp.clone(), self.limiter.clone());
                Box::pin(async move {
                    let connected = match (tcp.call(url.clone()).await, limiter) {
                        // Other descriptors of this process have used up the reserve: close idle connections,
                        // and try once more.
                        (Err(error), Some(limiter)) if is_out_of_descriptors(&error) => {
                            let _relief = limiter.reclaim();
                            sleep(CLOSE_WAIT).await;
                            tcp.call(url).await
                        }
                        (connected, _) => connected,
                    };
                    Ok(NetworkStream::Left(connected?.into_inner()))
                })
            }
            ConnectorKind::Pipes(pipes) => {
                let pipes = pipes.clone();
                Box::pin(async move {
                    let address = url.authority().ok_or("no host")?.as_str().parse()?;
                    Ok(NetworkStream::Right(pipes.connect(address)?))
                })
            }
        }
    }
}
