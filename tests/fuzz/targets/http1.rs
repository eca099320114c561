//! Our reader of HTTP/1.1 answers against hyper's: the same head and the same body, or an error.
//!
//! Where one of them refuses what the other takes, ours must be the one that refuses, and for a reason that is
//! named here. What we take for the end of a body decides whose answer the next bytes are.

use super::cuttings;
use bytes::{Bytes, BytesMut};
use deferral::internals::upstream::http1::{BodyFraming, BodyPart, HeadReader, is_keep_alive};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// As far as an answer could be read.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    version: http::Version,
    headers: Vec<(String, Bytes)>,
    body: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Read to its end. How many of the bytes it took, and whether the connection may be used again.
    Whole {
        taken: usize,
        kept: bool,
    },
    Broken,
}

/// `answer` is what a server sends before it closes the connection.
pub fn target(answer: &[u8]) {
    // Ours has a limit for each head and line, and hyper's buffers grow by steps.
    if answer.len() > 16 << 10 {
        return;
    }
    let whole = ours(&[answer]);
    for pieces in cuttings(answer) {
        assert_eq!(ours(&pieces), whole, "{pieces:?}");
    }
    let theirs = theirs(answer);
    match (whole, theirs) {
        (Some(ours), Some(theirs)) => {
            assert_eq!(
                (ours.status, ours.version, &ours.headers),
                (theirs.status, theirs.version, &theirs.headers)
            );
            match (&ours.end, &theirs.end) {
                (End::Whole { .. }, End::Whole { .. }) => assert_eq!(ours.body, theirs.body),
                // Trailers are skipped, not read.
                (End::Whole { .. }, End::Broken) if has_trailers(answer) => {
                    assert_eq!(ours.body, theirs.body);
                }
                // Of trailers each line ends in CR LF for us, and for hyper some may end in LF.
                (End::Broken, End::Whole { .. }) if ends_in_trailers(answer) => {
                    assert_eq!(ours.body, theirs.body);
                }
                // Cut off, or not delimited: what came before is the same as far as both went.
                (End::Broken, End::Broken) => {
                    let both = ours.body.len().min(theirs.body.len());
                    assert_eq!(ours.body[..both], theirs.body[..both]);
                }
                ends => panic!("one of them sees the end of the body: {ends:?}"),
            }
        }
        (None, None) => {}
        (Some(ours), None) => panic!("hyper refuses what we read: {ours:?}"),
        (None, Some(theirs)) => {
            assert!(is_refused_by_us_alone(&theirs), "we refuse what hyper reads: {theirs:?}");
        }
    }
}

/// Answers in which two readers could see two things, or that end HTTP.
fn is_refused_by_us_alone(answer: &Answer) -> bool {
    let lengths: Vec<_> =
        answer.headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value).collect();
    // `5, 5`, or twice 5, which RFC 9112, 6.3 lets a client take or refuse.
    let coding = |(name, value): &(String, Bytes)| name == "transfer-encoding" && !value.is_ascii();
    answer.status == 101
        || answer.headers.iter().any(coding)
        || lengths.len() > 1
        || lengths.iter().any(|length| !length.iter().all(u8::is_ascii_digit))
}

/// Whether something stands between the last chunk and the end.
fn has_trailers(answer: &[u8]) -> bool {
    let mut seen = false;
    let bytes: Vec<_> = answer.chunks(1).collect();
    read(&bytes, |framing| seen |= matches!(framing, BodyFraming::Trailers { earlier_lines: 1.., .. }));
    seen
}

/// Whether our reading comes as far as behind the last chunk, and no further.
fn ends_in_trailers(answer: &[u8]) -> bool {
    let mut last = false;
    read(&[answer], |framing| last = matches!(framing, BodyFraming::Trailers { .. }));
    last
}

/// `Missing` where there is no head, or none that is gone on from.
fn ours(pieces: &[&[u8]]) -> Option<Answer> {
    read(pieces, |_| {})
}

/// The same, `look`ing at where the body stands after each piece.
fn read(pieces: &[&[u8]], mut look: impl FnMut(&BodyFraming)) -> Option<Answer> {
    let mut pieces = pieces.iter();
    let mut read = BytesMut::new();
    let mut arrived = 0;
    let mut more = |read: &mut BytesMut| {
        let piece = pieces.next().copied().unwrap_or_default();
        read.extend_from_slice(piece);
        arrived += piece.len();
        !piece.is_empty()
    };
    let mut reader = HeadReader::default();
    let head = loop {
        match reader.next(&mut read) {
            Ok(Some(head)) => break head,
            Ok(None) if more(&mut read) => {}
            Ok(None) | Err(_) => return None,
        }
    };
    let mut framing = BodyFraming::from_head(&head).ok()?;
    let until_close = framing == BodyFraming::UntilClose;
    let mut body = Vec::new();
    let is_whole = loop {
        let next = framing.next(&mut read);
        look(&framing);
        match next {
            Ok(BodyPart::Data(data)) => {
                assert!(!data.is_empty(), "nothing is no data");
                body.extend_from_slice(&data);
            }
            Ok(BodyPart::Ended) => break true,
            Ok(BodyPart::NeedsMore(_)) if more(&mut read) => {}
            Ok(BodyPart::NeedsMore(_)) => break until_close,
            Err(_) => break false,
        }
    };
    let end = match is_whole {
        true => End::Whole { taken: arrived - read.len(), kept: is_keep_alive(&head) && !until_close },
        false => End::Broken,
    };
    let status = head.status().as_u16();
    Some(Answer { status, version: head.version(), headers: headers(head.headers()), body, end })
}

fn theirs(answer: &[u8]) -> Option<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(async {
        let server = Server { unsent: VecDeque::from(answer.to_vec()), asked: false, reader: None };
        let mut client = hyper::client::conn::http1::Builder::new();
        client.max_headers(128);
        let (mut sender, connection) =
            client.handshake(TokioIo::new(server)).await.expect("no bytes are exchanged");
        let request = hyper::Request::post("/").body(Empty::<Bytes>::new()).expect("a request");
        let exchange = async {
            let (head, mut body) = sender.send_request(request).await.ok()?.into_parts();
            let mut read = Vec::new();
            let end = loop {
                match body.frame().await {
                    Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
                    Some(Err(_)) => break End::Broken,
                    None => break End::Whole { taken: 0, kept: false },
                }
            };
            let (status, version) = (head.status.as_u16(), head.version);
            Some(Answer { status, version, headers: headers(&head.headers), body: read, end })
        };
        tokio::pin!(exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            // It ends when it has read all there is; what it has read may not have been taken yet.
            _ = connection => exchange.await,
        }
    })
}

fn headers(headers: &http::HeaderMap) -> Vec<(String, Bytes)> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))
    };
    headers.iter().map(line).collect()
}

/// Answers when it has been asked, and closes.
struct Server {
    unsent: VecDeque<u8>,
    asked: bool,
    reader: Option<Waker>,
}

// === impl Server ===

impl AsyncRead for Server {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let here = self.unsent.len().min(buf.remaining());
        let sent: Vec<u8> = self.unsent.drain(..here).collect();
        buf.put_slice(&sent);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Server {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.asked = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
