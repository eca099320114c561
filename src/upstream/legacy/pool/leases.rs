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
    super::{request::CallRequest, session::UpstreamSession},
    SessionPool,
    pooled_sessions::{self, LeaseHolder, LeaseWaiter},
};
use crate::{
    protocol::Method,
    telemetry::Limit,
    upstream::{CallError, UpstreamLimits, transport::Transport},
};

/// Who has which session here, and who waits for a turn.
pub(super) type PoolState<W> = pooled_sessions::PooledSessions<W, LeaseGrant<W>>;

/// The use of a session for one call.
pub(in crate::upstream::legacy) struct SessionLease<W: Transport> {
    pub(in crate::upstream::legacy) session: Arc<UpstreamSession<W>>,
    /// Where to give it back, if nobody else may use it meanwhile.
    exclusive: Option<Arc<SessionPool<W>>>,
}

/// The right of one call to open one more session.
pub(super) struct OpenPermit<W: Transport> {
    /// Taken when it is kept.
    group: Option<Arc<SessionPool<W>>>,
    call: u64,
}

/// What somebody at the head of the queue gets.
pub(super) enum LeaseGrant<W: Transport> {
    Lease(SessionLease<W>),
    Open(OpenPermit<W>),
}

/// How long a call waits for a place of its own where tasks keep what its group has.
const BESIDE: Duration = Duration::from_secs(1);

// === impl Group ===

impl<W: Transport> SessionPool<W> {
    /// A session for a call, where one can be had at once.
    pub(in crate::upstream::legacy) fn try_lease(
        self: &Arc<Self>,
        request: &CallRequest,
    ) -> Option<SessionLease<W>> {
        self.try_lease_for(&request.method, || LeaseHolder::of(request))
    }

    fn try_lease_for(
        self: &Arc<Self>,
        method: &Method,
        who: impl FnOnce() -> LeaseHolder,
    ) -> Option<SessionLease<W>> {
        let mut seats = self.state.lock();
        let lists = seats.lists.as_ref()?;
        if self.can_share(method, lists) {
            return Some(SessionLease::shared(lists.clone()));
        }
        // Nobody overtakes those who wait.
        if seats.queue.is_empty() { self.take_idle(&mut seats, who) } else { None }
    }

    fn take_idle(
        self: &Arc<Self>,
        seats: &mut PoolState<W>,
        who: impl FnOnce() -> LeaseHolder,
    ) -> Option<SessionLease<W>> {
        let seat = seats.all.iter_mut().rfind(|seat| seat.is_idle())?;
        seat.holder = Some(who());
        seat.quiet = 0;
        Some(SessionLease { session: seat.session.clone(), exclusive: Some(self.clone()) })
    }

    /// Whether a call can go to the list session beside others: it cannot be asked anything, or
    /// its questions will come on its own stream.
    fn can_share(&self, method: &Method, lists: &UpstreamSession<W>) -> bool {
        !self.askable
            || !method.can_request_input()
            || self.server.request_placement.can_share_sessions()
            || lists.is_deaf()
    }

    /// A session for a call: opens one, or waits for one.
    ///
    /// # Errors
    /// What became of opening it; [`CallError::QueueFull`], [`CallError::QueueTimeout`]; [`CallError::Closing`].
    pub(in crate::upstream::legacy) async fn lease(
        self: Arc<Self>,
        method: Method,
        who: LeaseHolder,
    ) -> Result<SessionLease<W>, CallError> {
        // First, because it tells whether sessions must be leased at all.
        self.list_session().await?;
        let turn = match self.try_lease_for(&method, || who.clone()) {
            Some(lease) => return Ok(lease),
            None => self.enqueue(who.clone())?,
        };
        match self.wait_for_grant(turn, &who).await? {
            LeaseGrant::Lease(lease) => Ok(lease),
            LeaseGrant::Open(promise) => {
                let wire = self.server.transport.clone();
                let mut opened = pin!(promise.open_in_background());
                // A place may come free in a moment.
                let (mut patience, mut is_over) = (pin!(sleep(BESIDE)), false);
                loop {
                    tokio::select! {
                        biased;
                        opened = &mut opened => return opened,
                        () = &mut patience, if !is_over => is_over = true,
                        () = wire.eviction_failed() => {
                            let free = self.take_idle(&mut self.state.lock(), || who.clone());
                            let beside = || if is_over { self.share_with_tasks(&who) } else { None };
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
    fn share_with_tasks(&self, who: &LeaseHolder) -> Option<SessionLease<W>> {
        let session = if who.is_task() { None } else { self.state.lock().shareable_with_tasks() };
        session.map(SessionLease::shared)
    }

    fn enqueue(self: &Arc<Self>, who: LeaseHolder) -> Result<oneshot::Receiver<LeaseGrant<W>>, CallError> {
        let (sender, turn) = oneshot::channel();
        {
            let limits = self.server.config.load().limits;
            let mut seats = self.state.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            let is_task = who.is_task();
            seats.queue.push_back(LeaseWaiter { holder: who, grant: sender });
            let must_wait = !seats.can_serve_now(&limits);
            if must_wait {
                count_limits(&seats, &limits, is_task);
            }
            if seats.queue.len() > limits.queue && must_wait {
                // Those who left while they waited take nobody's place.
                seats.queue.retain(|waiting| !waiting.grant.is_closed());
                if seats.queue.len() > limits.queue {
                    seats.queue.pop_back();
                    return Err(CallError::QueueFull {
                        limit: limits.sessions,
                        bound: W::BOUND,
                        queue: limits.queue,
                    });
                }
            }
        }
        self.serve_queue();
        Ok(turn)
    }

    /// Waits in the queue. What is learned of the server's ways meanwhile may end the wait for
    /// everybody; a call waits no longer than it may, a task for as long as it takes.
    async fn wait_for_grant(
        self: &Arc<Self>,
        turn: oneshot::Receiver<LeaseGrant<W>>,
        who: &LeaseHolder,
    ) -> Result<LeaseGrant<W>, CallError> {
        let limit = self.server.config.load().timeouts.queue;
        let (mut turn, mut patience) = (turn, pin!(sleep(limit).fuse()));
        let mut shown = pin!(self.server.request_placement.wait_on_stream().fuse());
        loop {
            tokio::select! {
                // A turn that is there at the last moment is taken.
                biased;
                turn = &mut turn => return turn.map_err(|_| CallError::Closing),
                () = &mut shown => self.serve_queue(),
                () = &mut patience => {
                    if !who.is_task() {
                        let limits = self.server.config.load().limits;
                        return Err(CallError::QueueTimeout { limit: limits.sessions, bound: W::BOUND, after: limit });
                    }
                }
            }
        }
    }

    /// A call that shared its session has ended: it may have been the last that kept the session
    /// from being leased.
    pub(in crate::upstream::legacy) fn shared_call_ended(self: &Arc<Self>) {
        if self.askable && !self.server.request_placement.can_share_sessions() {
            self.serve_queue();
        }
    }

    /// Gives whatever is free to those who wait.
    pub(in crate::upstream::legacy) fn serve_queue(self: &Arc<Self>) {
        let mut spare: Option<LeaseGrant<W>> = None;
        loop {
            let (next, turn) = {
                let mut seats = self.state.lock();
                // Somebody who no longer waits leaves what was meant for them to the next.
                if let Some(turn) = spare.take() {
                    turn.undo(&mut seats);
                }
                match self.next_grant(&mut seats) {
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
    fn next_grant(
        self: &Arc<Self>,
        seats: &mut PoolState<W>,
    ) -> Option<(oneshot::Sender<LeaseGrant<W>>, LeaseGrant<W>)> {
        let limits = self.server.config.load().limits;
        let head = seats.queue.front()?.holder.clone();
        if let Some(lists) = seats.lists.as_ref().filter(|lists| self.can_share(&Method::ToolsCall, lists)) {
            let lease = LeaseGrant::Lease(SessionLease::shared(lists.clone()));
            return Some((seats.queue.pop_front()?.grant, lease));
        }
        let for_task = head.is_task();
        if let Some(lease) = self.take_idle(seats, || head) {
            return Some((seats.queue.pop_front()?.grant, LeaseGrant::Lease(lease)));
        }
        let next = if seats.has_room(&limits, for_task) {
            seats.queue.pop_front()?
        } else {
            let is_task = |waiting: &LeaseWaiter<_>| waiting.holder.is_task();
            match seats.queue.iter().position(is_task).filter(|_| seats.has_room(&limits, true)) {
                Some(at) => seats.queue.remove(at)?,
                None if W::IS_COSTLY && seats.opening_for.iter().all(LeaseHolder::is_task) => {
                    let session = seats.shareable_with_tasks()?;
                    let at = seats.queue.iter().position(|waiting| !waiting.holder.is_task())?;
                    return Some((
                        seats.queue.remove(at)?.grant,
                        LeaseGrant::Lease(SessionLease::shared(session)),
                    ));
                }
                None => return None,
            }
        };
        let promise = OpenPermit { group: Some(self.clone()), call: next.holder.call };
        seats.opening_for.push(next.holder);
        Some((next.grant, LeaseGrant::Open(promise)))
    }
}

/// Counts the limits by which a call, or a task, is kept waiting.
fn count_limits<W: Transport>(seats: &PoolState<W>, limits: &UpstreamLimits, is_task: bool) {
    if !is_task {
        Limit::Sessions.record_hit();
    }
    // Tasks may have room where calls have none; those beyond it have the room of calls.
    let is_full = match is_task {
        true => !seats.has_room(limits, true),
        false => seats.task_count() > limits.task_sessions,
    };
    if is_full {
        Limit::TaskSessions.record_hit();
    }
}

// === impl Turn ===

impl<W: Transport> LeaseGrant<W> {
    /// Undoes it where nobody is there to take it. What would undo it by itself needs the lock.
    fn undo(self, seats: &mut PoolState<W>) {
        match self {
            Self::Lease(mut lease) => {
                if lease.exclusive.take().is_some() {
                    seats.release(&lease.session);
                }
            }
            Self::Open(mut promise) => {
                if promise.group.take().is_some() {
                    seats.take_opening(promise.call);
                }
            }
        }
    }
}

// === impl Lease ===

impl<W: Transport> SessionLease<W> {
    /// The use of a session beside others.
    pub(in crate::upstream::legacy) fn shared(session: Arc<UpstreamSession<W>>) -> Self {
        Self { session, exclusive: None }
    }

    pub(in crate::upstream::legacy) fn is_exclusive(&self) -> bool {
        self.exclusive.is_some()
    }
}

impl<W: Transport> Drop for SessionLease<W> {
    fn drop(&mut self) {
        if let Some(group) = self.exclusive.take() {
            let is_surplus = {
                let mut seats = group.state.lock();
                seats.release(&self.session);
                seats.is_surplus(&self.session, &group.server.config.load().limits)
            };
            match is_surplus {
                true => self.session.retire(),
                false => group.serve_queue(),
            }
        }
    }
}

// === impl Promise ===

impl<W: Transport> OpenPermit<W> {
    /// Opens the session, for the holder alone. In a task of its own: of a handshake that its caller
    /// abandons, a session would be left behind at the server, and its reader here. It then serves
    /// somebody else.
    async fn open_in_background(self) -> Result<SessionLease<W>, CallError> {
        let server = self.group.as_ref().expect("a promise is kept once").server.clone();
        let (sender, opened) = oneshot::channel();
        server.work.spawn(async move {
            let _ = sender.send(self.open().await);
        });
        opened.await.unwrap_or(Err(CallError::Closing))
    }

    async fn open(mut self) -> Result<SessionLease<W>, CallError> {
        let group = self.group.clone().expect("a promise is kept once");
        let call = self.call;
        let seat = |seats: &mut PoolState<W>, session: &Arc<UpstreamSession<W>>| {
            let holder = seats.take_opening(call);
            seats.insert(session, holder);
            seats.lists.get_or_insert_with(|| session.clone());
        };
        let session = group.open(seat).await?;
        self.group = None;
        Ok(SessionLease { session, exclusive: Some(group) })
    }
}

impl<W: Transport> Drop for OpenPermit<W> {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.state.lock().take_opening(self.call);
            group.serve_queue();
        }
    }
}
