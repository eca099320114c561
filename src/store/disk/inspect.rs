//! Inspection of a store: a check of its integrity, and a backup. Both work while a process uses the store,
//! and neither changes it.

use super::{
    Error,
    folder::{self, DATABASE, StoreFolder},
    recount::RowCount,
    results,
    row::{self, RowColumns, RowError},
    schema,
};
use crate::task::TaskId;
use rusqlite::{Connection, OptionalExtension};
use std::{
    collections::HashSet,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// What a check of a store has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The id of the process that uses the store; `None` if no process does, `Some(None)` if the id is
    /// unknown.
    pub process: Option<Option<u32>>,
    /// The version of the tables.
    pub schema: i64,
    pub tasks: usize,
    /// Number of unfinished tasks.
    pub live: usize,
    /// Number of results that are files.
    pub files: usize,
    /// Bytes of all tasks that count towards the quotas.
    pub stored_bytes: u64,
    /// Number of result files that no task refers to; the next start of the proxy removes them.
    pub unreferenced_files: usize,
    /// Descriptions of the faults; empty if the store is intact.
    pub faults: Vec<String>,
}

/// A task whose row has been read.
struct FoundTask {
    id: TaskId,
    bytes: i64,
    is_live: bool,
    file: Option<String>,
    /// Bytes of the result or of the input requests.
    length: usize,
}

/// What a backup contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    pub tasks: usize,
    pub files: usize,
}

/// Reads everything in a store, and reports its contents and faults.
///
/// # Errors
/// [`Error`] if nothing can be read.
pub fn check(path: &Path) -> Result<CheckReport, Error> {
    let (folder, connection, schema) = open(path)?;
    let failed = || Error::database(path);
    // Read in one transaction, for a consistent snapshot.
    connection.execute_batch("BEGIN").map_err(failed())?;
    let mut report = CheckReport { process: folder.lock_holder(), schema, ..CheckReport::default() };
    report.faults.extend(check_database(&connection));
    let mut named_files = HashSet::new();
    let mut file_faults = Vec::new();
    let read = for_each_task(&connection, |found| {
        report.tasks += 1;
        match found {
            Err((id, error)) => report.faults.push(format!("task {}: {error}", id.as_str())),
            Ok(FoundTask { id, bytes, is_live, file, length }) => {
                report.live += usize::from(is_live);
                report.stored_bytes += bytes.cast_unsigned();
                if let Some(file) = file {
                    report.files += 1;
                    file_faults.extend(check_file(&folder, &file, length).map(|fault| (id, fault)));
                    named_files.insert(file);
                }
            }
        }
    });
    match read.and_then(|()| RowCount::is_usage_correct(&connection)) {
        Ok(true) => {}
        Ok(false) => report.faults.push(
            "usage counts: the table `usage` differs from the tasks; the next start repairs it".to_owned(),
        ),
        Err(error) => report.faults.push(format!("the rest cannot be read: {error}")),
    }
    // The transaction has written nothing, so a failure is ignored.
    let _ = connection.execute_batch("COMMIT");
    for (id, fault) in file_faults {
        // Report a faulty file only if its task still exists: it may have been removed since.
        if is_stored(&connection, &id).unwrap_or(true) {
            report.faults.push(format!("task {}: {fault}", id.as_str()));
        }
    }
    report.unreferenced_files =
        results::files(&folder).filter(|(name, _)| !named_files.contains(name)).count();
    Ok(report)
}

/// Copies a store to a new folder `to`, which can be used as a store.
///
/// # Errors
/// [`Error`]; the new folder is then removed.
pub fn backup(path: &Path, to: &Path) -> Result<BackupSummary, Error> {
    let (folder, connection, _) = open(path)?;
    if to.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: to.to_owned() });
    }
    DirBuilder::new().mode(0o700).create(to).map_err(Error::folder(to))?;
    let target = StoreFolder::open(to)?;
    copy(&folder, &connection, &target).inspect_err(|_| drop(fs::remove_dir_all(to)))
}

fn copy(from: &StoreFolder, connection: &Connection, to: &StoreFolder) -> Result<BackupSummary, Error> {
    let failed = || Error::database(to.path());
    let failed_folder = || Error::folder(to.path());
    drop(to.open_private(DATABASE)?);
    let file = to.path_for_sqlite(DATABASE).map_err(failed_folder())?;
    // SQLite accepts only names that are UTF-8.
    let name = file.to_str().ok_or_else(|| io::ErrorKind::InvalidFilename.into()).map_err(failed_folder())?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(failed())?;
    let copy = folder::connect_to_write(to).map_err(failed())?;
    let named_files = files_of(&copy).map_err(failed())?;
    let mut removed_tasks = Vec::new();
    let mut files = 0;
    for (id, name) in named_files {
        match copy_file(from, to, &name) {
            Ok(()) => files += 1,
            // Another process may have removed the task since.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !is_stored(connection, &id).map_err(Error::database(from.path()))? =>
            {
                removed_tasks.push(id);
            }
            Err(error) => return Err(Error::folder(from.path())(error)),
        }
    }
    if !removed_tasks.is_empty() {
        remove_tasks(&copy, &removed_tasks).map_err(failed())?;
    }
    let tasks: i64 = copy.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).map_err(failed())?;
    drop(copy);
    let flushed = to.open_file(Path::new(DATABASE)).and_then(|file| file.sync_all());
    flushed.and_then(|()| to.flush(Path::new(""))).map_err(failed_folder())?;
    folder::flush_folder(&folder::parent_folder(to.path())).map_err(failed_folder())?;
    Ok(BackupSummary { tasks: usize::try_from(tasks).unwrap_or_default(), files })
}

fn copy_file(from: &StoreFolder, to: &StoreFolder, name: &str) -> io::Result<()> {
    let path = results::result_path(name).ok_or(io::ErrorKind::InvalidData)?;
    let mut from = from.open_file(&path)?;
    let mut copy = to.create(&path)?;
    io::copy(&mut from, &mut copy)?;
    copy.sync_all()?;
    to.flush(&folder::parent_folder(&path))
}

/// The tasks whose results are files, with the names of the files.
fn files_of(connection: &Connection) -> rusqlite::Result<Vec<(TaskId, String)>> {
    let mut statement = connection.prepare("SELECT id, file FROM tasks WHERE file IS NOT NULL")?;
    let rows = statement.query_map([], |row| Ok((TaskId::from_entropy(row.get(0)?), row.get(1)?)))?;
    rows.collect()
}

/// Removes tasks from a copy, which makes it a snapshot of a later moment.
fn remove_tasks(copy: &Connection, ids: &[TaskId]) -> rusqlite::Result<()> {
    copy.execute_batch("BEGIN")?;
    for id in ids {
        copy.execute("DELETE FROM tasks WHERE id = ?1", [id.entropy()])?;
    }
    copy.execute_batch(
        "DELETE FROM usage;
        INSERT INTO usage SELECT substr(owner, 1, 16),
            CAST(substr(owner, CASE substr(owner, 17, 1) WHEN x'73' THEN 34 ELSE 18 END) AS TEXT),
            state, count(*), sum(bytes) FROM tasks
            WHERE state NOT IN ('working', 'input_required') GROUP BY 1, 2, 3;
        COMMIT",
    )
}

/// Opens a store for reading; returns its folder, its database and the version of its tables.
fn open(path: &Path) -> Result<(StoreFolder, Connection, i64), Error> {
    let no_store = || Error::NoStore { path: path.to_owned() };
    if fs::metadata(path).is_err() {
        return Err(no_store());
    }
    let folder = StoreFolder::open(path)?;
    if !folder.has_database()? {
        return Err(no_store());
    }
    let connection = folder::open_to_read(&folder).map_err(Error::database(path))?;
    match schema::version(path, &connection)? {
        0 => Err(no_store()),
        found if found > schema::CURRENT_VERSION => {
            Err(Error::Newer { path: path.to_owned(), found, known: schema::CURRENT_VERSION })
        }
        found => Ok((folder, connection, found)),
    }
}

/// Runs SQLite's integrity check; returns the faults.
fn check_database(connection: &Connection) -> Vec<String> {
    let faults = (|| {
        let mut statement = connection.prepare("PRAGMA integrity_check")?;
        let faults = statement.query_map([], |row| row.get::<_, String>(0))?;
        faults.collect::<rusqlite::Result<Vec<_>>>()
    })();
    let faults = faults.unwrap_or_else(|error| vec![error.to_string()]);
    faults.into_iter().filter(|fault| fault != "ok").map(|fault| format!("the database: {fault}")).collect()
}

/// Reads all tasks, and passes each to `visit`, or why its row is unreadable.
fn for_each_task(
    connection: &Connection,
    mut visit: impl FnMut(Result<FoundTask, (TaskId, RowError)>),
) -> rusqlite::Result<()> {
    let text = "SELECT id, owner, created, head, state, bytes, file, body FROM tasks";
    let mut statement = connection.prepare(text)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let columns = RowColumns {
            id: row.get(0)?,
            owner: row.get_ref(1)?.as_blob()?,
            created: row.get(2)?,
            head: row.get_ref(3)?.as_str()?,
        };
        let id = TaskId::from_entropy(columns.id);
        let file: Option<String> = row.get(6)?;
        let body: Option<Vec<u8>> = row.get(7)?;
        let read = match (&file, row::body_length(columns.head)) {
            (_, Err(error)) => Err(error),
            // The length of a file is checked separately.
            (Some(_), Ok(length)) => columns.without_body().map(|record| (record, length)),
            (None, Ok(length)) => {
                columns.record(body.unwrap_or_default().into()).map(|record| (record, length))
            }
        };
        let (state, bytes): (String, i64) = (row.get(4)?, row.get(5)?);
        visit(match read {
            Ok((record, _)) if record.state.status() != state => Err((id, RowError::State)),
            Ok((record, length)) => {
                Ok(FoundTask { id, bytes, is_live: !record.state.is_ended(), file, length })
            }
            Err(error) => Err((id, error)),
        });
    }
    Ok(())
}

/// Describes what is wrong with a result file, which must have `length` bytes; `None` if it is intact.
fn check_file(folder: &StoreFolder, name: &str, length: usize) -> Option<String> {
    let path = results::result_path(name).unwrap_or_else(|| PathBuf::from(name));
    let full_path = folder.path().join(&path);
    match folder.length(&path) {
        Ok(found) if found == length as u64 => None,
        Ok(found) => Some(format!("its result has {found} of {length} bytes ({})", full_path.display())),
        Err(error) => Some(format!("its result cannot be read: {error} ({})", full_path.display())),
    }
}

/// Whether the store has a task with this id.
fn is_stored(connection: &Connection, id: &TaskId) -> rusqlite::Result<bool> {
    let found = connection.query_row("SELECT 1 FROM tasks WHERE id = ?1", [id.entropy()], |_| Ok(()));
    Ok(found.optional()?.is_some())
}
