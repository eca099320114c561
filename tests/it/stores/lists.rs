//! Lists of one owner's tasks, and of all tasks for operators.

use super::{Fresh, MINUTE, START, asked, id, inserted, listed, owners, progressed, record_of, swapped};
use deferral::internals::{
    store::{ListCursor, Store, UpdateOutcome, update},
    task::{Record, TaskEvent, TaskId, TaskPrincipal},
};

use std::{sync::Arc, time::Duration};

/// Task `number` of `owner`, created so many seconds after the start.
fn owned(number: u128, owner: &TaskPrincipal, seconds: u64) -> Arc<Record> {
    let id = TaskId::from_entropy(number.to_be_bytes());
    let created = START + Duration::from_secs(seconds);
    Arc::new(Record::new(id, owner.clone(), "slow", Duration::ZERO, created))
}

pub(super) async fn a_list_has_the_tasks_of_its_owner_only(store: Arc<dyn Store>) {
    let mut all = Vec::new();
    // Each has three, and theirs lie between each other's.
    for number in 0..18 {
        let owner = &owners()[usize::try_from(number % 6).expect("small")];
        all.push(owned(number, owner, 1));
        inserted(&*store, Arc::clone(&all[all.len() - 1])).await;
    }
    for owner in owners() {
        let own: Vec<_> = all.iter().filter(|record| record.owner == owner).cloned().collect();
        assert_eq!(own.len(), 3);
        assert_eq!(listed(&*store, &owner, None, 99).await, own);
        // Nor does another's place open a way to the other's tasks.
        for record in &all {
            for found in listed(&*store, &owner, Some(&ListCursor::from_record(record)), 99).await {
                assert_eq!(found.owner, owner);
            }
        }
    }
    let nobody = TaskPrincipal { principal: [9; 16], ..owners().remove(0) };
    assert_eq!(listed(&*store, &nobody, None, 99).await, []);
}

pub(super) async fn a_list_is_in_order_of_age_and_then_of_id(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    // In another order than they are listed in, and than their ids are.
    for (number, seconds) in [(4, 2), (1, 3), (9, 1), (2, 2), (3, 2)] {
        inserted(&*store, owned(number, owner, seconds)).await;
    }
    let wanted = [(9, 1), (2, 2), (3, 2), (4, 2), (1, 3)].map(|(number, at)| owned(number, owner, at));
    assert_eq!(listed(&*store, owner, None, 99).await, wanted);
    // From behind each of them on, the same.
    for (at, record) in wanted.iter().enumerate() {
        assert_eq!(
            listed(&*store, owner, Some(&ListCursor::from_record(record)), 99).await,
            wanted[at + 1..]
        );
    }
}

pub(super) async fn a_list_goes_on_behind_a_place_that_no_longer_exists(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    let records: Vec<_> = (0..6).map(|number| owned(number, owner, number as u64 / 2)).collect();
    for record in &records {
        inserted(&*store, Arc::clone(record)).await;
    }
    store.remove(&records[2].id).await.expect("removed");
    let behind = listed(&*store, owner, Some(&ListCursor::from_record(&records[2])), 2).await;
    assert_eq!(behind, records[3..5]);
    // Places nobody ever had: before everything, between, behind everything.
    for (seconds, number, wanted) in
        [(0, 0, vec![1, 3, 4, 5]), (1, 9, vec![4, 5]), (2, 9, vec![]), (9, 0, vec![])]
    {
        let place = ListCursor::from_record(&owned(number, owner, seconds));
        let wanted: Vec<_> = wanted.into_iter().map(|at: usize| Arc::clone(&records[at])).collect();
        assert_eq!(listed(&*store, owner, Some(&place), 99).await, wanted, "{place:?}");
    }
    // Nothing at all is left.
    for record in &records {
        store.remove(&record.id).await.expect("removed");
    }
    assert_eq!(listed(&*store, owner, Some(&ListCursor::from_record(&records[2])), 99).await, []);
}

pub(super) async fn a_list_stays_within_its_limit(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    assert_eq!(listed(&*store, owner, None, 0).await, []);
    let records: Vec<_> = (0..5).map(|number| owned(number, owner, 1)).collect();
    for record in &records {
        inserted(&*store, Arc::clone(record)).await;
    }
    for limit in [0, 1, 4, 5, 6, usize::MAX] {
        assert_eq!(listed(&*store, owner, None, limit).await, records[..limit.min(5)]);
        let behind = listed(&*store, owner, Some(&ListCursor::from_record(&records[1])), limit).await;
        assert_eq!(behind, records[2..2 + limit.min(3)]);
    }
}

pub(super) async fn a_list_shows_records_as_they_are_now(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    for number in 1..=3 {
        inserted(&*store, owned(number, owner, 0)).await;
    }
    let id = owned(2, owner, 0).id.clone();
    // A change moves nothing: its place follows from when it was created.
    for event in [progressed("half"), asked("a"), TaskEvent::CANCELLED_BY_CLIENT] {
        let told = update(&*store, &id, &event, START + MINUTE).await.expect("answers");
        let UpdateOutcome::Applied { after, .. } = told else { panic!("applied: {told:?}") };
        let wanted = [owned(1, owner, 0), after.record, owned(3, owner, 0)];
        assert_eq!(listed(&*store, owner, None, 99).await, wanted);
    }
}

pub(super) async fn operators_find_the_youngest_first_and_what_works_apart_from_what_has_ended(
    store: Arc<dyn Store>,
) {
    let recent = async |is_ended, below, limit| {
        let found = store.recent(is_ended, below, limit).await.expect("answers");
        let ids: Vec<_> = found.iter().map(|task| task.record.id.clone()).collect();
        (ids, found.last().map(|task| task.number))
    };
    let ids = |numbers: &[u8]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    assert_eq!(recent(false, None, 9).await, (vec![], None));
    for number in 1..=6 {
        // Of many owners, and created in no order.
        let created = START + MINUTE * u32::from(number % 3);
        inserted(&*store, record_of(number, number, created)).await;
    }
    for (number, event) in [
        (2, TaskEvent::CANCELLED_BY_CLIENT),
        (5, TaskEvent::Returned { result: "{}".into() }),
        (4, asked("a")),
    ] {
        update(&*store, &id(number), &event, START).await.expect("answers");
    }
    for limit in [0, 1, 3, 4, 5, usize::MAX] {
        assert_eq!(recent(false, None, limit).await.0, ids(&[6, 4, 3, 1][..limit.min(4)]));
        assert_eq!(recent(true, None, limit).await.0, ids(&[5, 2][..limit.min(2)]));
    }
    let (_, place) = recent(false, None, 2).await;
    assert_eq!(recent(false, place, 9).await.0, ids(&[3, 1]));
    // A place is good when what was there is gone, or has ended.
    store.remove(&id(4)).await.expect("removed");
    assert_eq!(recent(false, place, 9).await.0, ids(&[3, 1]));
    update(&*store, &id(6), &TaskEvent::CANCELLED_BY_CLIENT, START).await.expect("answers");
    assert_eq!(recent(false, None, 9).await.0, ids(&[3, 1]));
    assert_eq!(recent(true, None, 9).await.0, ids(&[6, 5, 2]));
    assert_eq!(recent(true, recent(true, None, 1).await.1, 9).await.0, ids(&[5, 2]));
}

pub(super) async fn a_record_that_changes_hands_is_listed_by_its_new_owner_alone(store: Arc<dyn Store>) {
    let owners = owners();
    let mut version = inserted(&*store, owned(1, &owners[0], 0)).await;
    for to in owners.iter().skip(1).chain([&owners[0]]) {
        let given = owned(1, to, 0);
        assert!(swapped(&*store, version, Arc::clone(&given)).await);
        version = store.load(&given.id).await.expect("answers").expect("found").version;
        for owner in &owners {
            let wanted: &[_] = if owner == to { std::slice::from_ref(&given) } else { &[] };
            assert_eq!(listed(&*store, owner, None, 9).await, wanted, "{owner:?} of {to:?}");
        }
    }
    store.remove(&owned(1, &owners[0], 0).id).await.expect("removed");
    assert_eq!(listed(&*store, &owners[0], None, 9).await, []);
}

pub(super) async fn an_id_that_is_used_again_is_not_listed_by_its_former_owner(fresh: Fresh) {
    let Fresh { store, rounds, _kept, .. } = fresh;
    let [mine, theirs] = [&owners()[0], &owners()[1]].map(Clone::clone);
    let others = {
        let (store, mine, theirs) = (Arc::clone(&store), mine.clone(), theirs.clone());
        tokio::spawn(async move {
            for round in 0..rounds {
                let record = owned(1, if round % 2 == 0 { &mine } else { &theirs }, 0);
                store.insert(Arc::clone(&record)).await.expect("free");
                tokio::task::yield_now().await;
                store.remove(&record.id).await.expect("removed");
            }
        })
    };
    while !others.is_finished() {
        for record in listed(&*store, &mine, None, 9).await {
            assert_eq!(record.owner, mine, "a task of somebody else");
        }
        tokio::task::yield_now().await;
    }
    others.await.expect("ends");
}

pub(super) async fn pages_lose_and_repeat_nothing_during_concurrent_changes(fresh: Fresh) {
    let Fresh { store, rounds, _kept, .. } = fresh;
    let owner = owners().remove(0);
    // Every third stays; around them others are inserted, changed and removed all the time.
    let stay: Vec<_> = (0..90).step_by(3).map(|number| owned(number, &owner, number as u64 / 7)).collect();
    for record in &stay {
        inserted(&*store, Arc::clone(record)).await;
    }
    let crowd: Vec<_> = [1, 2]
        .map(|beside| {
            let (store, owner) = (Arc::clone(&store), owner.clone());
            tokio::spawn(async move {
                for number in (0..90).step_by(3).cycle().take(rounds / 2) {
                    let passing = owned(number + beside, &owner, number as u64 / 7);
                    store.insert(Arc::clone(&passing)).await.expect("free");
                    update(&*store, &passing.id, &progressed("half"), START).await.expect("answers");
                    tokio::task::yield_now().await;
                    store.remove(&passing.id).await.expect("removed");
                }
            })
        })
        .into();
    let mut walks = 0;
    while walks < 10 || !crowd.iter().all(tokio::task::JoinHandle::is_finished) {
        walks += 1;
        let (mut seen, mut place) = (Vec::<ListCursor>::new(), None);
        loop {
            let page = listed(&*store, &owner, place.as_ref(), 7).await;
            let Some(last) = page.last() else { break };
            place = Some(ListCursor::from_record(last));
            // Only the last page is short: what went is made up for.
            let is_short = page.len() < 7;
            seen.extend(page.iter().map(|record| ListCursor::from_record(record)));
            if is_short {
                break;
            }
        }
        assert!(seen.is_sorted_by(|one, next| one < next), "out of order, or twice: {seen:?}");
        for record in &stay {
            assert!(
                seen.binary_search(&ListCursor::from_record(record)).is_ok(),
                "{} was left out",
                record.id.as_str()
            );
        }
        tokio::task::yield_now().await;
    }
    for one in crowd {
        one.await.expect("ends");
    }
    assert_eq!(listed(&*store, &owner, None, 999).await, stay);
}
