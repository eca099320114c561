//! Counts of tasks and bytes, and the limits that they are compared with.

use super::{START, census, id, inserted, progressed, record, record_of, swapped, with};
use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    store::{MemoryStore, RecordVersion, Store, StoreBounds, StoreError, StoreUsage, UpdateOutcome, update},
    task::{Record, TaskEvent, TaskState},
};

use std::{collections::BTreeMap, sync::Arc};

pub(super) async fn usage_agrees_with_the_records(store: Arc<dyn Store>) {
    let usage = async |principal: u8| {
        let StoreUsage { tasks_of_principal, tasks, stored_bytes, .. } = store.usage(&[principal; 16]);
        (tasks_of_principal, tasks, stored_bytes)
    };
    let one = record(1).stored_bytes();
    inserted(&*store, record(1)).await;
    inserted(&*store, record_of(2, 1, START)).await;
    inserted(&*store, record_of(3, 2, START)).await;
    assert_eq!(usage(1).await, (2, 3, 3 * one));
    assert_eq!(usage(2).await, (1, 3, 3 * one));
    assert_eq!(usage(3).await, (0, 3, 3 * one));

    let result = TaskEvent::Returned { result: vec![b' '; 1000].into() };
    update(&*store, &id(1), &result, START).await.expect("answers");
    // Ended tasks count until they are forgotten.
    assert_eq!(usage(1).await, (2, 3, 3 * one + 1000));

    // A writer who lost counts for nothing.
    assert!(!swapped(&*store, RecordVersion(0), with(&record(1), progressed("lost"))).await);
    assert_eq!(usage(1).await, (2, 3, 3 * one + 1000));

    store.remove(&id(1)).await.expect("removed");
    store.remove(&id(1)).await.expect("removed once");
    assert_eq!(usage(1).await, (1, 2, 2 * one));
    store.remove(&id(2)).await.expect("removed");
    store.remove(&id(3)).await.expect("removed");
    assert_eq!(usage(1).await, (0, 0, 0));
}

pub(super) async fn the_census_agrees_with_the_records(store: Arc<dyn Store>) {
    assert!(census(&*store).await.is_empty());
    let elsewhere = |number| {
        let mut record = Record::clone(&record_of(number, 1, START));
        record.owner.route = "/other".into();
        Arc::new(record)
    };
    inserted(&*store, record(1)).await;
    inserted(&*store, record_of(2, 2, START)).await;
    inserted(&*store, elsewhere(3)).await;
    let route = record(1).owner.route.to_string();
    let of = |counts: &[(&str, &'static str, usize)]| -> BTreeMap<_, _> {
        counts.iter().map(|(route, status, tasks)| (((*route).to_owned(), *status), *tasks)).collect()
    };
    assert_eq!(census(&*store).await, of(&[(&route, "working", 2), ("/other", "working", 1)]));
    let result = TaskEvent::Returned { result: Bytes::from_static(b"{}") };
    update(&*store, &id(1), &result, START).await.expect("answers");
    update(&*store, &id(3), &TaskEvent::CANCELLED_BY_CLIENT, START).await.expect("answers");
    let wanted = [(&*route, "completed", 1), (&route, "working", 1), ("/other", "cancelled", 1)];
    assert_eq!(census(&*store).await, of(&wanted));
    for number in 1..=3 {
        store.remove(&id(number)).await.expect("removed");
    }
    assert!(census(&*store).await.is_empty());
}

pub(super) async fn usage_is_right_after_concurrent_changes(store: Arc<dyn Store>) {
    let crowd: Vec<_> = (0..64u8)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store.insert(record_of(number, number % 4, START)).await.expect("inserted");
                for message in ["a", "bb", "ccc"] {
                    update(&*store, &id(number), &progressed(message), START).await.expect("answers");
                }
                if number % 2 == 0 {
                    store.remove(&id(number)).await.expect("removed");
                }
            })
        })
        .collect();
    for one in crowd {
        one.await.expect("ends");
    }
    let each = record(1).stored_bytes() + "ccc".len();
    let usage = async |principal: u8| store.usage(&[principal; 16]);
    let total = StoreUsage { tasks: 32, stored_bytes: 32 * each, ..StoreUsage::default() };
    assert_eq!(usage(0).await, total);
    let share = StoreUsage { tasks_of_principal: 16, stored_bytes_of_principal: 16 * each, ..total };
    assert_eq!(usage(1).await, share);
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 99).await.expect("answers").len(), 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_does_not_fit_is_refused_and_changes_nothing_however_many_come_at_once() {
    let bounds = StoreBounds { stored_bytes: 100_000, stored_bytes_per_principal: 60_000 };
    let store: Arc<dyn Store> = Arc::new(MemoryStore::bounded(bounds));
    let all: Vec<_> = (0..64).map(|number| record_of(number, number % 2, START)).collect();
    for record in &all {
        inserted(&*store, Arc::clone(record)).await;
    }
    let ends = all.iter().map(|record| {
        let (store, id) = (Arc::clone(&store), record.id.clone());
        tokio::spawn(async move {
            let result = TaskEvent::Returned { result: vec![b' '; 10_000].into() };
            (id.clone(), update(&*store, &id, &result, START).await)
        })
    });
    let (mut fit, mut full) = (0, Vec::new());
    for end in ends.collect::<Vec<_>>() {
        match end.await.expect("ends") {
            (_, Ok(UpdateOutcome::Applied { .. })) => fit += 1,
            (id, Err(StoreError::Full(limit))) => full.push((id, limit)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((fit, full.len()), (9, 55), "each of the two has room for five, and both for nine");
    for limit in ["limits.stored_bytes", "limits.stored_bytes_per_principal"] {
        assert!(full.iter().any(|(_, named)| *named == limit), "{limit}: {full:?}");
    }
    for (id, _) in &full {
        let record = store.load(id).await.expect("answers").expect("it is there").record;
        assert_eq!(record.state, TaskState::Working, "it is as it was");
        // Why it failed must always fit.
        let error = TaskEvent::Failed { error: vec![b' '; 300].into(), message: Some("x".repeat(300)) };
        assert!(matches!(update(&*store, id, &error, START).await, Ok(UpdateOutcome::Applied { .. })));
    }
    let kept = store.usage(&[0; 16]).stored_bytes;
    assert!(kept <= bounds.stored_bytes + full.len() * StoreBounds::ALWAYS_ADMITTED, "{kept}");
}
