//! Stopping in order: everybody is told once, and who still works is waited for.

use std::{future::Future, time::Duration};
use tokio::{runtime::Handle, sync::watch};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::spawn_on;

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
        self.tell();
        let _ = tokio::time::timeout(limit, self.over()).await;
        self.unfinished()
    }

    /// Tells everybody to stop.
    pub fn tell(&self) {
        self.stop.send_replace(true);
        self.tracker.close();
    }

    /// Waits until all work has ended, after it was told to.
    pub async fn over(&self) {
        self.tracker.wait().await;
    }

    /// How much work there is.
    pub fn unfinished(&self) -> usize {
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

    /// Work that the drain waits for, for as long as the token lives.
    pub fn work(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Spawns work that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(self.tracker.track_future(work), &Handle::current());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::try_orders;
    use shuttle::future::yield_now;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    #[test]
    fn work_is_waited_for_in_whatever_order_it_begins_and_ends() {
        try_orders(100, || async {
            let (drain, stopping) = Drain::new();
            let ended = Arc::new(AtomicUsize::new(0));
            for _ in 0..3 {
                let (heard, ended) = (stopping.clone(), ended.clone());
                stopping.spawn(async move {
                    heard.stopped().await;
                    // Some of it begins when it is late.
                    let further = ended.clone();
                    heard.spawn(async move {
                        yield_now().await;
                        further.fetch_add(1, Ordering::Relaxed);
                    });
                    yield_now().await;
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }
            let over = shuttle::future::spawn(async move { stopping.tracker.wait().await });
            assert_eq!(drain.stop(Duration::from_secs(30)).await, 0);
            assert_eq!(ended.load(Ordering::Relaxed), 6);
            over.await.expect("it is not aborted");
        });
    }

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
    async fn work_is_waited_for_until_its_token_is_gone() {
        let (drain, stopping) = Drain::new();
        let work = stopping.work();
        drain.tell();
        let over = drain.over();
        tokio::pin!(over);
        assert!(futures_util::poll!(&mut over).is_pending());
        assert_eq!(drain.unfinished(), 1);
        drop(work);
        over.await;
    }
}
