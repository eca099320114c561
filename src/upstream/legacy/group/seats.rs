//! Who has which session, and who waits for one.

use futures_util::future::{BoxFuture, Shared};
use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};
use tokio::sync::oneshot;

use super::super::{reports::Hearing, request::Request, session::Session};
use crate::upstream::{CallError, Deferral, Limits, wire::Wire};

/// The lock guards a few lines each time and is never held while waiting.
pub(super) struct Seats<W: Wire, T> {
    /// Every session that takes calls, the last used last.
    pub(super) all: Vec<Seat<W>>,
    /// Those that take none any more, and have some in flight.
    leaving: Vec<Weak<Session<W>>>,
    /// Where lists, and all calls that need no session for themselves, go.
    pub(super) lists: Option<Arc<Session<W>>>,
    /// The list session on its way.
    pub(super) opening: Option<Opening<W>>,
    /// Sessions on their way for calls that lease one.
    pub(super) promised: Vec<Holder>,
    /// Who waits for a session, the longest first.
    pub(super) queue: VecDeque<Waiting<T>>,
}

pub(super) struct Seat<W: Wire> {
    pub(super) session: Arc<Session<W>>,
    /// Whom it is leased to.
    pub(super) holder: Option<Holder>,
    /// Rounds of [`Group::sweep`](super::Group::sweep) in which it was not used.
    pub(super) quiet: u32,
    _hears: Hearing,
}

/// A call that has a session to itself, or will have.
#[derive(Clone, Debug)]
pub(in crate::upstream::legacy) struct Holder {
    pub(super) call: u64,
    pub(super) deferral: Option<Deferral>,
}

/// A call that waits for its turn, which is a `T`.
pub(super) struct Waiting<T> {
    pub(super) who: Holder,
    pub(super) turn: oneshot::Sender<T>,
}

pub(super) type Opening<W> = Shared<BoxFuture<'static, Result<Arc<Session<W>>, CallError>>>;

// === impl Seats ===

impl<W: Wire, T> Default for Seats<W, T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            leaving: Vec::new(),
            lists: None,
            opening: None,
            promised: Vec::new(),
            queue: VecDeque::new(),
        }
    }
}

impl<W: Wire, T> Seats<W, T> {
    pub(super) fn seat(&mut self, session: &Arc<Session<W>>, holder: Option<Holder>) {
        let hears = Hearing::of(&session.reports);
        self.all.push(Seat { session: session.clone(), holder, quiet: 0, _hears: hears });
    }

    /// It takes no more calls: it is gone once those in flight are, and until then whoever closes all closes it, too.
    pub(super) fn leaves(&mut self, session: &Arc<Session<W>>) {
        self.all.retain(|seat| !Arc::ptr_eq(&seat.session, session));
        self.leaving.retain(|leaving| leaving.strong_count() > 0);
        let is_known =
            self.leaving.iter().any(|leaving| std::ptr::eq(leaving.as_ptr(), Arc::as_ptr(session)));
        if !is_known && session.is_needed() {
            self.leaving.push(Arc::downgrade(session));
        }
    }

    /// Whether a call may be in flight in one that takes no more.
    pub(super) fn some_leave(&self) -> bool {
        self.leaving.iter().any(|leaving| leaving.strong_count() > 0)
    }

    /// Takes out all there are.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Session<W>>> {
        self.lists = None;
        let leaving = std::mem::take(&mut self.leaving);
        let all = std::mem::take(&mut self.all).into_iter().map(|seat| seat.session);
        all.chain(leaving.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Makes a session idle again, and the first to be used next.
    pub(super) fn release(&mut self, session: &Arc<Session<W>>) {
        if let Some(at) = self.all.iter().position(|seat| Arc::ptr_eq(&seat.session, session)) {
            let mut seat = self.all.remove(at);
            seat.holder = None;
            self.all.push(seat);
        }
    }

    /// Whether one more session may be opened, for a task or for a call.
    pub(super) fn has_room(&self, limits: &Limits, for_task: bool) -> bool {
        self.counted(limits) < limits.sessions.max(1) || for_task && self.tasks() < limits.task_sessions
    }

    pub(super) fn tasks(&self) -> usize {
        let seated = self.all.iter().filter(|seat| seat.is_tasks()).count();
        seated + self.promised.iter().filter(|holder| holder.is_task()).count()
    }

    /// How many sessions count as the calls' own: all but those of tasks, as far as tasks have theirs.
    pub(super) fn counted(&self, limits: &Limits) -> usize {
        let all = self.all.len() + self.promised.len() + usize::from(self.opening.is_some());
        all - self.tasks().min(limits.task_sessions)
    }

    /// Whether somebody who waits could go on right now.
    pub(super) fn can_serve(&self, limits: &Limits) -> bool {
        self.has_room(limits, false)
            || self.all.iter().any(Seat::is_idle)
            || W::IS_COSTLY && self.beside_tasks().is_some()
    }

    /// Where tasks are in all there are, and no other is on its way: the session in which a call would be beside the
    /// fewest tasks, and beside nothing else that can be asked. Where calls are beside all of them, they take turns.
    pub(super) fn beside_tasks(&self) -> Option<Arc<Session<W>>> {
        if self.opening.is_some() || !self.all.iter().all(Seat::has_task) {
            return None;
        }
        let free = self.all.iter().filter(|seat| !seat.session.is_in_turn());
        Some(free.min_by_key(|seat| seat.session.in_flight())?.session.clone())
    }

    /// Whether there are more sessions than calls may have, now that a task has given back its own.
    pub(super) fn is_surplus(&self, session: &Arc<Session<W>>, limits: &Limits) -> bool {
        let is_lists = self.lists.as_ref().is_some_and(|lists| Arc::ptr_eq(lists, session));
        !is_lists && self.queue.is_empty() && self.counted(limits) > limits.sessions.max(1)
    }

    /// A promise that will not be kept, or has been. Gives whom it was made to.
    pub(super) fn unpromise(&mut self, call: u64) -> Option<Holder> {
        let at = self.promised.iter().position(|holder| holder.call == call)?;
        Some(self.promised.swap_remove(at))
    }
}

// === impl Seat ===

impl<W: Wire> Seat<W> {
    /// Calls that came while sessions were shared may still be asked something in theirs.
    pub(super) fn is_idle(&self) -> bool {
        self.holder.is_none() && !self.session.may_be_asked()
    }

    /// Whether a task is in it.
    pub(super) fn has_task(&self) -> bool {
        self.holder.as_ref().is_some_and(Holder::is_task) || self.session.has_task()
    }

    /// Whether it is tasks that keep it from calls: the one it is leased to, or those that came while
    /// sessions were shared.
    pub(super) fn is_tasks(&self) -> bool {
        match &self.holder {
            Some(holder) => holder.is_task(),
            None => self.session.is_kept_by_tasks(),
        }
    }
}

// === impl Holder ===

impl Holder {
    pub(in crate::upstream::legacy) fn of(request: &Request) -> Self {
        Self { call: request.id, deferral: request.deferral.clone() }
    }

    pub(super) fn is_task(&self) -> bool {
        self.deferral.as_ref().is_some_and(Deferral::has_come)
    }
}
