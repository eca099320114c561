//! Waits for what a client is told while it waits for a slow call ([`KeepAliveTimer`]).

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

/// A silence, and the timer that says how long it is.
#[derive(Debug)]
pub struct KeepAlive {
    silence: KeepAliveTimer,
    timer: LazyTimer,
}

/// Wakes at one time after another. Made when it is first waited for: most answers are there.
#[derive(Debug, Default)]
pub(super) struct LazyTimer(Option<PooledTimer>);

// === impl KeepAlive ===

impl KeepAlive {
    /// `began` is when the request arrived; `heartbeat` is for a client that wants to hear of progress.
    pub fn new(held: WaitPolicy, heartbeat: Option<ProgressHeartbeat>, began: Instant) -> Self {
        Self { silence: KeepAliveTimer::new(held, heartbeat, began), timer: LazyTimer::default() }
    }

    /// For what is no call: comments alone.
    pub fn comments_only(comments: Duration, began: Instant) -> Self {
        Self::new(WaitPolicy { progress: None, comments, deadline: None, ticket: None }, None, began)
    }

    /// The silence, and a timer for whoever goes on with it.
    pub(super) fn into_parts(self) -> (KeepAliveTimer, LazyTimer) {
        (self.silence, self.timer)
    }

    /// Resolves with each step that is due. `can_insert` is whether something can be put in here; the
    /// deadline does not wait for that.
    pub fn poll(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, may_speak: bool) -> Poll<KeepAliveStep> {
        loop {
            let Some(due) = self.silence.poll_timeout(|| clock.now(), may_speak) else {
                return Poll::Pending;
            };
            ready!(self.timer.poll_until(cx, due));
            // The timer may be a little ahead.
            if let Some(step) = self.silence.handle_timeout(clock.now().max(due), may_speak) {
                return Poll::Ready(step);
            }
        }
    }

    /// Resolves when an answer has to begin or end whose server says nothing ([`KeepAliveTimer::response_start`]).
    pub async fn response_due(&mut self, may_begin: bool) -> ResponseStart {
        let Some((due, what)) = self.silence.response_start(may_begin) else {
            return std::future::pending().await;
        };
        poll_fn(|cx| self.timer.poll_until(cx, due)).await;
        what
    }
}

impl Deref for KeepAlive {
    type Target = KeepAliveTimer;

    fn deref(&self) -> &KeepAliveTimer {
        &self.silence
    }
}

impl DerefMut for KeepAlive {
    fn deref_mut(&mut self) -> &mut KeepAliveTimer {
        &mut self.silence
    }
}

// === impl Timer ===

impl LazyTimer {
    pub(super) fn poll_until(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let alarm = self.0.get_or_insert_with(|| PooledTimer::at(due, TimerKind::KeepAlive));
        alarm.set(due);
        alarm.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use bytes::Bytes;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is told, and after how many seconds, until so many have passed. `meanwhile` is what the
    /// server says, by the second.
    async fn climbed(
        held: WaitPolicy,
        token: bool,
        until: u32,
        meanwhile: impl Fn(u32, &mut KeepAlive),
    ) -> Vec<(u32, KeepAliveStep)> {
        let clock = SystemClock::new();
        let heartbeat = token.then(|| ProgressHeartbeat::new(Bytes::from_static(b"7"), false));
        let mut ladder = KeepAlive::new(held, heartbeat, clock.now());
        let mut climbed = Vec::new();
        for second in 0..=until {
            meanwhile(second, &mut ladder);
            while let Poll::Ready(rung) = futures_util::poll!(poll_fn(|cx| ladder.poll(cx, &clock, true))) {
                climbed.push((second, rung.clone()));
                if rung == KeepAliveStep::Deadline {
                    return climbed;
                }
            }
            advance(SECOND).await;
        }
        climbed
    }

    fn short(rung: &(u32, KeepAliveStep)) -> String {
        let (second, rung) = rung;
        match rung {
            KeepAliveStep::Comment => format!("{second}:"),
            KeepAliveStep::Progress(_) => format!("{second}+"),
            KeepAliveStep::Deadline => format!("{second}!"),
        }
    }

    async fn told(
        held: WaitPolicy,
        token: bool,
        until: u32,
        meanwhile: impl Fn(u32, &mut KeepAlive),
    ) -> String {
        climbed(held, token, until, meanwhile).await.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    fn held() -> WaitPolicy {
        WaitPolicy {
            progress: Some(10 * SECOND),
            comments: 4 * SECOND,
            deadline: Some(25 * SECOND),
            ticket: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments_and_progress_until_the_deadline() {
        assert_eq!(told(held(), true, 30, |_, _| {}).await, "4: 8: 10+ 14: 18: 20+ 24: 25!");
        assert_eq!(told(held(), false, 30, |_, _| {}).await, "4: 8: 12: 16: 20: 24: 25!");
        let off = WaitPolicy { progress: None, deadline: None, ..held() };
        assert_eq!(told(off, true, 13, |_, _| {}).await, "4: 8: 12:");
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_at_once_the_one_is_taken_that_says_more() {
        let even = WaitPolicy { progress: Some(4 * SECOND), deadline: Some(8 * SECOND), ..held() };
        assert_eq!(told(even, true, 30, |_, _| {}).await, "4+ 8!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_comments_break_the_silence_of_comments_alone() {
        let pings = |_: u32, ladder: &mut KeepAlive| ladder.record_bytes();
        assert_eq!(told(held(), true, 30, pings).await, "10+ 20+ 25!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_messages_break_the_silence() {
        let talks = |second: u32, ladder: &mut KeepAlive| {
            if second == 9 {
                ladder.record_message(b"{}");
            }
        };
        assert_eq!(told(held(), true, 24, talks).await, "4: 8: 13: 17: 19+ 23:");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_told_within_an_event_but_the_end() {
        let clock = SystemClock::new();
        let began = clock.now();
        let mut ladder =
            KeepAlive::new(held(), Some(ProgressHeartbeat::new(Bytes::from_static(b"7"), false)), began);
        let rung = poll_fn(|cx| ladder.poll(cx, &clock, false)).await;
        assert_eq!((rung, clock.now() - began), (KeepAliveStep::Deadline, 25 * SECOND));
        assert!(ladder.deadline_error().message().contains("25s (held.deadline)"));
        assert_eq!(ladder.deadline_error().code(), -31003);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answered_call_is_kept_open_and_no_more() {
        let answered = |second: u32, ladder: &mut KeepAlive| {
            if second == 9 {
                ladder.stop_waiting();
            }
        };
        assert_eq!(told(held(), true, 30, answered).await, "4: 8: 12: 16: 20: 24: 28:");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_begins_after_the_longer_silence_where_it_may() {
        let clock = SystemClock::new();
        for (held, may_begin, what, after) in [
            (held(), true, ResponseStart::Due, 10),
            (held(), false, ResponseStart::Deadline, 25),
            (WaitPolicy { progress: None, ..held() }, true, ResponseStart::Due, 4),
            (WaitPolicy { deadline: Some(2 * SECOND), ..held() }, true, ResponseStart::Deadline, 2),
        ] {
            let began = clock.now();
            let mut ladder = KeepAlive::new(held, None, began);
            assert_eq!(ladder.response_due(may_begin).await, what);
            assert_eq!(clock.now() - began, after * SECOND);
        }
    }
}
