//! Metrics of each tool.
//!
//! Clients choose tool names, so a name is counted separately only if the server lists it or a call of it has
//! ended without an error, and only for a limited number of names per route. All other calls are counted as
//! [`OTHER`].

use super::{
    expose,
    latency::{LatencyHistogram, LatencySnapshot},
};
use arc_swap::ArcSwap;
use prometheus::proto::MetricFamily;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Maximum number of tools of a route that are counted by name.
pub const TOOLS: usize = 200;

/// Maximum number of names of a route that are remembered as listed by its server; each costs 16 bytes.
const LISTED: usize = 10_000;

/// The name under which all other tools are counted.
pub const OTHER: &str = "other";

/// The tools of all routes.
#[derive(Debug, Default)]
pub(super) struct ToolCounters {
    /// Read by each call without a lock.
    known: ArcSwap<ToolsByRoute>,
    /// Held while a tool is added to a copy of `known`.
    adding: Mutex<()>,
    /// Hashes of the names that the server of each route lists.
    listed: RwLock<BTreeMap<Box<str>, HashSet<u64>>>,
    hashes: RandomState,
}

/// The tools of each route, by name.
type ToolsByRoute = BTreeMap<Arc<str>, Arc<ToolsByName>>;
type ToolsByName = BTreeMap<Box<str>, Arc<ToolCounts>>;

/// Selects one of the counts.
type CountFn = fn(&ToolSnapshot) -> u64;

/// The counts of one tool.
#[derive(Debug, Default)]
pub(super) struct ToolCounts {
    /// Calls, from the request to the server's response, including those that became tasks; if the client
    /// disconnected or cancelled, until then.
    pub(super) calls: LatencyHistogram,
    /// Calls that ended in an error: of the tool, of the server, or because the server failed.
    pub(super) failed_calls: LatencyHistogram,
    /// Calls whose servers did not respond in time.
    pub(super) timed_out: AtomicU64,
    /// Calls whose clients disconnected before the response, or cancelled.
    pub(super) departed: AtomicU64,
    pub(super) tasks_created: AtomicU64,
    pub(super) completed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) cancelled: AtomicU64,
    /// Tasks, from creation to end.
    pub(super) tasks: LatencyHistogram,
    /// Calls that would have become tasks, in mode `observe`.
    pub(super) would_defer: AtomicU64,
}

/// The metrics of one tool at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct ToolSnapshot {
    pub route: Arc<str>,
    /// [`OTHER`] for tools that are not counted by name.
    pub tool: Box<str>,
    pub calls: LatencySnapshot,
    /// Those of `calls` that ended in an error.
    pub failed_calls: LatencySnapshot,
    pub timed_out: u64,
    pub departed: u64,
    pub tasks_created: u64,
    pub tasks_completed: u64,
    pub tasks_failed: u64,
    pub tasks_cancelled: u64,
    pub tasks: LatencySnapshot,
    pub would_defer: u64,
}

// === impl ToolCounters ===

impl ToolCounters {
    /// Records a listed name. Names beyond [`LISTED`] are ignored.
    pub(super) fn mark_listed(&self, route: &str, tool: &str) {
        let hash = self.hashes.hash_one(tool);
        if self.is_listed(route, hash) {
            return;
        }
        let mut listed = self.listed.write().unwrap_or_else(PoisonError::into_inner);
        if !listed.contains_key(route) {
            listed.insert(route.into(), HashSet::new());
        }
        if let Some(names) = listed.get_mut(route).filter(|names| names.len() < LISTED) {
            names.insert(hash);
        }
    }

    fn is_listed(&self, route: &str, hash: u64) -> bool {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.get(route).is_some_and(|names| names.contains(&hash))
    }

    /// Counts for the tool, or for [`OTHER`]. `is_real` is set if a call of the tool ended without an error.
    pub(super) fn count_in<T>(
        &self,
        route: &str,
        tool: &str,
        is_real: bool,
        count: impl FnOnce(&ToolCounts) -> T,
    ) -> T {
        let known = self.known.load();
        let of_route = known.get(route);
        if let Some(known) = of_route.and_then(|tools| tools.get(tool)) {
            return count(known);
        }
        let is_real = is_real || self.is_listed(route, self.hashes.hash_one(tool));
        let name = if is_real { tool } else { OTHER };
        // If the route is full, further names are not added.
        let others = of_route.filter(|tools| !is_real || tools.len() >= TOOLS);
        match others.and_then(|tools| tools.get(OTHER)) {
            Some(others) => count(others),
            None => count(&self.add(route, name)),
        }
    }

    fn add(&self, route: &str, tool: &str) -> Arc<ToolCounts> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = ToolsByRoute::clone(&self.known.load());
        let mut of_route = known.get(route).map(|tools| ToolsByName::clone(tools)).unwrap_or_default();
        // Another thread may have added the last tool meanwhile.
        let is_full = !of_route.contains_key(tool) && of_route.len() >= TOOLS;
        let name = if is_full { OTHER } else { tool };
        let added = Arc::clone(of_route.entry(name.into()).or_default());
        known.insert(route.into(), Arc::new(of_route));
        self.known.store(Arc::new(known));
        added
    }

    pub(super) fn snapshot(&self) -> Vec<ToolSnapshot> {
        let known = self.known.load();
        let each = known.iter().flat_map(|(route, tools)| tools.iter().map(move |tool| (route, tool)));
        each.map(|(route, (name, tool))| tool.snapshot(Arc::clone(route), name.clone())).collect()
    }
}

// === impl ToolCounts ===

impl ToolCounts {
    fn snapshot(&self, route: Arc<str>, tool: Box<str>) -> ToolSnapshot {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ToolSnapshot {
            route,
            tool,
            calls: self.calls.snapshot(),
            failed_calls: self.failed_calls.snapshot(),
            timed_out: now(&self.timed_out),
            departed: now(&self.departed),
            tasks_created: now(&self.tasks_created),
            tasks_completed: now(&self.completed),
            tasks_failed: now(&self.failed),
            tasks_cancelled: now(&self.cancelled),
            tasks: self.tasks.snapshot(),
            would_defer: now(&self.would_defer),
        }
    }

    /// Counts a task that ended with this status.
    pub(super) fn record_task_end(&self, status: &str, waited: Duration, age: Duration) {
        let count = match status {
            "completed" => &self.completed,
            "failed" => &self.failed,
            _ => {
                self.departed.fetch_add(1, Ordering::Relaxed);
                &self.cancelled
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.tasks.record(age);
        let took = waited.saturating_add(age);
        self.calls.record(took);
        if status == "failed" {
            self.failed_calls.record(took);
        }
    }
}

impl ToolCounters {
    /// The metric families for Prometheus. Each tool that is counted by name has all counters, and each route
    /// in `routes` has those of [`OTHER`].
    pub(super) fn families(&self, routes: &BTreeSet<Arc<str>>) -> Vec<MetricFamily> {
        let mut tools = self.snapshot();
        let others = tools.iter().filter(|tool| &*tool.tool == OTHER);
        let others: BTreeSet<_> = others.map(|tool| Arc::clone(&tool.route)).collect();
        let missing = routes.difference(&others);
        tools.extend(missing.map(|route| ToolCounts::default().snapshot(Arc::clone(route), OTHER.into())));
        let count = |name: &str, help: &str, of: CountFn| {
            let each = tools.iter().map(|tool| expose::counter(&labels(tool), of(tool) as f64));
            expose::family(name, help, expose::COUNTER, each)
        };
        let took = |name: &str, help: &str, of: fn(&ToolSnapshot) -> &LatencySnapshot| {
            let each = tools.iter().filter(|tool| of(tool).count > 0);
            let each = each.map(|tool| expose::histogram(&labels(tool), of(tool)));
            expose::family(name, help, expose::HISTOGRAM, each)
        };
        let ended: [(_, CountFn); 3] = [
            ("completed", |tool| tool.tasks_completed),
            ("failed", |tool| tool.tasks_failed),
            ("cancelled", |tool| tool.tasks_cancelled),
        ];
        let ended = tools.iter().flat_map(|tool| {
            ended.iter().map(|(status, of)| {
                let [route, name] = labels(tool);
                expose::counter(&[route, name, ("status", status)], of(tool) as f64)
            })
        });
        vec![
            took(
                "deferral_call_duration_seconds",
                "Tool calls, from the request to the server's response, including those that became tasks.",
                |tool| &tool.calls,
            ),
            count("deferral_tasks_created_total", "Calls that became tasks.", |tool| tool.tasks_created),
            expose::family(
                "deferral_tasks_ended_total",
                "Tasks that ended, by status.",
                expose::COUNTER,
                ended,
            ),
            took("deferral_task_duration_seconds", "Tasks, from creation to end.", |tool| &tool.tasks),
            count(
                "deferral_would_defer_total",
                "Calls that would have become tasks, in mode observe.",
                |tool| tool.would_defer,
            ),
        ]
    }
}

fn labels(tool: &ToolSnapshot) -> [(&str, &str); 2] {
    [("route", &tool.route), ("tool", &tool.tool)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_beyond_the_limit_are_counted_as_other() {
        let tools = ToolCounters::default();
        for number in 0..TOOLS + 50 {
            let name = format!("tool-{number}");
            tools.count_in("/a", &name, true, |tool| tool.would_defer.fetch_add(1, Ordering::Relaxed));
        }
        let counted = tools.snapshot();
        assert_eq!(counted.len(), TOOLS + 1);
        let other = counted.iter().find(|tool| &*tool.tool == OTHER).expect("the rest");
        assert_eq!(other.would_defer, 50);
        tools.count_in("/b", "tool-7", true, |_| ());
        assert_eq!(tools.snapshot().len(), TOOLS + 2, "another route has places of its own");
    }

    #[test]
    fn an_unproven_name_is_not_counted_separately() {
        let tools = ToolCounters::default();
        for number in 0..1000 {
            tools.count_in("/a", &format!("nonsense-{number}"), false, |_| ());
        }
        assert_eq!(tools.snapshot().len(), 1);
        tools.count_in("/a", "real", true, |tool| tool.timed_out.fetch_add(1, Ordering::Relaxed));
        let again = tools.count_in("/a", "real", false, |tool| tool.timed_out.load(Ordering::Relaxed));
        assert_eq!(again, 1, "it is known by then");
        tools.mark_listed("/a", "listed");
        tools.count_in("/a", "listed", false, |_| ());
        tools.count_in("/b", "listed", false, |_| ());
        let names: Vec<_> = tools.snapshot().into_iter().map(|it| (it.route, it.tool)).collect();
        assert!(names.contains(&("/a".into(), "listed".into())), "{names:?}");
        assert!(!names.contains(&("/b".into(), "listed".into())), "another server lists it: {names:?}");
    }

    #[test]
    fn the_number_of_listed_names_is_bounded() {
        let tools = ToolCounters::default();
        for number in 0..=LISTED {
            tools.mark_listed("/a", &format!("tool-{number}"));
        }
        tools.count_in("/a", &format!("tool-{LISTED}"), false, |_| ());
        tools.count_in("/a", "tool-0", false, |_| ());
        let mut names: Vec<_> = tools.snapshot().into_iter().map(|it| it.tool).collect();
        names.sort_unstable();
        assert_eq!(names, [OTHER.into(), Box::<str>::from("tool-0")]);
    }
}
