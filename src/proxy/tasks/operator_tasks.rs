//! The operators' view of tasks, and their cancellations.
//!
//! Operators see the principal and the state of all tasks, never arguments or results. They name a task by
//! the beginning of its id, which is also in the log. The whole id is never shown, because an anonymous
//! caller could fetch the result with it: 80 of its 128 bits stay secret.

use crate::{
    dialect::Principal,
    protocol::ClockReading,
    proxy::{LeaseState, TaskLedger, answers, recent_map::RecentMap},
    store::{LoadedTask, RecentTask, StoreError, TaskOwnership},
    task::{Canceller, Record, TaskId},
};
use std::{fmt, sync::Arc};

/// The operators' view of the tasks of all routes.
pub struct OperatorTasks {
    ledger: Arc<TaskLedger>,
    /// The tasks that were shown recently, by name.
    names: RecentMap<String, TaskId>,
}

/// A task as operators see it.
pub struct TaskSummary {
    /// The beginning of the task's id: 12 hexadecimal digits.
    pub name: String,
    /// The task record. Its result may be left out (empty).
    pub record: Arc<Record>,
    /// The principal that the task belongs to.
    pub principal: Principal,
    /// The number of client requests that wait for the task or watch it.
    pub waiting_requests: usize,
    /// The lease of the task; meaningless once the task has ended.
    pub lease: LeaseState,
    /// Whether the latest change of the task waits for the store.
    pub has_unstored_change: bool,
}

/// A page of tasks: working tasks before ended ones, the youngest of each first.
pub struct TaskPage {
    pub tasks: Vec<TaskSummary>,
    /// The position of the next page; `None` if this page is the last. A page may be shorter than requested
    /// and still not be the last.
    pub next: Option<TaskCursor>,
}

/// A position in the list of all tasks: after this task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCursor {
    /// Whether the position is among the ended tasks, which follow the working ones.
    is_ended: bool,
    /// The number of the task in the store's order of insertion.
    number: u64,
}

/// The tasks whose ids begin with a given name.
pub enum TaskLookup {
    One(TaskSummary),
    /// The name is ambiguous: at least two matching tasks, at most [`MAX_CANDIDATES`].
    Several(Vec<TaskSummary>),
    /// There is no such task.
    None,
}

/// The outcome of an operator's cancellation.
pub enum CancelOutcome {
    /// The name is ambiguous, and no task was cancelled.
    Several(Vec<TaskSummary>),
    Cancelled(TaskSummary),
    /// The task had ended before.
    AlreadyEnded(TaskSummary),
    /// There is no such task.
    Unknown,
}

/// Task names that are cached; other names are looked up among the youngest tasks.
const MAX_NAMES: usize = 20_000;

/// Tasks that are scanned for one page or one name.
const SCAN_LIMIT: usize = 10_000;

/// Tasks that are read with one request to the store.
const BATCH_SIZE: usize = 250;

// === impl OperatorTasks ===

impl OperatorTasks {
    /// Creates the operators' view of these tasks.
    pub fn new(ledger: Arc<TaskLedger>) -> Self {
        Self { ledger, names: RecentMap::new(MAX_NAMES) }
    }

    /// The current time for tasks, with the offset of the wall clock.
    pub fn now(&self) -> ClockReading {
        self.ledger.now()
    }

    /// Returns a page of at most `size` tasks that match `is_match`, from the position `after`, or from the
    /// beginning. Scans at most [`SCAN_LIMIT`] tasks.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn page(
        &self,
        is_match: impl Fn(&Record) -> bool + Send + Sync,
        after: Option<TaskCursor>,
        size: usize,
    ) -> Result<TaskPage, StoreError> {
        let mut tasks = Vec::new();
        let next = self
            .scan(after, |RecentTask { record, ownership, .. }| {
                if is_match(record) {
                    tasks.push(self.summarize(Arc::clone(record), ownership));
                }
                tasks.len() < size
            })
            .await?;
        Ok(TaskPage { tasks, next })
    }

    /// Finds the tasks whose ids begin with this name of at least [`MIN_NAME_DIGITS`] hexadecimal digits.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn find(&self, name: &str) -> Result<TaskLookup, StoreError> {
        let name = name.to_ascii_lowercase();
        let now = self.now().time;
        let is_unexpired = |task: &LoadedTask| !task.record.is_expired(now);
        let summarize = |LoadedTask { record, ownership, .. }| self.summarize(record, &ownership);
        if let Some(id) = TaskId::parse(&name).or_else(|| self.names.get(&name)) {
            let found = self.ledger.load_task(&id).await?.filter(is_unexpired);
            return Ok(found.map_or(TaskLookup::None, |task| TaskLookup::One(summarize(task))));
        }
        if !is_valid_name(&name) {
            return Ok(TaskLookup::None);
        }
        let mut ids = Vec::new();
        self.scan(None, |RecentTask { record, .. }| {
            if record.id.as_str().starts_with(&name) {
                ids.push(record.id.clone());
            }
            ids.len() < MAX_CANDIDATES
        })
        .await?;
        let mut tasks = Vec::new();
        for id in ids {
            // Loaded again: the list may leave out results.
            tasks.extend(self.ledger.load_task(&id).await?.filter(is_unexpired).map(summarize));
        }
        Ok(match tasks.len() {
            0 => TaskLookup::None,
            1 => tasks.pop().map_or(TaskLookup::None, TaskLookup::One),
            _ => TaskLookup::Several(tasks),
        })
    }

    /// Cancels the task with this name, with the same effect as a cancellation by its client: the server and
    /// the watchers are notified.
    ///
    /// # Errors
    /// [`StoreError`], which is logged: the task is not changed, and the server is not notified.
    pub async fn cancel(&self, name: &str) -> Result<CancelOutcome, StoreError> {
        let task = match self.find(name).await? {
            TaskLookup::One(task) => task,
            TaskLookup::Several(tasks) => return Ok(CancelOutcome::Several(tasks)),
            TaskLookup::None => return Ok(CancelOutcome::Unknown),
        };
        match answers::cancel_task(&self.ledger, &task.record.id, Canceller::Operator).await? {
            Some(record) => Ok(CancelOutcome::Cancelled(TaskSummary { record, ..task })),
            None => Ok(match self.find(task.record.id.as_str()).await? {
                TaskLookup::One(task) => CancelOutcome::AlreadyEnded(task),
                TaskLookup::Several(_) | TaskLookup::None => CancelOutcome::Unknown,
            }),
        }
    }

    /// Passes the tasks from the position `after` to the visitor `visit`, working tasks first, until the
    /// visitor returns false or the scan limit is reached. Returns the position reached; `None` at the end of
    /// the list.
    async fn scan(
        &self,
        after: Option<TaskCursor>,
        mut visit: impl FnMut(&RecentTask) -> bool,
    ) -> Result<Option<TaskCursor>, StoreError> {
        let now = self.now().time;
        let (starts_ended, mut below) =
            after.map_or((false, None), |after| (after.is_ended, Some(after.number)));
        let mut scanned = 0;
        for is_ended in [false, true].into_iter().filter(|is_ended| *is_ended >= starts_ended) {
            loop {
                let found = self.ledger.recent(is_ended, below, BATCH_SIZE).await?;
                let is_last = found.len() < BATCH_SIZE;
                for task in found {
                    scanned += 1;
                    below = Some(task.number);
                    if (!task.record.is_expired(now) && !visit(&task)) || scanned == SCAN_LIMIT {
                        return Ok(Some(TaskCursor { is_ended, number: task.number }));
                    }
                }
                if is_last {
                    break;
                }
            }
            below = None;
        }
        Ok(None)
    }

    fn summarize(&self, record: Arc<Record>, ownership: &TaskOwnership) -> TaskSummary {
        let name = record.id.as_str()[..NAME_DIGITS].to_owned();
        self.names.get_or_insert_with(name.clone(), || record.id.clone());
        TaskSummary {
            name,
            principal: Principal::from_bytes(record.owner.principal),
            waiting_requests: self.ledger.watchers.watcher_count(&record.id),
            lease: self.ledger.lease_state(&record.id, ownership),
            has_unstored_change: self.ledger.has_unstored(&record.id),
            record: self.ledger.with_unstored_message(record),
        }
    }
}

/// Returns the name of a task for operators (the beginning of its id), and the task's principal.
pub fn name_and_principal(record: &Record) -> (&str, Principal) {
    (&record.id.as_str()[..NAME_DIGITS], Principal::from_bytes(record.owner.principal))
}

/// Hexadecimal digits of an id that form a task's name. The probability that two of a million tasks have the
/// same name is 1 in 500.
const NAME_DIGITS: usize = 12;
/// The minimum number of digits with which an operator can name a task.
const MIN_NAME_DIGITS: usize = 4;
/// Tasks that are loaded for an ambiguous name; further ones are not shown.
const MAX_CANDIDATES: usize = 5;

fn is_valid_name(text: &str) -> bool {
    (MIN_NAME_DIGITS..32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

// === impl TaskCursor ===

impl TaskCursor {
    /// Parses the displayed form: `w` for working or `e` for ended, and the number.
    pub fn parse(text: &str) -> Option<Self> {
        let is_ended = match text.get(..1)? {
            "w" => false,
            "e" => true,
            _ => return None,
        };
        Some(Self { is_ended, number: text[1..].parse().ok()? })
    }
}

impl fmt::Display for TaskCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_ended { 'e' } else { 'w' }, self.number)
    }
}
