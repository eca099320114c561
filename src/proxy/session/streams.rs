//! The streams on which legacy sessions listen, and a way to say something on them.
//!
//! A stream is the server's, passed on as it comes; what is put on it is put between two events of
//! the server's.

use super::Key;
use crate::{bridge::outbox::LineId, runtime::Mutex};
use bytes::Bytes;
use dashmap::DashMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::{mpsc, watch};

/// Who listens, by session.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Streams {
    /// Only sessions that listen, or whose streams somebody follows.
    sessions: DashMap<Key, Arc<SessionStreams>>,
}

#[derive(Debug, Default)]
struct SessionStreams {
    /// The streams that are open: the one to use last.
    open: Mutex<Vec<OpenStream>>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct OpenStream {
    line: LineId,
    tell: mpsc::Sender<Bytes>,
    /// It goes on where another broke, perhaps only to the end of one answer.
    resumed: bool,
}

/// One open stream; closed when dropped.
pub(in crate::proxy) struct Stream {
    streams: Arc<Streams>,
    key: Key,
    line: LineId,
    /// What is to be said on it.
    pub(in crate::proxy) told: mpsc::Receiver<Bytes>,
}

/// Follows the streams of a session.
pub(in crate::proxy) struct Follower {
    streams: Arc<Streams>,
    key: Key,
    session: Arc<SessionStreams>,
    changed: watch::Receiver<()>,
}

/// Messages that wait for a client that reads slowly; for more its tasks must wait.
const WAITING: usize = 64;

/// Lines are unique in the process.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(in crate::proxy) fn next_line() -> LineId {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

// === impl Streams ===

impl Streams {
    /// A session listens on one more stream.
    pub(in crate::proxy) fn open(self: &Arc<Self>, key: Key, resumed: bool) -> Stream {
        let (tell, told) = mpsc::channel(WAITING);
        let line = next_line();
        let session = self.session(key);
        {
            let mut open = session.open.lock();
            // A fresh stream before one that goes on where another broke.
            let at =
                if resumed { open.iter().take_while(|stream| stream.resumed).count() } else { open.len() };
            open.insert(at, OpenStream { line, tell, resumed });
        }
        session.changed.send_replace(());
        Stream { streams: Arc::clone(self), key, line, told }
    }

    pub(in crate::proxy) fn follow(self: &Arc<Self>, key: Key) -> Follower {
        let session = self.session(key);
        let mut changed = session.changed.subscribe();
        changed.mark_changed();
        Follower { streams: Arc::clone(self), key, session, changed }
    }

    fn session(&self, key: Key) -> Arc<SessionStreams> {
        Arc::clone(&self.sessions.entry(key).or_default())
    }

    fn close(&self, key: Key, line: LineId) {
        let Some(session) = self.sessions.get(&key).map(|session| Arc::clone(&session)) else { return };
        session.open.lock().retain(|stream| stream.line != line);
        session.changed.send_replace(());
        drop(session);
        self.tidy(key);
    }

    fn tidy(&self, key: Key) {
        // Only the map has it, under the lock of its shard: nobody can get at it meanwhile.
        self.sessions
            .remove_if(&key, |_, session| Arc::strong_count(session) == 1 && session.open.lock().is_empty());
    }
}

// === impl Stream ===

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.close(self.key, self.line);
    }
}

// === impl Follower ===

impl Follower {
    /// Resolves when another stream may be the one to use; the first time at once.
    pub(in crate::proxy) async fn changed(&mut self) {
        // The sender lives in the session that is held here.
        let _ = self.changed.changed().await;
    }

    /// The stream to use.
    pub(in crate::proxy) fn line(&self) -> Option<LineId> {
        self.session.open.lock().last().map(|stream| stream.line)
    }

    /// The way to say something on a stream; none where it is gone.
    pub(in crate::proxy) fn sender(&self, line: LineId) -> Option<mpsc::Sender<Bytes>> {
        let open = self.session.open.lock();
        open.iter().find(|stream| stream.line == line).map(|stream| stream.tell.clone())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // A session of its own stands in for the one that is given back.
        drop(std::mem::take(&mut self.session));
        self.streams.tidy(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Principal;
    use http::HeaderValue;

    fn key() -> Key {
        Key::named(Principal::ANONYMOUS, &HeaderValue::from_static("s"))
    }

    #[tokio::test]
    async fn what_is_said_goes_to_the_stream_that_was_opened_last() {
        let streams = Arc::new(Streams::default());
        let mut follower = streams.follow(key());
        follower.changed().await;
        assert_eq!(follower.line(), None);
        let first = streams.open(key(), false);
        follower.changed().await;
        let mut second = streams.open(key(), false);
        let resumed = streams.open(key(), true);
        assert_eq!(
            follower.line(),
            Some(second.line),
            "one that goes on where another broke is the last choice"
        );
        let sender = follower.sender(second.line).expect("it is open");
        sender.try_send(Bytes::from_static(b"x")).expect("there is room");
        assert_eq!(second.told.recv().await.as_deref(), Some(&b"x"[..]));
        drop((first, second));
        assert_eq!(follower.line(), Some(resumed.line));
    }

    #[tokio::test]
    async fn nothing_stays_behind_of_a_session_that_neither_listens_nor_is_followed() {
        let streams = Arc::new(Streams::default());
        let (stream, follower) = (streams.open(key(), false), streams.follow(key()));
        let line = stream.line;
        drop(stream);
        assert_eq!(streams.sessions.len(), 1);
        assert!(follower.sender(line).is_none());
        drop(follower);
        assert!(streams.sessions.is_empty());
    }
}
