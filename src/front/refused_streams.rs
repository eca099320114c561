//! Calls on one HTTP/2 connection beyond `limits.streams`.
//!
//! A client is told the limit at the beginning, and keeps to it: it queues further calls by itself, of which nobody here knows. One that
//! does not, or that has not heard it yet, has each stream beyond it refused by the HTTP/2 library, which tells nobody: that is
//! seen in what it writes. Nothing else is refused with that code (RFC 9113, 5.1.2 and 8.7).

use crate::telemetry::Limit;
use hyper::rt::{Read, ReadBufCursor, Write};
use pin_project::pin_project;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

/// A connection of HTTP/2 whose refused streams are counted.
#[pin_project]
pub(super) struct Counted<S> {
    #[pin]
    io: S,
    frames: Frames,
}

/// The frames that go out, of which only the beginning is looked at (RFC 9113, 4.1).
#[derive(Default)]
struct Frames {
    /// What has gone out of a frame's head, with the error code behind it where it has one.
    head: [u8; CODE.1],
    filled: usize,
    /// Bytes that are left of the frame behind that.
    left: usize,
}

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Where a reset's error code begins and ends.
const CODE: (usize, usize) = (HEAD, HEAD + 4);
/// The type of a frame that resets a stream (6.4).
const RST_STREAM: u8 = 3;
/// Why: it was not begun (7).
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

// === impl Counted ===

impl<S> Counted<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, frames: Frames::default() }
    }
}

impl<S: Read> Read for Counted<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_read(cx, buf)
    }
}

impl<S: Write> Write for Counted<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = this.io.poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = written {
            this.frames.go_out(&buf[..count]);
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
                this.frames.go_out(&buf[..part]);
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

impl Frames {
    /// These bytes have gone out.
    fn go_out(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let wanted = if self.is_reset() { CODE.1 } else { HEAD };
            let taken = (wanted - self.filled).min(bytes.len());
            self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == CODE.1 || self.filled == HEAD && !self.is_reset() {
                self.begin();
            }
        }
    }

    /// Whether this frame is known to reset a stream.
    fn is_reset(&self) -> bool {
        self.filled >= HEAD && self.head[3] == RST_STREAM
    }

    /// Enough of a frame has gone out to know what it is.
    fn begin(&mut self) {
        let length = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if self.is_reset() && self.head[CODE.0..] == REFUSED_STREAM {
            Limit::Streams.hit();
        }
        self.left = (HEAD + length).saturating_sub(self.filled);
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::limits;

    fn hits() -> u64 {
        limits().iter().find(|limit| limit.limit == "limits.streams").expect("it is counted").hits
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
            let (mut frames, before) = (Frames::default(), hits());
            bytes.chunks(portion).for_each(|bytes| frames.go_out(bytes));
            assert_eq!(hits() - before, 2, "{portion} at a time");
        }
    }
}
