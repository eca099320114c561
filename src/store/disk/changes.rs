//! Changes as SQL, in the transaction that the [writer](super::writer) commits.
//!
//! Their other effects are collected in a [`CommitBatch`], and applied after the commit.

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
        OrphanTask, RecordVersion, StoreBounds, StoreError,
        counts::{CountedTask, StoreCounts, UsageShare},
    },
    task::{Record, TaskId, TaskState},
};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use std::{collections::HashMap, sync::Arc};

/// Effects of a commit besides the database.
#[derive(Default)]
pub(super) struct CommitBatch {
    pub(super) records: HashMap<TaskId, Option<CachedRecord>>,
    pub(super) counted: Vec<CountChange>,
    /// The counts had less than was to be subtracted.
    pub(super) is_miscounted: bool,
    /// Files that no row names any more, and the bytes of added and removed files.
    pub(super) dropped: Vec<String>,
    pub(super) file_bytes: (u64, u64),
    /// Bytes that the folder may still grow by, without reserved bytes; `None` without a bound.
    pub(super) free_bytes: Option<u64>,
}

/// The stored state of a record that is to be changed.
struct CurrentRow {
    number: i64,
    version: RecordVersion,
    bytes: usize,
    /// `None` if the owner is unreadable, for whom nothing is counted.
    counted: Option<CountedTask>,
    file: Option<String>,
    /// The record in memory.
    record: Option<Arc<Record>>,
}

// === impl StoreWriter ===

impl StoreWriter {
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
                match self.live(id, batch) {
                    // This statement changes no index.
                    Some(live) => {
                        self.statement(ANCHOR_LIVE)?.execute(params![live.number, anchor.as_deref()])?
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
        if !batch.try_take(row.bytes().saturating_sub(reservation.map_or(0, ByteReservation::bytes))) {
            return Ok(Err(StoreError::Full(MAX_BYTES)));
        }
        let inserted = self.statement(INSERT)?.execute(params![
            record.id.entropy(),
            number(RecordVersion::FIRST),
            self.node,
            record.state.status(),
            !record.state.is_ended(),
            row::time(record.due_at()),
            row::owner(&record.owner),
            row::time(record.created),
            saturated(record.stored_bytes()),
            head,
            file.map(|file| &file.name),
            in_row(body, file),
        ])?;
        if inserted == 0 {
            return Ok(Err(StoreError::Exists));
        }
        let number = self.connection.last_insert_rowid();
        self.record_count(batch, CountChange { number, was: None, is: Some(CountedTask::of(record)) });
        reservation.inspect(|reservation| reservation.release());
        batch.file_bytes.0 += file.map_or(0, |_| wide(body.len()));
        let kept = CachedRecord { version: RecordVersion::FIRST, record: Arc::clone(record), number };
        batch.records.insert(record.id.clone(), Some(kept));
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
        let Some(before) = self.current_row(&record.id, batch)?.filter(|before| before.version == version)
        else {
            return Ok(Ok(ChangeOutcome::Conflict));
        };
        let bytes = record.stored_bytes();
        let reservation = file.and_then(|file| file.reservation.as_ref());
        let reserved = reservation.map_or(0, ByteReservation::bytes);
        if let Err(full) = self.admit(before.bytes, record, reserved, batch) {
            return Ok(Err(full));
        }
        let version = version.next();
        let was = before.record.as_deref();
        if was.is_none_or(|was| was.owner != record.owner || was.created != record.created) {
            let (owner, created) = (row::owner(&record.owner), row::time(record.created));
            self.statement(OWN)?.execute(params![before.number, owner, created])?;
        }
        let is_ended = record.state.is_ended();
        if was.is_some_and(|was| was.due_at() == record.due_at() && !was.state.is_ended() && !is_ended) {
            // This statement changes no index.
            self.statement(CHANGE)?.execute(params![
                before.number,
                number(version),
                record.state.status(),
                saturated(bytes),
                head,
                in_row(body, file),
            ])?;
        } else {
            self.statement(SWAP)?.execute(params![
                before.number,
                number(version),
                record.state.status(),
                !is_ended,
                row::time(record.due_at()),
                saturated(bytes),
                head,
                file.map(|file| &file.name),
                in_row(body, file),
                // A finished task needs no anchor; a cancelled one may.
                !is_ended || record.state == TaskState::Cancelled,
            ])?;
        }
        self.drop_file(before.file, before.bytes, batch);
        let is = Some(CountedTask::of(record));
        self.record_count(batch, CountChange { number: before.number, was: before.counted, is });
        reservation.inspect(|reservation| reservation.release());
        batch.file_bytes.0 += file.map_or(0, |_| wide(body.len()));
        let kept = CachedRecord { version, record: Arc::clone(record), number: before.number };
        batch.records.insert(record.id.clone(), Some(kept));
        Ok(Ok(ChangeOutcome::Stored))
    }

    /// Admits a change whose bytes are to be written to a file, and reserves them: a new record without a
    /// `version`.
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
        let Some(before) = self.current_row(&record.id, batch)?.filter(|before| before.version == version)
        else {
            return Ok(Ok(ChangeOutcome::Conflict));
        };
        let grows = record.stored_bytes().saturating_sub(before.bytes);
        let admitted = self.admit(before.bytes, record, 0, batch);
        Ok(admitted
            .map(|()| ChangeOutcome::Reserved(self.shared.reserved.reserve(record.owner.principal, grows))))
    }

    /// Whether `record` may replace one of `was` bytes; `reserved` bytes are reserved for it already.
    ///
    /// # Errors
    /// [`StoreError::Full`] names the limit.
    fn admit(
        &self,
        was: usize,
        record: &Record,
        reserved: usize,
        batch: &mut CommitBatch,
    ) -> Result<(), StoreError> {
        let mut usage = self.shared.counts.lock().usage(&record.owner.principal);
        let (all, of_principal) = self.shared.reserved.of(&record.owner.principal);
        usage.stored_bytes += all.saturating_sub(reserved);
        usage.stored_bytes_of_principal += of_principal.saturating_sub(reserved);
        self.bounds.load().admit(was, record, usage)?;
        let grows = record.stored_bytes().saturating_sub(was);
        match StoreBounds::is_always_admitted(was, record) || batch.try_take(grows.saturating_sub(reserved)) {
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
            Ok((read_counted(row, 0)?, size(row.get(1)?), row.get(3)?, row.get(4)?))
        });
        if let Some((was, bytes, file, number)) = removed.optional()? {
            self.drop_file(file, bytes, batch);
            self.record_count(batch, CountChange { number, was, is: None });
            batch.records.insert(id.clone(), None);
        }
        Ok(Ok(ChangeOutcome::Stored))
    }

    fn orphans(&self, limit: usize, batch: &mut CommitBatch) -> rusqlite::Result<Vec<OrphanTask>> {
        let mut orphans = Vec::new();
        let mut statement = self.statement(ORPHANS)?;
        let mut rows = statement.query(params![self.node, saturated(limit)])?;
        while let Some(row) = rows.next()? {
            let (number, version) = (row.get(0)?, version(row.get(1)?));
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
                    let kept = CachedRecord { version, record: Arc::clone(&record), number };
                    batch.records.insert(record.id.clone(), Some(kept));
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
            self.statement("UPDATE tasks SET node = ?2 WHERE number = ?1")?
                .execute(params![number, self.node])?;
        }
        Ok(orphans.into_iter().filter_map(|(_, orphan)| orphan).collect())
    }

    /// The record as this commit would leave it.
    fn current_row(&self, id: &TaskId, batch: &CommitBatch) -> rusqlite::Result<Option<CurrentRow>> {
        if let Some(None) = batch.records.get(id) {
            return Ok(None);
        }
        // A finished task may have a file.
        if let Some(CachedRecord { version, record, number }) = self.live(id, batch) {
            let (bytes, counted) = (record.stored_bytes(), Some(CountedTask::of(&record)));
            return Ok(Some(CurrentRow {
                number,
                version,
                bytes,
                counted,
                file: None,
                record: Some(record),
            }));
        }
        let found = self.statement(BEFORE)?.query_row([id.entropy()], |row| {
            Ok(CurrentRow {
                number: row.get(0)?,
                version: version(row.get(1)?),
                bytes: size(row.get(3)?),
                counted: read_counted(row, 2)?,
                file: row.get(5)?,
                record: None,
            })
        });
        found.optional()
    }

    /// The record as this commit would leave it, if it is in memory and unfinished.
    fn live(&self, id: &TaskId, batch: &CommitBatch) -> Option<CachedRecord> {
        let kept = match batch.records.get(id) {
            Some(changed) => changed.clone(),
            None => self.shared.cache.live(id),
        };
        kept.filter(|kept| !kept.record.state.is_ended())
    }

    fn drop_file(&self, file: Option<String>, bytes: usize, batch: &mut CommitBatch) {
        if let Some(file) = file.filter(|file| results::path(file).is_some()) {
            batch.file_bytes.1 += wide(bytes);
            batch.dropped.push(file);
        }
    }

    fn record_count(&self, batch: &mut CommitBatch, change: CountChange) {
        if change.was != change.is {
            let counts = &mut self.shared.counts.lock();
            batch.is_miscounted |= !apply_count(counts, change.was.as_ref(), change.is.as_ref());
            batch.counted.push(change);
        }
    }

    /// Writes the changes of this commit to the counts of finished tasks.
    pub(super) fn write_counts(&self, batch: &CommitBatch) -> rusqlite::Result<()> {
        let mut changed = HashMap::<_, (i64, i64)>::new();
        for CountChange { was, is, .. } in &batch.counted {
            for (sign, counted) in [(-1, was), (1, is)] {
                if let Some(CountedTask { principal, route, status, bytes }) = counted
                    && row::is_ended(status)
                {
                    let (tasks, sum) = changed.entry((principal, route, *status)).or_default();
                    (*tasks, *sum) = (*tasks + sign, sum.saturating_add(sign * saturated(*bytes)));
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
    /// Takes bytes of the folder's free ones; returns whether there were as many.
    fn try_take(&mut self, bytes: usize) -> bool {
        let Some(room) = &mut self.free_bytes else { return true };
        let left = room.checked_sub(wide(bytes));
        *room = left.unwrap_or(*room);
        left.is_some()
    }
}

/// Returns whether there was as much as is subtracted.
pub(super) fn apply_count(
    counts: &mut StoreCounts,
    was: Option<&CountedTask>,
    is: Option<&CountedTask>,
) -> bool {
    if let Some(is) = is {
        counts.add(is);
    }
    was.is_none_or(|was| counts.subtract(was))
}

/// The counted fields of a row whose columns from `first` on are the owner, the bytes and the state.
fn read_counted(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Option<CountedTask>> {
    let Some((principal, route)) = row::counted_for(row.get_ref(first)?.as_blob()?) else { return Ok(None) };
    let (status, bytes) = (row::status(row.get_ref(first + 2)?.as_str()?), size(row.get(first + 1)?));
    Ok(Some(CountedTask { principal, route: route.into(), status, bytes }))
}

/// The counts of the tables, and bytes of result files.
pub(super) fn read_counts(connection: &Connection) -> rusqlite::Result<(StoreCounts, u64)> {
    let mut counts = StoreCounts::default();
    let mut statement = connection.prepare(ENDED)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // Rows that this program has not written are left out, and repaired later.
        let Some(principal) = row::principal(row.get_ref(0)?.as_blob()?) else { continue };
        let (route, status) = (row.get::<_, String>(1)?.into(), row::status(row.get_ref(2)?.as_str()?));
        let of = CountedTask { principal, route, status, bytes: 0 };
        counts.add_share(&of, UsageShare { tasks: size(row.get(3)?), stored_bytes: size(row.get(4)?) });
    }
    let mut statement = connection.prepare(LIVE)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(of) = read_counted(row, 0)? {
            counts.add_share(&of, UsageShare { tasks: size(row.get(3)?), stored_bytes: size(row.get(1)?) });
        }
    }
    let files = "SELECT ifnull(sum(bytes), 0) FROM tasks WHERE file IS NOT NULL";
    let files = connection.query_row(files, [], |row| row.get(0))?;
    Ok((counts, wide(size(files))))
}

/// The body if it is in the row.
fn in_row<'a>(body: &'a Bytes, file: Option<&ResultFile>) -> Option<&'a [u8]> {
    (file.is_none() && !body.is_empty()).then_some(body)
}

fn number(version: RecordVersion) -> i64 {
    version.0.cast_signed()
}

pub(super) fn version(number: i64) -> RecordVersion {
    RecordVersion(number.cast_unsigned())
}

fn saturated(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A column's value as a size.
pub(super) fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn wide(size: usize) -> u64 {
    size as u64
}

/// The limit on the folder, as the configuration names it.
const MAX_BYTES: &str = "store.max_bytes";

const INSERT: &str = "INSERT INTO tasks \
    (id, version, node, state, open, due, owner, created, bytes, head, file, body) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (id) DO NOTHING";
const CHANGE: &str =
    "UPDATE tasks SET version = ?2, state = ?3, bytes = ?4, head = ?5, body = ?6 WHERE number = ?1";
const SWAP: &str = "UPDATE tasks SET version = ?2, state = ?3, open = ?4 OR (?10 AND anchor IS NOT NULL), due = ?5, \
    bytes = ?6, head = ?7, file = ?8, body = ?9, anchor = CASE WHEN ?10 THEN anchor END WHERE number = ?1";
const OWN: &str = "UPDATE tasks SET owner = ?2, created = ?3 WHERE number = ?1";
const BEFORE: &str = "SELECT number, version, owner, bytes, state, file FROM tasks WHERE id = ?1";
const REMOVE: &str = "DELETE FROM tasks WHERE id = ?1 RETURNING owner, bytes, state, file, number";
const ANCHOR: &str = "UPDATE tasks SET anchor = ?2, \
    open = state IN ('working', 'input_required') OR ?2 IS NOT NULL WHERE id = ?1";
const ANCHOR_LIVE: &str = "UPDATE tasks SET anchor = ?2 WHERE number = ?1";
const ORPHANS: &str = "SELECT number, version, id, owner, created, head, body, anchor FROM tasks \
    WHERE number IN (SELECT number FROM tasks WHERE open AND node < ?1 \
    UNION ALL SELECT number FROM tasks WHERE open AND node > ?1 LIMIT ?2)";
/// By the index of open tasks: that of owners has all tasks.
const LIVE: &str = "SELECT owner, sum(bytes), state, count(*) FROM tasks INDEXED BY open \
    WHERE open AND state IN ('working', 'input_required') AND length(owner) >= 16 GROUP BY owner, state";
const ENDED: &str = "SELECT principal, route, state, tasks, bytes FROM usage";
const COUNT: &str = "INSERT INTO usage (principal, route, state, tasks, bytes) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (principal, route, state) DO UPDATE SET tasks = tasks + ?4, bytes = bytes + ?5";
const UNCOUNT: &str = "DELETE FROM usage WHERE principal = ?1 AND route = ?2 AND state = ?3 AND tasks <= 0";

// === impl RecordRow ===

impl RecordRow {
    /// Bytes that are written, about.
    pub(super) fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}
