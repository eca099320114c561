//! What is counted, as Prometheus reads it.

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

/// A tool, with the times within which so many of its calls were over.
#[derive(Serialize)]
struct ToolView<'a> {
    #[serde(flatten)]
    tool: ToolSnapshot,
    /// When the counting began.
    since: &'a str,
    p50_us: Option<u128>,
    p90_us: Option<u128>,
    p99_us: Option<u128>,
}

/// What is counted and what there is at this moment. Where the store does not say what it keeps, that is missing.
pub(super) async fn prometheus_text(servers: &RouteServers, ledger: &TaskLedger) -> Bytes {
    let tasks = count(ledger).await.into_iter().map(|tally| (tally.route, tally.status, tally.tasks));
    let servers = servers.iter().map(|(route, server)| {
        let health = server.health();
        ServerSnapshot {
            route: route.clone(),
            is_up: health.is_up,
            sessions: health.sessions,
            children: server.processes().map(|processes| processes.running.len()),
        }
    });
    metrics::write(&GaugeSnapshot { tasks: tasks.collect(), servers: servers.collect() }).into()
}

/// What is counted of each tool since then, as JSON.
pub(super) fn tools(since: &str) -> Bytes {
    let shown = |tool: ToolSnapshot| {
        let within = |share| tool.calls.quantile(share).map(|time| time.as_micros());
        ToolView { p50_us: within(0.5), p90_us: within(0.9), p99_us: within(0.99), since, tool }
    };
    json(&metrics::tools().into_iter().map(shown).collect::<Vec<_>>())
}

/// Each limit, as JSON.
pub(super) async fn limits(ledger: &TaskLedger) -> Bytes {
    count(ledger).await;
    json(&metrics::limits())
}

/// How many tasks there are; what they take of the limits is told by it.
async fn count(ledger: &TaskLedger) -> Vec<TaskTally> {
    let Ok((census, usage)) = ledger.census().await else { return Vec::new() };
    Limit::Tasks.set_used(usage.tasks);
    Limit::StoredBytes.set_used(usage.stored_bytes);
    census
}

fn json(shown: &impl Serialize) -> Bytes {
    serde_json::to_vec(shown).expect("it is written to memory").into()
}
