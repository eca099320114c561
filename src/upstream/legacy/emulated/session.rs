//! One emulated session: its client's calls, subscriptions and log level, and the open requests of the
//! server.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        attribution::cancelled_id,
        call_client::CallClient,
        listeners::{BroadcastListener, LogSeverity},
        message,
        pool::SessionPool,
        subscribe::{self, SubscribeError, SubscriptionGuard},
    },
    PoolLookup, rewrite_ids,
    stream::{GetStreamBody, MAX_EVENT_BYTES, StreamBacklog},
};
use crate::{
    dialect::{Principal, legacy},
    protocol::{ErrorObject, Frame, Kind, Method, Payload, RequestId, code, headers::LAST_EVENT_ID},
    runtime::Mutex,
    telemetry::{Limit, UsageGuard},
    upstream::{
        CallError, CallerIdentity, ChangeNotification, Responder, UpstreamDescription, transport::Transport,
    },
};

/// A session of a legacy client. The table and everything in flight in the session hold a reference: if only
/// the table holds one, nothing is in flight.
pub(super) struct EmulatedSession<W: Transport> {
    /// Session id; unguessable.
    pub(super) id: HeaderValue,
    /// Owner; other principals are not served.
    pub(super) principal: Principal,
    /// Identity for its calls. Other sessions of the pool may declare more capabilities.
    caller: CallerIdentity,
    /// Client of its calls.
    client: Arc<CallClient>,
    /// Pool of its last call. Weak: an unused pool may be evicted while the session exists.
    pool: Mutex<Weak<SessionPool<W>>>,
    /// Result of the handshake.
    negotiated: OnceLock<NegotiatedFeatures>,
    state: Mutex<EmulatedState<W>>,
    /// Messages of its GET stream.
    backlog: Arc<StreamBacklog>,
    next_request: AtomicU32,
    /// Number of consecutive sweeps without use.
    idle_rounds: AtomicU32,
    _counted: UsageGuard,
}

struct NegotiatedFeatures {
    /// Whether the server supports log messages.
    has_logging: bool,
    /// Whether the client supports events that have an id and no data.
    has_empty_events: bool,
}

/// Locked for a few statements only.
struct EmulatedState<W: Transport> {
    /// Calls whose clients wait, by the client's ids: the proxy's number, and the token that cancels the
    /// call.
    calls: HashMap<RequestId, (u64, CancellationToken)>,
    /// Open requests of the server, by the ids under which the client knows them.
    server_requests: HashMap<RequestId, OpenServerRequest>,
    subscriptions: HashMap<String, SubscriptionGuard<W>>,
    /// Lowest severity of log messages that the client requested.
    level: Option<LogSeverity>,
}

/// An open request of the server.
struct OpenServerRequest {
    /// Proxy's number of the call during which the request was sent; `None` outside calls.
    call: Option<u64>,
    responder: Box<dyn Responder>,
}

/// Registration of a call; dropping it removes the call and its open requests.
pub(super) struct EmulatedCallGuard<W: Transport> {
    session: Arc<EmulatedSession<W>>,
    id: RequestId,
    number: u64,
}

/// Limit of resource subscriptions in a session.
pub(super) const MAX_SUBSCRIPTIONS: usize = 1000;
/// Limit of open requests of the server outside calls, for one session.
pub(super) const MAX_OPEN_REQUESTS: usize = 64;

// === impl EmulatedSession ===

impl<W: Transport> EmulatedSession<W> {
    /// Creates a session whose handshake is in progress.
    pub(super) fn new(id: HeaderValue, principal: Principal, caller: CallerIdentity) -> Arc<Self> {
        Arc::new_cyclic(|session: &Weak<Self>| Self {
            id,
            principal,
            caller,
            client: CallClient::of_session(principal, session.clone()),
            pool: Mutex::default(),
            negotiated: OnceLock::new(),
            state: Mutex::default(),
            backlog: Arc::default(),
            next_request: AtomicU32::new(0),
            idle_rounds: AtomicU32::new(0),
            _counted: Limit::ClientSessions.acquire(1),
        })
    }

    /// The client of its calls.
    pub(super) fn client(&self) -> &Arc<CallClient> {
        &self.client
    }

    /// Returns the current pool for its calls, from `pools`. Registers the session as a listener there.
    pub(super) fn pool(self: &Arc<Self>, pools: PoolLookup<'_, W>) -> Arc<SessionPool<W>> {
        let pool = pools(&self.caller);
        let current = Arc::downgrade(&pool);
        let previous = std::mem::replace(&mut *self.pool.lock(), current.clone());
        if !previous.ptr_eq(&current) {
            let listener: Arc<dyn BroadcastListener> = self.clone();
            pool.listeners.join(Arc::downgrade(&listener));
        }
        pool
    }

    /// Stores the result of the handshake. `has_empty_events` says whether the client supports events without
    /// data.
    pub(super) fn set_negotiated(&self, server: &UpstreamDescription, has_empty_events: bool) {
        let has_logging = server.capabilities.object().is_some_and(|object| object.contains("logging"));
        let _ = self.negotiated.set(NegotiatedFeatures { has_logging, has_empty_events });
    }

    /// Whether the client declared the capability that this request of the server needs.
    pub(super) fn accepts_request(&self, request: &Frame) -> bool {
        let Kind::Request { method, params, .. } = request.kind() else { return false };
        self.caller.capabilities.missing_for(method, params.as_deref()).is_none()
    }

    /// Registers a call. Returns its guard, and the token that is cancelled when the client cancels the call.
    pub(super) fn register_call(
        self: &Arc<Self>,
        id: &RequestId,
        number: u64,
    ) -> (EmulatedCallGuard<W>, CancellationToken) {
        let cancelled = CancellationToken::new();
        self.state.lock().calls.insert(id.clone(), (number, cancelled.clone()));
        let call = EmulatedCallGuard { session: self.clone(), id: id.clone(), number };
        (call, cancelled)
    }

    /// Cancels the call with this id, for its client or for the proxy.
    pub(super) fn cancel(&self, call: &RequestId) {
        if let Some((_, cancelled)) = self.state.lock().calls.get(call) {
            cancelled.cancel();
        }
    }

    /// Handles a notification of the client.
    pub(super) fn receive_notification(
        &self,
        pool: &SessionPool<W>,
        method: &Method,
        params: Option<&Payload>,
        message: &Frame,
    ) {
        match method {
            Method::Cancelled => cancelled_id(params).iter().for_each(|call| self.cancel(call)),
            // The server's own handshake is complete. Progress concerns a request of the server, with a token
            // of one process.
            Method::Initialized | Method::Progress => {}
            _ => pool.send_to_all(|| message.as_bytes().clone()),
        }
    }

    /// Handles a response of the client.
    pub(super) fn receive_response(&self, id: &RequestId, outcome: Result<Bytes, Bytes>) {
        let request = self.state.lock().server_requests.remove(id);
        match request {
            Some(request) => request.responder.respond(outcome),
            None => tracing::debug!(%id, "a response without a request"),
        }
    }

    /// Discards a request that the server cancelled. Returns whether it was open.
    fn discard_request(&self, id: &RequestId) -> bool {
        let request = self.state.lock().server_requests.remove(id);
        request.map(|request| request.responder.discard()).is_some()
    }

    /// Sets the lowest severity of log messages for the client. The server is set to the lowest of all
    /// clients that share it.
    pub(super) fn set_level(
        &self,
        pool: &SessionPool<W>,
        params: Option<&Payload>,
    ) -> Result<(), ErrorObject> {
        if !self.negotiated.get().is_some_and(|negotiated| negotiated.has_logging) {
            return Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server does not support logging"));
        }
        let level = rewrite_ids::string_param(params, "level").and_then(|name| LogSeverity::parse(&name));
        let level = level.ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "there is no such level"))?;
        self.state.lock().level = Some(level);
        if let Some(level) = pool.listeners.lowest_level() {
            let server = pool.server();
            pool.send_to_all(|| message::set_level(server.next_id(), level));
        }
        Ok(())
    }

    /// Subscribes to changes of a resource.
    ///
    /// # Errors
    /// The error of the request to the server, if it got no response.
    pub(super) async fn subscribe(
        &self,
        pool: &Arc<SessionPool<W>>,
        params: Option<&Payload>,
    ) -> Result<Result<(), ErrorObject>, CallError> {
        let Some(uri) = rewrite_ids::string_param(params, "uri") else { return Ok(Err(no_uri())) };
        if self.state.lock().subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!("a session subscribes to {MAX_SUBSCRIPTIONS} resources at most");
            return Ok(Err(ErrorObject::new(code::BUSY, text)));
        }
        Ok(match subscribe::subscribe(pool.clone(), &uri).await {
            Ok(guard) => {
                // A replaced guard is dropped outside the lock.
                let _replaced = self.state.lock().subscriptions.insert(uri, guard);
                Ok(())
            }
            Err(SubscribeError::Refused(error)) => Err(error),
            Err(SubscribeError::Lost(lost)) => return Err(lost),
        })
    }

    /// Ends the subscription to a resource, if there is one.
    pub(super) fn unsubscribe(&self, params: Option<&Payload>) -> Result<(), ErrorObject> {
        let uri = rewrite_ids::string_param(params, "uri").ok_or_else(no_uri)?;
        let _removed = self.state.lock().subscriptions.remove(&uri);
        Ok(())
    }

    /// Whether the client gets this notification, by its log level and subscriptions.
    pub(super) fn is_wanted(&self, frame: &Frame) -> bool {
        let Kind::Notification { method, params } = frame.kind() else { return true };
        match method {
            Method::Message => {
                let Some(level) = rewrite_ids::string_param(params.as_ref(), "level")
                    .and_then(|name| LogSeverity::parse(&name))
                else {
                    return true;
                };
                let wanted = self.state.lock().level;
                // A level that another client set does not apply to a client that set none.
                let default_level =
                    || self.pool.lock().upgrade()?.listeners.lowest_level().map(|_| LogSeverity::DEFAULT);
                wanted.or_else(default_level).is_none_or(|wanted| level >= wanted)
            }
            Method::ResourceUpdated => rewrite_ids::string_param(params.as_ref(), "uri").is_some_and(|uri| {
                self.state.lock().subscriptions.keys().any(|subscribed| is_within(subscribed, &uri))
            }),
            _ => true,
        }
    }

    /// Opens the GET stream as a response body; an earlier one ends.
    pub(super) fn open_get_stream(
        self: &Arc<Self>,
        pool: Arc<SessionPool<W>>,
        headers: &HeaderMap,
    ) -> GetStreamBody {
        let last_id = headers.get(&LAST_EVENT_ID).map(|id| id.as_bytes());
        let has_empty_events = self.negotiated.get().is_some_and(|negotiated| negotiated.has_empty_events);
        // Keeps a pooled session open that reports changes, while the stream is open.
        let receiver: broadcast::Receiver<ChangeNotification> = pool.notifier.subscribe();
        self.backlog.open(last_id, has_empty_events, Box::new((self.clone(), pool, receiver)))
    }

    /// Ends the session: cancels its calls, and drops its open requests and subscriptions.
    pub(super) fn end(&self) {
        let (calls, requests, subscriptions) = {
            let mut state = self.state.lock();
            let calls: Vec<_> = state.calls.values().map(|(_, cancelled)| cancelled.clone()).collect();
            (calls, std::mem::take(&mut state.server_requests), std::mem::take(&mut state.subscriptions))
        };
        calls.iter().for_each(CancellationToken::cancel);
        self.backlog.end();
        drop((requests, subscriptions));
    }

    /// Marks the session as used since the last sweep.
    pub(super) fn mark_used(&self) {
        self.idle_rounds.store(0, Ordering::Relaxed);
    }

    /// Number of consecutive sweeps without use.
    pub(super) fn idle_rounds(&self) -> u32 {
        self.idle_rounds.load(Ordering::Relaxed)
    }

    /// Counts one more sweep without use, and returns their number.
    pub(super) fn count_idle_round(&self) -> u32 {
        self.idle_rounds.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl<W: Transport> BroadcastListener for EmulatedSession<W> {
    fn notify(&self, frame: &Frame, line: &Bytes) {
        if self.is_wanted(frame) {
            self.backlog.push(line.clone());
        }
    }

    /// Ids are unique in the session. After 2^31 they start again and skip those of open requests.
    fn next_request_id(&self) -> RequestId {
        loop {
            let number = self.next_request.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
            let id = RequestId::from_number(number.into());
            if !self.state.lock().server_requests.contains_key(&id) {
                return id;
            }
        }
    }

    fn send_request(&self, id: RequestId, frame: &Frame, responder: Box<dyn Responder>) {
        let Some(message) = rewrite_ids::with_id(frame, &id) else { return };
        let is_open = {
            let mut state = self.state.lock();
            let open = state.server_requests.values().filter(|request| request.call.is_none()).count();
            // A larger message would not be stored until the stream is read.
            let has_room =
                open < MAX_OPEN_REQUESTS && message.len() <= MAX_EVENT_BYTES && self.accepts_request(frame);
            if has_room {
                state.server_requests.insert(id, OpenServerRequest { call: None, responder });
            }
            has_room
        };
        // The responder of a request that is not stored was dropped, which rejected the request.
        if is_open {
            self.backlog.push(message);
        }
    }

    fn cancel_request(&self, id: &RequestId, reason: &str) {
        if self.discard_request(id) {
            self.backlog.push(legacy::cancelled_notification(id, reason));
        }
    }

    fn is_listening(&self) -> bool {
        self.backlog.is_open()
    }

    fn level(&self) -> Option<LogSeverity> {
        self.state.lock().level
    }
}

// === impl EmulatedState ===

impl<W: Transport> Default for EmulatedState<W> {
    fn default() -> Self {
        Self {
            calls: HashMap::new(),
            server_requests: HashMap::new(),
            subscriptions: HashMap::new(),
            level: None,
        }
    }
}

// === impl EmulatedCallGuard ===

impl<W: Transport> EmulatedCallGuard<W> {
    /// Registers a request of the server during the call.
    pub(super) fn register_request(&self, id: RequestId, responder: Box<dyn Responder>) {
        let request = OpenServerRequest { call: Some(self.number), responder };
        self.session.state.lock().server_requests.insert(id, request);
    }

    /// Discards a request that the server cancelled.
    pub(super) fn discard_request(&self, id: &RequestId) {
        self.session.discard_request(id);
    }
}

impl<W: Transport> Drop for EmulatedCallGuard<W> {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        if state.calls.get(&self.id).is_some_and(|(number, _)| *number == self.number) {
            state.calls.remove(&self.id);
        }
        let open_requests: Vec<_> =
            state.server_requests.extract_if(|_, request| request.call == Some(self.number)).collect();
        drop(state);
        // Outside the lock: a dropped responder rejects its request.
        drop(open_requests);
    }
}

fn no_uri() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "the request names no uri")
}

/// Whether `uri` is the subscribed resource, or lies within it (2025-11-25, *Resources, Subscriptions*).
fn is_within(subscribed: &str, uri: &str) -> bool {
    uri.strip_prefix(subscribed)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || subscribed.ends_with('/'))
}
