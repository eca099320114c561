//! Tasks kept in a folder, which outlive the process.
//!
//! A database (SQLite, with a write-ahead log) has a row for each task; results that are too large for it are files
//! beside it. What is promised when, and what is not, is in [`durable`](crate::manual::durable).
//!
//! * `folder`: made, locked, opened, and what is below it, without following links; `schema`: the tables; `row`: a record as a row of them
//! * `writer`: the one thread that changes anything, one commit for all that is asked for by then
//! * `changes`: the SQL of each change; `recount`: the counts, checked against the rows after a start
//! * `held`: what is in memory, too, so that most of what is read costs no look at the disk
//! * `readers`: who looks there, on threads that may wait
//! * `results`: the files; `reserved`: the room that they have before they are written
//! * `inspect`: what an operator does with a store, whether a process uses it or not
//! * `key`: what is secret about a store, beside it

mod changes;
mod error;
mod folder;
mod held;
mod inspect;
mod key;
mod readers;
mod recount;
mod reserved;
mod results;
mod row;
mod schema;
mod writer;

pub use error::Error;
pub use inspect::{Contents, Copied, backup, check};
pub use key::key;
pub use row::{Columns, Row, Unreadable, owner};

use super::{Bounds, Due, Flush, Orphan, Place, Recount, Store, StoreError, Tally, Usage, Version};
use crate::{
    protocol::Timestamp,
    runtime::{Live, Mutex, random},
    task::{Owner, Record, TaskId},
};
use async_trait::async_trait;
use bytes::Bytes;
use error::{Unreadables, file_error};
use folder::StoreFolder;
use held::Held;
use readers::{Listed, Readers};
use recount::{FIRST_STEPS, RowCount};
use reserved::{ByteReservation, ReservedBytes};
use results::{Broom, LARGEST_IN_ROW, Written};
use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread,
};
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};
use writer::{Ask, Change, Done, Shared, Told, Writer};

/// Keeps tasks in a folder.
#[derive(Debug)]
pub struct Disk {
    folder: StoreFolder,
    /// Which of the processes that use it one after the other this is.
    node: i64,
    shared: Arc<Shared>,
    readers: Arc<Readers>,
    writer: mpsc::Sender<Told>,
    /// Places in the writer's queue.
    places: Arc<Semaphore>,
    /// Those who write a file.
    files: Semaphore,
    bounds: Live<Bounds>,
}

/// Changes that wait for the writer or are being committed; whoever comes then waits for a place.
const QUEUE: usize = 1024;
/// Files that are written at a time.
const FILES: usize = 4;

// === impl Disk ===

impl Disk {
    /// Opens the store in `folder`, which is made if it is not there, and keeps others out of it. `max_bytes` bounds
    /// the folder. Waits for the disk.
    ///
    /// # Errors
    /// [`Error`] says what is wrong with the folder, and what helps.
    pub fn open(folder: &Path, bounds: Bounds, max_bytes: Option<u64>) -> Result<Self, Error> {
        let path = folder;
        let folder = StoreFolder::make(path)?;
        let lock = folder.lock()?;
        let connection = folder::open_to_write(&folder, max_bytes)?;
        let failed = || Error::folder(path);
        let identity = folder::identity(path).map_err(failed())?;
        let (counts, file_bytes) = changes::read_counts(&connection).map_err(Error::database(path))?;
        let node = i64::from_be_bytes(random());
        let bounds = Live::new(bounds);
        let named = {
            let folder = folder.clone();
            move || results::named(&folder::open_to_read(&folder).ok()?).ok()
        };
        let broom = Broom::start(folder.clone(), node, named).map_err(failed())?;
        let shared = Arc::new(Shared {
            held: Held::new(),
            counts: Mutex::new(counts),
            reserved: Arc::new(ReservedBytes::default()),
            unreadables: Unreadables::default(),
        });
        let (told, asks) = mpsc::channel();
        let mut writer = Writer {
            folder: folder.clone(),
            node,
            bounds: bounds.clone(),
            max_bytes,
            connection,
            identity,
            shared: Arc::clone(&shared),
            told: asks,
            broom,
            file_bytes,
            row_count: Some(RowCount::default()),
            is_broken: false,
            survives: None,
            _lock: lock,
        };
        for _ in 0..FIRST_STEPS {
            writer.count_rows();
        }
        let thread = thread::Builder::new().name("deferral-store".to_owned());
        thread.spawn(move || writer.run()).map_err(failed())?;
        Ok(Self {
            readers: Readers::new(folder.clone()),
            folder,
            node,
            shared,
            writer: told,
            places: Arc::new(Semaphore::new(QUEUE)),
            files: Semaphore::new(FILES),
            bounds,
        })
    }

    /// Counts all rows anew, and compares what is in memory and in the table with that; for tests.
    ///
    /// # Errors
    /// [`StoreError`] where they cannot be read.
    pub async fn recount(&self) -> Result<Recount, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.writer.send(Told::Recount(answer)).map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Has a change made.
    async fn ask(&self, change: Change) -> Result<Done, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        self.writer.send(Told::Change(Ask { change, answer, place })).map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Writes the file of a body that is too large for the database, once there is room for it. `version` is that of the record
    /// that it is to change; a new record has none.
    async fn prepare(&self, version: Option<Version>, row: &Row) -> Result<Prepared, StoreError> {
        if row.body.len() <= LARGEST_IN_ROW || !row.record.state.is_ended() {
            return Ok(Prepared::InRow);
        }
        let reserve = Change::Reserve { version, record: Arc::clone(&row.record), bytes: row.bytes() };
        match self.ask(reserve).await? {
            Done::Reserved(reservation) => self.write_file(row, reservation).await.map(Prepared::File),
            Done::Kept | Done::Lost | Done::Orphans(_) => Ok(Prepared::Lost),
        }
    }

    async fn write_file(&self, row: &Row, reservation: ByteReservation) -> Result<Written, StoreError> {
        let _turn = self.files.acquire().await.map_err(|_| closed())?;
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

/// What is prepared for a change before it is asked for.
enum Prepared {
    /// Nothing: its bytes go into the database.
    InRow,
    File(Written),
    /// There is another version, or none.
    Lost,
}

fn closed() -> StoreError {
    StoreError::Unavailable("it is closed".to_owned())
}

#[async_trait]
impl Store for Disk {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        let row = Row::of(record);
        let file = match self.prepare(None, &row).await? {
            Prepared::File(file) => Some(file),
            Prepared::InRow | Prepared::Lost => None,
        };
        self.ask(Change::Insert(row, file)).await.map(drop)
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        if let Some(found) = self.shared.held.get(id) {
            return Ok(Some(found));
        }
        let (forgotten, id) = (self.shared.held.forgotten(), id.clone());
        let found =
            self.readers.read(move |folder, connection| readers::load(folder, connection, &id)).await?;
        Ok(found.map(|kept| {
            let found = (kept.version, Arc::clone(&kept.record));
            if kept.record.state.is_ended() {
                self.shared.held.add(forgotten, kept);
            }
            found
        }))
    }

    async fn swap(&self, version: Version, record: Arc<Record>, flush: Flush) -> Result<bool, StoreError> {
        let row = Row::of(record);
        let file = match self.prepare(Some(version), &row).await? {
            Prepared::InRow => None,
            Prepared::File(file) => Some(file),
            Prepared::Lost => return Ok(false),
        };
        let done = self.ask(Change::Swap { version, row, file, flush }).await?;
        Ok(matches!(done, Done::Kept))
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.ask(Change::Anchor { id: id.clone(), anchor }).await.map(drop)
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        match self.ask(Change::Orphans { limit }).await? {
            Done::Orphans(orphans) => Ok(orphans),
            Done::Kept | Done::Lost | Done::Reserved(_) => Ok(Vec::new()),
        }
    }

    fn outlives(&self) -> bool {
        true
    }

    fn bound_by(&self, bounds: Bounds) {
        self.bounds.set(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.ask(Change::Remove(id.clone())).await.map(drop)
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
        let node = self.node;
        self.readers
            .read(move |folder, connection| readers::due(folder.path(), connection, node, now, limit))
            .await
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        let (owner, after) = (owner.clone(), after.cloned());
        let read = self.readers.read(move |folder, connection| {
            readers::list(folder.path(), connection, &owner, after.as_ref(), limit)
        });
        let Listed { records, unreadable } = read.await?;
        for (id, error) in unreadable {
            self.shared.unreadables.tell(&id, &error);
        }
        Ok(records)
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        let read = self.readers.read(move |folder, connection| {
            readers::recent(folder.path(), connection, is_ended, below, limit)
        });
        read.await
    }

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.shared.counts.lock().usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        Ok(self.shared.counts.lock().census())
    }

    async fn close(&self) {
        self.readers.close();
        let (answer, closed) = oneshot::channel();
        // Where it is closed already there is nobody to wait for.
        if self.writer.send(Told::Close(answer)).is_ok() {
            let _ = closed.await;
        }
    }
}
