//! Offers the tasks of 2025-11-25 on behalf of a server without tasks: adds task support to its responses,
//! and removes the task parameters from calls.
//!
//! Every other byte of these messages is preserved ([`crate::manual::passthrough`]).

use crate::{
    policy::Mode,
    protocol::{
        Frame, InputRequest, Kind, Payload, RequestId, Revision,
        frame::to_single_line,
        meta,
        splice::{BytesPatch, JsonObject, ObjectEdit, array_items},
    },
    task::TaskId,
};
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;

/// The prefix of the ids of input requests that the proxy sends to clients, by which it recognises the
/// responses.
const INPUT_REQUEST_ID_PREFIX: &str = "deferral:";

/// The task support of a server, from its response to `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTaskSupport {
    /// The server has tasks of its own: nothing is added.
    Native,
    /// The server has no tasks. `offer` is the server's response with the proxy's tasks added; `None` if the
    /// server has no tools.
    Missing { offer: Option<Bytes> },
}

/// The task parameters of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskParam {
    /// The requested retention of the task, counted from its creation; `None` if the client requested none,
    /// `Duration::MAX` for unlimited.
    pub ttl: Option<Duration>,
    /// Whether the parameters were in `_meta`, as in a draft of SEP-1686, instead of in `params.task`.
    pub is_draft: bool,
}

/// Error: `params.task` of a call is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTaskParam {
    #[error("params.task must be an object")]
    NotAnObject,
    #[error("params.task.ttl must be a number of milliseconds, not negative")]
    Ttl,
}

/// Reads the task support of a server from its response to `initialize`. `can_list` tells whether a client's
/// tasks can be distinguished from those of others, so that `tasks/list` can be offered (2025-11-25, *Tasks,
/// Task Isolation and Access Control*).
///
/// `None` if the message is not such a response, or if the response does not determine task support: a server
/// with tasks need not declare them when it negotiates a revision without tasks.
pub fn read_task_support(response: &Frame, can_list: bool) -> Option<ServerTaskSupport> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    let capabilities = JsonObject::read(&result.get("capabilities")?).ok()?;
    if capabilities.contains("tasks") {
        return Some(ServerTaskSupport::Native);
    }
    let revision = result.string("protocolVersion").and_then(|version| Revision::parse(&version));
    if !revision.is_some_and(Revision::has_tasks) {
        return None;
    }
    if !capabilities.contains("tools") {
        return Some(ServerTaskSupport::Missing { offer: None });
    }
    let mut tasks = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
    if can_list {
        tasks["list"] = json!({});
    }
    let mut edit = ObjectEdit::new(&capabilities);
    edit.set("tasks", tasks.to_string());
    let mut patch = BytesPatch::new(response.as_bytes().clone());
    edit.add_to(&mut patch);
    Some(ServerTaskSupport::Missing { offer: Some(patch.apply()) })
}

/// Sets `execution.taskSupport` on each tool in a server's response to `tools/list`, according to the tool's
/// `mode`. Returns `None` if nothing changes.
///
/// A tool that cannot run as a task gets the value `forbidden` or none, whatever the server declares about
/// tasks that it does not have.
pub fn edit_tool_list(response: &Frame, mut mode: impl FnMut(&str) -> Mode) -> Option<Bytes> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    let tools = array_items(&result.get("tools")?)?;
    let mut patch = BytesPatch::new(response.as_bytes().clone());
    let mut has_changes = false;
    for tool in &tools {
        let Ok(tool) = JsonObject::read(tool) else { continue };
        let Some(name) = tool.string("name") else { continue };
        let support = match mode(&name) {
            Mode::Auto | Mode::Always => Some("\"optional\""),
            Mode::Required => Some("\"required\""),
            Mode::Never | Mode::Observe | Mode::Deny => None,
        };
        has_changes |= set_support(&tool, support, &mut patch);
    }
    has_changes.then(|| patch.apply())
}

/// Sets `execution.taskSupport` of one tool (`None`: not supported). Returns whether the tool changes.
fn set_support(tool: &JsonObject, support: Option<&'static str>, patch: &mut BytesPatch) -> bool {
    let execution = tool.get("execution").map(|raw| JsonObject::read(&raw));
    match (execution, support) {
        (Some(Ok(execution)), support) => {
            let current = execution.get("taskSupport");
            let mut inner = ObjectEdit::new(&execution);
            match (support, current.as_deref()) {
                (Some(support), current) if current != Some(support.as_bytes()) => {
                    inner.set("taskSupport", support)
                }
                (None, Some(current)) if current != b"\"forbidden\"" => {
                    inner.set("taskSupport", "\"forbidden\"")
                }
                _ => return false,
            };
            inner.add_to(patch);
        }
        (_, Some(support)) => {
            let mut edit = ObjectEdit::new(tool);
            edit.set("execution", format!(r#"{{"taskSupport":{support}}}"#));
            edit.add_to(patch);
        }
        (_, None) => return false,
    }
    true
}

/// Reads the task parameters of a `tools/call`; `None` if the call requests no task.
///
/// # Errors
/// [`InvalidTaskParam`] if `params.task` is not an object or its `ttl` is not a number of milliseconds.
pub fn read_task_param(params: &Payload) -> Result<Option<TaskParam>, InvalidTaskParam> {
    let Some(task) = params.get("task") else { return Ok(read_draft_task_param(params)) };
    let task = JsonObject::read(&task).map_err(|_| InvalidTaskParam::NotAnObject)?;
    Ok(Some(TaskParam { ttl: read_ttl(task.get("ttl"))?, is_draft: false }))
}

/// Reads the task parameters in `_meta` of a draft of SEP-1686. An invalid value is ignored: the key may mean
/// something else to the server.
fn read_draft_task_param(params: &Payload) -> Option<TaskParam> {
    let task = JsonObject::read(&params.meta()?.get(meta::DRAFT_TASK)?).ok()?;
    // An earlier draft of SEP-1686 calls the member `keepAlive`.
    let ttl = read_ttl(task.get("ttl").or_else(|| task.get("keepAlive"))).ok()?;
    Some(TaskParam { ttl, is_draft: true })
}

/// Reads a `ttl` in milliseconds; `None` if it is absent.
fn read_ttl(ttl: Option<Bytes>) -> Result<Option<Duration>, InvalidTaskParam> {
    Ok(match ttl {
        None => None,
        // `null` requests unlimited retention; the policy caps it.
        Some(raw) if raw == "null" => Some(Duration::MAX),
        Some(raw) => {
            let millis: f64 = serde_json::from_slice(&raw).map_err(|_| InvalidTaskParam::Ttl)?;
            if millis < 0.0 {
                return Err(InvalidTaskParam::Ttl);
            }
            // The cast from `f64` saturates.
            Some(Duration::from_millis(millis as u64))
        }
    })
}

/// Returns the raw JSON of the progress token in the `_meta` of a call's parameters.
pub fn progress_token(params: &Payload) -> Option<Bytes> {
    params.meta()?.get(meta::PROGRESS_TOKEN)
}

/// Rewrites a client's call for sending in the client's own session: with the id `call_id` of the proxy,
/// without `params.task` (or its draft), and with a progress token, which is the proxy's if the client sent
/// none.
pub fn rewrite_call(message: &Frame, call_id: u64) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    let Kind::Request { id, params, .. } = message.kind() else { return message.as_bytes().clone() };
    let proxy_id = RequestId::from_number(call_id);
    patch.replace(id.as_bytes(), proxy_id.as_bytes().clone());
    let Some((params, object)) = params.as_ref().and_then(|params| Some((params, params.object()?))) else {
        return patch.apply();
    };
    let mut edit = ObjectEdit::new(object);
    edit.remove("task");
    match params.meta() {
        Some(meta_object) => {
            let mut inner = ObjectEdit::new(meta_object);
            inner.set_if_absent(meta::PROGRESS_TOKEN, proxy_id.as_bytes().clone());
            inner.remove(meta::DRAFT_TASK);
            inner.add_to(&mut patch);
        }
        // `_meta` is present but not an object, and stays unchanged.
        None if object.contains("_meta") => {}
        None => {
            edit.set("_meta", Bytes::from([br#"{"progressToken":"#, &**proxy_id.as_bytes(), b"}"].concat()));
        }
    }
    edit.add_to(&mut patch);
    patch.apply()
}

/// Returns the call without `params.task` (or its draft), otherwise unchanged.
pub fn remove_task_param(message: &Frame) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let Some((params, object)) = message.params().and_then(|params| Some((params, params.object()?))) {
        let mut edit = ObjectEdit::new(object);
        edit.remove("task");
        if let Some(meta_object) = params.meta() {
            let mut inner = ObjectEdit::new(meta_object);
            inner.remove(meta::DRAFT_TASK);
            inner.add_to(&mut patch);
        }
        edit.add_to(&mut patch);
    }
    patch.apply()
}

/// Adds the related task to the `_meta` of a server's message, and puts the message on one line. `id`, if
/// present, replaces the id of a request.
pub fn with_related_task(message: &Frame, task: &str, id: Option<&RequestId>) -> Bytes {
    let (original_id, params) = match message.kind() {
        Kind::Request { id, params, .. } => (Some(id), params),
        Kind::Notification { params, .. } => (None, params),
        Kind::Success { .. } | Kind::Failure { .. } => return to_single_line(message.as_bytes().clone()),
    };
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let (Some(replaced_id), Some(id)) = (original_id, id) {
        patch.replace(replaced_id.as_bytes(), id.as_bytes().clone());
    }
    let related = json!({ "taskId": task }).to_string();
    let meta_json = format!(r#"{{"{}":{related}}}"#, meta::RELATED_TASK);
    match params.as_ref().map(|params| (params.object(), params.meta())) {
        Some((Some(params), meta_object)) => {
            let mut edit = ObjectEdit::new(params);
            match meta_object {
                Some(meta_object) => {
                    let mut inner = ObjectEdit::new(meta_object);
                    inner.set(meta::RELATED_TASK, related);
                    inner.add_to(&mut patch);
                }
                None => drop(edit.set("_meta", meta_json)),
            }
            edit.add_to(&mut patch);
            to_single_line(patch.apply())
        }
        // A message without `params` gets `params` with a `_meta`.
        Some((None, _)) | None => {
            let Ok(whole) = JsonObject::read(message.as_bytes()) else {
                return to_single_line(patch.apply());
            };
            let mut edit = ObjectEdit::new(&whole);
            edit.set("params", format!(r#"{{"_meta":{meta_json}}}"#));
            edit.add_to(&mut patch);
            to_single_line(patch.apply())
        }
    }
}

/// Replaces the id of a server's request with an id of the proxy, and puts the message on one line.
pub fn with_id(message: &Frame, id: &RequestId) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let Kind::Request { id: original_id, .. } = message.kind() {
        patch.replace(original_id.as_bytes(), id.as_bytes().clone());
    }
    to_single_line(patch.apply())
}

/// Builds a JSON-RPC request with this id from a stored input request (`{method, params}`). `task` is added
/// to the `_meta` if the client knows the task.
pub fn input_request_message(input_request: &InputRequest, id: &RequestId, task: Option<&str>) -> Bytes {
    let meta_json = match task {
        Some(task) => format!(r#"{{"{}":{}}}"#, meta::RELATED_TASK, json!({ "taskId": task })),
        None => "{}".to_owned(),
    };
    let params = match input_request.params().as_ref().map(JsonObject::read) {
        Some(Ok(params)) => {
            let mut edit = ObjectEdit::new(&params);
            edit.set("_meta", meta_json);
            edit.apply()
        }
        Some(Err(_)) | None => format!(r#"{{"_meta":{meta_json}}}"#).into(),
    };
    let method = input_request.kind().method();
    let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
    [head.as_bytes(), &params, b"}"].concat().into()
}

/// Builds the id of a task's input request. The id contains the task's id and the key of the input request,
/// so that the response can be attributed without stored state.
pub fn input_request_id(task: &TaskId, key: &str) -> RequestId {
    let text = serde_json::to_string(&format!("{INPUT_REQUEST_ID_PREFIX}{}:{key}", task.as_str()));
    RequestId::from_token(text.expect("a string is written to memory").into()).expect("a string is an id")
}

/// Whether an id was built by [`input_request_id`] of this or another process.
pub fn is_own_input_request(id: &RequestId) -> bool {
    id.canonical_value().starts_with(br#""deferral:"#)
}

/// Reads the task's id and the key of the input request from an id; `None` if [`input_request_id`] did not
/// build the id.
pub fn parse_input_request_id(id: &RequestId) -> Option<(TaskId, String)> {
    let text: String = serde_json::from_slice(id.as_bytes()).ok()?;
    let (task, key) = text.strip_prefix(INPUT_REQUEST_ID_PREFIX)?.split_once(':')?;
    Some((TaskId::parse(task)?, key.to_owned()))
}

/// Removes the related task from the `_meta` of a client's response: the server does not know the proxy's
/// task.
pub fn without_related_task(result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let Some(Ok(meta_object)) = object.get("_meta").map(|raw| JsonObject::read(&raw)) else {
        return result.clone();
    };
    if !meta_object.contains(meta::RELATED_TASK) {
        return result.clone();
    }
    let mut patch = BytesPatch::new(result.clone());
    let mut inner = ObjectEdit::new(&meta_object);
    inner.remove(meta::RELATED_TASK);
    if inner.leaves_empty() {
        let mut edit = ObjectEdit::new(&object);
        edit.remove("_meta");
        edit.add_to(&mut patch);
    } else {
        inner.add_to(&mut patch);
    }
    patch.apply()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn frame(text: &str) -> Frame {
        Frame::parse(Bytes::copy_from_slice(text.as_bytes())).expect("a message")
    }

    fn text(bytes: &Bytes) -> String {
        String::from_utf8(bytes.to_vec()).expect("utf-8")
    }

    #[test]
    fn tasks_are_offered_without_touching_another_byte() {
        let answer = frame(
            r#"{ "id":0,"jsonrpc":"2.0", "result":{"capabilities":{"tools":{ "listChanged" :true}},"protocolVersion":"2025-11-25","x":1e400} }"#,
        );
        let Some(ServerTaskSupport::Missing { offer: Some(offer) }) = read_task_support(&answer, true) else {
            panic!("offered")
        };
        expect![[r#"{ "id":0,"jsonrpc":"2.0", "result":{"capabilities":{"tools":{ "listChanged" :true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}},"protocolVersion":"2025-11-25","x":1e400} }"#]].assert_eq(&text(&offer));
        let Some(ServerTaskSupport::Missing { offer: Some(offer) }) = read_task_support(&answer, false)
        else {
            panic!("offered")
        };
        assert!(!text(&offer).contains("list\":{}"), "nobody's list");
    }

    #[test]
    fn nothing_is_offered_where_it_would_not_be_understood_or_is_there_already() {
        let answer = |version: &str, capabilities: &str| {
            frame(&format!(
                r#"{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":"{version}","capabilities":{capabilities}}}}}"#
            ))
        };
        let of = |version, capabilities| read_task_support(&answer(version, capabilities), true);
        assert_eq!(of("2025-06-18", r#"{"tools":{}}"#), None, "it may have tasks in a newer one");
        assert_eq!(of("2025-06-18", r#"{"tools":{},"tasks":{}}"#), Some(ServerTaskSupport::Native));
        assert_eq!(of("2025-11-25", r#"{"prompts":{}}"#), Some(ServerTaskSupport::Missing { offer: None }));
        assert_eq!(of("2025-11-25", r#"{"tools":{},"tasks":{}}"#), Some(ServerTaskSupport::Native));
        assert_eq!(
            read_task_support(&frame(r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":""}}"#), true),
            None
        );
    }

    #[test]
    fn tools_declare_task_support_by_policy() {
        let answer = frame(
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"auto","n":1.0},{"name":"required","execution":{"x":1}},{"name":"never"},{"name":"never","execution":{"taskSupport":"optional"}},{"name":"auto","execution":{"taskSupport":"forbidden"}},{"name":"never","execution":{"taskSupport":"forbidden"}}],"nextCursor":"c"}}"#,
        );
        let mode = |name: &str| name.parse::<Mode>().expect("a mode");
        let edited = edit_tool_list(&answer, mode).expect("changes");
        expect![[r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"auto","n":1.0,"execution":{"taskSupport":"optional"}},{"name":"required","execution":{"x":1,"taskSupport":"required"}},{"name":"never"},{"name":"never","execution":{"taskSupport":"forbidden"}},{"name":"auto","execution":{"taskSupport":"optional"}},{"name":"never","execution":{"taskSupport":"forbidden"}}],"nextCursor":"c"}}"#]].assert_eq(&text(&edited));
        assert_eq!(
            edit_tool_list(&answer, |_| Mode::Never).map(|edited| text(&edited).contains("optional")),
            Some(false)
        );
        assert_eq!(
            edit_tool_list(&frame(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"}]}}"#), |_| {
                Mode::Never
            }),
            None
        );
    }

    #[test]
    fn a_task_param_is_read_strictly() {
        let of =
            |task: &str| read_task_param(&Payload::read(format!(r#"{{"name":"a","task":{task}}}"#).into()));
        let of_draft = |draft: &str| {
            let params = format!(r#"{{"name":"a","_meta":{{"modelcontextprotocol.io/task":{draft}}}}}"#);
            read_task_param(&Payload::read(params.into()))
        };
        let ttl = |millis| Ok(Some(TaskParam { ttl: Some(Duration::from_millis(millis)), is_draft: false }));
        assert_eq!(of("{}"), Ok(Some(TaskParam { ttl: None, is_draft: false })));
        assert_eq!(of(r#"{"ttl":60000}"#), ttl(60_000));
        assert_eq!(of(r#"{"ttl":1.5e3,"x":1}"#), ttl(1500));
        assert_eq!(of(r#"{"ttl":null}"#), Ok(Some(TaskParam { ttl: Some(Duration::MAX), is_draft: false })));
        for wrong in ["7", "null", "[]"] {
            assert_eq!(of(wrong), Err(InvalidTaskParam::NotAnObject), "{wrong}");
        }
        for wrong in [r#"{"ttl":"1"}"#, r#"{"ttl":-1}"#, r#"{"ttl":{}}"#] {
            assert_eq!(of(wrong), Err(InvalidTaskParam::Ttl), "{wrong}");
        }
        assert_eq!(read_task_param(&Payload::read(Bytes::from_static(br#"{"name":"task"}"#))), Ok(None));
        for (draft, millis) in
            [(r#"{"ttl":7}"#, Some(7)), (r#"{"taskId":"t","keepAlive":7}"#, Some(7)), ("{}", None)]
        {
            let ttl = millis.map(Duration::from_millis);
            assert_eq!(of_draft(draft), Ok(Some(TaskParam { ttl, is_draft: true })), "{draft}");
        }
        for nothing in ["7", "null", "[]", r#"{"ttl":-1}"#] {
            assert_eq!(of_draft(nothing), Ok(None), "{nothing}");
        }
    }

    #[test]
    fn a_call_loses_its_task_param_and_gets_a_progress_token() {
        let sent = |message: &str| text(&rewrite_call(&frame(message), 9));
        expect![[r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"a", "arguments":{ },"_meta":{"progressToken":9}}}"#]].assert_eq(&sent(
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"a","task":{"ttl":1}, "arguments":{ }}}"#,
        ));
        expect![[r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"_meta":{"progressToken":"t","k":1},"name":"a"}}"#]].assert_eq(&sent(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":"t","k":1},"name":"a","task":{}}}"#,
        ));
    }

    #[test]
    fn messages_of_a_task_name_it() {
        let id = RequestId::from_token(Bytes::from_static(b"\"ours\"")).expect("an id");
        let put = |message: &str| text(&with_related_task(&frame(message), "t", Some(&id)));
        expect![[r#"{"jsonrpc":"2.0","id":"ours","method":"elicitation/create","params":{"message":"?","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#]].assert_eq(&put(
            r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"message":"?"}}"#,
        ));
        expect![[r#"{"jsonrpc":"2.0","id":"ours","method":"roots/list","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#]].assert_eq(&put(
            r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#,
        ));
        expect![[r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1.0,"_meta":{"a":1,"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#]].assert_eq(&put(
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1.0,"_meta":{"a":1}}}"#,
        ));
        let bare = |result: &str| text(&without_related_task(&Bytes::copy_from_slice(result.as_bytes())));
        assert_eq!(
            bare(r#"{"action":"accept","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#),
            r#"{"action":"accept"}"#
        );
        assert_eq!(
            bare(r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"k":1},"a":1}"#),
            r#"{"_meta":{"k":1},"a":1}"#
        );
        assert_eq!(bare(r#"{"_meta":{"k":1}}"#), r#"{"_meta":{"k":1}}"#);
    }
}
