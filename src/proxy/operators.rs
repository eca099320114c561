//! What operators see of tasks, and what they may do to one.
//!
//! They see whose a task is and how it stands, of all owners, never what was asked or answered. They name it by the
//! beginning of its id, which clients and the log have, too. The whole id lets an anonymous caller fetch the result, so
//! it is never shown: 80 of its 128 bits stay unknown.

use super::{Ledger, Switchboard, answers, recent::Recent};
use crate::{
    dialect::Principal,
    protocol::Timestamp,
    store::StoreError,
    task::{Canceller, Record, TaskId},
};
use std::{fmt, sync::Arc};

/// The operators' view of the tasks of all routes.
pub struct Operators {
    ledger: Arc<Ledger>,
    switchboard: Arc<Switchboard>,
    /// Whose beginnings were shown.
    named: Recent<String, TaskId>,
}

/// A task as operators see it.
pub struct SeenTask {
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
    pub tasks: Vec<SeenTask>,
    /// Where to go on; none at the end. A page may have fewer than were asked for, and still not be the last.
    pub next: Option<Cursor>,
}

/// A place among all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    is_ended: bool,
    number: u64,
}

/// The tasks that the beginning of an id names.
pub enum Found {
    One(SeenTask),
    /// More than one; not all of very many.
    Several(Vec<SeenTask>),
    None,
}

/// What became of an operator's cancel.
pub enum Cancelled {
    /// The name is that of several tasks, and none was cancelled.
    Several(Vec<SeenTask>),
    Done(SeenTask),
    /// It had ended before.
    Ended(SeenTask),
    Unknown,
}

/// Names that are remembered with their tasks; another is looked for among the youngest tasks.
const NAMED: usize = 20_000;

/// Tasks that are looked at for one page or one name.
const LOOKED_AT: usize = 10_000;

/// Tasks that the store is asked for at a time.
const BATCH: usize = 250;

// === impl Operators ===

impl Operators {
    pub fn new(ledger: Arc<Ledger>, switchboard: Arc<Switchboard>) -> Self {
        Self { ledger, switchboard, named: Recent::new(NAMED) }
    }

    /// What time it is for tasks.
    pub fn now(&self) -> Timestamp {
        self.ledger.now()
    }

    /// At most `size` of the tasks that are wanted, behind `after`. No more than a bounded number is looked at.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn page(
        &self,
        wanted: impl Fn(&Record) -> bool + Send + Sync,
        after: Option<Cursor>,
        size: usize,
    ) -> Result<TaskPage, StoreError> {
        let mut tasks = Vec::new();
        let stopped = self
            .each(after, |record| {
                if wanted(record) {
                    tasks.push(self.seen(Arc::clone(record)));
                }
                tasks.len() < size
            })
            .await?;
        Ok(TaskPage { tasks, next: stopped })
    }

    /// The tasks whose ids begin with this, at least [`SHORTEST`] digits of it.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn find(&self, name: &str) -> Result<Found, StoreError> {
        let name = name.to_ascii_lowercase();
        let is_known = |record: &Arc<Record>| !record.is_expired(self.now());
        if let Some(id) = TaskId::parse(&name).or_else(|| self.named.get(&name)) {
            let found = self.ledger.load(&id).await?.filter(is_known);
            return Ok(found.map_or(Found::None, |record| Found::One(self.seen(record))));
        }
        if !is_name(&name) {
            return Ok(Found::None);
        }
        let mut ids = Vec::new();
        self.each(None, |record| {
            if record.id.as_str().starts_with(&name) {
                ids.push(record.id.clone());
            }
            ids.len() < CANDIDATES
        })
        .await?;
        let mut tasks = Vec::new();
        for id in ids {
            // The list may leave results out of its records.
            tasks.extend(self.ledger.load(&id).await?.filter(is_known).map(|record| self.seen(record)));
        }
        Ok(match tasks.len() {
            0 => Found::None,
            1 => tasks.pop().map_or(Found::None, Found::One),
            _ => Found::Several(tasks),
        })
    }

    /// Does what its client's cancel would do: the server is told, and whoever listens.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then: nothing is changed, and the server not told.
    pub async fn cancel(&self, name: &str) -> Result<Cancelled, StoreError> {
        let task = match self.find(name).await? {
            Found::One(task) => task,
            Found::Several(tasks) => return Ok(Cancelled::Several(tasks)),
            Found::None => return Ok(Cancelled::Unknown),
        };
        let id = &task.record.id;
        match answers::cancel(&self.ledger, &self.switchboard, id, Canceller::Operator).await? {
            Some(record) => Ok(Cancelled::Done(self.seen(record))),
            None => Ok(match self.find(task.record.id.as_str()).await? {
                Found::One(task) => Cancelled::Ended(task),
                Found::Several(_) | Found::None => Cancelled::Unknown,
            }),
        }
    }

    /// Shows the tasks behind `after`, those at work first, until `goes_on` says no or enough were looked at. Gives
    /// where that was; none where there are no more.
    async fn each(
        &self,
        after: Option<Cursor>,
        mut goes_on: impl FnMut(&Arc<Record>) -> bool,
    ) -> Result<Option<Cursor>, StoreError> {
        let now = self.now();
        let (first, mut below) = after.map_or((false, None), |after| (after.is_ended, Some(after.number)));
        let mut looked_at = 0;
        for is_ended in [false, true].into_iter().filter(|is_ended| *is_ended >= first) {
            loop {
                let found = self.ledger.recent(is_ended, below, BATCH).await?;
                let is_last = found.len() < BATCH;
                for (number, record) in found {
                    looked_at += 1;
                    below = Some(number);
                    if (!record.is_expired(now) && !goes_on(&record)) || looked_at == LOOKED_AT {
                        return Ok(Some(Cursor { is_ended, number }));
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

    fn seen(&self, record: Arc<Record>) -> SeenTask {
        let name = record.id.as_str()[..SHOWN].to_owned();
        self.named.get_or_insert_with(name.clone(), || record.id.clone());
        let (is_held, waits_for_store) = self.ledger.custody_of(&record.id);
        SeenTask {
            name,
            principal: Principal::from_bytes(record.owner.principal),
            waits: self.ledger.hub.listeners_of(&record.id),
            is_held,
            waits_for_store,
            record: self.ledger.as_it_stands(record),
        }
    }
}

/// What operators are shown of a task's id, and whose the task is.
pub fn names_of(record: &Record) -> (&str, Principal) {
    (&record.id.as_str()[..SHOWN], Principal::from_bytes(record.owner.principal))
}

/// Digits of an id that are shown: two of a million tasks share them once in 500 times.
const SHOWN: usize = 12;
/// Digits of an id that name a task at least.
const SHORTEST: usize = 4;
/// Tasks of one name that are looked for.
const CANDIDATES: usize = 5;

fn is_name(text: &str) -> bool {
    (SHORTEST..32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

// === impl Cursor ===

impl Cursor {
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

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_ended { 'e' } else { 'w' }, self.number)
    }
}
