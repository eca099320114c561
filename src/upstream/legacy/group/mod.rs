//! The sessions of one identity: who may use which, who waits, which are let go.
//!
//! Where a server's questions name their call, or nobody can be asked, all calls share one
//! session: the *list session*, the first that was opened. Else each call that may be asked leases
//! a session for itself, so that a question on that session's GET stream can only be about it.
//! Idle sessions are leased the last used first: one caller's sequential calls keep meeting the
//! same session, the list session.
//!
//! Two budgets: calls that somebody waits for have `limits.sessions`, calls that have become tasks
//! `limits.task_sessions` beside them, for a task may run for hours and must keep no call from its
//! turn. Who finds all in use waits in a queue, whose length and patience are bounded.

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::oneshot, time::sleep};

use super::{
    audience::Audience,
    handshake, message,
    reports::Reports,
    request::Request,
    server::Server,
    session::{Keeper, Session},
    subscribe::Subscribed,
};
use crate::{
    protocol::Method,
    runtime::Mutex,
    upstream::{CallError, Deferral, Identity, Limits, wire::Wire},
};

/// The sessions opened on behalf of one identity.
pub(super) struct Group<W: Wire> {
    pub(super) identity: Identity,
    /// What it counts towards the limit of bytes, for as long as anybody has it.
    _weight: Weight,
    server: Arc<Server<W>>,
    /// Whether this client can be asked anything at all.
    askable: bool,
    /// What the sessions of this principal report.
    pub(super) reports: Reports,
    pub(super) subscribed: Subscribed<W>,
    /// The hosted sessions whose calls are made here.
    pub(super) audience: Audience,
    /// When it was last asked for, counted in such askings.
    pub(super) used: AtomicU64,
    seats: Mutex<Seats<W>>,
}

/// The lock guards a few lines each time and is never held while waiting.
struct Seats<W: Wire> {
    /// Every session that takes calls, the last used last.
    all: Vec<Seat<W>>,
    /// Where lists, and all calls that need no session for themselves, go.
    lists: Option<Arc<Session<W>>>,
    /// The list session on its way.
    opening: Option<Opening<W>>,
    /// Sessions on their way for calls that lease one.
    promised: Vec<Holder>,
    /// Who waits for a session, the longest first.
    queue: VecDeque<Waiting<W>>,
}

struct Seat<W: Wire> {
    session: Arc<Session<W>>,
    /// Whom it is leased to.
    holder: Option<Holder>,
    /// Rounds of [`Group::sweep`] in which it was not used.
    quiet: u32,
}

/// A call that has a session to itself, or will have.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    call: u64,
    deferral: Option<Deferral>,
}

struct Waiting<W: Wire> {
    who: Holder,
    turn: oneshot::Sender<Turn<W>>,
}

/// Bytes that an identity keeps, counted together with all others.
struct Weight {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

type Opening<W> = Shared<BoxFuture<'static, Result<Arc<Session<W>>, CallError>>>;

/// The use of a session for one call.
pub(super) struct Lease<W: Wire> {
    pub(super) session: Arc<Session<W>>,
    /// Where to give it back, if nobody else may use it meanwhile.
    exclusive: Option<Arc<Group<W>>>,
}

/// The right of one call to open one more session.
struct Promise<W: Wire> {
    /// Taken when it is kept.
    group: Option<Arc<Group<W>>>,
    call: u64,
}

/// What somebody at the head of the queue gets.
enum Turn<W: Wire> {
    Lease(Lease<W>),
    Open(Promise<W>),
}

/// What an identity costs beside what it declares and is known by, in bytes.
const IDENTITY: usize = 512;
/// The pause before a session for those who listen is tried again. Doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Rounds (minutes) after which a session that is not used is closed.
const QUIET: u32 = 5;
/// The same for the list session: what it reports may be waited for.
const QUIET_LISTS: u32 = 30;

// === impl Weight ===

impl Weight {
    fn of(identity: &Identity, all: &Arc<AtomicUsize>) -> Self {
        let headers = identity.credentials.headers().iter();
        let known_by: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
        let bytes = IDENTITY + known_by + identity.capabilities.kept();
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, all: Arc::clone(all) }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl Group ===

impl<W: Wire> Group<W> {
    pub(super) fn new(server: Arc<Server<W>>, identity: Identity, reports: Reports) -> Self {
        Self {
            askable: identity.capabilities.can_be_asked(),
            _weight: Weight::of(&identity, &server.identity_bytes),
            identity,
            server,
            reports,
            subscribed: Subscribed::default(),
            audience: Audience::default(),
            used: AtomicU64::new(0),
            seats: Mutex::default(),
        }
    }

    pub(super) fn server(&self) -> &Arc<Server<W>> {
        &self.server
    }

    /// A session for a call, where one can be had at once.
    pub(super) fn take(self: &Arc<Self>, request: &Request) -> Option<Lease<W>> {
        self.take_for(&request.method, || Holder::of(request))
    }

    fn take_for(self: &Arc<Self>, method: &Method, who: impl FnOnce() -> Holder) -> Option<Lease<W>> {
        let mut seats = self.seats.lock();
        let lists = seats.lists.as_ref()?;
        if self.shares(method, lists) {
            return Some(Lease::shared(lists.clone()));
        }
        // Nobody overtakes those who wait.
        if seats.queue.is_empty() { self.take_idle(&mut seats, who) } else { None }
    }

    fn take_idle(self: &Arc<Self>, seats: &mut Seats<W>, who: impl FnOnce() -> Holder) -> Option<Lease<W>> {
        let seat = seats.all.iter_mut().rfind(|seat| seat.is_idle())?;
        seat.holder = Some(who());
        seat.quiet = 0;
        Some(Lease { session: seat.session.clone(), exclusive: Some(self.clone()) })
    }

    /// Whether a call can go to the list session beside others: it cannot be asked anything, or
    /// its questions will come on its own stream.
    fn shares(&self, method: &Method, lists: &Session<W>) -> bool {
        !self.askable || !method.may_ask() || self.server.asks.tells_apart() || lists.is_deaf()
    }

    /// A session for a call: opens one, or waits for one.
    ///
    /// # Errors
    /// What became of opening it; [`CallError::Busy`], [`CallError::Waited`]; [`CallError::Closing`].
    pub(super) async fn lease(self: Arc<Self>, method: Method, who: Holder) -> Result<Lease<W>, CallError> {
        // First, because it tells whether sessions must be leased at all.
        self.lists().await?;
        let turn = match self.take_for(&method, || who.clone()) {
            Some(lease) => return Ok(lease),
            None => self.queue(who.clone())?,
        };
        match self.await_turn(turn, &who).await? {
            Turn::Lease(lease) => Ok(lease),
            Turn::Open(promise) => promise.keep().await,
        }
    }

    fn queue(self: &Arc<Self>, who: Holder) -> Result<oneshot::Receiver<Turn<W>>, CallError> {
        let (sender, turn) = oneshot::channel();
        {
            let limits = &self.server.config.limits;
            let mut seats = self.seats.lock();
            if self.server.work.closing.is_cancelled() {
                return Err(CallError::Closing);
            }
            seats.queue.push_back(Waiting { who, turn: sender });
            if seats.queue.len() > limits.queue && !seats.can_serve(limits) {
                // Those who left while they waited take nobody's place.
                seats.queue.retain(|waiting| !waiting.turn.is_closed());
                if seats.queue.len() > limits.queue {
                    seats.queue.pop_back();
                    return Err(CallError::Busy {
                        limit: limits.sessions,
                        bound: W::BOUND,
                        queue: limits.queue,
                    });
                }
            }
        }
        self.pass_on();
        Ok(turn)
    }

    /// Waits in the queue. What is learned of the server's ways meanwhile may end the wait for
    /// everybody; a call waits no longer than it may, a task for as long as it takes.
    async fn await_turn(
        self: &Arc<Self>,
        turn: oneshot::Receiver<Turn<W>>,
        who: &Holder,
    ) -> Result<Turn<W>, CallError> {
        let limit = self.server.config.timeouts.queue;
        let (mut turn, mut patience) = (turn, pin!(sleep(limit).fuse()));
        let mut shown = pin!(self.server.asks.shown().fuse());
        loop {
            tokio::select! {
                // A turn that is there at the last moment is taken.
                biased;
                turn = &mut turn => return turn.map_err(|_| CallError::Closing),
                () = &mut shown => self.pass_on(),
                () = &mut patience => {
                    if !who.is_task() {
                        let limits = &self.server.config.limits;
                        return Err(CallError::Waited { limit: limits.sessions, bound: W::BOUND, after: limit });
                    }
                }
            }
        }
    }

    /// A call that shared its session has ended: it may have been the last that kept the session
    /// from being leased.
    pub(super) fn unshared(self: &Arc<Self>) {
        if self.askable && !self.server.asks.tells_apart() {
            self.pass_on();
        }
    }

    /// Gives whatever is free to those who wait.
    pub(super) fn pass_on(self: &Arc<Self>) {
        let mut spare = None;
        loop {
            let (next, turn) = {
                let mut seats = self.seats.lock();
                // Somebody who no longer waits leaves what was meant for them to the next.
                if let Some(turn) = spare.take() {
                    seats.take_back(turn);
                }
                match self.next_turn(&mut seats) {
                    Some(found) => found,
                    None => return,
                }
            };
            spare = next.send(turn).err();
        }
    }

    /// Who can go on, and with what: the head of the queue, with an idle session or room for one more.
    /// A server that has meanwhile been seen to ask on the calls' own streams has room for everybody.
    /// Where only tasks have room, the first of them.
    fn next_turn(self: &Arc<Self>, seats: &mut Seats<W>) -> Option<(oneshot::Sender<Turn<W>>, Turn<W>)> {
        let limits = &self.server.config.limits;
        let head = seats.queue.front()?.who.clone();
        if let Some(lists) = seats.lists.as_ref().filter(|lists| self.shares(&Method::ToolsCall, lists)) {
            let lease = Turn::Lease(Lease::shared(lists.clone()));
            return Some((seats.queue.pop_front()?.turn, lease));
        }
        let for_task = head.is_task();
        if let Some(lease) = self.take_idle(seats, || head) {
            return Some((seats.queue.pop_front()?.turn, Turn::Lease(lease)));
        }
        let next = if seats.has_room(limits, for_task) {
            seats.queue.pop_front()?
        } else {
            let at = seats.queue.iter().position(|waiting| waiting.who.is_task())?;
            if !seats.has_room(limits, true) {
                return None;
            }
            seats.queue.remove(at)?
        };
        let promise = Promise { group: Some(self.clone()), call: next.who.call };
        seats.promised.push(next.who);
        Some((next.turn, Turn::Open(promise)))
    }

    /// The list session; opens it, once for all who ask at the same time.
    ///
    /// # Errors
    /// What became of opening it. It is tried again by whoever asks next.
    pub(super) async fn lists(self: &Arc<Self>) -> Result<Arc<Session<W>>, CallError> {
        let opening = {
            let mut seats = self.seats.lock();
            if self.server.work.closing.is_cancelled() {
                return Err(CallError::Closing);
            }
            if let Some(lists) = &seats.lists {
                return Ok(lists.clone());
            }
            seats.opening.get_or_insert_with(|| self.clone().open_lists()).clone()
        };
        opening.await
    }

    /// Opens the list session in a task of its own: a handshake that its first caller abandons is
    /// still wanted by the others, and would leave a session behind at the server.
    fn open_lists(self: Arc<Self>) -> Opening<W> {
        let (sender, opened) = oneshot::channel();
        let server = self.server.clone();
        server.work.spawn(async move {
            let seat = |seats: &mut Seats<W>, session: &Arc<Session<W>>| {
                seats.opening = None;
                seats.lists = Some(session.clone());
                seats.seat(session, None);
            };
            let outcome = self.open(seat).await;
            match &outcome {
                Ok(session) => self.subscribed.renew(&self, session),
                Err(_) => self.seats.lock().opening = None,
            }
            // Whoever queued behind this can go on now.
            self.pass_on();
            let _ = sender.send(outcome);
        });
        opened.map(|outcome| outcome.unwrap_or(Err(CallError::Closing))).boxed().shared()
    }

    /// Opens a session, which `seat` takes in.
    async fn open(
        self: &Arc<Self>,
        seat: impl FnOnce(&mut Seats<W>, &Arc<Session<W>>),
    ) -> Result<Arc<Session<W>>, CallError> {
        let session = tokio::select! {
            opened = handshake::open(&self.server, &self.identity, self.clone(), &self.reports) => opened?,
            // Whoever waits for it is told at once, not when the server answers.
            () = self.server.work.closing.cancelled() => return Err(CallError::Closing),
        };
        let is_late = {
            let mut seats = self.seats.lock();
            // Under the lock: whoever closes the others says so first, and looks for them here then.
            let is_late = self.server.work.closing.is_cancelled();
            if !is_late {
                seat(&mut seats, &session);
            }
            is_late
        };
        if is_late {
            session.close().await;
            return Err(CallError::Closing);
        }
        if let Some(level) = self.audience.level() {
            session.tell_later(message::set_level(self.server.next_id(), level));
        }
        Ok(session)
    }

    /// Tells the server something in every session.
    pub(super) fn tell_all(&self, body: impl Fn() -> Bytes) {
        let all: Vec<_> = self.seats.lock().all.iter().map(|seat| seat.session.clone()).collect();
        all.iter().for_each(|session| session.tell_later(body()));
    }

    /// Takes a session out: it has ended, or is to take no more calls.
    pub(super) fn remove(self: &Arc<Self>, session: &Arc<Session<W>>) {
        let nobody_hears = {
            let mut seats = self.seats.lock();
            seats.all.retain(|seat| !Arc::ptr_eq(&seat.session, session));
            if seats.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session)) {
                // The oldest of the others; what is left of none opens one when it is needed.
                seats.lists = seats.all.first().map(|seat| seat.session.clone());
            }
            seats.lists.is_none()
        };
        if nobody_hears {
            self.listen_on();
        }
        self.subscribed.moved(self, session);
        self.pass_on();
    }

    /// No session is left: where somebody listens, another is opened for that.
    fn listen_on(self: &Arc<Self>) {
        self.reports.is_unheard();
        if !self.reports.is_listened_to() || self.server.work.closing.is_cancelled() {
            return;
        }
        let group = self.clone();
        self.server.work.spawn(async move {
            let closing = group.server.work.closing.clone();
            let mut pause = PAUSE;
            while group.reports.is_listened_to() && group.lists().await.is_err() {
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                }
            }
        });
    }

    /// Closes what has not been used for long. Called once a minute. `watched` is whether
    /// somebody waits for reports.
    pub(super) fn sweep(&self, watched: bool) {
        let mut quiet = Vec::new();
        {
            let mut seats = self.seats.lock();
            let Seats { all, lists, .. } = &mut *seats;
            let needed = watched || !self.subscribed.is_empty();
            all.retain_mut(|seat| {
                let in_use = seat.holder.is_some() || seat.session.was_used();
                seat.quiet = if in_use { 0 } else { seat.quiet + 1 };
                let is_lists = lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, &seat.session));
                let stays = match is_lists {
                    true => needed || seat.quiet < QUIET_LISTS,
                    false => seat.quiet < QUIET,
                };
                if !stays {
                    quiet.push(seat.session.clone());
                }
                stays
            });
            let gone = |session: &Arc<Session<W>>| quiet.iter().any(|quiet| Arc::ptr_eq(quiet, session));
            if lists.as_ref().is_some_and(gone) {
                *lists = all.first().map(|seat| seat.session.clone());
            }
        }
        for session in quiet {
            session.retire();
        }
    }

    /// Whether nothing is left that anybody could miss.
    pub(super) fn is_empty(&self) -> bool {
        let seats = self.seats.lock();
        seats.all.is_empty() && seats.opening.is_none() && seats.promised.is_empty() && seats.queue.is_empty()
    }

    /// Whether its sessions can be closed without anybody's call or subscription being lost. Only
    /// where nobody else holds the group, so that nothing can begin meanwhile.
    pub(super) fn is_idle(&self) -> bool {
        let seats = self.seats.lock();
        let at_rest = seats.opening.is_none() && seats.promised.is_empty() && seats.queue.is_empty();
        at_rest && self.subscribed.is_empty() && seats.all.iter().all(|seat| seat.holder.is_none())
    }

    /// Takes all sessions out, for good; who waits is told.
    pub(super) fn close(&self) -> Vec<Arc<Session<W>>> {
        let mut seats = self.seats.lock();
        seats.lists = None;
        let queue = std::mem::take(&mut seats.queue);
        let all = std::mem::take(&mut seats.all);
        drop(seats);
        drop(queue);
        all.into_iter().map(|seat| seat.session).collect()
    }
}

impl<W: Wire> Keeper<W> for Group<W> {
    fn remove(self: Arc<Self>, session: &Arc<Session<W>>) {
        Self::remove(&self, session);
    }

    /// Others may not know of the change.
    fn lists_from(&self, session: &Arc<Session<W>>) {
        let mut seats = self.seats.lock();
        if seats.all.iter().any(|seat| Arc::ptr_eq(&seat.session, session)) {
            seats.lists = Some(session.clone());
        }
    }

    fn audience(&self) -> &Audience {
        &self.audience
    }

    fn pass_on(self: Arc<Self>) {
        Self::pass_on(&self);
    }

    fn has_successor(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move {
            if self.reports.is_listened_to() {
                // Whether it works is seen to by `listen_on`.
                let _ = self.lists().await;
            }
        }
        .boxed()
    }
}

// === impl Seats ===

impl<W: Wire> Default for Seats<W> {
    fn default() -> Self {
        Self { all: Vec::new(), lists: None, opening: None, promised: Vec::new(), queue: VecDeque::new() }
    }
}

impl<W: Wire> Seats<W> {
    fn seat(&mut self, session: &Arc<Session<W>>, holder: Option<Holder>) {
        self.all.push(Seat { session: session.clone(), holder, quiet: 0 });
    }

    /// Makes a session idle again, and the first to be used next.
    fn release(&mut self, session: &Arc<Session<W>>) {
        if let Some(at) = self.all.iter().position(|seat| Arc::ptr_eq(&seat.session, session)) {
            let mut seat = self.all.remove(at);
            seat.holder = None;
            self.all.push(seat);
        }
    }

    /// Whether one more session may be opened, for a task or for a call.
    fn has_room(&self, limits: &Limits, for_task: bool) -> bool {
        self.counted(limits) < limits.sessions.max(1) || for_task && self.tasks() < limits.task_sessions
    }

    fn tasks(&self) -> usize {
        let seated = self.all.iter().filter(|seat| seat.is_tasks()).count();
        seated + self.promised.iter().filter(|holder| holder.is_task()).count()
    }

    /// How many sessions count as the calls' own: all but those of tasks, as far as tasks have theirs.
    fn counted(&self, limits: &Limits) -> usize {
        let all = self.all.len() + self.promised.len() + usize::from(self.opening.is_some());
        all - self.tasks().min(limits.task_sessions)
    }

    /// Whether somebody who waits could go on right now.
    fn can_serve(&self, limits: &Limits) -> bool {
        self.has_room(limits, false) || self.all.iter().any(Seat::is_idle)
    }

    /// Whether there are more sessions than calls may have, now that a task has given back its own.
    fn is_surplus(&self, session: &Arc<Session<W>>, limits: &Limits) -> bool {
        let is_lists = self.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session));
        !is_lists && self.queue.is_empty() && self.counted(limits) > limits.sessions.max(1)
    }

    /// A promise that will not be kept, or has been. Gives whom it was made to.
    fn unpromise(&mut self, call: u64) -> Option<Holder> {
        let at = self.promised.iter().position(|holder| holder.call == call)?;
        Some(self.promised.swap_remove(at))
    }

    /// Undoes a turn that nobody is there to take. What would undo it by itself needs the lock.
    fn take_back(&mut self, turn: Turn<W>) {
        match turn {
            Turn::Lease(mut lease) => {
                if lease.exclusive.take().is_some() {
                    self.release(&lease.session);
                }
            }
            Turn::Open(mut promise) => {
                if promise.group.take().is_some() {
                    self.unpromise(promise.call);
                }
            }
        }
    }
}

// === impl Seat ===

impl<W: Wire> Seat<W> {
    /// Calls that came while sessions were shared may still be asked something in theirs.
    fn is_idle(&self) -> bool {
        self.holder.is_none() && !self.session.may_be_asked()
    }

    /// Whether it is tasks that keep it from calls: the one it is leased to, or those that came while
    /// sessions were shared.
    fn is_tasks(&self) -> bool {
        match &self.holder {
            Some(holder) => holder.is_task(),
            None => self.session.is_kept_by_tasks(),
        }
    }
}

// === impl Holder ===

impl Holder {
    pub(super) fn of(request: &Request) -> Self {
        Self { call: request.id, deferral: request.deferral.clone() }
    }

    fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::has_come)
    }
}

// === impl Lease ===

impl<W: Wire> Lease<W> {
    /// The use of a session beside others.
    pub(super) fn shared(session: Arc<Session<W>>) -> Self {
        Self { session, exclusive: None }
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive.is_some()
    }
}

impl<W: Wire> Drop for Lease<W> {
    fn drop(&mut self) {
        if let Some(group) = self.exclusive.take() {
            let is_surplus = {
                let mut seats = group.seats.lock();
                seats.release(&self.session);
                seats.is_surplus(&self.session, &group.server.config.limits)
            };
            match is_surplus {
                true => self.session.retire(),
                false => group.pass_on(),
            }
        }
    }
}

// === impl Promise ===

impl<W: Wire> Promise<W> {
    /// Opens the session, for the holder alone. In a task of its own: of a handshake that its caller
    /// abandons, a session would be left behind at the server, and its reader here. It then serves
    /// somebody else.
    async fn keep(self) -> Result<Lease<W>, CallError> {
        let server = self.group.as_ref().expect("a promise is kept once").server.clone();
        let (sender, opened) = oneshot::channel();
        server.work.spawn(async move {
            let _ = sender.send(self.open().await);
        });
        opened.await.unwrap_or(Err(CallError::Closing))
    }

    async fn open(mut self) -> Result<Lease<W>, CallError> {
        let group = self.group.clone().expect("a promise is kept once");
        let call = self.call;
        let seat = |seats: &mut Seats<W>, session: &Arc<Session<W>>| {
            let holder = seats.unpromise(call);
            seats.seat(session, holder);
            seats.lists.get_or_insert_with(|| session.clone());
        };
        let session = group.open(seat).await?;
        self.group = None;
        Ok(Lease { session, exclusive: Some(group) })
    }
}

impl<W: Wire> Drop for Promise<W> {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.seats.lock().unpromise(self.call);
            group.pass_on();
        }
    }
}
