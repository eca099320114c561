//! Where connections come from and go to: the system's network, or pipes within this process.
//!
//! The pipes are for simulations. A whole proxy, its clients and its servers then run on one paused
//! clock, and nothing that happens depends on the machine's own time.

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

/// A network.
#[derive(Clone, Debug, Default)]
pub enum Network {
    /// The system's.
    #[default]
    System,
    /// The system's, with room for so many connections to servers.
    Limited(ConnectionLimiter),
    Pipes(PipeNetwork),
}

/// A network within this process: addresses at which somebody listens. Cheap to clone; all clones
/// are the same.
#[derive(Clone, Debug, Default)]
pub struct PipeNetwork {
    /// Guarded for a few lines each time.
    listeners: Arc<Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>>>,
}

/// A connection: the system's, or a pipe.
pub type NetworkStream = Either<TcpStream, DuplexStream>;

/// Takes connections at one address.
#[derive(Debug)]
pub struct NetworkListener(ListenerKind);

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Pipes(mpsc::UnboundedReceiver<DuplexStream>),
}

/// Makes connections.
#[derive(Clone, Debug)]
pub struct NetworkConnector {
    kind: ConnectorKind,
    limiter: Option<ConnectionLimiter>,
}

#[derive(Clone, Debug)]
enum ConnectorKind {
    // Its resolver, and the order in which addresses are tried, are a library's.
    Tcp(HttpConnector),
    Pipes(PipeNetwork),
}

/// Connections the system keeps for us until we accept them.
const BACKLOG: u32 = 1024;
/// How long it may take until what was asked to close has.
const CLOSE_WAIT: Duration = Duration::from_millis(100);
/// Bytes on their way in each direction of a pipe.
const PIPE_BUFFER: usize = 64 << 10;

// === impl Net ===

impl Network {
    /// Listens at an address. Port 0 is any that is free; [`NetworkListener::address`] tells which.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self, address: SocketAddr) -> io::Result<NetworkListener> {
        match self {
            Self::System | Self::Limited(_) => tcp(address).map(NetworkListener::from),
            Self::Pipes(pipes) => Ok(pipes.listen(address)),
        }
    }

    /// What makes connections, which a peer that vanished is noticed on by probes this far apart.
    pub fn connector(&self, keep_alive: Duration) -> NetworkConnector {
        let connecting = match self {
            Self::System | Self::Limited(_) => {
                let mut tcp = HttpConnector::new();
                tcp.enforce_http(false);
                tcp.set_nodelay(true);
                tcp.set_keepalive(Some(keep_alive));
                ConnectorKind::Tcp(tcp)
            }
            Self::Pipes(pipes) => ConnectorKind::Pipes(pipes.clone()),
        };
        NetworkConnector { kind: connecting, limiter: self.limiter().cloned() }
    }

    /// Where connections to servers are bounded: by what.
    pub fn limiter(&self) -> Option<&ConnectionLimiter> {
        match self {
            Self::Limited(room) => Some(room),
            Self::System | Self::Pipes(_) => None,
        }
    }
}

/// Whether the system had no descriptor left.
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

/// Where a connection comes from; `Missing` of a pipe.
pub fn peer_address(stream: &NetworkStream) -> Option<IpAddr> {
    match stream {
        NetworkStream::Left(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
        NetworkStream::Right(_) => None,
    }
}

fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port whose last owner closed connections a moment ago is free all the same.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

// === impl Pipes ===

impl PipeNetwork {
    /// Listens at an address, in the place of whoever did before.
    pub fn listen(&self, address: SocketAddr) -> NetworkListener {
        let (connect, connections) = mpsc::unbounded_channel();
        self.listeners.lock().insert(address, connect);
        NetworkListener(ListenerKind::Pipes(connections))
    }

    /// Connects to whoever listens at an address.
    ///
    /// # Errors
    /// Refused, where nobody does.
    pub fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let (ours, theirs) = duplex(PIPE_BUFFER);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listeners = self.listeners.lock();
        listeners.get(&address).ok_or_else(refused)?.send(theirs).map_err(|_| refused())?;
        Ok(ours)
    }
}

// === impl Listener ===

impl NetworkListener {
    /// Where it listens; `Missing` of pipes, which have what they were given.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            ListenerKind::Tcp(listener) => listener.local_addr().ok(),
            ListenerKind::Pipes(_) => None,
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system's, which may be over soon.
    pub async fn accept(&mut self) -> io::Result<NetworkStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The same, for whoever listens to several.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<NetworkStream>> {
        match &mut self.0 {
            ListenerKind::Tcp(listener) => {
                let (stream, _peer) = ready!(listener.poll_accept(cx))?;
                // Answers are written whole; waiting for more to send only makes them late.
                let _ = stream.set_nodelay(true);
                Poll::Ready(Ok(NetworkStream::Left(stream)))
            }
            ListenerKind::Pipes(connections) => match ready!(connections.poll_recv(cx)) {
                Some(pipe) => Poll::Ready(Ok(NetworkStream::Right(pipe))),
                // Somebody else listens here now.
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

// === impl Connector ===

impl NetworkConnector {
    /// A place for one connection, which it must keep for as long as it is open. Waits until there is
    /// one; what is said `in_passing` has places of its own.
    pub fn permit(&self, in_passing: bool) -> impl Future<Output = ConnectionPermit> + Send + use<> {
        let room = self.limiter.clone();
        async move {
            match room {
                Some(room) => room.acquire(in_passing).await,
                None => ConnectionPermit::default(),
            }
        }
    }

    /// How many connections there may be, where they are bounded.
    pub fn connection_limit(&self) -> usize {
        self.limiter.as_ref().map_or(usize::MAX, ConnectionLimiter::limit)
    }

    /// Connects to the host and port of a URL.
    ///
    /// # Errors
    /// Why it could not, the deepest reason last among its sources.
    pub fn connect(
        &mut self,
        url: Uri,
    ) -> BoxFuture<'static, Result<NetworkStream, Box<dyn std::error::Error + Send + Sync>>> {
        match &mut self.kind {
            ConnectorKind::Tcp(tcp) => {
                let (mut tcp, room) = (tcp.clone(), self.limiter.clone());
                Box::pin(async move {
                    let connected = match (tcp.call(url.clone()).await, room) {
                        // Something else in this process has more than the reserve.
                        (Err(error), Some(room)) if is_out_of_descriptors(&error) => {
                            let _asked = room.reclaim();
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
