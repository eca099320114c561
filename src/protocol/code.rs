//! Error codes and error objects, by revision; whose fault an error is.

use super::splice::Object;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

/// The JSON could not be read (JSON-RPC 2.0).
pub const PARSE_ERROR: i64 = -32700;
/// Not a JSON-RPC message (JSON-RPC 2.0).
pub const INVALID_REQUEST: i64 = -32600;
/// The method is not served (JSON-RPC 2.0).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are wrong, or name something unknown (JSON-RPC 2.0).
pub const INVALID_PARAMS: i64 = -32602;
/// Something went wrong inside (JSON-RPC 2.0).
pub const INTERNAL_ERROR: i64 = -32603;
/// Headers do not match the body (2026-07-28, *Error Codes*).
pub const HEADER_MISMATCH: i64 = -32020;
/// The request needs a capability the client did not declare (2026-07-28, *Error Codes*).
pub const MISSING_CAPABILITY: i64 = -32021;
/// The protocol version is not spoken here (2026-07-28, *Error Codes*).
pub const UNSUPPORTED_VERSION: i64 = -32022;
/// No such resource (2025-11-25 and earlier). Not emitted to 2026-07-28 clients.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// A URL must be visited first (2025-11-25 only). Not emitted to 2026-07-28 clients.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;

// Our own happenings. 2026-07-28, *Error Codes*: new codes are allocated outside the range
// JSON-RPC reserves (-32768 to -32000). These are stable: people match on them.

/// The server could not be reached; nothing was sent.
pub const UPSTREAM_UNAVAILABLE: i64 = -31001;
/// The connection to the server was lost after the call was sent; whether it ran is unknown.
pub const OUTCOME_UNKNOWN: i64 = -31002;
/// The server did not answer in time.
pub const UPSTREAM_TIMEOUT: i64 = -31003;
/// The server's answer was not valid.
pub const UPSTREAM_INVALID: i64 = -31004;
/// The server's answer exceeded a limit of the proxy.
pub const RESULT_TOO_LARGE: i64 = -31005;
/// A limit of the proxy was reached; nothing was sent.
pub const BUSY: i64 = -31006;
/// The proxy is shutting down and could not wait for the call.
pub const SHUTTING_DOWN: i64 = -31007;
/// The server refused the credentials.
pub const UNAUTHORIZED: i64 = -31008;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The client asked for something wrong.
    Client,
    /// The server behind us failed.
    Server,
    /// We failed, or a limit of ours was reached.
    Proxy,
}

/// A JSON-RPC error object: raw, as a peer sent it or as we wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorObject {
    code: i64,
    raw: Bytes,
}

#[derive(Serialize)]
struct Written<'a> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

// === impl ErrorObject ===

impl ErrorObject {
    pub fn new(code: i64, message: impl AsRef<str>) -> Self {
        Self::written(code, message.as_ref(), None)
    }

    pub fn with_data(code: i64, message: impl AsRef<str>, data: &Value) -> Self {
        Self::written(code, message.as_ref(), Some(data))
    }

    /// An error as a peer sent it. Something without an integer `code` counts as internal.
    pub fn from_raw(raw: Bytes) -> Self {
        let code = Object::read(&raw)
            .ok()
            .and_then(|object| serde_json::from_slice(&object.get("code")?).ok())
            .unwrap_or(INTERNAL_ERROR);
        Self { code, raw }
    }

    /// `-32021` with the capabilities the client would have to declare, an object of objects
    /// (2026-07-28, *MissingRequiredClientCapabilityError*).
    pub fn missing_capability(message: impl AsRef<str>, required: &Value) -> Self {
        Self::with_data(MISSING_CAPABILITY, message, &json!({ "requiredCapabilities": required }))
    }

    pub fn code(&self) -> i64 {
        self.code
    }

    /// The error object's JSON.
    pub fn as_bytes(&self) -> &Bytes {
        &self.raw
    }

    /// The message, or nothing where the peer sent none.
    pub fn message(&self) -> String {
        Object::read(&self.raw).ok().and_then(|object| object.string("message")).unwrap_or_default()
    }

    fn written(code: i64, message: &str, data: Option<&Value>) -> Self {
        let raw = serde_json::to_vec(&Written { code, message, data }).expect("plain values are written");
        Self { code, raw: raw.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_ours_is_written_without_absent_members() {
        let error = ErrorObject::new(METHOD_NOT_FOUND, "no \"x\"");
        assert_eq!(error.as_bytes(), r#"{"code":-32601,"message":"no \"x\""}"#);
        assert_eq!(error.message(), "no \"x\"");
    }

    #[test]
    fn an_error_of_a_peer_keeps_its_bytes() {
        let raw = Bytes::from_static(br#"{ "code": 1e2, "message":"m"}"#);
        let error = ErrorObject::from_raw(raw.clone());
        assert_eq!(error.as_bytes(), &raw);
        assert_eq!(error.code(), INTERNAL_ERROR, "1e2 is not written as an integer");
    }
}
