//! The one who writes: takes whatever is asked for by then, commits it once, and answers all of it.
//!
//! It alone changes the database, what is in memory and the counts, in this order, so a version needs to be compared
//! nowhere else. A commit is flushed if a change in it must survive a loss of power. Where one fails nothing has
//! changed; of several each is then tried alone, so that what takes no room is done on a full disk, too.

use super::{
    Error,
    error::unavailable,
    folder,
    held::{Held, Kept},
    results::{self, Broom, Written},
    row::{self, Columns, Row},
};
use crate::{
    runtime::Mutex,
    store::{
        Bounds, Flush, Orphan, StoreError, Version,
        counts::{Counts, Share},
    },
    task::{Record, State, TaskId},
};
use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension, ffi, params};
use std::{
    collections::HashMap,
    fs::File,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// What the writer is told.
pub(super) enum Told {
    Change(Ask),
    /// Lets go of the folder, and answers.
    Close(oneshot::Sender<()>),
}

/// A change, and who waits for it.
pub(super) struct Ask {
    pub(super) change: Change,
    pub(super) answer: oneshot::Sender<Result<Done, StoreError>>,
    /// Its place in the queue.
    pub(super) place: OwnedSemaphorePermit,
}

/// A change that is asked for.
pub(super) enum Change {
    Insert(Row, Option<Written>),
    Swap { version: Version, row: Row, file: Option<Written>, flush: Flush },
    Anchor { id: TaskId, anchor: Option<Bytes> },
    Orphans { limit: usize },
    Remove(TaskId),
}

/// What became of a change.
pub(super) enum Done {
    Kept,
    /// There is another version, or none.
    Lost,
    Orphans(Vec<Orphan>),
}

/// The one who writes.
pub(super) struct Writer {
    pub(super) folder: PathBuf,
    pub(super) node: i64,
    pub(super) bounds: Bounds,
    /// Those of the folder.
    pub(super) max_bytes: Option<u64>,
    pub(super) connection: Connection,
    /// What tells the database from another in its place.
    pub(super) identity: (u64, u64),
    pub(super) shared: Arc<Shared>,
    pub(super) told: Receiver<Told>,
    pub(super) broom: Broom,
    /// Bytes of results that are files.
    pub(super) file_bytes: u64,
    /// The connection is of no use any more.
    pub(super) is_broken: bool,
    /// What a commit survives now; `None` where that is not known.
    pub(super) survives: Option<Flush>,
    /// Locks the folder.
    pub(super) _lock: File,
}

/// What the writer writes and others read.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) held: Held,
    pub(super) counts: Mutex<Counts>,
}

/// What a commit changes besides the database.
#[derive(Default)]
struct Batch {
    records: HashMap<TaskId, Option<Kept>>,
    /// What the counts had, and have.
    counted: Vec<(Owned, Owned)>,
    /// Files that no row names any more, and the bytes of files that have come and gone.
    dropped: Vec<PathBuf>,
    file_bytes: (u64, u64),
    /// How much the folder has and may get, where that is bounded.
    room: Option<u64>,
}

/// A share, and the principal whose it is.
type Owned = Option<([u8; 16], Share)>;

/// What is there of a record that is to be changed.
struct Before {
    number: i64,
    version: Version,
    principal: [u8; 16],
    bytes: usize,
    file: Option<String>,
    /// As it is in memory.
    record: Option<Arc<Record>>,
}

/// Changes in one commit.
const BATCH: usize = 1024;
/// Bytes in one commit, about: more would keep those who come later waiting.
const BATCH_BYTES: usize = 4 << 20;
/// How long nothing is asked for before pages that are free are given back.
const IDLE: Duration = Duration::from_secs(1);
/// Pages that are given back at a time.
const PAGES: i64 = 1024;
/// Pages that are kept, as they will be needed again.
const SPARE_PAGES: i64 = 256;
/// Bytes that the log beside the database takes, and what else is in the folder.
const BESIDE: u64 = 8 << 20;

// === impl Writer ===

impl Writer {
    /// Works until it is told to close, or nobody can tell it anything.
    pub(super) fn run(mut self) {
        let mut is_tidy = false;
        loop {
            let mut told =
                if is_tidy { self.told.recv().map_err(Into::into) } else { self.told.recv_timeout(IDLE) };
            let mut asks = Vec::new();
            let mut bytes = 0;
            let closing = loop {
                match told {
                    Ok(Told::Change(ask)) => {
                        bytes += ask.change.bytes();
                        asks.push(ask);
                    }
                    Ok(Told::Close(answer)) => break Some(Some(answer)),
                    Err(RecvTimeoutError::Disconnected) => break Some(None),
                    Err(RecvTimeoutError::Timeout) => break None,
                }
                if asks.len() == BATCH || bytes >= BATCH_BYTES {
                    break None;
                }
                told = self.told.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                });
            };
            if asks.is_empty() && closing.is_none() {
                is_tidy = self.tidy().unwrap_or(true);
                continue;
            }
            is_tidy &= !asks.iter().any(|ask| matches!(ask.change, Change::Remove(_)));
            self.commit(asks);
            if let Some(answer) = closing {
                // The last connection carries the log over, and the folder is free.
                drop(self);
                let _ = answer.map(|answer| answer.send(()));
                return;
            }
        }
    }

    /// Commits all of them or, where that fails, each alone.
    fn commit(&mut self, mut asks: Vec<Ask>) {
        match self.attempt(&mut asks) {
            Ok(done) => {
                for (ask, done) in asks.into_iter().zip(done) {
                    ask.answer(done);
                }
            }
            Err(error) if asks.len() <= 1 => {
                asks.into_iter().for_each(|ask| ask.answer(Err(StoreError::Unavailable(error.clone()))))
            }
            Err(_) => asks.into_iter().for_each(|ask| self.commit(vec![ask])),
        }
    }

    /// Commits them, and says what became of each; or why nothing has changed.
    fn attempt(&mut self, asks: &mut [Ask]) -> Result<Vec<Result<Done, StoreError>>, String> {
        self.mend()?;
        let mut batch = Batch::default();
        match self.transact(asks, &mut batch) {
            Ok(done) => {
                self.keep(asks, &done, batch);
                Ok(done)
            }
            Err(error) => {
                self.undo(&batch);
                self.is_broken |= is_broken(&error);
                if !self.connection.is_autocommit() && self.connection.execute_batch("ROLLBACK").is_err() {
                    self.is_broken = true;
                }
                self.survives = None;
                if is_unflushed(&error) {
                    // It may be there after a crash: then its files must be, too. The next start sweeps them else.
                    asks.iter_mut().filter_map(|ask| ask.change.file()).for_each(|file| file.is_kept = true);
                }
                let StoreError::Unavailable(words) = unavailable(&self.folder, &error) else {
                    unreachable!("a database that fails is unavailable")
                };
                Err(words)
            }
        }
    }

    /// Opens the database anew where it has failed.
    fn mend(&mut self) -> Result<(), String> {
        if folder::has_moved(&self.folder, self.identity) {
            return Err(format!("{} was moved away, or another put in its place", self.folder.display()));
        }
        if self.is_broken {
            self.open_anew().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn open_anew(&mut self) -> Result<(), Error> {
        self.connection = folder::open(&self.folder)?;
        let (counts, file_bytes) = read_counts(&self.connection).map_err(Error::database(&self.folder))?;
        // What was said to have failed may be there after all.
        self.shared.held.clear();
        *self.shared.counts.lock() = counts;
        (self.file_bytes, self.is_broken, self.survives) = (file_bytes, false, None);
        Ok(())
    }

    fn transact(
        &mut self,
        asks: &mut [Ask],
        batch: &mut Batch,
    ) -> rusqlite::Result<Vec<Result<Done, StoreError>>> {
        let survives = asks.iter().map(|ask| ask.change.flush()).max().unwrap_or(Flush::Process);
        if self.survives != Some(survives) {
            let synchronous = match survives {
                Flush::Machine => "FULL",
                Flush::Process => "NORMAL",
            };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.survives = Some(survives);
        }
        if let Some(max) = self.max_bytes {
            batch.room = Some(max.saturating_sub(self.used()?));
        }
        self.statement("BEGIN IMMEDIATE")?.execute([])?;
        let done =
            asks.iter().map(|ask| self.apply(&ask.change, batch)).collect::<rusqlite::Result<Vec<_>>>()?;
        self.write_counts(batch)?;
        self.statement("COMMIT")?.execute([])?;
        Ok(done)
    }

    /// What is committed is what is in memory from now on.
    fn keep(&mut self, asks: &mut [Ask], done: &[Result<Done, StoreError>], batch: Batch) {
        for (ask, done) in asks.iter_mut().zip(done) {
            if matches!(done, Ok(Done::Kept))
                && let Some(file) = ask.change.file()
            {
                file.is_kept = true;
            }
        }
        for (id, kept) in batch.records {
            self.shared.held.commit(id, kept);
        }
        let (came, went) = batch.file_bytes;
        self.file_bytes = (self.file_bytes + came).saturating_sub(went);
        batch.dropped.into_iter().for_each(|path| self.broom.remove(path));
    }

    fn undo(&self, batch: &Batch) {
        let mut counts = self.shared.counts.lock();
        for (was, is) in batch.counted.iter().rev() {
            count(&mut counts, *is, *was);
        }
    }

    fn apply(&self, change: &Change, batch: &mut Batch) -> rusqlite::Result<Result<Done, StoreError>> {
        match change {
            Change::Insert(row, file) => self.insert(row, file.as_ref(), batch),
            Change::Swap { version, row, file, .. } => self.swap(*version, row, file.as_ref(), batch),
            Change::Anchor { id, anchor } => {
                self.statement(ANCHOR)?.execute(params![id.entropy(), anchor.as_deref()])?;
                Ok(Ok(Done::Kept))
            }
            Change::Orphans { limit } => Ok(Ok(Done::Orphans(self.orphans(*limit, batch)?))),
            Change::Remove(id) => self.remove(id, batch),
        }
    }

    fn insert(
        &self,
        row: &Row,
        file: Option<&Written>,
        batch: &mut Batch,
    ) -> rusqlite::Result<Result<Done, StoreError>> {
        let Row { record, head, body } = row;
        if !batch.takes(row.bytes()) {
            return Ok(Err(StoreError::Full(MAX_BYTES)));
        }
        let inserted = self.statement(INSERT)?.execute(params![
            record.id.entropy(),
            number(Version::FIRST),
            self.node,
            record.state.status(),
            !record.state.is_ended(),
            row::time(record.due()),
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
        self.count(batch, None, Some((record.owner.principal, Share::of_one(record.stored_bytes()))));
        batch.file_bytes.0 += file.map_or(0, |_| wide(body.len()));
        let number = self.connection.last_insert_rowid();
        let kept = Kept { version: Version::FIRST, record: Arc::clone(record), number };
        batch.records.insert(record.id.clone(), Some(kept));
        Ok(Ok(Done::Kept))
    }

    fn swap(
        &self,
        version: Version,
        row: &Row,
        file: Option<&Written>,
        batch: &mut Batch,
    ) -> rusqlite::Result<Result<Done, StoreError>> {
        let Row { record, head, body } = row;
        let Some(before) = self.before(&record.id, batch)?.filter(|before| before.version == version) else {
            return Ok(Ok(Done::Lost));
        };
        let bytes = record.stored_bytes();
        let usage = self.shared.counts.lock().usage(&record.owner.principal);
        if let Err(full) = self.bounds.admit(before.bytes, record, usage) {
            return Ok(Err(full));
        }
        if !Bounds::always(before.bytes, record) && !batch.takes(bytes.saturating_sub(before.bytes)) {
            return Ok(Err(StoreError::Full(MAX_BYTES)));
        }
        let version = version.next();
        let was = before.record.as_deref();
        if was.is_none_or(|was| was.owner != record.owner || was.created != record.created) {
            let (owner, created) = (row::owner(&record.owner), row::time(record.created));
            self.statement(OWN)?.execute(params![before.number, owner, created])?;
        }
        let is_ended = record.state.is_ended();
        if was.is_some_and(|was| was.due() == record.due() && !was.state.is_ended() && !is_ended) {
            // No index is touched.
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
                row::time(record.due()),
                saturated(bytes),
                head,
                file.map(|file| &file.name),
                in_row(body, file),
                // What has ended by itself needs it no more.
                !is_ended || record.state == State::Cancelled,
            ])?;
        }
        self.count(
            batch,
            Some((before.principal, Share::of_one(before.bytes))),
            Some((record.owner.principal, Share::of_one(bytes))),
        );
        self.drop_file(before.file, before.bytes, batch);
        batch.file_bytes.0 += file.map_or(0, |_| wide(body.len()));
        let kept = Kept { version, record: Arc::clone(record), number: before.number };
        batch.records.insert(record.id.clone(), Some(kept));
        Ok(Ok(Done::Kept))
    }

    fn remove(&self, id: &TaskId, batch: &mut Batch) -> rusqlite::Result<Result<Done, StoreError>> {
        let mut statement = self.statement(REMOVE)?;
        let removed = statement.query_row([id.entropy()], |row| {
            let owner = row.get_ref(0)?.as_blob()?;
            // One that cannot be read was counted for nobody.
            Ok((row::principal(owner).unwrap_or_default(), size(row.get(1)?), row.get(2)?))
        });
        if let Some((principal, bytes, file)) = removed.optional()? {
            self.count(batch, Some((principal, Share::of_one(bytes))), None);
            self.drop_file(file, bytes, batch);
            batch.records.insert(id.clone(), None);
        }
        Ok(Ok(Done::Kept))
    }

    fn orphans(&self, limit: usize, batch: &mut Batch) -> rusqlite::Result<Vec<Orphan>> {
        let mut orphans = Vec::new();
        let mut statement = self.statement(ORPHANS)?;
        let mut rows = statement.query(params![self.node, saturated(limit)])?;
        while let Some(row) = rows.next()? {
            let (number, version) = (row.get(0)?, version(row.get(1)?));
            let columns = Columns {
                id: row.get(2)?,
                owner: row.get_ref(3)?.as_blob()?,
                created: row.get(4)?,
                head: row.get_ref(5)?.as_str()?,
            };
            let body: Option<Vec<u8>> = row.get(6)?;
            match columns.record(body.unwrap_or_default().into()) {
                Ok(record) => {
                    let record = Arc::new(record);
                    let kept = Kept { version, record: Arc::clone(&record), number };
                    batch.records.insert(record.id.clone(), Some(kept));
                    let anchor = row.get::<_, Option<Vec<u8>>>(7)?.map(Bytes::from);
                    orphans.push((number, Some(Orphan { version, record, anchor })));
                }
                Err(error) => {
                    let task = TaskId::from_entropy(columns.id);
                    tracing::error!(target: "deferral::task", event = "task_unreadable", %task, %error);
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
    fn before(&self, id: &TaskId, batch: &Batch) -> rusqlite::Result<Option<Before>> {
        let kept = match batch.records.get(id) {
            Some(None) => return Ok(None),
            Some(Some(kept)) => Some(kept.clone()),
            None => self.shared.held.live(id),
        };
        // What has ended may have a file.
        if let Some(Kept { version, record, number }) = kept.filter(|kept| !kept.record.state.is_ended()) {
            let (principal, bytes) = (record.owner.principal, record.stored_bytes());
            return Ok(Some(Before { number, version, principal, bytes, file: None, record: Some(record) }));
        }
        let found = self.statement(BEFORE)?.query_row([id.entropy()], |row| {
            let owner = row.get_ref(2)?.as_blob()?;
            Ok(Before {
                number: row.get(0)?,
                version: version(row.get(1)?),
                principal: row::principal(owner).unwrap_or_default(),
                bytes: size(row.get(3)?),
                file: row.get(4)?,
                record: None,
            })
        });
        found.optional()
    }

    fn drop_file(&self, file: Option<String>, bytes: usize, batch: &mut Batch) {
        if let Some(path) = file.and_then(|file| results::path(&self.folder, &file)) {
            batch.file_bytes.1 += wide(bytes);
            batch.dropped.push(path);
        }
    }

    fn count(&self, batch: &mut Batch, was: Owned, is: Owned) {
        if was != is {
            count(&mut self.shared.counts.lock(), was, is);
            batch.counted.push((was, is));
        }
    }

    /// Writes down what the principals have by now that this commit is about.
    fn write_counts(&self, batch: &Batch) -> rusqlite::Result<()> {
        let mut principals: Vec<_> =
            batch.counted.iter().flat_map(|(was, is)| [was, is]).flatten().map(|(of, _)| *of).collect();
        principals.sort_unstable();
        principals.dedup();
        for principal in principals {
            let Share { tasks, stored_bytes } = self.shared.counts.lock().share(&principal);
            match tasks {
                0 => self.statement("DELETE FROM usage WHERE principal = ?1")?.execute([principal])?,
                _ => self.statement(COUNT)?.execute(params![
                    principal,
                    saturated(tasks),
                    saturated(stored_bytes)
                ])?,
            };
        }
        Ok(())
    }

    /// Bytes of the folder that cannot be used again.
    fn used(&self) -> rusqlite::Result<u64> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let pages = number("page_count")? - number("freelist_count")?;
        let bytes = pages.saturating_mul(number("page_size")?);
        Ok(bytes.cast_unsigned() + self.file_bytes + BESIDE)
    }

    /// Gives some of the free pages back to the system. Whether there are no more of them.
    fn tidy(&mut self) -> rusqlite::Result<bool> {
        let number = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let free = number("freelist_count")? - SPARE_PAGES;
        if free > 0 && !self.is_broken {
            // One step a page.
            let give = format!("PRAGMA incremental_vacuum({})", free.min(PAGES));
            let mut give = self.connection.prepare(&give)?;
            let mut given = give.raw_query();
            while given.next()?.is_some() {}
        }
        if free <= PAGES {
            // The file is cut where the log is carried over.
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(free <= PAGES)
    }

    fn statement(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(text)
    }
}

// === impl Ask ===

impl Ask {
    fn answer(self, done: Result<Done, StoreError>) {
        let Self { change, answer, place } = self;
        // A file that no row names goes with the change.
        drop((change, place));
        // Who asked may have left.
        let _ = answer.send(done);
    }
}

// === impl Change ===

impl Change {
    /// What it must survive once it is answered.
    fn flush(&self) -> Flush {
        match self {
            Self::Insert(..) => Flush::Machine,
            Self::Swap { flush, .. } => *flush,
            Self::Anchor { .. } | Self::Orphans { .. } | Self::Remove(_) => Flush::Process,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Insert(row, None) | Self::Swap { row, file: None, .. } => row.bytes(),
            Self::Insert(row, Some(_)) | Self::Swap { row, .. } => row.head.len(),
            Self::Anchor { anchor, .. } => anchor.as_ref().map_or(0, Bytes::len),
            Self::Orphans { .. } | Self::Remove(_) => 0,
        }
    }

    fn file(&mut self) -> Option<&mut Written> {
        match self {
            Self::Insert(_, file) | Self::Swap { file, .. } => file.as_mut(),
            Self::Anchor { .. } | Self::Orphans { .. } | Self::Remove(_) => None,
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Whether the folder has room for so many bytes more; they are taken then.
    fn takes(&mut self, bytes: usize) -> bool {
        let Some(room) = &mut self.room else { return true };
        let left = room.checked_sub(wide(bytes));
        *room = left.unwrap_or(*room);
        left.is_some()
    }
}

fn count(counts: &mut Counts, was: Owned, is: Owned) {
    if let Some((principal, share)) = is {
        counts.add(principal, share);
    }
    if let Some((principal, share)) = was {
        counts.subtract(&principal, share);
    }
}

/// How much there is, as the tables say, and bytes of results that are files.
pub(super) fn read_counts(connection: &Connection) -> rusqlite::Result<(Counts, u64)> {
    let mut counts = Counts::default();
    let mut statement = connection.prepare("SELECT principal, tasks, bytes FROM usage")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        counts.add(row.get(0)?, Share { tasks: size(row.get(1)?), stored_bytes: size(row.get(2)?) });
    }
    let files = "SELECT ifnull(sum(bytes), 0) FROM tasks WHERE file IS NOT NULL";
    let files = connection.query_row(files, [], |row| row.get(0))?;
    Ok((counts, wide(size(files))))
}

/// The connection is not to be used again.
fn is_broken(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase, ReadOnly, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(CannotOpen | DatabaseCorrupt | NotADatabase | ReadOnly | SystemIoFailure)
    )
}

/// It is written, and nobody knows whether it survives.
fn is_unflushed(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// The body where it is in the row.
fn in_row<'a>(body: &'a Bytes, file: Option<&Written>) -> Option<&'a [u8]> {
    (file.is_none() && !body.is_empty()).then_some(body)
}

fn number(version: Version) -> i64 {
    version.0.cast_signed()
}

pub(super) fn version(number: i64) -> Version {
    Version(number.cast_unsigned())
}

fn saturated(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A size as a column has it.
pub(super) fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn wide(size: usize) -> u64 {
    size as u64
}

/// The limit on the folder, as the configuration calls it.
const MAX_BYTES: &str = "store.max_bytes";

const INSERT: &str = "INSERT INTO tasks \
    (id, version, node, state, open, due, owner, created, bytes, head, file, body) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (id) DO NOTHING";
const CHANGE: &str =
    "UPDATE tasks SET version = ?2, state = ?3, bytes = ?4, head = ?5, body = ?6 WHERE number = ?1";
const SWAP: &str = "UPDATE tasks SET version = ?2, state = ?3, open = ?4 OR (?10 AND anchor IS NOT NULL), due = ?5, \
    bytes = ?6, head = ?7, file = ?8, body = ?9, anchor = CASE WHEN ?10 THEN anchor END WHERE number = ?1";
const OWN: &str = "UPDATE tasks SET owner = ?2, created = ?3 WHERE number = ?1";
const BEFORE: &str = "SELECT number, version, owner, bytes, file FROM tasks WHERE id = ?1";
const REMOVE: &str = "DELETE FROM tasks WHERE id = ?1 RETURNING owner, bytes, file";
const ANCHOR: &str = "UPDATE tasks SET anchor = ?2, \
    open = state IN ('working', 'input_required') OR ?2 IS NOT NULL WHERE id = ?1";
const ORPHANS: &str = "SELECT number, version, id, owner, created, head, body, anchor FROM tasks \
    WHERE open AND node <> ?1 LIMIT ?2";
const COUNT: &str = "INSERT INTO usage (principal, tasks, bytes) VALUES (?1, ?2, ?3) \
    ON CONFLICT (principal) DO UPDATE SET tasks = ?2, bytes = ?3";

// === impl Row ===

impl Row {
    /// Bytes that are written, about.
    fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}
