//! `/processes`: the processes of stdio servers, and how the last one ended.

use crate::upstream::{ProcessTable, Upstream};
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;

/// The servers, each with the path of its route.
pub type RouteServers = Vec<(Arc<str>, Arc<dyn Upstream>)>;

#[derive(Serialize)]
struct ProcessesView {
    routes: Vec<RouteProcesses>,
}

#[derive(Serialize)]
struct RouteProcesses {
    path: Arc<str>,
    #[serde(flatten)]
    processes: ProcessTable,
}

/// Returns the processes of each route with a stdio server, as JSON.
pub(super) fn processes_json(servers: &RouteServers) -> Bytes {
    let route_processes = |(path, server): &(Arc<str>, Arc<dyn Upstream>)| {
        Some(RouteProcesses { path: path.clone(), processes: server.processes()? })
    };
    let view = ProcessesView { routes: servers.iter().filter_map(route_processes).collect() };
    serde_json::to_vec(&view).expect("it is written to memory").into()
}
