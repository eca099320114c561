//! Metrics, for Prometheus, the admin page and the report.
//!
//! There is one set of metrics per process, as there is one log. Emitting an event
//! ([`events`](super::events)) writes the line and updates the metrics, so that the two agree. Gauges of
//! current state (tasks, sessions, processes) are read when the metrics are written: [`write_text`] takes
//! them as [`GaugeSnapshot`].
//!
//! Names and labels are an interface, because dashboards and alerts depend on them. `manual::metrics` lists
//! them, and `tests/it/metrics/mod.rs` compares the list with the output. Label values are bounded: routes
//! are those of the configuration, methods those of the specification, and tools are at most
//! [`tools::MAX_TOOLS`] per route.
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
pub use tools::{MAX_TOOLS, OTHER, ToolSnapshot};

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

/// All metrics of the process.
struct Metrics {
    registry: Registry,
    /// All routes since the start of the process. Their counters are exported with the value 0, because
    /// `rate()` and `increase()` miss a counter that first appears with the value 1.
    routes: Mutex<BTreeSet<Arc<str>>>,
    requests: RequestCounters,
    tools: ToolCounters,
    task_polls: HistogramVec,
    results_uncollected: IntCounterVec,
    input_requests: IntCounterVec,
    input_requests_waiting: IntGaugeVec,
    cancel_seconds: HistogramVec,
    outcome_unknown: IntCounterVec,
    child_restarts: IntCounterVec,
    events_skipped: IntCounterVec,
    store_seconds: HistogramVec,
    tickets: IntCounterVec,
    log_lines_dropped: IntCounter,
}

/// Values of gauges that are read when the metrics are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GaugeSnapshot {
    /// For each route and status, the number of tasks.
    pub tasks: Vec<(Arc<str>, &'static str, usize)>,
    pub servers: Vec<ServerSnapshot>,
}

/// The state of a route's server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSnapshot {
    pub route: Arc<str>,
    /// Whether the last attempt to reach the server succeeded; `None` if there was none.
    pub is_up: Option<bool>,
    /// Number of open sessions.
    pub sessions: usize,
    /// Number of running processes; `None` for an HTTP server.
    pub children: Option<usize>,
}

/// The label of methods that are not in the specification.
const UNSPECIFIED: &str = "other";

/// The kinds of input requests in the specification: the first part of their methods.
const KINDS: [&str; 3] = ["elicitation", "sampling", "roots"];

/// The label of requests without a route.
const NO_ROUTE: &str = "none";

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// An input request of a server that waits for its response, for the metrics and taps. Dropping it counts the
/// request as withdrawn, unless it was closed.
#[derive(Debug)]
pub struct OpenInputRequest {
    route: Arc<str>,
    origin: CallOrigin,
    method: String,
    kind: &'static str,
    is_closed: bool,
}

/// The principal and the tool of the call during which an input request was sent.
#[derive(Clone, Debug, Default)]
pub struct CallOrigin {
    /// The principal as shown in logs.
    pub principal: String,
    /// The name of the tool or prompt, or the URI of the resource.
    pub tool: String,
}

/// The outcome of an input request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRequestOutcome {
    /// The client responded, with a result or an error.
    Answered,
    /// The request expired without a response.
    Declined,
    /// The proxy refused it, because no client can respond to it.
    Refused,
    /// The server cancelled the request, or the call ended first.
    Withdrawn,
}

/// The outcome of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketOutcome {
    /// The client was given the ticket.
    Issued,
    /// The client fetched the result.
    Collected,
    /// The result expired before it was fetched.
    NeverCollected,
}

// === impl Metrics ===

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new();
        let counters = |name, help, labels: &[&str]| {
            register(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name, help, labels: &[&str]| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let histograms = |name, help, labels: &[&str], buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(&registry, HistogramVec::new(options, labels))
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
            input_requests: counters(
                "deferral_questions_total",
                "Input requests of servers, by outcome.",
                &["route", "kind", "outcome"],
            ),
            input_requests_waiting: gauges(
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
            log_lines_dropped: register(
                &registry,
                IntCounter::new(
                    "deferral_log_lines_dropped_total",
                    "Log lines that did not fit into the buffer, or could not be written.",
                ),
            ),
            registry,
        }
    }

    /// See [`ToolCounters::with_counts`].
    fn with_tool<T>(
        &self,
        route: &str,
        tool: &str,
        is_real: bool,
        count: impl FnOnce(&ToolCounts) -> T,
    ) -> T {
        self.tools.with_counts(route, tool, is_real, count)
    }
}

/// Registers a metric, and returns it.
fn register<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("names and labels are valid");
    registry.register(Box::new(metric.clone())).expect("names are unique");
    metric
}

/// The counts of client requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that ended since the start.
    pub total: u64,
    /// Requests that ended, by outcome.
    pub by_outcome: BTreeMap<String, u64>,
}

/// Returns the counts of client requests on all routes together.
pub fn call_counts() -> CallCounts {
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

/// Returns the number of client requests in flight on a route.
pub fn requests_in_flight(route: &str) -> u64 {
    let counted = METRICS.requests.snapshot();
    let of_route = counted.get(route).and_then(|of_route| of_route.in_flight);
    of_route.and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// Returns the number of open input requests on all routes together.
pub fn open_input_requests() -> u64 {
    let families = METRICS.input_requests_waiting.collect();
    let metrics = families.iter().flat_map(MetricFamily::get_metric);
    metrics.map(|metric| metric.get_gauge().get_value() as u64).sum()
}

/// Writes all metrics in the Prometheus text format 0.0.4.
pub fn write_text(gauges: &GaugeSnapshot) -> Vec<u8> {
    let metrics = &*METRICS;
    let mut families = metrics.registry.gather();
    let routes = metrics.routes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    families.extend(metrics.requests.families(&routes));
    families.extend(metrics.tools.families(&routes));
    families.extend(limits::families());
    #[cfg(target_os = "linux")]
    families.extend(process::families());
    families.extend(gauges.families());
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|one, other| one.name().cmp(other.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text).expect("it is written to memory");
    text
}

/// The media type of the output of [`write_text`].
pub const TEXT_FORMAT: &str = prometheus::TEXT_FORMAT;

/// Returns the metrics of each tool of each route.
pub fn tool_snapshots() -> Vec<ToolSnapshot> {
    METRICS.tools.snapshot()
}

/// Returns the metrics of each limit.
pub fn limit_snapshots() -> Vec<LimitSnapshot> {
    Limit::ALL.iter().map(|limit| limit.snapshot()).collect()
}

/// Creates the counters of a route, so that they are exported from now on. `has_processes` is set for the
/// route of a stdio server.
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
    metrics.input_requests_waiting.with_label_values(of_route);
    for kind in KINDS.into_iter().chain([UNSPECIFIED]) {
        for outcome in InputRequestOutcome::ALL {
            metrics.input_requests.with_label_values(&[route, kind, outcome.as_str()]);
        }
    }
    for outcome in TicketOutcome::ALL {
        metrics.tickets.with_label_values(&[route, outcome.as_str()]);
    }
}

/// Creates the histograms of these operations of the task store.
pub fn register_store_operations(operations: &[&str]) {
    for op in operations {
        METRICS.store_seconds.with_label_values(&[op]);
    }
}

/// Counts a client request that ended.
pub(super) fn record_request(route: &str, method: &str, outcome: RequestOutcome) {
    let route = if route.is_empty() { NO_ROUTE } else { route };
    METRICS.requests.record_end(route, method, outcome);
}

/// Counts a tool call that ended. A call that became a task is counted when the task ends.
pub(super) fn record_call(route: &str, tool: &str, outcome: RequestOutcome, took: Duration) {
    if outcome == RequestOutcome::Task {
        return;
    }
    // Only a result proves that the tool exists: clients can cause any other outcome with an invented name.
    METRICS.with_tool(route, tool, outcome == RequestOutcome::Result, |tool| {
        match outcome {
            // Do not count the duration: the server was not called, or the client will retry.
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

/// Records that the server of this route lists this tool, so that its calls are counted by name.
pub fn mark_tool_listed(route: &str, tool: &str) {
    METRICS.tools.mark_listed(route, tool);
}

/// Counts a call that became a task.
pub(super) fn record_task_created(route: &str, tool: &str) {
    METRICS.with_tool(route, tool, false, |tool| tool.tasks_created.fetch_add(1, Ordering::Relaxed));
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
    METRICS.with_tool(route, tool, is_success, |tool| tool.record_task_end(status, waited, age));
}

/// Counts a call that would have become a task. `is_success` is set if the call ended without an error.
pub(super) fn record_would_defer(route: &str, tool: &str, is_success: bool) {
    METRICS.with_tool(route, tool, is_success, |tool| tool.would_defer.fetch_add(1, Ordering::Relaxed));
}

/// Counts log lines that were dropped.
pub(super) fn record_log_lines_dropped(count: u64) {
    METRICS.log_lines_dropped.inc_by(count);
}

#[cfg(test)]
pub(super) fn log_lines_dropped_so_far() -> u64 {
    METRICS.log_lines_dropped.get()
}

/// Counts a call that was lost after it had been sent.
pub(super) fn record_outcome_unknown(route: &str) {
    METRICS.outcome_unknown.with_label_values(&[route]).inc();
}

/// Counts a process of a stdio server that was started after one had ended by itself.
pub fn record_child_restart(route: &str) {
    METRICS.child_restarts.with_label_values(&[route]).inc();
}

/// Counts an event in a server's stream that was no message.
pub(super) fn record_event_skipped(route: &str) {
    METRICS.events_skipped.with_label_values(&[route]).inc();
}

/// Counts a task whose end was fetched by a client, after this many polls.
pub fn record_task_fetched(route: &str, polls: u32) {
    METRICS.task_polls.with_label_values(&[route]).observe(f64::from(polls));
}

/// Counts a task result that expired before it was fetched.
pub fn record_uncollected_result(route: &str) {
    METRICS.results_uncollected.with_label_values(&[route]).inc();
}

/// Counts an input request with this outcome.
pub(super) fn record_input_request(route: &str, method: &str, outcome: InputRequestOutcome) {
    METRICS.input_requests.with_label_values(&[route, input_kind_label(method), outcome.as_str()]).inc();
}

/// The kind of an input request, as a label.
fn input_kind_label(method: &str) -> &'static str {
    let family = method.split_once('/').map(|(family, _)| family);
    KINDS.into_iter().find(|kind| family == Some(*kind)).unwrap_or(UNSPECIFIED)
}

/// Records the time until a server accepted a cancellation.
pub fn record_cancellation(route: &str, took: Duration) {
    METRICS.cancel_seconds.with_label_values(&[route]).observe(took.as_secs_f64());
}

/// Records the duration of a store operation.
pub fn record_store_operation(op: &str, took: Duration) {
    METRICS.store_seconds.with_label_values(&[op]).observe(took.as_secs_f64());
}

/// Counts a ticket with this outcome.
pub fn record_ticket(route: &str, outcome: TicketOutcome) {
    METRICS.tickets.with_label_values(&[route, outcome.as_str()]).inc();
}

// === impl OpenInputRequest ===

impl OpenInputRequest {
    /// Records that a server has sent an input request.
    pub fn open(route: &Arc<str>, origin: CallOrigin, method: &str) -> Self {
        METRICS.input_requests_waiting.with_label_values(&[&**route]).inc();
        let method = method.to_owned();
        let open = Self {
            route: Arc::clone(route),
            origin,
            kind: input_kind_label(&method),
            method,
            is_closed: false,
        };
        open.publish("asked");
        open
    }

    /// Closes the request: the client responded.
    pub fn close_answered(self) {
        self.close(InputRequestOutcome::Answered);
    }

    /// Closes the request: it expired.
    pub fn close_declined(self) {
        self.close(InputRequestOutcome::Declined);
    }

    /// Closes the request, and counts its outcome.
    fn close(mut self, outcome: InputRequestOutcome) {
        self.is_closed = true;
        self.publish(outcome.as_str());
        METRICS.input_requests.with_label_values(&[&*self.route, self.kind, outcome.as_str()]).inc();
    }

    /// Closes the request with an outcome that is counted elsewhere.
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
        let subject = tap::TapSubject { route: &self.route, principal, token: None, tool };
        tap::publish("input_request", subject, None, |line| {
            for (name, value) in [("method", &*self.method), ("tool", tool), ("outcome", outcome)] {
                line.insert(name.to_owned(), value.into());
            }
        });
    }
}

impl Drop for OpenInputRequest {
    fn drop(&mut self) {
        METRICS.input_requests_waiting.with_label_values(&[&*self.route]).dec();
        if !self.is_closed {
            self.publish(InputRequestOutcome::Withdrawn.as_str());
            let labels = [&*self.route, self.kind, InputRequestOutcome::Withdrawn.as_str()];
            METRICS.input_requests.with_label_values(&labels).inc();
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
    /// The metric families for Prometheus.
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

/// The method as the label `method` of metrics; methods that are not in the specification share one.
pub fn method_label(method: &crate::protocol::Method) -> &str {
    match method {
        crate::protocol::Method::Other(_) => UNSPECIFIED,
        known => known.as_str(),
    }
}
