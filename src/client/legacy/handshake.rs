//! Opening and closing a session (2025-11-25, *Lifecycle*).

use super::{
    super::{
        CallStep, Error, NAME, StepObserver, error_text,
        message::{JsonRpcResponse, read},
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
const OLDEST: Revision = Revision::V2025_03_26;
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
    pub(super) async fn initialize(&mut self, watch: StepObserver<'_>) -> Result<(), Error> {
        let params = json!({
            "protocolVersion": self.revision.as_str(),
            // `tasks` is not declared: a server must not make tasks of its own requests.
            "capabilities": self.declared.capabilities(self.revision),
            "clientInfo": { "name": NAME, "version": env!("CARGO_PKG_VERSION") },
        });
        let id = self.request(&Method::Initialize, params);
        let result = match self.response(id, watch).await {
            Ok(JsonRpcResponse::Result(result)) => result,
            Ok(JsonRpcResponse::Error(error)) => return Err(Error::Handshake(hinted(&error_text(&error)))),
            Err(error @ Error::Status { status, .. }) => return Err(refused(status, &error)),
            Err(error) => return Err(error),
        };
        let answer: InitializeResult = read(&result)?;
        let spoken = Revision::parse(&answer.protocol_version)
            .filter(|revision| revision.era() == Era::Legacy && *revision >= OLDEST)
            .ok_or(Error::Revision { spoken: answer.protocol_version })?;
        if spoken != self.revision {
            watch(CallStep::Revision(spoken.as_str()));
        }
        self.revision = spoken;
        self.streams.transport.set_revision(spoken);
        let tasks = answer.capabilities.get("tasks").filter(|_| spoken >= Revision::V2025_11_25);
        let has = |path| tasks.and_then(|tasks| tasks.pointer(path)).is_some_and(Value::is_object);
        self.tasks = TaskSupport { calls: has("/requests/tools/call"), cancel: has("/cancel") };
        let initialized = json!({ "jsonrpc": "2.0", "method": Method::Initialized.as_str() });
        self.streams.transport.send(initialized.to_string()).await
    }

    /// Whether a tool is listed as one that can be a task (2025-11-25, *Tool-Level Negotiation*).
    pub(super) async fn can_be_task(&mut self, tool: &str, watch: StepObserver<'_>) -> Result<bool, Error> {
        let found = tools::find(tool, async |cursor| self.tools_page(cursor, watch).await);
        let support = found.await?.and_then(|tool| tool.execution.task_support);
        Ok(matches!(support.as_deref(), Some("optional" | "required")))
    }

    /// Lists the tools of the server.
    pub(in crate::client) async fn tools(
        &mut self,
        watch: StepObserver<'_>,
    ) -> Result<tools::ToolList, Error> {
        tools::all(async |cursor| self.tools_page(cursor, watch).await).await
    }

    async fn tools_page(
        &mut self,
        cursor: Option<String>,
        watch: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        let id = self.request(&Method::ToolsList, params);
        self.response(id, watch).await
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

fn refused(status: StatusCode, error: &Error) -> Error {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Error::Handshake(hinted(&error.to_string()))
        }
        _ => Error::Handshake(error.to_string()),
    }
}

fn hinted(words: &str) -> String {
    format!("{words}\nthe server may support no revision before 2026-07-28, or have its endpoint elsewhere")
}
