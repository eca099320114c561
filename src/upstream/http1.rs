//! The bytes of an HTTP/1.1 answer, read: its head, and where its body ends (RFC 9112).
//!
//! Knows no socket: bytes that have arrived go in, and what they are comes out, or how many more are
//! wanted. `connection` brings them; a fuzz target cuts them anywhere and asks hyper the same.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use smallvec::SmallVec;
use std::{io, mem::MaybeUninit, ops::Range};

/// Where a body ends (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Over,
    /// This many bytes are still to come.
    Length(u64),
    UntilClose,
    ChunkSize,
    /// This many bytes of the chunk are still to come.
    Chunk(u64),
    ChunkEnd,
    /// So many bytes of trailers have gone by.
    Trailers(usize),
}

/// What the bytes that have arrived of a body are.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A part of the body; never empty.
    Data(Bytes),
    /// Nothing yet. At most this many bytes more belong to what is read now, as far as is known.
    Wants(usize),
    Over,
}

/// The longest head of an answer, the longest line between two chunks, and the longest trailers.
const HEAD: usize = 64 << 10;
/// The most headers in an answer.
const HEADERS: usize = 128;
/// What follows the last chunk, mostly.
const END: &[u8] = b"\r\n0\r\n\r\n";

/// Takes the head of an answer off what has arrived; interim ones (1xx) are skipped. `None` where it is
/// not all there. Its values share the buffer's allocation.
///
/// # Errors
/// `InvalidData` says why this is no head, or none that can be gone on from.
pub fn head(read: &mut BytesMut) -> io::Result<Option<http::Response<()>>> {
    loop {
        match one_head(read)? {
            Some(head) if head.status() == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(invalid("it wants to switch protocols"));
            }
            Some(head) if head.status().is_informational() => {}
            Some(head) => return Ok(Some(head)),
            None if read.len() > HEAD => return Err(invalid("its head is too long")),
            None => return Ok(None),
        }
    }
}

fn one_head(read: &mut BytesMut) -> io::Result<Option<http::Response<()>>> {
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

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

// === impl Framing ===

impl Framing {
    /// How the body behind this head is delimited.
    ///
    /// # Errors
    /// `InvalidData` where two readers could see its end in two places.
    pub fn of(head: &http::Response<()>) -> io::Result<Self> {
        if is_bodiless(head.status()) {
            return Ok(Self::Over);
        }
        let headers = head.headers();
        // Other readers take what is no text for no coding.
        if headers.get_all(header::TRANSFER_ENCODING).iter().any(|coding| coding.to_str().is_err()) {
            return Err(invalid("its transfer coding is no text"));
        }
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
        // Digits alone: a number could have a sign as well.
        let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|text| text.parse().ok()) {
            Some(0) => Ok(Self::Over),
            Some(length) => Ok(Self::Length(length)),
            None => Err(invalid("its length is no number")),
        }
    }
    /// Takes what there is of the body off what has arrived.
    ///
    /// # Errors
    /// `InvalidData` where it is not delimited as its head says.
    pub fn next(&mut self, read: &mut BytesMut) -> io::Result<Next> {
        loop {
            match *self {
                Self::Over => return Ok(Next::Over),
                Self::UntilClose | Self::Length(_) | Self::Chunk(_) if !read.is_empty() => {
                    return Ok(Next::Data(self.data(read)));
                }
                Self::UntilClose => return Ok(Next::Wants(0)),
                Self::Length(left) | Self::Chunk(left) => {
                    return Ok(Next::Wants(usize::try_from(left).unwrap_or(usize::MAX)));
                }
                // The parser would read a line without digits as the last chunk's.
                Self::ChunkSize if read.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => {
                    return Err(invalid("a chunk has no size"));
                }
                Self::ChunkSize => match httparse::parse_chunk_size(read) {
                    Ok(httparse::Status::Complete((line, size))) => {
                        read.advance(line);
                        *self = if size == 0 { Self::Trailers(0) } else { Self::Chunk(size) };
                    }
                    Ok(httparse::Status::Partial) if read.len() < HEAD => return Ok(Next::Wants(0)),
                    Ok(httparse::Status::Partial) | Err(_) => return Err(invalid("a chunk has no size")),
                },
                Self::ChunkEnd => match &read[..] {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        *self = Self::ChunkSize;
                    }
                    [] | [b'\r'] => return Ok(Next::Wants(0)),
                    _ => return Err(invalid("a chunk is longer than its size")),
                },
                Self::Trailers(before) => match memchr::memchr(b'\n', read) {
                    Some(end) if before + end < HEAD => {
                        let line = read.split_to(end + 1);
                        *self = match &line[..] {
                            b"\r\n" | b"\n" => Self::Over,
                            _ => Self::Trailers(before + line.len()),
                        };
                    }
                    None if before + read.len() < HEAD => return Ok(Next::Wants(0)),
                    Some(_) | None => return Err(invalid("its trailers are too long")),
                },
            }
        }
    }

    /// The bytes of the body that are here.
    fn data(&mut self, read: &mut BytesMut) -> Bytes {
        let (Self::Length(left) | Self::Chunk(left)) = *self else { return read.split().freeze() };
        let here = read.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let data = read.split_to(here).freeze();
        *self = match (*self, left - here as u64) {
            (Self::Length(_), 0) => Self::Over,
            (Self::Length(_), left) => Self::Length(left),
            // On past the last chunk, if the rest is there already: the connection is free at once.
            (_, 0) if read.starts_with(END) => {
                read.advance(END.len());
                Self::Over
            }
            (_, 0) => Self::ChunkEnd,
            (_, left) => Self::Chunk(left),
        };
        data
    }
}

/// Whether answers of this status have no body, whatever they announce.
fn is_bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether the server keeps the connection for another request.
pub fn is_kept(head: &http::Response<()>) -> bool {
    let said = |name, token: &str| {
        let values = head.headers().get_all(name).iter();
        let tokens = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        tokens.filter(|part| part.trim().eq_ignore_ascii_case(token)).count()
    };
    let is_old = head.version() == Version::HTTP_10;
    let coded = head.headers().contains_key(header::TRANSFER_ENCODING);
    let length = head.headers().get(header::CONTENT_LENGTH);
    // Where a coding stands beside a length, or before HTTP/1.1, or twice, or where there is more than
    // the status allows, another reader would see the end elsewhere: nothing behind it is believed
    // (RFC 9112, 6.1 and 6.3).
    let doubtful = coded && (is_old || length.is_some() || said(header::TRANSFER_ENCODING, "chunked") > 1)
        || is_bodiless(head.status()) && (coded || length.is_some_and(|length| length != "0"));
    let kept = if is_old {
        said(header::CONNECTION, "keep-alive") > 0
    } else {
        said(header::CONNECTION, "close") == 0
    };
    kept && !doubtful
}
