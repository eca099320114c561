//! What can be said of an answer that will not come, and of a server that did not speak.

use super::{CallError, CallerIdentity, UpstreamDescription};
use crate::{
    dialect::Caller,
    protocol::{ErrorOrigin, Payload, code},
    telemetry::Limit,
};
use bytes::Bytes;
use http::StatusCode;

/// What it means that an answer will not come.
struct ErrorClass {
    fault: ErrorOrigin,
    code: i64,
    /// The server may still be at the call.
    may_still_run: bool,
    /// What was not taken may be if it is told again.
    is_transient: bool,
}

// === impl CallError ===

impl CallError {
    /// What only a server can be asked that is spoken to over Streamable HTTP.
    pub(crate) fn not_over_http() -> Self {
        Self::Invalid("it is not spoken to over Streamable HTTP".to_owned())
    }

    /// Whose fault it is.
    pub fn fault(&self) -> ErrorOrigin {
        self.classify().fault
    }

    /// By what code a client hears of it.
    pub fn code(&self) -> i64 {
        self.classify().code
    }

    /// Whether the server may still be at a call that ended with this. An HTTP error says that it is not,
    /// but where a gateway has given up what the server behind it may go on with. 524 is what a large one
    /// in the field says instead of 504.
    pub fn may_still_run(&self) -> bool {
        self.classify().may_still_run
    }

    /// The limit of the configuration that was met.
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Self::ConnectTimeout(_) => Some(Limit::Connect),
            Self::CallTimeout(_) => Some(Limit::Call),
            Self::FirstByteTimeout(_) => Some(Limit::FirstByte),
            Self::IdleTimeout(_) => Some(Limit::Idle),
            Self::TooLarge { .. } => Some(Limit::ResultBytes),
            Self::QueueFull { .. } => Some(Limit::Queue),
            Self::QueueTimeout { .. } | Self::ConcurrencyTimeout { .. } => Some(Limit::QueueTime),
            Self::ProcessesInUse { .. } => Some(Limit::Instances),
            Self::ConnectionsInUse { .. } => Some(Limit::UpstreamConnections),
            Self::NotSent(cause) => cause.limit(),
            Self::Unreachable(_)
            | Self::Broken(_)
            | Self::SessionEnded
            | Self::Exited(_)
            | Self::ResponseUndelivered(_)
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::Status { .. }
            | Self::Invalid(_)
            | Self::ModernOnly(_)
            | Self::InputBacklogFull { .. }
            | Self::Closing => None,
        }
    }

    /// Whether a message that was not taken may be taken if it is told again. One that the server left
    /// without an answer has been waited for long enough.
    pub(super) fn is_transient(&self) -> bool {
        self.classify().is_transient
    }

    fn classify(&self) -> ErrorClass {
        let is = |fault, code, runs_on, passes| ErrorClass {
            fault,
            code,
            may_still_run: runs_on,
            is_transient: passes,
        };
        match self {
            Self::Unreachable(_) | Self::ConnectTimeout(_) => {
                is(ErrorOrigin::Server, code::UPSTREAM_UNAVAILABLE, false, true)
            }
            Self::CallTimeout(_) | Self::FirstByteTimeout(_) | Self::IdleTimeout(_) => {
                is(ErrorOrigin::Server, code::UPSTREAM_TIMEOUT, true, false)
            }
            Self::Broken(_) => is(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, true, true),
            Self::SessionEnded | Self::Exited(_) => {
                is(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, false, false)
            }
            Self::ResponseUndelivered(_) => is(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, true, false),
            Self::Unauthorized { .. } | Self::Forbidden { .. } => {
                is(ErrorOrigin::Client, code::UNAUTHORIZED, false, false)
            }
            Self::Status { status, .. } => {
                let is_too_much = *status == StatusCode::TOO_MANY_REQUESTS;
                let fault = if is_too_much { ErrorOrigin::Client } else { ErrorOrigin::Server };
                let runs_on = matches!(status.as_u16(), 502 | 504 | 524);
                is(fault, code::UPSTREAM_INVALID, runs_on, is_too_much || status.is_server_error())
            }
            Self::Invalid(_) => is(ErrorOrigin::Server, code::UPSTREAM_INVALID, true, false),
            Self::ModernOnly(_) => is(ErrorOrigin::Server, code::UPSTREAM_UNAVAILABLE, false, false),
            Self::NotSent(cause) => {
                let cause = cause.classify();
                is(cause.fault, code::UPSTREAM_UNAVAILABLE, false, cause.is_transient)
            }
            Self::TooLarge { .. } => is(ErrorOrigin::Proxy, code::RESULT_TOO_LARGE, true, false),
            Self::QueueFull { .. }
            | Self::QueueTimeout { .. }
            | Self::ProcessesInUse { .. }
            | Self::ConcurrencyTimeout { .. } => is(ErrorOrigin::Proxy, code::BUSY, false, false),
            Self::InputBacklogFull { .. } => is(ErrorOrigin::Server, code::BUSY, false, true),
            Self::ConnectionsInUse { .. } => is(ErrorOrigin::Proxy, code::BUSY, false, true),
            Self::Closing => is(ErrorOrigin::Proxy, code::SHUTTING_DOWN, true, false),
        }
    }

    /// The same error for a request that was not sent because of it. Errors that say so by themselves, and those
    /// about credentials, stay as they are.
    #[must_use]
    pub fn into_not_sent(self) -> Self {
        match self {
            Self::CallTimeout(_)
            | Self::FirstByteTimeout(_)
            | Self::IdleTimeout(_)
            | Self::Broken(_)
            | Self::SessionEnded
            | Self::Exited(_)
            | Self::ResponseUndelivered(_)
            | Self::Status { .. }
            | Self::Invalid(_)
            | Self::TooLarge { .. } => Self::NotSent(Box::new(self)),
            Self::Unreachable(_)
            | Self::ConnectTimeout(_)
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::ModernOnly(_)
            | Self::NotSent(_)
            | Self::QueueFull { .. }
            | Self::QueueTimeout { .. }
            | Self::ProcessesInUse { .. }
            | Self::ConcurrencyTimeout { .. }
            | Self::InputBacklogFull { .. }
            | Self::ConnectionsInUse { .. }
            | Self::Closing => self,
        }
    }

    /// The reason alone, without a word about whether a call ran.
    pub(super) fn without_outcome(&self) -> String {
        match self {
            Self::Broken(why) => format!("the connection was lost: {why}"),
            Self::SessionEnded => "the session ended".to_owned(),
            Self::Exited(how) => format!("the process ended: {how}"),
            other => other.to_string(),
        }
    }

    /// What it means for a call whose stream broke that it could not be taken up because of this.
    #[must_use]
    pub fn into_resume_failure(self) -> Self {
        let why = match self {
            Self::SessionEnded | Self::CallTimeout(_) | Self::Closing => return self,
            Self::Broken(why) => why,
            other => other.to_string(),
        };
        Self::Broken(format!("its stream could not be taken up again: {why}"))
    }
}

// === impl Description ===

impl UpstreamDescription {
    /// A server that could not be asked.
    pub fn unknown() -> Self {
        Self {
            version: String::new(),
            capabilities: Payload::read(Bytes::from_static(b"{}")),
            has_tasks: false,
            server_info: Bytes::from_static(br#"{"name":"deferral","version":"unknown upstream"}"#),
            instructions: None,
            result: Bytes::new(),
        }
    }
}

// === impl Identity ===

impl CallerIdentity {
    pub fn of(caller: &Caller) -> Self {
        Self {
            principal: caller.principal,
            credentials: caller.credentials.clone(),
            capabilities: std::sync::Arc::clone(&caller.capabilities),
            client_info: caller.client_info.clone(),
        }
    }
}
