//! The folder: made, locked, and its database opened.

use super::{Error, schema};
use rusqlite::{Connection, OpenFlags};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// The database in a folder.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join("tasks.db")
}

/// How long another program, such as one that makes a backup, is waited for.
const BUSY: Duration = Duration::from_secs(5);
/// Pages in the write-ahead log, from which on a commit carries them over into the database: three flushes, so that
/// it is done once for some 350 tasks. A start after a crash reads them.
const LOG_PAGES: u64 = 4096;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Memory for pages of one connection.
const CACHE_KIB: i64 = 2048;

/// Makes the folder if there is none, for nobody else to look into, and locks it until the file is closed.
///
/// # Errors
/// [`Error::NoFolder`], [`Error::InUse`], [`Error::Folder`].
pub(super) fn take(folder: &Path) -> Result<File, Error> {
    let failed = |source| Error::Folder { path: folder.to_owned(), source };
    match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => return Err(Error::NoFolder { path: folder.to_owned() }),
        Ok(_) => {}
        Err(_) => DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?,
    }
    let mut lock = private(&folder.join("lock")).map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(Error::InUse { path: folder.to_owned(), pid: pid(&mut lock) });
        }
        Err(error) => return Err(failed(error.into())),
    }
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed)?;
    Ok(lock)
}

/// The process that has locked the folder, if one has; `None` of it where it did not say which.
pub(super) fn user(folder: &Path) -> Option<Option<u32>> {
    let mut lock = File::open(folder.join("lock")).ok()?;
    let is_free = flock(&lock, FlockOperation::NonBlockingLockShared).is_ok();
    (!is_free).then(|| pid(&mut lock))
}

fn pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Bytes that the write-ahead log takes beside the database, in a folder that may take so many.
pub(super) fn log_bytes(max_bytes: Option<u64>) -> u64 {
    let most = LOG_PAGES * PAGE;
    max_bytes.map_or(most, |max| most.min(max / 4))
}

/// Opens the database for the one who writes, with the tables of this version.
///
/// # Errors
/// As [`schema::bring_up`].
pub(super) fn open(folder: &Path, max_bytes: Option<u64>) -> Result<Connection, Error> {
    let path = database(folder);
    let is_new = !path.exists();
    // Before SQLite does, which lets others read; what it keeps beside it has the same mode.
    drop(private(&path).map_err(Error::folder(folder))?);
    let failed = || Error::database(folder);
    let mut connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed())?;
    // Can only be chosen before there are tables.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(failed())?;
    let mode = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
    mode.map_err(failed())?;
    let log_pages = i64::try_from(log_bytes(max_bytes) / PAGE).unwrap_or(i64::MAX);
    connection.pragma_update(None, "wal_autocheckpoint", log_pages).map_err(failed())?;
    schema::bring_up(folder, &mut connection)?;
    if is_new {
        flush_folder(folder).and_then(|()| flush_folder(&above(folder))).map_err(Error::folder(folder))?;
    }
    Ok(connection)
}

/// Opens the database for one who reads.
pub(super) fn open_to_read(folder: &Path) -> rusqlite::Result<Connection> {
    connect(&database(folder), OpenFlags::SQLITE_OPEN_READ_ONLY)
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// Whether the database is another than `id`, as the folder was moved, or another put in its place.
pub(super) fn has_moved(folder: &Path, id: (u64, u64)) -> bool {
    identity(folder).ok() != Some(id)
}

/// What tells the database from another of the same name.
pub(super) fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(database(folder))?;
    Ok((found.dev(), found.ino()))
}

/// The folder that this one is in.
pub(super) fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => ".".into(),
        Some(above) => above.to_owned(),
        None => path.to_owned(),
    }
}

/// What is in a folder by name survives a loss of power.
pub(super) fn flush_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A file that nobody else may read, made if there is none.
pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
