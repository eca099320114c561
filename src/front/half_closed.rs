//! Clients of HTTP/1.1 that have ended their side of the connection while a request of theirs is being served.
//!
//! A client that has sent all it has to say may end its side and wait for the answer (`shutdown(SHUT_WR)`); one that has
//! given up closes the connection. Both send the same FIN, and only what is sent to them tells them apart: the system of
//! a client that has closed answers it with a reset. So one byte is sent that the client gets in any case:
//!
//! * before the answer, the `H` that each status line begins with; it is left out of the answer then;
//! * within an answer in chunks, between two of them, a `0` in front of the next chunk's size, where it means nothing
//!   (RFC 9112, section 7.1: `chunk-size = 1*HEXDIG`, `last-chunk = 1*("0")`).
//!
//! Whoever reads on gets the same answer, and whoever has closed is noticed after the time that a packet takes there and
//! back. Within an answer of known length nothing can be put; it is written until the system says that nobody takes it.

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

/// A socket of which it can be known whether its peer has closed it.
pub(super) trait PeerSocket {
    /// Whether the peer has answered what it was sent with a reset. `false` where that cannot be known: then the next
    /// write fails.
    fn is_reset(&self) -> bool {
        false
    }
}

/// A stream that remembers that its peer has ended its side.
#[pin_project]
pub(super) struct EofTracker<S> {
    #[pin]
    stream: S,
    pub(super) has_ended: bool,
}

/// What is done about a client that has ended its side.
pub(super) struct HalfClosedState {
    /// How often the end was withheld from the reader of a body.
    withheld: u8,
    /// Whether a byte has been sent that a client that has closed answers with a reset.
    pub(super) is_probed: bool,
    /// When it is looked again whether it has.
    recheck: Pin<Box<Sleep>>,
    pause: Duration,
}

/// After a probe it is looked for a reset soon, then less and less often.
const FIRST_CHECK: Duration = Duration::from_millis(5);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How often a connection is polled until the end of its client's side is the end of a body, too: what the service has
/// not read yet may be complete.
const MAX_WITHHELD: u8 = 4;

// === impl Ending ===

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

// === impl Peer ===

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

// === impl HalfClosed ===

impl HalfClosedState {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            withheld: 0,
            is_probed: false,
            recheck: Box::pin(sleep(FIRST_CHECK)),
            pause: FIRST_CHECK,
        })
    }

    /// Whether the end is to be shown to the reader of a body, which has not got all of it.
    pub(super) fn release_eof(&mut self, cx: &Context<'_>) -> bool {
        if self.withheld >= MAX_WITHHELD {
            return true;
        }
        self.withheld += 1;
        cx.waker().wake_by_ref();
        false
    }

    /// Resolves when it is to be looked again for a reset.
    pub(super) fn poll_recheck(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::task::ready!(self.recheck.as_mut().poll(cx));
        self.pause = (self.pause * 2).min(MAX_CHECK_INTERVAL);
        self.recheck = Box::pin(sleep(self.pause));
        Poll::Ready(())
    }
}
