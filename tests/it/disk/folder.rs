//! The folder and its database: creation, permissions, lock, refusal of other folders.

use super::{StoreFolder, end, insert, record, result};
use deferral::internals::store::{StoreError, disk::check};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o777
}

/// What SQLite's own program says.
pub(super) fn sqlite(database: &Path, words: &str) -> String {
    let output = Command::new("sqlite3").arg(database).arg(words).output();
    let output = output.expect("SQLite's program is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn the_folder_is_readable_by_its_owner_only() {
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    end(&*store, 1, 300 << 10).await;
    assert_eq!(mode(&world.path), 0o700);
    for file in ["tasks.db", "tasks.db-wal", "tasks.db-shm", "lock"] {
        assert_eq!(mode(&world.path.join(file)), 0o600, "{file}");
    }
    assert_eq!(world.files().iter().map(|file| mode(file)).collect::<Vec<_>>(), [0o600]);
    assert_eq!(mode(world.files()[0].parent().expect("a folder")), 0o700);
}

#[tokio::test]
async fn a_folder_has_one_process_at_a_time() {
    let world = StoreFolder::new();
    let store = world.open();
    let in_use = format!(
        "the task store PATH is in use by another process (pid {}); each needs a folder of its own",
        std::process::id()
    );
    assert_eq!(world.refused(), in_use);
    insert(&*store, 1).await;
    store.close().await;
    let next = world.open();
    assert!(next.load(&record(1).id).await.expect("answers").is_some());
    // What is asked of the one before is not done any more.
    let late = store.insert(record(2)).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    assert_eq!(world.refused(), in_use);
}

#[tokio::test]
async fn a_folder_has_one_process_even_if_its_lock_file_is_removed() {
    let world = StoreFolder::new();
    let store = world.open();
    let in_use = |pid: &str| {
        format!("the task store PATH is in use by another process{pid}; each needs a folder of its own")
    };
    let lock = world.path.join("lock");
    for _ in 0..2 {
        fs::remove_file(&lock).expect("removed");
        assert_eq!(world.refused(), in_use(""));
        fs::write(&lock, "7").expect("written");
        assert_eq!(world.refused(), in_use(" (pid 7)"));
    }
    // A check reports that the folder is in use, and is not refused.
    assert_eq!(check(&world.path).expect("it can be read").process, Some(Some(7)));
    insert(&*store, 1).await;
    store.close().await;
    assert_eq!(check(&world.path).expect("it can be read").process, None);
    world.open();
}

#[tokio::test]
async fn a_child_process_inherits_no_lock() {
    let world = StoreFolder::new();
    let store = world.open();
    let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
    store.close().await;
    drop(store);
    let next = world.try_open().map(drop);
    child.kill().and_then(|()| child.wait()).expect("it ends");
    next.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn a_store_of_an_earlier_version_is_upgraded_and_keeps_its_tasks() {
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    store.close().await;
    drop(sqlite(&world.database(), "DROP TABLE meta; PRAGMA user_version = 1"));
    // A check accepts the earlier schema.
    assert_eq!(check(&world.path).expect("it can be read").faults, [""; 0]);
    let store = world.open();
    assert_eq!(store.stored_clock(), None);
    assert_eq!(store.load(&record(1).id).await.expect("answers").map(|task| task.record), Some(record(1)));
}

#[tokio::test]
async fn a_folder_that_is_no_store_is_named_and_unchanged() {
    let world = StoreFolder::new();
    fs::write(&world.path, "a file").expect("written");
    assert_eq!(
        world.refused(),
        "the task store PATH is not a folder; name a folder, or a path where one can be created"
    );
    let inside = world.path.join("below");
    let inside = StoreFolder { above: world.above, path: inside };
    assert!(inside.refused().starts_with("the task store PATH cannot be used: "), "{}", inside.refused());

    let world = StoreFolder::new();
    fs::create_dir(&world.path).expect("made");
    fs::write(world.database(), b"SQLite format 3\0 and then nothing of the kind".repeat(100))
        .expect("written");
    let damaged = world.refused();
    assert!(damaged.starts_with("the task store PATH is damaged (file is not a database"), "{damaged}");
    assert!(damaged.contains("`deferral store check PATH` says what is lost"), "{damaged}");
    fs::remove_file(world.database()).expect("removed");

    drop(sqlite(&world.database(), "CREATE TABLE theirs (x)"));
    assert_eq!(world.refused(), "PATH is a database of another program; name another folder");
    assert_eq!(sqlite(&world.database(), "SELECT name FROM sqlite_schema"), "theirs\n");
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_and_unchanged() {
    let world = StoreFolder::new();
    world.open().close().await;
    sqlite(&world.database(), "PRAGMA user_version = 7");
    assert_eq!(
        world.refused(),
        "the task store PATH was written by a newer version of this program (schema 7, and this one knows 2); use that \
         version, or another folder"
    );
    assert_eq!(sqlite(&world.database(), "PRAGMA user_version"), "7\n");
    sqlite(&world.database(), "PRAGMA user_version = 2");
    world.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn more_changes_at_once_than_wait_in_a_queue_or_fit_a_commit_are_all_kept() {
    let world = StoreFolder::new();
    let store = world.open();
    let crowd = (0..3000).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            insert(&*store, number).await;
            end(&*store, number, 10_000).await;
        })
    });
    for one in crowd.collect::<Vec<_>>() {
        one.await.expect("ends");
    }
    store.close().await;
    let store = world.open();
    let readers = (0..3000).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { assert_eq!(result(&*store, number).await, Some(10_000)) })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.expect("ends");
    }
    assert_eq!(store.usage(&[1; 16]).tasks, 3000);
}

#[tokio::test]
async fn space_of_removed_tasks_is_returned() {
    let world = StoreFolder::new();
    let store = world.open();
    for number in 0..200 {
        insert(&*store, number).await;
        end(&*store, number, 100_000).await;
    }
    let size = || fs::metadata(world.database()).expect("it is there").len();
    store.close().await;
    let store = world.open();
    let full = size();
    assert!(full > 20_000_000, "{full}");
    for number in 0..200 {
        store.remove(&record(number).id).await.expect("removed");
    }
    // Once nothing has been asked for a second.
    for _ in 0..100 {
        if size() < 2_000_000 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{} of {full} bytes are left", size());
}
