//! Accepts connections for operators and scrapers. They are few, and so are their connections.
//!
//! A connection that waits for a complete request makes room for another ([`IdleConnections`]). Where all are at work,
//! as with streams of `/events`, some more are accepted that serve one request of a probe each: whatever else goes on,
//! it can be asked whether the process lives.

use super::response::{AdminResponse, problem};
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

/// What is served on a listener.
pub(super) trait ListenerService: Clone + Send + Sync + 'static {
    /// TLS for a connection that is accepted now, where it is served.
    fn tls(&self) -> Option<TlsAcceptor>;

    /// Answers a request, whose head is valid. What it holds while its body is incomplete is dropped with `receiving`.
    fn respond(
        &self,
        request: Request<Incoming>,
        serves: RequestScope,
        receiving: IncompleteBody<'_>,
    ) -> impl Future<Output = AdminResponse> + Send;
}

/// What a connection may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestScope {
    Everything,
    /// Of one beyond the limit: one request of a probe.
    OneProbe,
}

/// How many connections there may be on a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerBounds {
    /// For everything.
    pub(super) connections: usize,
    /// Beyond them, for probes.
    pub(super) probes: usize,
    /// What a line of the log calls the listener.
    pub(super) name: &'static str,
}

/// The address of a request's client, among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) Option<IpAddr>);

/// A connection of this listener. Its request is being served until it is dropped.
struct RequestGuard {
    activity: Arc<ConnectionActivity>,
    clock: SystemClock,
}

/// A body whose request is being served until it is dropped.
#[pin_project]
struct GuardedBody<B> {
    #[pin]
    body: B,
    _busy: RequestGuard,
}

/// For a head, for the next request on a connection, and for a TLS handshake.
const READ_HEADERS: Duration = Duration::from_secs(10);

/// For the head of a probe, where all other connections are taken.
const READ_PROBE: Duration = Duration::from_secs(2);

/// How long a connection may take nothing of what it is sent before it is closed.
pub(super) const WRITE: Duration = Duration::from_secs(10);

/// How long to let be after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that has waited for less makes no room for another, where even the ones for probes are taken.
const MIN_IDLE_OF_PROBES: Duration = Duration::from_millis(250);

/// How long to wait until it is looked again for a place.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Accepts connections until it is dropped, and all of them with it.
pub(super) async fn accept(
    mut listener: NetworkListener,
    site: impl ListenerService,
    bounds: ListenerBounds,
) {
    let (clock, idle) = (SystemClock::new(), Arc::new(IdleConnections::default()));
    let (mut connections, mut full) = (JoinSet::new(), EventThrottle::default());
    loop {
        let accepted = tokio::select! {
            Some(_ended) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let serves = wait_for_permit(&mut connections, &idle, &clock, bounds, &mut full).await;
                let peer = PeerAddress(peer_address(&stream));
                let guard = idle.admit(peer.0, clock.now());
                idle.close_excess_pending(&guard, bounds.pending(), clock.now(), Duration::ZERO);
                connections.spawn(serve((stream, peer), site.clone(), guard, serves));
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

/// Waits until there is a place for one more connection.
async fn wait_for_permit(
    connections: &mut JoinSet<()>,
    idle: &IdleConnections,
    clock: &dyn Clock,
    bounds: ListenerBounds,
    full: &mut EventThrottle,
) -> RequestScope {
    loop {
        while connections.try_join_next().is_some() {}
        let open = connections.len();
        if open < bounds.connections {
            return RequestScope::Everything;
        }
        if let Some(times) = full.count(clock.now()) {
            let ListenerBounds { name: listener, connections, .. } = bounds;
            tracing::warn!(target: "deferral", event = "admin_connections_full", listener, connections, times);
        }
        if open < bounds.all() {
            let has_room = idle.close_longest_idle(clock.now(), MIN_IDLE);
            return if has_room { RequestScope::Everything } else { RequestScope::OneProbe };
        }
        idle.close_longest_idle(clock.now(), MIN_IDLE_OF_PROBES);
        tokio::select! {
            _ = connections.join_next() => {}
            () = sleep(PERMIT_POLL_INTERVAL) => {}
        }
    }
}

/// Serves a connection from its handshake to its end. What goes wrong is its client's affair.
async fn serve(
    (stream, peer): (NetworkStream, PeerAddress),
    site: impl ListenerService,
    guard: IdleGuard,
    serves: RequestScope,
) {
    // Right on the socket, so that a client that takes nothing holds no place among the few.
    let stream = WriteTimeoutStream::new(stream, WRITE);
    let activity = &guard.activity;
    let serving = async {
        match site.tls() {
            None => connection((stream, peer), &site, activity, serves).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(READ_HEADERS, tls.accept(stream)).await {
                    connection((stream, peer), &site, activity, serves).await;
                }
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = wait_until_evicted(activity) => {}
    }
}

/// Resolves when another connection needs the place of this one, and no request of it is being served.
async fn wait_until_evicted(activity: &ConnectionActivity) {
    activity.close_requested().await;
    while activity.waiting_since().is_none() {
        sleep(PERMIT_POLL_INTERVAL).await;
    }
}

/// Drives HTTP on a stream.
pub(super) async fn connection(
    (stream, peer): (impl AsyncRead + AsyncWrite + Unpin + Send + 'static, PeerAddress),
    site: &impl ListenerService,
    activity: &Arc<ConnectionActivity>,
    serves: RequestScope,
) {
    let answer = service_fn(async |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let busy = RequestGuard::begin(Arc::clone(activity));
        let answer = match request_head::check(request.version(), request.uri(), request.headers()) {
            Ok(()) => site.respond(request, serves, activity.begin_body()).await,
            Err(error) => {
                let mut answer = problem(error.status(), &error.to_string());
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                answer
            }
        };
        Ok::<_, Infallible>(busy.until_sent(answer))
    });
    let read_headers = if serves == RequestScope::OneProbe { READ_PROBE } else { READ_HEADERS };
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .half_close(true)
        .keep_alive(serves == RequestScope::Everything)
        .header_read_timeout(read_headers)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

// === impl Bounds ===

impl ListenerBounds {
    const fn all(self) -> usize {
        self.connections + self.probes
    }

    /// How many connections of one network may have completed no request.
    const fn pending(self) -> usize {
        self.all() / 2
    }
}

// === impl Busy ===

impl RequestGuard {
    fn begin(activity: Arc<ConnectionActivity>) -> Self {
        activity.begin();
        Self { activity, clock: SystemClock::new() }
    }

    fn until_sent<B>(self, answer: Response<B>) -> Response<GuardedBody<B>> {
        answer.map(|body| GuardedBody { body, _busy: self })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.activity.complete();
        self.activity.end(self.clock.now());
    }
}

// === impl Held ===

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
