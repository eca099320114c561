//! What is due: lives to be extended, results to be forgotten.

use super::Tasks;
use crate::{runtime::Stopping, telemetry::StoreFailed};
use std::{sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// How often the store is asked what is due. A finished task is found at least until its ttl ends,
/// and for at most this long after.
const PERIOD: Duration = Duration::from_secs(5);

/// How much is looked at in one go, so that a great many dues do not hold up a small store.
const BATCH: usize = 1000;

impl Tasks {
    /// Looks after the tasks until the proxy stops.
    pub async fn look_after(self: Arc<Self>, stopping: Stopping) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.stopped() => return,
                _ = ticks.tick() => self.sweep_all().await,
            }
        }
    }

    async fn sweep_all(&self) {
        loop {
            match self.sweep(BATCH).await {
                Ok(BATCH) => {}
                Ok(_) => return,
                Err(error) => return StoreFailed { doing: "sweeping", error: &error }.emit(),
            }
        }
    }
}
