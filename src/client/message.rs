//! JSON-RPC, as far as a client writes and reads it.

use super::{Error, error, error_text};
use crate::protocol::{Frame, Kind};
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Characters of an HTTP error page that an error shows.
const MAX_ERROR_TEXT: usize = 500;

/// A JSON-RPC request with parameters of type `P`.
#[derive(Serialize)]
pub struct JsonRpcRequest<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

/// A JSON-RPC response: its result or error, as raw JSON.
#[derive(Debug)]
pub(super) enum JsonRpcResponse {
    Result(Box<RawValue>),
    Error(Box<RawValue>),
}

// === impl JsonRpcRequest ===

impl<'a, P: Serialize> JsonRpcRequest<'a, P> {
    pub const fn new(id: u64, method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", id, method, params }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and raw JSON are JSON")
    }
}

// === impl JsonRpcResponse ===

impl JsonRpcResponse {
    /// Returns the response in a frame, if the frame is the response to the request of this id; `None` for
    /// any other message.
    pub(super) fn from_frame(frame: &Frame, id: u64) -> Option<Result<Self, Error>> {
        let to_raw = |bytes: &Bytes| {
            serde_json::from_slice::<Box<RawValue>>(bytes).map_err(|error| Error::Invalid(error.to_string()))
        };
        match frame.kind() {
            Kind::Success { id: response_id, result } if response_id.echoed_number() == Some(id) => {
                Some(to_raw(result).map(Self::Result))
            }
            // A server that could not read the id of a request leaves it out of the error.
            Kind::Failure { id: response_id, error }
                if response_id.as_ref().is_none_or(|theirs| theirs.echoed_number() == Some(id)) =>
            {
                Some(to_raw(error).map(Self::Error))
            }
            Kind::Success { .. }
            | Kind::Failure { .. }
            | Kind::Request { .. }
            | Kind::Notification { .. } => None,
        }
    }

    /// Returns the response in a JSON document, which must be that to the request of this id.
    pub(super) fn from_document(status: StatusCode, bytes: Bytes, id: u64) -> Result<Self, Error> {
        match Frame::parse(bytes.clone()) {
            Ok(frame) => match Self::from_frame(&frame, id) {
                // The status is reported instead of the error, because it shows that a retry may help.
                Some(Ok(Self::Error(error))) if error::is_transient(status) => {
                    Err(Error::Status { status, detail: format!(": {}", error_text(&error)) })
                }
                Some(response) => response,
                None if !status.is_success() => Err(http_error(status, &bytes)),
                None => Err(Error::Invalid("this is not the response to the request".to_owned())),
            },
            // An HTTP error need not carry JSON-RPC.
            Err(_) if !status.is_success() => Err(http_error(status, &bytes)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Builds an HTTP error with the beginning of the response's text.
pub(super) fn http_error(status: StatusCode, body: &[u8]) -> Error {
    let text = String::from_utf8_lossy(body);
    let detail = match text.trim() {
        "" => String::new(),
        text => format!(": {}", text.chars().take(MAX_ERROR_TEXT).collect::<String>()),
    };
    Error::Status { status, detail }
}

/// Deserializes a result.
pub(super) fn parse_result<'a, T: Deserialize<'a>>(result: &'a RawValue) -> Result<T, Error> {
    serde_json::from_str(result.get()).map_err(|error| Error::Invalid(error.to_string()))
}
