//! `deferral store check` and `backup` as commands.

use super::{START, StoreFolder, end, id, insert, result, returned};
use deferral::internals::store::update;
use rusqlite::Connection;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

pub(super) fn deferral(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deferral")).args(words).output().expect("the program starts")
}

/// What `check` prints of the store, and its exit code.
fn check(world: &StoreFolder) -> (String, Option<i32>) {
    let output = deferral(&["store", "check", &world.shown()]);
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).expect("text").replace(&world.shown(), "PATH"), output.status.code())
}

fn backup(world: &StoreFolder, to: &str) -> (String, Option<i32>) {
    let to = world.above.path().join(to).display().to_string();
    let output = deferral(&["store", "backup", &world.shown(), &to]);
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).expect("text").replace(&to, "TO"), output.status.code())
}

/// A store with a live task, one with a small result, and one with a file.
async fn furnished() -> StoreFolder {
    let world = StoreFolder::new();
    let store = world.open();
    for number in 1..=3 {
        insert(&*store, number).await;
    }
    end(&*store, 2, 1000).await;
    end(&*store, 3, 300 << 10).await;
    store.close().await;
    world
}

const WHOLE: &str = "schema 2\n3 tasks, 1 of them active, 308212 bytes\n1 file of results\n";

#[tokio::test]
async fn a_check_reports_the_contents_beside_a_running_process() {
    let world = furnished().await;
    assert_eq!(check(&world), (format!("{WHOLE}ok\n"), Some(0)));
    let store = world.open();
    let user = format!("in use by process {}: this is a snapshot\n", std::process::id());
    assert_eq!(check(&world), (format!("{user}{WHOLE}ok\n"), Some(0)));
    insert(&*store, 4).await;
    assert!(check(&world).0.contains("4 tasks, 2 of them active"), "what is only in the log is there, too");
    store.close().await;
    let unnamed = world.files()[0].with_file_name("00000000000000000000000000000009.00.0");
    fs::write(unnamed, "left by a crash").expect("written");
    let (said, code) = check(&world);
    assert!(said.ends_with("1 file without a task; the next start removes them\nok\n"), "{said}");
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_check_names_each_thing_that_is_lost() {
    let world = furnished().await;
    let file = world.files().remove(0);
    fs::write(&file, "cut").expect("written");
    let database = Connection::open(world.database()).expect("opens");
    let number = |number| id(number).entropy();
    database.execute("UPDATE tasks SET head = '{}' WHERE id = ?1", [number(1)]).expect("spoiled");
    database.execute("UPDATE tasks SET body = x'00' WHERE id = ?1", [number(2)]).expect("spoiled");
    drop(database);
    let (said, code) = check(&world);
    let shown = file.display().to_string().replace(&world.shown(), "PATH");
    for lost in [
        &format!("LOST task {}: its head cannot be read: ", id(1).as_str()),
        &format!("LOST task {}: its body has 1 bytes, and should have 1000\n", id(2).as_str()),
        &format!("LOST task {}: its result has 3 of 307200 bytes ({shown})\n", id(3).as_str()),
        "3 items lost\n",
    ] {
        assert!(said.contains(lost), "{lost}: {said}");
    }
    assert_eq!(code, Some(2));
    fs::remove_file(&file).expect("removed");
    assert!(check(&world).0.contains(": its result cannot be read: No such file"), "{}", check(&world).0);
}

#[tokio::test]
async fn a_check_of_a_damaged_database_or_of_none_reports_it() {
    let world = StoreFolder::new();
    assert_eq!(check(&world), ("error: there is no task store in PATH\n".to_owned(), Some(2)));
    let store = world.open();
    for number in 0..200 {
        insert(&*store, number).await;
        end(&*store, number, 2000).await;
    }
    store.close().await;
    let mut bytes = fs::read(world.database()).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40_000].fill(0xa5);
    fs::write(world.database(), bytes).expect("written");
    let (said, code) = check(&world);
    assert!(said.contains("LOST the database: "), "{said}");
    assert_eq!(code, Some(2), "{said}");
    // What is asked for and cannot be read is an error that names the remedy, and the rest is served.
    let store = world.open();
    let (mut good, mut lost) = (0, Vec::new());
    for number in 0..200 {
        match store.load(&id(number)).await {
            Ok(Some(_)) => good += 1,
            Ok(None) => {}
            Err(error) => lost.push(error.to_string()),
        }
    }
    let remedy = format!("`deferral store check {}`", world.shown());
    assert!(good > 50 && !lost.is_empty(), "{good} of 200");
    assert!(lost.iter().all(|lost| lost.contains(&remedy)), "{}", lost[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_beside_a_process_that_writes_is_a_whole_store() {
    let world = furnished().await;
    let store = world.open();
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, is_over) = (store.clone(), Arc::clone(&is_over));
        async move {
            for number in 100.. {
                if is_over.load(Ordering::Relaxed) {
                    return number - 100;
                }
                insert(&*store, number).await;
                end(&*store, number, if number % 5 == 0 { 300 << 10 } else { 100 }).await;
                if number % 3 == 0 {
                    store.remove(&id(number - 50)).await.expect("removed");
                }
            }
            0
        }
    });
    let (said, code) = backup(&world, "copy");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("TO: ") && said.ends_with("keep a copy of it in another place\n"), "{said}");
    assert_eq!(
        backup(&world, "copy"),
        ("error: TO exists already; a backup overwrites nothing\n".to_owned(), Some(2))
    );
    is_over.store(true, Ordering::Relaxed);
    assert!(writer.await.expect("ends") > 0, "it was not disturbed");
    store.close().await;
    assert_eq!(check(&world).1, Some(0), "{}", check(&world).0);

    let copy = StoreFolder { path: world.above.path().join("copy"), above: world.above };
    assert_eq!(check(&copy).1, Some(0), "{}", check(&copy).0);
    for (path, mode) in
        [(copy.path.clone(), 0o700), (copy.database(), 0o600), (copy.files().remove(0), 0o600)]
    {
        assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o777, mode);
    }
    let store = copy.open();
    assert_eq!(result(&*store, 3).await, Some(300 << 10));
    assert!(update(&*store, &id(1), &returned(1), START).await.is_ok());
    insert(&*store, 4).await;
}

#[tokio::test]
async fn a_backup_of_what_is_no_store_leaves_nothing() {
    let world = StoreFolder::new();
    let (said, code) = backup(&world, "copy");
    assert_eq!((&*said, code), (&*format!("error: there is no task store in {}\n", world.shown()), Some(2)));
    let world = furnished().await;
    fs::remove_file(world.files().remove(0)).expect("removed");
    let (said, code) = backup(&world, "copy");
    assert!(said.contains("cannot be used: No such file"), "{said}");
    assert_eq!(code, Some(2));
    assert!(!world.above.path().join("copy").exists());
}
