//! `/history`: calls a second over the last hour, for a page that was opened just now.
//!
//! What has ended is counted every [`STEP`]; the ring of the counts is bounded, and is kept whether somebody watches
//! or not.

use super::{
    response::{AdminResponse, json},
    server::AdminParts,
};
use crate::{protocol::WallTime, runtime::Mutex, telemetry::metrics};
use http::StatusCode;
use serde_json::json as value;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// Calls that have ended, counted again and again.
#[derive(Default)]
pub struct CallHistory(Mutex<HistoryRing>);

#[derive(Default)]
struct HistoryRing {
    /// Calls that ended in each step, the oldest first; at most [`STEPS`].
    ended: VecDeque<u64>,
    /// When the last step ended.
    until: Option<WallTime>,
    /// All that had ended by then.
    total: u64,
}

/// The time between two counts.
const STEP: Duration = Duration::from_secs(5);
/// An hour of them: 8 bytes each.
const STEPS: usize = 720;

// === impl History ===

impl CallHistory {
    /// The counts, as the page reads them.
    pub(super) fn answer(&self) -> AdminResponse {
        let ring = self.0.lock();
        let body = value!({
            "step_ms": u64::try_from(STEP.as_millis()).unwrap_or(u64::MAX),
            "until": ring.until.map(|until| until.to_string()),
            "ended": ring.ended,
        });
        json(StatusCode::OK, body.to_string().into())
    }

    /// Counts what has ended since the count before. The first count begins the ring.
    fn count(&self, total: u64, now: WallTime) {
        let mut ring = self.0.lock();
        if ring.until.is_some() {
            let ended = total.saturating_sub(ring.total);
            ring.ended.push_back(ended);
            if ring.ended.len() > STEPS {
                ring.ended.pop_front();
            }
        }
        ring.until = Some(now);
        ring.total = total;
    }
}

/// Counts for as long as it is polled.
pub(super) async fn record_periodically(parts: impl Fn() -> Arc<AdminParts> + Send) {
    let mut ticks = interval(STEP);
    // A step that was missed is a part of the next: it is as if that had lasted longer.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let parts = parts();
        parts.history.count(metrics::calls().total, parts.operators.now().wall());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_has_the_last_hour_and_no_more() {
        let history = CallHistory::default();
        let at = |step: u64| WallTime::from_millis(step * 5_000);
        for step in 0..=STEPS as u64 + 10 {
            history.count(100 + step * 7, at(step));
        }
        let ring = history.0.lock();
        assert_eq!((ring.ended.len(), ring.until), (STEPS, Some(at(STEPS as u64 + 10))));
        assert!(ring.ended.iter().all(|ended| *ended == 7));
    }

    #[test]
    fn the_first_count_is_no_rate_and_a_counter_that_began_again_is_none_below_zero() {
        let history = CallHistory::default();
        history.count(1_000, WallTime::from_millis(1));
        assert!(history.0.lock().ended.is_empty(), "what was before is in no step");
        history.count(3, WallTime::from_millis(5_001));
        assert_eq!(history.0.lock().ended, [0]);
    }
}
