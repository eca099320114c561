//! The key of a store. Stored caller identities are derived with it, so that the folder alone does not reveal
//! them.
//!
//! It lies beside the folder and not in it, so that a copy of the folder does not contain both.

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

/// The key of the store in `folder`: from the given file, or from `FOLDER.key`. It is created where there is
/// none and no task that depends on a lost one.
///
/// # Errors
/// [`Error`] says what is wrong with the file, and the fix.
pub fn key(folder: &Path, given: Option<&Path>) -> Result<[u8; 32], Error> {
    let path = key_file(folder, given)?;
    match read_file(&path, given.is_none()) {
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

/// Path of the key of the store in `folder`: the given file, or `FOLDER.key`.
///
/// # Errors
/// [`Error::NoKeyPath`].
pub fn key_file(folder: &Path, given: Option<&Path>) -> Result<PathBuf, Error> {
    given.map_or_else(|| default_path(folder), |given| Ok(given.to_owned()))
}

// === impl DiskStore ===

impl DiskStore {
    /// Refuses the key, which messages call `key`, if the tasks were stored with another.
    ///
    /// The store has a check value of its first key. In a store of an earlier version, which has none, the key is another
    /// if nothing that is sealed for a task opens: `opens` tries that.
    ///
    /// # Errors
    /// [`Error::OtherKey`], and errors of the database.
    pub fn check_key(
        &self,
        secret: &StoreSecret,
        key: &str,
        opens: impl Fn(&TaskId, &[u8]) -> bool,
    ) -> Result<(), Error> {
        let path = self.folder.path();
        let check = secret.key(KeyPurpose::Check);
        let is_other = || {
            let mut connection = folder::connect_to_write(&self.folder)?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = meta::key_check(&transaction)?;
            if found.as_deref() == Some(&check[..]) {
                return Ok(false);
            }
            let is_other = match found {
                Some(_) => any_task(&transaction)?,
                None => is_sealed_otherwise(&transaction, opens)?,
            };
            if !is_other {
                meta::set_key_check(&transaction, &check)?;
                transaction.commit()?;
            }
            Ok(is_other)
        };
        match is_other().map_err(Error::database(path))? {
            true => Err(Error::OtherKey { path: path.to_owned(), key: key.to_owned() }),
            false => Ok(()),
        }
    }
}

/// Whether the store has sealed values and none of them can be opened. One that opens decides.
fn is_sealed_otherwise(
    connection: &Connection,
    opens: impl Fn(&TaskId, &[u8]) -> bool,
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare(SEALED)?;
    let mut rows = statement.query([])?;
    let mut is_any = false;
    while let Some(row) = rows.next()? {
        if opens(&TaskId::from_entropy(row.get(0)?), row.get_ref(1)?.as_blob()?) {
            return Ok(false);
        }
        is_any = true;
    }
    Ok(is_any)
}

fn any_task(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(connection.query_row("SELECT 1 FROM tasks LIMIT 1", [], |_| Ok(())).optional()?.is_some())
}

/// A configured key may be a link, as mounted secrets are. The one beside the folder was created by the
/// proxy: another user who could replace it would know how caller identities are derived.
fn read_file(path: &Path, is_ours: bool) -> io::Result<String> {
    if is_ours {
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

fn default_path(folder: &Path) -> Result<PathBuf, Error> {
    // `.` has no name of its own.
    let named = if folder.file_name().is_none() { fs::canonicalize(folder).ok() } else { None };
    let named = named.unwrap_or_else(|| folder.to_owned());
    let mut name = named.file_name().ok_or(Error::NoKeyPath { path: folder.to_owned() })?.to_owned();
    name.push(".key");
    Ok(named.with_file_name(name))
}

fn has_tasks(path: &Path) -> Result<bool, Error> {
    if !folder::database(path).exists() {
        return Ok(false);
    }
    let folder = StoreFolder::open(path)?;
    let found = folder::open_to_read(&folder).and_then(|database| {
        let tables = "SELECT 1 FROM sqlite_schema WHERE name = 'tasks'";
        let has_table = database.query_row(tables, [], |_| Ok(())).optional()?.is_some();
        Ok(has_table && any_task(&database)?)
    });
    found.map_err(Error::database(path))
}

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

/// Writes to a temporary file first: a process that is killed meanwhile leaves no partial key. A key that
/// another process has created meanwhile is an error.
fn write(path: &Path, key: &[u8; 32]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // A file of a former process with the same id, or a link: remove it, and do not write through it.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let put =
        writeln!(file, "{text}").and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&new, path));
    fs::remove_file(&new).and(put)?;
    folder::flush_folder(&folder::parent_folder(path))
}

const SEALED: &str = "SELECT id, anchor FROM tasks WHERE open AND anchor IS NOT NULL LIMIT 100";
