//! Results that are too large for the database: files beside it.
//!
//! A file is written and flushed before the row that names it, and removed after that row is gone. What a crash
//! leaves in between has no row, and is swept after the next start. Each has a name of its own, which begins with
//! its task's: of two that are written for one task at once, one is named.

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

/// A body of more bytes is a file: a larger one would hold up the changes of others in the database.
pub(super) const LARGEST_IN_ROW: usize = 256 << 10;

/// Bytes of a file by which it is seen whether there is space: some more than a small commit takes.
const PROBE: usize = 64 << 10;

/// The folder of the files, below that of the store.
const RESULTS: &str = "results";

/// A file that is written, and goes with this unless a row names it.
#[derive(Debug)]
pub(super) struct ResultFile {
    folder: StoreFolder,
    path: PathBuf,
    pub(super) name: String,
    pub(super) is_kept: bool,
    /// Room for it, until its row is there.
    pub(super) reservation: Option<ByteReservation>,
}

/// Removes files, so that nobody waits for it.
#[derive(Debug)]
pub(super) struct FileRemover(Sender<String>);

static WRITTEN: AtomicU64 = AtomicU64::new(0);

// === impl Written ===

impl Drop for ResultFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.folder.remove(&self.path);
        }
    }
}

/// Where the file of this name is, below the folder; `Missing` of what cannot be one.
pub(super) fn path(name: &str) -> Option<PathBuf> {
    let plain = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'.');
    let first = name.get(..2).filter(|first| plain && !first.contains('.'))?;
    Some(Path::new(RESULTS).join(first).join(name))
}

/// Writes a body of this process (`node`) so that it survives a loss of power. Waits for the disk.
///
/// # Errors
/// Where the disk fails; nothing is left then.
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

/// Whether the disk refuses a small file for want of space. SQLite says of some of what a system answers only that the disk
/// does not write; a quota that is used up is among it.
pub(super) fn is_out_of_space(folder: &StoreFolder, node: i64) -> bool {
    let tried = write(folder, node, &TaskId::from_entropy([0; 16]), &[0; PROBE]);
    tried.is_err_and(|error| is_no_space(&error))
}

/// Whether the system says that there is no space left on a disk, or that its quota is used up.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Every file there is, by its name.
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

// === impl Broom ===

impl FileRemover {
    /// Sweeps once, when `named_files` says which files are named by rows, and then removes what it is told to.
    pub(super) fn start(
        folder: StoreFolder,
        node: i64,
        named: impl FnOnce() -> Option<HashSet<String>> + Send + 'static,
    ) -> io::Result<Self> {
        let (removed, told): (_, Receiver<String>) = mpsc::channel();
        thread::Builder::new().name("deferral-files".to_owned()).spawn(move || {
            // Those of this process may be named in a moment.
            let ours = format!(".{}.", node_suffix(node));
            // Without the rows nobody knows which are named.
            if let Some(named) = named() {
                let left = files(&folder).filter(|(name, _)| !(named.contains(name) || name.contains(&ours)));
                left.for_each(|(_, path)| remove(&folder, &path));
            }
            told.into_iter().filter_map(|name| path(&name)).for_each(|path| remove(&folder, &path));
        })?;
        Ok(Self(removed))
    }

    pub(super) fn remove(&self, name: String) {
        // It ends with us.
        let _ = self.0.send(name);
    }
}

fn remove(folder: &StoreFolder, path: &Path) {
    if let Err(error) = folder.remove(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        // The next start sweeps again.
        tracing::debug!(target: "deferral::task", event = "result_left", path = %path.display(), %error);
    }
}
