//! Accepts connections of operators and scrapers, within small limits.
//!
//! A connection that waits for a complete request is evicted to make room ([`IdleConnections`]). If all
//! connections are busy, as with `/events` streams, a few more are accepted for one health check each, so
//! that liveness can always be checked.

use super::response::{AdminResponse, error_response};
use crate::{
    front::WriteTimeoutStream,
    protocol::request_head,
    runtime::{
        Clock, ConnectionActivity, EventThrottle, IdleConnections, IdleGuard, IncompleteBody, MIN_IDLE,
        NetworkListener, NetworkStream, SystemClock, peer_address,
    },
};
use http::{HeaderValue, Request, Response, header::CONNECTION};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use pin_project::pin_project;
use std::{
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// What a listener serves: the admin endpoints, or the metrics.
pub(super) trait ListenerService: Clone + Send + Sync + 'static {
    /// Returns the TLS acceptor for a new connection; `None` without TLS.
    fn tls(&self) -> Option<TlsAcceptor>;

    /// Responds to a request with a valid head, if it is within the scope of its connection. `receiving`
    /// marks the body as incomplete until dropped.
    fn respond(
        &self,
        request: Request<Incoming>,
        scope: RequestScope,
        receiving: IncompleteBody<'_>,
    ) -> impl Future<Output = AdminResponse> + Send;
}

/// The requests that a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestScope {
    /// Any request.
    Everything,
    /// One health check; the scope of connections beyond the limit.
    OneProbe,
}

/// Connection limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerBounds {
    /// Maximum number of connections that may send any request.
    pub(super) connections: usize,
    /// Maximum number of additional connections, for one health check each.
    pub(super) probes: usize,
    /// The name of the listener in the log.
    pub(super) name: &'static str,
}

/// The client's address, as an extension of the request; `None` for an in-memory connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) Option<IpAddr>);

/// Marks a connection as busy with a request, until dropped.
struct RequestGuard {
    activity: Arc<ConnectionActivity>,
    clock: SystemClock,
}

/// A response body that marks its connection as busy until the body is dropped.
#[pin_project]
struct GuardedBody<B> {
    #[pin]
    body: B,
    _busy: RequestGuard,
}

/// Time limit of a request head, including the wait for the next request, and of a TLS handshake.
const READ_HEADERS: Duration = Duration::from_secs(10);

/// Time limit of the head of a health check if all other connections are in use.
const READ_PROBE: Duration = Duration::from_secs(2);

/// Time after which a connection is closed whose client accepts no bytes.
pub(super) const WRITE: Duration = Duration::from_secs(10);

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Minimum idle time before a connection is evicted if all connections are in use, including those for health
/// checks.
const MIN_IDLE_WHEN_FULL: Duration = Duration::from_millis(250);

/// Interval between two checks for a free connection.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Accepts connections. Dropping the future closes all connections.
pub(super) async fn accept(
    mut listener: NetworkListener,
    service: impl ListenerService,
    bounds: ListenerBounds,
) {
    let (clock, idle) = (SystemClock::new(), Arc::new(IdleConnections::default()));
    let (mut connections, mut full_throttle) = (JoinSet::new(), EventThrottle::default());
    loop {
        let accepted = tokio::select! {
            Some(_ended) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let scope =
                    wait_for_permit(&mut connections, &idle, &clock, bounds, &mut full_throttle).await;
                let peer = PeerAddress(peer_address(&stream));
                let guard = idle.admit(peer.0, clock.now());
                idle.close_excess_pending(&guard, bounds.max_pending(), clock.now(), Duration::ZERO);
                connections.spawn(serve_connection((stream, peer), service.clone(), guard, scope));
            }
            Err(error) => {
                let listener = bounds.name;
                tracing::warn!(target: "deferral", event = "admin_accept_failed", listener, %error);
                idle.close_longest_idle(clock.now(), MIN_IDLE);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits until one more connection is within the bounds. Returns which requests it may send.
async fn wait_for_permit(
    connections: &mut JoinSet<()>,
    idle: &IdleConnections,
    clock: &dyn Clock,
    bounds: ListenerBounds,
    throttle: &mut EventThrottle,
) -> RequestScope {
    loop {
        while connections.try_join_next().is_some() {}
        let open = connections.len();
        if open < bounds.connections {
            return RequestScope::Everything;
        }
        if let Some(times) = throttle.count(clock.now()) {
            let ListenerBounds { name: listener, connections, .. } = bounds;
            tracing::warn!(target: "deferral", event = "admin_connections_full", listener, connections, times);
        }
        if open < bounds.total() {
            let is_closing = idle.close_longest_idle(clock.now(), MIN_IDLE);
            return if is_closing { RequestScope::Everything } else { RequestScope::OneProbe };
        }
        idle.close_longest_idle(clock.now(), MIN_IDLE_WHEN_FULL);
        tokio::select! {
            _ = connections.join_next() => {}
            () = sleep(PERMIT_POLL_INTERVAL) => {}
        }
    }
}

/// Serves a connection from its handshake to its end. Errors are ignored, because they concern the client
/// alone.
async fn serve_connection(
    (stream, peer): (NetworkStream, PeerAddress),
    service: impl ListenerService,
    guard: IdleGuard,
    scope: RequestScope,
) {
    // The write timeout is below TLS, so that a client that accepts no bytes does not keep its connection.
    let stream = WriteTimeoutStream::new(stream, WRITE);
    let activity = &guard.activity;
    let serving = async {
        match service.tls() {
            None => serve_http((stream, peer), &service, activity, scope).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(READ_HEADERS, tls.accept(stream)).await {
                    serve_http((stream, peer), &service, activity, scope).await;
                }
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = wait_until_evicted(activity) => {}
    }
}

/// Resolves when the connection is to be evicted and has no request in flight.
async fn wait_until_evicted(activity: &ConnectionActivity) {
    activity.close_requested().await;
    while activity.waiting_since().is_none() {
        sleep(PERMIT_POLL_INTERVAL).await;
    }
}

/// Serves HTTP on a stream.
pub(super) async fn serve_http(
    (stream, peer): (impl AsyncRead + AsyncWrite + Unpin + Send + 'static, PeerAddress),
    service: &impl ListenerService,
    activity: &Arc<ConnectionActivity>,
    scope: RequestScope,
) {
    let http_service = service_fn(async |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let busy = RequestGuard::begin(Arc::clone(activity));
        let response =
            match request_head::check_request_head(request.version(), request.uri(), request.headers()) {
                Ok(()) => service.respond(request, scope, activity.begin_body()).await,
                Err(error) => {
                    let mut response = error_response(error.status(), &error.to_string());
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    response
                }
            };
        Ok::<_, Infallible>(busy.guard_body(response))
    });
    let read_headers = if scope == RequestScope::OneProbe { READ_PROBE } else { READ_HEADERS };
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .half_close(true)
        .keep_alive(scope == RequestScope::Everything)
        .header_read_timeout(read_headers)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), http_service)
        .await;
}

// === impl ListenerBounds ===

impl ListenerBounds {
    const fn total(self) -> usize {
        self.connections + self.probes
    }

    /// Maximum number of connections of one network that have not completed a request.
    const fn max_pending(self) -> usize {
        self.total() / 2
    }
}

// === impl RequestGuard ===

impl RequestGuard {
    fn begin(activity: Arc<ConnectionActivity>) -> Self {
        activity.begin_request();
        Self { activity, clock: SystemClock::new() }
    }

    fn guard_body<B>(self, response: Response<B>) -> Response<GuardedBody<B>> {
        response.map(|body| GuardedBody { body, _busy: self })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.activity.complete_request();
        self.activity.end_request(self.clock.now());
    }
}

// === impl GuardedBody ===

impl<B: Body> Body for GuardedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
