//! Requests on an HTTP/2 connection that the HTTP/2 library refuses by itself, which tells nobody: that is seen in what it
//! writes.
//!
//! *Beyond `limits.streams`.* A client is told the limit at the beginning, and keeps to it: it queues further calls by itself, of
//! which nobody here knows. One that does not, or that has not heard it yet, has each stream beyond it refused. Nothing else is
//! refused with that code (RFC 9113, 5.1.2 and 8.7).
//!
//! *A head beyond `limits.header_bytes`.* It is answered with 431 and nothing else: headers that end their stream and have one
//! field. Responses of ours have a date besides.

use crate::telemetry::{Limit, RequestHeadRefused};
use hyper::rt::{Read, ReadBufCursor, Write};
use pin_project::pin_project;
use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

/// A connection of HTTP/2 whose refused streams are counted.
#[pin_project]
pub(super) struct RefusedStreamCounter<S> {
    #[pin]
    io: S,
    frames: FrameScanner,
    client: Option<IpAddr>,
}

/// The frames that go out, of which only the beginning is looked at (RFC 9113, 4.1).
#[derive(Default)]
struct FrameScanner {
    /// What has gone out of a frame's head, with the error code behind it where it has one, or the beginning of its
    /// fields.
    head: [u8; CODE.1],
    filled: usize,
    /// Bytes that are left of the frame behind that.
    left: usize,
}

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Where a reset's error code begins and ends.
const CODE: (usize, usize) = (HEAD, HEAD + 4);
/// The type of a frame with headers, and its flag that the stream ends with them (6.2).
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
/// As many bytes of a field say how long it is, where it has a name of the static table (RFC 7541, 6).
const FIELD: usize = 2;
/// The type of a frame that resets a stream (6.4).
const RST_STREAM: u8 = 3;
/// Why: it was not begun (7).
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

// === impl Counted ===

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

// === impl Frames ===

impl FrameScanner {
    /// These bytes have gone out.
    fn scan(&mut self, mut bytes: &[u8], client: Option<IpAddr>) {
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.needed() - self.filled).min(bytes.len());
            self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == self.needed() {
                self.on_frame(client);
            }
        }
    }

    /// Bytes that must be known of a frame; more once it is known what it is.
    fn needed(&self) -> usize {
        match self.head[3] {
            _ if self.filled < HEAD => HEAD,
            RST_STREAM => CODE.1,
            HEADERS if self.head[4] & END_STREAM != 0 => HEAD + self.length().min(FIELD),
            _ => HEAD,
        }
    }

    /// Bytes of a frame behind its head.
    fn length(&self) -> usize {
        self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    /// Enough of a frame has gone out to know what it is.
    fn on_frame(&mut self, client: Option<IpAddr>) {
        match self.head[3] {
            RST_STREAM if self.head[CODE.0..] == REFUSED_STREAM => Limit::Streams.record_hit(),
            HEADERS if self.head[4] & END_STREAM != 0 && self.has_one_field() => {
                RequestHeadRefused { limit: Limit::HeaderBytes, client }.emit();
            }
            _ => {}
        }
        self.left = (HEAD + self.length()).saturating_sub(self.filled);
        self.filled = 0;
    }

    /// Whether headers are a single field: one of a table, or a value with its name in the static table (RFC 7541, 6.1
    /// and 6.2).
    fn has_one_field(&self) -> bool {
        let [first, second] = [self.head[HEAD], self.head[HEAD + 1]];
        match self.length() {
            0 => false,
            1 => first & 0x80 != 0,
            length => first & 0x80 == 0 && first & 0x0f != 0 && length == FIELD + usize::from(second & 0x7f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::limits;

    fn hits(key: &str) -> u64 {
        limits().iter().find(|limit| limit.limit == key).expect("it is counted").hits
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("it is short");
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], payload].concat()
    }

    #[test]
    fn a_refused_stream_is_seen_however_its_bytes_are_divided() {
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
            // Not the end; a date besides, new or known; none; something else that has flags.
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
