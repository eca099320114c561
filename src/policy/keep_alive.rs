//! What a client is told while it waits for a slow call, one step after another: that the call still
//! runs, if it asked to hear of progress; a comment, which keeps the connection open; at the end that
//! it has waited long enough.
//!
//! Silence is counted twice. Any byte breaks it as far as comments go. Progress is for the client's
//! own patience, which a server's comments do not reach, so there only a message counts: of the server,
//! or one of these. The deadline counts from the request on, whatever is said.

use super::WaitPolicy;
use crate::protocol::{ErrorObject, ProgressHeartbeat, code};
use bytes::Bytes;
use std::{mem, time::Instant};

/// How long one client has heard nothing.
#[derive(Debug)]
pub struct KeepAliveTimer {
    held: WaitPolicy,
    /// For a client that wants to hear of progress.
    heartbeat: Option<Box<ProgressHeartbeat>>,
    began: Instant,
    /// When the client last got a byte.
    last_byte_at: Instant,
    /// When it last got a message.
    last_message_at: Instant,
    /// What it got since the time was last looked at.
    recent: RecentTraffic,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// The client is sent this message, a notification on one line.
    Progress(Bytes),
    /// The client is sent a comment.
    Comment,
    /// The client gets an error ([`KeepAliveTimer::deadline_error`]); the call is cancelled.
    Deadline,
}

/// Why a wait for the beginning of an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStart {
    /// It is time to begin one without the server.
    Due,
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RecentTraffic {
    Nothing,
    Bytes,
    Message,
}

/// Which step, before it is taken; the later, the more it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingStep {
    Comment,
    Progress,
    Deadline,
}

// === impl Silence ===

impl KeepAliveTimer {
    /// `began` is when the request arrived; `heartbeat` is for a client that wants to hear of progress.
    pub fn new(held: WaitPolicy, heartbeat: Option<ProgressHeartbeat>, began: Instant) -> Self {
        let heartbeat = heartbeat.filter(|_| held.progress.is_some()).map(Box::new);
        Self {
            held,
            heartbeat,
            began,
            last_byte_at: began,
            last_message_at: began,
            recent: RecentTraffic::Nothing,
        }
    }

    /// Whether the server's messages are to be told ([`KeepAliveTimer::record_message`]).
    pub fn wants_messages(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// Something was sent to the client.
    pub fn record_bytes(&mut self) {
        self.recent = self.recent.max(RecentTraffic::Bytes);
    }

    /// A message of the server was sent to the client.
    pub fn record_message(&mut self, message: &[u8]) {
        self.recent = RecentTraffic::Message;
        // Most have none, and their messages need not be read.
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.observe(message);
        }
    }

    /// The call has been answered: its connection may stay open, but nothing is waited for.
    pub fn stop_waiting(&mut self) {
        self.heartbeat = None;
        self.held.deadline = None;
    }

    /// The error at the deadline, of an absolute length.
    pub fn deadline_error(&self) -> ErrorObject {
        let limit = self.held.deadline.unwrap_or_default();
        ErrorObject::new(
            code::UPSTREAM_TIMEOUT,
            format!(
                "no answer within {limit:?} (held.deadline); the server is told that the call is cancelled"
            ),
        )
    }

    /// When the next step is due. `can_insert` is whether something can be put in here; the deadline does
    /// not wait for that. The time is asked for only where something was said since.
    pub fn poll_timeout(&mut self, now: impl FnOnce() -> Instant, may_speak: bool) -> Option<Instant> {
        match mem::replace(&mut self.recent, RecentTraffic::Nothing) {
            RecentTraffic::Nothing => {}
            RecentTraffic::Bytes => self.last_byte_at = now(),
            RecentTraffic::Message => {
                self.last_byte_at = now();
                self.last_message_at = self.last_byte_at;
            }
        }
        self.steps(may_speak).iter().flatten().map(|(due, _)| *due).min()
    }

    /// The step to take at this time, if one is due; of several the one that says most.
    pub fn handle_timeout(&mut self, now: Instant, may_speak: bool) -> Option<KeepAliveStep> {
        let reached = self.steps(may_speak).into_iter().flatten().filter(|(at, _)| *at <= now);
        let next = reached.map(|(_, next)| next).max()?;
        self.last_byte_at = now;
        match next {
            PendingStep::Deadline => Some(KeepAliveStep::Deadline),
            PendingStep::Comment => Some(KeepAliveStep::Comment),
            PendingStep::Progress => {
                self.last_message_at = now;
                let beat = self.heartbeat.as_mut().and_then(|heartbeat| heartbeat.beat(now - self.began));
                if beat.is_none() {
                    self.heartbeat = None;
                }
                beat.map(KeepAliveStep::Progress)
            }
        }
    }

    /// When an answer has to begin whose server says nothing at all, or else end; `can_begin` is whether
    /// one can begin. It waits for the longer of the two silences: with a head of our own, what the server
    /// says by status and headers is lost.
    pub fn response_start(&self, may_begin: bool) -> Option<(Instant, ResponseStart)> {
        let begins = self.held.comments.max(self.held.progress.unwrap_or_default());
        let begins = may_begin.then(|| (self.began + begins, ResponseStart::Due));
        let ends = self.held.deadline.map(|limit| (self.began + limit, ResponseStart::Deadline));
        begins.into_iter().chain(ends).min_by_key(|(due, _)| *due)
    }

    /// What is to come, and when.
    fn steps(&self, may_speak: bool) -> [Option<(Instant, PendingStep)>; 3] {
        let comment = may_speak.then(|| (self.last_byte_at + self.held.comments, PendingStep::Comment));
        let progress = self.held.progress.filter(|_| may_speak && self.heartbeat.is_some());
        let progress = progress.map(|silence| (self.last_message_at + silence, PendingStep::Progress));
        let deadline = self.held.deadline.map(|limit| (self.began + limit, PendingStep::Deadline));
        [comment, progress, deadline]
    }
}
