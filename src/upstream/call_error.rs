//! Errors of calls, and their classification: responsible party, error code, limit, and whether the call may
//! still run.

use crate::{
    protocol::{ErrorObject, ErrorOrigin, code},
    telemetry::Limit,
};
use http::{HeaderValue, StatusCode};
use std::time::Duration;

/// Reason why a call or message has no response. Each text states whether the call may have run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No connection could be made, or the process did not start.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    #[error("no connection to the server within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no answer from the server within {0:?}")]
    CallTimeout(Duration),
    #[error("the server began no response within {0:?}")]
    FirstByteTimeout(Duration),
    #[error("the server sent nothing for {0:?} during its answer")]
    IdleTimeout(Duration),
    /// The connection ended before the response; the text is the reason.
    #[error("the connection to the server was lost before it answered: {0}; whether the call ran is unknown")]
    Broken(String),
    #[error("the server's session ended before it answered; whether the call ran is unknown")]
    SessionEnded,
    /// The server's process ended with this status.
    #[error("the server's process ended before it answered: {0}; whether the call ran is unknown")]
    Exited(String),
    /// A response to the server's request could not be sent; the text is the reason.
    #[error(
        "a response to a request of the server could not be delivered: {0}; whether the call ran is unknown"
    )]
    ResponseUndelivered(String),
    /// HTTP 401, or 403 with a challenge (`WWW-Authenticate`).
    #[error("the server refused the credentials (HTTP {status})")]
    Unauthorized { status: StatusCode, challenge: Option<HeaderValue> },
    /// HTTP 403 without a challenge: other credentials would not help.
    #[error("the server refused the request (HTTP 403): {detail}")]
    Forbidden {
        detail: String,
        /// The server's JSON-RPC error, if it sent one.
        error: Option<ErrorObject>,
    },
    /// HTTP error without a JSON-RPC error.
    #[error("the server answered HTTP {status}: {detail}")]
    Status {
        status: StatusCode,
        detail: String,
        /// Value of the server's `Retry-After`.
        retry_after: Option<String>,
    },
    /// A response or message of the server that is not valid, for this reason.
    #[error("invalid response from the server: {0}")]
    Invalid(String),
    /// The server supports modern revisions only; holds the revisions that the server names.
    #[error(
        "the server supports {0} only, and the proxy supports servers up to revision 2025-11-25; a client of the server's revision can use it without the proxy"
    )]
    ModernOnly(String),
    /// The handshake failed, or a limit was reached, before the request was sent: the call did not run.
    #[error("no session with the server: {}; no call was sent", .0.without_outcome())]
    NotSent(Box<Self>),
    #[error("the server's answer is larger than {limit} bytes (limits.result_bytes)")]
    TooLarge { limit: usize },
    #[error("no free upstream session: {limit} in use ({bound}), queue full at {queue} (limits.queue)")]
    QueueFull { limit: usize, bound: &'static str, queue: usize },
    #[error(
        "no session with the server came free within {after:?} (timeouts.queue): all {limit} are busy ({bound})"
    )]
    QueueTimeout { limit: usize, bound: &'static str, after: Duration },
    #[error(
        "all {limit} processes of the server are in use (upstream.instances), and none came free within {after:?} (timeouts.queue)"
    )]
    ProcessesInUse { limit: usize, after: Duration },
    /// Concurrency limit was reached; `scope` names what the limit applies to.
    #[error(
        "the concurrency limit of {scope} is reached (concurrency), and no call ended within {after:?} (timeouts.queue); \
         nothing was sent"
    )]
    ConcurrencyTimeout { scope: String, after: Duration },
    #[error("the server's process does not read its input: {waiting} messages are waiting")]
    InputBacklogFull { waiting: usize },
    #[error("all {limit} connections to servers are in use (limits.upstream_connections)")]
    ConnectionsInUse { limit: usize },
    #[error("the proxy is shutting down; if the call had been sent, whether it ran is unknown")]
    Closing,
}

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

/// Returns the text of the innermost source of an error, which is where libraries put the useful reason.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
