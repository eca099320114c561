//! The GET stream of a hosted session (2025-11-25, *Listening for Messages from the Server*; *Resumability and
//! Redelivery*): what its server says that is no call's.
//!
//! All of it is kept, the last [`EVENTS`] messages, whether somebody listens or not: a stream that breaks has lost
//! what was on its way, and the client comes back for that with the id of the last event it has seen. One that names
//! none goes on with what was never sent. There is one stream: a client that opens another has lost the one before,
//! whatever the proxy knows of that.

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

/// What is said on the stream of one session.
#[derive(Default)]
pub(super) struct StreamBacklog(Mutex<BacklogState>);

/// The lock guards a few lines each time.
#[derive(Default)]
struct BacklogState {
    /// What is kept, the oldest first.
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first that is kept. The first of all is 1.
    dropped: u64,
    /// The number of the last that was sent.
    sent: u64,
    /// How many streams have been opened: the last is the one there is.
    streams: u64,
    reader: Option<Waker>,
    is_over: bool,
}

/// One stream that is open, as the body of an answer.
pub(super) struct GetStreamBody {
    feed: Arc<StreamBacklog>,
    stream: u64,
    /// The number of the last message that it has sent.
    sent: u64,
    /// An event that only gives an id is due.
    primes: bool,
    is_over: bool,
    /// What is kept open for as long as somebody listens.
    _kept: Box<dyn Any + Send>,
}

/// Messages that are kept for one session. Sessions that share a server share them, but for what they ask each.
const EVENTS: usize = 256;
/// Bytes of them; of a larger one nothing is kept.
pub(super) const EVENT_BYTES: usize = 1 << 20;
/// Before the number of each.
const PREFIX: &str = "get-";

// === impl Feed ===

impl StreamBacklog {
    pub(super) fn push(&self, message: Bytes) {
        let reader = {
            let mut said = self.0.lock();
            said.bytes += message.len();
            said.messages.push_back(to_single_line(message));
            while said.messages.len() > EVENTS || said.bytes > EVENT_BYTES {
                let Some(oldest) = said.messages.pop_front() else { break };
                said.bytes -= oldest.len();
                said.dropped += 1;
            }
            said.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    /// Opens a stream, behind the event of this id. `primes` is whether its client knows events without data.
    pub(super) fn open(
        self: &Arc<Self>,
        last_id: Option<&[u8]>,
        primes: bool,
        kept: Box<dyn Any + Send>,
    ) -> GetStreamBody {
        let (stream, sent, before) = {
            let mut said = self.0.lock();
            said.streams += 1;
            let last = said.dropped + said.messages.len() as u64;
            // An id that was never given is of another session, or made up.
            let named = last_id.and_then(number).filter(|named| *named <= last);
            (said.streams, named.unwrap_or(said.sent), said.reader.take())
        };
        before.into_iter().for_each(Waker::wake);
        GetStreamBody { feed: Arc::clone(self), stream, sent, primes, is_over: false, _kept: kept }
    }

    /// The session is over, and its stream with it.
    pub(super) fn end(&self) {
        let reader = {
            let mut said = self.0.lock();
            said.is_over = true;
            said.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The number in an id of ours.
fn number(id: &[u8]) -> Option<u64> {
    std::str::from_utf8(id).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

// === impl Listening ===

impl StreamedBody for GetStreamBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut said = self.feed.0.lock();
        if said.is_over || said.streams != self.stream {
            self.is_over = true;
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.primes) {
            return Poll::Ready(Some(Ok(format!("id: {PREFIX}{}\ndata: \n\n", self.sent).into())));
        }
        let next = self.sent.max(said.dropped);
        let at = usize::try_from(next - said.dropped).unwrap_or(usize::MAX);
        let Some(message) = said.messages.get(at) else {
            said.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.sent = next + 1;
        let head = format!("id: {PREFIX}{}\ndata: ", self.sent);
        let event = [head.as_bytes(), message, b"\n\n"].concat();
        said.sent = said.sent.max(self.sent);
        Poll::Ready(Some(Ok(event.into())))
    }

    fn is_end(&self) -> bool {
        self.is_over
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

    /// What there is to hear.
    fn heard(listening: &mut GetStreamBody) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(Some(Ok(event))) = poll_fn(|cx| listening.poll_chunk(cx)).now_or_never() {
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
    fn who_comes_back_gets_what_followed_and_who_names_nothing_what_was_never_sent() {
        let feed = feed(&["a", "b"]);
        let mut first = open(&feed, None);
        assert_eq!(heard(&mut first), ["id: get-1\ndata: a\n\n", "id: get-2\ndata: b\n\n"]);
        drop(first);
        feed.push(Bytes::from_static(b"c"));
        assert_eq!(heard(&mut open(&feed, Some("get-1"))).len(), 2, "b was lost on its way");
        feed.push(Bytes::from_static(b"d\ne"));
        assert_eq!(heard(&mut open(&feed, None)), ["id: get-4\ndata: d e\n\n"]);
        for unknown in ["get-5", "get-x", "7", "deferral-0-1"] {
            assert_eq!(heard(&mut open(&feed, Some(unknown))).len(), 0, "{unknown}");
        }
        assert_eq!(heard(&mut open(&feed, Some("get-0"))).len(), 4, "all of it is kept");
    }

    #[test]
    fn the_newest_stream_is_the_one_there_is() {
        let feed = feed(&[]);
        let mut first = open(&feed, None);
        assert!(heard(&mut first).is_empty() && !first.is_end());
        let mut second = open(&feed, None);
        feed.push(Bytes::from_static(b"a"));
        assert!(heard(&mut first).is_empty() && first.is_end());
        assert_eq!(heard(&mut second).len(), 1);
        feed.end();
        assert!(heard(&mut second).is_empty() && second.is_end());
    }

    #[test]
    fn of_what_nobody_hears_so_much_is_kept_the_last_of_it() {
        let feed = feed(&[]);
        for _ in 0..2 * EVENTS {
            feed.push(Bytes::from_static(b"a"));
        }
        assert_eq!(heard(&mut open(&feed, Some("get-1"))).len(), EVENTS);
        feed.push(vec![b'x'; EVENT_BYTES / 2].into());
        feed.push(vec![b'x'; EVENT_BYTES / 2].into());
        let said = feed.0.lock();
        assert_eq!((said.messages.len(), said.bytes), (2, EVENT_BYTES));
    }

    #[test]
    fn a_client_that_knows_events_without_data_is_told_at_once_where_it_is() {
        let feed = feed(&["a"]);
        assert_eq!(heard(&mut open(&feed, None)).len(), 1);
        let mut listening = feed.open(None, true, Box::new(()));
        assert_eq!(heard(&mut listening), ["id: get-1\ndata: \n\n"]);
    }
}
