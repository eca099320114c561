//! `POST /reload`: the configuration is read again, as at SIGHUP.

use super::response::{AdminResponse, json, problem};
use http::StatusCode;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// What came of reading the configuration again: what changed, or why nothing did.
pub type ReloadResult = Result<ChangedKeys, String>;

/// What another configuration has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedKeys {
    /// The keys that hold from now on, as in `routes./mcp.defer.after`.
    pub changed: Vec<String>,
    /// The keys that are written in another way, and hold from the next start on.
    pub needs_restart: Vec<&'static str>,
}

/// Where to ask for the configuration to be read again.
#[derive(Clone, Debug)]
pub struct ReloadSender(Option<mpsc::Sender<oneshot::Sender<ReloadResult>>>);

/// Whoever reads it.
pub type ReloadReceiver = mpsc::Receiver<oneshot::Sender<ReloadResult>>;

/// Operators that may wait for their turn.
const QUEUE: usize = 8;

// === impl Reloads ===

impl ReloadSender {
    pub fn new() -> (Self, ReloadReceiver) {
        let (ask, asked) = mpsc::channel(QUEUE);
        (Self(Some(ask)), asked)
    }

    /// There is nothing to read again.
    pub const fn disabled() -> Self {
        Self(None)
    }

    pub(super) async fn respond(&self) -> AdminResponse {
        let (tell, told) = oneshot::channel();
        let asked = match &self.0 {
            Some(ask) => ask.send(tell).await.is_ok(),
            None => false,
        };
        if !asked {
            return problem(
                StatusCode::CONFLICT,
                "there is no configuration to reload, or the proxy is shutting down",
            );
        }
        match told.await {
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
