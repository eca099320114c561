//! The only place that asks what time it is.
//!
//! There are three kinds of time: [`std::time::Instant`] for waiting, [`Timestamp`] for what is stored, and [`WallTime`]
//! for what is shown. All arrive as arguments everywhere else.

use super::{PooledTimer, TimerKind, or_pending};
use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use crate::protocol::{ClockOffset, ClockReading, Timestamp, WallTime};

/// A source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// For waiting.
    fn now(&self) -> Instant;

    /// For what is stored.
    fn timestamp(&self) -> Timestamp;

    /// The same, with how far the wall clock is ahead: for what is shown. Reads that clock, too, where it is followed.
    fn reading(&self) -> ClockReading {
        ClockReading { time: self.timestamp(), offset: ClockOffset::ZERO }
    }
}

/// Reads tokio's clock, so a test that pauses time pauses this too.
///
/// The wall clock is read once and moved on by the monotonic one: what is shown by it may be wrong once the wall clock is
/// stepped. What is kept in a store has a [`SteadyClock`].
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

/// The clock of what is kept in a store: a time line from one process to the next that no step of the wall clock moves,
/// and how far the wall clock is ahead of it.
///
/// While a process runs the line moves with tokio's (monotonic) clock. Between two processes nothing but the wall clock
/// can tell how long it was: [`SteadyClock::resume`] reads it.
pub struct SteadyClock {
    line: SystemClock,
    wall: Box<ReadWall>,
    /// In milliseconds; the wall clock's as it was last found to have been stepped.
    offset: AtomicI64,
}

/// Reads the wall clock.
type ReadWall = dyn Fn() -> WallTime + Send + Sync;

/// How far the wall clock may be from where it was last found before the offset follows. Less is no step: two clocks are
/// read one after the other, and are slewed.
const STEP_TOLERANCE: Duration = Duration::from_secs(1);

/// What the wall clock shows. The log has it as it is: a line must have the time that other programs on this machine write
/// beside theirs, even where somebody moves the clock.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// What the wall clock shows, in milliseconds. One that is before the epoch shows the epoch.
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
    /// Goes on behind the last reading that was kept; a new line shows what the wall clock does. `wall` reads the wall
    /// clock.
    ///
    /// As much time has passed since as the wall clock says; none, where it was set back. So a result is neither kept for
    /// years because the clock had been far ahead, nor is a task older than another that was made after it.
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
        // Of two threads that find a step either is right.
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

/// Resolves at a moment, if there is one.
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

    /// A wall clock that shows what it is set to.
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
    async fn a_step_moves_what_is_shown_and_not_the_time_line() {
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
    async fn what_is_no_step_moves_nothing() {
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
    async fn the_next_process_goes_on_where_the_wall_clock_says_and_never_further_back() {
        let wall = wall();
        let first = wall.clock(None);
        wall.set(START + 8 * HOUR);
        let kept = first.reading();
        for (found, time) in [
            (START + 9 * HOUR, START + HOUR),
            (START + 8 * HOUR, START),
            // Set back while no process ran.
            (START, START),
            (0, START),
        ] {
            wall.set(found);
            let next = wall.clock(Some(kept));
            assert_eq!(millis(next.reading()), (time, found));
            // As if it had been killed before it kept anything.
            assert_eq!(millis(wall.clock(Some(kept)).reading()), (time, found));
        }
    }
}
