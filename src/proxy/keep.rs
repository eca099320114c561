//! Keeping what has become of a held task, through a store that fails.
//!
//! What happens to a call cannot be made to happen again: a result that the store does not take waits here,
//! with its call's place, until the store takes it. Nobody is shown what is not kept, so that nothing
//! that was seen can be lost; meanwhile the task is shown as it was last kept, and says that it waits.

use super::tasks::Hold;
use crate::{
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

// === impl Hold ===

impl Hold {
    /// Keeps what happened to the task of this call, as soon as the store takes it.
    ///
    /// # Errors
    /// [`StoreError`] where the proxy's time was over first: what happened is lost.
    pub(super) async fn keep(&self, event: Event, overdue: &Stopping) -> Result<Updated, StoreError> {
        let mut pause = FIRST_PAUSE;
        let mut waited = false;
        loop {
            let kept = self.tasks().change(self.id(), &event).await;
            let Err(error) = kept else {
                if waited {
                    self.tasks().set_waits(self.id(), false);
                }
                return kept;
            };
            if !std::mem::replace(&mut waited, true) {
                self.tasks().set_waits(self.id(), true);
            }
            tokio::select! {
                // A store that fails at the very end is not waited for.
                biased;
                () = overdue.stopped() => return Err(error),
                () = sleep(pause) => pause = (pause * 2).min(STORE_PAUSE),
            }
        }
    }
}
