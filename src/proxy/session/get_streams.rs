//! The streams on which legacy sessions listen, and a way to say something on them.
//!
//! A stream is the server's, passed on as it comes; what is put on it is put between two events of
//! the server's.

use super::SessionKey;
use crate::{bridge::outbox::StreamId, runtime::Mutex};
use bytes::Bytes;
use dashmap::DashMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::{mpsc, watch};

/// Who listens, by session.
#[derive(Debug, Default)]
pub(in crate::proxy) struct GetStreams {
    /// Only sessions that listen, or whose streams somebody follows.
    sessions: DashMap<SessionKey, Arc<SessionStreams>>,
}

#[derive(Debug, Default)]
struct SessionStreams {
    /// The streams that are open: the one to use last.
    open: Mutex<Vec<OpenStream>>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct OpenStream {
    id: StreamId,
    sender: mpsc::Sender<Bytes>,
    /// It goes on where another broke, perhaps only to the end of one answer.
    resumed: bool,
}

/// One open stream; closed when dropped.
pub(in crate::proxy) struct GetStream {
    streams: Arc<GetStreams>,
    key: SessionKey,
    id: StreamId,
    /// What is to be said on it.
    pub(in crate::proxy) messages: mpsc::Receiver<Bytes>,
}

/// Follows the streams of a session.
pub(in crate::proxy) struct StreamFollower {
    streams: Arc<GetStreams>,
    key: SessionKey,
    session: Arc<SessionStreams>,
    changed: watch::Receiver<()>,
}

/// Messages that wait for a client that reads slowly; for more its tasks must wait.
const MESSAGE_BUFFER: usize = 64;

/// Lines are unique in the process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(in crate::proxy) fn next_stream_id() -> StreamId {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

// === impl Streams ===

impl GetStreams {
    /// A session listens on one more stream.
    pub(in crate::proxy) fn open(self: &Arc<Self>, key: SessionKey, resumed: bool) -> GetStream {
        let (tell, told) = mpsc::channel(MESSAGE_BUFFER);
        let line = next_stream_id();
        let session = self.session(key);
        {
            let mut open = session.open.lock();
            // A fresh stream before one that goes on where another broke.
            let at =
                if resumed { open.iter().take_while(|stream| stream.resumed).count() } else { open.len() };
            open.insert(at, OpenStream { id: line, sender: tell, resumed });
        }
        session.changed.send_replace(());
        GetStream { streams: Arc::clone(self), key, id: line, messages: told }
    }

    pub(in crate::proxy) fn follow(self: &Arc<Self>, key: SessionKey) -> StreamFollower {
        let session = self.session(key);
        let mut changed = session.changed.subscribe();
        changed.mark_changed();
        StreamFollower { streams: Arc::clone(self), key, session, changed }
    }

    fn session(&self, key: SessionKey) -> Arc<SessionStreams> {
        Arc::clone(&self.sessions.entry(key).or_default())
    }

    fn close(&self, key: SessionKey, line: StreamId) {
        let Some(session) = self.sessions.get(&key).map(|session| Arc::clone(&session)) else { return };
        session.open.lock().retain(|stream| stream.id != line);
        session.changed.send_replace(());
        drop(session);
        self.remove_if_idle(key);
    }

    fn remove_if_idle(&self, key: SessionKey) {
        // Only the map has it, under the lock of its shard: nobody can get at it meanwhile.
        self.sessions
            .remove_if(&key, |_, session| Arc::strong_count(session) == 1 && session.open.lock().is_empty());
    }
}

// === impl Stream ===

impl Drop for GetStream {
    fn drop(&mut self) {
        self.streams.close(self.key, self.id);
    }
}

// === impl Follower ===

impl StreamFollower {
    /// Resolves when another stream may be the one to use; the first time at once.
    pub(in crate::proxy) async fn changed(&mut self) {
        // The sender lives in the session that is held here.
        let _ = self.changed.changed().await;
    }

    /// The stream to use.
    pub(in crate::proxy) fn current_stream(&self) -> Option<StreamId> {
        self.session.open.lock().last().map(|stream| stream.id)
    }

    /// The way to say something on a stream; none where it is gone.
    pub(in crate::proxy) fn sender(&self, line: StreamId) -> Option<mpsc::Sender<Bytes>> {
        let open = self.session.open.lock();
        open.iter().find(|stream| stream.id == line).map(|stream| stream.sender.clone())
    }
}

impl Drop for StreamFollower {
    fn drop(&mut self) {
        // A session of its own stands in for the one that is given back.
        drop(std::mem::take(&mut self.session));
        self.streams.remove_if_idle(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use http::HeaderValue;

    fn key() -> SessionKey {
        SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from_static("s"))
    }

    #[tokio::test]
    async fn what_is_said_goes_to_the_stream_that_was_opened_last() {
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
    async fn nothing_stays_behind_of_a_session_that_neither_listens_nor_is_followed() {
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
