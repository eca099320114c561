//! Orderly shutdown: one stop signal to all tasks, and a wait until tracked work has ended.

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

/// The owner of a stop signal, which can send it and wait until the tracked work has ended.
#[derive(Debug)]
pub struct Drain {
    signal: Arc<StopSignal>,
    tracker: Arc<TaskTracker>,
}

/// The receiver of a [`Drain`]'s stop signal, by which work is also tracked; cheap to clone.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    signal: Arc<StopSignal>,
    tracker: Arc<TaskTracker>,
    /// The watch whose signal also stops this one.
    parent: Option<Arc<Self>>,
}

/// A signal that is sent once, to all waiters. Each call waits for several signals, so starting to wait and
/// checking are cheap.
#[derive(Debug, Default)]
struct StopSignal {
    is_triggered: AtomicBool,
    /// Lists of waiters, one per thread so that threads rarely contend for a list's lock.
    waiters: PerThread<Notify>,
}

/// Counts tracked work. Each call is tracked, so the counts are per thread to avoid contention.
#[derive(Debug)]
struct TaskTracker {
    counts: PerThread<Arc<TaskCount>>,
    idle: Arc<IdleNotify>,
    /// The counts of each child tracker, for as long as work may be tracked there.
    children: Mutex<Vec<Vec<Arc<TaskCount>>>>,
}

/// The work that began on one thread or a few threads.
#[derive(Debug)]
struct TaskCount {
    /// The number of active tasks in the lower half, and of all tasks ever begun in the upper half. The
    /// latter shows whether a task began and ended while the other counts were read.
    state: AtomicU64,
    idle: Arc<IdleNotify>,
}

/// Notifies waiters when a count falls to zero, if a waiter is registered.
#[derive(Debug, Default)]
struct IdleNotify {
    is_awaited: AtomicBool,
    notify: Notify,
    /// The notifier of the parent tracker.
    parent: Option<Arc<Self>>,
}

/// One unit of work that a drain waits for, until dropped.
#[derive(Debug)]
pub struct TaskToken(Arc<TaskCount>);

/// A future that is tracked until it ends.
#[pin_project]
struct TrackedFuture<F> {
    #[pin]
    work: F,
    _token: TaskToken,
}

/// One task that has begun and is active, in [`TaskCount::state`].
const ONE_TASK: u64 = (1 << 32) | 1;
/// Mask of the active tasks in [`TaskCount::state`].
const ACTIVE_MASK: u64 = (1 << 32) - 1;

// === impl Drain ===

impl Drain {
    /// Creates a drain without tracked work, and its watch.
    pub fn new() -> (Self, DrainWatch) {
        Self::with_tracker(Arc::new(TaskTracker::new(None)), None)
    }

    fn with_tracker(tracker: Arc<TaskTracker>, parent: Option<Arc<DrainWatch>>) -> (Self, DrainWatch) {
        let signal = Arc::<StopSignal>::default();
        (
            Self { signal: Arc::clone(&signal), tracker: Arc::clone(&tracker) },
            DrainWatch { signal, tracker, parent },
        )
    }

    /// Sends the stop signal and waits, at most `limit`, until all work has ended. Returns the number of
    /// unfinished tasks.
    pub async fn stop(self, limit: Duration) -> usize {
        self.start();
        let _ = tokio::time::timeout(limit, self.completed()).await;
        self.active_count()
    }

    /// Sends the stop signal.
    pub fn start(&self) {
        self.signal.trigger();
    }

    /// Waits until no tracked work is active. Sends no signal.
    pub async fn completed(&self) {
        self.tracker.wait_idle().await;
    }

    /// The number of tracked tasks that have not ended.
    pub fn active_count(&self) -> usize {
        let active = |count: u64| usize::try_from(count & ACTIVE_MASK).unwrap_or(usize::MAX);
        self.tracker.states().into_iter().map(active).sum()
    }
}

impl Drop for Drain {
    /// Sends the stop signal, because no one can send it later.
    fn drop(&mut self) {
        self.signal.trigger();
    }
}

// === impl StopSignal ===

impl StopSignal {
    fn trigger(&self) {
        self.is_triggered.store(true, SeqCst);
        self.waiters.iter().for_each(Notify::notify_waiters);
    }

    fn is_triggered(&self) -> bool {
        self.is_triggered.load(SeqCst)
    }

    async fn wait_triggered(&self) {
        // Register before the check: a signal that is sent in between wakes the registered waiter.
        let woken = self.waiters.local().notified();
        if !self.is_triggered() {
            woken.await;
        }
    }
}

// === impl TaskTracker ===

impl TaskTracker {
    fn new(parent: Option<Arc<IdleNotify>>) -> Self {
        let idle = Arc::new(IdleNotify { parent, ..IdleNotify::default() });
        let count = || Arc::new(TaskCount { state: AtomicU64::new(0), idle: Arc::clone(&idle) });
        Self { counts: PerThread::from_fn(count), idle: Arc::clone(&idle), children: Mutex::default() }
    }

    /// Creates a tracker whose work this tracker counts, too.
    fn child(&self) -> Self {
        let child = Self::new(Some(Arc::clone(&self.idle)));
        let mut children = self.children.lock();
        // Forget children to whose counts there is no other reference: no task can be active in them.
        children.retain(|counts| counts.iter().any(|count| Arc::strong_count(count) > 1));
        children.push(child.counts.iter().cloned().collect());
        child
    }

    fn track(&self) -> TaskToken {
        let count = Arc::clone(self.counts.local());
        count.state.fetch_add(ONE_TASK, SeqCst);
        TaskToken(count)
    }

    fn states(&self) -> Vec<u64> {
        let children = self.children.lock();
        let all = self.counts.iter().chain(children.iter().flatten());
        all.map(|count| count.state.load(SeqCst)).collect()
    }

    /// Whether no task was active at some moment during this call. Equal sums are not enough, because tasks
    /// may have begun and ended between the reads; all states must be equal twice.
    fn is_idle(&self) -> bool {
        let mut previous = self.states();
        loop {
            if previous.iter().any(|state| state & ACTIVE_MASK > 0) {
                return false;
            }
            let current = self.states();
            if current == previous {
                return true;
            }
            previous = current;
        }
    }

    async fn wait_idle(&self) {
        loop {
            // Register before the check: a task that ends after it notifies this waiter, and one that ended
            // before it is counted.
            let notified = self.idle.notify.notified();
            self.idle.is_awaited.store(true, SeqCst);
            if self.is_idle() {
                return;
            }
            notified.await;
        }
    }
}

// === impl IdleNotify ===

impl IdleNotify {
    fn notify(&self) {
        if self.is_awaited.load(SeqCst) {
            self.notify.notify_waiters();
        }
        if let Some(parent) = &self.parent {
            parent.notify();
        }
    }
}

// === impl TaskToken ===

impl Drop for TaskToken {
    fn drop(&mut self) {
        let previous = self.0.state.fetch_sub(1, SeqCst);
        if previous & ACTIVE_MASK == 1 {
            self.0.idle.notify();
        }
    }
}

// === impl TrackedFuture ===

impl<F: Future> Future for TrackedFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(cx)
    }
}

// === impl DrainWatch ===

impl DrainWatch {
    /// Creates a child drain: it stops with this watch or before, and both drains wait for its work.
    pub fn child(&self) -> (Drain, Self) {
        Drain::with_tracker(Arc::new(self.tracker.child()), Some(Arc::new(self.clone())))
    }

    /// Resolves when the stop signal is sent.
    pub async fn stopped(&self) {
        match &self.parent {
            None => self.signal.wait_triggered().await,
            // Boxed, because few tasks wait for a child.
            Some(parent) => {
                Box::pin(async {
                    tokio::select! {
                        () = self.signal.wait_triggered() => {}
                        () = parent.signal.wait_triggered() => {}
                    }
                })
                .await;
            }
        }
    }

    /// Whether the stop signal has been sent.
    pub fn is_stopped(&self) -> bool {
        self.signal.is_triggered() || self.parent.as_ref().is_some_and(|parent| parent.is_stopped())
    }

    /// Registers work that the drain waits for until the token is dropped.
    pub fn track(&self) -> TaskToken {
        self.tracker.track()
    }

    /// Spawns a task that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(TrackedFuture { work, _token: self.track() }, &Handle::current());
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
    fn work_is_waited_for_in_any_order() {
        explore_schedules(100, || async {
            let (drain, stopping) = Drain::new();
            let ended = Arc::new(AtomicUsize::new(0));
            for _ in 0..3 {
                let (watch, ended) = (stopping.clone(), ended.clone());
                stopping.spawn(async move {
                    watch.stopped().await;
                    // Some of the work begins after the signal.
                    let further = ended.clone();
                    watch.spawn(async move {
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
    async fn a_drain_waits_for_work_and_counts_unfinished_tasks() {
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
    async fn a_child_stops_before_its_parent_or_with_it_and_both_wait_for_its_work() {
        let (parent, stopping) = Drain::new();
        let [(one, first), (_other, second)] = [stopping.child(), stopping.child()];
        let work = first.track();
        first.spawn(std::future::ready(()));
        assert_eq!((parent.active_count(), one.active_count()), (2, 2));
        tokio::task::yield_now().await;
        one.start();
        first.stopped().await;
        assert!(first.is_stopped() && !second.is_stopped() && !stopping.is_stopped());
        assert_eq!((parent.active_count(), one.active_count()), (1, 1));
        drop(work);
        one.completed().await;
        parent.start();
        second.stopped().await;
        assert!(second.is_stopped());
        parent.completed().await;
    }

    #[test]
    fn the_signal_reaches_earlier_and_later_waiters() {
        explore_schedules(1000, || async {
            let (drain, stopping) = Drain::new();
            let (part, of_it) = stopping.child();
            let watch = [stopping.clone(), stopping, of_it]
                .map(|stopping| shuttle::future::spawn(async move { stopping.stopped().await }));
            yield_now().await;
            // Dropping the drain sends the signal, too.
            drop(drain);
            for watch in watch {
                watch.await.expect("the signal arrives");
            }
            drop(part);
        });
    }

    /// Work that moves between threads: each task begins before the previous one ends, so there is always
    /// work, while each single count is zero most of the time.
    #[tokio::test]
    async fn work_that_moves_between_threads_stays_counted() {
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
    async fn a_dropped_child_counts_while_it_has_work_and_is_then_removed() {
        let (parent, stopping) = Drain::new();
        let work = {
            let (_drain, part) = stopping.child();
            part.track()
        };
        drop(stopping.child());
        assert_eq!((parent.active_count(), parent.tracker.children.lock().len()), (1, 2));
        drop(work);
        parent.completed().await;
        drop(stopping.child());
        assert_eq!(parent.tracker.children.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_waited_for_until_its_token_is_dropped() {
        let (drain, stopping) = Drain::new();
        let work = stopping.track();
        drain.start();
        let over = drain.completed();
        tokio::pin!(over);
        assert!(futures_util::poll!(&mut over).is_pending());
        assert_eq!(drain.active_count(), 1);
        drop(work);
        over.await;
    }
}
