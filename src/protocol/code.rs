//! Error codes and error objects, by revision; whose fault an error is.

use super::{
    Frame, Kind,
    splice::{JsonObject, ObjectEdit},
};
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
/// The credentials were refused, by the server or here.
pub const UNAUTHORIZED: i64 = -31008;

/// Whether an error has one of the codes above that are ours alone, so that its message is in our words.
pub const fn is_own(code: i64) -> bool {
    matches!(code, UNAUTHORIZED..=UPSTREAM_UNAVAILABLE)
}

/// Whose fault an error is, as far as its code says. Of the codes that JSON-RPC leaves to servers (-32000 to -32019, and
/// what is outside the reserved range) it is not known: they are taken for the client's.
pub const fn origin_of(code: i64) -> ErrorOrigin {
    match code {
        UPSTREAM_UNAVAILABLE | OUTCOME_UNKNOWN | UPSTREAM_TIMEOUT | UPSTREAM_INVALID | INTERNAL_ERROR => {
            ErrorOrigin::Server
        }
        RESULT_TOO_LARGE | BUSY | SHUTTING_DOWN => ErrorOrigin::Proxy,
        _ => ErrorOrigin::Client,
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorOrigin {
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
struct ErrorMembers<'a> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

// === impl ErrorObject ===

impl ErrorObject {
    pub fn new(code: i64, message: impl AsRef<str>) -> Self {
        Self::build(code, message.as_ref(), None)
    }

    pub fn with_data(code: i64, message: impl AsRef<str>, data: &Value) -> Self {
        Self::build(code, message.as_ref(), Some(data))
    }

    /// An error as a peer sent it, byte for byte where it is an error object at all: clients refuse
    /// one without an integer `code` or without words. What is none is made one (JSON-RPC 2.0, 5.1):
    /// a mere string is its words, a member that cannot be is kept inside `data`, with `data`.
    pub fn from_raw(raw: Bytes) -> Self {
        let Ok(object) = JsonObject::read(&raw) else { return Self::from_non_object(&raw) };
        let (code, message) = (object.get("code"), object.get("message"));
        let number = code.as_ref().and_then(|code| serde_json::from_slice(code).ok());
        let has_code = number.is_some() || code.as_ref().is_some_and(is_whole);
        let has_message = object.string("message").is_some();
        if has_code && has_message {
            return Self { code: number.unwrap_or(INTERNAL_ERROR), raw };
        }
        let mut edit = ObjectEdit::new(&object);
        let kept = [(has_code, "code", code), (has_message, "message", message)];
        let kept = kept.into_iter().filter_map(|(fits, name, value)| Some((name, value.filter(|_| !fits)?)));
        let kept: Vec<_> = kept.collect();
        if !kept.is_empty() {
            edit.set(
                "data",
                join_members(kept.into_iter().chain(object.get("data").map(|data| ("data", data)))),
            );
        }
        if !has_code {
            edit.set("code", INTERNAL_ERROR.to_string());
        }
        if !has_message {
            edit.set("message", &br#""the server gave no message""#[..]);
        }
        Self { code: number.unwrap_or(INTERNAL_ERROR), raw: edit.apply() }
    }

    fn from_non_object(raw: &Bytes) -> Self {
        match serde_json::from_slice::<String>(raw) {
            Ok(words) => Self::new(INTERNAL_ERROR, words),
            Err(_) => {
                let head =
                    br#"{"code":-32603,"message":"the server gave an error that is no object","data":"#;
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

    /// An error of an older revision for a client of 2026-07-28. There `-32002` is `-32602`, and the
    /// specification keeps -32020 to -32099 to itself (*Error Codes*): what a server meant by one of
    /// those is kept inside `data`, the server's own `data` beside it.
    #[must_use]
    pub fn into_modern(self) -> Self {
        match self.code {
            RESOURCE_NOT_FOUND => self.with_code(INVALID_PARAMS),
            -32099..=-32020 => {
                let Ok(object) = JsonObject::read(&self.raw) else { return self };
                let kept = ["code", "data"].into_iter().filter_map(|name| Some((name, object.get(name)?)));
                let mut edit = ObjectEdit::new(&object);
                edit.set("code", INTERNAL_ERROR.to_string()).set("data", join_members(kept));
                Self { code: INTERNAL_ERROR, raw: edit.apply() }
            }
            _ => self,
        }
    }

    /// `-32021` with the capabilities the client would have to declare, an object of objects
    /// (2026-07-28, *MissingRequiredClientCapabilityError*).
    pub fn missing_capability(message: impl AsRef<str>, required: &Value) -> Self {
        Self::with_data(MISSING_CAPABILITY, message, &json!({ "requiredCapabilities": required }))
    }

    /// The same error with the time after which its sender wants the request again, as `data.retryAfter`: whole
    /// seconds as a number, an HTTP date as a string (RFC 9110, 10.2.3). An error whose `data` is no object, or has
    /// such a member, stays as it is.
    #[must_use]
    pub fn with_retry_after(self, after: &str) -> Self {
        let Ok(object) = JsonObject::read(&self.raw) else { return self };
        let after = match after.trim().parse::<u64>() {
            Ok(seconds) => seconds.to_string(),
            Err(_) => Value::from(after.trim()).to_string(),
        };
        let data = match object.get("data").filter(|data| &data[..] != b"null") {
            None => format!(r#"{{"retryAfter":{after}}}"#).into(),
            Some(data) => match JsonObject::read(&data) {
                Ok(data) if data.get("retryAfter").is_none() => {
                    let mut edit = ObjectEdit::new(&data);
                    edit.set("retryAfter", after);
                    edit.apply()
                }
                Ok(_) | Err(_) => return self,
            },
        };
        let mut edit = ObjectEdit::new(&object);
        edit.set("data", data);
        Self { code: self.code, raw: edit.apply() }
    }

    /// When the request may be made again, as a value of `RetryRequest-After`.
    pub fn retry_after(&self) -> Option<String> {
        let data = JsonObject::read(&JsonObject::read(&self.raw).ok()?.get("data")?).ok()?;
        let after = data.get("retryAfter")?;
        match serde_json::from_slice(&after).ok()? {
            Value::String(date) => Some(date),
            Value::Number(seconds) => seconds.as_u64().map(|seconds| seconds.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The error that a message is, if it is one.
    pub fn of(message: &Frame) -> Option<Self> {
        match message.kind() {
            Kind::Failure { error, .. } => Some(Self::from_raw(error.clone())),
            Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } => None,
        }
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
        JsonObject::read(&self.raw).ok().and_then(|object| object.string("message")).unwrap_or_default()
    }

    fn build(code: i64, message: &str, data: Option<&Value>) -> Self {
        let raw =
            serde_json::to_vec(&ErrorMembers { code, message, data }).expect("plain values are written");
        Self { code, raw: raw.into() }
    }
}

/// Raw members as an object.
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

/// Whether a JSON token is a whole number, however it is spelled.
fn is_whole(token: &Bytes) -> bool {
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
                assert!(object.get("code").is_some_and(|code| is_whole(&code)), "{raw}: {error:?}");
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
