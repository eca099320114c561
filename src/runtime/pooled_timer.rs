//! Timers that rarely fire: timeouts of calls, and keep-alive intervals.
//!
//! Each call sets several timers, and drops them a moment later. Adding a timer to the runtime's timer wheel
//! and removing it costs two locks, which all threads share, and an allocation: together more than reading
//! the call. So a thread of the runtime pools dropped timers for the next use. A timer whose deadline is
//! moved *later* is left in the wheel: when it fires, it is reset to the new deadline.

use std::{
    cell::RefCell,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio::time::{Sleep, sleep_until};

/// A timer with a deadline, which can be moved. Its inner timer comes from the thread's pool, and returns
/// there on drop.
#[derive(Debug)]
pub struct PooledTimer {
    /// `Some` until dropped.
    timer: Option<Pin<Box<Sleep>>>,
    /// The deadline. The inner timer fires at the deadline or before.
    due: Instant,
    kind: TimerKind,
}

/// The purpose of a timer. Timers of one kind mostly have the same duration, so a reused timer mostly fires
/// before its new deadline, not after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Waits for the next request on a client's connection.
    Request,
    /// Waits until the next keep-alive message to a client is due.
    KeepAlive,
    /// Waits for the response of a server.
    Response,
}

/// Maximum number of timers of one kind in a thread's pool: some 200 bytes each. The waker of a pooled timer
/// stays allocated until the timer is reused or fires.
const MAX_POOLED: usize = 64;

/// The pooled timers of each [`TimerKind`].
type TimerPool = [Vec<Pin<Box<Sleep>>>; 3];

thread_local! {
    /// The timers of this thread that can be reused. `None` on a thread that does not belong to one runtime
    /// for its whole life: a timer works only in its own runtime.
    static TIMER_POOL: RefCell<Option<TimerPool>> = const { RefCell::new(None) };
}

/// Enables the timer pool of this thread. The thread must belong to one runtime, and call
/// [`disable_timer_pool`] before the runtime ends.
pub fn enable_timer_pool() {
    TIMER_POOL.set(Some(TimerPool::default()));
}

/// Drops the timer pool of this thread, and disables it.
pub fn disable_timer_pool() {
    drop(TIMER_POOL.take());
}

// === impl PooledTimer ===

impl PooledTimer {
    /// Creates a timer with this deadline.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn at(due: Instant, kind: TimerKind) -> Self {
        let pooled = TIMER_POOL.try_with(|pool| pool.borrow_mut().as_mut()?[kind as usize].pop());
        let timer = pooled.ok().flatten().unwrap_or_else(|| Box::pin(sleep_until(due.into())));
        let mut pooled_timer = Self { timer: Some(timer), due, kind };
        pooled_timer.set(due);
        pooled_timer
    }

    /// Moves the deadline, earlier or later.
    pub fn set(&mut self, due: Instant) {
        self.due = due;
        if self.timer().deadline() > due.into() {
            self.timer().reset(due.into());
        }
    }

    /// Resolves at the deadline.
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
        let _ = TIMER_POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            let Some(timers) = pool.as_mut().map(|pool| &mut pool[self.kind as usize]) else { return };
            if timers.len() < MAX_POOLED {
                timers.extend(self.timer.take());
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

    /// Number of timers in this thread's pool.
    fn pooled_count() -> usize {
        TIMER_POOL.with_borrow(|kept| kept.as_ref().map_or(0, |kept| kept.iter().map(Vec::len).sum()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reused_timer_wakes_at_its_new_deadline() {
        let clock = SystemClock::new();
        enable_timer_pool();
        // The former timer, after its first seconds: not polled, running, fired.
        for (former, polled, after) in
            [(5, false, 0), (5, true, 0), (5, true, 3), (5, true, 5), (1, true, 0), (20, true, 1)]
        {
            let mut alarm = PooledTimer::at(clock.now() + former * SECOND, TimerKind::Response);
            if polled {
                assert!(poll!(&mut alarm).is_pending());
            }
            advance(after * SECOND).await;
            drop(alarm);
            assert_eq!(pooled_count(), 1);
            let mut again = PooledTimer::at(clock.now() + 4 * SECOND, TimerKind::Response);
            assert_eq!(pooled_count(), 0, "it is used again");
            for _ in 0..4 {
                assert!(poll!(&mut again).is_pending(), "{former} {polled} {after}");
                advance(SECOND).await;
            }
            assert!(poll!(&mut again).is_ready(), "{former} {polled} {after}");
        }
        disable_timer_pool();
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_reset_wakes_at_the_new_deadline() {
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
    async fn a_timer_pool_is_bounded_and_can_be_disabled() {
        let due = SystemClock::new().now() + SECOND;
        let alarms =
            || (0..2 * MAX_POOLED).map(|_| PooledTimer::at(due, TimerKind::KeepAlive)).collect::<Vec<_>>();
        drop(alarms());
        assert_eq!(pooled_count(), 0, "the thread belongs to no runtime");
        enable_timer_pool();
        drop(alarms());
        assert_eq!(pooled_count(), MAX_POOLED);
        drop(PooledTimer::at(due, TimerKind::Request));
        assert_eq!(pooled_count(), MAX_POOLED + 1, "others are kept apart");
        let out = alarms();
        disable_timer_pool();
        drop(out);
        assert_eq!(pooled_count(), 0);
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
