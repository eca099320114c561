//! JSON-RPC messages that the proxy writes to legacy servers.

use bytes::Bytes;
use serde::Serialize;

use crate::{
    dialect::ClientInfo,
    protocol::{ErrorObject, Frame, ListKind, Method, RequestId, Revision},
};

/// Client name in `initialize`, if the client sent no `clientInfo`, or clients share a process.
const CLIENT_NAME: &str = "deferral";

/// Notification `notifications/initialized`, which ends the handshake.
pub(super) const INITIALIZED: Bytes =
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);

/// Request `initialize` that offers this revision; `capabilities` and `client_info` are the client's own JSON
/// objects (2025-11-25, *Lifecycle*).
pub(super) fn initialize(
    id: u64,
    revision: Revision,
    capabilities: &[u8],
    client_info: &ClientInfo,
) -> Bytes {
    let mut message = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{revision}","clientInfo":"#,
    )
    .into_bytes();
    match client_info.as_bytes() {
        Some(info) => message.extend_from_slice(info),
        None => {
            let version = env!("CARGO_PKG_VERSION");
            message
                .extend_from_slice(format!(r#"{{"name":"{CLIENT_NAME}","version":"{version}"}}"#).as_bytes());
        }
    }
    message.extend_from_slice(br#","capabilities":"#);
    message.extend_from_slice(capabilities);
    message.extend_from_slice(b"}}");
    message.into()
}

/// Request `ping`.
pub(super) fn ping(id: u64) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into()
}

/// Notification `notifications/cancelled` for the proxy's request with this id (2025-11-25, *Cancellation*).
pub(super) fn cancelled(id: u64, reason: &str) -> Bytes {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":{}}}}}"#,
        quoted(reason)
    )
    .into()
}

/// Request `logging/setLevel`.
pub(super) fn set_level(id: u64, level: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#)
        .into()
}

/// Request `resources/subscribe` or `resources/unsubscribe`, as `method` says, for one resource.
pub(super) fn resource_request(id: u64, method: &str, uri: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"uri":{}}}}}"#, quoted(uri)).into()
}

/// Notification that `list` has changed, such as `notifications/tools/list_changed`.
pub(super) fn list_changed(list: ListKind) -> Frame {
    let message = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, list.changed_notification());
    Frame::parse(message.into()).expect("it is a message")
}

/// Notification `notifications/resources/updated` for this resource.
pub(super) fn resource_updated(uri: &str) -> Frame {
    let method = Method::ResourceUpdated;
    let message = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"uri":{}}}}}"#, quoted(uri));
    Frame::parse(message.into()).expect("it is a message")
}

/// Response to the server's request `id`, which is repeated byte for byte. `outcome` is a JSON result or a
/// JSON-RPC error object.
pub(super) fn response(id: &RequestId, outcome: &Result<Bytes, Bytes>) -> Bytes {
    let (member, value) = match outcome {
        Ok(result) => (&b"result"[..], result),
        Err(error) => (&b"error"[..], error),
    };
    let (head, id) = (br#"{"jsonrpc":"2.0","id":"#, id.as_bytes());
    [head, &**id, b",\"", member, b"\":", value, b"}"].concat().into()
}

/// Outcome of a rejected request of the server: a JSON-RPC error object with this code and message.
pub(super) fn refusal(code: i64, why: &str) -> Result<Bytes, Bytes> {
    Err(ErrorObject::new(code, why).as_bytes().clone())
}

fn quoted(text: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(text).expect("a string is written to memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    #[test]
    fn capabilities_are_declared_word_for_word() {
        let capabilities = br#"{ "elicitation":{},"x-new":[1e400] }"#;
        let message = initialize(7, Revision::NEWEST_LEGACY, capabilities, &ClientInfo::default());
        let frame = Frame::parse(message.clone()).expect("a message");
        assert!(matches!(frame.kind(), Kind::Request { id, .. } if id.as_number() == Some(7)));
        assert!(message.windows(capabilities.len()).any(|part| part == capabilities));
    }

    #[test]
    fn ids_of_the_server_go_back_byte_for_byte() {
        for token in ["0", "1.0", r#""a\u0062""#] {
            let id = RequestId::from_token(Bytes::copy_from_slice(token.as_bytes())).expect("an id");
            let written = response(&id, &Ok(Bytes::from_static(b"{}")));
            assert_eq!(written, format!(r#"{{"jsonrpc":"2.0","id":{token},"result":{{}}}}"#));
        }
    }

    #[test]
    fn a_uri_is_quoted() {
        let message = resource_request(1, "resources/subscribe", "file:///a\"b");
        assert!(Frame::parse(message).is_ok());
    }
}
