//! What runs of the servers that are processes, and how the last that ended did.

use crate::upstream::{ProcessTable, Upstream};
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;

/// The servers, each with the path of its route.
pub type Servers = Vec<(Arc<str>, Arc<dyn Upstream>)>;

#[derive(Serialize)]
struct Shown {
    routes: Vec<OfRoute>,
}

#[derive(Serialize)]
struct OfRoute {
    path: Arc<str>,
    #[serde(flatten)]
    processes: ProcessTable,
}

/// Those of each route whose server is some.
pub(super) fn shown(servers: &Servers) -> Bytes {
    let of = |(path, server): &(Arc<str>, Arc<dyn Upstream>)| {
        Some(OfRoute { path: path.clone(), processes: server.processes()? })
    };
    let shown = Shown { routes: servers.iter().filter_map(of).collect() };
    serde_json::to_vec(&shown).expect("it is written to memory").into()
}
