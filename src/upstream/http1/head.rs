//! Heads of HTTP/1.1 (RFC 9112, 2 to 5): reads those of responses, writes those of requests.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use smallvec::SmallVec;
use std::{io, mem::MaybeUninit, ops::Range, time::Duration};

/// Incremental parser of a response head, linear in the bytes however they are split. Skips interim responses
/// (1xx).
#[derive(Debug, Default)]
pub struct HeadReader {
    /// Number of bytes that were parsed as an incomplete, valid head.
    parsed_len: usize,
    /// Number of bytes without the end of a head; at least `parsed_len`.
    searched_len: usize,
    /// Bytes of interim heads and empty lines that were skipped before the head.
    skipped_len: usize,
}

/// Limit of a response head, of a line with a chunk's size, and of trailers, in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Limit of the number of headers in a response.
const MAX_HEADERS: usize = 128;
/// Limit of interim heads before the response head, in bytes, which bounds their number as well. A server may
/// send an interim response (102) every 20 s during a call of many hours.
const MAX_SKIPPED_BYTES: usize = 256 << 10;

// === impl HeadReader ===

impl HeadReader {
    /// Takes the response head from the buffer `read`; `None` if it is incomplete. Header values share the
    /// buffer's allocation.
    ///
    /// # Errors
    /// `InvalidData` with the reason why the head is invalid or unsupported.
    pub fn next(&mut self, read: &mut BytesMut) -> io::Result<Option<http::Response<()>>> {
        loop {
            self.skip_empty_lines(read)?;
            match self.parse(read)? {
                Some((head, _)) if head.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Err(invalid_data("it switches protocols"));
                }
                Some((head, length)) if head.status().is_informational() => self.note_skipped(length)?,
                Some((head, _)) => return Ok(Some(head)),
                None => return Ok(None),
            }
        }
    }

    /// Skips empty lines before a head, which the parser would read again each time.
    fn skip_empty_lines(&mut self, read: &mut BytesMut) -> io::Result<()> {
        while let Some(line) = [&b"\r\n"[..], b"\n"].into_iter().find(|line| read.starts_with(line)) {
            read.advance(line.len());
            self.note_skipped(line.len())?;
        }
        Ok(())
    }

    /// Counts skipped bytes and resets the search for the head.
    fn note_skipped(&mut self, bytes: usize) -> io::Result<()> {
        *self = Self { skipped_len: self.skipped_len + bytes, ..Self::default() };
        if self.skipped_len > MAX_SKIPPED_BYTES {
            Err(invalid_data("interim responses before its head exceed 256 KiB"))
        } else {
            Ok(())
        }
    }

    /// Parses the next head, interim or final. Returns it with its length in bytes; `None` if it is
    /// incomplete.
    fn parse(&mut self, read: &mut BytesMut) -> io::Result<Option<(http::Response<()>, usize)>> {
        // Parse early as well, so that bytes that are not HTTP are rejected before an empty line arrives.
        let has_doubled = read.len() >= 2 * self.parsed_len;
        let found = if has_doubled || has_empty_line(read, self.searched_len) {
            self.parsed_len = read.len();
            parse(read)?
        } else {
            None
        };
        self.searched_len = read.len();
        let length = found.as_ref().map_or(read.len(), |(_, length)| *length);
        if length > MAX_HEAD_BYTES { Err(invalid_data("its head is too long")) } else { Ok(found) }
    }
}

/// Whether an empty line ends after the first `start` bytes.
fn has_empty_line(read: &[u8], start: usize) -> bool {
    let lines = memchr::memchr_iter(b'\n', &read[start..]).map(|index| &read[..start + index]);
    lines.into_iter().any(|line| line.ends_with(b"\n") || line.ends_with(b"\n\r"))
}

fn parse(read: &mut BytesMut) -> io::Result<Option<(http::Response<()>, usize)>> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut ranges: SmallVec<[(HeaderName, Range<usize>); 16]> = SmallVec::new();
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, read, &mut space)
        .map_err(|error| invalid_data(&format!("its head is not HTTP: {error}")))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let start = read.as_ptr() as usize;
    for header in response.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|_| invalid_data("a header has no name"))?;
        // Only a value that is not empty is certain to point into the buffer.
        let offset = if header.value.is_empty() { 0 } else { header.value.as_ptr() as usize - start };
        ranges.push((name, offset..offset + header.value.len()));
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| invalid_data("its status is not valid"))?;
    let version = if response.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let bytes = read.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(ranges.len());
    for (name, range) in ranges {
        let value = HeaderValue::from_maybe_shared(bytes.slice(range));
        headers.append(name, value.map_err(|_| invalid_data("a header's value has control characters"))?);
    }
    let mut head = http::Response::new(());
    *head.status_mut() = status;
    *head.version_mut() = version;
    *head.headers_mut() = headers;
    Ok(Some((head, length)))
}

/// Error for bytes that are not valid HTTP, for this reason.
pub(super) fn invalid_data(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

/// Whether responses of this status have no body, whatever their headers announce.
pub(super) fn is_bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether the server keeps the connection open for another request.
pub fn is_keep_alive(head: &http::Response<()>) -> bool {
    let token_count = |name, token: &str| {
        let values = head.headers().get_all(name).iter();
        let tokens = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        tokens.filter(|part| part.trim().eq_ignore_ascii_case(token)).count()
    };
    let is_http_10 = head.version() == Version::HTTP_10;
    let has_coding = head.headers().contains_key(header::TRANSFER_ENCODING);
    let length = head.headers().get(header::CONTENT_LENGTH);
    // Another reader would find the end of the body elsewhere if there is a length beside a coding, a coding
    // twice, or a body that the status does not allow: do not reuse the connection (RFC 9112, 6.1 and 6.3).
    let is_ambiguous = has_coding
        && (length.is_some() || token_count(header::TRANSFER_ENCODING, "chunked") > 1)
        || is_bodiless(head.status()) && (has_coding || length.is_some_and(|length| length != "0"));
    let wants_keep_alive = if is_http_10 {
        token_count(header::CONNECTION, "keep-alive") > 0
    } else {
        token_count(header::CONNECTION, "close") == 0
    };
    wants_keep_alive && !is_ambiguous
}

/// Idle time that the server announces with `Keep-Alive: timeout`, in whole seconds (RFC 2068, 19.7.1.1,
/// which servers still send); `None` without the header.
pub(super) fn announced_idle(head: &http::Response<()>) -> Option<Duration> {
    let values = head.headers().get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let mut parameters = values.flat_map(|value| value.split([',', ';']));
    parameters.find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| seconds.trim().trim_matches('"').parse().ok().map(Duration::from_secs))?
    })
}

/// Serializes the head of a request. `target` is a path, or a whole URL if a proxy forwards the request.
/// `lines` are serialized headers ([`header_lines`]), `proxy` is the header line for the proxy, `body_len`
/// the length of the body in bytes.
pub(super) fn request_head(
    method: &Method,
    target: &str,
    lines: [&[u8]; 2],
    proxy: &[u8],
    body_len: usize,
) -> Bytes {
    let [common, specific] = lines;
    let mut head = Vec::with_capacity(64 + target.len() + common.len() + specific.len() + proxy.len());
    for part in
        [method.as_str().as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n", common, specific, proxy]
    {
        head.extend_from_slice(part);
    }
    if body_len > 0 {
        head.extend_from_slice(b"content-length: ");
        head.extend_from_slice(itoa::Buffer::new().format(body_len).as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    Bytes::from(head)
}

/// Serializes headers as lines that end in CR LF.
pub(in crate::upstream) fn header_lines(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::with_capacity(headers.len() * 40);
    for (name, value) in headers {
        write_header_line(&mut lines, name, value);
    }
    lines
}

/// Appends one header line, which ends in CR LF.
pub(in crate::upstream) fn write_header_line(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        lines.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result for a head of `length` bytes that arrives in pieces of `piece` bytes.
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
        for piece in [1, 7, 8 << 10, MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1, 1 << 20] {
            assert_eq!(read(MAX_HEAD_BYTES, piece), Ok(true), "in pieces of {piece}");
            assert_eq!(
                read(MAX_HEAD_BYTES + 1, piece),
                Err("its head is too long".to_owned()),
                "in pieces of {piece}"
            );
        }
    }
}
