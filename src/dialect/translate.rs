//! Translation between a legacy server and a 2026-07-28 client, in both directions.
//!
//! This module makes all edits of messages between such a pair, except for the members that [`InputRequest`]
//! removes. The list is in [`crate::manual::passthrough`], and a property test compares the two. Only
//! `upstream` uses this module: no layer above it knows that a server is legacy. Messages between a legacy
//! client and its server are edited in `proxy::relay`.

use super::{Call, modern};
use crate::protocol::{
    ErrorObject, Frame, InputKind, InputRequest, Kind, Method, Payload, RequestId, code, frame,
    input_keys::InputKeys,
    meta,
    splice::{BytesPatch, JsonObject, ObjectEdit, array_items},
};
use bytes::Bytes;
use serde_json::json;

/// Error: a server's result cannot be forwarded, because it is not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the result is not an object")]
pub struct InvalidResult;

/// Translates a client's request for the server: with the id `hop_id` of the proxy, a progress token of the
/// proxy or none, and without the members of the client's era. The id and params of `call` must be slices of
/// `call.bytes`, as they are after reading.
pub fn translate_request(call: &Call, hop_id: u64, wants_progress: bool) -> Bytes {
    let mut patch = BytesPatch::new(call.bytes.clone());
    let rpc_id = RequestId::from_number(hop_id);
    patch.replace(call.id.as_bytes(), rpc_id.as_bytes().clone());

    let Some(params) = &call.params else { return patch.apply() };
    let Some(object) = params.object() else { return patch.apply() };
    let mut edit = ObjectEdit::new(object);
    if call.method.can_request_input() {
        // A legacy server would read `task` as a request for a task of 2025-11-25, and respond in that shape.
        edit.remove_all(&["task", "inputResponses", "requestState"]);
    }
    let token = wants_progress.then(|| rpc_id.as_bytes().clone());
    match (params.meta(), token) {
        (Some(meta_object), token) => {
            let mut inner = ObjectEdit::new(meta_object);
            inner.remove_all(&meta::PER_REQUEST);
            match token {
                Some(token) => inner.set(meta::PROGRESS_TOKEN, token),
                None => inner.remove(meta::PROGRESS_TOKEN),
            };
            if let Some(trace) = &call.trace {
                trace.write_to_meta(&mut inner);
            }
            if inner.leaves_empty() {
                edit.remove("_meta");
            } else {
                inner.add_to(&mut patch);
            }
        }
        (None, token) => {
            let token = token.map(|token| format!(r#""progressToken":{}"#, String::from_utf8_lossy(&token)));
            match (&call.trace, token) {
                (Some(trace), token) => drop(edit.set("_meta", trace.meta_with(&token.unwrap_or_default()))),
                (None, Some(token)) => drop(edit.set("_meta", format!("{{{token}}}"))),
                (None, None) => {}
            }
        }
    }
    edit.add_to(&mut patch);
    patch.apply()
}

/// Whether a server's notification is forwarded to the client: any method that 2026-07-28 has, or an unknown
/// one.
pub fn is_forwarded(notification: &Method) -> bool {
    // `notifications/elicitation/complete` refers to an `elicitationId`, which 2026-07-28 does not have.
    *notification != Method::ElicitationComplete
}

/// Returns a server's capabilities without the tasks of 2025-11-25.
pub fn without_legacy_tasks(raw: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(raw) else { return raw.clone() };
    let mut edit = ObjectEdit::new(&object);
    edit.remove("tasks");
    edit.apply()
}

/// Translates a server's successful response: the same bytes with the client's id and a result of the
/// client's era. Also returns whether the result is a tool error (`isError`).
///
/// # Errors
/// [`InvalidResult`] if the message is no success or its result is not an object.
pub fn translate_response(
    call: &Call,
    message: &Frame,
    server_info: &[u8],
) -> Result<(Bytes, bool), InvalidResult> {
    let Kind::Success { id, result } = message.kind() else { return Err(InvalidResult) };
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    patch.replace(id.as_bytes(), call.id.as_bytes().clone());
    let is_error = translate_result(&call.method, result, server_info, &mut patch)?;
    Ok((frame::to_single_line(patch.apply()), is_error))
}

/// Translates a server's result object without its JSON-RPC message, for storage in a task.
///
/// # Errors
/// [`InvalidResult`] if the result is not an object.
pub fn translate_bare_result(
    method: &Method,
    result: &Payload,
    server_info: &[u8],
) -> Result<Bytes, InvalidResult> {
    // The patch always changes the bytes, so the translated result does not keep the server's whole message
    // alive.
    let mut patch = BytesPatch::new(Bytes::clone(result));
    translate_result(method, result, server_info, &mut patch)?;
    Ok(frame::to_single_line(patch.apply()))
}

/// Adds the edits that translate a server's result to `patch`. Returns whether the result is a tool error.
fn translate_result(
    method: &Method,
    result: &Payload,
    server_info: &[u8],
    patch: &mut BytesPatch,
) -> Result<bool, InvalidResult> {
    let object = result.object().ok_or(InvalidResult)?;
    let mut edit = ObjectEdit::new(object);
    edit.set("resultType", &b"\"complete\""[..]);
    if method.is_cacheable() {
        edit.set_if_absent("ttlMs", &b"0"[..]).set_if_absent("cacheScope", &b"\"private\""[..]);
    }
    match result.meta() {
        Some(meta_object) => {
            let mut inner = ObjectEdit::new(meta_object);
            inner
                .remove(meta::RELATED_TASK)
                .set_if_absent(meta::SERVER_INFO, Bytes::copy_from_slice(server_info));
            inner.add_to(patch);
        }
        // `_meta` is present but not an object, and stays unchanged.
        None if object.contains("_meta") => {}
        None => drop(edit.set("_meta", modern::server_info_meta(server_info))),
    }
    edit.add_to(patch);
    if *method == Method::ToolsList
        && let Some(tools) = object.get("tools")
    {
        remove_task_support(&tools, patch);
    }
    Ok(*method == Method::ToolsCall && object.raw("isError") == Some(b"true"))
}

/// Removes `execution.taskSupport` from every tool: it describes tasks of 2025-11-25, which a 2026-07-28
/// client cannot use.
fn remove_task_support(tools: &Bytes, patch: &mut BytesPatch) {
    if memchr::memmem::find(tools, b"taskSupport").is_none() {
        return;
    }
    for tool in array_items(tools).unwrap_or_default() {
        let Ok(tool) = JsonObject::read(&tool) else { continue };
        let Some(Ok(execution)) = tool.get("execution").map(|raw| JsonObject::read(&raw)) else { continue };
        let mut inner = ObjectEdit::new(&execution);
        inner.remove("taskSupport");
        if inner.leaves_empty() {
            let mut edit = ObjectEdit::new(&tool);
            edit.remove("execution");
            edit.add_to(patch);
        } else {
            inner.add_to(patch);
        }
    }
}

/// Translates the server's error. Codes that are undefined or differ in the client's era are changed
/// ([`ErrorObject::into_modern`]); the message stays, and the original code is kept in `data`.
pub fn translate_error(call: &Call, error: &Bytes) -> ErrorObject {
    let error = ErrorObject::from_raw(error.clone()).into_modern();
    match call.target.as_deref() {
        // The error must name the resource (2026-07-28, *Resources, Error Handling*).
        Some(uri) if call.method == Method::ResourcesRead && error.code() == code::INVALID_PARAMS => {
            with_resource_uri(&error, uri)
        }
        _ => error,
    }
}

/// Adds the URI of the resource to the `data` of an error, unless the server has set `data`.
fn with_resource_uri(error: &ErrorObject, uri: &str) -> ErrorObject {
    let Ok(object) = JsonObject::read(error.as_bytes()) else { return error.clone() };
    let mut edit = ObjectEdit::new(&object);
    edit.set_if_absent("data", json!({ "uri": uri }).to_string());
    ErrorObject::from_raw(edit.apply())
}

/// Reads the URLs that the user must visit before the call is sent again: the `data.elicitations` of an error
/// `-32042` (2025-11-25, *URL Elicitation Required Error*), as input requests with their keys. `None` for any
/// other error, and if the list is empty or contains an invalid elicitation.
pub fn required_urls(error: &Bytes) -> Option<Vec<(String, InputRequest)>> {
    let mut keys = InputKeys::default();
    if ErrorObject::from_raw(error.clone()).code() != code::URL_ELICITATION_REQUIRED {
        return None;
    }
    let data = JsonObject::read(&JsonObject::read(error).ok()?.get("data")?).ok()?;
    let elicitations = array_items(&data.get("elicitations")?)?;
    let input_requests: Vec<_> = elicitations.iter().map(url_elicitation).collect::<Option<_>>()?;
    let keyed = input_requests
        .into_iter()
        .map(|input_request| (keys.next_url_key(), input_request))
        .collect::<Vec<_>>();
    (!keyed.is_empty()).then_some(keyed)
}

/// Reads a URL elicitation as an input request; `None` if a required member is missing.
fn url_elicitation(elicitation: &Bytes) -> Option<InputRequest> {
    let params = JsonObject::read(elicitation).ok()?;
    let is_complete = params.string("mode").as_deref() == Some("url")
        && params.string("url").is_some()
        && params.string("message").is_some();
    is_complete.then(|| InputRequest::new(InputKind::Elicitation, Some(elicitation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_to_visit_become_input_requests() {
        let error = Bytes::from_static(
            br#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a","message":"A","x":1.0},{"message":"B","url":"https://b","mode":"url"}]}}"#,
        );
        let questions = required_urls(&error).expect("questions");
        let written: Vec<_> =
            questions.iter().map(|(key, question)| (key.as_str(), question.as_bytes().clone())).collect();
        assert_eq!(
            written,
            [
                (
                    "url-1",
                    Bytes::from(
                        r#"{"method":"elicitation/create","params":{"mode":"url","url":"https://a","message":"A","x":1.0}}"#
                    )
                ),
                (
                    "url-2",
                    Bytes::from(
                        r#"{"method":"elicitation/create","params":{"message":"B","url":"https://b","mode":"url"}}"#
                    )
                ),
            ]
        );
    }

    #[test]
    fn an_error_that_names_no_whole_address_stays_an_error() {
        for error in [
            r#"{"code":-32603,"message":"m","data":{"elicitations":[{"mode":"url","url":"u","message":"A"}]}}"#,
            r#"{"code":-32042,"message":"m"}"#,
            r#"{"code":-32042,"message":"m","data":null}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"form","url":"u","message":"A"}]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"u","message":"A"},{"mode":"url"}]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[7]}}"#,
        ] {
            assert_eq!(required_urls(&Bytes::from_static(error.as_bytes())), None, "{error}");
        }
    }

    #[test]
    fn tasks_of_2025_11_25_are_not_declared() {
        let raw = Bytes::from_static(br#"{"tools":{"listChanged":true},"tasks":{"list":{}},"x":1e400}"#);
        assert_eq!(without_legacy_tasks(&raw), r#"{"tools":{"listChanged":true},"x":1e400}"#);
    }
}
