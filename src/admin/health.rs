//! Liveness and readiness.

use super::processes::RouteServers;
use crate::{proxy::TaskLedger, runtime::DrainWatch};
use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use std::collections::BTreeMap;

/// Returns 200 in any case: a process that responds need not be restarted.
pub(super) fn liveness() -> (StatusCode, Bytes) {
    (StatusCode::OK, Bytes::from_static(br#"{"status":"live"}"#))
}

/// Returns 503 from the stop signal on; clients that are connected are still served. A failing store is
/// reported, but the proxy stays ready, because calls are still served synchronously. Servers matter only if
/// `required` names them (`ready.upstream`): 503 while one is not known to be reachable.
pub(super) fn readiness(
    stopping: &DrainWatch,
    ledger: &TaskLedger,
    required: Option<&RouteServers>,
) -> (StatusCode, Bytes) {
    let unavailable = |body: String| (StatusCode::SERVICE_UNAVAILABLE, body.into());
    if stopping.is_stopped() {
        return unavailable(r#"{"status":"stopping"}"#.to_owned());
    }
    let unreachable =
        required.into_iter().flatten().filter_map(|(route, server)| match server.status().is_up {
            Some(true) => None,
            Some(false) => Some((&**route, "cannot be reached")),
            None => Some((&**route, "has not been contacted yet")),
        });
    let unreachable: BTreeMap<_, _> = unreachable.collect();
    if !unreachable.is_empty() {
        return unavailable(json!({ "status": "waiting", "upstream": unreachable }).to_string());
    }
    let body = if ledger.is_failing() {
        &br#"{"status":"ready","store":"failing"}"#[..]
    } else {
        br#"{"status":"ready"}"#
    };
    (StatusCode::OK, Bytes::from_static(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::TaskQuotas,
        runtime::{Drain, SystemClock},
        store::{MemoryStore, StoreError},
    };
    use std::sync::Arc;

    #[tokio::test]
    async fn a_failing_store_is_reported_and_the_proxy_stays_ready() {
        let (_drain, stopping) = Drain::new();
        let clock = Arc::new(SystemClock::new());
        let ledger = TaskLedger::new(Arc::new(MemoryStore::default()), None, TaskQuotas::default(), clock);
        let ready = || readiness(&stopping, &ledger, None);
        assert_eq!(ready(), (StatusCode::OK, r#"{"status":"ready"}"#.into()));
        ledger.log_failure("testing", &StoreError::Unavailable("the test says so".into()));
        assert_eq!(ready(), (StatusCode::OK, r#"{"status":"ready","store":"failing"}"#.into()));
    }
}
