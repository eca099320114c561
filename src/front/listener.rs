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
    layers::trace::Line,
    refused_streams::Counted,
    reply::Body,
    rest::{self, Guest},
    write_timeout::{Paced, Paces, Portions},
};
use crate::runtime::{Listener, Live, Net, Seldom, Stopping, Stream, is_out_of_descriptors};
use crate::telemetry::Limit;
use futures_util::{FutureExt, future::Map};
use http::{HeaderMap, HeaderValue, header::COOKIE};
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
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
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

/// How long it is not told again that connections wait: where there is no place there may be thousands.
const TELL_AGAIN: Duration = Duration::from_secs(10);

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

/// Connections that wait for a place, as the log is told of them.
#[derive(Debug, Default)]
struct Full {
    told: Option<Instant>,
    /// Those that the log has not been told of.
    waited: u64,
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
    generations: Live<Generation<S>>,
    leaving: Leaving,
}

/// What ends a connection.
struct Leaving {
    stopping: Stopping,
    guest: Guest,
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
    let mut full = Full::default();
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
                let guest = lasting.guests.admit(lasting.clock.now());
                let leaving = Leaving { stopping: stopping.clone(), guest };
                let (front, tls) = {
                    let generation = generations.now();
                    (Arc::clone(&generation.front), generation.tls.clone())
                };
                let visit = Visit { front, generations: generations.clone(), leaving };
                stopping.spawn(async move {
                    let _place = (place, Limit::Connections.take(1));
                    visit.connection(stream, tls).await;
                });
            }
            Err(error) => {
                tracing::warn!(target: "deferral", event = "accept_failed", %error);
                // Mostly there are no descriptors left, and what rests has one.
                lasting.guests.make_room(lasting.clock.now());
                let room = lasting.room.as_ref().filter(|_| is_out_of_descriptors(&error));
                let _asked = room.and_then(|room| room.relieve());
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A place for one more connection.
async fn place(lasting: &Lasting, full: &mut Full, limit: impl Fn() -> usize) -> OwnedSemaphorePermit {
    let places = &lasting.connections;
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return place;
    }
    if let Some(waited) = full.waits(lasting.clock.now()) {
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
        lasting.guests.make_room(lasting.clock.now());
        tokio::select! {
            biased;
            place = &mut waiting => return place.expect("the semaphore is never closed"),
            () = rest::look_again() => {}
        }
    }
}

/// Counts the limit that a connection of HTTP/1 has ended with. That a head is overdue is counted where it is read.
fn count(error: &hyper::Error) {
    if error.is_parse_too_large() {
        Limit::HeaderBytes.hit();
    } else if error.is_timeout() {
        Limit::IdleConnection.hit();
    }
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

// === impl Full ===

impl Full {
    /// One more waits. How many have since it was told, where it is to be told again.
    fn waits(&mut self, now: Instant) -> Option<u64> {
        self.waited += 1;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TELL_AGAIN) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.waited))
    }
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
            () = self.leaving.is_due() => return,
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
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (version, head) = match agreed {
            Some(version) => (version, Head::default()),
            // Boxed: it is over soon, and the connection may last.
            None => match Box::pin(self.told_version(&mut stream)).await {
                Some(told) => told,
                None => return,
            },
        };
        let rest = &self.leaving.guest.rest;
        let (clock, leaving) = (Arc::clone(&self.front.clock), self.front.leaving.clone());
        let connection = Arc::new(Connection::new(secure, version, Arc::clone(rest), clock, leaving));
        let io = Io::new(stream, head, self.front.timeouts.read_headers, Arc::clone(&connection));
        let door = Door { generations: self.generations.clone(), connection };
        // Errors of a connection are its client's affair: a departure, or bytes that are not HTTP,
        // which hyper has answered. What it held has been dropped, and that is how we notice.
        match version {
            Version::Http1 => {
                let mut serving = pin!(http1(&self.front).serve_connection(io, door));
                // Beside each of its requests.
                let due = pin!(self.leaving.is_due());
                let leaves = Seldom::new(due);
                let ended = tokio::select! {
                    ended = serving.as_mut() => ended,
                    () = leaves => {
                        serving.as_mut().graceful_shutdown();
                        serving.await
                    }
                };
                if let Err(error) = ended {
                    count(&error);
                }
            }
            // Boxed: connections of HTTP/1 need not pay for it.
            Version::Http2 => Box::pin(self.http2(io, door)).await,
        }
    }

    /// The version of HTTP that the first bytes of a connection tell, if there is any.
    async fn told_version<T: AsyncRead + Unpin>(&self, stream: &mut T) -> Option<(Version, Head)> {
        let read = tokio::select! {
            // A client that has said nothing yet has nothing to lose.
            () = self.leaving.is_due() => return None,
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
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let rest = &self.leaving.guest.rest;
        let builder = http2(&self.front, self.leaving.stopping.clone());
        let mut serving = pin!(builder.serve_connection(Counted::new(io), Streams(door)));
        tokio::select! {
            _ = serving.as_mut() => return,
            () = self.leaving.is_due() => serving.as_mut().graceful_shutdown(),
            // hyper has a time for this over HTTP/1 alone, and over HTTP/2 any frame is a sign of life.
            () = rest.over(self.front.timeouts.idle, &*self.front.clock) => {
                Limit::IdleConnection.hit();
                serving.as_mut().graceful_shutdown();
            }
        }
        // A client that does not take its leave is not waited for; its requests are.
        while timeout(FAREWELL, serving.as_mut()).await.is_err() && rest.since().is_none() {}
    }
}

// === impl Leaving ===

impl Leaving {
    /// Resolves when the connection is to end as soon as it can: the proxy stops, or its place is wanted.
    async fn is_due(&self) {
        tokio::select! {
            () = self.stopping.stopped() => {}
            () = self.guest.rest.asked_to_leave() => {}
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
        let arrival = Arrival { request, line };
        let answer = self.generations.now().stack.call(arrival);
        Answering { answer, connection: Arc::clone(&self.connection) }
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
        Poll::Ready(Ok(response))
    }
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
