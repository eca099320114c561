//! Calls in the sessions of legacy clients: ours, which are tasks or may become some, and the clients'
//! own.
//!
//! A session is kept for our calls. Many clients end theirs whenever they leave, and come back for their
//! tasks in another one (2025-11-25, *Session Management*; *Tasks*); the tasks run in the session that
//! has been left, so its server hears of the end only after the last of them.
//!
//! And what a server says on the session's own stream may be about one of our calls. Progress names its
//! call; a question names none, and belongs to the only call in flight. Where there are several it is
//! nobody's, and so it is where a call has left without its end: the server may still be at that one.
//!
//! A call that its client has cancelled is neither in flight nor has it left: its server has been told, and sends no
//! response ([`CANCELLATION_WINDOW`]). Otherwise one cancelled call would keep all later ones in its session from asking.

use super::{SessionKey, bounded_map::BoundedMap, pending_requests::PendingRequest};
use crate::{
    dialect::Principal,
    protocol::{Frame, Kind, Method, RequestId},
    runtime::{Clock, Mutex, SystemClock},
    telemetry::{InputRequestRefused, metrics::InputRequestOutcome},
    upstream::{BackgroundRead, OffStreamCall, ResponseInterest, sole_call},
};
use dashmap::{DashMap, mapref::one::RefMut};
use smallvec::SmallVec;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// The sessions in which calls are in flight.
#[derive(Default)]
pub(in crate::proxy) struct InFlightCalls {
    clock: SystemClock,
    sessions: DashMap<SessionKey, SessionCalls>,
    /// Held for one insertion or look-up.
    abandoned: Mutex<AbandonedCalls>,
    /// The numbers of our calls that have ended lately: what is still said of their progress is for nobody. Held for
    /// one insertion or look-up.
    ended: Mutex<BoundedMap<(SessionKey, u64), (), REMEMBERED>>,
}

/// The calls that have left their sessions without their ends, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
struct AbandonedCalls {
    calls: BoundedMap<(SessionKey, RequestDigest), (), REMEMBERED>,
    /// How many of them there are in a session; never 0.
    in_session: HashMap<SessionKey, usize>,
    /// When a call was last cancelled in a session.
    cancelled: BoundedMap<SessionKey, Instant, REMEMBERED>,
}

/// A request's id: a digest.
type RequestDigest = [u8; 16];

#[derive(Default)]
struct SessionCalls {
    proxy_calls: Vec<ProxyCall>,
    /// Those that the client makes and hears the answers of itself.
    client_calls: Vec<Arc<PendingRequest>>,
    /// The client has ended it: what is to be done once the last of ours has ended.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// One call of ours.
struct ProxyCall {
    number: u64,
    began: Instant,
    /// The client's own progress token.
    token: Option<RequestId>,
    call: Arc<dyn OffStreamCall>,
}

/// One call of ours in a session. With the last one in a session that its client has left, that ends.
pub(in crate::proxy) struct ProxyCallGuard {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    number: u64,
}

/// One call of the client's own. It is in flight also while its answer is read on after its client has left.
pub(in crate::proxy) struct ClientCall {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    /// What it asks.
    requests: SmallVec<[RequestId; 1]>,
    /// The client comes back for the answer to a call that has left.
    is_resumed: bool,
    answered: AtomicBool,
    pending: Arc<PendingRequest>,
}

/// Whose a question can be that names no call.
enum RequestOwner {
    /// No call of ours is in flight.
    Client,
    Call(Arc<dyn OffStreamCall>),
    /// It cannot be told, for this reason; any of our calls can say so.
    Unclear(Arc<dyn OffStreamCall>, &'static str),
}

/// How many calls are remembered that have left, and of ours that have ended. Each costs about 100 bytes; where one is forgotten too
/// early, what it asks may be put to the client of another call in its session.
const REMEMBERED: usize = 16 << 10;

/// How long a call that was cancelled may still ask, where another was in flight by then: what the server has sent
/// before it read of the cancellation is on its way. What begins later is sent behind the cancellation.
const CANCELLATION_WINDOW: Duration = Duration::from_secs(10);

// === impl InFlight ===

impl InFlightCalls {
    /// One more call of ours: under this number, or with the client's own progress token.
    pub(in crate::proxy) fn begin_proxy_call(
        self: &Arc<Self>,
        key: SessionKey,
        number: u64,
        token: Option<RequestId>,
        call: Arc<dyn OffStreamCall>,
    ) -> ProxyCallGuard {
        let began = self.clock.now();
        self.calls(key).proxy_calls.push(ProxyCall { number, began, token, call });
        ProxyCallGuard { in_flight: Arc::clone(self), key, number }
    }

    /// One more call of the client's.
    pub(in crate::proxy) fn begin_client_call(
        self: &Arc<Self>,
        key: SessionKey,
        requests: SmallVec<[RequestId; 1]>,
        comes_back: bool,
        asked: &Arc<PendingRequest>,
    ) -> Arc<ClientCall> {
        self.calls(key).client_calls.push(Arc::clone(asked));
        let (in_flight, asked) = (Arc::clone(self), Arc::clone(asked));
        let answered = AtomicBool::new(false);
        Arc::new(ClientCall { in_flight, key, requests, is_resumed: comes_back, answered, pending: asked })
    }

    /// The client has ended this session. Whether calls of ours go on in it: then its server is told
    /// once they have ended, by `end`, and must not be before.
    pub(in crate::proxy) fn end_session<E>(&self, key: SessionKey, end: impl FnOnce() -> E) -> bool
    where
        E: FnOnce() + Send + Sync + 'static,
    {
        let Some(mut calls) = self.sessions.get_mut(&key) else { return false };
        if calls.proxy_calls.is_empty() {
            return false;
        }
        calls.end.get_or_insert_with(|| Box::new(end()));
        true
    }

    /// The client cancels something in this session.
    pub(in crate::proxy) fn cancel(&self, key: SessionKey) {
        if self.sessions.contains_key(&key) {
            self.abandoned.lock().cancelled.insert(key, self.clock.now());
        }
    }

    /// A handshake has opened a session of this id, which its server may have given before: what was left in that one
    /// is over, and its end is not told in the new one.
    pub(in crate::proxy) fn reopen(&self, key: SessionKey) {
        self.abandoned.lock().remove_session(key);
        if let Some(mut calls) = self.sessions.get_mut(&key) {
            calls.end = None;
        }
    }

    /// Whether a call of ours is in flight in a session.
    pub(in crate::proxy) fn has_proxy_call(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|calls| !calls.proxy_calls.is_empty())
    }

    /// Takes what the session's own stream has said, where it is for a call of ours. Whether it was.
    pub(in crate::proxy) fn dispatch(&self, route: &str, key: SessionKey, frame: Frame) -> bool {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let Some(token) = params.get("progressToken").and_then(RequestId::from_token) else {
                    return false;
                };
                match self.by_token(key, &token) {
                    Some(call) => call.receive(frame),
                    // Of a call of ours that has ended.
                    None => return token.echoed_number().is_some_and(|number| self.has_ended(key, number)),
                }
                true
            }
            Kind::Notification { method: Method::Cancelled, params: Some(params) } => {
                let id = params.get("requestId").and_then(RequestId::from_token);
                let Some(call) = id.and_then(|id| self.by_request_id(key, &id)) else { return false };
                call.receive(frame);
                true
            }
            Kind::Request {
                id,
                method: method @ (Method::Elicit | Method::CreateMessage | Method::RootsList),
                ..
            } => match self.request_owner(key) {
                RequestOwner::Client => false,
                RequestOwner::Call(call) => {
                    call.receive(frame);
                    true
                }
                RequestOwner::Unclear(call, reason) => {
                    let (method, outcome) = (method.as_str(), InputRequestOutcome::Refused);
                    InputRequestRefused { route, method, reason, outcome }.emit();
                    call.refuse(id, reason);
                    true
                }
            },
            Kind::Request { .. }
            | Kind::Notification { .. }
            | Kind::Success { .. }
            | Kind::Failure { .. } => false,
        }
    }

    /// Whose a question is that came on the session's own stream.
    fn request_owner(&self, key: SessionKey) -> RequestOwner {
        let Some(calls) = self.sessions.get(&key) else { return RequestOwner::Client };
        let in_flight = || calls.proxy_calls.iter().filter(|ours| ours.call.is_in_flight());
        let Some(first) = in_flight().next() else { return RequestOwner::Client };
        let is_abandoned = || {
            let now = self.clock.now();
            let may_ask = |ours: &ProxyCall| {
                let is_over = |at| !can_still_request(at, first.began, now);
                ours.call.is_abandoned() && !ours.call.cancelled_at().is_some_and(is_over)
            };
            calls.proxy_calls.iter().any(may_ask)
                || self.abandoned.lock().can_send_request(key, first.began, now)
        };
        let theirs = calls.client_calls.iter().filter(|asked| !asked.cancellation().is_cancelled());
        match sole_call(in_flight().chain(theirs.map(|_| first)), is_abandoned) {
            Ok(ours) => RequestOwner::Call(ours.call.clone()),
            Err(reason) => RequestOwner::Unclear(first.call.clone(), reason),
        }
    }

    /// The call that progress under this token is about.
    fn by_token(&self, key: SessionKey, token: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let number = token.echoed_number();
        let about = |ours: &&ProxyCall| match &ours.token {
            Some(own) => own == token,
            None => number == Some(ours.number),
        };
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(about)?.call.clone())
    }

    /// The call that this question of the server was put to.
    fn by_request_id(&self, key: SessionKey, id: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let asked = |ours: &&ProxyCall| ours.call.has_open_request(id);
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(asked)?.call.clone())
    }

    /// Whether a call of ours with this number has ended lately.
    fn has_ended(&self, key: SessionKey, number: u64) -> bool {
        self.ended.lock().contains(&(key, number))
    }

    fn calls(&self, key: SessionKey) -> RefMut<'_, SessionKey, SessionCalls> {
        self.sessions.entry(key).or_default()
    }
}

// === impl Calls ===

impl SessionCalls {
    fn is_empty(&self) -> bool {
        self.proxy_calls.is_empty() && self.client_calls.is_empty()
    }
}

// === impl Left ===

impl AbandonedCalls {
    /// A call leaves without its end.
    fn insert(&mut self, key: SessionKey, request: &RequestId) {
        let call = (key, request_digest(request));
        if self.calls.contains(&call) {
            return;
        }
        *self.in_session.entry(key).or_default() += 1;
        if let Some((key, _)) = self.calls.insert(call, ()) {
            self.decrement(key);
        }
    }

    /// Whether something that has left a session may still ask, where a call is in flight that began then.
    fn can_send_request(&self, key: SessionKey, began: Instant, now: Instant) -> bool {
        let cancelled = self.cancelled.get(&key).filter(|at| can_still_request(**at, began, now));
        cancelled.is_some() || self.in_session.contains_key(&key)
    }

    fn remove_session(&mut self, key: SessionKey) {
        if self.in_session.remove(&key).is_some() {
            self.calls.retain(|(session, _)| *session != key);
        }
        self.cancelled.remove(&key);
    }

    fn remove(&mut self, key: SessionKey, request: &RequestId) {
        if self.calls.remove(&(key, request_digest(request))) {
            self.decrement(key);
        }
    }

    fn decrement(&mut self, key: SessionKey) {
        if let Entry::Occupied(mut count) = self.in_session.entry(key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Whether a call that was cancelled at this time may ask something that could be taken for one that `began`.
fn can_still_request(at: Instant, began: Instant, now: Instant) -> bool {
    began <= at && now < at + CANCELLATION_WINDOW
}

/// An id may be as long as its client likes.
fn request_digest(request: &RequestId) -> RequestDigest {
    *Principal::of(&[&request.value()]).as_bytes()
}

// === impl OurCall ===

impl Drop for ProxyCallGuard {
    fn drop(&mut self) {
        let Self { in_flight, key, number } = self;
        in_flight.ended.lock().insert((*key, *number), ());
        let mut end = None;
        in_flight.sessions.remove_if_mut(key, |_, calls| {
            let is_this = |ours: &mut ProxyCall| ours.number == *number;
            for ours in calls.proxy_calls.extract_if(.., is_this).filter(|ours| ours.call.is_abandoned()) {
                let mut left = in_flight.abandoned.lock();
                match ours.call.cancelled_at() {
                    Some(at) => drop(left.cancelled.insert(*key, at)),
                    None => left.insert(*key, &RequestId::from_number(*number)),
                }
            }
            end = calls.end.take_if(|_| calls.proxy_calls.is_empty());
            calls.is_empty()
        });
        if let Some(end) = end {
            end();
        }
    }
}

// === impl TheirCall ===

impl ResponseInterest for ClientCall {
    fn cancellation(&self) -> &CancellationToken {
        self.pending.cancellation()
    }

    fn background_read(&self) -> &BackgroundRead {
        &self.pending.reading_on
    }

    /// It has been answered, or the server never had it. Dropped without, it has left without its end.
    fn mark_answered(&self) {
        if !self.answered.swap(true, Relaxed) && self.is_resumed {
            let mut left = self.in_flight.abandoned.lock();
            self.requests.iter().for_each(|request| left.remove(self.key, request));
        }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        // One that comes back had left before; the server has been told of one that was cancelled.
        if !*self.answered.get_mut() && !self.is_resumed && !self.pending.cancellation().is_cancelled() {
            let mut left = self.in_flight.abandoned.lock();
            self.requests.iter().for_each(|request| left.insert(self.key, request));
        }
        self.in_flight.sessions.remove_if_mut(&self.key, |_, calls| {
            if let Some(at) = calls.client_calls.iter().position(|asked| Arc::ptr_eq(asked, &self.pending)) {
                calls.client_calls.swap_remove(at);
            }
            calls.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_cancelled_call_may_ask_for_a_while_and_only_where_another_was_in_flight_by_then() {
        let key = SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from_static("a"));
        let before = SystemClock::new().now();
        let (at, after) = (before + Duration::from_secs(1), before + Duration::from_secs(2));
        let mut left = AbandonedCalls::default();
        left.cancelled.insert(key, at);
        assert!(left.can_send_request(key, before, after) && left.can_send_request(key, at, after));
        assert!(!left.can_send_request(key, after, after), "it began behind the cancellation");
        assert!(!left.can_send_request(key, before, at + CANCELLATION_WINDOW));
        left.insert(key, &RequestId::from_number(1));
        assert!(
            left.can_send_request(key, after, at + CANCELLATION_WINDOW),
            "another has left without a word to the server"
        );
        left.remove_session(key);
        assert!(!left.can_send_request(key, before, after) && left.calls.sizes().0 == 0);
    }

    #[test]
    fn only_so_many_calls_that_have_left_are_remembered_and_none_that_was_answered() {
        let key = |session| SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from_static(session));
        let mut left = AbandonedCalls::default();
        left.insert(key("a"), &RequestId::from_number(1));
        left.insert(key("a"), &RequestId::from_number(2));
        left.remove(key("a"), &RequestId::from_number(1));
        assert!(left.in_session.contains_key(&key("a")));
        left.remove(key("a"), &RequestId::from_number(2));
        assert!(left.in_session.is_empty());
        for number in 0..2 * REMEMBERED as u64 {
            left.insert(key("b"), &RequestId::from_number(number));
        }
        assert_eq!((left.in_session[&key("b")], left.calls.sizes()), (REMEMBERED, (REMEMBERED, REMEMBERED)));
    }
}
