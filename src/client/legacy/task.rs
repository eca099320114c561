//! A call that became a task (2025-11-25, *Tasks*): polled, waited for, cancelled.
//!
//! It is polled for what it is doing. Its result is asked for once it has ended, and already when it
//! wants input, because that is where a server may ask (*Input Required Status*); the request then
//! stays open until there is a result.

use super::{
    super::{
        Ending, Error, LOST_POLLS, POLL_INTERVAL, Status, Step, Task, Turn, Watch,
        error::{error_text, is_busy},
        message::{Answer, read},
    },
    AtWork, Pause, Session,
    streams::Heard,
};
use crate::protocol::{Method, splice::Object};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::{pin::Pin, time::Duration};
use tokio::time::{Sleep, sleep};

/// A task as this revision shows it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    task_id: String,
    status: Status,
    status_message: Option<String>,
    poll_interval: Option<u64>,
    ttl: Option<u64>,
}

/// A task and what is under way about it.
pub(super) struct Followed {
    pub(super) task: Task,
    /// The `tasks/result` that is open.
    result: Option<u64>,
    /// The task has been heard of since the last `tasks/result` was begun: another may be.
    is_news: bool,
    /// The `tasks/get` that is open.
    poll: Option<u64>,
    /// No poll before this.
    pause: Pin<Box<Sleep>>,
    /// Requests in a row that did not reach the server.
    lost: u32,
    /// An answer to `tasks/result` that means one thing or another, before it is clear how the task
    /// has ended.
    outcome: Option<Answer>,
}

// === impl Session ===

impl Session {
    /// Follows a task of which nothing but its handle is known.
    pub(in crate::client) async fn resume(&mut self, handle: &str, watch: Watch<'_>) -> Result<Turn, Error> {
        let id = self.about_task(&Method::TasksGet, handle);
        let shown: Shown = match self.response(id, watch).await.map_err(|error| error.of_task(handle))? {
            Answer::Result(result) => read(&result)?,
            Answer::Error(error) => return Ok(Ending::Error(error).into()),
        };
        self.at_work = AtWork::Task(handle.to_owned());
        let task = shown.first();
        watch(Step::Polled(&task));
        self.follow(Followed::new(task), watch).await
    }

    /// Follows a task to its end, or until the server asks something.
    pub(super) async fn follow(&mut self, followed: Followed, watch: Watch<'_>) -> Result<Turn, Error> {
        let id = followed.task.id.clone();
        let turn = self.until_told(followed, watch).await;
        if let Ok(Turn::Ended(_)) = turn {
            self.at_work = AtWork::Nothing;
        }
        turn.map_err(|error| error.of_task(&id))
    }

    async fn until_told(&mut self, mut at: Followed, watch: Watch<'_>) -> Result<Turn, Error> {
        loop {
            let questions = self.questions.open();
            if !questions.is_empty() {
                self.pause = Some(Pause::Task(Box::new(at)));
                return Ok(Turn::Asked(questions));
            }
            if let Some(ending) = at.ending() {
                return Ok(ending.into());
            }
            if at.wants_result() {
                at.is_news = false;
                at.result = Some(self.about_task(&Method::TasksResult, &at.task.id));
            }
            let polls = at.poll.is_none() && (at.result.is_none() || !at.task.status.is_ended());
            tokio::select! {
                heard = self.streams.next() => match heard {
                    Heard::Answer { id, answer } if at.result == Some(id) => {
                        at.result = None;
                        at.outcome = at.reached(answer, watch)?;
                    }
                    Heard::Answer { id, answer } if at.poll == Some(id) => {
                        at.poll = None;
                        if let Some(ending) = at.take_poll(answer, watch)? {
                            return Ok(ending.into());
                        }
                        at.pause = Box::pin(sleep(at.task.pause()));
                    }
                    Heard::Answer { .. } => {}
                    Heard::Message(frame) => {
                        if let Some(shown) = self.take(&frame, watch) {
                            at.see(shown, watch);
                        }
                    }
                },
                () = &mut at.pause, if polls => {
                    at.poll = Some(self.about_task(&Method::TasksGet, &at.task.id));
                }
            }
        }
    }

    pub(super) async fn cancel_task(&mut self, task: &str) -> Result<(), Error> {
        let cancelled = async {
            if !self.tasks.cancel {
                return Err(Error::NotCancelled("it does not declare `tasks.cancel`".to_owned()));
            }
            let id = self.about_task(&Method::TasksCancel, task);
            match self.response(id, &mut |_| {}).await? {
                Answer::Result(_) => Ok(()),
                Answer::Error(error) => Err(Error::NotCancelled(error_text(&error))),
            }
        };
        cancelled.await.map_err(|error| error.of_task(task))
    }

    fn about_task(&mut self, method: &Method, task: &str) -> u64 {
        self.request(method, json!({ "taskId": task }))
    }
}

// === impl Followed ===

impl Followed {
    pub(super) fn new(task: Task) -> Self {
        let pause = Box::pin(sleep(task.pause()));
        Self { task, result: None, is_news: true, poll: None, pause, lost: 0, outcome: None }
    }

    fn wants_result(&self) -> bool {
        let wants = match self.task.status {
            Status::Working | Status::Cancelled => false,
            Status::InputRequired | Status::Completed | Status::Failed => true,
        };
        wants && self.is_news && self.result.is_none() && self.outcome.is_none()
    }

    /// Looks at the task as the server shows it. Nothing follows an end: what says otherwise was
    /// overtaken on its way.
    fn see(&mut self, shown: Shown, watch: Watch<'_>) {
        if shown.task_id != self.task.id || self.task.status.is_ended() {
            return;
        }
        self.is_news = true;
        self.task = shown.after(&self.task);
        watch(Step::Polled(&self.task));
    }

    fn take_poll(
        &mut self,
        answer: Result<Answer, Error>,
        watch: Watch<'_>,
    ) -> Result<Option<Ending>, Error> {
        match self.reached(answer, watch)? {
            Some(Answer::Result(result)) => {
                let ended = self.task.status.is_ended();
                self.see(read(&result)?, watch);
                // An ended task is only asked about again to see that its server is there.
                self.is_news |= ended;
                Ok(None)
            }
            // It is not known any more. What it came to may be.
            Some(Answer::Error(error)) => Ok(Some(match self.outcome.take() {
                Some(Answer::Result(result)) => Ending::Result(result),
                Some(Answer::Error(error)) => Ending::Error(error),
                None => Ending::Error(error),
            })),
            None => Ok(None),
        }
    }

    /// How the call ended, once that is known; a result says it all, but an error may be that of a
    /// task that was cancelled, and so may a result that holds nothing, or of one that failed without
    /// more words than those of its status.
    fn ending(&mut self) -> Option<Ending> {
        let task = || self.task.clone();
        match (self.task.status, self.outcome.take()) {
            (_, Some(Answer::Result(result))) if !is_hollow(&result) => Some(Ending::Result(result)),
            (Status::Cancelled, _) => Some(Ending::Cancelled(task())),
            (Status::Completed | Status::Failed, Some(Answer::Error(error))) => Some(Ending::Error(error)),
            (Status::Completed, Some(Answer::Result(result))) => Some(Ending::Result(result)),
            (Status::Failed, Some(Answer::Result(_))) => Some(Ending::Failed(task())),
            (Status::Completed | Status::Failed, None) => None,
            (Status::Working | Status::InputRequired, outcome) => {
                self.outcome = outcome;
                None
            }
        }
    }

    /// An answer of the server's own, or `None` where it was not reached and may be asked again.
    fn reached(&mut self, answer: Result<Answer, Error>, watch: Watch<'_>) -> Result<Option<Answer>, Error> {
        let answer = match answer {
            Ok(Answer::Error(error)) if is_busy(&error) => Err(Error::Busy(error_text(&error))),
            answer => answer,
        };
        match answer {
            Ok(answer) => {
                self.lost = 0;
                Ok(Some(answer))
            }
            Err(error) if error.is_passing() && self.lost < LOST_POLLS => {
                self.lost += 1;
                watch(Step::Lost(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

// === impl Shown ===

impl Shown {
    /// The task in a result, if it is one that made a task: nested, and without contents.
    pub(super) fn created(result: &RawValue) -> Result<Option<Task>, Error> {
        #[derive(Deserialize)]
        struct Created<'a> {
            #[serde(borrow)]
            task: Option<&'a RawValue>,
            #[serde(borrow)]
            content: Option<&'a RawValue>,
        }
        match read(result)? {
            Created { task: Some(task), content: None } => Ok(Some(read::<Self>(task)?.first())),
            Created { .. } => Ok(None),
        }
    }

    fn first(self) -> Task {
        self.with(POLL_INTERVAL)
    }

    /// The same task as it is now. A server need not repeat how often it wants to be polled.
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

/// Whether a result holds nothing but what is said about it.
fn is_hollow(result: &RawValue) -> bool {
    let object = Object::read(&Bytes::copy_from_slice(result.get().as_bytes()));
    object.is_ok_and(|object| object.members().all(|(name, _)| name == "_meta"))
}
