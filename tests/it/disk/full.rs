//! A folder that has no more room, and a disk that fails.

use super::{START, World, end, id, insert, record, result, returned};
use deferral::internals::{
    store::{StoreError, Updated, update},
    task::Event,
};
use futures_util::future::join_all;
use std::{fs, path::PathBuf};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn beyond_max_bytes_nothing_is_inserted_and_nothing_grows_until_there_is_room() {
    let world = World::new();
    let store = world.open_within(16 * MIB);
    let full = loop {
        let number = u32::try_from(store.usage(&[1; 16]).tasks).expect("few");
        insert(&*store, number).await;
        match update(&*store, &id(number), &returned(1 << 20), START).await {
            Ok(Updated::Done { .. }) => {}
            Err(StoreError::Full("store.max_bytes")) => break number,
            other => panic!("{other:?}"),
        }
    };
    assert!((4..12).contains(&full), "{full} results of a MiB fit");
    // Why it failed must always fit.
    let error = Event::Failed { error: "{}".into(), message: Some("x".repeat(300)) };
    assert!(matches!(update(&*store, &id(full), &error, START).await, Ok(Updated::Done { .. })));
    // Many at a time, as a commit takes them.
    for first in (1000..20_000).step_by(50) {
        let inserts = join_all((first..first + 50).map(|more| store.insert(record(more)))).await;
        let Some(at) = inserts.iter().position(Result::is_err) else { continue };
        assert!(matches!(inserts[at], Err(StoreError::Full("store.max_bytes"))), "{:?}", inserts[at]);
        let more = first + u32::try_from(at).expect("few");
        store.remove(&id(0)).await.expect("removed");
        insert(&*store, more).await;
        let log = fs::metadata(world.path.join("tasks.db-wal")).expect("there").len();
        assert!(log < 6 * MIB, "{log}");
        store.close().await;
        let store = world.open_within(16 * MIB);
        assert_eq!(result(&*store, 1).await, Some(1 << 20));
        let bytes: u64 = world.files().iter().map(|file| fs::metadata(file).expect("there").len()).sum();
        assert!(bytes + log + fs::metadata(world.database()).expect("there").len() < 16 * MIB);
        return;
    }
    panic!("it is never full");
}

#[tokio::test]
async fn a_folder_that_is_moved_away_takes_no_change_until_it_is_back() {
    let world = World::new();
    let store = world.open();
    insert(&*store, 1).await;
    let away: PathBuf = world.above.path().join("away");
    fs::rename(&world.path, &away).expect("moved");
    let Err(StoreError::Unavailable(words)) = store.insert(record(2)).await else { panic!("it is away") };
    assert!(words.ends_with("tasks was moved away, or another put in its place"), "{words}");
    assert!(update(&*store, &id(1), &returned(1), START).await.is_err());
    assert!(store.load(&id(1)).await.expect("it is in memory").is_some());
    fs::rename(&away, &world.path).expect("moved");
    insert(&*store, 2).await;
    end(&*store, 1, 300 << 10).await;
    store.close().await;
    assert_eq!(result(&*world.open(), 1).await, Some(300 << 10));
}
