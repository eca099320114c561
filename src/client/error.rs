//! Errors of the client.

use super::{http_transport::MAX_MESSAGE, revisions};
use crate::protocol::{FrameError, code};
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Error of a request that got no usable response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{url} cannot be reached: {detail}")]
    Unreachable { url: Uri, detail: String },
    #[error("the connection to {url} was lost: {detail}")]
    Broken { url: Uri, detail: String },
    #[error("HTTP {status}{detail}")]
    Status { status: StatusCode, detail: String },
    #[error("the response is not valid: {0}")]
    Invalid(String),
    #[error("the response is larger than {MAX_MESSAGE} bytes")]
    TooLarge,
    /// A limit of the proxy or the server was reached, and the request was not served.
    #[error("busy: {0}")]
    Busy(String),
    #[error("the input responses were refused: {0}")]
    Refused(String),
    #[error("the server refused to cancel the call: {0}")]
    NotCancelled(String),
    #[error("the server refused to list its tools: {0}")]
    ListRefused(String),
    #[error("the server refused `initialize`: {0}")]
    Handshake(String),
    #[error(
        "the server uses revision {spoken}, which this client does not support; it supports {}",
        revisions()
    )]
    Revision { spoken: String },
    /// The server no longer knows the session (2025-11-25, *Session Management*).
    #[error(
        "the server ended the session (HTTP 404), and the outcome of the call is unknown; repeat the call \
         to open a new session"
    )]
    SessionLost,
    #[error(
        "the server supports no revision of this client\n2026-07-28: {newest}\nearlier revisions: {older}"
    )]
    NoRevision { newest: Box<Self>, older: String },
    #[error(
        "the server made a task of the call, although this client did not declare support; follow it with \
         `--task {task}` instead of a tool"
    )]
    UndeclaredTask { task: String },
    #[error("task {task}: {source}")]
    Task { task: String, source: Box<Self> },
}

// === impl Error ===

impl Error {
    /// Whether a retry could help, where a retry is harmless.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Busy(_) => true,
            Self::Status { status, .. } => is_transient(*status),
            Self::Invalid(_)
            | Self::TooLarge
            | Self::Refused(_)
            | Self::NotCancelled(_)
            | Self::ListRefused(_)
            | Self::Handshake(_)
            | Self::Revision { .. }
            | Self::SessionLost
            | Self::NoRevision { .. }
            | Self::UndeclaredTask { .. }
            | Self::Task { .. } => false,
        }
    }

    /// Whether the error may be that of a legacy server that refuses requests without a handshake. Statuses
    /// for missing credentials or overload are no sign of that, because they mean the same in every revision.
    pub(super) fn may_be_legacy_server(&self) -> bool {
        match self {
            Self::Status { status, .. } => match status.as_u16() {
                401 | 403 | 407 | 408 | 429 => false,
                // Some legacy servers fail (500), or report that they do not implement the request (501).
                400..=501 => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Adds the id of the task to the error.
    pub(super) fn with_task(self, task: &str) -> Self {
        Self::Task { task: task.to_owned(), source: Box::new(self) }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Whether an HTTP status shows that a retry may help.
pub(super) const fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Whether a JSON-RPC error is that of a proxy at a limit, so that a retry may help.
pub(super) fn is_busy(error: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct ErrorCode {
        code: i64,
    }
    serde_json::from_str::<ErrorCode>(error.get()).is_ok_and(|ErrorCode { code }| code == code::BUSY)
}

/// Formats a JSON-RPC error as `message (code)`, followed by its data on a line of its own, if any.
pub fn error_text(error: &RawValue) -> String {
    #[derive(Deserialize)]
    struct ErrorOutline<'a> {
        code: i64,
        message: String,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    match serde_json::from_str::<ErrorOutline<'_>>(error.get()) {
        Ok(ErrorOutline { code, message, data: None }) => format!("{message} ({code})"),
        Ok(ErrorOutline { code, message, data: Some(data) }) => format!("{message} ({code})\n{data}"),
        Err(_) => error.get().to_owned(),
    }
}

/// Returns the text of the root cause, which says most: `connection refused`, not `client error (Connect)`.
pub(super) fn innermost_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(error: &str) -> String {
        error_text(&RawValue::from_string(error.to_owned()).expect("JSON"))
    }

    #[test]
    fn errors_are_shown_with_their_code_and_data() {
        assert_eq!(shown(r#"{"code":-32602,"message":"no"}"#), "no (-32602)");
        assert_eq!(shown(r#"{"code":1,"message":"no","data":{"a":1}}"#), "no (1)\n{\"a\":1}");
        assert_eq!(shown("[]"), "[]");
    }
}
