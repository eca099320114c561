//! The only place that reads the time.
//!
//! There are three kinds of time: [`std::time::Instant`] for waiting, [`Timestamp`] for values that are
//! stored, and [`WallTime`] for values that are displayed. Other code gets them as arguments.

use super::{PooledTimer, TimerKind, or_pending};
use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use crate::protocol::{ClockOffset, ClockReading, Timestamp, WallTime};

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// The monotonic time, for waiting and for durations.
    fn now(&self) -> Instant;

    /// The time on the steady time line, for values that are stored.
    fn timestamp(&self) -> Timestamp;

    /// The time on the steady time line, and the offset of the wall clock from it, for values that are
    /// displayed. A [`SteadyClock`] also reads the wall clock here; the default offset is zero.
    fn reading(&self) -> ClockReading {
        ClockReading { time: self.timestamp(), offset: ClockOffset::ZERO }
    }
}

/// The system's clock. It uses tokio's clock, so a test that pauses time pauses this clock too.
///
/// The wall clock is read once and advanced by the monotonic clock, so displayed times are wrong once the
/// wall clock is stepped. Stores use a [`SteadyClock`].
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

/// The clock of a store: a time line that continues from one process to the next and that steps of the wall
/// clock do not move, with the offset of the wall clock from it.
///
/// While a process runs, the time line advances with tokio's (monotonic) clock. Only the wall clock shows how
/// much time passed between two processes: [`SteadyClock::resume`] reads it.
pub struct SteadyClock {
    steady: SystemClock,
    read_wall: Box<WallClockReader>,
    /// The offset of the wall clock in milliseconds, as of its last step.
    offset: AtomicI64,
}

/// A function that reads the wall clock.
type WallClockReader = dyn Fn() -> WallTime + Send + Sync;

/// Maximum change of the wall clock's offset that does not count as a step: the two clocks are read in
/// succession, and the wall clock may be slewed.
const STEP_TOLERANCE: Duration = Duration::from_secs(1);

/// The wall clock's current time, for the log: log lines must have the same time as those of other programs
/// on this machine, even where the clock is stepped.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The wall clock's current time. A time before the epoch counts as the epoch.
pub fn wall_time() -> WallTime {
    let since_epoch = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

// === impl SystemClock ===

impl SystemClock {
    /// Reads the wall clock, and starts the time line there.
    pub fn new() -> Self {
        Self::starting_at(wall_time().to_timestamp(ClockOffset::ZERO))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn starting_at(started_at: Timestamp) -> Self {
        Self { started: tokio::time::Instant::now().into_std(), started_at }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn timestamp(&self) -> Timestamp {
        self.started_at + (self.now() - self.started)
    }
}

// === impl SteadyClock ===

impl SteadyClock {
    /// Continues the time line after the last stored reading (`stored`); without one, a new time line starts
    /// at the wall clock. `read_wall` reads the wall clock.
    ///
    /// The time that has passed since the stored reading is that of the wall clock, or none if the wall clock
    /// was set back. So no result is kept for years because the clock had been far ahead, and no task is
    /// older than one that was created before it.
    pub fn resume(
        stored: Option<ClockReading>,
        read_wall: impl Fn() -> WallTime + Send + Sync + 'static,
    ) -> Self {
        let current = read_wall();
        let time = match stored {
            Some(stored) => current.to_timestamp(stored.offset).max(stored.time),
            None => current.to_timestamp(ClockOffset::ZERO),
        };
        Self {
            steady: SystemClock::starting_at(time),
            read_wall: Box::new(read_wall),
            offset: AtomicI64::new(current.offset_from(time).as_millis()),
        }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Instant {
        self.steady.now()
    }

    fn timestamp(&self) -> Timestamp {
        self.steady.timestamp()
    }

    fn reading(&self) -> ClockReading {
        let time = self.timestamp();
        let current = (self.read_wall)().offset_from(time);
        let stored = ClockOffset::from_millis(self.offset.load(Ordering::Relaxed));
        if current.abs_diff(stored) <= STEP_TOLERANCE {
            return ClockReading { time, offset: stored };
        }
        // If two threads notice a step at once, either offset is right.
        self.offset.store(current.as_millis(), Ordering::Relaxed);
        ClockReading { time, offset: current }
    }
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steady, offset, .. } = self;
        f.debug_struct("SteadyClock").field("line", steady).field("offset", offset).finish_non_exhaustive()
    }
}

/// Waits until `due`; for ever if it is `None`.
pub async fn wait_until(due: Option<Instant>) {
    or_pending(due.map(|due| PooledTimer::at(due, TimerKind::Response))).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, atomic::AtomicU64};
    use tokio::time::advance;

    const START: u64 = 1_785_234_600_000;
    const HOUR: u64 = 3_600_000;

    /// A wall clock that is set by the test.
    #[derive(Clone, Default)]
    struct Wall(Arc<AtomicU64>);

    impl Wall {
        fn set(&self, millis: u64) {
            self.0.store(millis, Ordering::Relaxed);
        }

        fn clock(&self, kept: Option<ClockReading>) -> SteadyClock {
            let wall = Arc::clone(&self.0);
            SteadyClock::resume(kept, move || WallTime::from_millis(wall.load(Ordering::Relaxed)))
        }
    }

    fn wall() -> Wall {
        let wall = Wall::default();
        wall.set(START);
        wall
    }

    fn millis(reading: ClockReading) -> (u64, u64) {
        (reading.time.as_millis(), reading.wall_time().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_moves_the_wall_time_and_not_the_time_line() {
        let wall = wall();
        let clock = wall.clock(None);
        assert_eq!(millis(clock.reading()), (START, START));
        advance(Duration::from_secs(10)).await;
        let mut steady = START + 10_000;
        for stepped in [steady + 8 * HOUR, 7, steady - 400 * 24 * HOUR, steady] {
            wall.set(stepped);
            assert_eq!(millis(clock.reading()), (steady, stepped));
            advance(Duration::from_secs(1)).await;
            steady += 1_000;
            wall.set(stepped + 1_000);
            assert_eq!(millis(clock.reading()), (steady, stepped + 1_000));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_below_the_tolerance_changes_nothing() {
        let wall = wall();
        let clock = wall.clock(None);
        for near in [START + 1_000, START - 1_000] {
            wall.set(near);
            assert_eq!(millis(clock.reading()), (START, START));
        }
        wall.set(START - 1_001);
        assert_eq!(millis(clock.reading()), (START, START - 1_001));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_process_continues_the_line_by_the_wall_clock_and_never_backwards() {
        let wall = wall();
        let first = wall.clock(None);
        wall.set(START + 8 * HOUR);
        let kept = first.reading();
        for (found, time) in [
            (START + 9 * HOUR, START + HOUR),
            (START + 8 * HOUR, START),
            // The wall clock was set back while no process ran.
            (START, START),
            (0, START),
        ] {
            wall.set(found);
            let next = wall.clock(Some(kept));
            assert_eq!(millis(next.reading()), (time, found));
            // The process was killed before it stored a reading.
            assert_eq!(millis(wall.clock(Some(kept)).reading()), (time, found));
        }
    }
}
