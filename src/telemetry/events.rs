//! One struct for each happening. Emitting it writes the log line; fields, not sentences; no
//! bodies and no credentials.

use super::{log::log_suppressed, metrics, tap};
use crate::protocol::{
    ErrorOrigin,
    code::{OUTCOME_UNKNOWN, origin_of},
};
use std::{fmt, net::IpAddr, time::Duration};

/// How a request ended, for the access line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestOutcome {
    /// A result was passed on.
    #[default]
    Result,
    /// A result was passed on that says that its tool failed (`isError`).
    ToolError,
    /// A JSON-RPC error of the server was passed on.
    ServerError,
    /// The call became a task.
    Task,
    /// The client was asked for input.
    InputRequired,
    /// The request was refused by the proxy: the client's fault.
    Refused,
    /// The server did not answer the call in time.
    TimedOut,
    /// The server failed the call.
    UpstreamFailed,
    /// A limit or fault of the proxy.
    ProxyFailed,
    /// The client left before the answer.
    Disconnected,
}

/// One request, once its answer has been given or its client has left. The access line.
pub struct AccessEvent<'a> {
    pub method: &'a str,
    /// The same where it is one of those that are counted by name.
    pub counted_as: &'a str,
    /// The tool whose call has ended with this, or has become a task.
    pub tool: Option<&'a str>,
    /// The tool, prompt or resource; empty where there is none.
    pub target: &'a str,
    pub route: &'a str,
    /// The name of the token by which the client is known, where clients need one. Never the token.
    pub token: Option<&'a str>,
    pub principal: &'a dyn fmt::Display,
    pub client_era: &'a str,
    /// The task the call became.
    pub task: Option<&'a dyn fmt::Display>,
    /// The session of a legacy client, not to be recognised.
    pub session: Option<&'a dyn fmt::Display>,
    /// The status of the task that was shown: with the target, the trail of retrievals.
    pub shown: Option<&'a str>,
    pub status: u16,
    pub outcome: RequestOutcome,
    /// Why, where it is no result: in our own words, or the code of the server's error. Never what was
    /// sent or what came back.
    pub reason: Option<&'a str>,
    /// The code of the error that the client was given, where it is ours.
    pub code: Option<i64>,
    /// Time spent waiting for the server.
    pub upstream: Duration,
    /// From the request's last byte to the answer's first, without `upstream`.
    pub own: Duration,
    /// For taps that show arguments and results. Never written to the log.
    pub content: Option<&'a tap::CallContent>,
}

/// The proxy serves: what it is in front of, and which limits it works with.
pub struct ProxyStarted<'a> {
    /// What is really listened on.
    pub listen: &'a str,
    pub admin: &'a str,
    /// The listener for scrapers.
    pub metrics: &'a str,
    pub tls: bool,
    /// Each route: its path, its server, its mode.
    pub routes: &'a str,
    pub store: &'a str,
    /// Where traces go.
    pub traces: &'a str,
    /// Whether `requestState`s outlive this process: `configured`, or `made at start`.
    pub state_keys: &'a str,
    pub notice: Duration,
    pub drain: Duration,
    /// How many descriptors the system allows this process.
    pub descriptors: usize,
    /// How many it allowed before that was raised, where it was.
    pub descriptors_before: Option<usize>,
    /// Limits, derived from the former where they were not written.
    pub connections: usize,
    pub upstream_connections: usize,
    pub calls: usize,
    /// What was written is more than the system allows.
    pub overcommitted: bool,
}

/// A call has become a task.
pub struct TaskCreated<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// A request was refused before there was one to speak of: its head is beyond a limit, so it has no access line.
pub struct RequestHeadRefused {
    pub limit: metrics::Limit,
    /// The client's address, or that of the proxy in front of us.
    pub client: Option<IpAddr>,
}

/// A request was refused for its `Host` or `TextOrigin`.
pub struct AccessDenied<'a> {
    /// Which listener: `clients` or `admin`.
    pub listener: &'a str,
    /// The client's address, or that of the proxy in front of us.
    pub client: Option<IpAddr>,
    /// What the request itself says of the hops before (`HttpResponse`, else `X-HttpResponse-For`). Not verified.
    pub forwarded: Option<&'a str>,
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
}

/// A task moved from one state to another.
pub struct TaskTransition<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub from: &'a str,
    pub to: &'a str,
    /// Where it has ended with that.
    pub end: Option<TaskEnd>,
    /// Why, where it has failed: in our own words, or the code of the server's error. Only its beginning is written.
    pub reason: Option<&'a str>,
}

/// The configuration was read again, and holds.
#[derive(Clone, Copy, Debug)]
pub struct ConfigReloaded<'a> {
    /// Who wanted that.
    pub by: &'a str,
    /// The keys that are different.
    pub changed: &'a str,
    /// Those that will be with the next start.
    pub needs_restart: &'a str,
}

/// The configuration was read again, and nothing was changed.
#[derive(Clone, Copy, Debug)]
pub struct ConfigRefused<'a> {
    pub by: &'a str,
    /// Everything that is wrong.
    pub error: &'a str,
}

/// Something in the configuration is allowed and yet probably not meant.
#[derive(Clone, Copy, Debug)]
pub struct ConfigWarning<'a> {
    /// Where it stands and what would be right.
    pub warning: &'a str,
}

/// An operator has cancelled a task, whose transition is told besides.
pub struct TaskCancelledByOperator<'a> {
    pub task: &'a dyn fmt::Display,
    pub route: &'a str,
    pub tool: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// How long a task took to end, and with which code where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    /// How long its call had run when it became a task.
    pub waited: Duration,
    /// From then on.
    pub age: Duration,
    pub code: Option<i64>,
    /// It has completed with a result that says that its tool failed (`isError`).
    pub is_tool_error: bool,
}

/// Somebody asked for a task that is not there, or not theirs.
pub struct TaskLookupFailed<'a> {
    pub method: &'a str,
    pub principal: &'a dyn fmt::Display,
    pub reason: &'a str,
}

/// In mode `observe`, or outside a rollout: a call that would have become a task.
pub struct WouldDefer<'a> {
    pub tool: &'a str,
    pub route: &'a str,
    /// The threshold.
    pub after: Duration,
    pub took: Duration,
    /// Its call has ended without an error.
    pub is_success: bool,
    /// Where only the rollout keeps it from being one: that.
    pub rollout: Option<&'a str>,
}

/// A quota was full, so a call stayed synchronous.
pub struct QuotaExceeded<'a> {
    /// The name of the limit in the configuration.
    pub limit: &'a str,
    pub principal: &'a dyn fmt::Display,
}

/// The task store does not do what it is asked; said once a minute while that lasts.
pub struct StoreFailed<'a> {
    pub doing: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// The task store takes changes again.
pub struct StoreRecovered;

/// A question of a server was refused, because nobody could be asked.
pub struct InputRequestRefused<'a> {
    pub route: &'a str,
    pub method: &'a str,
    pub reason: &'a str,
    pub outcome: metrics::InputRequestOutcome,
}

/// A server asks things that nobody need be asked (pings, above all) faster than it takes the answers:
/// some are not answered. Said once until it has caught up.
pub struct ResponsesDropped {
    /// Answers that wait already.
    pub waiting: usize,
}

/// An event of a server's stream is no message, and was skipped.
pub struct EventSkipped<'a> {
    pub route: &'a str,
    pub why: &'a dyn fmt::Display,
}

/// A server could not be told something, however often it was tried.
pub struct MessageUndelivered<'a> {
    pub what: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// The process of a server has ended, and nothing is left of it.
pub struct ServerProcessEnded<'a> {
    pub route: &'a str,
    /// How it ended, in words.
    pub how: &'a str,
    /// How long it was there.
    pub up: Duration,
    /// The proxy has ended it.
    pub is_wanted: bool,
    /// Its last lines on standard error.
    pub said: &'a str,
}

/// A process of a server did not come up.
pub struct ServerNotStarted<'a> {
    pub route: &'a str,
    /// Without its arguments, which may hold a key.
    pub program: &'a str,
    pub error: &'a dyn fmt::Display,
}

/// A server runs as one process more.
pub struct ServerProcessAdded<'a> {
    pub route: &'a str,
    /// How many there are now.
    pub processes: usize,
    /// Why the others are not enough.
    pub why: &'a str,
    /// What bounds them, and how that is changed.
    pub remedy: &'a str,
}

/// A line of a server on its standard error.
pub struct ServerStderrLine<'a> {
    pub route: &'a str,
    pub line: &'a str,
}

/// What a server has written on its standard output is no message, and was skipped.
pub struct ServerOutputSkipped<'a> {
    pub route: &'a str,
    pub why: &'a str,
    /// Its beginning.
    pub line: &'a str,
}

/// A server that is a process writes what looks like its messages, but for `"jsonrpc":"2.0"`. Said once for each server.
pub struct ServerOmitsVersion<'a> {
    pub route: &'a str,
}

/// The log was not taken as fast as it was written; so many lines are missing here.
pub struct LogLinesDropped {
    pub count: u64,
}

/// So many lines of one kind were not written, as there were too many of them.
pub struct LogLinesSuppressed<'a> {
    /// The `event` of those lines.
    pub lines: &'a str,
    /// The route they are of, or the task; empty where they are of none.
    pub of: &'a str,
    pub count: u64,
}

/// Spans that no collector has got; said once a minute at most.
#[cfg(feature = "otlp")]
pub struct SpansLost<'a> {
    /// For want of room: the collector does not take them as fast as they are made.
    pub dropped: u64,
    /// The collector could not be reached, or has refused them.
    pub refused: u64,
    /// Why, the last time; empty where it took all that it was sent.
    pub why: &'a str,
}

/// What became of the tasks that a process before this one has left behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OrphanSummary {
    /// Calls that their servers have taken up again.
    pub resumed: usize,
    /// Calls that are taken up once their caller comes with its credentials.
    pub waiting: usize,
    /// Calls whose servers have not answered so far.
    pub pending: usize,
    /// Tasks that have failed, as their calls are gone, or their servers refused to go on with them.
    pub failed: usize,
    /// Cancelled ones, of which their servers have been told again.
    pub cancelled: usize,
    /// Cancelled ones of which their servers could not be told.
    pub untold: usize,
    /// In a later line: how many were waiting or pending in the one before, and are the ones counted here.
    pub waited: Option<usize>,
}

/// What a store on disk had counted of its tasks was wrong, and is mended.
pub struct StoreCountsRepaired<'a> {
    pub folder: &'a dyn fmt::Display,
    /// Principals, and pairs of a route and a status, whose counts were wrong.
    pub counts: usize,
    /// What was counted and is not there, and what is there and was not counted.
    pub surplus_tasks: usize,
    pub surplus_bytes: usize,
    pub missing_tasks: usize,
    pub missing_bytes: usize,
}

/// The counts of a store on disk could not be compared with its tasks.
pub struct StoreCountsUnchecked<'a> {
    pub error: &'a dyn fmt::Display,
}

/// The proxy is told to stop, and serves new calls for a while yet.
pub struct ShutdownNotice {
    /// How long new calls are still served.
    pub notice: Duration,
}

/// The proxy has begun to stop; what it waits for.
pub struct DrainStarted {
    pub calls: usize,
    pub tasks: usize,
    /// Results of tasks that nobody has fetched.
    pub results: usize,
    /// For how long at most.
    pub limit: Duration,
}

/// The proxy has stopped; what has become of all that it had to do.
#[derive(Default)]
pub struct DrainCompleted {
    /// Calls and tasks that have ended by themselves.
    pub ended: usize,
    /// Calls that have become tasks meanwhile.
    pub became_tasks: usize,
    /// Tasks whose calls go on, and are left to the next process.
    pub tasks_released: usize,
    pub calls_lost: usize,
    pub tasks_lost: usize,
    /// Results of tasks that nobody had fetched and nobody can fetch any more.
    pub results_lost: usize,
    /// A second signal came before it was done.
    pub hurried: bool,
}

// === impl Outcome ===

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
    fn from(fault: ErrorOrigin) -> Self {
        match fault {
            ErrorOrigin::Client => Self::Refused,
            ErrorOrigin::Server => Self::UpstreamFailed,
            ErrorOrigin::Proxy => Self::ProxyFailed,
        }
    }
}

// === impl Access ===

/// The access line at one level, which must be known where it is written.
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
    /// A warning where the server is at fault: the operator can do something about that. What clients repeat while they
    /// wait is for debugging, unless it fails.
    pub fn emit(&self) {
        metrics::record_request(self.route, self.counted_as, self.outcome);
        if let Some(tool) = self.tool {
            metrics::record_call(self.route, tool, self.outcome, self.upstream + self.own);
        }
        if self.code == Some(OUTCOME_UNKNOWN) {
            metrics::record_outcome_unknown(self.route);
        }
        if tap::is_open() {
            self.show();
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

    /// Whether a client sends this again and again: a look at a task, a ping, and the tool that fetches a result where
    /// it says that the call is still running.
    fn is_poll(&self) -> bool {
        match self.counted_as {
            "tasks/get" | "ping" => true,
            "tools/call" => matches!(self.shown, Some("working" | "input_required")),
            _ => false,
        }
    }
}

impl AccessEvent<'_> {
    /// Offers it to the open taps.
    fn show(&self) {
        let tool = if self.method == "tools/call" { self.target } else { "" };
        let about = tap::TapSubject { route: self.route, principal: self.principal, token: self.token, tool };
        tap::publish("request", about, self.content, |line| {
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

/// Offers a change of a task to the open taps.
fn show_task(
    task: &dyn fmt::Display,
    about: tap::TapSubject<'_>,
    (from, to): (&str, &str),
    end: Option<TaskEnd>,
    reason: Option<&str>,
) {
    tap::publish("task", about, None, |line| {
        let mut put = |name: &str, value: serde_json::Value| drop(line.insert(name.to_owned(), value));
        put("task", task.to_string().into());
        put("tool", about.tool.into());
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

// === impl Started ===

impl ProxyStarted<'_> {
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

// === impl ServerEnded ===

impl ServerProcessEnded<'_> {
    /// Behind the count of what it said and is not in the log.
    pub fn emit(&self) {
        log_suppressed();
        if self.is_wanted {
            tracing::info!(
                target: "deferral::server", event = "ended", route = self.route, how = self.how, up_ms = millis(self.up),
            );
            return;
        }
        tracing::error!(
            target: "deferral::server",
            event = "ended_unexpectedly",
            route = self.route,
            how = self.how,
            up_ms = millis(self.up),
            said = self.said,
        );
    }
}

// === impl HeadRefused ===

impl RequestHeadRefused {
    pub fn emit(&self) {
        self.limit.record_hit();
        tracing::warn!(
            target: "deferral", event = "head_refused", limit = self.limit.key(), client = self.client.map(shown),
        );
    }
}

// === impl EventSkipped ===

impl EventSkipped<'_> {
    /// Counts it. The line is one for debugging: a server may keep its streams alive with such events.
    pub fn emit(&self) {
        metrics::record_event_skipped(self.route);
        tracing::debug!(
            target: "deferral::upstream", event = "event_skipped", route = self.route, why = %self.why,
        );
    }
}

// === impl TaskCreated, TaskTransition, WouldDefer, QuestionRefused, QuotaFull, LogLinesDropped ===

impl TaskCreated<'_> {
    pub fn emit(&self) {
        metrics::record_task_created(self.route, self.tool);
        if tap::is_open() {
            let about = tap::TapSubject {
                route: self.route,
                principal: self.principal,
                token: None,
                tool: self.tool,
            };
            show_task(self.task, about, ("call", "working"), None, None);
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

/// The line of a task's change at one level, which must be known where it is written.
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
    /// A warning where the server or the proxy is at fault that a task has failed: nobody may be there to see it.
    pub fn emit(&self) {
        if let Some(TaskEnd { waited, age, code, is_tool_error }) = self.end {
            let is_success = self.to == "completed" && !is_tool_error;
            metrics::record_task_ended((self.route, self.tool), self.to, is_success, waited, age);
            if code == Some(OUTCOME_UNKNOWN) {
                metrics::record_outcome_unknown(self.route);
            }
        }
        if tap::is_open() {
            let about = tap::TapSubject {
                route: self.route,
                principal: self.principal,
                token: None,
                tool: self.tool,
            };
            show_task(self.task, about, (self.from, self.to), self.end, self.reason);
        }
        match self.end.and_then(|end| end.code).map(origin_of) {
            Some(ErrorOrigin::Server | ErrorOrigin::Proxy) => transition!(warn, self),
            Some(ErrorOrigin::Client) | None => transition!(info, self),
        }
    }
}

impl WouldDefer<'_> {
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
    pub fn emit(&self) {
        tracing::warn!(
            name: "record", target: "deferral", event = "lines_suppressed", lines = self.lines, of = self.of, count = self.count,
        );
    }
}

impl LogLinesDropped {
    /// Each has been counted when it was dropped.
    pub fn emit(&self) {
        tracing::warn!(name: "record", target: "deferral", event = "log_lines_dropped", count = self.count);
    }
}

/// How each happening that is one line is written: at which level, for which part of the house, and under which
/// name. `it` is the happening.
macro_rules! lines {
    ($($happening:ident $(<$life:lifetime>)? as $it:ident: $level:ident $target:literal $event:literal $fields:tt)*) => {
        $(impl $happening $(<$life>)? {
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
        listener = it.listener, client = it.client.map(shown), forwarded = it.forwarded.map(beginning), host = it.host.map(beginning), origin = it.origin.map(beginning)
    }
    TaskLookupFailed<'_> as it: warn "deferral::task" "lookup_failed" {
        method = it.method, principal = %it.principal, reason = it.reason
    }
    StoreRecovered as _it: info "deferral::task" "store_back" {}
    StoreFailed<'_> as it: warn "deferral::task" "store_failed" { doing = it.doing, error = %it.error }
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

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// An address as it is written elsewhere: one of IPv4 as such.
fn shown(address: IpAddr) -> tracing::field::DisplayValue<IpAddr> {
    tracing::field::display(address.to_canonical())
}

/// Characters of what others say that are written.
const SHOWN: usize = 200;

fn beginning(text: &str) -> &str {
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}

/// Whole microseconds.
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

    /// The level of the access line of a request.
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
    fn of_what_others_have_chosen_the_beginning_is_written() {
        let written = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&written);
        let take = move |_: &tracing::Level, line: &str| kept.lock().expect("whole").push_str(line);
        let lines = LogLayer::new(LineFormat::Text, || UNIX_EPOCH, take);
        let (long, cut) = ("é".repeat(10_000), "é".repeat(SHOWN));
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
