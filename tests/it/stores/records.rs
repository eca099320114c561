//! Records: insertion, concurrent changes, due times, large results, restarts.

use super::{
    Fresh, MINUTE, START, asked, census, due, id, inserted, kept, listed, progressed, record, record_of,
    swapped, with,
};
use bytes::Bytes;
use deferral::internals::{
    protocol::{ClockOffset, ClockReading, Timestamp},
    store::{RecordVersion, Store, StoreError, StoreUsage, UpdateOutcome, update},
    task::{EventRefusal, Record, TaskEvent, TaskPrincipal, TaskSharing, TaskState},
};

use std::{collections::BTreeMap, sync::Arc};

pub(super) async fn records_survive_a_restart(mut fresh: Fresh) {
    for number in 1..=6 {
        inserted(&*fresh.store, record_of(number, number % 2, START)).await;
    }
    fresh.change(1, progressed("half")).await;
    fresh.change(2, asked("a")).await;
    fresh.change(3, TaskEvent::Returned { result: vec![b'x'; 1000].into() }).await;
    fresh.change(4, TaskEvent::Failed { error: "{}".into(), message: Some("why".into()) }).await;
    fresh.change(5, TaskEvent::CANCELLED_BY_CLIENT).await;
    fresh.store.remove(&id(6)).await.expect("removed");
    let late = START + MINUTE * 600;
    let owner = record_of(1, 1, START).owner.clone();
    let seen = async |store: &dyn Store| {
        let mut found = Vec::new();
        for number in 1..=6 {
            found.push(store.load(&id(number)).await.expect("answers"));
        }
        let mut usage = Vec::new();
        for principal in 0..3 {
            usage.push(store.usage(&[principal; 16]));
        }
        let usage = (usage, census(store).await);
        let listed = listed(store, &owner, None, 99).await.len();
        (found, usage, due(store, late, 99).await, listed)
    };
    let before = seen(&*fresh.store).await;
    assert_eq!(before.0.iter().flatten().count(), 5);
    fresh.restart().await;
    assert_eq!(seen(&*fresh.store).await, before);
    // It goes on as it was.
    fresh.change(1, TaskEvent::CANCELLED_BY_CLIENT).await;
    assert!(matches!(fresh.store.insert(record(2)).await, Err(StoreError::Exists)));
    inserted(&*fresh.store, record(6)).await;
}

pub(super) async fn orphans_of_a_process_are_given_to_the_next_once(mut fresh: Fresh) {
    for number in 1..=6 {
        inserted(&*fresh.store, record(number)).await;
    }
    fresh.change(2, asked("a")).await;
    fresh.change(3, TaskEvent::Returned { result: "{}".into() }).await;
    fresh.change(4, TaskEvent::CANCELLED_BY_CLIENT).await;
    fresh.change(5, TaskEvent::CANCELLED_BY_CLIENT).await;
    fresh.store.set_anchor(&id(5), Some("to tell".into())).await.expect("kept");
    fresh.store.set_anchor(&id(6), Some("to take up".into())).await.expect("kept");
    assert_eq!(fresh.orphans(9).await, [], "somebody sees to all of them");
    fresh.restart().await;
    inserted(&*fresh.store, record(7)).await;
    let mut found = fresh.orphans(3).await;
    assert_eq!(found.len(), 3, "{found:?}");
    found.extend(fresh.orphans(9).await);
    found.sort();
    let wanted =
        [(id(1), None), (id(2), None), (id(5), Some("to tell".into())), (id(6), Some("to take up".into()))];
    assert_eq!(found, wanted, "nothing that has ended and needs no more, and not its own");
    assert_eq!(fresh.orphans(9).await, [], "each is given once");
    // Whose process ends, too, before anything has become of them.
    fresh.restart().await;
    fresh.store.set_anchor(&id(5), None).await.expect("kept");
    let found: Vec<_> = fresh.orphans(9).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, [id(1), id(2), id(6), id(7)]);
}

pub(super) async fn an_anchor_is_kept_until_it_is_of_no_use(mut fresh: Fresh) {
    for number in 1..=3 {
        inserted(&*fresh.store, record(number)).await;
        fresh.store.set_anchor(&id(number), Some("first".into())).await.expect("kept");
    }
    fresh.store.set_anchor(&id(9), Some("of nothing".into())).await.expect("no error");
    // It is no change: who has read the version may still swap.
    fresh.store.set_anchor(&id(1), Some("later".into())).await.expect("kept");
    assert!(swapped(&*fresh.store, RecordVersion::FIRST, record(1)).await);
    fresh.change(2, TaskEvent::CANCELLED_BY_CLIENT).await;
    fresh.change(3, TaskEvent::Failed { error: "{}".into(), message: None }).await;
    fresh.restart().await;
    let found = fresh.orphans(9).await;
    assert_eq!(found, [(id(1), Some("later".into())), (id(2), Some("first".into()))]);
    fresh.store.set_anchor(&id(1), None).await.expect("kept");
    fresh.restart().await;
    assert_eq!(fresh.orphans(9).await[0], (id(1), None));
    fresh.store.remove(&id(1)).await.expect("removed");
    fresh.restart().await;
    assert_eq!(fresh.orphans(9).await, [(id(2), Some("first".into()))]);
}

pub(super) async fn inserted_records_are_found(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    inserted(&*store, record(2)).await;
    assert_eq!(kept(&*store, 1).await, Some(record(1)));
    assert_eq!(kept(&*store, 2).await, Some(record(2)));
}

pub(super) async fn an_id_is_taken_once(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let other = record_of(1, 9, START + MINUTE);
    assert!(matches!(store.insert(other).await, Err(StoreError::Exists)));
    assert_eq!(kept(&*store, 1).await, Some(record(1)));
    let usage = store.usage(&[9; 16]);
    assert_eq!((usage.tasks, usage.tasks_of_principal), (1, 0));
}

pub(super) async fn an_unknown_id_is_absent_and_no_error(store: Arc<dyn Store>) {
    assert_eq!(kept(&*store, 1).await, None);
    assert!(!swapped(&*store, RecordVersion(0), record(1)).await);
    assert_eq!(kept(&*store, 1).await, None);
    store.remove(&id(1)).await.expect("no error");
    let event = progressed("x");
    assert!(matches!(update(&*store, &id(1), &event, START).await, Ok(UpdateOutcome::Unknown)));
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 9).await.expect("answers"), []);
    assert_eq!(store.usage(&[1; 16]), StoreUsage::default());
}

pub(super) async fn only_the_first_of_two_writers_wins(store: Arc<dyn Store>) {
    let version = inserted(&*store, record(1)).await;
    let (first, second) =
        (with(&record(1), TaskEvent::CANCELLED_BY_CLIENT), with(&record(1), progressed("late")));
    assert!(swapped(&*store, version, Arc::clone(&first)).await);
    assert!(!swapped(&*store, version, second).await);
    assert_eq!(kept(&*store, 1).await, Some(first));
}

pub(super) async fn a_version_is_good_for_one_change(store: Arc<dyn Store>) {
    let first = inserted(&*store, record(1)).await;
    // The same record again is a change too.
    assert!(swapped(&*store, first, record(1)).await);
    assert!(!swapped(&*store, first, record(1)).await);
    let second = store.load(&id(1)).await.expect("answers").expect("found").version;
    assert!(first < second);
    assert!(swapped(&*store, second, record(1)).await);
}

pub(super) async fn an_update_does_not_restore_a_removed_record(store: Arc<dyn Store>) {
    let version = inserted(&*store, record(1)).await;
    store.remove(&id(1)).await.expect("removed");
    assert!(!swapped(&*store, version, record(1)).await);
    assert_eq!(kept(&*store, 1).await, None);
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 9).await.expect("answers"), []);
    assert_eq!(store.usage(&[1; 16]), StoreUsage::default());
}

pub(super) async fn concurrent_changes_are_all_kept(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let writers: Vec<_> = (0..50)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(
                async move { update(&*store, &id(1), &asked(&format!("q{number:02}")), START).await },
            )
        })
        .collect();
    for writer in writers {
        assert!(matches!(writer.await.expect("ends"), Ok(UpdateOutcome::Applied { .. })));
    }
    let task = kept(&*store, 1).await.expect("found");
    let TaskState::InputRequired { outstanding } = &task.state else { panic!("asks: {task:?}") };
    assert!(outstanding.keys().cloned().eq((0..50).map(|number| format!("q{number:02}"))));

    // Of fifty who end it, one does.
    let enders: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { update(&*store, &id(1), &TaskEvent::CANCELLED_BY_CLIENT, START).await })
        })
        .collect();
    let mut ended = 0;
    for ender in enders {
        match ender.await.expect("ends").expect("answers") {
            UpdateOutcome::Applied { .. } => ended += 1,
            UpdateOutcome::Refused(refusal) => assert_eq!(refusal, EventRefusal::Ended),
            UpdateOutcome::Unknown => panic!("the task is there"),
        }
    }
    assert_eq!(ended, 1);
}

pub(super) async fn concurrent_inserts_of_one_id_succeed_once(store: Arc<dyn Store>) {
    let writers: Vec<_> = (1..=50)
        .map(|principal| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.insert(record_of(1, principal, START)).await.is_ok() })
        })
        .collect();
    let mut won = 0;
    for writer in writers {
        won += usize::from(writer.await.expect("ends"));
    }
    assert_eq!(won, 1);
    let winner = kept(&*store, 1).await.expect("found").owner.principal;
    let usage = store.usage(&winner);
    assert_eq!((usage.tasks, usage.tasks_of_principal), (1, 1));
}

pub(super) async fn the_longest_due_come_first_within_the_limit(store: Arc<dyn Store>) {
    // Inserted out of order: task n is created n minutes after the start, and due five later.
    for number in [3, 1, 4, 2] {
        inserted(&*store, record_of(number, 1, START + MINUTE * u32::from(number))).await;
    }
    let due = async |minutes: u32, limit| due(&*store, START + MINUTE * minutes, limit).await;
    assert_eq!(due(5, 9).await, []);
    assert_eq!(due(6, 9).await, [id(1)]);
    assert_eq!(due(9, 9).await, [id(1), id(2), id(3), id(4)]);
    assert_eq!(due(9, 2).await, [id(1), id(2)]);
    assert_eq!(due(9, 0).await, []);
    // Asking takes nothing away.
    assert_eq!(due(9, 2).await, [id(1), id(2)]);
    store.remove(&id(1)).await.expect("removed");
    assert_eq!(due(9, 2).await, [id(2), id(3)]);
}

pub(super) async fn a_record_that_changed_is_due_anew(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let due = async |minutes: u32| due(&*store, START + MINUTE * minutes, 9).await;
    assert_eq!(due(5).await, [id(1)]);
    let renewed = update(&*store, &id(1), &TaskEvent::TtlRenewed, START + MINUTE * 5).await;
    assert!(matches!(renewed, Ok(UpdateOutcome::Applied { .. })));
    assert_eq!(due(9).await, []);
    assert_eq!(due(10).await, [id(1)]);
    let ended = update(&*store, &id(1), &TaskEvent::CANCELLED_BY_CLIENT, START + MINUTE * 6).await;
    assert!(matches!(ended, Ok(UpdateOutcome::Applied { .. })));
    assert_eq!(due(15).await, []);
    assert_eq!(due(16).await, [id(1)]);
    assert!(kept(&*store, 1).await.expect("found").is_expired(START + MINUTE * 16));
}

pub(super) async fn a_large_result_returns_whole(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let result = Bytes::from(vec![b'x'; 8 << 20]);
    update(&*store, &id(1), &TaskEvent::Returned { result: result.clone() }, START).await.expect("answers");
    let TaskState::Completed { result: back, .. } = &kept(&*store, 1).await.expect("found").state else {
        panic!("completed")
    };
    assert!(*back == result);
}

pub(super) async fn the_clock_is_kept_for_the_next_process(mut fresh: Fresh) {
    assert_eq!(fresh.store.stored_clock(), None);
    let reading = |millis, offset| ClockReading {
        time: START + std::time::Duration::from_millis(millis),
        offset: ClockOffset::from_millis(offset),
    };
    let day = 24 * 60 * 60 * 1000;
    for last in [reading(2, 400 * day), reading(1, -20_000 * day), reading(3, 0)] {
        for kept in [reading(7, 7), last] {
            fresh.store.store_clock(kept).await.expect("kept");
        }
        fresh.store.close().await;
        fresh.store = (fresh.next)();
        assert_eq!(fresh.store.stored_clock(), Some(last));
    }
}

pub(super) async fn every_member_of_a_record_is_kept(store: Arc<dyn Store>) {
    let odd = "ü\0\n\"";
    let asks = with(&with(&record(1), progressed(odd)), asked(odd));
    let answers = BTreeMap::from([(odd.to_owned(), Ok(odd.into()))]);
    let answer = TaskEvent::InputAnswered { answers, are_stored: true };
    let refused = BTreeMap::from([(odd.to_owned(), Err("{}".into()))]);
    let refused = TaskEvent::InputAnswered { answers: refused, are_stored: true };
    let error = TaskState::Failed { error: vec![0, 255, b'\n'].into() };
    let tool_failed = TaskEvent::Returned { result: r#"{"isError":true}"#.into() };
    let in_scope = |scope| {
        let owner = TaskPrincipal { scope, ..asks.owner.clone() };
        Arc::new(Record { owner, ..Record::clone(&asks) })
    };
    for next in [
        Arc::clone(&asks),
        with(&asks, answer),
        with(&asks, refused),
        Arc::new(Record { state: error, ..Record::clone(&asks) }),
        with(&asks, TaskEvent::Returned { result: "".into() }),
        with(&asks, tool_failed),
        with(&asks, TaskEvent::CANCELLED_BY_CLIENT),
        Arc::new(Record { is_translated: false, ..Record::clone(&asks) }),
        Arc::new(Record { clock_offset: ClockOffset::from_millis(-28_800_000), ..Record::clone(&asks) }),
        with(
            &asks,
            TaskEvent::ServerDescribed { server_info: r#"{ "name": "\u00fc\"", "x": 1e400 }"#.into() },
        ),
        in_scope(TaskSharing::Legacy),
        in_scope(TaskSharing::Session([0xff; 16])),
    ] {
        store.remove(&id(1)).await.expect("removed");
        let version = inserted(&*store, record(1)).await;
        assert!(swapped(&*store, version, Arc::clone(&next)).await);
        assert_eq!(kept(&*store, 1).await, Some(next));
    }
}
