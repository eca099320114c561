//! Results that are too large for the database: files beside it.
//!
//! A file is written and flushed before the row that names it, and removed after that row is gone. What a crash
//! leaves in between has no row, and is swept after the next start. Each has a name of its own, which begins with
//! its task's: of two that are written for one task at once, one is named.

use super::folder::flush_folder;
use crate::task::TaskId;
use rusqlite::Connection;
use std::{
    collections::HashSet,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

/// A body of more bytes is a file: a larger one would hold up the changes of others in the database.
pub(super) const LARGEST_IN_ROW: usize = 256 << 10;

/// A file that is written, and goes with this unless a row names it.
#[derive(Debug)]
pub(super) struct Written {
    path: PathBuf,
    pub(super) name: String,
    pub(super) is_kept: bool,
}

/// Removes files, so that nobody waits for it.
#[derive(Debug)]
pub(super) struct Broom(Sender<PathBuf>);

static WRITTEN: AtomicU64 = AtomicU64::new(0);

// === impl Written ===

impl Drop for Written {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where the file of this name is; `None` of what cannot be one.
pub(super) fn path(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'.');
    let first = name.get(..2).filter(|first| plain && !first.contains('.'))?;
    Some(all(folder).join(first).join(name))
}

fn all(folder: &Path) -> PathBuf {
    folder.join("results")
}

/// Writes a body of this process (`node`) so that it survives a loss of power. Waits for the disk.
///
/// # Errors
/// Where the disk fails; nothing is left then.
pub(super) fn write(folder: &Path, node: i64, id: &TaskId, body: &[u8]) -> io::Result<Written> {
    let count = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{count:x}", id.as_str(), of_process(node));
    let path = path(folder, &name).expect("an id is hexadecimal digits");
    let parent = path.parent().expect("it is in a folder");
    if !parent.is_dir() {
        // One by one: a folder that was moved away is not made again.
        for folder in [&all(folder), parent] {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        flush_folder(&all(folder))?;
        flush_folder(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = Written { path, name, is_kept: false };
    file.write_all(body)?;
    file.sync_all()?;
    flush_folder(written.path.parent().expect("it is in a folder"))?;
    Ok(written)
}

/// Every file there is, by its name.
pub(super) fn each(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    entries(all(folder))
        .flat_map(move |folder| entries(folder.path()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// The files that rows name.
pub(super) fn named(connection: &Connection) -> rusqlite::Result<HashSet<String>> {
    let mut statement = connection.prepare("SELECT file FROM tasks WHERE file IS NOT NULL")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn of_process(node: i64) -> String {
    format!("{:016x}", node.cast_unsigned())
}

// === impl Broom ===

impl Broom {
    /// Sweeps once, when `named` says which files are named by rows, and then removes what it is told to.
    pub(super) fn start(
        folder: PathBuf,
        node: i64,
        named: impl FnOnce() -> Option<HashSet<String>> + Send + 'static,
    ) -> io::Result<Self> {
        let (removed, told): (_, Receiver<PathBuf>) = mpsc::channel();
        thread::Builder::new().name("deferral-files".to_owned()).spawn(move || {
            // Those of this process may be named in a moment.
            let ours = format!(".{}.", of_process(node));
            // Without the rows nobody knows which are named.
            if let Some(named) = named() {
                let left = each(&folder).filter(|(name, _)| !(named.contains(name) || name.contains(&ours)));
                left.for_each(|(_, path)| remove(&path));
            }
            told.into_iter().for_each(|path| remove(&path));
        })?;
        Ok(Self(removed))
    }

    pub(super) fn remove(&self, path: PathBuf) {
        // It ends with us.
        let _ = self.0.send(path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        // The next start sweeps again.
        tracing::debug!(target: "deferral::task", event = "result_left", path = %path.display(), %error);
    }
}
