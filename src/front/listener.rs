//! Accepts connections and drives HTTP on them.
//!
//! HTTP/1.1 and HTTP/2 are served on the same port: over TLS by ALPN, else by the first bytes (HTTP/2 with
//! prior knowledge begins with its preface). At shutdown a connection finishes its requests and accepts no
//! new ones.
//!
//! An idle connection, or one that waits for a call, should be cheap. hyper allocates two buffers of 8 KiB
//! for an HTTP/1 connection and has no smaller ones; only touched pages of these use memory. The rest, some 3
//! KiB, is the proxy's: nothing that is kept for the length of a call may be a slice of the read buffer
//! ([`receive`](super::receive), [`detached`](crate::dialect::detach)), and rare large parts are boxed.

use super::{
    Error, Front, SharedState,
    connection::{ClientConnection, ConnectionIo, HttpVersion, PrefaceBuffer, detect_version},
    half_closed::PeerSocket,
    http_timer::HttpTimer,
    incoming::IncomingRequest,
    layers::access_entry::AccessEntry,
    refused_streams::RefusedStreamCounter,
    reply::FrontBody,
    write_timeout::{PortionedBody, StreamTimeout, WriteTimeoutStream},
};
use crate::runtime::{
    DrainWatch, EventThrottle, IdleGuard, MIN_IDLE, MIN_PENDING, Network, NetworkListener, NetworkStream,
    PollOnWake, SwapCell, is_out_of_descriptors, peer_address, wait_before_recheck,
};
use crate::telemetry::{Limit, RequestHeadRefused};
use bytes::Bytes;
use futures_util::{FutureExt, future::Map};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_LENGTH, COOKIE, TRANSFER_ENCODING},
};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::Service,
};
use pin_project::pin_project;
use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Pause after a failed accept. The usual cause is a lack of descriptors or memory, and an immediate retry
/// would only keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take to close a connection after the proxy has begun to.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of PINGs on an HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes that a client may send on one HTTP/2 stream before the proxy reads them.
const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes that a client may send on all streams of an HTTP/2 connection before the proxy reads them.
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Listening sockets.
pub(super) struct ListenerSet {
    /// Sockets with their configured and their actual address.
    sockets: Vec<(ListenAddress, NetworkListener)>,
    /// Index of the socket that is polled first next time, so that a busy socket does not starve others.
    next: usize,
}

/// Address of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenAddress {
    /// The configured address.
    pub(super) configured: SocketAddr,
    /// The actual address, where port 0 has become a number.
    pub(super) address: SocketAddr,
}

/// A change of the listening sockets by a reload.
pub(super) struct ListenerUpdate {
    /// Addresses whose sockets stay open; all others are closed.
    pub(super) kept: Vec<ListenAddress>,
    /// New sockets.
    pub(super) added: ListenerSet,
}

/// The configuration, the stack of layers and the TLS acceptor that serve requests until the next reload.
pub(super) struct StackGeneration<S> {
    pub(super) front: Arc<Front>,
    /// The layers, the outermost first.
    pub(super) stack: S,
    pub(super) tls: Option<TlsAcceptor>,
}

/// The task of one connection.
struct ConnectionTask<S> {
    front: Arc<Front>,
    peer: Option<IpAddr>,
    generations: SwapCell<StackGeneration<S>>,
    close_trigger: CloseTrigger,
}

/// Signals that end a connection.
struct CloseTrigger {
    /// Signalled at shutdown.
    stopping: DrainWatch,
    /// Requests the close of an idle connection, for example at the limit of connections.
    idle: IdleGuard,
}

/// Reason to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// The proxy shuts down.
    Shutdown,
    /// A limit of connections is reached, the connection was idle for too long, or the proxy is draining.
    Requested,
}

/// hyper's service for the requests of one connection.
#[derive(Clone)]
struct ConnectionService<S> {
    generations: SwapCell<StackGeneration<S>>,
    connection: Arc<ClientConnection>,
}

/// The response to one request.
#[pin_project]
struct RequestFuture<F> {
    #[pin]
    response: F,
    connection: Arc<ClientConnection>,
    /// Whether a response of unknown length is chunked: over HTTP/1.1 alone (RFC 9112, section 6.1).
    may_chunk: bool,
}

/// Spawns the streams of HTTP/2 connections as tasks of the drain.
#[derive(Clone)]
struct DrainExecutor {
    stopping: DrainWatch,
    /// Longest time in which a stream may send nothing of its pending bytes.
    write_timeout: Duration,
}

/// The service for HTTP/2, whose responses are sent in portions.
struct Http2Service<S>(ConnectionService<S>);

/// The result of a stack of layers.
type ServiceResult = Result<http::Response<FrontBody>, Infallible>;

/// Alias of the service that a stack of layers is, as `stack.rs` builds it.
pub(super) trait FrontStack:
    Service<
        IncomingRequest<Incoming>,
        Response = http::Response<FrontBody>,
        Error = Infallible,
        Future: Send + 'static,
    > + Send
    + Sync
    + 'static
{
}

impl<S> FrontStack for S where
    S: Service<
            IncomingRequest<Incoming>,
            Response = http::Response<FrontBody>,
            Error = Infallible,
            Future: Send + 'static,
        > + Send
        + Sync
        + 'static
{
}

/// Accepts connections until shutdown. At the limit of connections, requests an idle connection to close, and
/// waits until a connection has closed; new ones queue in the system meanwhile.
pub(super) async fn accept<S: FrontStack>(
    mut listeners: ListenerSet,
    mut updates: mpsc::UnboundedReceiver<ListenerUpdate>,
    generations: SwapCell<StackGeneration<S>>,
    shared: Arc<SharedState>,
    stopping: DrainWatch,
) {
    let mut stopped = pin!(stopping.stopped());
    let (mut full_throttle, mut pending_throttle) = (EventThrottle::default(), EventThrottle::default());
    loop {
        let accepted = tokio::select! {
            // Shutdown first: a connection that is accepted now could only be closed.
            biased;
            () = &mut stopped => return,
            Some(update) = updates.recv() => {
                listeners.apply(update);
                continue;
            }
            accepted = listeners.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let permit = tokio::select! {
                    biased;
                    () = &mut stopped => return,
                    permit = acquire_connection(&shared, &mut full_throttle, || generations.load().front.limits.connections) => permit,
                };
                let (front, tls) = {
                    let generation = generations.load();
                    (Arc::clone(&generation.front), generation.tls.clone())
                };
                let peer = peer_address(&stream);
                let idle = shared.idle.admit(peer, shared.clock.now());
                close_excess_pending(
                    &shared,
                    &idle,
                    front.limits.pending_connections(),
                    &mut pending_throttle,
                );
                let close_trigger = CloseTrigger { stopping: stopping.clone(), idle };
                let task = ConnectionTask { front, peer, generations: generations.clone(), close_trigger };
                stopping.spawn(async move {
                    let _permit = (permit, Limit::Connections.acquire(1));
                    task.run(stream, tls).await;
                });
            }
            Err(error) => {
                tracing::warn!(target: "deferral", event = "accept_failed", %error);
                // The usual cause is a lack of descriptors, and closing an idle connection frees one.
                shared.idle.close_longest_idle(shared.clock.now(), MIN_IDLE);
                let limiter = shared.limiter.as_ref().filter(|_| is_out_of_descriptors(&error));
                let _reclaimed = limiter.and_then(|limiter| limiter.reclaim());
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Acquires a permit for one more connection. At the limit, closes the longest idle connection repeatedly
/// until a permit is free.
async fn acquire_connection(
    shared: &SharedState,
    throttle: &mut EventThrottle,
    limit: impl Fn() -> usize,
) -> OwnedSemaphorePermit {
    let permits = &shared.connections;
    if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
        return permit;
    }
    if let Some(waited) = throttle.count(shared.clock.now()) {
        tracing::warn!(
            target: "deferral",
            event = "connections_full",
            limit = "limits.connections",
            connections = limit(),
            waited,
        );
    }
    Limit::Connections.record_hit();
    let mut acquiring = pin!(Arc::clone(permits).acquire_owned());
    loop {
        shared.idle.close_longest_idle(shared.clock.now(), MIN_IDLE);
        tokio::select! {
            biased;
            permit = &mut acquiring => return permit.expect("the semaphore is never closed"),
            () = wait_before_recheck() => {}
        }
    }
}

/// Closes connections of the newest one's network, where too many of them have completed no request.
fn close_excess_pending(
    shared: &SharedState,
    newest: &IdleGuard,
    limit: usize,
    throttle: &mut EventThrottle,
) {
    let now = shared.clock.now();
    let closed = shared.idle.close_excess_pending(newest, limit, now, MIN_PENDING);
    if closed == 0 {
        return;
    }
    (0..closed).for_each(|_| Limit::PendingConnections.record_hit());
    if let Some(closed) = throttle.count_many(closed, now) {
        tracing::warn!(
            target: "deferral",
            event = "pending_connections_full",
            limit = "limits.pending_connections",
            connections = limit,
            client = newest.network(),
            closed,
        );
    }
}

/// Returns the number of header lines in the head of an HTTP/1 request, up to its end or to where it was cut
/// off.
fn count_header_lines(head: &[u8]) -> usize {
    let after_request_line = head.split(|byte| *byte == b'\n').skip(1);
    after_request_line.take_while(|line| !matches!(line, [] | [b'\r'])).count()
}

/// Returns the HTTP version that ALPN negotiated; `None` for a client without ALPN.
fn negotiated_version(stream: &TlsStream<WriteTimeoutStream<NetworkStream>>) -> Option<HttpVersion> {
    match stream.get_ref().1.alpn_protocol()? {
        b"h2" => Some(HttpVersion::Http2),
        _ => Some(HttpVersion::Http1),
    }
}

fn http1_builder(front: &Front) -> http1::Builder {
    let limits = &front.limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(HttpTimer(Arc::clone(&front.clock)))
        .header_read_timeout(front.timeouts.idle)
        .max_header_size(limits.header_bytes)
        // hyper accepts no less, and by default keeps up to 400 KiB.
        .max_buf_size(limits.header_bytes.max(8 << 10));
    if limits.headers != 100 {
        builder.max_headers(limits.headers);
    }
    builder
}

fn http2_builder(front: &Front, stopping: DrainWatch) -> http2::Builder<DrainExecutor> {
    let limits = &front.limits;
    let mut builder = http2::Builder::new(DrainExecutor { stopping, write_timeout: front.timeouts.write });
    builder
        .timer(HttpTimer(Arc::clone(&front.clock)))
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.streams)
        // What a client may send before it is read bounds what a connection costs. Calls are short; hyper's
        // windows of 1 MiB are meant for uploads.
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_INTERVAL);
    builder
}

// === impl ConnectionTask ===

impl<S: FrontStack> ConnectionTask<S> {
    /// Serves the connection, from its handshake to its end.
    async fn run(&self, stream: NetworkStream, tls: Option<TlsAcceptor>) {
        let stream = WriteTimeoutStream::new(stream, self.front.timeouts.write);
        match tls {
            None => self.serve_http(stream, None, false).await,
            // The future of the handshake is boxed: it is large, and connections without TLS should not pay
            // for it.
            Some(tls) => Box::pin(self.serve_tls(stream, tls)).await,
        }
    }

    /// Begins with a TLS handshake.
    async fn serve_tls(&self, stream: WriteTimeoutStream<NetworkStream>, tls: TlsAcceptor) {
        let handshake = Box::pin(timeout(self.front.timeouts.read_headers, tls.accept(stream)));
        let handshake_result = tokio::select! {
            _ = self.close_trigger.triggered() => return,
            result = handshake => result,
        };
        match handshake_result {
            Ok(Ok(stream)) => {
                let negotiated = negotiated_version(&stream);
                self.serve_http(stream, negotiated, true).await;
            }
            Ok(Err(error)) => tracing::debug!(target: "deferral", event = "tls_handshake_failed", %error),
            Err(_elapsed) => {
                Limit::ReadHeaders.record_hit();
                tracing::debug!(target: "deferral", event = "tls_handshake_overdue");
            }
        }
    }

    /// Drives HTTP on a stream, of the negotiated version, or else of the version that its first bytes show.
    async fn serve_http<T>(&self, mut stream: T, negotiated: Option<HttpVersion>, is_tls: bool)
    where
        T: AsyncRead + AsyncWrite + PeerSocket + Send + Unpin + 'static,
    {
        let (version, head) = match negotiated {
            Some(version) => (version, PrefaceBuffer::default()),
            // The future of the detection is boxed: it ends soon, and the connection may last.
            None => match Box::pin(self.read_version(&mut stream)).await {
                Some(detected) => detected,
                None => return,
            },
        };
        let activity = &self.close_trigger.idle.activity;
        let (clock, drain_notice) = (Arc::clone(&self.front.clock), self.front.drain_notice.clone());
        let connection = Arc::new(ClientConnection::new(
            is_tls,
            self.peer,
            version,
            Arc::clone(activity),
            clock,
            drain_notice,
        ));
        let io = ConnectionIo::new(stream, head, self.front.timeouts.read_headers, Arc::clone(&connection));
        let service =
            ConnectionService { generations: self.generations.clone(), connection: Arc::clone(&connection) };
        // Errors of a connection need no handling: the client has disconnected, or sent bytes that are not
        // HTTP, which hyper has answered. The requests of the connection have been dropped, which ends their
        // calls.
        match version {
            HttpVersion::Http1 => {
                let mut http_connection = http1_builder(&self.front).serve_connection(io, service);
                // The trigger is polled only when woken, because the connection is polled for each of its
                // requests.
                let trigger = pin!(self.close_trigger.triggered());
                let closing = PollOnWake::new(trigger);
                let result = tokio::select! {
                    result = &mut http_connection => result,
                    reason = closing => {
                        // No request was answered yet, and hyper would wait for the rest of the first one.
                        if reason == CloseReason::Requested && !activity.has_completed_request() && activity.waiting_since().is_some() {
                            return;
                        }
                        Pin::new(&mut http_connection).graceful_shutdown();
                        loop {
                            match timeout(CLOSE_TIMEOUT, &mut http_connection).await {
                                Ok(result) => break result,
                                // The next request is incomplete, and another connection may need the permit.
                                Err(_elapsed) if reason == CloseReason::Requested && connection.is_reading_head() => return,
                                Err(_elapsed) => {}
                            }
                        }
                    }
                };
                if let Err(error) = result {
                    self.record_limit(&error, || http_connection.into_parts().read_buf);
                }
            }
            // The future is boxed: connections of HTTP/1 should not pay for its size.
            HttpVersion::Http2 => Box::pin(self.serve_http2(io, service)).await,
        }
    }

    /// Records the limit that ended a connection of HTTP/1. An overdue head is counted where it is read.
    /// `head` returns the part of the refused request that was read: hyper has one error for two limits.
    fn record_limit(&self, error: &hyper::Error, head: impl FnOnce() -> Bytes) {
        if error.is_parse_too_large() {
            let has_too_many = count_header_lines(&head()) > self.front.limits.headers;
            let limit = if has_too_many { Limit::Headers } else { Limit::HeaderBytes };
            RequestHeadRefused { limit, client: self.peer }.emit();
        } else if error.is_timeout() {
            Limit::IdleConnection.record_hit();
        }
    }

    /// Detects the HTTP version of a connection by its first bytes; `None` if the connection ends or times
    /// out before.
    async fn read_version<T: AsyncRead + Unpin>(
        &self,
        stream: &mut T,
    ) -> Option<(HttpVersion, PrefaceBuffer)> {
        let read = tokio::select! {
            // A client that has sent nothing yet loses nothing.
            _ = self.close_trigger.triggered() => return None,
            read = timeout(self.front.timeouts.read_headers, detect_version(stream)) => read,
        };
        match read {
            Ok(detected) => detected.ok(),
            Err(_elapsed) => {
                Limit::ReadHeaders.record_hit();
                None
            }
        }
    }

    async fn serve_http2<T>(&self, io: ConnectionIo<T>, service: ConnectionService<S>)
    where
        T: AsyncRead + AsyncWrite + PeerSocket + Send + Unpin + 'static,
    {
        let activity = &self.close_trigger.idle.activity;
        let builder = http2_builder(&self.front, self.close_trigger.stopping.clone());
        let mut http_connection =
            pin!(builder.serve_connection(RefusedStreamCounter::new(io, self.peer), Http2Service(service)));
        let reason = tokio::select! {
            _ = http_connection.as_mut() => return,
            reason = self.close_trigger.triggered() => reason,
            // hyper has this timeout over HTTP/1 alone, and over HTTP/2 any frame counts as activity.
            () = activity.wait_idle(self.front.timeouts.idle, &*self.front.clock) => {
                Limit::IdleConnection.record_hit();
                CloseReason::Requested
            }
        };
        if reason == CloseReason::Requested
            && !activity.has_completed_request()
            && activity.waiting_since().is_some()
        {
            return;
        }
        http_connection.as_mut().graceful_shutdown();
        let is_waiting = || match reason {
            CloseReason::Shutdown => activity.idle_since().is_some(),
            // An incomplete request does not delay a requested close beyond `CLOSE_TIMEOUT`: its client has had
            // time enough, and another connection may need the permit.
            CloseReason::Requested => activity.waiting_since().is_some(),
        };
        // The connection's close is not waited for; its requests are.
        while timeout(CLOSE_TIMEOUT, http_connection.as_mut()).await.is_err() && !is_waiting() {}
    }
}

// === impl CloseTrigger ===

impl CloseTrigger {
    /// Resolves when the connection is to end as soon as it can, with the reason.
    async fn triggered(&self) -> CloseReason {
        tokio::select! {
            () = self.stopping.stopped() => CloseReason::Shutdown,
            () = self.idle.activity.close_requested() => CloseReason::Requested,
        }
    }
}

// === impl ListenerSet ===

impl ListenerSet {
    /// Listens on all of `addresses`.
    pub(super) fn bind(addresses: &[SocketAddr], net: &Network) -> Result<Self, Error> {
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        let listen = |&configured: &SocketAddr| {
            let socket =
                net.listen(configured).map_err(|source| Error::Bind { address: configured, source })?;
            Ok((ListenAddress { configured, address: socket.address().unwrap_or(configured) }, socket))
        };
        Ok(Self { sockets: addresses.iter().map(listen).collect::<Result<_, Error>>()?, next: 0 })
    }

    /// Creates a set without sockets.
    pub(super) const fn empty() -> Self {
        Self { sockets: Vec::new(), next: 0 }
    }

    /// The addresses of the sockets.
    pub(super) fn addresses(&self) -> impl Iterator<Item = ListenAddress> {
        self.sockets.iter().map(|(address, _)| *address)
    }

    /// Keeps the sockets in `kept`, closes the others, and adds new ones. Accepted connections continue.
    fn apply(&mut self, ListenerUpdate { kept, added }: ListenerUpdate) {
        self.sockets.retain(|(address, _)| kept.contains(address));
        self.sockets.extend(added.sockets);
        self.next = 0;
    }

    async fn accept(&mut self) -> io::Result<NetworkStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<NetworkStream>> {
        for _ in 0..self.sockets.len() {
            let (_, socket) = &mut self.sockets[self.next];
            let accepted = socket.poll_accept(cx);
            self.next = (self.next + 1) % self.sockets.len();
            if accepted.is_ready() {
                return accepted;
            }
        }
        Poll::Pending
    }
}

// === impl ConnectionService ===

impl<S: FrontStack> Service<http::Request<Incoming>> for ConnectionService<S> {
    type Response = http::Response<FrontBody>;
    type Error = Infallible;
    type Future = RequestFuture<S::Future>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        self.connection.begin_request();
        let entry = AccessEntry::begin(Arc::clone(&self.connection), request.method().clone());
        let may_chunk = request.version() == http::Version::HTTP_11;
        let incoming = IncomingRequest { request, entry };
        let response = self.generations.load().stack.call(incoming);
        RequestFuture { response, connection: Arc::clone(&self.connection), may_chunk }
    }
}

// === impl RequestFuture ===

impl<F: Future<Output = ServiceResult>> Future for RequestFuture<F> {
    type Output = ServiceResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ServiceResult> {
        let this = self.project();
        let Ok(mut response) = ready!(this.response.poll(cx));
        if this.connection.is_draining() {
            this.connection.announce_close(response.headers_mut());
        }
        this.connection.begin_response(*this.may_chunk && is_chunked(&response));
        Poll::Ready(Ok(response))
    }
}

/// Whether hyper sends a response of HTTP/1.1 in chunks.
fn is_chunked(response: &http::Response<FrontBody>) -> bool {
    let (headers, body) = (response.headers(), response.body());
    response.status() == StatusCode::OK
        && !body.is_end_stream()
        && body.size_hint().exact().is_none()
        && !headers.contains_key(CONTENT_LENGTH)
        && !headers.contains_key(TRANSFER_ENCODING)
}

// === impl Http2Service ===

impl<S: FrontStack> Service<http::Request<Incoming>> for Http2Service<S> {
    type Response = http::Response<PortionedBody>;
    type Error = Infallible;
    type Future = Map<RequestFuture<S::Future>, fn(ServiceResult) -> Result<Self::Response, Infallible>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        join_cookies(request.headers_mut());
        self.0.call(request).map(|served| served.map(|response| response.map(PortionedBody::new)))
    }
}

/// Joins the cookie headers of an HTTP/2 request, which may have several, into the single header that
/// HTTP/1.1 allows (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(_)) = (cookies.next(), cookies.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for cookie in headers.get_all(COOKIE).iter().skip(1) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    let joined = HeaderValue::from_bytes(&joined).expect("header values and a separator make one");
    headers.insert(COOKIE, joined);
}

// === impl DrainExecutor ===

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for DrainExecutor {
    fn execute(&self, stream: F) {
        self.stopping.spawn(StreamTimeout::new(stream, self.write_timeout));
    }
}
