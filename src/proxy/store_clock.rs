//! Stores the clock for the next process.
//!
//! Records use a time line that steps of the wall clock do not move ([`SteadyClock`](crate::runtime::SteadyClock)). The next
//! process continues it by the wall clock, and needs the offset for that. The offset is stored before a task is created or
//! ends, so before a client relies on it, and by the sweep.

use super::TaskLedger;
use crate::{
    dialect::Principal,
    protocol::{ClockOffset, ClockReading},
};
use std::time::Duration;
use tokio::sync::Mutex;

/// The last stored reading. Locked while another is being stored, so that the last reading is the one that stays.
pub(super) struct StoredClock(Mutex<Option<ClockReading>>);

/// How far the time line may be ahead of its stored time while there are tasks. If the process is killed, and the wall
/// clock set back before the next one, tasks are kept that much longer. Each update is a write to the disk.
const KEPT_WITHIN: Duration = Duration::from_secs(60);

// === impl StoredClock ===

impl StoredClock {
    pub(super) fn new(kept: Option<ClockReading>) -> Self {
        Self(Mutex::new(kept))
    }
}

impl TaskLedger {
    /// Stores the clock if the wall clock was stepped or the stored time is behind, before a task is stored that the next
    /// process measures by it. If that fails, the sweep tries again.
    pub(super) async fn keep_clock(&self) {
        self.keep_clock_if(|kept, now| has_stepped(kept, now) || is_behind(kept, now)).await;
    }

    /// The same for the sweep, which does not write to a store without tasks.
    pub(super) async fn sweep_clock(&self) {
        let has_tasks = || self.store.usage(Principal::ANONYMOUS.as_bytes()).tasks > 0;
        self.keep_clock_if(|kept, now| has_stepped(kept, now) || is_behind(kept, now) && has_tasks()).await;
    }

    /// Stores the time of the line when the process ends.
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
                Err(error) => self.log_failure("storing the clock", &error),
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
