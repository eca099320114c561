//! The key of a store. The principals of stored tasks are derived with the key, so that the folder alone does
//! not reveal the callers' identities.
//!
//! The key file is beside the folder and not in it, so that a copy of the folder does not contain both.

use super::{
    DiskStore, Error,
    folder::{self, StoreFolder, is_trusted},
    meta,
};
use crate::{
    runtime::random,
    store::{KeyPurpose, StoreSecret},
    task::TaskId,
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Reads the key of the store in `folder` from the file `configured`, or without one from `FOLDER.key`.
/// Creates the key if the file does not exist, unless the store has tasks, which need their lost key.
///
/// # Errors
/// [`Error`] says what is wrong with the file, and the fix.
pub fn load_or_create_key(folder: &Path, configured: Option<&Path>) -> Result<[u8; 32], Error> {
    let path = key_path(folder, configured)?;
    match read_file(&path, configured.is_none()) {
        Ok(text) => parse(&text).ok_or(Error::NoKey { path }),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Key { path, source: error }),
        Err(_) if has_tasks(folder)? => Err(Error::KeyMissing { path: folder.to_owned(), key: path }),
        Err(_) => {
            let key = random();
            write(&path, &key).map_err(|source| Error::Key { path, source })?;
            Ok(key)
        }
    }
}

/// The path of the key file of the store in `folder`: `configured`, or without one `FOLDER.key`.
///
/// # Errors
/// [`Error::NoKeyPath`] if `folder` has no name, such as `/`.
pub fn key_path(folder: &Path, configured: Option<&Path>) -> Result<PathBuf, Error> {
    configured.map_or_else(|| default_path(folder), |configured| Ok(configured.to_owned()))
}

// === impl DiskStore ===

impl DiskStore {
    /// Checks that the tasks were stored with this secret. `key_name` names the key in error messages.
    ///
    /// The store has a check value of its first key. A store of an earlier version has no check value: its
    /// key is another one if it has sealed values and `can_open`, which tries to open one, fails for all of
    /// them.
    ///
    /// # Errors
    /// [`Error::OtherKey`], and errors of the database.
    pub fn check_key(
        &self,
        secret: &StoreSecret,
        key_name: &str,
        can_open: impl Fn(&TaskId, &[u8]) -> bool,
    ) -> Result<(), Error> {
        let path = self.folder.path();
        let check = secret.derive_key(KeyPurpose::Check);
        let is_other = || {
            let mut connection = folder::connect_to_write(&self.folder)?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = meta::key_check(&transaction)?;
            if found.as_deref() == Some(&check[..]) {
                return Ok(false);
            }
            let is_other = match found {
                Some(_) => has_any_task(&transaction)?,
                None => is_sealed_with_other_key(&transaction, can_open)?,
            };
            if !is_other {
                meta::set_key_check(&transaction, &check)?;
                transaction.commit()?;
            }
            Ok(is_other)
        };
        match is_other().map_err(Error::database(path))? {
            true => Err(Error::OtherKey { path: path.to_owned(), key: key_name.to_owned() }),
            false => Ok(()),
        }
    }
}

/// Whether the store has sealed values and none of them can be opened. The first that opens decides.
fn is_sealed_with_other_key(
    connection: &Connection,
    can_open: impl Fn(&TaskId, &[u8]) -> bool,
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare(SEALED)?;
    let mut rows = statement.query([])?;
    let mut has_sealed = false;
    while let Some(row) = rows.next()? {
        if can_open(&TaskId::from_entropy(row.get(0)?), row.get_ref(1)?.as_blob()?) {
            return Ok(false);
        }
        has_sealed = true;
    }
    Ok(has_sealed)
}

fn has_any_task(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(connection.query_row("SELECT 1 FROM tasks LIMIT 1", [], |_| Ok(())).optional()?.is_some())
}

/// Reads a key file. A configured key may be a link, as mounted secrets are. The file beside the folder was
/// created by the proxy: another user who could replace the file would know how principals are derived.
fn read_file(path: &Path, is_default_file: bool) -> io::Result<String> {
    if is_default_file {
        let found = fs::symlink_metadata(path)?;
        if found.is_symlink() || !is_trusted(found.uid()) {
            let owner = found.uid();
            return Err(io::Error::other(format!(
                "it is a symbolic link, or belongs to another user (user {owner}); name the key with `key` if this is meant"
            )));
        }
    }
    fs::read_to_string(path)
}

/// The path of the key file beside the folder: `FOLDER.key`.
fn default_path(folder: &Path) -> Result<PathBuf, Error> {
    // Resolve a path such as `.`, which has no last part.
    let named = if folder.file_name().is_none() { fs::canonicalize(folder).ok() } else { None };
    let named = named.unwrap_or_else(|| folder.to_owned());
    let mut name = named.file_name().ok_or(Error::NoKeyPath { path: folder.to_owned() })?.to_owned();
    name.push(".key");
    Ok(named.with_file_name(name))
}

/// Whether the folder has a store with at least one task.
fn has_tasks(path: &Path) -> Result<bool, Error> {
    if !folder::database_path(path).exists() {
        return Ok(false);
    }
    let folder = StoreFolder::open(path)?;
    let found = folder::open_to_read(&folder).and_then(|database| {
        let tables = "SELECT 1 FROM sqlite_schema WHERE name = 'tasks'";
        let has_table = database.query_row(tables, [], |_| Ok(())).optional()?.is_some();
        Ok(has_table && has_any_task(&database)?)
    });
    found.map_err(Error::database(path))
}

/// Parses a key of 64 hexadecimal digits.
fn parse(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; 32];
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(key)
}

/// Writes a key file. A temporary file is written first and then linked, so that a process that is killed
/// meanwhile leaves no partial key. A key that another process has created meanwhile is an error.
fn write(path: &Path, key: &[u8; 32]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    // Remove a file of a former process with the same id, or a link, instead of writing to it.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let written = writeln!(file, "{text}")
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary).and(written)?;
    folder::flush_folder(&folder::parent_folder(path))
}

const SEALED: &str = "SELECT id, anchor FROM tasks WHERE open AND anchor IS NOT NULL LIMIT 100";
