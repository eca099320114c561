//! `max_bytes`, a disk without space, and a disk that fails.

use super::{
    START, StoreFolder,
    crashes::{self, again},
    end, id, insert, record, result, returned,
};
use crate::support::limit_hits::LimitHits;
use deferral::internals::{
    policy::TaskQuotas,
    proxy::TaskLedger,
    runtime::{Drain, SystemClock},
    store::{DiskStore, LoadedTask, Store, StoreBounds, StoreError, UpdateOutcome, update},
    task::{TaskEvent, TaskState},
};
use futures_util::future::join_all;
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn beyond_max_bytes_nothing_is_inserted_and_nothing_grows_until_there_is_room() {
    let world = StoreFolder::new();
    let store = world.open_within(16 * MIB);
    let full = loop {
        let number = u32::try_from(store.usage(&[1; 16]).tasks).expect("few");
        insert(&*store, number).await;
        match update(&*store, &id(number), &returned(1 << 20), START).await {
            Ok(UpdateOutcome::Applied { .. }) => {}
            Err(StoreError::Full("store.max_bytes")) => break number,
            other => panic!("{other:?}"),
        }
    };
    assert!((4..12).contains(&full), "{full} results of a MiB fit");
    // Why it failed must always fit.
    let error = TaskEvent::Failed { error: "{}".into(), message: Some("x".repeat(300)) };
    assert!(matches!(update(&*store, &id(full), &error, START).await, Ok(UpdateOutcome::Applied { .. })));
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
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    let away: PathBuf = world.above.path().join("away");
    fs::rename(&world.path, &away).expect("moved");
    let Err(StoreError::Unavailable(words)) = store.insert(record(2)).await else { panic!("it is away") };
    assert!(words.ends_with("tasks was moved, or replaced by another"), "{words}");
    assert!(update(&*store, &id(1), &returned(1), START).await.is_err());
    assert!(store.load(&id(1)).await.expect("it is in memory").is_some());
    fs::rename(&away, &world.path).expect("moved");
    insert(&*store, 2).await;
    end(&*store, 1, 300 << 10).await;
    store.close().await;
    assert_eq!(result(&*world.open(), 1).await, Some(300 << 10));
}

/// A result that is a file.
const LARGE: usize = 300 << 10;

/// A number whose id begins with this byte: each such task has a folder of its own for its result.
const fn apart(number: u32) -> u32 {
    number << 24
}

#[tokio::test]
async fn a_large_result_without_room_is_refused_before_it_is_written() {
    let world = StoreFolder::new();
    let bounds = StoreBounds { stored_bytes: LARGE, stored_bytes_per_principal: LARGE };
    let store: Arc<dyn Store> = Arc::new(DiskStore::open(&world.path, bounds, None).expect("opens"));
    insert(&*store, 1).await;
    let refused = update(&*store, &id(1), &returned(LARGE + 1), START).await;
    assert!(matches!(refused, Err(StoreError::Full("limits.stored_bytes_per_principal"))), "{refused:?}");
    store.set_bounds(StoreBounds { stored_bytes: LARGE, ..StoreBounds::NONE });
    let refused = update(&*store, &id(1), &returned(LARGE + 1), START).await;
    assert!(matches!(refused, Err(StoreError::Full("limits.stored_bytes"))), "{refused:?}");
    store.close().await;
    let store = world.open_within(16 * MIB);
    let refused = update(&*store, &id(1), &returned(32 << 20), START).await;
    assert!(matches!(refused, Err(StoreError::Full("store.max_bytes"))), "{refused:?}");
    assert!(!world.path.join("results").exists(), "the folder of a file is made with the first one");
    end(&*store, 1, LARGE).await;
    assert_eq!(world.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_large_results_at_once_no_more_are_written_than_fit() {
    let world = StoreFolder::new();
    // And the names of the tools.
    let bounds = StoreBounds { stored_bytes: 5 * LARGE + 1000, ..StoreBounds::NONE };
    let store: Arc<dyn Store> = Arc::new(DiskStore::open(&world.path, bounds, None).expect("opens"));
    for number in 0..40 {
        insert(&*store, apart(number)).await;
    }
    let ends = (0..40).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { update(&*store, &id(apart(number)), &returned(LARGE), START).await })
    });
    let (mut kept, mut full) = (0, 0);
    for end in ends.collect::<Vec<_>>() {
        match end.await.expect("ends") {
            Ok(UpdateOutcome::Applied { .. }) => kept += 1,
            Err(StoreError::Full("limits.stored_bytes")) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((kept, full), (5, 35));
    let folders = fs::read_dir(world.path.join("results")).expect("there are results").count();
    assert_eq!((folders, world.files().len()), (5, 5), "each that was written has made its folder");
    // What was reserved is given back.
    store.remove(&id(apart(0))).await.expect("removed");
    let usage = store.usage(&[1; 16]);
    store.set_bounds(StoreBounds { stored_bytes: usage.stored_bytes + LARGE, ..StoreBounds::NONE });
    let mut fits = 0;
    for number in 1..40 {
        fits += usize::from(
            update(&*store, &id(apart(number)), &returned(LARGE), START)
                .await
                .is_ok_and(|updated| matches!(updated, UpdateOutcome::Applied { .. })),
        );
    }
    assert_eq!(fits, 1);
}

#[tokio::test]
async fn a_large_result_of_a_version_that_is_gone_is_not_written() {
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    let LoadedTask { version, record, .. } = store.load(&id(1)).await.expect("answers").expect("found");
    let ended = deferral::internals::task::apply(&record, returned(LARGE), START).expect("it is alive").0;
    let progress = TaskEvent::Progressed { message: "half way".to_owned() };
    update(&*store, &id(1), &progress, START).await.expect("kept");
    let flush = deferral::internals::store::Durability::Machine;
    assert!(!store.swap(version, Arc::new(ended), flush).await.expect("answers"));
    assert!(!world.path.join("results").exists());
}

/// What is run by `sh` so that a disk of so many bytes is in the place of a folder; none where the system allows nobody to
/// make one.
fn small_disk(bytes: u64, folder: &Path) -> Option<String> {
    let mount = format!("mount -t tmpfs -o size={bytes} tmpfs '{}'", folder.display());
    let tried = Command::new("unshare").args(["-Urm", "sh", "-c", &mount]).output();
    match tried {
        Ok(tried) if tried.status.success() => Some(mount),
        _ => {
            eprintln!("this system lets nobody mount a disk of his own: nothing is tried");
            None
        }
    }
}

#[test]
fn on_a_disk_without_space_the_store_is_full_and_goes_on_once_there_is_space() {
    let world = StoreFolder::new();
    fs::create_dir(&world.path).expect("made");
    let Some(mount) = small_disk(24 * MIB, &world.path) else { return };
    let inside = again("full_disk::meets_a_disk_without_space", &format!("{mount};"), &world.path);
    let mut within = Command::new("unshare");
    within.arg("-Urm").arg(inside.get_program()).args(inside.get_args());
    within.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = within.output().expect("starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

/// Takes all the space that is left on the disk of a folder, until it is removed.
fn ballast(folder: &Path) -> PathBuf {
    let path = folder.join("ballast");
    let mut file = fs::File::create(&path).expect("made");
    for bytes in [1 << 16, 1 << 12, 1] {
        let full = loop {
            if let Err(error) = file.write_all(&vec![0; bytes]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is run by another, in a process of its own"]
async fn meets_a_disk_without_space() {
    let disk = crashes::folder_of_test().expect("it is run by another test");
    let folder = disk.join("tasks");
    let store: Arc<dyn Store> = Arc::new(DiskStore::open(&folder, StoreBounds::NONE, None).expect("opens"));
    for number in 0..10 {
        insert(&*store, number).await;
    }
    end(&*store, 0, 1000).await;
    for round in 1..4 {
        let taken = ballast(&disk);
        let number = loop {
            let tasks = store.usage(&[1; 16]).tasks;
            let number = 100 + u32::try_from(tasks).expect("few");
            match store.insert(record(number)).await {
                Ok(()) => {}
                Err(StoreError::Full("free space of store.disk")) => break number,
                Err(other) => panic!("{other}"),
            }
        };
        for bytes in [1000, LARGE] {
            let told = update(&*store, &id(round), &returned(bytes), START).await;
            assert!(matches!(told, Err(StoreError::Full("free space of store.disk"))), "{told:?}");
        }
        // What is kept is still read, and nothing has changed.
        assert_eq!(result(&*store, 0).await, Some(1000));
        assert!(store.load(&id(number)).await.expect("answers").is_none());
        let state = store.load(&id(round)).await.expect("answers").expect("found").record.state.clone();
        assert_eq!(state, TaskState::Working);
        fs::remove_file(taken).expect("removed");
        insert(&*store, number).await;
        end(&*store, round, LARGE).await;
        assert_eq!(result(&*store, round).await, Some(LARGE));
    }
    let hits = LimitHits::of("free space of store.disk");
    an_end_waits_for_space(&disk, &store).await;
    assert!(hits.now() > 0, "each attempt counts");
    let usage = store.usage(&[1; 16]);
    store.close().await;
    let store = DiskStore::open(&folder, StoreBounds::NONE, None).expect("opens");
    assert_eq!(store.usage(&[1; 16]), usage);
}

/// The end of a task is not given up where not even the error has space that takes the place of its result.
async fn an_end_waits_for_space(disk: &Path, store: &Arc<dyn Store>) {
    let clock = Arc::new(SystemClock::new());
    let ledger = TaskLedger::new(Arc::clone(store), None, TaskQuotas::default(), clock);
    let record = record(5000);
    let custody = ledger.admit(deferral::internals::task::Record::clone(&record)).await.expect("kept");
    let taken = ballast(disk);
    // Until nothing fits that is as small as the error.
    let small = TaskEvent::Progressed { message: "x".repeat(400) };
    while update(&**store, &id(9), &small, START).await.is_ok() {}
    let (_drain, overdue) = Drain::new();
    let mut keeping = tokio::spawn(async move { custody.persist(returned(LARGE), &overdue).await });
    let early = timeout(Duration::from_millis(500), &mut keeping).await;
    assert!(early.is_err(), "there is no space for any end: {early:?}");
    assert_eq!(ledger.last_stored(&record.id).expect("it is held").state, TaskState::Working);
    fs::remove_file(taken).expect("removed");
    let kept = timeout(Duration::from_secs(20), keeping).await.expect("there is space").expect("it ends");
    assert!(matches!(kept, Ok(UpdateOutcome::Applied { .. })), "{kept:?}");
    let record = store.load(&record.id).await.expect("answers").expect("found").record;
    let TaskState::Failed { error } = &record.state else { panic!("{record:?}") };
    assert!(String::from_utf8_lossy(error).contains("(free space of store.disk)"), "{error:?}");
}
