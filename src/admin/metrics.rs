//! `/metrics`, `/tools` and `/limits`.

use super::processes::RouteServers;
use crate::{
    proxy::TaskLedger,
    store::TaskTally,
    telemetry::{
        Limit,
        metrics::{self, GaugeSnapshot, ServerSnapshot, ToolSnapshot},
    },
};
use bytes::Bytes;
use serde::Serialize;

/// The metrics of a tool, with quantiles of its calls.
#[derive(Serialize)]
struct ToolView<'a> {
    #[serde(flatten)]
    tool: ToolSnapshot,
    /// Start of the counting.
    since: &'a str,
    p50_us: Option<u128>,
    p90_us: Option<u128>,
    p99_us: Option<u128>,
}

/// Returns all metrics in Prometheus' text format; without those of tasks if the store fails.
pub(super) async fn prometheus_text(servers: &RouteServers, ledger: &TaskLedger) -> Bytes {
    let tasks = count_tasks(ledger).await.into_iter().map(|tally| (tally.route, tally.status, tally.tasks));
    let servers = servers.iter().map(|(route, server)| {
        let status = server.status();
        ServerSnapshot {
            route: route.clone(),
            is_up: status.is_up,
            sessions: status.sessions,
            children: server.processes().map(|processes| processes.running.len()),
        }
    });
    metrics::write_text(&GaugeSnapshot { tasks: tasks.collect(), servers: servers.collect() }).into()
}

/// Returns the metrics of each tool as JSON. `since` is the formatted start of the counting.
pub(super) fn tools_json(since: &str) -> Bytes {
    let to_view = |tool: ToolSnapshot| {
        let quantile_us = |share| tool.calls.quantile(share).map(|time| time.as_micros());
        ToolView {
            p50_us: quantile_us(0.5),
            p90_us: quantile_us(0.9),
            p99_us: quantile_us(0.99),
            since,
            tool,
        }
    };
    to_json(&metrics::tool_snapshots().into_iter().map(to_view).collect::<Vec<_>>())
}

/// Returns the metrics of each limit as JSON.
pub(super) async fn limits_json(ledger: &TaskLedger) -> Bytes {
    count_tasks(ledger).await;
    to_json(&metrics::limit_snapshots())
}

/// Counts tasks by route and status, and updates the usage of the task limits. Returns nothing if the store
/// fails.
async fn count_tasks(ledger: &TaskLedger) -> Vec<TaskTally> {
    let Ok((tallies, usage)) = ledger.census().await else { return Vec::new() };
    Limit::Tasks.set_used(usage.tasks);
    Limit::StoredBytes.set_used(usage.stored_bytes);
    tallies
}

fn to_json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("it is written to memory").into()
}
