//! The ledger of tasks alone: no client, no server, and a store that fails on request.

use crate::support::faulty_store::{EVERYTHING, FaultyStore, Op};
use bytes::Bytes;
use deferral::internals::{
    policy::TaskQuotas,
    proxy::{TaskAdmissionError, TaskLedger},
    runtime::{Clock, Drain, SystemClock},
    store::{MemoryStore, Store, StoreError, UpdateOutcome},
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState},
};
use std::{sync::Arc, time::Duration};

/// A ledger of a store that works so far.
fn ledger(quotas: TaskQuotas) -> (Arc<TaskLedger>, Arc<FaultyStore>, Arc<SystemClock>) {
    let (store, clock) = (FaultyStore::new(), Arc::new(SystemClock::new()));
    (TaskLedger::new(store.clone(), None, quotas, clock.clone()), store, clock)
}

/// A task that has just begun.
fn record(clock: &SystemClock) -> Record {
    let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    let retention = Duration::from_secs(60 * 60);
    Record::new(TaskId::from_entropy([7; 16]), owner, "slow", retention, clock.timestamp())
}

fn returned(bytes: usize) -> TaskEvent {
    TaskEvent::Returned { result: Bytes::from(format!(r#"{{"content":"{}"}}"#, "x".repeat(bytes))) }
}

#[tokio::test]
async fn a_task_that_the_store_refuses_does_not_exist() {
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    store.fails(&[Op::Insert]);
    assert_eq!(ledger.admit(record.clone(), false).await.err(), Some(TaskAdmissionError::StoreFailed));
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
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let words = TaskEvent::Progressed { message: "half way".to_owned() };
    assert!(matches!(ledger.change(&record.id, &words).await, Ok(UpdateOutcome::Applied { .. })));
    store.fails(&EVERYTHING);
    let known = ledger.load(&record.id).await.expect("it is held here").expect("it is there");
    assert_eq!(known.message.as_deref(), Some("half way"), "as it was last kept");
    let failed = ledger.change(&record.id, &TaskEvent::CANCELLED_BY_CLIENT).await;
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    assert_eq!(ledger.last_stored(&record.id).expect("it is held here").state, TaskState::Working);
    drop(custody);
    assert!(ledger.load(&record.id).await.is_err(), "nobody here can know what has become of it");
}

#[tokio::test(start_paused = true)]
async fn an_unstored_change_is_retried_and_shown_to_no_client() {
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let (_drain, overdue) = Drain::new();
    store.fails(&[Op::Swap]);
    let keeping = tokio::spawn(async move { (custody.persist(returned(1), &overdue).await, custody) });
    store.refused(Op::Swap).await;
    let known =
        ledger.with_store_status(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert_eq!(known.state, TaskState::Working);
    assert!(known.message.as_ref().is_some_and(|words| words.contains("store")), "{known:?}");
    assert_eq!(ledger.unfetched(), 0, "there is nothing to fetch yet");
    store.works();
    let (kept, custody) = keeping.await.expect("it does not panic");
    assert!(matches!(kept, Ok(UpdateOutcome::Applied { .. })), "{kept:?}");
    assert_eq!(ledger.unfetched(), 1);
    drop(custody);
    let known =
        ledger.with_store_status(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert!(matches!(known.state, TaskState::Completed { .. }), "{known:?}");
    assert_eq!(known.message, None);
}

#[tokio::test(start_paused = true)]
async fn unstored_bytes_are_bounded() {
    let (ledger, store, clock) = ledger(TaskQuotas { stored_bytes: 4000, ..TaskQuotas::default() });
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    let (_drain, overdue) = Drain::new();
    store.fails(&[Op::Swap]);
    let keeping = tokio::spawn(async move { custody.persist(returned(5000), &overdue).await });
    store.refused(Op::Swap).await;
    store.works();
    assert!(matches!(keeping.await.expect("it does not panic"), Ok(UpdateOutcome::Applied { .. })));
    let known = ledger.load(&record.id).await.expect("it answers").expect("it is there");
    let TaskState::Failed { error } = &known.state else { panic!("{known:?}") };
    assert!(String::from_utf8_lossy(error).contains("limits.stored_bytes"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_could_not_be_removed_ends_and_its_lease_is_not_renewed() {
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone(), false).await.expect("there is room");
    store.fails(&[Op::Remove]);
    custody.discard().await;
    store.works();
    assert_eq!(ledger.working(), 0, "nobody holds it");
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(Arc::clone(&ledger).maintain(Vec::new(), stopping));
    // When half of its life is over it is to be renewed, or ended.
    tokio::time::sleep(Duration::from_secs(40 * 60)).await;
    let known = ledger.load(&record.id).await.expect("it answers").expect("it is there");
    let TaskState::Failed { error } = &known.state else { panic!("{known:?}") };
    assert!(error.starts_with(br#"{"code":-31002,"#), "{error:?}");
    looking_after.abort();
}

#[tokio::test(start_paused = true)]
async fn orphans_of_a_process_end_concurrently() {
    let (memory, clock) = (MemoryStore::default(), Arc::new(SystemClock::new()));
    let ids: Vec<_> = (0..100).map(|number| TaskId::from_entropy([number; 16])).collect();
    for id in &ids {
        let record = Record { id: id.clone(), ..record(&clock) };
        memory.insert(Arc::new(record)).await.expect("kept");
    }
    let store = FaultyStore::awaiting(memory.restarted(), ids.len());
    let ledger = TaskLedger::new(store, None, TaskQuotas::default(), clock);
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(Arc::clone(&ledger).maintain(Vec::new(), stopping));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in &ids {
        let known = ledger.load(id).await.expect("it answers").expect("it is there");
        assert!(matches!(known.state, TaskState::Failed { .. }), "{known:?}");
    }
    looking_after.abort();
}
