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
pub const MAX_TOOLS: usize = 200;

/// Maximum number of names of a route that are remembered as listed by its server; each costs 16 bytes.
const MAX_LISTED: usize = 10_000;

/// The name under which all tools are counted that are not counted by name.
pub const OTHER: &str = "other";

/// The counts of the tools of all routes.
#[derive(Debug, Default)]
pub(super) struct ToolCounters {
    /// The counts by route and tool; read by each call without a lock.
    counts: ArcSwap<ToolsByRoute>,
    /// The lock that is held while a tool is added to a copy of `counts`.
    add_lock: Mutex<()>,
    /// Hashes of the names that the server of each route lists.
    listed: RwLock<BTreeMap<Box<str>, HashSet<u64>>>,
    /// The hash function of `listed`.
    hashes: RandomState,
}

/// The counts of the tools of each route.
type ToolsByRoute = BTreeMap<Arc<str>, Arc<ToolsByName>>;
/// The counts of the tools of one route.
type ToolsByName = BTreeMap<Box<str>, Arc<ToolCounts>>;

/// A function that selects one of the counts of a tool.
type CountFn = fn(&ToolSnapshot) -> u64;

/// The counts of one tool.
#[derive(Debug, Default)]
pub(super) struct ToolCounts {
    /// The durations of calls, from the request to the server's response, including those that became tasks;
    /// if the client disconnected or cancelled, until then.
    pub(super) calls: LatencyHistogram,
    /// The durations of calls that ended in an error: of the tool, of the server, or because the server
    /// failed.
    pub(super) failed_calls: LatencyHistogram,
    /// The number of calls whose servers did not respond in time.
    pub(super) timed_out: AtomicU64,
    /// The number of calls whose clients disconnected before the response, or cancelled.
    pub(super) departed: AtomicU64,
    pub(super) tasks_created: AtomicU64,
    pub(super) completed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) cancelled: AtomicU64,
    /// The durations of tasks, from creation to end.
    pub(super) tasks: LatencyHistogram,
    /// The number of calls that would have become tasks, in mode `observe`.
    pub(super) would_defer: AtomicU64,
}

/// The metrics of one tool at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct ToolSnapshot {
    pub route: Arc<str>,
    /// [`OTHER`] for tools that are not counted by name.
    pub tool: Box<str>,
    /// The durations of calls, including those that became tasks.
    pub calls: LatencySnapshot,
    /// The durations of those of `calls` that ended in an error.
    pub failed_calls: LatencySnapshot,
    /// The number of calls whose servers did not respond in time.
    pub timed_out: u64,
    /// The number of calls whose clients disconnected or cancelled.
    pub departed: u64,
    pub tasks_created: u64,
    pub tasks_completed: u64,
    pub tasks_failed: u64,
    pub tasks_cancelled: u64,
    /// The durations of tasks, from creation to end.
    pub tasks: LatencySnapshot,
    /// The number of calls that would have become tasks, in mode `observe`.
    pub would_defer: u64,
}

// === impl ToolCounters ===

impl ToolCounters {
    /// Records the name of a tool that its server lists. Names beyond [`MAX_LISTED`] are ignored.
    pub(super) fn mark_listed(&self, route: &str, tool: &str) {
        let hash = self.hashes.hash_one(tool);
        if self.is_listed(route, hash) {
            return;
        }
        let mut listed = self.listed.write().unwrap_or_else(PoisonError::into_inner);
        if !listed.contains_key(route) {
            listed.insert(route.into(), HashSet::new());
        }
        if let Some(names) = listed.get_mut(route).filter(|names| names.len() < MAX_LISTED) {
            names.insert(hash);
        }
    }

    fn is_listed(&self, route: &str, hash: u64) -> bool {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.get(route).is_some_and(|names| names.contains(&hash))
    }

    /// Calls `count` with the counts of the tool, or with those of [`OTHER`] if it is not counted by name.
    /// `is_real` is set if a call of the tool ended without an error, which proves that it exists.
    pub(super) fn with_counts<T>(
        &self,
        route: &str,
        tool: &str,
        is_real: bool,
        count: impl FnOnce(&ToolCounts) -> T,
    ) -> T {
        let counts = self.counts.load();
        let of_route = counts.get(route);
        if let Some(tool_counts) = of_route.and_then(|tools| tools.get(tool)) {
            return count(tool_counts);
        }
        let is_real = is_real || self.is_listed(route, self.hashes.hash_one(tool));
        let name = if is_real { tool } else { OTHER };
        // The counts of other tools: for a tool that is not known to exist, or if the route has the maximum
        // number of tools.
        let others = of_route.filter(|tools| !is_real || tools.len() >= MAX_TOOLS);
        match others.and_then(|tools| tools.get(OTHER)) {
            Some(others) => count(others),
            None => count(&self.add(route, name)),
        }
    }

    fn add(&self, route: &str, tool: &str) -> Arc<ToolCounts> {
        let _guard = self.add_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = ToolsByRoute::clone(&self.counts.load());
        let mut of_route = counts.get(route).map(|tools| ToolsByName::clone(tools)).unwrap_or_default();
        // Another thread may have added the last possible tool meanwhile.
        let is_full = !of_route.contains_key(tool) && of_route.len() >= MAX_TOOLS;
        let name = if is_full { OTHER } else { tool };
        let added = Arc::clone(of_route.entry(name.into()).or_default());
        counts.insert(route.into(), Arc::new(of_route));
        self.counts.store(Arc::new(counts));
        added
    }

    /// The metrics of all tools at this moment.
    pub(super) fn snapshot(&self) -> Vec<ToolSnapshot> {
        let counts = self.counts.load();
        let each = counts.iter().flat_map(|(route, tools)| tools.iter().map(move |tool| (route, tool)));
        each.map(|(route, (name, tool))| tool.snapshot(Arc::clone(route), name.clone())).collect()
    }
}

// === impl ToolCounts ===

impl ToolCounts {
    fn snapshot(&self, route: Arc<str>, tool: Box<str>) -> ToolSnapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ToolSnapshot {
            route,
            tool,
            calls: self.calls.snapshot(),
            failed_calls: self.failed_calls.snapshot(),
            timed_out: load(&self.timed_out),
            departed: load(&self.departed),
            tasks_created: load(&self.tasks_created),
            tasks_completed: load(&self.completed),
            tasks_failed: load(&self.failed),
            tasks_cancelled: load(&self.cancelled),
            tasks: self.tasks.snapshot(),
            would_defer: load(&self.would_defer),
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
        let counter_family = |name: &str, help: &str, select: CountFn| {
            let each = tools.iter().map(|tool| expose::counter(&labels(tool), select(tool) as f64));
            expose::family(name, help, expose::COUNTER, each)
        };
        let histogram_family = |name: &str, help: &str, select: fn(&ToolSnapshot) -> &LatencySnapshot| {
            let each = tools.iter().filter(|tool| select(tool).count > 0);
            let each = each.map(|tool| expose::histogram(&labels(tool), select(tool)));
            expose::family(name, help, expose::HISTOGRAM, each)
        };
        let ended: [(_, CountFn); 3] = [
            ("completed", |tool| tool.tasks_completed),
            ("failed", |tool| tool.tasks_failed),
            ("cancelled", |tool| tool.tasks_cancelled),
        ];
        let ended = tools.iter().flat_map(|tool| {
            ended.iter().map(|(status, select)| {
                let [route, name] = labels(tool);
                expose::counter(&[route, name, ("status", status)], select(tool) as f64)
            })
        });
        vec![
            histogram_family(
                "deferral_call_duration_seconds",
                "Tool calls, from the request to the server's response, including those that became tasks.",
                |tool| &tool.calls,
            ),
            counter_family("deferral_tasks_created_total", "Calls that became tasks.", |tool| {
                tool.tasks_created
            }),
            expose::family(
                "deferral_tasks_ended_total",
                "Tasks that ended, by status.",
                expose::COUNTER,
                ended,
            ),
            histogram_family("deferral_task_duration_seconds", "Tasks, from creation to end.", |tool| {
                &tool.tasks
            }),
            counter_family(
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
        for number in 0..MAX_TOOLS + 50 {
            let name = format!("tool-{number}");
            tools.with_counts("/a", &name, true, |tool| tool.would_defer.fetch_add(1, Ordering::Relaxed));
        }
        let counted = tools.snapshot();
        assert_eq!(counted.len(), MAX_TOOLS + 1);
        let other = counted.iter().find(|tool| &*tool.tool == OTHER).expect("the rest");
        assert_eq!(other.would_defer, 50);
        tools.with_counts("/b", "tool-7", true, |_| ());
        assert_eq!(tools.snapshot().len(), MAX_TOOLS + 2, "another route has places of its own");
    }

    #[test]
    fn an_unproven_name_is_not_counted_separately() {
        let tools = ToolCounters::default();
        for number in 0..1000 {
            tools.with_counts("/a", &format!("nonsense-{number}"), false, |_| ());
        }
        assert_eq!(tools.snapshot().len(), 1);
        tools.with_counts("/a", "real", true, |tool| tool.timed_out.fetch_add(1, Ordering::Relaxed));
        let again = tools.with_counts("/a", "real", false, |tool| tool.timed_out.load(Ordering::Relaxed));
        assert_eq!(again, 1, "it is known by then");
        tools.mark_listed("/a", "listed");
        tools.with_counts("/a", "listed", false, |_| ());
        tools.with_counts("/b", "listed", false, |_| ());
        let names: Vec<_> = tools.snapshot().into_iter().map(|it| (it.route, it.tool)).collect();
        assert!(names.contains(&("/a".into(), "listed".into())), "{names:?}");
        assert!(!names.contains(&("/b".into(), "listed".into())), "another server lists it: {names:?}");
    }

    #[test]
    fn the_number_of_listed_names_is_bounded() {
        let tools = ToolCounters::default();
        for number in 0..=MAX_LISTED {
            tools.mark_listed("/a", &format!("tool-{number}"));
        }
        tools.with_counts("/a", &format!("tool-{MAX_LISTED}"), false, |_| ());
        tools.with_counts("/a", "tool-0", false, |_| ());
        let mut names: Vec<_> = tools.snapshot().into_iter().map(|it| it.tool).collect();
        names.sort_unstable();
        assert_eq!(names, [OTHER.into(), Box::<str>::from("tool-0")]);
    }
}
