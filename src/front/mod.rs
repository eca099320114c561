//! The client listeners.
//!
//! The front accepts connections, checks requests, reads one message from each POST and hands it to the
//! route's [`RouteService`]. It writes the reply as one JSON response or, if messages come before the end, as
//! an event stream. It guarantees that
//!
//! * nothing is read or held without a bound that has a name ([`ClientLimits`], [`ClientTimeouts`]);
//! * a client's disconnect is noticed: its call's stream of items is dropped;
//! * a task handle counts as delivered when the client's socket has taken its last byte, not before (`reply`,
//!   `connection`);
//! * each request writes one access log entry, however it ends (`layers::access_entry`).
//!
//! Begin with `stack`, which lists what a request passes through, then `dispatch`, `modern` and `legacy`.
//!
//! | file | |
//! |---|---|
//! | `listener.rs` | accepts connections and drives HTTP on them |
//! | `connection.rs` | one socket as hyper sees it |
//! | `http_timer.rs` | hyper's timer |
//! | `half_closed.rs` | clients that have ended their side: whether they still read |
//! | `removed_token.rs` | ends the open streams of a client whose token a reload removes |
//! | `refused_streams.rs` | requests that the HTTP/2 library refuses |
//! | `write_timeout.rs` | clients that do not read their responses |
//! | `tls.rs` | certificates |
//! | `reload.rs` | a change of configuration while it serves |
//! | `stack.rs` | starts the front; the layers, the outermost first |
//! | `incoming.rs` | a request on its way through the layers |
//! | `layers/` | one file each |
//! | `dispatch.rs` | reads a request, and dispatches it by path, method and era |
//! | `modern.rs` | 2026-07-28 over POST |
//! | `legacy.rs` | legacy revisions, relayed to their server |
//! | `call_permits.rs` | the limit of calls in flight |
//! | `receive.rs` | a request's body, bounded in bytes and time, and the memory of all bodies |
//! | `reply.rs` | a reply as JSON or as an event stream |
//! | `metadata.rs` | protected-resource metadata, with the proxy's address |
//! | `forwarded.rs` | the `Forwarded` header (RFC 7239) |
//! | `preflight.rs` | responses to CORS preflight requests |
//! | `known_endpoints.rs` | endpoints of authorization servers that documents have named |
//! | `sign_in.rs` | authorization-server metadata and endpoints at the server's own host (2025-03-26) |
//! | `responses.rs` | the front's own error responses, as status and body |

mod call_permits;
mod connection;
mod dispatch;
mod forwarded;
mod half_closed;
mod http_timer;
mod incoming;
mod known_endpoints;
mod layers;
mod legacy;
mod listener;
mod metadata;
mod modern;
mod preflight;
mod receive;
mod refused_streams;
mod reload;
mod removed_token;
mod reply;
mod responses;
mod sign_in;
mod stack;
mod tls;
mod write_timeout;

use crate::{
    dialect::{PrincipalKey, SessionSeal},
    policy::{AccessPolicy, TokenSet, is_same_path},
    proxy::RouteService,
    runtime::{Clock, ConnectionLimiter, DrainWatch, IdleConnections, SwapCell, random, resize_semaphore},
    telemetry::trace::Tracer,
};
use call_permits::CallPermits;
use http::{Uri, uri::Scheme};
use receive::BodyMemory;
use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

pub use crate::runtime::PrivateKey;
pub use layers::principal::PrincipalNames;
pub use receive::SMALL_BODY;
pub use reload::FrontReload;
pub use stack::serve;
pub use tls::{TlsError, TlsPaths, acceptor};
pub use write_timeout::WriteTimeoutStream;

/// Configuration of the client listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on, all for the same routes. Default `127.0.0.1:8808`.
    pub listen: Vec<SocketAddr>,
    /// Certificate of TLS, which then is served on all addresses, and nothing else. Default: no TLS.
    pub tls: Option<TlsPaths>,
    /// Allowed hosts and origins. Default: this machine, and IP addresses; no names.
    pub access: AccessPolicy,
    /// Tokens of which a client needs one. Default: none, and no client needs a token.
    pub tokens: TokenSet,
    pub limits: ClientLimits,
    pub timeouts: ClientTimeouts,
    /// URL by which clients reach the proxy, if it differs from that of their requests because a proxy in
    /// front rewrites `Host`. Used for protected-resource metadata only. Default: taken from each request.
    pub public_url: Option<Uri>,
    /// Health checks for load balancers. Default off.
    pub health: Option<HealthConfig>,
}

/// Configuration of health checks on the client listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// URL path of the health check.
    pub path: Arc<str>,
    /// Whether the check also fails while a route's server is not known to be reachable.
    pub needs_servers: bool,
}

/// Limits of the client listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes of one request's body; more is refused with 413. Default 4 MiB.
    pub body_bytes: usize,
    /// Bytes of all request bodies in memory, unfinished ones and those of calls in flight alike; what does
    /// not fit is refused with 503. The last eighth is for bodies of at most [`SMALL_BODY`]. Default 256 MiB.
    pub body_memory: usize,
    /// Bytes of one request's head; more is refused with 431. For HTTP/1 at least 8 KiB. Default 16 KiB.
    pub header_bytes: usize,
    /// Headers of one request; more are refused with 431. Over HTTP/1 another number than the default costs
    /// an allocation for each request. Default 100.
    pub headers: usize,
    /// Open connections, at least 1. Further ones wait in the queue of the system until a connection closes;
    /// for each of them the longest idle connection is closed, if it has been idle for a second
    /// ([`IdleConnections`]). A connection uses about 14 KiB over HTTP/1, idle or with a waiting call.
    /// Default 10 000, or less where the system allows the process fewer descriptors.
    pub connections: usize,
    /// Connections from one IPv4 address, or one /64 of IPv6, that have not completed a request yet; at most
    /// half of `connections` ([`ClientLimits::pending_connections`]). At the limit, the connection that has
    /// waited longest is closed. Default 1000.
    pub pending_connections: usize,
    /// Calls in flight, from their head to the last byte of their response; further ones are refused with
    /// 503. Default 10 000.
    pub calls: usize,
    /// Calls in flight on one HTTP/2 connection; the client queues further ones. Default 256.
    pub streams: u32,
    /// Levels of nesting in a message's JSON; more is refused with 400, or for a legacy client's requests
    /// with an error for each. Default 128.
    pub depth: usize,
}

/// Timeouts of the client listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// Time limit of the TLS handshake, and of a whole head once its first byte has arrived. Default 10 s.
    pub read_headers: Duration,
    /// Time limit of a body once its head has arrived; then 408. Default 30 s.
    pub read_body: Duration,
    /// Time limit of the wait for the next request on a connection; then it is closed, over HTTP/2 also if
    /// its client keeps sending PINGs. Longer than the longest interval at which tasks are polled, so that
    /// polling keeps its connection. Default 75 s.
    pub idle: Duration,
    /// Time limit for the client to read any of the bytes that are sent to it; then its connection is closed.
    /// A slow reader, or a client without pending bytes, is not affected. Default 60 s.
    pub write: Duration,
}

/// The keys that principals and session ids are derived with.
#[derive(Clone)]
pub struct IdentityKeys {
    /// Derives principals from tokens and headers.
    pub principals: PrincipalKey,
    /// Binds the session ids of legacy clients to their principal. Can be replaced while the front serves.
    pub sessions: SwapCell<SessionSeal>,
}

/// A running front.
pub struct FrontHandle {
    /// The actual addresses, in the order of [`Config::listen`]: port 0 has become a number.
    pub addresses: Vec<SocketAddr>,
    /// The task that accepts connections until shutdown. The drain waits for accepted connections.
    pub task: JoinHandle<()>,
    /// Applies another configuration to the running front.
    pub reload: Arc<dyn FrontReload>,
}

/// Error of a front that cannot start, or cannot apply another configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no address to listen on; give at least one in `listen`")]
    NoAddress,
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// All that a request is served with: the configuration at the moment when its head was read, and the shared
/// state.
struct Front {
    services: Vec<Arc<dyn RouteService>>,
    /// The paths of `services`, in their order, for the access log.
    paths: Vec<Arc<str>>,
    limits: ClientLimits,
    timeouts: ClientTimeouts,
    public_url: Option<Uri>,
    shared: Arc<SharedState>,
}

/// State that all connections share across reloads.
struct SharedState {
    principals: PrincipalKey,
    sessions: SwapCell<SessionSeal>,
    /// Endpoints at which clients sign in at servers.
    endpoints: known_endpoints::KnownEndpoints,
    /// The tokens of the current configuration.
    tokens: watch::Sender<TokenSet>,
    /// A permit for each connection that may be open.
    connections: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    idle: Arc<IdleConnections>,
    /// Signalled before the drain: from then on, each response is the last of its connection.
    drain_notice: DrainWatch,
    /// Limits connections to servers; frees a descriptor when accept runs out of them.
    limiter: Option<ConnectionLimiter>,
    /// Memory of request bodies.
    bodies: Arc<BodyMemory>,
    call_permits: CallPermits,
}

// === impl IdentityKeys ===

impl From<PrincipalKey> for IdentityKeys {
    /// Uses a random key for session ids, which are therefore valid only until the process ends.
    fn from(principals: PrincipalKey) -> Self {
        Self { principals, sessions: SwapCell::new(SessionSeal::new(random(), [])) }
    }
}

// === impl Config ===

impl Config {
    /// Returns the first address on which remote clients would send their tokens unencrypted, if any.
    fn plaintext_token_address(&self) -> Option<SocketAddr> {
        let is_https = |url: &Uri| url.scheme() == Some(&Scheme::HTTPS);
        if self.tokens.is_empty() || self.tls.is_some() || self.public_url.as_ref().is_some_and(is_https) {
            return None;
        }
        self.listen.iter().copied().find(|address| !address.ip().to_canonical().is_loopback())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8808))],
            tls: None,
            access: AccessPolicy::default(),
            tokens: TokenSet::default(),
            limits: ClientLimits::default(),
            timeouts: ClientTimeouts::default(),
            public_url: None,
            health: None,
        }
    }
}

// === impl ClientLimits ===

impl ClientLimits {
    /// Returns the effective limit on connections of one network that have not completed a request: at most
    /// half of all connections, so that one network cannot take all.
    pub fn pending_connections(&self) -> usize {
        self.pending_connections.min(self.connections / 2).max(1)
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            body_memory: 256 << 20,
            header_bytes: 16 << 10,
            headers: 100,
            connections: 10_000,
            pending_connections: 1000,
            calls: 10_000,
            streams: 256,
            depth: 128,
        }
    }
}

// === impl ClientTimeouts ===

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            read_headers: Duration::from_secs(10),
            read_body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(60),
        }
    }
}

// === impl FrontHandle ===

impl fmt::Debug for FrontHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontHandle").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

// === impl SharedState ===

impl SharedState {
    /// Applies new limits; resources in use are kept.
    fn set_limits(&self, old: ClientLimits, limits: ClientLimits) {
        self.bodies.set_limit(limits.body_memory);
        self.call_permits.set_limit(limits.calls);
        resize_semaphore(&self.connections, old.connections, limits.connections);
    }
}

// === impl Front ===

impl Deref for Front {
    type Target = SharedState;

    fn deref(&self) -> &SharedState {
        &self.shared
    }
}

impl Front {
    fn new(config: &Config, services: Vec<Arc<dyn RouteService>>, shared: Arc<SharedState>) -> Arc<Self> {
        if let Some(listen) = config.plaintext_token_address() {
            tracing::warn!(
                target: "deferral",
                event = "tokens_unencrypted",
                %listen,
                remedy = "configure `tls`, or set `public_url` to the `https` address of the proxy in front",
            );
        }
        let Config { limits, timeouts, public_url, .. } = config;
        let (limits, timeouts, public_url) = (*limits, *timeouts, public_url.clone());
        Arc::new(Self { paths: paths(&services), services, limits, timeouts, public_url, shared })
    }

    /// Returns a copy for another thread, with paths of its own: otherwise requests on different threads
    /// would contend for the reference counts.
    fn copy(&self) -> Self {
        let (services, public_url) = (self.services.clone(), self.public_url.clone());
        Self {
            paths: paths(&services),
            services,
            limits: self.limits,
            timeouts: self.timeouts,
            public_url,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Returns the route at a path ([`Front::route_index`]).
    fn service(&self, path: &str) -> Option<&Arc<dyn RouteService>> {
        Some(&self.services[self.route_index(path)?])
    }

    /// Returns the index of the route with this path, or else of the route whose path differs by a trailing
    /// slash.
    fn route_index(&self, path: &str) -> Option<usize> {
        let exact = self.services.iter().position(|service| &*service.route().path == path);
        exact.or_else(|| self.services.iter().position(|it| is_same_path(&it.route().path, path)))
    }

    /// Returns the paths of all routes, for error messages.
    fn paths(&self) -> String {
        self.paths.join(", ")
    }
}

/// Returns the path of each service, in a new allocation each time.
fn paths(services: &[Arc<dyn RouteService>]) -> Vec<Arc<str>> {
    services.iter().map(|service| Arc::from(&*service.route().path)).collect()
}
