//! Stopping in order: everybody is told once, and who still works is waited for.

use super::{Mutex, PerThread, spawn_on};
use pin_project::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{runtime::Handle, sync::Notify};

/// Owns the signal to stop and knows who is still at work.
#[derive(Debug)]
pub struct Drain {
    signal: Arc<StopSignal>,
    tracker: Arc<TaskTracker>,
}

/// Hears the signal to stop; cheap to clone.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    signal: Arc<StopSignal>,
    tracker: Arc<TaskTracker>,
    /// Of what this is a part.
    parent: Option<Arc<Self>>,
}

/// Given once, to all who wait for it. Each call waits for some, so it costs little to begin to, and to look.
#[derive(Debug, Default)]
struct StopSignal {
    is_triggered: AtomicBool,
    /// Lists of those who wait, several so that threads seldom meet at the lock of one.
    waiters: PerThread<Notify>,
}

/// Who is at work. Each call is, so those who begin and end on different threads do not meet here.
#[derive(Debug)]
struct TaskTracker {
    counts: PerThread<Arc<TaskCount>>,
    idle: Arc<IdleNotify>,
    /// Those of the parts, for as long as somebody may be at work there.
    children: Mutex<Vec<Vec<Arc<TaskCount>>>>,
}

/// Those who began on some of the threads.
#[derive(Debug)]
struct TaskCount {
    /// How many are at work, in the lower half; how many began, in the upper one: whether nobody came and went while
    /// the others were looked at, is seen by that.
    state: AtomicU64,
    idle: Arc<IdleNotify>,
}

/// Told whenever a count has come down to nobody, if somebody waits for that.
#[derive(Debug, Default)]
struct IdleNotify {
    is_awaited: AtomicBool,
    notify: Notify,
    /// That of the whole, where this is of a part.
    parent: Option<Arc<Self>>,
}

/// Work that a drain waits for, until it is dropped.
#[derive(Debug)]
pub struct TaskToken(Arc<TaskCount>);

/// Work that ends with a future.
#[pin_project]
struct TrackedFuture<F> {
    #[pin]
    work: F,
    _counted: TaskToken,
}

/// One who has begun and is at work.
const ONE: u64 = (1 << 32) | 1;
/// Those at work, of a count's state.
const AT_WORK: u64 = (1 << 32) - 1;

// === impl Drain ===

impl Drain {
    pub fn new() -> (Self, DrainWatch) {
        Self::of(Arc::new(TaskTracker::new(None)), None)
    }

    fn of(crew: Arc<TaskTracker>, whole: Option<Arc<DrainWatch>>) -> (Self, DrainWatch) {
        let signal = Arc::<StopSignal>::default();
        (
            Self { signal: Arc::clone(&signal), tracker: Arc::clone(&crew) },
            DrainWatch { signal, tracker: crew, parent: whole },
        )
    }

    /// Tells everybody to stop and waits, at most `limit`, until all work has ended. Says how much
    /// of it had not.
    pub async fn stop(self, limit: Duration) -> usize {
        self.start();
        let _ = tokio::time::timeout(limit, self.completed()).await;
        self.unfinished()
    }

    /// Tells everybody to stop.
    pub fn start(&self) {
        self.signal.trigger();
    }

    /// Waits until there is no work, and tells nobody to end it.
    pub async fn completed(&self) {
        self.tracker.wait_idle().await;
    }

    /// How much work there is.
    pub fn unfinished(&self) -> usize {
        let at_work = |count: u64| usize::try_from(count & AT_WORK).unwrap_or(usize::MAX);
        self.tracker.states().into_iter().map(at_work).sum()
    }
}

impl Drop for Drain {
    /// Means the same as a signal: nobody is left to wait for those who work.
    fn drop(&mut self) {
        self.signal.trigger();
    }
}

// === impl Signal ===

impl StopSignal {
    fn trigger(&self) {
        self.is_triggered.store(true, SeqCst);
        self.waiters.iter().for_each(Notify::notify_waiters);
    }

    fn is_triggered(&self) -> bool {
        self.is_triggered.load(SeqCst)
    }

    async fn triggered(&self) {
        // Before it is looked at: who is made before those who wait are woken, is woken.
        let woken = self.waiters.local().notified();
        if !self.is_triggered() {
            woken.await;
        }
    }
}

// === impl Crew ===

impl TaskTracker {
    fn new(whole: Option<Arc<IdleNotify>>) -> Self {
        let end = Arc::new(IdleNotify { parent: whole, ..IdleNotify::default() });
        let count = || Arc::new(TaskCount { state: AtomicU64::new(0), idle: Arc::clone(&end) });
        Self { counts: PerThread::from_fn(count), idle: Arc::clone(&end), children: Mutex::default() }
    }

    /// Those of a part, who are waited for here too.
    fn child(&self) -> Self {
        let part = Self::new(Some(Arc::clone(&self.idle)));
        let mut parts = self.children.lock();
        // Nobody else has these counts any more, so nobody is at work by them or will be.
        parts.retain(|counts| counts.iter().any(|count| Arc::strong_count(count) > 1));
        parts.push(part.counts.iter().cloned().collect());
        part
    }

    fn track(&self) -> TaskToken {
        let count = Arc::clone(self.counts.local());
        count.state.fetch_add(ONE, SeqCst);
        TaskToken(count)
    }

    fn states(&self) -> Vec<u64> {
        let parts = self.children.lock();
        let all = self.counts.iter().chain(parts.iter().flatten());
        all.map(|count| count.state.load(SeqCst)).collect()
    }

    /// Whether there was a moment at which nobody was at work: not by two of the same states, before and after which
    /// somebody began, but by all being the same twice.
    fn is_idle(&self) -> bool {
        let mut seen = self.states();
        loop {
            if seen.iter().any(|state| state & AT_WORK > 0) {
                return false;
            }
            let again = self.states();
            if again == seen {
                return true;
            }
            seen = again;
        }
    }

    async fn wait_idle(&self) {
        loop {
            // Before it is looked: whoever ends later tells, and whoever has ended is seen.
            let told = self.idle.notify.notified();
            self.idle.is_awaited.store(true, SeqCst);
            if self.is_idle() {
                return;
            }
            told.await;
        }
    }
}

// === impl End ===

impl IdleNotify {
    fn notify(&self) {
        if self.is_awaited.load(SeqCst) {
            self.notify.notify_waiters();
        }
        if let Some(whole) = &self.parent {
            whole.notify();
        }
    }
}

// === impl Work ===

impl Drop for TaskToken {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, SeqCst);
        if before & AT_WORK == 1 {
            self.0.idle.notify();
        }
    }
}

// === impl Counted ===

impl<F: Future> Future for TrackedFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(cx)
    }
}

// === impl Stopping ===

impl DrainWatch {
    /// A part of what this is the whole of: it stops with the whole, or before it, and both wait for its work.
    pub fn child(&self) -> (Drain, Self) {
        Drain::of(Arc::new(self.tracker.child()), Some(Arc::new(self.clone())))
    }

    /// Resolves when it is time to stop.
    pub async fn stopped(&self) {
        match &self.parent {
            None => self.signal.triggered().await,
            // Boxed: who waits for a part is seldom somebody of whom there are many.
            Some(whole) => {
                Box::pin(async {
                    tokio::select! {
                        () = self.signal.triggered() => {}
                        () = whole.signal.triggered() => {}
                    }
                })
                .await;
            }
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.signal.is_triggered() || self.parent.as_ref().is_some_and(|whole| whole.is_stopped())
    }

    /// Work that the drain waits for, for as long as this lives.
    pub fn track(&self) -> TaskToken {
        self.tracker.track()
    }

    /// Spawns work that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(TrackedFuture { work, _counted: self.track() }, &Handle::current());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::explore_schedules;
    use shuttle::future::yield_now;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    #[test]
    fn work_is_waited_for_in_whatever_order_it_begins_and_ends() {
        explore_schedules(100, || async {
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
            let over = shuttle::future::spawn(async move { stopping.tracker.wait_idle().await });
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
        let [(one, first), (_other, second)] = [stopping.child(), stopping.child()];
        let work = first.track();
        first.spawn(std::future::ready(()));
        assert_eq!((whole.unfinished(), one.unfinished()), (2, 2));
        tokio::task::yield_now().await;
        one.start();
        first.stopped().await;
        assert!(first.is_stopped() && !second.is_stopped() && !stopping.is_stopped());
        assert_eq!((whole.unfinished(), one.unfinished()), (1, 1));
        drop(work);
        one.completed().await;
        whole.start();
        second.stopped().await;
        assert!(second.is_stopped());
        whole.completed().await;
    }

    #[test]
    fn the_signal_is_heard_by_whoever_waits_for_it_before_or_after() {
        explore_schedules(1000, || async {
            let (drain, stopping) = Drain::new();
            let (part, of_it) = stopping.child();
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

    /// Work that goes from thread to thread: each has begun before the one before it ends, so there is always some,
    /// while any count alone is at nobody most of the time.
    #[tokio::test]
    async fn work_that_changes_threads_is_not_lost_from_sight() {
        const HOPS: usize = 20_000;
        let (drain, stopping) = Drain::new();
        let (_kept, part) = stopping.child();
        let is_over = Arc::new(AtomicBool::new(false));
        let (there, back) =
            (std::sync::mpsc::channel::<TaskToken>(), std::sync::mpsc::channel::<TaskToken>());
        let first = stopping.track();
        let threads = [(there.1, back.0, stopping.clone()), (back.1, there.0.clone(), part)].map(
            |(takes, gives, stopping)| {
                let is_over = Arc::clone(&is_over);
                std::thread::spawn(move || {
                    for _ in 0..HOPS {
                        let Ok(before) = takes.recv() else { return };
                        let _ = gives.send(stopping.track());
                        drop(before);
                    }
                    is_over.store(true, SeqCst);
                })
            },
        );
        there.0.send(first).expect("it is taken");
        drop(there.0);
        drain.completed().await;
        assert!(is_over.load(SeqCst), "there was work all the time");
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_gone_is_waited_for_while_somebody_is_at_work_there_and_then_forgotten() {
        let (whole, stopping) = Drain::new();
        let work = {
            let (_drain, part) = stopping.child();
            part.track()
        };
        drop(stopping.child());
        assert_eq!((whole.unfinished(), whole.tracker.children.lock().len()), (1, 2));
        drop(work);
        whole.completed().await;
        drop(stopping.child());
        assert_eq!(whole.tracker.children.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_waited_for_until_its_token_is_gone() {
        let (drain, stopping) = Drain::new();
        let work = stopping.track();
        drain.start();
        let over = drain.completed();
        tokio::pin!(over);
        assert!(futures_util::poll!(&mut over).is_pending());
        assert_eq!(drain.unfinished(), 1);
        drop(work);
        over.await;
    }
}
