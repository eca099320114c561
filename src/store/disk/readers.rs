//! Reads of records that are not in memory, outside the writer thread.

use super::{
    changes::{ownership_from_column, version_from_column},
    error::{file_error, store_error},
    folder::{self, StoreFolder},
    record_cache::CachedRecord,
    results,
    row::{self, RowColumns, RowError, time_to_column},
};
use crate::{
    protocol::Timestamp,
    runtime::Mutex,
    store::{DueTask, ListCursor, LoadedTask, RecentTask, StoreError},
    task::{Record, TaskId, TaskPrincipal},
};
use rusqlite::{Connection, ToSql, params};
use std::{
    io::{self, Read},
    path::Path,
    sync::Arc,
};
use tokio::{sync::Semaphore, task::spawn_blocking};

/// A bounded pool of read connections.
#[derive(Debug)]
pub(super) struct ReaderPool {
    folder: StoreFolder,
    /// Connections without a read in progress.
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

/// Maximum number of concurrent reads; each has a connection of its own.
const READERS: usize = 2;

// === impl ReaderPool ===

impl ReaderPool {
    /// Creates a pool without connections; each is opened when it is first needed.
    pub(super) fn new(folder: StoreFolder) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(READERS));
        Arc::new(Self { folder, idle: Mutex::default(), permits })
    }

    /// Runs `read` with a connection, on a thread that may block. Waits for a free connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&StoreFolder, &Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".to_owned());
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        let this = Arc::clone(self);
        let read = spawn_blocking(move || {
            let _permit = permit;
            let idle = this.idle.lock().pop();
            let failed = |error| store_error(this.folder.path(), &error);
            let connection = idle.map_or_else(|| folder::open_to_read(&this.folder), Ok).map_err(failed)?;
            let read = read(&this.folder, &connection)?;
            // Reuse the connection only after a success.
            this.idle.lock().push(connection);
            Ok(read)
        });
        // There is no result if the read panics or the runtime ends.
        read.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    /// Refuses further reads, and closes the idle connections.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle.lock().clear();
    }
}

/// Reads the task with this id, and its result; `None` if there is none.
pub(super) fn load(
    folder: &StoreFolder,
    connection: &Connection,
    id: &TaskId,
) -> Result<Option<CachedRecord>, StoreError> {
    let failed = |error| store_error(folder.path(), &error);
    let mut statement = connection.prepare_cached(LOAD).map_err(failed)?;
    let mut rows = statement.query([id.entropy()]).map_err(failed)?;
    let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
    let file: Option<String> = row.get(6).map_err(failed)?;
    let body = match &file {
        Some(name) => {
            let path = results::result_path(name);
            let read = path.as_ref().ok_or_else(|| io::ErrorKind::InvalidData.into());
            let read = read.and_then(|path| read_all(folder, path));
            let full_path = || folder.path().join(path.unwrap_or_else(|| name.into()));
            read.map_err(|error| file_error(&full_path(), &error))?.into()
        }
        None => row.get::<_, Option<Vec<u8>>>(7).map_err(failed)?.unwrap_or_default().into(),
    };
    let record = read_columns(row)
        .map_err(failed)?
        .record(body)
        .map_err(|error| unreadable_error(folder.path(), id, &error))?;
    let (number, version) = (row.get(4).map_err(failed)?, version_from_column(row.get(5).map_err(failed)?));
    let ownership = ownership_from_column(row.get(8).map_err(failed)?);
    let task = LoadedTask { version, record: Arc::new(record), ownership };
    Ok(Some(CachedRecord { task, number }))
}

fn read_all(folder: &StoreFolder, path: &Path) -> io::Result<Vec<u8>> {
    let mut file = folder.open_file(path)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or_default());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns at most `limit` due tasks, the longest due first. `node` is the id of this process, whose open
/// tasks an index finds together.
pub(super) fn due(
    folder: &Path,
    connection: &Connection,
    node: i64,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<DueTask>, StoreError> {
    let (now, limit_per_query) = (time_to_column(now), limit_to_column(limit));
    let mut found = Vec::new();
    let mut add = |text, values: &[&dyn ToSql]| -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(text)?;
        let mut rows = statement.query(values)?;
        while let Some(row) = rows.next()? {
            let is_ended = row::is_ended(row.get_ref(2)?.as_str()?);
            let due: i64 = row.get(0)?;
            let (id, ownership) = (TaskId::from_entropy(row.get(1)?), ownership_from_column(row.get(3)?));
            found.push((due, DueTask { id, is_ended, ownership }));
        }
        Ok(())
    };
    add(DUE_ENDED, params![now, limit_per_query])
        .and_then(|()| add(DUE_OPEN, params![now, limit_per_query, node]))
        .and_then(|()| add(DUE_OTHER_NODES, params![now, limit_per_query, node]))
        .map_err(|error| store_error(folder, &error))?;
    found.sort_by_key(|(due, _)| *due);
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, due)| due).collect())
}

/// One page of the list of an owner's records.
#[derive(Default)]
pub(super) struct ListPage {
    pub(super) records: Vec<Arc<Record>>,
    /// The tasks whose rows are unreadable, and why.
    pub(super) unreadable: Vec<(TaskId, RowError)>,
}

/// Returns at most `limit` records of an owner after `after`, without their results.
pub(super) fn list(
    folder: &Path,
    connection: &Connection,
    owner: &TaskPrincipal,
    after: Option<&ListCursor>,
    limit: usize,
) -> Result<ListPage, StoreError> {
    let failed = |error| store_error(folder, &error);
    let (created, id) = after.map_or((-1, Vec::new()), |ListCursor { created, id }| {
        (time_to_column(*created), id.entropy().into())
    });
    let mut statement = connection.prepare_cached(LIST).map_err(failed)?;
    let mut rows = statement.query(params![row::encode_owner(owner), created, id]).map_err(failed)?;
    let mut page = ListPage::default();
    // Read until the page is full, whatever unreadable rows are in between: a page that is not full means
    // that there are no more records.
    while page.records.len() < limit
        && let Some(row) = rows.next().map_err(failed)?
    {
        let columns = read_columns(row).map_err(failed)?;
        let record = match row.get::<_, Option<Vec<u8>>>(4).map_err(failed)? {
            Some(body) => columns.record(body.into()),
            None => columns.without_body(),
        };
        match record {
            Ok(record) => page.records.push(Arc::new(record)),
            Err(error) => page.unreadable.push((TaskId::from_entropy(columns.id), error)),
        }
    }
    Ok(page)
}

/// Returns at most `limit` finished or unfinished records of all owners with a number less than `below`, the
/// last inserted first, without their results. Unreadable ones are left out.
pub(super) fn recent(
    folder: &Path,
    connection: &Connection,
    is_ended: bool,
    below: Option<u64>,
    limit: usize,
) -> Result<Vec<RecentTask>, StoreError> {
    let below = below.map_or(i64::MAX, |below| i64::try_from(below).unwrap_or(i64::MAX));
    let found =
        if is_ended { recent_ended(connection, below, limit) } else { recent_live(connection, below, limit) };
    found.map_err(|error| store_error(folder, &error))
}

fn recent_ended(connection: &Connection, below: i64, limit: usize) -> rusqlite::Result<Vec<RecentTask>> {
    let mut statement = connection.prepare_cached(ENDED)?;
    let mut rows = statement.query(params![below])?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        found.extend(read_recent(row)?);
    }
    Ok(found)
}

/// Reads unfinished records. The numbers of all of them are read from the index, and only the rows of the
/// requested ones from the table, because an open admin page requests these each second.
fn recent_live(connection: &Connection, below: i64, limit: usize) -> rusqlite::Result<Vec<RecentTask>> {
    let mut numbers = connection.prepare_cached(OPEN)?;
    let mut numbers = numbers.query(params![below])?;
    let mut statement = connection.prepare_cached(LIVE)?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(number) = numbers.next()?
    {
        let mut rows = statement.query(params![number.get::<_, i64>(0)?])?;
        if let Some(row) = rows.next()? {
            found.extend(read_recent(row)?);
        }
    }
    Ok(found)
}

/// Reads a task; `None` if the row is unreadable.
fn read_recent(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<RecentTask>> {
    let columns = read_columns(row)?;
    let record = match row.get::<_, Option<Vec<u8>>>(4)? {
        Some(body) => columns.record(body.into()),
        None => columns.without_body(),
    };
    let (number, ownership) = (row.get::<_, i64>(5)?.cast_unsigned(), ownership_from_column(row.get(6)?));
    Ok(record.ok().map(|record| RecentTask { number, record: Arc::new(record), ownership }))
}

fn read_columns<'a>(row: &'a rusqlite::Row<'_>) -> rusqlite::Result<RowColumns<'a>> {
    Ok(RowColumns {
        id: row.get(0)?,
        owner: row.get_ref(1)?.as_blob()?,
        created: row.get(2)?,
        head: row.get_ref(3)?.as_str()?,
    })
}

fn unreadable_error(folder: &Path, id: &TaskId, error: &RowError) -> StoreError {
    let folder = folder.display();
    StoreError::Unavailable(format!(
        "task {} in {folder}: {error}; run `deferral store check {folder}` for details",
        id.tag()
    ))
}

fn limit_to_column(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

const LOAD: &str =
    "SELECT id, owner, created, head, number, version, file, body, node FROM tasks WHERE id = ?1";
const DUE_ENDED: &str =
    "SELECT due, id, state, node FROM tasks WHERE NOT open AND due <= ?1 ORDER BY due LIMIT ?2";
const DUE_OPEN: &str =
    "SELECT due, id, state, node FROM tasks WHERE open AND node = ?3 AND due <= ?1 ORDER BY due LIMIT ?2";
/// Matches no row once the tasks of former processes are taken over.
const DUE_OTHER_NODES: &str = "SELECT due, id, state, node FROM tasks WHERE open AND node < ?3 AND due <= ?1 \
    UNION ALL SELECT due, id, state, node FROM tasks WHERE open AND node > ?3 AND due <= ?1 ORDER BY due LIMIT ?2";
const LIST: &str = "SELECT id, owner, created, head, CASE state WHEN 'input_required' THEN body END \
    FROM tasks WHERE owner = ?1 AND (created, id) > (?2, ?3) ORDER BY created, id";
/// Scans the whole index of open tasks, and nothing else: the other tasks are many more.
const OPEN: &str = "SELECT number FROM tasks INDEXED BY open WHERE open AND number < ?1 ORDER BY number DESC";
const LIVE: &str = "SELECT id, owner, created, head, CASE state WHEN 'input_required' THEN body END, number, node \
    FROM tasks WHERE number = ?1 AND state IN ('working', 'input_required')";
const ENDED: &str = "SELECT id, owner, created, head, NULL, number, node FROM tasks NOT INDEXED \
    WHERE number < ?1 AND state NOT IN ('working', 'input_required') ORDER BY number DESC";
