//! Delimitation of an HTTP/1.1 response body (RFC 9112, 6 and 7).

use bytes::{Buf, Bytes, BytesMut};
use http::{Version, header};
use std::io;

use super::head::{MAX_HEAD_BYTES, invalid_data, is_bodiless};

/// State of a body's framing (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// The body has ended, or there is none.
    Ended,
    /// Remaining bytes of the body.
    Length(u64),
    /// The body ends when the server closes the connection.
    UntilClose,
    /// The line with a chunk's size is next; this many bytes of it have arrived without a line end.
    ChunkSize(usize),
    /// Remaining bytes of the current chunk.
    Chunk(u64),
    /// The line end after a chunk's data is next.
    ChunkEnd,
    /// Trailers after the last chunk are next.
    Trailers {
        /// Bytes of earlier trailer lines.
        earlier_lines: usize,
        /// Bytes of the next line without a line end.
        without_line_end: usize,
    },
}

/// Next part of a body in the bytes that have arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyPart {
    /// Bytes of the body; never empty.
    Data(Bytes),
    /// More bytes are needed. The number is that of the bytes known to be left of the current part; 0 if it
    /// is unknown.
    NeedsMore(usize),
    Ended,
}

/// Usual bytes after the data of the last chunk, without trailers.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

// === impl BodyFraming ===

impl BodyFraming {
    /// Determines the framing from the response head.
    ///
    /// # Errors
    /// `InvalidData` if two readers could find the end of the body in different places.
    pub fn from_head(head: &http::Response<()>) -> io::Result<Self> {
        if is_bodiless(head.status()) {
            return Ok(Self::Ended);
        }
        let headers = head.headers();
        // A transfer coding in a response of HTTP/1.0, which knows none, shows an intermediary that may have
        // read the response differently (RFC 9112, 6.1).
        if head.version() == Version::HTTP_10 && headers.contains_key(header::TRANSFER_ENCODING) {
            return Err(invalid_data("it has a transfer coding, which HTTP/1.0 does not know"));
        }
        // Other readers treat a value that is not text as no coding.
        if headers.get_all(header::TRANSFER_ENCODING).iter().any(|coding| coding.to_str().is_err()) {
            return Err(invalid_data("its transfer coding is not text"));
        }
        if let Some(coding) = headers.get_all(header::TRANSFER_ENCODING).iter().next_back() {
            let last = coding.as_bytes().rsplit(|&byte| byte == b',').next().unwrap_or_default();
            // The coding takes precedence over a length.
            return Ok(match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                true => Self::ChunkSize(0),
                false => Self::UntilClose,
            });
        }
        let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Self::UntilClose) };
        if lengths.any(|other| other != length) {
            return Err(invalid_data("it has two lengths"));
        }
        // Digits only: a number could have a sign as well.
        let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|text| text.parse().ok()) {
            Some(0) => Ok(Self::Ended),
            // hyper reserves the two greatest numbers and rejects them as a length.
            Some(length) if length < u64::MAX - 1 => Ok(Self::Length(length)),
            Some(_) | None => Err(invalid_data("its length is not valid")),
        }
    }

    /// Takes the next part of the body from the buffer `read`.
    ///
    /// # Errors
    /// `InvalidData` if the body does not match the framing of its head.
    pub fn next(&mut self, read: &mut BytesMut) -> io::Result<BodyPart> {
        loop {
            match *self {
                Self::Ended => return Ok(BodyPart::Ended),
                Self::UntilClose | Self::Length(_) | Self::Chunk(_) if !read.is_empty() => {
                    return Ok(BodyPart::Data(self.data(read)));
                }
                Self::UntilClose => return Ok(BodyPart::NeedsMore(0)),
                Self::Length(remaining) | Self::Chunk(remaining) => {
                    return Ok(BodyPart::NeedsMore(usize::try_from(remaining).unwrap_or(usize::MAX)));
                }
                // Reject before the line ends; the parser would read a line without digits as the last chunk.
                Self::ChunkSize(_) if read.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => {
                    return Err(invalid_data("a chunk has no size"));
                }
                Self::ChunkSize(searched) => match end_of_line(read, searched) {
                    Some(end) if end <= MAX_HEAD_BYTES => {
                        *self = match chunk_size(&read.split_to(end))? {
                            0 => Self::Trailers { earlier_lines: 0, without_line_end: 0 },
                            size => Self::Chunk(size),
                        };
                    }
                    None if read.len() < MAX_HEAD_BYTES => {
                        *self = Self::ChunkSize(read.len());
                        return Ok(BodyPart::NeedsMore(0));
                    }
                    Some(_) | None => return Err(invalid_data("a chunk has no size")),
                },
                Self::ChunkEnd => match &read[..] {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        *self = Self::ChunkSize(0);
                    }
                    [] | [b'\r'] => return Ok(BodyPart::NeedsMore(0)),
                    _ => return Err(invalid_data("a chunk is longer than its size")),
                },
                Self::Trailers { earlier_lines, without_line_end } => {
                    match end_of_line(read, without_line_end) {
                        Some(end) if earlier_lines + end <= MAX_HEAD_BYTES => {
                            *self = match &read.split_to(end)[..] {
                                b"\r\n" => Self::Ended,
                                line if line.ends_with(b"\r\n") => {
                                    Self::Trailers { earlier_lines: earlier_lines + end, without_line_end: 0 }
                                }
                                // Some readers would continue, and read the next response as part of this one.
                                _ => {
                                    return Err(invalid_data("a line of its trailers does not end in CR LF"));
                                }
                            };
                        }
                        None if earlier_lines + read.len() < MAX_HEAD_BYTES => {
                            *self = Self::Trailers { earlier_lines, without_line_end: read.len() };
                            return Ok(BodyPart::NeedsMore(0));
                        }
                        Some(_) | None => return Err(invalid_data("its trailers are too long")),
                    }
                }
            }
        }
    }

    /// Takes the available bytes of the body.
    fn data(&mut self, read: &mut BytesMut) -> Bytes {
        let (Self::Length(remaining) | Self::Chunk(remaining)) = *self else { return read.split().freeze() };
        let available = read.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        let data = read.split_to(available).freeze();
        *self = match (*self, remaining - available as u64) {
            (Self::Length(_), 0) => Self::Ended,
            (Self::Length(_), remaining) => Self::Length(remaining),
            // Skip the last chunk if it has arrived: the connection is free at once.
            (_, 0) if read.starts_with(LAST_CHUNK) => {
                read.advance(LAST_CHUNK.len());
                Self::Ended
            }
            (_, 0) => Self::ChunkEnd,
            (_, remaining) => Self::Chunk(remaining),
        };
        data
    }
}

/// Length of the next line including its end. The first `searched` bytes have no line end.
fn end_of_line(read: &[u8], searched: usize) -> Option<usize> {
    memchr::memchr(b'\n', &read[searched..]).map(|index| searched + index + 1)
}

/// Size in the line before a chunk, which starts with a digit.
fn chunk_size(line: &[u8]) -> io::Result<u64> {
    // The parser would accept a line feed alone in an extension; other readers would not (RFC 9112, 7.1.1 and
    // 11.1).
    if !line.ends_with(b"\r\n") {
        return Err(invalid_data("the line of a chunk's size does not end in CR LF"));
    }
    // The parser counts leading zeros among the sixteen digits that it accepts; they are no reason to reject
    // a size.
    let zeros = line.iter().take_while(|byte| **byte == b'0').count();
    let has_more_digits = line.get(zeros).is_some_and(u8::is_ascii_hexdigit);
    let line = &line[if has_more_digits { zeros } else { zeros.saturating_sub(1) }..];
    match httparse::parse_chunk_size(line) {
        Ok(httparse::Status::Complete((_, size))) => Ok(size),
        Ok(httparse::Status::Partial) | Err(_) => Err(invalid_data("a chunk has no size")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_above_the_greatest_possible_is_refused() {
        let framing = |length: &str| {
            let head = http::Response::builder().header(header::CONTENT_LENGTH, length).body(());
            BodyFraming::from_head(&head.expect("a head"))
        };
        assert_eq!(
            framing("00018446744073709551613").expect("the longest"),
            BodyFraming::Length(u64::MAX - 2)
        );
        for length in ["18446744073709551614", "0018446744073709551615", "18446744073709551616"] {
            assert_eq!(framing(length).expect_err(length).kind(), io::ErrorKind::InvalidData, "{length}");
        }
    }

    #[test]
    fn a_size_may_have_any_number_of_zeros_in_front() {
        for (line, size) in [("5", 5), ("0", 0), ("00", 0), ("000000000000000000000000000a;x=y", 10)] {
            let line = format!("{line}\r\n");
            assert_eq!(chunk_size(line.as_bytes()).expect("a size"), size, "{line}");
        }
        for line in ["0x5", "11111111111111111"] {
            chunk_size(format!("{line}\r\n").as_bytes()).expect_err(line);
        }
    }
}
