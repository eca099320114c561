//! Stopping in order: everybody is told once, and who still works is waited for.

use super::{Mutex, Striped, spawn_on};
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
    signal: Arc<Signal>,
    crew: Arc<Crew>,
}

/// Hears the signal to stop; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopping {
    signal: Arc<Signal>,
    crew: Arc<Crew>,
    /// Of what this is a part.
    whole: Option<Arc<Self>>,
}

/// Given once, to all who wait for it. Each call waits for some, so it costs little to begin to, and to look.
#[derive(Debug, Default)]
struct Signal {
    is_given: AtomicBool,
    /// Lists of those who wait, several so that threads seldom meet at the lock of one.
    waiting: Striped<Notify>,
}

/// Who is at work. Each call is, so those who begin and end on different threads do not meet here.
#[derive(Debug)]
struct Crew {
    counts: Striped<Arc<Count>>,
    end: Arc<End>,
    /// Those of the parts, for as long as somebody may be at work there.
    parts: Mutex<Vec<Vec<Arc<Count>>>>,
}

/// Those who began on some of the threads.
#[derive(Debug)]
struct Count {
    /// How many are at work, in the lower half; how many began, in the upper one: whether nobody came and went while
    /// the others were looked at, is seen by that.
    state: AtomicU64,
    end: Arc<End>,
}

/// Told whenever a count has come down to nobody, if somebody waits for that.
#[derive(Debug, Default)]
struct End {
    is_awaited: AtomicBool,
    told: Notify,
    /// That of the whole, where this is of a part.
    whole: Option<Arc<Self>>,
}

/// Work that a drain waits for, until it is dropped.
#[derive(Debug)]
pub struct Work(Arc<Count>);

/// Work that ends with a future.
#[pin_project]
struct Counted<F> {
    #[pin]
    work: F,
    _counted: Work,
}

/// One who has begun and is at work.
const ONE: u64 = (1 << 32) | 1;
/// Those at work, of a count's state.
const AT_WORK: u64 = (1 << 32) - 1;

// === impl Drain ===

impl Drain {
    pub fn new() -> (Self, Stopping) {
        Self::of(Arc::new(Crew::new(None)), None)
    }

    fn of(crew: Arc<Crew>, whole: Option<Arc<Stopping>>) -> (Self, Stopping) {
        let signal = Arc::<Signal>::default();
        (Self { signal: Arc::clone(&signal), crew: Arc::clone(&crew) }, Stopping { signal, crew, whole })
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
    }

    /// Waits until there is no work, and tells nobody to end it.
    pub async fn over(&self) {
        self.crew.is_gone().await;
    }

    /// How much work there is.
    pub fn unfinished(&self) -> usize {
        let at_work = |count: u64| usize::try_from(count & AT_WORK).unwrap_or(usize::MAX);
        self.crew.states().into_iter().map(at_work).sum()
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
        self.is_given.store(true, SeqCst);
        self.waiting.iter().for_each(Notify::notify_waiters);
    }

    fn is_given(&self) -> bool {
        self.is_given.load(SeqCst)
    }

    async fn given(&self) {
        // Before it is looked at: who is made before those who wait are woken, is woken.
        let woken = self.waiting.mine().notified();
        if !self.is_given() {
            woken.await;
        }
    }
}

// === impl Crew ===

impl Crew {
    fn new(whole: Option<Arc<End>>) -> Self {
        let end = Arc::new(End { whole, ..End::default() });
        let count = || Arc::new(Count { state: AtomicU64::new(0), end: Arc::clone(&end) });
        Self { counts: Striped::of(count), end: Arc::clone(&end), parts: Mutex::default() }
    }

    /// Those of a part, who are waited for here too.
    fn part(&self) -> Self {
        let part = Self::new(Some(Arc::clone(&self.end)));
        let mut parts = self.parts.lock();
        // Nobody else has these counts any more, so nobody is at work by them or will be.
        parts.retain(|counts| counts.iter().any(|count| Arc::strong_count(count) > 1));
        parts.push(part.counts.iter().cloned().collect());
        part
    }

    fn begin(&self) -> Work {
        let count = Arc::clone(self.counts.mine());
        count.state.fetch_add(ONE, SeqCst);
        Work(count)
    }

    fn states(&self) -> Vec<u64> {
        let parts = self.parts.lock();
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

    async fn is_gone(&self) {
        loop {
            // Before it is looked: whoever ends later tells, and whoever has ended is seen.
            let told = self.end.told.notified();
            self.end.is_awaited.store(true, SeqCst);
            if self.is_idle() {
                return;
            }
            told.await;
        }
    }
}

// === impl End ===

impl End {
    fn tell(&self) {
        if self.is_awaited.load(SeqCst) {
            self.told.notify_waiters();
        }
        if let Some(whole) = &self.whole {
            whole.tell();
        }
    }
}

// === impl Work ===

impl Drop for Work {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, SeqCst);
        if before & AT_WORK == 1 {
            self.0.end.tell();
        }
    }
}

// === impl Counted ===

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(cx)
    }
}

// === impl Stopping ===

impl Stopping {
    /// A part of what this is the whole of: it stops with the whole, or before it, and both wait for its work.
    pub fn part(&self) -> (Drain, Self) {
        Drain::of(Arc::new(self.crew.part()), Some(Arc::new(self.clone())))
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
        self.crew.begin()
    }

    /// Spawns work that the drain waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(Counted { work, _counted: self.work() }, &Handle::current());
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
            let over = shuttle::future::spawn(async move { stopping.crew.is_gone().await });
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

    /// Work that goes from thread to thread: each has begun before the one before it ends, so there is always some,
    /// while any count alone is at nobody most of the time.
    #[tokio::test]
    async fn work_that_changes_threads_is_not_lost_from_sight() {
        const HOPS: usize = 20_000;
        let (drain, stopping) = Drain::new();
        let (_kept, part) = stopping.part();
        let is_over = Arc::new(AtomicBool::new(false));
        let (there, back) = (std::sync::mpsc::channel::<Work>(), std::sync::mpsc::channel::<Work>());
        let first = stopping.work();
        let threads = [(there.1, back.0, stopping.clone()), (back.1, there.0.clone(), part)].map(
            |(takes, gives, stopping)| {
                let is_over = Arc::clone(&is_over);
                std::thread::spawn(move || {
                    for _ in 0..HOPS {
                        let Ok(before) = takes.recv() else { return };
                        let _ = gives.send(stopping.work());
                        drop(before);
                    }
                    is_over.store(true, SeqCst);
                })
            },
        );
        there.0.send(first).expect("it is taken");
        drop(there.0);
        drain.over().await;
        assert!(is_over.load(SeqCst), "there was work all the time");
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_gone_is_waited_for_while_somebody_is_at_work_there_and_then_forgotten() {
        let (whole, stopping) = Drain::new();
        let work = {
            let (_drain, part) = stopping.part();
            part.work()
        };
        drop(stopping.part());
        assert_eq!((whole.unfinished(), whole.crew.parts.lock().len()), (1, 2));
        drop(work);
        whole.over().await;
        drop(stopping.part());
        assert_eq!(whole.crew.parts.lock().len(), 1);
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
