//! Metrics, for Prometheus, the admin page and the report.
//!
//! There is one set of metrics per process, as there is one log. Emitting an event
//! ([`events`](super::events)) writes the line and updates the metrics, so that the two agree. Gauges of
//! current state (tasks, sessions, processes) are read when the metrics are written: [`write()`] takes them
//! as [`GaugeSnapshot`].
//!
//! Names and labels are an interface, because dashboards and alerts depend on them. `manual::metrics` lists
//! them, and `tests/it/metrics/mod.rs` compares the list with the output. Label values are bounded: routes
//! are those of the configuration, methods those of the specification, and tools are at most [`tools::TOOLS`]
//! per route.
//!
//! | file | |
//! |---|---|
//! | `requests.rs` | requests of clients |
//! | `latency.rs` | histograms of durations |
//! | `tools.rs` | metrics of each tool |
//! | `limits.rs` | metrics of each limit |
//! | `process.rs` | standard process metrics, on Linux |
//! | `expose.rs` | conversion to the types of the crate `prometheus` |

mod expose;
mod latency;
mod limits;
#[cfg(target_os = "linux")]
mod process;
mod requests;
mod tools;

pub use latency::{LatencyHistogram, LatencySnapshot};
pub use limits::{Limit, LimitSnapshot, UsageGuard};
pub use requests::InFlightRequest;
pub use tools::{OTHER, TOOLS, ToolSnapshot};

use super::{events::RequestOutcome, tap};
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder, core::Collector, proto::MetricFamily,
};
use requests::RequestCounters;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};
use tools::{ToolCounters, ToolCounts};

/// The metrics of the process.
struct Metrics {
    registry: Registry,
    /// All routes since the start. Their counters are exported with the value 0, because `rate()` and
    /// `increase()` miss a counter that first appears with the value 1.
    routes: Mutex<BTreeSet<Arc<str>>>,
    requests: RequestCounters,
    tools: ToolCounters,
    task_polls: HistogramVec,
    results_uncollected: IntCounterVec,
    questions: IntCounterVec,
    questions_waiting: IntGaugeVec,
    cancel_seconds: HistogramVec,
    outcome_unknown: IntCounterVec,
    child_restarts: IntCounterVec,
    events_skipped: IntCounterVec,
    store_seconds: HistogramVec,
    tickets: IntCounterVec,
    log_lines_dropped: IntCounter,
}

/// Gauges that are read when the metrics are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GaugeSnapshot {
    /// Route, status, and number of tasks.
    pub tasks: Vec<(Arc<str>, &'static str, usize)>,
    pub servers: Vec<ServerSnapshot>,
}

/// The state of a route's server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSnapshot {
    pub route: Arc<str>,
    /// Whether the last contact succeeded; `None` if there was none.
    pub is_up: Option<bool>,
    /// Number of open sessions.
    pub sessions: usize,
    /// Number of running processes; `None` for an HTTP server.
    pub children: Option<usize>,
}

/// Label of methods that are not in the specification.
const UNSPECIFIED: &str = "other";

/// Kinds of input requests in the specification: the first part of their methods.
const KINDS: [&str; 3] = ["elicitation", "sampling", "roots"];

/// Label of requests without a route.
const NO_ROUTE: &str = "none";

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// An input request of a server that waits for its response. Dropping it counts it as withdrawn, unless it
/// was closed.
#[derive(Debug)]
pub struct OpenInputRequest {
    route: Arc<str>,
    origin: CallOrigin,
    method: String,
    kind: &'static str,
    is_closed: bool,
}

/// The principal and the tool of the call that an input request belongs to.
#[derive(Clone, Debug, Default)]
pub struct CallOrigin {
    /// The principal as shown in logs.
    pub principal: String,
    /// The tool, prompt or resource.
    pub tool: String,
}

/// The outcome of an input request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRequestOutcome {
    /// The client responded, with a result or an error.
    Answered,
    /// The request expired without a response.
    Declined,
    /// No client can respond to it.
    Refused,
    /// The server cancelled it, or the call ended first.
    Withdrawn,
}

/// The outcome of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketOutcome {
    Issued,
    /// The result was fetched.
    Collected,
    /// The result expired before it was fetched.
    NeverCollected,
}

// === impl Metrics ===

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new();
        let counters = |name, help, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name, help, labels: &[&str]| {
            registered(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let histograms = |name, help, labels: &[&str], buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            registered(&registry, HistogramVec::new(options, labels))
        };
        Self {
            routes: Mutex::default(),
            requests: RequestCounters::default(),
            tools: ToolCounters::default(),
            task_polls: histograms(
                "deferral_task_polls",
                "Polls of a task until its end was fetched.",
                &["route"],
                &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
            ),
            results_uncollected: counters(
                "deferral_results_uncollected_total",
                "Task results that expired before they were fetched.",
                &["route"],
            ),
            questions: counters(
                "deferral_questions_total",
                "Input requests of servers, by outcome.",
                &["route", "kind", "outcome"],
            ),
            questions_waiting: gauges(
                "deferral_questions_waiting",
                "Input requests that wait for a response.",
                &["route"],
            ),
            cancel_seconds: histograms(
                "deferral_cancel_seconds",
                "Time from a cancellation until the server accepted it.",
                &["route"],
                &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0],
            ),
            outcome_unknown: counters(
                "deferral_outcome_unknown_total",
                "Calls lost after they had been sent; their outcome is unknown.",
                &["route"],
            ),
            child_restarts: counters(
                "deferral_child_restarts_total",
                "Processes of servers that were started after one had ended by itself.",
                &["route"],
            ),
            events_skipped: counters(
                "deferral_upstream_events_skipped_total",
                "Events in servers' streams that were no message and were skipped.",
                &["route"],
            ),
            store_seconds: histograms(
                "deferral_store_seconds",
                "Duration of task store operations.",
                &["op"],
                &[0.000_01, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0],
            ),
            tickets: counters("deferral_tickets_total", "Tickets, by outcome.", &["route", "outcome"]),
            log_lines_dropped: registered(
                &registry,
                IntCounter::new(
                    "deferral_log_lines_dropped_total",
                    "Log lines that did not fit into the buffer, or could not be written.",
                ),
            ),
            registry,
        }
    }

    fn tool<T>(&self, route: &str, tool: &str, is_real: bool, count: impl FnOnce(&ToolCounts) -> T) -> T {
        self.tools.count_in(route, tool, is_real, count)
    }
}

fn registered<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("names and labels are valid");
    registry.register(Box::new(metric.clone())).expect("names are unique");
    metric
}

/// Counts of client requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that ended since the start.
    pub total: u64,
    /// Requests that ended, by outcome.
    pub by_outcome: BTreeMap<String, u64>,
}

/// The counts of client requests on all routes.
pub fn calls() -> CallCounts {
    let mut calls = CallCounts::default();
    for of_route in METRICS.requests.snapshot().values() {
        calls.in_flight += of_route.in_flight.and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        for ended in &of_route.ended {
            calls.total += ended.count;
            *calls.by_outcome.entry(ended.outcome.as_str().to_owned()).or_default() += ended.count;
        }
    }
    calls
}

/// The number of requests in flight on a route.
pub fn in_flight(route: &str) -> u64 {
    let counted = METRICS.requests.snapshot();
    let of_route = counted.get(route).and_then(|of_route| of_route.in_flight);
    of_route.and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// The number of open input requests.
pub fn questions_waiting() -> u64 {
    let families = METRICS.questions_waiting.collect();
    let metrics = families.iter().flat_map(MetricFamily::get_metric);
    metrics.map(|metric| metric.get_gauge().get_value() as u64).sum()
}

/// All metrics in the Prometheus text format 0.0.4.
pub fn write(seen: &GaugeSnapshot) -> Vec<u8> {
    let metrics = &*METRICS;
    let mut families = metrics.registry.gather();
    let routes = metrics.routes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    families.extend(metrics.requests.families(&routes));
    families.extend(metrics.tools.families(&routes));
    families.extend(limits::families());
    #[cfg(target_os = "linux")]
    families.extend(process::families());
    families.extend(seen.families());
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|one, other| one.name().cmp(other.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text).expect("it is written to memory");
    text
}

/// The media type of [`write()`].
pub const TEXT: &str = prometheus::TEXT_FORMAT;

/// The metrics of each tool.
pub fn tools() -> Vec<ToolSnapshot> {
    METRICS.tools.snapshot()
}

/// The metrics of each limit.
pub fn limits() -> Vec<LimitSnapshot> {
    Limit::ALL.iter().map(|limit| limit.snapshot()).collect()
}

/// Creates the counters of a route, so that they are exported from now on. `has_processes` is set for stdio
/// servers.
pub fn register_route(route: &Arc<str>, has_processes: bool) {
    let metrics = &*METRICS;
    metrics.routes.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(route));
    let of_route: &[&str] = &[route];
    for counter in [&metrics.results_uncollected, &metrics.outcome_unknown, &metrics.events_skipped] {
        counter.with_label_values(of_route);
    }
    if has_processes {
        metrics.child_restarts.with_label_values(of_route);
    }
    for histogram in [&metrics.task_polls, &metrics.cancel_seconds] {
        histogram.with_label_values(of_route);
    }
    metrics.questions_waiting.with_label_values(of_route);
    for kind in KINDS.into_iter().chain([UNSPECIFIED]) {
        for outcome in InputRequestOutcome::ALL {
            metrics.questions.with_label_values(&[route, kind, outcome.as_str()]);
        }
    }
    for outcome in TicketOutcome::ALL {
        metrics.tickets.with_label_values(&[route, outcome.as_str()]);
    }
}

/// Creates the histograms of the task store's operations.
pub fn register_store_operations(operations: &[&str]) {
    for op in operations {
        METRICS.store_seconds.with_label_values(&[op]);
    }
}

/// Counts a request that ended.
pub(super) fn record_request(route: &str, method: &str, outcome: RequestOutcome) {
    let route = if route.is_empty() { NO_ROUTE } else { route };
    METRICS.requests.record_end(route, method, outcome);
}

/// Counts a tool call that ended. A call that became a task is counted when the task ends.
pub(super) fn record_call(route: &str, tool: &str, outcome: RequestOutcome, took: Duration) {
    if outcome == RequestOutcome::Task {
        return;
    }
    // Only a result proves that the tool exists: clients can get any other outcome with an invented name.
    METRICS.tool(route, tool, outcome == RequestOutcome::Result, |tool| {
        match outcome {
            // The server was not called, or the client will retry.
            RequestOutcome::Refused | RequestOutcome::InputRequired => return,
            RequestOutcome::TimedOut => drop(tool.timed_out.fetch_add(1, Ordering::Relaxed)),
            RequestOutcome::Disconnected => drop(tool.departed.fetch_add(1, Ordering::Relaxed)),
            RequestOutcome::ToolError
            | RequestOutcome::ServerError
            | RequestOutcome::UpstreamFailed
            | RequestOutcome::ProxyFailed => {
                tool.failed_calls.record(took);
            }
            RequestOutcome::Result | RequestOutcome::Task => {}
        }
        tool.calls.record(took);
    });
}

/// Records that the server of this route lists this tool.
pub fn mark_tool_listed(route: &str, tool: &str) {
    METRICS.tools.mark_listed(route, tool);
}

pub(super) fn record_task_created(route: &str, tool: &str) {
    METRICS.tool(route, tool, false, |tool| tool.tasks_created.fetch_add(1, Ordering::Relaxed));
}

/// Counts a task that ended with this status, `age` after its creation and after its call had run for
/// `waited`. `is_success` is set if the tool did not report an error.
pub(super) fn record_task_ended(
    (route, tool): (&str, &str),
    status: &str,
    is_success: bool,
    waited: Duration,
    age: Duration,
) {
    METRICS.tool(route, tool, is_success, |tool| tool.record_task_end(status, waited, age));
}

/// Counts a call that would have become a task. `is_success` is set if the call ended without an error.
pub(super) fn record_would_defer(route: &str, tool: &str, is_success: bool) {
    METRICS.tool(route, tool, is_success, |tool| tool.would_defer.fetch_add(1, Ordering::Relaxed));
}

pub(super) fn record_log_lines_dropped(count: u64) {
    METRICS.log_lines_dropped.inc_by(count);
}

#[cfg(test)]
pub(super) fn log_lines_dropped_so_far() -> u64 {
    METRICS.log_lines_dropped.get()
}

pub(super) fn record_outcome_unknown(route: &str) {
    METRICS.outcome_unknown.with_label_values(&[route]).inc();
}

/// Counts a process that was started after one had ended by itself.
pub fn record_child_restart(route: &str) {
    METRICS.child_restarts.with_label_values(&[route]).inc();
}

/// Counts an event in a server's stream that was no message.
pub(super) fn record_event_skipped(route: &str) {
    METRICS.events_skipped.with_label_values(&[route]).inc();
}

/// Counts a task whose end was fetched, after this many polls.
pub fn record_task_fetched(route: &str, polls: u32) {
    METRICS.task_polls.with_label_values(&[route]).observe(f64::from(polls));
}

/// Counts a task result that expired before it was fetched.
pub fn record_uncollected_result(route: &str) {
    METRICS.results_uncollected.with_label_values(&[route]).inc();
}

/// Counts an input request with this outcome.
pub(super) fn record_input_request(route: &str, method: &str, outcome: InputRequestOutcome) {
    METRICS.questions.with_label_values(&[route, kind_of(method), outcome.as_str()]).inc();
}

fn kind_of(method: &str) -> &'static str {
    let family = method.split_once('/').map(|(family, _)| family);
    KINDS.into_iter().find(|kind| family == Some(*kind)).unwrap_or(UNSPECIFIED)
}

/// Records the time until a server accepted a cancellation.
pub fn record_cancel(route: &str, took: Duration) {
    METRICS.cancel_seconds.with_label_values(&[route]).observe(took.as_secs_f64());
}

/// Records the duration of a store operation.
pub fn record_store_operation(op: &str, took: Duration) {
    METRICS.store_seconds.with_label_values(&[op]).observe(took.as_secs_f64());
}

pub fn record_ticket(route: &str, outcome: TicketOutcome) {
    METRICS.tickets.with_label_values(&[route, outcome.as_str()]).inc();
}

// === impl OpenInputRequest ===

impl OpenInputRequest {
    /// Opens an input request of a server.
    pub fn open(route: &Arc<str>, origin: CallOrigin, method: &str) -> Self {
        METRICS.questions_waiting.with_label_values(&[&**route]).inc();
        let method = method.to_owned();
        let open =
            Self { route: Arc::clone(route), origin, kind: kind_of(&method), method, is_closed: false };
        open.publish("asked");
        open
    }

    /// Closes it with the client's response.
    pub fn close_answered(self) {
        self.close(InputRequestOutcome::Answered);
    }

    /// Closes it as expired.
    pub fn close_declined(self) {
        self.close(InputRequestOutcome::Declined);
    }

    fn close(mut self, outcome: InputRequestOutcome) {
        self.is_closed = true;
        self.publish(outcome.as_str());
        METRICS.questions.with_label_values(&[&*self.route, self.kind, outcome.as_str()]).inc();
    }

    /// Closes it with an outcome that is counted elsewhere.
    pub fn close_uncounted(mut self, outcome: InputRequestOutcome) {
        self.is_closed = true;
        self.publish(outcome.as_str());
    }

    /// Publishes the change to the open taps.
    fn publish(&self, outcome: &str) {
        if !tap::is_open() {
            return;
        }
        let (principal, tool) = (&self.origin.principal, &*self.origin.tool);
        let about = tap::TapSubject { route: &self.route, principal, token: None, tool };
        tap::publish("input_request", about, None, |line| {
            for (name, value) in [("method", &*self.method), ("tool", tool), ("outcome", outcome)] {
                line.insert(name.to_owned(), value.into());
            }
        });
    }
}

impl Drop for OpenInputRequest {
    fn drop(&mut self) {
        METRICS.questions_waiting.with_label_values(&[&*self.route]).dec();
        if !self.is_closed {
            self.publish(InputRequestOutcome::Withdrawn.as_str());
            let labels = [&*self.route, self.kind, InputRequestOutcome::Withdrawn.as_str()];
            METRICS.questions.with_label_values(&labels).inc();
        }
    }
}

// === impl InputRequestOutcome ===

impl InputRequestOutcome {
    const ALL: [Self; 4] = [Self::Answered, Self::Declined, Self::Refused, Self::Withdrawn];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Declined => "declined",
            Self::Refused => "refused",
            Self::Withdrawn => "withdrawn",
        }
    }
}

// === impl TicketOutcome ===

impl TicketOutcome {
    const ALL: [Self; 3] = [Self::Issued, Self::Collected, Self::NeverCollected];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "given",
            Self::Collected => "collected",
            Self::NeverCollected => "never_collected",
        }
    }
}

// === impl GaugeSnapshot ===

impl GaugeSnapshot {
    fn families(&self) -> Vec<MetricFamily> {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let tasks = self.tasks.iter().map(|(route, status, count)| {
            expose::gauge(&[("route", &**route), ("status", *status)], *count as f64)
        });
        let of_servers = |value: fn(&ServerSnapshot) -> Option<f64>| {
            let each = self.servers.iter();
            each.filter_map(move |server| Some(expose::gauge(&[("route", &*server.route)], value(server)?)))
        };
        let gauge = |name, help, values: Vec<_>| expose::family(name, help, expose::GAUGE, values);
        vec![
            gauge(
                "deferral_build_info",
                "Always 1; the version is in the label.",
                vec![expose::gauge(&version, 1.0)],
            ),
            gauge("deferral_tasks", "Tasks in the store, by status.", tasks.collect()),
            gauge(
                "deferral_upstream_up",
                "Whether the last attempt to reach a route's server succeeded.",
                of_servers(|server| server.is_up.map(f64::from)).collect(),
            ),
            gauge(
                "deferral_upstream_sessions",
                "Open sessions with a route's server.",
                of_servers(|server| Some(server.sessions as f64)).collect(),
            ),
            gauge(
                "deferral_children",
                "Running processes of a route's server.",
                of_servers(|server| server.children.map(|count| count as f64)).collect(),
            ),
        ]
    }
}

/// The method as a label; unspecified methods share one.
pub fn method_label(method: &crate::protocol::Method) -> &str {
    match method {
        crate::protocol::Method::Other(_) => UNSPECIFIED,
        known => known.as_str(),
    }
}
