//! Sessions of one pool, and the queue for them.

use futures_util::future::{BoxFuture, Shared};
use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};
use tokio::sync::oneshot;

use super::super::{reports::ReportingSession, request::CallRequest, session::UpstreamSession};
use crate::upstream::{CallError, Deferral, UpstreamLimits, transport::Transport};

/// Locked for a few statements only, never while waiting.
pub(super) struct PooledSessions<W: Transport, T> {
    /// Sessions that take calls; the last used is last.
    pub(super) all: Vec<PooledSession<W>>,
    /// Sessions that take no more calls and have some in flight.
    leaving: Vec<Weak<UpstreamSession<W>>>,
    /// Session for lists, and for all calls that need no exclusive session.
    pub(super) lists: Option<Arc<UpstreamSession<W>>>,
    /// The list session while it is being opened.
    pub(super) opening: Option<OpeningSession<W>>,
    /// Calls for which sessions are being opened.
    pub(super) opening_for: Vec<LeaseHolder>,
    /// Queued calls, the longest waiting first.
    pub(super) queue: VecDeque<LeaseWaiter<T>>,
}

pub(super) struct PooledSession<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    /// Call that holds an exclusive lease.
    pub(super) holder: Option<LeaseHolder>,
    /// Rounds of [`SessionPool::sweep`](super::SessionPool::sweep) without use.
    pub(super) quiet: u32,
    _reporting: ReportingSession,
}

/// A call with an exclusive session, now or soon.
#[derive(Clone, Debug)]
pub(in crate::upstream::legacy) struct LeaseHolder {
    pub(super) call: u64,
    pub(super) deferral: Option<Deferral>,
}

/// A call that waits for a grant of type `T`.
pub(super) struct LeaseWaiter<T> {
    pub(super) holder: LeaseHolder,
    pub(super) grant: oneshot::Sender<T>,
}

pub(super) type OpeningSession<W> = Shared<BoxFuture<'static, Result<Arc<UpstreamSession<W>>, CallError>>>;

// === impl PooledSessions ===

impl<W: Transport, T> Default for PooledSessions<W, T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            leaving: Vec::new(),
            lists: None,
            opening: None,
            opening_for: Vec::new(),
            queue: VecDeque::new(),
        }
    }
}

impl<W: Transport, T> PooledSessions<W, T> {
    pub(super) fn insert(&mut self, session: &Arc<UpstreamSession<W>>, holder: Option<LeaseHolder>) {
        let reporting = ReportingSession::of(&session.reports);
        self.all.push(PooledSession { session: session.clone(), holder, quiet: 0, _reporting: reporting });
    }

    /// Stops giving calls to a session: it is closed when those in flight have ended, or with all others.
    pub(super) fn retire(&mut self, session: &Arc<UpstreamSession<W>>) {
        self.all.retain(|pooled| !Arc::ptr_eq(&pooled.session, session));
        self.leaving.retain(|leaving| leaving.strong_count() > 0);
        let is_known =
            self.leaving.iter().any(|leaving| std::ptr::eq(leaving.as_ptr(), Arc::as_ptr(session)));
        if !is_known && session.is_needed() {
            self.leaving.push(Arc::downgrade(session));
        }
    }

    /// Whether a session that takes no more calls may have some in flight.
    pub(super) fn has_leaving(&self) -> bool {
        self.leaving.iter().any(|leaving| leaving.strong_count() > 0)
    }

    /// Removes all sessions.
    pub(super) fn take_all(&mut self) -> Vec<Arc<UpstreamSession<W>>> {
        self.lists = None;
        let leaving = std::mem::take(&mut self.leaving);
        let all = std::mem::take(&mut self.all).into_iter().map(|pooled| pooled.session);
        all.chain(leaving.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Makes a session idle, and the next one to be used.
    pub(super) fn release(&mut self, session: &Arc<UpstreamSession<W>>) {
        if let Some(at) = self.all.iter().position(|pooled| Arc::ptr_eq(&pooled.session, session)) {
            let mut pooled = self.all.remove(at);
            pooled.holder = None;
            self.all.push(pooled);
        }
    }

    /// Whether one more session may be opened, for a task or for a call.
    pub(super) fn has_room(&self, limits: &UpstreamLimits, for_task: bool) -> bool {
        self.call_count(limits) < limits.sessions.max(1)
            || for_task && self.task_count() < limits.task_sessions
    }

    pub(super) fn task_count(&self) -> usize {
        let seated = self.all.iter().filter(|pooled| pooled.is_held_by_tasks()).count();
        seated + self.opening_for.iter().filter(|holder| holder.is_task()).count()
    }

    /// Sessions that count towards the calls' budget: all but those within the tasks' budget.
    pub(super) fn call_count(&self, limits: &UpstreamLimits) -> usize {
        let all = self.all.len() + self.opening_for.len() + usize::from(self.opening.is_some());
        all - self.task_count().min(limits.task_sessions)
    }

    /// Whether a queued call could proceed now.
    pub(super) fn can_serve_now(&self, limits: &UpstreamLimits) -> bool {
        self.has_room(limits, false)
            || self.all.iter().any(PooledSession::is_idle)
            || W::IS_COSTLY && self.shareable_with_tasks().is_some()
    }

    /// If tasks hold all sessions and none is being opened: the session with the fewest tasks, and without
    /// another call that may receive requests. If each has such a call, calls take turns.
    pub(super) fn shareable_with_tasks(&self) -> Option<Arc<UpstreamSession<W>>> {
        if self.opening.is_some() || !self.all.iter().all(PooledSession::has_task) {
            return None;
        }
        let free = self.all.iter().filter(|pooled| !pooled.session.has_waited_call());
        Some(free.min_by_key(|pooled| pooled.session.in_flight())?.session.clone())
    }

    /// Whether there are more sessions than calls may have, after a task returned its own.
    pub(super) fn is_surplus(&self, session: &Arc<UpstreamSession<W>>, limits: &UpstreamLimits) -> bool {
        let is_lists = self.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session));
        !is_lists && self.queue.is_empty() && self.call_count(limits) > limits.sessions.max(1)
    }

    /// Ends the opening for a call, and returns its holder.
    pub(super) fn take_opening(&mut self, call: u64) -> Option<LeaseHolder> {
        let at = self.opening_for.iter().position(|holder| holder.call == call)?;
        Some(self.opening_for.swap_remove(at))
    }
}

// === impl PooledSession ===

impl<W: Transport> PooledSession<W> {
    /// Calls that started while sessions were shared may still receive requests in them.
    pub(super) fn is_idle(&self) -> bool {
        self.holder.is_none() && !self.session.may_be_asked()
    }

    /// Whether a task uses the session.
    pub(super) fn has_task(&self) -> bool {
        self.holder.as_ref().is_some_and(LeaseHolder::is_task) || self.session.has_task()
    }

    /// Whether only tasks keep the session from calls: its exclusive holder, or those that started while
    /// sessions were shared.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        match &self.holder {
            Some(holder) => holder.is_task(),
            None => self.session.is_held_by_tasks(),
        }
    }
}

// === impl LeaseHolder ===

impl LeaseHolder {
    pub(in crate::upstream::legacy) fn of(request: &CallRequest) -> Self {
        Self { call: request.id, deferral: request.deferral.clone() }
    }

    pub(super) fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::is_deferred)
    }
}
