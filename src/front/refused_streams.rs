//! Counts requests on an HTTP/2 connection that the HTTP/2 library refuses without a callback, by scanning
//! the frames it writes.
//!
//! *Above `limits.streams`.* A client reads the limit at the beginning, and queues further calls itself,
//! which the proxy cannot count. If a client exceeds the limit, or has not read it yet, each further stream
//! is refused. No other refusal has that code (RFC 9113, 5.1.2 and 8.7).
//!
//! *A head above `limits.header_bytes`.* The response is 431 and nothing else: headers that end their stream
//! and have one field. Responses of the proxy also have a date.

use crate::telemetry::{Limit, RequestHeadRefused};
use hyper::rt::{Read, ReadBufCursor, Write};
use pin_project::pin_project;
use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

/// An HTTP/2 connection whose refused streams are counted.
#[pin_project]
pub(super) struct RefusedStreamCounter<S> {
    #[pin]
    io: S,
    frames: FrameScanner,
    client: Option<IpAddr>,
}

/// Scanner of outgoing frames, which reads only their beginnings (RFC 9113, 4.1).
#[derive(Default)]
struct FrameScanner {
    /// The scanned bytes: a frame's head, followed by its error code or by the beginning of its fields.
    head: [u8; ERROR_CODE_RANGE.1],
    /// Number of valid bytes in `head`.
    filled: usize,
    /// Bytes of the frame that are still to be skipped.
    bytes_to_skip: usize,
}

/// Length of a frame's head in bytes (RFC 9113, 4.1).
const HEAD_LENGTH: usize = 9;
/// Range of the error code in a RST_STREAM frame.
const ERROR_CODE_RANGE: (usize, usize) = (HEAD_LENGTH, HEAD_LENGTH + 4);
/// The type of a HEADERS frame (6.2).
const HEADERS: u8 = 1;
/// The END_STREAM flag of a HEADERS frame (6.2).
const END_STREAM: u8 = 1;
/// Bytes of a header field up to and including the length of its value, if its name is in the static table
/// (RFC 7541, 6).
const FIELD_PREFIX_LENGTH: usize = 2;
/// The type of a RST_STREAM frame (6.4).
const RST_STREAM: u8 = 3;
/// The error code REFUSED_STREAM (7).
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

// === impl RefusedStreamCounter ===

impl<S> RefusedStreamCounter<S> {
    pub(super) fn new(io: S, client: Option<IpAddr>) -> Self {
        Self { io, frames: FrameScanner::default(), client }
    }
}

impl<S: Read> Read for RefusedStreamCounter<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_read(cx, buf)
    }
}

impl<S: Write> Write for RefusedStreamCounter<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = this.io.poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = written {
            this.frames.scan(&buf[..count], *this.client);
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = this.io.poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(mut count)) = written {
            for buf in bufs {
                let part = buf.len().min(count);
                this.frames.scan(&buf[..part], *this.client);
                count -= part;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_shutdown(cx)
    }
}

// === impl FrameScanner ===

impl FrameScanner {
    /// Scans outgoing bytes.
    fn scan(&mut self, mut bytes: &[u8], client: Option<IpAddr>) {
        while !bytes.is_empty() {
            let skipped = self.bytes_to_skip.min(bytes.len());
            self.bytes_to_skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.needed_bytes() - self.filled).min(bytes.len());
            self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == self.needed_bytes() {
                self.on_frame(client);
            }
        }
    }

    /// Returns how many bytes of the frame must be read; more once its type is known.
    fn needed_bytes(&self) -> usize {
        match self.head[3] {
            _ if self.filled < HEAD_LENGTH => HEAD_LENGTH,
            RST_STREAM => ERROR_CODE_RANGE.1,
            HEADERS if self.head[4] & END_STREAM != 0 => {
                HEAD_LENGTH + self.frame_length().min(FIELD_PREFIX_LENGTH)
            }
            _ => HEAD_LENGTH,
        }
    }

    /// Returns the length of the frame after its head, in bytes.
    fn frame_length(&self) -> usize {
        self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    /// Counts the frame if it refuses a stream or a head, once enough of it is read.
    fn on_frame(&mut self, client: Option<IpAddr>) {
        match self.head[3] {
            RST_STREAM if self.head[ERROR_CODE_RANGE.0..] == REFUSED_STREAM => Limit::Streams.record_hit(),
            HEADERS if self.head[4] & END_STREAM != 0 && self.has_one_field() => {
                RequestHeadRefused { limit: Limit::HeaderBytes, client }.emit();
            }
            _ => {}
        }
        self.bytes_to_skip = (HEAD_LENGTH + self.frame_length()).saturating_sub(self.filled);
        self.filled = 0;
    }

    /// Whether headers are a single field: an indexed one, or a literal with its name in the static table
    /// (RFC 7541, 6.1 and 6.2).
    fn has_one_field(&self) -> bool {
        let [first, second] = [self.head[HEAD_LENGTH], self.head[HEAD_LENGTH + 1]];
        match self.frame_length() {
            0 => false,
            1 => first & 0x80 != 0,
            length => {
                first & 0x80 == 0
                    && first & 0x0f != 0
                    && length == FIELD_PREFIX_LENGTH + usize::from(second & 0x7f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::limit_snapshots;

    fn hits(key: &str) -> u64 {
        limit_snapshots().iter().find(|limit| limit.limit == key).expect("it is counted").hits
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("it is short");
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], payload].concat()
    }

    #[test]
    fn a_refused_stream_is_counted_however_its_bytes_are_divided() {
        const DATA: u8 = 0;
        const PING: u8 = 6;
        let bytes = [
            frame(4, &[]),
            frame(RST_STREAM, &[0, 0, 0, 8]),
            frame(DATA, &frame(RST_STREAM, &REFUSED_STREAM)),
            frame(RST_STREAM, &REFUSED_STREAM),
            frame(PING, &[3; 8]),
            frame(RST_STREAM, &REFUSED_STREAM),
            frame(DATA, &[3; 200]),
        ]
        .concat();
        for portion in 1..=bytes.len() {
            let (mut frames, before) = (FrameScanner::default(), hits("limits.streams"));
            bytes.chunks(portion).for_each(|bytes| frames.scan(bytes, None));
            assert_eq!(hits("limits.streams") - before, 2, "{portion} at a time");
        }
    }

    #[test]
    fn headers_that_end_a_stream_and_have_one_field_are_a_head_that_was_refused() {
        const KEY: &str = "limits.header_bytes";
        let headers = |flags: u8, fields: &[u8]| {
            let mut frame = frame(HEADERS, fields);
            frame[4] = flags;
            frame
        };
        let refused: [&[u8]; 3] = [b"\x48\x03431", b"\x08\x03431", b"\xbe"];
        for portion in [1, 2, 100] {
            let (mut frames, before) = (FrameScanner::default(), hits(KEY));
            let mut go_out =
                |frame: Vec<u8>| frame.chunks(portion).for_each(|bytes| frames.scan(bytes, None));
            refused.into_iter().for_each(|fields| go_out(headers(4 | END_STREAM, fields)));
            assert_eq!(hits(KEY) - before, 3, "{portion} at a time");
            // Not the end; also a date, new or indexed; no field; another frame type with flags.
            go_out(headers(4, b"\xbe"));
            go_out(headers(4 | END_STREAM, b"\x48\x03431\xbf"));
            go_out(headers(4 | END_STREAM, b"\xbe\xbf"));
            go_out(headers(4 | END_STREAM, b""));
            let mut data = frame(0, b"\xbe");
            data[4] = END_STREAM;
            go_out(data);
            assert_eq!(hits(KEY) - before, 3, "{portion} at a time");
        }
    }
}
