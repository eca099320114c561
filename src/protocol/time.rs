//! Points in time as they are stored and displayed.
//!
//! There are two types, so that the compiler keeps them apart. A [`Timestamp`] is on a steady time line,
//! which steps of the wall clock do not move: stores keep it, and expiry follows it. A [`WallTime`] is
//! displayed to people and clients. A [`ClockOffset`] converts one to the other.

use jiff::Timestamp as Shown;
use std::{fmt, ops::Add, time::Duration};

/// Milliseconds on a steady time line: differences are real durations. The line starts at the wall clock's
/// time, in milliseconds since the Unix epoch, and differs from it by a [`ClockOffset`] once the wall clock
/// has been stepped.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// Milliseconds since the Unix epoch, by the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(u64);

/// Offset of the wall clock from the steady time line, in milliseconds; positive if the wall clock is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ClockOffset(i64);

/// One reading of a clock: the time on the steady time line, and the offset of the wall clock from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    pub time: Timestamp,
    /// The offset of the wall clock from `time`.
    pub offset: ClockOffset,
}

// === impl Timestamp ===

impl Timestamp {
    /// The point on the steady time line at this number of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Add<ClockOffset> for Timestamp {
    type Output = WallTime;

    fn add(self, offset: ClockOffset) -> WallTime {
        WallTime(self.0.saturating_add_signed(offset.0))
    }
}

// === impl WallTime ===

impl WallTime {
    /// The wall time at this number of milliseconds since the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time on the steady time line at this wall time; `offset` is that of the wall clock.
    #[must_use]
    pub const fn to_timestamp(self, offset: ClockOffset) -> Timestamp {
        Timestamp(if offset.0 < 0 {
            self.0.saturating_add(offset.0.unsigned_abs())
        } else {
            self.0.saturating_sub(offset.0.unsigned_abs())
        })
    }

    /// The offset of the wall clock from the steady time line, if the wall clock shows this time at `time`.
    #[must_use]
    pub fn offset_from(self, time: Timestamp) -> ClockOffset {
        let millis = i128::from(self.0) - i128::from(time.0);
        ClockOffset(i64::try_from(millis).unwrap_or(if millis < 0 { i64::MIN } else { i64::MAX }))
    }
}

impl fmt::Display for WallTime {
    /// ISO 8601 in UTC, with milliseconds: `2026-07-28T10:30:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0).unwrap_or(i64::MAX);
        let shown = Shown::from_millisecond(millis).unwrap_or(Shown::MAX);
        write!(f, "{shown:.3}")
    }
}

// === impl ClockOffset ===

impl ClockOffset {
    /// The wall clock agrees with the time line.
    pub const ZERO: Self = Self(0);

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds by which the wall clock is ahead of the steady time line; negative if it is behind.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whether the wall clock agrees with the steady time line.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// The absolute difference of two offsets.
    pub const fn abs_diff(self, other: Self) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }
}

// === impl ClockReading ===

impl ClockReading {
    /// The wall time at this reading.
    pub fn wall_time(self) -> WallTime {
        self.time + self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_time_is_shown_in_utc_with_milliseconds() {
        assert_eq!(WallTime::from_millis(1_785_234_600_007).to_string(), "2026-07-28T10:30:00.007Z");
        assert_eq!(WallTime::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn an_offset_converts_both_ways_and_saturates() {
        let at = Timestamp::from_millis;
        for (line, wall) in [(5_000, 5_000), (5_000, 9_000), (9_000, 5_000), (0, 7), (7, 0)] {
            let wall = WallTime::from_millis(wall);
            let offset = wall.offset_from(at(line));
            assert_eq!((at(line) + offset, wall.to_timestamp(offset)), (wall, at(line)));
        }
        let least = ClockOffset::from_millis(i64::MIN);
        assert_eq!(at(5) + least, WallTime::from_millis(0));
        assert_eq!(WallTime::from_millis(u64::MAX).to_timestamp(least), at(u64::MAX));
        assert_eq!(WallTime::from_millis(u64::MAX).offset_from(at(0)).as_millis(), i64::MAX);
        assert_eq!(WallTime::from_millis(5).to_timestamp(ClockOffset::from_millis(i64::MAX)), at(0));
    }
}
