//! Revisions 2025-03-26 to 2025-11-25 over Streamable HTTP: a handshake, a session, and several
//! streams on any of which the server may speak.
//!
//! A [`Session`] makes one call at a time. What comes on its streams, whichever it is, ends up in one
//! place: the answers to its requests, what the server asks, and what it tells of progress and of
//! tasks. A question does not end the request it belongs to: while it waits for its answer the streams
//! are read on.
//!
//! `handshake` begins and ends the session, `line` is its requests and `streams` what comes back on
//! them, `resume` takes up a stream that broke, `questions` are the server's, `task` follows a call
//! that became a task (2025-11-25, *Tasks*).

mod handshake;
mod line;
mod questions;
mod resume;
mod streams;
mod task;

use super::{
    Answers, Call, Declared, Ending, Error, Progress, Step, Turn, Watch,
    message::{Answer, Message},
    wire::Wire,
};
use crate::protocol::{Frame, Id, InputKind, Kind, Method, Revision, code, meta, splice::Object};
use http::{HeaderMap, Uri};
use line::Line;
use questions::Questions;
use serde::Serialize;
use serde_json::{json, value::RawValue};
use std::{mem, time::Duration};
use streams::{Heard, Streams};
use task::{Followed, Shown};

/// How long a task is to be kept, counted from its creation: long enough for a slow tool, and for
/// somebody who has to be asked.
const TASK_TTL: Duration = Duration::from_secs(60 * 60);

/// A session with one server, opened or about to be.
pub struct Session {
    streams: Streams,
    declared: Declared,
    /// What was asked for, and after the handshake what is spoken.
    pub(super) revision: Revision,
    /// What the server declared of its tasks.
    tasks: Tasks,
    /// Whether the tool is called as a task.
    as_task: bool,
    questions: Questions,
    at_work: AtWork,
    /// What is being waited for besides the answers to what was asked last.
    pause: Option<Pause>,
    /// The progress token of the call: the id of its request. It stays valid for a task's whole life
    /// (2025-11-25, *Task Progress Notifications*).
    token: Option<u64>,
    next_id: u64,
}

/// What a server can do with tasks.
#[derive(Clone, Copy, Debug, Default)]
struct Tasks {
    /// `tasks.requests.tools.call`
    calls: bool,
    /// `tasks.cancel`
    cancel: bool,
}

/// What would have to be taken back.
#[derive(Debug, Default)]
enum AtWork {
    #[default]
    Nothing,
    /// A request that is no task.
    Call(u64),
    /// A request whose task is about to be made. Only as a task can it be cancelled (2025-11-25,
    /// *Cancellation, Behavior Requirements*).
    Creating(u64),
    Task(String),
}

/// What is being waited for besides the answers.
enum Pause {
    /// The response to this request.
    Call(u64),
    Task(Box<Followed>),
}

#[derive(Serialize)]
struct CallParams<'a> {
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

impl Session {
    /// `revision` is what the handshake asks for.
    pub fn new(url: Uri, headers: HeaderMap, declared: Declared, revision: Revision) -> Self {
        Self {
            streams: Streams::new(Line::new(Wire::new(url, headers))),
            declared,
            revision,
            tasks: Tasks::default(),
            as_task: false,
            questions: Questions::default(),
            at_work: AtWork::Nothing,
            pause: None,
            token: None,
            next_id: 1,
        }
    }

    /// Begins the session, and finds out whether the tool is one that can be a task, where one is to be called.
    pub(super) async fn open(&mut self, tool: Option<&str>, watch: Watch<'_>) -> Result<(), Error> {
        self.shake_hands(watch).await?;
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

    pub(super) async fn call(&mut self, call: &Call<'_>, watch: Watch<'_>) -> Result<Turn, Error> {
        self.token = Some(self.next_id);
        let params = CallParams {
            name: call.tool,
            arguments: call.arguments,
            task: self.as_task.then(|| TaskParams { ttl: TASK_TTL.as_millis() }),
            meta: json!({ meta::PROGRESS_TOKEN: self.next_id }),
        };
        let id = self.request(&Method::ToolsCall, params);
        self.at_work = if self.as_task { AtWork::Creating(id) } else { AtWork::Call(id) };
        self.finish(id, watch).await
    }

    pub(super) async fn answer(&mut self, answers: &Answers, watch: Watch<'_>) -> Result<Turn, Error> {
        let told = self.tell(answers).await;
        match self.pause.take().expect("answers are given where they were asked for") {
            Pause::Call(id) => {
                told?;
                self.finish(id, watch).await
            }
            Pause::Task(followed) => {
                told.map_err(|error| error.of_task(&followed.task.id))?;
                self.follow(*followed, watch).await
            }
        }
    }

    pub(super) async fn cancel(&mut self) -> Result<(), Error> {
        match mem::take(&mut self.at_work) {
            AtWork::Nothing => Ok(()),
            AtWork::Call(id) => {
                let params = json!({ "requestId": id, "reason": "the user gave it up" });
                let notification =
                    json!({ "jsonrpc": "2.0", "method": Method::Cancelled.as_str(), "params": params });
                self.streams.line.tell(notification.to_string()).await
            }
            AtWork::Creating(id) => match self.response(id, &mut |_| {}).await? {
                Answer::Result(result) => match Shown::created(&result)? {
                    Some(task) => self.cancel_task(&task.id).await,
                    None => Ok(()),
                },
                Answer::Error(_) => Ok(()),
            },
            AtWork::Task(id) => self.cancel_task(&id).await,
        }
    }

    /// Sends a request, whose response will be heard. Gives its id.
    fn request(&mut self, method: &Method, params: impl Serialize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.streams.request(id, Message::new(id, method.as_str(), params).to_json());
        id
    }

    /// The response to this request. What is asked meanwhile is kept.
    async fn response(&mut self, id: u64, watch: Watch<'_>) -> Result<Answer, Error> {
        loop {
            match self.streams.next().await {
                Heard::Answer { id: theirs, answer } if theirs == id => return answer,
                // Of a request that nobody waits for any more.
                Heard::Answer { .. } => {}
                Heard::Message(frame) => drop(self.take(&frame, watch)),
            }
        }
    }

    /// The response to the call, or what the server wants to know before.
    async fn finish(&mut self, id: u64, watch: Watch<'_>) -> Result<Turn, Error> {
        loop {
            let questions = self.questions.open();
            if !questions.is_empty() {
                self.pause = Some(Pause::Call(id));
                return Ok(Turn::Asked(questions));
            }
            let answer = match self.streams.next().await {
                Heard::Answer { id: theirs, answer } if theirs == id => answer,
                Heard::Answer { .. } => continue,
                Heard::Message(frame) => {
                    drop(self.take(&frame, watch));
                    continue;
                }
            };
            self.at_work = AtWork::Nothing;
            let result = match answer? {
                Answer::Result(result) => result,
                Answer::Error(error) => return Ok(Ending::Error(error).into()),
            };
            // A server may answer at once what it was asked to make a task, and the reverse.
            let Some(task) = Shown::created(&result)? else { return Ok(Ending::Result(result).into()) };
            if !self.declared.tasks {
                return Err(Error::Unasked { task: task.id });
            }
            self.at_work = AtWork::Task(task.id.clone());
            watch(Step::Handle(&task));
            return self.follow(Followed::new(task), watch).await;
        }
    }

    /// Answers what the server has asked and not withdrawn.
    async fn tell(&mut self, answers: &Answers) -> Result<(), Error> {
        for (key, answer) in answers {
            if let Some((id, answer)) = self.questions.answer(key, answer) {
                self.streams.line.tell(response(&id, "result", &answer)).await?;
            }
        }
        Ok(())
    }

    /// Takes a message that is no answer to a request of ours. Gives what it tells of a task.
    fn take(&mut self, frame: &Frame, watch: Watch<'_>) -> Option<Shown> {
        match frame.kind() {
            Kind::Request { id, method: Method::Ping, .. } => {
                self.streams.respond(response(id, "result", b"{}"));
                None
            }
            Kind::Request { id, method, .. } => {
                let declared =
                    InputKind::of(method).is_some_and(|kind| self.declared.includes(kind, self.revision));
                if !(declared && self.questions.take(frame)) {
                    if InputKind::of(method).is_some() {
                        watch(Step::Refused { method: method.as_str() });
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
                let id = Object::read(params).ok().and_then(|params| params.get("requestId"));
                if let Some(id) = id.and_then(Id::from_token) {
                    self.questions.withdraw(&id);
                }
                None
            }
            Kind::Notification { method: Method::TaskStatus, params: Some(params) } => {
                serde_json::from_slice(params).ok()
            }
            Kind::Notification { .. } => {
                if let Some(progress) = self.token.and_then(|token| Progress::from_frame(frame, token)) {
                    watch(Step::Progress(progress));
                }
                None
            }
            Kind::Success { .. } | Kind::Failure { .. } => None,
        }
    }
}

/// A response of ours; `value` is its result or error, raw.
fn response(id: &Id, member: &str, value: &[u8]) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{}}}"#, String::from_utf8_lossy(value))
}
