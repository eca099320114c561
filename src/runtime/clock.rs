//! The only place that reads the time.
//!
//! There are three kinds of time: [`std::time::Instant`] for waiting, [`Timestamp`] for values that are stored, and
//! [`WallTime`] for values that are displayed. Everywhere else all are arguments.

use super::{PooledTimer, TimerKind, or_pending};
use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use crate::protocol::{ClockOffset, ClockReading, Timestamp, WallTime};

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// The time for waiting.
    fn now(&self) -> Instant;

    /// The time for values that are stored.
    fn timestamp(&self) -> Timestamp;

    /// The same time with the offset of the wall clock, for values that are displayed. A [`SteadyClock`] also reads the
    /// wall clock.
    fn reading(&self) -> ClockReading {
        ClockReading { time: self.timestamp(), offset: ClockOffset::ZERO }
    }
}

/// The system's clock. It reads tokio's clock, so a test that pauses time pauses this too.
///
/// The wall clock is read once and advanced by the monotonic one: displayed times are wrong once the wall clock is
/// stepped. Stores use a [`SteadyClock`].
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

/// The clock of a store: a time line that continues from one process to the next and that steps of the wall clock do not
/// move, with the offset of the wall clock.
///
/// While a process runs, the line advances with tokio's (monotonic) clock. Only the wall clock knows how much time passed
/// between two processes: [`SteadyClock::resume`] reads it.
pub struct SteadyClock {
    line: SystemClock,
    wall: Box<ReadWall>,
    /// Offset in milliseconds, as of the last step.
    offset: AtomicI64,
}

/// Reads the wall clock.
type ReadWall = dyn Fn() -> WallTime + Send + Sync;

/// Difference of the wall clock that does not change the offset: the two clocks are read in succession, and the wall
/// clock may be slewed.
const STEP_TOLERANCE: Duration = Duration::from_secs(1);

/// The wall clock, for the log alone: its lines must have the same time as those of other programs on this
/// machine, even where the clock is stepped.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Time of the wall clock, in milliseconds. A time before the epoch counts as the epoch.
pub fn wall_time() -> WallTime {
    let since_epoch = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

// === impl SystemClock ===

impl SystemClock {
    pub fn new() -> Self {
        Self::starting_at(wall_time().on_line(ClockOffset::ZERO))
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
    /// Continues after the last stored reading; a new line starts at the wall clock. `wall` reads the wall clock.
    ///
    /// The wall clock says how much time has passed since; none if it was set back. So no result is kept for years
    /// because the clock had been far ahead, and no task is older than one that was created before it.
    pub fn resume(kept: Option<ClockReading>, wall: impl Fn() -> WallTime + Send + Sync + 'static) -> Self {
        let found = wall();
        let time = match kept {
            Some(kept) => found.on_line(kept.offset).max(kept.time),
            None => found.on_line(ClockOffset::ZERO),
        };
        Self {
            line: SystemClock::starting_at(time),
            wall: Box::new(wall),
            offset: AtomicI64::new(found.ahead_of(time).as_millis()),
        }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Instant {
        self.line.now()
    }

    fn timestamp(&self) -> Timestamp {
        self.line.timestamp()
    }

    fn reading(&self) -> ClockReading {
        let time = self.timestamp();
        let found = (self.wall)().ahead_of(time);
        let known = ClockOffset::from_millis(self.offset.load(Ordering::Relaxed));
        if found.differs_by(known) <= STEP_TOLERANCE {
            return ClockReading { time, offset: known };
        }
        // If two threads find a step at once, either offset is right.
        self.offset.store(found.as_millis(), Ordering::Relaxed);
        ClockReading { time, offset: found }
    }
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, offset, .. } = self;
        f.debug_struct("SteadyClock").field("line", line).field("offset", offset).finish_non_exhaustive()
    }
}

/// Resolves at `due`; never for `None`.
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
        (reading.time.as_millis(), reading.wall().as_millis())
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
