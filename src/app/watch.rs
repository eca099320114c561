//! Watches the files of a configuration.
//!
//! They are looked at, not listened to: what replaces a file whole, or the folder it is in by way of a link, as
//! Kubernetes does with mounted configurations, is seen in the same way everywhere.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::time::sleep;

/// Files that are watched.
pub(super) struct FileWatch {
    files: Vec<PathBuf>,
    seen: Vec<FileFingerprint>,
}

/// What tells one content of a file from another, without reading it; none where there is no file.
type FileFingerprint = Option<(u64, SystemTime, u64)>;

/// How often they are looked at. What changes in between is read once.
const PERIOD: Duration = Duration::from_secs(1);

// === impl Watch ===

impl FileWatch {
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let seen = files.iter().map(|file| fingerprint(file)).collect();
        Self { files, seen }
    }

    /// Watches these from now on; what has changed meanwhile is a change.
    pub(super) fn set_files(&mut self, files: Vec<PathBuf>) {
        let seen = |file: &PathBuf| match self.files.iter().position(|known| known == file) {
            Some(at) => self.seen[at],
            None => fingerprint(file),
        };
        self.seen = files.iter().map(seen).collect();
        self.files = files;
    }

    /// Resolves when one of them has changed, and all have stayed the same since for a while: nobody is done
    /// in the middle of a change.
    pub(super) async fn changed(&mut self) {
        let mut before = self.seen.clone();
        loop {
            sleep(PERIOD).await;
            let now: Vec<_> = self.files.iter().map(|file| fingerprint(file)).collect();
            if now == before && now != self.seen {
                self.seen = now;
                return;
            }
            before = now;
        }
    }
}

fn fingerprint(file: &Path) -> FileFingerprint {
    let about = fs::metadata(file).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&about);
    #[cfg(not(unix))]
    let number = 0;
    Some((number, about.modified().ok()?, about.len()))
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
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_err());
        fs::write(&file, "22").expect("it can be written");
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_ok());
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_err());
        fs::write(&other, "33").expect("it can be written");
        fs::rename(&other, &file).expect("it can be moved");
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_ok());
        fs::remove_file(&file).expect("it is there");
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_ok());
        watch.set_files(vec![file, other.clone()]);
        fs::write(&other, "1").expect("it can be written");
        assert!(timeout(PERIOD * 3, watch.changed()).await.is_ok());
    }
}
