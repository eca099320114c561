//! Results that are too large for the database, in files beside it.
//!
//! A file is written and flushed before the row that names it, and removed after that row. Files without a
//! row are left over from a crash, and are removed after the next start. Each file has a name of its own,
//! which begins with the task's id: of two that are written for one task at once, one is named by the row.

use super::{folder::StoreFolder, reserved::ByteReservation};
use crate::task::TaskId;
use rusqlite::Connection;
use std::{
    collections::HashSet,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

/// A body of more bytes is a file: in the database a larger one would delay the changes of others.
pub(super) const LARGEST_IN_ROW: usize = 256 << 10;

/// Bytes of a file that probes for free space: some more than a small commit takes.
const PROBE: usize = 64 << 10;

/// The folder of the files, below that of the store.
const RESULTS: &str = "results";

/// A written file, which is removed on drop unless a row names it.
#[derive(Debug)]
pub(super) struct ResultFile {
    folder: StoreFolder,
    path: PathBuf,
    pub(super) name: String,
    pub(super) is_kept: bool,
    /// Reserved bytes, until its row is stored.
    pub(super) reservation: Option<ByteReservation>,
}

/// A thread that removes files, so that no caller waits for it.
#[derive(Debug)]
pub(super) struct FileRemover(Sender<String>);

static WRITTEN: AtomicU64 = AtomicU64::new(0);

// === impl ResultFile ===

impl Drop for ResultFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.folder.remove(&self.path);
        }
    }
}

/// Path of the file of this name, below the folder; `None` for a name that is not one of a result.
pub(super) fn path(name: &str) -> Option<PathBuf> {
    let plain = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'.');
    let first = name.get(..2).filter(|first| plain && !first.contains('.'))?;
    Some(Path::new(RESULTS).join(first).join(name))
}

/// Writes a body of this process (`node`) so that it survives a loss of power. Blocks on the disk.
///
/// # Errors
/// If the disk fails; the file is removed then.
pub(super) fn write(folder: &StoreFolder, node: i64, id: &TaskId, body: &[u8]) -> io::Result<ResultFile> {
    let count = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{count:x}", id.as_str(), node_suffix(node));
    let path = path(&name).expect("an id is hexadecimal digits");
    let mut file = folder.create(&path)?;
    let written = ResultFile { folder: folder.clone(), path, name, is_kept: false, reservation: None };
    file.write_all(body)?;
    file.sync_all()?;
    folder.flush(written.path.parent().expect("it is in a folder"))?;
    Ok(written)
}

/// Whether the disk refuses a small file for want of space. For some system errors, such as an exhausted
/// quota, SQLite reports only that the disk does not write.
pub(super) fn is_out_of_space(folder: &StoreFolder, node: i64) -> bool {
    let tried = write(folder, node, &TaskId::from_entropy([0; 16]), &[0; PROBE]);
    tried.is_err_and(|error| is_no_space(&error))
}

/// Whether the system reports that the disk has no space left, or that a quota is exhausted.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Every file, by its name.
pub(super) fn files(folder: &StoreFolder) -> impl Iterator<Item = (String, PathBuf)> {
    let all = Path::new(RESULTS);
    folder.names(all).into_iter().flat_map(move |first| {
        let below = all.join(first);
        let names = folder.names(&below).into_iter();
        names.filter_map(move |name| {
            let path = below.join(&name);
            Some((name.into_string().ok()?, path))
        })
    })
}

/// The files that rows name.
pub(super) fn named_files(connection: &Connection) -> rusqlite::Result<HashSet<String>> {
    let mut statement = connection.prepare("SELECT file FROM tasks WHERE file IS NOT NULL")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn node_suffix(node: i64) -> String {
    format!("{:016x}", node.cast_unsigned())
}

// === impl FileRemover ===

impl FileRemover {
    /// Removes the files that `named` does not return, once, and then those that are passed to
    /// [`remove`](Self::remove).
    pub(super) fn start(
        folder: StoreFolder,
        node: i64,
        named: impl FnOnce() -> Option<HashSet<String>> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, names): (_, Receiver<String>) = mpsc::channel();
        thread::Builder::new().name("deferral-files".to_owned()).spawn(move || {
            // Files of this process may be named by a row in a moment.
            let ours = format!(".{}.", node_suffix(node));
            // Without the rows it is unknown which files are named.
            if let Some(named) = named() {
                let left = files(&folder).filter(|(name, _)| !(named.contains(name) || name.contains(&ours)));
                left.for_each(|(_, path)| remove(&folder, &path));
            }
            names.into_iter().filter_map(|name| path(&name)).for_each(|path| remove(&folder, &path));
        })?;
        Ok(Self(sender))
    }

    pub(super) fn remove(&self, name: String) {
        // The thread ends with the store.
        let _ = self.0.send(name);
    }
}

fn remove(folder: &StoreFolder, path: &Path) {
    if let Err(error) = folder.remove(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        // The next start removes it.
        tracing::debug!(target: "deferral::task", event = "result_left", path = %path.display(), %error);
    }
}
