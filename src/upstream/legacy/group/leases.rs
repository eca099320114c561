//! The use of sessions by calls, one by one or side by side.
//!
//! Idle sessions are leased the last used first: one caller's sequential calls keep meeting the
//! same session, the list session.
//!
//! Two budgets: calls that somebody waits for have `limits.sessions`, calls that have become tasks
//! `limits.task_sessions` beside them, for a task may run for hours and must keep no call from its
//! turn. Who finds all in use waits in a queue, whose length and patience are bounded.

use futures_util::FutureExt;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::sleep};

use super::{
    super::{request::Request, session::Session},
    Group,
    seats::{self, Holder, Waiting},
};
use crate::{
    protocol::Method,
    telemetry::Limit,
    upstream::{CallError, Limits, wire::Wire},
};

/// Who has which session here, and who waits for a turn.
pub(super) type Seats<W> = seats::Seats<W, Turn<W>>;

/// The use of a session for one call.
pub(in crate::upstream::legacy) struct Lease<W: Wire> {
    pub(in crate::upstream::legacy) session: Arc<Session<W>>,
    /// Where to give it back, if nobody else may use it meanwhile.
    exclusive: Option<Arc<Group<W>>>,
}

/// The right of one call to open one more session.
pub(super) struct Promise<W: Wire> {
    /// Taken when it is kept.
    group: Option<Arc<Group<W>>>,
    call: u64,
}

/// What somebody at the head of the queue gets.
pub(super) enum Turn<W: Wire> {
    Lease(Lease<W>),
    Open(Promise<W>),
}

/// How long a call waits for a place of its own where tasks keep what its group has.
const BESIDE: Duration = Duration::from_secs(1);

// === impl Group ===

impl<W: Wire> Group<W> {
    /// A session for a call, where one can be had at once.
    pub(in crate::upstream::legacy) fn take(self: &Arc<Self>, request: &Request) -> Option<Lease<W>> {
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
    pub(in crate::upstream::legacy) async fn lease(
        self: Arc<Self>,
        method: Method,
        who: Holder,
    ) -> Result<Lease<W>, CallError> {
        // First, because it tells whether sessions must be leased at all.
        self.lists().await?;
        let turn = match self.take_for(&method, || who.clone()) {
            Some(lease) => return Ok(lease),
            None => self.queue(who.clone())?,
        };
        match self.await_turn(turn, &who).await? {
            Turn::Lease(lease) => Ok(lease),
            Turn::Open(promise) => {
                let wire = self.server.wire.clone();
                let mut opened = pin!(promise.keep());
                // A place may come free in a moment.
                let (mut patience, mut is_over) = (pin!(sleep(BESIDE)), false);
                loop {
                    tokio::select! {
                        biased;
                        opened = &mut opened => return opened,
                        () = &mut patience, if !is_over => is_over = true,
                        () = wire.none_gives_way() => {
                            let free = self.take_idle(&mut self.seats.lock(), || who.clone());
                            let beside = || if is_over { self.beside_tasks(&who) } else { None };
                            if let Some(lease) = free.or_else(beside) {
                                return Ok(lease);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The use of a session beside the tasks that keep all there are, where there may be no more: a task keeps no call
    /// from being made. What is asked there meanwhile cannot be told apart, and is refused.
    fn beside_tasks(&self, who: &Holder) -> Option<Lease<W>> {
        let session = if who.is_task() { None } else { self.seats.lock().beside_tasks() };
        session.map(Lease::shared)
    }

    fn queue(self: &Arc<Self>, who: Holder) -> Result<oneshot::Receiver<Turn<W>>, CallError> {
        let (sender, turn) = oneshot::channel();
        {
            let limits = self.server.config.now().limits;
            let mut seats = self.seats.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            let is_task = who.is_task();
            seats.queue.push_back(Waiting { who, turn: sender });
            let must_wait = !seats.can_serve(&limits);
            if must_wait {
                count(&seats, &limits, is_task);
            }
            if seats.queue.len() > limits.queue && must_wait {
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
        let limit = self.server.config.now().timeouts.queue;
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
                        let limits = self.server.config.now().limits;
                        return Err(CallError::Waited { limit: limits.sessions, bound: W::BOUND, after: limit });
                    }
                }
            }
        }
    }

    /// A call that shared its session has ended: it may have been the last that kept the session
    /// from being leased.
    pub(in crate::upstream::legacy) fn unshared(self: &Arc<Self>) {
        if self.askable && !self.server.asks.tells_apart() {
            self.pass_on();
        }
    }

    /// Gives whatever is free to those who wait.
    pub(in crate::upstream::legacy) fn pass_on(self: &Arc<Self>) {
        let mut spare: Option<Turn<W>> = None;
        loop {
            let (next, turn) = {
                let mut seats = self.seats.lock();
                // Somebody who no longer waits leaves what was meant for them to the next.
                if let Some(turn) = spare.take() {
                    turn.undo(&mut seats);
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
    /// Where only tasks have room, the first of them; where a session is costly and tasks keep all there may be, the
    /// first that is none is made beside them.
    fn next_turn(self: &Arc<Self>, seats: &mut Seats<W>) -> Option<(oneshot::Sender<Turn<W>>, Turn<W>)> {
        let limits = self.server.config.now().limits;
        let head = seats.queue.front()?.who.clone();
        if let Some(lists) = seats.lists.as_ref().filter(|lists| self.shares(&Method::ToolsCall, lists)) {
            let lease = Turn::Lease(Lease::shared(lists.clone()));
            return Some((seats.queue.pop_front()?.turn, lease));
        }
        let for_task = head.is_task();
        if let Some(lease) = self.take_idle(seats, || head) {
            return Some((seats.queue.pop_front()?.turn, Turn::Lease(lease)));
        }
        let next = if seats.has_room(&limits, for_task) {
            seats.queue.pop_front()?
        } else {
            let is_task = |waiting: &Waiting<_>| waiting.who.is_task();
            match seats.queue.iter().position(is_task).filter(|_| seats.has_room(&limits, true)) {
                Some(at) => seats.queue.remove(at)?,
                None if W::IS_COSTLY && seats.promised.iter().all(Holder::is_task) => {
                    let session = seats.beside_tasks()?;
                    let at = seats.queue.iter().position(|waiting| !waiting.who.is_task())?;
                    return Some((seats.queue.remove(at)?.turn, Turn::Lease(Lease::shared(session))));
                }
                None => return None,
            }
        };
        let promise = Promise { group: Some(self.clone()), call: next.who.call };
        seats.promised.push(next.who);
        Some((next.turn, Turn::Open(promise)))
    }
}

/// Counts the limits by which a call, or a task, is kept waiting.
fn count<W: Wire>(seats: &Seats<W>, limits: &Limits, is_task: bool) {
    if !is_task {
        Limit::Sessions.hit();
    }
    // Tasks may have room where calls have none; those beyond it have the room of calls.
    let is_full = match is_task {
        true => !seats.has_room(limits, true),
        false => seats.tasks() > limits.task_sessions,
    };
    if is_full {
        Limit::TaskSessions.hit();
    }
}

// === impl Turn ===

impl<W: Wire> Turn<W> {
    /// Undoes it where nobody is there to take it. What would undo it by itself needs the lock.
    fn undo(self, seats: &mut Seats<W>) {
        match self {
            Self::Lease(mut lease) => {
                if lease.exclusive.take().is_some() {
                    seats.release(&lease.session);
                }
            }
            Self::Open(mut promise) => {
                if promise.group.take().is_some() {
                    seats.unpromise(promise.call);
                }
            }
        }
    }
}

// === impl Lease ===

impl<W: Wire> Lease<W> {
    /// The use of a session beside others.
    pub(in crate::upstream::legacy) fn shared(session: Arc<Session<W>>) -> Self {
        Self { session, exclusive: None }
    }

    pub(in crate::upstream::legacy) fn is_exclusive(&self) -> bool {
        self.exclusive.is_some()
    }
}

impl<W: Wire> Drop for Lease<W> {
    fn drop(&mut self) {
        if let Some(group) = self.exclusive.take() {
            let is_surplus = {
                let mut seats = group.seats.lock();
                seats.release(&self.session);
                seats.is_surplus(&self.session, &group.server.config.now().limits)
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
