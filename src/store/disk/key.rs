//! The key of a store. Stored caller identities are derived with it, so that the folder alone does not reveal
//! them.
//!
//! It lies beside the folder and not in it, so that a copy of the folder does not contain both.

use super::{
    Error,
    folder::{self, StoreFolder, is_trusted},
};
use crate::runtime::random;
use rusqlite::OptionalExtension;
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
    let path = given.map_or_else(|| default_path(folder), |given| Ok(given.to_owned()))?;
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
        Ok(has_table
            && database.query_row("SELECT 1 FROM tasks LIMIT 1", [], |_| Ok(())).optional()?.is_some())
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
