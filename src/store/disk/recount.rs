//! The counts, checked against the rows after a start.
//!
//! Finished tasks are counted in a table of their own (`usage`), so that a start need not read every row. A
//! wrong count would refuse a caller's tasks for as long as the store lasts. So the rows are counted once
//! after each start, and the counts in the table and in memory are repaired where they differ. The first rows
//! are counted while the store is opened, the others by the writer between its commits, some at a time. A
//! change that is committed meanwhile is counted here, too, if its row has been passed.

use super::{changes::size, row};
use crate::store::{
    Recount,
    counts::{CountedTask, StoreCounts, UsageShare},
};
use rusqlite::{Connection, params};
use std::{collections::HashMap, sync::Arc};

/// Rows that are counted at a time: about a millisecond, which a change may have to wait.
pub(super) const STEP: i64 = 1024;
/// Steps while a store is opened: all rows of most stores.
pub(super) const FIRST_STEPS: usize = 4;

/// The counts of the rows so far.
#[derive(Debug, Default)]
pub(super) struct RowCount {
    /// The number of the last counted row.
    last_row: i64,
    /// Each route and its number.
    routes: HashMap<Arc<str>, usize>,
    shares: HashMap<UsageKey, UsageShare>,
}

/// A principal, the number of a route, and a status.
type UsageKey = ([u8; 16], usize, &'static str);

/// Content of the table `usage`: tasks and bytes of a principal, a route and a status.
type UsageTable = HashMap<([u8; 16], String, String), (i64, i64)>;

/// A change of a counted row in a commit.
#[derive(Debug)]
pub(super) struct CountChange {
    pub(super) number: i64,
    pub(super) was: Option<CountedTask>,
    pub(super) is: Option<CountedTask>,
}

// === impl RowCount ===

impl RowCount {
    /// Counts up to `rows` more rows. Returns whether there are no more.
    pub(super) fn step(&mut self, connection: &Connection, rows: i64) -> rusqlite::Result<bool> {
        let mut statement = connection.prepare_cached(ROWS)?;
        let mut found = statement.query(params![self.last_row, rows])?;
        let mut left = rows;
        while let Some(row) = found.next()? {
            left -= 1;
            self.last_row = row.get(0)?;
            if let Some((principal, route)) = row::counted_for(row.get_ref(1)?.as_blob()?) {
                let (bytes, status) = (size(row.get(2)?), row::status(row.get_ref(3)?.as_str()?));
                self.share(principal, route, status).add(UsageShare { tasks: 1, stored_bytes: bytes });
            }
        }
        Ok(left > 0)
    }

    /// Counts a committed change, if its row is counted already.
    pub(super) fn apply(&mut self, CountChange { number, was, is }: &CountChange) {
        if *number > self.last_row {
            return;
        }
        if let Some(CountedTask { principal, route, status, bytes }) = is {
            self.share(*principal, route, status).add(UsageShare { tasks: 1, stored_bytes: *bytes });
        }
        if let Some(CountedTask { principal, route, status, bytes }) = was {
            self.share(*principal, route, status).subtract(UsageShare { tasks: 1, stored_bytes: *bytes });
        }
    }

    /// Repairs the table, once all rows are counted.
    pub(super) fn repair_usage(&self, connection: &Connection) -> rusqlite::Result<()> {
        let wanted = self.usage_table();
        if read_usage(connection)?.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let transaction = connection.unchecked_transaction()?;
        transaction.execute("DELETE FROM usage", [])?;
        let mut set = transaction.prepare(SET)?;
        for ((principal, route, status), (tasks, bytes)) in &wanted {
            set.execute(params![principal, route, status, tasks, bytes])?;
        }
        drop(set);
        transaction.commit()
    }

    /// The counts of the rows, and the differences of the table and of the counts in memory.
    pub(super) fn compare(&self, connection: &Connection, counts: &StoreCounts) -> rusqlite::Result<Recount> {
        let mut recount = self.counts().compare(counts);
        let (wanted, found) = (self.usage_table(), read_usage(connection)?);
        if found.as_ref() != Some(&wanted) {
            recount.differences.push(format!("the table `usage` has {found:?}, and should have {wanted:?}"));
        }
        Ok(recount)
    }

    /// Counts all rows, and returns whether the table agrees.
    pub(super) fn is_usage_correct(connection: &Connection) -> rusqlite::Result<bool> {
        let mut rows = Self::default();
        rows.step(connection, i64::MAX)?;
        Ok(read_usage(connection)?.as_ref() == Some(&rows.usage_table()))
    }

    /// The counts for memory, once all rows are counted.
    pub(super) fn counts(&self) -> StoreCounts {
        let mut counts = StoreCounts::default();
        for (principal, route, status, share) in self.each() {
            counts.add_share(
                &CountedTask { principal: *principal, route: Arc::clone(route), status, bytes: 0 },
                share,
            );
        }
        counts
    }

    /// The counts for the table, which has finished tasks only.
    fn usage_table(&self) -> UsageTable {
        let ended = self.each().filter(|(_, _, status, _)| row::is_ended(status));
        let entry = |(principal, route, status, share): (&[u8; 16], &Arc<str>, &str, UsageShare)| {
            let key = (*principal, route.to_string(), status.to_owned());
            (key, (saturated(share.tasks), saturated(share.stored_bytes)))
        };
        ended.map(entry).collect()
    }

    /// The counts of each principal, route and status.
    fn each(&self) -> impl Iterator<Item = (&[u8; 16], &Arc<str>, &'static str, UsageShare)> {
        let names: HashMap<_, _> = self.routes.iter().map(|(route, number)| (*number, route)).collect();
        let there = self.shares.iter().filter(|(_, share)| share.tasks > 0);
        there.map(move |((principal, route, status), share)| (principal, names[route], *status, *share))
    }

    fn share(&mut self, principal: [u8; 16], route: &str, status: &'static str) -> &mut UsageShare {
        let next = self.routes.len();
        let route = match self.routes.get(route) {
            Some(number) => *number,
            None => *self.routes.entry(route.into()).or_insert(next),
        };
        self.shares.entry((principal, route, status)).or_default()
    }
}

/// The table `usage`; `None` if it has a row that this program does not write.
fn read_usage(connection: &Connection) -> rusqlite::Result<Option<UsageTable>> {
    let mut statement = connection.prepare("SELECT principal, route, state, tasks, bytes FROM usage")?;
    let mut rows = statement.query([])?;
    let mut table = UsageTable::new();
    while let Some(row) = rows.next()? {
        let Some(principal) = row::principal(row.get_ref(0)?.as_blob()?) else { return Ok(None) };
        table.insert((principal, row.get(1)?, row.get(2)?), (row.get(3)?, row.get(4)?));
    }
    Ok(Some(table))
}

fn saturated(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

const ROWS: &str = "SELECT number, owner, bytes, state FROM tasks WHERE number > ?1 ORDER BY number LIMIT ?2";
const SET: &str = "INSERT INTO usage (principal, route, state, tasks, bytes) VALUES (?1, ?2, ?3, ?4, ?5)";
