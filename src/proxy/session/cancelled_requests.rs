//! Requests that no answer is owed to: the client has taken them back, or ended their session.
//!
//! A server sends no response to a cancelled request (2025-11-25, *Cancellation*), and what was
//! still open when a session ended simply closes. On the direct way the stream just ends, and so it
//! does here: an error of ours would reach a client that has forgotten the request, and some close
//! their transport over it. So requests that wait for an answer are [known](Asked), and whether they are
//! taken back; of what is not in flight nothing is kept, whatever anybody takes back.
//!
//! Here is also known which sessions are over for their clients although their servers have not been
//! told (`farewell`).

use super::{Key, latest::Latest};
use crate::{
    protocol::Id,
    runtime::Mutex,
    upstream::{Interest, ReadingOn},
};
use dashmap::{DashMap, Entry};
use smallvec::{SmallVec, smallvec};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What the clients of a route have asked and may take back, and the sessions that they have ended.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Ended {
    /// Those in flight, by session and id. Of some clients more than one have the same.
    asked: DashMap<(Key, Id), SmallVec<[Weak<Asked>; 1]>>,
    /// How many requests wait in a queue of ours.
    queued: AtomicUsize,
    /// Never held while waiting.
    known: Mutex<Known>,
    /// Whether any session has been closed here.
    has_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Sessions that are over at their servers too: nothing is owed to them.
    over: Latest<Key, (), REMEMBERED>,
    /// Sessions that are over here and not at their servers.
    closed: Latest<Key, (), REMEMBERED>,
    /// Sessions that are just being ended. The server may close their streams before it says that
    /// it has.
    leaving: HashMap<Key, EndRequests>,
}

/// What one POST asks, from its arrival until nothing more is to be done for it.
#[derive(Debug)]
pub(in crate::proxy) struct Asked {
    ended: Arc<Ended>,
    pub(in crate::proxy) key: Option<Key>,
    pub(in crate::proxy) ids: SmallVec<[Id; 1]>,
    /// Of the ids. Held for a look.
    taken_back: Mutex<HashSet<Id>>,
    /// It waits in a queue of ours, and the server has not heard of it. Changed while `taken_back` is held.
    is_queued: AtomicBool,
    /// None of it is wanted, and the server has been told so, or is about to be.
    lost: CancellationToken,
    pub(in crate::proxy) reading_on: ReadingOn,
}

/// What is under way to end one session.
#[derive(Debug, Default)]
struct EndRequests {
    /// Never 0.
    count: usize,
    /// The server has given the session's id again meanwhile.
    is_reopened: bool,
    all_over: CancellationToken,
}

/// A session that is just being ended. Dropped without [`Leaving::is_over`], it has not been.
pub(in crate::proxy) struct Leaving {
    ended: Arc<Ended>,
    key: Key,
}

/// How many sessions are remembered of each kind. Each costs about 50 bytes; one that is forgotten too early
/// costs its client an error that it did not ask for, or lets it go on in a session that it has ended.
const REMEMBERED: usize = 16 << 10;

/// How long it is waited for whether a session is over, while it is being ended: its server may never
/// say.
const PATIENCE: Duration = Duration::from_secs(5);

// === impl Ended ===

impl Ended {
    /// The client has taken a request back.
    pub(in crate::proxy) fn cancel(&self, key: Key, request: Id) {
        let asked = self.asked.get(&(key, request.clone())).map(|asked| asked.clone());
        asked.iter().flatten().filter_map(Weak::upgrade).for_each(|asked| asked.take_back(&request));
    }

    /// Cancels a request that waits in a queue of ours, of which the server need not hear. Whether it is one.
    pub(in crate::proxy) fn withdraw(&self, key: Key, request: &Id) -> bool {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let asked = self.asked.get(&(key, request.clone())).map(|asked| asked.clone());
        // Each is withdrawn, whatever the others say.
        let withdrawn = asked.iter().flatten().filter_map(Weak::upgrade).map(|asked| asked.withdraw(request));
        let withdrawn: Vec<_> = withdrawn.collect();
        !withdrawn.is_empty() && withdrawn.into_iter().all(|is_withdrawn| is_withdrawn)
    }

    /// Whether any request waits in a queue of ours.
    pub(in crate::proxy) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// The session is over for its client, which hears so in it from now on. What it still waits for goes
    /// on.
    pub(in crate::proxy) fn close(&self, key: Key) {
        self.known.lock().closed.insert(key, ());
        self.has_closed.store(true, Ordering::Release);
    }

    /// Cheap: there mostly is none.
    pub(in crate::proxy) fn is_closed(&self, key: Key) -> bool {
        self.has_closed.load(Ordering::Acquire) && self.known.lock().closed.contains(&key)
    }

    /// The client ends its session; whether it is over, the server has yet to say.
    pub(in crate::proxy) fn leave(self: &Arc<Self>, key: Key) -> Leaving {
        self.known.lock().leaving.entry(key).or_default().count += 1;
        Leaving { ended: Arc::clone(self), key }
    }

    /// A handshake has opened a session of this id, which its server may have given before: it is not over any more.
    pub(in crate::proxy) fn reopen(&self, key: Key) {
        let mut known = self.known.lock();
        known.over.remove(&key);
        known.closed.remove(&key);
        if let Some(requests) = known.leaving.get_mut(&key) {
            requests.is_reopened = true;
        }
    }

    /// Whether the client has ended the session, as far as it is concerned.
    fn is_over(&self, key: Key) -> bool {
        let known = self.known.lock();
        known.over.contains(&key) || known.closed.contains(&key)
    }

    /// Waits until it is known whether a session is over that is just being ended, though not for ever.
    async fn settles(&self, key: Key) {
        let leaving = self.known.lock().leaving.get(&key).map(|requests| requests.all_over.clone());
        if let Some(leaving) = leaving {
            // Where it is not said the session is still there.
            let _ = timeout(PATIENCE, leaving.cancelled()).await;
        }
    }
}

// === impl Asked ===

impl Asked {
    /// What a client asks in a session, or outside of one, where it can take nothing back.
    pub(in crate::proxy) fn new(ended: &Arc<Ended>, key: Option<Key>, ids: SmallVec<[Id; 1]>) -> Arc<Self> {
        let asked = Arc::new(Self {
            ended: Arc::clone(ended),
            key,
            ids,
            taken_back: Mutex::default(),
            is_queued: AtomicBool::new(false),
            lost: CancellationToken::new(),
            reading_on: ReadingOn::default(),
        });
        for place in asked.places() {
            let this = Arc::downgrade(&asked);
            match ended.asked.entry(place) {
                Entry::Occupied(mut others) => others.get_mut().push(this),
                Entry::Vacant(none) => drop(none.insert(smallvec![this])),
            }
        }
        asked
    }

    fn places(&self) -> impl Iterator<Item = (Key, Id)> {
        self.key.into_iter().flat_map(|key| self.ids.iter().map(move |id| (key, id.clone())))
    }

    fn take_back(&self, id: &Id) {
        let mut taken_back = self.taken_back.lock();
        taken_back.insert(id.clone());
        if taken_back.len() == self.ids.len() {
            self.lost.cancel();
        }
    }

    /// It waits in a queue of ours from now on.
    pub(in crate::proxy) fn enter_queue(&self) {
        let _taken_back = self.taken_back.lock();
        self.is_queued.store(true, Ordering::Relaxed);
        self.ended.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// It is about to be sent. False where it is cancelled, and is not to be.
    pub(in crate::proxy) fn leave_queue(&self) -> bool {
        let _taken_back = self.taken_back.lock();
        self.no_longer_queued();
        !self.lost.is_cancelled()
    }

    /// Whether the server has not heard of it, because it waits in a queue of ours.
    pub(in crate::proxy) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Relaxed)
    }

    fn no_longer_queued(&self) {
        if self.is_queued.swap(false, Ordering::Relaxed) {
            self.ended.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Cancels it where it waits in a queue of ours and this is all that it asks: the server never hears of it.
    fn withdraw(&self, id: &Id) -> bool {
        let mut taken_back = self.taken_back.lock();
        let is_all = self.is_queued.load(Ordering::Relaxed) && self.ids[..] == [id.clone()];
        if is_all {
            taken_back.insert(id.clone());
            self.lost.cancel();
        }
        is_all
    }

    /// Nothing of it is wanted any more, and whoever says so tells the server. Whether that was news.
    pub(in crate::proxy) fn lose(&self) -> bool {
        let is_news = !self.lost.is_cancelled();
        self.lost.cancel();
        is_news
    }

    /// Whether the client has taken back all of it, or has ended its session: what the server says of it is
    /// for nobody.
    pub(in crate::proxy) fn is_taken_back(&self) -> bool {
        let all = !self.ids.is_empty() && self.taken_back.lock().len() == self.ids.len();
        all || self.key.is_some_and(|key| self.ended.is_over(key))
    }

    /// Those of `waiting` that are owed an answer. Where the session is just being ended it is waited for
    /// what becomes of that, though not for ever.
    pub(in crate::proxy) async fn owed(&self, mut waiting: SmallVec<[Id; 1]>) -> SmallVec<[Id; 1]> {
        let Some(key) = self.key else { return waiting };
        // The request that ends the session waits for no answer itself: it would wait for its own end.
        if !waiting.is_empty() {
            self.ended.settles(key).await;
            let is_over = self.ended.known.lock().over.contains(&key);
            let taken_back = self.taken_back.lock();
            waiting.retain(|id| !is_over && !taken_back.contains(id));
        }
        waiting
    }
}

impl Interest for Asked {
    fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Nobody else's question could be taken for one of its.
    fn answered(&self) {}

    fn reading_on(&self) -> &ReadingOn {
        &self.reading_on
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.no_longer_queued();
        for place in self.places() {
            if let Entry::Occupied(mut others) = self.ended.asked.entry(place) {
                others.get_mut().retain(|other| !std::ptr::eq(other.as_ptr(), self));
                if others.get().is_empty() {
                    others.remove();
                }
            }
        }
    }
}

// === impl Leaving ===

impl Leaving {
    /// The server has said that the session is over.
    pub(in crate::proxy) fn is_over(&self) {
        let mut known = self.ended.known.lock();
        if known.leaving.get(&self.key).is_some_and(|requests| !requests.is_reopened) {
            known.over.insert(self.key, ());
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut known = self.ended.known.lock();
        let Some(requests) = known.leaving.get_mut(&self.key) else { return };
        requests.count -= 1;
        if requests.count == 0
            && let Some(requests) = known.leaving.remove(&self.key)
        {
            requests.all_over.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect::Principal, protocol::headers::SESSION_ID};
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    fn key(session: &'static str) -> Key {
        let headers = HeaderMap::from_iter([(SESSION_ID.clone(), HeaderValue::from_static(session))]);
        Key::of(Principal::from_bytes([1; 16]), &headers).expect("it names one")
    }

    fn ids(numbers: &[u64]) -> SmallVec<[Id; 1]> {
        numbers.iter().map(|&number| Id::from_number(number)).collect()
    }

    fn asked(ended: &Arc<Ended>, session: &'static str, numbers: &[u64]) -> Arc<Asked> {
        Asked::new(ended, Some(key(session)), ids(numbers))
    }

    #[tokio::test]
    async fn a_request_that_was_taken_back_is_owed_nothing_in_its_session_alone() {
        let ended = Arc::new(Ended::default());
        let (a, b) = (asked(&ended, "a", &[1, 2, 3]), asked(&ended, "b", &[2]));
        let again = asked(&ended, "a", &[2]);
        ended.cancel(key("a"), Id::from_number(2));
        ended.cancel(key("a"), Id::from_token(Bytes::from_static(b"\"3\"")).expect("an id"));
        assert_eq!(a.owed(ids(&[1, 2, 3])).await, ids(&[1, 3]));
        assert_eq!(b.owed(ids(&[2])).await, ids(&[2]));
        assert!(!a.is_taken_back() && !a.lost().is_cancelled() && !b.is_taken_back());
        assert!(again.is_taken_back() && again.lost().is_cancelled(), "of one id more than one may be asked");
        ended.cancel(key("a"), Id::from_number(1));
        ended.cancel(key("a"), Id::from_number(3));
        assert!(a.is_taken_back() && a.lost().is_cancelled());
        let anywhere = Asked::new(&ended, None, ids(&[2]));
        assert_eq!(anywhere.owed(ids(&[2])).await, ids(&[2]));
    }

    #[tokio::test]
    async fn what_is_not_in_flight_is_not_remembered() {
        let ended = Arc::new(Ended::default());
        for number in 0..100 {
            ended.cancel(key("a"), Id::from_number(number));
        }
        let (one, other) = (asked(&ended, "a", &[1]), asked(&ended, "a", &[1]));
        assert_eq!((one.owed(ids(&[1])).await, ended.asked.len()), (ids(&[1]), 1));
        drop(one);
        ended.cancel(key("a"), Id::from_number(1));
        assert!(other.is_taken_back());
        drop(other);
        assert!(ended.asked.is_empty());
    }

    #[tokio::test]
    async fn a_session_that_is_just_being_ended_is_waited_for() {
        let ended = Arc::new(Ended::default());
        let (a, b) = (asked(&ended, "a", &[1]), asked(&ended, "b", &[7]));
        for (over, owed) in [(false, ids(&[1])), (true, ids(&[]))] {
            let leaving = ended.leave(key("a"));
            let mut asking = Box::pin(a.owed(ids(&[1])));
            assert!(futures_util::poll!(&mut asking).is_pending());
            if over {
                leaving.is_over();
            }
            drop(leaving);
            assert_eq!(asking.await, owed);
        }
        assert_eq!(b.owed(ids(&[7])).await, ids(&[7]));
        assert!(ended.known.lock().leaving.is_empty());
    }

    #[tokio::test]
    async fn a_session_whose_id_is_given_again_is_not_over() {
        let ended = Arc::new(Ended::default());
        ended.close(key("a"));
        ended.leave(key("b")).is_over();
        ended.reopen(key("a"));
        ended.reopen(key("b"));
        assert!(!ended.is_closed(key("a")));
        assert_eq!(asked(&ended, "b", &[1]).owed(ids(&[1])).await, ids(&[1]));
        // The answer to the DELETE comes behind that to the handshake.
        let leaving = ended.leave(key("b"));
        ended.reopen(key("b"));
        leaving.is_over();
        drop(leaving);
        assert_eq!(asked(&ended, "b", &[1]).owed(ids(&[1])).await, ids(&[1]));
        ended.leave(key("b")).is_over();
        assert!(asked(&ended, "b", &[1]).owed(ids(&[1])).await.is_empty(), "it can be ended again");
    }

    #[tokio::test]
    async fn a_request_is_taken_back_under_any_spelling_of_its_id() {
        let ended = Arc::new(Ended::default());
        let id = |token: &str| Id::from_token(Bytes::copy_from_slice(token.as_bytes())).expect("an id");
        let both = [id("1.0"), id(r#""a\/b""#)];
        let asked = Asked::new(&ended, Some(key("a")), both.iter().cloned().collect());
        ended.cancel(key("a"), id("1"));
        ended.cancel(key("a"), id(r#""a/b""#));
        assert!(asked.is_taken_back() && asked.lost().is_cancelled());
        drop(asked);
        assert!(ended.asked.is_empty());
    }

    #[tokio::test]
    async fn only_so_much_is_remembered() {
        let ended = Ended::default();
        let session = |number: usize| Key::named(Principal::ANONYMOUS, &number.into());
        for number in 0..=REMEMBERED {
            ended.close(session(number));
            ended.close(session(number));
        }
        assert!(!ended.is_closed(session(0)) && ended.is_closed(session(1)));
        assert_eq!(ended.known.lock().closed.sizes(), (REMEMBERED, REMEMBERED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_end_is_never_answered_holds_up_nobody_for_ever() {
        let ended = Arc::new(Ended::default());
        let _leaving = ended.leave(key("a"));
        assert_eq!(asked(&ended, "a", &[1]).owed(ids(&[1])).await, ids(&[1]));
    }

    #[tokio::test]
    async fn a_session_that_was_closed_here_is_over_and_what_it_still_waits_for_is_owed() {
        let ended = Arc::new(Ended::default());
        ended.close(key("a"));
        assert!(ended.is_closed(key("a")) && !ended.is_closed(key("b")));
        assert_eq!(asked(&ended, "a", &[1]).owed(ids(&[1])).await, ids(&[1]));
    }
}
