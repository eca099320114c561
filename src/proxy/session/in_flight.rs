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

use super::{Key, cancelled_requests::Asked, latest::Latest};
use crate::{
    dialect::Principal,
    protocol::{Frame, Id, Kind, Method},
    proxy::ids,
    runtime::Mutex,
    telemetry::{QuestionRefused, metrics::QuestionOutcome},
    upstream::{Interest, OffStream, only_one},
};
use bytes::Bytes;
use dashmap::{DashMap, mapref::one::RefMut};
use smallvec::SmallVec;
use std::{
    collections::{HashMap, hash_map::Entry},
    iter::repeat_n,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio_util::sync::CancellationToken;

/// The sessions in which calls are in flight.
#[derive(Default)]
pub(in crate::proxy) struct InFlight {
    sessions: DashMap<Key, Calls>,
    /// Held for one insertion or look-up.
    left: Mutex<Left>,
}

/// The calls that have left their sessions without their ends, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
struct Left {
    calls: Latest<(Key, Mark), (), REMEMBERED>,
    /// How many of them there are in a session; never 0.
    in_session: HashMap<Key, usize>,
}

/// A request's id: a digest.
type Mark = [u8; 16];

#[derive(Default)]
struct Calls {
    ours: Vec<Ours>,
    /// Those that the client makes and hears the answers of itself.
    theirs: usize,
    /// The client has ended it: what is to be done once the last of ours has ended.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// One call of ours.
struct Ours {
    number: u64,
    /// The client's own progress token, a raw JSON token.
    token: Option<Bytes>,
    call: Arc<dyn OffStream>,
}

/// One call of ours in a session. With the last one in a session that its client has left, that ends.
pub(in crate::proxy) struct OurCall {
    in_flight: Arc<InFlight>,
    key: Key,
    number: u64,
}

/// One call of the client's own. It is in flight also while its answer is read on after its client has left.
pub(in crate::proxy) struct TheirCall {
    in_flight: Arc<InFlight>,
    key: Key,
    /// What it asks.
    requests: SmallVec<[Id; 1]>,
    /// The client comes back for the answer to a call that has left.
    comes_back: bool,
    answered: AtomicBool,
    asked: Arc<Asked>,
}

/// Whose a question can be that names no call.
enum Whose {
    /// No call of ours is in flight.
    Client,
    Call(Arc<dyn OffStream>),
    /// It cannot be told, for this reason; any of our calls can say so.
    Unclear(Arc<dyn OffStream>, &'static str),
}

/// How many calls are remembered that have left. Each costs about 100 bytes; where one is forgotten too
/// early, what it asks may be put to the client of another call in its session.
const REMEMBERED: usize = 16 << 10;

// === impl InFlight ===

impl InFlight {
    /// One more call of ours: under this number, or with the client's own progress token.
    pub(in crate::proxy) fn begin(
        self: &Arc<Self>,
        key: Key,
        number: u64,
        token: Option<Bytes>,
        call: Arc<dyn OffStream>,
    ) -> OurCall {
        self.calls(key).ours.push(Ours { number, token, call });
        OurCall { in_flight: Arc::clone(self), key, number }
    }

    /// One more call of the client's.
    pub(in crate::proxy) fn begin_theirs(
        self: &Arc<Self>,
        key: Key,
        requests: SmallVec<[Id; 1]>,
        comes_back: bool,
        asked: &Arc<Asked>,
    ) -> Arc<TheirCall> {
        self.calls(key).theirs += 1;
        let (in_flight, asked) = (Arc::clone(self), Arc::clone(asked));
        let answered = AtomicBool::new(false);
        Arc::new(TheirCall { in_flight, key, requests, comes_back, answered, asked })
    }

    /// The client has ended this session. Whether calls of ours go on in it: then its server is told
    /// once they have ended, by `end`, and must not be before.
    pub(in crate::proxy) fn leave<E>(&self, key: Key, end: impl FnOnce() -> E) -> bool
    where
        E: FnOnce() + Send + Sync + 'static,
    {
        let Some(mut calls) = self.sessions.get_mut(&key) else { return false };
        if calls.ours.is_empty() {
            return false;
        }
        calls.end.get_or_insert_with(|| Box::new(end()));
        true
    }

    /// Whether a call of ours is in flight in a session.
    pub(in crate::proxy) fn has_ours(&self, key: Key) -> bool {
        self.sessions.get(&key).is_some_and(|calls| !calls.ours.is_empty())
    }

    /// Takes what the session's own stream has said, where it is for a call of ours. Whether it was.
    pub(in crate::proxy) fn take(&self, route: &str, key: Key, frame: Frame) -> bool {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let Some(token) = params.get("progressToken").and_then(Id::from_token) else { return false };
                match self.by_token(key, &token) {
                    Some(call) => call.hear(frame),
                    // Of a call of ours that has ended.
                    None => return token.came_back().is_some_and(ids::is_of_session),
                }
                true
            }
            Kind::Notification { method: Method::Cancelled, params: Some(params) } => {
                let id = params.get("requestId").and_then(Id::from_token);
                let Some(call) = id.and_then(|id| self.by_question(key, &id)) else { return false };
                call.hear(frame);
                true
            }
            Kind::Request {
                id,
                method: method @ (Method::Elicit | Method::CreateMessage | Method::RootsList),
                ..
            } => match self.whose(key) {
                Whose::Client => false,
                Whose::Call(call) => {
                    call.hear(frame);
                    true
                }
                Whose::Unclear(call, reason) => {
                    let (method, outcome) = (method.as_str(), QuestionOutcome::Refused);
                    QuestionRefused { route, method, reason, outcome }.emit();
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
    fn whose(&self, key: Key) -> Whose {
        let Some(calls) = self.sessions.get(&key) else { return Whose::Client };
        let in_flight = || calls.ours.iter().map(|ours| &ours.call).filter(|call| call.is_in_flight());
        let Some(first) = in_flight().next() else { return Whose::Client };
        let is_abandoned = || {
            calls.ours.iter().any(|ours| ours.call.has_left())
                || self.left.lock().in_session.contains_key(&key)
        };
        match only_one(in_flight().chain(repeat_n(first, calls.theirs)), is_abandoned) {
            Ok(call) => Whose::Call(call.clone()),
            Err(reason) => Whose::Unclear(first.clone(), reason),
        }
    }

    /// The call that progress under this token is about.
    fn by_token(&self, key: Key, token: &Id) -> Option<Arc<dyn OffStream>> {
        let number = token.came_back();
        let about = |ours: &&Ours| match &ours.token {
            Some(own) => own == token.as_bytes(),
            None => number == Some(ours.number),
        };
        Some(self.sessions.get(&key)?.ours.iter().find(about)?.call.clone())
    }

    /// The call that this question of the server was put to.
    fn by_question(&self, key: Key, id: &Id) -> Option<Arc<dyn OffStream>> {
        let asked = |ours: &&Ours| ours.call.has_asked(id);
        Some(self.sessions.get(&key)?.ours.iter().find(asked)?.call.clone())
    }

    fn calls(&self, key: Key) -> RefMut<'_, Key, Calls> {
        self.sessions.entry(key).or_default()
    }
}

// === impl Calls ===

impl Calls {
    fn are_over(&self) -> bool {
        self.ours.is_empty() && self.theirs == 0
    }
}

// === impl Left ===

impl Left {
    /// A call leaves without its end.
    fn remember(&mut self, key: Key, request: &Id) {
        let call = (key, mark(request));
        if self.calls.contains(&call) {
            return;
        }
        *self.in_session.entry(key).or_default() += 1;
        if let Some((key, _)) = self.calls.insert(call, ()) {
            self.one_less(key);
        }
    }

    fn forget(&mut self, key: Key, request: &Id) {
        if self.calls.remove(&(key, mark(request))) {
            self.one_less(key);
        }
    }

    fn one_less(&mut self, key: Key) {
        if let Entry::Occupied(mut count) = self.in_session.entry(key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// An id may be as long as its client likes.
fn mark(request: &Id) -> Mark {
    *Principal::of(&[request.as_bytes()]).as_bytes()
}

// === impl OurCall ===

impl Drop for OurCall {
    fn drop(&mut self) {
        let Self { in_flight, key, number } = self;
        let mut end = None;
        in_flight.sessions.remove_if_mut(key, |_, calls| {
            let is_this = |ours: &mut Ours| ours.number == *number;
            if calls.ours.extract_if(.., is_this).any(|ours| ours.call.has_left()) {
                in_flight.left.lock().remember(*key, &Id::from_number(*number));
            }
            end = calls.end.take_if(|_| calls.ours.is_empty());
            calls.are_over()
        });
        if let Some(end) = end {
            end();
        }
    }
}

// === impl TheirCall ===

impl Interest for TheirCall {
    fn lost(&self) -> &CancellationToken {
        self.asked.lost()
    }

    /// It has been answered, or the server never had it. Dropped without, it has left without its end.
    fn answered(&self) {
        if !self.answered.swap(true, Relaxed) && self.comes_back {
            let mut left = self.in_flight.left.lock();
            self.requests.iter().for_each(|request| left.forget(self.key, request));
        }
    }
}

impl Drop for TheirCall {
    fn drop(&mut self) {
        // One that comes back had left before.
        if !*self.answered.get_mut() && !self.comes_back {
            let mut left = self.in_flight.left.lock();
            self.requests.iter().for_each(|request| left.remember(self.key, request));
        }
        self.in_flight.sessions.remove_if_mut(&self.key, |_, calls| {
            calls.theirs -= 1;
            calls.are_over()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn only_so_many_calls_that_have_left_are_remembered_and_none_that_was_answered() {
        let key = |session| Key::named(Principal::ANONYMOUS, &HeaderValue::from_static(session));
        let mut left = Left::default();
        left.remember(key("a"), &Id::from_number(1));
        left.remember(key("a"), &Id::from_number(2));
        left.forget(key("a"), &Id::from_number(1));
        assert!(left.in_session.contains_key(&key("a")));
        left.forget(key("a"), &Id::from_number(2));
        assert!(left.in_session.is_empty());
        for number in 0..2 * REMEMBERED as u64 {
            left.remember(key("b"), &Id::from_number(number));
        }
        assert_eq!((left.in_session[&key("b")], left.calls.sizes()), (REMEMBERED, (REMEMBERED, REMEMBERED)));
    }
}
