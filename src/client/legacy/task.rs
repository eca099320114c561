//! A call that became a task (2025-11-25, *Tasks*): polling, results, cancellation.
//!
//! `tasks/get` polls the status of the task. `tasks/result` is sent once the task has ended, and already when
//! it requires input, because a server may send input requests on that stream (*Input Required Status*); the
//! request then stays open until there is a result.

use super::{
    super::{
        CallEnding, CallStep, CallTurn, Error, MAX_LOST_POLLS, POLL_INTERVAL, StepObserver, Task, TaskStatus,
        error::{error_text, is_busy},
        message::{JsonRpcResponse, parse_result},
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
    result_request: Option<u64>,
    /// Whether the task has changed since the last `tasks/result`, so that another one may be sent.
    has_changed: bool,
    /// Id of the open `tasks/get` request.
    poll_request: Option<u64>,
    /// Timer of the next poll.
    poll_timer: Pin<Box<Sleep>>,
    /// Number of requests in a row that did not reach the server.
    lost_polls: u32,
    /// A response to `tasks/result` that is ambiguous until the task's status is known.
    outcome: Option<JsonRpcResponse>,
}

// === impl LegacySession ===

impl LegacySession {
    /// Follows a task of an earlier call, by its handle alone.
    pub(in crate::client) async fn resume(
        &mut self,
        handle: &str,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let id = self.request_for_task(&Method::TasksGet, handle);
        let view: LegacyTaskView =
            match self.wait_for_response(id, on_step).await.map_err(|error| error.with_task(handle))? {
                JsonRpcResponse::Result(result) => parse_result(&result)?,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
        self.active_call = ActiveCall::Task(handle.to_owned());
        let task = view.into_task();
        on_step(CallStep::Polled(&task));
        self.follow(FollowedTask::new(task), on_step).await
    }

    /// Follows a task to its end, or until the server sends an input request.
    pub(super) async fn follow(
        &mut self,
        followed: FollowedTask,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let id = followed.task.id.clone();
        let turn = self.follow_until_turn(followed, on_step).await;
        if let Ok(CallTurn::Ended(_)) = turn {
            self.active_call = ActiveCall::Idle;
        }
        turn.map_err(|error| error.with_task(&id))
    }

    async fn follow_until_turn(
        &mut self,
        mut followed: FollowedTask,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        loop {
            let requests = self.input_requests.open();
            if !requests.is_empty() {
                self.input_pause = Some(InputPause::Task(Box::new(followed)));
                return Ok(CallTurn::InputRequired(requests));
            }
            if let Some(ending) = followed.ending() {
                return Ok(ending.into());
            }
            if followed.needs_result() {
                followed.has_changed = false;
                followed.result_request =
                    Some(self.request_for_task(&Method::TasksResult, &followed.task.id));
            }
            let can_poll = followed.poll_request.is_none()
                && (followed.result_request.is_none() || !followed.task.status.is_ended());
            tokio::select! {
                event = self.streams.next() => match event {
                    StreamEvent::Response { id, response } if followed.result_request == Some(id) => {
                        followed.result_request = None;
                        followed.outcome = followed.check_reached(response, on_step)?;
                    }
                    StreamEvent::Response { id, response } if followed.poll_request == Some(id) => {
                        followed.poll_request = None;
                        if let Some(ending) = followed.handle_poll(response, on_step)? {
                            return Ok(ending.into());
                        }
                        followed.poll_timer = Box::pin(sleep(followed.task.poll_delay()));
                    }
                    StreamEvent::Response { .. } => {}
                    StreamEvent::Message(frame) => {
                        if let Some(shown) = self.handle_message(&frame, on_step) {
                            followed.update(shown, on_step);
                        }
                    }
                },
                () = &mut followed.poll_timer, if can_poll => {
                    followed.poll_request = Some(self.request_for_task(&Method::TasksGet, &followed.task.id));
                }
            }
        }
    }

    /// Cancels a task at the server, if the server supports that.
    pub(super) async fn cancel_task(&mut self, task: &str) -> Result<(), Error> {
        let cancelled = async {
            if !self.tasks.supports_cancel {
                return Err(Error::NotCancelled("it does not declare `tasks.cancel`".to_owned()));
            }
            let id = self.request_for_task(&Method::TasksCancel, task);
            match self.wait_for_response(id, &mut |_| {}).await? {
                JsonRpcResponse::Result(_) => Ok(()),
                JsonRpcResponse::Error(error) => Err(Error::NotCancelled(error_text(&error))),
            }
        };
        cancelled.await.map_err(|error| error.with_task(task))
    }

    fn request_for_task(&mut self, method: &Method, task: &str) -> u64 {
        self.request(method, json!({ "taskId": task }))
    }
}

// === impl FollowedTask ===

impl FollowedTask {
    pub(super) fn new(task: Task) -> Self {
        let poll_timer = Box::pin(sleep(task.poll_delay()));
        Self {
            task,
            result_request: None,
            has_changed: true,
            poll_request: None,
            poll_timer,
            lost_polls: 0,
            outcome: None,
        }
    }

    fn needs_result(&self) -> bool {
        let has_result = match self.task.status {
            TaskStatus::Working | TaskStatus::Cancelled => false,
            TaskStatus::InputRequired | TaskStatus::Completed | TaskStatus::Failed => true,
        };
        has_result && self.has_changed && self.result_request.is_none() && self.outcome.is_none()
    }

    /// Updates the task from a view. An ended task does not change: a later view was delayed on its way.
    fn update(&mut self, view: LegacyTaskView, on_step: StepObserver<'_>) {
        if view.task_id != self.task.id || self.task.status.is_ended() {
            return;
        }
        self.has_changed = true;
        self.task = view.into_update_of(&self.task);
        on_step(CallStep::Polled(&self.task));
    }

    fn handle_poll(
        &mut self,
        response: Result<JsonRpcResponse, Error>,
        on_step: StepObserver<'_>,
    ) -> Result<Option<CallEnding>, Error> {
        match self.check_reached(response, on_step)? {
            Some(JsonRpcResponse::Result(result)) => {
                let had_ended = self.task.status.is_ended();
                self.update(parse_result(&result)?, on_step);
                // An ended task is polled only to see whether its server can be reached.
                self.has_changed |= had_ended;
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
            (_, Some(JsonRpcResponse::Result(result))) if !is_empty_result(&result) => {
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
    fn check_reached(
        &mut self,
        response: Result<JsonRpcResponse, Error>,
        on_step: StepObserver<'_>,
    ) -> Result<Option<JsonRpcResponse>, Error> {
        let response = match response {
            Ok(JsonRpcResponse::Error(error)) if is_busy(&error) => Err(Error::Busy(error_text(&error))),
            answer => answer,
        };
        match response {
            Ok(answer) => {
                self.lost_polls = 0;
                Ok(Some(answer))
            }
            Err(error) if error.is_transient() && self.lost_polls < MAX_LOST_POLLS => {
                self.lost_polls += 1;
                on_step(CallStep::Lost(&error));
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
    pub(super) fn from_created(result: &RawValue) -> Result<Option<Task>, Error> {
        #[derive(Deserialize)]
        struct CreatedTask<'a> {
            #[serde(borrow)]
            task: Option<&'a RawValue>,
            #[serde(borrow)]
            content: Option<&'a RawValue>,
        }
        match parse_result(result)? {
            CreatedTask { task: Some(task), content: None } => {
                Ok(Some(parse_result::<Self>(task)?.into_task()))
            }
            CreatedTask { .. } => Ok(None),
        }
    }

    fn into_task(self) -> Task {
        self.into_task_with(POLL_INTERVAL)
    }

    /// Returns the current state of the same task. A server need not repeat the poll interval.
    fn into_update_of(self, task: &Task) -> Task {
        self.into_task_with(task.poll_interval)
    }

    fn into_task_with(self, poll_interval: Duration) -> Task {
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
fn is_empty_result(result: &RawValue) -> bool {
    let object = JsonObject::read(&Bytes::copy_from_slice(result.get().as_bytes()));
    object.is_ok_and(|object| object.members().all(|(name, _)| name == "_meta"))
}
