//! The ledger of tasks alone: no client, no server, and a store that fails on request.

use crate::support::faulty_store::{EVERYTHING, FaultyStore, Op};
use bytes::Bytes;
use deferral::internals::{
    policy::Quotas,
    proxy::{Ledger, NoRoom},
    runtime::{Clock, Drain, SystemClock},
    store::{Memory, Store, StoreError, Updated},
    task::{Event, Owner, Record, Scope, State, TaskId},
};
use std::{sync::Arc, time::Duration};

/// A ledger of a store that works so far.
fn ledger(quotas: Quotas) -> (Arc<Ledger>, Arc<FaultyStore>, Arc<SystemClock>) {
    let (store, clock) = (FaultyStore::new(), Arc::new(SystemClock::new()));
    (Ledger::new(store.clone(), None, quotas, clock.clone()), store, clock)
}

/// A task that has just begun.
fn record(clock: &SystemClock) -> Record {
    let owner = Owner { principal: [1; 16], route: "/mcp".into(), scope: Scope::Principal };
    let retention = Duration::from_secs(60 * 60);
    Record::new(TaskId::from_entropy([7; 16]), owner, "slow", retention, clock.timestamp())
}

fn returned(bytes: usize) -> Event {
    Event::Returned { result: Bytes::from(format!(r#"{{"content":"{}"}}"#, "x".repeat(bytes))) }
}

#[tokio::test]
async fn a_task_that_the_store_refuses_does_not_exist() {
    let (ledger, store, clock) = ledger(Quotas::default());
    let record = record(&clock);
    store.fails(&[Op::Insert]);
    assert_eq!(ledger.admit(record.clone(), false).await.err(), Some(NoRoom::StoreFailed));
    assert_eq!(ledger.working(), 0);
    store.fails(&EVERYTHING);
    assert!(ledger.load(&record.id).await.is_err(), "nothing is known of it");
    store.works();
    assert!(ledger.load(&record.id).await.expect("it answers").is_none());
    let _custody = ledger.admit(record, false).await.expect("its place was given back");
    assert_eq!(ledger.working(), 1);
}

#[tokio::test]
async fn a_task_is_known_while_the_store_fails_for_as_long_as_its_call_is_held() {
    let (ledger, store, clock) = ledger(Quotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let words = Event::Progressed { message: "half way".to_owned() };
    assert!(matches!(ledger.change(&record.id, &words).await, Ok(Updated::Done { .. })));
    store.fails(&EVERYTHING);
    let known = ledger.load(&record.id).await.expect("it is held here").expect("it is there");
    assert_eq!(known.message.as_deref(), Some("half way"), "as it was last kept");
    let failed = ledger.change(&record.id, &Event::CANCELLED_BY_CLIENT).await;
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    assert_eq!(ledger.last_kept(&record.id).expect("it is held here").state, State::Working);
    drop(custody);
    assert!(ledger.load(&record.id).await.is_err(), "nobody here can know what has become of it");
}

#[tokio::test(start_paused = true)]
async fn an_unstored_change_is_retried_and_shown_to_no_client() {
    let (ledger, store, clock) = ledger(Quotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let (_drain, overdue) = Drain::new();
    store.fails(&[Op::Swap]);
    let keeping = tokio::spawn(async move { (custody.keep(returned(1), &overdue).await, custody) });
    store.refused(Op::Swap).await;
    let known = ledger.as_it_stands(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert_eq!(known.state, State::Working);
    assert!(known.message.as_ref().is_some_and(|words| words.contains("store")), "{known:?}");
    assert_eq!(ledger.unfetched(), 0, "there is nothing to fetch yet");
    store.works();
    let (kept, custody) = keeping.await.expect("it does not panic");
    assert!(matches!(kept, Ok(Updated::Done { .. })), "{kept:?}");
    assert_eq!(ledger.unfetched(), 1);
    drop(custody);
    let known = ledger.as_it_stands(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert!(matches!(known.state, State::Completed { .. }), "{known:?}");
    assert_eq!(known.message, None);
}

#[tokio::test(start_paused = true)]
async fn unstored_bytes_are_bounded() {
    let (ledger, store, clock) = ledger(Quotas { stored_bytes: 4000, ..Quotas::default() });
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let (_drain, overdue) = Drain::new();
    store.fails(&[Op::Swap]);
    let keeping = tokio::spawn(async move { custody.keep(returned(5000), &overdue).await });
    store.refused(Op::Swap).await;
    store.works();
    assert!(matches!(keeping.await.expect("it does not panic"), Ok(Updated::Done { .. })));
    let known = ledger.load(&record.id).await.expect("it answers").expect("it is there");
    let State::Failed { error } = &known.state else { panic!("{known:?}") };
    assert!(String::from_utf8_lossy(error).contains("limits.stored_bytes"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_could_not_be_removed_ends_and_its_lease_is_not_renewed() {
    let (ledger, store, clock) = ledger(Quotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    store.fails(&[Op::Remove]);
    custody.forget().await;
    store.works();
    assert_eq!(ledger.working(), 0, "nobody holds it");
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(Arc::clone(&ledger).look_after(Vec::new(), stopping));
    // When half of its life is over it is to be renewed, or ended.
    tokio::time::sleep(Duration::from_secs(40 * 60)).await;
    let known = ledger.load(&record.id).await.expect("it answers").expect("it is there");
    let State::Failed { error } = &known.state else { panic!("{known:?}") };
    assert!(error.starts_with(br#"{"code":-31002,"#), "{error:?}");
    looking_after.abort();
}

#[tokio::test(start_paused = true)]
async fn orphans_of_a_process_end_concurrently() {
    let (memory, clock) = (Memory::default(), Arc::new(SystemClock::new()));
    let ids: Vec<_> = (0..100).map(|number| TaskId::from_entropy([number; 16])).collect();
    for id in &ids {
        let record = Record { id: id.clone(), ..record(&clock) };
        memory.insert(Arc::new(record)).await.expect("kept");
    }
    let store = FaultyStore::awaiting(memory.restarted(), ids.len());
    let ledger = Ledger::new(store, None, Quotas::default(), clock);
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(Arc::clone(&ledger).look_after(Vec::new(), stopping));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in &ids {
        let known = ledger.load(id).await.expect("it answers").expect("it is there");
        assert!(matches!(known.state, State::Failed { .. }), "{known:?}");
    }
    looking_after.abort();
}
