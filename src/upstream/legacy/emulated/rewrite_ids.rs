//! Rewrites ids and progress tokens between a client in an emulated session and its server. The server sees
//! the proxy's, because many clients share it; a client sees its own.

use bytes::Bytes;

use crate::protocol::{
    Frame, Kind, Payload, RequestId, meta,
    splice::{BytesPatch, ObjectEdit},
};

/// Replaces the id of a client's request by `number`, which becomes its progress token as well. Returns the
/// message and the client's token, if it has one.
///
/// Removes the member `task`: a shared server's tasks are not available to clients.
pub(super) fn with_proxy_id(message: &Frame, number: u64) -> (Bytes, Option<Bytes>) {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    let Kind::Request { id, method, params } = message.kind() else { return (patch.apply(), None) };
    let number = RequestId::from_number(number);
    patch.replace(id.as_bytes(), number.as_bytes().clone());
    let Some((params, object)) = params.as_ref().and_then(|params| Some((params, params.object()?))) else {
        return (patch.apply(), None);
    };
    let mut edit = ObjectEdit::new(object);
    if method.can_request_input() {
        edit.remove("task");
    }
    let token = params.meta().and_then(|meta_object| meta_object.get(meta::PROGRESS_TOKEN));
    if let (Some(meta_object), Some(_)) = (params.meta(), &token) {
        let mut inner = ObjectEdit::new(meta_object);
        inner.set(meta::PROGRESS_TOKEN, number.as_bytes().clone());
        inner.add_to(&mut patch);
    }
    edit.add_to(&mut patch);
    // Copied, because a slice would keep the whole message.
    (patch.apply(), token.map(|token| Bytes::copy_from_slice(&token)))
}

/// Replaces the id of a server's request or response by `id`; `None` if the message has no id.
pub(super) fn with_id(message: &Frame, id: &RequestId) -> Option<Bytes> {
    let old_id = match message.kind() {
        Kind::Request { id, .. } | Kind::Success { id, .. } | Kind::Failure { id: Some(id), .. } => id,
        Kind::Failure { id: None, .. } | Kind::Notification { .. } => return None,
    };
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    patch.replace(old_id.as_bytes(), id.as_bytes().clone());
    Some(patch.apply())
}

/// Replaces the progress token of a progress notification by the client's; `None` if the message is no such
/// notification.
pub(super) fn with_token(progress: &Frame, token: &Bytes) -> Option<Bytes> {
    let Kind::Notification { params: Some(params), .. } = progress.kind() else { return None };
    let mut patch = BytesPatch::new(progress.as_bytes().clone());
    let mut edit = ObjectEdit::new(params.object()?);
    edit.set(meta::PROGRESS_TOKEN, token.clone());
    edit.add_to(&mut patch);
    Some(patch.apply())
}

/// String member `key` of a request's params.
pub(super) fn string_param(params: Option<&Payload>, key: &str) -> Option<String> {
    params?.string(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> Frame {
        Frame::parse(Bytes::copy_from_slice(text.as_bytes())).expect("a message")
    }

    #[test]
    fn a_request_gets_the_number_of_the_proxy_and_keeps_all_else() {
        for (sent, goes, token) in [
            (
                r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t", "_meta":{"progressToken":"p","x":1.0},"task":{}}}"#,
                r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t", "_meta":{"progressToken":9,"x":1.0}}}"#,
                Some(r#""p""#),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1.0,"method":"vendor/x","params":{"task":1}}"#,
                r#"{"jsonrpc":"2.0","id":9,"method":"vendor/x","params":{"task":1}}"#,
                None,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, r#"{"jsonrpc":"2.0","id":9,"method":"m"}"#, None),
        ] {
            let token = token.map(|token| Bytes::from_static(token.as_bytes()));
            assert_eq!(with_proxy_id(&frame(sent), 9), (Bytes::from_static(goes.as_bytes()), token));
        }
    }

    #[test]
    fn progress_comes_back_under_the_clients_own_token() {
        let said = frame(
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1.0}}"#,
        );
        let wanted = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1.0}}"#;
        assert_eq!(with_token(&said, &Bytes::from_static(br#""p""#)).expect("progress"), wanted);
    }
}
