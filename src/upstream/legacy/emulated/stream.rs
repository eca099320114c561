//! GET stream of an emulated session (2025-11-25, *Listening for Messages from the Server*; *Resumability and
//! Redelivery*): messages of the server outside calls.
//!
//! The last [`MAX_EVENTS`] messages are stored, with or without a client: a broken stream loses the messages
//! in flight, and the client resumes with the last event id that it got. Without an id the stream continues
//! with the messages never sent. There is one stream: a client that opens another stream has lost the one
//! before.

use bytes::Bytes;
use std::{
    any::Any,
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    protocol::frame::to_single_line,
    runtime::Mutex,
    upstream::{CallError, forward::StreamedBody},
};

/// Messages for the stream of one session.
#[derive(Default)]
pub(super) struct StreamBacklog(Mutex<BacklogState>);

/// Locked for a few statements only.
#[derive(Default)]
struct BacklogState {
    /// Stored messages, the oldest first.
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// Number of messages dropped so far; the first message has the number 1.
    dropped: u64,
    /// Number of the last message sent.
    sent: u64,
    /// Number of streams opened; only the last one is valid.
    streams: u64,
    /// Whether the last stream is open.
    is_open: bool,
    waker: Option<Waker>,
    is_ended: bool,
}

/// An open stream, as a response body.
pub(super) struct GetStreamBody {
    backlog: Arc<StreamBacklog>,
    stream: u64,
    /// Number of the last message that this stream sent.
    sent: u64,
    /// Whether an event with an id and no data must be sent first.
    sends_empty_event: bool,
    is_ended: bool,
    /// Kept while the stream is open.
    _guard: Box<dyn Any + Send>,
}

/// Limit of stored messages of a session. Sessions of one server share the memory of all messages but
/// requests.
const MAX_EVENTS: usize = 256;
/// Limit of the bytes of a session's stored messages; a larger message is not stored.
pub(super) const MAX_EVENT_BYTES: usize = 1 << 20;
/// Prefix of the message number in an event id.
const EVENT_ID_PREFIX: &str = "get-";

// === impl StreamBacklog ===

impl StreamBacklog {
    /// Stores a message, and drops the oldest ones above the limits.
    pub(super) fn push(&self, message: Bytes) {
        let reader = {
            let mut backlog = self.0.lock();
            backlog.bytes += message.len();
            backlog.messages.push_back(to_single_line(message));
            while backlog.messages.len() > MAX_EVENTS || backlog.bytes > MAX_EVENT_BYTES {
                let Some(oldest) = backlog.messages.pop_front() else { break };
                backlog.bytes -= oldest.len();
                backlog.dropped += 1;
            }
            backlog.waker.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    /// Opens a stream that continues after the event `last_id`, and ends an earlier stream.
    /// `sends_empty_event` says whether the client supports events without data; `guard` is dropped with the
    /// stream.
    pub(super) fn open(
        self: &Arc<Self>,
        last_id: Option<&[u8]>,
        sends_empty_event: bool,
        guard: Box<dyn Any + Send>,
    ) -> GetStreamBody {
        let (stream, sent, old_reader) = {
            let mut backlog = self.0.lock();
            backlog.streams += 1;
            backlog.is_open = true;
            let last = backlog.dropped + backlog.messages.len() as u64;
            // An id that was never assigned belongs to another session, or was made up.
            let resume_after = last_id.and_then(event_number).filter(|requested| *requested <= last);
            (backlog.streams, resume_after.unwrap_or(backlog.sent), backlog.waker.take())
        };
        old_reader.into_iter().for_each(Waker::wake);
        GetStreamBody {
            backlog: Arc::clone(self),
            stream,
            sent,
            sends_empty_event,
            is_ended: false,
            _guard: guard,
        }
    }

    /// Whether a client reads the stream.
    pub(super) fn is_open(&self) -> bool {
        self.0.lock().is_open
    }

    /// Ends the session and its stream.
    pub(super) fn end(&self) {
        let reader = {
            let mut backlog = self.0.lock();
            backlog.is_ended = true;
            backlog.waker.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }
}

/// Number in an event id.
fn event_number(id: &[u8]) -> Option<u64> {
    std::str::from_utf8(id).ok()?.strip_prefix(EVENT_ID_PREFIX)?.parse().ok()
}

// === impl GetStreamBody ===

impl StreamedBody for GetStreamBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut backlog = self.backlog.0.lock();
        if backlog.is_ended || backlog.streams != self.stream {
            self.is_ended = true;
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.sends_empty_event) {
            return Poll::Ready(Some(Ok(format!("id: {EVENT_ID_PREFIX}{}\ndata: \n\n", self.sent).into())));
        }
        let next = self.sent.max(backlog.dropped);
        let index = usize::try_from(next - backlog.dropped).unwrap_or(usize::MAX);
        let Some(message) = backlog.messages.get(index) else {
            backlog.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.sent = next + 1;
        let head = format!("id: {EVENT_ID_PREFIX}{}\ndata: ", self.sent);
        let event = [head.as_bytes(), message, b"\n\n"].concat();
        backlog.sent = backlog.sent.max(self.sent);
        Poll::Ready(Some(Ok(event.into())))
    }

    fn is_end(&self) -> bool {
        self.is_ended
    }
}

impl Drop for GetStreamBody {
    fn drop(&mut self) {
        let mut backlog = self.backlog.0.lock();
        if backlog.streams == self.stream {
            backlog.is_open = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::poll_fn;

    fn open(feed: &Arc<StreamBacklog>, last_id: Option<&str>) -> GetStreamBody {
        feed.open(last_id.map(str::as_bytes), false, Box::new(()))
    }

    /// Available events.
    fn available_events(stream: &mut GetStreamBody) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(Some(Ok(event))) = poll_fn(|cx| stream.poll_chunk(cx)).now_or_never() {
            all.push(String::from_utf8(event.to_vec()).expect("text"));
        }
        all
    }

    fn feed(messages: &[&'static str]) -> Arc<StreamBacklog> {
        let feed = Arc::new(StreamBacklog::default());
        messages.iter().for_each(|message| feed.push(Bytes::from_static(message.as_bytes())));
        feed
    }

    #[test]
    fn a_stream_continues_after_its_last_event_id_or_with_unsent_messages() {
        let feed = feed(&["a", "b"]);
        let mut first = open(&feed, None);
        assert_eq!(available_events(&mut first), ["id: get-1\ndata: a\n\n", "id: get-2\ndata: b\n\n"]);
        drop(first);
        feed.push(Bytes::from_static(b"c"));
        assert_eq!(available_events(&mut open(&feed, Some("get-1"))).len(), 2, "b was lost on its way");
        feed.push(Bytes::from_static(b"d\ne"));
        assert_eq!(available_events(&mut open(&feed, None)), ["id: get-4\ndata: d e\n\n"]);
        for unknown in ["get-5", "get-x", "7", "deferral-0-1"] {
            assert_eq!(available_events(&mut open(&feed, Some(unknown))).len(), 0, "{unknown}");
        }
        assert_eq!(available_events(&mut open(&feed, Some("get-0"))).len(), 4, "all of it is kept");
    }

    #[test]
    fn the_newest_stream_replaces_the_earlier_one() {
        let feed = feed(&[]);
        let mut first = open(&feed, None);
        assert!(available_events(&mut first).is_empty() && !first.is_end());
        let mut second = open(&feed, None);
        feed.push(Bytes::from_static(b"a"));
        assert!(available_events(&mut first).is_empty() && first.is_end());
        assert_eq!(available_events(&mut second).len(), 1);
        feed.end();
        assert!(available_events(&mut second).is_empty() && second.is_end());
    }

    #[test]
    fn the_last_unread_messages_are_kept() {
        let feed = feed(&[]);
        for _ in 0..2 * MAX_EVENTS {
            feed.push(Bytes::from_static(b"a"));
        }
        assert_eq!(available_events(&mut open(&feed, Some("get-1"))).len(), MAX_EVENTS);
        feed.push(vec![b'x'; MAX_EVENT_BYTES / 2].into());
        feed.push(vec![b'x'; MAX_EVENT_BYTES / 2].into());
        let backlog = feed.0.lock();
        assert_eq!((backlog.messages.len(), backlog.bytes), (2, MAX_EVENT_BYTES));
    }

    #[test]
    fn a_client_that_supports_events_without_data_gets_its_position_at_once() {
        let feed = feed(&["a"]);
        assert_eq!(available_events(&mut open(&feed, None)).len(), 1);
        let mut listening = feed.open(None, true, Box::new(()));
        assert_eq!(available_events(&mut listening), ["id: get-1\ndata: \n\n"]);
    }
}
