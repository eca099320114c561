//! Histograms of durations, fine enough for charts and for the question "how many calls took longer than
//! this?".
//!
//! All histograms have the same steps, ten per power of ten, which include every likely threshold. Prometheus
//! gets a subset of their bounds ([`PROMETHEUS_BOUNDS`]).

use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The bounds of the steps in each power of ten, in tenths.
const DECADE_STEPS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];
/// Number of powers of ten, from 100 µs to 100,000 s, which is more than the default maximum of a call.
const DECADES: usize = 9;
/// Number of steps with an upper bound.
const STEPS: usize = DECADE_STEPS.len() * DECADES + 1;

/// The upper bound of each step, in microseconds. Longer durations are counted in a separate step.
const BOUNDS: [u64; STEPS] = {
    let (mut bounds, mut at, mut unit) = ([0; STEPS], 0, 10);
    while at + 1 < STEPS {
        bounds[at] = DECADE_STEPS[at % DECADE_STEPS.len()] * unit;
        at += 1;
        if at % DECADE_STEPS.len() == 0 {
            unit *= 10;
        }
    }
    bounds[at] = 10 * unit;
    bounds
};

/// The bucket bounds for Prometheus, in microseconds; each is the bound of a step.
pub(super) const PROMETHEUS_BOUNDS: [u64; 18] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
    1_200_000_000,
    3_000_000_000,
];

/// A histogram of durations; takes about 750 bytes.
#[derive(Debug)]
pub struct LatencyHistogram {
    counts: [AtomicU64; STEPS + 1],
    /// The sum of all durations, in microseconds.
    sum: AtomicU64,
    /// The longest duration, in microseconds.
    longest: AtomicU64,
}

/// A copy of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySnapshot {
    /// The number of durations.
    pub count: u64,
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
    /// The longest duration, in microseconds.
    pub longest_us: u64,
    /// The number of durations in each step, with the upper bound of the step in microseconds. Empty steps
    /// are omitted; the last step may have no bound.
    pub steps: Vec<(Option<u64>, u64)>,
}

// === impl LatencyHistogram ===

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; STEPS + 1],
            sum: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }
}

impl LatencyHistogram {
    /// Adds one duration.
    pub fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let step = BOUNDS.partition_point(|bound| *bound < took);
        self.counts[step].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(took, Ordering::Relaxed);
        // Load before the update: the maximum rarely changes, and a load is cheaper than a write.
        if took > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(took, Ordering::Relaxed);
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&self, other: &Self) {
        for (count, other_count) in self.counts.iter().zip(&other.counts) {
            count.fetch_add(other_count.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum.fetch_add(other.sum.load(Ordering::Relaxed), Ordering::Relaxed);
        self.longest.fetch_max(other.longest.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Copies the current counts.
    pub fn snapshot(&self) -> LatencySnapshot {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let bounds = BOUNDS.into_iter().map(Some).chain([None]);
        let steps: Vec<_> = bounds.zip(counts).filter(|(_, count)| *count > 0).collect();
        LatencySnapshot {
            count: steps.iter().map(|(_, count)| count).sum(),
            sum_us: self.sum.load(Ordering::Relaxed),
            longest_us: self.longest.load(Ordering::Relaxed),
            steps,
        }
    }
}

// === impl LatencySnapshot ===

impl LatencySnapshot {
    /// The snapshot without the durations in `part`, which must be a subset. `longest_us` remains an upper
    /// bound.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        let in_part = |end| part.steps.iter().find(|(step, _)| *step == end).map_or(0, |(_, count)| *count);
        let steps = self.steps.iter().map(|(end, count)| (*end, count.saturating_sub(in_part(*end))));
        let steps: Vec<_> = steps.filter(|(_, count)| *count > 0).collect();
        let longest_us = match steps.last() {
            Some((Some(end), _)) => self.longest_us.min(*end),
            Some((None, _)) => self.longest_us,
            None => 0,
        };
        Self {
            count: steps.iter().map(|(_, count)| count).sum(),
            sum_us: self.sum_us.saturating_sub(part.sum_us),
            longest_us,
            steps,
        }
    }

    /// The number of durations that are at most `took`. Exact at the bound of a step; interpolated linearly
    /// within a step.
    pub fn count_within(&self, took: Duration) -> f64 {
        let took = took.as_micros() as f64;
        let mut sum = 0.0;
        for (start, end, count) in self.step_ranges() {
            sum += count * ((took - start) / (end - start)).clamp(0.0, 1.0);
        }
        sum
    }

    /// The duration that the share `share` (`0.0..=1.0`) of all durations does not exceed; `None` if the
    /// histogram is empty. Interpolated linearly within a step.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut remaining = share.clamp(0.0, 1.0) * self.count as f64;
        let mut quantile = None;
        for (start, end, count) in self.step_ranges() {
            let fraction = (remaining / count).min(1.0);
            quantile = Some(start + (end - start) * fraction);
            remaining -= count;
            if remaining <= 0.0 {
                break;
            }
        }
        quantile.map(|micros| Duration::from_micros(micros as u64))
    }

    /// The start, the end and the count of each step that is not empty, in microseconds. The longest duration
    /// bounds the last step.
    fn step_ranges(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        self.steps.iter().map(|&(end, count)| {
            let end = end.unwrap_or(u64::MAX);
            let start = match BOUNDS.partition_point(|bound| *bound < end) {
                0 => 0,
                step => BOUNDS[step - 1],
            };
            let end = end.min(self.longest_us).max(start + 1);
            (start as f64, end as f64, count as f64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: &[Duration]) -> LatencySnapshot {
        let latencies = LatencyHistogram::default();
        times.iter().for_each(|time| latencies.record(*time));
        latencies.snapshot()
    }

    #[test]
    fn a_subset_can_be_subtracted() {
        let (all, part, rest) =
            (LatencyHistogram::default(), LatencyHistogram::default(), LatencyHistogram::default());
        for millis in [1, 20, 20, 300, 70_000] {
            all.record(Duration::from_millis(millis));
            let is_part = matches!(millis, 20 | 70_000);
            if is_part { &part } else { &rest }.record(Duration::from_millis(millis));
        }
        let left = all.snapshot().without(&part.snapshot());
        assert_eq!(left, rest.snapshot());
        assert_eq!(left.without(&left), LatencySnapshot::default());
    }

    #[test]
    fn every_bucket_bound_and_every_candidate_threshold_is_a_step() {
        assert!(BOUNDS.is_sorted());
        assert_eq!((BOUNDS[0], BOUNDS[STEPS - 1]), (100, 100_000_000_000));
        let advised = [1, 2, 5, 10, 30, 60].map(|seconds| seconds * 1_000_000);
        for bound in PROMETHEUS_BOUNDS.into_iter().chain(advised) {
            assert!(BOUNDS.contains(&bound), "{bound}");
        }
    }

    #[test]
    fn a_duration_equal_to_a_threshold_is_within_it() {
        let seconds = |n| Duration::from_secs(n);
        let counted = of(&[seconds(1), seconds(5), seconds(5) + Duration::from_micros(1), seconds(60)]);
        assert_eq!(counted.count_within(seconds(1)), 1.0);
        assert_eq!(counted.count_within(seconds(5)), 2.0);
        assert_eq!(counted.count_within(seconds(30)), 3.0);
        assert_eq!(counted.count_within(seconds(60)), 4.0);
        assert_eq!(counted.longest_us, 60_000_000);
    }

    #[test]
    fn durations_beyond_all_steps_are_counted_up_to_the_maximum() {
        let counted = of(&[Duration::from_secs(200_000), Duration::MAX]);
        assert_eq!(counted.steps, [(None, 2)]);
        assert_eq!(counted.quantile(1.0), Some(Duration::from_micros(u64::MAX)));
        assert_eq!(of(&[]).quantile(0.5), None);
    }

    proptest! {
        #[test]
        fn a_quantile_is_in_the_step_of_the_time_it_stands_for(
            mut times in prop::collection::vec(0_u64..4_000_000_000, 1..200),
            share in 0.01_f64..=1.0,
        ) {
            let counted = of(&times.iter().map(|time| Duration::from_micros(*time)).collect::<Vec<_>>());
            times.sort_unstable();
            let at = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len());
            let exact = times[at - 1];
            let found = counted.quantile(share).expect("something was counted").as_micros() as u64;
            let step = |time| BOUNDS.partition_point(|bound| *bound < time);
            prop_assert!(step(found).abs_diff(step(exact)) <= 1, "{found} for {exact}");
            prop_assert!(found <= counted.longest_us.max(1));
        }
    }
}
