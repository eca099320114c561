//! The writer: takes all waiting changes, commits them once, and acknowledges each.
//!
//! The writer alone changes the database, the records in memory and the counts, in this order, so versions
//! are compared nowhere else. A commit is flushed if a change in it must survive a loss of power. A failed
//! commit has changed nothing; if it had several changes, each is then tried alone, so that removals succeed
//! on a full disk, too.

use super::{
    Error,
    changes::{CommitBatch, apply_count, read_counts},
    error::{UnreadableRows, is_full, store_error},
    folder::{self, FolderLock, StoreFolder},
    record_cache::RecordCache,
    recount::{CountChange, RowCount, STEP},
    reserved::{ByteReservation, ReservedBytes},
    results::{self, FileRemover, ResultFile},
    row::RecordRow,
};
use crate::{
    protocol::ClockReading,
    runtime::{Mutex, SwapCell},
    store::{
        Durability, OrphanTask, RecordVersion, Recount, StoreBounds, StoreError,
        counts::{CountDifference, StoreCounts},
    },
    task::{Record, TaskId},
    telemetry::{StoreCountsRepaired, StoreCountsUnchecked},
};
use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, ErrorCode, ffi};
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A message to the writer.
pub(super) enum WriterMessage {
    /// Commits a change.
    Change(WriteRequest),
    /// Compares the maintained counts with the rows, for tests.
    Recount(oneshot::Sender<Result<Recount, StoreError>>),
    /// Closes the database, releases the folder, and then sends `()`.
    Close(oneshot::Sender<()>),
}

/// A change, and the channel for its outcome.
pub(super) struct WriteRequest {
    pub(super) change: StoreChange,
    /// The channel for the outcome.
    pub(super) reply: oneshot::Sender<Result<ChangeOutcome, StoreError>>,
    /// The permit of the writer's queue, released once the outcome is known.
    pub(super) permit: OwnedSemaphorePermit,
}

/// A change of the store.
pub(super) enum StoreChange {
    /// See [`Store::insert`](crate::store::Store::insert).
    Insert {
        row: RecordRow,
        file: Option<ResultFile>,
        /// A reservation of the caller, which ends once the record is counted.
        reservation: Option<Box<dyn Send>>,
    },
    /// See [`Store::swap`](crate::store::Store::swap).
    Swap {
        version: RecordVersion,
        row: RecordRow,
        file: Option<ResultFile>,
        durability: Durability,
    },
    /// Changes nothing: admits and reserves the bytes of a change whose result will be a file, before the
    /// file is written. Without a version, the change inserts a new record of `bytes` bytes.
    Reserve {
        version: Option<RecordVersion>,
        record: Arc<Record>,
        bytes: usize,
    },
    /// See [`Store::set_anchor`](crate::store::Store::set_anchor).
    Anchor {
        id: TaskId,
        anchor: Option<Bytes>,
    },
    /// See [`Store::take_orphans`](crate::store::Store::take_orphans).
    Orphans {
        limit: usize,
    },
    Remove(TaskId),
    Clock(ClockReading),
}

/// The outcome of a change that has not failed.
pub(super) enum ChangeOutcome {
    /// The change is committed.
    Stored,
    /// The record has another version, or does not exist.
    Conflict,
    /// The orphans, which this process owns from now on.
    Orphans(Vec<OrphanTask>),
    /// The bytes are reserved for a result.
    Reserved(ByteReservation),
}

/// The state of the writer thread, the only one that changes the store.
pub(super) struct StoreWriter {
    pub(super) folder: StoreFolder,
    /// The id of this process; see [`DiskStore`](super::DiskStore).
    pub(super) node: i64,
    pub(super) bounds: SwapCell<StoreBounds>,
    /// Maximum size of the folder, in bytes.
    pub(super) max_bytes: Option<u64>,
    pub(super) connection: Connection,
    /// The device and the inode of the database, by which a replaced database is noticed.
    pub(super) identity: (u64, u64),
    pub(super) shared: Arc<StoreState>,
    pub(super) messages: Receiver<WriterMessage>,
    pub(super) remover: FileRemover,
    /// The sum of the bytes of all result files.
    pub(super) file_bytes: u64,
    /// The recount in progress; `None` once all rows are counted.
    pub(super) row_count: Option<RowCount>,
    /// The connection is no longer usable, and is reopened before the next commit.
    pub(super) is_broken: bool,
    /// The durability of the next commit, as set in the database; `None` if unknown.
    pub(super) durability: Option<Durability>,
    /// The lock of the folder.
    pub(super) _lock: FolderLock,
}

/// State that the writer changes and other threads read.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) cache: RecordCache,
    pub(super) counts: Mutex<StoreCounts>,
    pub(super) reserved: Arc<ReservedBytes>,
    pub(super) unreadables: UnreadableRows,
}

/// Maximum number of changes in one commit.
const BATCH: usize = 1024;
/// Approximate maximum of bytes in one commit: more would delay later changes.
const BATCH_BYTES: usize = 4 << 20;
/// Time without a new change before more rows are counted, until all are.
const COUNT_PAUSE: Duration = Duration::from_millis(1);
/// Time without a new change before free pages are returned to the system.
const IDLE_BEFORE_VACUUM: Duration = Duration::from_secs(1);
/// Interval between two vacuum steps, if no change is submitted meanwhile.
const VACUUM_INTERVAL: Duration = Duration::from_millis(10);
/// Number of pages that are returned at a time: a new change waits until they are.
const VACUUM_PAGES: i64 = 256;
/// Number of free pages that are kept, because they will be needed again.
const SPARE_PAGES: i64 = 256;
/// Estimated bytes by which the write-ahead log may exceed its checkpoint size, and of other files in the
/// folder.
const OVERHEAD_BYTES: u64 = 4 << 20;

// === impl StoreWriter ===

impl StoreWriter {
    /// Runs until the store is closed, or all senders are dropped.
    pub(super) fn run(mut self) {
        // The time to wait before free pages are returned to the system; `None` if there are none.
        let mut vacuum_delay = Some(IDLE_BEFORE_VACUUM);
        loop {
            let mut message = match vacuum_delay {
                _ if self.row_count.is_some() => self.messages.recv_timeout(COUNT_PAUSE),
                Some(delay) => self.messages.recv_timeout(delay),
                None => self.messages.recv().map_err(Into::into),
            };
            let (mut requests, mut recounts) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            let closing = loop {
                match message {
                    Ok(WriterMessage::Change(request)) => {
                        bytes += request.change.written_bytes();
                        requests.push(request);
                    }
                    Ok(WriterMessage::Recount(reply)) => recounts.push(reply),
                    Ok(WriterMessage::Close(reply)) => break Some(Some(reply)),
                    Err(RecvTimeoutError::Disconnected) => break Some(None),
                    Err(RecvTimeoutError::Timeout) => break None,
                }
                if requests.len() == BATCH || bytes >= BATCH_BYTES {
                    break None;
                }
                message = self.messages.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                });
            };
            if requests.is_empty() && recounts.is_empty() && closing.is_none() {
                if self.row_count.is_some() {
                    self.count_rows();
                    continue;
                }
                let is_vacuumed = self.vacuum().unwrap_or(true);
                vacuum_delay = (!is_vacuumed).then_some(VACUUM_INTERVAL);
                continue;
            }
            let has_removal = requests.iter().any(|request| matches!(request.change, StoreChange::Remove(_)));
            vacuum_delay = (has_removal || vacuum_delay.is_some()).then_some(IDLE_BEFORE_VACUUM);
            self.commit(requests);
            recounts.into_iter().for_each(|reply| drop(reply.send(self.recount())));
            self.count_rows();
            if let Some(reply) = closing {
                // Dropping the writer closes the last connection, which checkpoints the log, and releases the
                // folder.
                drop(self);
                let _ = reply.map(|reply| reply.send(()));
                return;
            }
        }
    }

    /// Commits all changes, or each alone if that fails, and sends the outcomes.
    fn commit(&mut self, mut requests: Vec<WriteRequest>) {
        match self.try_commit(&mut requests) {
            Ok(outcomes) => {
                for (request, outcome) in requests.into_iter().zip(outcomes) {
                    request.respond(outcome);
                }
            }
            Err(_) if requests.len() > 1 => {
                requests.into_iter().for_each(|request| self.commit(vec![request]))
            }
            Err(error) => {
                if let Some(request) = requests.pop() {
                    request.respond(Err(error));
                }
            }
        }
    }

    /// Commits the changes, and returns the outcome of each. An error means that nothing has changed.
    fn try_commit(
        &mut self,
        requests: &mut [WriteRequest],
    ) -> Result<Vec<Result<ChangeOutcome, StoreError>>, StoreError> {
        self.reopen_if_broken()?;
        let mut batch = CommitBatch::default();
        match self.transact(requests, &mut batch) {
            Ok(outcomes) => {
                self.publish(requests, &outcomes, batch);
                Ok(outcomes)
            }
            Err(error) => {
                self.undo_counts(&batch);
                let lacks_space =
                    is_full(&error) || (is_io(&error) && results::is_out_of_space(&self.folder, self.node));
                // Nothing was written if there was no space, and the connection can be reused. If a write may
                // not have been flushed, reopen the database.
                self.is_broken |= is_broken(&error) && (!lacks_space || is_unflushed(&error));
                if !self.connection.is_autocommit() && self.connection.execute_batch("ROLLBACK").is_err() {
                    self.is_broken = true;
                }
                self.durability = None;
                if is_unflushed(&error) {
                    // The changes may be stored after a crash, so keep their files. If they are not stored,
                    // the next start removes the files.
                    requests
                        .iter_mut()
                        .filter_map(|request| request.change.file())
                        .for_each(|file| file.is_kept = true);
                }
                Err(match lacks_space {
                    true => StoreError::Full(StoreError::DISK_SPACE),
                    false => store_error(self.folder.path(), &error),
                })
            }
        }
    }

    /// Reopens the database if the connection is no longer usable. Fails if the folder was moved or replaced.
    fn reopen_if_broken(&mut self) -> Result<(), StoreError> {
        let path = self.folder.path();
        if folder::has_moved(path, self.identity) {
            let text = format!("{} was moved, or replaced by another", path.display());
            return Err(StoreError::Unavailable(text));
        }
        if self.is_broken {
            self.reopen().map_err(|error| match error {
                Error::Database { path, source } => store_error(&path, &source),
                error => StoreError::Unavailable(error.to_string()),
            })?;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Error> {
        self.connection = folder::open_to_write(&self.folder, self.max_bytes)?;
        let (counts, file_bytes) =
            read_counts(&self.connection).map_err(Error::database(self.folder.path()))?;
        // Clear the cache, because changes that were reported as failed may be stored after all.
        self.shared.cache.clear();
        *self.shared.counts.lock() = counts;
        self.row_count = Some(RowCount::default());
        (self.file_bytes, self.is_broken, self.durability) = (file_bytes, false, None);
        Ok(())
    }

    /// Executes all changes in one transaction, and commits it.
    fn transact(
        &mut self,
        requests: &mut [WriteRequest],
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Vec<Result<ChangeOutcome, StoreError>>> {
        let durability = requests
            .iter()
            .map(|request| request.change.required_durability())
            .max()
            .unwrap_or(Durability::Process);
        if self.durability != Some(durability) {
            let synchronous = match durability {
                Durability::Machine => "FULL",
                Durability::Process => "NORMAL",
            };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.durability = Some(durability);
        }
        if let Some(max) = self.max_bytes {
            let reserved = self.shared.reserved.all() as u64;
            batch.free_bytes = Some(max.saturating_sub(self.used_bytes()?.saturating_add(reserved)));
        }
        self.statement("BEGIN IMMEDIATE")?.execute([])?;
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            outcomes.push(self.apply(&request.change, batch)?);
            // The reservation of the caller ends once the change is counted, or is known to fail.
            request.change.release_reservation();
        }
        self.write_counts(batch)?;
        self.statement("COMMIT")?.execute([])?;
        Ok(outcomes)
    }

    /// Applies committed changes to the state in memory.
    fn publish(
        &mut self,
        requests: &mut [WriteRequest],
        outcomes: &[Result<ChangeOutcome, StoreError>],
        batch: CommitBatch,
    ) {
        for (request, outcome) in requests.iter_mut().zip(outcomes) {
            if matches!(outcome, Ok(ChangeOutcome::Stored))
                && let Some(file) = request.change.file()
            {
                file.is_kept = true;
            }
        }
        if let Some(rows) = &mut self.row_count {
            batch.counted.iter().for_each(|change| rows.apply(change));
        } else if batch.is_miscounted {
            self.row_count = Some(RowCount::default());
        }
        for (id, cached) in batch.records {
            self.shared.cache.commit(id, cached);
        }
        let (added, removed) = batch.file_bytes;
        self.file_bytes = (self.file_bytes + added).saturating_sub(removed);
        batch.unreferenced_files.into_iter().for_each(|name| self.remover.remove(name));
    }

    /// Undoes the changes of the counts in memory after a failed commit.
    fn undo_counts(&self, batch: &CommitBatch) {
        let mut counts = self.shared.counts.lock();
        for CountChange { before, after, .. } in batch.counted.iter().rev() {
            // A count that was wrong before the change stays wrong here, until the recount.
            let _ = apply_count(&mut counts, after.as_ref(), before.as_ref());
        }
    }

    /// Counts some more rows if a recount is in progress, and repairs the counts once all rows are counted.
    pub(super) fn count_rows(&mut self) {
        let Some(rows) = self.row_count.as_mut().filter(|_| !self.is_broken) else { return };
        let counted = match rows.step(&self.connection, STEP) {
            Ok(false) => return,
            Ok(true) => rows.repair_usage(&self.connection).map(|()| rows.counts()),
            Err(error) => Err(error),
        };
        self.row_count = None;
        match counted {
            Ok(correct) => {
                let mut counts = self.shared.counts.lock();
                let difference = counts.difference(&correct);
                *counts = correct;
                drop(counts);
                if difference != CountDifference::default() {
                    StoreCountsRepaired {
                        folder: &self.folder.path().display(),
                        counts: difference.counts,
                        surplus_tasks: difference.surplus.tasks,
                        surplus_bytes: difference.surplus.stored_bytes,
                        missing_tasks: difference.missing.tasks,
                        missing_bytes: difference.missing.stored_bytes,
                    }
                    .emit();
                }
            }
            Err(error) => {
                StoreCountsUnchecked { error: &store_error(self.folder.path(), &error) }.emit();
            }
        }
    }

    /// Counts all rows, and compares the maintained counts with them.
    fn recount(&self) -> Result<Recount, StoreError> {
        let mut rows = RowCount::default();
        let counted = rows.step(&self.connection, i64::MAX);
        let compared = counted.and_then(|_| rows.compare(&self.connection, &self.shared.counts.lock()));
        compared.map_err(|error| store_error(self.folder.path(), &error))
    }

    /// The bytes of the folder that cannot be reused.
    fn used_bytes(&self) -> rusqlite::Result<u64> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let pages = number("page_count")? - number("freelist_count")?;
        let bytes = pages.saturating_mul(number("page_size")?);
        Ok(bytes.cast_unsigned() + self.file_bytes + folder::log_bytes(self.max_bytes) + OVERHEAD_BYTES)
    }

    /// Returns some free pages to the system; returns whether no more are left to return.
    fn vacuum(&mut self) -> rusqlite::Result<bool> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let free = number("freelist_count")? - SPARE_PAGES;
        if free > 0 && !self.is_broken {
            // Each step returns one page.
            let pragma = format!("PRAGMA incremental_vacuum({})", free.min(VACUUM_PAGES));
            let mut statement = self.connection.prepare(&pragma)?;
            let mut steps = statement.raw_query();
            while steps.next()?.is_some() {}
        }
        if free <= VACUUM_PAGES {
            // A checkpoint truncates the file.
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(free <= VACUUM_PAGES)
    }

    /// A prepared statement, from the cache of the connection.
    pub(super) fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(text)
    }
}

// === impl WriteRequest ===

impl WriteRequest {
    /// Sends the outcome to the caller.
    fn respond(self, outcome: Result<ChangeOutcome, StoreError>) {
        let Self { change, reply, permit } = self;
        // Dropping the change removes its file, unless a row names it.
        drop((change, permit));
        // The caller may be gone, so a failure to send is ignored.
        let _ = reply.send(outcome);
    }
}

// === impl StoreChange ===

impl StoreChange {
    /// The failure that the change must survive once it is acknowledged.
    fn required_durability(&self) -> Durability {
        match self {
            Self::Insert { .. } => Durability::Machine,
            Self::Swap { durability, .. } => *durability,
            Self::Reserve { .. }
            | Self::Anchor { .. }
            | Self::Orphans { .. }
            | Self::Remove(_)
            | Self::Clock(_) => Durability::Process,
        }
    }

    /// Drops the caller's reservation.
    fn release_reservation(&mut self) {
        if let Self::Insert { reservation, .. } = self {
            reservation.take();
        }
    }

    /// The approximate number of bytes that the commit writes for this change.
    fn written_bytes(&self) -> usize {
        match self {
            Self::Insert { row, file: None, .. } | Self::Swap { row, file: None, .. } => row.written_bytes(),
            Self::Insert { row, .. } | Self::Swap { row, .. } => row.head.len(),
            Self::Anchor { anchor, .. } => anchor.as_ref().map_or(0, Bytes::len),
            Self::Reserve { .. } | Self::Orphans { .. } | Self::Remove(_) | Self::Clock(_) => 0,
        }
    }

    /// The result file of the change, if any.
    fn file(&mut self) -> Option<&mut ResultFile> {
        match self {
            Self::Insert { file, .. } | Self::Swap { file, .. } => file.as_mut(),
            Self::Reserve { .. }
            | Self::Anchor { .. }
            | Self::Orphans { .. }
            | Self::Remove(_)
            | Self::Clock(_) => None,
        }
    }
}

/// Whether the connection must not be reused.
fn is_broken(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase, ReadOnly, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(CannotOpen | DatabaseCorrupt | NotADatabase | ReadOnly | SystemIoFailure)
    )
}

/// Whether the disk has failed to read or write.
fn is_io(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Whether a flush failed, so that it is unknown whether a written change survives.
fn is_unflushed(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}
