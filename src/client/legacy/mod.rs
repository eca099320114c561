//! Revisions 2025-03-26 to 2025-11-25 over Streamable HTTP: a handshake, a session, and several
//! streams on any of which the server may speak.
//!
//! A [`LegacySession`] makes one call at a time. What comes on its streams, whichever it is, ends up in one
//! place: the answers to its requests, what the server asks, and what it tells of progress and of
//! tasks. A question does not end the request it belongs to: while it waits for its answer the streams
//! are read on.
//!
//! `handshake` begins and ends the session, `transport` is its requests and `streams` what comes back on
//! them, `resume` takes up a stream that broke, `input_requests` are the server's, `task` follows a call
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

/// How long a task is to be kept, counted from its creation: long enough for a slow tool, and for
/// somebody who has to be asked.
const TASK_TTL: Duration = Duration::from_secs(60 * 60);

/// A session with one server, opened or about to be.
pub struct LegacySession {
    streams: StreamReaders,
    declared: ClientSupport,
    /// What was asked for, and after the handshake what is spoken.
    pub(super) revision: Revision,
    /// What the server declared of its tasks.
    tasks: TaskSupport,
    /// Whether the tool is called as a task.
    as_task: bool,
    input_requests: InputRequests,
    active_call: ActiveCall,
    /// What is being waited for besides the answers to what was asked last.
    pause: Option<InputPause>,
    /// The progress token of the call: the id of its request. It stays valid for a task's whole life
    /// (2025-11-25, *Task Progress Notifications*).
    token: Option<u64>,
    next_id: u64,
}

/// What a server can do with tasks.
#[derive(Clone, Copy, Debug, Default)]
struct TaskSupport {
    /// `tasks.requests.tools.call`
    calls: bool,
    /// `tasks.cancel`
    cancel: bool,
}

/// What would have to be taken back.
#[derive(Debug, Default)]
enum ActiveCall {
    #[default]
    Idle,
    /// A request that is no task.
    Call(u64),
    /// A request whose task is about to be made. Only as a task can it be cancelled (2025-11-25,
    /// *Cancellation, Behavior Requirements*).
    Creating(u64),
    Task(String),
}

/// What is being waited for besides the answers.
enum InputPause {
    /// The response to this request.
    Call(u64),
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

// === impl Session ===

impl LegacySession {
    /// `revision` is what the handshake asks for.
    pub fn new(url: Uri, headers: HeaderMap, declared: ClientSupport, revision: Revision) -> Self {
        Self {
            streams: StreamReaders::new(SessionTransport::new(HttpTransport::new(url, headers))),
            declared,
            revision,
            tasks: TaskSupport::default(),
            as_task: false,
            input_requests: InputRequests::default(),
            active_call: ActiveCall::Idle,
            pause: None,
            token: None,
            next_id: 1,
        }
    }

    /// Begins the session, and finds out whether the tool is one that can be a task, where one is to be called.
    pub(super) async fn open(&mut self, tool: Option<&str>, watch: StepObserver<'_>) -> Result<(), Error> {
        self.initialize(watch).await?;
        let listening = self.streams.listen();
        match tool {
            Some(tool) if self.declared.tasks && self.tasks.calls => {
                self.as_task = self.can_be_task(tool, watch).await?;
            }
            // A proxy gives tickets to those only who have read that there are tools that take them.
            Some(tool) if !self.declared.tasks => drop(self.can_be_task(tool, watch).await),
            Some(_) | None => {}
        }
        listening.opened().await;
        Ok(())
    }

    pub(super) async fn call(
        &mut self,
        call: &ToolCall<'_>,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        self.token = Some(self.next_id);
        let params = LegacyCallParams {
            name: call.tool,
            arguments: call.arguments,
            task: self.as_task.then(|| TaskParams { ttl: TASK_TTL.as_millis() }),
            meta: json!({ meta::PROGRESS_TOKEN: self.next_id }),
        };
        let id = self.request(&Method::ToolsCall, params);
        self.active_call = if self.as_task { ActiveCall::Creating(id) } else { ActiveCall::Call(id) };
        self.await_result(id, watch).await
    }

    pub(super) async fn answer(
        &mut self,
        answers: &InputResponseMap,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let told = self.send_responses(answers).await;
        match self.pause.take().expect("answers are given where they were asked for") {
            InputPause::Call(id) => {
                told?;
                self.await_result(id, watch).await
            }
            InputPause::Task(followed) => {
                told.map_err(|error| error.of_task(&followed.task.id))?;
                self.follow(*followed, watch).await
            }
        }
    }

    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        match mem::take(&mut self.active_call) {
            ActiveCall::Idle => Ok(()),
            ActiveCall::Call(id) => {
                let params = json!({ "requestId": id, "reason": "the user gave it up" });
                let notification =
                    json!({ "jsonrpc": "2.0", "method": Method::Cancelled.as_str(), "params": params });
                self.streams.transport.send(notification.to_string()).await
            }
            ActiveCall::Creating(id) => match self.response(id, &mut |_| {}).await? {
                JsonRpcResponse::Result(result) => match LegacyTaskView::created(&result)? {
                    Some(task) => self.cancel_task(&task.id).await,
                    None => Ok(()),
                },
                JsonRpcResponse::Error(_) => Ok(()),
            },
            ActiveCall::Task(id) => self.cancel_task(&id).await,
        }
    }

    /// Sends a request, whose response will be heard. Gives its id.
    fn request(&mut self, method: &Method, params: impl Serialize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.streams.request(id, JsonRpcRequest::new(id, method.as_str(), params).to_json());
        id
    }

    /// The response to this request. What is asked meanwhile is kept.
    async fn response(&mut self, id: u64, watch: StepObserver<'_>) -> Result<JsonRpcResponse, Error> {
        loop {
            match self.streams.next().await {
                StreamEvent::Answer { id: theirs, answer } if theirs == id => return answer,
                // Of a request that nobody waits for any more.
                StreamEvent::Answer { .. } => {}
                StreamEvent::Message(frame) => drop(self.handle_message(&frame, watch)),
            }
        }
    }

    /// The response to the call, or what the server wants to know before.
    async fn await_result(&mut self, id: u64, watch: StepObserver<'_>) -> Result<CallTurn, Error> {
        loop {
            let questions = self.input_requests.open();
            if !questions.is_empty() {
                self.pause = Some(InputPause::Call(id));
                return Ok(CallTurn::InputRequired(questions));
            }
            let answer = match self.streams.next().await {
                StreamEvent::Answer { id: theirs, answer } if theirs == id => answer,
                StreamEvent::Answer { .. } => continue,
                StreamEvent::Message(frame) => {
                    drop(self.handle_message(&frame, watch));
                    continue;
                }
            };
            self.active_call = ActiveCall::Idle;
            let result = match answer? {
                JsonRpcResponse::Result(result) => result,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
            // A server may answer at once what it was asked to make a task, and the reverse.
            let Some(task) = LegacyTaskView::created(&result)? else {
                return Ok(CallEnding::Result(result).into());
            };
            if !self.declared.tasks {
                return Err(Error::UndeclaredTask { task: task.id });
            }
            self.active_call = ActiveCall::Task(task.id.clone());
            watch(CallStep::Handle(&task));
            return self.follow(FollowedTask::new(task), watch).await;
        }
    }

    /// Answers what the server has asked and not withdrawn.
    async fn send_responses(&mut self, answers: &InputResponseMap) -> Result<(), Error> {
        for (key, answer) in answers {
            if let Some((id, answer)) = self.input_requests.answer(key, answer) {
                self.streams.transport.send(response(&id, "result", &answer)).await?;
            }
        }
        Ok(())
    }

    /// Takes a message that is no answer to a request of ours. Gives what it tells of a task.
    fn handle_message(&mut self, frame: &Frame, watch: StepObserver<'_>) -> Option<LegacyTaskView> {
        match frame.kind() {
            Kind::Request { id, method: Method::Ping, .. } => {
                self.streams.respond(response(id, "result", b"{}"));
                None
            }
            Kind::Request { id, method, .. } => {
                let declared =
                    InputKind::of(method).is_some_and(|kind| self.declared.includes(kind, self.revision));
                if !(declared && self.input_requests.add(frame)) {
                    if InputKind::of(method).is_some() {
                        watch(CallStep::Refused { method: method.as_str() });
                    }
                    let error = json!({
                        "code": code::METHOD_NOT_FOUND,
                        "message": format!("this client does not support {method}"),
                    });
                    self.streams.respond(response(id, "error", error.to_string().as_bytes()));
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
                if let Some(progress) = self.token.and_then(|token| Progress::from_frame(frame, token)) {
                    watch(CallStep::Progress(progress));
                }
                None
            }
            Kind::Success { .. } | Kind::Failure { .. } => None,
        }
    }
}

/// A response of ours; `value` is its result or error, raw.
fn response(id: &RequestId, member: &str, value: &[u8]) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{}}}"#, String::from_utf8_lossy(value))
}
