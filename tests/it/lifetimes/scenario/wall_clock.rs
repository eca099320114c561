//! Steps of the wall clock, and what a new process makes of them.

use super::{Scenario, Wall};
use deferral::internals::protocol::ClockReading;
use std::{sync::atomic::Ordering, time::Duration};

/// Errors of the wall clock, in milliseconds: none, below the tolerance, seconds, hours, and years.
const WALL_IS_AHEAD: [i64; 9] =
    [0, 0, 700, -700, 3_000, 8 * HOUR, -8 * HOUR, 40 * 365 * 24 * HOUR, -40 * 365 * 24 * HOUR];

const HOUR: i64 = 3_600_000;

/// Maximum error of the line at a start: the tolerance of steps and one millisecond.
const TOLERANCE: Duration = Duration::from_millis(1_001);

impl Scenario {
    /// Steps the wall clock at random.
    pub(super) fn step_wall_clock(&mut self) {
        let Wall { chance, is_set, time, steps, is_unkept, .. } = &mut self.wall;
        if *is_set && chance.once_in(5) {
            let ahead = chance.one_of(&WALL_IS_AHEAD);
            time.wall_is_ahead.store(ahead, Ordering::Relaxed);
            (*steps, *is_unkept) = (*steps + 1, *is_unkept || self.process.is_some());
            self.tell(|| format!("    the wall clock is set to be {ahead} ms ahead"));
        }
    }

    /// Checks that the line of a new process continues that of the former one, by the time that passed on the wall clock.
    pub(super) fn check_line_continues(&mut self, ClockReading { time, offset }: ClockReading) {
        let ((last, shown), shows) = (self.wall.last, self.wall.time.wall());
        let passed = Duration::from_millis(shows.as_millis().saturating_sub(shown.as_millis()));
        if !self.wall.is_unkept {
            let off = time.since(last + passed).max((last + passed).since(time));
            assert!(
                off <= TOLERANCE || passed.is_zero() && time < last,
                "off by {off:?}: {time:?}, {last:?}"
            );
        }
        self.wall.fell = self.wall.fell.max(last.since(time));
        self.wall.latest = self.wall.latest.max(last);
        // If the wall clock was set back between two processes, the new offset is not stored yet.
        self.wall.is_unkept = self.records.clock_offset() != offset;
        self.now = time;
    }
}
