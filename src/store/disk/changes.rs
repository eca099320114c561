//! Changes as SQL, in the transaction that the [writer](super::writer) commits.
//!
//! The effects of changes outside the database are collected in a [`CommitBatch`], and applied after the
//! commit.

use super::{
    meta,
    record_cache::CachedRecord,
    recount::CountChange,
    reserved::ByteReservation,
    results::{self, ResultFile},
    row::{self, RecordRow, RowColumns},
    writer::{ChangeOutcome, StoreChange, StoreWriter},
};
use crate::{
    store::{
        LoadedTask, OrphanTask, ProcessId, RecordVersion, StoreBounds, StoreError, TaskOwnership,
        counts::{CountedTask, StoreCounts, UsageShare},
    },
    task::{Record, TaskId, TaskState},
};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use std::{collections::HashMap, sync::Arc};

/// The effects of a commit outside the database, applied once the commit succeeds.
#[derive(Default)]
pub(super) struct CommitBatch {
    /// The new state of each changed record; `None` if it is removed.
    pub(super) records: HashMap<TaskId, Option<CachedRecord>>,
    /// The changes of the counts, in order.
    pub(super) counted: Vec<CountChange>,
    /// A count was less than what had to be subtracted, so the counts are wrong.
    pub(super) is_miscounted: bool,
    /// The names of files to which no row refers any more.
    pub(super) unreferenced_files: Vec<String>,
    /// The bytes of added files, and of removed files.
    pub(super) file_bytes: (u64, u64),
    /// Bytes by which the folder may still grow, without reserved bytes; `None` if the folder has no bound.
    pub(super) free_bytes: Option<u64>,
}

/// The stored state of a record before a change.
struct CurrentRow {
    number: i64,
    version: RecordVersion,
    ownership: TaskOwnership,
    bytes: usize,
    /// The fields that the counts depend on; `None` if the owner is unreadable, so that the record is not
    /// counted.
    counted: Option<CountedTask>,
    /// The name of the result file, if the body is in one.
    file: Option<String>,
    /// The record, if it is in memory.
    record: Option<Arc<Record>>,
}

// === impl StoreWriter ===

impl StoreWriter {
    /// Executes a change in the current transaction. The outer error is a failure of the database, after
    /// which the transaction is rolled back; the inner one refuses only this change.
    pub(super) fn apply(
        &self,
        change: &StoreChange,
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Result<ChangeOutcome, StoreError>> {
        match change {
            StoreChange::Insert { row, file, .. } => self.insert(row, file.as_ref(), batch),
            StoreChange::Swap { version, row, file, .. } => self.swap(*version, row, file.as_ref(), batch),
            StoreChange::Reserve { version, record, bytes } => self.reserve(*version, record, *bytes, batch),
            StoreChange::Anchor { id, anchor } => {
                match self.current_live(id, batch) {
                    // `ANCHOR_LIVE` writes no indexed column, so it touches fewer pages than `ANCHOR`.
                    Some(cached) => {
                        self.statement(ANCHOR_LIVE)?.execute(params![cached.number, anchor.as_deref()])?
                    }
                    None => self.statement(ANCHOR)?.execute(params![id.entropy(), anchor.as_deref()])?,
                };
                Ok(Ok(ChangeOutcome::Stored))
            }
            StoreChange::Orphans { limit } => Ok(Ok(ChangeOutcome::Orphans(self.orphans(*limit, batch)?))),
            StoreChange::Remove(id) => self.remove(id, batch),
            StoreChange::Clock(reading) => {
                meta::set_clock(&self.connection, *reading)?;
                Ok(Ok(ChangeOutcome::Stored))
            }
        }
    }

    fn insert(
        &self,
        row: &RecordRow,
        file: Option<&ResultFile>,
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Result<ChangeOutcome, StoreError>> {
        let RecordRow { record, head, body } = row;
        let reservation = file.and_then(|file| file.reservation.as_ref());
        if !batch.try_take(row.written_bytes().saturating_sub(reservation.map_or(0, ByteReservation::bytes)))
        {
            return Ok(Err(StoreError::Full(MAX_BYTES)));
        }
        let inserted = self.statement(INSERT)?.execute(params![
            record.id.entropy(),
            version_to_column(RecordVersion::FIRST),
            self.node,
            record.state.status(),
            !record.state.is_ended(),
            row::time_to_column(record.due_at()),
            row::encode_owner(&record.owner),
            row::time_to_column(record.created),
            size_to_column(record.stored_bytes()),
            head,
            file.map(|file| &file.name),
            body_in_row(body, file),
        ])?;
        if inserted == 0 {
            return Ok(Err(StoreError::Exists));
        }
        let number = self.connection.last_insert_rowid();
        self.apply_count_change(
            batch,
            CountChange { number, before: None, after: Some(CountedTask::from_record(record)) },
        );
        reservation.inspect(|reservation| reservation.release());
        batch.file_bytes.0 += file.map_or(0, |_| to_u64(body.len()));
        batch.put(number, RecordVersion::FIRST, record, ownership_from_column(self.node));
        Ok(Ok(ChangeOutcome::Stored))
    }

    fn swap(
        &self,
        version: RecordVersion,
        row: &RecordRow,
        file: Option<&ResultFile>,
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Result<ChangeOutcome, StoreError>> {
        let RecordRow { record, head, body } = row;
        let Some(current) = self.current_row(&record.id, batch)?.filter(|current| current.version == version)
        else {
            return Ok(Ok(ChangeOutcome::Conflict));
        };
        let bytes = record.stored_bytes();
        let reservation = file.and_then(|file| file.reservation.as_ref());
        let reserved = reservation.map_or(0, ByteReservation::bytes);
        if let Err(error) = self.admit(current.bytes, record, reserved, batch) {
            return Ok(Err(error));
        }
        let version = version.next();
        let old_record = current.record.as_deref();
        if old_record.is_none_or(|old| old.owner != record.owner || old.created != record.created) {
            let (owner, created) = (row::encode_owner(&record.owner), row::time_to_column(record.created));
            self.statement(OWN)?.execute(params![current.number, owner, created])?;
        }
        let is_ended = record.state.is_ended();
        if old_record.is_some_and(|old| old.due_at() == record.due_at() && !old.state.is_ended() && !is_ended)
        {
            // `CHANGE` writes no indexed column, so it touches fewer pages than `SWAP`.
            self.statement(CHANGE)?.execute(params![
                current.number,
                version_to_column(version),
                record.state.status(),
                size_to_column(bytes),
                head,
                body_in_row(body, file),
            ])?;
        } else {
            self.statement(SWAP)?.execute(params![
                current.number,
                version_to_column(version),
                record.state.status(),
                !is_ended,
                row::time_to_column(record.due_at()),
                size_to_column(bytes),
                head,
                file.map(|file| &file.name),
                body_in_row(body, file),
                // A finished task needs no anchor; a cancelled one may.
                !is_ended || record.state == TaskState::Cancelled,
            ])?;
        }
        self.drop_file(current.file, current.bytes, batch);
        let after = Some(CountedTask::from_record(record));
        self.apply_count_change(
            batch,
            CountChange { number: current.number, before: current.counted, after },
        );
        reservation.inspect(|reservation| reservation.release());
        batch.file_bytes.0 += file.map_or(0, |_| to_u64(body.len()));
        batch.put(current.number, version, record, current.ownership);
        Ok(Ok(ChangeOutcome::Stored))
    }

    /// Admits a change whose body will be a file, and reserves the bytes. A new record has no `version`.
    fn reserve(
        &self,
        version: Option<RecordVersion>,
        record: &Record,
        bytes: usize,
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Result<ChangeOutcome, StoreError>> {
        let Some(version) = version else {
            return Ok(match batch.try_take(bytes) {
                true => {
                    Ok(ChangeOutcome::Reserved(self.shared.reserved.reserve(record.owner.principal, bytes)))
                }
                false => Err(StoreError::Full(MAX_BYTES)),
            });
        };
        let Some(current) = self.current_row(&record.id, batch)?.filter(|current| current.version == version)
        else {
            return Ok(Ok(ChangeOutcome::Conflict));
        };
        let growth = record.stored_bytes().saturating_sub(current.bytes);
        let admitted = self.admit(current.bytes, record, 0, batch);
        Ok(admitted
            .map(|()| ChangeOutcome::Reserved(self.shared.reserved.reserve(record.owner.principal, growth))))
    }

    /// Checks whether `record` may replace one of `old_bytes` bytes, of which `reserved` bytes are reserved
    /// already.
    ///
    /// # Errors
    /// [`StoreError::Full`] names the limit.
    fn admit(
        &self,
        old_bytes: usize,
        record: &Record,
        reserved: usize,
        batch: &mut CommitBatch,
    ) -> Result<(), StoreError> {
        let mut usage = self.shared.counts.lock().usage(&record.owner.principal);
        let (all_reserved, reserved_by_principal) = self.shared.reserved.totals(&record.owner.principal);
        usage.stored_bytes += all_reserved.saturating_sub(reserved);
        usage.stored_bytes_of_principal += reserved_by_principal.saturating_sub(reserved);
        self.bounds.load().admit(old_bytes, record, usage)?;
        let growth = record.stored_bytes().saturating_sub(old_bytes);
        match StoreBounds::is_always_admitted(old_bytes, record)
            || batch.try_take(growth.saturating_sub(reserved))
        {
            true => Ok(()),
            false => Err(StoreError::Full(MAX_BYTES)),
        }
    }

    fn remove(
        &self,
        id: &TaskId,
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Result<ChangeOutcome, StoreError>> {
        let mut statement = self.statement(REMOVE)?;
        let removed = statement.query_row([id.entropy()], |row| {
            Ok((read_counted(row, 0)?, size_from_column(row.get(1)?), row.get(3)?, row.get(4)?))
        });
        if let Some((before, bytes, file, number)) = removed.optional()? {
            self.drop_file(file, bytes, batch);
            self.apply_count_change(batch, CountChange { number, before, after: None });
            batch.records.insert(id.clone(), None);
        }
        Ok(Ok(ChangeOutcome::Stored))
    }

    fn orphans(&self, limit: usize, batch: &mut CommitBatch) -> rusqlite::Result<Vec<OrphanTask>> {
        let mut orphans = Vec::new();
        let mut statement = self.statement(ORPHANS)?;
        let mut rows = statement.query(params![self.node, size_to_column(limit)])?;
        while let Some(row) = rows.next()? {
            let (number, version) = (row.get(0)?, version_from_column(row.get(1)?).next());
            let columns = RowColumns {
                id: row.get(2)?,
                owner: row.get_ref(3)?.as_blob()?,
                created: row.get(4)?,
                head: row.get_ref(5)?.as_str()?,
            };
            let body: Option<Vec<u8>> = row.get(6)?;
            match columns.record(body.unwrap_or_default().into()) {
                Ok(record) => {
                    let record = Arc::new(record);
                    batch.put(number, version, &record, ownership_from_column(self.node));
                    let anchor = row.get::<_, Option<Vec<u8>>>(7)?.map(Bytes::from);
                    orphans.push((number, Some(OrphanTask { version, record, anchor })));
                }
                Err(error) => {
                    self.shared.unreadables.report(&TaskId::from_entropy(columns.id), &error);
                    orphans.push((number, None));
                }
            }
        }
        for (number, _) in &orphans {
            self.statement(TAKE_OVER)?.execute(params![number, self.node])?;
        }
        Ok(orphans.into_iter().filter_map(|(_, orphan)| orphan).collect())
    }

    /// The record as the changes of this commit so far leave it; `None` if there is none.
    fn current_row(&self, id: &TaskId, batch: &CommitBatch) -> rusqlite::Result<Option<CurrentRow>> {
        if let Some(None) = batch.records.get(id) {
            return Ok(None);
        }
        // Only an unfinished record is taken from memory: the row of a finished one may name a file.
        if let Some(CachedRecord { task, number }) = self.current_live(id, batch) {
            let LoadedTask { version, record, ownership } = task;
            let (bytes, counted) = (record.stored_bytes(), Some(CountedTask::from_record(&record)));
            return Ok(Some(CurrentRow {
                number,
                version,
                ownership,
                bytes,
                counted,
                file: None,
                record: Some(record),
            }));
        }
        let found = self.statement(BEFORE)?.query_row([id.entropy()], |row| {
            Ok(CurrentRow {
                number: row.get(0)?,
                version: version_from_column(row.get(1)?),
                ownership: ownership_from_column(row.get(6)?),
                bytes: size_from_column(row.get(3)?),
                counted: read_counted(row, 2)?,
                file: row.get(5)?,
                record: None,
            })
        });
        found.optional()
    }

    /// The record as the changes of this commit so far leave it, if it is in memory and unfinished.
    fn current_live(&self, id: &TaskId, batch: &CommitBatch) -> Option<CachedRecord> {
        let cached = match batch.records.get(id) {
            Some(changed) => changed.clone(),
            None => self.shared.cache.get_live(id),
        };
        cached.filter(|cached| !cached.task.record.state.is_ended())
    }

    /// Marks the file of a replaced or removed row for removal after the commit.
    fn drop_file(&self, file: Option<String>, bytes: usize, batch: &mut CommitBatch) {
        if let Some(file) = file.filter(|file| results::result_path(file).is_some()) {
            batch.file_bytes.1 += to_u64(bytes);
            batch.unreferenced_files.push(file);
        }
    }

    /// Applies a change to the counts in memory, and records it in the batch.
    fn apply_count_change(&self, batch: &mut CommitBatch, change: CountChange) {
        if change.before != change.after {
            let counts = &mut self.shared.counts.lock();
            batch.is_miscounted |= !apply_count(counts, change.before.as_ref(), change.after.as_ref());
            batch.counted.push(change);
        }
    }

    /// Writes the changes of this commit to the counts of finished tasks.
    pub(super) fn write_counts(&self, batch: &CommitBatch) -> rusqlite::Result<()> {
        let mut changed = HashMap::<_, (i64, i64)>::new();
        for CountChange { before, after, .. } in &batch.counted {
            for (sign, task) in [(-1, before), (1, after)] {
                if let Some(CountedTask { principal, route, status, bytes }) = task
                    && row::is_ended(status)
                {
                    let (tasks, sum) = changed.entry((principal, route, *status)).or_default();
                    (*tasks, *sum) = (*tasks + sign, sum.saturating_add(sign * size_to_column(*bytes)));
                }
            }
        }
        for ((principal, route, status), (tasks, bytes)) in changed {
            if (tasks, bytes) != (0, 0) {
                self.statement(COUNT)?.execute(params![principal, &**route, status, tasks, bytes])?;
            }
            if tasks < 0 {
                self.statement(UNCOUNT)?.execute(params![principal, &**route, status])?;
            }
        }
        Ok(())
    }
}

// === impl CommitBatch ===

impl CommitBatch {
    /// Takes bytes from the free bytes of the folder; returns whether there were enough.
    fn try_take(&mut self, bytes: usize) -> bool {
        let Some(free) = &mut self.free_bytes else { return true };
        let remaining = free.checked_sub(to_u64(bytes));
        *free = remaining.unwrap_or(*free);
        remaining.is_some()
    }

    /// Sets the new state of the record in the row with this number.
    fn put(&mut self, number: i64, version: RecordVersion, record: &Arc<Record>, ownership: TaskOwnership) {
        let task = LoadedTask { version, record: Arc::clone(record), ownership };
        self.records.insert(record.id.clone(), Some(CachedRecord { task, number }));
    }
}

/// Replaces a task in the counts; returns whether the old one had been counted.
pub(super) fn apply_count(
    counts: &mut StoreCounts,
    before: Option<&CountedTask>,
    after: Option<&CountedTask>,
) -> bool {
    if let Some(after) = after {
        counts.add(after);
    }
    before.is_none_or(|before| counts.subtract(before))
}

/// Reads the fields that the counts depend on from a row whose columns from `first` on are the owner, the
/// bytes and the state. `None` if the owner is unreadable.
fn read_counted(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Option<CountedTask>> {
    let Some((principal, route)) = row::counted_for(row.get_ref(first)?.as_blob()?) else { return Ok(None) };
    let (status, bytes) =
        (row::status_from_column(row.get_ref(first + 2)?.as_str()?), size_from_column(row.get(first + 1)?));
    Ok(Some(CountedTask { principal, route: route.into(), status, bytes }))
}

/// Reads the counts from the tables, and the bytes of all result files.
pub(super) fn read_counts(connection: &Connection) -> rusqlite::Result<(StoreCounts, u64)> {
    let mut counts = StoreCounts::default();
    let mut statement = connection.prepare(ENDED)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // Skip a row that this program has not written; the recount repairs it later.
        let Some(principal) = row::principal_of_owner(row.get_ref(0)?.as_blob()?) else { continue };
        let (route, status) =
            (row.get::<_, String>(1)?.into(), row::status_from_column(row.get_ref(2)?.as_str()?));
        let group = CountedTask { principal, route, status, bytes: 0 };
        counts.add_share(
            &group,
            UsageShare { tasks: size_from_column(row.get(3)?), stored_bytes: size_from_column(row.get(4)?) },
        );
    }
    let mut statement = connection.prepare(LIVE)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(group) = read_counted(row, 0)? {
            counts.add_share(
                &group,
                UsageShare {
                    tasks: size_from_column(row.get(3)?),
                    stored_bytes: size_from_column(row.get(1)?),
                },
            );
        }
    }
    let files = "SELECT ifnull(sum(bytes), 0) FROM tasks WHERE file IS NOT NULL";
    let files = connection.query_row(files, [], |row| row.get(0))?;
    Ok((counts, to_u64(size_from_column(files))))
}

/// The body for the column `body`: `None` if it is in a file, or empty.
fn body_in_row<'a>(body: &'a Bytes, file: Option<&ResultFile>) -> Option<&'a [u8]> {
    (file.is_none() && !body.is_empty()).then_some(body)
}

/// Converts a version to the value of a column.
fn version_to_column(version: RecordVersion) -> i64 {
    version.0.cast_signed()
}

/// Converts the value of a column to a version.
pub(super) fn version_from_column(number: i64) -> RecordVersion {
    RecordVersion(number.cast_unsigned())
}

/// Converts the value of the column `node` to the ownership of the row's task.
pub(super) fn ownership_from_column(node: i64) -> TaskOwnership {
    TaskOwnership::unlimited(ProcessId(node))
}

/// Converts a size to the value of a column, saturating.
fn size_to_column(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Converts the value of a column to a size.
pub(super) fn size_from_column(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn to_u64(size: usize) -> u64 {
    size as u64
}

/// The name of the limit on the folder in the configuration.
const MAX_BYTES: &str = "store.max_bytes";

const INSERT: &str = "INSERT INTO tasks \
    (id, version, node, state, open, due, owner, created, bytes, head, file, body) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (id) DO NOTHING";
const CHANGE: &str =
    "UPDATE tasks SET version = ?2, state = ?3, bytes = ?4, head = ?5, body = ?6 WHERE number = ?1";
const SWAP: &str = "UPDATE tasks SET version = ?2, state = ?3, open = ?4 OR (?10 AND anchor IS NOT NULL), due = ?5, \
    bytes = ?6, head = ?7, file = ?8, body = ?9, anchor = CASE WHEN ?10 THEN anchor END WHERE number = ?1";
const OWN: &str = "UPDATE tasks SET owner = ?2, created = ?3 WHERE number = ?1";
const BEFORE: &str = "SELECT number, version, owner, bytes, state, file, node FROM tasks WHERE id = ?1";
const REMOVE: &str = "DELETE FROM tasks WHERE id = ?1 RETURNING owner, bytes, state, file, number";
const ANCHOR: &str = "UPDATE tasks SET anchor = ?2, \
    open = state IN ('working', 'input_required') OR ?2 IS NOT NULL WHERE id = ?1";
const ANCHOR_LIVE: &str = "UPDATE tasks SET anchor = ?2 WHERE number = ?1";
const ORPHANS: &str = "SELECT number, version, id, owner, created, head, body, anchor FROM tasks \
    WHERE number IN (SELECT number FROM tasks WHERE open AND node < ?1 \
    UNION ALL SELECT number FROM tasks WHERE open AND node > ?1 LIMIT ?2)";
const TAKE_OVER: &str = "UPDATE tasks SET node = ?2, version = version + 1 WHERE number = ?1";
/// Uses the index of open tasks, because the index of owners has all tasks.
const LIVE: &str = "SELECT owner, sum(bytes), state, count(*) FROM tasks INDEXED BY open \
    WHERE open AND state IN ('working', 'input_required') AND length(owner) >= 16 GROUP BY owner, state";
const ENDED: &str = "SELECT principal, route, state, tasks, bytes FROM usage";
const COUNT: &str = "INSERT INTO usage (principal, route, state, tasks, bytes) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (principal, route, state) DO UPDATE SET tasks = tasks + ?4, bytes = bytes + ?5";
const UNCOUNT: &str = "DELETE FROM usage WHERE principal = ?1 AND route = ?2 AND state = ?3 AND tasks <= 0";

// === impl RecordRow ===

impl RecordRow {
    /// The approximate number of bytes to write.
    pub(super) fn written_bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}
