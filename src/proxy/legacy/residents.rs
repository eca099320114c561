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

use super::{farewell, streams::Key};
use crate::{
    dialect::Principal,
    protocol::Id,
    proxy::{endpoint::Shared, legacy::ended::Marks},
    upstream::{ClientSession, Event, Lost, Replies},
};
use bytes::Bytes;
use dashmap::{DashMap, Entry};
use futures_util::{Stream, StreamExt, task::AtomicWaker};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

/// The sessions in which calls are in flight.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Residents {
    sessions: DashMap<Key, Inhabited>,
    /// Sessions in which a call has left without its end, the last 16384 of them. Held for one insertion
    /// or look-up.
    abandoned: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Inhabited {
    ours: Vec<Arc<InFlight>>,
    /// Those that the client makes and hears the answers of itself.
    theirs: usize,
    /// The client has ended it: how its server is to be told.
    left: Option<(Principal, ClientSession)>,
}

/// One call of ours.
#[derive(Debug)]
pub(super) struct InFlight {
    number: u64,
    /// The client's own progress token, a raw JSON token.
    token: Option<Bytes>,
    /// The lock is held for a few lines.
    mail: Mutex<Mail>,
    reader: AtomicWaker,
    over: AtomicBool,
}

/// What the session's own stream has said of a call.
#[derive(Debug, Default)]
struct Mail {
    events: VecDeque<Event>,
    /// The server's questions that are open.
    questions: Vec<Id>,
}

/// One call of ours in a session. The last one that is dropped in a session which its client has left
/// ends that at the server.
pub(super) struct Resident {
    shared: Arc<Shared>,
    key: Key,
    call: Arc<InFlight>,
}

/// One call of the client's own.
pub(super) struct Theirs {
    shared: Arc<Shared>,
    key: Key,
    answered: bool,
}

/// Whose a question can be that names no call.
pub(super) enum Whose {
    /// No call of ours is in flight.
    Client,
    Call(Arc<InFlight>),
    /// It cannot be told, for this reason.
    Unclear(&'static str),
}

/// Events of a call that wait for it; further progress is dropped. Each costs its message.
const KEPT: usize = 64;

// === impl Residents ===

impl Residents {
    /// The client has ended this session. Whether calls of ours go on in it: then its server is told
    /// once they have ended, and must not be before.
    pub(super) fn leave(
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
    pub(super) fn has_ours(&self, key: Key) -> bool {
        self.sessions.get(&key).is_some_and(|inhabited| !inhabited.ours.is_empty())
    }

    /// Whose a question is that came on the session's own stream.
    pub(super) fn whose(&self, key: Key) -> Whose {
        let Some(inhabited) = self.sessions.get(&key) else { return Whose::Client };
        let mut ours = inhabited.ours.iter().filter(|call| !call.is_over());
        match (ours.next(), ours.next(), inhabited.theirs) {
            (None, ..) => Whose::Client,
            (Some(_), None, 0) if self.abandoned().contains(&key.digest()) => {
                Whose::Unclear("a call has left the session without its end")
            }
            (Some(call), None, 0) => Whose::Call(Arc::clone(call)),
            (Some(_), ..) => Whose::Unclear("several calls are in flight"),
        }
    }

    /// The call that progress under this token is about.
    pub(super) fn by_token(&self, key: Key, token: &Bytes) -> Option<Arc<InFlight>> {
        let number = number(token);
        let about = |call: &&Arc<InFlight>| {
            call.token.as_ref().map_or_else(|| number == Some(call.number), |own| own == token)
        };
        self.sessions.get(&key)?.ours.iter().find(about).map(Arc::clone)
    }

    /// The call that this question of the server was put to.
    pub(super) fn by_question(&self, key: Key, id: &Id) -> Option<Arc<InFlight>> {
        self.sessions.get(&key)?.ours.iter().find(|call| call.has_asked(id)).map(Arc::clone)
    }

    fn abandon(&self, key: Key) {
        self.abandoned().remember(key.digest());
    }

    fn abandoned(&self) -> MutexGuard<'_, Marks> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number that a token of ours came back as: some servers make it a string.
pub(super) fn number(token: &[u8]) -> Option<u64> {
    let bare = token.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(token);
    std::str::from_utf8(bare).ok()?.parse().ok()
}

// === impl InFlight ===

impl InFlight {
    /// Tells the call something that belongs to it. Only progress is ever dropped; questions are bounded
    /// by who puts them.
    pub(super) fn tell(&self, event: Event) {
        let mut mail = self.mail();
        if mail.events.len() >= KEPT && matches!(event, Event::Notice(_)) {
            return;
        }
        mail.events.push_back(event);
        drop(mail);
        self.reader.wake();
    }

    /// Remembers a question of the server. Not one that is open already: a stream that is taken up again
    /// may bring it twice.
    pub(super) fn asks(&self, id: &Id) -> bool {
        let mut mail = self.mail();
        if mail.questions.contains(id) {
            return false;
        }
        mail.questions.push(id.detached());
        true
    }

    pub(super) fn has_asked(&self, id: &Id) -> bool {
        self.mail().questions.contains(id)
    }

    /// How many questions are open.
    pub(super) fn open(&self) -> usize {
        self.mail().questions.len()
    }

    /// A question is open no more.
    pub(super) fn settled(&self, id: &Id) {
        self.mail().questions.retain(|question| question != id);
    }

    /// Whether the call has ended, or nobody waits for it any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.mail().events.pop_front() {
            return Poll::Ready(event);
        }
        self.reader.register(cx.waker());
        // It may have come before the waker was there.
        self.mail().events.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Resident ===

impl Resident {
    /// A call under this number, or with the client's own progress token.
    pub(super) fn new(shared: &Arc<Shared>, key: Key, number: u64, token: Option<Bytes>) -> Self {
        let (mail, reader, over) = (Mutex::default(), AtomicWaker::new(), AtomicBool::new(false));
        let call = Arc::new(InFlight { number, token, mail, reader, over });
        shared.residents.sessions.entry(key).or_default().ours.push(Arc::clone(&call));
        Self { shared: Arc::clone(shared), key, call }
    }

    /// What the call hears: its own stream, and what the session's says of it.
    pub(super) fn replies(&self, own: Replies) -> Replies {
        let (shared, key, call) = (Arc::clone(&self.shared), self.key, Arc::clone(&self.call));
        Overheard { own, call, shared, key, sent: false }.boxed()
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let Entry::Occupied(mut inhabited) = self.shared.residents.sessions.entry(self.key) else { return };
        inhabited.get_mut().ours.retain(|call| !Arc::ptr_eq(call, &self.call));
        if !inhabited.get().ours.is_empty() {
            return;
        }
        let left = inhabited.get_mut().left.take();
        if inhabited.get().theirs == 0 {
            inhabited.remove();
        }
        let Some((principal, session)) = left else { return };
        let shared = Arc::clone(&self.shared);
        self.shared.stopping.spawn(async move { farewell::end_at_server(&shared, principal, session).await });
    }
}

/// The replies of a call.
struct Overheard {
    own: Replies,
    call: Arc<InFlight>,
    shared: Arc<Shared>,
    key: Key,
    /// The server may have the call.
    sent: bool,
}

impl Stream for Overheard {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        // First what came outside the response: it came earlier than a response that is ready too.
        if let Poll::Ready(event) = this.call.poll(cx) {
            return Poll::Ready(Some(event));
        }
        this.sent = true;
        let event = this.own.poll_next_unpin(cx);
        if let Poll::Ready(event) = &event {
            let has_ended = match event {
                Some(Event::Final(_)) => true,
                // The server never had it, or has refused it.
                Some(Event::Lost(
                    Lost::Unreachable(_)
                    | Lost::ConnectTimeout(_)
                    | Lost::Unauthorized { .. }
                    | Lost::Forbidden { .. }
                    | Lost::SessionEnded,
                )) => true,
                Some(Event::Lost(_)) | None => {
                    this.shared.residents.abandon(this.key);
                    true
                }
                Some(Event::Notice(_) | Event::Question(_) | Event::Withdrawn { .. }) => false,
            };
            if has_ended {
                this.call.over.store(true, Ordering::Release);
            }
        }
        event
    }
}

impl Drop for Overheard {
    fn drop(&mut self) {
        if self.sent && !self.call.over.swap(true, Ordering::AcqRel) {
            self.shared.residents.abandon(self.key);
        }
    }
}

// === impl Theirs ===

impl Theirs {
    pub(super) fn new(shared: &Arc<Shared>, key: Key) -> Self {
        shared.residents.sessions.entry(key).or_default().theirs += 1;
        Self { shared: Arc::clone(shared), key, answered: false }
    }

    /// It has been answered. Dropped without, it has left without its end.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.residents.abandon(self.key);
        }
        let Entry::Occupied(mut inhabited) = self.shared.residents.sessions.entry(self.key) else { return };
        inhabited.get_mut().theirs -= 1;
        if inhabited.get().theirs == 0 && inhabited.get().ours.is_empty() {
            inhabited.remove();
        }
    }
}
