//! A reply as JSON or as an event stream.
//!
//! The first item decides. An immediate reply is one JSON response with its own status and headers. A
//! notification, or a while without items, begins an event stream: status 200, one `data:` line for each
//! message, a comment or a progress notification after each further interval ([`KeepAlive`]), and the reply
//! as the last event. At the deadline the client gets an error, and its call is dropped, as if it had
//! disconnected. (A reply over 1 MiB on a stream that has begun is still one event; some clients refuse
//! those, but there is no alternative.)
//!
//! The body polls the call's items in place: no task, no channel, and a slow reader slows the call down. If a
//! client disconnects, hyper drops the future or the body, and the items with it. (If another request has
//! begun on the same HTTP/1 connection, hyper does not notice a disconnect until a comment cannot be
//! written.)
//!
//! # When a task handle, or the end of a task, is delivered
//!
//! A [`DeliveryCommit`] is confirmed when the client's socket has taken the reply's last byte. A body frame
//! is a [`BodyChunk`], which hyper consumes as it writes. Its end hands the commit to the
//! [`ClientConnection`]; the next completed flush of the socket confirms it. A chunk dropped before its end
//! drops the commit, and so does a connection that ends before the flush. This holds for HTTP/1, whether
//! hyper copies or queues the chunk, and for HTTP/2, where flow control may delay it long after it was
//! polled.

use super::{connection::ClientConnection, layers::access_entry::AccessEntry, responses};
use crate::{
    dialect::modern,
    protocol::{ErrorObject, RequestId, accept::event_stream_headers, sse},
    proxy::{
        AccessSummary, BodyContinuation, BodyPiece, BodyStream, CallReply, DeliveryCommit, KeepAlive,
        KeepAliveStep, ReplyItem, ReplyStream,
    },
    runtime::Clock,
    telemetry::{Limit, RequestOutcome},
};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project::pin_project;
use std::{
    future::poll_fn,
    io::IoSlice,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// What the response to a call needs beside its items.
pub(super) struct ResponseContext {
    /// JSON-RPC id of the call, for errors of the proxy.
    pub(super) id: RequestId,
    pub(super) entry: AccessEntry,
    pub(super) keep_alive: KeepAlive,
}

/// The body of every response of the front.
#[pin_project]
pub(super) struct FrontBody {
    #[pin]
    kind: BodyKind,
    entry: AccessEntry,
}

#[pin_project(project = KindPinned)]
enum BodyKind {
    Empty,
    /// `None` once hyper has taken it.
    Whole(Option<(BodyChunk, AccessSummary)>),
    Events(EventStream),
    /// A server's messages to a legacy client; `None` after the last.
    Relayed(Option<BodyStream>),
}

/// Error of a relayed body: the server's response was cut off, so hyper cuts off the relayed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's response was cut off")]
pub(super) struct ResponseTruncated;

/// An event stream in progress.
struct EventStream {
    /// `None` after the last item.
    items: Option<ReplyStream>,
    /// The event that made the response a stream; `None` once sent.
    first: Option<BodyChunk>,
    keep_alive: KeepAlive,
    id: RequestId,
}

/// One frame of a body: an event, or plain bytes.
pub(super) struct BodyChunk {
    /// Bytes in front of the message: `data: ` for an event.
    before: &'static [u8],
    message: Bytes,
    /// Bytes behind the message: the empty line that ends an event.
    after: &'static [u8],
    /// Commit of a task handle, given to the connection when the last byte is consumed.
    commit: Option<(DeliveryCommit, Arc<ClientConnection>)>,
}

/// Waits for the first item, and builds the response accordingly.
pub(super) async fn respond(mut items: ReplyStream, context: ResponseContext) -> Response<FrontBody> {
    let ResponseContext { id, mut entry, mut keep_alive } = context;
    let connection = Arc::clone(entry.connection());
    let first = match poll_fn(|cx| poll_next(&mut items, &mut keep_alive, connection.clock(), cx)).await {
        NextEvent::Item(ReplyItem::Reply(CallReply { status, headers, body, commit, summary })) => {
            entry.set_status(status);
            let commit = commit.map(|commit| (commit, connection));
            let mut response = Response::new(FrontBody::whole(body, commit, summary, entry));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return response;
        }
        NextEvent::End => {
            let error = responses::no_response_error();
            return respond_with_error(
                &id,
                StatusCode::INTERNAL_SERVER_ERROR,
                &error,
                RequestOutcome::ProxyFailed,
                entry,
            );
        }
        NextEvent::Item(ReplyItem::Notification(message)) => BodyChunk::event(message, None),
        NextEvent::Item(ReplyItem::TaskEnd(message, commit)) => {
            BodyChunk::event(message, Some((commit, connection)))
        }
        NextEvent::KeepAliveStep(KeepAliveStep::Progress(message)) => BodyChunk::event(message, None),
        NextEvent::KeepAliveStep(KeepAliveStep::Comment) => BodyChunk::plain(sse::KEEP_ALIVE),
        NextEvent::KeepAliveStep(KeepAliveStep::Deadline) => {
            drop(items);
            Limit::HeldDeadline.record_hit();
            return respond_with_error(
                &id,
                StatusCode::OK,
                &keep_alive.deadline_error(),
                RequestOutcome::UpstreamFailed,
                entry,
            );
        }
    };
    entry.set_status(StatusCode::OK);
    let events = EventStream { items: Some(items), first: Some(first), keep_alive, id };
    let mut response = Response::new(FrontBody { kind: BodyKind::Events(events), entry });
    *response.headers_mut() = event_stream_headers();
    response
}

/// Builds an error response for a call that has no item yet.
fn respond_with_error(
    id: &RequestId,
    status: StatusCode,
    error: &ErrorObject,
    outcome: RequestOutcome,
    entry: AccessEntry,
) -> Response<FrontBody> {
    let summary = AccessSummary::failed(outcome, error);
    responses::json(status, modern::error_response(Some(id), error), summary, entry)
}

/// The next event of a waiting call.
enum NextEvent {
    Item(ReplyItem),
    /// The call has ended without a reply.
    End,
    KeepAliveStep(KeepAliveStep),
}

fn poll_next(
    items: &mut ReplyStream,
    keep_alive: &mut KeepAlive,
    clock: &dyn Clock,
    cx: &mut Context<'_>,
) -> Poll<NextEvent> {
    Poll::Ready(match items.poll_next_unpin(cx) {
        Poll::Ready(Some(item)) => {
            if let ReplyItem::Notification(message) | ReplyItem::TaskEnd(message, _) = &item {
                keep_alive.record_message(message);
            }
            NextEvent::Item(item)
        }
        Poll::Ready(None) => NextEvent::End,
        Poll::Pending => NextEvent::KeepAliveStep(ready!(keep_alive.poll(cx, clock, true))),
    })
}

// === impl FrontBody ===

impl FrontBody {
    /// Creates a body without bytes.
    pub(super) fn empty(entry: AccessEntry) -> Self {
        Self { kind: BodyKind::Empty, entry }
    }

    /// Creates a body of one message. The summary is recorded in the entry once hyper takes the message, and
    /// `commit` is confirmed once the client's socket has taken it.
    pub(super) fn whole(
        message: Bytes,
        commit: Option<(DeliveryCommit, Arc<ClientConnection>)>,
        summary: AccessSummary,
        mut entry: AccessEntry,
    ) -> Self {
        entry.record_result(&message);
        let chunk = BodyChunk { before: b"", message, after: b"", commit };
        Self { kind: BodyKind::Whole(Some((chunk, summary))), entry }
    }

    /// Creates a body of a server's relayed messages.
    pub(super) fn relayed(pieces: BodyStream, entry: AccessEntry) -> Self {
        Self { kind: BodyKind::Relayed(Some(pieces)), entry }
    }
}

impl HttpBody for FrontBody {
    type Data = BodyChunk;
    type Error = ResponseTruncated;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyChunk>, ResponseTruncated>>> {
        let this = self.project();
        let chunk = match this.kind.project() {
            KindPinned::Empty => None,
            KindPinned::Whole(whole) => whole.take().map(|(chunk, summary)| {
                this.entry.complete(summary);
                chunk
            }),
            KindPinned::Events(events) => ready!(events.poll_chunk(this.entry, cx)),
            KindPinned::Relayed(pieces) => ready!(poll_piece(pieces, this.entry, cx))?,
        };
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Empty => true,
            BodyKind::Whole(whole) => whole.is_none(),
            BodyKind::Events(events) => events.items.is_none(),
            BodyKind::Relayed(pieces) => pieces.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Whole(whole) => {
                SizeHint::with_exact(whole.as_ref().map_or(0, |(chunk, _)| chunk.remaining() as u64))
            }
            // The length of a relayed body is in the headers, where the server gave one.
            BodyKind::Events(_) | BodyKind::Relayed(_) => SizeHint::default(),
        }
    }
}

/// Returns the next piece of a relayed response; `None` after the last.
fn poll_piece(
    pieces: &mut Option<BodyStream>,
    entry: &mut AccessEntry,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BodyChunk>, ResponseTruncated>> {
    let Some(stream) = pieces else { return Poll::Ready(Ok(None)) };
    let Some(BodyPiece { bytes, summary, continuation, commit }) = ready!(stream.poll_next_unpin(cx)) else {
        *pieces = None;
        return Poll::Ready(Ok(None));
    };
    if let Some(summary) = summary {
        entry.complete(summary);
    }
    match continuation {
        BodyContinuation::More => {}
        BodyContinuation::End => *pieces = None,
        BodyContinuation::Abort => {
            *pieces = None;
            return Poll::Ready(Err(ResponseTruncated));
        }
    }
    let commit = commit.map(|commit| (commit, Arc::clone(entry.connection())));
    Poll::Ready(Ok((!bytes.is_empty()).then(|| BodyChunk { commit, ..BodyChunk::plain(bytes) })))
}

// === impl EventStream ===

impl EventStream {
    fn poll_chunk(&mut self, entry: &mut AccessEntry, cx: &mut Context<'_>) -> Poll<Option<BodyChunk>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        let Some(items) = &mut self.items else { return Poll::Ready(None) };
        let chunk = match ready!(poll_next(items, &mut self.keep_alive, entry.connection().clock(), cx)) {
            NextEvent::Item(ReplyItem::Notification(message))
            | NextEvent::KeepAliveStep(KeepAliveStep::Progress(message)) => BodyChunk::event(message, None),
            NextEvent::Item(ReplyItem::TaskEnd(message, commit)) => {
                BodyChunk::event(message, Some((commit, Arc::clone(entry.connection()))))
            }
            NextEvent::Item(ReplyItem::Reply(CallReply { body, commit, summary, .. })) => {
                self.items = None;
                entry.complete(summary);
                BodyChunk::event(body, commit.map(|commit| (commit, Arc::clone(entry.connection()))))
            }
            // A stream that ended without a response would leave some clients waiting for ever.
            NextEvent::End => self.fail(&responses::no_response_error(), RequestOutcome::ProxyFailed, entry),
            NextEvent::KeepAliveStep(KeepAliveStep::Comment) => BodyChunk::plain(sse::KEEP_ALIVE),
            NextEvent::KeepAliveStep(KeepAliveStep::Deadline) => {
                Limit::HeldDeadline.record_hit();
                self.fail(&self.keep_alive.deadline_error(), RequestOutcome::UpstreamFailed, entry)
            }
        };
        Poll::Ready(Some(chunk))
    }

    fn fail(&mut self, error: &ErrorObject, outcome: RequestOutcome, entry: &mut AccessEntry) -> BodyChunk {
        self.items = None;
        entry.complete(AccessSummary::failed(outcome, error));
        BodyChunk::event(modern::error_response(Some(&self.id), error), None)
    }
}

// === impl BodyChunk ===

impl BodyChunk {
    /// Creates the event of a message: a single `data:` line. `message` has no line break.
    fn event(message: Bytes, commit: Option<(DeliveryCommit, Arc<ClientConnection>)>) -> Self {
        Self { before: b"data: ", message, after: b"\n\n", commit }
    }

    fn plain(message: Bytes) -> Self {
        Self { before: b"", message, after: b"", commit: None }
    }

    /// Splits off at most this many bytes from the front. The commit stays with the last byte.
    pub(super) fn split_to(&mut self, count: usize) -> Self {
        if self.remaining() <= count {
            return std::mem::replace(self, Self::plain(Bytes::new()));
        }
        let before = self.before.len().min(count);
        let message = self.message.len().min(count - before);
        let after = count - before - message;
        let front = Self {
            before: &self.before[..before],
            message: self.message.split_to(message),
            after: &self.after[..after],
            commit: None,
        };
        self.before = &self.before[before..];
        self.after = &self.after[after..];
        front
    }

    fn parts(&self) -> [&[u8]; 3] {
        [self.before, &self.message, self.after]
    }
}

impl Buf for BodyChunk {
    fn remaining(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.parts().into_iter().find(|part| !part.is_empty()).unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.parts().into_iter().filter(|part| !part.is_empty());
        slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, count: usize) {
        let mut remaining = count;
        let mut step = |len: usize| {
            let step = remaining.min(len);
            remaining -= step;
            step
        };
        self.before = &self.before[step(self.before.len())..];
        self.message.advance(step(self.message.len()));
        self.after = &self.after[step(self.after.len())..];
        assert!(remaining == 0, "no more is consumed than remains");
        if !self.has_remaining()
            && let Some((commit, connection)) = self.commit.take()
        {
            connection.push_commit(commit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::connection::HttpVersion, *};
    use proptest::prelude::*;
    use tokio::sync::oneshot::error::TryRecvError;

    fn event(text: &'static str) -> BodyChunk {
        BodyChunk::event(Bytes::from_static(text.as_bytes()), None)
    }

    #[test]
    fn an_event_is_one_data_line() {
        let mut chunk = event("{}");
        assert_eq!(chunk.remaining(), 10);
        assert_eq!(chunk.copy_to_bytes(10), "data: {}\n\n");
    }

    #[test]
    fn an_event_is_what_the_protocol_calls_one() {
        let mut chunk = event(r#"{"a":1}"#);
        assert_eq!(chunk.copy_to_bytes(chunk.remaining()), sse::message(br#"{"a":1}"#));
    }

    #[test]
    fn a_chunk_split_anywhere_keeps_its_bytes_and_its_commit_at_the_end() {
        let connection = ClientConnection::without_socket(HttpVersion::Http2);
        for at in 0..=12 {
            let (commit, mut fate) = DeliveryCommit::channel();
            let mut rest = event("{}");
            rest.commit = Some((commit, Arc::clone(&connection)));
            let mut front = rest.split_to(at);
            assert_eq!(front.remaining(), at.min(10));
            let mut whole = front.copy_to_bytes(front.remaining()).to_vec();
            drop(front);
            assert_eq!(fate.try_recv(), Err(TryRecvError::Empty), "{at}");
            assert_eq!(rest.has_remaining(), at < 10);
            whole.extend_from_slice(&rest.copy_to_bytes(rest.remaining()));
            assert_eq!(whole, b"data: {}\n\n");
            connection.confirm_commits();
            assert_eq!(fate.try_recv(), Ok(()), "{at}");
        }
    }

    #[test]
    fn an_event_is_written_without_being_copied_together() {
        let chunk = event("{}");
        let mut slices = [IoSlice::new(b""); 4];
        assert_eq!(chunk.chunks_vectored(&mut slices), 3);
        assert_eq!(
            slices[..3].iter().map(|slice| &**slice).collect::<Vec<_>>(),
            [&b"data: "[..], b"{}", b"\n\n"]
        );
        assert_eq!(chunk.chunks_vectored(&mut slices[..1]), 1, "a short list is filled and no more");
    }

    proptest! {
        #[test]
        fn an_event_consumed_in_any_steps_is_the_same(steps in prop::collection::vec(0usize..7, 0..20)) {
            let mut chunk = event("[1,2,3]");
            let mut out = Vec::new();
            for step in steps.into_iter().chain([usize::MAX]) {
                let mut left = step.min(chunk.remaining());
                while left > 0 {
                    let piece = chunk.chunk();
                    let count = left.min(piece.len());
                    out.extend_from_slice(&piece[..count]);
                    chunk.advance(count);
                    left -= count;
                }
            }
            prop_assert_eq!(out, b"data: [1,2,3]\n\n");
            prop_assert!(chunk.chunk().is_empty());
        }
    }
}
