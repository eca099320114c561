//! Metrics of fetched results: whether each task's result was fetched, and after how many polls. They cover
//! only tasks of this process.

use crate::{
    task::{Record, TaskId, TaskView},
    telemetry::metrics::{self, TicketOutcome},
};
use dashmap::DashMap;
use std::sync::Arc;

/// Records in metrics how clients fetch the results of tasks. Holds one entry of a few hundred bytes for each
/// task whose result has not been fetched; bounded by the number of tasks.
#[derive(Default)]
pub(in crate::proxy) struct FetchMetrics(DashMap<TaskId, UnfetchedTask>);

/// A task whose result has not been fetched.
struct UnfetchedTask {
    route: Arc<str>,
    is_ticket: bool,
    /// How often a client has requested the task.
    polls: u32,
}

// === impl FetchMetrics ===

impl FetchMetrics {
    /// Records a new task.
    pub(in crate::proxy) fn task_created(&self, record: &Record) {
        if record.view == TaskView::Ticket {
            metrics::record_ticket(&record.owner.route, TicketOutcome::Issued);
        }
        self.task_adopted(record);
    }

    /// Records a task that this process has taken over from a former process.
    pub(in crate::proxy) fn task_adopted(&self, record: &Record) {
        let (route, is_ticket) = (Arc::clone(&record.owner.route), record.view == TaskView::Ticket);
        self.0.insert(record.id.clone(), UnfetchedTask { route, is_ticket, polls: 0 });
    }

    /// Counts a response that shows the task to a client.
    pub(in crate::proxy) fn task_shown(&self, id: &TaskId) {
        if let Some(mut task) = self.0.get_mut(id) {
            task.polls = task.polls.saturating_add(1);
        }
    }

    /// Records that a client has received the result, and reports the number of polls.
    pub(in crate::proxy) fn task_fetched(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, polls })) = self.0.remove(id) else { return };
        metrics::record_task_fetched(&route, polls);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::Collected);
        }
    }

    /// Removes a cancelled task: there is no result to fetch.
    pub(in crate::proxy) fn task_cancelled(&self, id: &TaskId) {
        self.0.remove(id);
    }

    /// Records that the retention of the task is over and no client has fetched its result.
    pub(in crate::proxy) fn task_expired(&self, id: &TaskId) {
        let Some((_, UnfetchedTask { route, is_ticket, .. })) = self.0.remove(id) else { return };
        metrics::record_uncollected_result(&route);
        if is_ticket {
            metrics::record_ticket(&route, TicketOutcome::NeverCollected);
        }
    }

    /// Removes a task that was discarded before its handle reached a client.
    pub(in crate::proxy) fn task_discarded(&self, id: &TaskId) {
        self.0.remove(id);
    }
}
