//! The access log's summary of a call.

use crate::{
    protocol::{ErrorObject, TraceContext, code as codes},
    task::TaskId,
    telemetry::RequestOutcome,
};
use std::{num::NonZeroI32, time::Duration};

/// The access log's summary of a call.
#[derive(Clone, Debug, Default)]
pub struct AccessSummary {
    pub outcome: RequestOutcome,
    /// The reason, unless the outcome is a result.
    pub reason: Option<Box<str>>,
    /// The code of the error that the client receives, if the proxy made the error.
    pub code: Option<NonZeroI32>,
    pub task: Option<TaskId>,
    /// The status of the task in the response.
    pub shown: Option<&'static str>,
    /// The span of a related request: the one that made the task's call, or that began the call that is
    /// retried.
    pub origin: Option<Box<TraceContext>>,
    /// Time spent waiting for the server.
    pub upstream: Duration,
}

// === impl AccessSummary ===

impl AccessSummary {
    pub fn of(outcome: RequestOutcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// The summary of a failed call, with the reason.
    pub fn failed(outcome: RequestOutcome, error: &ErrorObject) -> Self {
        Self::of(outcome).with_reason(error)
    }

    /// Logs only the code of a server's error: its text may contain the arguments of the call.
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
