//! What is counted of what happens, for Prometheus, for the operator's page and for advice.
//!
//! There is one set of counts a process, as there is one log: whoever lets something be known
//! ([`events`](super::events)) moves the count with the line, so that the two agree. What is not counted but there
//! (tasks, sessions, processes) is asked of whoever has it when the counts are read: [`write()`] takes it as [`GaugeSnapshot`].
//!
//! Names and labels are an interface: dashboards and alerts are made of them. `manual::metrics` lists them, and
//! `tests/it/metrics/mod.rs` holds the list to what is written. A label's values are bounded: routes are the
//! configuration's, methods the specification's, tools are at most [`tools::TOOLS`] a route.
//!
//! | file | |
//! |---|---|
//! | `requests.rs` | what is counted of the requests of clients |
//! | `latency.rs` | how long things took |
//! | `tools.rs` | what is counted of each tool |
//! | `limits.rs` | what is known of each limit |
//! | `process.rs` | what the system knows of this process, where that is Linux |
//! | `expose.rs` | the types of the library that writes it down |

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

/// What is counted.
struct Metrics {
    registry: Registry,
    /// Each route of the configurations since the start. Its counters are written from then on, with the value 0: a
    /// counter that first appears with the value 1 shows no increase, so an alert would miss the first event.
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

/// What there is when the counts are read, which nobody counts as it comes and goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GaugeSnapshot {
    /// Route, status and how many.
    pub tasks: Vec<(Arc<str>, &'static str, usize)>,
    pub servers: Vec<ServerSnapshot>,
}

/// One route's server at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSnapshot {
    pub route: Arc<str>,
    /// Whether it could be spoken to when that was tried last; none where it was not.
    pub is_up: Option<bool>,
    /// Sessions that are open with it.
    pub sessions: usize,
    /// Processes of it that run; none where it is none.
    pub children: Option<usize>,
}

/// How a method is called that nobody specified.
const UNSPECIFIED: &str = "other";

/// The kinds of input requests that the specification has, by the first part of their methods.
const KINDS: [&str; 3] = ["elicitation", "sampling", "roots"];

/// The route of what is on none.
const NO_ROUTE: &str = "none";

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// A question of a server that waits for its answer. Dropped before it was told what it came to, it was withdrawn.
#[derive(Debug)]
pub struct OpenInputRequest {
    route: Arc<str>,
    origin: CallOrigin,
    method: String,
    kind: &'static str,
    is_closed: bool,
}

/// The caller and the tool of the call that an input request belongs to.
#[derive(Clone, Debug, Default)]
pub struct CallOrigin {
    /// As logs show it.
    pub principal: String,
    /// Or the prompt or resource.
    pub tool: String,
}

/// What became of something that a server asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRequestOutcome {
    /// Its client answered, with a result or an error.
    Answered,
    /// Nobody answered in time.
    Declined,
    /// Nobody could be asked.
    Refused,
    /// The server took it back, or the call ended first.
    Withdrawn,
}

/// What became of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketOutcome {
    Issued,
    /// The result was fetched with it.
    Collected,
    /// Its time was over before anybody fetched the result.
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
                "How often a task was asked for until its end was fetched.",
                &["route"],
                &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
            ),
            results_uncollected: counters(
                "deferral_results_uncollected_total",
                "Results of tasks whose time was over before anybody fetched them.",
                &["route"],
            ),
            questions: counters(
                "deferral_questions_total",
                "What servers asked, by what became of it.",
                &["route", "kind", "outcome"],
            ),
            questions_waiting: gauges(
                "deferral_questions_waiting",
                "What servers asked and wait for.",
                &["route"],
            ),
            cancel_seconds: histograms(
                "deferral_cancel_seconds",
                "From a cancel until its server had taken it.",
                &["route"],
                &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0],
            ),
            outcome_unknown: counters(
                "deferral_outcome_unknown_total",
                "Calls that were lost after they had been sent: whether they ran is unknown.",
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
                "What the task store was asked, by how long it took.",
                &["op"],
                &[0.000_01, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0],
            ),
            tickets: counters(
                "deferral_tickets_total",
                "Tickets, by what became of them.",
                &["route", "outcome"],
            ),
            log_lines_dropped: registered(
                &registry,
                IntCounter::new(
                    "deferral_log_lines_dropped_total",
                    "Lines of the log that there was no room for, or that were not taken.",
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
    let metric = metric.expect("its name and labels are well formed");
    registry.register(Box::new(metric.clone())).expect("no two have one name");
    metric
}

/// What is counted of the requests of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// That are being answered.
    pub in_flight: u64,
    /// That have ended, since the start.
    pub total: u64,
    /// The same by how they ended.
    pub by_outcome: BTreeMap<String, u64>,
}

/// What is counted of the requests of clients, on all routes.
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

/// The requests that are being answered on a route.
pub fn in_flight(route: &str) -> u64 {
    let counted = METRICS.requests.snapshot();
    let of_route = counted.get(route).and_then(|of_route| of_route.in_flight);
    of_route.and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// The questions of servers that wait for their answers.
pub fn questions_waiting() -> u64 {
    let families = METRICS.questions_waiting.collect();
    let metrics = families.iter().flat_map(MetricFamily::get_metric);
    metrics.map(|metric| metric.get_gauge().get_value() as u64).sum()
}

/// All that is counted, as Prometheus reads it (text format 0.0.4).
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

/// The media type of what [`write()`] writes.
pub const TEXT: &str = prometheus::TEXT_FORMAT;

/// What is counted of each tool.
pub fn tools() -> Vec<ToolSnapshot> {
    METRICS.tools.snapshot()
}

/// What is known of each limit.
pub fn limits() -> Vec<LimitSnapshot> {
    Limit::ALL.iter().map(|limit| limit.snapshot()).collect()
}

/// A route is served: each of its counters exists from now on. `has_processes` where its server is a program that the
/// proxy starts.
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

/// The operations of the task store, each of which is counted from now on.
pub fn register_store_operations(operations: &[&str]) {
    for op in operations {
        METRICS.store_seconds.with_label_values(&[op]);
    }
}

/// One request has ended so.
pub(super) fn record_request(route: &str, method: &str, outcome: RequestOutcome) {
    let route = if route.is_empty() { NO_ROUTE } else { route };
    METRICS.requests.record_end(route, method, outcome);
}

/// The call of a tool has ended so, after this time. One that has become a task ends with that.
pub(super) fn record_call(route: &str, tool: &str, outcome: RequestOutcome, took: Duration) {
    if outcome == RequestOutcome::Task {
        return;
    }
    // Any other outcome can be had with a name that the client has made up.
    METRICS.tool(route, tool, outcome == RequestOutcome::Result, |tool| {
        match outcome {
            // Nothing was asked of the server, or it is asked again.
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

/// The server of this route lists a tool of this name.
pub fn mark_tool_listed(route: &str, tool: &str) {
    METRICS.tools.mark_listed(route, tool);
}

pub(super) fn record_task_created(route: &str, tool: &str) {
    METRICS.tool(route, tool, false, |tool| tool.tasks_created.fetch_add(1, Ordering::Relaxed));
}

/// A task has ended with this status, `age` after its creation; its call had run for `waited` by then. `is_success`
/// where the tool did not say that it failed.
pub(super) fn record_task_ended(
    (route, tool): (&str, &str),
    status: &str,
    is_success: bool,
    waited: Duration,
    age: Duration,
) {
    METRICS.tool(route, tool, is_success, |tool| tool.record_task_end(status, waited, age));
}

/// `is_success` where the call has ended without an error.
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

/// A process of a server is started after one had ended by itself.
pub fn record_child_restart(route: &str) {
    METRICS.child_restarts.with_label_values(&[route]).inc();
}

/// An event in a stream of a route's server was no message.
pub(super) fn record_event_skipped(route: &str) {
    METRICS.events_skipped.with_label_values(&[route]).inc();
}

/// A task's end was fetched, after so many questions after it.
pub fn record_task_fetched(route: &str, polls: u32) {
    METRICS.task_polls.with_label_values(&[route]).observe(f64::from(polls));
}

/// The time of a task's result was over before anybody fetched it.
pub fn record_uncollected_result(route: &str) {
    METRICS.results_uncollected.with_label_values(&[route]).inc();
}

/// What a server asked by this method has come to this.
pub(super) fn record_input_request(route: &str, method: &str, outcome: InputRequestOutcome) {
    METRICS.questions.with_label_values(&[route, kind_of(method), outcome.as_str()]).inc();
}

fn kind_of(method: &str) -> &'static str {
    let family = method.split_once('/').map(|(family, _)| family);
    KINDS.into_iter().find(|kind| family == Some(*kind)).unwrap_or(UNSPECIFIED)
}

/// A server has taken a cancel, this long after it was told.
pub fn record_cancel(route: &str, took: Duration) {
    METRICS.cancel_seconds.with_label_values(&[route]).observe(took.as_secs_f64());
}

/// The store has done this, in this time.
pub fn record_store_operation(op: &str, took: Duration) {
    METRICS.store_seconds.with_label_values(&[op]).observe(took.as_secs_f64());
}

pub fn record_ticket(route: &str, outcome: TicketOutcome) {
    METRICS.tickets.with_label_values(&[route, outcome.as_str()]).inc();
}

// === impl OpenQuestion ===

impl OpenInputRequest {
    /// A server asks by this method.
    pub fn open(route: &Arc<str>, origin: CallOrigin, method: &str) -> Self {
        METRICS.questions_waiting.with_label_values(&[&**route]).inc();
        let method = method.to_owned();
        let open =
            Self { route: Arc::clone(route), origin, kind: kind_of(&method), method, is_closed: false };
        open.publish("asked");
        open
    }

    /// Its client has answered.
    pub fn close_answered(self) {
        self.close(InputRequestOutcome::Answered);
    }

    /// Nobody has answered it in time.
    pub fn close_declined(self) {
        self.close(InputRequestOutcome::Declined);
    }

    fn close(mut self, outcome: InputRequestOutcome) {
        self.is_closed = true;
        self.publish(outcome.as_str());
        METRICS.questions.with_label_values(&[&*self.route, self.kind, outcome.as_str()]).inc();
    }

    /// It has come to this, which is counted elsewhere.
    pub fn close_uncounted(mut self, outcome: InputRequestOutcome) {
        self.is_closed = true;
        self.publish(outcome.as_str());
    }

    /// Offers it to the open taps.
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

// === impl QuestionOutcome ===

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

// === impl Seen ===

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
                "Always 1; what runs is in the labels.",
                vec![expose::gauge(&version, 1.0)],
            ),
            gauge("deferral_tasks", "Tasks that are kept, by status.", tasks.collect()),
            gauge(
                "deferral_upstream_up",
                "Whether a route's server could be spoken to when that was tried last.",
                of_servers(|server| server.is_up.map(f64::from)).collect(),
            ),
            gauge(
                "deferral_upstream_sessions",
                "Sessions that are open with a route's server.",
                of_servers(|server| Some(server.sessions as f64)).collect(),
            ),
            gauge(
                "deferral_children",
                "Processes of a route's server that run.",
                of_servers(|server| server.children.map(|count| count as f64)).collect(),
            ),
        ]
    }
}

/// The method as a label, of those there are.
pub fn method_label(method: &crate::protocol::Method) -> &str {
    match method {
        crate::protocol::Method::Other(_) => UNSPECIFIED,
        known => known.as_str(),
    }
}
