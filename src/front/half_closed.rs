//! Clients of HTTP/1.1 that have ended their side of the connection while a request of theirs is being
//! served.
//!
//! A client that has sent its request may shut down its sending side and wait for the response
//! (`shutdown(SHUT_WR)`); a client that has given up closes the connection. Both send the same FIN, and only
//! a write distinguishes them: the system of a client that has closed answers with a reset. So the proxy
//! sends one byte that belongs to the response in any case:
//!
//! * before the response, the `H` that each status line begins with; it is left out of the response then;
//! * within a chunked response, between two chunks, a `0` in front of the next chunk's size, where it has no
//!   meaning (RFC 9112, section 7.1: `chunk-size = 1*HEXDIG`, `last-chunk = 1*("0")`).
//!
//! A client that still reads gets the same response, and a closed connection is noticed after one round trip.
//! Nothing can be inserted into a response of known length; it is written until the system reports an error.

use crate::runtime::NetworkStream;
use pin_project::pin_project;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A socket that may know whether its peer has closed the connection.
pub(super) trait PeerSocket {
    /// Whether the peer has answered with a reset. `false` where the socket cannot know; then the next write
    /// fails.
    fn is_reset(&self) -> bool {
        false
    }
}

/// A stream that records the end of its peer's side.
#[pin_project]
pub(super) struct EofTracker<S> {
    #[pin]
    stream: S,
    /// Whether the peer has ended its side: a read returned no bytes.
    pub(super) has_ended: bool,
}

/// State of a connection whose client has ended its side.
pub(super) struct HalfClosedState {
    /// Number of polls at which the end of the stream was withheld from the reader of an incomplete body.
    withheld_polls: u8,
    /// Whether a byte has been sent that a closed peer answers with a reset.
    pub(super) is_probed: bool,
    /// Timer until the socket is checked for a reset again.
    recheck: Pin<Box<Sleep>>,
    /// The current interval between two checks.
    check_interval: Duration,
}

/// Time from a probe to the first check for a reset; the interval doubles after each check.
const FIRST_CHECK: Duration = Duration::from_millis(5);
/// Longest interval between two checks for a reset.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Number of polls at which the end of the client's side is withheld from the reader of an incomplete body,
/// because the service may not have read all bytes that have arrived.
const MAX_WITHHELD_POLLS: u8 = 4;

// === impl EofTracker ===

impl<S> EofTracker<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, has_ended: false }
    }
}

impl<S: PeerSocket> PeerSocket for EofTracker<S> {
    fn is_reset(&self) -> bool {
        self.stream.is_reset()
    }
}

impl<S: AsyncRead> AsyncRead for EofTracker<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buf.filled().len();
        let read = this.stream.poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0 {
            *this.has_ended = true;
        }
        read
    }
}

impl<S: AsyncWrite> AsyncWrite for EofTracker<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.project().stream.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().stream.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(cx)
    }
}

// === impl NetworkStream ===

impl PeerSocket for NetworkStream {
    fn is_reset(&self) -> bool {
        match self {
            Self::Left(tcp) => !matches!(tcp.take_error(), Ok(None)),
            Self::Right(_pipe) => false,
        }
    }
}

impl<S: PeerSocket> PeerSocket for tokio_rustls::server::TlsStream<S> {
    fn is_reset(&self) -> bool {
        self.get_ref().0.is_reset()
    }
}

// === impl HalfClosedState ===

impl HalfClosedState {
    /// Creates the state at the moment when the client has ended its side.
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            withheld_polls: 0,
            is_probed: false,
            recheck: Box::pin(sleep(FIRST_CHECK)),
            check_interval: FIRST_CHECK,
        })
    }

    /// Returns whether to report the end of the stream to the reader of an incomplete body. Otherwise the
    /// task is woken to poll again, at most [`MAX_WITHHELD_POLLS`] times.
    pub(super) fn release_eof(&mut self, cx: &Context<'_>) -> bool {
        if self.withheld_polls >= MAX_WITHHELD_POLLS {
            return true;
        }
        self.withheld_polls += 1;
        cx.waker().wake_by_ref();
        false
    }

    /// Resolves when the socket is to be checked again.
    pub(super) fn poll_recheck(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::task::ready!(self.recheck.as_mut().poll(cx));
        self.check_interval = (self.check_interval * 2).min(MAX_CHECK_INTERVAL);
        self.recheck = Box::pin(sleep(self.check_interval));
        Poll::Ready(())
    }
}
