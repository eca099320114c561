//! Watches the files of a configuration.
//!
//! The files are polled, without the notifications of the system: a replaced file, or a replaced folder
//! behind a link, as Kubernetes uses for mounted configurations, is noticed in the same way on all systems.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::time::sleep;

/// The watched files, and their state at the last poll.
pub(super) struct FileWatch {
    files: Vec<PathBuf>,
    fingerprints: Vec<FileFingerprint>,
}

/// Identifies the content of a file without reading it: inode, modification time and length; `None` without a
/// file.
type FileFingerprint = Option<(u64, SystemTime, u64)>;

/// Interval of the polls. Several changes in between are read once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

// === impl FileWatch ===

impl FileWatch {
    /// Watches these files from now on.
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let fingerprints = files.iter().map(|file| fingerprint(file)).collect();
        Self { files, fingerprints }
    }

    /// Replaces the watched files. A file that has changed since the last poll still counts as changed.
    pub(super) fn set_files(&mut self, files: Vec<PathBuf>) {
        let previous = |file: &PathBuf| match self.files.iter().position(|watched| watched == file) {
            Some(index) => self.fingerprints[index],
            None => fingerprint(file),
        };
        self.fingerprints = files.iter().map(previous).collect();
        self.files = files;
    }

    /// Resolves when a file has changed and all have then stayed the same for one [`POLL_INTERVAL`], so that
    /// no change is read halfway.
    pub(super) async fn changed(&mut self) {
        let mut last_poll = self.fingerprints.clone();
        loop {
            sleep(POLL_INTERVAL).await;
            let now: Vec<_> = self.files.iter().map(|file| fingerprint(file)).collect();
            if now == last_poll && now != self.fingerprints {
                self.fingerprints = now;
                return;
            }
            last_poll = now;
        }
    }
}

fn fingerprint(file: &Path) -> FileFingerprint {
    let metadata = fs::metadata(file).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some((number, metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_written_replaced_or_gone_has_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, other] = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&file, "1").expect("it can be written");
        let mut watch = FileWatch::new(vec![file.clone()]);
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_err());
        fs::write(&file, "22").expect("it can be written");
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_ok());
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_err());
        fs::write(&other, "33").expect("it can be written");
        fs::rename(&other, &file).expect("it can be moved");
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_ok());
        fs::remove_file(&file).expect("it is there");
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_ok());
        watch.set_files(vec![file, other.clone()]);
        fs::write(&other, "1").expect("it can be written");
        assert!(timeout(POLL_INTERVAL * 3, watch.changed()).await.is_ok());
    }
}
