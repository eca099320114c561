//! The keep-alive schedule of a client that waits for a slow call: progress notifications, if the client sent
//! a progress token; comments, which keep the connection open; and an error at the deadline.
//!
//! Two idle times are measured. The idle time for comments is reset by any byte. Progress notifications
//! address the client's own timeout, which comments do not reset, so their idle time is reset only by a
//! message of the server or of the proxy. The deadline counts from the request, whatever is sent.

use super::WaitPolicy;
use crate::protocol::{ErrorObject, ProgressHeartbeat, code};
use bytes::Bytes;
use std::{mem, time::Instant};

/// The keep-alive timer of one waiting client. Reads no clock itself: the time is passed in.
#[derive(Debug)]
pub struct KeepAliveTimer {
    policy: WaitPolicy,
    /// The writer of progress notifications; `None` if the client sent no progress token, or progress is off.
    heartbeat: Option<Box<ProgressHeartbeat>>,
    started_at: Instant,
    /// When the client last received a byte.
    last_byte_at: Instant,
    /// When the client last received a message.
    last_message_at: Instant,
    /// The traffic to the client since the clock was last read.
    recent: RecentTraffic,
}

/// The next keep-alive action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Send this progress notification, a JSON message on one line, to the client.
    Progress(Bytes),
    /// Send an SSE comment to the client.
    Comment,
    /// Send an error to the client ([`KeepAliveTimer::deadline_error`]) and cancel the call.
    Deadline,
}

/// The reason why the wait for the start of a response has ended without the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStart {
    /// The proxy must start the response itself, to keep the connection alive.
    Due,
    /// The client's deadline has passed: the response is an error.
    Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RecentTraffic {
    Nothing,
    Bytes,
    Message,
}

/// A step with its time, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingStep {
    Comment,
    Progress,
    Deadline,
}

// === impl KeepAliveTimer ===

impl KeepAliveTimer {
    /// Creates the timer of a request that arrived at `started_at`. `heartbeat` is present if the client sent
    /// a progress token.
    pub fn new(policy: WaitPolicy, heartbeat: Option<ProgressHeartbeat>, started_at: Instant) -> Self {
        let heartbeat = heartbeat.filter(|_| policy.progress_after.is_some()).map(Box::new);
        Self {
            policy,
            heartbeat,
            started_at,
            last_byte_at: started_at,
            last_message_at: started_at,
            recent: RecentTraffic::Nothing,
        }
    }

    /// Whether the server's messages must be recorded ([`KeepAliveTimer::record_message`]).
    pub fn needs_messages(&self) -> bool {
        self.heartbeat.is_some()
    }

    /// Records that bytes were sent to the client.
    pub fn record_bytes(&mut self) {
        self.recent = self.recent.max(RecentTraffic::Bytes);
    }

    /// Records that a message of the server was sent to the client.
    pub fn record_message(&mut self, message: &[u8]) {
        self.recent = RecentTraffic::Message;
        // Only a heartbeat has to parse the message, to continue from the server's progress values; most
        // clients have none.
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.observe(message);
        }
    }

    /// Records that the call has been answered: the connection may stay open for further events, but only
    /// comments are sent from then on.
    pub fn stop_waiting(&mut self) {
        self.heartbeat = None;
        self.policy.deadline = None;
    }

    /// Builds the error that the client gets at the deadline.
    pub fn deadline_error(&self) -> ErrorObject {
        let limit = self.policy.deadline.unwrap_or_default();
        ErrorObject::new(
            code::UPSTREAM_TIMEOUT,
            format!("no response within {limit:?} (held.deadline); the call is cancelled at the server"),
        )
    }

    /// Returns the time at which the next step is due; `None` if no step is pending. `can_insert` tells
    /// whether an event can be inserted into the response now; the deadline does not depend on it. The clock
    /// is read only if something was sent since the last call.
    pub fn poll_timeout(&mut self, now: impl FnOnce() -> Instant, can_insert: bool) -> Option<Instant> {
        match mem::replace(&mut self.recent, RecentTraffic::Nothing) {
            RecentTraffic::Nothing => {}
            RecentTraffic::Bytes => self.last_byte_at = now(),
            RecentTraffic::Message => {
                self.last_byte_at = now();
                self.last_message_at = self.last_byte_at;
            }
        }
        self.pending_steps(can_insert).iter().flatten().map(|(due, _)| *due).min()
    }

    /// Returns the step to take at `now`; `None` if none is due. Of several due steps the one with the
    /// highest precedence is returned.
    pub fn handle_timeout(&mut self, now: Instant, can_insert: bool) -> Option<KeepAliveStep> {
        let due_steps = self.pending_steps(can_insert).into_iter().flatten().filter(|(due, _)| *due <= now);
        let step = due_steps.map(|(_, next)| next).max()?;
        self.last_byte_at = now;
        match step {
            PendingStep::Deadline => Some(KeepAliveStep::Deadline),
            PendingStep::Comment => Some(KeepAliveStep::Comment),
            PendingStep::Progress => {
                self.last_message_at = now;
                let notification =
                    self.heartbeat.as_mut().and_then(|heartbeat| heartbeat.beat(now - self.started_at));
                if notification.is_none() {
                    self.heartbeat = None;
                }
                notification.map(KeepAliveStep::Progress)
            }
        }
    }

    /// Returns when the proxy must start, or end, a response while the server has sent nothing;
    /// `can_begin_early` tells whether the proxy can start one. The start waits for the longer of the two
    /// idle times, because an early response loses the server's status and headers.
    pub fn response_start(&self, can_begin_early: bool) -> Option<(Instant, ResponseStart)> {
        let start_after = self.policy.comment_after.max(self.policy.progress_after.unwrap_or_default());
        let start = can_begin_early.then(|| (self.started_at + start_after, ResponseStart::Due));
        let deadline = self.policy.deadline.map(|limit| (self.started_at + limit, ResponseStart::Deadline));
        start.into_iter().chain(deadline).min_by_key(|(due, _)| *due)
    }

    /// Returns the pending steps with their times.
    fn pending_steps(&self, can_insert: bool) -> [Option<(Instant, PendingStep)>; 3] {
        let comment =
            can_insert.then(|| (self.last_byte_at + self.policy.comment_after, PendingStep::Comment));
        let progress = self.policy.progress_after.filter(|_| can_insert && self.heartbeat.is_some());
        let progress = progress.map(|silence| (self.last_message_at + silence, PendingStep::Progress));
        let deadline = self.policy.deadline.map(|limit| (self.started_at + limit, PendingStep::Deadline));
        [comment, progress, deadline]
    }
}
