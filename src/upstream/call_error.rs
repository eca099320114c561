//! Classification of call errors: responsible party, error code, limit, and whether the call may still run.

use super::{CallError, CallerIdentity, UpstreamDescription};
use crate::{
    dialect::Caller,
    protocol::{ErrorOrigin, Payload, code},
    telemetry::Limit,
};
use bytes::Bytes;
use http::StatusCode;

/// Properties of an error.
struct ErrorClass {
    /// Party responsible for the error.
    origin: ErrorOrigin,
    code: i64,
    /// Whether the server may still execute the call.
    may_still_run: bool,
    /// Whether a message that failed with the error may succeed when it is sent again.
    is_transient: bool,
}

// === impl CallError ===

impl CallError {
    /// Error for an operation that only servers with Streamable HTTP support.
    pub(crate) fn not_over_http() -> Self {
        Self::Invalid("the server does not use Streamable HTTP".to_owned())
    }

    /// Party responsible for the error: the client, the proxy or the server.
    pub fn origin(&self) -> ErrorOrigin {
        self.classify().origin
    }

    /// JSON-RPC error code for the client.
    pub fn code(&self) -> i64 {
        self.classify().code
    }

    /// Whether the server may still execute a call that ended with this error. An HTTP error means that it
    /// does not, except for the codes by which a gateway gives up while the server behind it continues: 502,
    /// 504, and 524, which a large gateway in use sends instead of 504.
    pub fn may_still_run(&self) -> bool {
        self.classify().may_still_run
    }

    /// Configured limit that was reached; `None` if the error is not about a limit.
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

    /// Whether a message that failed with this error may succeed when it is sent again. A message that timed
    /// out has been waited for long enough and is not repeated.
    pub(super) fn is_transient(&self) -> bool {
        self.classify().is_transient
    }

    fn classify(&self) -> ErrorClass {
        let class = |fault, code, may_still_run, is_transient| ErrorClass {
            origin: fault,
            code,
            may_still_run,
            is_transient,
        };
        match self {
            Self::Unreachable(_) | Self::ConnectTimeout(_) => {
                class(ErrorOrigin::Server, code::UPSTREAM_UNAVAILABLE, false, true)
            }
            Self::CallTimeout(_) | Self::FirstByteTimeout(_) | Self::IdleTimeout(_) => {
                class(ErrorOrigin::Server, code::UPSTREAM_TIMEOUT, true, false)
            }
            Self::Broken(_) => class(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, true, true),
            Self::SessionEnded | Self::Exited(_) => {
                class(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, false, false)
            }
            Self::ResponseUndelivered(_) => class(ErrorOrigin::Server, code::OUTCOME_UNKNOWN, true, false),
            Self::Unauthorized { .. } | Self::Forbidden { .. } => {
                class(ErrorOrigin::Client, code::UNAUTHORIZED, false, false)
            }
            Self::Status { status, .. } => {
                let is_rate_limited = *status == StatusCode::TOO_MANY_REQUESTS;
                let origin = if is_rate_limited { ErrorOrigin::Client } else { ErrorOrigin::Server };
                let may_still_run = matches!(status.as_u16(), 502 | 504 | 524);
                class(
                    origin,
                    code::UPSTREAM_INVALID,
                    may_still_run,
                    is_rate_limited || status.is_server_error(),
                )
            }
            Self::Invalid(_) => class(ErrorOrigin::Server, code::UPSTREAM_INVALID, true, false),
            Self::ModernOnly(_) => class(ErrorOrigin::Server, code::UPSTREAM_UNAVAILABLE, false, false),
            Self::NotSent(cause) => {
                let cause = cause.classify();
                class(cause.origin, code::UPSTREAM_UNAVAILABLE, false, cause.is_transient)
            }
            Self::TooLarge { .. } => class(ErrorOrigin::Proxy, code::RESULT_TOO_LARGE, true, false),
            Self::QueueFull { .. }
            | Self::QueueTimeout { .. }
            | Self::ProcessesInUse { .. }
            | Self::ConcurrencyTimeout { .. } => class(ErrorOrigin::Proxy, code::BUSY, false, false),
            Self::InputBacklogFull { .. } => class(ErrorOrigin::Server, code::BUSY, false, true),
            Self::ConnectionsInUse { .. } => class(ErrorOrigin::Proxy, code::BUSY, false, true),
            Self::Closing => class(ErrorOrigin::Proxy, code::SHUTTING_DOWN, true, false),
        }
    }

    /// Converts the error for a request that was not sent because of it. Errors that say so themselves, and
    /// errors about credentials, stay as they are.
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

    /// Text of the error without the statement whether the call ran.
    pub(super) fn without_outcome(&self) -> String {
        match self {
            Self::Broken(why) => format!("the connection was lost: {why}"),
            Self::SessionEnded => "the session ended".to_owned(),
            Self::Exited(status) => format!("the process ended: {status}"),
            other => other.to_string(),
        }
    }

    /// Converts the error for a call whose broken stream could not be resumed because of it.
    #[must_use]
    pub fn into_resume_failure(self) -> Self {
        let why = match self {
            Self::SessionEnded | Self::CallTimeout(_) | Self::Closing => return self,
            Self::Broken(why) => why,
            other => other.to_string(),
        };
        Self::Broken(format!("its stream could not be resumed: {why}"))
    }
}

// === impl UpstreamDescription ===

impl UpstreamDescription {
    /// Description of a server that has not been queried: no capabilities, and a placeholder name.
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

// === impl CallerIdentity ===

impl CallerIdentity {
    /// Identity under which a caller's calls share sessions.
    pub fn from_caller(caller: &Caller) -> Self {
        Self {
            principal: caller.principal,
            credentials: caller.credentials.clone(),
            capabilities: std::sync::Arc::clone(&caller.capabilities),
            client_info: caller.client_info.clone(),
        }
    }
}
