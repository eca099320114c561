//! What operators see of tasks, and what they may do to one.
//!
//! They see whose a task is and how it stands, of all owners, never what was asked or answered. They name it by its
//! handle, a digest of its id: the id alone lets an anonymous caller fetch the result, so it is shown to nobody.

use super::{Ledger, Switchboard, answers, recent::Recent};
use crate::{
    dialect::Principal,
    protocol::Timestamp,
    store::StoreError,
    task::{Record, TaskId, TaskTag},
    telemetry::OperatorCancelled,
};
use ring::hmac;
use std::{fmt, sync::Arc};

/// The operators' view of the tasks of all routes.
pub struct Operators {
    ledger: Arc<Ledger>,
    switchboard: Arc<Switchboard>,
    key: hmac::Key,
    /// Whose handles were shown.
    named: Recent<String, TaskId>,
}

/// A task as operators see it.
pub struct SeenTask {
    /// 12 hexadecimal digits.
    pub handle: String,
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

/// What became of an operator's cancel.
pub enum Cancelled {
    Done(SeenTask),
    /// It had ended before.
    Ended(SeenTask),
    Unknown,
}

/// Handles that are remembered with whose they are; another is looked for among the youngest tasks.
const NAMED: usize = 20_000;

/// Tasks that are looked at for one page or one handle.
const LOOKED_AT: usize = 10_000;

/// Tasks that the store is asked for at a time.
const BATCH: usize = 250;

// === impl Operators ===

impl Operators {
    /// `key` makes the handles.
    pub fn new(ledger: Arc<Ledger>, switchboard: Arc<Switchboard>, key: &[u8; 32]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        Self { ledger, switchboard, key, named: Recent::new(NAMED) }
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

    /// The task of this handle, this beginning of an id as the log has it, or this id, if it is there.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then.
    pub async fn find(&self, name: &str) -> Result<Option<SeenTask>, StoreError> {
        let Some(id) = self.id_of(name).await? else { return Ok(None) };
        let found = self.ledger.load(&id).await?.filter(|record| !record.is_expired(self.now()));
        Ok(found.map(|record| self.seen(record)))
    }

    /// Does what its client's cancel would do: the server is told, and whoever listens.
    ///
    /// # Errors
    /// [`StoreError`], which is in the log by then: nothing is changed, and the server not told.
    pub async fn cancel(&self, name: &str) -> Result<Cancelled, StoreError> {
        let Some(task) = self.find(name).await? else { return Ok(Cancelled::Unknown) };
        match answers::cancel(&self.ledger, &self.switchboard, &task.record.id).await? {
            Some(record) => {
                let (id, owner) = (&record.id, &record.owner);
                let (route, tool, principal) = (&owner.route, &record.tool, &task.principal);
                OperatorCancelled { task: &id.tag(), route, tool, principal }.emit();
                Ok(Cancelled::Done(self.seen(record)))
            }
            None => Ok(self.find(name).await?.map_or(Cancelled::Unknown, Cancelled::Ended)),
        }
    }

    async fn id_of(&self, name: &str) -> Result<Option<TaskId>, StoreError> {
        if let Some(id) = TaskId::parse(name) {
            return Ok(Some(id));
        }
        let is_tag = name.len() == TaskTag::DIGITS && is_hexadecimal(name);
        if !is_tag && !is_handle(name) {
            return Ok(None);
        }
        if let Some(id) = self.named.get(&name.to_owned()) {
            return Ok(Some(id));
        }
        let mut found = None;
        self.each(None, |record| {
            let is_it =
                if is_tag { record.id.as_str().starts_with(name) } else { self.handle(&record.id) == name };
            found = is_it.then(|| record.id.clone());
            found.is_none()
        })
        .await?;
        Ok(found)
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
        let handle = self.handle(&record.id);
        self.named.get_or_insert_with(handle.clone(), || record.id.clone());
        let (is_held, waits_for_store) = self.ledger.custody_of(&record.id);
        SeenTask {
            handle,
            principal: Principal::from_bytes(record.owner.principal),
            waits: self.ledger.hub.listeners_of(&record.id),
            is_held,
            waits_for_store,
            record: self.ledger.as_it_stands(record),
        }
    }

    fn handle(&self, id: &TaskId) -> String {
        let digest = hmac::sign(&self.key, id.as_str().as_bytes());
        digest.as_ref()[..HANDLE / 2].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Digits of a handle.
const HANDLE: usize = 12;

fn is_handle(name: &str) -> bool {
    name.len() == HANDLE && is_hexadecimal(name)
}

fn is_hexadecimal(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_hexdigit())
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
