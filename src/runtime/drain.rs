//! Stopping in order: everybody is told once, and who still works is waited for.

use std::{future::Future, time::Duration};
use tokio::sync::watch;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Owns the signal to stop and knows who is still at work.
#[derive(Debug)]
pub struct Drain {
    stop: watch::Sender<bool>,
    tracker: TaskTracker,
}

/// Hears the signal to stop; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopping {
    stop: watch::Receiver<bool>,
    tracker: TaskTracker,
}

// === impl Drain ===

impl Drain {
    pub fn new() -> (Self, Stopping) {
        let (stop, heard) = watch::channel(false);
        let tracker = TaskTracker::new();
        (Self { stop, tracker: tracker.clone() }, Stopping { stop: heard, tracker })
    }

    /// Tells everybody to stop and waits, at most `limit`, until all work has ended. Says how much
    /// of it had not.
    pub async fn stop(self, limit: Duration) -> usize {
        self.stop.send_replace(true);
        self.tracker.close();
        let _ = tokio::time::timeout(limit, self.tracker.wait()).await;
        self.tracker.len()
    }
}

// === impl Stopping ===

impl Stopping {
    /// Resolves when it is time to stop.
    pub async fn stopped(&self) {
        // A dropped `Drain` means the same as a signal: nobody is left to wait for us.
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Resolves when it was time to stop and all work has ended since.
    pub async fn is_over(&self) {
        self.tracker.wait().await;
    }

    /// Work that the drain waits for, for as long as the token lives.
    pub fn work(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Spawns work that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_work_and_counts_what_it_gave_up_on() {
        let (drain, stopping) = Drain::new();
        let quick = stopping.clone();
        stopping.spawn(async move {
            quick.stopped().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        stopping.spawn(std::future::pending());
        assert!(!stopping.is_stopped());
        assert_eq!(drain.stop(Duration::from_secs(30)).await, 1);
        assert!(stopping.is_stopped());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_was_given_up_on_may_still_be_waited_for() {
        let (drain, stopping) = Drain::new();
        let work = stopping.work();
        assert_eq!(drain.stop(Duration::from_secs(30)).await, 1);
        let over = stopping.is_over();
        tokio::pin!(over);
        assert!(futures_util::poll!(&mut over).is_pending());
        drop(work);
        over.await;
    }
}
