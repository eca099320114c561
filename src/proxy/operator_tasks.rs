//! The operators' view of tasks, and what they may do to one.
//!
//! Operators see the principal and the state of all tasks, never arguments or results. They name a task by
//! the beginning of its id, which clients and the log have, too. The whole id is never shown, because an
//! anonymous caller could fetch the result with it: 80 of its 128 bits stay unknown.

use super::{CallRegistry, TaskLedger, answers, recent_map::RecentMap};
use crate::{
    dialect::Principal,
    protocol::ClockReading,
    store::StoreError,
    task::{Canceller, Record, TaskId},
};
use std::{fmt, sync::Arc};

/// The operators' view of the tasks of all routes.
pub struct OperatorTasks {
    ledger: Arc<TaskLedger>,
    call_registry: Arc<CallRegistry>,
    /// The tasks whose names were shown.
    names: RecentMap<String, TaskId>,
}

/// A task as operators see it.
pub struct TaskSummary {
    /// The beginning of its id: 12 hexadecimal digits.
    pub name: String,
    /// The result may be left out (empty).
    pub record: Arc<Record>,
    pub principal: Principal,
    /// The number of client requests that wait for it or watch it.
    pub waits: usize,
    /// Whether this process runs its call.
    pub is_held: bool,
    /// Whether its latest change waits for the store.
    pub waits_for_store: bool,
}

/// A page of tasks: working tasks before ended ones, the youngest of each first.
pub struct TaskPage {
    pub tasks: Vec<TaskSummary>,
    /// The next page; none at the end. A page may be shorter than requested and still not be the last.
    pub next: Option<TaskCursor>,
}

/// A position in the list of all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCursor {
    is_ended: bool,
    number: u64,
}

/// The tasks that the beginning of an id names.
pub enum TaskLookup {
    One(TaskSummary),
    /// More than one; of very many not all.
    Several(Vec<TaskSummary>),
    None,
}

/// The outcome of an operator's cancellation.
pub enum CancelOutcome {
    /// The name is ambiguous, and no task was cancelled.
    Several(Vec<TaskSummary>),
    Cancelled(TaskSummary),
    /// The task had ended before.
    AlreadyEnded(TaskSummary),
    Unknown,
}

/// Cached names; other names are looked up among the youngest tasks.
const MAX_NAMES: usize = 20_000;

/// Tasks that are scanned for one page or one name.
const SCAN_LIMIT: usize = 10_000;

/// Tasks in one request to the store.
const BATCH: usize = 250;

// === impl OperatorTasks ===

impl OperatorTasks {
    pub fn new(ledger: Arc<TaskLedger>, switchboard: Arc<CallRegistry>) -> Self {
        Self { ledger, call_registry: switchboard, names: RecentMap::new(MAX_NAMES) }
    }

    /// The current time for tasks, with the offset of the wall clock.
    pub fn now(&self) -> ClockReading {
        self.ledger.now()
    }

    /// At most `size` matching tasks after `after`. Scans a bounded number of tasks.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn page(
        &self,
        wanted: impl Fn(&Record) -> bool + Send + Sync,
        after: Option<TaskCursor>,
        size: usize,
    ) -> Result<TaskPage, StoreError> {
        let mut tasks = Vec::new();
        let stopped = self
            .scan(after, |record| {
                if wanted(record) {
                    tasks.push(self.summarize(Arc::clone(record)));
                }
                tasks.len() < size
            })
            .await?;
        Ok(TaskPage { tasks, next: stopped })
    }

    /// The tasks whose ids begin with this name of at least [`MIN_NAME_DIGITS`] digits.
    ///
    /// # Errors
    /// [`StoreError`], which is logged.
    pub async fn find(&self, name: &str) -> Result<TaskLookup, StoreError> {
        let name = name.to_ascii_lowercase();
        let now = self.now().time;
        let is_known = |record: &Arc<Record>| !record.is_expired(now);
        if let Some(id) = TaskId::parse(&name).or_else(|| self.names.get(&name)) {
            let found = self.ledger.load(&id).await?.filter(is_known);
            return Ok(found.map_or(TaskLookup::None, |record| TaskLookup::One(self.summarize(record))));
        }
        if !is_name(&name) {
            return Ok(TaskLookup::None);
        }
        let mut ids = Vec::new();
        self.scan(None, |record| {
            if record.id.as_str().starts_with(&name) {
                ids.push(record.id.clone());
            }
            ids.len() < MAX_CANDIDATES
        })
        .await?;
        let mut tasks = Vec::new();
        for id in ids {
            // Loaded again: the list may leave out results.
            tasks.extend(self.ledger.load(&id).await?.filter(is_known).map(|record| self.summarize(record)));
        }
        Ok(match tasks.len() {
            0 => TaskLookup::None,
            1 => tasks.pop().map_or(TaskLookup::None, TaskLookup::One),
            _ => TaskLookup::Several(tasks),
        })
    }

    /// Cancels a task as its client would: the server and the watchers are notified.
    ///
    /// # Errors
    /// [`StoreError`], which is logged: nothing is changed, and the server is not notified.
    pub async fn cancel(&self, name: &str) -> Result<CancelOutcome, StoreError> {
        let task = match self.find(name).await? {
            TaskLookup::One(task) => task,
            TaskLookup::Several(tasks) => return Ok(CancelOutcome::Several(tasks)),
            TaskLookup::None => return Ok(CancelOutcome::Unknown),
        };
        let id = &task.record.id;
        match answers::cancel(&self.ledger, &self.call_registry, id, Canceller::Operator).await? {
            Some(record) => Ok(CancelOutcome::Cancelled(self.summarize(record))),
            None => Ok(match self.find(task.record.id.as_str()).await? {
                TaskLookup::One(task) => CancelOutcome::AlreadyEnded(task),
                TaskLookup::Several(_) | TaskLookup::None => CancelOutcome::Unknown,
            }),
        }
    }

    /// Passes the tasks after `after` to `goes_on`, working tasks first, until it returns false or the scan
    /// limit is reached. Returns the position reached; none at the end of the list.
    async fn scan(
        &self,
        after: Option<TaskCursor>,
        mut goes_on: impl FnMut(&Arc<Record>) -> bool,
    ) -> Result<Option<TaskCursor>, StoreError> {
        let now = self.now().time;
        let (first, mut below) = after.map_or((false, None), |after| (after.is_ended, Some(after.number)));
        let mut looked_at = 0;
        for is_ended in [false, true].into_iter().filter(|is_ended| *is_ended >= first) {
            loop {
                let found = self.ledger.recent(is_ended, below, BATCH).await?;
                let is_last = found.len() < BATCH;
                for (number, record) in found {
                    looked_at += 1;
                    below = Some(number);
                    if (!record.is_expired(now) && !goes_on(&record)) || looked_at == SCAN_LIMIT {
                        return Ok(Some(TaskCursor { is_ended, number }));
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

    fn summarize(&self, record: Arc<Record>) -> TaskSummary {
        let name = record.id.as_str()[..NAME_DIGITS].to_owned();
        self.names.get_or_insert_with(name.clone(), || record.id.clone());
        let (is_held, waits_for_store) = self.ledger.lease_status(&record.id);
        TaskSummary {
            name,
            principal: Principal::from_bytes(record.owner.principal),
            waits: self.ledger.watchers.watcher_count(&record.id),
            is_held,
            waits_for_store,
            record: self.ledger.with_store_status(record),
        }
    }
}

/// The name of a task for operators, and its principal.
pub fn name_and_principal(record: &Record) -> (&str, Principal) {
    (&record.id.as_str()[..NAME_DIGITS], Principal::from_bytes(record.owner.principal))
}

/// Digits of an id in a name: two of a million tasks share them once in 500 times.
const NAME_DIGITS: usize = 12;
/// The least digits of an id that name a task.
const MIN_NAME_DIGITS: usize = 4;
/// Tasks of one name that are looked up.
const MAX_CANDIDATES: usize = 5;

fn is_name(text: &str) -> bool {
    (MIN_NAME_DIGITS..32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

// === impl TaskCursor ===

impl TaskCursor {
    /// Parses the displayed form.
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
