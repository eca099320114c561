//! Clients that do not read their responses.
//!
//! Pending bytes hold a connection, a call permit and memory. So a socket with pending bytes must send some
//! of them within `timeouts.write`, or it is closed. Only a standstill counts: a slow reader is served to the
//! end, and a stream without pending bytes has no timeout.
//!
//! On HTTP/2 a client can stop reading one stream while its connection continues (RFC 9113, 5.2); other users
//! of that connection must not be affected. So hyper gets a response in portions, and a stream that cannot
//! send a portion in time is reset.

use super::{
    half_closed::PeerSocket,
    reply::{BodyChunk, FrontBody, ResponseTruncated},
};
use crate::telemetry::Limit;
use bytes::Buf;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project::pin_project;
use std::{
    cell::Cell,
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A socket whose peer must read pending bytes in time.
///
/// The socket itself is wrapped, beneath TLS, which buffers bytes before it sends them.
#[pin_project]
pub struct WriteTimeoutStream<S> {
    #[pin]
    stream: S,
    /// The configured `timeouts.write`.
    write_timeout: Duration,
    /// Timer of a standstill. `None` while bytes move or none are pending, so that the timer costs an active
    /// connection no more than a pointer.
    standstill_timer: Option<Pin<Box<Sleep>>>,
}

/// The body of a response on HTTP/2, in portions.
#[pin_project]
pub(super) struct PortionedBody {
    #[pin]
    body: FrontBody,
    /// The unsent rest of the body's last frame; never empty.
    remainder: Option<BodyChunk>,
}

/// hyper's task of one HTTP/2 stream, which ends at a standstill.
#[pin_project]
pub(super) struct StreamTimeout<F> {
    #[pin]
    stream: F,
    write_timeout: Duration,
    standstill_timer: Option<Pin<Box<Sleep>>>,
}

/// The result of hyper's last poll of a stream's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyPoll {
    /// The body was not polled: hyper waits for capacity, or the response has not begun.
    NotPolled,
    /// The body has no bytes.
    Empty,
    /// A portion, for which hyper needs capacity before the next poll.
    Portion,
}

/// Bytes of a portion: one frame of HTTP/2. A client that reads less than this in `timeouts.write` counts as
/// one that reads nothing.
const PORTION: usize = 16 << 10;

thread_local! {
    /// The result of the last poll of a body, set by the body for the [`StreamTimeout`] that polls it.
    static LAST_BODY_POLL: Cell<BodyPoll> = const { Cell::new(BodyPoll::NotPolled) };
}

// === impl WriteTimeoutStream ===

impl<S> WriteTimeoutStream<S> {
    /// Wraps a socket whose pending bytes may stand still for `write_timeout`.
    pub const fn new(stream: S, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, standstill_timer: None }
    }
}

impl<S: PeerSocket> PeerSocket for WriteTimeoutStream<S> {
    fn is_reset(&self) -> bool {
        self.stream.is_reset()
    }
}

/// Returns the result of a write, or the error `TimedOut` if it has been pending for `write_timeout`.
fn check_write_timeout<T>(
    written: Poll<io::Result<T>>,
    write_timeout: Duration,
    standstill_timer: &mut Option<Pin<Box<Sleep>>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if written.is_ready() {
        *standstill_timer = None;
        return written;
    }
    ready!(standstill_timer.get_or_insert_with(|| Box::pin(sleep(write_timeout))).as_mut().poll(cx));
    Limit::Write.record_hit();
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl<S: AsyncRead> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_read(cx, buf)
    }
}

impl<S: AsyncWrite> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        check_write_timeout(this.stream.poll_write(cx, buf), *this.write_timeout, this.standstill_timer, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        check_write_timeout(
            this.stream.poll_write_vectored(cx, bufs),
            *this.write_timeout,
            this.standstill_timer,
            cx,
        )
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        check_write_timeout(this.stream.poll_flush(cx), *this.write_timeout, this.standstill_timer, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(cx)
    }
}

// === impl PortionedBody ===

impl PortionedBody {
    pub(super) const fn new(body: FrontBody) -> Self {
        Self { body, remainder: None }
    }
}

impl HttpBody for PortionedBody {
    type Data = BodyChunk;
    type Error = ResponseTruncated;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyChunk>, ResponseTruncated>>> {
        let this = self.project();
        if this.remainder.is_none() {
            LAST_BODY_POLL.set(BodyPoll::Empty);
            let frame = ready!(this.body.poll_frame(cx));
            LAST_BODY_POLL.set(BodyPoll::Portion);
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(chunk))) => *this.remainder = Some(chunk),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        LAST_BODY_POLL.set(BodyPoll::Portion);
        let portion = this.remainder.as_mut().map(|rest| rest.split_to(PORTION));
        *this.remainder = this.remainder.take().filter(Buf::has_remaining);
        Poll::Ready(portion.map(|portion| Ok(Frame::data(portion))))
    }

    fn is_end_stream(&self) -> bool {
        self.remainder.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let remainder = self.remainder.as_ref().map_or(0, |rest| rest.remaining() as u64);
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + remainder);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + remainder);
        }
        hint
    }
}

// === impl StreamTimeout ===

impl<F> StreamTimeout<F> {
    pub(super) const fn new(stream: F, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, standstill_timer: None }
    }
}

impl<F: Future<Output = ()>> Future for StreamTimeout<F> {
    type Output = ();

    /// The future is ready also at the timeout. The stream is dropped then, and hyper resets it.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        LAST_BODY_POLL.set(BodyPoll::NotPolled);
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match LAST_BODY_POLL.get() {
            BodyPoll::NotPolled => {}
            BodyPoll::Empty => *this.standstill_timer = None,
            BodyPoll::Portion => *this.standstill_timer = Some(Box::pin(sleep(*this.write_timeout))),
        }
        match this.standstill_timer {
            Some(timer) => {
                ready!(timer.as_mut().poll(cx));
                Limit::Write.record_hit();
                Poll::Ready(())
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{Instant, advance, timeout},
    };

    const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

    /// A socket with a buffer of eight bytes, and its peer.
    fn socket() -> (WriteTimeoutStream<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(8);
        (WriteTimeoutStream::new(ours, WRITE_TIMEOUT), theirs)
    }

    #[expect(clippy::disallowed_methods, reason = "the time is paused")]
    fn now() -> Instant {
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_times_out() {
        let (mut ours, _theirs) = socket();
        let began = now();
        let error = ours.write_all(&[0; 9]).await.expect_err("the peer does not read");
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (mut ours, mut theirs) = socket();
        let began = now();
        let reader = async {
            let mut taken = 0;
            while taken < 100 {
                advance(WRITE_TIMEOUT - Duration::from_secs(1)).await;
                taken += theirs.read(&mut [0; 1]).await.expect("it is still there");
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[0; 100]), reader);
        written.expect("it was all taken");
        assert!(began.elapsed() > WRITE_TIMEOUT * 90);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_without_pending_bytes_has_no_timeout() {
        let (mut ours, mut theirs) = socket();
        for _ in 0..3 {
            ours.write_all(&[0; 8]).await.expect("there is room");
            // The buffer is full, but no more bytes are pending.
            let read = timeout(WRITE_TIMEOUT * 100, ours.read(&mut [0; 1])).await;
            assert!(read.is_err(), "it says nothing");
            theirs.read_exact(&mut [0; 8]).await.expect("it is there");
        }
    }
}
