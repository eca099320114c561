//! Who has which session, and who waits for one.

use futures_util::future::{BoxFuture, Shared};
use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};
use tokio::sync::oneshot;

use super::super::{reports::ReportingSession, request::CallRequest, session::UpstreamSession};
use crate::upstream::{CallError, Deferral, UpstreamLimits, transport::Transport};

/// The lock guards a few lines each time and is never held while waiting.
pub(super) struct PooledSessions<W: Transport, T> {
    /// Every session that takes calls, the last used last.
    pub(super) all: Vec<PooledSession<W>>,
    /// Those that take none any more, and have some in flight.
    leaving: Vec<Weak<UpstreamSession<W>>>,
    /// Where lists, and all calls that need no session for themselves, go.
    pub(super) lists: Option<Arc<UpstreamSession<W>>>,
    /// The list session on its way.
    pub(super) opening: Option<OpeningSession<W>>,
    /// Sessions on their way for calls that lease one.
    pub(super) opening_for: Vec<LeaseHolder>,
    /// Who waits for a session, the longest first.
    pub(super) queue: VecDeque<LeaseWaiter<T>>,
}

pub(super) struct PooledSession<W: Transport> {
    pub(super) session: Arc<UpstreamSession<W>>,
    /// Whom it is leased to.
    pub(super) holder: Option<LeaseHolder>,
    /// Rounds of [`SessionPool::sweep`](super::SessionPool::sweep) in which it was not used.
    pub(super) quiet: u32,
    _hears: ReportingSession,
}

/// A call that has a session to itself, or will have.
#[derive(Clone, Debug)]
pub(in crate::upstream::legacy) struct LeaseHolder {
    pub(super) call: u64,
    pub(super) deferral: Option<Deferral>,
}

/// A call that waits for its turn, which is a `T`.
pub(super) struct LeaseWaiter<T> {
    pub(super) holder: LeaseHolder,
    pub(super) grant: oneshot::Sender<T>,
}

pub(super) type OpeningSession<W> = Shared<BoxFuture<'static, Result<Arc<UpstreamSession<W>>, CallError>>>;

// === impl Seats ===

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
        let hears = ReportingSession::of(&session.reports);
        self.all.push(PooledSession { session: session.clone(), holder, quiet: 0, _hears: hears });
    }

    /// It takes no more calls: it is gone once those in flight are, and until then whoever closes all closes it, too.
    pub(super) fn retire(&mut self, session: &Arc<UpstreamSession<W>>) {
        self.all.retain(|seat| !Arc::ptr_eq(&seat.session, session));
        self.leaving.retain(|leaving| leaving.strong_count() > 0);
        let is_known =
            self.leaving.iter().any(|leaving| std::ptr::eq(leaving.as_ptr(), Arc::as_ptr(session)));
        if !is_known && session.is_needed() {
            self.leaving.push(Arc::downgrade(session));
        }
    }

    /// Whether a call may be in flight in one that takes no more.
    pub(super) fn has_leaving(&self) -> bool {
        self.leaving.iter().any(|leaving| leaving.strong_count() > 0)
    }

    /// Takes out all there are.
    pub(super) fn take_all(&mut self) -> Vec<Arc<UpstreamSession<W>>> {
        self.lists = None;
        let leaving = std::mem::take(&mut self.leaving);
        let all = std::mem::take(&mut self.all).into_iter().map(|seat| seat.session);
        all.chain(leaving.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Makes a session idle again, and the first to be used next.
    pub(super) fn release(&mut self, session: &Arc<UpstreamSession<W>>) {
        if let Some(at) = self.all.iter().position(|seat| Arc::ptr_eq(&seat.session, session)) {
            let mut seat = self.all.remove(at);
            seat.holder = None;
            self.all.push(seat);
        }
    }

    /// Whether one more session may be opened, for a task or for a call.
    pub(super) fn has_room(&self, limits: &UpstreamLimits, for_task: bool) -> bool {
        self.call_count(limits) < limits.sessions.max(1)
            || for_task && self.task_count() < limits.task_sessions
    }

    pub(super) fn task_count(&self) -> usize {
        let seated = self.all.iter().filter(|seat| seat.is_held_by_tasks()).count();
        seated + self.opening_for.iter().filter(|holder| holder.is_task()).count()
    }

    /// How many sessions count as the calls' own: all but those of tasks, as far as tasks have theirs.
    pub(super) fn call_count(&self, limits: &UpstreamLimits) -> usize {
        let all = self.all.len() + self.opening_for.len() + usize::from(self.opening.is_some());
        all - self.task_count().min(limits.task_sessions)
    }

    /// Whether somebody who waits could go on right now.
    pub(super) fn can_serve_now(&self, limits: &UpstreamLimits) -> bool {
        self.has_room(limits, false)
            || self.all.iter().any(PooledSession::is_idle)
            || W::IS_COSTLY && self.shareable_with_tasks().is_some()
    }

    /// Where tasks are in all there are, and no other is on its way: the session in which a call would be beside the
    /// fewest tasks, and beside nothing else that can be asked. Where calls are beside all of them, they take turns.
    pub(super) fn shareable_with_tasks(&self) -> Option<Arc<UpstreamSession<W>>> {
        if self.opening.is_some() || !self.all.iter().all(PooledSession::has_task) {
            return None;
        }
        let free = self.all.iter().filter(|seat| !seat.session.has_waited_call());
        Some(free.min_by_key(|seat| seat.session.in_flight())?.session.clone())
    }

    /// Whether there are more sessions than calls may have, now that a task has given back its own.
    pub(super) fn is_surplus(&self, session: &Arc<UpstreamSession<W>>, limits: &UpstreamLimits) -> bool {
        let is_lists = self.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session));
        !is_lists && self.queue.is_empty() && self.call_count(limits) > limits.sessions.max(1)
    }

    /// A promise that will not be kept, or has been. Gives whom it was made to.
    pub(super) fn take_opening(&mut self, call: u64) -> Option<LeaseHolder> {
        let at = self.opening_for.iter().position(|holder| holder.call == call)?;
        Some(self.opening_for.swap_remove(at))
    }
}

// === impl Seat ===

impl<W: Transport> PooledSession<W> {
    /// Calls that came while sessions were shared may still be asked something in theirs.
    pub(super) fn is_idle(&self) -> bool {
        self.holder.is_none() && !self.session.may_be_asked()
    }

    /// Whether a task is in it.
    pub(super) fn has_task(&self) -> bool {
        self.holder.as_ref().is_some_and(LeaseHolder::is_task) || self.session.has_task()
    }

    /// Whether it is tasks that keep it from calls: the one it is leased to, or those that came while
    /// sessions were shared.
    pub(super) fn is_held_by_tasks(&self) -> bool {
        match &self.holder {
            Some(holder) => holder.is_task(),
            None => self.session.is_held_by_tasks(),
        }
    }
}

// === impl Holder ===

impl LeaseHolder {
    pub(in crate::upstream::legacy) fn of(request: &CallRequest) -> Self {
        Self { call: request.id, deferral: request.deferral.clone() }
    }

    pub(super) fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::is_deferred)
    }
}
