//! When a server that ends may be started again.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// What has become of the starts of one server. Time comes in with every question.
#[derive(Debug, Default)]
pub struct Starts {
    /// Starts of the last minute, but for as many as have been ended by us since.
    lately: VecDeque<Instant>,
    /// How often in a row it has not come up, or not stayed up.
    failures: u32,
    /// How many have ended by themselves that no other was started for.
    missed: usize,
    /// The last start was for one of those.
    stands_in: bool,
    /// Not before.
    next: Option<Instant>,
}

/// Whether it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Now,
    /// In a moment, and that is worth waiting for.
    At(Instant),
    /// Whoever needs it is told so.
    NotBefore(Instant),
}

/// Starts of one server in a [`MINUTE`], whatever they are for. A process that we have ended ourselves gives its start
/// back: tasks that come and go have processes that come and go.
const BUDGET: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// The pause after a failure; doubles with each.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a call waits for the next start. Where it would be longer it is told when that is.
const PATIENCE: Duration = Duration::from_secs(5);
/// A server that has been up for so long has not failed to start.
const STEADY: Duration = Duration::from_secs(60);

// === impl Starts ===

impl Starts {
    /// Whether it is started now. [`Start::Now`] counts as a start.
    pub fn begin(&mut self, now: Instant) -> Start {
        while self.lately.front().is_some_and(|start| now.duration_since(*start) >= MINUTE) {
            self.lately.pop_front();
        }
        let spent = self.lately.front().filter(|_| self.lately.len() >= BUDGET);
        let next = self.next.max(spent.map(|first| *first + MINUTE)).filter(|next| *next > now);
        match next {
            None => {
                self.lately.push_back(now);
                self.stands_in = self.missed > 0;
                self.missed = self.missed.saturating_sub(1);
                Start::Now
            }
            Some(next) if next - now > PATIENCE => Start::NotBefore(next),
            Some(next) => Start::At(next),
        }
    }

    /// Whether the last start was for one that had ended by itself.
    pub fn stands_in(&self) -> bool {
        self.stands_in
    }

    /// One has ended that nobody ended, after so long; nothing where it did not come up.
    pub fn failed(&mut self, now: Instant, up: Duration) {
        if up >= STEADY {
            self.failures = 0;
        }
        self.missed += 1;
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.next = self.next.max(Some(now + pause));
    }

    /// One has been up for so long, and was ended.
    pub fn was_up(&mut self, up: Duration) {
        self.lately.pop_front();
        if up >= STEADY {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_pause_doubles_to_a_minute_and_only_a_steady_server_starts_over() {
        let (mut starts, mut now) = (Starts::default(), SystemClock::new().now());
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(starts.begin(now), Start::Now);
            now += seconds(59);
            starts.failed(now, seconds(59));
            let next = now + seconds(pause);
            let wanted = if pause > 5 { Start::NotBefore(next) } else { Start::At(next) };
            assert_eq!(starts.begin(now), wanted);
            now = next;
        }
        assert_eq!(starts.begin(now), Start::Now);
        now += seconds(60);
        starts.failed(now, seconds(60));
        assert_eq!(starts.begin(now), Start::At(now + seconds(1)));
    }

    #[test]
    fn so_many_starts_in_a_minute_are_enough() {
        let (mut starts, now) = (Starts::default(), SystemClock::new().now());
        for _ in 0..BUDGET {
            assert_eq!(starts.begin(now), Start::Now);
        }
        assert_eq!(starts.begin(now + seconds(1)), Start::NotBefore(now + seconds(60)));
        assert_eq!(starts.begin(now + seconds(56)), Start::At(now + seconds(60)));
        // One that was ended leaves room for another.
        starts.was_up(seconds(1));
        assert_eq!(starts.begin(now + seconds(1)), Start::Now);
        assert_eq!(starts.begin(now + seconds(1)), Start::NotBefore(now + seconds(60)));
        assert_eq!(starts.begin(now + seconds(60)), Start::Now);
    }
}
