//! Stopping in order: everybody is told once, and who still works is waited for.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::Notify};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::spawn_on;

/// Owns the signal to stop and knows who is still at work.
#[derive(Debug)]
pub struct Drain {
    signal: Arc<Signal>,
    tracker: TaskTracker,
}

/// Hears the signal to stop; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopping {
    signal: Arc<Signal>,
    tracker: TaskTracker,
    /// Of what this is a part.
    whole: Option<Arc<Self>>,
}

/// Given once, to all who wait for it. Each call waits for some, so it costs little to begin to, and to look.
#[derive(Debug, Default)]
struct Signal {
    is_given: AtomicBool,
    /// Lists of those who wait, several so that threads seldom meet at the lock of one.
    waiting: [Notify; LISTS],
}

const LISTS: usize = 8;

thread_local! {
    /// The list of a thread.
    static LIST: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % LISTS
    };
}

/// Work that a drain waits for, until it is dropped.
#[derive(Debug)]
pub struct Work {
    _tokens: (TaskTrackerToken, Option<TaskTrackerToken>),
}

// === impl Drain ===

impl Drain {
    pub fn new() -> (Self, Stopping) {
        let (signal, tracker) = (Arc::<Signal>::default(), TaskTracker::new());
        (
            Self { signal: Arc::clone(&signal), tracker: tracker.clone() },
            Stopping { signal, tracker, whole: None },
        )
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
        self.signal.give();
        self.tracker.close();
    }

    /// Waits until all work has ended, after it was told to.
    pub async fn over(&self) {
        self.tracker.wait().await;
    }

    /// Waits until there is no work, and tells nobody to end it.
    pub async fn at_rest(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// How much work there is.
    pub fn unfinished(&self) -> usize {
        self.tracker.len()
    }
}

impl Drop for Drain {
    /// Means the same as a signal: nobody is left to wait for those who work.
    fn drop(&mut self) {
        self.signal.give();
    }
}

// === impl Signal ===

impl Signal {
    fn give(&self) {
        self.is_given.store(true, Ordering::SeqCst);
        self.waiting.iter().for_each(Notify::notify_waiters);
    }

    fn is_given(&self) -> bool {
        self.is_given.load(Ordering::SeqCst)
    }

    async fn given(&self) {
        // Before it is looked at: who is made before those who wait are woken, is woken.
        let woken = self.waiting[LIST.try_with(|list| *list).unwrap_or(0)].notified();
        if !self.is_given() {
            woken.await;
        }
    }
}

// === impl Stopping ===

impl Stopping {
    /// A part of what this is the whole of: it stops with the whole, or before it, and both wait for its work.
    pub fn part(&self) -> (Drain, Self) {
        let (drain, stopping) = Drain::new();
        (drain, Self { whole: Some(Arc::new(self.clone())), ..stopping })
    }

    /// Resolves when it is time to stop.
    pub async fn stopped(&self) {
        match &self.whole {
            None => self.signal.given().await,
            // Boxed: who waits for a part is seldom somebody of whom there are many.
            Some(whole) => {
                Box::pin(async {
                    tokio::select! {
                        () = self.signal.given() => {}
                        () = whole.signal.given() => {}
                    }
                })
                .await;
            }
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.signal.is_given() || self.whole.as_ref().is_some_and(|whole| whole.is_stopped())
    }

    /// Work that the drain waits for, for as long as this lives.
    pub fn work(&self) -> Work {
        Work { _tokens: (self.tracker.token(), self.whole.as_ref().map(|whole| whole.tracker.token())) }
    }

    /// Spawns work that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let counted = self.tracker.track_future(work);
        match &self.whole {
            None => spawn_on(counted, &Handle::current()),
            Some(whole) => spawn_on(whole.tracker.track_future(counted), &Handle::current()),
        }
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
    async fn a_part_stops_before_the_whole_or_with_it_and_both_wait_for_its_work() {
        let (whole, stopping) = Drain::new();
        let [(one, first), (_other, second)] = [stopping.part(), stopping.part()];
        let work = first.work();
        first.spawn(std::future::ready(()));
        assert_eq!((whole.unfinished(), one.unfinished()), (2, 2));
        tokio::task::yield_now().await;
        one.tell();
        first.stopped().await;
        assert!(first.is_stopped() && !second.is_stopped() && !stopping.is_stopped());
        assert_eq!((whole.unfinished(), one.unfinished()), (1, 1));
        drop(work);
        one.over().await;
        whole.tell();
        second.stopped().await;
        assert!(second.is_stopped());
        whole.over().await;
    }

    #[test]
    fn the_signal_is_heard_by_whoever_waits_for_it_before_or_after() {
        try_orders(1000, || async {
            let (drain, stopping) = Drain::new();
            let (part, of_it) = stopping.part();
            let heard = [stopping.clone(), stopping, of_it]
                .map(|stopping| shuttle::future::spawn(async move { stopping.stopped().await }));
            yield_now().await;
            // By its end, too.
            drop(drain);
            for heard in heard {
                heard.await.expect("it hears");
            }
            drop(part);
        });
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
