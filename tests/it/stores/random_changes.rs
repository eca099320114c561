//! Random operations, compared with a map.

use super::{MINUTE, START, asked, census, due, id, kept, listed, owners, without_result};
use deferral::internals::{
    protocol::Timestamp,
    store::{ListCursor, Store, StoreUsage, UpdateOutcome, update},
    task::{Record, TaskEvent, TaskId},
};

use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// One thing that is done to a store at random.
#[derive(Clone, Debug)]
enum Operation {
    Insert {
        number: u8,
        owner: usize,
        minute: u32,
    },
    Update {
        number: u8,
        event: TaskEvent,
        minute: u32,
    },
    Remove {
        number: u8,
    },
    Sweep {
        minute: u32,
        limit: usize,
    },
    /// From behind where task `number` is, or would be had it been created in that minute.
    List {
        owner: usize,
        after: Option<(u8, u32)>,
        limit: usize,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let event = prop_oneof![
        "[a-c]{0,9}".prop_map(|message| TaskEvent::Progressed { message }),
        "[a-f]".prop_map(|key| asked(&key)),
        "[a-f]".prop_map(|key| TaskEvent::InputWithdrawn { key }),
        "x{0,99}".prop_map(|result| TaskEvent::Returned { result: result.into() }),
        Just(TaskEvent::CANCELLED_BY_CLIENT),
        Just(TaskEvent::TtlRenewed),
    ];
    let (number, minute) = (0..8u8, 0..60u32);
    let operation =
        prop_oneof![
            (number.clone(), 0..6usize, minute.clone())
                .prop_map(|(number, owner, minute)| Operation::Insert { number, owner, minute }),
            (number.clone(), event, minute.clone()).prop_map(|(number, event, minute)| Operation::Update {
                number,
                event,
                minute
            }),
            number.clone().prop_map(|number| Operation::Remove { number }),
            (minute.clone(), 0..9usize).prop_map(|(minute, limit)| Operation::Sweep { minute, limit }),
            (0..6usize, prop::option::of((number, minute)), 0..9usize)
                .prop_map(|(owner, after, limit)| Operation::List { owner, after, limit }),
        ];
    prop::collection::vec(operation, 2000)
}

pub(super) async fn random_changes_agree_with_a_plain_map(store: Arc<dyn Store>) {
    let mut runner = TestRunner::deterministic();
    let operations = operations().new_tree(&mut runner).expect("generated").current();
    let owners = owners();
    let mut model = BTreeMap::<u8, Arc<Record>>::new();
    for operation in operations {
        match operation.clone() {
            Operation::Insert { number, owner, minute } => {
                let owner = owners[owner].clone();
                let new =
                    Arc::new(Record::new(id(number), owner, "slow", Duration::ZERO, START + MINUTE * minute));
                let taken = model.contains_key(&number);
                assert_eq!(store.insert(Arc::clone(&new)).await.is_err(), taken, "{operation:?}");
                model.entry(number).or_insert(new);
            }
            Operation::Update { number, event, minute } => {
                let now = START + MINUTE * minute;
                let told = update(&*store, &id(number), &event, now).await.expect("answers");
                let known =
                    model.get(&number).map(|record| deferral::internals::task::apply(record, event, now));
                match (told, known) {
                    (UpdateOutcome::Applied { before, after, effects, .. }, Some(Ok((next, wanted)))) => {
                        assert_eq!((&*after.record, &effects), (&next, &wanted), "{operation:?}");
                        assert_eq!(model.insert(number, after.record), Some(before), "{operation:?}");
                    }
                    (UpdateOutcome::Refused(told), Some(Err(refusal))) => assert_eq!(told, refusal),
                    (UpdateOutcome::Unknown, None) => {}
                    (told, known) => panic!("{operation:?}: {told:?}, not {known:?}"),
                }
            }
            Operation::Remove { number } => {
                store.remove(&id(number)).await.expect("removed");
                model.remove(&number);
            }
            Operation::Sweep { minute, limit } => {
                let now = START + MINUTE * minute;
                let due = due(&*store, now, limit).await;
                // Among those due at the same time any order is fine.
                let times: Vec<_> = due.iter().map(|id| due_in(&model, id)).collect();
                let mut wanted: Vec<_> = model.values().map(|record| record.due_at()).collect();
                wanted.retain(|due| *due <= now);
                wanted.sort_unstable();
                wanted.truncate(limit);
                assert_eq!(times, wanted, "{operation:?}");
            }
            Operation::List { owner, after, limit } => {
                let after = after.map(|(number, minute)| match model.get(&number) {
                    Some(record) => ListCursor::from_record(record),
                    None => ListCursor { created: START + MINUTE * minute, id: id(number) },
                });
                let found = listed(&*store, &owners[owner], after.as_ref(), limit).await;
                let mut wanted: Vec<_> = model.values().cloned().collect();
                wanted.retain(|record| record.owner == owners[owner]);
                wanted.retain(|record| {
                    after.as_ref().is_none_or(|after| ListCursor::from_record(record) > *after)
                });
                wanted.sort_by_key(|record| ListCursor::from_record(record));
                wanted.truncate(limit);
                let wanted: Vec<_> = wanted.iter().map(|record| without_result(record)).collect();
                assert_eq!(found, wanted, "{operation:?}");
            }
        }
        for number in 0..8 {
            assert_eq!(kept(&*store, number).await.as_ref(), model.get(&number), "{operation:?}");
        }
        let mut wanted = BTreeMap::<_, usize>::new();
        for record in model.values() {
            *wanted.entry((record.owner.route.to_string(), record.state.status())).or_default() += 1;
        }
        assert_eq!(census(&*store).await, wanted, "{operation:?}");
        for principal in 0..3 {
            let of_principal = |record: &&Arc<Record>| record.owner.principal == [principal; 16];
            let wanted = StoreUsage {
                tasks_of_principal: model.values().filter(of_principal).count(),
                tasks: model.len(),
                stored_bytes: model.values().map(|record| record.stored_bytes()).sum(),
                stored_bytes_of_principal: model
                    .values()
                    .filter(of_principal)
                    .map(|record| record.stored_bytes())
                    .sum(),
            };
            assert_eq!(store.usage(&[principal; 16]), wanted, "{operation:?}");
        }
    }
}

fn due_in(model: &BTreeMap<u8, Arc<Record>>, id: &TaskId) -> Timestamp {
    model.values().find(|record| record.id == *id).expect("only what is kept is due").due_at()
}
