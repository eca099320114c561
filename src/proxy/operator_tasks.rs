//! What operators see of tasks, and what they may do to one.
//!
//! They see whose a task is and how it stands, of all owners, never what was asked or answered. They name it by the
//! beginning of its id, which clients and the log have, too. The whole id lets an anonymous caller fetch the result, so
//! it is never shown: 80 of its 128 bits stay unknown.

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
    /// Whose beginnings were shown.
    names: RecentMap<String, TaskId>,
}

/// A task as operators see it.
pub struct TaskSummary {
    /// The beginning of its id: 12 hexadecimal digits.
    pub name: String,
    /// Whose result may be left out (empty).
    pub record: Arc<Record>,
    pub principal: Principal,
    /// How many requests of clients wait for it or listen to it.
    pub waits: usize,
    /// Whether its call is held in this process.
    pub is_held: bool,
    /// Whether it has gone on, and the store has not taken that.
    pub waits_for_store: bool,
}

/// A page of tasks: those at work, and then those that have ended, the youngest of each first.
pub struct TaskPage {
    pub tasks: Vec<TaskSummary>,
    /// Where to go on; none at the end. A page may have fewer than were asked for, and still not be the last.
    pub next: Option<TaskCursor>,
}

/// A place among all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCursor {
    is_ended: bool,
    number: u64,
}

/// The tasks that the beginning of an id names.
pub enum TaskLookup {
    One(TaskSummary),
    /// More than one; not all of very many.
    Several(Vec<TaskSummary>),
    None,
}

/// What became of an operator's cancel.
pub enum CancelOutcome {
    /// The name is that of several tasks, and none was cancelled.
    Several(Vec<TaskSummary>),
    Cancelled(TaskSummary),
    /// It had ended before.
    AlreadyEnded(TaskSummary),
    Unknown,
}

/// Names that are remembered with their tasks; another is looked for among the youngest tasks.
const MAX_NAMES: usize = 20_000;

/// Tasks that are looked at for one page or one name.
const SCAN_LIMIT: usize = 10_000;

/// Tasks that the store is asked for at a time.
const BATCH: usize = 250;

// === impl Operators ===

impl OperatorTasks {
    pub fn new(ledger: Arc<TaskLedger>, switchboard: Arc<CallRegistry>) -> Self {
        Self { ledger, call_registry: switchboard, names: RecentMap::new(MAX_NAMES) }
    }

    /// What time it is for tasks, and by the wall clock.
    pub fn now(&self) -> ClockReading {
        self.ledger.now()
    }

    /// At most `size` of the tasks that are wanted, behind `after`. No more than a bounded number is looked at.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
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

    /// The tasks whose ids begin with this, at least [`MIN_NAME_DIGITS`] digits of it.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
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
            // The list may leave results out of its records.
            tasks.extend(self.ledger.load(&id).await?.filter(is_known).map(|record| self.summarize(record)));
        }
        Ok(match tasks.len() {
            0 => TaskLookup::None,
            1 => tasks.pop().map_or(TaskLookup::None, TaskLookup::One),
            _ => TaskLookup::Several(tasks),
        })
    }

    /// Does what its client's cancel would do: the server is told, and whoever listens.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then: nothing is changed, and the server not told.
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

    /// Shows the tasks behind `after`, those at work first, until `goes_on` says no or enough were looked at. Gives
    /// where that was; none where there are no more.
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

/// What operators are shown of a task's id, and whose the task is.
pub fn name_and_principal(record: &Record) -> (&str, Principal) {
    (&record.id.as_str()[..NAME_DIGITS], Principal::from_bytes(record.owner.principal))
}

/// Digits of an id that are shown: two of a million tasks share them once in 500 times.
const NAME_DIGITS: usize = 12;
/// Digits of an id that name a task at least.
const MIN_NAME_DIGITS: usize = 4;
/// Tasks of one name that are looked for.
const MAX_CANDIDATES: usize = 5;

fn is_name(text: &str) -> bool {
    (MIN_NAME_DIGITS..32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

// === impl Cursor ===

impl TaskCursor {
    /// As it was shown.
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
