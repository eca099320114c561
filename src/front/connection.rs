//! One connection's socket, as hyper sees it: HTTP version, idle time, and when the bytes of a task handle
//! have been flushed.

use super::half_closed::{EofTracker, HalfClosedState, PeerSocket};
use crate::telemetry::Limit;
use crate::{
    dialect::{Call, ClientProfile, Credentials},
    protocol::Capabilities,
    proxy::DeliveryCommit,
    runtime::{
        Clock, ConnectionActivity, DrainWatch, IncompleteBody, Mutex, register_write, wake_after_others,
    },
};
use arc_swap::{ArcSwapOption, Guard};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use pin_project::pin_project;
use std::{
    future::Future,
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::{Arc, atomic},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    time::{Sleep, sleep},
};

/// The preface of an HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long the proxy still reads, and discards, what a client sends after the proxy has shut down its side
/// of the connection.
const LINGER: Duration = Duration::from_secs(2);

/// Largest client profile, and largest credentials, in bytes, that a connection caches: there may be many
/// connections.
const MAX_CACHED_BYTES: usize = 1024;

/// State of one connection, shared by its requests.
pub(super) struct ClientConnection {
    /// Whether the client connected with TLS.
    pub(super) is_tls: bool,
    /// The address of the TCP peer, which is the client or a proxy in front; `None` for an in-memory
    /// connection.
    pub(super) peer: Option<IpAddr>,
    version: HttpVersion,
    activity: Arc<ConnectionActivity>,
    /// The proxy's clock. Stored per connection and not per request, because requests on different threads
    /// would contend for its reference count.
    clock: Arc<dyn Clock>,
    /// Signalled before the drain: from then on, each response is the last of its connection.
    drain_notice: DrainWatch,
    /// Commits of task handles that have been written, but not flushed. The lock guards this list alone and
    /// is held for a push or a take.
    commits: Mutex<PendingCommits>,
    /// Whether `commits` is not empty; spares each flush the lock.
    has_commits: atomic::AtomicBool,
    /// The current [`ConnectionPhase`]; changes over HTTP/1 alone.
    phase: atomic::AtomicU8,
    /// The [`ResponseFraming`] of the current response; set and read over HTTP/1 alone.
    framing: atomic::AtomicU8,
    /// The client's profile, from the last request in which it was at most [`MAX_CACHED_BYTES`] bytes.
    client_profile: ArcSwapOption<ClientProfile>,
    /// The client's credentials, from the last request in which they were at most [`MAX_CACHED_BYTES`] bytes.
    credentials: ArcSwapOption<Credentials>,
}

/// Phase of an HTTP/1 connection, by its current or next request. hyper has a single timeout for the wait for
/// a head and for the head itself; the proxy has two, because a client that polls its task every half minute
/// should keep its connection, and a client that sends a head byte by byte should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// No byte of the next head has arrived.
    Idle,
    /// A part of a head has arrived.
    Head,
    /// A head is complete, and its request is being received.
    Receiving,
    /// A request is complete and being served. Connections of HTTP/2 are always in this phase.
    Busy,
}

/// How the response to the current request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseFraming {
    /// The response has not begun.
    NotBegun,
    /// Chunked (RFC 9112, section 7.1).
    Chunked,
    /// With a content length, or up to the end of the connection.
    Other,
}

/// Commits of task handles that await the next completed flush.
#[derive(Debug)]
enum PendingCommits {
    Open(Vec<DeliveryCommit>),
    /// The connection has ended: unflushed handles will not be flushed.
    Closed,
}

/// A client's socket as hyper sees it; reports completed flushes to its [`ClientConnection`].
#[pin_project(PinnedDrop)]
pub(super) struct ConnectionIo<S> {
    #[pin]
    stream: TokioIo<EofTracker<S>>,
    /// Bytes that were read to detect the HTTP version; hyper reads them first.
    head: PrefaceBuffer,
    /// Timer of an incomplete head, of length `head_timeout`. Most heads arrive in one piece and need no
    /// timer.
    head_timer: Option<Pin<Box<Sleep>>>,
    /// The configured `timeouts.read_headers`.
    head_timeout: Duration,
    /// Timer of [`LINGER`]; `Some` once the proxy has shut down its side.
    linger_timer: Option<Pin<Box<Sleep>>>,
    connection: Arc<ClientConnection>,
    /// Whether the pending write has yielded to other tasks of the thread, if there were any.
    has_yielded: bool,
    /// Whether a write was attempted since the last completed flush.
    is_unflushed: bool,
    /// Whether the first byte of the response has been sent as a probe, so that the next write must leave it
    /// out ([`half_closed`](super::half_closed)).
    has_sent_first_byte: bool,
    /// State of a half-closed connection; `Some` once the client has ended its side.
    half_closed: Option<Box<HalfClosedState>>,
}

/// The first bytes of a connection, read to detect the HTTP version.
#[derive(Default)]
pub(super) struct PrefaceBuffer {
    bytes: [u8; PREFACE.len()],
    /// Number of bytes read from the socket.
    filled: u8,
    /// Number of bytes that hyper has read.
    consumed: u8,
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http1,
    Http2,
}

// === impl ClientConnection ===

impl ClientConnection {
    /// Creates the state of a new connection. `activity` records whether it is idle; `drain_notice` is
    /// signalled before the drain.
    pub(super) fn new(
        is_tls: bool,
        peer: Option<IpAddr>,
        version: HttpVersion,
        activity: Arc<ConnectionActivity>,
        clock: Arc<dyn Clock>,
        drain_notice: DrainWatch,
    ) -> Self {
        let phase = match version {
            HttpVersion::Http1 => ConnectionPhase::Idle,
            // An HTTP/2 connection has many requests at once, and timeouts of its own.
            HttpVersion::Http2 => ConnectionPhase::Busy,
        };
        Self {
            is_tls,
            peer,
            commits: Mutex::new(PendingCommits::Open(Vec::new())),
            has_commits: atomic::AtomicBool::new(false),
            version,
            activity,
            clock,
            drain_notice,
            phase: atomic::AtomicU8::new(phase as u8),
            framing: atomic::AtomicU8::new(ResponseFraming::NotBegun as u8),
            client_profile: ArcSwapOption::empty(),
            credentials: ArcSwapOption::empty(),
        }
    }

    /// Returns the client's profile from an earlier request; `None` before the first one, or if each was
    /// larger than [`MAX_CACHED_BYTES`].
    pub(super) fn client_profile(&self) -> Guard<Option<Arc<ClientProfile>>> {
        self.client_profile.load()
    }

    /// Caches the client's profile for the next request, unless it is unchanged or too large.
    pub(super) fn remember_profile(&self, call: &Call, capabilities: &Arc<Capabilities>) {
        let (info, headers) = (&call.client_info, &call.headers);
        if self
            .client_profile
            .load()
            .as_ref()
            .is_some_and(|previous| previous.matches(capabilities, info, headers))
        {
            return;
        }
        let profile = ClientProfile::for_request(capabilities, info, headers);
        if profile.retained_bytes() <= MAX_CACHED_BYTES {
            self.client_profile.store(Some(Arc::new(profile)));
        }
    }

    /// Reads the credentials in `headers`, including the headers that the route forwards (`forward`).
    /// Credentials that are the same as those of an earlier request share its memory.
    pub(super) fn credentials(&self, headers: &HeaderMap, forward: &[HeaderName]) -> Credentials {
        let previous = self.credentials.load();
        if let Some(previous) = &*previous
            && previous.matches_request(headers, forward)
        {
            return Credentials::clone(previous);
        }
        let credentials = Credentials::from_request(headers, forward);
        if !credentials.is_empty() && credentials.retained_bytes() <= MAX_CACHED_BYTES {
            self.credentials.store(Some(Arc::new(credentials.clone())));
        }
        credentials
    }

    /// Returns the HTTP version of the connection as spans name it: `1.1` or `2`.
    pub(super) const fn http_version(&self) -> &'static str {
        match self.version {
            HttpVersion::Http1 => "1.1",
            HttpVersion::Http2 => "2",
        }
    }

    /// Returns the proxy's clock.
    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Whether the next response is the last of the connection.
    pub(super) fn is_draining(&self) -> bool {
        self.drain_notice.is_stopped()
    }

    /// Records that a request's head is complete.
    pub(super) fn begin_request(&self) {
        self.activity.begin_request();
        if self.version == HttpVersion::Http1 {
            self.set_framing(ResponseFraming::NotBegun);
            self.set_phase(ConnectionPhase::Receiving);
        }
    }

    /// Records that the body of a request is being received, until the returned guard is dropped.
    pub(super) fn begin_body(&self) -> IncompleteBody<'_> {
        self.activity.begin_body()
    }

    /// Records that a request has been received to its end.
    pub(super) fn complete_request(&self) {
        self.activity.complete_request();
        if self.version == HttpVersion::Http1 {
            self.set_phase(ConnectionPhase::Busy);
        }
    }

    /// Records that the response begins.
    pub(super) fn begin_response(&self, is_chunked: bool) {
        self.set_framing(if is_chunked { ResponseFraming::Chunked } else { ResponseFraming::Other });
    }

    fn set_framing(&self, framing: ResponseFraming) {
        self.framing.store(framing as u8, atomic::Ordering::Relaxed);
    }

    /// Whether a part of a head has arrived.
    pub(super) fn is_reading_head(&self) -> bool {
        self.is_in_phase(ConnectionPhase::Head)
    }

    /// Returns the byte that can be sent now, as a part of the response, to find out whether a client that
    /// has ended its side still reads. `None` if no byte would be harmless.
    fn probe_byte(&self) -> Option<u8> {
        let framing = self.framing.load(atomic::Ordering::Relaxed);
        match () {
            () if framing == ResponseFraming::NotBegun as u8 => Some(b'H'),
            () if framing == ResponseFraming::Chunked as u8 => Some(b'0'),
            () => None,
        }
    }

    /// Records that a request has been answered, or that its client has disconnected.
    pub(super) fn end_request(&self, now: Instant) {
        // A request that was refused before it was complete counts as complete, so that its response is not
        // cut off.
        self.activity.complete_request();
        self.activity.end_request(now);
        if self.version == HttpVersion::Http1 {
            self.set_phase(ConnectionPhase::Idle);
        }
    }

    /// Marks the response as the last: HTTP/1 by `Connection: close` (RFC 9112, 9.6), HTTP/2 by a GOAWAY,
    /// after which requests in progress continue (RFC 9113, 6.8).
    pub(super) fn announce_close(&self, headers: &mut HeaderMap) {
        match self.version {
            HttpVersion::Http1 => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
            HttpVersion::Http2 => self.activity.request_close(),
        }
    }

    /// Records that bytes were read; on an idle connection they begin a head.
    fn on_read(&self) {
        if self.is_in_phase(ConnectionPhase::Idle) {
            self.set_phase(ConnectionPhase::Head);
        }
    }

    fn is_in_phase(&self, phase: ConnectionPhase) -> bool {
        self.phase.load(atomic::Ordering::Relaxed) == phase as u8
    }

    fn set_phase(&self, phase: ConnectionPhase) {
        self.phase.store(phase as u8, atomic::Ordering::Relaxed);
    }

    /// Adds the commit of a task handle whose last byte HTTP has consumed and is about to write to the
    /// socket. The commit is dropped if the connection is closed.
    pub(super) fn push_commit(&self, commit: DeliveryCommit) {
        match &mut *self.commits.lock() {
            PendingCommits::Open(commits) => {
                commits.push(commit);
                self.has_commits.store(true, atomic::Ordering::Release);
            }
            PendingCommits::Closed => drop(commit),
        }
    }

    /// Confirms all pending commits: the socket has taken all bytes consumed so far.
    pub(super) fn confirm_commits(&self) {
        // Load before the swap: a swap costs as much as a lock, and the list is mostly empty.
        if !self.has_commits.load(atomic::Ordering::Acquire)
            || !self.has_commits.swap(false, atomic::Ordering::AcqRel)
        {
            return;
        }
        let commits = match &mut *self.commits.lock() {
            PendingCommits::Open(commits) => std::mem::take(commits),
            PendingCommits::Closed => return,
        };
        commits.into_iter().for_each(DeliveryCommit::confirm);
    }

    /// Records that the socket is closed, and drops the commits of unflushed handles.
    fn close(&self) {
        let unconfirmed = std::mem::replace(&mut *self.commits.lock(), PendingCommits::Closed);
        drop(unconfirmed);
    }
}

// === impl ConnectionIo ===

impl<S> ConnectionIo<S> {
    /// Yields to other tasks of a busy thread, once before each write.
    fn poll_yield(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if !*this.has_yielded && register_write() {
            *this.has_yielded = true;
            wake_after_others(cx);
            return Poll::Pending;
        }
        *this.has_yielded = false;
        Poll::Ready(())
    }

    /// Wraps a socket. hyper reads the bytes of `head` first.
    pub(super) fn new(
        stream: S,
        head: PrefaceBuffer,
        head_timeout: Duration,
        connection: Arc<ClientConnection>,
    ) -> Self {
        Self {
            stream: TokioIo::new(EofTracker::new(stream)),
            head,
            head_timer: None,
            head_timeout,
            linger_timer: None,
            connection,
            has_yielded: false,
            is_unflushed: false,
            has_sent_first_byte: false,
            half_closed: None,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + PeerSocket> ConnectionIo<S> {
    /// Reads from a client that has ended its side. The end of the stream is reported only if no response is
    /// pending, or the client turns out to have closed the connection.
    fn poll_half_closed(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let is_receiving = this.connection.is_in_phase(ConnectionPhase::Receiving);
        let is_idle = !is_receiving && !this.connection.is_in_phase(ConnectionPhase::Busy);
        if is_idle && !*this.is_unflushed {
            return Poll::Ready(Ok(()));
        }
        let half_closed = this.half_closed.get_or_insert_with(HalfClosedState::new);
        if is_idle {
            // Wait for the pending writes: the flush will wake this task.
            return Poll::Pending;
        }
        if is_receiving {
            return if half_closed.release_eof(cx) { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        if !half_closed.is_probed
            && !*this.is_unflushed
            && let Some(byte) = this.connection.probe_byte()
        {
            match ready!(this.stream.as_mut().poll_write(cx, &[byte]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                _ => half_closed.is_probed = true,
            }
            *this.has_sent_first_byte = byte == b'H';
            // Under TLS only a flush sends the byte.
            if let Poll::Ready(flushed) = this.stream.as_mut().poll_flush(cx) {
                flushed?;
            }
        }
        loop {
            if this.stream.inner().is_reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            ready!(half_closed.poll_recheck(cx));
        }
    }
}

impl<S: AsyncRead + AsyncWrite + PeerSocket> Read for ConnectionIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.half_closed.is_some() {
            return self.poll_half_closed(cx);
        }
        let mut io = self;
        let this = io.as_mut().project();
        let buffered = this.head.remaining();
        if !buffered.is_empty() {
            let count = buffered.len().min(buf.remaining());
            buf.put_slice(&buffered[..count]);
            this.head.consumed += u8::try_from(count).expect("a preface is short");
            this.connection.on_read();
            // Read the following bytes as well, if they have arrived: two short reads make hyper take a
            // buffer of twice the size. An error will be returned by the next read.
            let _ = this.stream.poll_read(cx, buf);
            return Poll::Ready(Ok(()));
        }
        let mut stream = this.stream;
        if let Poll::Ready(read) = stream.as_mut().poll_read(cx, buf) {
            if stream.inner().has_ended && this.connection.version == HttpVersion::Http1 && read.is_ok() {
                return io.poll_half_closed(cx);
            }
            this.connection.on_read();
            return Poll::Ready(read);
        }
        if !this.connection.is_in_phase(ConnectionPhase::Head) {
            *this.head_timer = None;
            return Poll::Pending;
        }
        let head_timer = this.head_timer.get_or_insert_with(|| Box::pin(sleep(*this.head_timeout)));
        ready!(head_timer.as_mut().poll(cx));
        Limit::ReadHeaders.record_hit();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + PeerSocket> Write for ConnectionIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        *self.as_mut().project().is_unflushed = true;
        ready!(self.as_mut().poll_yield(cx));
        let this = self.project();
        if !*this.has_sent_first_byte || buf.is_empty() {
            return this.stream.poll_write(cx, buf);
        }
        let unsent = buf.strip_prefix(b"H").ok_or(io::ErrorKind::InvalidData)?;
        let written = if unsent.is_empty() { 0 } else { ready!(this.stream.poll_write(cx, unsent))? };
        *this.has_sent_first_byte = false;
        Poll::Ready(Ok(written + 1))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.has_sent_first_byte {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        *self.as_mut().project().is_unflushed = true;
        ready!(self.as_mut().poll_yield(cx));
        self.project().stream.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// HTTP flushes only when it has nothing left to write, so all bytes consumed before a completed flush
    /// are in the socket; under TLS, their ciphertext is.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        ready!(this.stream.poll_flush(cx))?;
        *this.is_unflushed = false;
        if this.half_closed.is_some() {
            // The end of the stream may have been withheld until now.
            cx.waker().wake_by_ref();
        }
        this.connection.confirm_commits();
        Poll::Ready(Ok(()))
    }

    /// Shuts down the proxy's side, then reads for a while what the client is still sending. If the socket
    /// were closed at once, the system would answer those bytes with a reset, and the client might never see
    /// the refusal (RFC 9112, 9.6).
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if this.linger_timer.is_none() {
            ready!(this.stream.as_mut().poll_shutdown(cx))?;
        }
        let linger_timer = this.linger_timer.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut scratch = [0; 4096];
        loop {
            if linger_timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(this.stream.as_mut().poll_read(cx, buf.unfilled())) {
                Ok(()) if !buf.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[pin_project::pinned_drop]
impl<S> PinnedDrop for ConnectionIo<S> {
    fn drop(self: Pin<&mut Self>) {
        self.connection.close();
    }
}

// === impl PrefaceBuffer ===

impl PrefaceBuffer {
    fn remaining(&self) -> &[u8] {
        &self.bytes[usize::from(self.consumed)..usize::from(self.filled)]
    }
}

/// Detects the HTTP version, and returns the bytes that were read for that. Reads as few as possible: an
/// HTTP/2 connection is recognised at the end of its preface.
pub(super) async fn detect_version(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(HttpVersion, PrefaceBuffer)> {
    let mut head = PrefaceBuffer::default();
    loop {
        let filled = usize::from(head.filled);
        let count = stream.read(&mut head.bytes[filled..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let filled = filled + count;
        head.filled = u8::try_from(filled).expect("a preface is short");
        if head.bytes[..filled] != PREFACE[..filled] {
            return Ok((HttpVersion::Http1, head));
        }
        if filled == PREFACE.len() {
            return Ok((HttpVersion::Http2, head));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dialect::modern::build_call,
        protocol::Method,
        runtime::{Drain, SystemClock, on_thread_park},
    };
    use http::header::USER_AGENT;
    use std::{future::poll_fn, task::Waker};
    use tokio::sync::oneshot::{Receiver, error::TryRecvError};

    impl PeerSocket for tokio::io::DuplexStream {}
    impl PeerSocket for tokio::io::Empty {}
    impl PeerSocket for tokio::io::Join<&[u8], tokio::io::Sink> {}
    impl<S> PeerSocket for tokio::io::BufWriter<S> {}

    /// Adds a commit to the connection, and returns the receiver of its outcome.
    fn push_new_commit(connection: &ClientConnection) -> Receiver<()> {
        let (commit, fate) = DeliveryCommit::channel();
        connection.push_commit(commit);
        fate
    }

    impl ClientConnection {
        /// A connection without a socket.
        pub(in crate::front) fn without_socket(version: HttpVersion) -> Arc<Self> {
            let clock = Arc::new(SystemClock::new());
            let (activity, (_drain, drain_notice)) =
                (Arc::new(ConnectionActivity::new(clock.now())), Drain::new());
            Arc::new(Self::new(false, None, version, activity, clock, drain_notice))
        }
    }

    fn io<S>(stream: S) -> (ConnectionIo<S>, Arc<ClientConnection>) {
        let connection = ClientConnection::without_socket(HttpVersion::Http1);
        (
            ConnectionIo::new(
                stream,
                PrefaceBuffer::default(),
                Duration::from_secs(10),
                Arc::clone(&connection),
            ),
            connection,
        )
    }

    #[test]
    fn a_small_client_profile_is_remembered_and_a_large_one_is_not() {
        let connection = ClientConnection::without_socket(HttpVersion::Http2);
        assert!(connection.client_profile().is_none());
        let says = |length: usize, headers: &[(HeaderName, &'static str)]| {
            let text = format!(r#"{{"experimental":{{"{}":{{}}}}}}"#, "x".repeat(length));
            let capabilities = Arc::new(Capabilities::read(text.into()).expect("an object"));
            let mut call = build_call(&Method::ToolsList, "{}");
            let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            call.headers = headers.collect::<HeaderMap>().into();
            connection.remember_profile(&call, &capabilities);
            (capabilities, call)
        };
        for length in [1, 2] {
            let (last, _) = says(length, &[]);
            let known = connection.client_profile();
            assert!(known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.capabilities, &last)));
            drop(known);
            assert_eq!(Arc::strong_count(&last), 2);
        }
        let (large, _) = says(MAX_CACHED_BYTES, &[]);
        assert_eq!(Arc::strong_count(&large), 1);

        let agent = (USER_AGENT, "a/1");
        let (_, call) = says(1, std::slice::from_ref(&agent));
        let known = |call: &Call| {
            connection.client_profile().as_ref().is_some_and(|known| known.headers.is_same_map(&call.headers))
        };
        assert!(known(&call));
        // Data that changes with each request is not remembered, and the earlier profile stays.
        let capabilities =
            Arc::clone(&connection.client_profile().as_ref().expect("it is known").capabilities);
        let mut other = call.clone();
        other.headers.to_mut().insert("traceparent", HeaderValue::from_static("00-1"));
        connection.remember_profile(&other, &capabilities);
        assert!(known(&call) && !known(&other));
    }

    #[test]
    fn the_same_credentials_on_one_connection_are_the_same_in_memory() {
        let connection = ClientConnection::without_socket(HttpVersion::Http1);
        let shown = |key: &'static str, forward: &[HeaderName]| {
            let mut headers = HeaderMap::new();
            for (name, value) in [("host", "h"), ("x-api-key", key), ("user-agent", "u/1"), ("cookie", "a=1")]
            {
                headers.insert(name, HeaderValue::from_static(value));
            }
            connection.credentials(&headers, forward)
        };
        let is_same = |one: &Credentials, other: &Credentials| std::ptr::eq(one.headers(), other.headers());
        let (first, again) = (shown("k-1", &[]), shown("k-1", &[]));
        assert!(is_same(&first, &again));
        let other = shown("k-2", &[]);
        assert!(!is_same(&first, &other) && first.digest() != other.digest());
        assert_eq!(first.digest(), shown("k-1", &[]).digest());
        let more = shown("k-1", &[USER_AGENT]);
        assert_eq!(more.headers().len(), 3);
        assert_ne!(more.digest(), first.digest());
    }

    #[test]
    fn a_handle_is_delivered_by_the_next_completed_flush() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let (mut io, connection) = io(ours);
        let mut fates = [push_new_commit(&connection), push_new_commit(&connection)];
        assert!(fates.iter_mut().all(|fate| fate.try_recv() == Err(TryRecvError::Empty)));
        let flushed = Pin::new(&mut io).poll_flush(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(flushed, Poll::Ready(Ok(()))));
        assert!(fates.iter_mut().all(|fate| fate.try_recv() == Ok(())));
    }

    #[test]
    fn a_handle_is_not_delivered_by_a_failed_flush() {
        let (ours, theirs) = tokio::io::duplex(1);
        drop(theirs);
        let (mut io, connection) = io(tokio::io::BufWriter::new(ours));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut io).poll_write(context, b"handle"), Poll::Ready(Ok(6))));
        let mut fate = push_new_commit(&connection);
        assert!(matches!(Pin::new(&mut io).poll_flush(context), Poll::Ready(Err(_))));
        assert_eq!(fate.try_recv(), Err(TryRecvError::Empty));
        drop(io);
        assert_eq!(fate.try_recv(), Err(TryRecvError::Closed));
    }

    #[test]
    fn a_handle_written_after_the_end_is_not_delivered() {
        let (io, connection) = io(tokio::io::empty());
        drop(io);
        assert_eq!(push_new_commit(&connection).try_recv(), Err(TryRecvError::Closed));
    }

    #[tokio::test]
    async fn a_write_on_a_busy_thread_yields_once() {
        let (stream, _client) = tokio::io::duplex(64);
        let (mut io, _connection) = io(stream);
        let mut polls_for_a_write = async || {
            let mut polls = 0;
            let written = poll_fn(|cx| {
                polls += 1;
                Pin::new(&mut io).poll_write(cx, b"x")
            });
            assert_eq!(written.await.expect("there is room"), 1);
            polls
        };
        // This thread does not report parking.
        assert_eq!((polls_for_a_write().await, polls_for_a_write().await), (1, 1));
        for _ in 0..3 {
            on_thread_park();
            assert_eq!(polls_for_a_write().await, 1, "the first write does not wait");
            assert_eq!((polls_for_a_write().await, polls_for_a_write().await), (2, 2));
        }
    }

    #[tokio::test]
    async fn the_http_version_is_detected_by_as_few_bytes_as_possible() {
        for (bytes, version, read) in [
            (&b"GET / HTTP/1.1\r\n"[..], HttpVersion::Http1, 16),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n...", HttpVersion::Http2, 24),
            (b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n", HttpVersion::Http1, 24),
        ] {
            let mut rest = bytes;
            let (detected, head) = detect_version(&mut rest).await.expect("enough");
            assert_eq!((detected, bytes.len() - rest.len()), (version, read));
            assert_eq!(head.remaining(), &bytes[..read]);
            let stream = tokio::io::join(rest, tokio::io::sink());
            let mut io = ConnectionIo::new(
                stream,
                head,
                Duration::from_secs(10),
                ClientConnection::without_socket(detected),
            );
            let mut again = Vec::new();
            while again.len() < bytes.len() {
                let mut piece = [0; 10];
                let mut buf = ReadBuf::new(&mut piece);
                poll_fn(|cx| Pin::new(&mut io).poll_read(cx, buf.unfilled())).await.expect("it is all there");
                again.extend_from_slice(buf.filled());
            }
            assert_eq!(again, bytes);
        }
        assert!(detect_version(&mut &b"PRI"[..]).await.is_err(), "it may become either");
    }
}
