//! `kill -9`, power loss and a full disk, in a helper process.
//!
//! The process is this very binary, which runs one test again, with the folder in its environment.

use super::{START, StoreFolder, end, id, insert, record, result, returned};
use deferral::internals::{
    store::{DiskStore, Durability, Store, StoreBounds, StoreError, UpdateOutcome, update},
    task::{TaskEvent, TaskState},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write as _, stdout},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

/// Where a process that is started by a test finds its store.
const FOLDER: &str = "DEFERRAL_STORE_OF_TEST";

/// How often something is tried: as often as the environment says, or this often.
fn rounds(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// This binary with one test, in a process of its own that finds the store in `folder`. What `shell` says holds for it.
pub(super) fn again(test: &str, shell: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$0\" --exact \"$1\" --nocapture --include-ignored")])
        .arg(env::current_exe().expect("it has a path"))
        .arg(format!("disk::{test}"))
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// The folder of a process that was started by [`again`].
pub(super) fn folder_of_test() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

fn folder() -> Option<Arc<dyn Store>> {
    Some(Arc::new(DiskStore::open(&folder_of_test()?, StoreBounds::NONE, None).expect("opens")))
}

/// How far a task has come, and been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Inserted,
    Asked,
    Ended,
    Removed,
}

const STEPS: [Step; 4] = [Step::Inserted, Step::Asked, Step::Ended, Step::Removed];

/// One in eight is a file.
const fn bytes(number: u32) -> usize {
    if number.is_multiple_of(8) { 300 << 10 } else { 500 }
}

fn asked() -> TaskEvent {
    TaskEvent::InputRequested { key: "k".into(), request: r#"{"method":"roots/list"}"#.into() }
}

async fn step(store: &dyn Store, number: u32, step: Step) {
    match step {
        Step::Inserted => insert(store, number).await,
        Step::Asked => {
            let told = update(store, &id(number), &asked(), START).await;
            assert!(matches!(told, Ok(UpdateOutcome::Applied { .. })), "{told:?}");
        }
        Step::Ended => end(store, number, bytes(number)).await,
        Step::Removed => store.remove(&id(number)).await.expect("removed"),
    }
}

/// How far the task is, as the store has it; `Missing` where it has none.
async fn reached(store: &dyn Store, number: u32) -> Option<Step> {
    let record = store.load(&id(number)).await.expect("it can be read")?.record;
    Some(match &record.state {
        TaskState::Working => Step::Inserted,
        TaskState::InputRequired { .. } => Step::Asked,
        TaskState::Completed { result, .. } => {
            assert_eq!(result.len(), bytes(number));
            Step::Ended
        }
        other => panic!("{other:?}"),
    })
}

/// What is acknowledged is said, and the process goes on until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is run by others, in a process of its own"]
async fn writes_until_it_is_killed() {
    let store = folder().expect("it is run by another test");
    let workers = (0..8u32).map(|worker| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in (worker..).step_by(8) {
                for (at, one) in STEPS.into_iter().enumerate() {
                    // Some are left at each step.
                    if number as usize % 5 < at {
                        break;
                    }
                    step(&*store, number, one).await;
                    writeln!(stdout().lock(), "did {number} {at}").expect("somebody reads");
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("it does not fail");
    }
}

#[tokio::test]
async fn after_kill_9_every_acknowledged_change_is_found() {
    for round in 0..rounds("KILLS", 4) {
        let world = StoreFolder::new();
        let mut child = again("crashes::writes_until_it_is_killed", "", &world.path).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut acknowledged = BTreeMap::new();
        let until = 20 + round * 97 % 900;
        for line in lines {
            let line = line.expect("text");
            let Some(rest) = line.strip_prefix("did ") else { continue };
            let (number, at) = rest.split_once(' ').expect("two numbers");
            let (number, at): (u32, usize) = (number.parse().expect("one"), at.parse().expect("one"));
            acknowledged.insert(number, STEPS[at]);
            // What it says after that is still read: it was acknowledged.
            if acknowledged.len() == until {
                kill(&mut child);
            }
        }
        kill(&mut child);
        assert!(acknowledged.len() >= until, "{}", acknowledged.len());
        let store = world.open();
        let mut tasks = 0;
        for number in 0..=*acknowledged.keys().last().expect("some") + 16 {
            let (said, found) = (acknowledged.get(&number).copied(), reached(&*store, number).await);
            tasks += usize::from(found.is_some());
            // It may have come one step further than it could say.
            let at = said.map_or(0, |said| said as usize + 1);
            let may = [
                said.filter(|said| *said != Step::Removed),
                STEPS.get(at).copied().filter(|next| *next != Step::Removed),
            ];
            let may_be_gone = said.is_none() || said >= Some(Step::Ended);
            assert!(
                found.map_or(may_be_gone, |found| may.contains(&Some(found))),
                "{number}: {said:?}, {found:?}"
            );
        }
        assert_eq!(store.usage(&[1; 16]).tasks, tasks);
        let orphans = store.take_orphans(usize::MAX).await.expect("answers");
        assert!(!orphans.is_empty());
        assert_eq!(store.take_orphans(usize::MAX).await.expect("answers"), []);
    }
}

fn kill(child: &mut Child) {
    // SIGKILL.
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
}

/// The log is cut, or garbled, somewhere behind the last answer that was flushed.
#[tokio::test]
async fn after_a_loss_of_power_everything_that_was_flushed_is_found() {
    let mut chance = chances();
    let world = StoreFolder::new();
    let store = world.open();
    let log = world.path.join("tasks.db-wal");
    let written = || fs::metadata(&log).expect("there is a log").len();
    // After each flushed answer: how long the log was, and how far each task.
    let (mut flushed, mut reached_by, mut next) = (Vec::new(), BTreeMap::<u32, Step>::new(), 0);
    while flushed.len() < 90 {
        let is_new = reached_by.is_empty() || chance(3) == 0;
        let number = if is_new { next } else { u32::try_from(chance(u64::from(next))).expect("few") };
        let at = reached_by.get(&number).map_or(0, |reached| *reached as usize + 1);
        // Removed tasks may come back.
        let Some(one) = STEPS.get(at).filter(|one| **one != Step::Removed) else { continue };
        step(&*store, number, *one).await;
        next += u32::from(is_new);
        reached_by.insert(number, *one);
        if *one != Step::Asked {
            flushed.push((written(), reached_by.clone()));
        }
    }
    // Not flushed, and behind all.
    for number in 0..20 {
        store.set_anchor(&id(number), Some(vec![b'a'; 2000].into())).await.expect("kept");
    }
    let full = written();
    assert!(full < 4_000_000, "the log was never carried over: {full}");
    assert_eq!(flushed[0].1.len(), 1);
    for cut in 0..rounds("CUTS", 120) {
        let at = usize::try_from(chance(flushed.len() as u64)).expect("few");
        let (length, promised) = &flushed[at];
        let until = flushed.get(at + 1).map_or(full, |(length, _)| *length);
        let length = length + chance(until - length + 1);
        let after = StoreFolder::new();
        copy(&world.path, &after.path);
        let log = after.path.join("tasks.db-wal");
        let mut bytes = fs::read(&log).expect("read");
        let kept = usize::try_from(length).expect("small");
        let lost = &mut bytes[kept..];
        match cut % 3 {
            0 => bytes.truncate(kept),
            // Blocks reach the disk in any order, or never.
            1 => lost.iter_mut().for_each(|byte| *byte = u8::try_from(chance(256)).expect("small")),
            _ => lost.chunks_mut(512).filter(|_| chance(2) == 0).for_each(|block| block.fill(0)),
        }
        fs::write(&log, bytes).expect("written");
        let store = after.open();
        for (number, promised) in promised {
            let found = reached(&*store, *number).await;
            // A question is not flushed by itself, and is by what is flushed after it.
            assert!(
                found >= Some(*promised),
                "cut {cut} at {length}: {number} is {found:?}, and was {promised:?}"
            );
        }
        // It goes on.
        insert(&*store, 1_000_000).await;
        store.close().await;
    }
}

/// Numbers below what is asked for, the same each time (SplitMix64).
fn chances() -> impl FnMut(u64) -> u64 {
    let mut state = 0u64;
    move |below| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// Without what belongs to a process.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().expect("known").is_dir() {
            true => copy(&path, &to),
            false if entry.file_name() == "tasks.db-shm" => {}
            false => drop(fs::copy(path, to).expect("copied")),
        }
    }
}

#[test]
fn on_a_disk_that_takes_no_more_nothing_is_acknowledged_and_it_goes_on_once_there_is_room() {
    let world = StoreFolder::new();
    // A file that may not grow is an error then, and not a signal.
    let output = again("crashes::meets_a_disk_that_takes_no_more", "trap '' XFSZ;", &world.path)
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is run by others, in a process of its own"]
async fn meets_a_disk_that_takes_no_more() {
    let store = folder().expect("it is run by another test");
    for number in 0..10 {
        insert(&*store, number).await;
    }
    end(&*store, 0, 1000).await;
    let before = getrlimit(Resource::Fsize);
    for round in 0..3 {
        setrlimit(Resource::Fsize, Rlimit { current: Some(200_000), ..before }).expect("it may be less");
        let refused = loop {
            let number = 100 + u32::try_from(store.usage(&[1; 16]).tasks).expect("few");
            match store.insert(record(number)).await {
                Ok(()) => {}
                Err(StoreError::Unavailable(words)) => break (number, words),
                Err(other) => panic!("{other}"),
            }
        };
        let (number, words) = refused;
        assert!(words.contains("the disk fails to read or write"), "{words}");
        // Neither is a result, whether it is a file or not; what was acknowledged is still read.
        let live = 1 + round;
        for bytes in [1000, 1 << 20] {
            let told = update(&*store, &id(live), &returned(bytes), START).await;
            assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
        }
        assert_eq!(reached(&*store, live).await, Some(Step::Inserted));
        assert_eq!(result(&*store, 0).await, Some(1000));
        assert_eq!(reached(&*store, number).await, None);
        setrlimit(Resource::Fsize, before).expect("it may be what it was");
        insert(&*store, number).await;
        end(&*store, live, 1 << 20).await;
        assert_eq!(result(&*store, live).await, Some(1 << 20));
    }
    let usage = store.usage(&[1; 16]);
    store.close().await;
    let store = folder().expect("it is there");
    assert_eq!(store.usage(&[1; 16]), usage);
    for number in 1..=3 {
        assert_eq!(result(&*store, number).await, Some(1 << 20));
    }
    let version = store.load(&id(9)).await.expect("answers").expect("found").version;
    assert!(store.swap(version, record(9), Durability::Machine).await.expect("kept"));
}
