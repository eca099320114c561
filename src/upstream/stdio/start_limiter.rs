//! Limits on how often a server is started.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::dialect::Principal;

/// Recent starts and failures of one server. The caller provides the current time.
#[derive(Debug, Default)]
pub struct StartLimiter {
    /// Times of the starts within the last minute, without one for each process that the proxy has ended
    /// since.
    recent_starts: VecDeque<Instant>,
    /// Failures by caller; a single entry if all callers share processes. A server may fail for one caller
    /// only.
    failures: HashMap<Principal, FailureRecord>,
}

/// Failures of the processes of one caller.
#[derive(Debug, Default)]
struct FailureRecord {
    /// Number of consecutive failed or short runs.
    consecutive: u32,
    /// Number of ended processes that have not been replaced yet.
    unreplaced: usize,
    /// Time of the last counted end; `None` if there was none.
    last_end: Option<Instant>,
    /// Earliest time of the next start; `None` for any time.
    next_start: Option<Instant>,
}

/// Decision about a requested start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDecision {
    /// The process may be started now.
    Now {
        /// Whether the process replaces one that ended by itself.
        is_replacement: bool,
    },
    /// The process may be started at this time, which is soon enough to wait for.
    At(Instant),
    /// The process may not be started before this time: the caller gets an error with the reason.
    NotBefore(Instant, DelayReason),
}

/// Reason why a start is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayReason {
    /// Processes of the server have ended by themselves, repeatedly.
    Failing,
    /// [`MAX_STARTS`] processes were started within a minute.
    BudgetSpent,
}

/// Limit of the starts of one server in a [`MINUTE`]. A process that the proxy has ended does not count,
/// because tasks may need processes in bursts.
pub const MAX_STARTS: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Pause after a failure; doubles with each consecutive failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Longest time that a call waits for the next start. If the start is later, the call gets an error with the
/// time.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Run time after which the end of a process does not count as consecutive failure.
const STEADY_RUN: Duration = Duration::from_secs(60);
/// Time after its last pause for which the failures of a caller are remembered.
const FAILURE_LIFETIME: Duration = Duration::from_secs(600);

// === impl StartLimiter ===

impl StartLimiter {
    /// Requests a start for this caller. A result of [`StartDecision::Now`] counts as a start.
    pub fn request_start(&mut self, now: Instant, caller: Principal) -> StartDecision {
        while self.recent_starts.front().is_some_and(|start| now.duration_since(*start) >= MINUTE) {
            self.recent_starts.pop_front();
        }
        let limit_delay = self.recent_starts.front().filter(|_| self.recent_starts.len() >= MAX_STARTS);
        let limit_delay = limit_delay.map(|first| (*first + MINUTE, DelayReason::BudgetSpent));
        let failure = self.failures.get_mut(&caller);
        let failure_delay =
            failure.as_ref().and_then(|failure| Some((failure.next_start?, DelayReason::Failing)));
        match failure_delay
            .into_iter()
            .chain(limit_delay)
            .filter(|(time, _)| *time > now)
            .max_by_key(|(time, _)| *time)
        {
            None => {
                self.recent_starts.push_back(now);
                let is_replacement = failure.is_some_and(|failure| {
                    let has_unreplaced = failure.unreplaced > 0;
                    failure.unreplaced -= usize::from(has_unreplaced);
                    has_unreplaced
                });
                StartDecision::Now { is_replacement }
            }
            Some((time, reason)) if time - now > MAX_WAIT => StartDecision::NotBefore(time, reason),
            Some((time, _)) => StartDecision::At(time),
        }
    }

    /// Records that a process started at the time `started` ended by itself after running for `run_time`,
    /// which is zero if the process did not start.
    pub fn record_failure(&mut self, now: Instant, caller: Principal, started: Instant, run_time: Duration) {
        self.failures
            .retain(|_, failure| failure.next_start.is_none_or(|next| next + FAILURE_LIFETIME > now));
        let failure = self.failures.entry(caller).or_default();
        failure.unreplaced += 1;
        // Processes that end together count as one failure, because no start was tried in between.
        if failure.last_end.is_some_and(|last_end| started < last_end) {
            return;
        }
        if run_time >= STEADY_RUN {
            failure.consecutive = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << failure.consecutive.min(16)).min(MAX_PAUSE);
        failure.consecutive += 1;
        failure.last_end = Some(now);
        failure.next_start = failure.next_start.max(Some(now + pause));
    }

    /// Records that the proxy ended a process that had run for `run_time`.
    pub fn record_stop(&mut self, caller: Principal, run_time: Duration) {
        self.recent_starts.pop_front();
        if run_time >= STEADY_RUN
            && let Some(failure) = self.failures.get_mut(&caller)
        {
            failure.consecutive = 0;
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
        assert_eq!(starts.failures.len(), 1);
    }

    #[test]
    fn starts_in_a_minute_are_bounded() {
        let (mut starts, now) = (StartLimiter::default(), SystemClock::new().now());
        for _ in 0..MAX_STARTS {
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
