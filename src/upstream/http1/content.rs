//! Decoding of response bodies (RFC 9110, 8.4).
//!
//! Every request asks for `identity`; some servers, and content delivery networks, compress nevertheless. An
//! unsupported coding is an error that names it. The reader bounds decoding: at most [`DECODED_BYTES`] are
//! decoded in advance.

use async_compression::{
    tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder},
    zstd::DParameter,
};
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyDataStream;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncBufRead, AsyncRead, BufReader};
use tokio_util::io::{ReaderStream, StreamReader};

use super::connection::RawBody;
use crate::upstream::CallError;

/// Body of a response, without content coding.
pub(in crate::upstream) enum IncomingBody {
    Plain(RawBody),
    /// Body of a response with a content coding.
    Decoded(Box<DecodedBody>),
}

/// A body that is decoded while it is read.
pub(in crate::upstream) struct DecodedBody {
    pieces: ReaderStream<Pin<Box<dyn AsyncRead + Send>>>,
    /// Names of the codings, for error messages.
    codings: String,
    has_ended: bool,
}

/// Bytes that are decoded at a time.
const DECODED_BYTES: usize = 16 << 10;
/// Limit of the codings of one body; more are an error.
const MAX_CODINGS: usize = 2;
/// Largest window of `zstd`, as a power of two: 8 MiB, which no response may exceed (RFC 9659, 3).
const ZSTD_WINDOW_LOG: u32 = 23;

/// Wraps the body of a response in the decoders for its content codings, and removes `Content-Encoding` and
/// `Content-Length`.
///
/// # Errors
/// [`CallError::Invalid`] if the coding is unsupported.
pub(super) fn decode(response: http::Response<RawBody>) -> Result<http::Response<IncomingBody>, CallError> {
    if !response.headers().contains_key(header::CONTENT_ENCODING) {
        return Ok(response.map(IncomingBody::Plain));
    }
    let (mut head, body) = response.into_parts();
    let codings = codings(&head.headers);
    head.headers.remove(header::CONTENT_ENCODING);
    if codings.is_empty() || body.is_end_stream() {
        return Ok(http::Response::from_parts(head, IncomingBody::Plain(body)));
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let coding_names = codings.join(", ");
    if codings.len() > MAX_CODINGS {
        return Err(unsupported_coding(&coding_names));
    }
    let mut reader: Pin<Box<dyn AsyncRead + Send>> = Box::pin(StreamReader::new(BodyDataStream::new(body)));
    // The last coding was applied last.
    for coding in codings.iter().rev() {
        reader = decoder(coding, BufReader::new(reader)).ok_or_else(|| unsupported_coding(&coding_names))?;
    }
    let pieces = ReaderStream::with_capacity(reader, DECODED_BYTES);
    let decoded = DecodedBody { pieces, codings: coding_names, has_ended: false };
    Ok(http::Response::from_parts(head, IncomingBody::Decoded(Box::new(decoded))))
}

/// Content codings in the order of their application, without `identity`.
fn codings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let raw_names = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let names = raw_names.map(|coding| String::from_utf8_lossy(coding.trim_ascii()).to_ascii_lowercase());
    names.filter(|coding| !matches!(&**coding, "" | "identity")).collect()
}

fn decoder(coding: &str, body: impl AsyncBufRead + Send + 'static) -> Option<Pin<Box<dyn AsyncRead + Send>>> {
    Some(match coding {
        "gzip" | "x-gzip" => {
            let mut gzip = GzipDecoder::new(body);
            gzip.multiple_members(true);
            Box::pin(gzip)
        }
        "deflate" => Box::pin(ZlibDecoder::new(body)),
        "br" => Box::pin(BrotliDecoder::new(body)),
        "zstd" => {
            let window = [DParameter::window_log_max(ZSTD_WINDOW_LOG)];
            let mut zstd = ZstdDecoder::with_params(body, &window);
            zstd.multiple_members(true);
            Box::pin(zstd)
        }
        _ => return None,
    })
}

fn unsupported_coding(codings: &str) -> CallError {
    let codings: String = codings.chars().take(100).collect();
    CallError::Invalid(format!(
        "its content coding is {codings:?}, although `identity` was asked for; gzip, deflate, br and zstd can be read"
    ))
}

// === impl IncomingBody ===

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Decoded(body) => body.poll_piece(cx).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Decoded(body) => body.has_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Decoded(body) if body.has_ended => SizeHint::with_exact(0),
            Self::Decoded(_) => SizeHint::default(),
        }
    }
}

// === impl DecodedBody ===

impl DecodedBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let piece = ready!(Pin::new(&mut self.pieces).poll_next(cx));
        self.has_ended = !matches!(piece, Some(Ok(_)));
        let decoding_error = |error: io::Error| {
            io::Error::new(error.kind(), format!("its body is not {}: {error}", self.codings))
        };
        Poll::Ready(piece.map(|piece| piece.map_err(decoding_error)))
    }
}
