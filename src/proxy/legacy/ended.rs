//! Requests that no answer is owed to: the client has taken them back, or ended their session.
//!
//! A server sends no response to a cancelled request (2025-11-25, *Cancellation*), and what was
//! still open when a session ended simply closes. On the direct way the stream just ends, and so it
//! does here: an error of ours would reach a client that has forgotten the request, and some close
//! their transport over it. So what clients have taken back is remembered for a while, and asked for
//! only where a stream ends without its response, which is rare.
//!
//! Here is also known which sessions are over for their clients although their servers have not been
//! told (`farewell`).

use super::streams::Key;
use crate::{dialect::Principal, protocol::Id};
use smallvec::SmallVec;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What the clients of a route have taken back, the last [`REMEMBERED`] of it.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Ended {
    /// Never held while waiting.
    known: Mutex<Known>,
    /// Whether any session has been closed here.
    has_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Requests and sessions that nothing is owed to.
    taken_back: Marks,
    /// Sessions that are over here and not at their servers.
    closed: Marks,
    /// Sessions that are just being ended. The server may close their streams before it says that
    /// it has.
    leaving: HashMap<Key, Farewells>,
}

/// What is remembered, the last [`REMEMBERED`].
#[derive(Debug, Default)]
pub(super) struct Marks {
    all: HashSet<Mark>,
    /// The oldest first.
    order: VecDeque<Mark>,
}

/// What is under way to end one session.
#[derive(Debug, Default)]
struct Farewells {
    /// Never 0.
    count: usize,
    all_over: CancellationToken,
}

/// A request of a session, or the session itself: a digest.
pub(super) type Mark = [u8; 16];

/// A session that is just being ended. Dropped without [`Leaving::is_over`], it has not been.
pub(super) struct Leaving {
    ended: Arc<Ended>,
    key: Key,
}

/// How much is remembered of each kind. Each costs about 50 bytes; one that is forgotten too early costs
/// its client an error that it did not ask for, or lets it go on in a session that it has ended.
const REMEMBERED: usize = 16 << 10;

/// How long it is waited for whether a session is over, while it is being ended: its server may never
/// say.
const PATIENCE: Duration = Duration::from_secs(5);

// === impl Ended ===

impl Ended {
    /// The client has taken a request back.
    pub(super) fn cancel(&self, key: Key, request: &Id) {
        self.known().taken_back.remember(of_request(key, request));
    }

    /// The session is over for its client, which hears so in it from now on. What it still waits for goes
    /// on.
    pub(super) fn close(&self, key: Key) {
        self.known().closed.remember(key.digest());
        self.has_closed.store(true, Ordering::Release);
    }

    /// Whether there is any session to be found by [`Ended::is_closed`]. Cheap.
    pub(super) fn has_closed(&self) -> bool {
        self.has_closed.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self, key: Key) -> bool {
        self.known().closed.contains(&key.digest())
    }

    /// The client ends its session; whether it is over, the server has yet to say.
    pub(super) fn leave(self: &Arc<Self>, key: Key) -> Leaving {
        self.known().leaving.entry(key).or_default().count += 1;
        Leaving { ended: Arc::clone(self), key }
    }

    /// Whether the client has ended the session, or taken back all of these requests.
    pub(super) fn is_over(&self, key: Key, requests: &[Id]) -> bool {
        let known = self.known();
        let session = key.digest();
        let taken_back = |id| known.taken_back.all.contains(&of_request(key, id));
        known.taken_back.all.contains(&session)
            || known.closed.all.contains(&session)
            || !requests.is_empty() && requests.iter().all(taken_back)
    }

    /// Those of `waiting` that are owed an answer. Where the session is just being ended it is waited for
    /// what becomes of that, though not for ever.
    pub(super) async fn owed(&self, key: Key, waiting: SmallVec<[Id; 1]>) -> SmallVec<[Id; 1]> {
        // The request that ends the session waits for no answer itself: it would wait for its own end.
        if waiting.is_empty() {
            return waiting;
        }
        let leaving = self.known().leaving.get(&key).map(|farewells| farewells.all_over.clone());
        if let Some(leaving) = leaving {
            // Where it is not said the session is still there.
            let _ = timeout(PATIENCE, leaving.cancelled()).await;
        }
        let known = self.known();
        let taken_back = &known.taken_back.all;
        if taken_back.contains(&key.digest()) {
            return SmallVec::new();
        }
        waiting.into_iter().filter(|id| !taken_back.contains(&of_request(key, id))).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of_request(key: Key, id: &Id) -> Mark {
    *Principal::of(&[&key.digest(), id.as_bytes()]).as_bytes()
}

// === impl Marks ===

impl Marks {
    pub(super) fn contains(&self, mark: &Mark) -> bool {
        self.all.contains(mark)
    }

    pub(super) fn remember(&mut self, mark: Mark) {
        if !self.all.insert(mark) {
            return;
        }
        self.order.push_back(mark);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

// === impl Leaving ===

impl Leaving {
    /// The server has said that the session is over.
    pub(super) fn is_over(&self) {
        self.ended.known().taken_back.remember(self.key.digest());
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut known = self.ended.known();
        let Some(farewells) = known.leaving.get_mut(&self.key) else { return };
        farewells.count -= 1;
        if farewells.count == 0
            && let Some(farewells) = known.leaving.remove(&self.key)
        {
            farewells.all_over.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::headers::SESSION_ID;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    fn key(session: &'static str) -> Key {
        let headers = HeaderMap::from_iter([(SESSION_ID.clone(), HeaderValue::from_static(session))]);
        Key::of(Principal::from_bytes([1; 16]), &headers).expect("it names one")
    }

    fn ids(numbers: &[u64]) -> SmallVec<[Id; 1]> {
        numbers.iter().map(|&number| Id::from_number(number)).collect()
    }

    #[tokio::test]
    async fn a_request_that_was_taken_back_is_owed_nothing_in_its_session_alone() {
        let ended = Ended::default();
        ended.cancel(key("a"), &Id::from_number(2));
        ended.cancel(key("a"), &Id::from_token(Bytes::from_static(b"\"3\"")).expect("an id"));
        assert_eq!(ended.owed(key("a"), ids(&[1, 2, 3])).await, ids(&[1, 3]));
        assert_eq!(ended.owed(key("b"), ids(&[2])).await, ids(&[2]));
    }

    #[tokio::test]
    async fn a_session_that_is_just_being_ended_is_waited_for() {
        let ended = Arc::new(Ended::default());
        for (over, owed) in [(false, ids(&[1])), (true, ids(&[]))] {
            let leaving = ended.leave(key("a"));
            let mut asking = Box::pin(ended.owed(key("a"), ids(&[1])));
            assert!(futures_util::poll!(&mut asking).is_pending());
            if over {
                leaving.is_over();
            }
            drop(leaving);
            assert_eq!(asking.await, owed);
        }
        assert_eq!(ended.owed(key("a"), ids(&[7])).await, ids(&[]));
        assert_eq!(ended.owed(key("b"), ids(&[7])).await, ids(&[7]));
        assert!(ended.known().leaving.is_empty());
    }

    #[tokio::test]
    async fn only_so_much_is_remembered() {
        let ended = Ended::default();
        for number in 0..=REMEMBERED as u64 {
            ended.cancel(key("a"), &Id::from_number(number));
            ended.cancel(key("a"), &Id::from_number(number));
        }
        assert_eq!(ended.owed(key("a"), ids(&[0, 1])).await, ids(&[0]));
        let known = ended.known();
        let taken_back = &known.taken_back;
        assert_eq!((taken_back.all.len(), taken_back.order.len()), (REMEMBERED, REMEMBERED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_end_is_never_answered_holds_up_nobody_for_ever() {
        let ended = Arc::new(Ended::default());
        let _leaving = ended.leave(key("a"));
        assert_eq!(ended.owed(key("a"), ids(&[1])).await, ids(&[1]));
    }

    #[tokio::test]
    async fn a_session_that_was_closed_here_is_over_and_what_it_still_waits_for_is_owed() {
        let ended = Ended::default();
        assert!(!ended.has_closed());
        ended.close(key("a"));
        assert!(ended.has_closed() && ended.is_closed(key("a")) && !ended.is_closed(key("b")));
        assert_eq!(ended.owed(key("a"), ids(&[1])).await, ids(&[1]));
    }
}
