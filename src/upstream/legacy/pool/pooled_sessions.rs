//! Sessions of one pool, and the queue for them.

use futures_util::future::{BoxFuture, Shared};
use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};
use tokio::sync::oneshot;

use super::super::{
    call_client::CallClient,
    request::CallRequest,
    session::{InFlightCall, UpstreamSession},
};
use crate::upstream::{CallError, Deferral, UpstreamLimits, changes::ReportingSession, transport::Transport};

/// Sessions of a pool and its queue of calls that wait for a grant of type `T`. Locked for a few statements
/// only, never while waiting.
pub(super) struct PooledSessions<W: Transport, T> {
    /// Sessions that take calls; the last used is last.
    pub(super) all: Vec<PooledSession<W>>,
    /// Sessions that take no more calls but still have some in flight.
    retiring: Vec<Weak<UpstreamSession<W>>>,
    /// Session for lists, and for all calls that need no exclusive session.
    pub(super) list_session: Option<Arc<UpstreamSession<W>>>,
    /// The list session while it is being opened.
    pub(super) opening: Option<OpeningSession<W>>,
    /// Calls for which sessions are being opened.
    pub(super) opening_for: Vec<LeaseHolder>,
    /// Queued calls, the longest waiting first.
    pub(super) queue: VecDeque<LeaseWaiter<T>>,
}

/// A session that takes calls.
pub(super) struct PooledSession<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    /// Calls that hold an exclusive lease of the session: one, or several of one legacy session.
    pub(super) holders: Vec<LeaseHolder>,
    /// Client of the last exclusive lease.
    last_client: Option<Arc<CallClient>>,
    /// Number of consecutive [`SessionPool::sweep`](super::SessionPool::sweep)s without use.
    pub(super) idle_sweeps: u32,
    _reporting: ReportingSession,
}

/// A call that holds or waits for an exclusive session.
#[derive(Clone)]
pub(in crate::upstream::legacy) struct LeaseHolder {
    /// Id of the call's request.
    pub(super) call: u64,
    /// Deferral state, if the call may become a task.
    pub(super) deferral: Option<Deferral>,
    /// Client of the call, if several share the pool.
    pub(super) client: Option<Arc<CallClient>>,
}

/// How well a free session suits a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suitability {
    /// Another legacy session that still exists used it last.
    OtherSession,
    /// No existing legacy session used it last.
    Unclaimed,
    /// The client used it last.
    Own,
}

/// A call that waits for a grant of type `T`.
pub(super) struct LeaseWaiter<T> {
    pub(super) holder: LeaseHolder,
    /// Sends the grant to the waiting call.
    pub(super) grant: oneshot::Sender<T>,
}

/// Shared result of opening the list session, for all callers that wait for the session.
pub(super) type OpeningSession<W> = Shared<BoxFuture<'static, Result<Arc<UpstreamSession<W>>, CallError>>>;

// === impl PooledSessions ===

impl<W: Transport, T> Default for PooledSessions<W, T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            retiring: Vec::new(),
            list_session: None,
            opening: None,
            opening_for: Vec::new(),
            queue: VecDeque::new(),
        }
    }
}

impl<W: Transport, T> PooledSessions<W, T> {
    /// Adds an opened session, leased to `holder` if there is one.
    pub(super) fn insert(&mut self, session: &Arc<UpstreamSession<W>>, holder: Option<LeaseHolder>) {
        let reporting = ReportingSession::new(&session.notifier);
        self.all.push(PooledSession {
            session: session.clone(),
            last_client: holder.as_ref().and_then(|holder| holder.client.clone()),
            holders: holder.into_iter().collect(),
            idle_sweeps: 0,
            _reporting: reporting,
        });
    }

    /// Stops leasing a session: it is closed when the calls in flight have ended, or together with all
    /// others.
    pub(super) fn retire(&mut self, session: &Arc<UpstreamSession<W>>) {
        self.all.retain(|pooled| !Arc::ptr_eq(&pooled.session, session));
        self.retiring.retain(|leaving| leaving.strong_count() > 0);
        let is_retiring =
            self.retiring.iter().any(|leaving| std::ptr::eq(leaving.as_ptr(), Arc::as_ptr(session)));
        if !is_retiring && session.has_users() {
            self.retiring.push(Arc::downgrade(session));
        }
    }

    /// Whether a session that takes no more calls may have some in flight.
    pub(super) fn has_retiring(&self) -> bool {
        self.retiring.iter().any(|leaving| leaving.strong_count() > 0)
    }

    /// Whether calls wait for a session.
    pub(super) fn has_waiters(&self) -> bool {
        self.opening.is_some() || !self.opening_for.is_empty() || !self.queue.is_empty()
    }

    /// Removes all sessions.
    pub(super) fn take_all(&mut self) -> Vec<Arc<UpstreamSession<W>>> {
        self.list_session = None;
        let retiring = std::mem::take(&mut self.retiring);
        let sessions = std::mem::take(&mut self.all).into_iter().map(|pooled| pooled.session);
        sessions.chain(retiring.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Ends a call's exclusive lease of a session. An unused session will be the next one to be leased.
    pub(super) fn release(&mut self, session: &Arc<UpstreamSession<W>>, call: u64) {
        if let Some(index) = self.all.iter().position(|pooled| Arc::ptr_eq(&pooled.session, session)) {
            let mut pooled = self.all.remove(index);
            pooled.holders.retain(|holder| holder.call != call);
            self.all.push(pooled);
        }
    }

    /// Leases the most suitable free session to a call: one that its client used last, else one that no other
    /// legacy session claims, most recently used first. A session that another legacy session used last is
    /// taken only if no further session can be opened (`can_open`).
    pub(super) fn lease_free(
        &mut self,
        holder: LeaseHolder,
        can_open: bool,
    ) -> Option<Arc<UpstreamSession<W>>> {
        let client = holder.client.as_deref();
        let free = self.all.iter().enumerate().filter(|(_, pooled)| pooled.is_free_for(client));
        let suitable = free.map(|(index, pooled)| (pooled.suitability_for(client), index));
        let (_, index) = suitable
            .filter(|(suitability, _)| *suitability > Suitability::OtherSession || !can_open)
            // Of sessions of others, the least recently used one.
            .max_by_key(|&(suitability, index)| match suitability {
                Suitability::OtherSession => (suitability, usize::MAX - index),
                Suitability::Unclaimed | Suitability::Own => (suitability, index),
            })?;
        let pooled = &mut self.all[index];
        pooled.last_client.clone_from(&holder.client);
        pooled.holders.push(holder);
        pooled.idle_sweeps = 0;
        Some(pooled.session.clone())
    }

    /// Whether calls of this call's legacy session use a session that it can share.
    pub(super) fn is_joinable(&self, holder: &LeaseHolder) -> bool {
        let client = holder.client.as_deref().filter(|client| client.shares_with_itself());
        let is_own = |pooled: &PooledSession<W>| {
            let has_calls = !pooled.holders.is_empty() || pooled.session.any_input_call(|_| true);
            has_calls && pooled.is_free_for(client)
        };
        client.is_some() && self.all.iter().any(is_own)
    }

    /// Returns a session without calls that abandoned calls keep from other clients: a call of another client
    /// gets a new session in its place.
    pub(super) fn kept_by_abandoned(&self) -> Option<Arc<UpstreamSession<W>>> {
        let is_kept =
            |pooled: &&PooledSession<W>| pooled.holders.is_empty() && pooled.session.has_only_abandoned();
        Some(self.all.iter().find(is_kept)?.session.clone())
    }

    /// Position in the queue of the call to be served next: a call that can share its client's session, else
    /// the first of a principal that uses no session, else the first.
    pub(super) fn next_in_queue(&self) -> Option<usize> {
        let uses_none = |holder: &LeaseHolder| {
            holder.client.as_deref().is_some_and(|client| {
                let is_same = |other: &Option<Arc<CallClient>>| {
                    other.as_ref().is_some_and(|other| client.has_same_principal(other))
                };
                let holders = self.all.iter().flat_map(|pooled| &pooled.holders);
                !self.opening_for.iter().chain(holders).any(|other| is_same(&other.client))
                    && !self
                        .all
                        .iter()
                        .any(|pooled| pooled.session.any_input_call(|call| is_same(&call.client)))
            })
        };
        let joins = self.queue.iter().position(|waiter| self.is_joinable(&waiter.holder));
        let next = joins.or_else(|| self.queue.iter().position(|waiter| uses_none(&waiter.holder)));
        next.or_else(|| (!self.queue.is_empty()).then_some(0))
    }

    /// Sessions with a call that may receive requests and acts for another principal than this call.
    pub(super) fn used_by_others(&self, holder: &LeaseHolder) -> Vec<Arc<UpstreamSession<W>>> {
        let is_other = |other: &InFlightCall| match (&holder.client, &other.client) {
            (Some(client), Some(other)) => !client.has_same_principal(other),
            (None, _) | (_, None) => false,
        };
        let used = self.all.iter().filter(|pooled| pooled.session.any_input_call(is_other));
        used.map(|pooled| pooled.session.clone()).collect()
    }

    /// Whether the limits allow one more session to be opened, for a task (`for_task`) or for a call.
    pub(super) fn can_open(&self, limits: &UpstreamLimits, for_task: bool) -> bool {
        self.call_count(limits) < limits.sessions.max(1)
            || for_task && self.task_count() < limits.task_sessions
    }

    /// Number of sessions held by tasks, open or being opened.
    pub(super) fn task_count(&self) -> usize {
        let open = self.all.iter().filter(|pooled| pooled.is_held_by_tasks()).count();
        open + self.opening_for.iter().filter(|holder| holder.is_task()).count()
    }

    /// Number of sessions that count towards the calls' limit: all but those within the tasks' limit.
    pub(super) fn call_count(&self, limits: &UpstreamLimits) -> usize {
        let all = self.all.len() + self.opening_for.len() + usize::from(self.opening.is_some());
        all - self.task_count().min(limits.task_sessions)
    }

    /// Whether this queued call could proceed now.
    pub(super) fn can_serve_now(&self, limits: &UpstreamLimits, client: Option<&CallClient>) -> bool {
        self.can_open(limits, false)
            || self.all.iter().any(|pooled| pooled.is_free_for(client))
            || W::IS_COSTLY && self.shareable_with_tasks().is_some()
    }

    /// Returns the session that a call may share with tasks, if tasks hold all sessions and none is being
    /// opened: the session with the fewest calls among those without another call that may receive requests.
    /// `None` if each has such a call.
    pub(super) fn shareable_with_tasks(&self) -> Option<Arc<UpstreamSession<W>>> {
        if self.opening.is_some() || !self.all.iter().all(PooledSession::has_task) {
            return None;
        }
        let candidates = self.all.iter().filter(|pooled| !pooled.session.has_non_task_call());
        Some(candidates.min_by_key(|pooled| pooled.session.in_flight_count())?.session.clone())
    }

    /// Whether this released session exceeds the limit of sessions for calls, so that it should be closed.
    pub(super) fn is_surplus(&self, session: &Arc<UpstreamSession<W>>, limits: &UpstreamLimits) -> bool {
        let is_lists = self.list_session.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session));
        !is_lists && self.queue.is_empty() && self.call_count(limits) > limits.sessions.max(1)
    }

    /// Whether this unused session can be closed for callers of another pool: the pool keeps others.
    pub(super) fn can_give_up(&self, session: &Arc<UpstreamSession<W>>) -> bool {
        let is_unused =
            |pooled: &PooledSession<W>| Arc::ptr_eq(&pooled.session, session) && pooled.holders.is_empty();
        self.all.len() > 1 && self.all.iter().any(is_unused)
    }

    /// Removes the call from those for which sessions are being opened, and returns its holder.
    pub(super) fn take_opening(&mut self, call: u64) -> Option<LeaseHolder> {
        let index = self.opening_for.iter().position(|holder| holder.call == call)?;
        Some(self.opening_for.swap_remove(index))
    }
}

// === impl PooledSession ===

impl<W: Transport> PooledSession<W> {
    /// Whether the session can be leased exclusively to a call of this client: no call of another holds it, and
    /// none in flight that started while sessions were shared may still receive requests in it.
    fn is_free_for(&self, client: Option<&CallClient>) -> bool {
        let is_joinable = |holder: &LeaseHolder| {
            let both = client.zip(holder.client.as_deref());
            both.is_some_and(|(client, other)| client.shares_with_itself() && client.is_same(other))
        };
        self.holders.iter().all(is_joinable) && self.session.is_free_for(client)
    }

    fn suitability_for(&self, client: Option<&CallClient>) -> Suitability {
        match (self.last_client.as_deref(), client) {
            (Some(last), Some(client)) if last.is_same(client) => Suitability::Own,
            _ if self.is_unclaimed() => Suitability::Unclaimed,
            _ => Suitability::OtherSession,
        }
    }

    /// Whether no call uses the session.
    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && !self.session.has_users()
    }

    /// Whether no legacy session that still exists used the session last.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.last_client.as_ref().is_none_or(|client| !client.has_live_session())
    }

    /// Whether a task uses the session.
    pub(super) fn has_task(&self) -> bool {
        self.holders.iter().any(LeaseHolder::is_task) || self.session.has_task()
    }

    /// Whether only tasks keep the session from calls: its exclusive holder, or those that started while
    /// sessions were shared.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        match &self.holders[..] {
            [] => self.session.has_only_tasks(),
            holders => holders.iter().all(LeaseHolder::is_task),
        }
    }
}

// === impl LeaseHolder ===

impl LeaseHolder {
    /// Holder for the call of this request.
    pub(in crate::upstream::legacy) fn new(request: &CallRequest) -> Self {
        Self { call: request.id, deferral: request.deferral.clone(), client: request.client.clone() }
    }

    /// Whether the call has become a task.
    pub(super) fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::is_deferred)
    }
}
