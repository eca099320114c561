//! Inspection of a store, while a process uses it or not: a check of its integrity, and a backup. Neither
//! changes the store.

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

/// Content of a store, and its faults.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The process that uses the store, if any; the inner `None` if its id is unknown.
    pub process: Option<Option<u32>>,
    pub schema: i64,
    pub tasks: usize,
    /// Unfinished tasks.
    pub live: usize,
    /// Results that are files.
    pub files: usize,
    /// Bytes of all tasks that count towards the quotas.
    pub stored_bytes: u64,
    /// Files that no task names: the next start removes them.
    pub unnamed: usize,
    /// Faults, one by one.
    pub faults: Vec<String>,
}

/// A task that was read.
struct FoundTask {
    id: TaskId,
    bytes: i64,
    is_live: bool,
    file: Option<String>,
    /// Bytes of its body.
    length: usize,
}

/// Content of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    pub tasks: usize,
    pub files: usize,
}

/// Reads everything in a store.
///
/// # Errors
/// [`Error`] if nothing can be read.
pub fn check(path: &Path) -> Result<CheckReport, Error> {
    let (folder, connection, schema) = open(path)?;
    let failed = || Error::database(path);
    // One transaction, for a consistent snapshot.
    connection.execute_batch("BEGIN").map_err(failed())?;
    let mut contents = CheckReport { process: folder.lock_holder(), schema, ..CheckReport::default() };
    contents.faults.extend(faults_of_database(&connection));
    let mut named = HashSet::new();
    let mut gone = Vec::new();
    let read = each(&connection, |found| {
        contents.tasks += 1;
        match found {
            Err((id, error)) => contents.faults.push(format!("task {}: {error}", id.as_str())),
            Ok(FoundTask { id, bytes, is_live, file, length }) => {
                contents.live += usize::from(is_live);
                contents.stored_bytes += bytes.cast_unsigned();
                if let Some(file) = file {
                    contents.files += 1;
                    gone.extend(fault_of_file(&folder, &file, length).map(|fault| (id, fault)));
                    named.insert(file);
                }
            }
        }
    });
    match read.and_then(|()| RowCount::is_usage_correct(&connection)) {
        Ok(true) => {}
        Ok(false) => contents.faults.push(
            "usage counts: the table `usage` differs from the tasks; the next start repairs it".to_owned(),
        ),
        Err(error) => contents.faults.push(format!("the rest cannot be read: {error}")),
    }
    // The transaction has only read.
    let _ = connection.execute_batch("COMMIT");
    for (id, fault) in gone {
        // The task may have been removed since.
        if is_stored(&connection, &id).unwrap_or(true) {
            contents.faults.push(format!("task {}: {fault}", id.as_str()));
        }
    }
    contents.unnamed = results::files(&folder).filter(|(name, _)| !named.contains(name)).count();
    Ok(contents)
}

/// Copies a store to a new folder, which can be used as a store.
///
/// # Errors
/// [`Error`]; the new folder is removed then.
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
    // SQLite takes only names that are text.
    let name = file.to_str().ok_or_else(|| io::ErrorKind::InvalidFilename.into()).map_err(failed_folder())?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(failed())?;
    let copy = folder::connect_to_write(to).map_err(failed())?;
    let named = files_of(&copy).map_err(failed())?;
    let mut forgotten = Vec::new();
    let mut files = 0;
    for (id, name) in named {
        match copy_file(from, to, &name) {
            Ok(()) => files += 1,
            // Another process may have removed the task since.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !is_stored(connection, &id).map_err(Error::database(from.path()))? =>
            {
                forgotten.push(id);
            }
            Err(error) => return Err(Error::folder(from.path())(error)),
        }
    }
    if !forgotten.is_empty() {
        remove_tasks(&copy, &forgotten).map_err(failed())?;
    }
    let tasks: i64 = copy.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).map_err(failed())?;
    drop(copy);
    let flushed = to.open_file(Path::new(DATABASE)).and_then(|file| file.sync_all());
    flushed.and_then(|()| to.flush(Path::new(""))).map_err(failed_folder())?;
    folder::flush_folder(&folder::parent_folder(to.path())).map_err(failed_folder())?;
    Ok(BackupSummary { tasks: usize::try_from(tasks).unwrap_or_default(), files })
}

fn copy_file(from: &StoreFolder, to: &StoreFolder, name: &str) -> io::Result<()> {
    let path = results::path(name).ok_or(io::ErrorKind::InvalidData)?;
    let mut from = from.open_file(&path)?;
    let mut copy = to.create(&path)?;
    io::copy(&mut from, &mut copy)?;
    copy.sync_all()?;
    to.flush(&folder::parent_folder(&path))
}

/// The tasks whose results are files.
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

fn open(path: &Path) -> Result<(StoreFolder, Connection, i64), Error> {
    let nothing = || Error::NoStore { path: path.to_owned() };
    if fs::metadata(path).is_err() {
        return Err(nothing());
    }
    let folder = StoreFolder::open(path)?;
    if !folder.has_database()? {
        return Err(nothing());
    }
    let connection = folder::open_to_read(&folder).map_err(Error::database(path))?;
    match schema::version(path, &connection)? {
        0 => Err(nothing()),
        found if found > schema::KNOWN => {
            Err(Error::Newer { path: path.to_owned(), found, known: schema::KNOWN })
        }
        found => Ok((folder, connection, found)),
    }
}

/// SQLite's integrity check.
fn faults_of_database(connection: &Connection) -> Vec<String> {
    let faults = (|| {
        let mut statement = connection.prepare("PRAGMA integrity_check")?;
        let faults = statement.query_map([], |row| row.get::<_, String>(0))?;
        faults.collect::<rusqlite::Result<Vec<_>>>()
    })();
    let faults = faults.unwrap_or_else(|error| vec![error.to_string()]);
    faults.into_iter().filter(|fault| fault != "ok").map(|fault| format!("the database: {fault}")).collect()
}

fn each(
    connection: &Connection,
    mut look: impl FnMut(Result<FoundTask, (TaskId, RowError)>),
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
        let read = match (&file, row::body_bytes(columns.head)) {
            (_, Err(error)) => Err(error),
            // The length of a file is checked separately.
            (Some(_), Ok(length)) => columns.without_body().map(|record| (record, length)),
            (None, Ok(length)) => {
                columns.record(body.unwrap_or_default().into()).map(|record| (record, length))
            }
        };
        let (state, bytes): (String, i64) = (row.get(4)?, row.get(5)?);
        look(match read {
            Ok((record, _)) if record.state.status() != state => Err((id, RowError::State)),
            Ok((record, length)) => {
                Ok(FoundTask { id, bytes, is_live: !record.state.is_ended(), file, length })
            }
            Err(error) => Err((id, error)),
        });
    }
    Ok(())
}

fn fault_of_file(folder: &StoreFolder, name: &str, length: usize) -> Option<String> {
    let path = results::path(name).unwrap_or_else(|| PathBuf::from(name));
    let shown = folder.path().join(&path);
    match folder.length(&path) {
        Ok(found) if found == length as u64 => None,
        Ok(found) => Some(format!("its result has {found} of {length} bytes ({})", shown.display())),
        Err(error) => Some(format!("its result cannot be read: {error} ({})", shown.display())),
    }
}

fn is_stored(connection: &Connection, id: &TaskId) -> rusqlite::Result<bool> {
    let found = connection.query_row("SELECT 1 FROM tasks WHERE id = ?1", [id.entropy()], |_| Ok(()));
    Ok(found.optional()?.is_some())
}
