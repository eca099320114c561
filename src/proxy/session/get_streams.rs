//! The GET streams of legacy sessions, and their channels for messages of the proxy.
//!
//! A GET stream is the server's and is relayed unchanged; messages of the proxy are inserted between two of
//! the server's events.

use super::SessionKey;
use crate::{bridge::outbox::StreamId, runtime::Mutex};
use bytes::Bytes;
use dashmap::DashMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::{OwnedMutexGuard, mpsc, watch};

/// The open GET streams of a route's legacy clients, by session.
#[derive(Debug, Default)]
pub(in crate::proxy) struct GetStreams {
    /// The sessions that have streams, expected streams or followers.
    sessions: DashMap<SessionKey, Arc<SessionStreams>>,
}

/// The GET streams of one session.
#[derive(Debug, Default)]
struct SessionStreams {
    /// The open streams; messages of the proxy go to the last one.
    open: Mutex<Vec<OpenStream>>,
    /// The number of [`ExpectedStream`]s: GET requests of the client that have no response yet.
    expected_count: AtomicUsize,
    /// Locked while the proxy reads the session's stream from the server in place of its client.
    proxy_reading: Arc<ReadingLock>,
    /// Notifies followers when `open` or `expected_count` changes.
    changed: watch::Sender<()>,
}

/// An async lock, because it is held for as long as the proxy's stream to the server is open.
type ReadingLock = tokio::sync::Mutex<()>;

/// A client's GET request for its session's stream that has no response yet. Until it is dropped, the proxy
/// does not read the stream in the client's place.
pub(in crate::proxy) struct ExpectedStream {
    streams: Arc<GetStreams>,
    key: SessionKey,
    session: Arc<SessionStreams>,
}

#[derive(Debug)]
struct OpenStream {
    id: StreamId,
    sender: mpsc::Sender<Bytes>,
    /// Whether the stream continues a broken one (`Last-Event-ID`), perhaps only to the end of one response.
    is_resumed: bool,
}

/// The receiving side of one open GET stream; dropping it removes the stream.
pub(in crate::proxy) struct GetStream {
    streams: Arc<GetStreams>,
    key: SessionKey,
    id: StreamId,
    /// Messages of the proxy to insert into the stream (SSE events).
    pub(in crate::proxy) messages: mpsc::Receiver<Bytes>,
}

/// Observes which GET stream of a session messages of the proxy go to.
pub(in crate::proxy) struct StreamFollower {
    streams: Arc<GetStreams>,
    key: SessionKey,
    session: Arc<SessionStreams>,
    changed: watch::Receiver<()>,
}

/// Messages that are buffered for one stream whose client reads slowly. Beyond this number the client's tasks
/// wait.
const MESSAGE_BUFFER: usize = 64;

/// The next stream id.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns a stream id that is unique in the process.
pub(in crate::proxy) fn next_stream_id() -> StreamId {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

// === impl GetStreams ===

impl GetStreams {
    /// Registers an open GET stream of the session. `is_resumed` is whether it continues a broken stream: then a
    /// stream opened without `Last-Event-ID` takes precedence.
    pub(in crate::proxy) fn open(self: &Arc<Self>, key: SessionKey, is_resumed: bool) -> GetStream {
        let (sender, receiver) = mpsc::channel(MESSAGE_BUFFER);
        let id = next_stream_id();
        let session = self.session(key);
        {
            let mut open = session.open.lock();
            // Resumed streams are first in the list, because the last stream is used.
            let index = if is_resumed {
                open.iter().take_while(|stream| stream.is_resumed).count()
            } else {
                open.len()
            };
            open.insert(index, OpenStream { id, sender, is_resumed });
        }
        session.changed.send_replace(());
        GetStream { streams: Arc::clone(self), key, id, messages: receiver }
    }

    /// Registers that the client of a session has requested a GET stream, until the returned value is
    /// dropped.
    pub(in crate::proxy) fn expect_stream(self: &Arc<Self>, key: SessionKey) -> ExpectedStream {
        let session = self.session(key);
        session.expected_count.fetch_add(1, Ordering::AcqRel);
        session.changed.send_replace(());
        ExpectedStream { streams: Arc::clone(self), key, session }
    }

    /// Observes the streams of a session. The follower's first [`StreamFollower::changed`] resolves at once.
    pub(in crate::proxy) fn follow(self: &Arc<Self>, key: SessionKey) -> StreamFollower {
        let session = self.session(key);
        let mut changed = session.changed.subscribe();
        changed.mark_changed();
        StreamFollower { streams: Arc::clone(self), key, session, changed }
    }

    fn session(&self, key: SessionKey) -> Arc<SessionStreams> {
        Arc::clone(&self.sessions.entry(key).or_default())
    }

    fn close(&self, key: SessionKey, id: StreamId) {
        let Some(session) = self.sessions.get(&key).map(|session| Arc::clone(&session)) else { return };
        session.open.lock().retain(|stream| stream.id != id);
        session.changed.send_replace(());
        drop(session);
        self.remove_if_idle(key);
    }

    /// Removes a session without streams, expected streams and followers.
    fn remove_if_idle(&self, key: SessionKey) {
        // A count of 1 means that only the map holds the session. The shard is locked, so that no other
        // thread can get another reference meanwhile.
        self.sessions
            .remove_if(&key, |_, session| Arc::strong_count(session) == 1 && session.open.lock().is_empty());
    }
}

// === impl SessionStreams ===

impl SessionStreams {
    /// Whether the client has an open GET stream, or has requested one.
    fn has_client(&self) -> bool {
        self.expected_count.load(Ordering::Acquire) > 0 || !self.open.lock().is_empty()
    }
}

// === impl ExpectedStream ===

impl ExpectedStream {
    /// Whether the proxy reads the session's stream from the server now, in the client's place.
    pub(in crate::proxy) fn is_proxy_reading(&self) -> bool {
        self.session.proxy_reading.try_lock().is_err()
    }

    /// Waits until the proxy has stopped reading the session's stream; it stops because this request exists.
    pub(in crate::proxy) async fn wait_until_free(&self) {
        drop(self.session.proxy_reading.lock().await);
    }
}

impl Drop for ExpectedStream {
    fn drop(&mut self) {
        let session = std::mem::take(&mut self.session);
        session.expected_count.fetch_sub(1, Ordering::AcqRel);
        session.changed.send_replace(());
        drop(session);
        self.streams.remove_if_idle(self.key);
    }
}

// === impl GetStream ===

impl Drop for GetStream {
    fn drop(&mut self) {
        self.streams.close(self.key, self.id);
    }
}

// === impl StreamFollower ===

impl StreamFollower {
    /// Resolves when the current stream may have changed; the first time at once.
    pub(in crate::proxy) async fn changed(&mut self) {
        // Never an error: the sender is a field of `session`.
        let _ = self.changed.changed().await;
    }

    /// Waits until the client neither has a GET stream nor has requested one, and until no one else reads in
    /// its place. Returns a guard, during which the proxy may read the session's stream.
    pub(in crate::proxy) async fn take_over(&mut self) -> OwnedMutexGuard<()> {
        loop {
            while self.session.has_client() {
                self.changed().await;
            }
            let guard = Arc::clone(&self.session.proxy_reading).lock_owned().await;
            if !self.session.has_client() {
                return guard;
            }
        }
    }

    /// Resolves when the client has a GET stream or has requested one.
    pub(in crate::proxy) async fn wait_for_client(&mut self) {
        while !self.session.has_client() {
            self.changed().await;
        }
    }

    /// The stream that messages of the proxy go to; `None` if the client has none.
    pub(in crate::proxy) fn current_stream(&self) -> Option<StreamId> {
        self.session.open.lock().last().map(|stream| stream.id)
    }

    /// The channel for messages to this stream; `None` if the stream is closed.
    pub(in crate::proxy) fn sender(&self, id: StreamId) -> Option<mpsc::Sender<Bytes>> {
        let open = self.session.open.lock();
        open.iter().find(|stream| stream.id == id).map(|stream| stream.sender.clone())
    }
}

impl Drop for StreamFollower {
    fn drop(&mut self) {
        // Replaced, so that the reference to the shared session is dropped before the check.
        drop(std::mem::take(&mut self.session));
        self.streams.remove_if_idle(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use futures_util::FutureExt;
    use http::HeaderValue;

    fn key() -> SessionKey {
        SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from_static("s"))
    }

    #[tokio::test]
    async fn messages_go_to_the_stream_that_was_opened_last() {
        let streams = Arc::new(GetStreams::default());
        let mut follower = streams.follow(key());
        follower.changed().await;
        assert_eq!(follower.current_stream(), None);
        let first = streams.open(key(), false);
        follower.changed().await;
        let mut second = streams.open(key(), false);
        let resumed = streams.open(key(), true);
        assert_eq!(
            follower.current_stream(),
            Some(second.id),
            "one that goes on where another broke is the last choice"
        );
        let sender = follower.sender(second.id).expect("it is open");
        sender.try_send(Bytes::from_static(b"x")).expect("there is room");
        assert_eq!(second.messages.recv().await.as_deref(), Some(&b"x"[..]));
        drop((first, second));
        assert_eq!(follower.current_stream(), Some(resumed.id));
    }

    #[tokio::test]
    async fn the_proxy_opens_a_stream_only_while_its_client_has_none() {
        let streams = Arc::new(GetStreams::default());
        let mut follower = streams.follow(key());
        let expected = streams.expect_stream(key());
        assert!(follower.take_over().now_or_never().is_none(), "the client opens one");
        let stream = streams.open(key(), false);
        drop(expected);
        assert!(follower.take_over().now_or_never().is_none(), "it listens");
        drop(stream);
        let reading = follower.take_over().await;
        assert!(follower.wait_for_client().now_or_never().is_none());
        let expected = streams.expect_stream(key());
        follower.wait_for_client().await;
        assert!(expected.is_proxy_reading() && expected.wait_until_free().now_or_never().is_none());
        drop(reading);
        expected.wait_until_free().await;
        assert!(!expected.is_proxy_reading());
        drop((expected, follower));
        assert!(streams.sessions.is_empty());
    }

    #[tokio::test]
    async fn a_session_without_streams_and_followers_is_removed() {
        let streams = Arc::new(GetStreams::default());
        let (stream, follower) = (streams.open(key(), false), streams.follow(key()));
        let line = stream.id;
        drop(stream);
        assert_eq!(streams.sessions.len(), 1);
        assert!(follower.sender(line).is_none());
        drop(follower);
        assert!(streams.sessions.is_empty());
    }
}
