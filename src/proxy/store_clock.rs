//! The clock of what is kept, as the next process needs it.
//!
//! Records are judged by a time line that no step of the wall clock moves ([`SteadyClock`](crate::runtime::SteadyClock)).
//! The next process goes on with it by the wall clock, for which it must know by how much that had been stepped. So the store
//! is told before a client is promised anything, with the task that is made and with the one that ends, and by the sweep.

use super::TaskLedger;
use crate::{
    dialect::Principal,
    protocol::{ClockOffset, ClockReading},
};
use std::time::Duration;
use tokio::sync::Mutex;

/// What the store has kept of the clock last. Locked while it is kept anew, so that the last reading is the one that stays.
pub(super) struct KeptClock(Mutex<Option<ClockReading>>);

/// How far the time line may be ahead of what is kept of it, while there are tasks. Where the process is killed, and the
/// wall clock set back before the next, they are kept so much longer than was promised. Each time costs a write of the disk.
const KEPT_WITHIN: Duration = Duration::from_secs(60);

// === impl KeptClock ===

impl KeptClock {
    pub(super) fn new(kept: Option<ClockReading>) -> Self {
        Self(Mutex::new(kept))
    }
}

impl TaskLedger {
    /// Has the store keep that the wall clock was stepped, or that the time line is further, where what is kept says
    /// otherwise: before a task is kept that the next process judges by it. Where that fails the sweep tries again.
    pub(super) async fn keep_clock(&self) {
        self.keep_clock_if(|kept, now| has_stepped(kept, now) || is_behind(kept, now)).await;
    }

    /// The same from time to time: an idle store without tasks is not written to.
    pub(super) async fn sweep_clock(&self) {
        let has_tasks = || self.store.usage(Principal::ANONYMOUS.as_bytes()).tasks > 0;
        self.keep_clock_if(|kept, now| has_stepped(kept, now) || is_behind(kept, now) && has_tasks()).await;
    }

    /// Has the store keep how far the time line is where this process ends.
    pub(super) async fn keep_last_clock(&self) {
        if self.outlives() {
            self.keep_clock_if(|kept, now| kept != Some(now)).await;
        }
    }

    async fn keep_clock_if(&self, is_due: impl FnOnce(Option<ClockReading>, ClockReading) -> bool) {
        let mut kept = self.kept_clock.0.lock().await;
        let now = self.clock.reading();
        if is_due(*kept, now) {
            match self.store.keep_clock(now).await {
                Ok(()) => *kept = Some(now),
                Err(error) => self.log_failure("keeping the clock", &error),
            }
        }
    }
}

fn is_behind(kept: Option<ClockReading>, now: ClockReading) -> bool {
    kept.is_none_or(|kept| now.time.since(kept.time) >= KEPT_WITHIN)
}

fn has_stepped(kept: Option<ClockReading>, now: ClockReading) -> bool {
    kept.map_or(ClockOffset::ZERO, |kept| kept.offset) != now.offset
}
