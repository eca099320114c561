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
    /// The kind of outcome.
    pub outcome: RequestOutcome,
    /// Why the call has this outcome; `None` if the outcome is a result.
    pub reason: Option<Box<str>>,
    /// The code of the error that the client receives, if the proxy made the error.
    pub code: Option<NonZeroI32>,
    /// The task that the call became, if the response contains its handle.
    pub task: Option<TaskId>,
    /// The task status in the response to a request about a task; `None` for any other request.
    pub shown_status: Option<&'static str>,
    /// The span of an earlier request that this request belongs to: the request whose call became the task,
    /// or the first attempt of a retried call.
    pub origin: Option<Box<TraceContext>>,
    /// Time spent waiting for the server.
    pub upstream_time: Duration,
}

// === impl AccessSummary ===

impl AccessSummary {
    /// Creates a summary with this outcome and no further details.
    pub fn new(outcome: RequestOutcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// Creates the summary of a failed call, with the reason and the code of `error`.
    pub fn failed(outcome: RequestOutcome, error: &ErrorObject) -> Self {
        Self::new(outcome).with_reason(error)
    }

    /// Sets the reason and the code from `error`. Of a server's error only the code is logged, because its
    /// text may contain the arguments of the call. An upstream timeout changes the outcome to `TimedOut`.
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
        let proxy_code = Some(error.code()).filter(|_| self.outcome != RequestOutcome::ServerError);
        let code = proxy_code.and_then(|code| NonZeroI32::new(i32::try_from(code).ok()?));
        let outcome = match (self.outcome, error.code()) {
            (RequestOutcome::UpstreamFailed, codes::UPSTREAM_TIMEOUT) => RequestOutcome::TimedOut,
            (outcome, _) => outcome,
        };
        Self { outcome, reason: Some(reason.into()), code, ..self }
    }
}
