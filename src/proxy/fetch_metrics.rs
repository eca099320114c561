//! Metrics of fetched results: whether each task's result was fetched, and after how many polls. They cover
//! only tasks of this process.

use crate::{
    task::{Record, TaskId, TaskView},
    telemetry::metrics::{self, TicketOutcome},
};
use dashmap::DashMap;
use std::sync::Arc;

/// Tasks whose results have not been fetched. Bounded by the number of tasks; a few hundred bytes each.
#[derive(Default)]
pub(super) struct FetchMetrics(DashMap<TaskId, UnfetchedTask>);

/// A task whose result has not been fetched.
struct UnfetchedTask {
    route: Arc<str>,
    is_ticket: bool,
    /// The number of polls.
    polls: u32,
}

// === impl FetchMetrics ===

impl FetchMetrics {
    /// A call has become this task.
    pub(super) fn task_created(&self, record: &Record) {
        if record.view == TaskView::Ticket {
            metrics::record_ticket(&record.owner.route, TicketOutcome::Issued);
        }
        self.task_adopted(record);
    }

    /// The task is adopted from a former process.
    pub(super) fn task_adopted(&self, record: &Record) {
        let (route, is_ticket) = (Arc::clone(&record.owner.route), record.view == TaskView::Ticket);
        self.0.insert(record.id.clone(), UnfetchedTask { route, is_ticket, polls: 0 });
    }

    /// The task was shown to a client.
    pub(super) fn task_shown(&self, id: &TaskId) {
        if let Some(mut task) = self.0.get_mut(id) {
            task.polls = task.polls.saturating_add(1);
        }
    }

    /// A client has the result.
    pub(super) fn task_fetched(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, polls })) = self.0.remove(id) else { return };
        metrics::record_task_fetched(&route, polls);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::Collected);
        }
    }

    /// The task was cancelled: there is no result to fetch.
    pub(super) fn task_cancelled(&self, id: &TaskId) {
        self.0.remove(id);
    }

    /// The retention of the task is over.
    pub(super) fn task_expired(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, .. })) = self.0.remove(id) else { return };
        metrics::record_uncollected_result(&route);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::NeverCollected);
        }
    }

    /// The task was discarded before its handle reached a client.
    pub(super) fn task_discarded(&self, id: &TaskId) {
        self.0.remove(id);
    }
}
