//! Calls in flight in the sessions of legacy clients: the proxy's, which are tasks or may become some, and
//! the clients' own.
//!
//! A session is kept open for the proxy's calls. Many clients end their session when they disconnect, and
//! fetch their tasks in another one (2025-11-25, *Session Management*; *Tasks*); the tasks run in the former
//! session, so its server receives the DELETE only after the last of them.
//!
//! Messages on the session's own stream may belong to a call of the proxy. Progress names its call; an input
//! request names none, and is attributed to the only call in flight. With several calls in flight it cannot
//! be attributed, and neither can it after a call was abandoned without its end: the server may still work at
//! that one.
//!
//! A cancelled call is neither in flight nor abandoned: its server has been notified, and sends no response
//! ([`CANCELLATION_WINDOW`]). Otherwise one cancelled call would block the input requests of all later ones
//! in its session.

use super::{
    SessionKey,
    bounded_map::BoundedMap,
    get_streams::GetStreams,
    listening::{StreamOpening, StreamReader},
    pending_requests::PendingRequest,
};
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

/// The sessions with calls in flight.
#[derive(Default)]
pub(in crate::proxy) struct InFlightCalls {
    clock: SystemClock,
    sessions: DashMap<SessionKey, SessionCalls>,
    /// Locked for one insertion or look-up.
    abandoned: Mutex<AbandonedCalls>,
    /// The numbers of the proxy's calls that ended recently: later progress notifications for them are
    /// dropped. Locked for one insertion or look-up.
    ended: Mutex<BoundedMap<(SessionKey, u64), (), REMEMBERED>>,
}

/// The calls that were abandoned in their sessions without their ends, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
struct AbandonedCalls {
    calls: BoundedMap<(SessionKey, RequestDigest), (), REMEMBERED>,
    /// The number of them in each session; never 0.
    in_session: HashMap<SessionKey, usize>,
    /// The last cancellation in each session.
    cancelled: BoundedMap<SessionKey, Instant, REMEMBERED>,
}

/// The digest of a request id.
type RequestDigest = [u8; 16];

#[derive(Default)]
struct SessionCalls {
    proxy_calls: Vec<ProxyCall>,
    /// Calls that the client makes itself.
    client_calls: Vec<Arc<PendingRequest>>,
    /// Runs after the end of the proxy's last call: the client has ended the session.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Reads the session's own stream where its client does not, once one of ours is a task.
    reader: Option<StreamReader>,
}

/// One call of the proxy.
struct ProxyCall {
    number: u64,
    began: Instant,
    /// The client's own progress token.
    token: Option<RequestId>,
    call: Arc<dyn OffStreamCall>,
}

/// Registers a call of the proxy in a session. The last one to be dropped ends a session that its client has
/// ended.
pub(in crate::proxy) struct ProxyCallGuard {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    number: u64,
}

/// Registers a call of the client. The call stays in flight while its response is read after the client
/// disconnected.
pub(in crate::proxy) struct ClientCall {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    /// The request ids of the call.
    requests: SmallVec<[RequestId; 1]>,
    /// The client resumes the response of an abandoned call.
    is_resumed: bool,
    answered: AtomicBool,
    pending: Arc<PendingRequest>,
}

/// The owner of an input request that names no call.
enum RequestOwner {
    /// No call of the proxy is in flight.
    Client,
    Call(Arc<dyn OffStreamCall>),
    /// It cannot be attributed, for this reason; any call of the proxy can refuse it.
    Unclear(Arc<dyn OffStreamCall>, &'static str),
}

/// Abandoned calls, and ended calls of the proxy, that are remembered. Each costs about 100 bytes. If one is
/// evicted too early, its input request may be sent to the client of another call in its session.
const REMEMBERED: usize = 16 << 10;

/// How long a cancelled call may still send input requests, if another call was in flight at the
/// cancellation: messages that the server sent before it read the cancellation are in flight. Later calls
/// follow the cancellation.
const CANCELLATION_WINDOW: Duration = Duration::from_secs(10);

// === impl InFlightCalls ===

impl InFlightCalls {
    /// Registers a call of the proxy under this number, or with the client's own progress token.
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

    /// Registers a call of the client.
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

    /// Handles the end of this session by its client. Returns whether calls of the proxy continue in it: then
    /// `end` notifies the server after the last of them, and the server must not be notified before.
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

    /// Records a cancellation in this session.
    pub(in crate::proxy) fn cancel(&self, key: SessionKey) {
        if self.sessions.contains_key(&key) {
            self.abandoned.lock().cancelled.insert(key, self.clock.now());
        }
    }

    /// Reopens a session whose id the server has assigned again: abandoned calls of the former one are over,
    /// and its end is not sent in the new one.
    pub(in crate::proxy) fn reopen(&self, key: SessionKey) {
        self.abandoned.lock().remove_session(key);
        if let Some(mut calls) = self.sessions.get_mut(&key) {
            calls.end = None;
        }
    }

    /// Whether a call of the proxy is in flight in a session.
    pub(in crate::proxy) fn has_proxy_call(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|calls| !calls.proxy_calls.is_empty())
    }

    /// Passes a message of the session's own stream to the proxy's call that it belongs to. Returns whether
    /// there is one.
    pub(in crate::proxy) fn dispatch(&self, route: &str, key: SessionKey, frame: Frame) -> bool {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let Some(token) = params.get("progressToken").and_then(RequestId::from_token) else {
                    return false;
                };
                match self.by_token(key, &token) {
                    Some(call) => call.receive(frame),
                    // It belongs to an ended call of the proxy.
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

    /// The owner of an input request on the session's own stream.
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

    /// The call that progress under this token belongs to.
    fn by_token(&self, key: SessionKey, token: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let number = token.echoed_number();
        let about = |ours: &&ProxyCall| match &ours.token {
            Some(own) => own == token,
            None => number == Some(ours.number),
        };
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(about)?.call.clone())
    }

    /// A call of ours in a session.
    pub(super) fn any_of_ours(&self, key: SessionKey) -> Option<Arc<dyn OffStreamCall>> {
        Some(self.sessions.get(&key)?.proxy_calls.first()?.call.clone())
    }

    /// The call that this input request of the server was attributed to.
    fn by_request_id(&self, key: SessionKey, id: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let asked = |ours: &&ProxyCall| ours.call.has_open_request(id);
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(asked)?.call.clone())
    }

    /// Whether a call of the proxy with this number ended recently.
    fn has_ended(&self, key: SessionKey, number: u64) -> bool {
        self.ended.lock().contains(&(key, number))
    }

    fn calls(&self, key: SessionKey) -> RefMut<'_, SessionKey, SessionCalls> {
        self.sessions.entry(key).or_default()
    }
}

// === impl SessionCalls ===

impl SessionCalls {
    fn is_empty(&self) -> bool {
        self.proxy_calls.is_empty() && self.client_calls.is_empty()
    }
}

// === impl AbandonedCalls ===

impl AbandonedCalls {
    /// Records a call that was abandoned without its end.
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

    /// Whether an abandoned or cancelled call may still send an input request that could be attributed to a
    /// call that `began` then.
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

/// Whether a call that was cancelled at this time may still send an input request that could be attributed to
/// one that `began`.
fn can_still_request(at: Instant, began: Instant, now: Instant) -> bool {
    began <= at && now < at + CANCELLATION_WINDOW
}

/// Digested, because an id may have any length.
fn request_digest(request: &RequestId) -> RequestDigest {
    *Principal::derive(&[&request.value()]).as_bytes()
}

// === impl ProxyCallGuard ===

impl ProxyCallGuard {
    /// The call is a task: the session's own stream is read for it from here on, be it by its client.
    pub(in crate::proxy) fn read_stream(&self, route: &Arc<str>, streams: &Arc<GetStreams>) -> StreamOpening {
        let mut calls = self.in_flight.calls(self.key);
        calls
            .reader
            .get_or_insert_with(|| StreamReader::begin(route, &self.in_flight, streams, self.key))
            .opening()
    }
}

impl Drop for ProxyCallGuard {
    fn drop(&mut self) {
        let Self { in_flight, key, number } = self;
        in_flight.ended.lock().insert((*key, *number), ());
        let (mut end, mut reader) = (None, None);
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
            reader = calls.reader.take_if(|_| calls.proxy_calls.is_empty());
            calls.is_empty()
        });
        drop(reader);
        if let Some(end) = end {
            end();
        }
    }
}

// === impl ClientCall ===

impl ResponseInterest for ClientCall {
    fn cancellation(&self) -> &CancellationToken {
        self.pending.cancellation()
    }

    fn background_read(&self) -> &BackgroundRead {
        &self.pending.reading_on
    }

    /// Records that the call was answered, or never reached the server. A call that is dropped without it is
    /// abandoned.
    fn mark_answered(&self) {
        if !self.answered.swap(true, Relaxed) && self.is_resumed {
            let mut left = self.in_flight.abandoned.lock();
            self.requests.iter().for_each(|request| left.remove(self.key, request));
        }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        // A resumed call was recorded before; the server was notified of a cancelled one.
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
    fn a_cancelled_call_blocks_attribution_to_concurrent_calls_for_a_while() {
        let key = SessionKey::named(Principal::ANONYMOUS, &HeaderValue::from_static("a"));
        let before = SystemClock::new().now();
        let (at, after) = (before + Duration::from_secs(1), before + Duration::from_secs(2));
        let mut left = AbandonedCalls::default();
        left.cancelled.insert(key, at);
        assert!(left.can_send_request(key, before, after) && left.can_send_request(key, at, after));
        assert!(!left.can_send_request(key, after, after), "it began behind the cancellation");
        assert!(!left.can_send_request(key, before, at + CANCELLATION_WINDOW));
        left.insert(key, &RequestId::from_number(1));
        assert!(left.can_send_request(key, after, at + CANCELLATION_WINDOW), "another call was abandoned");
        left.remove_session(key);
        assert!(!left.can_send_request(key, before, after) && left.calls.sizes().0 == 0);
    }

    #[test]
    fn abandoned_calls_are_bounded_and_answered_ones_are_removed() {
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
