//! Raising: a legacy server's bytes for a 2026-07-28 client, and that client's bytes for a legacy
//! server. Together with [`crate::bridge::describe`] these are all the edits between that pair; the list is
//! in [`crate::manual::passthrough`], and a property test holds the two together. Messages between
//! an older client and its server are edited in `proxy::relay` alone.

use super::{Call, LogLevel, modern::server_info_meta};
use crate::protocol::{
    ErrorObject, Frame, Id, Kind, Method, code, frame, meta,
    splice::{Edit, Object, Patch},
    status_message::shorten,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

/// A server's answer that cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the result is not an object")]
pub struct NotAResult;

/// The message for the server: the client's own with the id of our hop, our progress token or
/// none, and without what only the client's era knows. The call's id and params are slices of its
/// bytes, as they are when it has been read.
pub fn request(call: &Call, hop: u64, wants_progress: bool) -> Bytes {
    let mut patch = Patch::new(call.bytes.clone());
    patch.replace(call.id.as_bytes(), Id::from_number(hop).as_bytes().clone());

    let params = call.params.as_ref().and_then(|raw| Object::read(raw).ok());
    let Some(params) = params else { return patch.apply() };
    let mut edit = Edit::new(&params);
    if call.method.may_ask() {
        // A legacy server would take `task` for the older tasks, and answer in their shape.
        edit.remove("task").remove("inputResponses").remove("requestState");
    }
    let token = wants_progress.then(|| Id::from_number(hop).as_bytes().clone());
    match (params.get("_meta").map(|raw| Object::read(&raw)), token) {
        (Some(Ok(about)), token) => {
            let mut inner = Edit::new(&about);
            for key in meta::PER_REQUEST {
                inner.remove(key);
            }
            match token {
                Some(token) => inner.set(meta::PROGRESS_TOKEN, token),
                None => inner.remove(meta::PROGRESS_TOKEN),
            };
            if inner.leaves_nothing() {
                edit.remove("_meta");
            } else {
                inner.put(&mut patch);
            }
        }
        (_, Some(token)) => {
            edit.set("_meta", Bytes::from([br#"{"progressToken":"#, &*token, b"}"].concat()));
        }
        (_, None) => {}
    }
    edit.put(&mut patch);
    patch.apply()
}

/// A notification of the server on a call's way, for the client; `None` where the client is not to
/// see it: it did not ask for it, or its revision does not know it.
pub fn notice(call: &Call, frame: &Frame) -> Option<Bytes> {
    let Kind::Notification { method, params } = frame.kind() else { return None };
    match method {
        Method::Progress => {
            let token = call.progress_token.clone()?;
            let params = Object::read(params.as_ref()?).ok()?;
            let mut patch = Patch::new(frame.as_bytes().clone());
            let mut edit = Edit::new(&params);
            edit.set(meta::PROGRESS_TOKEN, token);
            edit.put(&mut patch);
            Some(frame::on_one_line(patch.apply()))
        }
        // 2026-07-28, *Logging*: none at all for a request that did not name a level.
        Method::Message => {
            let wanted = call.log_level?;
            let level = Object::read(params.as_ref()?).ok()?.string("level")?;
            let level = LogLevel::parse(&level)?;
            (level >= wanted).then(|| frame::on_one_line(frame.as_bytes().clone()))
        }
        // These are told to listeners (`subscriptions/listen`), or no longer exist.
        Method::ToolsListChanged
        | Method::PromptsListChanged
        | Method::ResourcesListChanged
        | Method::ResourceUpdated
        | Method::ElicitationComplete
        | Method::Cancelled => None,
        _ => Some(frame::on_one_line(frame.as_bytes().clone())),
    }
}

/// What the server said of its progress, in words for a task's `statusMessage`.
pub fn progress_message(frame: &Frame) -> Option<String> {
    let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
        return None;
    };
    let params: Progress<'_> = serde_json::from_slice(params).ok()?;
    let (progress, total) = (params.progress?.get(), params.total.map(RawValue::get));
    let words = match (params.message, total) {
        (Some(message), Some(total)) => format!("{message} ({progress}/{total})"),
        (Some(message), None) => message,
        (None, Some(total)) => format!("{progress}/{total}"),
        (None, None) => progress.to_owned(),
    };
    Some(shorten(words))
}

#[derive(Deserialize)]
struct Progress<'a> {
    #[serde(borrow, default)]
    progress: Option<&'a RawValue>,
    #[serde(borrow, default)]
    total: Option<&'a RawValue>,
    #[serde(default)]
    message: Option<String>,
}

/// The server's successful response as a response to the client: its bytes, with the client's id
/// and a result of the client's era.
///
/// # Errors
/// [`NotAResult`].
pub fn response(call: &Call, said: &Frame, server_info: &[u8]) -> Result<Bytes, NotAResult> {
    judged(call, said, server_info).map(|(response, _)| response)
}

/// As [`response`], and says beside it whether the result is that of a tool that failed: `isError`.
///
/// # Errors
/// [`NotAResult`].
pub fn judged(call: &Call, said: &Frame, server_info: &[u8]) -> Result<(Bytes, bool), NotAResult> {
    let Kind::Success { id, result } = said.kind() else { return Err(NotAResult) };
    let mut patch = Patch::new(said.as_bytes().clone());
    patch.replace(id.as_bytes(), call.id.as_bytes().clone());
    let is_error = raise_result(&call.method, result, server_info, &mut patch)?;
    Ok((frame::on_one_line(patch.apply()), is_error))
}

/// The server's result as the client would get it, without the response around it: what a task
/// keeps.
///
/// # Errors
/// [`NotAResult`].
pub fn result(method: &Method, result: &Bytes, server_info: &[u8]) -> Result<Bytes, NotAResult> {
    // A copy of its own: a slice would keep the server's whole message alive.
    let result = Bytes::copy_from_slice(result);
    let mut patch = Patch::new(result.clone());
    raise_result(method, &result, server_info, &mut patch)?;
    Ok(frame::on_one_line(patch.apply()))
}

/// Says whether it is the result of a tool that failed.
fn raise_result(
    method: &Method,
    result: &Bytes,
    server_info: &[u8],
    patch: &mut Patch,
) -> Result<bool, NotAResult> {
    let object = Object::read(result).map_err(|_| NotAResult)?;
    let mut edit = Edit::new(&object);
    edit.set("resultType", &b"\"complete\""[..]);
    if method.is_cacheable() {
        edit.set_if_absent("ttlMs", &b"0"[..]).set_if_absent("cacheScope", &b"\"private\""[..]);
    }
    match object.get("_meta").map(|raw| Object::read(&raw)) {
        Some(Ok(about)) => {
            let mut inner = Edit::new(&about);
            inner
                .remove(meta::RELATED_TASK)
                .set_if_absent(meta::SERVER_INFO, Bytes::copy_from_slice(server_info));
            inner.put(patch);
        }
        Some(Err(_)) => {}
        None => drop(edit.set("_meta", server_info_meta(server_info))),
    }
    edit.put(patch);
    if *method == Method::ToolsList
        && let Some(tools) = object.get("tools")
    {
        drop_task_support(&tools, patch);
    }
    Ok(*method == Method::ToolsCall && object.get("isError").is_some_and(|value| value == "true"))
}

/// Takes `execution.taskSupport` off every tool: it speaks of the older tasks, which a 2026-07-28
/// client cannot use.
fn drop_task_support(tools: &Bytes, patch: &mut Patch) {
    if memchr::memmem::find(tools, b"taskSupport").is_none() {
        return;
    }
    let Ok(list) = serde_json::from_slice::<Vec<&RawValue>>(tools) else { return };
    for raw in list {
        let Ok(tool) = Object::read(&tools.slice_ref(raw.get().as_bytes())) else { continue };
        let Some(Ok(execution)) = tool.get("execution").map(|raw| Object::read(&raw)) else { continue };
        let mut inner = Edit::new(&execution);
        inner.remove("taskSupport");
        if inner.leaves_nothing() {
            let mut edit = Edit::new(&tool);
            edit.remove("execution");
            edit.put(patch);
        } else {
            inner.put(patch);
        }
    }
}

/// Whether the result of a `resources/read` is an empty list, by which some servers say that there
/// is no such resource.
pub fn has_no_contents(result: &Bytes) -> bool {
    Object::read(result)
        .ok()
        .and_then(|object| {
            serde_json::from_slice::<Vec<&RawValue>>(&object.get("contents")?).ok().map(|c| c.is_empty())
        })
        .unwrap_or(false)
}

/// `-32602` naming the resource that is not there (2026-07-28, *Resources, Error Handling*).
pub fn no_such_resource(uri: &str) -> ErrorObject {
    ErrorObject::with_data(code::INVALID_PARAMS, format!("Resource not found: {uri}"), &json!({ "uri": uri }))
}

/// The server's error for the client. Codes that mean something else in the client's era, or
/// nothing, are changed ([`ErrorObject::of_this_era`]); the words stay, and nothing is lost.
pub fn error(call: &Call, error: &Bytes) -> ErrorObject {
    let error = ErrorObject::from_raw(error.clone()).of_this_era();
    match call.target.as_deref() {
        // 2026-07-28, *Resources, Error Handling*: it names the resource.
        Some(uri) if call.method == Method::ResourcesRead && error.code() == code::INVALID_PARAMS => {
            naming(&error, uri)
        }
        _ => error,
    }
}

/// The same error, naming a resource in its `data` unless the server has put something there.
fn naming(error: &ErrorObject, uri: &str) -> ErrorObject {
    let Ok(object) = Object::read(error.as_bytes()) else { return error.clone() };
    let mut edit = Edit::new(&object);
    edit.set_if_absent("data", json!({ "uri": uri }).to_string());
    ErrorObject::from_raw(edit.apply())
}

/// `-32021` for a call that failed after its server had asked what this client cannot be asked.
pub fn question_refused(missing: &Value) -> ErrorObject {
    ErrorObject::missing_capability("The server asked for something this client did not declare", missing)
}
