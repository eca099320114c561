//! `POST /reload`: reloads the configuration, as SIGHUP does.

use super::response::{AdminResponse, error_response, json_response};
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
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(Some(sender)), receiver)
    }

    /// Creates a sender for a proxy whose configuration cannot be reloaded: each request gets 409.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Requests a reload, waits for its result, and responds with the changed keys, or 422 and the error.
    pub(super) async fn respond(&self) -> AdminResponse {
        let (reply, result) = oneshot::channel();
        let is_requested = match &self.0 {
            Some(sender) => sender.send(reply).await.is_ok(),
            None => false,
        };
        if !is_requested {
            return error_response(
                StatusCode::CONFLICT,
                "there is no configuration to reload, or the proxy is shutting down",
            );
        }
        match result.await {
            Ok(Ok(changed)) => {
                let body = serde_json::to_vec(&changed).expect("names are JSON");
                json_response(StatusCode::OK, body.into())
            }
            Ok(Err(error)) => error_response(
                StatusCode::UNPROCESSABLE_ENTITY,
                &format!("the configuration was not changed: {error}"),
            ),
            Err(_) => error_response(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down"),
        }
    }
}
