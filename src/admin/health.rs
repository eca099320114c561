//! Whether the process lives, and whether it should be sent clients.

use crate::{proxy::Ledger, runtime::Stopping};
use http::StatusCode;

/// Always: a process that answers at all need not be started again.
pub(super) fn live() -> (StatusCode, &'static str) {
    (StatusCode::OK, r#"{"status":"live"}"#)
}

/// Until it is time to stop. From then on new clients belong elsewhere, while those that are here
/// are still served. A store that fails is said so, and is no reason to send clients elsewhere: calls are answered
/// all the same, and only become no tasks.
pub(super) fn ready(stopping: &Stopping, ledger: &Ledger) -> (StatusCode, &'static str) {
    if stopping.is_stopped() {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"stopping"}"#)
    } else if ledger.is_failing() {
        (StatusCode::OK, r#"{"status":"ready","store":"failing"}"#)
    } else {
        (StatusCode::OK, r#"{"status":"ready"}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::Quotas,
        runtime::{Drain, SystemClock},
        store::{Memory, StoreError},
    };
    use std::sync::Arc;

    #[tokio::test]
    async fn a_store_that_fails_is_told_and_sends_nobody_elsewhere() {
        let (_drain, stopping) = Drain::new();
        let clock = Arc::new(SystemClock::new());
        let ledger = Ledger::new(Arc::new(Memory::default()), None, Quotas::default(), clock);
        assert_eq!(ready(&stopping, &ledger), (StatusCode::OK, r#"{"status":"ready"}"#));
        ledger.failed("testing", &StoreError::Unavailable("the test says so".into()));
        assert_eq!(ready(&stopping, &ledger), (StatusCode::OK, r#"{"status":"ready","store":"failing"}"#));
    }
}
