//! A call that became a task of the extension (`io.modelcontextprotocol/tasks`): polling, updates,
//! cancellation.

use super::{
    super::{
        CallEnding, CallStep, CallTurn, Error, InputResponseMap, MAX_LOST_POLLS, POLL_INTERVAL, StepObserver,
        Task, TaskStatus,
        error::{error_text, is_busy},
        message::{JsonRpcResponse, parse_result},
    },
    ModernClient, PendingInput,
    outline::ResultOutline,
};
use crate::protocol::{Method, headers};
use http::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

// === impl ModernClient ===

impl ModernClient {
    /// Follows a task of an earlier call, by its handle alone.
    pub(in crate::client) async fn resume(
        &mut self,
        handle: &str,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        self.task = Some(handle.to_owned());
        // The status `input_required` makes the first poll immediate.
        let task = Task {
            id: handle.to_owned(),
            status: TaskStatus::InputRequired,
            message: None,
            poll_interval: POLL_INTERVAL,
            ttl: None,
        };
        self.follow(task, BTreeSet::new(), on_step).await
    }

    /// Polls a task to its end, or until it has input requests that are not in `answered`.
    pub(super) async fn follow(
        &mut self,
        task: Task,
        answered: BTreeSet<String>,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let id = task.id.clone();
        self.poll_until_turn(task, answered, on_step).await.map_err(|error| error.with_task(&id))
    }

    async fn poll_until_turn(
        &mut self,
        mut task: Task,
        answered: BTreeSet<String>,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        let mut should_wait = task.status == TaskStatus::Working;
        loop {
            if should_wait {
                tokio::time::sleep(task.poll_delay()).await;
            }
            should_wait = true;
            let result = match self.retry_task_request(Method::TasksGet, &task, None, on_step).await? {
                JsonRpcResponse::Result(result) => result,
                JsonRpcResponse::Error(error) => return Ok(CallEnding::Error(error).into()),
            };
            let mut outline: ResultOutline<'_> = parse_result(&result)?;
            task = outline.task()?;
            on_step(CallStep::Polled(&task));
            match task.status {
                TaskStatus::Working => {}
                TaskStatus::InputRequired => {
                    let mut requests = outline.input_requests()?;
                    requests.retain(|request| !answered.contains(&request.key));
                    if !requests.is_empty() {
                        self.pending_input = Some(PendingInput::Task { task, answered });
                        return Ok(CallTurn::InputRequired(requests));
                    }
                }
                TaskStatus::Completed => {
                    let missing = || Error::Invalid("a completed task without its result".to_owned());
                    return outline
                        .result
                        .take()
                        .map(|result| CallEnding::Result(result).into())
                        .ok_or_else(missing);
                }
                TaskStatus::Failed => {
                    let missing = || Error::Invalid("a failed task without its error".to_owned());
                    return outline
                        .error
                        .take()
                        .map(|error| CallEnding::Error(error).into())
                        .ok_or_else(missing);
                }
                TaskStatus::Cancelled => return Ok(CallEnding::Cancelled(task).into()),
            }
        }
    }

    /// Sends input responses to a task. The request is repeated if it may not have arrived: duplicates are
    /// ignored (tasks extension, *Task Update Requests*).
    pub(super) async fn update(
        &mut self,
        task: &Task,
        responses: &InputResponseMap,
        on_step: StepObserver<'_>,
    ) -> Result<(), Error> {
        match self.retry_task_request(Method::TasksUpdate, task, Some(responses), on_step).await? {
            JsonRpcResponse::Result(_) => Ok(()),
            JsonRpcResponse::Error(error) => Err(Error::Refused(error_text(&error))),
        }
    }

    /// Sends a request about a task, and repeats it at most [`MAX_LOST_POLLS`] times if the server was not
    /// reached.
    async fn retry_task_request(
        &mut self,
        method: Method,
        task: &Task,
        responses: Option<&InputResponseMap>,
        on_step: StepObserver<'_>,
    ) -> Result<JsonRpcResponse, Error> {
        for _ in 0..MAX_LOST_POLLS {
            match self.send_task_request(&method, &task.id, responses).await {
                Err(error) if error.is_transient() => on_step(CallStep::Lost(&error)),
                outcome => return outcome,
            }
            tokio::time::sleep(task.poll_delay()).await;
        }
        self.send_task_request(&method, &task.id, responses).await
    }

    /// Cancels a task at the server.
    pub(super) async fn cancel_task(&mut self, task: &str) -> Result<(), Error> {
        match self.send_task_request(&Method::TasksCancel, task, None).await? {
            JsonRpcResponse::Result(_) => Ok(()),
            JsonRpcResponse::Error(error) => Err(Error::NotCancelled(error_text(&error))),
        }
    }

    async fn send_task_request(
        &mut self,
        method: &Method,
        task: &str,
        responses: Option<&InputResponseMap>,
    ) -> Result<JsonRpcResponse, Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct TaskRequestParams<'a> {
            task_id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            input_responses: Option<&'a InputResponseMap>,
            #[serde(rename = "_meta")]
            meta: Value,
        }
        let mut extra = HeaderMap::new();
        extra.insert(headers::NAME.clone(), headers::encode(task));
        let params =
            TaskRequestParams { task_id: task, input_responses: responses, meta: self.request_meta() };
        let id = self.next_id();
        match self.request(id, method.as_str(), params, extra, &mut |_| {}).await? {
            JsonRpcResponse::Error(error) if is_busy(&error) => Err(Error::Busy(error_text(&error))),
            response => Ok(response),
        }
    }
}
