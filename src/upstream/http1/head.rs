//! Heads of HTTP/1.1 (RFC 9112, 2 to 5): an answer's, read, and a request's, written.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use smallvec::SmallVec;
use std::{io, mem::MaybeUninit, ops::Range, time::Duration};

/// Reads the head of an answer in time linear in its bytes, however they are cut. Interim ones (1xx) are
/// skipped.
#[derive(Debug, Default)]
pub struct HeadReader {
    /// So much of what has arrived was parsed, and is neither a head nor at fault.
    parsed: usize,
    /// So much of it holds no end of a head. Never less than was parsed.
    searched: usize,
    /// Bytes of interim heads and empty lines that went by.
    before: usize,
}

/// The longest head of an answer, the longest line between two chunks, and the longest trailers.
pub(super) const HEAD: usize = 64 << 10;
/// The most headers in an answer.
const HEADERS: usize = 128;
/// The most bytes of interim heads before the head of an answer, which bounds their number as well. A server may
/// say every 20 s of a call of many hours that it is at work on it (102).
const BEFORE: usize = 256 << 10;

// === impl HeadReader ===

impl HeadReader {
    /// Takes the head of an answer off what has arrived. `Missing` where it is not all there. Its values share
    /// the buffer's allocation.
    ///
    /// # Errors
    /// `InvalidData` says why this is no head, or none that can be gone on from.
    pub fn next(&mut self, read: &mut BytesMut) -> io::Result<Option<http::Response<()>>> {
        loop {
            self.skip_empty_lines(read)?;
            match self.parse(read)? {
                Some((head, _)) if head.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Err(invalid("it wants to switch protocols"));
                }
                Some((head, length)) if head.status().is_informational() => self.skipped(length)?,
                Some((head, _)) => return Ok(Some(head)),
                None => return Ok(None),
            }
        }
    }

    /// The parser would begin with those before a head each time.
    fn skip_empty_lines(&mut self, read: &mut BytesMut) -> io::Result<()> {
        while let Some(line) = [&b"\r\n"[..], b"\n"].into_iter().find(|line| read.starts_with(line)) {
            read.advance(line.len());
            self.skipped(line.len())?;
        }
        Ok(())
    }

    /// So many bytes were taken, and the head of the answer is still to come.
    fn skipped(&mut self, bytes: usize) -> io::Result<()> {
        *self = Self { before: self.before + bytes, ..Self::default() };
        if self.before > BEFORE { Err(invalid("too much comes before its head")) } else { Ok(()) }
    }

    /// The next head and its length, if it is all there.
    fn parse(&mut self, read: &mut BytesMut) -> io::Result<Option<(http::Response<()>, usize)>> {
        // What is no HTTP is refused before its end is seen.
        let is_twice_as_much = read.len() >= 2 * self.parsed;
        let found = if is_twice_as_much || has_empty_line(read, self.searched) {
            self.parsed = read.len();
            parse(read)?
        } else {
            None
        };
        self.searched = read.len();
        let length = found.as_ref().map_or(read.len(), |(_, length)| *length);
        if length > HEAD { Err(invalid("its head is too long")) } else { Ok(found) }
    }
}

/// Whether an empty line ends behind so many bytes.
fn has_empty_line(read: &[u8], before: usize) -> bool {
    let lines = memchr::memchr_iter(b'\n', &read[before..]).map(|at| &read[..before + at]);
    lines.into_iter().any(|line| line.ends_with(b"\n") || line.ends_with(b"\n\r"))
}

fn parse(read: &mut BytesMut) -> io::Result<Option<(http::Response<()>, usize)>> {
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
    Ok(Some((head, length)))
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Whether answers of this status have no body, whatever they announce.
pub(super) fn is_bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether the server keeps the connection for another request.
pub fn is_keep_alive(head: &http::Response<()>) -> bool {
    let said = |name, token: &str| {
        let values = head.headers().get_all(name).iter();
        let tokens = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        tokens.filter(|part| part.trim().eq_ignore_ascii_case(token)).count()
    };
    let is_old = head.version() == Version::HTTP_10;
    let coded = head.headers().contains_key(header::TRANSFER_ENCODING);
    let length = head.headers().get(header::CONTENT_LENGTH);
    // Where a coding stands beside a length, or twice, or where there is more than the status allows,
    // another reader would see the end elsewhere: nothing behind it is believed (RFC 9112, 6.1 and 6.3).
    let doubtful = coded && (length.is_some() || said(header::TRANSFER_ENCODING, "chunked") > 1)
        || is_bodiless(head.status()) && (coded || length.is_some_and(|length| length != "0"));
    let kept = if is_old {
        said(header::CONNECTION, "keep-alive") > 0
    } else {
        said(header::CONNECTION, "close") == 0
    };
    kept && !doubtful
}

/// How long the server says that it keeps an idle connection: `timeout`, in whole seconds, of `Keep-Alive` (RFC 2068,
/// 19.7.1.1, which servers still send).
pub(super) fn announced_idle(head: &http::Response<()>) -> Option<Duration> {
    let values = head.headers().get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let mut parameters = values.flat_map(|value| value.split([',', ';']));
    parameters.find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| seconds.trim().trim_matches('"').parse().ok().map(Duration::from_secs))?
    })
}

/// The head of a request for a path, or towards a proxy for a whole URL, with so many bytes of body. `header_lines` are
/// header lines ([`header_lines`]), `proxy` that of a proxy.
pub(super) fn request_head(
    method: &Method,
    target: &str,
    lines: [&[u8]; 2],
    proxy: &[u8],
    body: usize,
) -> Bytes {
    let [same, further] = lines;
    let mut head = Vec::with_capacity(64 + target.len() + same.len() + further.len() + proxy.len());
    for part in [method.as_str().as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n", same, further, proxy]
    {
        head.extend_from_slice(part);
    }
    if body > 0 {
        head.extend_from_slice(b"content-length: ");
        head.extend_from_slice(itoa::Buffer::new().format(body).as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    Bytes::from(head)
}

/// Headers as they go over the wire.
pub(in crate::upstream) fn header_lines(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::with_capacity(headers.len() * 40);
    for (name, value) in headers {
        write_header_line(&mut lines, name, value);
    }
    lines
}

pub(in crate::upstream) fn write_header_line(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        lines.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a head of so many bytes, in pieces of so many.
    fn read(length: usize, piece: usize) -> Result<bool, String> {
        let (before, after) = ("HTTP/1.1 200 OK\r\nx: ", "\r\n\r\n");
        let answer = format!("{before}{}{after}body", "y".repeat(length - before.len() - after.len()));
        let (mut reader, mut read) = (HeadReader::default(), BytesMut::new());
        for piece in answer.as_bytes().chunks(piece) {
            read.extend_from_slice(piece);
            if reader.next(&mut read).map_err(|error| error.to_string())?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[test]
    fn a_head_is_as_long_as_its_limit_and_no_longer_however_it_arrives() {
        for piece in [1, 7, 8 << 10, HEAD - 1, HEAD, HEAD + 1, 1 << 20] {
            assert_eq!(read(HEAD, piece), Ok(true), "in pieces of {piece}");
            assert_eq!(read(HEAD + 1, piece), Err("its head is too long".to_owned()), "in pieces of {piece}");
        }
    }
}
