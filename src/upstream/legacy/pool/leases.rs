//! Leases of sessions, exclusive or shared.
//!
//! Idle sessions are leased most recently used first: consecutive calls of one caller reach the same session,
//! the list session.
//!
//! There are two budgets of sessions: calls have `limits.sessions`, deferred calls `limits.task_sessions` in
//! addition, because a task may run for hours and must not delay calls. A call that finds all sessions in use
//! waits in a queue of bounded length and time.

use futures_util::FutureExt;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{interval, sleep},
};

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

/// Sessions of a pool and the queue for them.
pub(super) type PoolState<W> = pooled_sessions::PooledSessions<W, LeaseGrant<W>>;

/// Lease of a session for one call.
pub(in crate::upstream::legacy) struct SessionLease<W: Transport> {
    pub(in crate::upstream::legacy) session: Arc<UpstreamSession<W>>,
    /// Pool to return the session to; `None` if the lease is shared.
    exclusive_in: Option<Arc<SessionPool<W>>>,
    /// Id of the call's request, if the lease is exclusive.
    call: u64,
}

/// Permit of one call to open one more session. Dropping it unused frees the slot for the next call.
pub(super) struct OpenPermit<W: Transport> {
    /// `None` once the session is open.
    pool: Option<Arc<SessionPool<W>>>,
    call: u64,
}

/// Grant to the call at the head of the queue: a session, or a permit to open one.
pub(super) enum LeaseGrant<W: Transport> {
    Lease(SessionLease<W>),
    Open(OpenPermit<W>),
}

/// Time for which a call waits for an exclusive session while tasks hold all of the pool.
const TASK_WAIT: Duration = Duration::from_secs(1);
/// Interval at which a waiting call looks for input requests that have been unanswered for too long.
const TURN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

// === impl SessionPool ===

impl<W: Transport> SessionPool<W> {
    /// Leases a session for a call, if one is available at once.
    pub(in crate::upstream::legacy) fn try_lease(
        self: &Arc<Self>,
        request: &CallRequest,
    ) -> Option<SessionLease<W>> {
        self.try_lease_for(&request.method, || LeaseHolder::new(request))
    }

    fn try_lease_for(
        self: &Arc<Self>,
        method: &Method,
        holder: impl FnOnce() -> LeaseHolder,
    ) -> Option<SessionLease<W>> {
        let mut state = self.state.lock();
        let list_session = state.list_session.as_ref()?;
        if self.can_share(method, list_session) {
            return Some(SessionLease::shared(list_session.clone()));
        }
        let holder = holder();
        // Calls in the queue come first, except for those that need no further session.
        let has_waiters = !state.queue.is_empty() || W::IS_COSTLY && !state.opening_for.is_empty();
        let is_next = !has_waiters || state.is_joinable(&holder);
        if is_next { self.take_free(&mut state, holder) } else { None }
    }

    fn take_free(self: &Arc<Self>, state: &mut PoolState<W>, holder: LeaseHolder) -> Option<SessionLease<W>> {
        let limits = self.server.config.load().limits;
        let can_open = state.can_open(&limits, holder.is_task()) && !self.server.transport.is_full();
        let call = holder.call;
        let session = state.lease_free(holder, can_open)?;
        Some(SessionLease::exclusive(session, self, call))
    }

    /// Whether a call may share the list session: the server sends no requests during it, or sends them on
    /// the call's own stream.
    fn can_share(&self, method: &Method, list_session: &UpstreamSession<W>) -> bool {
        !self.accepts_input
            || !method.can_request_input()
            || self.server.request_placement.can_share_sessions()
            || list_session.has_no_off_stream()
    }

    /// Leases a session for a call: opens one, or waits for one.
    ///
    /// # Errors
    /// The error of opening; [`CallError::QueueFull`], [`CallError::QueueTimeout`]; [`CallError::Closing`].
    pub(in crate::upstream::legacy) async fn lease(
        self: Arc<Self>,
        method: Method,
        holder: LeaseHolder,
    ) -> Result<SessionLease<W>, CallError> {
        // Open the list session first: the server's behaviour in it shows whether calls need exclusive
        // sessions.
        self.list_session().await?;
        let grant = match self.try_lease_for(&method, || holder.clone()) {
            Some(lease) => return Ok(lease),
            None => self.enqueue(holder.clone())?,
        };
        match self.wait_for_grant(grant, &holder).await? {
            LeaseGrant::Lease(lease) => Ok(lease),
            LeaseGrant::Open(permit) => {
                let transport = self.server.transport.clone();
                let (dropped_wait, is_needed) = oneshot::channel();
                let mut opened = pin!(permit.open_in_background(is_needed));
                // A session may become free in a moment.
                let (mut task_wait, mut has_waited) = (pin!(sleep(TASK_WAIT)), false);
                loop {
                    tokio::select! {
                        biased;
                        opened = &mut opened => {
                            let free = |_| self.state.lock().lease_free(holder.clone(), false);
                            return opened.or_else(|error| match free(()) {
                                Some(session) => Ok(SessionLease::exclusive(session, &self, holder.call)),
                                None => Err(error),
                            });
                        }
                        () = &mut task_wait, if !has_waited => has_waited = true,
                        () = transport.eviction_failed() => {
                            let idle = self.take_free(&mut self.state.lock(), holder.clone());
                            let shared = || if has_waited { self.share_with_tasks(&holder) } else { None };
                            if let Some(lease) = idle.or_else(shared) {
                                let _ = dropped_wait.send(());
                                return Ok(lease);
                            }
                            self.end_overdue_turns(&holder);
                            let kept = self.state.lock().kept_by_abandoned();
                            if let Some(kept) = kept {
                                kept.retire();
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns a shared lease of a session that tasks hold, if no more sessions may be opened: a task does
    /// not block calls. Requests of the server that arrive in this session cannot be attributed, and are
    /// rejected.
    fn share_with_tasks(&self, holder: &LeaseHolder) -> Option<SessionLease<W>> {
        let session = if holder.is_task() { None } else { self.state.lock().shareable_with_tasks() };
        session.map(SessionLease::shared)
    }

    fn enqueue(self: &Arc<Self>, holder: LeaseHolder) -> Result<oneshot::Receiver<LeaseGrant<W>>, CallError> {
        let (sender, grant) = oneshot::channel();
        {
            let limits = self.server.config.load().limits;
            let mut state = self.state.lock();
            if self.server.work.is_closing() {
                return Err(CallError::Closing);
            }
            let is_task = holder.is_task();
            let must_wait = !state.can_serve_now(&limits, holder.client.as_deref());
            state.queue.push_back(LeaseWaiter { holder, grant: sender });
            if must_wait {
                record_limits(&state, &limits, is_task);
            }
            if state.queue.len() > limits.queue && must_wait {
                // Calls that were dropped while they waited do not count.
                state.queue.retain(|waiter| !waiter.grant.is_closed());
                if state.queue.len() > limits.queue {
                    state.queue.pop_back();
                    return Err(CallError::QueueFull {
                        limit: limits.sessions,
                        bound: W::SESSION_LIMIT_REASON,
                        queue: limits.queue,
                    });
                }
            }
        }
        self.serve_queue();
        Ok(grant)
    }

    /// Waits in the queue for a grant. All calls stop waiting if the server turns out to send its requests on
    /// the calls' own streams; a call waits up to its time limit, a task without limit.
    async fn wait_for_grant(
        self: &Arc<Self>,
        grant: oneshot::Receiver<LeaseGrant<W>>,
        holder: &LeaseHolder,
    ) -> Result<LeaseGrant<W>, CallError> {
        let limit = self.server.config.load().timeouts.queue;
        let (mut grant, mut queue_timeout) = (grant, pin!(sleep(limit).fuse()));
        let mut seen_on_stream = pin!(self.server.request_placement.wait_on_stream().fuse());
        let mut turn_check = interval(TURN_CHECK_INTERVAL);
        loop {
            tokio::select! {
                // Prefer a grant that arrives together with the timeout.
                biased;
                grant = &mut grant => return grant.map_err(|_| CallError::Closing),
                () = &mut seen_on_stream => self.serve_queue(),
                _ = turn_check.tick(), if W::IS_COSTLY => {
                    if self.end_overdue_turns(holder) {
                        // Its turn comes when the server has ended the other call.
                        queue_timeout.set(sleep(limit).fuse());
                    }
                }
                () = &mut queue_timeout => {
                    if !holder.is_task() {
                        let limits = self.server.config.load().limits;
                        return Err(CallError::QueueTimeout { limit: limits.sessions, bound: W::SESSION_LIMIT_REASON, after: limit });
                    }
                }
            }
        }
    }

    /// Ends input requests that clients of other principals have left unanswered for `questions.turn` while this
    /// call waits. Returns whether there were any.
    fn end_overdue_turns(&self, waiting: &LeaseHolder) -> bool {
        let turn = self.server.config.load().timeouts.turn;
        let used = self.state.lock().used_by_others(waiting);
        let ended = used.iter().filter(|session| session.end_overdue_requests(turn)).count();
        ended > 0
    }

    /// Ends input requests that have been unanswered for `questions.turn`, for a caller of another pool. If calls
    /// of this pool wait as well, they end those of other principals themselves.
    pub(in crate::upstream::legacy) fn end_turns_for_others(&self) {
        let turn = self.server.config.load().timeouts.turn;
        let sessions: Vec<_> = {
            let state = self.state.lock();
            let all = state.all.iter().filter(|_| state.opening_for.is_empty());
            all.map(|pooled| pooled.session.clone()).collect()
        };
        for session in sessions {
            session.end_overdue_requests(turn);
        }
    }

    /// Serves the queue after a shared call ended: it may have been the last that kept the session from being
    /// leased.
    pub(in crate::upstream::legacy) fn shared_call_ended(self: &Arc<Self>) {
        if self.accepts_input && !self.server.request_placement.can_share_sessions() {
            self.serve_queue();
        }
    }

    /// Grants available sessions to the queue.
    pub(in crate::upstream::legacy) fn serve_queue(self: &Arc<Self>) {
        let mut unclaimed: Option<LeaseGrant<W>> = None;
        loop {
            let next = {
                let mut state = self.state.lock();
                // Undo the grant of a call that no longer waits, for the next one.
                if let Some(grant) = unclaimed.take() {
                    grant.undo(&mut state);
                }
                let next = self.next_grant(&mut state);
                let is_waiting = W::IS_COSTLY && !state.queue.is_empty();
                next.ok_or_else(|| is_waiting.then(|| state.kept_by_abandoned()).flatten())
            };
            match next {
                Ok((sender, grant)) => unclaimed = sender.send(grant).err(),
                // Its removal serves the queue again.
                Err(Some(kept)) => return kept.retire(),
                Err(None) => return,
            }
        }
    }

    /// Next queued call that can proceed, and its grant: the head of the queue, with an idle session or a
    /// permit for one more. All can proceed if the server has sent its requests on the calls' own streams
    /// meanwhile. If only tasks may open sessions, the first task; if a session costs a process and tasks
    /// hold all, the first call shares one with them.
    fn next_grant(
        self: &Arc<Self>,
        state: &mut PoolState<W>,
    ) -> Option<(oneshot::Sender<LeaseGrant<W>>, LeaseGrant<W>)> {
        let limits = self.server.config.load().limits;
        let position = if W::IS_COSTLY { state.next_in_queue()? } else { 0 };
        let head = state.queue.get(position)?.holder.clone();
        if let Some(list_session) = state
            .list_session
            .as_ref()
            .filter(|list_session| self.can_share(&Method::ToolsCall, list_session))
        {
            let lease = LeaseGrant::Lease(SessionLease::shared(list_session.clone()));
            return Some((state.queue.remove(position)?.grant, lease));
        }
        let for_task = head.is_task();
        if let Some(lease) = self.take_free(state, head) {
            return Some((state.queue.remove(position)?.grant, LeaseGrant::Lease(lease)));
        }
        let next = if state.can_open(&limits, for_task) {
            state.queue.remove(position)?
        } else {
            let is_task = |waiter: &LeaseWaiter<_>| waiter.holder.is_task();
            match state.queue.iter().position(is_task).filter(|_| state.can_open(&limits, true)) {
                Some(index) => state.queue.remove(index)?,
                None if W::IS_COSTLY && state.opening_for.iter().all(LeaseHolder::is_task) => {
                    let session = state.shareable_with_tasks()?;
                    let index = state.queue.iter().position(|waiter| !waiter.holder.is_task())?;
                    return Some((
                        state.queue.remove(index)?.grant,
                        LeaseGrant::Lease(SessionLease::shared(session)),
                    ));
                }
                None => return None,
            }
        };
        let permit = OpenPermit { pool: Some(self.clone()), call: next.holder.call };
        state.opening_for.push(next.holder);
        Some((next.grant, LeaseGrant::Open(permit)))
    }
}

/// Records in the metrics the limits that delay a call or a task.
fn record_limits<W: Transport>(state: &PoolState<W>, limits: &UpstreamLimits, is_task: bool) {
    if !is_task {
        Limit::Sessions.record_hit();
    }
    // Tasks may have a free budget where calls have none; tasks above it use the budget of calls.
    let is_full = match is_task {
        true => !state.can_open(limits, true),
        false => state.task_count() > limits.task_sessions,
    };
    if is_full {
        Limit::TaskSessions.record_hit();
    }
}

// === impl LeaseGrant ===

impl<W: Transport> LeaseGrant<W> {
    /// Returns an unreceived grant to the pool. Dropping it would lock the pool again.
    fn undo(self, state: &mut PoolState<W>) {
        match self {
            Self::Lease(mut lease) => {
                if lease.exclusive_in.take().is_some() {
                    state.release(&lease.session, lease.call);
                }
            }
            Self::Open(mut permit) => {
                if permit.pool.take().is_some() {
                    state.take_opening(permit.call);
                }
            }
        }
    }
}

// === impl SessionLease ===

impl<W: Transport> SessionLease<W> {
    /// Returns a shared lease: other calls may use the session as well.
    pub(in crate::upstream::legacy) fn shared(session: Arc<UpstreamSession<W>>) -> Self {
        Self { session, exclusive_in: None, call: 0 }
    }

    /// Returns a lease of a session that the pool has given to this call.
    fn exclusive(session: Arc<UpstreamSession<W>>, pool: &Arc<SessionPool<W>>, call: u64) -> Self {
        Self { session, exclusive_in: Some(Arc::clone(pool)), call }
    }

    /// Whether no call of another client may use the session until the lease is dropped.
    pub(in crate::upstream::legacy) fn is_exclusive(&self) -> bool {
        self.exclusive_in.is_some()
    }
}

impl<W: Transport> Drop for SessionLease<W> {
    fn drop(&mut self) {
        if let Some(pool) = self.exclusive_in.take() {
            let (is_surplus, has_openers) = {
                let mut state = pool.state.lock();
                state.release(&self.session, self.call);
                let limits = pool.server.config.load().limits;
                let has_openers = W::IS_COSTLY && !state.opening_for.is_empty();
                let own_waiters = state.opening_for.len() + usize::from(state.opening.is_some());
                let is_wanted = || pool.server.transport.waiters() > own_waiters;
                let is_surplus = state.is_surplus(&self.session, &limits)
                    || W::IS_COSTLY && state.can_give_up(&self.session) && is_wanted();
                (is_surplus, has_openers)
            };
            if has_openers {
                // A call that waits to open a session takes this one.
                pool.server.transport.report_eviction_failed();
            }
            match is_surplus {
                true => self.session.retire(),
                false => pool.serve_queue(),
            }
        }
    }
}

// === impl OpenPermit ===

impl<W: Transport> OpenPermit<W> {
    /// Opens the session for this call, in a background task: a handshake dropped with its caller would leave
    /// a session at the server, and its reader here. The session then serves another call.
    /// Gives up if `dropped_wait` is sent, because the call has got another session.
    async fn open_in_background(
        self,
        dropped_wait: oneshot::Receiver<()>,
    ) -> Result<SessionLease<W>, CallError> {
        let server = self.pool.as_ref().expect("a permit is used once").server.clone();
        let (sender, opened) = oneshot::channel();
        server.work.spawn(async move {
            let mut is_given_up = pin!(dropped_wait.map(|sent| sent.is_ok()));
            let mut opening = pin!(self.open());
            let outcome = tokio::select! {
                outcome = &mut opening => outcome,
                true = &mut is_given_up => return,
                else => opening.await,
            };
            let _ = sender.send(outcome);
        });
        opened.await.unwrap_or(Err(CallError::Closing))
    }

    async fn open(mut self) -> Result<SessionLease<W>, CallError> {
        let pool = self.pool.clone().expect("a permit is used once");
        let call = self.call;
        let insert = |state: &mut PoolState<W>, session: &Arc<UpstreamSession<W>>| {
            let holder = state.take_opening(call);
            state.insert(session, holder);
            state.list_session.get_or_insert_with(|| session.clone());
        };
        let session = pool.open(insert).await?;
        self.pool = None;
        Ok(SessionLease::exclusive(session, &pool, call))
    }
}

impl<W: Transport> Drop for OpenPermit<W> {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.state.lock().take_opening(self.call);
            pool.serve_queue();
        }
    }
}
