//! What a client is told while it waits for a slow call, one rung after another: that the call still
//! runs, if it asked to hear of progress; a comment, which keeps the connection open; at the end that
//! it has waited long enough.
//!
//! Silence is counted twice. Any byte breaks it as far as comments go. Progress is for the client's
//! own patience, which a server's comments do not reach, so there only a message counts: of the server,
//! or one of these. The deadline counts from the request on, whatever is said.

use crate::{
    policy::Held,
    protocol::{ErrorObject, Heartbeat, code},
    runtime::Clock,
};
use bytes::Bytes;
use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::time::{Sleep, sleep_until};

/// One call's way up.
#[derive(Debug)]
pub struct Ladder {
    held: Held,
    /// For a client that wants to hear of progress.
    heartbeat: Option<Box<Heartbeat>>,
    began: Instant,
    /// When the client last got a byte.
    heard: Instant,
    /// When it last got a message.
    told: Instant,
    /// What it got since the time was last looked at.
    fresh: Fresh,
    /// Made when it is first waited for: most answers are there.
    timer: Option<Pin<Box<Sleep>>>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The client is sent this message, a notification on one line.
    Progress(Bytes),
    /// The client is sent a comment.
    Comment,
    /// The client gets an error ([`Ladder::overdue`]); the call is cancelled.
    Deadline,
}

/// Why a wait for the beginning of an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// It is time to begin one without the server.
    Due,
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fresh {
    Nothing,
    Bytes,
    Message,
}

/// Which rung, before it is climbed; the later, the more it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Comment,
    Progress,
    Deadline,
}

// === impl Ladder ===

impl Ladder {
    /// `began` is when the request arrived; `heartbeat` is for a client that wants to hear of progress.
    pub fn new(held: Held, heartbeat: Option<Heartbeat>, began: Instant) -> Self {
        let heartbeat = heartbeat.filter(|_| held.progress.is_some()).map(Box::new);
        Self { held, heartbeat, began, heard: began, told: began, fresh: Fresh::Nothing, timer: None }
    }

    /// For what is no call: comments alone.
    pub fn of_comments(comments: Duration, began: Instant) -> Self {
        Self::new(Held { progress: None, comments, deadline: None }, None, began)
    }

    /// Whether the server's messages are to be told ([`Ladder::message`]).
    pub fn wants_messages(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// Something was sent to the client.
    pub fn bytes(&mut self) {
        self.fresh = self.fresh.max(Fresh::Bytes);
    }

    /// A message of the server was sent to the client.
    pub fn message(&mut self, message: &[u8]) {
        self.fresh = Fresh::Message;
        // Most have none, and their messages need not be read.
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.see(message);
        }
    }

    /// The call has been answered: its connection may stay open, but nothing is waited for.
    pub fn answered(&mut self) {
        self.heartbeat = None;
        self.held.deadline = None;
    }

    /// The error at the deadline, of an absolute length.
    pub fn overdue(&self) -> ErrorObject {
        let limit = self.held.deadline.unwrap_or_default();
        ErrorObject::new(
            code::UPSTREAM_TIMEOUT,
            format!(
                "no answer within {limit:?} (held.deadline); the server is told that the call is cancelled"
            ),
        )
    }

    /// Resolves with each rung that is due. `may_speak` is whether something can be put in here; the
    /// deadline does not wait for that.
    pub fn poll(&mut self, cx: &mut Context<'_>, clock: &dyn Clock, may_speak: bool) -> Poll<Rung> {
        loop {
            self.look(clock);
            let rungs = self.rungs(may_speak);
            let Some(due) = rungs.iter().flatten().map(|(due, _)| *due).min() else { return Poll::Pending };
            ready!(self.poll_until(cx, due));
            let now = clock.now();
            self.heard = now;
            // Of several that are due the one that says most. The timer may be a little ahead.
            let reached = rungs.into_iter().flatten().filter(|(at, _)| *at <= now.max(due));
            match reached.map(|(_, next)| next).max() {
                Some(Next::Deadline) => return Poll::Ready(Rung::Deadline),
                Some(Next::Comment) | None => return Poll::Ready(Rung::Comment),
                Some(Next::Progress) => self.told = now,
            }
            let beat = self.heartbeat.as_mut().and_then(|heartbeat| heartbeat.beat(now - self.began));
            match beat {
                Some(message) => return Poll::Ready(Rung::Progress(message)),
                None => self.heartbeat = None,
            }
        }
    }

    /// Resolves when an answer has to begin whose server says nothing at all; `may_begin` is whether
    /// one can. It waits for the longer of the two silences: with a head of our own, what the server
    /// says by status and headers is lost.
    pub async fn beginning(&mut self, may_begin: bool) -> Beginning {
        let begins = self.held.comments.max(self.held.progress.unwrap_or_default());
        let begins = may_begin.then(|| (self.began + begins, Beginning::Due));
        let ends = self.held.deadline.map(|limit| (self.began + limit, Beginning::Deadline));
        let Some((due, what)) = begins.into_iter().chain(ends).min_by_key(|(due, _)| *due) else {
            return std::future::pending().await;
        };
        poll_fn(|cx| self.poll_until(cx, due)).await;
        what
    }

    /// Looks at the time, if something was sent meanwhile.
    fn look(&mut self, clock: &dyn Clock) {
        match mem::replace(&mut self.fresh, Fresh::Nothing) {
            Fresh::Nothing => {}
            Fresh::Bytes => self.heard = clock.now(),
            Fresh::Message => {
                self.heard = clock.now();
                self.told = self.heard;
            }
        }
    }

    /// What is to come, and when.
    fn rungs(&self, may_speak: bool) -> [Option<(Instant, Next)>; 3] {
        let comment = may_speak.then(|| (self.heard + self.held.comments, Next::Comment));
        let progress = self.held.progress.filter(|_| may_speak && self.heartbeat.is_some());
        let progress = progress.map(|silence| (self.told + silence, Next::Progress));
        let deadline = self.held.deadline.map(|limit| (self.began + limit, Next::Deadline));
        [comment, progress, deadline]
    }

    fn poll_until(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let due = due.into();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is told, and after how many seconds, until so many have passed. `meanwhile` is what the
    /// server says, by the second.
    async fn climbed(
        held: Held,
        token: bool,
        until: u32,
        meanwhile: impl Fn(u32, &mut Ladder),
    ) -> Vec<(u32, Rung)> {
        let clock = SystemClock::new();
        let heartbeat = token.then(|| Heartbeat::new(Bytes::from_static(b"7"), false));
        let mut ladder = Ladder::new(held, heartbeat, clock.now());
        let mut climbed = Vec::new();
        for second in 0..=until {
            meanwhile(second, &mut ladder);
            while let Poll::Ready(rung) = futures_util::poll!(poll_fn(|cx| ladder.poll(cx, &clock, true))) {
                climbed.push((second, rung.clone()));
                if rung == Rung::Deadline {
                    return climbed;
                }
            }
            advance(SECOND).await;
        }
        climbed
    }

    fn short(rung: &(u32, Rung)) -> String {
        let (second, rung) = rung;
        match rung {
            Rung::Comment => format!("{second}:"),
            Rung::Progress(_) => format!("{second}+"),
            Rung::Deadline => format!("{second}!"),
        }
    }

    async fn told(held: Held, token: bool, until: u32, meanwhile: impl Fn(u32, &mut Ladder)) -> String {
        climbed(held, token, until, meanwhile).await.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    fn held() -> Held {
        Held { progress: Some(10 * SECOND), comments: 4 * SECOND, deadline: Some(25 * SECOND) }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments_and_progress_until_the_deadline() {
        assert_eq!(told(held(), true, 30, |_, _| {}).await, "4: 8: 10+ 14: 18: 20+ 24: 25!");
        assert_eq!(told(held(), false, 30, |_, _| {}).await, "4: 8: 12: 16: 20: 24: 25!");
        let off = Held { progress: None, deadline: None, ..held() };
        assert_eq!(told(off, true, 13, |_, _| {}).await, "4: 8: 12:");
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_at_once_the_one_is_taken_that_says_more() {
        let even = Held { progress: Some(4 * SECOND), deadline: Some(8 * SECOND), ..held() };
        assert_eq!(told(even, true, 30, |_, _| {}).await, "4+ 8!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_comments_break_the_silence_of_comments_alone() {
        let pings = |_: u32, ladder: &mut Ladder| ladder.bytes();
        assert_eq!(told(held(), true, 30, pings).await, "10+ 20+ 25!");
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_messages_break_the_silence() {
        let talks = |second: u32, ladder: &mut Ladder| {
            if second == 9 {
                ladder.message(b"{}");
            }
        };
        assert_eq!(told(held(), true, 24, talks).await, "4: 8: 13: 17: 19+ 23:");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_told_within_an_event_but_the_end() {
        let clock = SystemClock::new();
        let mut ladder =
            Ladder::new(held(), Some(Heartbeat::new(Bytes::from_static(b"7"), false)), clock.now());
        let rung = poll_fn(|cx| ladder.poll(cx, &clock, false)).await;
        assert_eq!((rung, clock.now() - ladder.began), (Rung::Deadline, 25 * SECOND));
        assert!(ladder.overdue().message().contains("25s (held.deadline)"));
        assert_eq!(ladder.overdue().code(), -31003);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answered_call_is_kept_open_and_no_more() {
        let answered = |second: u32, ladder: &mut Ladder| {
            if second == 9 {
                ladder.answered();
            }
        };
        assert_eq!(told(held(), true, 30, answered).await, "4: 8: 12: 16: 20: 24: 28:");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_begins_after_the_longer_silence_where_it_may() {
        let clock = SystemClock::new();
        for (held, may_begin, what, after) in [
            (held(), true, Beginning::Due, 10),
            (held(), false, Beginning::Deadline, 25),
            (Held { progress: None, ..held() }, true, Beginning::Due, 4),
            (Held { deadline: Some(2 * SECOND), ..held() }, true, Beginning::Deadline, 2),
        ] {
            let began = clock.now();
            let mut ladder = Ladder::new(held, None, began);
            assert_eq!(ladder.beginning(may_begin).await, what);
            assert_eq!(clock.now() - began, after * SECOND);
        }
    }
}
