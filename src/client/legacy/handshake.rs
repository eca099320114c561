//! Opening and closing a session (2025-11-25, *Lifecycle*).

use super::{
    super::{
        CLIENT_NAME, CallStep, Error, StepObserver, error_text,
        message::{JsonRpcResponse, parse_result},
        tools,
    },
    LegacySession, TaskSupport,
};
use crate::protocol::{Era, Method, Revision};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// The oldest revision of Streamable HTTP.
const OLDEST_REVISION: Revision = Revision::V2025_03_26;
/// Time limit of the request that ends the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The members of an `initialize` result that the client reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult {
    protocol_version: String,
    #[serde(default)]
    capabilities: Value,
}

// === impl LegacySession ===

impl LegacySession {
    /// Sends `initialize`, and adopts the revision that the server chooses.
    pub(super) async fn initialize(&mut self, on_step: StepObserver<'_>) -> Result<(), Error> {
        let params = json!({
            "protocolVersion": self.revision.as_str(),
            // `tasks` is not declared: a server must not make tasks of its own requests.
            "capabilities": self.declared.capabilities(self.revision),
            "clientInfo": { "name": CLIENT_NAME, "version": env!("CARGO_PKG_VERSION") },
        });
        let id = self.request(&Method::Initialize, params);
        let result = match self.wait_for_response(id, on_step).await {
            Ok(JsonRpcResponse::Result(result)) => result,
            Ok(JsonRpcResponse::Error(error)) => {
                return Err(Error::Handshake(with_hint(&error_text(&error))));
            }
            Err(error @ Error::Status { status, .. }) => return Err(handshake_error(status, &error)),
            Err(error) => return Err(error),
        };
        let initialize_result: InitializeResult = parse_result(&result)?;
        let negotiated = Revision::parse(&initialize_result.protocol_version)
            .filter(|revision| revision.era() == Era::Legacy && *revision >= OLDEST_REVISION)
            .ok_or(Error::Revision { spoken: initialize_result.protocol_version })?;
        if negotiated != self.revision {
            on_step(CallStep::Revision(negotiated.as_str()));
        }
        self.revision = negotiated;
        self.streams.transport.set_revision(negotiated);
        let tasks =
            initialize_result.capabilities.get("tasks").filter(|_| negotiated >= Revision::V2025_11_25);
        let is_declared = |path| tasks.and_then(|tasks| tasks.pointer(path)).is_some_and(Value::is_object);
        self.tasks = TaskSupport {
            supports_calls: is_declared("/requests/tools/call"),
            supports_cancel: is_declared("/cancel"),
        };
        let initialized = json!({ "jsonrpc": "2.0", "method": Method::Initialized.as_str() });
        self.streams.transport.send(initialized.to_string()).await
    }

    /// Whether a tool is listed as one that can be a task (2025-11-25, *Tool-Level Negotiation*).
    pub(super) async fn can_be_task(&mut self, tool: &str, on_step: StepObserver<'_>) -> Result<bool, Error> {
        let listed = tools::find_tool(tool, async |cursor| self.request_tools_page(cursor, on_step).await);
        let support = listed.await?.and_then(|tool| tool.execution.task_support);
        Ok(matches!(support.as_deref(), Some("optional" | "required")))
    }

    /// Lists the tools of the server.
    pub(in crate::client) async fn list_tools(
        &mut self,
        on_step: StepObserver<'_>,
    ) -> Result<tools::ToolList, Error> {
        tools::list_all(async |cursor| self.request_tools_page(cursor, on_step).await).await
    }

    async fn request_tools_page(
        &mut self,
        cursor: Option<String>,
        on_step: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        let id = self.request(&Method::ToolsList, params);
        self.wait_for_response(id, on_step).await
    }

    /// Ends the session, its streams first, because servers report an error for a session that ends with open
    /// streams. Sessions before 2025-06-18 are not ended, because some servers crash.
    pub(in crate::client) async fn close(&mut self) {
        self.streams.close().await;
        if self.revision >= Revision::V2025_06_18 {
            // A server need not support DELETE (405), and the client does not depend on it.
            let _ = timeout(CLOSE_TIMEOUT, self.streams.transport.end_session()).await;
        }
    }
}

fn handshake_error(status: StatusCode, error: &Error) -> Error {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Error::Handshake(with_hint(&error.to_string()))
        }
        _ => Error::Handshake(error.to_string()),
    }
}

fn with_hint(message: &str) -> String {
    format!("{message}\nthe server may support no revision before 2026-07-28, or have its endpoint elsewhere")
}
