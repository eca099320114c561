//! The keep-alive schedule of a client that waits for a slow call: progress notifications, if it sent a
//! progress token; comments, which keep the connection open; and an error at the deadline.
//!
//! Two silences are measured. Any byte ends the silence for comments. Progress addresses the client's own
//! timeout, which comments do not reset, so only a message ends that silence: of the server, or of the proxy.
//! The deadline counts from the request, whatever is sent.

use super::WaitPolicy;
use crate::protocol::{ErrorObject, ProgressHeartbeat, code};
use bytes::Bytes;
use std::{mem, time::Instant};

/// The keep-alive timer of one client.
#[derive(Debug)]
pub struct KeepAliveTimer {
    held: WaitPolicy,
    /// For a client that sent a progress token.
    heartbeat: Option<Box<ProgressHeartbeat>>,
    began: Instant,
    /// When the client last received a byte.
    last_byte_at: Instant,
    /// When the client last received a message.
    last_message_at: Instant,
    /// What the client has received since the clock was last read.
    recent: RecentTraffic,
}

/// The next keep-alive action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Send this message to the client, a notification on one line.
    Progress(Bytes),
    /// Send a comment to the client.
    Comment,
    /// Send an error to the client ([`KeepAliveTimer::deadline_error`]) and cancel the call.
    Deadline,
}

/// Why a wait for the start of a response is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStart {
    /// The proxy must start the response without the server.
    Due,
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RecentTraffic {
    Nothing,
    Bytes,
    Message,
}

/// A pending step, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingStep {
    Comment,
    Progress,
    Deadline,
}

// === impl KeepAliveTimer ===

impl KeepAliveTimer {
    /// `began` is when the request arrived; `heartbeat` is for a client that sent a progress token.
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

    /// Whether the server's messages must be recorded ([`KeepAliveTimer::record_message`]).
    pub fn wants_messages(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// Records that bytes were sent to the client.
    pub fn record_bytes(&mut self) {
        self.recent = self.recent.max(RecentTraffic::Bytes);
    }

    /// Records that a message of the server was sent to the client.
    pub fn record_message(&mut self, message: &[u8]) {
        self.recent = RecentTraffic::Message;
        // Most clients have no heartbeat, and their messages need not be read.
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.observe(message);
        }
    }

    /// Records that the call has been answered: its connection may stay open, but the client no longer waits.
    pub fn stop_waiting(&mut self) {
        self.heartbeat = None;
        self.held.deadline = None;
    }

    /// The error at the deadline.
    pub fn deadline_error(&self) -> ErrorObject {
        let limit = self.held.deadline.unwrap_or_default();
        ErrorObject::new(
            code::UPSTREAM_TIMEOUT,
            format!("no answer within {limit:?} (held.deadline); the call is cancelled at the server"),
        )
    }

    /// When the next step is due. `may_speak` is whether an event can be inserted here; the deadline does not
    /// depend on that. Reads the clock only if something was sent since the last call.
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

    /// The step to take at this time, if one is due; of several the one with the highest precedence.
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

    /// When the proxy must start or end a response whose server has sent nothing; `may_begin` is whether it
    /// can start one. It waits for the longer of the two silences, because the response then loses the
    /// server's status and headers.
    pub fn response_start(&self, may_begin: bool) -> Option<(Instant, ResponseStart)> {
        let begins = self.held.comments.max(self.held.progress.unwrap_or_default());
        let begins = may_begin.then(|| (self.began + begins, ResponseStart::Due));
        let ends = self.held.deadline.map(|limit| (self.began + limit, ResponseStart::Deadline));
        begins.into_iter().chain(ends).min_by_key(|(due, _)| *due)
    }

    /// The pending steps and their times.
    fn steps(&self, may_speak: bool) -> [Option<(Instant, PendingStep)>; 3] {
        let comment = may_speak.then(|| (self.last_byte_at + self.held.comments, PendingStep::Comment));
        let progress = self.held.progress.filter(|_| may_speak && self.heartbeat.is_some());
        let progress = progress.map(|silence| (self.last_message_at + silence, PendingStep::Progress));
        let deadline = self.held.deadline.map(|limit| (self.began + limit, PendingStep::Deadline));
        [comment, progress, deadline]
    }
}
