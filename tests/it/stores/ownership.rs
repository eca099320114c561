//! Which process owns a task, and until when.

use super::{Fresh, MINUTE, START, asked, id, inserted, record, swapped, with};
use deferral::internals::{
    store::{LoadedTask, RecordVersion, Store, TaskOwnership, UpdateOutcome, update},
    task::TaskEvent,
};

/// The owner of a task, as each read reports it, and its version.
async fn owned(store: &dyn Store, number: u8) -> (TaskOwnership, RecordVersion) {
    let LoadedTask { ownership, version, record } =
        store.load(&id(number)).await.expect("answers").expect("found");
    let due = store.due(START + MINUTE * 60, 99).await.expect("answers");
    let due = due.into_iter().find(|due| due.id == id(number)).expect("due");
    assert_eq!(due.ownership, ownership);
    let recent = store.recent(record.state.is_ended(), None, 99).await.expect("answers");
    let recent = recent.into_iter().find(|recent| recent.record.id == id(number)).expect("recent");
    assert_eq!(recent.ownership, ownership);
    (ownership, version)
}

pub(super) async fn each_read_reports_who_owns_a_task(mut fresh: Fresh) {
    let own = |fresh: &Fresh| TaskOwnership { owner: fresh.store.process(), lease_until: None };
    let former = own(&fresh);
    for number in 1..=3 {
        inserted(&*fresh.store, record(number)).await;
    }
    fresh.change(2, asked("a")).await;
    fresh.change(3, TaskEvent::Returned { result: "{}".into() }).await;
    for number in 1..=3 {
        assert_eq!(owned(&*fresh.store, number).await.0, former);
    }
    fresh.restart().await;
    let next = own(&fresh);
    assert_ne!(next, former);
    inserted(&*fresh.store, record(4)).await;
    for (number, owner) in [(1, former), (2, former), (3, former), (4, next)] {
        assert_eq!(owned(&*fresh.store, number).await.0, owner, "{number}");
    }
    // A change by another process does not take the task over.
    let told = update(&*fresh.store, &id(2), &asked("b"), START).await.expect("answers");
    assert!(matches!(told, UpdateOutcome::Applied { after, .. } if after.ownership == former));
    assert_eq!(owned(&*fresh.store, 2).await.0, former);
    assert_eq!(fresh.orphans(9).await.len(), 2);
    for (number, owner) in [(1, next), (2, next), (3, former), (4, next)] {
        assert_eq!(owned(&*fresh.store, number).await.0, owner, "{number}");
    }
}

pub(super) async fn a_swap_proves_that_the_owner_is_still_the_same(mut fresh: Fresh) {
    inserted(&*fresh.store, record(1)).await;
    fresh.restart().await;
    let (former, version) = owned(&*fresh.store, 1).await;
    fresh.orphans(9).await;
    let late = with(&record(1), TaskEvent::CANCELLED_BY_CLIENT);
    assert!(!swapped(&*fresh.store, version, late.clone()).await, "it has changed hands");
    let (next, version) = owned(&*fresh.store, 1).await;
    assert_ne!(next, former);
    assert!(swapped(&*fresh.store, version, late).await);
}
