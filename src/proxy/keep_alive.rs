//! Timer for the messages that a client receives while it waits for a slow call ([`KeepAliveTimer`]).

use crate::{
    policy::{KeepAliveStep, KeepAliveTimer, WaitPolicy, keep_alive::ResponseStart},
    protocol::ProgressHeartbeat,
    runtime::{Clock, PooledTimer, TimerKind},
};
use std::{
    future::poll_fn,
    ops::{Deref, DerefMut},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

/// Decides when a waiting client gets a comment, a progress notification or the deadline error: the state
/// machine, and the timer that drives it.
#[derive(Debug)]
pub struct KeepAlive {
    schedule: KeepAliveTimer,
    timer: LazyTimer,
}

/// A reusable timer that is created on the first wait, because most responses arrive without one.
#[derive(Debug, Default)]
pub(super) struct LazyTimer(Option<PooledTimer>);

// === impl KeepAlive ===

impl KeepAlive {
    /// Creates the keep-alive of a call. `began` is when its request arrived; `heartbeat` generates progress
    /// notifications, for a client that requested them.
    pub fn new(policy: WaitPolicy, heartbeat: Option<ProgressHeartbeat>, began: Instant) -> Self {
        Self { schedule: KeepAliveTimer::new(policy, heartbeat, began), timer: LazyTimer::default() }
    }

    /// Creates the keep-alive of a request that is not a call: comments at this interval, no progress
    /// notifications and no deadline.
    pub fn comments_only(comments: Duration, began: Instant) -> Self {
        Self::new(
            WaitPolicy { progress_after: None, comment_after: comments, deadline: None, ticket_after: None },
            None,
            began,
        )
    }

    /// Splits into the state machine and the timer, for the next stage of the response.
    pub(super) fn into_parts(self) -> (KeepAliveTimer, LazyTimer) {
        (self.schedule, self.timer)
    }

    /// Polls for the next step that is due. `can_insert` is whether a message can be inserted into the
    /// response now; the deadline is due in either case.
    pub fn poll(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, can_insert: bool) -> Poll<KeepAliveStep> {
        loop {
            let Some(due) = self.schedule.poll_timeout(|| clock.now(), can_insert) else {
                return Poll::Pending;
            };
            ready!(self.timer.poll_until(cx, due));
            // The timer may fire slightly early.
            if let Some(step) = self.schedule.handle_timeout(clock.now().max(due), can_insert) {
                return Poll::Ready(step);
            }
        }
    }

    /// Resolves when the response of a silent server has to begin or end
    /// ([`KeepAliveTimer::response_start`]).
    pub async fn wait_for_response_start(&mut self, can_begin: bool) -> ResponseStart {
        let Some((due, start)) = self.schedule.response_start(can_begin) else {
            return std::future::pending().await;
        };
        poll_fn(|cx| self.timer.poll_until(cx, due)).await;
        start
    }
}

impl Deref for KeepAlive {
    type Target = KeepAliveTimer;

    fn deref(&self) -> &KeepAliveTimer {
        &self.schedule
    }
}

impl DerefMut for KeepAlive {
    fn deref_mut(&mut self) -> &mut KeepAliveTimer {
        &mut self.schedule
    }
}

// === impl LazyTimer ===

impl LazyTimer {
    /// Resolves at `due`. Resets the timer if an earlier poll had another time.
    pub(super) fn poll_until(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| PooledTimer::at(due, TimerKind::KeepAlive));
        timer.set(due);
        timer.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use bytes::Bytes;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    /// The steps and their times in seconds, until `until`. `meanwhile` plays the server's messages, by the
    /// second.
    async fn steps(
        held: WaitPolicy,
        token: bool,
        until: u32,
        meanwhile: impl Fn(u32, &mut KeepAlive),
    ) -> Vec<(u32, KeepAliveStep)> {
        let clock = SystemClock::new();
        let heartbeat = token.then(|| ProgressHeartbeat::new(Bytes::from_static(b"7"), false));
        let mut keep_alive = KeepAlive::new(held, heartbeat, clock.now());
        let mut steps = Vec::new();
        for second in 0..=until {
            meanwhile(second, &mut keep_alive);
            while let Poll::Ready(step) = futures_util::poll!(poll_fn(|cx| keep_alive.poll(cx, &clock, true)))
            {
                steps.push((second, step.clone()));
                if step == KeepAliveStep::Deadline {
                    return steps;
                }
            }
            advance(SECOND).await;
        }
        steps
    }

    fn short(step: &(u32, KeepAliveStep)) -> String {
        let (second, step) = step;
        match step {
            KeepAliveStep::Comment => format!("{second}:"),
            KeepAliveStep::Progress(_) => format!("{second}+"),
            KeepAliveStep::Deadline => format!("{second}!"),
        }
    }

    async fn rendered(
        held: WaitPolicy,
        token: bool,
        until: u32,
        meanwhile: impl Fn(u32, &mut KeepAlive),
    ) -> String {
        steps(held, token, until, meanwhile).await.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    fn wait_policy() -> WaitPolicy {
        WaitPolicy {
            progress_after: Some(10 * SECOND),
            comment_after: 4 * SECOND,
            deadline: Some(25 * SECOND),
            ticket_after: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments_and_progress_until_the_deadline() {
        assert_eq!(rendered(wait_policy(), true, 30, |_, _| {}).await, "4: 8: 10+ 14: 18: 20+ 24: 25!");
        assert_eq!(rendered(wait_policy(), false, 30, |_, _| {}).await, "4: 8: 12: 16: 20: 24: 25!");
        let off = WaitPolicy { progress_after: None, deadline: None, ..wait_policy() };
        assert_eq!(rendered(off, true, 13, |_, _| {}).await, "4: 8: 12:");
    }

    #[tokio::test(start_paused = true)]
    async fn progress_and_deadline_precede_comments_due_at_once() {
        let even =
            WaitPolicy { progress_after: Some(4 * SECOND), deadline: Some(8 * SECOND), ..wait_policy() };
        assert_eq!(rendered(even, true, 30, |_, _| {}).await, "4+ 8!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_comments_break_the_silence_of_comments_alone() {
        let pings = |_: u32, keep_alive: &mut KeepAlive| keep_alive.record_bytes();
        assert_eq!(rendered(wait_policy(), true, 30, pings).await, "10+ 20+ 25!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_messages_break_the_silence() {
        let talks = |second: u32, keep_alive: &mut KeepAlive| {
            if second == 9 {
                keep_alive.record_message(b"{}");
            }
        };
        assert_eq!(rendered(wait_policy(), true, 24, talks).await, "4: 8: 13: 17: 19+ 23:");
    }

    #[tokio::test(start_paused = true)]
    async fn within_an_event_only_the_deadline_is_due() {
        let clock = SystemClock::new();
        let began = clock.now();
        let mut keep_alive = KeepAlive::new(
            wait_policy(),
            Some(ProgressHeartbeat::new(Bytes::from_static(b"7"), false)),
            began,
        );
        let step = poll_fn(|cx| keep_alive.poll(cx, &clock, false)).await;
        assert_eq!((step, clock.now() - began), (KeepAliveStep::Deadline, 25 * SECOND));
        assert!(keep_alive.deadline_error().message().contains("25s (held.deadline)"));
        assert_eq!(keep_alive.deadline_error().code(), -31003);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answered_call_gets_comments_only() {
        let answered = |second: u32, keep_alive: &mut KeepAlive| {
            if second == 9 {
                keep_alive.stop_waiting();
            }
        };
        assert_eq!(rendered(wait_policy(), true, 30, answered).await, "4: 8: 12: 16: 20: 24: 28:");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_begins_after_the_longer_silence_if_it_may() {
        let clock = SystemClock::new();
        for (held, may_begin, what, after) in [
            (wait_policy(), true, ResponseStart::Due, 10),
            (wait_policy(), false, ResponseStart::Deadline, 25),
            (WaitPolicy { progress_after: None, ..wait_policy() }, true, ResponseStart::Due, 4),
            (WaitPolicy { deadline: Some(2 * SECOND), ..wait_policy() }, true, ResponseStart::Deadline, 2),
        ] {
            let began = clock.now();
            let mut keep_alive = KeepAlive::new(held, None, began);
            assert_eq!(keep_alive.wait_for_response_start(may_begin).await, what);
            assert_eq!(clock.now() - began, after * SECOND);
        }
    }
}
