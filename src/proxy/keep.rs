//! Keeping what has become of a held task, through a store that fails or is full.
//!
//! What happens to a call cannot be made to happen again: a result that the store does not take waits here,
//! with its call's place, until the store takes it. Nobody is shown what is not kept, so that nothing
//! that was seen can be lost; meanwhile the task is shown as it was last kept, and says that it waits. A
//! result for which there is no room waits for nothing: its task fails with an error that names the limit.

use super::ledger::Custody;
use crate::{
    protocol::{ErrorObject, code},
    runtime::Stopping,
    store::{StoreError, Updated},
    task::Event,
};
use std::time::Duration;
use tokio::time::sleep;

/// How long a store that has failed is let be, at most, before it is asked again. Longer waits would only
/// make results late; shorter ones would fill the log.
pub(super) const STORE_PAUSE: Duration = Duration::from_secs(5);

/// How long it is let be the first time; twice as long each further time. Most failures are a moment's.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

// === impl Custody ===

impl Custody {
    /// Keeps what happened to the task, as soon as the store takes it.
    ///
    /// # Errors
    /// [`StoreError::Full`] where there is no room for a question; any other where the proxy's time was
    /// over first: what happened is lost.
    pub async fn keep(&self, mut event: Event, overdue: &Stopping) -> Result<Updated, StoreError> {
        let Self { ledger, id } = self;
        let mut pause = FIRST_PAUSE;
        let mut aside = None;
        loop {
            let mut kept = ledger.change(id, &event).await;
            if matches!(kept, Err(StoreError::Exists | StoreError::Unavailable(_))) && aside.is_none() {
                match ledger.set_aside(bytes(&event)) {
                    Ok(taken) => {
                        ledger.set_waits(id, true);
                        aside = Some(taken);
                    }
                    Err(full) => kept = Err(full),
                }
            }
            match (kept, result_bytes(&event)) {
                (Err(StoreError::Full(limit)), Some(size)) => {
                    ledger.is_full(id, limit);
                    event = no_room(size, limit);
                    continue;
                }
                // Not even the error has room: the disk itself is full. The end of a task is never given up.
                (Err(StoreError::Full(_)), None)
                    if matches!(event, Event::Returned { .. } | Event::Failed { .. } | Event::Cancelled) => {}
                (Err(StoreError::Exists | StoreError::Unavailable(_)), _) => {}
                (kept @ (Ok(_) | Err(StoreError::Full(_))), _) => {
                    if aside.is_some() {
                        ledger.set_waits(id, false);
                    }
                    return kept;
                }
            }
            tokio::select! {
                // A store that fails at the very end is not waited for.
                biased;
                () = overdue.stopped() => return Err(StoreError::Unavailable("the proxy has stopped".to_owned())),
                () = sleep(pause) => pause = (pause * 2).min(STORE_PAUSE),
            }
        }
    }
}

/// What an event brings along that must be kept.
fn bytes(event: &Event) -> usize {
    match event {
        Event::Returned { result } => result.len(),
        Event::Failed { error, .. } => error.len(),
        Event::Asked { request, .. } => request.len(),
        Event::Progressed { .. }
        | Event::Withdrawn { .. }
        | Event::Answered { .. }
        | Event::Delivered { .. }
        | Event::Cancelled
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
