//! Stores the clock for the next process.
//!
//! Task records use a time line that steps of the wall clock do not move
//! ([`SteadyClock`](crate::runtime::SteadyClock)). The next process derives the time line from the wall clock
//! and the stored offset between the two. The offset is stored by the sweep, and before a task is created or
//! ends, because from then on a client relies on the task's times.

use crate::{
    dialect::Principal,
    protocol::{ClockOffset, ClockReading},
    proxy::TaskLedger,
};
use std::time::Duration;
use tokio::sync::Mutex;

/// The last clock reading in the store. Locked while another reading is being stored, so that readings are
/// stored in order.
pub(in crate::proxy) struct StoredClock(Mutex<Option<ClockReading>>);

/// How far the time line may be ahead of its stored time while there are tasks. If the process is killed and
/// the wall clock is set back before the next start, tasks are kept longer by up to this time. Each update is
/// a write to the disk.
const CLOCK_STORE_INTERVAL: Duration = Duration::from_secs(60);

// === impl StoredClock ===

impl StoredClock {
    /// Creates it with the reading that the former process stored, if there is one.
    pub(in crate::proxy) fn new(stored: Option<ClockReading>) -> Self {
        Self(Mutex::new(stored))
    }
}

impl TaskLedger {
    /// Stores the clock reading if the wall clock was stepped, or if the stored reading is older than
    /// [`CLOCK_STORE_INTERVAL`]. Called before a task is stored, because the next process needs the reading to
    /// interpret the task's times. A failure is logged, and the sweep tries again.
    pub(in crate::proxy) async fn store_clock(&self) {
        self.store_clock_if(|stored, now| has_stepped(stored, now) || is_outdated(stored, now)).await;
    }

    /// Stores the clock reading like [`TaskLedger::store_clock`], but does not refresh an old reading while
    /// there are no tasks; called by the sweep.
    pub(in crate::proxy) async fn refresh_clock(&self) {
        let has_tasks = || self.store.usage(Principal::ANONYMOUS.as_bytes()).tasks > 0;
        self.store_clock_if(|stored, now| {
            has_stepped(stored, now) || is_outdated(stored, now) && has_tasks()
        })
        .await;
    }

    /// Stores the current clock reading at the end of the process, if the store outlives it.
    pub(in crate::proxy) async fn store_final_clock(&self) {
        if self.is_durable() {
            self.store_clock_if(|stored, now| stored != Some(now)).await;
        }
    }

    async fn store_clock_if(&self, is_due: impl FnOnce(Option<ClockReading>, ClockReading) -> bool) {
        let mut stored = self.stored_clock.0.lock().await;
        let now = self.clock.reading();
        if is_due(*stored, now) {
            match self.store.store_clock(now).await {
                Ok(()) => *stored = Some(now),
                Err(error) => self.log_failure("storing the clock", &error),
            }
        }
    }
}

/// Whether the stored reading is missing, or older than [`CLOCK_STORE_INTERVAL`].
fn is_outdated(stored: Option<ClockReading>, now: ClockReading) -> bool {
    stored.is_none_or(|stored| now.time.since(stored.time) >= CLOCK_STORE_INTERVAL)
}

/// Whether the wall clock was stepped since the stored reading.
fn has_stepped(stored: Option<ClockReading>, now: ClockReading) -> bool {
    stored.map_or(ClockOffset::ZERO, |stored| stored.offset) != now.offset
}
