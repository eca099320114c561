//! The lifetime, poll interval and expiry of tasks.
//!
//! `ttlMs` counts from creation, and a client may give up a task once that time has passed (tasks extension,
//! *Task Polling*). So the end of a working task is always kept well ahead: a *grant* is the larger of its
//! retention and [`MIN_GRANT`], and the task gets a new grant whenever no more than half of the last one
//! remains. When the task ends, its result is kept for exactly its retention, as the operator configured.
//! Only if the retention is shorter than a grant can the end of the task shorten a `ttlMs` that a client has
//! seen; the poll interval is therefore at most half of the retention.
//!
//! Only ended tasks expire: the process that runs a working task renews it.

use super::Record;
use crate::protocol::Timestamp;
use std::time::Duration;

/// The bounds of `pollIntervalMs`: minimum and maximum.
pub type PollBounds = (Duration, Duration);

/// The minimum grant of a working task: many times the interval at which the sweeper renews tasks.
pub const MIN_GRANT: Duration = Duration::from_secs(60);

/// The minimum retention: a result that is removed immediately could not be fetched.
pub const MIN_RETENTION: Duration = Duration::from_secs(1);

/// The maximum retention: a hundred years. Sums of longer times could exceed the range of ISO 8601 and of
/// JavaScript.
pub const MAX_RETENTION: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

// === impl Record ===

impl Record {
    /// Returns when the sweeper must process the record: to renew a live task
    /// ([`TaskEvent::TtlRenewed`](super::TaskEvent::TtlRenewed) has an effect from then on), or to remove an
    /// ended task.
    pub fn due_at(&self) -> Timestamp {
        if self.state.is_ended() {
            return self.expires_at();
        }
        self.created + self.ttl.saturating_sub(grant_length(self.retention) / 2)
    }

    /// Whether the retention of the task has passed. A task that has not ended never expires.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.state.is_ended() && self.expires_at() <= now
    }

    /// Returns the interval at which a client should poll, in whole milliseconds: about a tenth of the time
    /// since the status changed, so that a result is seen within ten per cent of the time it took and a long
    /// job is not polled a thousand times. At most half of the retention, so that a client that follows the
    /// interval finds the result. The minimum of `bounds` once the task has ended, and never zero, because
    /// clients refuse zero.
    pub fn poll_interval(&self, now: Timestamp, bounds: PollBounds) -> Duration {
        let (minimum, maximum) = bounds;
        let interval = match self.state.is_ended() {
            true => Duration::ZERO,
            false => (now.since(self.status_since) / 10).min(self.retention / 2),
        };
        truncate_to_millis(interval.min(maximum).max(minimum)).max(Duration::from_millis(1))
    }

    /// Returns the time at which the current grant began.
    pub(super) fn granted_at(&self) -> Timestamp {
        self.created + self.ttl.saturating_sub(grant_length(self.retention))
    }

    /// Returns the end of the current grant, or of the retention of an ended task.
    fn expires_at(&self) -> Timestamp {
        self.created + self.ttl
    }
}

/// Limits a retention to the range from [`MIN_RETENTION`] to [`MAX_RETENTION`], in whole milliseconds.
pub(crate) fn clamp_retention(retention: Duration) -> Duration {
    truncate_to_millis(retention.clamp(MIN_RETENTION, MAX_RETENTION))
}

/// Returns the length of a grant for a live task with this retention.
pub(super) fn grant_length(retention: Duration) -> Duration {
    retention.max(MIN_GRANT)
}

/// Returns the ttl of a task that is alive at `now`: extended if no more than half of the current grant
/// remains.
pub(super) fn live_ttl(record: &Record, now: Timestamp) -> Duration {
    let elapsed = now.since(record.created);
    let grant = grant_length(record.retention);
    if record.ttl.saturating_sub(elapsed) <= grant / 2 { record.ttl.max(elapsed + grant) } else { record.ttl }
}

/// Returns the ttl of a task that ends at `now`: the elapsed time plus the retention.
pub(super) fn final_ttl(record: &Record, now: Timestamp) -> Duration {
    now.since(record.created) + record.retention
}

fn truncate_to_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState, apply};

    const START: Timestamp = Timestamp::from_millis(1_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const BOUNDS: PollBounds = (Duration::from_millis(500), Duration::from_secs(30));

    fn record(retention: Duration) -> Record {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        Record::new(TaskId::from_entropy([7; 16]), owner, "slow", retention, START)
    }

    fn ended(record: Record, at: Timestamp) -> Record {
        apply(&record, TaskEvent::CANCELLED_BY_CLIENT, at).expect("alive").0
    }

    #[test]
    fn a_new_task_is_given_its_retention_or_a_minute() {
        assert_eq!(record(Duration::ZERO).ttl, MINUTE);
        assert_eq!(record(5 * MINUTE).ttl, 5 * MINUTE);
        assert_eq!(record(60 * MINUTE).ttl, 60 * MINUTE);
        assert_eq!(record(Duration::MAX).ttl, MAX_RETENTION);
        assert_eq!(record(Duration::from_micros(600_000_000_999)).ttl.subsec_micros() % 1000, 0);
    }

    #[test]
    fn a_clock_that_runs_behind_the_last_renewal_shortens_nothing() {
        let task = record(2 * MINUTE);
        let (renewed, _) = apply(&task, TaskEvent::TtlRenewed, START + MINUTE).expect("due");
        assert_eq!(renewed.ttl, 3 * MINUTE);
        let task = ended(renewed, START + Duration::from_secs(55));
        assert_eq!(task.ttl, 3 * MINUTE, "what was shown still holds");
        assert_eq!(task.due_at(), task.updated + 2 * MINUTE);
    }

    #[test]
    fn a_live_task_is_renewed_at_half_its_grant_and_not_before() {
        let task = record(60 * MINUTE);
        assert_eq!(task.due_at(), START + 30 * MINUTE);
        let early = START + (30 * MINUTE - Duration::from_millis(1));
        assert!(apply(&task, TaskEvent::TtlRenewed, early).is_err());
        let (renewed, _) = apply(&task, TaskEvent::TtlRenewed, task.due_at()).expect("due");
        assert_eq!(renewed.ttl, 90 * MINUTE);
        assert_eq!(renewed.due_at(), START + 60 * MINUTE);
    }

    #[test]
    fn a_renewed_task_is_not_due_again_at_once_however_old_it_is() {
        let mut task = record(Duration::ZERO);
        for _ in 0..1000 {
            let now = task.due_at();
            task = apply(&task, TaskEvent::TtlRenewed, now).expect("due").0;
            assert_eq!(task.due_at(), now + MINUTE / 2);
        }
    }

    #[test]
    fn a_result_stays_for_the_whole_retention() {
        let at = START + 25 * MINUTE;
        let task = ended(record(60 * MINUTE), at);
        assert_eq!(task.due_at(), at + 60 * MINUTE);
        assert!(!task.is_expired(START + (85 * MINUTE - Duration::from_millis(1))));
        assert!(task.is_expired(START + 85 * MINUTE));
    }

    #[test]
    fn the_retention_applies_after_the_end_down_to_a_second() {
        let at = START + MINUTE / 4;
        for (written, kept) in [(Duration::ZERO, 1), (Duration::from_secs(1), 1), (5 * MINUTE, 300)] {
            let task = ended(record(written), at);
            assert_eq!(task.due_at(), at + Duration::from_secs(kept), "{written:?}");
        }
    }

    #[test]
    fn a_client_that_follows_the_poll_interval_finds_a_briefly_kept_result() {
        let interval = |retention| record(retention).poll_interval(START + 60 * MINUTE, BOUNDS);
        assert_eq!(interval(Duration::from_secs(10)), Duration::from_secs(5));
        assert_eq!(interval(Duration::from_secs(1)), Duration::from_millis(500));
        assert_eq!(interval(60 * MINUTE), BOUNDS.1);
    }

    #[test]
    fn a_live_task_never_expires() {
        let task = record(Duration::ZERO);
        assert!(!task.is_expired(START + 1_000_000 * MINUTE));
    }

    #[test]
    fn the_poll_interval_is_a_tenth_of_the_time_in_this_status() {
        let after = |seconds| record(MINUTE).poll_interval(START + Duration::from_secs(seconds), BOUNDS);
        assert_eq!(after(0), Duration::from_millis(500));
        assert_eq!(after(60), Duration::from_secs(6));
        assert_eq!(after(3600), Duration::from_secs(30));

        let asked = TaskEvent::InputRequested { key: "k".into(), request: "{}".into() };
        let (task, _) = apply(&record(MINUTE), asked, START + 10 * MINUTE).expect("alive");
        assert!(matches!(task.state, TaskState::InputRequired { .. }));
        assert_eq!(task.poll_interval(START + 10 * MINUTE, BOUNDS), Duration::from_millis(500));
    }

    #[test]
    fn the_poll_interval_is_a_positive_whole_number_whatever_the_bounds() {
        let at = START + Duration::from_millis(12_345);
        let nothing = record(MINUTE).poll_interval(START, (Duration::ZERO, Duration::ZERO));
        assert_eq!(nothing, Duration::from_millis(1));
        assert_eq!(record(MINUTE).poll_interval(at, BOUNDS), Duration::from_millis(1_234));
        let crossed = (Duration::from_secs(9), Duration::from_secs(3));
        assert_eq!(record(MINUTE).poll_interval(at, crossed), Duration::from_secs(9));
    }

    #[test]
    fn an_ended_task_asks_for_the_shortest_interval() {
        let task = ended(record(MINUTE), START + MINUTE);
        assert_eq!(task.poll_interval(START + 60 * MINUTE, BOUNDS), BOUNDS.0);
    }
}
