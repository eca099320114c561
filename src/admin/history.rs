//! `/history`: calls per second over the last hour, for a newly opened page.
//!
//! Ended calls are counted every [`STEP`], whether a page is open or not; the number of steps is bounded.

use super::{
    response::{AdminResponse, json_response},
    server::AdminParts,
};
use crate::{protocol::WallTime, runtime::Mutex, telemetry::metrics};
use http::StatusCode;
use serde_json::json as value;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// Number of calls that ended in each step of the last hour.
#[derive(Default)]
pub struct CallHistory(Mutex<HistoryRing>);

#[derive(Default)]
struct HistoryRing {
    /// Calls that ended in each step, oldest first; at most [`STEPS`].
    ended: VecDeque<u64>,
    /// End of the last step; `None` before the first count.
    last_step_end: Option<WallTime>,
    /// Total number of calls that had ended by the end of the last step.
    total: u64,
}

/// Duration of a step.
const STEP: Duration = Duration::from_secs(5);
/// Number of steps in an hour; 8 bytes each.
const STEPS: usize = 720;

// === impl CallHistory ===

impl CallHistory {
    /// Responds with the steps as JSON.
    pub(super) fn respond(&self) -> AdminResponse {
        let ring = self.0.lock();
        let body = value!({
            "step_ms": u64::try_from(STEP.as_millis()).unwrap_or(u64::MAX),
            "until": ring.last_step_end.map(|until| until.to_string()),
            "ended": ring.ended,
        });
        json_response(StatusCode::OK, body.to_string().into())
    }

    /// Adds a step with the calls that ended since the previous count. The first count adds none.
    fn add_step(&self, total: u64, now: WallTime) {
        let mut ring = self.0.lock();
        if ring.last_step_end.is_some() {
            let ended = total.saturating_sub(ring.total);
            ring.ended.push_back(ended);
            if ring.ended.len() > STEPS {
                ring.ended.pop_front();
            }
        }
        ring.last_step_end = Some(now);
        ring.total = total;
    }
}

/// Records a step every [`STEP`]. The future never ends.
pub(super) async fn record_periodically(parts: impl Fn() -> Arc<AdminParts> + Send) {
    let mut ticks = interval(STEP);
    // A delayed tick extends its step.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let parts = parts();
        parts.history.add_step(metrics::call_counts().total, parts.operators.now().wall_time());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_covers_the_last_hour() {
        let history = CallHistory::default();
        let at = |step: u64| WallTime::from_millis(step * 5_000);
        for step in 0..=STEPS as u64 + 10 {
            history.add_step(100 + step * 7, at(step));
        }
        let ring = history.0.lock();
        assert_eq!((ring.ended.len(), ring.last_step_end), (STEPS, Some(at(STEPS as u64 + 10))));
        assert!(ring.ended.iter().all(|ended| *ended == 7));
    }

    #[test]
    fn the_first_count_adds_no_step_and_a_reset_counter_adds_zero() {
        let history = CallHistory::default();
        history.add_step(1_000, WallTime::from_millis(1));
        assert!(history.0.lock().ended.is_empty(), "calls before the first count are in no step");
        history.add_step(3, WallTime::from_millis(5_001));
        assert_eq!(history.0.lock().ended, [0]);
    }
}
