//! Accepts connections and drives HTTP on them.
//!
//! HTTP/1.1 and HTTP/2 are served on the same port: over TLS as ALPN says, else as the first bytes
//! say (HTTP/2 with prior knowledge begins with a preface of its own). A connection is told when
//! it is time to stop, finishes what it has begun and takes nothing new.
//!
//! An idle or held connection is meant to be cheap. hyper allocates two buffers of 8 KiB for an
//! HTTP/1 connection and has no smaller ones; of these only the pages touched are real. The rest,
//! some 3 KiB, is up to us: nothing that is kept for the length of a call may be a slice of the
//! read buffer ([`receive`](super::receive), [`detached`](crate::dialect::detached)), and
//! what is rare and large is boxed.

use super::{
    Error, Front, Lasting,
    alarms::Alarms,
    arrival::Arrival,
    connection::{Connection, Head, Io, Version, tell_version},
    half_closed::Peer,
    layers::trace::Line,
    refused_streams::Counted,
    reply::Body,
    write_timeout::{Paced, Paces, Portions},
};
use crate::runtime::{
    IdleGuard, Listener, Live, MIN_IDLE, MIN_PENDING, Net, Seldom, Stopping, Stream, Throttled,
    is_out_of_descriptors, look_again, peer_address,
};
use crate::telemetry::{HeadRefused, Limit};
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

/// How long to let be after an accept that failed for want of descriptors or memory. Nothing else
/// can be done about it, and trying again at once would only keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client of HTTP/2 may take to acknowledge that its connection ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often an HTTP/2 connection is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes a client may send on one HTTP/2 stream, and on all of a connection, ahead of us.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Sockets that listen.
pub(super) struct Listeners {
    /// With the addresses that were asked for, and are really listened on.
    sockets: Vec<(Listening, Listener)>,
    /// The socket to ask first next time, so that a busy one does not keep others waiting.
    next: usize,
}

/// Where a socket listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listening {
    /// As it is configured.
    pub(super) wanted: SocketAddr,
    /// Port 0 has become a number.
    pub(super) address: SocketAddr,
}

/// To other addresses.
pub(super) struct Move {
    pub(super) kept: Vec<Listening>,
    pub(super) further: Listeners,
}

/// By what is served, until the configuration is read again.
pub(super) struct Generation<S> {
    pub(super) front: Arc<Front>,
    pub(super) stack: S,
    pub(super) tls: Option<TlsAcceptor>,
}

/// One connection on its way.
struct Visit<S> {
    front: Arc<Front>,
    peer: Option<IpAddr>,
    generations: Live<Generation<S>>,
    leaving: Leaving,
}

/// What ends a connection.
struct Leaving {
    stopping: Stopping,
    idle: IdleGuard,
}

/// Why a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The proxy stops.
    Stopping,
    /// Another connection needs its place, or its client is to go elsewhere.
    Asked,
}

/// One connection's way into the stack.
#[derive(Clone)]
struct Door<S> {
    generations: Live<Generation<S>>,
    connection: Arc<Connection>,
}

/// The answer to one request, on the way to its connection.
#[pin_project]
struct Answering<F> {
    #[pin]
    answer: F,
    connection: Arc<Connection>,
    /// Whether an answer of unknown length is sent in chunks: over HTTP/1.1 alone (RFC 9112, section 6.1).
    may_chunk: bool,
}

/// Runs the streams of HTTP/2 connections where the drain sees them.
#[derive(Clone)]
struct Tracked {
    stopping: Stopping,
    /// For one of them to be rid of some of what it has to send.
    write: Duration,
}

/// The same way for HTTP/2, where answers go out in portions.
struct Streams<S>(Door<S>);

/// What a stack answers with.
type Served = Result<http::Response<Body>, Infallible>;

/// A stack that serves what arrives, as `stack.rs` builds it.
pub(super) trait Serves:
    Service<Arrival<Incoming>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
    + Send
    + Sync
    + 'static
{
}

impl<S> Serves for S where
    S: Service<
            Arrival<Incoming>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Send
        + Sync
        + 'static
{
}

/// Accepts connections until it is time to stop. Beyond the limit of connections it waits for one
/// to close, and asks one that rests to; new ones queue in the system meanwhile.
pub(super) async fn accept<S: Serves>(
    mut listeners: Listeners,
    mut moves: mpsc::UnboundedReceiver<Move>,
    generations: Live<Generation<S>>,
    lasting: Arc<Lasting>,
    stopping: Stopping,
) {
    let mut stopped = pin!(stopping.stopped());
    let (mut full, mut pending) = (Throttled::default(), Throttled::default());
    loop {
        let accepted = tokio::select! {
            // Stopping wins: what is accepted now could only be turned away.
            biased;
            () = &mut stopped => return,
            Some(to) = moves.recv() => {
                listeners.go(to);
                continue;
            }
            accepted = listeners.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let place = tokio::select! {
                    biased;
                    () = &mut stopped => return,
                    place = place(&lasting, &mut full, || generations.now().front.limits.connections) => place,
                };
                let (front, tls) = {
                    let generation = generations.now();
                    (Arc::clone(&generation.front), generation.tls.clone())
                };
                let peer = peer_address(&stream);
                let idle = lasting.idle.admit(peer, lasting.clock.now());
                bound_pending(&lasting, &idle, front.limits.pending_connections(), &mut pending);
                let leaving = Leaving { stopping: stopping.clone(), idle };
                let visit = Visit { front, peer, generations: generations.clone(), leaving };
                stopping.spawn(async move {
                    let _place = (place, Limit::Connections.take(1));
                    visit.connection(stream, tls).await;
                });
            }
            Err(error) => {
                tracing::warn!(target: "deferral", event = "accept_failed", %error);
                // Mostly there are no descriptors left, and what rests has one.
                lasting.idle.make_room(lasting.clock.now(), MIN_IDLE);
                let room = lasting.room.as_ref().filter(|_| is_out_of_descriptors(&error));
                let _asked = room.and_then(|room| room.relieve());
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A place for one more connection.
async fn place(lasting: &Lasting, full: &mut Throttled, limit: impl Fn() -> usize) -> OwnedSemaphorePermit {
    let places = &lasting.connections;
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return place;
    }
    if let Some(waited) = full.count(lasting.clock.now()) {
        tracing::warn!(
            target: "deferral",
            event = "connections_full",
            limit = "limits.connections",
            connections = limit(),
            waited,
        );
    }
    Limit::Connections.hit();
    let mut waiting = pin!(Arc::clone(places).acquire_owned());
    loop {
        lasting.idle.make_room(lasting.clock.now(), MIN_IDLE);
        tokio::select! {
            biased;
            place = &mut waiting => return place.expect("the semaphore is never closed"),
            () = look_again() => {}
        }
    }
}

/// Closes connections of the network that this one comes from, where too many of it have completed no request.
fn bound_pending(lasting: &Lasting, newest: &IdleGuard, limit: usize, throttled: &mut Throttled) {
    let now = lasting.clock.now();
    let closed = lasting.idle.bound_pending(newest, limit, now, MIN_PENDING);
    if closed == 0 {
        return;
    }
    (0..closed).for_each(|_| Limit::PendingConnections.hit());
    if let Some(closed) = throttled.count_all(closed, now) {
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

/// The number of header lines in the head of an HTTP/1 request, up to its end or to where it breaks off.
fn header_lines(head: &[u8]) -> usize {
    let behind_the_request_line = head.split(|byte| *byte == b'\n').skip(1);
    behind_the_request_line.take_while(|line| !matches!(line, [] | [b'\r'])).count()
}

/// What ALPN agreed on, if the client took part.
fn agreed_version(stream: &TlsStream<Paced<Stream>>) -> Option<Version> {
    match stream.get_ref().1.alpn_protocol()? {
        b"h2" => Some(Version::Http2),
        _ => Some(Version::Http1),
    }
}

fn http1(front: &Front) -> http1::Builder {
    let limits = &front.limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(Alarms(Arc::clone(&front.clock)))
        .header_read_timeout(front.timeouts.idle)
        .max_header_size(limits.header_bytes)
        // hyper accepts no less, and by default keeps up to 400 KiB.
        .max_buf_size(limits.header_bytes.max(8 << 10));
    if limits.headers != 100 {
        builder.max_headers(limits.headers);
    }
    builder
}

fn http2(front: &Front, stopping: Stopping) -> http2::Builder<Tracked> {
    let limits = &front.limits;
    let mut builder = http2::Builder::new(Tracked { stopping, write: front.timeouts.write });
    builder
        .timer(Alarms(Arc::clone(&front.clock)))
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.streams)
        // What a client may send before anybody reads it, so what a connection may cost unasked.
        // Calls are short; hyper's windows of 1 MiB are meant for uploads.
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_INTERVAL);
    builder
}

// === impl Visit ===

impl<S: Serves> Visit<S> {
    /// From handshake to end.
    async fn connection(&self, stream: Stream, tls: Option<TlsAcceptor>) {
        let stream = Paced::new(stream, self.front.timeouts.write);
        match tls {
            None => self.http(stream, None, false).await,
            // Boxed: its state is large, and connections without TLS need not pay for it.
            Some(tls) => Box::pin(self.https(stream, tls)).await,
        }
    }

    /// Begins with a TLS handshake.
    async fn https(&self, stream: Paced<Stream>, tls: TlsAcceptor) {
        let handshake = Box::pin(timeout(self.front.timeouts.read_headers, tls.accept(stream)));
        let shaken = tokio::select! {
            _ = self.leaving.is_due() => return,
            shaken = handshake => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => {
                let agreed = agreed_version(&stream);
                self.http(stream, agreed, true).await;
            }
            Ok(Err(error)) => tracing::debug!(target: "deferral", event = "tls_handshake_failed", %error),
            Err(_elapsed) => {
                Limit::ReadHeaders.hit();
                tracing::debug!(target: "deferral", event = "tls_handshake_overdue");
            }
        }
    }

    /// Drives HTTP on a stream, of the version agreed on or the one its first bytes tell.
    async fn http<T>(&self, mut stream: T, agreed: Option<Version>, secure: bool)
    where
        T: AsyncRead + AsyncWrite + Peer + Send + Unpin + 'static,
    {
        let (version, head) = match agreed {
            Some(version) => (version, Head::default()),
            // Boxed: it is over soon, and the connection may last.
            None => match Box::pin(self.told_version(&mut stream)).await {
                Some(told) => told,
                None => return,
            },
        };
        let activity = &self.leaving.idle.activity;
        let (clock, leaving) = (Arc::clone(&self.front.clock), self.front.leaving.clone());
        let connection =
            Arc::new(Connection::new(secure, self.peer, version, Arc::clone(activity), clock, leaving));
        let io = Io::new(stream, head, self.front.timeouts.read_headers, Arc::clone(&connection));
        let door = Door { generations: self.generations.clone(), connection: Arc::clone(&connection) };
        // Errors of a connection are its client's affair: a departure, or bytes that are not HTTP,
        // which hyper has answered. What it held has been dropped, and that is how we notice.
        match version {
            Version::Http1 => {
                let mut serving = http1(&self.front).serve_connection(io, door);
                // Beside each of its requests.
                let due = pin!(self.leaving.is_due());
                let leaves = Seldom::new(due);
                let ended = tokio::select! {
                    ended = &mut serving => ended,
                    due = leaves => {
                        // hyper would wait for the rest of a request, and has answered nothing.
                        if due == Due::Asked && !activity.has_completed() && activity.waiting_since().is_some() {
                            return;
                        }
                        Pin::new(&mut serving).graceful_shutdown();
                        loop {
                            match timeout(FAREWELL, &mut serving).await {
                                Ok(ended) => break ended,
                                // The next request is incomplete, and another connection waits for its place.
                                Err(_elapsed) if due == Due::Asked && connection.is_in_a_head() => return,
                                Err(_elapsed) => {}
                            }
                        }
                    }
                };
                if let Err(error) = ended {
                    self.count(&error, || serving.into_parts().read_buf);
                }
            }
            // Boxed: connections of HTTP/1 need not pay for it.
            Version::Http2 => Box::pin(self.http2(io, door)).await,
        }
    }

    /// Counts the limit that a connection of HTTP/1 has ended with. That a head is overdue is counted where it is read.
    /// `head` is what has been read of the request that was refused: hyper has one error for two limits.
    fn count(&self, error: &hyper::Error, head: impl FnOnce() -> Bytes) {
        if error.is_parse_too_large() {
            let has_too_many = header_lines(&head()) > self.front.limits.headers;
            let limit = if has_too_many { Limit::Headers } else { Limit::HeaderBytes };
            HeadRefused { limit, client: self.peer }.emit();
        } else if error.is_timeout() {
            Limit::IdleConnection.hit();
        }
    }

    /// The version of HTTP that the first bytes of a connection tell, if there is any.
    async fn told_version<T: AsyncRead + Unpin>(&self, stream: &mut T) -> Option<(Version, Head)> {
        let read = tokio::select! {
            // A client that has said nothing yet has nothing to lose.
            _ = self.leaving.is_due() => return None,
            read = timeout(self.front.timeouts.read_headers, tell_version(stream)) => read,
        };
        match read {
            Ok(told) => told.ok(),
            Err(_elapsed) => {
                Limit::ReadHeaders.hit();
                None
            }
        }
    }

    async fn http2<T>(&self, io: Io<T>, door: Door<S>)
    where
        T: AsyncRead + AsyncWrite + Peer + Send + Unpin + 'static,
    {
        let activity = &self.leaving.idle.activity;
        let builder = http2(&self.front, self.leaving.stopping.clone());
        let mut serving = pin!(builder.serve_connection(Counted::new(io, self.peer), Streams(door)));
        let due = tokio::select! {
            _ = serving.as_mut() => return,
            due = self.leaving.is_due() => due,
            // hyper has a time for this over HTTP/1 alone, and over HTTP/2 any frame is a sign of life.
            () = activity.over(self.front.timeouts.idle, &*self.front.clock) => {
                Limit::IdleConnection.hit();
                Due::Asked
            }
        };
        if due == Due::Asked && !activity.has_completed() && activity.waiting_since().is_some() {
            return;
        }
        serving.as_mut().graceful_shutdown();
        let is_waiting = || match due {
            Due::Stopping => activity.idle_since().is_some(),
            // Another connection waits for its place: one that sends the rest of a request slowly has had its time.
            Due::Asked => activity.waiting_since().is_some(),
        };
        // A client that does not take its leave is not waited for; its requests are.
        while timeout(FAREWELL, serving.as_mut()).await.is_err() && !is_waiting() {}
    }
}

// === impl Leaving ===

impl Leaving {
    /// Resolves when the connection is to end as soon as it can: the proxy stops, or its place is wanted.
    async fn is_due(&self) -> Due {
        tokio::select! {
            () = self.stopping.stopped() => Due::Stopping,
            () = self.idle.activity.asked_to_close() => Due::Asked,
        }
    }
}

// === impl Listeners ===

impl Listeners {
    /// Listens on all of `addresses`.
    pub(super) fn bind(addresses: &[SocketAddr], net: &Net) -> Result<Self, Error> {
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        let listen = |&wanted: &SocketAddr| {
            let socket = net.listen(wanted).map_err(|source| Error::Bind { address: wanted, source })?;
            Ok((Listening { wanted, address: socket.address().unwrap_or(wanted) }, socket))
        };
        Ok(Self { sockets: addresses.iter().map(listen).collect::<Result<_, Error>>()?, next: 0 })
    }

    /// None yet.
    pub(super) const fn none() -> Self {
        Self { sockets: Vec::new(), next: 0 }
    }

    /// What is really listened on.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Listening> {
        self.sockets.iter().map(|(listening, _)| *listening)
    }

    /// Opens no more than is kept and added. Connections that were accepted go on.
    fn go(&mut self, Move { kept, further }: Move) {
        self.sockets.retain(|(listening, _)| kept.contains(listening));
        self.sockets.extend(further.sockets);
        self.next = 0;
    }

    async fn accept(&mut self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
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

// === impl Door ===

impl<S: Serves> Service<http::Request<Incoming>> for Door<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        self.connection.begin();
        let line = Line::begin(Arc::clone(&self.connection), request.method().clone());
        let may_chunk = request.version() == http::Version::HTTP_11;
        let arrival = Arrival { request, line };
        let answer = self.generations.now().stack.call(arrival);
        Answering { answer, connection: Arc::clone(&self.connection), may_chunk }
    }
}

// === impl Answering ===

impl<F: Future<Output = Served>> Future for Answering<F> {
    type Output = Served;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served> {
        let this = self.project();
        let Ok(mut response) = ready!(this.answer.poll(cx));
        if this.connection.is_to_end() {
            this.connection.ends_with(response.headers_mut());
        }
        this.connection.answers(*this.may_chunk && is_chunked(&response));
        Poll::Ready(Ok(response))
    }
}

/// Whether hyper sends an answer of HTTP/1.1 in chunks.
fn is_chunked(response: &http::Response<Body>) -> bool {
    let (headers, body) = (response.headers(), response.body());
    response.status() == StatusCode::OK
        && !body.is_end_stream()
        && body.size_hint().exact().is_none()
        && !headers.contains_key(CONTENT_LENGTH)
        && !headers.contains_key(TRANSFER_ENCODING)
}

// === impl Streams ===

impl<S: Serves> Service<http::Request<Incoming>> for Streams<S> {
    type Response = http::Response<Portions>;
    type Error = Infallible;
    type Future = Map<Answering<S::Future>, fn(Served) -> Result<Self::Response, Infallible>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        join_cookies(request.headers_mut());
        self.0.call(request).map(|served| served.map(|response| response.map(Portions::of)))
    }
}

/// Puts cookies together that HTTP/2 allows a client to send apart; elsewhere there is one header of
/// them (RFC 9113, 8.2.3).
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

// === impl Tracked ===

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, stream: F) {
        self.stopping.spawn(Paces::new(stream, self.write));
    }
}
