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

use super::{
    cancelled_requests::{Asked, Mark},
    streams::Key,
};
use crate::{
    dialect::Principal,
    protocol::{Frame, Id, Kind, Method, splice::Object},
    proxy::{ids, legacy::end_at_server, shared::Shared},
    telemetry::QuestionRefused,
    upstream::{ClientSession, Interest, OffStream, only_one},
};
use bytes::Bytes;
use dashmap::{DashMap, Entry};
use smallvec::SmallVec;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    iter::repeat_n,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio_util::sync::CancellationToken;

/// The sessions in which calls are in flight.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Residents {
    sessions: DashMap<Key, Inhabited>,
    /// Held for one insertion or look-up.
    left: Mutex<Left>,
}

/// The calls that have left their sessions without their ends, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
struct Left {
    of: HashMap<Key, HashSet<Mark>>,
    /// The oldest first. What has been answered since may still be here.
    order: VecDeque<(Key, Mark)>,
}

#[derive(Debug, Default)]
struct Inhabited {
    ours: Vec<InFlight>,
    /// Those that the client makes and hears the answers of itself.
    theirs: usize,
    /// The client has ended it: how its server is to be told.
    left: Option<(Principal, ClientSession)>,
}

/// One call of ours.
#[derive(Debug)]
struct InFlight {
    number: u64,
    /// The client's own progress token, a raw JSON token.
    token: Option<Bytes>,
    call: OffStream,
}

/// One call of ours in a session. The last one that is dropped in a session which its client has left
/// ends that at the server.
pub(in crate::proxy) struct Resident {
    shared: Arc<Shared>,
    key: Key,
    number: u64,
}

/// One call of the client's own. It is in flight also while its answer is read on after its client has left.
pub(in crate::proxy) struct Theirs {
    shared: Arc<Shared>,
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
    Call(OffStream),
    /// It cannot be told, for this reason; any of our calls can say so.
    Unclear(OffStream, &'static str),
}

/// How many calls are remembered that have left. Each costs about 100 bytes; where one is forgotten too
/// early, what it asks may be put to the client of another call in its session.
const REMEMBERED: usize = 16 << 10;

// === impl Residents ===

impl Residents {
    /// The client has ended this session. Whether calls of ours go on in it: then its server is told
    /// once they have ended, and must not be before.
    pub(in crate::proxy) fn leave(
        &self,
        key: Key,
        principal: Principal,
        session: impl FnOnce() -> ClientSession,
    ) -> bool {
        let Some(mut inhabited) = self.sessions.get_mut(&key) else { return false };
        if inhabited.ours.is_empty() {
            return false;
        }
        inhabited.left.get_or_insert_with(|| (principal, session()));
        true
    }

    /// Whether a call of ours is in flight in a session.
    pub(in crate::proxy) fn has_ours(&self, key: Key) -> bool {
        self.sessions.get(&key).is_some_and(|inhabited| !inhabited.ours.is_empty())
    }

    /// Takes what the session's own stream has said, where it is for a call of ours. Whether it was.
    pub(in crate::proxy) fn take(&self, key: Key, frame: Frame) -> bool {
        match frame.kind() {
            Kind::Notification { method: Method::Progress, params: Some(params) } => {
                let token = Object::read(params).ok().and_then(|params| params.get("progressToken"));
                let Some(token) = token.and_then(Id::from_token) else { return false };
                match self.by_token(key, &token) {
                    Some(call) => call.hear(frame),
                    // Of a call of ours that has ended.
                    None => return token.came_back().is_some_and(ids::is_of_session),
                }
                true
            }
            Kind::Notification { method: Method::Cancelled, params: Some(params) } => {
                let id = Object::read(params).ok().and_then(|params| params.get("requestId"));
                let Some(call) = id.and_then(Id::from_token).and_then(|id| self.by_question(key, &id)) else {
                    return false;
                };
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
                    QuestionRefused { method: method.as_str(), reason }.emit();
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
        let Some(inhabited) = self.sessions.get(&key) else { return Whose::Client };
        let in_flight = || inhabited.ours.iter().map(|ours| &ours.call).filter(|call| call.is_in_flight());
        let Some(first) = in_flight().next() else { return Whose::Client };
        let is_abandoned =
            || inhabited.ours.iter().any(|ours| ours.call.has_left()) || self.left().of.contains_key(&key);
        match only_one(in_flight().chain(repeat_n(first, inhabited.theirs)), is_abandoned) {
            Ok(call) => Whose::Call(call.clone()),
            Err(reason) => Whose::Unclear(first.clone(), reason),
        }
    }

    /// The call that progress under this token is about.
    fn by_token(&self, key: Key, token: &Id) -> Option<OffStream> {
        let number = token.came_back();
        let about = |ours: &&InFlight| match &ours.token {
            Some(own) => own == token.as_bytes(),
            None => number == Some(ours.number),
        };
        Some(self.sessions.get(&key)?.ours.iter().find(about)?.call.clone())
    }

    /// The call that this question of the server was put to.
    fn by_question(&self, key: Key, id: &Id) -> Option<OffStream> {
        let asked = |ours: &&InFlight| ours.call.has_asked(id);
        Some(self.sessions.get(&key)?.ours.iter().find(asked)?.call.clone())
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Left ===

impl Left {
    /// A call leaves without its end.
    fn remember(&mut self, key: Key, request: &Id) {
        let mark = mark(request);
        if !self.of.entry(key).or_default().insert(mark) {
            return;
        }
        self.order.push_back((key, mark));
        if self.order.len() > REMEMBERED
            && let Some((key, oldest)) = self.order.pop_front()
        {
            self.forget(key, oldest);
        }
    }

    fn forget(&mut self, key: Key, mark: Mark) {
        let Some(marks) = self.of.get_mut(&key) else { return };
        marks.remove(&mark);
        if marks.is_empty() {
            self.of.remove(&key);
        }
    }
}

/// An id may be as long as its client likes.
fn mark(request: &Id) -> Mark {
    *Principal::of(&[request.as_bytes()]).as_bytes()
}

// === impl Resident ===

impl Resident {
    /// A call under this number, or with the client's own progress token.
    pub(in crate::proxy) fn new(
        shared: &Arc<Shared>,
        key: Key,
        number: u64,
        token: Option<Bytes>,
        call: OffStream,
    ) -> Self {
        let ours = InFlight { number, token, call };
        shared.residents.sessions.entry(key).or_default().ours.push(ours);
        Self { shared: Arc::clone(shared), key, number }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let Entry::Occupied(mut inhabited) = self.shared.residents.sessions.entry(self.key) else { return };
        let is_this = |ours: &mut InFlight| ours.number == self.number;
        if inhabited.get_mut().ours.extract_if(.., is_this).any(|ours| ours.call.has_left()) {
            self.shared.residents.left().remember(self.key, &Id::from_number(self.number));
        }
        if !inhabited.get().ours.is_empty() {
            return;
        }
        let left = inhabited.get_mut().left.take();
        if inhabited.get().theirs == 0 {
            inhabited.remove();
        }
        let Some((principal, session)) = left else { return };
        let shared = Arc::clone(&self.shared);
        self.shared.stopping.spawn(async move { end_at_server(&shared, principal, session).await });
    }
}

// === impl Theirs ===

impl Theirs {
    pub(in crate::proxy) fn new(
        shared: &Arc<Shared>,
        key: Key,
        requests: SmallVec<[Id; 1]>,
        comes_back: bool,
        asked: &Arc<Asked>,
    ) -> Arc<Self> {
        shared.residents.sessions.entry(key).or_default().theirs += 1;
        let (shared, asked) = (Arc::clone(shared), Arc::clone(asked));
        Arc::new(Self { shared, key, requests, comes_back, answered: AtomicBool::new(false), asked })
    }
}

impl Interest for Theirs {
    fn lost(&self) -> &CancellationToken {
        self.asked.lost()
    }

    /// It has been answered, or the server never had it. Dropped without, it has left without its end.
    fn answered(&self) {
        if !self.answered.swap(true, Relaxed) && self.comes_back {
            let mut left = self.shared.residents.left();
            self.requests.iter().for_each(|request| left.forget(self.key, mark(request)));
        }
    }
}

impl fmt::Debug for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Theirs").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // One that comes back had left before.
        if !*self.answered.get_mut() && !self.comes_back {
            let mut left = self.shared.residents.left();
            self.requests.iter().for_each(|request| left.remember(self.key, request));
        }
        let Entry::Occupied(mut inhabited) = self.shared.residents.sessions.entry(self.key) else { return };
        inhabited.get_mut().theirs -= 1;
        if inhabited.get().theirs == 0 && inhabited.get().ours.is_empty() {
            inhabited.remove();
        }
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
        left.forget(key("a"), mark(&Id::from_number(1)));
        assert!(left.of.contains_key(&key("a")));
        left.forget(key("a"), mark(&Id::from_number(2)));
        assert!(left.of.is_empty());
        for number in 0..2 * REMEMBERED as u64 {
            left.remember(key("b"), &Id::from_number(number));
        }
        assert_eq!((left.of[&key("b")].len(), left.order.len()), (REMEMBERED, REMEMBERED));
    }
}
