//! Queues the changes of a task record, which are stored one after the other while the call continues.
//!
//! The driver never waits for the store while it handles an event: a slow or failed store must not delay
//! events of the client, the server and the clock. Each change is queued with what follows from it, and its
//! outcome is another event of the driver.

use super::{
    CallDriver,
    record_writes::{WriteFollowUp, WriteResult},
};
use crate::{
    proxy::tasks::persist::{STORE_RETRY_DELAY, buffer_event, persist},
    store::{StoreError, UpdateOutcome},
    task,
};
use futures_util::future::BoxFuture;
use std::{future::ready, sync::Arc, time::Duration};

/// The shortest time between two writes of progress messages.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

// === impl CallDriver ===

impl CallDriver {
    /// Queues a change of the task record, with retries until the store takes it. No effect if the call is
    /// not a task.
    pub(super) fn queue_write(&mut self, event: task::TaskEvent, follow_up: WriteFollowUp) {
        let (ledger, overdue) = (Arc::clone(&self.shared.ledger), self.shared.overdue.clone());
        let detached = self.detached();
        let write: BoxFuture<'static, _> = match &detached.lease {
            None => Box::pin(ready(Ok(UpdateOutcome::Unknown))),
            Some(task) if detached.writes.is_empty() => {
                Box::pin(persist(ledger, task.id.clone(), event, overdue, None))
            }
            // The bytes of the event are counted, because it stays in memory while it waits behind others.
            Some(task) => match buffer_event(&ledger, &task.id, event) {
                Ok((event, buffered)) => {
                    Box::pin(persist(ledger, task.id.clone(), event, overdue, Some(buffered)))
                }
                Err(error) => Box::pin(ready(Err(error))),
            },
        };
        detached.writes.push(follow_up, write);
    }

    /// Queues the server info for the record, if the call became a task before the server was described.
    pub(super) fn queue_description(&mut self) {
        let Some(server) = self.server_description() else { return };
        let record = self.shared.ledger.last_stored(self.id());
        if record.is_some_and(|record| record.server_info.is_none()) {
            let event = task::TaskEvent::ServerDescribed { server_info: server.server_info.clone() };
            self.queue_write(event, WriteFollowUp::Nothing);
        }
    }

    /// Queues the latest progress message for the record, if there is one. Unlike other changes it is not
    /// retried at once, because newer progress may arrive.
    pub(super) fn queue_progress(&mut self) {
        let ledger = Arc::clone(&self.shared.ledger);
        let detached = self.detached();
        if detached.writes.has_progress() {
            return;
        }
        let Some(message) = detached.progress.message.take() else { return };
        let (id, event) =
            (detached.registration.id().clone(), task::TaskEvent::Progressed { message: message.clone() });
        let write = Box::pin(async move { ledger.change(&id, &event).await });
        detached.writes.push(WriteFollowUp::Progress { message }, write);
    }

    /// Queues the removal of the task from the store, because its handle reached no client.
    pub(super) fn queue_discard(&mut self) {
        let detached = self.detached();
        if let Some(task) = detached.lease.take() {
            let discard = async move {
                task.discard().await;
                Ok(UpdateOutcome::Unknown)
            };
            detached.writes.push(WriteFollowUp::Nothing, Box::pin(discard));
        }
    }

    /// Handles the result of a queued change.
    pub(super) fn handle_written(&mut self, follow_up: WriteFollowUp, result: WriteResult) {
        match follow_up {
            WriteFollowUp::Nothing => {}
            WriteFollowUp::InputRequested { input, key } => {
                if matches!(result, Err(StoreError::Exists | StoreError::Unavailable(_))) {
                    self.detached().is_resume_point_fixed = true;
                }
                self.handle_recorded(input, key, result);
                let detached = self.detached();
                if !detached.writes.has_input_request()
                    && let Some(point) = detached.resume_point.take()
                {
                    self.set_resume_point(point);
                }
            }
            // If the write failed, the next process may send the responses again, which is harmless.
            WriteFollowUp::Delivered { keys } => {
                if result.is_ok()
                    && let Some(anchor_state) = &mut self.detached().anchor
                {
                    anchor_state.remove_delivered(&keys);
                }
            }
            WriteFollowUp::Withdrawn { key } => match result {
                Ok(UpdateOutcome::Applied { .. }) => {}
                // The input request was answered before the removal, or the task has ended.
                Ok(UpdateOutcome::Refused(_) | UpdateOutcome::Unknown) => self.queue_delivered(vec![key]),
                // The proxy is shutting down. The client may have answered the cancelled input request, or may still do
                // so: the next process must not send that response to the server.
                Err(_) => self.keep_withdrawal(key),
            },
            // If the removal was not applied, the input request was answered before and the response is in
            // the mailbox, the task has ended, or the proxy is shutting down: then there is nothing to do.
            WriteFollowUp::TimedOut { input, key } => {
                if matches!(result, Ok(UpdateOutcome::Applied { .. })) {
                    self.handle_expired(input, &key);
                }
            }
            // If the removal was not applied, there is nothing to do, as with `TimedOut`.
            WriteFollowUp::Undeclared { input } => {
                if matches!(result, Ok(UpdateOutcome::Applied { .. })) {
                    self.handle_undeclared_removed(input);
                }
            }
            WriteFollowUp::Progress { message } => {
                let now = self.shared.clock.now();
                let progress = &mut self.detached().progress;
                let pause = if result.is_ok() { PROGRESS_PERIOD } else { STORE_RETRY_DELAY };
                progress.not_before = Some(now + pause);
                if result.is_err() {
                    // The message is kept for the next write, unless there is newer progress.
                    progress.message.get_or_insert(message);
                }
            }
            WriteFollowUp::Anchor { has_event } => self.handle_anchor_written(has_event, result.is_ok()),
        }
    }
}
