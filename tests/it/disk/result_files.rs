//! Large results, which are files.

use super::{StoreFolder, end, id, insert, result};
use deferral::internals::store::{LoadedTask, StoreError};
use std::{fs, time::Duration};
use tokio::time::sleep;

const LARGEST_IN_ROW: usize = 256 << 10;

/// Waits until there are so many files.
async fn left(world: &StoreFolder, files: usize) {
    for _ in 0..100 {
        if world.files().len() == files {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", world.files());
}

#[tokio::test]
async fn a_result_over_256_kib_is_a_file_and_returns_whole() {
    let world = StoreFolder::new();
    let store = world.open();
    for (number, bytes) in [(1, 0), (2, LARGEST_IN_ROW), (3, LARGEST_IN_ROW + 1), (4, 8 << 20)] {
        insert(&*store, number).await;
        end(&*store, number, bytes).await;
    }
    assert_eq!(world.files().len(), 2);
    store.close().await;
    let store = world.open();
    for (number, bytes) in [(1, 0), (2, LARGEST_IN_ROW), (3, LARGEST_IN_ROW + 1), (4, 8 << 20)] {
        assert_eq!(result(&*store, number).await, Some(bytes));
    }
    for (number, files) in [(2, 2), (3, 1), (4, 0)] {
        store.remove(&id(number)).await.expect("removed");
        left(&world, files).await;
        assert_eq!(result(&*store, number).await, None);
    }
}

#[tokio::test]
async fn a_file_that_no_row_names_is_swept_and_one_of_a_writer_that_lost_is_not_left() {
    let world = StoreFolder::new();
    let store = world.open();
    for number in [1, 2] {
        insert(&*store, number).await;
        end(&*store, number, LARGEST_IN_ROW + 1).await;
    }
    // The file of the second writer is discarded.
    let LoadedTask { version, record, .. } = store.load(&id(1)).await.expect("answers").expect("found");
    let before = deferral::internals::store::RecordVersion(version.0 - 1);
    let flush = deferral::internals::store::Durability::Machine;
    assert!(!store.swap(before, record, flush).await.expect("answers"));
    assert_eq!(world.files().len(), 2);
    store.close().await;
    let left_over = world.files()[0].with_file_name("00000000000000000000000000000009.00.0");
    fs::write(&left_over, "left by a crash").expect("written");
    assert_eq!(world.files().len(), 3);
    let store = world.open();
    left(&world, 2).await;
    assert!(!left_over.exists());
    assert_eq!(result(&*store, 1).await, Some(LARGEST_IN_ROW + 1));
}

#[tokio::test]
async fn a_file_that_is_damaged_or_gone_is_an_error_that_names_it() {
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    end(&*store, 1, LARGEST_IN_ROW + 1).await;
    store.close().await;
    let file = world.files().remove(0);
    fs::write(&file, "cut").expect("written");
    let store = world.open();
    let Err(StoreError::Unavailable(words)) = store.load(&id(1)).await else { panic!("it is damaged") };
    assert!(words.contains("its body has 3 bytes, and should have 262145"), "{words}");
    fs::remove_file(&file).expect("removed");
    let Err(StoreError::Unavailable(words)) = store.load(&id(1)).await else { panic!("it is gone") };
    assert!(words.starts_with(&format!("{}: No such file", file.display())), "{words}");
    // It can still be forgotten.
    store.remove(&id(1)).await.expect("removed");
    assert_eq!(result(&*store, 1).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_large_results_are_queued_and_delay_no_other_change() {
    let world = StoreFolder::new();
    let store = world.open();
    for number in 0..20 {
        insert(&*store, number).await;
    }
    let large = (0..20).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { end(&*store, number, 2 << 20).await })
    });
    let large: Vec<_> = large.collect();
    for number in 100..200 {
        insert(&*store, number).await;
    }
    for one in large {
        one.await.expect("ends");
    }
    assert_eq!(world.files().len(), 20);
}
