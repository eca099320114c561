//! A call that became a task of the extension (`io.modelcontextprotocol/tasks`): polled, answered,
//! cancelled.

use super::{
    super::{
        Answers, Ending, Error, LOST_POLLS, POLL_INTERVAL, Status, Step, Task, Turn, Watch,
        error::{error_text, is_busy},
        message::{Answer, read},
    },
    Client, Pause,
    outline::Outline,
};
use crate::protocol::{Method, headers};
use http::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

// === impl Client ===

impl Client {
    /// Follows a task of which nothing but its handle is known.
    pub(in crate::client) async fn resume(&mut self, handle: &str, watch: Watch<'_>) -> Result<Turn, Error> {
        self.task = Some(handle.to_owned());
        // A state that is not waited on: it is asked about at once.
        let task = Task {
            id: handle.to_owned(),
            status: Status::InputRequired,
            message: None,
            poll_interval: POLL_INTERVAL,
            ttl: None,
        };
        self.follow(task, BTreeSet::new(), watch).await
    }

    /// Polls a task to its end, or until it waits for what is not among `answered`.
    pub(super) async fn follow(
        &mut self,
        task: Task,
        answered: BTreeSet<String>,
        watch: Watch<'_>,
    ) -> Result<Turn, Error> {
        let id = task.id.clone();
        self.until_told(task, answered, watch).await.map_err(|error| error.of_task(&id))
    }

    async fn until_told(
        &mut self,
        mut task: Task,
        answered: BTreeSet<String>,
        watch: Watch<'_>,
    ) -> Result<Turn, Error> {
        let mut wait = task.status == Status::Working;
        loop {
            if wait {
                tokio::time::sleep(task.pause()).await;
            }
            wait = true;
            let result = match self.until_heard(Method::TasksGet, &task, None, watch).await? {
                Answer::Result(result) => result,
                Answer::Error(error) => return Ok(Ending::Error(error).into()),
            };
            let mut outline: Outline<'_> = read(&result)?;
            task = outline.task()?;
            watch(Step::Polled(&task));
            match task.status {
                Status::Working => {}
                Status::InputRequired => {
                    let mut questions = outline.questions()?;
                    questions.retain(|question| !answered.contains(&question.key));
                    if !questions.is_empty() {
                        self.pause = Some(Pause::Task { task, answered });
                        return Ok(Turn::Asked(questions));
                    }
                }
                Status::Completed => {
                    let missing = || Error::Invalid("a completed task without its result".to_owned());
                    return outline
                        .result
                        .take()
                        .map(|result| Ending::Result(result).into())
                        .ok_or_else(missing);
                }
                Status::Failed => {
                    let missing = || Error::Invalid("a failed task without its error".to_owned());
                    return outline.error.take().map(|error| Ending::Error(error).into()).ok_or_else(missing);
                }
                Status::Cancelled => return Ok(Ending::Cancelled(task).into()),
            }
        }
    }

    /// Gives a task its answers. Sent again where they may not have arrived: what has been answered
    /// already is ignored (tasks extension, *Task Update Requests*).
    pub(super) async fn update(
        &mut self,
        task: &Task,
        answers: &Answers,
        watch: Watch<'_>,
    ) -> Result<(), Error> {
        match self.until_heard(Method::TasksUpdate, task, Some(answers), watch).await? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => Err(Error::Refused(error_text(&error))),
        }
    }

    /// Asks about a task, again where the server was not reached.
    async fn until_heard(
        &mut self,
        method: Method,
        task: &Task,
        answers: Option<&Answers>,
        watch: Watch<'_>,
    ) -> Result<Answer, Error> {
        for _ in 0..LOST_POLLS {
            match self.about_task(&method, &task.id, answers).await {
                Err(error) if error.is_passing() => watch(Step::Lost(&error)),
                outcome => return outcome,
            }
            tokio::time::sleep(task.pause()).await;
        }
        self.about_task(&method, &task.id, answers).await
    }

    pub(super) async fn cancel_task(&mut self, task: &str) -> Result<(), Error> {
        match self.about_task(&Method::TasksCancel, task, None).await? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => Err(Error::NotCancelled(error_text(&error))),
        }
    }

    async fn about_task(
        &mut self,
        method: &Method,
        task: &str,
        answers: Option<&Answers>,
    ) -> Result<Answer, Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            task_id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            input_responses: Option<&'a Answers>,
            #[serde(rename = "_meta")]
            meta: Value,
        }
        let mut extra = HeaderMap::new();
        extra.insert(headers::NAME.clone(), headers::encode(task));
        let params = Params { task_id: task, input_responses: answers, meta: self.meta() };
        let id = self.next_id();
        match self.request(id, method.as_str(), params, extra, &mut |_| {}).await? {
            Answer::Error(error) if is_busy(&error) => Err(Error::Busy(error_text(&error))),
            answer => Ok(answer),
        }
    }
}
