//! Calls in flight in the sessions of legacy clients. *Proxy calls* are sent by the proxy and are tasks or
//! may become tasks; *client calls* are relayed.
//!
//! A session is kept open for its proxy calls. Many clients end their session when they disconnect, and fetch
//! their tasks in another session (2025-11-25, *Session Management*; *Tasks*). The tasks run in the former
//! session, so the server receives the DELETE of that session only after the last proxy call.
//!
//! Messages on the session's GET stream may belong to a proxy call. A progress notification names its call.
//! An input request names none, and is attributed to the only call in flight. It cannot be attributed if
//! several calls are in flight, or if a call was abandoned before its end, because the server may still
//! execute the abandoned call.
//!
//! A cancelled call is neither in flight nor abandoned: its server has been notified, and sends no response
//! ([`CANCELLATION_WINDOW`]). Otherwise one cancelled call would block the input requests of all later calls
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
    /// The calls in flight of each session; sessions without any are absent.
    sessions: DashMap<SessionKey, SessionCalls>,
    /// Locked for one insertion or look-up.
    abandoned: Mutex<AbandonedCalls>,
    /// The numbers of proxy calls that ended recently: later progress notifications for them are dropped.
    /// Locked for one insertion or look-up.
    ended: Mutex<BoundedMap<(SessionKey, u64), (), MAX_REMEMBERED_CALLS>>,
    /// The input requests of GET streams that proxy calls have received. Some servers send the messages of an
    /// earlier stream again on each new one, answered requests included. Locked for one insertion.
    received: Mutex<BoundedMap<(SessionKey, MessageDigest), (), MAX_REMEMBERED_CALLS>>,
}

/// The calls that were abandoned before their end, the last [`MAX_REMEMBERED_CALLS`] of them, and the cancellations.
#[derive(Debug, Default)]
struct AbandonedCalls {
    calls: BoundedMap<(SessionKey, RequestDigest), (), MAX_REMEMBERED_CALLS>,
    /// The number of abandoned calls in each session; never 0.
    in_session: HashMap<SessionKey, usize>,
    /// The time of the last cancellation in each session.
    cancelled: BoundedMap<SessionKey, Instant, MAX_REMEMBERED_CALLS>,
}

/// The digest of a request id.
type RequestDigest = [u8; 16];

/// The digest of a message.
type MessageDigest = [u8; 16];

/// The calls in flight of one session.
#[derive(Default)]
struct SessionCalls {
    /// Calls that the proxy sends.
    proxy_calls: Vec<ProxyCall>,
    /// Calls of the client that are relayed.
    client_calls: Vec<Arc<PendingRequest>>,
    /// Set once the client has ended the session: ends it at the server, after the last proxy call.
    end_at_server: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Reads the session's GET stream while its client does not. Present once a proxy call is a task.
    reader: Option<StreamReader>,
}

/// One proxy call.
struct ProxyCall {
    /// The request id at the server, which is also the progress token unless `token` is set.
    number: u64,
    began: Instant,
    /// The client's own progress token, if the call was sent with it.
    token: Option<RequestId>,
    call: Arc<dyn OffStreamCall>,
}

/// The registration of a proxy call in a session; removed when dropped. If the client has ended the session,
/// dropping the last guard ends the session at the server.
pub(in crate::proxy) struct ProxyCallGuard {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    number: u64,
}

/// The registration of a relayed POST of a client (a call, or a batch of calls); removed when dropped. It is
/// also held while the response is read on after the client disconnected.
pub(in crate::proxy) struct ClientCall {
    in_flight: Arc<InFlightCalls>,
    key: SessionKey,
    /// The request ids of the calls.
    requests: SmallVec<[RequestId; 1]>,
    /// Whether the client resumes the response stream of calls that count as abandoned.
    is_resumed: bool,
    /// Whether the calls were answered, or never reached the server.
    answered: AtomicBool,
    /// The cancellation state of the client's requests.
    pending: Arc<PendingRequest>,
}

/// The owner of an input request that names no call.
enum RequestOwner {
    /// The client: no proxy call is in flight, so the request is relayed.
    Client,
    /// The proxy call that the request is attributed to.
    Call(Arc<dyn OffStreamCall>),
    /// The request cannot be attributed, for this reason. This proxy call refuses it; any other could as
    /// well.
    Unclear(Arc<dyn OffStreamCall>, &'static str),
}

/// Abandoned calls that are remembered, and as many ended proxy calls and cancellations. Each costs about 100
/// bytes. If an abandoned call is evicted too early, its input request may be attributed to another call in
/// its session.
const MAX_REMEMBERED_CALLS: usize = 16 << 10;

/// How long input requests of a cancelled call may still arrive, because the server may have sent messages
/// before it received the cancellation. Only calls in flight at the cancellation are affected: the server
/// receives later calls after the cancellation.
const CANCELLATION_WINDOW: Duration = Duration::from_secs(10);

// === impl InFlightCalls ===

impl InFlightCalls {
    /// Registers a proxy call. `number` is its request id at the server; `token` is the client's own progress
    /// token, if the call is sent with it.
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

    /// Registers relayed calls of a client, with the ids of their requests. `is_resumed` is whether the
    /// client resumes the response stream of calls that were abandoned.
    pub(in crate::proxy) fn begin_client_call(
        self: &Arc<Self>,
        key: SessionKey,
        requests: SmallVec<[RequestId; 1]>,
        is_resumed: bool,
        pending: &Arc<PendingRequest>,
    ) -> Arc<ClientCall> {
        self.calls(key).client_calls.push(Arc::clone(pending));
        let (in_flight, pending) = (Arc::clone(self), Arc::clone(pending));
        let answered = AtomicBool::new(false);
        Arc::new(ClientCall { in_flight, key, requests, is_resumed, answered, pending })
    }

    /// Handles a client's request to end this session. Returns whether proxy calls continue in the session:
    /// then the function that `end` creates runs after the last of them and ends the session at the server,
    /// which must not be notified before.
    pub(in crate::proxy) fn end_session<E>(&self, key: SessionKey, end: impl FnOnce() -> E) -> bool
    where
        E: FnOnce() + Send + Sync + 'static,
    {
        let Some(mut calls) = self.sessions.get_mut(&key) else { return false };
        if calls.proxy_calls.is_empty() {
            return false;
        }
        calls.end_at_server.get_or_insert_with(|| Box::new(end()));
        true
    }

    /// Records that a call in this session is cancelled now. No effect if no call is in flight.
    pub(in crate::proxy) fn cancel(&self, key: SessionKey) {
        if self.sessions.contains_key(&key) {
            self.abandoned.lock().cancelled.insert(key, self.clock.now());
        }
    }

    /// Resets a session whose id the server has assigned to a new session: abandoned calls of the former
    /// session are over, and the end of the former session is not sent in the new one.
    pub(in crate::proxy) fn reopen(&self, key: SessionKey) {
        self.abandoned.lock().reset_session(key);
        if let Some(mut calls) = self.sessions.get_mut(&key) {
            calls.end_at_server = None;
        }
    }

    /// Whether a proxy call is registered in the session.
    pub(in crate::proxy) fn has_proxy_call(&self, key: SessionKey) -> bool {
        self.sessions.get(&key).is_some_and(|calls| !calls.proxy_calls.is_empty())
    }

    /// Passes a message of the session's GET stream to the proxy call that it belongs to. Returns whether the
    /// proxy has handled the message; otherwise it is for the client. `route` is for the log.
    pub(in crate::proxy) fn dispatch(&self, route: &str, key: SessionKey, frame: Frame) -> bool {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let Some(token) = params.get("progressToken").and_then(RequestId::from_token) else {
                    return false;
                };
                match self.by_token(key, &token) {
                    Some(call) => call.receive(frame),
                    // Progress of an ended proxy call is dropped.
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
                _ if self.is_repeated(key, &frame) => true,
                RequestOwner::Client => false,
                RequestOwner::Call(call) => {
                    self.mark_received(key, &frame);
                    call.receive(frame);
                    true
                }
                RequestOwner::Unclear(call, reason) => {
                    self.mark_received(key, &frame);
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

    /// Whether a proxy call has received this input request before. Request ids are unique within a session
    /// (2025-11-25, *Base Protocol, Requests*), so an equal message is a repetition.
    fn is_repeated(&self, key: SessionKey, frame: &Frame) -> bool {
        self.received.lock().contains(&(key, message_digest(frame)))
    }

    fn mark_received(&self, key: SessionKey, frame: &Frame) {
        self.received.lock().insert((key, message_digest(frame)), ());
    }

    /// The owner of an input request on the session's GET stream.
    fn request_owner(&self, key: SessionKey) -> RequestOwner {
        let Some(calls) = self.sessions.get(&key) else { return RequestOwner::Client };
        let in_flight = || calls.proxy_calls.iter().filter(|proxy_call| proxy_call.call.is_in_flight());
        let Some(first) = in_flight().next() else { return RequestOwner::Client };
        let is_abandoned = || {
            let now = self.clock.now();
            let can_request = |proxy_call: &ProxyCall| {
                let is_past_window = |cancelled_at| !can_still_request(cancelled_at, first.began, now);
                proxy_call.call.is_abandoned() && !proxy_call.call.cancelled_at().is_some_and(is_past_window)
            };
            calls.proxy_calls.iter().any(can_request)
                || self.abandoned.lock().can_send_request(key, first.began, now)
        };
        let client_calls = calls.client_calls.iter().filter(|pending| !pending.cancellation().is_cancelled());
        match sole_call(in_flight().chain(client_calls.map(|_| first)), is_abandoned) {
            Ok(proxy_call) => RequestOwner::Call(proxy_call.call.clone()),
            Err(reason) => RequestOwner::Unclear(first.call.clone(), reason),
        }
    }

    /// The proxy call with this progress token.
    fn by_token(&self, key: SessionKey, token: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let number = token.echoed_number();
        let has_token = |proxy_call: &&ProxyCall| match &proxy_call.token {
            Some(client_token) => client_token == token,
            None => number == Some(proxy_call.number),
        };
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(has_token)?.call.clone())
    }

    /// The latest proxy call in the session, with whose credentials the session's GET stream can be read.
    pub(super) fn any_proxy_call(&self, key: SessionKey) -> Option<Arc<dyn OffStreamCall>> {
        Some(self.sessions.get(&key)?.proxy_calls.last()?.call.clone())
    }

    /// The proxy call that this input request of the server was attributed to.
    fn by_request_id(&self, key: SessionKey, id: &RequestId) -> Option<Arc<dyn OffStreamCall>> {
        let has_request = |proxy_call: &&ProxyCall| proxy_call.call.has_open_request(id);
        Some(self.sessions.get(&key)?.proxy_calls.iter().find(has_request)?.call.clone())
    }

    /// Whether a proxy call with this number ended recently in the session.
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
    /// Records a call that was abandoned before its end.
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

    /// Whether an abandoned or cancelled call in the session may still send an input request at the time
    /// `now`, which could then wrongly be attributed to a call that started at `began`.
    fn can_send_request(&self, key: SessionKey, began: Instant, now: Instant) -> bool {
        let cancelled =
            self.cancelled.get(&key).filter(|cancelled_at| can_still_request(**cancelled_at, began, now));
        cancelled.is_some() || self.in_session.contains_key(&key)
    }

    fn reset_session(&mut self, key: SessionKey) {
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

/// Whether an input request of a call that was cancelled at the time `cancelled_at` may still arrive at the
/// time `now`, and could be attributed to a call that started at `began`.
fn can_still_request(cancelled_at: Instant, began: Instant, now: Instant) -> bool {
    began <= cancelled_at && now < cancelled_at + CANCELLATION_WINDOW
}

/// The digest of a request id, because an id may have any length.
fn request_digest(request: &RequestId) -> RequestDigest {
    *Principal::derive(&[&request.canonical_value()]).as_bytes()
}

/// The digest of a message.
fn message_digest(frame: &Frame) -> MessageDigest {
    *Principal::derive(&[frame.as_bytes()]).as_bytes()
}

// === impl ProxyCallGuard ===

impl ProxyCallGuard {
    /// Ensures that the session's GET stream is read from now on, because the call is a task: by the proxy
    /// while the client does not read it. Returns a handle to wait until the stream is open.
    pub(in crate::proxy) fn ensure_stream_is_read(
        &self,
        route: &Arc<str>,
        streams: &Arc<GetStreams>,
    ) -> StreamOpening {
        let mut calls = self.in_flight.calls(self.key);
        // A reader ends when the server refuses the stream, which it may do for one call's credentials only.
        calls.reader.take_if(|reader| reader.is_finished());
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
        let (mut end_at_server, mut reader) = (None, None);
        in_flight.sessions.remove_if_mut(key, |_, calls| {
            let has_number = |proxy_call: &mut ProxyCall| proxy_call.number == *number;
            for proxy_call in calls
                .proxy_calls
                .extract_if(.., has_number)
                .filter(|proxy_call| proxy_call.call.is_abandoned())
            {
                let mut abandoned = in_flight.abandoned.lock();
                match proxy_call.call.cancelled_at() {
                    Some(cancelled_at) => drop(abandoned.cancelled.insert(*key, cancelled_at)),
                    None => abandoned.insert(*key, &RequestId::from_number(*number)),
                }
            }
            end_at_server = calls.end_at_server.take_if(|_| calls.proxy_calls.is_empty());
            reader = calls.reader.take_if(|_| calls.proxy_calls.is_empty());
            calls.is_empty()
        });
        drop(reader);
        if let Some(end_at_server) = end_at_server {
            end_at_server();
        }
    }
}

// === impl ClientCall ===

impl ResponseInterest for ClientCall {
    fn cancellation(&self) -> &CancellationToken {
        self.pending.cancellation()
    }

    fn background_read(&self) -> &BackgroundRead {
        &self.pending.background_read
    }

    /// Records that the calls were answered, or never reached the server. Calls whose registration is dropped
    /// without this record are abandoned.
    fn mark_answered(&self) {
        if !self.answered.swap(true, Relaxed) && self.is_resumed {
            let mut abandoned = self.in_flight.abandoned.lock();
            self.requests.iter().for_each(|request| abandoned.remove(self.key, request));
        }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        // A resumed call counts as abandoned already, and of a cancelled call the server was notified.
        if !*self.answered.get_mut() && !self.is_resumed && !self.pending.cancellation().is_cancelled() {
            let mut abandoned = self.in_flight.abandoned.lock();
            self.requests.iter().for_each(|request| abandoned.insert(self.key, request));
        }
        self.in_flight.sessions.remove_if_mut(&self.key, |_, calls| {
            if let Some(index) =
                calls.client_calls.iter().position(|pending| Arc::ptr_eq(pending, &self.pending))
            {
                calls.client_calls.swap_remove(index);
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
        let key = SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from_static("a"));
        let before = SystemClock::new().now();
        let (at, after) = (before + Duration::from_secs(1), before + Duration::from_secs(2));
        let mut left = AbandonedCalls::default();
        left.cancelled.insert(key, at);
        assert!(left.can_send_request(key, before, after) && left.can_send_request(key, at, after));
        assert!(!left.can_send_request(key, after, after), "it began behind the cancellation");
        assert!(!left.can_send_request(key, before, at + CANCELLATION_WINDOW));
        left.insert(key, &RequestId::from_number(1));
        assert!(left.can_send_request(key, after, at + CANCELLATION_WINDOW), "another call was abandoned");
        left.reset_session(key);
        assert!(!left.can_send_request(key, before, after) && left.calls.sizes().0 == 0);
    }

    #[test]
    fn abandoned_calls_are_bounded_and_answered_ones_are_removed() {
        let key = |session| SessionKey::from_id(Principal::ANONYMOUS, &HeaderValue::from_static(session));
        let mut left = AbandonedCalls::default();
        left.insert(key("a"), &RequestId::from_number(1));
        left.insert(key("a"), &RequestId::from_number(2));
        left.remove(key("a"), &RequestId::from_number(1));
        assert!(left.in_session.contains_key(&key("a")));
        left.remove(key("a"), &RequestId::from_number(2));
        assert!(left.in_session.is_empty());
        for number in 0..2 * MAX_REMEMBERED_CALLS as u64 {
            left.insert(key("b"), &RequestId::from_number(number));
        }
        assert_eq!(
            (left.in_session[&key("b")], left.calls.sizes()),
            (MAX_REMEMBERED_CALLS, (MAX_REMEMBERED_CALLS, MAX_REMEMBERED_CALLS))
        );
    }
}
