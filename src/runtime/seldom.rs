//! Futures that hardly ever have something new, beside others that often have.

use futures_util::task::AtomicWaker;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future that is polled when it was itself woken, and not each time that something else is.
///
/// What waits beside a busy connection for the proxy to stop is polled some times for each request, and each time puts
/// itself anew on the lists of those to be told, under their locks. This costs a look at a flag.
#[derive(Debug)]
pub struct Seldom<F> {
    future: F,
    woken: Arc<Woken>,
}

#[derive(Debug)]
struct Woken {
    /// It has not been polled since.
    is: AtomicBool,
    /// Who is woken in turn.
    task: AtomicWaker,
}

// === impl Seldom ===

impl<F: Future + Unpin> Seldom<F> {
    /// Polled once, and from then on when it is woken.
    pub fn new(future: F) -> Self {
        let woken = Woken { is: AtomicBool::new(true), task: AtomicWaker::new() };
        Self { future, woken: Arc::new(woken) }
    }
}

impl<F: Future + Unpin> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        // Each time, and before the flag is looked at: whoever raises it takes the waker away afterwards.
        this.woken.task.register(cx.waker());
        if !this.woken.is.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Before it is polled: what wakes it from then on is new.
        this.woken.is.swap(false, Ordering::AcqRel);
        let waker = Waker::from(Arc::clone(&this.woken));
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&waker))
    }
}

// === impl Woken ===

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{future::poll_fn, poll};
    use std::{pin::pin, sync::atomic::AtomicUsize};
    use tokio::sync::{Notify, oneshot};
    use tokio_test::task::spawn;

    #[test]
    fn it_is_polled_once_and_when_it_was_woken() {
        let (polls, waker) = (AtomicUsize::new(0), AtomicWaker::new());
        let mut seldom = spawn(Seldom::new(poll_fn(|cx| {
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
        let mut seldom = pin!(Seldom::new(hears));
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
                    Seldom::new(Box::pin(hears.notified())).await;
                    tells.notify_one();
                }
            });
            for _ in 0..3 {
                let mut heard = Seldom::new(Box::pin(there.notified()));
                assert!(poll!(&mut heard).is_pending());
                here.notify_one();
                heard.await;
            }
            other.await.expect("it ends");
        }
    }
}
