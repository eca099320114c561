//! Futures that hardly ever have something new, beside others that often have.

use pin_project::pin_project;
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future that is polled when it was itself woken, and not each time that something else is.
///
/// What waits beside a busy connection for the proxy to stop is polled some times for each request, and each time puts
/// itself anew on the lists of those to be told, under their locks. This costs a look at a flag.
#[pin_project]
#[derive(Debug)]
pub struct PollOnWake<F> {
    #[pin]
    future: F,
    woken: Arc<WakeFlag>,
    /// Wakes it.
    waker: Waker,
    /// Who polled it last.
    task: Option<Waker>,
}

#[derive(Debug)]
struct WakeFlag {
    /// It has not been polled since.
    is_set: AtomicBool,
    /// Who is woken in turn. It stays there: who polls again need not leave the same one.
    task: Mutex<Option<Waker>>,
}

// === impl Seldom ===

impl<F: Future> PollOnWake<F> {
    /// Polled once, and from then on when it is woken.
    pub fn new(future: F) -> Self {
        let woken = Arc::new(WakeFlag { is_set: AtomicBool::new(true), task: Mutex::default() });
        Self { future, waker: Waker::from(Arc::clone(&woken)), woken, task: None }
    }
}

impl<F: Future> Future for PollOnWake<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Before the flag is looked at: whoever raises it looks for the waker afterwards.
        if !this.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            let task = Some(this.task.insert(cx.waker().clone()).clone());
            *this.woken.task.lock().unwrap_or_else(PoisonError::into_inner) = task;
        }
        if !this.woken.is_set.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Before it is polled: what wakes it from then on is new.
        this.woken.is_set.swap(false, Ordering::AcqRel);
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

// === impl Woken ===

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{future::poll_fn, poll, task::AtomicWaker};
    use std::{pin::pin, sync::atomic::AtomicUsize};
    use tokio::sync::{Notify, oneshot};
    use tokio_test::task::spawn;

    #[test]
    fn it_is_polled_once_and_when_it_was_woken() {
        let (polls, waker) = (AtomicUsize::new(0), AtomicWaker::new());
        let mut seldom = spawn(PollOnWake::new(poll_fn(|cx| {
            waker.register(cx.waker());
            match polls.fetch_add(1, Ordering::Relaxed) {
                2 => Poll::Ready("woken twice"),
                _ => Poll::Pending,
            }
        })));
        for _ in 0..3 {
            assert!(seldom.poll().is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 1);
        }
        waker.wake();
        assert!(seldom.is_woken());
        for _ in 0..3 {
            assert!(seldom.poll().is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 2);
        }
        waker.wake();
        assert!(seldom.is_woken());
        assert_eq!(seldom.poll(), Poll::Ready("woken twice"));
    }

    #[test]
    fn whoever_polled_it_last_is_woken() {
        let (told, hears) = oneshot::channel();
        let mut seldom = pin!(PollOnWake::new(hears));
        let (mut former, mut last) = (spawn(()), spawn(()));
        for task in [&mut former, &mut last] {
            assert!(task.enter(|cx, _| seldom.as_mut().poll(cx)).is_pending());
        }
        told.send(7).expect("it is waited for");
        assert!(last.is_woken() && !former.is_woken());
        assert_eq!(last.enter(|cx, _| seldom.as_mut().poll(cx)), Poll::Ready(Ok(7)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_word_is_lost_between_threads() {
        for _ in 0..2000 {
            let (here, there) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let (hears, tells) = (here.clone(), there.clone());
            let other = tokio::spawn(async move {
                for _ in 0..3 {
                    PollOnWake::new(Box::pin(hears.notified())).await;
                    tells.notify_one();
                }
            });
            for _ in 0..3 {
                let mut heard = PollOnWake::new(Box::pin(there.notified()));
                assert!(poll!(&mut heard).is_pending());
                here.notify_one();
                heard.await;
            }
            other.await.expect("it ends");
        }
    }
}
