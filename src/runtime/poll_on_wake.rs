//! Polling of futures that rarely become ready, beside others that often do.

use pin_project::pin_project;
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Wraps a future, which is polled only after it was itself woken.
///
/// A task that waits for shutdown beside a busy connection would be polled several times for each request,
/// and would register itself each time in the waiters' lists, under their locks. With this wrapper it checks
/// a flag instead.
#[pin_project]
#[derive(Debug)]
pub struct PollOnWake<F> {
    #[pin]
    future: F,
    wake_flag: Arc<WakeFlag>,
    /// The waker that is passed to the future.
    waker: Waker,
    /// The waker of the task that polled last.
    task: Option<Waker>,
}

#[derive(Debug)]
struct WakeFlag {
    /// The future has been woken since it was last polled.
    is_set: AtomicBool,
    /// The waker of the task. It stays registered after a wake-up, because the next poll mostly has the same
    /// one.
    task: Mutex<Option<Waker>>,
}

// === impl PollOnWake ===

impl<F: Future> PollOnWake<F> {
    /// Wraps `future`. The first poll polls it, too; each later one only after it was woken.
    pub fn new(future: F) -> Self {
        let wake_flag = Arc::new(WakeFlag { is_set: AtomicBool::new(true), task: Mutex::default() });
        Self { future, waker: Waker::from(Arc::clone(&wake_flag)), wake_flag, task: None }
    }
}

impl<F: Future> Future for PollOnWake<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Register before the check of the flag: a wake-up sets the flag before it reads the waker.
        if !this.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            let task = Some(this.task.insert(cx.waker().clone()).clone());
            *this.wake_flag.task.lock().unwrap_or_else(PoisonError::into_inner) = task;
        }
        if !this.wake_flag.is_set.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Clear the flag before the poll: a wake-up from then on is new.
        this.wake_flag.is_set.swap(false, Ordering::AcqRel);
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

// === impl WakeFlag ===

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
    fn a_future_is_polled_once_and_when_it_was_woken() {
        let (polls, waker) = (AtomicUsize::new(0), AtomicWaker::new());
        let mut polled = spawn(PollOnWake::new(poll_fn(|cx| {
            waker.register(cx.waker());
            match polls.fetch_add(1, Ordering::Relaxed) {
                2 => Poll::Ready("woken twice"),
                _ => Poll::Pending,
            }
        })));
        for _ in 0..3 {
            assert!(polled.poll().is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 1);
        }
        waker.wake();
        assert!(polled.is_woken());
        for _ in 0..3 {
            assert!(polled.poll().is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 2);
        }
        waker.wake();
        assert!(polled.is_woken());
        assert_eq!(polled.poll(), Poll::Ready("woken twice"));
    }

    #[test]
    fn the_last_task_that_polled_is_woken() {
        let (sender, receiver) = oneshot::channel();
        let mut polled = pin!(PollOnWake::new(receiver));
        let (mut former, mut last) = (spawn(()), spawn(()));
        for task in [&mut former, &mut last] {
            assert!(task.enter(|cx, _| polled.as_mut().poll(cx)).is_pending());
        }
        sender.send(7).expect("it is waited for");
        assert!(last.is_woken() && !former.is_woken());
        assert_eq!(last.enter(|cx, _| polled.as_mut().poll(cx)), Poll::Ready(Ok(7)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost_between_threads() {
        for _ in 0..2000 {
            let (here, there) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let (receives, sends) = (here.clone(), there.clone());
            let other = tokio::spawn(async move {
                for _ in 0..3 {
                    PollOnWake::new(Box::pin(receives.notified())).await;
                    sends.notify_one();
                }
            });
            for _ in 0..3 {
                let mut received = PollOnWake::new(Box::pin(there.notified()));
                assert!(poll!(&mut received).is_pending());
                here.notify_one();
                received.await;
            }
            other.await.expect("it ends");
        }
    }
}
