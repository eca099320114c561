//! `POST /reload`: reloads the configuration, as SIGHUP does.

use super::response::{AdminResponse, json, problem};
use http::StatusCode;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// The result of a reload: the changed keys, or the error.
pub type ReloadResult = Result<ChangedKeys, String>;

/// The configuration keys that a reload changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedKeys {
    /// Keys whose changes apply now, as in `routes./mcp.defer.after`.
    pub changed: Vec<String>,
    /// Keys whose changes apply at the next start.
    pub needs_restart: Vec<&'static str>,
}

/// Sends reload requests of operators; `None` if the configuration cannot be reloaded.
#[derive(Clone, Debug)]
pub struct ReloadSender(Option<mpsc::Sender<oneshot::Sender<ReloadResult>>>);

/// Receives reload requests. Each is the sender for the result of that reload.
pub type ReloadReceiver = mpsc::Receiver<oneshot::Sender<ReloadResult>>;

/// Maximum number of queued reload requests.
const QUEUE: usize = 8;

// === impl ReloadSender ===

impl ReloadSender {
    /// Creates a queue of reload requests.
    pub fn new() -> (Self, ReloadReceiver) {
        let (ask, asked) = mpsc::channel(QUEUE);
        (Self(Some(ask)), asked)
    }

    /// Creates a sender for a proxy whose configuration cannot be reloaded: each request gets 409.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Requests a reload, waits for its result, and responds with the changed keys, or 422 and the error.
    pub(super) async fn respond(&self) -> AdminResponse {
        let (reply, result) = oneshot::channel();
        let asked = match &self.0 {
            Some(ask) => ask.send(reply).await.is_ok(),
            None => false,
        };
        if !asked {
            return problem(
                StatusCode::CONFLICT,
                "there is no configuration to reload, or the proxy is shutting down",
            );
        }
        match result.await {
            Ok(Ok(changed)) => {
                let body = serde_json::to_vec(&changed).expect("names are JSON");
                json(StatusCode::OK, body.into())
            }
            Ok(Err(why)) => problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                &format!("the configuration was not changed: {why}"),
            ),
            Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down"),
        }
    }
}
