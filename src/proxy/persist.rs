//! Storing what has become of a task, through a store that fails or is full.
//!
//! What happens to a call cannot be made to happen again: a result that the store does not take waits in memory,
//! with the place of its call, until the store takes it. Nobody is shown what is not stored, so that nothing
//! that was seen can be lost; meanwhile the task is shown as it was stored last, and says that it waits. A
//! result for which there is no room waits for nothing: its task fails with an error that names the limit.

use super::ledger::{TaskLease, TaskLedger, UnstoredBytes};
use crate::{
    protocol::{ErrorObject, code},
    runtime::DrainWatch,
    store::{StoreError, UpdateOutcome},
    task::{TaskEvent, TaskId},
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// The longest pause before a store that has failed is tried again. Longer pauses would only make results late;
/// shorter ones would fill the log.
pub(super) const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The first pause; each further one is twice as long. Most failures are short.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);

// === impl Custody ===

impl TaskLease {
    /// Stores what happened to the task, as soon as the store takes it.
    ///
    /// # Errors
    /// As [`persist`].
    pub async fn persist(&self, event: TaskEvent, overdue: &DrainWatch) -> Result<UpdateOutcome, StoreError> {
        persist(Arc::clone(&self.ledger), self.id.clone(), event, overdue.clone(), None).await
    }
}

/// Stores what happened to a task that is held here, as soon as the store takes it.
///
/// # Errors
/// [`StoreError::Full`] where there is no room for an input request; any other where the time of the proxy was over
/// first: what happened is lost.
pub(super) async fn persist(
    ledger: Arc<TaskLedger>,
    id: TaskId,
    mut event: TaskEvent,
    overdue: DrainWatch,
    mut aside: Option<UnstoredBytes>,
) -> Result<UpdateOutcome, StoreError> {
    let mut pause = FIRST_RETRY_DELAY;
    let (mut waits, mut is_counted) = (false, false);
    loop {
        let mut kept = ledger.change(&id, &event).await;
        let is_unavailable = matches!(kept, Err(StoreError::Exists | StoreError::Unavailable(_)));
        if is_unavailable && aside.is_none() {
            match ledger.buffer_result(stored_size(&event)) {
                Ok(taken) => aside = Some(taken),
                Err(full) => kept = Err(full),
            }
        }
        if let Err(StoreError::Full(limit)) = &kept
            && !is_counted
        {
            ledger.log_quota_full(&id, limit);
            is_counted = true;
        }
        match (kept, result_bytes(&event)) {
            (Err(StoreError::Full(limit)), Some(size)) => {
                event = no_space_event(size, limit);
                continue;
            }
            // No quota refuses what hardly takes room: the disk itself is full.
            (Err(StoreError::Full(_)), None) if !is_droppable(&event) => {}
            (Err(StoreError::Exists | StoreError::Unavailable(_)), _) => {}
            (kept @ (Ok(_) | Err(StoreError::Full(_))), _) => {
                if waits {
                    ledger.set_unstored(&id, false);
                }
                return kept;
            }
        }
        if !waits {
            ledger.set_unstored(&id, true);
            waits = true;
        }
        tokio::select! {
            // A store that fails at the very end is not waited for.
            biased;
            () = overdue.stopped() => return Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
            () = sleep(pause) => pause = (pause * 2).min(STORE_RETRY_DELAY),
        }
    }
}

/// Counts the bytes of an event that has to wait behind others. A result for which there is no room is replaced by an
/// error.
///
/// # Errors
/// [`StoreError::Full`] where there is no room for an input request.
pub(super) fn buffer(
    ledger: &Arc<TaskLedger>,
    id: &TaskId,
    event: TaskEvent,
) -> Result<(TaskEvent, UnstoredBytes), StoreError> {
    let full = match ledger.buffer_result(stored_size(&event)) {
        Ok(aside) => return Ok((event, aside)),
        Err(full) => full,
    };
    let StoreError::Full(limit) = &full else { return Err(full) };
    ledger.log_quota_full(id, limit);
    let event = no_space_event(result_bytes(&event).ok_or(StoreError::Full(limit))?, limit);
    let aside = ledger.buffer_result(stored_size(&event))?;
    Ok((event, aside))
}

/// Whether an event may be dropped where the store has no room: its sender can be refused it, or says it again.
fn is_droppable(event: &TaskEvent) -> bool {
    matches!(
        event,
        TaskEvent::InputRequested { .. } | TaskEvent::Progressed { .. } | TaskEvent::ServerDescribed { .. }
    )
}

/// What an event brings along that must be stored.
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

/// The size of what a call came to, where an error can take its place.
fn result_bytes(event: &TaskEvent) -> Option<usize> {
    match event {
        TaskEvent::Returned { result } => Some(result.len()),
        TaskEvent::Failed { error, .. } if error.len() > NO_SPACE_EVENT_BYTES => Some(error.len()),
        _ => None,
    }
}

/// More than [`no_space_event`] ever needs.
pub(super) const NO_SPACE_EVENT_BYTES: usize = 512;

/// The end of a task whose result has no room.
fn no_space_event(size: usize, limit: &str) -> TaskEvent {
    let words = format!("what the call came to is {size} bytes, and the proxy has no room for it ({limit})");
    let error = ErrorObject::new(code::RESULT_TOO_LARGE, words);
    TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}
