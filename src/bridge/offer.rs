//! Offers the tasks of 2025-11-25 on behalf of a server without tasks: the additions to its responses, and
//! the removals from a call that becomes a task.
//!
//! Every other byte of these messages is preserved ([`crate::manual::passthrough`]).

use crate::{
    policy::Mode,
    protocol::{
        Frame, InputRequest, Kind, Payload, RequestId, Revision,
        frame::to_single_line,
        meta,
        splice::{BytesPatch, JsonObject, ObjectEdit, items},
    },
    task::TaskId,
};
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;

/// The prefix of the ids of input requests that the proxy sends to clients; servers use numbers.
const PREFIX: &str = "deferral:";

/// The task support of a server, from its response to `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTaskSupport {
    /// The server has tasks of its own: nothing is added.
    Native,
    /// The server has no tasks. `offer` is its response with the proxy's tasks added, if it has tools.
    Missing { offer: Option<Bytes> },
}

/// The task parameters of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskParam {
    /// The requested retention of the task, from its creation on.
    pub ttl: Option<Duration>,
    /// It is in `_meta`, as in a draft of SEP-1686, instead of `params.task`.
    pub is_draft: bool,
}

/// `params.task` is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTaskParam {
    #[error("params.task must be an object")]
    NotAnObject,
    #[error("params.task.ttl must be a number of milliseconds, not negative")]
    Ttl,
}

/// Reads a server's response to `initialize`. `lists` is whether a client's tasks can be distinguished from
/// others', so that they can be listed (2025-11-25, *Tasks, Task Isolation and Access Control*).
///
/// `None` if it is no such response, or if it does not determine task support: a server with tasks need not
/// declare them in a revision without tasks.
pub fn task_support(answer: &Frame, lists: bool) -> Option<ServerTaskSupport> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
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
    if lists {
        tasks["list"] = json!({});
    }
    let mut edit = ObjectEdit::new(&capabilities);
    edit.set("tasks", tasks.to_string());
    let mut patch = BytesPatch::new(answer.as_bytes().clone());
    edit.add_to(&mut patch);
    Some(ServerTaskSupport::Missing { offer: Some(patch.apply()) })
}

/// A server's response to `tools/list` with `execution.taskSupport` set on each tool according to `mode`.
/// `None` if nothing changes.
///
/// A tool that cannot be a task has `forbidden` or no value, whatever the server declares about tasks that it
/// does not have.
pub fn tools(answer: &Frame, mut mode: impl FnMut(&str) -> Mode) -> Option<Bytes> {
    let Kind::Success { result, .. } = answer.kind() else { return None };
    let tools = items(&result.get("tools")?)?;
    let mut patch = BytesPatch::new(answer.as_bytes().clone());
    let mut changes = false;
    for tool in &tools {
        let Ok(tool) = JsonObject::read(tool) else { continue };
        let Some(name) = tool.string("name") else { continue };
        let support = match mode(&name) {
            Mode::Auto | Mode::Always => Some("\"optional\""),
            Mode::Required => Some("\"required\""),
            Mode::Never | Mode::Observe | Mode::Deny => None,
        };
        changes |= set_support(&tool, support, &mut patch);
    }
    changes.then(|| patch.apply())
}

fn set_support(tool: &JsonObject, support: Option<&'static str>, patch: &mut BytesPatch) -> bool {
    let execution = tool.get("execution").map(|raw| JsonObject::read(&raw));
    match (execution, support) {
        (Some(Ok(execution)), support) => {
            let said = execution.get("taskSupport");
            let mut inner = ObjectEdit::new(&execution);
            match (support, said.as_deref()) {
                (Some(support), said) if said != Some(support.as_bytes()) => {
                    inner.set("taskSupport", support)
                }
                (None, Some(said)) if said != b"\"forbidden\"" => inner.set("taskSupport", "\"forbidden\""),
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

/// The task parameters of a `tools/call`, if it requests a task.
///
/// # Errors
/// [`InvalidTaskParam`].
pub fn task_param(params: &Payload) -> Result<Option<TaskParam>, InvalidTaskParam> {
    let Some(task) = params.get("task") else { return Ok(draft_task_param(params)) };
    let task = JsonObject::read(&task).map_err(|_| InvalidTaskParam::NotAnObject)?;
    Ok(Some(TaskParam { ttl: requested_ttl(task.get("ttl"))?, is_draft: false }))
}

/// The task parameters in `_meta`. An invalid value there is not for the proxy, and ignored.
fn draft_task_param(params: &Payload) -> Option<TaskParam> {
    let task = JsonObject::read(&params.meta()?.get(meta::DRAFT_TASK)?).ok()?;
    // An earlier draft called it `keepAlive`.
    let ttl = requested_ttl(task.get("ttl").or_else(|| task.get("keepAlive"))).ok()?;
    Some(TaskParam { ttl, is_draft: true })
}

fn requested_ttl(ttl: Option<Bytes>) -> Result<Option<Duration>, InvalidTaskParam> {
    Ok(match ttl {
        None => None,
        // Unlimited: as long as is granted.
        Some(raw) if raw == "null" => Some(Duration::MAX),
        Some(raw) => {
            let millis: f64 = serde_json::from_slice(&raw).map_err(|_| InvalidTaskParam::Ttl)?;
            if millis < 0.0 {
                return Err(InvalidTaskParam::Ttl);
            }
            // The cast saturates.
            Some(Duration::from_millis(millis as u64))
        }
    })
}

/// The progress token in the `_meta` of a call.
pub fn progress_token(params: &Payload) -> Option<Bytes> {
    params.meta()?.get(meta::PROGRESS_TOKEN)
}

/// The call as it is sent in the client's session: with the proxy's id, without `params.task` (or its draft),
/// and with a progress token, which is the proxy's if the client sent none.
pub fn call(message: &Frame, hop: u64) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    let Kind::Request { id, params, .. } = message.kind() else { return message.as_bytes().clone() };
    let number = RequestId::from_number(hop);
    patch.replace(id.as_bytes(), number.as_bytes().clone());
    let Some((params, object)) = params.as_ref().and_then(|params| Some((params, params.object()?))) else {
        return patch.apply();
    };
    let mut edit = ObjectEdit::new(object);
    edit.remove("task");
    match params.meta() {
        Some(about) => {
            let mut inner = ObjectEdit::new(about);
            inner.set_if_absent(meta::PROGRESS_TOKEN, number.as_bytes().clone());
            inner.remove(meta::DRAFT_TASK);
            inner.add_to(&mut patch);
        }
        // `_meta` is no object.
        None if object.contains("_meta") => {}
        None => {
            edit.set("_meta", Bytes::from([br#"{"progressToken":"#, &**number.as_bytes(), b"}"].concat()));
        }
    }
    edit.add_to(&mut patch);
    patch.apply()
}

/// The call without `params.task` (or its draft).
pub fn without_task(message: &Frame) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let Some((params, object)) = message.params().and_then(|params| Some((params, params.object()?))) {
        let mut edit = ObjectEdit::new(object);
        edit.remove("task");
        if let Some(about) = params.meta() {
            let mut inner = ObjectEdit::new(about);
            inner.remove(meta::DRAFT_TASK);
            inner.add_to(&mut patch);
        }
        edit.add_to(&mut patch);
    }
    patch.apply()
}

/// A message of the server with its task in `_meta`, on one line. `id` replaces a request's own id.
pub fn with_related_task(message: &Frame, task: &str, id: Option<&RequestId>) -> Bytes {
    let (own, params) = match message.kind() {
        Kind::Request { id, params, .. } => (Some(id), params),
        Kind::Notification { params, .. } => (None, params),
        Kind::Success { .. } | Kind::Failure { .. } => return to_single_line(message.as_bytes().clone()),
    };
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let (Some(own), Some(id)) = (own, id) {
        patch.replace(own.as_bytes(), id.as_bytes().clone());
    }
    let related = json!({ "taskId": task }).to_string();
    let about = format!(r#"{{"{}":{related}}}"#, meta::RELATED_TASK);
    match params.as_ref().map(|params| (params.object(), params.meta())) {
        Some((Some(params), inner)) => {
            let mut edit = ObjectEdit::new(params);
            match inner {
                Some(inner) => {
                    let mut inner = ObjectEdit::new(inner);
                    inner.set(meta::RELATED_TASK, related);
                    inner.add_to(&mut patch);
                }
                None => drop(edit.set("_meta", about)),
            }
            edit.add_to(&mut patch);
            to_single_line(patch.apply())
        }
        // A request without params gets some.
        Some((None, _)) | None => {
            let Ok(whole) = JsonObject::read(message.as_bytes()) else {
                return to_single_line(patch.apply());
            };
            let mut edit = ObjectEdit::new(&whole);
            edit.set("params", format!(r#"{{"_meta":{about}}}"#));
            edit.add_to(&mut patch);
            to_single_line(patch.apply())
        }
    }
}

/// A request of the server with the proxy's id, on one line.
pub fn with_id(message: &Frame, id: &RequestId) -> Bytes {
    let mut patch = BytesPatch::new(message.as_bytes().clone());
    if let Kind::Request { id: own, .. } = message.kind() {
        patch.replace(own.as_bytes(), id.as_bytes().clone());
    }
    to_single_line(patch.apply())
}

/// A stored input request (`{method, params}`) as a request with this id, and with its task in `_meta` if the
/// client knows the task.
pub fn input_request_message(question: &InputRequest, id: &RequestId, task: Option<&str>) -> Bytes {
    let about = match task {
        Some(task) => format!(r#"{{"{}":{}}}"#, meta::RELATED_TASK, json!({ "taskId": task })),
        None => "{}".to_owned(),
    };
    let params = match question.params().as_ref().map(JsonObject::read) {
        Some(Ok(params)) => {
            let mut edit = ObjectEdit::new(&params);
            edit.set("_meta", about);
            edit.apply()
        }
        Some(Err(_)) | None => format!(r#"{{"_meta":{about}}}"#).into(),
    };
    let method = question.kind().method();
    let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
    [head.as_bytes(), &params, b"}"].concat().into()
}

/// The id of a task's input request. It contains the task and the key, so that the response finds them
/// without stored state.
pub fn input_request_id(task: &TaskId, key: &str) -> RequestId {
    let text = serde_json::to_string(&format!("{PREFIX}{}:{key}", task.as_str()));
    RequestId::from_token(text.expect("a string is written to memory").into()).expect("a string is an id")
}

/// Whether an id is that of an input request of the proxy.
pub fn is_own_input_request(id: &RequestId) -> bool {
    id.value().starts_with(br#""deferral:"#)
}

/// The task and the key in the id of an input request.
pub fn parse_input_request_id(id: &RequestId) -> Option<(TaskId, String)> {
    let text: String = serde_json::from_slice(id.as_bytes()).ok()?;
    let (task, key) = text.strip_prefix(PREFIX)?.split_once(':')?;
    Some((TaskId::parse(task)?, key.to_owned()))
}

/// A client's response without its task, which the server does not know.
pub fn without_related_task(result: &Bytes) -> Bytes {
    let Ok(object) = JsonObject::read(result) else { return result.clone() };
    let Some(Ok(about)) = object.get("_meta").map(|raw| JsonObject::read(&raw)) else {
        return result.clone();
    };
    if !about.contains(meta::RELATED_TASK) {
        return result.clone();
    }
    let mut patch = BytesPatch::new(result.clone());
    let mut inner = ObjectEdit::new(&about);
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
        let Some(ServerTaskSupport::Missing { offer: Some(offer) }) = task_support(&answer, true) else {
            panic!("offered")
        };
        expect![[r#"{ "id":0,"jsonrpc":"2.0", "result":{"capabilities":{"tools":{ "listChanged" :true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}},"protocolVersion":"2025-11-25","x":1e400} }"#]].assert_eq(&text(&offer));
        let Some(ServerTaskSupport::Missing { offer: Some(offer) }) = task_support(&answer, false) else {
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
        let of = |version, capabilities| task_support(&answer(version, capabilities), true);
        assert_eq!(of("2025-06-18", r#"{"tools":{}}"#), None, "it may have tasks in a newer one");
        assert_eq!(of("2025-06-18", r#"{"tools":{},"tasks":{}}"#), Some(ServerTaskSupport::Native));
        assert_eq!(of("2025-11-25", r#"{"prompts":{}}"#), Some(ServerTaskSupport::Missing { offer: None }));
        assert_eq!(of("2025-11-25", r#"{"tools":{},"tasks":{}}"#), Some(ServerTaskSupport::Native));
        assert_eq!(
            task_support(&frame(r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":""}}"#), true),
            None
        );
    }

    #[test]
    fn tools_declare_task_support_by_policy() {
        let answer = frame(
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"auto","n":1.0},{"name":"required","execution":{"x":1}},{"name":"never"},{"name":"never","execution":{"taskSupport":"optional"}},{"name":"auto","execution":{"taskSupport":"forbidden"}},{"name":"never","execution":{"taskSupport":"forbidden"}}],"nextCursor":"c"}}"#,
        );
        let mode = |name: &str| name.parse::<Mode>().expect("a mode");
        let edited = tools(&answer, mode).expect("changes");
        expect![[r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"auto","n":1.0,"execution":{"taskSupport":"optional"}},{"name":"required","execution":{"x":1,"taskSupport":"required"}},{"name":"never"},{"name":"never","execution":{"taskSupport":"forbidden"}},{"name":"auto","execution":{"taskSupport":"optional"}},{"name":"never","execution":{"taskSupport":"forbidden"}}],"nextCursor":"c"}}"#]].assert_eq(&text(&edited));
        assert_eq!(
            tools(&answer, |_| Mode::Never).map(|edited| text(&edited).contains("optional")),
            Some(false)
        );
        assert_eq!(
            tools(&frame(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"}]}}"#), |_| Mode::Never),
            None
        );
    }

    #[test]
    fn a_task_param_is_read_strictly() {
        let of = |task: &str| task_param(&Payload::read(format!(r#"{{"name":"a","task":{task}}}"#).into()));
        let of_draft = |draft: &str| {
            let params = format!(r#"{{"name":"a","_meta":{{"modelcontextprotocol.io/task":{draft}}}}}"#);
            task_param(&Payload::read(params.into()))
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
        assert_eq!(task_param(&Payload::read(Bytes::from_static(br#"{"name":"task"}"#))), Ok(None));
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
        let sent = |message: &str| text(&call(&frame(message), 9));
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
