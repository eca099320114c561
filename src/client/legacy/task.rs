//! A call that became a task (2025-11-25, *Tasks*): polling, results, cancellation.
//!
//! `tasks/get` polls the status of the task. `tasks/result` is sent once the task has ended, and already when
//! it requires input, because a server may send input requests on that stream (*Input Required Status*); the
//! request then stays open until there is a result.

use super::{
    super::{
        CallEnding, CallStep, CallTurn, Error, LOST_POLLS, POLL_INTERVAL, StepObserver, Task, TaskStatus,
        error::{error_text, is_busy},
        message::{JsonRpcResponse, read},
    },
    ActiveCall, InputPause, LegacySession,
    streams::StreamEvent,
};
use crate::protocol::{Method, splice::JsonObject};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::{pin::Pin, time::Duration};
use tokio::time::{Sleep, sleep};

/// A task as 2025-11-25 describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LegacyTaskView {
    task_id: String,
    status: TaskStatus,
    status_message: Option<String>,
    poll_interval: Option<u64>,
    ttl: Option<u64>,
}

/// A task and its open requests.
pub(super) struct FollowedTask {
    pub(super) task: Task,
    /// Id of the open `tasks/result` request.
    result: Option<u64>,
    /// Whether the task has changed since the last `tasks/result`, so that another one may be sent.
    is_news: bool,
    /// Id of the open `tasks/get` request.
    poll: Option<u64>,
    /// Timer of the next poll.
    pause: Pin<Box<Sleep>>,
    /// Number of requests in a row that did not reach the server.
    lost: u32,
    /// A response to `tasks/result` that is ambiguous until the task's status is known.
    outcome: Option<JsonRpcResponse>,
}

// === impl LegacySession ===

impl LegacySession {
    /// Follows a task of an earlier call, by its handle alone.
    pub(in crate::client) async fn resume(
        &mut self,
        handle: &str,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let id = self.task_request(&Method::TasksGet, handle);
        let shown: LegacyTaskView =
            match self.response(id, watch).await.map_err(|error| error.of_task(handle))? {
                JsonRpcResponse::Result(result) => read(&result)?,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
        self.active_call = ActiveCall::Task(handle.to_owned());
        let task = shown.first();
        watch(CallStep::Polled(&task));
        self.follow(FollowedTask::new(task), watch).await
    }

    /// Follows a task to its end, or until the server sends an input request.
    pub(super) async fn follow(
        &mut self,
        followed: FollowedTask,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let id = followed.task.id.clone();
        let turn = self.follow_until_turn(followed, watch).await;
        if let Ok(CallTurn::Ended(_)) = turn {
            self.active_call = ActiveCall::Idle;
        }
        turn.map_err(|error| error.of_task(&id))
    }

    async fn follow_until_turn(
        &mut self,
        mut at: FollowedTask,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        loop {
            let requests = self.input_requests.open();
            if !requests.is_empty() {
                self.pause = Some(InputPause::Task(Box::new(at)));
                return Ok(CallTurn::InputRequired(requests));
            }
            if let Some(ending) = at.ending() {
                return Ok(ending.into());
            }
            if at.wants_result() {
                at.is_news = false;
                at.result = Some(self.task_request(&Method::TasksResult, &at.task.id));
            }
            let polls = at.poll.is_none() && (at.result.is_none() || !at.task.status.is_ended());
            tokio::select! {
                event = self.streams.next() => match event {
                    StreamEvent::Answer { id, answer } if at.result == Some(id) => {
                        at.result = None;
                        at.outcome = at.reached(answer, watch)?;
                    }
                    StreamEvent::Answer { id, answer } if at.poll == Some(id) => {
                        at.poll = None;
                        if let Some(ending) = at.take_poll(answer, watch)? {
                            return Ok(ending.into());
                        }
                        at.pause = Box::pin(sleep(at.task.poll_delay()));
                    }
                    StreamEvent::Answer { .. } => {}
                    StreamEvent::Message(frame) => {
                        if let Some(shown) = self.handle_message(&frame, watch) {
                            at.update(shown, watch);
                        }
                    }
                },
                () = &mut at.pause, if polls => {
                    at.poll = Some(self.task_request(&Method::TasksGet, &at.task.id));
                }
            }
        }
    }

    /// Cancels a task at the server, if the server supports that.
    pub(super) async fn cancel_task(&mut self, task: &str) -> Result<(), Error> {
        let cancelled = async {
            if !self.tasks.cancel {
                return Err(Error::NotCancelled("it does not declare `tasks.cancel`".to_owned()));
            }
            let id = self.task_request(&Method::TasksCancel, task);
            match self.response(id, &mut |_| {}).await? {
                JsonRpcResponse::Result(_) => Ok(()),
                JsonRpcResponse::Error(error) => Err(Error::NotCancelled(error_text(&error))),
            }
        };
        cancelled.await.map_err(|error| error.of_task(task))
    }

    fn task_request(&mut self, method: &Method, task: &str) -> u64 {
        self.request(method, json!({ "taskId": task }))
    }
}

// === impl FollowedTask ===

impl FollowedTask {
    pub(super) fn new(task: Task) -> Self {
        let pause = Box::pin(sleep(task.poll_delay()));
        Self { task, result: None, is_news: true, poll: None, pause, lost: 0, outcome: None }
    }

    fn wants_result(&self) -> bool {
        let wants = match self.task.status {
            TaskStatus::Working | TaskStatus::Cancelled => false,
            TaskStatus::InputRequired | TaskStatus::Completed | TaskStatus::Failed => true,
        };
        wants && self.is_news && self.result.is_none() && self.outcome.is_none()
    }

    /// Updates the task from a view. An ended task does not change: a later view was delayed on its way.
    fn update(&mut self, shown: LegacyTaskView, watch: StepObserver<'_>) {
        if shown.task_id != self.task.id || self.task.status.is_ended() {
            return;
        }
        self.is_news = true;
        self.task = shown.after(&self.task);
        watch(CallStep::Polled(&self.task));
    }

    fn take_poll(
        &mut self,
        answer: Result<JsonRpcResponse, Error>,
        watch: StepObserver<'_>,
    ) -> Result<Option<CallEnding>, Error> {
        match self.reached(answer, watch)? {
            Some(JsonRpcResponse::Result(result)) => {
                let ended = self.task.status.is_ended();
                self.update(read(&result)?, watch);
                // An ended task is polled only to see whether its server can be reached.
                self.is_news |= ended;
                Ok(None)
            }
            // The task is unknown to the server. Its result may have arrived.
            Some(JsonRpcResponse::Error(error)) => Ok(Some(match self.outcome.take() {
                Some(JsonRpcResponse::Result(result)) => CallEnding::Result(result),
                Some(JsonRpcResponse::Error(error)) => CallEnding::Error(error),
                None => CallEnding::Error(error),
            })),
            None => Ok(None),
        }
    }

    /// Returns how the call ended, once that is known. A result decides, unless it is empty; an error may
    /// belong to a cancelled task, and an empty result to a cancelled task, or to a failed one that has only
    /// a status message.
    fn ending(&mut self) -> Option<CallEnding> {
        let task = || self.task.clone();
        match (self.task.status, self.outcome.take()) {
            (_, Some(JsonRpcResponse::Result(result))) if !is_hollow(&result) => {
                Some(CallEnding::Result(result))
            }
            (TaskStatus::Cancelled, _) => Some(CallEnding::Cancelled(task())),
            (TaskStatus::Completed | TaskStatus::Failed, Some(JsonRpcResponse::Error(error))) => {
                Some(CallEnding::Error(error))
            }
            (TaskStatus::Completed, Some(JsonRpcResponse::Result(result))) => {
                Some(CallEnding::Result(result))
            }
            (TaskStatus::Failed, Some(JsonRpcResponse::Result(_))) => Some(CallEnding::Failed(task())),
            (TaskStatus::Completed | TaskStatus::Failed, None) => None,
            (TaskStatus::Working | TaskStatus::InputRequired, outcome) => {
                self.outcome = outcome;
                None
            }
        }
    }

    /// Returns the server's response; `None` if the server was not reached and the request may be repeated.
    fn reached(
        &mut self,
        answer: Result<JsonRpcResponse, Error>,
        watch: StepObserver<'_>,
    ) -> Result<Option<JsonRpcResponse>, Error> {
        let answer = match answer {
            Ok(JsonRpcResponse::Error(error)) if is_busy(&error) => Err(Error::Busy(error_text(&error))),
            answer => answer,
        };
        match answer {
            Ok(answer) => {
                self.lost = 0;
                Ok(Some(answer))
            }
            Err(error) if error.is_transient() && self.lost < LOST_POLLS => {
                self.lost += 1;
                watch(CallStep::Lost(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

// === impl LegacyTaskView ===

impl LegacyTaskView {
    /// Returns the task in a result that created one: the task is nested, and the result has no content.
    /// `None` for the result of a tool.
    pub(super) fn created(result: &RawValue) -> Result<Option<Task>, Error> {
        #[derive(Deserialize)]
        struct CreatedTask<'a> {
            #[serde(borrow)]
            task: Option<&'a RawValue>,
            #[serde(borrow)]
            content: Option<&'a RawValue>,
        }
        match read(result)? {
            CreatedTask { task: Some(task), content: None } => Ok(Some(read::<Self>(task)?.first())),
            CreatedTask { .. } => Ok(None),
        }
    }

    fn first(self) -> Task {
        self.with(POLL_INTERVAL)
    }

    /// Returns the current state of the same task. A server need not repeat the poll interval.
    fn after(self, before: &Task) -> Task {
        self.with(before.poll_interval)
    }

    fn with(self, poll_interval: Duration) -> Task {
        Task {
            id: self.task_id,
            status: self.status,
            message: self.status_message,
            poll_interval: self.poll_interval.map_or(poll_interval, Duration::from_millis),
            ttl: self.ttl.map(Duration::from_millis),
        }
    }
}

/// Whether a result has no member but `_meta`.
fn is_hollow(result: &RawValue) -> bool {
    let object = JsonObject::read(&Bytes::copy_from_slice(result.get().as_bytes()));
    object.is_ok_and(|object| object.members().all(|(name, _)| name == "_meta"))
}
