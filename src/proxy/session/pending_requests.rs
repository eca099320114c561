//! Pending requests of legacy clients, and whether the client is still owed a response: it may have cancelled
//! the request, or ended the session.
//!
//! A server sends no response to a cancelled request (2025-11-25, *Cancellation*), nor to the pending
//! requests of an ended session. Over a direct connection the stream just ends, and the proxy ends it
//! likewise: an error of the proxy would reach a client that no longer knows the request, and some clients
//! then close their transport. Requests are [tracked](PendingRequest) while they are in flight; cancellations
//! of other requests are not stored.
//!
//! This module also tracks sessions that have ended for their clients, although their servers have not been
//! notified (`session_delete`).

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

/// The pending requests of a route's clients, and the sessions that they have ended.
#[derive(Debug, Default)]
pub(in crate::proxy) struct PendingRequests {
    /// Requests in flight, by session and id. Some clients use one id for more than one request.
    requests: DashMap<(SessionKey, RequestId), SmallVec<[Weak<PendingRequest>; 1]>>,
    /// The number of requests in the proxy's queue.
    queued: AtomicUsize,
    /// The sessions that clients have ended. Never locked across an await.
    sessions: Mutex<EndedSessions>,
    /// Whether any session has been closed for its client: lets most requests skip the lock.
    has_closed: AtomicBool,
}

/// The sessions that clients have ended, by state.
#[derive(Debug, Default)]
struct EndedSessions {
    /// Sessions whose end the server has confirmed: no responses are owed.
    ended: BoundedMap<SessionKey, (), MAX_ENDED_SESSIONS>,
    /// Sessions that are closed for their clients and still open at their servers.
    closed: BoundedMap<SessionKey, (), MAX_ENDED_SESSIONS>,
    /// Sessions with a DELETE in flight. The server may close their streams before it responds to the DELETE.
    ending: HashMap<SessionKey, EndRequests>,
}

/// The requests of one POST, from its arrival until its response is complete.
#[derive(Debug)]
pub(in crate::proxy) struct PendingRequest {
    registry: Arc<PendingRequests>,
    /// The session of the POST; `None` if it names none.
    pub(in crate::proxy) key: Option<SessionKey>,
    /// The ids of the requests in the POST; several in a batch.
    pub(in crate::proxy) ids: SmallVec<[RequestId; 1]>,
    /// The cancelled ids. Locked briefly.
    cancelled: Mutex<HashSet<RequestId>>,
    /// Whether the POST waits in the proxy's queue, and the server has not received it. Changed only while
    /// `cancelled` is locked.
    is_queued: AtomicBool,
    /// Cancelled when no response is wanted; the server has been notified, or is about to be.
    cancellation: CancellationToken,
    /// Controls reading the response on after the client disconnected.
    pub(in crate::proxy) background_read: BackgroundRead,
}

/// The DELETE requests in flight for one session.
#[derive(Debug, Default)]
struct EndRequests {
    /// The number of DELETE requests in flight; never 0.
    count: usize,
    /// Whether the server has assigned the session's id to a new session meanwhile.
    is_reopened: bool,
    /// Cancelled when the last of the DELETE requests has an outcome.
    completed: CancellationToken,
}

/// A DELETE request in flight. If it is dropped without [`EndingSession::confirm`], the session has not
/// ended.
pub(in crate::proxy) struct EndingSession {
    registry: Arc<PendingRequests>,
    key: SessionKey,
}

/// Ended sessions that are remembered in each state. Each costs about 50 bytes. If one is evicted too early,
/// its client may get an unexpected error, or can continue in a session that it has ended.
const MAX_ENDED_SESSIONS: usize = 16 << 10;

/// How long requests wait for the outcome of a DELETE: the server may never respond.
const END_TIMEOUT: Duration = Duration::from_secs(5);

// === impl PendingRequests ===

impl PendingRequests {
    /// Records that the client has cancelled a request. No effect if the request is not in flight.
    pub(in crate::proxy) fn cancel(&self, key: SessionKey, request: RequestId) {
        let pending = self.requests.get(&(key, request.clone())).map(|pending| pending.clone());
        pending
            .iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .for_each(|pending| pending.record_cancelled(&request));
    }

    /// Cancels a request that waits in the proxy's queue, so that the server never receives it. Returns
    /// whether all requests with this id were queued and are cancelled; otherwise the server must be
    /// notified.
    pub(in crate::proxy) fn withdraw_queued(&self, key: SessionKey, request: &RequestId) -> bool {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let pending = self.requests.get(&(key, request.clone())).map(|pending| pending.clone());
        // Collected first, because `all` would stop at the first request that is not queued.
        let withdrawn = pending
            .iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .map(|pending| pending.withdraw_queued(request));
        let withdrawn: Vec<_> = withdrawn.collect();
        !withdrawn.is_empty() && withdrawn.into_iter().all(|is_withdrawn| is_withdrawn)
    }

    /// Whether any request waits in the proxy's queue.
    pub(in crate::proxy) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Closes the session for its client, not at the server: later requests of the client are refused.
    /// Pending requests continue.
    pub(in crate::proxy) fn close_session(&self, key: SessionKey) {
        self.sessions.lock().closed.insert(key, ());
        self.has_closed.store(true, Ordering::Release);
    }

    /// Whether the session is closed for its client. Cheap if no session is.
    pub(in crate::proxy) fn is_closed(&self, key: SessionKey) -> bool {
        self.has_closed.load(Ordering::Acquire) && self.sessions.lock().closed.contains(&key)
    }

    /// Tracks a DELETE of the session until the server responds.
    pub(in crate::proxy) fn begin_delete(self: &Arc<Self>, key: SessionKey) -> EndingSession {
        self.sessions.lock().ending.entry(key).or_default().count += 1;
        EndingSession { registry: Arc::clone(self), key }
    }

    /// Resets the state of a session whose id the server has assigned to a new session.
    pub(in crate::proxy) fn reopen(&self, key: SessionKey) {
        let mut sessions = self.sessions.lock();
        sessions.ended.remove(&key);
        sessions.closed.remove(&key);
        if let Some(requests) = sessions.ending.get_mut(&key) {
            requests.is_reopened = true;
        }
    }

    /// Whether the client has ended the session, at the server or only at the proxy.
    fn is_ended(&self, key: SessionKey) -> bool {
        let sessions = self.sessions.lock();
        sessions.ended.contains(&key) || sessions.closed.contains(&key)
    }

    /// Waits until the outcome of the session's DELETE requests in flight is known, at most [`END_TIMEOUT`].
    async fn wait_for_end(&self, key: SessionKey) {
        let completed = self.sessions.lock().ending.get(&key).map(|requests| requests.completed.clone());
        if let Some(completed) = completed {
            // Without an outcome the session still exists.
            let _ = timeout(END_TIMEOUT, completed.cancelled()).await;
        }
    }
}

// === impl PendingRequest ===

impl PendingRequest {
    /// Registers the requests of a client's POST. Requests without a session cannot be cancelled.
    pub(in crate::proxy) fn new(
        registry: &Arc<PendingRequests>,
        key: Option<SessionKey>,
        ids: SmallVec<[RequestId; 1]>,
    ) -> Arc<Self> {
        let pending = Arc::new(Self {
            registry: Arc::clone(registry),
            key,
            ids,
            cancelled: Mutex::default(),
            is_queued: AtomicBool::new(false),
            cancellation: CancellationToken::new(),
            background_read: BackgroundRead::default(),
        });
        for request_key in pending.keys() {
            let weak = Arc::downgrade(&pending);
            match registry.requests.entry(request_key) {
                Entry::Occupied(mut same_id) => same_id.get_mut().push(weak),
                Entry::Vacant(vacant) => drop(vacant.insert(smallvec![weak])),
            }
        }
        pending
    }

    /// The keys under which the requests are registered.
    fn keys(&self) -> impl Iterator<Item = (SessionKey, RequestId)> {
        self.key.into_iter().flat_map(|key| self.ids.iter().map(move |id| (key, id.clone())))
    }

    /// Cancels one request; with the last one, the whole POST is cancelled.
    fn record_cancelled(&self, id: &RequestId) {
        let mut cancelled = self.cancelled.lock();
        cancelled.insert(id.clone());
        if cancelled.len() == self.ids.len() {
            self.cancellation.cancel();
        }
    }

    /// Records that the POST waits in the proxy's queue.
    pub(in crate::proxy) fn enter_queue(&self) {
        let _cancelled = self.cancelled.lock();
        self.is_queued.store(true, Ordering::Relaxed);
        self.registry.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the POST is about to be sent to the server. Returns false if it was cancelled and must
    /// not be sent.
    pub(in crate::proxy) fn leave_queue(&self) -> bool {
        let _cancelled = self.cancelled.lock();
        self.clear_queued();
        !self.cancellation.is_cancelled()
    }

    /// Whether the POST waits in the proxy's queue, so that the server does not have it.
    pub(in crate::proxy) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Relaxed)
    }

    fn clear_queued(&self) {
        if self.is_queued.swap(false, Ordering::Relaxed) {
            self.registry.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Cancels the POST if it is in the proxy's queue and contains only this request, so that the server
    /// never receives it. Returns whether it did.
    fn withdraw_queued(&self, id: &RequestId) -> bool {
        let mut cancelled = self.cancelled.lock();
        let is_withdrawn = self.is_queued.load(Ordering::Relaxed) && self.ids[..] == [id.clone()];
        if is_withdrawn {
            cancelled.insert(id.clone());
            self.cancellation.cancel();
        }
        is_withdrawn
    }

    /// Records that the client wants no response. Returns whether that is new; then the caller notifies the
    /// server.
    pub(in crate::proxy) fn abandon(&self) -> bool {
        let is_new = !self.cancellation.is_cancelled();
        self.cancellation.cancel();
        is_new
    }

    /// Whether the client has cancelled all requests of the POST, or has ended its session: responses are
    /// dropped.
    pub(in crate::proxy) fn is_cancelled(&self) -> bool {
        let is_all_cancelled = !self.ids.is_empty() && self.cancelled.lock().len() == self.ids.len();
        is_all_cancelled || self.key.is_some_and(|key| self.registry.is_ended(key))
    }

    /// Returns the requests among `waiting` that are still owed a response: not cancelled, in a session that
    /// has not ended. Waits for the outcome of a DELETE in flight, at most [`END_TIMEOUT`].
    pub(in crate::proxy) async fn still_owed(
        &self,
        mut waiting: SmallVec<[RequestId; 1]>,
    ) -> SmallVec<[RequestId; 1]> {
        let Some(key) = self.key else { return waiting };
        // The DELETE itself has no waiting requests, and must not wait for its own outcome.
        if !waiting.is_empty() {
            self.registry.wait_for_end(key).await;
            let is_ended = self.registry.sessions.lock().ended.contains(&key);
            let cancelled = self.cancelled.lock();
            waiting.retain(|id| !is_ended && !cancelled.contains(id));
        }
        waiting
    }
}

impl ResponseInterest for PendingRequest {
    fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }

    /// Does nothing: no input request can be attributed to these requests.
    fn mark_answered(&self) {}

    fn background_read(&self) -> &BackgroundRead {
        &self.background_read
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.clear_queued();
        for request_key in self.keys() {
            if let Entry::Occupied(mut same_id) = self.registry.requests.entry(request_key) {
                same_id.get_mut().retain(|other| !std::ptr::eq(other.as_ptr(), self));
                if same_id.get().is_empty() {
                    same_id.remove();
                }
            }
        }
    }
}

// === impl EndingSession ===

impl EndingSession {
    /// Records that the server has confirmed the end of the session.
    pub(in crate::proxy) fn confirm(&self) {
        let mut sessions = self.registry.sessions.lock();
        if sessions.ending.get(&self.key).is_some_and(|requests| !requests.is_reopened) {
            sessions.ended.insert(self.key, ());
        }
    }
}

impl Drop for EndingSession {
    fn drop(&mut self) {
        let mut sessions = self.registry.sessions.lock();
        let Some(requests) = sessions.ending.get_mut(&self.key) else { return };
        requests.count -= 1;
        if requests.count == 0
            && let Some(requests) = sessions.ending.remove(&self.key)
        {
            requests.completed.cancel();
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
        SessionKey::from_headers(Principal::from_bytes([1; 16]), &headers).expect("it names one")
    }

    fn ids(numbers: &[u64]) -> SmallVec<[RequestId; 1]> {
        numbers.iter().map(|&number| RequestId::from_number(number)).collect()
    }

    fn pending(ended: &Arc<PendingRequests>, session: &'static str, numbers: &[u64]) -> Arc<PendingRequest> {
        PendingRequest::new(ended, Some(key(session)), ids(numbers))
    }

    #[tokio::test]
    async fn a_cancelled_request_is_owed_no_response_in_its_own_session_only() {
        let ended = Arc::new(PendingRequests::default());
        let (a, b) = (pending(&ended, "a", &[1, 2, 3]), pending(&ended, "b", &[2]));
        let again = pending(&ended, "a", &[2]);
        ended.cancel(key("a"), RequestId::from_number(2));
        ended.cancel(key("a"), RequestId::from_token(Bytes::from_static(b"\"3\"")).expect("an id"));
        assert_eq!(a.still_owed(ids(&[1, 2, 3])).await, ids(&[1, 3]));
        assert_eq!(b.still_owed(ids(&[2])).await, ids(&[2]));
        assert!(!a.is_cancelled() && !a.cancellation().is_cancelled() && !b.is_cancelled());
        assert!(
            again.is_cancelled() && again.cancellation().is_cancelled(),
            "of one id more than one may be asked"
        );
        ended.cancel(key("a"), RequestId::from_number(1));
        ended.cancel(key("a"), RequestId::from_number(3));
        assert!(a.is_cancelled() && a.cancellation().is_cancelled());
        let anywhere = PendingRequest::new(&ended, None, ids(&[2]));
        assert_eq!(anywhere.still_owed(ids(&[2])).await, ids(&[2]));
    }

    #[tokio::test]
    async fn cancellations_of_unknown_requests_are_not_stored() {
        let ended = Arc::new(PendingRequests::default());
        for number in 0..100 {
            ended.cancel(key("a"), RequestId::from_number(number));
        }
        let (one, other) = (pending(&ended, "a", &[1]), pending(&ended, "a", &[1]));
        assert_eq!((one.still_owed(ids(&[1])).await, ended.requests.len()), (ids(&[1]), 1));
        drop(one);
        ended.cancel(key("a"), RequestId::from_number(1));
        assert!(other.is_cancelled());
        drop(other);
        assert!(ended.requests.is_empty());
    }

    #[tokio::test]
    async fn owed_responses_wait_for_the_outcome_of_a_delete() {
        let ended = Arc::new(PendingRequests::default());
        let (a, b) = (pending(&ended, "a", &[1]), pending(&ended, "b", &[7]));
        for (over, owed) in [(false, ids(&[1])), (true, ids(&[]))] {
            let leaving = ended.begin_delete(key("a"));
            let mut asking = Box::pin(a.still_owed(ids(&[1])));
            assert!(futures_util::poll!(&mut asking).is_pending());
            if over {
                leaving.confirm();
            }
            drop(leaving);
            assert_eq!(asking.await, owed);
        }
        assert_eq!(b.still_owed(ids(&[7])).await, ids(&[7]));
        assert!(ended.sessions.lock().ending.is_empty());
    }

    #[tokio::test]
    async fn a_session_whose_id_is_assigned_again_is_open() {
        let ended = Arc::new(PendingRequests::default());
        ended.close_session(key("a"));
        ended.begin_delete(key("b")).confirm();
        ended.reopen(key("a"));
        ended.reopen(key("b"));
        assert!(!ended.is_closed(key("a")));
        assert_eq!(pending(&ended, "b", &[1]).still_owed(ids(&[1])).await, ids(&[1]));
        // The response to the DELETE arrives after that to the handshake.
        let leaving = ended.begin_delete(key("b"));
        ended.reopen(key("b"));
        leaving.confirm();
        drop(leaving);
        assert_eq!(pending(&ended, "b", &[1]).still_owed(ids(&[1])).await, ids(&[1]));
        ended.begin_delete(key("b")).confirm();
        assert!(pending(&ended, "b", &[1]).still_owed(ids(&[1])).await.is_empty(), "it can be ended again");
    }

    #[tokio::test]
    async fn a_request_is_cancelled_under_any_spelling_of_its_id() {
        let ended = Arc::new(PendingRequests::default());
        let id =
            |token: &str| RequestId::from_token(Bytes::copy_from_slice(token.as_bytes())).expect("an id");
        let both = [id("1.0"), id(r#""a\/b""#)];
        let pending = PendingRequest::new(&ended, Some(key("a")), both.iter().cloned().collect());
        ended.cancel(key("a"), id("1"));
        ended.cancel(key("a"), id(r#""a/b""#));
        assert!(pending.is_cancelled() && pending.cancellation().is_cancelled());
        drop(pending);
        assert!(ended.requests.is_empty());
    }

    #[tokio::test]
    async fn only_so_much_is_remembered() {
        let ended = PendingRequests::default();
        let session = |number: usize| SessionKey::from_id(Principal::ANONYMOUS, &number.into());
        for number in 0..=MAX_ENDED_SESSIONS {
            ended.close_session(session(number));
            ended.close_session(session(number));
        }
        assert!(!ended.is_closed(session(0)) && ended.is_closed(session(1)));
        assert_eq!(ended.sessions.lock().closed.sizes(), (MAX_ENDED_SESSIONS, MAX_ENDED_SESSIONS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_without_response_delays_requests_for_a_bounded_time() {
        let ended = Arc::new(PendingRequests::default());
        let _leaving = ended.begin_delete(key("a"));
        assert_eq!(pending(&ended, "a", &[1]).still_owed(ids(&[1])).await, ids(&[1]));
    }

    #[tokio::test]
    async fn pending_requests_of_a_closed_session_are_still_owed() {
        let ended = Arc::new(PendingRequests::default());
        ended.close_session(key("a"));
        assert!(ended.is_closed(key("a")) && !ended.is_closed(key("b")));
        assert_eq!(pending(&ended, "a", &[1]).still_owed(ids(&[1])).await, ids(&[1]));
    }
}
