//! Revisions 2025-03-26 to 2025-11-25 over Streamable HTTP: a handshake, a session, and several streams on
//! any of which the server may send messages.
//!
//! A [`LegacySession`] makes one call at a time. Messages of all its streams go to one queue: responses to
//! its requests, input requests of the server, progress, and task notifications. An input request does not
//! end the request it belongs to: the streams are read on while it waits for its response.
//!
//! `handshake` opens and closes the session, `transport` sends its requests and `streams` reads responses and
//! streams, `resume` resumes a broken stream, `input_requests` has those of the server, `task` follows a call
//! that became a task (2025-11-25, *Tasks*).

mod handshake;
mod input_requests;
mod resume;
mod streams;
mod task;
mod transport;

use super::{
    CallEnding, CallStep, CallTurn, ClientSupport, Error, InputResponseMap, Progress, StepObserver, ToolCall,
    http_transport::HttpTransport,
    message::{JsonRpcRequest, JsonRpcResponse},
};
use crate::protocol::{Frame, InputKind, Kind, Method, RequestId, Revision, code, meta, splice::JsonObject};
use http::{HeaderMap, Uri};
use input_requests::InputRequests;
use serde::Serialize;
use serde_json::{json, value::RawValue};
use std::{mem, time::Duration};
use streams::{StreamEvent, StreamReaders};
use task::{FollowedTask, LegacyTaskView};
use transport::SessionTransport;

/// Requested retention of a task from its creation: long enough for a slow tool, and for a person who must
/// respond to an input request.
const TASK_TTL: Duration = Duration::from_secs(60 * 60);

/// A session with one server, open or not.
pub struct LegacySession {
    streams: StreamReaders,
    /// The capabilities that the client declares.
    declared: ClientSupport,
    /// The requested revision; after the handshake, the negotiated one.
    pub(super) revision: Revision,
    /// The task support that the server declares.
    tasks: TaskSupport,
    /// Whether the tool is called as a task: both sides support that.
    calls_as_task: bool,
    input_requests: InputRequests,
    active_call: ActiveCall,
    /// What the session continues with once input responses are sent; `Some` while input requests are open.
    input_pause: Option<InputPause>,
    /// The progress token of the call: the id of its request. It stays valid for a task's whole life
    /// (2025-11-25, *Task Progress Notifications*).
    progress_token: Option<u64>,
    next_id: u64,
}

/// Task support of a server.
#[derive(Clone, Copy, Debug, Default)]
struct TaskSupport {
    /// Whether the server declares `tasks.requests.tools.call`.
    supports_calls: bool,
    /// Whether the server declares `tasks.cancel`.
    supports_cancel: bool,
}

/// The call that [`LegacySession::cancel`] would cancel.
#[derive(Debug, Default)]
enum ActiveCall {
    #[default]
    Idle,
    /// A request without a task.
    Call(u64),
    /// A request whose task is being created. It can be cancelled only as a task (2025-11-25, *Cancellation,
    /// Behavior Requirements*).
    Creating(u64),
    Task(String),
}

/// What a session continues with once input responses are sent.
enum InputPause {
    /// The wait for the response to the request with this id.
    Call(u64),
    /// The task of the call.
    Task(Box<FollowedTask>),
}

#[derive(Serialize)]
struct LegacyCallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskParams>,
    #[serde(rename = "_meta")]
    meta: serde_json::Value,
}

#[derive(Serialize)]
struct TaskParams {
    ttl: u128,
}

// === impl LegacySession ===

impl LegacySession {
    /// Creates a session that is not open yet. `revision` is the revision to request in the handshake.
    pub fn new(url: Uri, headers: HeaderMap, declared: ClientSupport, revision: Revision) -> Self {
        Self {
            streams: StreamReaders::new(SessionTransport::new(HttpTransport::new(url, headers))),
            declared,
            revision,
            tasks: TaskSupport::default(),
            calls_as_task: false,
            input_requests: InputRequests::default(),
            active_call: ActiveCall::Idle,
            input_pause: None,
            progress_token: None,
            next_id: 1,
        }
    }

    /// Opens the session, and looks up whether `tool` can be a task, if it is given.
    pub(super) async fn open(&mut self, tool: Option<&str>, on_step: StepObserver<'_>) -> Result<(), Error> {
        self.initialize(on_step).await?;
        let pending_stream = self.streams.listen();
        match tool {
            Some(tool) if self.declared.tasks && self.tasks.supports_calls => {
                self.calls_as_task = self.can_be_task(tool, on_step).await?;
            }
            // A proxy gives tickets only to clients that have listed the tools that take them.
            Some(tool) if !self.declared.tasks => drop(self.can_be_task(tool, on_step).await),
            Some(_) | None => {}
        }
        pending_stream.wait_until_open().await;
        Ok(())
    }

    /// Calls a tool, and follows its task if the call becomes one.
    pub(super) async fn call(
        &mut self,
        call: &ToolCall<'_>,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        self.progress_token = Some(self.next_id);
        let params = LegacyCallParams {
            name: call.tool,
            arguments: call.arguments,
            task: self.calls_as_task.then(|| TaskParams { ttl: TASK_TTL.as_millis() }),
            meta: json!({ meta::PROGRESS_TOKEN: self.next_id }),
        };
        let id = self.request(&Method::ToolsCall, params);
        self.active_call = if self.calls_as_task { ActiveCall::Creating(id) } else { ActiveCall::Call(id) };
        self.await_result(id, on_step).await
    }

    /// Sends input responses, and continues the call or its task.
    pub(super) async fn respond(
        &mut self,
        responses: &InputResponseMap,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let sent = self.send_responses(responses).await;
        match self.input_pause.take().expect("responses follow input requests") {
            InputPause::Call(id) => {
                sent?;
                self.await_result(id, on_step).await
            }
            InputPause::Task(followed) => {
                sent.map_err(|error| error.with_task(&followed.task.id))?;
                self.follow(*followed, on_step).await
            }
        }
    }

    /// Cancels the active call or its task, if there is one.
    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        match mem::take(&mut self.active_call) {
            ActiveCall::Idle => Ok(()),
            ActiveCall::Call(id) => {
                let params = json!({ "requestId": id, "reason": "cancelled by the user" });
                let notification =
                    json!({ "jsonrpc": "2.0", "method": Method::Cancelled.as_str(), "params": params });
                self.streams.transport.send(notification.to_string()).await
            }
            ActiveCall::Creating(id) => match self.wait_for_response(id, &mut |_| {}).await? {
                JsonRpcResponse::Result(result) => match LegacyTaskView::from_created(&result)? {
                    Some(task) => self.cancel_task(&task.id).await,
                    None => Ok(()),
                },
                JsonRpcResponse::Error(_) => Ok(()),
            },
            ActiveCall::Task(id) => self.cancel_task(&id).await,
        }
    }

    /// Sends a request, whose response arrives as an event. Returns its id.
    fn request(&mut self, method: &Method, params: impl Serialize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.streams.request(id, JsonRpcRequest::new(id, method.as_str(), params).to_json());
        id
    }

    /// Waits for the response to this request. Input requests that arrive before it are kept.
    async fn wait_for_response(
        &mut self,
        id: u64,
        on_step: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        loop {
            match self.streams.next().await {
                StreamEvent::Response { id: response_id, response } if response_id == id => return response,
                // This response is to a request that is no longer waited for.
                StreamEvent::Response { .. } => {}
                StreamEvent::Message(frame) => drop(self.handle_message(&frame, on_step)),
            }
        }
    }

    /// Waits for the result of the call, or for input requests before it.
    async fn await_result(&mut self, id: u64, on_step: StepObserver<'_>) -> Result<CallTurn, Error> {
        loop {
            let requests = self.input_requests.open();
            if !requests.is_empty() {
                self.input_pause = Some(InputPause::Call(id));
                return Ok(CallTurn::InputRequired(requests));
            }
            let outcome = match self.streams.next().await {
                StreamEvent::Response { id: response_id, response } if response_id == id => response,
                StreamEvent::Response { .. } => continue,
                StreamEvent::Message(frame) => {
                    drop(self.handle_message(&frame, on_step));
                    continue;
                }
            };
            self.active_call = ActiveCall::Idle;
            let result = match outcome? {
                JsonRpcResponse::Result(result) => result,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
            // A server may answer a task request with a result, and the reverse.
            let Some(task) = LegacyTaskView::from_created(&result)? else {
                return Ok(CallEnding::Result(result).into());
            };
            if !self.declared.tasks {
                return Err(Error::UndeclaredTask { task: task.id });
            }
            self.active_call = ActiveCall::Task(task.id.clone());
            on_step(CallStep::Handle(&task));
            return self.follow(FollowedTask::new(task), on_step).await;
        }
    }

    /// Sends the responses to open input requests.
    async fn send_responses(&mut self, responses: &InputResponseMap) -> Result<(), Error> {
        for (key, value) in responses {
            if let Some((id, result)) = self.input_requests.take(key, value) {
                self.streams.transport.send(format_response(&id, "result", &result)).await?;
            }
        }
        Ok(())
    }

    /// Handles a message that is no response to a request. Returns the task view it contains, if any.
    fn handle_message(&mut self, frame: &Frame, on_step: StepObserver<'_>) -> Option<LegacyTaskView> {
        match frame.kind() {
            Kind::Request { id, method: Method::Ping, .. } => {
                self.streams.respond(format_response(id, "result", b"{}"));
                None
            }
            Kind::Request { id, method, .. } => {
                let is_declared = InputKind::from_method(method)
                    .is_some_and(|kind| self.declared.includes(kind, self.revision));
                if !(is_declared && self.input_requests.add(frame)) {
                    if InputKind::from_method(method).is_some() {
                        on_step(CallStep::Refused { method: method.as_str() });
                    }
                    let error = json!({
                        "code": code::METHOD_NOT_FOUND,
                        "message": format!("this client does not support {method}"),
                    });
                    self.streams.respond(format_response(id, "error", error.to_string().as_bytes()));
                }
                None
            }
            Kind::Notification { method: Method::Cancelled, params: Some(params) } => {
                let id = JsonObject::read(params).ok().and_then(|params| params.get("requestId"));
                if let Some(id) = id.and_then(RequestId::from_token) {
                    self.input_requests.cancel(&id);
                }
                None
            }
            Kind::Notification { method: Method::TaskStatus, params: Some(params) } => {
                serde_json::from_slice(params).ok()
            }
            Kind::Notification { .. } => {
                if let Some(progress) =
                    self.progress_token.and_then(|token| Progress::from_frame(frame, token))
                {
                    on_step(CallStep::Progress(progress));
                }
                None
            }
            Kind::Success { .. } | Kind::Failure { .. } => None,
        }
    }
}

/// Formats a JSON-RPC response; `value` is raw JSON, and `member` is `result` or `error`.
fn format_response(id: &RequestId, member: &str, value: &[u8]) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{}}}"#, String::from_utf8_lossy(value))
}
