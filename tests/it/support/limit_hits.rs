//! Metrics of limits, as operators read them.

use super::modern_client::soon;
use deferral::internals::telemetry::{self, metrics};
use std::collections::BTreeMap;
use tokio::task::yield_now;

/// How often a limit is met from when this is made on.
///
/// The counts are those of the process, and each test has a process of its own.
pub(crate) struct LimitHits {
    key: &'static str,
    before: u64,
}

// === impl LimitHits ===

impl LimitHits {
    pub(crate) fn of(key: &'static str) -> Self {
        Self { key, before: count(key) }
    }

    pub(crate) fn now(&self) -> u64 {
        count(self.key) - self.before
    }

    /// Waits until it has been met so often, and looks that it was not more often. Some are counted a moment after those
    /// whom they concern have been told.
    pub(crate) async fn are(&self, wanted: u64) {
        let reached = async {
            while self.now() < wanted {
                yield_now().await;
            }
        };
        soon(&format!("{} hits of {}", wanted, self.key), reached).await;
        assert_eq!(self.now(), wanted, "hits of {}", self.key);
    }
}

fn count(key: &str) -> u64 {
    let limits = telemetry::limit_snapshots();
    limits.iter().find(|limit| limit.limit == key).unwrap_or_else(|| panic!("{key} is not counted")).hits
}

/// All that is counted, by name and labels.
pub(crate) fn counts() -> BTreeMap<String, f64> {
    let text = String::from_utf8(metrics::write_text(&metrics::GaugeSnapshot::default())).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.filter_map(|line| line.rsplit_once(' '));
    samples.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}
