//! One HTTP/1.1 connection: sends a request, reads a head and a body (RFC 9112).
//!
//! Written by hand on `httparse`, because of waiting calls: a parked call costs a socket and little else.
//! There is no buffer until a response begins, and no task between the call and its socket; hyper's client
//! has both for every connection. Buffer space is reserved in advance only for long bodies of known length.
//! `head` and `body` parse the bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::{Body, Frame, SizeHint};
use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::unconstrained,
};
use tokio_util::either::Either;

use super::{
    BodyFraming, BodyPart, HeadReader, head::announced_idle, is_keep_alive, pool::ConnectionPool,
    tls::is_certificate_refusal,
};
use crate::runtime::{ConnectionPermit, NetworkStream};
use crate::telemetry::{Limit, UsageGuard};

/// Byte stream of a connection, plain or with TLS.
pub(super) type UpstreamIo = Either<NetworkStream, Box<dyn EncryptedIo>>;

/// A byte stream with TLS.
pub(super) trait EncryptedIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> EncryptedIo for T {}

/// A connection to a server, or to a proxy, that carries one exchange at a time.
pub(super) struct UpstreamConnection {
    io: UpstreamIo,
    /// Bytes that have arrived and are not parsed yet. Empty while a call waits for its response.
    buffer: BytesMut,
    permit: ConnectionPermit,
    /// Idle time that the server announces (`Keep-Alive: timeout`); `None` if it announces none.
    announced_idle: Option<Duration>,
    _counted: UsageGuard,
}

/// A request being sent, until its response head has arrived.
pub(super) struct ExchangeFuture {
    connection: Option<Box<UpstreamConnection>>,
    head: Bytes,
    body: Bytes,
    /// Whether the connection has accepted no byte of the request.
    is_untouched: bool,
    /// Whether sending has ended: all bytes were flushed, or sending failed.
    is_sent: bool,
    /// Error of the sending; the server may have answered nevertheless.
    send_error: Option<io::Error>,
    reader: HeadReader,
    /// Head of a success response that arrived before the whole request was sent.
    early_head: Option<Box<http::Response<()>>>,
    pool: Arc<ConnectionPool>,
}

/// Body of a response as the server sent it. Returns its connection to the pool when it has been read to its
/// end; closes the connection if dropped before.
pub(in crate::upstream) struct RawBody {
    connection: Option<Box<UpstreamConnection>>,
    framing: BodyFraming,
    is_reusable: bool,
    /// Whether the response only accepts a message (HTTP 202).
    is_accepted: bool,
    pool: Arc<ConnectionPool>,
}

/// Bytes per read into a buffer on the stack.
const STACK_READ_BYTES: usize = 8 << 10;
/// Limit of bytes per read directly into the connection's buffer, for bodies of known length.
const DIRECT_READ_BYTES: usize = 64 << 10;

// === impl UpstreamConnection ===

impl UpstreamConnection {
    /// Wraps an established byte stream; `permit` counts it against the connection limit until the connection
    /// closes.
    pub(super) fn new(io: UpstreamIo, permit: ConnectionPermit) -> Self {
        let _counted = Limit::UpstreamConnections.acquire(1);
        Self { io, buffer: BytesMut::new(), permit, announced_idle: None, _counted }
    }

    /// Idle time that the server announces; `None` if it announces none.
    pub(super) fn announced_idle(&self) -> Option<Duration> {
        self.announced_idle
    }

    /// Whether the connection may be kept for another request: reserved connections are not.
    pub(super) fn is_poolable(&self) -> bool {
        !self.permit.is_reserved()
    }

    /// Whether another request can be sent: the server has neither closed the connection nor sent bytes.
    pub(super) fn is_idle(&mut self) -> bool {
        // Unconstrained: without budget, tokio returns `Pending` without reading the socket, and an
        // unexpected response would then be taken for the response to the next request.
        let read_outcome = unconstrained(poll_fn(|cx| self.poll_fill(cx))).now_or_never();
        read_outcome.is_none() && self.buffer.is_empty()
    }

    /// Reads the available bytes into the buffer; 0 means the end of the stream. Allocates only when bytes
    /// arrive.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::uninit() }; STACK_READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut space))?;
        let filled = space.filled();
        self.buffer.extend_from_slice(filled);
        Poll::Ready(Ok(filled.len()))
    }

    /// Reads at most `wanted` bytes directly into the buffer.
    fn poll_fill_in_place(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(wanted);
        let mut limited = (&mut self.buffer).limit(wanted);
        tokio_util::io::poll_read_buf(Pin::new(&mut self.io), cx, &mut limited)
    }

    /// Sends the remainder of a request and flushes it. `head` and `body` keep the bytes that are not sent
    /// yet.
    fn poll_send(
        &mut self,
        head: &mut Bytes,
        body: &mut Bytes,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !head.is_empty() || !body.is_empty() {
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            // Pass the body alone once the head is sent: an empty part may count as the end.
            let parts = if head.is_empty() { &parts[1..] } else { &parts[..] };
            let sent = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let head_bytes = sent.min(head.len());
            head.advance(head_bytes);
            body.advance(sent - head_bytes);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Reads until the response head is complete, and returns it.
    fn poll_head(
        &mut self,
        reader: &mut HeadReader,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<http::Response<()>>> {
        loop {
            if let Some(head) = reader.next(&mut self.buffer)? {
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(closed_error()));
            }
        }
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

// === impl ExchangeFuture ===

impl ExchangeFuture {
    /// Sends a request (`head` and `body` serialized) on this connection, which later returns to `pool`.
    pub(super) fn new(
        connection: Box<UpstreamConnection>,
        head: Bytes,
        body: Bytes,
        pool: Arc<ConnectionPool>,
    ) -> Self {
        let (connection, reader) = (Some(connection), HeadReader::default());
        Self {
            connection,
            head,
            body,
            is_untouched: true,
            is_sent: false,
            send_error: None,
            reader,
            early_head: None,
            pool,
        }
    }

    /// Whether the connection has accepted no byte of the request, so that the server cannot have read any.
    pub(super) fn is_untouched(&self) -> bool {
        self.is_untouched
    }
}

impl Future for ExchangeFuture {
    type Output = io::Result<http::Response<RawBody>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let connection = this.connection.as_mut().expect("an exchange is not polled after its end");
        if !this.is_sent {
            let unsent_head = this.head.len();
            let sending = connection.poll_send(&mut this.head, &mut this.body, cx);
            this.is_untouched &= this.head.len() == unsent_head;
            match sending {
                Poll::Ready(outcome) => {
                    // The request is not needed while its response is awaited.
                    (this.is_sent, this.head, this.body) = (true, Bytes::new(), Bytes::new());
                    // A server that refuses a request may answer and close before it has read all of it.
                    this.send_error = outcome.err();
                }
                Poll::Pending => {}
            }
        }
        let head = match this.early_head.take() {
            Some(head) => *head,
            None => match ready!(connection.poll_head(&mut this.reader, cx)) {
                Ok(head) => head,
                // A refused certificate is more specific than a failed write.
                Err(error) if is_certificate_refusal(&error) => return Poll::Ready(Err(error)),
                Err(error) => return Poll::Ready(Err(this.send_error.take().unwrap_or(error))),
            },
        };
        // A server may answer without reading the whole request: an error or a redirect counts at once, a
        // success only once the request is sent (RFC 9112, 9.5).
        if !this.is_sent && head.status().is_success() {
            this.early_head = Some(Box::new(head));
            return Poll::Pending;
        }
        let framing = BodyFraming::from_head(&head)?;
        connection.announced_idle = announced_idle(&head);
        let mut body = RawBody {
            connection: this.connection.take(),
            framing,
            is_reusable: is_keep_alive(&head)
                && this.is_sent
                && this.send_error.is_none()
                && framing != BodyFraming::UntilClose,
            is_accepted: head.status() == http::StatusCode::ACCEPTED,
            pool: this.pool.clone(),
        };
        if framing == BodyFraming::Ended {
            body.finish();
        }
        Poll::Ready(Ok(head.map(|()| body)))
    }
}

// === impl RawBody ===

impl RawBody {
    /// Ends the body, and returns the connection to the pool if it can be reused.
    fn finish(&mut self) {
        self.framing = BodyFraming::Ended;
        if let Some(connection) = self.connection.take().filter(|_| self.is_reusable) {
            self.pool.put_back(connection, self.is_accepted);
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            let wanted = match self.framing.next(&mut connection.buffer) {
                Ok(BodyPart::Data(data)) => {
                    if self.framing == BodyFraming::Ended {
                        self.finish();
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Ok(BodyPart::Ended) => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Ok(BodyPart::NeedsMore(wanted)) => wanted,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let filled = match wanted {
                0..=STACK_READ_BYTES => ready!(connection.poll_fill(cx)),
                _ => ready!(connection.poll_fill_in_place(wanted.min(DIRECT_READ_BYTES), cx)),
            };
            match filled {
                Ok(0) if self.framing == BodyFraming::UntilClose => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Ok(0) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(closed_error())));
                }
                Ok(_) => {}
                Err(error) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl Body for RawBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.framing == BodyFraming::Ended
    }

    fn size_hint(&self) -> SizeHint {
        match self.framing {
            BodyFraming::Ended => SizeHint::with_exact(0),
            BodyFraming::Length(remaining) => SizeHint::with_exact(remaining),
            BodyFraming::UntilClose
            | BodyFraming::ChunkSize(_)
            | BodyFraming::Chunk(_)
            | BodyFraming::ChunkEnd
            | BodyFraming::Trailers { .. } => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio_test::io::{Builder, Mock};

    const ASKED: (&[u8], &[u8]) = (b"POST / HTTP/1.1\r\n\r\n", b"{}");

    /// Sends the request over a connection with this script. Returns the response, and the pool.
    async fn ask(script: Mock) -> (io::Result<http::Response<RawBody>>, Arc<ConnectionPool>) {
        let pool = Arc::new(ConnectionPool::default());
        let connection = Box::new(UpstreamConnection::new(
            UpstreamIo::Right(Box::new(script)),
            ConnectionPermit::default(),
        ));
        let (head, body) = ASKED;
        let sending =
            ExchangeFuture::new(connection, Bytes::from_static(head), Bytes::from_static(body), pool.clone());
        (sending.await, pool)
    }

    /// A script that begins with the request.
    fn asked() -> Builder {
        let mut script = Builder::new();
        script.write(ASKED.0).write(ASKED.1);
        script
    }

    async fn whole(script: &mut Builder) -> (io::Result<Bytes>, bool) {
        let (answer, pool) = ask(script.build()).await;
        let body = match answer {
            Ok(answer) => answer.into_body().collect().await.map(|body| body.to_bytes()),
            Err(error) => Err(error),
        };
        (body, pool.holds_one())
    }

    #[tokio::test]
    async fn an_answer_in_any_two_pieces_is_put_together_and_its_connection_kept() {
        for answer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip , Chunked\r\n\r\n6;x=y\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n",
            "HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\nempty:\r\n\r\nB\r\nhello world\r\n0\r\nx: y\r\nz: 0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world",
            "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 11\r\n\r\nhello world",
        ] {
            for at in 1..answer.len() {
                let (a, b) = answer.as_bytes().split_at(at);
                let (body, kept) = whole(asked().read(a).read(b)).await;
                assert_eq!(body.expect(answer), "hello world", "{answer} at {at}");
                assert!(kept, "{answer} at {at}");
            }
        }
    }

    #[tokio::test]
    async fn connections_that_the_server_ends_are_not_reused() {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            // Another reader would look for chunks within the chunks.
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ] {
            let (body, kept) = whole(asked().read(answer.as_bytes())).await;
            assert_eq!(body.expect(answer), "hello");
            assert!(!kept, "{answer}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_a_body_is_over_at_once() {
        for (answer, is_kept) in [
            ("HTTP/1.1 204 No Content\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", true),
            // An announced body may follow, and must not be read as the next response.
            ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", false),
            ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", false),
            (
                "HTTP/1.0 204 No Content\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n",
                false,
            ),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false),
        ] {
            let (body, kept) = whole(asked().read(answer.as_bytes())).await;
            assert_eq!((body.expect(answer).len(), kept), (0, is_kept), "{answer}");
        }
    }

    #[tokio::test]
    async fn invalid_responses_are_refused_and_truncated_ones_noticed() {
        for (answer, kind) in [
            ("SSH-2.0-x\r\n", io::ErrorKind::InvalidData),
            ("HTTP/1.1 101 Switching\r\n\r\n", io::ErrorKind::InvalidData),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
                io::ErrorKind::InvalidData,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello", io::ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello", io::ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: é, chunked\r\n\r\n0\r\n\r\n", io::ErrorKind::InvalidData),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n\r\n\r\n",
                io::ErrorKind::InvalidData,
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", io::ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello", io::ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello", io::ErrorKind::UnexpectedEof),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
                io::ErrorKind::UnexpectedEof,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-le", io::ErrorKind::UnexpectedEof),
            ("", io::ErrorKind::UnexpectedEof),
        ] {
            let mut script = asked();
            if !answer.is_empty() {
                script.read(answer.as_bytes());
            }
            let (body, kept) = whole(&mut script).await;
            assert_eq!(body.expect_err(answer).kind(), kind, "{answer}");
            assert!(!kept);
        }
    }

    #[tokio::test]
    async fn a_transfer_coding_before_http_1_1_is_refused() {
        for (coding, body) in [("chunked", "5\r\nhello\r\n0\r\n\r\n"), ("gzip", "hello")] {
            let head =
                format!("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: {coding}\r\n\r\n");
            let (body, kept) = whole(asked().read([head, body.to_owned()].concat().as_bytes())).await;
            let error = body.expect_err("its framing is faulty");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(error.to_string(), "it has a transfer coding, which HTTP/1.0 does not know");
            assert!(!kept);
        }
    }

    #[tokio::test]
    async fn a_line_feed_alone_in_a_chunk_extension_is_refused() {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x\ny\r\nhello\r\n0\r\n\r\n";
        let (body, kept) = whole(asked().read(answer.as_bytes())).await;
        let error = body.expect_err("another reader would see its end elsewhere");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "the line of a chunk's size does not end in CR LF");
        assert!(!kept);
    }

    #[tokio::test]
    async fn a_line_feed_alone_ends_no_trailers() {
        for trailers in ["\n", "x: y\n\r\n", "x: y\r\n\n"] {
            let answer =
                format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}");
            let (body, kept) = whole(asked().read(answer.as_bytes())).await;
            let error = body.expect_err("another reader would see its end elsewhere");
            assert_eq!(error.to_string(), "a line of its trailers does not end in CR LF", "{trailers:?}");
            assert!(!kept);
        }
    }

    #[tokio::test]
    async fn a_head_without_end_is_refused() {
        let mut script = asked();
        script.read(b"HTTP/1.1 200 OK\r\n");
        let line = format!("x: {}\r\n", "y".repeat(8000));
        for _ in 0..9 {
            script.read(line.as_bytes());
        }
        let (body, _) = whole(&mut script).await;
        assert_eq!(body.expect_err("too long").kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn trailers_without_end_are_refused() {
        let mut script = asked();
        script.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n");
        let line = format!("x: {}\r\n", "y".repeat(8000));
        for _ in 0..9 {
            script.read(line.as_bytes());
        }
        let (body, kept) = whole(&mut script).await;
        assert_eq!((body.expect_err("too long").kind(), kept), (io::ErrorKind::InvalidData, false));
    }

    #[tokio::test]
    async fn a_response_before_the_end_of_the_request_is_read() {
        let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno";
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        // The mock must be the only owner of its error: drop the builder.
        let script = Builder::new().write_error(broken).read(answer).build();
        let (answer, pool) = ask(script).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), 413);
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "no");
        assert!(!pool.holds_one());
    }

    #[tokio::test]
    async fn an_error_from_a_server_that_stops_reading_is_read() {
        use tokio::io::{AsyncWriteExt, BufWriter, duplex};
        let (ours, mut theirs) = duplex(64);
        theirs.write_all(b"HTTP/1.1 413 x\r\ncontent-length: 2\r\n\r\nno").await.expect("taken");
        let connection = Box::new(UpstreamConnection::new(
            UpstreamIo::Right(Box::new(BufWriter::with_capacity(1, ours))),
            ConnectionPermit::default(),
        ));
        let (head, body) = (Bytes::from_static(ASKED.0), Bytes::from(vec![b'x'; 1000]));
        let pool = Arc::new(ConnectionPool::default());
        let sending = ExchangeFuture::new(connection, head, body, pool.clone());
        let answer = sending.now_or_never().expect("the refusal was heard").expect("an answer");
        assert_eq!(answer.status(), 413);
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "no");
        assert!(!pool.holds_one(), "the rest of the request was never sent");
    }

    #[tokio::test]
    async fn a_redirect_from_a_server_that_stops_reading_is_read() {
        use tokio::io::{AsyncWriteExt, BufWriter, duplex};
        let (ours, mut theirs) = duplex(128);
        let answer = b"HTTP/1.1 307 x\r\nlocation: /there\r\ncontent-length: 2\r\n\r\nno";
        theirs.write_all(answer).await.expect("taken");
        let connection = Box::new(UpstreamConnection::new(
            UpstreamIo::Right(Box::new(BufWriter::with_capacity(1, ours))),
            ConnectionPermit::default(),
        ));
        let (head, body) = (Bytes::from_static(ASKED.0), Bytes::from(vec![b'x'; 1000]));
        let pool = Arc::new(ConnectionPool::default());
        let sending = ExchangeFuture::new(connection, head, body, pool.clone());
        let answer = sending.now_or_never().expect("the redirection was heard").expect("an answer");
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["location"]),
            (307, &"/there".parse().expect("text"))
        );
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "no");
        assert!(!pool.holds_one(), "the rest of the request was never sent");
    }

    #[tokio::test]
    async fn interim_responses_without_end_are_refused() {
        use tokio::io::{AsyncWriteExt, BufWriter, duplex};
        for interim in [
            "HTTP/1.1 102 Processing\r\n\r\n".to_owned(),
            format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(8_000)),
        ] {
            let (ours, mut theirs) = duplex(1 << 20);
            let sending = ExchangeFuture::new(
                Box::new(UpstreamConnection::new(
                    UpstreamIo::Right(Box::new(BufWriter::new(ours))),
                    ConnectionPermit::default(),
                )),
                Bytes::from_static(ASKED.0),
                Bytes::from_static(ASKED.1),
                Arc::default(),
            );
            let server = async {
                let mut sent = 0;
                while sent < 4 << 20 && theirs.write_all(interim.as_bytes()).await.is_ok() {
                    sent += interim.len();
                }
            };
            let (answer, ()) = futures_util::future::join(sending, server).await;
            let error = answer.err().expect("it ends in time");
            assert_eq!(error.to_string(), "interim responses before its head exceed 256 KiB");
        }
    }

    #[tokio::test]
    async fn an_answer_that_begins_early_does_not_cut_the_request_short() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let mut script = Builder::new();
        script.write(ASKED.0).read(answer).write(ASKED.1);
        let (body, kept) = whole(&mut script).await;
        assert_eq!((body.expect("a body"), kept), (Bytes::from_static(b"ok"), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_sent_in_as_many_writes_as_the_socket_needs() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex};
        let (ours, mut theirs) = duplex(8);
        let io = UpstreamIo::Right(Box::new(BufWriter::new(ours)));
        let (head, body) = (Bytes::from_static(ASKED.0), Bytes::from_static(ASKED.1));
        let sending = ExchangeFuture::new(
            Box::new(UpstreamConnection::new(io, ConnectionPermit::default())),
            head,
            body,
            Arc::default(),
        );
        let server = async {
            let mut request = [0; ASKED.0.len() + ASKED.1.len()];
            theirs.read_exact(&mut request).await.expect("the whole request");
            theirs.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.expect("taken");
        };
        let both = futures_util::future::join(sending, server);
        let (answer, ()) = tokio::time::timeout(Duration::from_secs(1), both).await.expect("it ends in time");
        assert_eq!(answer.expect("an answer").status(), 204);
    }

    #[tokio::test]
    async fn an_idle_connection_is_checked_also_by_a_task_without_budget() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let ours =
            tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (mut theirs, _) = listener.accept().await.expect("accepted");
        theirs.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("written");
        ours.readable().await.expect("it has arrived");
        let mut connection =
            UpstreamConnection::new(UpstreamIo::Left(NetworkStream::Left(ours)), ConnectionPermit::default());
        while tokio::task::coop::consume_budget().now_or_never().is_some() {}
        assert!(!connection.is_idle());
    }

    #[tokio::test]
    async fn a_connection_on_which_something_arrived_takes_no_request() {
        let mut connection = UpstreamConnection::new(
            UpstreamIo::Right(Box::new(Builder::new().read(b"HTTP/1.1 408 x\r\n\r\n").build())),
            ConnectionPermit::default(),
        );
        assert!(!connection.is_idle());
        let (_held, script) = (0, Builder::new().wait(Duration::from_secs(3600)).read(b"x").build());
        let mut connection =
            UpstreamConnection::new(UpstreamIo::Right(Box::new(script)), ConnectionPermit::default());
        assert!(connection.is_idle());
        std::mem::forget(connection);
    }
}
