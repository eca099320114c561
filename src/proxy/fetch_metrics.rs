//! Whether what tasks came to has been fetched, and how often they were asked for by then. It is counted, and nothing
//! depends on it: of tasks that had ended before this process began nothing is known here.

use crate::{
    task::{Record, TaskId, TaskView},
    telemetry::metrics::{self, TicketOutcome},
};
use dashmap::DashMap;
use std::sync::Arc;

/// The tasks whose ends nobody has fetched. Bounded with the number of tasks; some hundred bytes each.
#[derive(Default)]
pub(super) struct FetchMetrics(DashMap<TaskId, UnfetchedTask>);

/// A task whose end nobody has fetched.
struct UnfetchedTask {
    route: Arc<str>,
    is_ticket: bool,
    /// How often it was asked for.
    polls: u32,
}

// === impl Collection ===

impl FetchMetrics {
    /// A call has become this task.
    pub(super) fn task_created(&self, record: &Record) {
        if record.view == TaskView::Ticket {
            metrics::record_ticket(&record.owner.route, TicketOutcome::Issued);
        }
        self.task_adopted(record);
    }

    /// A process before this one has held this task.
    pub(super) fn task_adopted(&self, record: &Record) {
        let (route, is_ticket) = (Arc::clone(&record.owner.route), record.view == TaskView::Ticket);
        self.0.insert(record.id.clone(), UnfetchedTask { route, is_ticket, polls: 0 });
    }

    /// A client is shown the task.
    pub(super) fn task_shown(&self, id: &TaskId) {
        if let Some(mut task) = self.0.get_mut(id) {
            task.polls = task.polls.saturating_add(1);
        }
    }

    /// A client has what it came to.
    pub(super) fn task_fetched(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, polls })) = self.0.remove(id) else { return };
        metrics::record_task_fetched(&route, polls);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::Collected);
        }
    }

    /// Its client knows that it has been cancelled: there is nothing to fetch.
    pub(super) fn task_cancelled(&self, id: &TaskId) {
        self.0.remove(id);
    }

    /// Its time is over.
    pub(super) fn task_expired(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, .. })) = self.0.remove(id) else { return };
        metrics::record_uncollected_result(&route);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::NeverCollected);
        }
    }

    /// Nobody was ever given it.
    pub(super) fn task_discarded(&self, id: &TaskId) {
        self.0.remove(id);
    }
}
