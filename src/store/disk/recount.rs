//! The counts, checked against the rows after a start.
//!
//! Finished tasks are counted in a table of their own (`usage`), so that a start need not read every row. A
//! wrong count would refuse a caller's tasks for as long as the store lasts. So the rows are counted once
//! after each start, and the counts in the table and in memory are repaired where they differ. The first rows
//! are counted while the store is opened, the others by the writer between its commits, some at a time. A
//! change that is committed meanwhile is counted here, too, if its row has been passed.

use super::{changes::size_from_column, row};
use crate::store::{
    Recount,
    counts::{CountedTask, StoreCounts, UsageShare},
};
use rusqlite::{Connection, params};
use std::{collections::HashMap, sync::Arc};

/// Number of rows that are counted at a time. That takes about a millisecond, which a change may have to
/// wait.
pub(super) const STEP: i64 = 1024;
/// Number of steps while a store is opened: enough for all rows of most stores.
pub(super) const FIRST_STEPS: usize = 4;

/// A count of all rows in progress.
#[derive(Debug, Default)]
pub(super) struct RowCount {
    /// The number of the last counted row.
    last_row: i64,
    /// The number that stands for each route in `shares`.
    routes: HashMap<Arc<str>, usize>,
    shares: HashMap<UsageKey, UsageShare>,
}

/// A principal, the number of a route, and a status.
type UsageKey = ([u8; 16], usize, &'static str);

/// Content of the table `usage`: tasks and bytes of a principal, a route and a status.
type UsageTable = HashMap<([u8; 16], String, String), (i64, i64)>;

/// The change of a row in a commit, as far as it affects the counts.
#[derive(Debug)]
pub(super) struct CountChange {
    /// The number of the row.
    pub(super) number: i64,
    /// The task before the change; `None` if it was inserted.
    pub(super) before: Option<CountedTask>,
    /// The task after the change; `None` if it was removed.
    pub(super) after: Option<CountedTask>,
}

// === impl RowCount ===

impl RowCount {
    /// Counts up to `rows` more rows; returns whether all rows are counted.
    pub(super) fn step(&mut self, connection: &Connection, rows: i64) -> rusqlite::Result<bool> {
        let mut statement = connection.prepare_cached(ROWS)?;
        let mut found = statement.query(params![self.last_row, rows])?;
        let mut remaining = rows;
        while let Some(row) = found.next()? {
            remaining -= 1;
            self.last_row = row.get(0)?;
            if let Some((principal, route)) = row::counted_for(row.get_ref(1)?.as_blob()?) {
                let (bytes, status) =
                    (size_from_column(row.get(2)?), row::status_from_column(row.get_ref(3)?.as_str()?));
                self.share(principal, route, status).add(UsageShare { tasks: 1, stored_bytes: bytes });
            }
        }
        Ok(remaining > 0)
    }

    /// Applies a committed change to the count, if its row has been counted already.
    pub(super) fn apply(&mut self, CountChange { number, before, after }: &CountChange) {
        if *number > self.last_row {
            return;
        }
        if let Some(CountedTask { principal, route, status, bytes }) = after {
            self.share(*principal, route, status).add(UsageShare { tasks: 1, stored_bytes: *bytes });
        }
        if let Some(CountedTask { principal, route, status, bytes }) = before {
            self.share(*principal, route, status).subtract(UsageShare { tasks: 1, stored_bytes: *bytes });
        }
    }

    /// Repairs the table `usage`, once all rows are counted.
    pub(super) fn repair_usage(&self, connection: &Connection) -> rusqlite::Result<()> {
        let expected = self.usage_table();
        if read_usage(connection)?.as_ref() == Some(&expected) {
            return Ok(());
        }
        let transaction = connection.unchecked_transaction()?;
        transaction.execute("DELETE FROM usage", [])?;
        let mut set = transaction.prepare(SET)?;
        for ((principal, route, status), (tasks, bytes)) in &expected {
            set.execute(params![principal, route, status, tasks, bytes])?;
        }
        drop(set);
        transaction.commit()
    }

    /// Returns the counts of the rows, and how the table `usage` and the counts in memory differ from them.
    pub(super) fn compare(&self, connection: &Connection, counts: &StoreCounts) -> rusqlite::Result<Recount> {
        let mut recount = self.counts().compare(counts);
        let (expected, found) = (self.usage_table(), read_usage(connection)?);
        if found.as_ref() != Some(&expected) {
            recount
                .differences
                .push(format!("the table `usage` has {found:?}, and should have {expected:?}"));
        }
        Ok(recount)
    }

    /// Counts all rows, and returns whether the table `usage` agrees.
    pub(super) fn is_usage_correct(connection: &Connection) -> rusqlite::Result<bool> {
        let mut rows = Self::default();
        rows.step(connection, i64::MAX)?;
        Ok(read_usage(connection)?.as_ref() == Some(&rows.usage_table()))
    }

    /// The counts for memory, once all rows are counted.
    pub(super) fn counts(&self) -> StoreCounts {
        let mut counts = StoreCounts::default();
        for (principal, route, status, share) in self.iter() {
            counts.add_share(
                &CountedTask { principal: *principal, route: Arc::clone(route), status, bytes: 0 },
                share,
            );
        }
        counts
    }

    /// The content that the table `usage` should have: finished tasks only.
    fn usage_table(&self) -> UsageTable {
        let ended = self.iter().filter(|(_, _, status, _)| row::is_ended(status));
        let entry = |(principal, route, status, share): (&[u8; 16], &Arc<str>, &str, UsageShare)| {
            let key = (*principal, route.to_string(), status.to_owned());
            (key, (size_to_column(share.tasks), size_to_column(share.stored_bytes)))
        };
        ended.map(entry).collect()
    }

    /// The counts of each principal, route and status.
    fn iter(&self) -> impl Iterator<Item = (&[u8; 16], &Arc<str>, &'static str, UsageShare)> {
        let names: HashMap<_, _> = self.routes.iter().map(|(route, number)| (*number, route)).collect();
        let non_empty = self.shares.iter().filter(|(_, share)| share.tasks > 0);
        non_empty.map(move |((principal, route, status), share)| (principal, names[route], *status, *share))
    }

    /// The count of a principal, a route and a status.
    fn share(&mut self, principal: [u8; 16], route: &str, status: &'static str) -> &mut UsageShare {
        let next = self.routes.len();
        let route = match self.routes.get(route) {
            Some(number) => *number,
            None => *self.routes.entry(route.into()).or_insert(next),
        };
        self.shares.entry((principal, route, status)).or_default()
    }
}

/// Reads the table `usage`; `None` if it has a row that this program does not write.
fn read_usage(connection: &Connection) -> rusqlite::Result<Option<UsageTable>> {
    let mut statement = connection.prepare("SELECT principal, route, state, tasks, bytes FROM usage")?;
    let mut rows = statement.query([])?;
    let mut table = UsageTable::new();
    while let Some(row) = rows.next()? {
        let Some(principal) = row::principal_of_owner(row.get_ref(0)?.as_blob()?) else { return Ok(None) };
        table.insert((principal, row.get(1)?, row.get(2)?), (row.get(3)?, row.get(4)?));
    }
    Ok(Some(table))
}

fn size_to_column(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

const ROWS: &str = "SELECT number, owner, bytes, state FROM tasks WHERE number > ?1 ORDER BY number LIMIT ?2";
const SET: &str = "INSERT INTO usage (principal, route, state, tasks, bytes) VALUES (?1, ?2, ?3, ?4, ?5)";
