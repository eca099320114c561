//! One hosted session: what its client has in flight, what it has asked to hear, and what it is asked.

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
        listeners::{BroadcastListener, LogSeverity},
        message,
        pool::SessionPool,
        subscribe::{self, SubscribeError, SubscriptionGuard},
    },
    PoolLookup, rewrite_ids,
    stream::{EVENT_BYTES, GetStreamBody, StreamBacklog},
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

/// A session of a legacy client. Held by the table, and by whatever is in flight in it: one that only the table
/// holds has nothing in flight.
pub(super) struct EmulatedSession<W: Transport> {
    /// Its name; unguessable.
    pub(super) id: HeaderValue,
    /// Whose it is: nobody else is served in it.
    pub(super) principal: Principal,
    /// On whose behalf its calls are made. Others in the group may declare more.
    caller: CallerIdentity,
    /// Where they were made last. What nobody uses is let go of, whatever sessions there are.
    pool: Mutex<Weak<SessionPool<W>>>,
    /// What the handshake came to.
    negotiated: OnceLock<NegotiatedFeatures>,
    state: Mutex<EmulatedState<W>>,
    /// What is said on its GET stream.
    feed: Arc<StreamBacklog>,
    next_question: AtomicU32,
    /// Rounds in which it was not used.
    idle_rounds: AtomicU32,
    _counted: UsageGuard,
}

struct NegotiatedFeatures {
    has_logging: bool,
    /// The client knows events without data.
    primes: bool,
}

/// The lock guards a few lines each time.
struct EmulatedState<W: Transport> {
    /// By their ids, the calls that its client waits for: how each is taken back, and our number for it.
    calls: HashMap<RequestId, (u64, CancellationToken)>,
    /// What it is asked, by the ids that it knows.
    questions: HashMap<RequestId, OpenServerRequest>,
    subscribed: HashMap<String, SubscriptionGuard<W>>,
    level: Option<LogSeverity>,
}

/// A question that waits for its client's answer.
struct OpenServerRequest {
    /// Our number for the call that it is asked in; none where it is asked outside any.
    call: Option<u64>,
    answer: Box<dyn Responder>,
}

/// A call that its client waits for, or has left; taken out with what it still asks when this is dropped.
pub(super) struct EmulatedCallGuard<W: Transport> {
    session: Arc<EmulatedSession<W>>,
    id: RequestId,
    number: u64,
}

/// Resources that one session may subscribe to.
pub(super) const MAX_RESOURCES: usize = 1000;
/// Questions outside any call that wait for its client's answers.
pub(super) const MAX_OPEN: usize = 64;

// === impl Hosted ===

impl<W: Transport> EmulatedSession<W> {
    /// A session whose handshake is under way.
    pub(super) fn new(id: HeaderValue, principal: Principal, caller: CallerIdentity) -> Arc<Self> {
        Arc::new(Self {
            id,
            principal,
            caller,
            pool: Mutex::default(),
            negotiated: OnceLock::new(),
            state: Mutex::default(),
            feed: Arc::default(),
            next_question: AtomicU32::new(0),
            idle_rounds: AtomicU32::new(0),
            _counted: Limit::ClientSessions.take(1),
        })
    }

    /// Where its calls are made now, as `groups` says. What is said there beside calls is heard in this session.
    pub(super) fn pool(self: &Arc<Self>, groups: PoolLookup<'_, W>) -> Arc<SessionPool<W>> {
        let group = groups(&self.caller);
        let here = Arc::downgrade(&group);
        let before = std::mem::replace(&mut *self.pool.lock(), here.clone());
        if !before.ptr_eq(&here) {
            let listener: Arc<dyn BroadcastListener> = self.clone();
            group.listeners.join(Arc::downgrade(&listener));
        }
        group
    }

    /// The handshake is over.
    pub(super) fn set_negotiated(&self, server: &UpstreamDescription, primes: bool) {
        let has_logging = server.capabilities.object().is_some_and(|object| object.contains("logging"));
        let _ = self.negotiated.set(NegotiatedFeatures { has_logging, primes });
    }

    /// Whether the client has declared that it can be asked this.
    pub(super) fn can_be_asked(&self, question: &Frame) -> bool {
        let Kind::Request { method, params, .. } = question.kind() else { return false };
        self.caller.capabilities.missing_for(method, params.as_deref()).is_none()
    }

    /// One more call that the client waits for. Gives how it learns that the client has taken it back.
    pub(super) fn register_call(
        self: &Arc<Self>,
        id: &RequestId,
        number: u64,
    ) -> (EmulatedCallGuard<W>, CancellationToken) {
        let taken_back = CancellationToken::new();
        self.state.lock().calls.insert(id.clone(), (number, taken_back.clone()));
        let call = EmulatedCallGuard { session: self.clone(), id: id.clone(), number };
        (call, taken_back)
    }

    /// The client takes a call back, or it has been given up for it.
    pub(super) fn cancel(&self, call: &RequestId) {
        if let Some((_, taken_back)) = self.state.lock().calls.get(call) {
            taken_back.cancel();
        }
    }

    /// The client has told the server something.
    pub(super) fn receive_notification(
        &self,
        group: &SessionPool<W>,
        method: &Method,
        params: Option<&Payload>,
        message: &Frame,
    ) {
        match method {
            Method::Cancelled => cancelled_id(params).iter().for_each(|call| self.cancel(call)),
            // The server's own handshake is over. Progress is of a question, and names a token that one child gave.
            Method::Initialized | Method::Progress => {}
            _ => group.send_to_all(|| message.as_bytes().clone()),
        }
    }

    /// The client has answered a question.
    pub(super) fn receive_response(&self, id: &RequestId, outcome: Result<Bytes, Bytes>) {
        let question = self.state.lock().questions.remove(id);
        match question {
            Some(question) => question.answer.respond(outcome),
            None => tracing::debug!(%id, "an answer to nothing that was asked"),
        }
    }

    /// The server has taken a question back. Whether it was open.
    fn discard_request(&self, id: &RequestId) -> bool {
        let question = self.state.lock().questions.remove(id);
        question.map(|question| question.answer.discard()).is_some()
    }

    /// The client wants to hear only what is as severe as this, or all there is. The server says what the least
    /// demanding of those who share it wants.
    pub(super) fn set_level(
        &self,
        group: &SessionPool<W>,
        params: Option<&Payload>,
    ) -> Result<(), ErrorObject> {
        if !self.negotiated.get().is_some_and(|agreed| agreed.has_logging) {
            return Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server has no log to be heard"));
        }
        let level = rewrite_ids::string_param(params, "level").and_then(|name| LogSeverity::parse(&name));
        let level = level.ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "there is no such level"))?;
        self.state.lock().level = Some(level);
        if let Some(level) = group.listeners.level() {
            let server = group.server();
            group.send_to_all(|| message::set_level(server.next_id(), level));
        }
        Ok(())
    }

    /// The client wants to hear of changes of a resource.
    ///
    /// # Errors
    /// What became of the request to the server, where that gave no answer.
    pub(super) async fn subscribe(
        &self,
        group: &Arc<SessionPool<W>>,
        params: Option<&Payload>,
    ) -> Result<Result<(), ErrorObject>, CallError> {
        let Some(uri) = rewrite_ids::string_param(params, "uri") else { return Ok(Err(no_uri())) };
        if self.state.lock().subscribed.len() >= MAX_RESOURCES {
            let words = format!("a session subscribes to {MAX_RESOURCES} resources at most");
            return Ok(Err(ErrorObject::new(code::BUSY, words)));
        }
        Ok(match subscribe::subscribe(group.clone(), &uri).await {
            Ok(guard) => {
                // What it replaces lets go outside the lock.
                let _before = self.state.lock().subscribed.insert(uri, guard);
                Ok(())
            }
            Err(SubscribeError::Refused(error)) => Err(error),
            Err(SubscribeError::Lost(lost)) => return Err(lost),
        })
    }

    pub(super) fn unsubscribe(&self, params: Option<&Payload>) -> Result<(), ErrorObject> {
        let uri = rewrite_ids::string_param(params, "uri").ok_or_else(no_uri)?;
        let _gone = self.state.lock().subscribed.remove(&uri);
        Ok(())
    }

    /// Whether a notification is one that the client wants to hear.
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
                // What another has asked for is not for one that has asked for nothing.
                let usual = || self.pool.lock().upgrade()?.listeners.level().map(|_| LogSeverity::USUAL);
                wanted.or_else(usual).is_none_or(|wanted| level >= wanted)
            }
            Method::ResourceUpdated => rewrite_ids::string_param(params.as_ref(), "uri")
                .is_some_and(|uri| self.state.lock().subscribed.keys().any(|wanted| is_within(wanted, &uri))),
            _ => true,
        }
    }

    /// Opens its GET stream; one that was open ends.
    pub(super) fn listen(self: &Arc<Self>, group: Arc<SessionPool<W>>, headers: &HeaderMap) -> GetStreamBody {
        let last_id = headers.get(&LAST_EVENT_ID).map(|id| id.as_bytes());
        let primes = self.negotiated.get().is_some_and(|agreed| agreed.primes);
        // As long as somebody listens, a session of the pool is kept open to hear for it.
        let heard: broadcast::Receiver<ChangeNotification> = group.reports.subscribe();
        self.feed.open(last_id, primes, Box::new((self.clone(), group, heard)))
    }

    /// It is over.
    pub(super) fn end(&self) {
        let (calls, questions, subscribed) = {
            let mut inside = self.state.lock();
            let calls: Vec<_> = inside.calls.values().map(|(_, taken_back)| taken_back.clone()).collect();
            (calls, std::mem::take(&mut inside.questions), std::mem::take(&mut inside.subscribed))
        };
        calls.iter().for_each(CancellationToken::cancel);
        self.feed.end();
        drop((questions, subscribed));
    }

    pub(super) fn mark_used(&self) {
        self.idle_rounds.store(0, Ordering::Relaxed);
    }

    /// Rounds for which it has not been used.
    pub(super) fn idle_rounds(&self) -> u32 {
        self.idle_rounds.load(Ordering::Relaxed)
    }

    /// The same, after one more.
    pub(super) fn count_idle_round(&self) -> u32 {
        self.idle_rounds.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl<W: Transport> BroadcastListener for EmulatedSession<W> {
    fn notify(&self, frame: &Frame, line: &Bytes) {
        if self.is_wanted(frame) {
            self.feed.push(line.clone());
        }
    }

    /// Of its own in the session. After 2^31 the ids begin anew, and those of open questions are passed over.
    fn next_request_id(&self) -> RequestId {
        loop {
            let number = self.next_question.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
            let id = RequestId::from_number(number.into());
            if !self.state.lock().questions.contains_key(&id) {
                return id;
            }
        }
    }

    fn send_request(&self, id: RequestId, frame: &Frame, answer: Box<dyn Responder>) {
        let Some(message) = rewrite_ids::with_id(frame, &id) else { return };
        let is_open = {
            let mut inside = self.state.lock();
            let open = inside.questions.values().filter(|question| question.call.is_none()).count();
            // What is larger would not be kept until its stream is read.
            let has_room = open < MAX_OPEN && message.len() <= EVENT_BYTES && self.can_be_asked(frame);
            if has_room {
                inside.questions.insert(id, OpenServerRequest { call: None, answer });
            }
            has_room
        };
        // Else it was refused when it was dropped.
        if is_open {
            self.feed.push(message);
        }
    }

    fn cancel_request(&self, id: &RequestId, reason: &str) {
        if self.discard_request(id) {
            self.feed.push(legacy::cancelled_notification(id, reason));
        }
    }

    fn level(&self) -> Option<LogSeverity> {
        self.state.lock().level
    }
}

// === impl Inside ===

impl<W: Transport> Default for EmulatedState<W> {
    fn default() -> Self {
        Self { calls: HashMap::new(), questions: HashMap::new(), subscribed: HashMap::new(), level: None }
    }
}

// === impl InFlight ===

impl<W: Transport> EmulatedCallGuard<W> {
    /// The client is asked something in the course of it.
    pub(super) fn register_request(&self, id: RequestId, answer: Box<dyn Responder>) {
        let question = OpenServerRequest { call: Some(self.number), answer };
        self.session.state.lock().questions.insert(id, question);
    }

    /// The server has taken a question back.
    pub(super) fn discard_request(&self, id: &RequestId) {
        self.session.discard_request(id);
    }
}

impl<W: Transport> Drop for EmulatedCallGuard<W> {
    fn drop(&mut self) {
        let mut inside = self.session.state.lock();
        if inside.calls.get(&self.id).is_some_and(|(number, _)| *number == self.number) {
            inside.calls.remove(&self.id);
        }
        let open: Vec<_> = inside.questions.extract_if(|_, open| open.call == Some(self.number)).collect();
        drop(inside);
        // Outside the lock: a question that is dropped refuses itself.
        drop(open);
    }
}

fn no_uri() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "the request names no uri")
}

/// Whether a change of `uri` is one of what was subscribed to: that, or what lies in it (2025-11-25, *Resources,
/// Subscriptions*).
fn is_within(subscribed: &str, uri: &str) -> bool {
    uri.strip_prefix(subscribed)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || subscribed.ends_with('/'))
}
