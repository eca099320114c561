//! Metrics of client requests.
//!
//! Each request updates three counters, so each thread has its own stripe; a snapshot is the sum of the
//! stripes.

use super::expose;
use crate::{protocol::Method, runtime::PerThread, telemetry::events::RequestOutcome};
use prometheus::proto::MetricFamily;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The request counters of all routes.
#[derive(Debug, Default)]
pub(super) struct RequestCounters(PerThread<Mutex<CountsByRoute>>);

/// The counts of one stripe, or their sum, by route.
type CountsByRoute = BTreeMap<Box<str>, RouteCounts>;

/// The request counts of one route.
#[derive(Debug, Default)]
pub(super) struct RouteCounts {
    /// The number of requests that began on this stripe minus those that ended on it, which may have begun on
    /// another. `None` if none began, as for requests without a route.
    pub(super) in_flight: Option<i64>,
    /// The requests that ended; a list, because there are few entries.
    pub(super) ended: Vec<OutcomeCount>,
}

/// The number of requests of one method with the same outcome.
#[derive(Clone, Debug)]
pub(super) struct OutcomeCount {
    pub(super) method: Box<str>,
    pub(super) outcome: RequestOutcome,
    pub(super) count: u64,
}

/// The outcomes that alerts are based on.
const FAILURES: [RequestOutcome; 3] =
    [RequestOutcome::UpstreamFailed, RequestOutcome::TimedOut, RequestOutcome::ProxyFailed];

// === impl RequestCounters ===

impl RequestCounters {
    /// Adds `delta`, which may be negative, to the number of requests in flight.
    pub(super) fn add_in_flight(&self, route: &str, delta: i64) {
        self.update_route(route, |of_route| *of_route.in_flight.get_or_insert(0) += delta);
    }

    /// Counts a request that ended.
    pub(super) fn record_end(&self, route: &str, method: &str, outcome: RequestOutcome) {
        self.update_route(route, |of_route| of_route.add(method, outcome, 1));
    }

    fn update_route(&self, route: &str, change: impl FnOnce(&mut RouteCounts)) {
        let mut counts = lock(self.0.local());
        match counts.get_mut(route) {
            Some(of_route) => change(of_route),
            None => change(counts.entry(route.into()).or_default()),
        }
    }

    /// The sum of all stripes.
    pub(super) fn snapshot(&self) -> CountsByRoute {
        let mut sum = CountsByRoute::new();
        for stripe in self.0.iter() {
            for (route, counted) in &*lock(stripe) {
                let of_route = sum.entry(route.clone()).or_default();
                if let Some(in_flight) = counted.in_flight {
                    *of_route.in_flight.get_or_insert(0) += in_flight;
                }
                for OutcomeCount { method, outcome, count } in &counted.ended {
                    of_route.add(method, *outcome, *count);
                }
            }
        }
        sum
    }

    /// The metric families for Prometheus. For each route in `routes`, every outcome of `tools/call` is
    /// exported with the value 0; for other methods the failures, once the method has been called.
    pub(super) fn families(&self, routes: &BTreeSet<Arc<str>>) -> [MetricFamily; 2] {
        let mut counts = self.snapshot();
        for route in routes {
            let of_route = counts.entry((**route).into()).or_default();
            RequestOutcome::ALL
                .into_iter()
                .for_each(|outcome| of_route.add(Method::ToolsCall.as_str(), outcome, 0));
            let methods: BTreeSet<_> = of_route.ended.iter().map(|ended| ended.method.clone()).collect();
            for (method, outcome) in
                methods.iter().flat_map(|method| FAILURES.map(|failure| (method, failure)))
            {
                of_route.add(method, outcome, 0);
            }
        }
        let ended = counts.iter().flat_map(|(route, of_route)| {
            of_route.ended.iter().map(move |ended| {
                let labels =
                    [("route", &**route), ("method", &*ended.method), ("outcome", ended.outcome.as_str())];
                expose::counter(&labels, ended.count as f64)
            })
        });
        let in_flight = counts.iter().filter_map(|(route, of_route)| {
            Some(expose::gauge(&[("route", &**route)], of_route.in_flight?.max(0) as f64))
        });
        [
            expose::family("deferral_calls_total", "Client requests, by outcome.", expose::COUNTER, ended),
            expose::family(
                "deferral_calls_in_flight",
                "Client requests in flight.",
                expose::GAUGE,
                in_flight,
            ),
        ]
    }
}

fn lock(counts: &Mutex<CountsByRoute>) -> MutexGuard<'_, CountsByRoute> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl RouteCounts ===

impl RouteCounts {
    fn add(&mut self, method: &str, outcome: RequestOutcome, delta: u64) {
        let existing =
            self.ended.iter_mut().find(|ended| ended.outcome == outcome && *ended.method == *method);
        match existing {
            Some(ended) => ended.count += delta,
            None => self.ended.push(OutcomeCount { method: method.into(), outcome, count: delta }),
        }
    }
}

/// A client request that counts as in flight until this is dropped.
#[derive(Debug)]
pub struct InFlightRequest {
    route: Arc<str>,
}

// === impl InFlightRequest ===

impl InFlightRequest {
    /// Counts a client request of this route as in flight.
    pub fn begin(route: &Arc<str>) -> Self {
        super::METRICS.requests.add_in_flight(route, 1);
        Self { route: Arc::clone(route) }
    }

    /// The path of the request's route.
    pub fn route(&self) -> &str {
        &self.route
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        super::METRICS.requests.add_in_flight(&self.route, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_snapshot_is_the_sum_of_all_threads() {
        let requests = RequestCounters::default();
        thread::scope(|threads| {
            for number in 0..20_i64 {
                let requests = &requests;
                // The request begins on one thread and ends on another.
                threads.spawn(move || requests.add_in_flight("/a", 1));
                threads.spawn(move || {
                    requests.record_end(
                        "/a",
                        "tools/call",
                        if number < 5 { RequestOutcome::Task } else { RequestOutcome::Result },
                    );
                    if number < 17 {
                        requests.add_in_flight("/a", -1);
                    }
                });
            }
        });
        requests.record_end("none", "GET", RequestOutcome::Refused);
        let counted = requests.snapshot();
        let of_route = &counted["/a"];
        assert_eq!(of_route.in_flight, Some(3));
        let count =
            |outcome| of_route.ended.iter().find(|ended| ended.outcome == outcome).map(|ended| ended.count);
        assert_eq!((count(RequestOutcome::Task), count(RequestOutcome::Result)), (Some(5), Some(15)));
        assert_eq!(counted["none"].in_flight, None);
        let shown = |routes| requests.families(&routes).map(|family| family.get_metric().len());
        assert_eq!(shown(BTreeSet::new()), [3, 1]);
        let of_calls = RequestOutcome::ALL.len();
        assert_eq!(
            shown(BTreeSet::from(["/a".into()])),
            [of_calls + 1, 1],
            "with those that have the value 0"
        );
    }
}
