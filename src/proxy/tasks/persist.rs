//! Storing the events of a task in spite of a failed or full store.
//!
//! The events of a call cannot be repeated. Therefore a result that a failed store does not take waits in
//! memory, and the lease of its task is held, until the store takes the result. Clients see only what is
//! stored, so that nothing they have seen can be lost: meanwhile the task is shown as it was last stored,
//! with a status message that says so. A result that exceeds a limit does not wait: its task fails with an
//! error that names the limit.

use super::{
    ledger::{TaskLease, TaskLedger},
    quotas::{NO_SPACE_EVENT_BYTES, UnstoredBytes},
};
use crate::{
    protocol::{ErrorObject, code},
    runtime::DrainWatch,
    store::{StoreError, UpdateOutcome},
    task::{TaskEvent, TaskId},
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// The longest pause before a failed store is tried again. A longer pause would only delay results; a shorter
/// one would fill the log.
pub(in crate::proxy) const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The first pause; each further one is twice as long. Most failures are short.
pub(in crate::proxy) const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);

// === impl TaskLease ===

impl TaskLease {
    /// Stores an event of the leased task, with retries until the store takes it or the drain time is over
    /// (`overdue`).
    ///
    /// # Errors
    /// Those of [`persist`].
    pub async fn persist(&self, event: TaskEvent, overdue: &DrainWatch) -> Result<UpdateOutcome, StoreError> {
        persist(Arc::clone(&self.ledger), self.id.clone(), event, overdue.clone(), None).await
    }
}

/// Stores an event of a task that this process owns, with retries until the store takes it or the drain time
/// is over (`overdue`). A result without space is replaced by an error. `buffered` accounts for the bytes of an
/// event that was buffered before.
///
/// # Errors
/// [`StoreError::Full`] if there is no space for an event that may be dropped, such as an input request; any
/// other error if the process ends first: then the event is lost.
pub(in crate::proxy) async fn persist(
    ledger: Arc<TaskLedger>,
    id: TaskId,
    mut event: TaskEvent,
    overdue: DrainWatch,
    mut buffered: Option<UnstoredBytes>,
) -> Result<UpdateOutcome, StoreError> {
    let mut pause = FIRST_RETRY_DELAY;
    let (mut is_marked, mut is_counted) = (false, false);
    loop {
        let mut outcome = ledger.change(&id, &event).await;
        let is_unavailable = matches!(outcome, Err(StoreError::Exists | StoreError::Unavailable(_)));
        if is_unavailable && buffered.is_none() {
            match ledger.buffer_result(stored_size(&event)) {
                Ok(buffered_bytes) => buffered = Some(buffered_bytes),
                Err(full) => outcome = Err(full),
            }
        }
        if let Err(StoreError::Full(limit)) = &outcome
            && !is_counted
        {
            ledger.log_quota_full(&id, limit);
            is_counted = true;
        }
        match (outcome, result_bytes(&event)) {
            (Err(StoreError::Full(limit)), Some(size)) => {
                event = no_space_event(size, limit);
                continue;
            }
            // No quota refuses an event of this size: the disk itself is full.
            (Err(StoreError::Full(_)), None) if !is_droppable(&event) => {}
            (Err(StoreError::Exists | StoreError::Unavailable(_)), _) => {}
            (outcome @ (Ok(_) | Err(StoreError::Full(_))), _) => {
                if is_marked {
                    ledger.set_unstored(&id, false);
                }
                return outcome;
            }
        }
        if !is_marked {
            ledger.set_unstored(&id, true);
            is_marked = true;
        }
        tokio::select! {
            // The end of the process does not wait for a failed store.
            biased;
            () = overdue.stopped() => return Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
            () = sleep(pause) => pause = (pause * 2).min(STORE_RETRY_DELAY),
        }
    }
}

/// Counts the bytes of an event that waits in memory behind other events of its task. A result without space
/// is replaced by an error event.
///
/// # Errors
/// [`StoreError::Full`] if there is no space for an input request.
pub(in crate::proxy) fn buffer_event(
    ledger: &Arc<TaskLedger>,
    id: &TaskId,
    event: TaskEvent,
) -> Result<(TaskEvent, UnstoredBytes), StoreError> {
    let full = match ledger.buffer_result(stored_size(&event)) {
        Ok(buffered) => return Ok((event, buffered)),
        Err(full) => full,
    };
    let StoreError::Full(limit) = &full else { return Err(full) };
    ledger.log_quota_full(id, limit);
    let event = no_space_event(result_bytes(&event).ok_or(StoreError::Full(limit))?, limit);
    let buffered = ledger.buffer_result(stored_size(&event))?;
    Ok((event, buffered))
}

/// Whether an event may be dropped if the store is full: the server gets an error for the request, or reports
/// progress again.
fn is_droppable(event: &TaskEvent) -> bool {
    matches!(
        event,
        TaskEvent::InputRequested { .. } | TaskEvent::Progressed { .. } | TaskEvent::ServerDescribed { .. }
    )
}

/// The number of bytes that storing the event adds to the record; 0 for small events.
fn stored_size(event: &TaskEvent) -> usize {
    match event {
        TaskEvent::Returned { result } => result.len(),
        TaskEvent::Failed { error, .. } => error.len(),
        TaskEvent::InputRequested { request, .. } => request.len(),
        TaskEvent::Progressed { .. }
        | TaskEvent::InputWithdrawn { .. }
        | TaskEvent::InputAnswered { .. }
        | TaskEvent::InputDelivered { .. }
        | TaskEvent::ServerDescribed { .. }
        | TaskEvent::Cancelled { .. }
        | TaskEvent::TtlRenewed => 0,
    }
}

/// The size in bytes of a result or an error that can be replaced by a shorter error; `None` for other
/// events.
fn result_bytes(event: &TaskEvent) -> Option<usize> {
    match event {
        TaskEvent::Returned { result } => Some(result.len()),
        TaskEvent::Failed { error, .. } if error.len() > NO_SPACE_EVENT_BYTES => Some(error.len()),
        _ => None,
    }
}

/// The event that fails a task whose result of `size` bytes exceeds this limit.
fn no_space_event(size: usize, limit: &str) -> TaskEvent {
    let message = format!("the result is {size} bytes, and there is no space to store it ({limit})");
    let error = ErrorObject::new(code::RESULT_TOO_LARGE, message);
    TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}
