//! Limits of starting a server again.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::dialect::Principal;

/// Recent starts of one server. The caller provides the time.
#[derive(Debug, Default)]
pub struct StartLimiter {
    /// Starts of the last minute, less the processes that the proxy has ended since.
    recent: VecDeque<Instant>,
    /// Failures by caller; one entry if all callers share processes. A process may fail for one caller only.
    failing: HashMap<Principal, FailureRecord>,
}

/// Processes that ended by themselves.
#[derive(Debug, Default)]
struct FailureRecord {
    /// Consecutive failed or short runs.
    in_a_row: u32,
    /// Ended processes without a replacement.
    unreplaced: usize,
    /// Time of the last counted end.
    last: Option<Instant>,
    /// Time of the next allowed start.
    next: Option<Instant>,
}

/// Decision about a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDecision {
    Now {
        /// Whether it replaces a process that ended by itself.
        is_replacement: bool,
    },
    /// At this time, soon enough to wait for it.
    At(Instant),
    /// Not before this time: the caller gets an error.
    NotBefore(Instant, DelayReason),
}

/// Reason of a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayReason {
    /// The process has ended by itself, repeatedly.
    Failing,
    /// [`BUDGET`] processes were started within a minute.
    BudgetSpent,
}

/// Limit of starts of one server in a [`MINUTE`]. A process ended by the proxy does not count, because tasks
/// may need processes in bursts.
pub const BUDGET: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Pause after a failure; doubles with each.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time that a call waits for the next start. If it is later, the call gets an error with the time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Run time after which a process has not failed to start.
const STEADY: Duration = Duration::from_secs(60);
/// Time after its last pause for which a caller's failures are remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

// === impl StartLimiter ===

impl StartLimiter {
    /// Requests a start for this caller. [`StartDecision::Now`] counts as a start.
    pub fn request_start(&mut self, now: Instant, caller: Principal) -> StartDecision {
        while self.recent.front().is_some_and(|start| now.duration_since(*start) >= MINUTE) {
            self.recent.pop_front();
        }
        let spent = self.recent.front().filter(|_| self.recent.len() >= BUDGET);
        let spent = spent.map(|first| (*first + MINUTE, DelayReason::BudgetSpent));
        let failing = self.failing.get_mut(&caller);
        let paused = failing.as_ref().and_then(|failing| Some((failing.next?, DelayReason::Failing)));
        match paused.into_iter().chain(spent).filter(|(next, _)| *next > now).max_by_key(|(next, _)| *next) {
            None => {
                self.recent.push_back(now);
                let stands_in = failing.is_some_and(|failing| {
                    let is_one = failing.unreplaced > 0;
                    failing.unreplaced -= usize::from(is_one);
                    is_one
                });
                StartDecision::Now { is_replacement: stands_in }
            }
            Some((next, why)) if next - now > PATIENCE => StartDecision::NotBefore(next, why),
            Some((next, _)) => StartDecision::At(next),
        }
    }

    /// Records that a process started at `began` ended by itself after running for `up`; zero if it did not
    /// start.
    pub fn record_failure(&mut self, now: Instant, caller: Principal, began: Instant, up: Duration) {
        self.failing.retain(|_, failing| failing.next.is_none_or(|next| next + REMEMBERED > now));
        let failing = self.failing.entry(caller).or_default();
        failing.unreplaced += 1;
        // Processes that end together count as one failure: no start was tried in between.
        if failing.last.is_some_and(|last| began < last) {
            return;
        }
        if up >= STEADY {
            failing.in_a_row = 0;
        }
        let pause = PAUSE.saturating_mul(1 << failing.in_a_row.min(16)).min(LONGEST_PAUSE);
        failing.in_a_row += 1;
        failing.last = Some(now);
        failing.next = failing.next.max(Some(now + pause));
    }

    /// Records that the proxy ended a process after running for `up`.
    pub fn record_stop(&mut self, caller: Principal, up: Duration) {
        self.recent.pop_front();
        if up >= STEADY
            && let Some(failing) = self.failing.get_mut(&caller)
        {
            failing.in_a_row = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};

    const ALL: Principal = Principal::ANONYMOUS;
    const NOW: StartDecision = StartDecision::Now { is_replacement: false };
    const AGAIN: StartDecision = StartDecision::Now { is_replacement: true };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_pause_doubles_to_a_minute_and_only_a_steady_server_starts_over() {
        let (mut starts, mut now) = (StartLimiter::default(), SystemClock::new().now());
        let mut start = NOW;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(starts.request_start(now, ALL), start);
            let began = now;
            now += seconds(59);
            starts.record_failure(now, ALL, began, seconds(59));
            let next = now + seconds(pause);
            let wanted = if pause > 5 {
                StartDecision::NotBefore(next, DelayReason::Failing)
            } else {
                StartDecision::At(next)
            };
            assert_eq!(starts.request_start(now, ALL), wanted);
            (now, start) = (next, AGAIN);
        }
        assert_eq!(starts.request_start(now, ALL), AGAIN);
        let began = now;
        now += seconds(60);
        starts.record_failure(now, ALL, began, seconds(60));
        assert_eq!(starts.request_start(now, ALL), StartDecision::At(now + seconds(1)));
    }

    #[test]
    fn processes_that_end_together_have_ended_once() {
        let (mut starts, now) = (StartLimiter::default(), SystemClock::new().now());
        for _ in 0..4 {
            assert_eq!(starts.request_start(now, ALL), NOW);
        }
        let end = now + seconds(10);
        for _ in 0..4 {
            starts.record_failure(end, ALL, now, seconds(10));
        }
        assert_eq!(starts.request_start(end, ALL), StartDecision::At(end + seconds(1)));
        // Each ended process has a replacement.
        let next = end + seconds(1);
        for start in [AGAIN, AGAIN, AGAIN, AGAIN, NOW] {
            assert_eq!(starts.request_start(next, ALL), start);
        }
        starts.record_failure(next + seconds(1), ALL, next, seconds(1));
        assert_eq!(starts.request_start(next + seconds(1), ALL), StartDecision::At(next + seconds(3)));
    }

    #[test]
    fn failures_of_one_caller_do_not_delay_another() {
        let (mut starts, now) = (StartLimiter::default(), SystemClock::new().now());
        let [one, other] = ["one", "other"].map(|name| Principal::derive(&[name.as_bytes()]));
        for at in 0..5 {
            starts.record_failure(now + seconds(at), one, now + seconds(at), Duration::ZERO);
        }
        let now = now + seconds(5);
        assert!(matches!(starts.request_start(now, one), StartDecision::NotBefore(_, DelayReason::Failing)));
        assert_eq!(starts.request_start(now, other), NOW);
        // Failures are not remembered without end.
        starts.record_failure(now + seconds(700), other, now, Duration::ZERO);
        assert_eq!(starts.failing.len(), 1);
    }

    #[test]
    fn starts_in_a_minute_are_bounded() {
        let (mut starts, now) = (StartLimiter::default(), SystemClock::new().now());
        for _ in 0..BUDGET {
            assert_eq!(starts.request_start(now, ALL), NOW);
        }
        let spent = StartDecision::NotBefore(now + seconds(60), DelayReason::BudgetSpent);
        assert_eq!(starts.request_start(now + seconds(1), ALL), spent);
        assert_eq!(starts.request_start(now + seconds(56), ALL), StartDecision::At(now + seconds(60)));
        // A process ended by the proxy allows another start.
        starts.record_stop(ALL, seconds(1));
        assert_eq!(starts.request_start(now + seconds(1), ALL), NOW);
        assert_eq!(starts.request_start(now + seconds(1), ALL), spent);
        assert_eq!(starts.request_start(now + seconds(60), ALL), NOW);
    }
}
