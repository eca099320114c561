//! The store on disk, beyond what `stores` tests for every store.

mod crashes;
mod damaged_rows;
mod folder;
mod folder_security;
mod full_disk;
mod inspect;
mod recount;
mod result_files;
mod store_key;

use deferral::internals::{
    protocol::Timestamp,
    store::{DiskStore, Store, StoreBounds, UpdateOutcome, disk, update},
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);

/// A folder for a store, and what is in it.
struct StoreFolder {
    above: TempDir,
    path: PathBuf,
}

impl StoreFolder {
    fn new() -> Self {
        let above = tempfile::tempdir().expect("a folder");
        let path = above.path().join("tasks");
        Self { above, path }
    }

    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.try_open().unwrap_or_else(|error| panic!("{error}")))
    }

    fn try_open(&self) -> Result<DiskStore, disk::Error> {
        DiskStore::open(&self.path, StoreBounds::NONE, None)
    }

    /// The store of one that may take so many bytes.
    fn open_within(&self, max_bytes: u64) -> Arc<dyn Store> {
        Arc::new(DiskStore::open(&self.path, StoreBounds::NONE, Some(max_bytes)).expect("opens"))
    }

    /// Why it cannot be opened.
    fn refused(&self) -> String {
        self.try_open().expect_err("it cannot be opened").to_string().replace(&self.shown(), "PATH")
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    fn database(&self) -> PathBuf {
        self.path.join("tasks.db")
    }

    /// The files of results.
    fn files(&self) -> Vec<PathBuf> {
        let below = |folder: &Path| -> Vec<_> {
            std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .map(|entry| entry.expect("an entry").path())
                .collect()
        };
        below(&self.path.join("results")).iter().flat_map(|folder| below(folder)).collect()
    }
}

fn id(number: u32) -> TaskId {
    let mut entropy = [0; 16];
    entropy[..4].copy_from_slice(&number.to_be_bytes());
    TaskId::from_entropy(entropy)
}

fn record(number: u32) -> Arc<Record> {
    let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    Arc::new(Record::new(id(number), owner, "slow", Duration::from_secs(600), START))
}

async fn insert(store: &dyn Store, number: u32) {
    store.insert(record(number)).await.expect("inserted");
}

/// Task `number` ends with so many bytes.
async fn end(store: &dyn Store, number: u32, bytes: usize) {
    let told = update(store, &id(number), &returned(bytes), START).await;
    assert!(matches!(told, Ok(UpdateOutcome::Applied { .. })), "{told:?}");
}

fn returned(bytes: usize) -> TaskEvent {
    TaskEvent::Returned { result: vec![b'x'; bytes].into() }
}

/// The bytes that the task has ended with, if there is such a task.
async fn result(store: &dyn Store, number: u32) -> Option<usize> {
    match &store.load(&id(number)).await.expect("answers")?.record.state {
        TaskState::Completed { result, .. } => {
            assert!(result.iter().all(|byte| *byte == b'x'));
            Some(result.len())
        }
        other => panic!("it has ended: {other:?}"),
    }
}
