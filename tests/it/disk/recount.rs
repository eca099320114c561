//! Counts of a store are compared with its tasks after a start, and corrected.

use super::{StoreFolder, end, id, insert, record};
use crate::{front::listener_and_service::Lines, support::paused_time::a_moment};
use deferral::internals::{
    store::{DiskStore, Store, StoreBounds, StoreUsage},
    task::{Record, TaskPrincipal, TaskSharing},
};
use rusqlite::Connection;
use std::{process::Command, sync::Arc};

/// A store that is closed, with two tasks of one principal that have ended and one that works, and one of another.
async fn furnished() -> (StoreFolder, [StoreUsage; 2]) {
    let world = StoreFolder::new();
    let store = world.open();
    for number in 1..=3 {
        insert(&*store, number).await;
    }
    let owner =
        TaskPrincipal { principal: [2; 16], route: "/other".into(), scope: TaskSharing::Session([7; 16]) };
    let other = Record { owner, ..Record::clone(&record(4)) };
    store.insert(Arc::new(other)).await.expect("inserted");
    end(&*store, 2, 1000).await;
    end(&*store, 3, 2000).await;
    end(&*store, 4, 4000).await;
    let usage = [[1; 16], [2; 16]].map(|principal| store.usage(&principal));
    store.close().await;
    (world, usage)
}

fn spoil(world: &StoreFolder, sql: &str) {
    Connection::open(world.database()).expect("opens").execute_batch(sql).expect("spoiled");
}

/// What `deferral store check` says, and its exit code.
fn check(world: &StoreFolder) -> (String, Option<i32>) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_deferral")).args(["store", "check", &world.shown()]).output();
    let output = output.expect("the program starts");
    (String::from_utf8(output.stdout).expect("text"), output.status.code())
}

#[tokio::test]
async fn wrong_counts_are_corrected_at_the_start_and_logged() {
    let (world, usage) = furnished().await;
    spoil(
        &world,
        "UPDATE usage SET tasks = tasks + 10000, bytes = bytes + 5 WHERE principal = x'01010101010101010101010101010101';
         DELETE FROM usage WHERE principal = x'02020202020202020202020202020202';
         INSERT INTO usage VALUES (x'03', '/mcp', 'completed', 7, 7);
         INSERT INTO usage VALUES (x'09090909090909090909090909090909', '/mcp', 'failed', -3, -3)",
    );
    let (said, code) = check(&world);
    assert!(said.contains("the table `usage` differs from the tasks; the next start repairs it"), "{said}");
    assert_eq!(code, Some(2));
    let log = Lines::record();
    let store = DiskStore::open(&world.path, StoreBounds::NONE, None).expect("opens");
    assert_eq!([[1; 16], [2; 16]].map(|principal| store.usage(&principal)), usage);
    let recount = store.recount().await.expect("answers");
    assert_eq!(recount.differences, [""; 0]);
    assert_eq!(recount.usage.into_values().collect::<Vec<_>>(), usage);
    let mended = log.of("counts_mended");
    let number = |name: &str| mended[0][name].as_u64().unwrap_or_else(|| panic!("{mended:?}"));
    // A task of the second has the name of its tool besides its result.
    assert_eq!(["surplus_tasks", "surplus_bytes"].map(number), [10_000, 5]);
    assert_eq!(["missing_tasks", "missing_bytes"].map(number), [1, 4004]);
    assert!(number("counts") >= 2, "{mended:?}");
    store.close().await;
    assert_eq!(check(&world).1, Some(0));
    // What is mended is mended.
    let store = world.open();
    assert_eq!([[1; 16], [2; 16]].map(|principal| store.usage(&principal)), usage);
    assert_eq!(log.of("counts_mended").len(), 1);
    for number in 1..=4 {
        store.remove(&id(number)).await.expect("removed");
    }
    assert_eq!(store.usage(&[1; 16]), StoreUsage::default());
}

#[tokio::test]
async fn a_low_count_refuses_no_task_during_the_recount() {
    let (world, _) = furnished().await;
    // More than are counted before the store is opened, behind those that are there.
    spoil(
        &world,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
         INSERT INTO tasks (id, version, node, state, open, due, owner, created, bytes, head, body)
         SELECT randomblob(16), version, node, state, open, due, owner, created, bytes, head, body
         FROM n, tasks WHERE number = 2",
    );
    let store = DiskStore::open(&world.path, StoreBounds::NONE, None).expect("opens");
    let first = store.list(&record(1).owner, None, 2000).await.expect("answers");
    let mut removed = 0;
    for record in first.iter().filter(|record| record.state.is_ended()) {
        store.remove(&record.id).await.expect("it goes on");
        removed += 1;
        let usage = store.usage(&[1; 16]);
        assert!(usage.tasks_of_principal <= 60_003 && usage.tasks <= 60_004, "{usage:?}");
        assert!(usage.stored_bytes < 1 << 40, "{usage:?}");
    }
    assert!(removed > 1000);
    insert(&store, 5).await;
    let mut waited = 0;
    while !store.recount().await.expect("answers").differences.is_empty() {
        a_moment().await;
        waited += 1;
        assert!(waited < 10_000, "they are never counted: {:?}", store.usage(&[1; 16]));
    }
    assert_eq!(store.usage(&[1; 16]).tasks_of_principal, 60_004 - removed);
    store.close().await;
    let log = Lines::record();
    world.open();
    assert_eq!(log.of("counts_mended").len(), 0, "the table is right, too");
}

#[tokio::test]
async fn a_task_with_an_unreadable_owner_counts_for_no_principal() {
    let (world, usage) = furnished().await;
    spoil(&world, "UPDATE tasks SET owner = x'00' WHERE number = 4");
    let store = DiskStore::open(&world.path, StoreBounds::NONE, None).expect("opens");
    let owner = TaskPrincipal { principal: [0; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    store.insert(Arc::new(Record { owner, ..Record::clone(&record(5)) })).await.expect("inserted");
    store.remove(&id(4)).await.expect("removed");
    assert_eq!(store.usage(&[0; 16]).tasks_of_principal, 1, "that of nobody is not subtracted");
    assert_eq!(store.usage(&[1; 16]).tasks_of_principal, usage[0].tasks_of_principal);
    assert_eq!(store.recount().await.expect("answers").differences, [""; 0]);
}
