//! Error codes and error objects, by revision; the origin of an error.

use super::{
    Frame, Kind,
    splice::{JsonObject, ObjectEdit},
};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

/// The bytes are no JSON (JSON-RPC 2.0).
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a JSON-RPC message (JSON-RPC 2.0).
pub const INVALID_REQUEST: i64 = -32600;
/// The method is not served (JSON-RPC 2.0).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are invalid, or name something unknown (JSON-RPC 2.0).
pub const INVALID_PARAMS: i64 = -32602;
/// An internal error (JSON-RPC 2.0).
pub const INTERNAL_ERROR: i64 = -32603;
/// Headers do not match the body (2026-07-28, *Error Codes*).
pub const HEADER_MISMATCH: i64 = -32020;
/// The request needs a capability the client did not declare (2026-07-28, *Error Codes*).
pub const MISSING_CAPABILITY: i64 = -32021;
/// The protocol version is not supported (2026-07-28, *Error Codes*).
pub const UNSUPPORTED_VERSION: i64 = -32022;
/// No such resource (2025-11-25 and earlier). Not emitted to 2026-07-28 clients.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The user must visit a URL before the request is sent again (2025-11-25 only). Not emitted to 2026-07-28
/// clients.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;

// The proxy's own codes. New codes must be outside the range that JSON-RPC reserves, -32768 to -32000
// (2026-07-28, *Error Codes*). Existing codes never change, because clients match on them.

/// The server could not be reached; nothing was sent.
pub const UPSTREAM_UNAVAILABLE: i64 = -31001;
/// The connection to the server was lost after the call was sent; whether it ran is unknown.
pub const OUTCOME_UNKNOWN: i64 = -31002;
/// The server did not respond in time.
pub const UPSTREAM_TIMEOUT: i64 = -31003;
/// The server's response was not valid.
pub const UPSTREAM_INVALID: i64 = -31004;
/// The server's response exceeded a limit of the proxy.
pub const RESULT_TOO_LARGE: i64 = -31005;
/// A limit of the proxy was reached; nothing was sent.
pub const BUSY: i64 = -31006;
/// The proxy is shutting down and could not wait for the call.
pub const SHUTTING_DOWN: i64 = -31007;
/// The credentials were refused, by the server or by the proxy.
pub const UNAUTHORIZED: i64 = -31008;

/// Whether a code is one of the proxy's own (-31008 to -31001): the proxy, not the server, wrote the error's
/// message.
pub const fn is_own(code: i64) -> bool {
    matches!(code, UNAUTHORIZED..=UPSTREAM_UNAVAILABLE)
}

/// The origin of an error, as far as its code determines it. Codes that JSON-RPC leaves to servers (-32000 to
/// -32019, and those outside the reserved range) do not determine it; they are attributed to the client.
pub const fn origin_of(code: i64) -> ErrorOrigin {
    match code {
        UPSTREAM_UNAVAILABLE | OUTCOME_UNKNOWN | UPSTREAM_TIMEOUT | UPSTREAM_INVALID | INTERNAL_ERROR => {
            ErrorOrigin::Server
        }
        RESULT_TOO_LARGE | BUSY | SHUTTING_DOWN => ErrorOrigin::Proxy,
        _ => ErrorOrigin::Client,
    }
}

/// The peer that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorOrigin {
    /// The client sent an invalid request.
    Client,
    /// The upstream server failed.
    Server,
    /// The proxy failed, or one of its limits was reached.
    Proxy,
}

/// A JSON-RPC error object: raw, as a peer or the proxy wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorObject {
    code: i64,
    raw: Bytes,
}

#[derive(Serialize)]
struct ErrorMembers<'a> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

// === impl ErrorObject ===

impl ErrorObject {
    /// Creates an error object with a code and a message, without `data`.
    pub fn new(code: i64, message: impl AsRef<str>) -> Self {
        Self::build(code, message.as_ref(), None)
    }

    /// Creates an error object with a code, a message and `data`.
    pub fn with_data(code: i64, message: impl AsRef<str>, data: &Value) -> Self {
        Self::build(code, message.as_ref(), Some(data))
    }

    /// An error as a peer sent it, byte for byte if it is a valid error object: clients refuse one without an
    /// integer `code` or without a `message`. An invalid one is repaired (JSON-RPC 2.0, 5.1): a string
    /// becomes the message, and an invalid member moves into `data`, beside the original `data`.
    pub fn from_raw(raw: Bytes) -> Self {
        let Ok(object) = JsonObject::read(&raw) else { return Self::from_non_object(&raw) };
        let (code, message) = (object.get("code"), object.get("message"));
        let number = code.as_ref().and_then(|code| serde_json::from_slice(code).ok());
        let has_code = number.is_some() || code.as_ref().is_some_and(is_integer_token);
        let has_message = object.string("message").is_some();
        if has_code && has_message {
            return Self { code: number.unwrap_or(INTERNAL_ERROR), raw };
        }
        let mut edit = ObjectEdit::new(&object);
        let checked = [(has_code, "code", code), (has_message, "message", message)];
        let invalid = checked
            .into_iter()
            .filter_map(|(is_valid, name, value)| Some((name, value.filter(|_| !is_valid)?)));
        let invalid: Vec<_> = invalid.collect();
        if !invalid.is_empty() {
            edit.set(
                "data",
                join_members(invalid.into_iter().chain(object.get("data").map(|data| ("data", data)))),
            );
        }
        if !has_code {
            edit.set("code", INTERNAL_ERROR.to_string());
        }
        if !has_message {
            edit.set("message", &br#""the server sent no message""#[..]);
        }
        Self { code: number.unwrap_or(INTERNAL_ERROR), raw: edit.apply() }
    }

    /// Builds an error from a value that is no object: a string becomes the message; any other value becomes
    /// `data`.
    fn from_non_object(raw: &Bytes) -> Self {
        match serde_json::from_slice::<String>(raw) {
            Ok(text) => Self::new(INTERNAL_ERROR, text),
            Err(_) => {
                let head =
                    br#"{"code":-32603,"message":"the server sent an error that is no object","data":"#;
                Self { code: INTERNAL_ERROR, raw: [&head[..], raw, b"}"].concat().into() }
            }
        }
    }

    /// The same error with another code.
    #[must_use]
    pub fn with_code(self, code: i64) -> Self {
        let Ok(object) = JsonObject::read(&self.raw) else { return self };
        let mut edit = ObjectEdit::new(&object);
        edit.set("code", code.to_string());
        Self { code, raw: edit.apply() }
    }

    /// Converts an error of a legacy revision for a client of 2026-07-28. `-32002` becomes `-32602`. The
    /// specification reserves -32020 to -32099 (*Error Codes*): such a code of a server moves into `data`,
    /// beside the server's own `data`.
    #[must_use]
    pub fn into_modern(self) -> Self {
        match self.code {
            RESOURCE_NOT_FOUND => self.with_code(INVALID_PARAMS),
            -32099..=-32020 => {
                let Ok(object) = JsonObject::read(&self.raw) else { return self };
                let original =
                    ["code", "data"].into_iter().filter_map(|name| Some((name, object.get(name)?)));
                let mut edit = ObjectEdit::new(&object);
                edit.set("code", INTERNAL_ERROR.to_string()).set("data", join_members(original));
                Self { code: INTERNAL_ERROR, raw: edit.apply() }
            }
            _ => self,
        }
    }

    /// `-32021` with the capabilities that the client would have to declare, an object of objects
    /// (2026-07-28, *MissingRequiredClientCapabilityError*).
    pub fn missing_capability(message: impl AsRef<str>, required: &Value) -> Self {
        Self::with_data(MISSING_CAPABILITY, message, &json!({ "requiredCapabilities": required }))
    }

    /// The same error with the delay after which its sender accepts the request again, as `data.retryAfter`:
    /// whole seconds as a number, an HTTP date as a string (RFC 9110, 10.2.3). An error whose `data` is no
    /// object, or has such a member, stays unchanged.
    #[must_use]
    pub fn with_retry_after(self, retry_after: &str) -> Self {
        let Ok(object) = JsonObject::read(&self.raw) else { return self };
        let value = match retry_after.trim().parse::<u64>() {
            Ok(seconds) => seconds.to_string(),
            Err(_) => Value::from(retry_after.trim()).to_string(),
        };
        let data = match object.get("data").filter(|data| &data[..] != b"null") {
            None => format!(r#"{{"retryAfter":{value}}}"#).into(),
            Some(data) => match JsonObject::read(&data) {
                Ok(data) if data.get("retryAfter").is_none() => {
                    let mut edit = ObjectEdit::new(&data);
                    edit.set("retryAfter", value);
                    edit.apply()
                }
                Ok(_) | Err(_) => return self,
            },
        };
        let mut edit = ObjectEdit::new(&object);
        edit.set("data", data);
        Self { code: self.code, raw: edit.apply() }
    }

    /// The delay after which the request may be sent again, from `data.retryAfter`: seconds or an HTTP date,
    /// as a `Retry-After` header has it. `None` if the error has none.
    pub fn retry_after(&self) -> Option<String> {
        let data = JsonObject::read(&JsonObject::read(&self.raw).ok()?.get("data")?).ok()?;
        let value = data.get("retryAfter")?;
        match serde_json::from_slice(&value).ok()? {
            Value::String(date) => Some(date),
            Value::Number(seconds) => seconds.as_u64().map(|seconds| seconds.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The error of a JSON-RPC error response; `None` for any other message.
    pub fn from_message(message: &Frame) -> Option<Self> {
        match message.kind() {
            Kind::Failure { error, .. } => Some(Self::from_raw(error.clone())),
            Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } => None,
        }
    }

    /// The error code; [`INTERNAL_ERROR`] if the peer wrote none, or not as an integer of 64 bits.
    pub fn code(&self) -> i64 {
        self.code
    }

    /// The error object's JSON.
    pub fn as_bytes(&self) -> &Bytes {
        &self.raw
    }

    /// The `message` member; empty if it is missing or no string.
    pub fn message(&self) -> String {
        JsonObject::read(&self.raw).ok().and_then(|object| object.string("message")).unwrap_or_default()
    }

    fn build(code: i64, message: &str, data: Option<&Value>) -> Self {
        let raw =
            serde_json::to_vec(&ErrorMembers { code, message, data }).expect("plain values are written");
        Self { code, raw: raw.into() }
    }
}

/// Builds a JSON object from names and raw JSON values.
fn join_members<'a>(members: impl Iterator<Item = (&'a str, Bytes)>) -> Bytes {
    let mut out = Vec::new();
    for (name, value) in members {
        out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        out.extend_from_slice(&value);
    }
    out.push(b'}');
    out.into()
}

/// Whether a JSON token is an integer, in any spelling.
fn is_integer_token(token: &Bytes) -> bool {
    serde_json::from_slice::<f64>(token).is_ok_and(|number| number.fract() == 0.0)
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
    fn an_error_is_valid_whatever_the_peer_sent() {
        for raw in [
            "null",
            "1",
            "[]",
            "\"\"",
            "{}",
            r#"{"code":null}"#,
            r#"{"code":1e400,"message":null}"#,
            r#"{"message":7,"data":{"a":1e400}}"#,
            r#"{"code":9223372036854775808,"message":"m"}"#,
            r#"{"code":-32050,"message":"m","data":[1e400]}"#,
            r#"{"code":-32002,"message":"m"}"#,
        ] {
            for error in [ErrorObject::from_raw(raw.into()), ErrorObject::from_raw(raw.into()).into_modern()]
            {
                let object = JsonObject::read(error.as_bytes()).expect("an object");
                assert!(object.get("code").is_some_and(|code| is_integer_token(&code)), "{raw}: {error:?}");
                assert!(object.string("message").is_some(), "{raw}: {error:?}");
            }
            let error = ErrorObject::from_raw(raw.into()).into_modern();
            assert!(!(-32099..=-32020).contains(&error.code()), "{error:?}");
        }
    }

    #[test]
    fn an_error_of_a_peer_keeps_its_bytes() {
        let raw = Bytes::from_static(br#"{ "code": 1e2, "message":"m"}"#);
        let error = ErrorObject::from_raw(raw.clone());
        assert_eq!(error.as_bytes(), &raw);
        assert_eq!(error.code(), INTERNAL_ERROR, "1e2 is not written as an integer");
    }
}
