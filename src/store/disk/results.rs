//! Results that are too large for the database, in files beside it.
//!
//! A file is written and flushed before the row that names it is committed, and removed after that row is.
//! Files that no row names are left over from a crash, and are removed after the next start. Each file has a
//! unique name that begins with the id of its task: if two files are written for one task at once, the row
//! names one of them.

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

/// Maximum bytes of a body in the database; a larger body is a file, because writing it to the database would
/// delay other changes.
pub(super) const LARGEST_IN_ROW: usize = 256 << 10;

/// Bytes of a file that probes for free space: somewhat more than a small commit takes.
const PROBE: usize = 64 << 10;

/// The name of the folder of result files, below the folder of the store.
const RESULTS: &str = "results";

/// A written result file. It is removed on drop, unless a row names it (`is_kept`).
#[derive(Debug)]
pub(super) struct ResultFile {
    folder: StoreFolder,
    path: PathBuf,
    /// The name by which a row refers to the file.
    pub(super) name: String,
    /// The file is not removed on drop, because a row names it or may name it.
    pub(super) is_kept: bool,
    /// The reservation of the file's bytes, until its row is stored.
    pub(super) reservation: Option<ByteReservation>,
}

/// The handle of a thread that removes files, so that no caller waits for the disk.
#[derive(Debug)]
pub(super) struct FileRemover(Sender<String>);

/// The number of files written by this process, which makes their names unique.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

// === impl ResultFile ===

impl Drop for ResultFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.folder.remove(&self.path);
        }
    }
}

/// The path of a result file below the folder of the store; `None` for a name that is not one of a result
/// file.
pub(super) fn result_path(name: &str) -> Option<PathBuf> {
    let is_valid = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'.');
    let first = name.get(..2).filter(|first| is_valid && !first.contains('.'))?;
    Some(Path::new(RESULTS).join(first).join(name))
}

/// Writes a body to a new file, so that it survives a loss of power. `node` is the id of this process. Blocks
/// on the disk.
///
/// # Errors
/// If the disk fails; the file is then removed.
pub(super) fn write(folder: &StoreFolder, node: i64, id: &TaskId, body: &[u8]) -> io::Result<ResultFile> {
    let count = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{count:x}", id.as_str(), node_suffix(node));
    let path = result_path(&name).expect("an id is hexadecimal digits");
    let mut file = folder.create(&path)?;
    let written = ResultFile { folder: folder.clone(), path, name, is_kept: false, reservation: None };
    file.write_all(body)?;
    file.sync_all()?;
    folder.flush(written.path.parent().expect("it is in a folder"))?;
    Ok(written)
}

/// Whether the disk refuses a small file because it has no space left. SQLite reports some system errors,
/// such as an exhausted quota, only as a failed write.
pub(super) fn is_out_of_space(folder: &StoreFolder, node: i64) -> bool {
    let probe = write(folder, node, &TaskId::from_entropy([0; 16]), &[0; PROBE]);
    probe.is_err_and(|error| is_no_space(&error))
}

/// Whether the system reports that the disk has no space left, or that a quota is exhausted.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// All result files: their names and paths.
pub(super) fn files(folder: &StoreFolder) -> impl Iterator<Item = (String, PathBuf)> {
    let root = Path::new(RESULTS);
    folder.names(root).into_iter().flat_map(move |first| {
        let subfolder = root.join(first);
        let names = folder.names(&subfolder).into_iter();
        names.filter_map(move |name| {
            let path = subfolder.join(&name);
            Some((name.into_string().ok()?, path))
        })
    })
}

/// The names of the files that rows refer to.
pub(super) fn named_files(connection: &Connection) -> rusqlite::Result<HashSet<String>> {
    let mut statement = connection.prepare("SELECT file FROM tasks WHERE file IS NOT NULL")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn node_suffix(node: i64) -> String {
    format!("{:016x}", node.cast_unsigned())
}

// === impl FileRemover ===

impl FileRemover {
    /// Starts the thread. It first removes all files that `read_named_files` does not return, and then each
    /// file that is passed to [`remove`](Self::remove).
    pub(super) fn start(
        folder: StoreFolder,
        node: i64,
        read_named_files: impl FnOnce() -> Option<HashSet<String>> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, names): (_, Receiver<String>) = mpsc::channel();
        thread::Builder::new().name("deferral-files".to_owned()).spawn(move || {
            // Keep files of this process: a row may be about to name them.
            let own_infix = format!(".{}.", node_suffix(node));
            // Remove nothing if the rows cannot be read, because it is unknown which files they name.
            if let Some(named) = read_named_files() {
                let orphans =
                    files(&folder).filter(|(name, _)| !(named.contains(name) || name.contains(&own_infix)));
                orphans.for_each(|(_, path)| remove(&folder, &path));
            }
            names.into_iter().filter_map(|name| result_path(&name)).for_each(|path| remove(&folder, &path));
        })?;
        Ok(Self(sender))
    }

    /// Removes the file of this name, soon. Failures are logged.
    pub(super) fn remove(&self, name: String) {
        // Sending fails only if the thread has ended, with the store.
        let _ = self.0.send(name);
    }
}

fn remove(folder: &StoreFolder, path: &Path) {
    if let Err(error) = folder.remove(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        // The next start removes a file that is left here.
        tracing::debug!(target: "deferral::task", event = "result_left", path = %path.display(), %error);
    }
}
