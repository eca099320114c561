//! One struct for each event. `emit` writes the log line and updates the metrics. A log line has fields
//! instead of sentences, and never contains bodies or credentials.

use super::{log::log_suppressed, metrics, tap};
use crate::protocol::{
    ErrorOrigin,
    code::{OUTCOME_UNKNOWN, origin_of},
};
use std::{fmt, net::IpAddr, time::Duration};

/// The outcome of a request, for the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestOutcome {
    /// A result was relayed.
    #[default]
    Result,
    /// A result marked as an error of the tool was relayed (`isError`).
    ToolError,
    /// A JSON-RPC error of the server was relayed.
    ServerError,
    /// The call became a task.
    Task,
    /// The client was sent input requests.
    InputRequired,
    /// The proxy refused the request because of the client's fault.
    Refused,
    /// The server did not respond to the call in time.
    TimedOut,
    /// The server failed the call.
    UpstreamFailed,
    /// A limit or a fault of the proxy failed the request.
    ProxyFailed,
    /// The client disconnected before the response, or cancelled.
    Disconnected,
}

/// One entry of the access log: a request whose response was sent, or whose client disconnected.
pub struct AccessEvent<'a> {
    pub method: &'a str,
    /// The method as the label `method` of metrics: methods that are not in the specification share one.
    pub counted_as: &'a str,
    /// The tool, if this request ends a tool call or its call became a task. Counted in the metrics of tools.
    pub tool: Option<&'a str>,
    /// The name of the tool or prompt, or the URI of the resource; empty if there is none.
    pub target: &'a str,
    pub route: &'a str,
    /// The name of the token that the client sent, if tokens are required. Never the token itself.
    pub token: Option<&'a str>,
    /// The principal of the request, as a tag.
    pub principal: &'a dyn fmt::Display,
    /// `modern` or `legacy`.
    pub client_era: &'a str,
    /// The task that the call became.
    pub task: Option<&'a dyn fmt::Display>,
    /// The session of a legacy client, as a tag that does not reveal the session id.
    pub session: Option<&'a dyn fmt::Display>,
    /// The status of the task that the response shows to the client. With `target`, it documents who fetched
    /// which task.
    pub shown: Option<&'a str>,
    /// The HTTP status of the response.
    pub status: u16,
    pub outcome: RequestOutcome,
    /// The reason, unless the outcome is a result: in the proxy's own words, or the code of the server's
    /// error. Never part of the request or the response.
    pub reason: Option<&'a str>,
    /// The code of a JSON-RPC error that the proxy itself sent.
    pub code: Option<i64>,
    /// Time spent waiting for the server.
    pub upstream: Duration,
    /// Time from the last byte of the request to the first byte of the response, without `upstream`.
    pub own: Duration,
    /// The arguments and the result, for taps that show them. Never logged.
    pub content: Option<&'a tap::CallContent>,
}

/// The proxy has started to serve clients: its addresses, routes and effective limits.
pub struct ProxyStarted<'a> {
    /// The bound addresses for clients.
    pub listen: &'a str,
    /// The address of the admin listener.
    pub admin: &'a str,
    /// The address of the metrics listener.
    pub metrics: &'a str,
    /// Whether clients connect over TLS.
    pub tls: bool,
    /// Each route: its path, server and mode.
    pub routes: &'a str,
    pub store: &'a str,
    /// The URL of the trace collector.
    pub traces: &'a str,
    /// Whether `requestState` remains valid after the end of this process: `configured` (it does), or `made
    /// at start`.
    pub state_keys: &'a str,
    /// The time in which new calls are still served after a stop signal.
    pub notice: Duration,
    /// Maximum duration of a drain.
    pub drain: Duration,
    /// The limit of open files.
    pub descriptors: usize,
    /// The limit of open files before it was raised, if it was.
    pub descriptors_before: Option<usize>,
    /// The effective `limits.connections`; derived from `descriptors` if not configured.
    pub connections: usize,
    /// The effective `limits.upstream_connections`; derived likewise.
    pub upstream_connections: usize,
    /// The effective `limits.calls`.
    pub calls: usize,
    /// Whether the configured limits exceed `descriptors`.
    pub overcommitted: bool,
}

/// A call became a task.
pub struct TaskCreated<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// A request was refused because its head exceeds a limit. It has no entry in the access log.
pub struct RequestHeadRefused {
    pub limit: metrics::Limit,
    /// The peer address of the connection.
    pub client: Option<IpAddr>,
}

/// A request was refused for its `Host` or `Origin`.
pub struct AccessDenied<'a> {
    /// The listener that received the request: `clients`, `admin` or `metrics`.
    pub listener: &'a str,
    /// The peer address of the connection.
    pub client: Option<IpAddr>,
    /// The earlier hops as the request claims them (`Forwarded`, else `X-Forwarded-For`). Not verified.
    pub forwarded: Option<&'a str>,
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
}

/// A task has changed its status.
pub struct TaskTransition<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
    /// The former status.
    pub from: &'a str,
    /// The new status.
    pub to: &'a str,
    /// The durations of the task, if it ended with this change.
    pub end: Option<TaskEnd>,
    /// Why the task failed: in the proxy's own words, or the code of the server's error. Truncated in the
    /// log.
    pub reason: Option<&'a str>,
}

/// The configuration was reloaded.
#[derive(Clone, Copy, Debug)]
pub struct ConfigReloaded<'a> {
    /// The trigger of the reload, such as a signal.
    pub by: &'a str,
    /// The keys that changed.
    pub changed: &'a str,
    /// The keys whose changes apply at the next start.
    pub needs_restart: &'a str,
}

/// The configuration could not be reloaded, and nothing changed.
#[derive(Clone, Copy, Debug)]
pub struct ConfigRefused<'a> {
    /// The trigger of the reload.
    pub by: &'a str,
    /// All problems of the configuration.
    pub error: &'a str,
}

/// A value in the configuration is valid but probably unintended.
#[derive(Clone, Copy, Debug)]
pub struct ConfigWarning<'a> {
    /// The position and the fix.
    pub warning: &'a str,
}

/// An operator cancelled a task. The transition of the task is logged as well.
pub struct TaskCancelledByOperator<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// The durations of a task that ended, and its error code if it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    /// The duration of the call before it became a task.
    pub waited: Duration,
    /// The duration from the creation of the task to its end.
    pub age: Duration,
    /// The code of the error, if the task failed.
    pub code: Option<i64>,
    /// Whether the task completed with a result that is marked as an error of the tool (`isError`).
    pub is_tool_error: bool,
}

/// A client requested a task that does not exist, or belongs to another principal.
pub struct TaskLookupFailed<'a> {
    pub method: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub reason: &'a str,
}

/// A call would have become a task, but its mode is `observe` or its principal is outside the rollout.
pub struct WouldDefer<'a> {
    pub tool: &'a str,
    pub route: &'a str,
    /// The threshold after which the call would have become a task.
    pub after: Duration,
    /// The duration of the call.
    pub took: Duration,
    /// Whether the call ended without an error.
    pub is_success: bool,
    /// The rollout, if the call stayed a call only because of it.
    pub rollout: Option<&'a str>,
}

/// A quota was full, so a call stayed synchronous.
pub struct QuotaExceeded<'a> {
    /// The configuration key of the limit.
    pub limit: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// The task store has failed. Logged at most once a minute.
pub struct StoreFailed<'a> {
    /// The operation that failed.
    pub operation: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// The task store works again after failures.
pub struct StoreRecovered;

/// An input request of a server was refused, because no client can respond to it.
pub struct InputRequestRefused<'a> {
    pub route: &'a str,
    pub method: &'a str,
    pub reason: &'a str,
    pub outcome: metrics::InputRequestOutcome,
}

/// A server sends requests such as pings faster than it accepts the responses, so that some responses were
/// dropped. Logged once until the server has caught up.
pub struct ResponsesDropped {
    /// The number of responses that are queued.
    pub waiting: usize,
}

/// An event of a server's SSE stream is not a valid message, and was skipped.
pub struct EventSkipped<'a> {
    pub route: &'a str,
    pub why: &'a dyn fmt::Display,
}

/// A message could not be delivered to a server, despite retries.
pub struct MessageUndelivered<'a> {
    /// The kind of message.
    pub what: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// The process of a stdio server ended.
pub struct ServerProcessEnded<'a> {
    pub route: &'a str,
    /// A description of the exit status.
    pub exit_status: &'a str,
    /// The time for which the process ran.
    pub uptime: Duration,
    /// Whether the proxy itself stopped the process.
    pub was_requested: bool,
    /// The last lines of the process on standard error.
    pub last_stderr_lines: &'a str,
}

/// The process of a stdio server did not start.
pub struct ServerNotStarted<'a> {
    pub route: &'a str,
    /// The program without its arguments, which may contain a secret.
    pub program: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// An additional process of a stdio server was started.
pub struct ServerProcessAdded<'a> {
    pub route: &'a str,
    /// The number of processes, including the new one.
    pub processes: usize,
    /// Why the other processes are not sufficient.
    pub why: &'a str,
    /// The limit that applies, and how to change it.
    pub remedy: &'a str,
}

/// A stdio server wrote a line to standard error.
pub struct ServerStderrLine<'a> {
    pub route: &'a str,
    pub line: &'a str,
}

/// A line on the standard output of a stdio server is not a valid message, and was skipped.
pub struct ServerOutputSkipped<'a> {
    pub route: &'a str,
    pub why: &'a str,
    /// The beginning of the skipped line.
    pub line: &'a str,
}

/// A stdio server writes messages without `"jsonrpc":"2.0"`. Logged once for each server.
pub struct ServerOmitsVersion<'a> {
    pub route: &'a str,
}

/// The log could not be written fast enough: `count` lines are missing at this point.
pub struct LogLinesDropped {
    pub count: u64,
}

/// Log lines of one kind were suppressed, because there were too many.
pub struct LogLinesSuppressed<'a> {
    /// The field `event` of the suppressed lines.
    pub lines: &'a str,
    /// The route or the task of the suppressed lines; empty if they have none.
    pub scope: &'a str,
    pub count: u64,
}

/// Spans of traces were lost. Logged at most once a minute.
#[cfg(feature = "otlp")]
pub struct SpansLost<'a> {
    /// Spans dropped because the queue was full.
    pub dropped: u64,
    /// Spans that the collector refused, or that could not be sent.
    pub refused: u64,
    /// The last reason; empty if the collector accepted all exports.
    pub why: &'a str,
}

/// The outcome of the tasks that an earlier process left behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OrphanSummary {
    /// The number of calls that their servers resumed.
    pub resumed: usize,
    /// The number of calls that can be resumed once their clients provide credentials.
    pub waiting: usize,
    /// The number of calls whose servers have not responded yet.
    pub pending: usize,
    /// The number of tasks that failed, because their calls were lost or their servers refused to resume
    /// them.
    pub failed: usize,
    /// The number of cancelled tasks whose servers were notified again.
    pub cancelled: usize,
    /// The number of cancelled tasks whose servers could not be notified.
    pub untold: usize,
    /// `None` in the first line. In the second line, the number of tasks that were waiting or pending in the
    /// first line, and that the other fields count now.
    pub waited: Option<usize>,
}

/// The counters of a store on disk were wrong, and have been repaired.
pub struct StoreCountsRepaired<'a> {
    /// The folder of the store.
    pub folder: &'a dyn fmt::Display,
    /// The number of wrong counters: of principals, and of pairs of route and status.
    pub counts: usize,
    /// The number of tasks that were counted but do not exist.
    pub surplus_tasks: usize,
    /// The bytes of tasks that were counted but do not exist.
    pub surplus_bytes: usize,
    /// The number of tasks that exist but were not counted.
    pub missing_tasks: usize,
    /// The bytes of tasks that exist but were not counted.
    pub missing_bytes: usize,
}

/// The counters of a store on disk could not be compared with its rows.
pub struct StoreCountsUnchecked<'a> {
    pub error: &'a dyn fmt::Display,
}

/// The proxy has received a stop signal, and still serves new calls for a while.
pub struct ShutdownNotice {
    /// The time in which new calls are still served.
    pub notice: Duration,
}

/// The proxy has begun to drain. Counts what is still active.
pub struct DrainStarted {
    /// The number of calls in flight.
    pub calls: usize,
    /// The number of unfinished tasks.
    pub tasks: usize,
    /// The number of task results that have not been fetched.
    pub results: usize,
    /// Maximum duration of the drain.
    pub limit: Duration,
}

/// The proxy has stopped. Counts the outcomes of the drained calls and tasks.
#[derive(Default)]
pub struct DrainCompleted {
    /// The number of calls and tasks that ended by themselves.
    pub ended: usize,
    /// The number of calls that became tasks during the drain.
    pub became_tasks: usize,
    /// The number of tasks that are left to the next process, and whose calls continue.
    pub tasks_released: usize,
    /// The number of calls that were aborted.
    pub calls_lost: usize,
    /// The number of tasks whose calls were aborted.
    pub tasks_lost: usize,
    /// The number of task results that were not fetched and are lost.
    pub results_lost: usize,
    /// Whether a second signal ended the drain early.
    pub hurried: bool,
}

// === impl RequestOutcome ===

impl RequestOutcome {
    pub(super) const ALL: [Self; 10] = [
        Self::Result,
        Self::ToolError,
        Self::ServerError,
        Self::Task,
        Self::InputRequired,
        Self::Refused,
        Self::TimedOut,
        Self::UpstreamFailed,
        Self::ProxyFailed,
        Self::Disconnected,
    ];

    /// The outcome as the access log and the metrics show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::ToolError => "tool_error",
            Self::ServerError => "server_error",
            Self::Task => "task",
            Self::InputRequired => "input_required",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::UpstreamFailed => "upstream_failed",
            Self::ProxyFailed => "proxy_failed",
            Self::Disconnected => "departed",
        }
    }
}

impl From<ErrorOrigin> for RequestOutcome {
    fn from(origin: ErrorOrigin) -> Self {
        match origin {
            ErrorOrigin::Client => Self::Refused,
            ErrorOrigin::Server => Self::UpstreamFailed,
            ErrorOrigin::Proxy => Self::ProxyFailed,
        }
    }
}

// === impl AccessEvent ===

/// Writes an access log entry at one level, which must be a constant of the call site.
macro_rules! access {
    ($level:ident, $line:expr) => {
        tracing::$level!(
            name: "record",
            target: "deferral::access",
            method = $line.method,
            target = $line.target,
            route = $line.route,
            token = $line.token,
            principal = %$line.principal,
            client = $line.client_era,
            task = $line.task.map(tracing::field::display),
            session = $line.session.map(tracing::field::display),
            shown = $line.shown,
            status = $line.status,
            outcome = $line.outcome.as_str(),
            reason = $line.reason,
            code = $line.code,
            upstream_us = micros($line.upstream),
            own_us = micros($line.own),
        )
    };
}

impl AccessEvent<'_> {
    /// Logs the entry, updates the metrics, and publishes it to taps. The level is `WARN` if the server is at
    /// fault, because the operator can act on it, and `DEBUG` for successful requests that clients repeat
    /// while they wait.
    pub fn emit(&self) {
        metrics::record_request(self.route, self.counted_as, self.outcome);
        if let Some(tool) = self.tool {
            metrics::record_call(self.route, tool, self.outcome, self.upstream + self.own);
        }
        if self.code == Some(OUTCOME_UNKNOWN) {
            metrics::record_outcome_unknown(self.route);
        }
        if tap::is_open() {
            self.publish_to_taps();
        }
        match self.outcome {
            RequestOutcome::UpstreamFailed | RequestOutcome::TimedOut => access!(warn, self),
            RequestOutcome::Result if self.is_poll() => access!(debug, self),
            RequestOutcome::Result
            | RequestOutcome::ToolError
            | RequestOutcome::ServerError
            | RequestOutcome::Task
            | RequestOutcome::InputRequired
            | RequestOutcome::Refused
            | RequestOutcome::ProxyFailed
            | RequestOutcome::Disconnected => access!(info, self),
        }
    }

    /// Whether clients repeat this request while they wait: polling a task, a ping, and fetching a ticket's
    /// result while the call is still running.
    fn is_poll(&self) -> bool {
        match self.counted_as {
            "tasks/get" | "ping" => true,
            "tools/call" => matches!(self.shown, Some("working" | "input_required")),
            _ => false,
        }
    }
}

impl AccessEvent<'_> {
    /// Publishes the event to the open taps.
    fn publish_to_taps(&self) {
        let tool = if self.method == "tools/call" { self.target } else { "" };
        let subject =
            tap::TapSubject { route: self.route, principal: self.principal, token: self.token, tool };
        tap::publish("request", subject, self.content, |line| {
            let mut put = |name: &str, value: serde_json::Value| drop(line.insert(name.to_owned(), value));
            put("method", self.method.into());
            put("target", self.target.into());
            put("client", self.client_era.into());
            put("status", self.status.into());
            put("outcome", self.outcome.as_str().into());
            put("took_ms", millis(self.upstream + self.own).into());
            put("upstream_ms", millis(self.upstream).into());
            let task = self.task.map(ToString::to_string);
            let texts = [("reason", self.reason), ("shown", self.shown), ("task", task.as_deref())];
            for (name, text) in texts {
                text.into_iter().for_each(|text| put(name, text.into()));
            }
            self.code.into_iter().for_each(|code| put("code", code.into()));
        });
    }
}

/// Publishes a change of a task to the open taps.
fn publish_task_to_taps(
    task: &dyn fmt::Display,
    subject: tap::TapSubject<'_>,
    (from, to): (&str, &str),
    end: Option<TaskEnd>,
    reason: Option<&str>,
) {
    tap::publish("task", subject, None, |line| {
        let mut put = |name: &str, value: serde_json::Value| drop(line.insert(name.to_owned(), value));
        put("task", task.to_string().into());
        put("tool", subject.tool.into());
        put("from", from.into());
        put("to", to.into());
        if let Some(TaskEnd { waited, age, code, is_tool_error }) = end {
            put("took_ms", millis(waited + age).into());
            if is_tool_error {
                put("tool_error", true.into());
            }
            code.into_iter().for_each(|code| put("code", code.into()));
        }
        reason.into_iter().for_each(|reason| put("reason", beginning(reason).into()));
    });
}

// === impl ProxyStarted ===

impl ProxyStarted<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        tracing::info!(
            target: "deferral",
            event = "started",
            version = env!("CARGO_PKG_VERSION"),
            listen = self.listen,
            admin = self.admin,
            metrics = self.metrics,
            tls = self.tls,
            routes = self.routes,
            store = self.store,
            traces = self.traces,
            state_keys = self.state_keys,
            notice_ms = millis(self.notice),
            drain_ms = millis(self.drain),
            descriptors = self.descriptors,
            descriptors_before = self.descriptors_before,
            connections = self.connections,
            upstream_connections = self.upstream_connections,
            calls = self.calls,
        );
        if self.overcommitted {
            tracing::warn!(
                target: "deferral",
                event = "descriptors_overcommitted",
                descriptors = self.descriptors,
                connections = self.connections,
                upstream_connections = self.upstream_connections,
                remedy = "raise the limit of open files (`ulimit -n`, `LimitNOFILE`), or lower `limits.connections` and `limits.upstream_connections`",
            );
        }
    }
}

// === impl ServerProcessEnded ===

impl ServerProcessEnded<'_> {
    /// Logs the end of the process, after the count of its suppressed lines.
    pub fn emit(&self) {
        log_suppressed();
        if self.was_requested {
            tracing::info!(
                target: "deferral::server", event = "ended", route = self.route, how = self.exit_status, up_ms = millis(self.uptime),
            );
            return;
        }
        tracing::error!(
            target: "deferral::server",
            event = "ended_unexpectedly",
            route = self.route,
            how = self.exit_status,
            up_ms = millis(self.uptime),
            said = self.last_stderr_lines,
        );
    }
}

// === impl RequestHeadRefused ===

impl RequestHeadRefused {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        self.limit.record_hit();
        tracing::warn!(
            target: "deferral", event = "head_refused", limit = self.limit.key(), client = self.client.map(display_address),
        );
    }
}

// === impl EventSkipped ===

impl EventSkipped<'_> {
    /// Logs the event at `DEBUG`, because a server may use such events as keep-alive.
    pub fn emit(&self) {
        metrics::record_event_skipped(self.route);
        tracing::debug!(
            target: "deferral::upstream", event = "event_skipped", route = self.route, why = %self.why,
        );
    }
}

// === impl TaskCreated, TaskTransition, WouldDefer, InputRequestRefused, QuotaExceeded, LogLinesDropped ===

impl TaskCreated<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        metrics::record_task_created(self.route, self.tool);
        if tap::is_open() {
            let subject = tap::TapSubject {
                route: self.route,
                principal: self.principal,
                token: None,
                tool: self.tool,
            };
            publish_task_to_taps(self.task, subject, ("call", "working"), None, None);
        }
        tracing::info!(
            name: "task",
            target: "deferral::task",
            event = "transition",
            task = %self.task,
            route = self.route,
            tool = self.tool,
            principal = %self.principal,
            from = "call",
            to = "working",
        );
    }
}

/// Writes a task transition at one level, which must be a constant of the call site.
macro_rules! transition {
    ($level:ident, $it:expr) => {
        tracing::$level!(
            name: "task",
            target: "deferral::task",
            event = "transition",
            task = %$it.task,
            route = $it.route,
            tool = $it.tool,
            principal = %$it.principal,
            from = $it.from,
            to = $it.to,
            code = $it.end.and_then(|end| end.code),
            reason = $it.reason.map(beginning),
            tool_error = $it.end.and_then(|end| end.is_tool_error.then_some(true)),
            took_ms = $it.end.map(|end| millis(end.waited + end.age)),
        )
    };
}

impl TaskTransition<'_> {
    /// Logs the transition, updates the metrics, and publishes it to taps. The level is `WARN` if the server
    /// or the proxy caused a failure, because no client may be connected to see it.
    pub fn emit(&self) {
        if let Some(TaskEnd { waited, age, code, is_tool_error }) = self.end {
            let is_success = self.to == "completed" && !is_tool_error;
            metrics::record_task_ended((self.route, self.tool), self.to, is_success, waited, age);
            if code == Some(OUTCOME_UNKNOWN) {
                metrics::record_outcome_unknown(self.route);
            }
        }
        if tap::is_open() {
            let subject = tap::TapSubject {
                route: self.route,
                principal: self.principal,
                token: None,
                tool: self.tool,
            };
            publish_task_to_taps(self.task, subject, (self.from, self.to), self.end, self.reason);
        }
        match self.end.and_then(|end| end.code).map(origin_of) {
            Some(ErrorOrigin::Server | ErrorOrigin::Proxy) => transition!(warn, self),
            Some(ErrorOrigin::Client) | None => transition!(info, self),
        }
    }
}

impl WouldDefer<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        metrics::record_would_defer(self.route, self.tool, self.is_success);
        tracing::info!(
            name: "record",
            target: "deferral::task",
            event = "would_defer",
            tool = self.tool,
            route = self.route,
            after_ms = millis(self.after),
            took_ms = millis(self.took),
            rollout = self.rollout,
        );
    }
}

impl InputRequestRefused<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        metrics::record_input_request(self.route, self.method, self.outcome);
        tracing::warn!(
            target: "deferral::question",
            event = "refused",
            route = self.route,
            method = self.method,
            reason = self.reason,
        );
    }
}

impl QuotaExceeded<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        metrics::Limit::record_hit_by_key(self.limit);
        tracing::warn!(
            target: "deferral::task",
            event = "quota_full",
            limit = self.limit,
            principal = %self.principal,
        );
    }
}

impl LogLinesSuppressed<'_> {
    /// Writes the log line, and updates the metrics of the event if it has any.
    pub fn emit(&self) {
        tracing::warn!(
            name: "record", target: "deferral", event = "lines_suppressed", lines = self.lines, of = self.scope, count = self.count,
        );
    }
}

impl LogLinesDropped {
    /// Writes the log line; the metric was incremented when the lines were dropped.
    pub fn emit(&self) {
        tracing::warn!(name: "record", target: "deferral", event = "log_lines_dropped", count = self.count);
    }
}

/// Implements `emit` for events with a single log line: level, target, event name and fields. `it` is the
/// event.
macro_rules! lines {
    ($($happening:ident $(<$life:lifetime>)? as $it:ident: $level:ident $target:literal $event:literal $fields:tt)*) => {
        $(impl $happening $(<$life>)? {
            /// Writes the log line, and updates the metrics of the event if it has any.
            pub fn emit(&self) {
                let $it = self;
                lines!($level $target $event $fields);
            }
        })*
    };
    ($level:ident $target:literal $event:literal { $($field:tt)* }) => {
        tracing::$level!(target: $target, event = $event, $($field)*)
    };
}

lines! {
    AccessDenied<'_> as it: warn "deferral" "access_denied" {
        listener = it.listener, client = it.client.map(display_address), forwarded = it.forwarded.map(beginning), host = it.host.map(beginning), origin = it.origin.map(beginning)
    }
    TaskLookupFailed<'_> as it: warn "deferral::task" "lookup_failed" {
        method = it.method, principal = %it.principal, reason = it.reason
    }
    StoreRecovered as _it: info "deferral::task" "store_back" {}
    StoreFailed<'_> as it: warn "deferral::task" "store_failed" { doing = it.operation, error = %it.error }
    StoreCountsRepaired<'_> as it: warn "deferral::task" "counts_mended" {
        store = %it.folder, counts = it.counts, surplus_tasks = it.surplus_tasks, surplus_bytes = it.surplus_bytes, missing_tasks = it.missing_tasks, missing_bytes = it.missing_bytes
    }
    StoreCountsUnchecked<'_> as it: warn "deferral::task" "counts_unchecked" { error = %it.error }
    ResponsesDropped as it: warn "deferral::upstream" "answers_dropped" {
        limit = "limits.messages", waiting = it.waiting
    }
    MessageUndelivered<'_> as it: warn "deferral::upstream" "untold" { what = it.what, error = %it.error }
    ServerNotStarted<'_> as it: warn "deferral::server" "not_started" {
        route = it.route, program = it.program, error = %it.error
    }
    ServerProcessAdded<'_> as it: info "deferral::server" "process_added" {
        route = it.route, processes = it.processes, why = it.why, remedy = it.remedy
    }
    ServerStderrLine<'_> as it: info "deferral::server" "stderr" { route = it.route, line = it.line }
    ServerOutputSkipped<'_> as it: warn "deferral::server" "stdout_skipped" {
        route = it.route, why = it.why, line = it.line
    }
    ServerOmitsVersion<'_> as it: warn "deferral::server" "jsonrpc_missing" {
        route = it.route, remedy = "the server must write \"jsonrpc\":\"2.0\" in each message; a line without it is skipped as output"
    }
    ConfigReloaded<'_> as it: info "deferral" "config_reloaded" {
        by = it.by, changed = it.changed, needs_restart = it.needs_restart
    }
    ConfigRefused<'_> as it: warn "deferral" "config_refused" { by = it.by, error = it.error }
    ConfigWarning<'_> as it: warn "deferral" "config_warning" { warning = it.warning }
    TaskCancelledByOperator<'_> as it: info "deferral::task" "cancelled_by_operator" {
        task = %it.task, route = it.route, tool = it.tool, principal = %it.principal
    }
    OrphanSummary as it: info "deferral::task" "taken_over" {
        resumed = it.resumed, waiting = it.waiting, pending = it.pending, failed = it.failed, cancelled = it.cancelled, untold = it.untold, waited = it.waited
    }
    ShutdownNotice as it: info "deferral" "leaving" { notice_ms = millis(it.notice) }
    DrainStarted as it: info "deferral" "draining" {
        calls = it.calls, tasks = it.tasks, results = it.results, limit_ms = millis(it.limit)
    }
    DrainCompleted as it: info "deferral" "drained" {
        ended = it.ended, became_tasks = it.became_tasks, tasks_released = it.tasks_released, calls_lost = it.calls_lost, tasks_lost = it.tasks_lost, results_lost = it.results_lost, hurried = it.hurried
    }
}

#[cfg(feature = "otlp")]
lines! {
    SpansLost<'_> as it: warn "deferral::traces" "spans_lost" {
        dropped = it.dropped, refused = it.refused, why = it.why
    }
}

/// Converts to milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Formats an address, IPv4-mapped ones as IPv4.
fn display_address(address: IpAddr) -> tracing::field::DisplayValue<IpAddr> {
    tracing::field::display(address.to_canonical())
}

/// Maximum length of a logged value that a peer chose, in characters.
const MAX_PEER_VALUE_CHARS: usize = 200;

/// Truncates a text that a peer chose, for the log.
fn beginning(text: &str) -> &str {
    text.char_indices().nth(MAX_PEER_VALUE_CHARS).map_or(text, |(end, _)| &text[..end])
}

/// Converts to whole microseconds.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{LineFormat, LogLayer};
    use std::{
        sync::{Arc, Mutex},
        time::UNIX_EPOCH,
    };
    use tracing_subscriber::layer::SubscriberExt;

    /// The log level of a request's access log entry.
    fn level(method: &'static str, shown: Option<&str>, outcome: RequestOutcome) -> String {
        let level = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&level);
        let take = move |level: &tracing::Level, _: &str| *seen.lock().expect("whole") = level.to_string();
        let lines = LogLayer::new(LineFormat::Text, || UNIX_EPOCH, take);
        let access = AccessEvent {
            method,
            counted_as: method,
            tool: None,
            target: "t",
            route: "/mcp",
            token: None,
            principal: &"anonymous",
            client_era: "modern",
            task: None,
            session: None,
            shown,
            status: 200,
            outcome,
            reason: None,
            code: None,
            upstream: Duration::ZERO,
            own: Duration::ZERO,
            content: None,
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || access.emit());
        level.lock().expect("whole").clone()
    }

    #[test]
    fn logged_values_of_peers_are_truncated() {
        let written = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&written);
        let take = move |_: &tracing::Level, line: &str| kept.lock().expect("whole").push_str(line);
        let lines = LogLayer::new(LineFormat::Text, || UNIX_EPOCH, take);
        let (long, cut) = ("é".repeat(10_000), "é".repeat(MAX_PEER_VALUE_CHARS));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let (host, forwarded) = (Some(&*long), Some(&*long));
            AccessDenied { listener: "clients", client: None, forwarded, host, origin: None }.emit();
            let (task, route, tool, principal) = (&"t", "/mcp", "t", &"anonymous");
            let (from, to, reason) = ("working", "failed", Some("a\nforged=line"));
            TaskTransition { task, route, tool, principal, from, to, end: None, reason }.emit();
        });
        let written = written.lock().expect("whole");
        assert!(written.contains(&format!("forwarded=\"{cut}\" host=\"{cut}\"\n")), "{written}");
        assert!(written.contains(r#"reason="a\nforged=line""#), "{written}");
        assert_eq!(written.lines().count(), 2);
    }

    #[test]
    fn what_clients_repeat_while_they_wait_is_logged_at_debug_unless_it_fails() {
        for (method, shown, outcome, expected) in [
            ("tasks/get", Some("working"), RequestOutcome::Result, "DEBUG"),
            ("tasks/get", Some("completed"), RequestOutcome::Result, "DEBUG"),
            ("ping", None, RequestOutcome::Result, "DEBUG"),
            ("tools/call", Some("working"), RequestOutcome::Result, "DEBUG"),
            ("tools/call", Some("completed"), RequestOutcome::Result, "INFO"),
            ("tools/call", None, RequestOutcome::Result, "INFO"),
            ("tools/call", None, RequestOutcome::Task, "INFO"),
            ("tasks/get", None, RequestOutcome::Refused, "INFO"),
            ("ping", None, RequestOutcome::UpstreamFailed, "WARN"),
        ] {
            assert_eq!(level(method, shown, outcome), expected, "{method} {shown:?} {outcome:?}");
        }
    }
}
