//! Whether the process lives, and whether it should be sent clients.

use crate::runtime::Stopping;
use http::StatusCode;

/// Always: a process that answers at all need not be started again.
pub(super) fn live() -> (StatusCode, &'static str) {
    (StatusCode::OK, r#"{"status":"live"}"#)
}

/// Until it is time to stop. From then on new clients belong elsewhere, while those that are here
/// are still served.
pub(super) fn ready(stopping: &Stopping) -> (StatusCode, &'static str) {
    if stopping.is_stopped() {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"stopping"}"#)
    } else {
        (StatusCode::OK, r#"{"status":"ready"}"#)
    }
}
