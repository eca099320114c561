//! Changes of a task's record, stored one after the other while its call goes on.
//!
//! The driver never waits for the store inside a step: a store that stalls or fails must not keep it from events of its
//! client, its server and its clock. Each change is queued here with what follows from it, and its result is one more
//! event.

use super::{
    Driver,
    record_writes::{AfterWrite, WriteResult},
};
use crate::{
    proxy::keep::{STORE_PAUSE, buffer, keep},
    store::{StoreError, Updated},
    task,
};
use futures_util::future::BoxFuture;
use std::{future::ready, sync::Arc, time::Duration};

/// Progress is written to the record at most this often.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

// === impl Driver ===

impl Driver {
    /// Queues a change of the task's record, which is stored as soon as the store takes it.
    pub(super) fn write(&mut self, event: task::Event, after: AfterWrite) {
        let (ledger, overdue) = (Arc::clone(&self.shared.ledger), self.shared.overdue.clone());
        let held = self.held();
        let write: BoxFuture<'static, _> = match &held.task {
            None => Box::pin(ready(Ok(Updated::Unknown))),
            Some(task) if held.writes.is_empty() => {
                Box::pin(keep(ledger, task.id.clone(), event, overdue, None))
            }
            // It is in memory for as long as it waits behind others.
            Some(task) => match buffer(&ledger, &task.id, event) {
                Ok((event, buffered)) => {
                    Box::pin(keep(ledger, task.id.clone(), event, overdue, Some(buffered)))
                }
                Err(full) => Box::pin(ready(Err(full))),
            },
        };
        held.writes.push(after, write);
    }

    /// Queues who serves the call, where it became a task before the server had described itself.
    pub(super) fn describe(&mut self) {
        let Some(server) = self.server() else { return };
        let record = self.shared.ledger.last_kept(self.id());
        if record.is_some_and(|record| record.server_info.is_none()) {
            let event = task::Event::Described { server_info: server.server_info.clone() };
            self.write(event, AfterWrite::Nothing);
        }
    }

    /// Queues the latest progress, where there is any. Tried once: newer progress may come.
    pub(super) fn write_progress(&mut self) {
        let ledger = Arc::clone(&self.shared.ledger);
        let held = self.held();
        if held.writes.has_progress() {
            return;
        }
        let Some(message) = held.progress.message.take() else { return };
        let (id, event) = (held.hold.id().clone(), task::Event::Progressed { message: message.clone() });
        let write = Box::pin(async move { ledger.change(&id, &event).await });
        held.writes.push(AfterWrite::Progressed { message }, write);
    }

    /// Queues that a task is forgotten whose handle nobody has.
    pub(super) fn forget(&mut self) {
        let held = self.held();
        if let Some(task) = held.task.take() {
            let forget = async move {
                task.forget().await;
                Ok(Updated::Unknown)
            };
            held.writes.push(AfterWrite::Nothing, Box::pin(forget));
        }
    }

    /// A queued change is stored, or cannot be.
    pub(super) fn written(&mut self, after: AfterWrite, result: WriteResult) {
        match after {
            AfterWrite::Nothing => {}
            AfterWrite::Asked { ask, key } => {
                if matches!(result, Err(StoreError::Exists | StoreError::Unavailable(_))) {
                    self.held().is_place_fixed = true;
                }
                self.recorded(ask, key, result);
                let held = self.held();
                if !held.writes.has_input_request()
                    && let Some(point) = held.resume_point.take()
                {
                    self.moved(point);
                }
            }
            // Where it could not be written the next process delivers them again, which is nothing to the server.
            AfterWrite::Delivered { keys } => {
                if result.is_ok()
                    && let Some(anchored) = &mut self.held().anchored
                {
                    anchored.are_delivered(&keys);
                }
            }
            AfterWrite::Withdrawn { key } => match result {
                Ok(Updated::Done { .. }) => {}
                // It has been answered in this moment, or the task has ended.
                Ok(Updated::Refused(_) | Updated::Unknown) => self.delivered(vec![key]),
                // The proxy ends. The record may have an answer by now, or get one.
                Err(_) => self.withdrawn_without_record(key),
            },
            // Otherwise it has been answered in this moment, and the answer is on its way; or the task has ended, or the
            // proxy does.
            AfterWrite::Lapsed { ask, key } => {
                if matches!(result, Ok(Updated::Done { .. })) {
                    self.lapsed(ask, &key);
                }
            }
            AfterWrite::Progressed { message } => {
                let now = self.shared.clock.now();
                let progress = &mut self.held().progress;
                let pause = if result.is_ok() { PROGRESS_PERIOD } else { STORE_PAUSE };
                progress.not_before = Some(now + pause);
                if result.is_err() {
                    // Nobody has seen it yet, unless there is newer progress.
                    progress.message.get_or_insert(message);
                }
            }
            AfterWrite::Anchored { has_event } => self.anchor_written(has_event, result.is_ok()),
        }
    }
}
