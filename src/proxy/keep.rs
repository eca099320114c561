//! Storing what has become of a task, through a store that fails or is full.
//!
//! What happens to a call cannot be made to happen again: a result that the store does not take waits in memory,
//! with the place of its call, until the store takes it. Nobody is shown what is not stored, so that nothing
//! that was seen can be lost; meanwhile the task is shown as it was stored last, and says that it waits. A
//! result for which there is no room waits for nothing: its task fails with an error that names the limit.

use super::ledger::{Aside, Custody, Ledger};
use crate::{
    protocol::{ErrorObject, code},
    runtime::Stopping,
    store::{StoreError, Updated},
    task::{Event, TaskId},
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// The longest pause before a store that has failed is tried again. Longer pauses would only make results late;
/// shorter ones would fill the log.
pub(super) const STORE_PAUSE: Duration = Duration::from_secs(5);

/// The first pause; each further one is twice as long. Most failures are short.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

// === impl Custody ===

impl Custody {
    /// Stores what happened to the task, as soon as the store takes it.
    ///
    /// # Errors
    /// As [`keep`].
    pub async fn keep(&self, event: Event, overdue: &Stopping) -> Result<Updated, StoreError> {
        keep(Arc::clone(&self.ledger), self.id.clone(), event, overdue.clone(), None).await
    }
}

/// Stores what happened to a task that is held here, as soon as the store takes it.
///
/// # Errors
/// [`StoreError::Full`] where there is no room for an input request; any other where the time of the proxy was over
/// first: what happened is lost.
pub(super) async fn keep(
    ledger: Arc<Ledger>,
    id: TaskId,
    mut event: Event,
    overdue: Stopping,
    mut aside: Option<Aside>,
) -> Result<Updated, StoreError> {
    let mut pause = FIRST_PAUSE;
    let (mut waits, mut is_counted) = (false, false);
    loop {
        let mut kept = ledger.change(&id, &event).await;
        let is_unavailable = matches!(kept, Err(StoreError::Exists | StoreError::Unavailable(_)));
        if is_unavailable && aside.is_none() {
            match ledger.set_aside(bytes(&event)) {
                Ok(taken) => aside = Some(taken),
                Err(full) => kept = Err(full),
            }
        }
        if let Err(StoreError::Full(limit)) = &kept
            && !is_counted
        {
            ledger.refused_as_full(&id, limit);
            is_counted = true;
        }
        match (kept, result_bytes(&event)) {
            (Err(StoreError::Full(limit)), Some(size)) => {
                event = no_room(size, limit);
                continue;
            }
            // No quota refuses what hardly takes room: the disk itself is full.
            (Err(StoreError::Full(_)), None) if !may_be_given_up(&event) => {}
            (Err(StoreError::Exists | StoreError::Unavailable(_)), _) => {}
            (kept @ (Ok(_) | Err(StoreError::Full(_))), _) => {
                if waits {
                    ledger.set_waits(&id, false);
                }
                return kept;
            }
        }
        if !waits {
            ledger.set_waits(&id, true);
            waits = true;
        }
        tokio::select! {
            // A store that fails at the very end is not waited for.
            biased;
            () = overdue.stopped() => return Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
            () = sleep(pause) => pause = (pause * 2).min(STORE_PAUSE),
        }
    }
}

/// Counts the bytes of an event that has to wait behind others. A result for which there is no room is replaced by an
/// error.
///
/// # Errors
/// [`StoreError::Full`] where there is no room for an input request.
pub(super) fn buffer(ledger: &Arc<Ledger>, id: &TaskId, event: Event) -> Result<(Event, Aside), StoreError> {
    let full = match ledger.set_aside(bytes(&event)) {
        Ok(aside) => return Ok((event, aside)),
        Err(full) => full,
    };
    let StoreError::Full(limit) = &full else { return Err(full) };
    ledger.refused_as_full(id, limit);
    let event = no_room(result_bytes(&event).ok_or(StoreError::Full(limit))?, limit);
    let aside = ledger.set_aside(bytes(&event))?;
    Ok((event, aside))
}

/// Whether an event may be dropped where the store has no room: its sender can be refused it, or says it again.
fn may_be_given_up(event: &Event) -> bool {
    matches!(event, Event::Asked { .. } | Event::Progressed { .. } | Event::Described { .. })
}

/// What an event brings along that must be stored.
fn bytes(event: &Event) -> usize {
    match event {
        Event::Returned { result } => result.len(),
        Event::Failed { error, .. } => error.len(),
        Event::Asked { request, .. } => request.len(),
        Event::Progressed { .. }
        | Event::Withdrawn { .. }
        | Event::Answered { .. }
        | Event::Delivered { .. }
        | Event::Described { .. }
        | Event::Cancelled { .. }
        | Event::Renewed => 0,
    }
}

/// The size of what a call came to, where an error can take its place.
fn result_bytes(event: &Event) -> Option<usize> {
    match event {
        Event::Returned { result } => Some(result.len()),
        Event::Failed { error, .. } if error.len() > NO_ROOM_BYTES => Some(error.len()),
        _ => None,
    }
}

/// More than [`no_room`] ever needs.
pub(super) const NO_ROOM_BYTES: usize = 512;

/// The end of a task whose result has no room.
fn no_room(size: usize, limit: &str) -> Event {
    let words = format!("what the call came to is {size} bytes, and the proxy has no room for it ({limit})");
    let error = ErrorObject::new(code::RESULT_TOO_LARGE, words);
    Event::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}
