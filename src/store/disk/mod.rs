//! Tasks in a folder, which outlive the process.
//!
//! A database (SQLite, with a write-ahead log) has a row for each task; results that are too large for it are
//! files beside it. The guarantees are in [`durable`](crate::manual::durable).
//!
//! * `folder`: the folder, its lock, and access to its files without following links; `schema`: the tables;
//!   `row`: a record as a row
//! * `writer`: the only thread that changes anything, one commit for all waiting changes
//! * `changes`: the SQL of each change; `recount`: the counts, checked against the rows after a start
//! * `record_cache`: records in memory, so that most reads do not touch the disk
//! * `readers`: reads from the disk, on threads that may block
//! * `results`: result files; `reserved`: their bytes, reserved before they are written
//! * `inspect`: check and backup, while a process uses the store or not
//! * `key`: the secret of a store, beside it
//! * `meta`: the clock, and the check value of the key

mod changes;
mod error;
mod folder;
mod inspect;
mod key;
mod meta;
mod readers;
mod record_cache;
mod recount;
mod reserved;
mod results;
mod row;
mod schema;
mod writer;

pub use error::Error;
pub use inspect::{BackupSummary, CheckReport, backup, check};
pub use key::{key_path, load_or_create_key};
pub use row::{RecordRow, RowColumns, RowError, encode_owner};

use super::{
    DueTask, Durability, ListCursor, LoadedTask, OrphanTask, ProcessId, RecentTask, RecordVersion, Recount,
    Store, StoreBounds, StoreError, StoreUsage, TaskTally,
};
use crate::{
    protocol::{ClockReading, Timestamp},
    runtime::{Mutex, SwapCell, random},
    task::{Record, TaskId, TaskPrincipal},
};
use async_trait::async_trait;
use bytes::Bytes;
use error::{UnreadableRows, file_error};
use folder::StoreFolder;
use readers::{ListPage, ReaderPool};
use record_cache::RecordCache;
use recount::{FIRST_STEPS, RowCount};
use reserved::{ByteReservation, ReservedBytes};
use results::{FileRemover, LARGEST_IN_ROW, ResultFile};
use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread,
};
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};
use writer::{ChangeOutcome, StoreChange, StoreState, StoreWriter, WriteRequest, WriterMessage};

/// A store in a folder, which survives the end of the process.
#[derive(Debug)]
pub struct DiskStore {
    folder: StoreFolder,
    /// A random id of this process, by which the rows show which process owns a task.
    node: i64,
    shared: Arc<StoreState>,
    readers: Arc<ReaderPool>,
    writer: mpsc::Sender<WriterMessage>,
    /// Permits of the writer's queue ([`QUEUE`]).
    permits: Arc<Semaphore>,
    /// Permits to write a result file ([`FILES`]).
    files: Semaphore,
    bounds: SwapCell<StoreBounds>,
    /// The reading of the clock that the former process stored.
    stored_clock: Option<ClockReading>,
}

/// Maximum number of changes that wait for the writer or are being committed; further ones wait for a permit.
const QUEUE: usize = 1024;
/// Maximum number of result files that are written at a time.
const FILES: usize = 4;

// === impl DiskStore ===

impl DiskStore {
    /// Opens the store in `folder` and locks it; creates it if it does not exist. `max_bytes` bounds the size
    /// of the folder. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error`] says what is wrong with the folder, and the fix.
    pub fn open(folder: &Path, bounds: StoreBounds, max_bytes: Option<u64>) -> Result<Self, Error> {
        let path = folder;
        let folder = StoreFolder::open_or_create(path)?;
        let lock = folder.lock()?;
        let connection = folder::open_to_write(&folder, max_bytes)?;
        let failed = || Error::folder(path);
        let identity = folder::identity(path).map_err(failed())?;
        let (counts, file_bytes) = changes::read_counts(&connection).map_err(Error::database(path))?;
        let stored_clock = meta::clock(&connection).map_err(Error::database(path))?;
        let node = i64::from_be_bytes(random());
        let bounds = SwapCell::new(bounds);
        let read_named_files = {
            let folder = folder.clone();
            move || results::named_files(&folder::open_to_read(&folder).ok()?).ok()
        };
        let remover = FileRemover::start(folder.clone(), node, read_named_files).map_err(failed())?;
        let shared = Arc::new(StoreState {
            cache: RecordCache::new(),
            counts: Mutex::new(counts),
            reserved: Arc::new(ReservedBytes::default()),
            unreadables: UnreadableRows::default(),
        });
        let (sender, messages) = mpsc::channel();
        let mut writer = StoreWriter {
            folder: folder.clone(),
            node,
            bounds: bounds.clone(),
            max_bytes,
            connection,
            identity,
            shared: Arc::clone(&shared),
            messages,
            remover,
            file_bytes,
            row_count: Some(RowCount::default()),
            is_broken: false,
            durability: None,
            _lock: lock,
        };
        for _ in 0..FIRST_STEPS {
            writer.count_rows();
        }
        let thread = thread::Builder::new().name("deferral-store".to_owned());
        thread.spawn(move || writer.run()).map_err(failed())?;
        Ok(Self {
            readers: ReaderPool::new(folder.clone()),
            folder,
            node,
            shared,
            writer: sender,
            permits: Arc::new(Semaphore::new(QUEUE)),
            files: Semaphore::new(FILES),
            bounds,
            stored_clock,
        })
    }

    /// Counts all rows anew, and compares the counts in memory and in the table `usage` with them; for tests.
    ///
    /// # Errors
    /// [`StoreError`] if the rows cannot be read.
    pub async fn recount(&self) -> Result<Recount, StoreError> {
        let (reply, receiver) = oneshot::channel();
        self.writer.send(WriterMessage::Recount(reply)).map_err(|_| closed_error())?;
        receiver.await.map_err(|_| closed_error())?
    }

    /// Submits a change to the writer, and waits for its outcome.
    async fn submit(&self, change: StoreChange) -> Result<ChangeOutcome, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed_error())?;
        let (reply, receiver) = oneshot::channel();
        self.writer
            .send(WriterMessage::Change(WriteRequest { change, reply, permit }))
            .map_err(|_| closed_error())?;
        receiver.await.map_err(|_| closed_error())?
    }

    /// Writes the file of a body that is too large for the database, once its bytes are reserved. `version`
    /// is that of the record to be changed; `None` for a new record.
    async fn prepare(
        &self,
        version: Option<RecordVersion>,
        row: &RecordRow,
    ) -> Result<PreparedBody, StoreError> {
        if row.body.len() <= LARGEST_IN_ROW || !row.record.state.is_ended() {
            return Ok(PreparedBody::InRow);
        }
        let reserve =
            StoreChange::Reserve { version, record: Arc::clone(&row.record), bytes: row.written_bytes() };
        match self.submit(reserve).await? {
            ChangeOutcome::Reserved(reservation) => {
                self.write_file(row, reservation).await.map(PreparedBody::File)
            }
            ChangeOutcome::Stored | ChangeOutcome::Conflict | ChangeOutcome::Orphans(_) => {
                Ok(PreparedBody::Conflict)
            }
        }
    }

    /// Writes a result file on a thread that may block.
    async fn write_file(
        &self,
        row: &RecordRow,
        reservation: ByteReservation,
    ) -> Result<ResultFile, StoreError> {
        let _permit = self.files.acquire().await.map_err(|_| closed_error())?;
        let (folder, node, id, body) =
            (self.folder.clone(), self.node, row.record.id.clone(), row.body.clone());
        let written = spawn_blocking(move || {
            let mut written = results::write(&folder, node, &id, &body)
                .map_err(|error| file_error(folder.path(), &error))?;
            written.reservation = Some(reservation);
            Ok(written)
        });
        written.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }
}

/// Where the body of a change is stored, before the change is submitted.
enum PreparedBody {
    /// The body is stored in the row.
    InRow,
    /// The body is in this file.
    File(ResultFile),
    /// The record has another version, or does not exist.
    Conflict,
}

fn closed_error() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

#[async_trait]
impl Store for DiskStore {
    fn process(&self) -> ProcessId {
        ProcessId(self.node)
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.insert_reserved(record, Box::new(())).await
    }

    async fn insert_reserved(
        &self,
        record: Arc<Record>,
        reservation: Box<dyn Send>,
    ) -> Result<(), StoreError> {
        let row = RecordRow::from_record(record);
        let file = match self.prepare(None, &row).await? {
            PreparedBody::File(file) => Some(file),
            PreparedBody::InRow | PreparedBody::Conflict => None,
        };
        self.submit(StoreChange::Insert { row, file, reservation: Some(reservation) }).await.map(drop)
    }

    async fn load(&self, id: &TaskId) -> Result<Option<LoadedTask>, StoreError> {
        if let Some(found) = self.shared.cache.get(id) {
            return Ok(Some(found));
        }
        let (removals, id) = (self.shared.cache.removals(), id.clone());
        let found =
            self.readers.read(move |folder, connection| readers::load(folder, connection, &id)).await?;
        Ok(found.map(|cached| {
            let found = cached.task.clone();
            if found.record.state.is_ended() {
                self.shared.cache.add(removals, cached);
            }
            found
        }))
    }

    async fn swap(
        &self,
        version: RecordVersion,
        record: Arc<Record>,
        durability: Durability,
    ) -> Result<bool, StoreError> {
        let row = RecordRow::from_record(record);
        let file = match self.prepare(Some(version), &row).await? {
            PreparedBody::InRow => None,
            PreparedBody::File(file) => Some(file),
            PreparedBody::Conflict => return Ok(false),
        };
        let outcome = self.submit(StoreChange::Swap { version, row, file, durability }).await?;
        Ok(matches!(outcome, ChangeOutcome::Stored))
    }

    async fn set_anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.submit(StoreChange::Anchor { id: id.clone(), anchor }).await.map(drop)
    }

    async fn take_orphans(&self, limit: usize) -> Result<Vec<OrphanTask>, StoreError> {
        match self.submit(StoreChange::Orphans { limit }).await? {
            ChangeOutcome::Orphans(orphans) => Ok(orphans),
            ChangeOutcome::Stored | ChangeOutcome::Conflict | ChangeOutcome::Reserved(_) => Ok(Vec::new()),
        }
    }

    fn stored_clock(&self) -> Option<ClockReading> {
        self.stored_clock
    }

    async fn store_clock(&self, reading: ClockReading) -> Result<(), StoreError> {
        self.submit(StoreChange::Clock(reading)).await.map(drop)
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn set_bounds(&self, bounds: StoreBounds) {
        self.bounds.set(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.submit(StoreChange::Remove(id.clone())).await.map(drop)
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<DueTask>, StoreError> {
        let node = self.node;
        self.readers
            .read(move |folder, connection| readers::due(folder.path(), connection, node, now, limit))
            .await
    }

    async fn list(
        &self,
        owner: &TaskPrincipal,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        let (owner, after) = (owner.clone(), after.cloned());
        let read = self.readers.read(move |folder, connection| {
            readers::list(folder.path(), connection, &owner, after.as_ref(), limit)
        });
        let ListPage { records, unreadable } = read.await?;
        for (id, error) in unreadable {
            self.shared.unreadables.report(&id, &error);
        }
        Ok(records)
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RecentTask>, StoreError> {
        let read = self.readers.read(move |folder, connection| {
            readers::recent(folder.path(), connection, is_ended, below, limit)
        });
        read.await
    }

    fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        self.shared.counts.lock().usage(principal)
    }

    async fn census(&self) -> Result<Vec<TaskTally>, StoreError> {
        Ok(self.shared.counts.lock().census())
    }

    async fn close(&self) {
        self.readers.close();
        let (reply, closed) = oneshot::channel();
        // If the writer has ended already, there is nothing to wait for.
        if self.writer.send(WriterMessage::Close(reply)).is_ok() {
            let _ = closed.await;
        }
    }
}
