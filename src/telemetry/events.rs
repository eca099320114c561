//! One struct for each happening. Emitting it writes the log line; fields, not sentences; no
//! bodies and no credentials.

use std::{fmt, time::Duration};

/// How a request ended, for the access line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// A result was passed on.
    #[default]
    Result,
    /// A JSON-RPC error of the server was passed on.
    ServerError,
    /// The call became a task.
    Task,
    /// The client was asked for input.
    InputRequired,
    /// The request was refused by the proxy: the client's fault.
    Refused,
    /// The server failed the call.
    UpstreamFailed,
    /// A limit or fault of the proxy.
    ProxyFailed,
    /// The client left before the answer.
    Departed,
}

/// One request, once its answer has been given or its client has left. The access line.
pub struct Access<'a> {
    pub method: &'a str,
    /// The tool, prompt or resource; empty where there is none.
    pub target: &'a str,
    pub route: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub client_era: &'a str,
    /// The task the call became.
    pub task: Option<&'a dyn fmt::Display>,
    /// The session of a legacy client, not to be recognised.
    pub session: Option<&'a dyn fmt::Display>,
    /// The status of the task that was shown: with the target, the trail of retrievals.
    pub shown: Option<&'a str>,
    pub status: u16,
    pub outcome: Outcome,
    /// Time spent waiting for the server.
    pub upstream: Duration,
    /// From the request's last byte to the answer's first, without `upstream`.
    pub own: Duration,
}

/// A task moved from one state to another.
pub struct TaskTransition<'a> {
    pub task: &'a dyn fmt::Display,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub from: &'a str,
    pub to: &'a str,
}

/// Somebody asked for a task that is not there, or not theirs.
pub struct LookupFailed<'a> {
    pub method: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub reason: &'a str,
}

/// In mode `observe`: a call that would have become a task.
pub struct WouldDefer<'a> {
    pub tool: &'a str,
    pub route: &'a str,
    /// The threshold.
    pub after: Duration,
    pub took: Duration,
}

/// A quota was full, so a call stayed synchronous.
pub struct QuotaFull<'a> {
    /// The name of the limit in the configuration.
    pub limit: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// The task store failed.
pub struct StoreFailed<'a> {
    pub doing: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// A question of a server was refused, because nobody could be asked.
pub struct QuestionRefused<'a> {
    pub method: &'a str,
    pub reason: &'a str,
}

/// A server asks things that nobody need be asked (pings, above all) faster than it takes the answers:
/// some are not answered. Said once until it has caught up.
pub struct AnswersDropped {
    /// Answers that wait already.
    pub waiting: usize,
}

/// A server could not be told something, however often it was tried.
pub struct Untold<'a> {
    pub what: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// The proxy has stopped; what was lost.
pub struct Drained {
    pub calls_lost: usize,
    pub tasks_lost: usize,
}

// === impl Outcome ===

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::ServerError => "server_error",
            Self::Task => "task",
            Self::InputRequired => "input_required",
            Self::Refused => "refused",
            Self::UpstreamFailed => "upstream_failed",
            Self::ProxyFailed => "proxy_failed",
            Self::Departed => "departed",
        }
    }
}

// === impl Access ===

impl Access<'_> {
    pub fn emit(&self) {
        tracing::info!(
            target: "deferral::access",
            method = self.method,
            target = self.target,
            route = self.route,
            principal = %self.principal,
            client = self.client_era,
            task = self.task.map(tracing::field::display),
            session = self.session.map(tracing::field::display),
            shown = self.shown,
            status = self.status,
            outcome = self.outcome.as_str(),
            upstream_us = micros(self.upstream),
            own_us = micros(self.own),
        );
    }
}

// === impl TaskTransition ===

impl TaskTransition<'_> {
    pub fn emit(&self) {
        tracing::info!(
            target: "deferral::task",
            event = "transition",
            task = %self.task,
            tool = self.tool,
            principal = %self.principal,
            from = self.from,
            to = self.to,
        );
    }
}

// === impl LookupFailed ===

impl LookupFailed<'_> {
    pub fn emit(&self) {
        tracing::warn!(
            target: "deferral::task",
            event = "lookup_failed",
            method = self.method,
            principal = %self.principal,
            reason = self.reason,
        );
    }
}

// === impl WouldDefer ===

impl WouldDefer<'_> {
    pub fn emit(&self) {
        tracing::info!(
            target: "deferral::task",
            event = "would_defer",
            tool = self.tool,
            route = self.route,
            after_ms = millis(self.after),
            took_ms = millis(self.took),
        );
    }
}

// === impl QuotaFull ===

impl QuotaFull<'_> {
    pub fn emit(&self) {
        tracing::warn!(target: "deferral::task", event = "quota_full", limit = self.limit, principal = %self.principal);
    }
}

// === impl StoreFailed ===

impl StoreFailed<'_> {
    pub fn emit(&self) {
        tracing::error!(target: "deferral::task", event = "store_failed", doing = self.doing, error = %self.error);
    }
}

// === impl QuestionRefused ===

impl QuestionRefused<'_> {
    pub fn emit(&self) {
        tracing::warn!(target: "deferral::question", event = "refused", method = self.method, reason = self.reason);
    }
}

// === impl AnswersDropped ===

impl AnswersDropped {
    pub fn emit(&self) {
        tracing::warn!(
            target: "deferral::upstream",
            event = "answers_dropped",
            limit = "limits.messages",
            waiting = self.waiting,
        );
    }
}

// === impl Untold ===

impl Untold<'_> {
    pub fn emit(&self) {
        tracing::warn!(target: "deferral::upstream", event = "untold", what = self.what, error = %self.error);
    }
}

// === impl Drained ===

impl Drained {
    pub fn emit(&self) {
        tracing::info!(target: "deferral", event = "drained", calls_lost = self.calls_lost, tasks_lost = self.tasks_lost);
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Whole microseconds.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
