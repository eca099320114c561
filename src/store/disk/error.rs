//! Errors of a store: why its folder cannot be used, and why an operation fails.

use super::{results::is_no_space, row::RowError};
use crate::{runtime::Mutex, store::StoreError, task::TaskId};
use rusqlite::{ErrorCode, ffi};
use std::{
    collections::HashSet,
    fmt, io,
    path::{Path, PathBuf},
};

/// Why the folder of a store cannot be used, checked or copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the task store {} cannot be used: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the task store {} is not a folder; name a folder, or a path where one can be created", path.display())]
    NoFolder { path: PathBuf },
    #[error("the task store {} is in use by another process{}; each needs a folder of its own", path.display(), PidSuffix(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "the task store {} was written by a newer version of this program (schema {found}, and this one knows {known}); \
         use that version, or another folder", path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{} is a database of another program; name another folder", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "the task store {} is damaged ({source}); `deferral store check {}` says what is lost; move the folder away to \
         begin anew, or put a backup in its place", path.display(), path.display()
    )]
    Damaged { path: PathBuf, source: rusqlite::Error },
    #[error("the task store {} cannot be used: {}", path.display(), reason(source))]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("there is no task store in {}", path.display())]
    NoStore { path: PathBuf },
    #[error("{} exists already; a backup overwrites nothing", path.display())]
    Exists { path: PathBuf },
    #[error("the key {} of the task store cannot be used: {source}", path.display())]
    Key { path: PathBuf, source: io::Error },
    #[error("{} is not a key: a key is 64 hex digits, as `openssl rand -hex 32` creates it", path.display())]
    NoKey { path: PathBuf },
    #[error(
        "the task store {} has tasks, and its key {} is not there: their owners could not be identified; put the key back, or \
         move the folder away to begin anew", path.display(), key.display()
    )]
    KeyMissing { path: PathBuf, key: PathBuf },
    #[error(
        "the task store {} has tasks that were stored with another key than {key}, without which their owners cannot be identified; restore \
         their key, or move the folder away to start with an empty one", path.display()
    )]
    OtherKey { path: PathBuf, key: String },
    #[error("the task store {} has no place for a key beside it; name one with `key`", path.display())]
    NoKeyPath { path: PathBuf },
    #[error("{} is not safe to keep tasks in: {} (owner: user {owner}, mode {mode:04o}); {}", path.display(), why.description(), why.remedy(path))]
    Unsafe { path: PathBuf, owner: u32, mode: u32, why: UnsafeReason },
}

/// Why a folder, or a file in it, is unsafe: another user could redirect the writing, truncation or removal
/// of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsafeReason {
    /// The owner is neither the user of this process nor root.
    Owner { user: u32 },
    /// Every user can write to the folder or file.
    Writable,
    /// A symbolic link is in place of a file or a folder of the store.
    Symlink,
    /// The file has other hard links.
    HardLink,
    /// The path is that of neither a file nor a link.
    NotAFile,
}

/// Tasks with unreadable rows that have been logged. Each is logged once, because clients list their tasks
/// repeatedly.
#[derive(Debug, Default)]
pub(super) struct UnreadableRows(Mutex<HashSet<TaskId>>);

/// Maximum number of tasks that are logged; `deferral store check` reports all.
const MAX_REPORTED: usize = 1024;

/// Displays a process id in parentheses, or nothing if it is unknown.
struct PidSuffix(Option<u32>);

// === impl Error ===

impl Error {
    /// Converts an I/O error of the folder at `path`; for `map_err`.
    pub(super) fn folder(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Folder { path, source }
    }

    /// Converts an error of the database in the folder at `path`; for `map_err`.
    pub(super) fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.to_owned();
        |source| match is_damage(&source) {
            true => Self::Damaged { path, source },
            false => Self::Database { path, source },
        }
    }
}

// === impl UnsafeReason ===

impl UnsafeReason {
    fn description(self) -> String {
        match self {
            Self::Owner { user } => {
                format!("it belongs to another user than this process, which is user {user}")
            }
            Self::Writable => "every user can write to it".to_owned(),
            Self::Symlink => "it is a symbolic link, which the store does not follow".to_owned(),
            Self::HardLink => "it is a hard link, and a change here would change a file elsewhere".to_owned(),
            Self::NotAFile => "it is not a file".to_owned(),
        }
    }

    fn remedy(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Owner { user } => {
                format!("run this as its owner, run `chown -R {user} {path}`, or name another folder")
            }
            Self::Writable => {
                format!(
                    "run `chmod 700 {path}`, or name a folder below it that does not exist, which is made with mode 0700"
                )
            }
            Self::Symlink | Self::HardLink | Self::NotAFile => {
                format!("find out who created it, and remove {path}")
            }
        }
    }
}

// === impl UnreadableRows ===

impl UnreadableRows {
    /// Logs, once for each task, that its unreadable row is skipped.
    pub(super) fn report(&self, task: &TaskId, error: &RowError) {
        let mut reported = self.0.lock();
        if reported.len() < MAX_REPORTED && reported.insert(task.clone()) {
            tracing::error!(target: "deferral::task", event = "task_unreadable", task = %task.tag(), %error);
        }
    }
}

// === impl PidSuffix ===

impl fmt::Display for PidSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
    }
}

/// Converts a failure of the database in `folder` to a store error.
pub(super) fn store_error(folder: &Path, error: &rusqlite::Error) -> StoreError {
    if is_full(error) {
        return StoreError::Full(StoreError::DISK_SPACE);
    }
    let folder = folder.display();
    StoreError::Unavailable(match is_damage(error) {
        true => format!("{folder}: {error}; `deferral store check {folder}` says what is lost"),
        false => format!("{folder}: {}", reason(error)),
    })
}

/// Converts a failure of a result file to a store error.
pub(super) fn file_error(path: &Path, error: &io::Error) -> StoreError {
    match is_no_space(error) {
        true => StoreError::Full(StoreError::DISK_SPACE),
        false => StoreError::Unavailable(format!("{}: {error}", path.display())),
    }
}

/// Whether SQLite reports that the disk has no space left.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Whether the database is damaged.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        // The value of a column has a type or an encoding that this program never writes.
        || matches!(
            error,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        )
}

/// Describes an error for operators; for an unexpected one, returns the text of SQLite.
fn reason(error: &rusqlite::Error) -> String {
    let description = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full",
        Some(ErrorCode::ReadOnly) => "it is read-only",
        Some(ErrorCode::SystemIoFailure) => "the disk fails to read or write",
        Some(ErrorCode::CannotOpen) => "its database cannot be opened",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another program holds its database",
        Some(ErrorCode::OutOfMemory) => "there is no memory left",
        _ => return error.to_string(),
    };
    match error.sqlite_error() {
        Some(ffi::Error { extended_code, .. }) => format!("{description} (SQLite says {extended_code})"),
        None => description.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_space_is_full_and_not_unavailable() {
        let path = Path::new("tasks");
        // The numbers of `EDQUOT` differ between systems; `ENOSPC` is 28 on all.
        let full = [io::Error::from_raw_os_error(28), io::ErrorKind::QuotaExceeded.into()];
        for error in full {
            assert!(
                matches!(file_error(path, &error), StoreError::Full("free space of store.disk")),
                "{error}"
            );
        }
        let other = file_error(path, &io::ErrorKind::PermissionDenied.into());
        assert!(matches!(other, StoreError::Unavailable(_)), "{other}");
        let sqlite = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        let full = store_error(path, &sqlite(ffi::SQLITE_FULL));
        assert!(matches!(full, StoreError::Full("free space of store.disk")), "{full}");
        let broken = store_error(path, &sqlite(ffi::SQLITE_IOERR_WRITE));
        assert!(matches!(broken, StoreError::Unavailable(_)), "{broken}");
    }

    #[test]
    fn a_column_with_a_value_that_is_never_written_is_damage() {
        let text = String::from_utf8(vec![0xa5]).expect_err("no text").utf8_error();
        let error = store_error(Path::new("tasks"), &rusqlite::Error::Utf8Error(3, text));
        let remedy = "`deferral store check tasks` says what is lost";
        assert!(matches!(&error, StoreError::Unavailable(said) if said.contains(remedy)), "{error}");
    }
}
