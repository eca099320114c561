//! The writer: takes all waiting changes, commits them once, and acknowledges each.
//!
//! It alone changes the database, the records in memory and the counts, in this order, so versions are
//! compared nowhere else. A commit is flushed if a change in it must survive a loss of power. A failed commit
//! has changed nothing; if it had several changes, each is then tried alone, so that removals succeed on a
//! full disk, too.

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
    Change(WriteRequest),
    /// Compares the counts with the rows.
    Recount(oneshot::Sender<Result<Recount, StoreError>>),
    /// Closes the database, releases the folder, and answers.
    Close(oneshot::Sender<()>),
}

/// A change, and the channel for its outcome.
pub(super) struct WriteRequest {
    pub(super) change: StoreChange,
    pub(super) answer: oneshot::Sender<Result<ChangeOutcome, StoreError>>,
    /// The permit of the queue.
    pub(super) permit: OwnedSemaphorePermit,
}

/// A change of the store.
pub(super) enum StoreChange {
    Insert {
        row: RecordRow,
        file: Option<ResultFile>,
        /// Room that is reserved elsewhere, until the record counts.
        reservation: Option<Box<dyn Send>>,
    },
    Swap {
        version: RecordVersion,
        row: RecordRow,
        file: Option<ResultFile>,
        flush: Durability,
    },
    /// Changes nothing: admits a change whose result will be a file, before the file is written. Without a
    /// version it is a new record of so many bytes.
    Reserve {
        version: Option<RecordVersion>,
        record: Arc<Record>,
        bytes: usize,
    },
    Anchor {
        id: TaskId,
        anchor: Option<Bytes>,
    },
    Orphans {
        limit: usize,
    },
    Remove(TaskId),
    Clock(ClockReading),
}

/// Outcome of a change.
pub(super) enum ChangeOutcome {
    Stored,
    /// The record has another version, or does not exist.
    Conflict,
    Orphans(Vec<OrphanTask>),
    Reserved(ByteReservation),
}

/// The only thread that changes the store.
pub(super) struct StoreWriter {
    pub(super) folder: StoreFolder,
    pub(super) node: i64,
    pub(super) bounds: SwapCell<StoreBounds>,
    /// The bound of the folder, in bytes.
    pub(super) max_bytes: Option<u64>,
    pub(super) connection: Connection,
    /// Identifies the database, to notice a replaced one.
    pub(super) identity: (u64, u64),
    pub(super) shared: Arc<StoreState>,
    pub(super) messages: Receiver<WriterMessage>,
    pub(super) remover: FileRemover,
    /// Bytes of result files.
    pub(super) file_bytes: u64,
    /// The counts of the rows, until all are counted.
    pub(super) row_count: Option<RowCount>,
    /// The connection is no longer usable.
    pub(super) is_broken: bool,
    /// Durability of the next commit, as set in the database; `None` if unknown.
    pub(super) survives: Option<Durability>,
    /// Locks the folder.
    pub(super) _lock: FolderLock,
}

/// State that the writer changes and others read.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) cache: RecordCache,
    pub(super) counts: Mutex<StoreCounts>,
    pub(super) reserved: Arc<ReservedBytes>,
    pub(super) unreadables: UnreadableRows,
}

/// Changes in one commit.
const BATCH: usize = 1024;
/// Bytes in one commit, about: more would delay later changes.
const BATCH_BYTES: usize = 4 << 20;
/// How long no change is submitted before more rows are counted, until all are.
const COUNT_PAUSE: Duration = Duration::from_millis(1);
/// How long no change is submitted before free pages are returned to the system.
const IDLE_BEFORE_VACUUM: Duration = Duration::from_secs(1);
/// Interval between two vacuum steps, if no change is submitted meanwhile.
const VACUUM_INTERVAL: Duration = Duration::from_millis(10);
/// Pages that are returned at a time: a new change waits for them.
const VACUUM_PAGES: i64 = 256;
/// Free pages that are kept, because they will be needed again.
const SPARE_PAGES: i64 = 256;
/// Bytes by which the log may exceed its checkpoint size, and of other files in the folder.
const OVERHEAD_BYTES: u64 = 4 << 20;

// === impl StoreWriter ===

impl StoreWriter {
    /// Runs until it is closed, or all senders are dropped.
    pub(super) fn run(mut self) {
        // How long to wait before pages are returned, if there are free ones.
        let mut patience = Some(IDLE_BEFORE_VACUUM);
        loop {
            let mut message = match patience {
                _ if self.row_count.is_some() => self.messages.recv_timeout(COUNT_PAUSE),
                Some(patience) => self.messages.recv_timeout(patience),
                None => self.messages.recv().map_err(Into::into),
            };
            let (mut requests, mut recounts) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            let closing = loop {
                match message {
                    Ok(WriterMessage::Change(request)) => {
                        bytes += request.change.bytes();
                        requests.push(request);
                    }
                    Ok(WriterMessage::Recount(answer)) => recounts.push(answer),
                    Ok(WriterMessage::Close(answer)) => break Some(Some(answer)),
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
                let is_tidy = self.vacuum().unwrap_or(true);
                patience = (!is_tidy).then_some(VACUUM_INTERVAL);
                continue;
            }
            let removes = requests.iter().any(|request| matches!(request.change, StoreChange::Remove(_)));
            patience = (removes || patience.is_some()).then_some(IDLE_BEFORE_VACUUM);
            self.commit(requests);
            recounts.into_iter().for_each(|answer| drop(answer.send(self.recount())));
            self.count_rows();
            if let Some(answer) = closing {
                // Closing the last connection checkpoints the log, and releases the folder.
                drop(self);
                let _ = answer.map(|answer| answer.send(()));
                return;
            }
        }
    }

    /// Commits all changes or, where that fails, each alone.
    fn commit(&mut self, mut requests: Vec<WriteRequest>) {
        match self.attempt(&mut requests) {
            Ok(done) => {
                for (request, done) in requests.into_iter().zip(done) {
                    request.answer(done);
                }
            }
            Err(_) if requests.len() > 1 => {
                requests.into_iter().for_each(|request| self.commit(vec![request]))
            }
            Err(error) => {
                if let Some(request) = requests.pop() {
                    request.answer(Err(error));
                }
            }
        }
    }

    /// Commits the changes, and returns the outcome of each; or why nothing has changed.
    fn attempt(
        &mut self,
        requests: &mut [WriteRequest],
    ) -> Result<Vec<Result<ChangeOutcome, StoreError>>, StoreError> {
        self.reopen_if_broken()?;
        let mut batch = CommitBatch::default();
        match self.transact(requests, &mut batch) {
            Ok(done) => {
                self.publish(requests, &done, batch);
                Ok(done)
            }
            Err(error) => {
                self.undo(&batch);
                let lacks_space =
                    is_full(&error) || (is_io(&error) && results::is_out_of_space(&self.folder, self.node));
                // For want of space nothing was written, and the connection can be reused. If a write may not
                // be flushed, the database is read anew.
                self.is_broken |= is_broken(&error) && (!lacks_space || is_unflushed(&error));
                if !self.connection.is_autocommit() && self.connection.execute_batch("ROLLBACK").is_err() {
                    self.is_broken = true;
                }
                self.survives = None;
                if is_unflushed(&error) {
                    // The changes may be stored after a crash, so their files must stay. Otherwise the next
                    // start removes them.
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

    /// Reopens the database after a failure.
    fn reopen_if_broken(&mut self) -> Result<(), StoreError> {
        let path = self.folder.path();
        if folder::has_moved(path, self.identity) {
            let words = format!("{} was moved, or replaced by another", path.display());
            return Err(StoreError::Unavailable(words));
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
        // Changes that were reported as failed may be stored after all.
        self.shared.cache.clear();
        *self.shared.counts.lock() = counts;
        self.row_count = Some(RowCount::default());
        (self.file_bytes, self.is_broken, self.survives) = (file_bytes, false, None);
        Ok(())
    }

    fn transact(
        &mut self,
        requests: &mut [WriteRequest],
        batch: &mut CommitBatch,
    ) -> rusqlite::Result<Vec<Result<ChangeOutcome, StoreError>>> {
        let survives =
            requests.iter().map(|request| request.change.flush()).max().unwrap_or(Durability::Process);
        if self.survives != Some(survives) {
            let synchronous = match survives {
                Durability::Machine => "FULL",
                Durability::Process => "NORMAL",
            };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.survives = Some(survives);
        }
        if let Some(max) = self.max_bytes {
            let reserved = self.shared.reserved.all() as u64;
            batch.free_bytes = Some(max.saturating_sub(self.used_bytes()?.saturating_add(reserved)));
        }
        self.statement("BEGIN IMMEDIATE")?.execute([])?;
        let mut done = Vec::with_capacity(requests.len());
        for request in requests {
            done.push(self.apply(&request.change, batch)?);
            // The reservation ends once the change counts, or is known to fail.
            request.change.release();
        }
        self.write_counts(batch)?;
        self.statement("COMMIT")?.execute([])?;
        Ok(done)
    }

    /// Publishes committed changes to memory.
    fn publish(
        &mut self,
        requests: &mut [WriteRequest],
        done: &[Result<ChangeOutcome, StoreError>],
        batch: CommitBatch,
    ) {
        for (request, done) in requests.iter_mut().zip(done) {
            if matches!(done, Ok(ChangeOutcome::Stored))
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
        for (id, kept) in batch.records {
            self.shared.cache.commit(id, kept);
        }
        let (came, went) = batch.file_bytes;
        self.file_bytes = (self.file_bytes + came).saturating_sub(went);
        batch.dropped.into_iter().for_each(|name| self.remover.remove(name));
    }

    fn undo(&self, batch: &CommitBatch) {
        let mut counts = self.shared.counts.lock();
        for CountChange { was, is, .. } in batch.counted.iter().rev() {
            // A count that was wrong before the change stays wrong here.
            let _ = apply_count(&mut counts, is.as_ref(), was.as_ref());
        }
    }

    /// Counts some more rows, if not all are counted, and repairs the counts once they are.
    pub(super) fn count_rows(&mut self) {
        let Some(rows) = self.row_count.as_mut().filter(|_| !self.is_broken) else { return };
        let counted = match rows.step(&self.connection, STEP) {
            Ok(false) => return,
            Ok(true) => rows.repair_usage(&self.connection).map(|()| rows.counts()),
            Err(error) => Err(error),
        };
        self.row_count = None;
        match counted {
            Ok(right) => {
                let mut counts = self.shared.counts.lock();
                let error = counts.difference(&right);
                *counts = right;
                drop(counts);
                if error != CountDifference::default() {
                    StoreCountsRepaired {
                        folder: &self.folder.path().display(),
                        counts: error.counts,
                        surplus_tasks: error.surplus.tasks,
                        surplus_bytes: error.surplus.stored_bytes,
                        missing_tasks: error.missing.tasks,
                        missing_bytes: error.missing.stored_bytes,
                    }
                    .emit();
                }
            }
            Err(error) => {
                StoreCountsUnchecked { error: &store_error(self.folder.path(), &error) }.emit();
            }
        }
    }

    fn recount(&self) -> Result<Recount, StoreError> {
        let mut rows = RowCount::default();
        let counted = rows.step(&self.connection, i64::MAX);
        let compared = counted.and_then(|_| rows.compare(&self.connection, &self.shared.counts.lock()));
        compared.map_err(|error| store_error(self.folder.path(), &error))
    }

    /// Bytes of the folder that cannot be reused.
    fn used_bytes(&self) -> rusqlite::Result<u64> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let pages = number("page_count")? - number("freelist_count")?;
        let bytes = pages.saturating_mul(number("page_size")?);
        Ok(bytes.cast_unsigned() + self.file_bytes + folder::log_bytes(self.max_bytes) + OVERHEAD_BYTES)
    }

    /// Returns some free pages to the system. The result says whether there are no more.
    fn vacuum(&mut self) -> rusqlite::Result<bool> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let free = number("freelist_count")? - SPARE_PAGES;
        if free > 0 && !self.is_broken {
            // One step for each page.
            let give = format!("PRAGMA incremental_vacuum({})", free.min(VACUUM_PAGES));
            let mut give = self.connection.prepare(&give)?;
            let mut given = give.raw_query();
            while given.next()?.is_some() {}
        }
        if free <= VACUUM_PAGES {
            // A checkpoint truncates the file.
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(free <= VACUUM_PAGES)
    }

    pub(super) fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(text)
    }
}

// === impl WriteRequest ===

impl WriteRequest {
    fn answer(self, done: Result<ChangeOutcome, StoreError>) {
        let Self { change, answer, permit } = self;
        // A file that no row names is removed with the change.
        drop((change, permit));
        // The caller may have been dropped.
        let _ = answer.send(done);
    }
}

// === impl StoreChange ===

impl StoreChange {
    /// What the change must survive once it is acknowledged.
    fn flush(&self) -> Durability {
        match self {
            Self::Insert { .. } => Durability::Machine,
            Self::Swap { flush, .. } => *flush,
            Self::Reserve { .. }
            | Self::Anchor { .. }
            | Self::Orphans { .. }
            | Self::Remove(_)
            | Self::Clock(_) => Durability::Process,
        }
    }

    /// Gives back what was reserved for it elsewhere.
    fn release(&mut self) {
        if let Self::Insert { reservation, .. } = self {
            reservation.take();
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Insert { row, file: None, .. } | Self::Swap { row, file: None, .. } => row.bytes(),
            Self::Insert { row, .. } | Self::Swap { row, .. } => row.head.len(),
            Self::Anchor { anchor, .. } => anchor.as_ref().map_or(0, Bytes::len),
            Self::Reserve { .. } | Self::Orphans { .. } | Self::Remove(_) | Self::Clock(_) => 0,
        }
    }

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

/// Whether the disk has failed.
fn is_io(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Whether it is unknown if a written change survives.
fn is_unflushed(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}
