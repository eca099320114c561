//! Whether what tasks came to has been fetched, and how often they were asked for by then. It is counted, and nothing
//! depends on it: of tasks that had ended before this process began nothing is known here.

use crate::{
    task::{Record, TaskId, View},
    telemetry::metrics::{self, TicketOutcome},
};
use dashmap::DashMap;
use std::sync::Arc;

/// The tasks whose ends nobody has fetched. Bounded with the number of tasks; some hundred bytes each.
#[derive(Default)]
pub(super) struct Collection(DashMap<TaskId, Uncollected>);

/// A task whose end nobody has fetched.
struct Uncollected {
    route: Arc<str>,
    is_ticket: bool,
    /// How often it was asked for.
    polls: u32,
}

// === impl Collection ===

impl Collection {
    /// A call has become this task.
    pub(super) fn begins(&self, record: &Record) {
        if record.view == View::Ticket {
            metrics::ticket(&record.owner.route, TicketOutcome::Given);
        }
        self.goes_on(record);
    }

    /// A process before this one has held this task.
    pub(super) fn goes_on(&self, record: &Record) {
        let (route, is_ticket) = (Arc::clone(&record.owner.route), record.view == View::Ticket);
        self.0.insert(record.id.clone(), Uncollected { route, is_ticket, polls: 0 });
    }

    /// A client is shown the task.
    pub(super) fn shown(&self, id: &TaskId) {
        if let Some(mut task) = self.0.get_mut(id) {
            task.polls = task.polls.saturating_add(1);
        }
    }

    /// A client has what it came to.
    pub(super) fn fetched(&self, id: &TaskId) {
        let Some((_, Uncollected { route, is_ticket, polls })) = self.0.remove(id) else { return };
        metrics::task_fetched(&route, polls);
        if is_ticket {
            metrics::ticket(&route, TicketOutcome::Collected);
        }
    }

    /// Its client knows that it has been cancelled: there is nothing to fetch.
    pub(super) fn cancelled(&self, id: &TaskId) {
        self.0.remove(id);
    }

    /// Its time is over.
    pub(super) fn forgotten(&self, id: &TaskId) {
        let Some((_, Uncollected { route, is_ticket, .. })) = self.0.remove(id) else { return };
        metrics::result_uncollected(&route);
        if is_ticket {
            metrics::ticket(&route, TicketOutcome::NeverCollected);
        }
    }

    /// Nobody was ever given it.
    pub(super) fn never_was(&self, id: &TaskId) {
        self.0.remove(id);
    }
}
