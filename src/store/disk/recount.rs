//! The counts, checked against the rows after a start.
//!
//! What has ended is counted in a table of its own (`usage`), so that a start need not read every row. A count that is
//! wrong would refuse a caller tasks it may have, for as long as the store lasts: so the rows are counted once after each
//! start, and the table and what is in memory are mended where they differ. The first rows are counted while the store is
//! opened, the others by the writer between its commits, some at a time: each change that is committed meanwhile is
//! counted here, too, if its row has been passed.

use super::{changes::size, row};
use crate::store::{
    Recount,
    counts::{CountedTask, StoreCounts, UsageShare},
};
use rusqlite::{Connection, params};
use std::{collections::HashMap, sync::Arc};

/// Rows that are counted in one go: about a millisecond, for which a change may have to wait.
pub(super) const STEP: i64 = 1024;
/// Steps that are made while a store is opened: all rows of most stores.
pub(super) const FIRST_STEPS: usize = 4;

/// The rows as far as they are counted.
#[derive(Debug, Default)]
pub(super) struct RowCount {
    /// The last row that is counted.
    last_row: i64,
    /// Each route once, and its number.
    routes: HashMap<Arc<str>, usize>,
    shares: HashMap<UsageKey, UsageShare>,
}

/// A principal, the number of a route, and a status.
type UsageKey = ([u8; 16], usize, &'static str);

/// What the table `usage` has for a principal, a route and a status: tasks and bytes.
type UsageTable = HashMap<([u8; 16], String, String), (i64, i64)>;

/// What a commit changes of a row that is counted.
#[derive(Debug)]
pub(super) struct CountChange {
    pub(super) number: i64,
    pub(super) was: Option<CountedTask>,
    pub(super) is: Option<CountedTask>,
}

// === impl RowCount ===

impl RowCount {
    /// Counts some more rows. Whether there are no more.
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

    /// Counts what a commit has changed, where its row is counted already.
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

    /// Has the table say what the rows do, once all are counted.
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

    /// What the rows come to, and where the table and the counts in memory differ from it.
    pub(super) fn compare(&self, connection: &Connection, counts: &StoreCounts) -> rusqlite::Result<Recount> {
        let mut recount = self.counts().compare(counts);
        let (wanted, found) = (self.usage_table(), read_usage(connection)?);
        if found.as_ref() != Some(&wanted) {
            recount.differences.push(format!("the table `usage` has {found:?}, and should have {wanted:?}"));
        }
        Ok(recount)
    }

    /// Whether the table says what the rows do, all of which are counted for it.
    pub(super) fn is_usage_correct(connection: &Connection) -> rusqlite::Result<bool> {
        let mut rows = Self::default();
        rows.step(connection, i64::MAX)?;
        Ok(read_usage(connection)?.as_ref() == Some(&rows.usage_table()))
    }

    /// What should be in memory, once all rows are counted.
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

    /// What should be in the table, which has what has ended.
    fn usage_table(&self) -> UsageTable {
        let ended = self.each().filter(|(_, _, status, _)| row::is_ended(status));
        let entry = |(principal, route, status, share): (&[u8; 16], &Arc<str>, &str, UsageShare)| {
            let key = (*principal, route.to_string(), status.to_owned());
            (key, (saturated(share.tasks), saturated(share.stored_bytes)))
        };
        ended.map(entry).collect()
    }

    /// What there is of each principal, route and status.
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

/// The table `usage`; `Missing` where something is in it that this program does not write.
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
