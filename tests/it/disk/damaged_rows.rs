//! Rows that cannot be read.

use super::{START, StoreFolder, end, id, insert, record};
use crate::{front::listener_and_service::Lines, support::modern_client::soon};
use deferral::internals::{
    policy::TaskQuotas,
    proxy::TaskLedger,
    runtime::{Drain, SystemClock},
    store::StoreError,
};
use futures_util::future::join_all;
use rusqlite::Connection;
use std::{collections::BTreeSet, sync::Arc};
use tokio::task::yield_now;

/// A store of a process that is gone, with a task that was at work and cannot be read, and one that has ended.
async fn damaged() -> StoreFolder {
    let world = StoreFolder::new();
    let store = world.open();
    insert(&*store, 1).await;
    insert(&*store, 2).await;
    end(&*store, 2, 10).await;
    store.close().await;
    let database = Connection::open(world.database()).expect("opens");
    // The first that is due.
    database
        .execute("UPDATE tasks SET head = '{\"tool\":', due = 0 WHERE id = ?1", [id(1).entropy()])
        .expect("spoiled");
    world
}

#[tokio::test]
async fn an_unreadable_task_is_an_error_with_the_fix() {
    let world = damaged().await;
    let store = world.open();
    let told = store.load(&id(1)).await;
    let Err(StoreError::Unavailable(words)) = &told else { panic!("{told:?}") };
    assert!(words.contains(&id(1).as_str()[..8]) && words.contains("its head cannot be read"), "{words}");
    assert!(words.contains("`deferral store check "), "{words}");
    assert!(store.load(&id(2)).await.expect("answers").is_some(), "the rest is there");
    assert_eq!(store.take_orphans(9).await.expect("answers"), []);
    store.close().await;
}

#[tokio::test]
async fn an_unreadable_task_does_not_stop_the_sweep() {
    let world = damaged().await;
    let store = world.open();
    let clock = Arc::new(SystemClock::new());
    let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock);
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(ledger.maintain(Vec::new(), stopping));
    let is_there = async || store.load(&id(2)).await.expect("answers").is_some();
    let forgotten = async {
        while is_there().await {
            yield_now().await;
        }
    };
    soon(&format!("what ended in {START:?} is over"), forgotten).await;
    looking_after.abort();
    store.close().await;
}

#[tokio::test]
async fn an_unreadable_task_is_omitted_from_lists_and_logged() {
    let world = damaged().await;
    let store = world.open();
    insert(&*store, 3).await;
    let log = Lines::record();
    let page = async |limit| {
        let records = store.list(&record(1).owner, None, limit).await.expect("answers");
        records.iter().map(|record| record.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(page(9).await, [id(2), id(3)]);
    assert_eq!(log.of("task_unreadable")[0]["task"], id(1).as_str()[..8]);
    assert_eq!(page(1).await, [id(2)], "a page that is not full would be the last");
    store.close().await;
}

#[tokio::test]
async fn tasks_that_cannot_be_read_are_named_once_each_and_no_more_of_them_than_can_be_looked_through() {
    let world = StoreFolder::new();
    let store = world.open();
    join_all((0..1030).map(|number| insert(&*store, number))).await;
    store.close().await;
    let database = Connection::open(world.database()).expect("opens");
    database.execute("UPDATE tasks SET head = '{\"tool\":'", []).expect("spoiled");
    let store = world.open();
    let log = Lines::record();
    let named = || {
        let lines = log.of("task_unreadable");
        let names: BTreeSet<_> = lines.iter().map(|line| line["task"].to_string()).collect();
        (lines.len(), names.len())
    };
    let list = async |all| store.list(&record(1).owner, None, all).await.expect("answers");
    // A client looks again every few seconds.
    assert_eq!(list(9).await, []);
    assert_eq!(list(9).await, []);
    assert_eq!(named(), (1024, 1024));
    store.close().await;
}
