//! Timers that hardly ever go off: what ends a call that takes too long, or a client that says nothing.
//!
//! There are some for each call, and each is given up a moment later. To put one into the runtime's wheel of timers and
//! to take it out again costs two locks, which all threads share, and an allocation: together more than reading the
//! call. So a thread of the runtime keeps the timers that were given up, for the next that needs one; and one that is
//! to go off *later* than it would is left as it is: when it does, it is moved on to what has been asked for since.

use std::{
    cell::RefCell,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio::time::{Sleep, sleep_until};

/// A timer that wakes at a moment, and can be moved to another.
#[derive(Debug)]
pub struct PooledTimer {
    /// There until it is dropped.
    timer: Option<Pin<Box<Sleep>>>,
    /// When it is to wake. The timer goes off then or before.
    due: Instant,
    kind: TimerKind,
}

/// What a timer is for. Those for the same are mostly set for the same time ahead, so that one which is used again goes
/// off before it is wanted, hardly ever after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// A connection on which a client is to begin its next request.
    Request,
    /// A client that has heard nothing for a while.
    KeepAlive,
    /// A server that is to answer.
    Response,
}

/// Timers of a kind that a thread keeps at most: some 200 bytes each. What woke by one that is kept stays allocated until
/// the timer is used again or has gone off.
const MAX_POOLED: usize = 64;

type TimerPool = [Vec<Pin<Box<Sleep>>>; 3];

thread_local! {
    /// Nothing on a thread that does not belong to one runtime for good: a timer is of no use in another.
    static ALARMS: RefCell<Option<TimerPool>> = const { RefCell::new(None) };
}

/// From here on this thread keeps its timers. It belongs to one runtime, and calls [`disable_timer_pool`] before that ends.
pub fn enable_timer_pool() {
    ALARMS.set(Some(TimerPool::default()));
}

/// Gives up the timers that this thread keeps, and keeps none any more.
pub fn disable_timer_pool() {
    drop(ALARMS.take());
}

// === impl Alarm ===

impl PooledTimer {
    /// A timer that is set.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn at(due: Instant, of: TimerKind) -> Self {
        let kept = ALARMS.try_with(|kept| kept.borrow_mut().as_mut()?[of as usize].pop());
        let timer = kept.ok().flatten().unwrap_or_else(|| Box::pin(sleep_until(due.into())));
        let mut alarm = Self { timer: Some(timer), due, kind: of };
        alarm.set(due);
        alarm
    }

    /// Moves it to another moment.
    pub fn set(&mut self, due: Instant) {
        self.due = due;
        if self.timer().deadline() > due.into() {
            self.timer().reset(due.into());
        }
    }

    /// Resolves when its moment has come.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.due.into();
        let mut timer = self.timer();
        ready!(timer.as_mut().poll(cx));
        if timer.deadline() < due {
            timer.as_mut().reset(due);
            ready!(timer.poll(cx));
        }
        Poll::Ready(())
    }

    fn timer(&mut self) -> Pin<&mut Sleep> {
        self.timer.as_mut().expect("it is not dropped").as_mut()
    }
}

impl Future for PooledTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Self::poll(&mut self, cx)
    }
}

impl Drop for PooledTimer {
    fn drop(&mut self) {
        let _ = ALARMS.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let Some(kept) = kept.as_mut().map(|kept| &mut kept[self.kind as usize]) else { return };
            if kept.len() < MAX_POOLED {
                kept.extend(self.timer.take());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};
    use futures_util::poll;
    use std::{collections::HashSet, time::Duration};
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many timers this thread keeps.
    fn kept() -> usize {
        ALARMS.with_borrow(|kept| kept.as_ref().map_or(0, |kept| kept.iter().map(Vec::len).sum()))
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_used_again_wakes_at_its_new_moment_earlier_or_later() {
        let clock = SystemClock::new();
        enable_timer_pool();
        // The first seconds of the former: not polled, running, over.
        for (former, polled, after) in
            [(5, false, 0), (5, true, 0), (5, true, 3), (5, true, 5), (1, true, 0), (20, true, 1)]
        {
            let mut alarm = PooledTimer::at(clock.now() + former * SECOND, TimerKind::Response);
            if polled {
                assert!(poll!(&mut alarm).is_pending());
            }
            advance(after * SECOND).await;
            drop(alarm);
            assert_eq!(kept(), 1);
            let mut again = PooledTimer::at(clock.now() + 4 * SECOND, TimerKind::Response);
            assert_eq!(kept(), 0, "it is used again");
            for _ in 0..4 {
                assert!(poll!(&mut again).is_pending(), "{former} {polled} {after}");
                advance(SECOND).await;
            }
            assert!(poll!(&mut again).is_ready(), "{former} {polled} {after}");
        }
        disable_timer_pool();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_set_anew_wakes_then() {
        let clock = SystemClock::new();
        let began = clock.now();
        let mut alarm = PooledTimer::at(began + SECOND, TimerKind::KeepAlive);
        alarm.set(began + 3 * SECOND);
        (&mut alarm).await;
        assert_eq!(clock.now() - began, 3 * SECOND);
        alarm.set(began + 5 * SECOND);
        alarm.await;
        assert_eq!(clock.now() - began, 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_keeps_so_many_and_none_once_it_has_forgotten_them() {
        let due = SystemClock::new().now() + SECOND;
        let alarms =
            || (0..2 * MAX_POOLED).map(|_| PooledTimer::at(due, TimerKind::KeepAlive)).collect::<Vec<_>>();
        drop(alarms());
        assert_eq!(kept(), 0, "the thread belongs to no runtime");
        enable_timer_pool();
        drop(alarms());
        assert_eq!(kept(), MAX_POOLED);
        drop(PooledTimer::at(due, TimerKind::Request));
        assert_eq!(kept(), MAX_POOLED + 1, "others are kept apart");
        let out = alarms();
        disable_timer_pool();
        drop(out);
        assert_eq!(kept(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn two_at_a_time_are_two_timers() {
        enable_timer_pool();
        let clock = SystemClock::new();
        drop(PooledTimer::at(clock.now() + SECOND, TimerKind::Response));
        let mut alarms: Vec<_> =
            (1..=3).map(|n| PooledTimer::at(clock.now() + n * SECOND, TimerKind::Response)).collect();
        let mut woken = HashSet::new();
        for second in 0..=3 {
            for (n, alarm) in alarms.iter_mut().enumerate() {
                if !woken.contains(&n) && poll!(alarm).is_ready() {
                    woken.insert(n);
                }
            }
            assert_eq!(woken.len(), second);
            advance(SECOND).await;
        }
        disable_timer_pool();
    }
}
