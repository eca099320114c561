//! What every store promises. Each store is asked the same questions: a new one is one more line of
//! `each_store!`.

use async_trait::async_trait;
use deferral::{
    protocol::Timestamp,
    store::{Memory, Place, Store, StoreError, Updated, Usage, Version, update},
    task::{Event, Owner, Record, Refusal, Scope, State, TaskId},
};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// A store nobody else uses, and what must be kept for as long as it is (a directory, a server).
struct Fresh {
    store: Arc<dyn Store>,
    _kept: Box<dyn Any + Send>,
}

macro_rules! each_store {
    ($($store:ident)*) => { $( promises! { $store
        what_is_inserted_is_found
        an_id_is_taken_once
        what_is_unknown_is_absent_and_no_error
        only_the_first_of_two_writers_wins
        a_version_is_good_for_one_change
        a_change_does_not_bring_back_what_was_removed
        concurrent_changes_are_all_kept
        concurrent_inserts_of_one_id_succeed_once
        the_longest_due_come_first_and_no_more_than_asked_for
        a_record_that_changed_is_due_anew
        usage_follows_what_is_kept
        usage_adds_up_after_a_crowd
        a_large_result_comes_back_whole
        every_member_of_a_record_is_kept
        random_changes_agree_with_a_plain_map
    } )* };
}

macro_rules! promises {
    ($store:ident $($promise:ident)*) => {
        mod $store { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $promise() {
                let fresh = super::$store().await;
                super::$promise(fresh.store.clone()).await;
            }
        )* }
    };
}

each_store! { memory }

async fn memory() -> Fresh {
    Fresh { store: Arc::new(Memory::default()), _kept: Box::new(()) }
}

const START: Timestamp = Timestamp::from_millis(1_785_234_600_000);
const MINUTE: Duration = Duration::from_secs(60);

fn id(number: u8) -> TaskId {
    TaskId::from_entropy([number; 16])
}

/// Task `number` of principal 1, created at the start.
fn record(number: u8) -> Arc<Record> {
    record_of(number, 1, START)
}

fn record_of(number: u8, principal: u8, created: Timestamp) -> Arc<Record> {
    let owner = Owner { principal: [principal; 16], route: "/mcp".into(), scope: Scope::Principal };
    Arc::new(Record::new(id(number), owner, "slow", Duration::ZERO, created))
}

fn asked(key: &str) -> Event {
    Event::Asked { key: key.into(), request: r#"{"method":"roots/list"}"#.into() }
}

fn progressed(message: &str) -> Event {
    Event::Progressed { message: message.into() }
}

/// The record as it would be after `event`.
fn with(record: &Record, event: Event) -> Arc<Record> {
    Arc::new(deferral::task::apply(record, event, START + MINUTE).expect("applies").0)
}

async fn inserted(store: &dyn Store, record: Arc<Record>) -> Version {
    store.insert(Arc::clone(&record)).await.expect("inserted");
    store.load(&record.id).await.expect("answers").expect("found").0
}

async fn kept(store: &dyn Store, number: u8) -> Option<Arc<Record>> {
    store.load(&id(number)).await.expect("answers").map(|(_, record)| record)
}

async fn swapped(store: &dyn Store, version: Version, record: Arc<Record>) -> bool {
    store.swap(version, record).await.expect("answers")
}

async fn what_is_inserted_is_found(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    inserted(&*store, record(2)).await;
    assert_eq!(kept(&*store, 1).await, Some(record(1)));
    assert_eq!(kept(&*store, 2).await, Some(record(2)));
}

async fn an_id_is_taken_once(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let other = record_of(1, 9, START + MINUTE);
    assert!(matches!(store.insert(other).await, Err(StoreError::Exists)));
    assert_eq!(kept(&*store, 1).await, Some(record(1)));
    let usage = store.usage(&[9; 16]).await.expect("answers");
    assert_eq!((usage.tasks, usage.tasks_of_principal), (1, 0));
}

async fn what_is_unknown_is_absent_and_no_error(store: Arc<dyn Store>) {
    assert_eq!(kept(&*store, 1).await, None);
    assert!(!swapped(&*store, Version(0), record(1)).await);
    assert_eq!(kept(&*store, 1).await, None);
    store.remove(&id(1)).await.expect("no error");
    let event = progressed("x");
    assert!(matches!(update(&*store, &id(1), &event, START).await, Ok(Updated::Unknown)));
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 9).await.expect("answers"), []);
    assert_eq!(store.usage(&[1; 16]).await.expect("answers"), Usage::default());
}

async fn only_the_first_of_two_writers_wins(store: Arc<dyn Store>) {
    let version = inserted(&*store, record(1)).await;
    let (first, second) = (with(&record(1), Event::Cancelled), with(&record(1), progressed("late")));
    assert!(swapped(&*store, version, Arc::clone(&first)).await);
    assert!(!swapped(&*store, version, second).await);
    assert_eq!(kept(&*store, 1).await, Some(first));
}

async fn a_version_is_good_for_one_change(store: Arc<dyn Store>) {
    let first = inserted(&*store, record(1)).await;
    // The same record again is a change too.
    assert!(swapped(&*store, first, record(1)).await);
    assert!(!swapped(&*store, first, record(1)).await);
    let (second, _) = store.load(&id(1)).await.expect("answers").expect("found");
    assert!(first < second);
    assert!(swapped(&*store, second, record(1)).await);
}

async fn a_change_does_not_bring_back_what_was_removed(store: Arc<dyn Store>) {
    let version = inserted(&*store, record(1)).await;
    store.remove(&id(1)).await.expect("removed");
    assert!(!swapped(&*store, version, record(1)).await);
    assert_eq!(kept(&*store, 1).await, None);
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 9).await.expect("answers"), []);
    assert_eq!(store.usage(&[1; 16]).await.expect("answers"), Usage::default());
}

async fn concurrent_changes_are_all_kept(store: Arc<dyn Store>) {
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
        assert!(matches!(writer.await.expect("ends"), Ok(Updated::Done { .. })));
    }
    let task = kept(&*store, 1).await.expect("found");
    let State::InputRequired { outstanding } = &task.state else { panic!("asks: {task:?}") };
    assert!(outstanding.keys().cloned().eq((0..50).map(|number| format!("q{number:02}"))));

    // Of fifty who end it, one does.
    let enders: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { update(&*store, &id(1), &Event::Cancelled, START).await })
        })
        .collect();
    let mut ended = 0;
    for ender in enders {
        match ender.await.expect("ends").expect("answers") {
            Updated::Done { .. } => ended += 1,
            Updated::Refused(refusal) => assert_eq!(refusal, Refusal::Ended),
            Updated::Unknown => panic!("the task is there"),
        }
    }
    assert_eq!(ended, 1);
}

async fn concurrent_inserts_of_one_id_succeed_once(store: Arc<dyn Store>) {
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
    let usage = store.usage(&winner).await.expect("answers");
    assert_eq!((usage.tasks, usage.tasks_of_principal), (1, 1));
}

async fn the_longest_due_come_first_and_no_more_than_asked_for(store: Arc<dyn Store>) {
    // Inserted out of order: task n is created n minutes after the start, and due five later.
    for number in [3, 1, 4, 2] {
        inserted(&*store, record_of(number, 1, START + MINUTE * u32::from(number))).await;
    }
    let due = async |minutes: u32, limit| store.due(START + MINUTE * minutes, limit).await.expect("answers");
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

async fn a_record_that_changed_is_due_anew(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let due = async |minutes: u32| store.due(START + MINUTE * minutes, 9).await.expect("answers");
    assert_eq!(due(5).await, [id(1)]);
    let renewed = update(&*store, &id(1), &Event::Renewed, START + MINUTE * 5).await;
    assert!(matches!(renewed, Ok(Updated::Done { .. })));
    assert_eq!(due(9).await, []);
    assert_eq!(due(10).await, [id(1)]);
    let ended = update(&*store, &id(1), &Event::Cancelled, START + MINUTE * 6).await;
    assert!(matches!(ended, Ok(Updated::Done { .. })));
    assert_eq!(due(14).await, []);
    assert_eq!(due(15).await, [id(1)]);
    assert!(kept(&*store, 1).await.expect("found").is_expired(START + MINUTE * 15));
}

async fn usage_follows_what_is_kept(store: Arc<dyn Store>) {
    let usage = async |principal: u8| {
        let Usage { tasks_of_principal, tasks, stored_bytes } =
            store.usage(&[principal; 16]).await.expect("answers");
        (tasks_of_principal, tasks, stored_bytes)
    };
    let one = record(1).stored_bytes();
    inserted(&*store, record(1)).await;
    inserted(&*store, record_of(2, 1, START)).await;
    inserted(&*store, record_of(3, 2, START)).await;
    assert_eq!(usage(1).await, (2, 3, 3 * one));
    assert_eq!(usage(2).await, (1, 3, 3 * one));
    assert_eq!(usage(3).await, (0, 3, 3 * one));

    let result = Event::Returned { result: vec![b' '; 1000].into() };
    update(&*store, &id(1), &result, START).await.expect("answers");
    // Ended tasks count until they are forgotten.
    assert_eq!(usage(1).await, (2, 3, 3 * one + 1000));

    // A writer who lost counts for nothing.
    assert!(!swapped(&*store, Version(0), with(&record(1), progressed("lost"))).await);
    assert_eq!(usage(1).await, (2, 3, 3 * one + 1000));

    store.remove(&id(1)).await.expect("removed");
    store.remove(&id(1)).await.expect("removed once");
    assert_eq!(usage(1).await, (1, 2, 2 * one));
    store.remove(&id(2)).await.expect("removed");
    store.remove(&id(3)).await.expect("removed");
    assert_eq!(usage(1).await, (0, 0, 0));
}

async fn usage_adds_up_after_a_crowd(store: Arc<dyn Store>) {
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
    let usage = async |principal: u8| store.usage(&[principal; 16]).await.expect("answers");
    let total = Usage { tasks_of_principal: 0, tasks: 32, stored_bytes: 32 * each };
    assert_eq!(usage(0).await, total);
    assert_eq!(usage(1).await, Usage { tasks_of_principal: 16, ..total });
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 99).await.expect("answers").len(), 32);
}

async fn a_large_result_comes_back_whole(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let result = bytes::Bytes::from(vec![b'x'; 8 << 20]);
    update(&*store, &id(1), &Event::Returned { result: result.clone() }, START).await.expect("answers");
    let State::Completed { result: back, .. } = &kept(&*store, 1).await.expect("found").state else {
        panic!("completed")
    };
    assert!(*back == result);
}

async fn every_member_of_a_record_is_kept(store: Arc<dyn Store>) {
    let odd = "ü\0\n\"";
    let asks = with(&with(&record(1), progressed(odd)), asked(odd));
    let answer = Event::Answered { answers: BTreeMap::from([(odd.to_owned(), "{}".into())]) };
    let error = Event::Failed { error: vec![0, 255, b'\n'].into(), message: Some(odd.into()) };
    for next in [
        Arc::clone(&asks),
        with(&asks, answer),
        with(&asks, error),
        with(&asks, Event::Returned { result: "".into() }),
        with(&asks, Event::Cancelled),
    ] {
        store.remove(&id(1)).await.expect("removed");
        let version = inserted(&*store, record(1)).await;
        assert!(swapped(&*store, version, Arc::clone(&next)).await);
        assert_eq!(kept(&*store, 1).await, Some(next));
    }
}

/// One thing that is done to a store at random.
#[derive(Clone, Debug)]
enum Operation {
    Insert { number: u8, principal: u8, minute: u32 },
    Update { number: u8, event: Event, minute: u32 },
    Remove { number: u8 },
    Sweep { minute: u32, limit: usize },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let event = prop_oneof![
        "[a-c]{0,9}".prop_map(|message| Event::Progressed { message }),
        "[a-f]".prop_map(|key| asked(&key)),
        "[a-f]".prop_map(|key| Event::Withdrawn { key }),
        "x{0,99}".prop_map(|result| Event::Returned { result: result.into() }),
        Just(Event::Cancelled),
        Just(Event::Renewed),
    ];
    let (number, minute) = (0..8u8, 0..60u32);
    let operation =
        prop_oneof![
            (number.clone(), 0..3u8, minute.clone())
                .prop_map(|(number, principal, minute)| Operation::Insert { number, principal, minute }),
            (number.clone(), event, minute.clone()).prop_map(|(number, event, minute)| Operation::Update {
                number,
                event,
                minute
            }),
            number.prop_map(|number| Operation::Remove { number }),
            (minute, 0..9usize).prop_map(|(minute, limit)| Operation::Sweep { minute, limit }),
        ];
    prop::collection::vec(operation, 2000)
}

async fn random_changes_agree_with_a_plain_map(store: Arc<dyn Store>) {
    let mut runner = TestRunner::deterministic();
    let operations = operations().new_tree(&mut runner).expect("generated").current();
    let mut model = BTreeMap::<u8, Arc<Record>>::new();
    for operation in operations {
        match operation.clone() {
            Operation::Insert { number, principal, minute } => {
                let new = record_of(number, principal, START + MINUTE * minute);
                let taken = model.contains_key(&number);
                assert_eq!(store.insert(Arc::clone(&new)).await.is_err(), taken, "{operation:?}");
                model.entry(number).or_insert(new);
            }
            Operation::Update { number, event, minute } => {
                let now = START + MINUTE * minute;
                let told = update(&*store, &id(number), &event, now).await.expect("answers");
                let known = model.get(&number).map(|record| deferral::task::apply(record, event, now));
                match (told, known) {
                    (Updated::Done { before, after, effects }, Some(Ok((next, wanted)))) => {
                        assert_eq!((&*after, &effects), (&next, &wanted), "{operation:?}");
                        assert_eq!(model.insert(number, after), Some(before), "{operation:?}");
                    }
                    (Updated::Refused(told), Some(Err(refusal))) => assert_eq!(told, refusal),
                    (Updated::Unknown, None) => {}
                    (told, known) => panic!("{operation:?}: {told:?}, not {known:?}"),
                }
            }
            Operation::Remove { number } => {
                store.remove(&id(number)).await.expect("removed");
                model.remove(&number);
            }
            Operation::Sweep { minute, limit } => {
                let now = START + MINUTE * minute;
                let due = store.due(now, limit).await.expect("answers");
                // Among those due at the same time any order is fine.
                let times: Vec<_> = due.iter().map(|id| due_in(&model, id)).collect();
                let mut wanted: Vec<_> = model.values().map(|record| record.due()).collect();
                wanted.retain(|due| *due <= now);
                wanted.sort_unstable();
                wanted.truncate(limit);
                assert_eq!(times, wanted, "{operation:?}");
            }
        }
        for number in 0..8 {
            assert_eq!(kept(&*store, number).await.as_ref(), model.get(&number), "{operation:?}");
        }
        for principal in 0..3 {
            let of_principal = |record: &&Arc<Record>| record.owner.principal == [principal; 16];
            let wanted = Usage {
                tasks_of_principal: model.values().filter(of_principal).count(),
                tasks: model.len(),
                stored_bytes: model.values().map(|record| record.stored_bytes()).sum(),
            };
            assert_eq!(store.usage(&[principal; 16]).await.expect("answers"), wanted, "{operation:?}");
        }
    }
}

fn due_in(model: &BTreeMap<u8, Arc<Record>>, id: &TaskId) -> Timestamp {
    model.values().find(|record| record.id == *id).expect("only what is kept is due").due()
}

/// A store in which somebody else is always a little faster, a few times.
struct Contended {
    inner: Memory,
    /// What the others do, the next one last.
    others: Mutex<Vec<Event>>,
}

#[async_trait]
impl Store for Contended {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.inner.insert(record).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(&self, version: Version, record: Arc<Record>) -> Result<bool, StoreError> {
        let other = self.others.lock().expect("unharmed").pop();
        if let Some(other) = other {
            update(&self.inner, &record.id, &other, START).await?;
        }
        self.inner.swap(version, record).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.inner.remove(id).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, StoreError> {
        self.inner.due(now, limit).await
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        self.inner.list(owner, after, limit).await
    }

    async fn usage(&self, principal: &[u8; 16]) -> Result<Usage, StoreError> {
        self.inner.usage(principal).await
    }
}

#[tokio::test]
async fn an_update_that_loses_a_race_is_applied_to_what_won() {
    let others = Mutex::new(vec![asked("b"), asked("a")]);
    let store = Contended { inner: Memory::default(), others };
    inserted(&store, record(1)).await;
    let mine = update(&store, &id(1), &asked("mine"), START).await.expect("answers");
    let Updated::Done { before, after, .. } = mine else { panic!("applied: {mine:?}") };
    assert_eq!(before.keys_used.len(), 2);
    assert_eq!(after.keys_used.iter().collect::<Vec<_>>(), ["a", "b", "mine"]);
    assert_eq!(kept(&store, 1).await, Some(after));
}

#[tokio::test]
async fn an_update_that_loses_to_the_end_of_the_task_is_refused() {
    let store = Contended { inner: Memory::default(), others: Mutex::new(vec![Event::Cancelled]) };
    inserted(&store, record(1)).await;
    let late = update(&store, &id(1), &progressed("late"), START).await.expect("answers");
    assert!(matches!(late, Updated::Refused(Refusal::Ended)), "{late:?}");
}
