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
//! response ([`CANCELLED`]). Otherwise one cancelled call would keep all later ones in its session from asking.

use super::{Key, cancelled_requests::Asked, latest::Latest};
use crate::{
    dialect::Principal,
    protocol::{Frame, Id, Kind, Method},
    runtime::{Clock, Mutex, SystemClock},
    telemetry::{QuestionRefused, metrics::QuestionOutcome},
    upstream::{Interest, OffStream, ReadingOn, only_one},
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
pub(in crate::proxy) struct InFlight {
    clock: SystemClock,
    sessions: DashMap<Key, Calls>,
    /// Held for one insertion or look-up.
    left: Mutex<Left>,
    /// The numbers of our calls that have ended lately: what is still said of their progress is for nobody. Held for
    /// one insertion or look-up.
    ended: Mutex<Latest<(Key, u64), (), REMEMBERED>>,
}

/// The calls that have left their sessions without their ends, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
struct Left {
    calls: Latest<(Key, Mark), (), REMEMBERED>,
    /// How many of them there are in a session; never 0.
    in_session: HashMap<Key, usize>,
    /// When a call was last cancelled in a session.
    cancelled: Latest<Key, Instant, REMEMBERED>,
}

/// A request's id: a digest.
type Mark = [u8; 16];

#[derive(Default)]
struct Calls {
    ours: Vec<Ours>,
    /// Those that the client makes and hears the answers of itself.
    theirs: Vec<Arc<Asked>>,
    /// The client has ended it: what is to be done once the last of ours has ended.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// One call of ours.
struct Ours {
    number: u64,
    began: Instant,
    /// The client's own progress token.
    token: Option<Id>,
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

/// How many calls are remembered that have left, and of ours that have ended. Each costs about 100 bytes; where one is forgotten too
/// early, what it asks may be put to the client of another call in its session.
const REMEMBERED: usize = 16 << 10;

/// How long a call that was cancelled may still ask, where another was in flight by then: what the server has sent
/// before it read of the cancellation is on its way. What begins later is sent behind the cancellation.
const CANCELLED: Duration = Duration::from_secs(10);

// === impl InFlight ===

impl InFlight {
    /// One more call of ours: under this number, or with the client's own progress token.
    pub(in crate::proxy) fn begin(
        self: &Arc<Self>,
        key: Key,
        number: u64,
        token: Option<Id>,
        call: Arc<dyn OffStream>,
    ) -> OurCall {
        let began = self.clock.now();
        self.calls(key).ours.push(Ours { number, began, token, call });
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
        self.calls(key).theirs.push(Arc::clone(asked));
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

    /// The client cancels something in this session.
    pub(in crate::proxy) fn cancel(&self, key: Key) {
        if self.sessions.contains_key(&key) {
            self.left.lock().cancelled.insert(key, self.clock.now());
        }
    }

    /// A handshake has opened a session of this id, which its server may have given before: what was left in that one
    /// is over, and its end is not told in the new one.
    pub(in crate::proxy) fn reopen(&self, key: Key) {
        self.left.lock().forget_session(key);
        if let Some(mut calls) = self.sessions.get_mut(&key) {
            calls.end = None;
        }
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
                    None => return token.came_back().is_some_and(|number| self.has_ended(key, number)),
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
        let in_flight = || calls.ours.iter().filter(|ours| ours.call.is_in_flight());
        let Some(first) = in_flight().next() else { return Whose::Client };
        let is_abandoned = || {
            let now = self.clock.now();
            let may_ask = |ours: &Ours| {
                let is_over = |at| !may_still_ask(at, first.began, now);
                ours.call.has_left() && !ours.call.cancelled_at().is_some_and(is_over)
            };
            calls.ours.iter().any(may_ask) || self.left.lock().may_ask(key, first.began, now)
        };
        let theirs = calls.theirs.iter().filter(|asked| !asked.lost().is_cancelled());
        match only_one(in_flight().chain(theirs.map(|_| first)), is_abandoned) {
            Ok(ours) => Whose::Call(ours.call.clone()),
            Err(reason) => Whose::Unclear(first.call.clone(), reason),
        }
    }

    /// The call that progress under this token is about.
    fn by_token(&self, key: Key, token: &Id) -> Option<Arc<dyn OffStream>> {
        let number = token.came_back();
        let about = |ours: &&Ours| match &ours.token {
            Some(own) => own == token,
            None => number == Some(ours.number),
        };
        Some(self.sessions.get(&key)?.ours.iter().find(about)?.call.clone())
    }

    /// The call that this question of the server was put to.
    fn by_question(&self, key: Key, id: &Id) -> Option<Arc<dyn OffStream>> {
        let asked = |ours: &&Ours| ours.call.has_asked(id);
        Some(self.sessions.get(&key)?.ours.iter().find(asked)?.call.clone())
    }

    /// Whether a call of ours with this number has ended lately.
    fn has_ended(&self, key: Key, number: u64) -> bool {
        self.ended.lock().contains(&(key, number))
    }

    fn calls(&self, key: Key) -> RefMut<'_, Key, Calls> {
        self.sessions.entry(key).or_default()
    }
}

// === impl Calls ===

impl Calls {
    fn are_over(&self) -> bool {
        self.ours.is_empty() && self.theirs.is_empty()
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

    /// Whether something that has left a session may still ask, where a call is in flight that began then.
    fn may_ask(&self, key: Key, began: Instant, now: Instant) -> bool {
        let cancelled = self.cancelled.get(&key).filter(|at| may_still_ask(**at, began, now));
        cancelled.is_some() || self.in_session.contains_key(&key)
    }

    fn forget_session(&mut self, key: Key) {
        if self.in_session.remove(&key).is_some() {
            self.calls.retain(|(session, _)| *session != key);
        }
        self.cancelled.remove(&key);
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

/// Whether a call that was cancelled at this time may ask something that could be taken for one that `began`.
fn may_still_ask(at: Instant, began: Instant, now: Instant) -> bool {
    began <= at && now < at + CANCELLED
}

/// An id may be as long as its client likes.
fn mark(request: &Id) -> Mark {
    *Principal::of(&[&request.value()]).as_bytes()
}

// === impl OurCall ===

impl Drop for OurCall {
    fn drop(&mut self) {
        let Self { in_flight, key, number } = self;
        in_flight.ended.lock().insert((*key, *number), ());
        let mut end = None;
        in_flight.sessions.remove_if_mut(key, |_, calls| {
            let is_this = |ours: &mut Ours| ours.number == *number;
            for ours in calls.ours.extract_if(.., is_this).filter(|ours| ours.call.has_left()) {
                let mut left = in_flight.left.lock();
                match ours.call.cancelled_at() {
                    Some(at) => drop(left.cancelled.insert(*key, at)),
                    None => left.remember(*key, &Id::from_number(*number)),
                }
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

    fn reading_on(&self) -> &ReadingOn {
        &self.asked.reading_on
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
        // One that comes back had left before; the server has been told of one that was cancelled.
        if !*self.answered.get_mut() && !self.comes_back && !self.asked.lost().is_cancelled() {
            let mut left = self.in_flight.left.lock();
            self.requests.iter().for_each(|request| left.remember(self.key, request));
        }
        self.in_flight.sessions.remove_if_mut(&self.key, |_, calls| {
            if let Some(at) = calls.theirs.iter().position(|asked| Arc::ptr_eq(asked, &self.asked)) {
                calls.theirs.swap_remove(at);
            }
            calls.are_over()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_cancelled_call_may_ask_for_a_while_and_only_where_another_was_in_flight_by_then() {
        let key = Key::named(Principal::ANONYMOUS, &HeaderValue::from_static("a"));
        let before = SystemClock::new().now();
        let (at, after) = (before + Duration::from_secs(1), before + Duration::from_secs(2));
        let mut left = Left::default();
        left.cancelled.insert(key, at);
        assert!(left.may_ask(key, before, after) && left.may_ask(key, at, after));
        assert!(!left.may_ask(key, after, after), "it began behind the cancellation");
        assert!(!left.may_ask(key, before, at + CANCELLED));
        left.remember(key, &Id::from_number(1));
        assert!(left.may_ask(key, after, at + CANCELLED), "another has left without a word to the server");
        left.forget_session(key);
        assert!(!left.may_ask(key, before, after) && left.calls.sizes().0 == 0);
    }

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
