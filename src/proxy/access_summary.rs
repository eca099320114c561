//! What the access line says of a call.

use crate::{
    protocol::{ErrorObject, TraceContext, code as codes},
    task::TaskId,
    telemetry::RequestOutcome,
};
use std::{num::NonZeroI32, time::Duration};

/// What the access line says of a call.
#[derive(Clone, Debug, Default)]
pub struct AccessSummary {
    pub outcome: RequestOutcome,
    /// Why, where it is no result.
    pub reason: Option<Box<str>>,
    /// The code of the error that the client is given, where it is ours.
    pub code: Option<NonZeroI32>,
    pub task: Option<TaskId>,
    /// The status of the task that was shown.
    pub shown: Option<&'static str>,
    /// The span of another request that it has to do with: the one that made the call of the task, or that began the
    /// call that its client comes back to.
    pub origin: Option<Box<TraceContext>>,
    /// Time spent waiting for the server.
    pub upstream: Duration,
}

// === impl AccessSummary ===

impl AccessSummary {
    pub fn of(outcome: RequestOutcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// A call that came to nothing, and why.
    pub fn failed(outcome: RequestOutcome, error: &ErrorObject) -> Self {
        Self::of(outcome).with_reason(error)
    }

    /// Of a server's error its code is said and not its words, which may hold what it was asked about.
    pub fn with_reason(self, error: &ErrorObject) -> Self {
        let reason = match self.outcome {
            RequestOutcome::ServerError => format!("error {}", error.code()),
            RequestOutcome::Result
            | RequestOutcome::ToolError
            | RequestOutcome::Task
            | RequestOutcome::InputRequired
            | RequestOutcome::Refused
            | RequestOutcome::TimedOut
            | RequestOutcome::UpstreamFailed
            | RequestOutcome::ProxyFailed
            | RequestOutcome::Disconnected => error.message(),
        };
        let ours = Some(error.code()).filter(|_| self.outcome != RequestOutcome::ServerError);
        let code = ours.and_then(|code| NonZeroI32::new(i32::try_from(code).ok()?));
        let outcome = match (self.outcome, error.code()) {
            (RequestOutcome::UpstreamFailed, codes::UPSTREAM_TIMEOUT) => RequestOutcome::TimedOut,
            (outcome, _) => outcome,
        };
        Self { outcome, reason: Some(reason.into()), code, ..self }
    }
}
