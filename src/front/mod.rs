//! Where clients come in.
//!
//! The front accepts connections, refuses what may not come in, reads one message from each POST
//! and hands it to the route's [`proxy::RouteService`](RouteService). What comes back it writes as one JSON
//! response or, where something must be said before the end, as an event stream. It promises that
//!
//! * nothing is read or held without a bound that has a name ([`ClientLimits`], [`ClientTimeouts`]);
//! * a client that leaves is noticed: its call's stream of items is dropped;
//! * a task handle counts as given when the client's socket has taken its last byte, not before
//!   (`reply`, `connection`);
//! * each request leaves one access line, however it ends (`layers::trace`).
//!
//! Begin with `stack`, which lists what a request passes through, then `dispatch`, `modern` and `legacy`.
//!
//! | file | |
//! |---|---|
//! | `listener.rs` | accepts connections and drives HTTP on them |
//! | `connection.rs` | one socket as hyper sees it |
//! | `half_closed.rs` | clients that have ended their side: whether they still read |
//! | `removed_token.rs` | ends the open streams of a client whose token a reload removes |
//! | `refused_streams.rs` | calls on one HTTP/2 connection beyond what it may carry |
//! | `write_timeout.rs` | clients that take nothing of what is written to them |
//! | `tls.rs` | certificates |
//! | `reload.rs` | another configuration, while it serves |
//! | `stack.rs` | begins; the layers, the outermost first |
//! | `incoming.rs` | a request on its way through them |
//! | `layers/` | one file each |
//! | `dispatch.rs` | reads a request, and decides which face it is for |
//! | `modern.rs` | 2026-07-28 over POST |
//! | `legacy.rs` | older revisions, passed on to their server |
//! | `call_permits.rs` | the places of calls in flight |
//! | `receive.rs` | a request's body, bounded in bytes and time, and all of them in memory |
//! | `reply.rs` | a reply as JSON or as an event stream |
//! | `metadata.rs` | protected-resource metadata, made to name us |
//! | `forwarded.rs` | what a server is told of the connection that a request came by (RFC 7239) |
//! | `preflight.rs` | the answer to a browser that asks before it calls |
//! | `known_endpoints.rs` | the endpoints of authorization servers that documents have named |
//! | `sign_in.rs` | authorization-server metadata and endpoints at the server's own host (2025-03-26) |
//! | `responses.rs` | the front's own refusals, as status and body |

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

/// How clients are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses to listen on, all for the same routes. Default `127.0.0.1:8808`.
    pub listen: Vec<SocketAddr>,
    /// Serve TLS, and nothing else, on all of them. Default off.
    pub tls: Option<TlsPaths>,
    /// Hosts and origins that may come in. Default: this machine and addresses, no names.
    pub access: AccessPolicy,
    /// The tokens by which clients are known; without any, nobody is asked for one. Default none.
    pub tokens: TokenSet,
    pub limits: ClientLimits,
    pub timeouts: ClientTimeouts,
    /// The address clients know us by, where it is not what their requests say (a proxy in front
    /// rewrites `Host`). Used for protected-resource metadata only. Default: from each request.
    pub public_url: Option<Uri>,
    /// Where load balancers ask whether clients should be sent here. Default nowhere.
    pub health: Option<HealthConfig>,
}

/// How health checks are answered on the clients' listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    pub path: Arc<str>,
    /// Whether each route's server must be known to be reachable.
    pub needs_servers: bool,
}

/// How much of what there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes of one request's body; more is refused with 413. Default 4 MiB.
    pub body_bytes: usize,
    /// Bytes of all requests' bodies that are in memory, unfinished ones and those of calls in flight
    /// alike; what does not fit is refused with 503. The last eighth is for bodies of at most
    /// [`SMALL_BODY`]. Default 256 MiB.
    pub body_memory: usize,
    /// Bytes of one request's head; more is refused with 431. No less than 8 KiB counts for
    /// HTTP/1. Default 16 KiB.
    pub header_bytes: usize,
    /// Headers of one request; more are refused with 431. Another number than the default costs an
    /// allocation a request over HTTP/1. Default 100.
    pub headers: usize,
    /// Open connections, at least 1; further ones wait in the system's queue until one closes. For each of them
    /// the connection that has waited the longest for a complete request is closed, if any has for a second
    /// ([`IdleConnections`]). One takes about 14 KiB over HTTP/1, idle or with a call that is held. Default 10 000,
    /// or less where the system allows the process fewer descriptors.
    pub connections: usize,
    /// Connections from one address, or one /64 of IPv6, that have not completed a request yet; no more than half of
    /// `connections` ([`ClientLimits::pending_connections`]). For a further one the one that has waited the longest is
    /// closed. Default 1000.
    pub pending_connections: usize,
    /// Calls in flight, from their head to the last byte of their answer; further ones are refused
    /// with 503. Default 10 000.
    pub calls: usize,
    /// Calls in flight on one HTTP/2 connection; the client queues further ones. Default 256.
    pub streams: u32,
    /// Levels of nesting in a message's JSON; more is refused with 400, or for a legacy client that waits
    /// with an error for each of its requests. Default 128.
    pub depth: usize,
}

/// How long to wait for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// For the TLS handshake, and for a whole head once its first byte is there. Default 10 s.
    pub read_headers: Duration,
    /// For a body once its head is there; then 408. Default 30 s.
    pub read_body: Duration,
    /// For the next request on a connection; then it is closed, over HTTP/2 also where its client goes
    /// on sending PINGs. Longer than the longest interval at which tasks are polled, so that polling
    /// keeps its connection. Default 75 s.
    pub idle: Duration,
    /// For the client to take any of the bytes that wait for it; then its connection is closed. A
    /// client that reads slowly, or to whom there is nothing to say, is let be. Default 60 s.
    pub write: Duration,
}

/// The secrets by which principals and sessions are recognised.
#[derive(Clone)]
pub struct IdentityKeys {
    pub principals: PrincipalKey,
    /// Binds the session ids of legacy clients to their principal. Can be replaced while the front serves.
    pub sessions: SwapCell<SessionSeal>,
}

/// A front at work.
pub struct FrontHandle {
    /// What is really listened on, in the order of [`Config::listen`]: port 0 has become a number.
    pub addresses: Vec<SocketAddr>,
    /// Accepts connections until it is time to stop. Those it accepted are waited for by the drain.
    pub task: JoinHandle<()>,
    /// Goes on by another configuration.
    pub reload: Arc<dyn FrontReload>,
}

/// Why the front cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no address to listen on; give at least one in `listen`")]
    NoAddress,
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What a request is served with: what the configuration said when its head had been read, and what outlasts that.
struct Front {
    services: Vec<Arc<dyn RouteService>>,
    /// Where they are, for the access lines.
    paths: Vec<Arc<str>>,
    limits: ClientLimits,
    timeouts: ClientTimeouts,
    public_url: Option<Uri>,
    shared: Arc<SharedState>,
}

/// What all connections share, whatever the configuration says.
struct SharedState {
    principals: PrincipalKey,
    sessions: SwapCell<SessionSeal>,
    /// The endpoints at which clients sign in at servers.
    endpoints: known_endpoints::KnownEndpoints,
    /// The tokens of the newest configuration.
    tokens: watch::Sender<TokenSet>,
    /// A permit for each connection that may be open.
    connections: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    tracer: Tracer,
    idle: Arc<IdleConnections>,
    /// Whether a connection ends with what it is answered: its client is to go elsewhere.
    drain_notice: DrainWatch,
    /// Where connections to servers are bounded.
    limiter: Option<ConnectionLimiter>,
    /// What the bodies of requests take.
    bodies: Arc<BodyMemory>,
    call_permits: CallPermits,
}

// === impl Keys ===

impl From<PrincipalKey> for IdentityKeys {
    /// Session ids are bound by a key that is made here, and so for as long as the process lives.
    fn from(principals: PrincipalKey) -> Self {
        Self { principals, sessions: SwapCell::new(SessionSeal::new(random(), [])) }
    }
}

// === impl Config ===

impl Config {
    /// The address on which clients from elsewhere show their tokens to whoever listens in, if there is one.
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

// === impl Limits ===

impl ClientLimits {
    /// The limit on connections of one network that have not completed a request, so that it cannot take all.
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

// === impl Timeouts ===

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

// === impl Bound ===

impl fmt::Debug for FrontHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

// === impl Lasting ===

impl SharedState {
    /// From now on these limits hold; what has been taken stays.
    fn set_limits(&self, before: ClientLimits, limits: ClientLimits) {
        self.bodies.set_limit(limits.body_memory);
        self.call_permits.set_limit(limits.calls);
        resize_semaphore(&self.connections, before.connections, limits.connections);
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
    fn of(config: &Config, services: Vec<Arc<dyn RouteService>>, lasting: Arc<SharedState>) -> Arc<Self> {
        if let Some(listen) = config.plaintext_token_address() {
            tracing::warn!(
                target: "deferral",
                event = "tokens_unencrypted",
                %listen,
                remedy = "serve `tls`, or name the `https` address of what stands in front in `public_url`",
            );
        }
        let Config { limits, timeouts, public_url, .. } = config;
        let (limits, timeouts, public_url) = (*limits, *timeouts, public_url.clone());
        Arc::new(Self { paths: paths(&services), services, limits, timeouts, public_url, shared: lasting })
    }

    /// The same once more. Requests on different threads have different ones, and with each its paths: else they
    /// would all meet at the counts of references.
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

    /// The route at a path ([`Front::position`]).
    fn service(&self, path: &str) -> Option<&Arc<dyn RouteService>> {
        Some(&self.services[self.position(path)?])
    }

    /// Which of the services that is: the one of this path, else the one whose path differs by a slash at the end.
    fn position(&self, path: &str) -> Option<usize> {
        let exactly = self.services.iter().position(|service| &*service.route().path == path);
        exactly.or_else(|| self.services.iter().position(|it| is_same_path(&it.route().path, path)))
    }

    /// The paths served, for people.
    fn paths(&self) -> String {
        self.paths.join(", ")
    }
}

/// The path of each, none of which is shared with the others that this gives.
fn paths(services: &[Arc<dyn RouteService>]) -> Vec<Arc<str>> {
    services.iter().map(|service| Arc::from(&*service.route().path)).collect()
}
