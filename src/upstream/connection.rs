//! One HTTP/1.1 connection: a request goes out, a head and a body come back (RFC 9112).
//!
//! Written by hand, on `httparse`, for the calls that wait: a parked call is a socket and little
//! else. No buffer is held while nothing arrives, no task stands between the call and its socket,
//! and what did arrive is kept in an allocation of its own size. hyper's client needs 20 KiB and a
//! task for the same.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;
use std::{
    future::Future,
    io::{self, IoSlice},
    mem::MaybeUninit,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::client::Pool;

/// A connection, plain or encrypted.
pub(super) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that serves one exchange at a time.
pub(super) struct Connection {
    io: Io,
    /// What has arrived and was not yet understood. Mostly empty, and then not allocated.
    read: BytesMut,
}

/// A request on its way out, until the head of its answer is there.
pub(super) struct Sending {
    connection: Option<Box<Connection>>,
    head: Bytes,
    body: Bytes,
    /// How the sending ended, if it failed: there may be an answer all the same.
    unsent: Option<io::Error>,
    pool: Arc<Pool>,
}

/// The body of an answer. Gives its connection back when it has been read to the end; dropped
/// before, it closes it.
pub(super) struct Incoming {
    connection: Option<Box<Connection>>,
    framing: Framing,
    reusable: bool,
    pool: Arc<Pool>,
}

/// Where a body ends (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Over,
    /// This many bytes are still to come.
    Length(u64),
    UntilClose,
    ChunkSize,
    /// This many bytes of the chunk are still to come.
    Chunk(u64),
    ChunkEnd,
    Trailers,
}

/// The longest head of an answer, and the longest line between two chunks.
const HEAD: usize = 64 << 10;
/// The most headers in an answer.
const HEADERS: usize = 128;
/// Read at a time, on the stack.
const READ: usize = 8 << 10;
/// Of a body whose length is known, read at a time into place.
const READ_IN_PLACE: usize = 64 << 10;

// === impl Connection ===

impl Connection {
    pub(super) fn new(io: Io) -> Self {
        Self { io, read: BytesMut::new() }
    }

    /// Whether it can take another request: the server has neither closed it nor said anything.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        self.read.is_empty() && self.poll_fill(&mut context).is_pending()
    }

    /// Reads what there is; 0 is the end. Nothing is allocated while nothing comes.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::uninit() }; READ];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut space))?;
        let filled = space.filled();
        self.read.extend_from_slice(filled);
        Poll::Ready(Ok(filled.len()))
    }

    /// Reads at most `wanted` bytes into place.
    fn poll_fill_in_place(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.read.reserve(wanted);
        let mut limited = (&mut self.read).limit(wanted);
        tokio_util::io::poll_read_buf(Pin::new(&mut self.io), cx, &mut limited)
    }

    /// Sends what is left of a request.
    fn poll_send(
        &mut self,
        head: &mut Bytes,
        body: &mut Bytes,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !head.is_empty() || !body.is_empty() {
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            // The second alone where the first is out: an empty part may count as the end.
            let parts = if head.is_empty() { &parts[1..] } else { &parts[..] };
            let sent = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = sent.min(head.len());
            head.advance(of_head);
            body.advance(sent - of_head);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// The head of the answer; interim ones (1xx) are skipped.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<http::Response<()>>> {
        loop {
            match parse_head(&mut self.read)? {
                Some(head) if head.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Poll::Ready(Err(invalid("it wants to switch protocols")));
                }
                Some(head) if head.status().is_informational() => {}
                Some(head) => return Poll::Ready(Ok(head)),
                None if self.read.len() > HEAD => return Poll::Ready(Err(invalid("its head is too long"))),
                None => {
                    if ready!(self.poll_fill(cx))? == 0 {
                        return Poll::Ready(Err(closed()));
                    }
                }
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// Takes a whole head off the buffer; its values share the buffer's allocation.
fn parse_head(read: &mut BytesMut) -> io::Result<Option<http::Response<()>>> {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS];
    let mut found: SmallVec<[(HeaderName, Range<usize>); 16]> = SmallVec::new();
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, read, &mut space)
        .map_err(|error| invalid(&format!("its head is not HTTP: {error}")))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let start = read.as_ptr() as usize;
    for header in response.headers.iter() {
        let name =
            HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid("a header has no name"))?;
        // Only a value that has bytes is certain to stand in the buffer.
        let from = if header.value.is_empty() { 0 } else { header.value.as_ptr() as usize - start };
        found.push((name, from..from + header.value.len()));
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| invalid("its status is none"))?;
    let version = if response.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let bytes = read.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(found.len());
    for (name, range) in found {
        let value = HeaderValue::from_maybe_shared(bytes.slice(range));
        headers.append(name, value.map_err(|_| invalid("a header's value has control characters"))?);
    }
    let mut head = http::Response::new(());
    *head.status_mut() = status;
    *head.version_mut() = version;
    *head.headers_mut() = headers;
    Ok(Some(head))
}

// === impl Framing ===

impl Framing {
    /// How the body behind this head is delimited.
    fn of(head: &http::Response<()>) -> io::Result<Self> {
        if matches!(head.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            return Ok(Self::Over);
        }
        let headers = head.headers();
        if let Some(coding) = headers.get_all(header::TRANSFER_ENCODING).iter().next_back() {
            let last = coding.as_bytes().rsplit(|&byte| byte == b',').next().unwrap_or_default();
            // Also where there is a length: the coding counts.
            return Ok(match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                true => Self::ChunkSize,
                false => Self::UntilClose,
            });
        }
        let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Self::UntilClose) };
        if lengths.any(|other| other != length) {
            return Err(invalid("it has two lengths"));
        }
        match length.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(0) => Ok(Self::Over),
            Some(length) => Ok(Self::Length(length)),
            None => Err(invalid("its length is no number")),
        }
    }
}

/// Whether the server keeps the connection for another request.
fn is_kept(head: &http::Response<()>) -> bool {
    let said = |token: &str| {
        let values = head.headers().get_all(header::CONNECTION).iter();
        let mut tokens = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        tokens.any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    if head.version() == Version::HTTP_10 { said("keep-alive") } else { !said("close") }
}

// === impl Sending ===

impl Sending {
    pub(super) fn new(connection: Box<Connection>, head: Bytes, body: Bytes, pool: Arc<Pool>) -> Self {
        Self { connection: Some(connection), head, body, unsent: None, pool }
    }
}

impl Future for Sending {
    type Output = io::Result<http::Response<Incoming>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let connection = this.connection.as_mut().expect("an exchange is not polled after its end");
        if this.unsent.is_none() && !(this.head.is_empty() && this.body.is_empty()) {
            match connection.poll_send(&mut this.head, &mut this.body, cx) {
                // The request itself is not needed while its answer is waited for.
                Poll::Ready(Ok(())) => (this.head, this.body) = (Bytes::new(), Bytes::new()),
                // A server that refuses a request may answer and close before it has all of it.
                Poll::Ready(Err(error)) => this.unsent = Some(error),
                Poll::Pending => return Poll::Pending,
            }
        }
        let head = match ready!(connection.poll_head(cx)) {
            Ok(head) => head,
            Err(error) => return Poll::Ready(Err(this.unsent.take().unwrap_or(error))),
        };
        let framing = Framing::of(&head)?;
        let mut body = Incoming {
            connection: this.connection.take(),
            framing,
            reusable: is_kept(&head) && this.unsent.is_none() && framing != Framing::UntilClose,
            pool: this.pool.clone(),
        };
        if framing == Framing::Over {
            body.finish();
        }
        Poll::Ready(Ok(head.map(|()| body)))
    }
}

// === impl Incoming ===

impl Incoming {
    /// The body is over: its connection can serve the next request.
    fn finish(&mut self) {
        self.framing = Framing::Over;
        if let Some(connection) = self.connection.take().filter(|_| self.reusable) {
            self.pool.put_back(connection);
        }
    }

    /// Goes on past what was taken of a chunk, if the rest is there already.
    fn past_last_chunk(&mut self) {
        const END: &[u8] = b"\r\n0\r\n\r\n";
        if let Some(connection) =
            self.connection.as_mut().filter(|connection| connection.read.starts_with(END))
        {
            connection.read.advance(END.len());
            self.finish();
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            let read = &mut connection.read;
            let needs = match self.framing {
                Framing::Over => return Poll::Ready(None),
                Framing::UntilClose if !read.is_empty() => {
                    return Poll::Ready(Some(Ok(read.split().freeze())));
                }
                Framing::UntilClose => READ,
                Framing::Length(left) | Framing::Chunk(left) if !read.is_empty() => {
                    let here = read.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let data = read.split_to(here).freeze();
                    let left = left - here as u64;
                    match self.framing {
                        Framing::Length(_) if left == 0 => self.finish(),
                        Framing::Length(_) => self.framing = Framing::Length(left),
                        _ if left == 0 => {
                            self.framing = Framing::ChunkEnd;
                            self.past_last_chunk();
                        }
                        _ => self.framing = Framing::Chunk(left),
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Framing::Length(left) | Framing::Chunk(left) => usize::try_from(left).unwrap_or(usize::MAX),
                Framing::ChunkSize => match httparse::parse_chunk_size(read) {
                    Ok(httparse::Status::Complete((line, size))) => {
                        read.advance(line);
                        self.framing = if size == 0 { Framing::Trailers } else { Framing::Chunk(size) };
                        continue;
                    }
                    Ok(httparse::Status::Partial) if read.len() < HEAD => 0,
                    Ok(httparse::Status::Partial) | Err(_) => {
                        return Poll::Ready(Some(Err(invalid("a chunk has no size"))));
                    }
                },
                Framing::ChunkEnd => match &read[..] {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        self.framing = Framing::ChunkSize;
                        continue;
                    }
                    [] | [b'\r'] => 0,
                    _ => return Poll::Ready(Some(Err(invalid("a chunk is longer than its size")))),
                },
                Framing::Trailers => match memchr::memchr(b'\n', read) {
                    Some(end) => {
                        let line = read.split_to(end + 1);
                        if matches!(&line[..], b"\r\n" | b"\n") {
                            self.finish();
                        }
                        continue;
                    }
                    None if read.len() < HEAD => 0,
                    None => return Poll::Ready(Some(Err(invalid("its trailers are too long")))),
                },
            };
            let filled = match needs {
                0..=READ => ready!(connection.poll_fill(cx)),
                _ => ready!(connection.poll_fill_in_place(needs.min(READ_IN_PLACE), cx)),
            };
            match filled {
                Ok(0) if self.framing == Framing::UntilClose => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Ok(0) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(closed())));
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

impl Body for Incoming {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.framing == Framing::Over
    }

    fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Over => SizeHint::with_exact(0),
            Framing::Length(left) => SizeHint::with_exact(left),
            Framing::UntilClose
            | Framing::ChunkSize
            | Framing::Chunk(_)
            | Framing::ChunkEnd
            | Framing::Trailers => SizeHint::default(),
        }
    }
}

// === impl Io ===

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
