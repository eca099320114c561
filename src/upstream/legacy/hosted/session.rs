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
        audience::{Level, Listener},
        group::Group,
        message,
        subscribe::{self, Guard, NotSubscribed},
    },
    Groups,
    stream::{EVENT_BYTES, Feed, Listening},
    words,
};
use crate::{
    dialect::{Principal, legacy},
    protocol::{ErrorObject, Frame, Id, Kind, Method, Payload, code, headers::LAST_EVENT_ID},
    runtime::Mutex,
    telemetry::{Limit, Taken},
    upstream::{Answer, CallError, Description, Identity, Report, wire::Wire},
};

/// A session of a legacy client. Held by the table, and by whatever is in flight in it: one that only the table
/// holds has nothing in flight.
pub(super) struct Hosted<W: Wire> {
    /// Its name; unguessable.
    pub(super) id: HeaderValue,
    /// Whose it is: nobody else is served in it.
    pub(super) principal: Principal,
    /// On whose behalf its calls are made. Others in the group may declare more.
    caller: Identity,
    /// Where they were made last. What nobody uses is let go of, whatever sessions there are.
    group: Mutex<Weak<Group<W>>>,
    /// What the handshake came to.
    agreed: OnceLock<Agreed>,
    inside: Mutex<Inside<W>>,
    /// What is said on its GET stream.
    feed: Arc<Feed>,
    next_question: AtomicU32,
    /// Rounds in which it was not used.
    quiet: AtomicU32,
    _counted: Taken,
}

struct Agreed {
    has_logging: bool,
    /// The client knows events without data.
    primes: bool,
}

/// The lock guards a few lines each time.
struct Inside<W: Wire> {
    /// By their ids, the calls that its client waits for: how each is taken back, and our number for it.
    calls: HashMap<Id, (u64, CancellationToken)>,
    /// What it is asked, by the ids that it knows.
    questions: HashMap<Id, Open>,
    subscribed: HashMap<String, Guard<W>>,
    level: Option<Level>,
}

/// A question that waits for its client's answer.
struct Open {
    /// Our number for the call that it is asked in; none where it is asked outside any.
    call: Option<u64>,
    answer: Box<dyn Answer>,
}

/// A call that its client waits for, or has left; taken out with what it still asks when this is dropped.
pub(super) struct InFlight<W: Wire> {
    session: Arc<Hosted<W>>,
    id: Id,
    number: u64,
}

/// Resources that one session may subscribe to.
pub(super) const MAX_RESOURCES: usize = 1000;
/// Questions outside any call that wait for its client's answers.
pub(super) const MAX_OPEN: usize = 64;

// === impl Hosted ===

impl<W: Wire> Hosted<W> {
    /// A session whose handshake is under way.
    pub(super) fn begun(id: HeaderValue, principal: Principal, caller: Identity) -> Arc<Self> {
        Arc::new(Self {
            id,
            principal,
            caller,
            group: Mutex::default(),
            agreed: OnceLock::new(),
            inside: Mutex::default(),
            feed: Arc::default(),
            next_question: AtomicU32::new(0),
            quiet: AtomicU32::new(0),
            _counted: Limit::ClientSessions.take(1),
        })
    }

    /// Where its calls are made now, as `groups` says. What is said there beside calls is heard in this session.
    pub(super) fn group(self: &Arc<Self>, groups: Groups<'_, W>) -> Arc<Group<W>> {
        let group = groups(&self.caller);
        let here = Arc::downgrade(&group);
        let before = std::mem::replace(&mut *self.group.lock(), here.clone());
        if !before.ptr_eq(&here) {
            let listener: Arc<dyn Listener> = self.clone();
            group.audience.join(Arc::downgrade(&listener));
        }
        group
    }

    /// The handshake is over.
    pub(super) fn agrees(&self, server: &Description, primes: bool) {
        let has_logging = server.capabilities.object().is_some_and(|object| object.contains("logging"));
        let _ = self.agreed.set(Agreed { has_logging, primes });
    }

    /// Whether the client has declared that it can be asked this.
    pub(super) fn can_be_asked(&self, question: &Frame) -> bool {
        let Kind::Request { method, params, .. } = question.kind() else { return false };
        self.caller.capabilities.missing_for(method, params.as_deref()).is_none()
    }

    /// One more call that the client waits for. Gives how it learns that the client has taken it back.
    pub(super) fn enter(self: &Arc<Self>, id: &Id, number: u64) -> (InFlight<W>, CancellationToken) {
        let taken_back = CancellationToken::new();
        self.inside.lock().calls.insert(id.clone(), (number, taken_back.clone()));
        let call = InFlight { session: self.clone(), id: id.clone(), number };
        (call, taken_back)
    }

    /// The client takes a call back, or it has been given up for it.
    pub(super) fn cancel(&self, call: &Id) {
        if let Some((_, taken_back)) = self.inside.lock().calls.get(call) {
            taken_back.cancel();
        }
    }

    /// The client has told the server something.
    pub(super) fn told(&self, group: &Group<W>, method: &Method, params: Option<&Payload>, message: &Frame) {
        match method {
            Method::Cancelled => cancelled_id(params).iter().for_each(|call| self.cancel(call)),
            // The server's own handshake is over. Progress is of a question, and names a token that one child gave.
            Method::Initialized | Method::Progress => {}
            _ => group.tell_all(|| message.as_bytes().clone()),
        }
    }

    /// The client has answered a question.
    pub(super) fn answered(&self, id: &Id, outcome: Result<Bytes, Bytes>) {
        let question = self.inside.lock().questions.remove(id);
        match question {
            Some(question) => question.answer.send(outcome),
            None => tracing::debug!(%id, "an answer to nothing that was asked"),
        }
    }

    /// The server has taken a question back. Whether it was open.
    fn take_back(&self, id: &Id) -> bool {
        let question = self.inside.lock().questions.remove(id);
        question.map(|question| question.answer.withdrawn()).is_some()
    }

    /// The client wants to hear only what is as severe as this, or all there is. The server says what the least
    /// demanding of those who share it wants.
    pub(super) fn set_level(&self, group: &Group<W>, params: Option<&Payload>) -> Result<(), ErrorObject> {
        if !self.agreed.get().is_some_and(|agreed| agreed.has_logging) {
            return Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server has no log to be heard"));
        }
        let level = words::string(params, "level").and_then(|name| Level::parse(&name));
        let level = level.ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "there is no such level"))?;
        self.inside.lock().level = Some(level);
        if let Some(level) = group.audience.level() {
            let server = group.server();
            group.tell_all(|| message::set_level(server.next_id(), level));
        }
        Ok(())
    }

    /// The client wants to hear of changes of a resource.
    ///
    /// # Errors
    /// What became of the request to the server, where that gave no answer.
    pub(super) async fn subscribe(
        &self,
        group: &Arc<Group<W>>,
        params: Option<&Payload>,
    ) -> Result<Result<(), ErrorObject>, CallError> {
        let Some(uri) = words::string(params, "uri") else { return Ok(Err(no_uri())) };
        if self.inside.lock().subscribed.len() >= MAX_RESOURCES {
            let words = format!("a session subscribes to {MAX_RESOURCES} resources at most");
            return Ok(Err(ErrorObject::new(code::BUSY, words)));
        }
        Ok(match subscribe::subscribe(group.clone(), &uri).await {
            Ok(guard) => {
                // What it replaces lets go outside the lock.
                let _before = self.inside.lock().subscribed.insert(uri, guard);
                Ok(())
            }
            Err(NotSubscribed::Refused(error)) => Err(error),
            Err(NotSubscribed::Lost(lost)) => return Err(lost),
        })
    }

    pub(super) fn unsubscribe(&self, params: Option<&Payload>) -> Result<(), ErrorObject> {
        let uri = words::string(params, "uri").ok_or_else(no_uri)?;
        let _gone = self.inside.lock().subscribed.remove(&uri);
        Ok(())
    }

    /// Whether a notification is one that the client wants to hear.
    pub(super) fn wants(&self, frame: &Frame) -> bool {
        let Kind::Notification { method, params } = frame.kind() else { return true };
        match method {
            Method::Message => {
                let Some(level) =
                    words::string(params.as_ref(), "level").and_then(|name| Level::parse(&name))
                else {
                    return true;
                };
                let wanted = self.inside.lock().level;
                // What another has asked for is not for one that has asked for nothing.
                let usual = || self.group.lock().upgrade()?.audience.level().map(|_| Level::USUAL);
                wanted.or_else(usual).is_none_or(|wanted| level >= wanted)
            }
            Method::ResourceUpdated => words::string(params.as_ref(), "uri")
                .is_some_and(|uri| self.inside.lock().subscribed.keys().any(|wanted| concerns(wanted, &uri))),
            _ => true,
        }
    }

    /// Opens its GET stream; one that was open ends.
    pub(super) fn listen(self: &Arc<Self>, group: Arc<Group<W>>, headers: &HeaderMap) -> Listening {
        let last_id = headers.get(&LAST_EVENT_ID).map(|id| id.as_bytes());
        let primes = self.agreed.get().is_some_and(|agreed| agreed.primes);
        // As long as somebody listens, a session of the pool is kept open to hear for it.
        let heard: broadcast::Receiver<Report> = group.reports.listen();
        self.feed.open(last_id, primes, Box::new((self.clone(), group, heard)))
    }

    /// It is over.
    pub(super) fn end(&self) {
        let (calls, questions, subscribed) = {
            let mut inside = self.inside.lock();
            let calls: Vec<_> = inside.calls.values().map(|(_, taken_back)| taken_back.clone()).collect();
            (calls, std::mem::take(&mut inside.questions), std::mem::take(&mut inside.subscribed))
        };
        calls.iter().for_each(CancellationToken::cancel);
        self.feed.end();
        drop((questions, subscribed));
    }

    pub(super) fn is_used(&self) {
        self.quiet.store(0, Ordering::Relaxed);
    }

    /// Rounds for which it has not been used.
    pub(super) fn quiet_for(&self) -> u32 {
        self.quiet.load(Ordering::Relaxed)
    }

    /// The same, after one more.
    pub(super) fn is_quiet_for_another_round(&self) -> u32 {
        self.quiet.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl<W: Wire> Listener for Hosted<W> {
    fn hears(&self, frame: &Frame, line: &Bytes) {
        if self.wants(frame) {
            self.feed.say(line.clone());
        }
    }

    /// Of its own in the session. After 2^31 the ids begin anew, and those of open questions are passed over.
    fn next_question(&self) -> Id {
        loop {
            let number = self.next_question.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
            let id = Id::from_number(number.into());
            if !self.inside.lock().questions.contains_key(&id) {
                return id;
            }
        }
    }

    fn asked(&self, id: Id, frame: &Frame, answer: Box<dyn Answer>) {
        let Some(message) = words::with_id(frame, &id) else { return };
        let is_open = {
            let mut inside = self.inside.lock();
            let open = inside.questions.values().filter(|question| question.call.is_none()).count();
            // What is larger would not be kept until its stream is read.
            let has_room = open < MAX_OPEN && message.len() <= EVENT_BYTES && self.can_be_asked(frame);
            if has_room {
                inside.questions.insert(id, Open { call: None, answer });
            }
            has_room
        };
        // Else it was refused when it was dropped.
        if is_open {
            self.feed.say(message);
        }
    }

    fn withdrawn(&self, id: &Id, reason: &str) {
        if self.take_back(id) {
            self.feed.say(legacy::cancelled(id, reason));
        }
    }

    fn level(&self) -> Option<Level> {
        self.inside.lock().level
    }
}

// === impl Inside ===

impl<W: Wire> Default for Inside<W> {
    fn default() -> Self {
        Self { calls: HashMap::new(), questions: HashMap::new(), subscribed: HashMap::new(), level: None }
    }
}

// === impl InFlight ===

impl<W: Wire> InFlight<W> {
    /// The client is asked something in the course of it.
    pub(super) fn asks(&self, id: Id, answer: Box<dyn Answer>) {
        let question = Open { call: Some(self.number), answer };
        self.session.inside.lock().questions.insert(id, question);
    }

    /// The server has taken a question back.
    pub(super) fn withdrawn(&self, id: &Id) {
        self.session.take_back(id);
    }
}

impl<W: Wire> Drop for InFlight<W> {
    fn drop(&mut self) {
        let mut inside = self.session.inside.lock();
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
fn concerns(subscribed: &str, uri: &str) -> bool {
    uri.strip_prefix(subscribed)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || subscribed.ends_with('/'))
}
