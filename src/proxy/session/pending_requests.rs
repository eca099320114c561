//! Requests that no answer is owed to: the client has taken them back, or ended their session.
//!
//! A server sends no response to a cancelled request (2025-11-25, *Cancellation*), and what was
//! still open when a session ended simply closes. On the direct way the stream just ends, and so it
//! does here: an error of ours would reach a client that has forgotten the request, and some close
//! their transport over it. So requests that wait for an answer are [known](PendingRequest), and whether they are
//! taken back; of what is not in flight nothing is kept, whatever anybody takes back.
//!
//! Here is also known which sessions are over for their clients although their servers have not been
//! told (`farewell`).

use super::{SessionKey, bounded_map::BoundedMap};
use crate::{
    protocol::RequestId,
    runtime::Mutex,
    upstream::{BackgroundRead, ResponseInterest},
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
pub(in crate::proxy) struct PendingRequests {
    /// Those in flight, by session and id. Of some clients more than one have the same.
    requests: DashMap<(SessionKey, RequestId), SmallVec<[Weak<PendingRequest>; 1]>>,
    /// How many requests wait in a queue of ours.
    queued: AtomicUsize,
    /// Never held while waiting.
    sessions: Mutex<EndedSessions>,
    /// Whether any session has been closed here.
    has_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct EndedSessions {
    /// Sessions that are over at their servers too: nothing is owed to them.
    ended: BoundedMap<SessionKey, (), REMEMBERED>,
    /// Sessions that are over here and not at their servers.
    closed: BoundedMap<SessionKey, (), REMEMBERED>,
    /// Sessions that are just being ended. The server may close their streams before it says that
    /// it has.
    ending: HashMap<SessionKey, EndRequests>,
}

/// What one POST asks, from its arrival until nothing more is to be done for it.
#[derive(Debug)]
pub(in crate::proxy) struct PendingRequest {
    registry: Arc<PendingRequests>,
    pub(in crate::proxy) key: Option<SessionKey>,
    pub(in crate::proxy) ids: SmallVec<[RequestId; 1]>,
    /// Of the ids. Held for a look.
    cancelled: Mutex<HashSet<RequestId>>,
    /// It waits in a queue of ours, and the server has not heard of it. Changed while `cancelled` is held.
    is_queued: AtomicBool,
    /// None of it is wanted, and the server has been told so, or is about to be.
    lost: CancellationToken,
    pub(in crate::proxy) reading_on: BackgroundRead,
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

/// A session that is just being ended. Dropped without [`EndingSession::confirm`], it has not been.
pub(in crate::proxy) struct EndingSession {
    registry: Arc<PendingRequests>,
    key: SessionKey,
}

/// How many sessions are remembered of each kind. Each costs about 50 bytes; one that is forgotten too early
/// costs its client an error that it did not ask for, or lets it go on in a session that it has ended.
const REMEMBERED: usize = 16 << 10;

/// How long it is waited for whether a session is over, while it is being ended: its server may never
/// say.
const END_TIMEOUT: Duration = Duration::from_secs(5);

// === impl Ended ===

impl PendingRequests {
    /// The client has taken a request back.
    pub(in crate::proxy) fn cancel(&self, key: SessionKey, request: RequestId) {
        let asked = self.requests.get(&(key, request.clone())).map(|asked| asked.clone());
        asked.iter().flatten().filter_map(Weak::upgrade).for_each(|asked| asked.cancel(&request));
    }

    /// Cancels a request that waits in a queue of ours, of which the server need not hear. Whether it is one.
    pub(in crate::proxy) fn withdraw_queued(&self, key: SessionKey, request: &RequestId) -> bool {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let asked = self.requests.get(&(key, request.clone())).map(|asked| asked.clone());
        // Each is withdrawn, whatever the others say.
        let withdrawn =
            asked.iter().flatten().filter_map(Weak::upgrade).map(|asked| asked.withdraw_queued(request));
        let withdrawn: Vec<_> = withdrawn.collect();
        !withdrawn.is_empty() && withdrawn.into_iter().all(|is_withdrawn| is_withdrawn)
    }

    /// Whether any request waits in a queue of ours.
    pub(in crate::proxy) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// The session is over for its client, which hears so in it from now on. What it still waits for goes
    /// on.
    pub(in crate::proxy) fn close_session(&self, key: SessionKey) {
        self.sessions.lock().closed.insert(key, ());
        self.has_closed.store(true, Ordering::Release);
    }

    /// Cheap: there mostly is none.
    pub(in crate::proxy) fn is_closed(&self, key: SessionKey) -> bool {
        self.has_closed.load(Ordering::Acquire) && self.sessions.lock().closed.contains(&key)
    }

    /// The client ends its session; whether it is over, the server has yet to say.
    pub(in crate::proxy) fn begin_end(self: &Arc<Self>, key: SessionKey) -> EndingSession {
        self.sessions.lock().ending.entry(key).or_default().count += 1;
        EndingSession { registry: Arc::clone(self), key }
    }

    /// A handshake has opened a session of this id, which its server may have given before: it is not over any more.
    pub(in crate::proxy) fn reopen(&self, key: SessionKey) {
        let mut known = self.sessions.lock();
        known.ended.remove(&key);
        known.closed.remove(&key);
        if let Some(requests) = known.ending.get_mut(&key) {
            requests.is_reopened = true;
        }
    }

    /// Whether the client has ended the session, as far as it is concerned.
    fn is_ended(&self, key: SessionKey) -> bool {
        let known = self.sessions.lock();
        known.ended.contains(&key) || known.closed.contains(&key)
    }

    /// Waits until it is known whether a session is over that is just being ended, though not for ever.
    async fn wait_for_end(&self, key: SessionKey) {
        let leaving = self.sessions.lock().ending.get(&key).map(|requests| requests.all_over.clone());
        if let Some(leaving) = leaving {
            // Where it is not said the session is still there.
            let _ = timeout(END_TIMEOUT, leaving.cancelled()).await;
        }
    }
}

// === impl Asked ===

impl PendingRequest {
    /// What a client asks in a session, or outside of one, where it can take nothing back.
    pub(in crate::proxy) fn new(
        ended: &Arc<PendingRequests>,
        key: Option<SessionKey>,
        ids: SmallVec<[RequestId; 1]>,
    ) -> Arc<Self> {
        let asked = Arc::new(Self {
            registry: Arc::clone(ended),
            key,
            ids,
            cancelled: Mutex::default(),
            is_queued: AtomicBool::new(false),
            lost: CancellationToken::new(),
            reading_on: BackgroundRead::default(),
        });
        for place in asked.keys() {
            let this = Arc::downgrade(&asked);
            match ended.requests.entry(place) {
                Entry::Occupied(mut others) => others.get_mut().push(this),
                Entry::Vacant(none) => drop(none.insert(smallvec![this])),
            }
        }
        asked
    }

    fn keys(&self) -> impl Iterator<Item = (SessionKey, RequestId)> {
        self.key.into_iter().flat_map(|key| self.ids.iter().map(move |id| (key, id.clone())))
    }

    fn cancel(&self, id: &RequestId) {
        let mut taken_back = self.cancelled.lock();
        taken_back.insert(id.clone());
        if taken_back.len() == self.ids.len() {
            self.lost.cancel();
        }
    }

    /// It waits in a queue of ours from now on.
    pub(in crate::proxy) fn enter_queue(&self) {
        let _taken_back = self.cancelled.lock();
        self.is_queued.store(true, Ordering::Relaxed);
        self.registry.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// It is about to be sent. False where it is cancelled, and is not to be.
    pub(in crate::proxy) fn leave_queue(&self) -> bool {
        let _taken_back = self.cancelled.lock();
        self.clear_queued();
        !self.lost.is_cancelled()
    }

    /// Whether the server has not heard of it, because it waits in a queue of ours.
    pub(in crate::proxy) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Relaxed)
    }

    fn clear_queued(&self) {
        if self.is_queued.swap(false, Ordering::Relaxed) {
            self.registry.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Cancels it where it waits in a queue of ours and this is all that it asks: the server never hears of it.
    fn withdraw_queued(&self, id: &RequestId) -> bool {
        let mut taken_back = self.cancelled.lock();
        let is_all = self.is_queued.load(Ordering::Relaxed) && self.ids[..] == [id.clone()];
        if is_all {
            taken_back.insert(id.clone());
            self.lost.cancel();
        }
        is_all
    }

    /// Nothing of it is wanted any more, and whoever says so tells the server. Whether that was news.
    pub(in crate::proxy) fn abandon(&self) -> bool {
        let is_news = !self.lost.is_cancelled();
        self.lost.cancel();
        is_news
    }

    /// Whether the client has taken back all of it, or has ended its session: what the server says of it is
    /// for nobody.
    pub(in crate::proxy) fn is_cancelled(&self) -> bool {
        let all = !self.ids.is_empty() && self.cancelled.lock().len() == self.ids.len();
        all || self.key.is_some_and(|key| self.registry.is_ended(key))
    }

    /// Those of `waiting_calls` that are owed an answer. Where the session is just being ended it is waited for
    /// what becomes of that, though not for ever.
    pub(in crate::proxy) async fn owed(
        &self,
        mut waiting: SmallVec<[RequestId; 1]>,
    ) -> SmallVec<[RequestId; 1]> {
        let Some(key) = self.key else { return waiting };
        // The request that ends the session waits for no answer itself: it would wait for its own end.
        if !waiting.is_empty() {
            self.registry.wait_for_end(key).await;
            let is_over = self.registry.sessions.lock().ended.contains(&key);
            let taken_back = self.cancelled.lock();
            waiting.retain(|id| !is_over && !taken_back.contains(id));
        }
        waiting
    }
}

impl ResponseInterest for PendingRequest {
    fn cancellation(&self) -> &CancellationToken {
        &self.lost
    }

    /// Nobody else's question could be taken for one of its.
    fn mark_answered(&self) {}

    fn background_read(&self) -> &BackgroundRead {
        &self.reading_on
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.clear_queued();
        for place in self.keys() {
            if let Entry::Occupied(mut others) = self.registry.requests.entry(place) {
                others.get_mut().retain(|other| !std::ptr::eq(other.as_ptr(), self));
                if others.get().is_empty() {
                    others.remove();
                }
            }
        }
    }
}

// === impl Leaving ===

impl EndingSession {
    /// The server has said that the session is over.
    pub(in crate::proxy) fn confirm(&self) {
        let mut known = self.registry.sessions.lock();
        if known.ending.get(&self.key).is_some_and(|requests| !requests.is_reopened) {
            known.ended.insert(self.key, ());
        }
    }
}

impl Drop for EndingSession {
    fn drop(&mut self) {
        let mut known = self.registry.sessions.lock();
        let Some(requests) = known.ending.get_mut(&self.key) else { return };
        requests.count -= 1;
        if requests.count == 0
            && let Some(requests) = known.ending.remove(&self.key)
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

    fn key(session: &'static str) -> SessionKey {
        let headers = HeaderMap::from_iter([(SESSION_ID.clone(), HeaderValue::from_static(session))]);
        SessionKey::of(Principal::from_bytes([1; 16]), &headers).expect("it names one")
    }

    fn ids(numbers: &[u64]) -> SmallVec<[RequestId; 1]> {
        numbers.iter().map(|&number| RequestId::from_number(number)).collect()
    }

    fn asked(ended: &Arc<PendingRequests>, session: &'static str, numbers: &[u64]) -> Arc<PendingRequest> {
        PendingRequest::new(ended, Some(key(session)), ids(numbers))
    }

    #[tokio::test]
    async fn a_request_that_was_taken_back_is_owed_nothing_in_its_session_alone() {
        let ended = Arc::new(PendingRequests::default());
        let (a, b) = (asked(&ended, "a", &[1, 2, 3]), asked(&ended, "b", &[2]));
        let again = asked(&ended, "a", &[2]);
        ended.cancel(key("a"), RequestId::from_number(2));
        ended.cancel(key("a"), RequestId::from_token(Bytes::from_static(b"\"3\"")).expect("an id"));
        assert_eq!(a.owed(ids(&[1, 2, 3])).await, ids(&[1, 3]));
        assert_eq!(b.owed(ids(&[2])).await, ids(&[2]));
        assert!(!a.is_cancelled() && !a.cancellation().is_cancelled() && !b.is_cancelled());
        assert!(
            again.is_cancelled() && again.cancellation().is_cancelled(),
            "of one id more than one may be asked"
        );
        ended.cancel(key("a"), RequestId::from_number(1));
        ended.cancel(key("a"), RequestId::from_number(3));
        assert!(a.is_cancelled() && a.cancellation().is_cancelled());
        let anywhere = PendingRequest::new(&ended, None, ids(&[2]));
        assert_eq!(anywhere.owed(ids(&[2])).await, ids(&[2]));
    }

    #[tokio::test]
    async fn what_is_not_in_flight_is_not_remembered() {
        let ended = Arc::new(PendingRequests::default());
        for number in 0..100 {
            ended.cancel(key("a"), RequestId::from_number(number));
        }
        let (one, other) = (asked(&ended, "a", &[1]), asked(&ended, "a", &[1]));
        assert_eq!((one.owed(ids(&[1])).await, ended.requests.len()), (ids(&[1]), 1));
        drop(one);
        ended.cancel(key("a"), RequestId::from_number(1));
        assert!(other.is_cancelled());
        drop(other);
        assert!(ended.requests.is_empty());
    }

    #[tokio::test]
    async fn a_session_that_is_just_being_ended_is_waited_for() {
        let ended = Arc::new(PendingRequests::default());
        let (a, b) = (asked(&ended, "a", &[1]), asked(&ended, "b", &[7]));
        for (over, owed) in [(false, ids(&[1])), (true, ids(&[]))] {
            let leaving = ended.begin_end(key("a"));
            let mut asking = Box::pin(a.owed(ids(&[1])));
            assert!(futures_util::poll!(&mut asking).is_pending());
            if over {
                leaving.confirm();
            }
            drop(leaving);
            assert_eq!(asking.await, owed);
        }
        assert_eq!(b.owed(ids(&[7])).await, ids(&[7]));
        assert!(ended.sessions.lock().ending.is_empty());
    }

    #[tokio::test]
    async fn a_session_whose_id_is_given_again_is_not_over() {
        let ended = Arc::new(PendingRequests::default());
        ended.close_session(key("a"));
        ended.begin_end(key("b")).confirm();
        ended.reopen(key("a"));
        ended.reopen(key("b"));
        assert!(!ended.is_closed(key("a")));
        assert_eq!(asked(&ended, "b", &[1]).owed(ids(&[1])).await, ids(&[1]));
        // The answer to the DELETE comes behind that to the handshake.
        let leaving = ended.begin_end(key("b"));
        ended.reopen(key("b"));
        leaving.confirm();
        drop(leaving);
        assert_eq!(asked(&ended, "b", &[1]).owed(ids(&[1])).await, ids(&[1]));
        ended.begin_end(key("b")).confirm();
        assert!(asked(&ended, "b", &[1]).owed(ids(&[1])).await.is_empty(), "it can be ended again");
    }

    #[tokio::test]
    async fn a_request_is_taken_back_under_any_spelling_of_its_id() {
        let ended = Arc::new(PendingRequests::default());
        let id =
            |token: &str| RequestId::from_token(Bytes::copy_from_slice(token.as_bytes())).expect("an id");
        let both = [id("1.0"), id(r#""a\/b""#)];
        let asked = PendingRequest::new(&ended, Some(key("a")), both.iter().cloned().collect());
        ended.cancel(key("a"), id("1"));
        ended.cancel(key("a"), id(r#""a/b""#));
        assert!(asked.is_cancelled() && asked.cancellation().is_cancelled());
        drop(asked);
        assert!(ended.requests.is_empty());
    }

    #[tokio::test]
    async fn only_so_much_is_remembered() {
        let ended = PendingRequests::default();
        let session = |number: usize| SessionKey::named(Principal::ANONYMOUS, &number.into());
        for number in 0..=REMEMBERED {
            ended.close_session(session(number));
            ended.close_session(session(number));
        }
        assert!(!ended.is_closed(session(0)) && ended.is_closed(session(1)));
        assert_eq!(ended.sessions.lock().closed.sizes(), (REMEMBERED, REMEMBERED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_end_is_never_answered_holds_up_nobody_for_ever() {
        let ended = Arc::new(PendingRequests::default());
        let _leaving = ended.begin_end(key("a"));
        assert_eq!(asked(&ended, "a", &[1]).owed(ids(&[1])).await, ids(&[1]));
    }

    #[tokio::test]
    async fn a_session_that_was_closed_here_is_over_and_what_it_still_waits_for_is_owed() {
        let ended = Arc::new(PendingRequests::default());
        ended.close_session(key("a"));
        assert!(ended.is_closed(key("a")) && !ended.is_closed(key("b")));
        assert_eq!(asked(&ended, "a", &[1]).owed(ids(&[1])).await, ids(&[1]));
    }
}
