//! What every store promises. Each store is asked the same questions: a new one is one more line of
//! `each_store!`.

use crate::support::faulty_store::{EVERYTHING, Faulty};
use async_trait::async_trait;
use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    store::{
        Bounds, Disk, Due, Flush, Memory, Orphan, Place, Recount, Store, StoreError, Tally, Updated, Usage,
        Version, update,
    },
    task::{Event, Owner, Record, Refusal, Scope, State, TaskId},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, ready},
};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A store nobody else uses, and what must be kept for as long as it is (a directory, a server).
struct Fresh {
    store: Arc<dyn Store>,
    /// What the next process finds, when the one before is over.
    next: Box<dyn FnMut() -> Arc<dyn Store> + Send>,
    /// How often others come and go while it is asked: thousands of times in memory, fewer where each is a commit.
    rounds: usize,
    /// Counts the records that the first process of it has.
    recount: Box<dyn Fn() -> BoxFuture<'static, Recount> + Send>,
    _kept: Box<dyn Any + Send>,
}

macro_rules! each_store {
    ($($store:ident)*) => { $( promises! { $store {
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
        an_owner_lists_what_is_its_own_and_nothing_else
        a_list_is_in_order_of_age_and_then_of_id
        a_list_goes_on_behind_a_place_that_no_longer_exists
        a_list_has_no_more_than_was_asked_for
        a_list_shows_records_as_they_are_now
        operators_find_the_youngest_first_and_what_works_apart_from_what_has_ended
        a_record_that_changes_hands_is_listed_by_its_new_owner_alone
        usage_follows_what_is_kept
        usage_adds_up_after_a_crowd
        the_census_follows_what_is_kept
        a_large_result_comes_back_whole
        every_member_of_a_record_is_kept
        random_changes_agree_with_a_plain_map
    } {
        what_was_kept_is_there_for_the_next_process
        what_a_process_left_behind_is_given_to_the_next_once
        an_anchor_is_kept_until_it_is_of_no_use
        an_id_that_is_used_again_is_not_listed_by_its_former_owner
        pages_lose_nothing_and_repeat_nothing_while_others_come_and_go
    } } )* };
}

macro_rules! promises {
    ($store:ident { $($promise:ident)* } { $($over_restarts:ident)* }) => {
        mod $store { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $promise() {
                let fresh = super::$store().await;
                super::$promise(fresh.store.clone()).await;
                fresh.is_counted_right().await;
            }
        )* $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $over_restarts() {
                super::$over_restarts(super::$store().await).await;
            }
        )* }
    };
}

each_store! { memory disk troubled faulty }

async fn memory() -> Fresh {
    let mut memory = Memory::default();
    let store = Arc::new(memory.restarted());
    let next = move || -> Arc<dyn Store> {
        memory = memory.restarted();
        Arc::new(memory.restarted())
    };
    let counted = Arc::clone(&store);
    let recount = move || -> BoxFuture<'static, Recount> { ready(counted.recount()).boxed() };
    Fresh { store, next: Box::new(next), rounds: 5000, recount: Box::new(recount), _kept: Box::new(()) }
}

async fn disk() -> Fresh {
    on_disk(|disk, _| disk)
}

/// One on a disk that fails now and then.
async fn troubled() -> Fresh {
    on_disk(|disk, path| Arc::new(Troubled::new(disk, Trouble::Away(path.clone()))))
}

/// One on a disk, in front of which everything is refused now and then.
async fn faulty() -> Fresh {
    on_disk(|disk, _| {
        let inner = Faulty::around(disk);
        Arc::new(Troubled::new(inner.clone(), Trouble::Refused(inner)))
    })
}

fn on_disk(within: impl Fn(Arc<Disk>, &PathBuf) -> Arc<dyn Store> + Send + 'static) -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tasks");
    let open = |path: &PathBuf| Arc::new(Disk::open(path, Bounds::NONE, None).expect("opens"));
    let first = open(&path);
    let store = within(Arc::clone(&first), &path);
    let next = move || within(open(&path), &path);
    let recount = move || -> BoxFuture<'static, Recount> {
        let disk = Arc::clone(&first);
        async move { disk.recount().await.expect("answers") }.boxed()
    };
    Fresh { store, next: Box::new(next), rounds: 1000, recount: Box::new(recount), _kept: Box::new(folder) }
}

/// It is in trouble while every third thing is asked for; what was refused then is asked for again.
struct Troubled {
    inner: Arc<dyn Store>,
    trouble: Trouble,
    asked: AtomicUsize,
    /// Whether somebody has made trouble.
    is_in_trouble: Mutex<bool>,
}

/// What makes a store fail.
enum Trouble {
    /// The folder is away.
    Away(PathBuf),
    Refused(Arc<Faulty>),
}

/// Asks again for what was refused.
macro_rules! asked {
    ($self:ident, $answer:expr) => {{
        let mut troubles = $self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        loop {
            let made = if mem::take(&mut troubles) { $self.make() } else { None };
            let answer = $answer.await;
            drop(made);
            match answer {
                Err(StoreError::Unavailable(words)) => {
                    assert!(words.contains(&$self.trouble.words()), "it says why: {words}");
                    tokio::task::yield_now().await;
                }
                answer => return answer,
            }
        }
    }};
}

// === impl Troubled ===

impl Troubled {
    fn new(inner: Arc<dyn Store>, trouble: Trouble) -> Self {
        Self { inner, trouble, asked: AtomicUsize::new(0), is_in_trouble: Mutex::default() }
    }

    /// Makes trouble until what is given is dropped; `None` where there is some already.
    fn make(&self) -> Option<Made<'_>> {
        let mut is_in_trouble = self.is_in_trouble.lock().expect("unharmed");
        if mem::replace(&mut *is_in_trouble, true) {
            return None;
        }
        match &self.trouble {
            Trouble::Away(path) => fs::rename(path, path.with_extension("away")).expect("moved"),
            Trouble::Refused(store) => store.fails(&EVERYTHING),
        }
        Some(Made(self))
    }
}

// === impl Trouble ===

impl Trouble {
    /// What is said then.
    fn words(&self) -> String {
        match self {
            Self::Away(path) => path.display().to_string(),
            Self::Refused(_) => "the test says so".to_owned(),
        }
    }
}

/// There is trouble.
struct Made<'a>(&'a Troubled);

// === impl Made ===

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let mut is_in_trouble = self.0.is_in_trouble.lock().expect("unharmed");
        match &self.0.trouble {
            Trouble::Away(path) => fs::rename(path.with_extension("away"), path).expect("moved back"),
            Trouble::Refused(store) => store.works(),
        }
        *is_in_trouble = false;
    }
}

#[async_trait]
impl Store for Troubled {
    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        asked!(self, self.inner.insert(Arc::clone(&record)))
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        asked!(self, self.inner.load(id))
    }

    async fn swap(&self, version: Version, record: Arc<Record>, flush: Flush) -> Result<bool, StoreError> {
        asked!(self, self.inner.swap(version, Arc::clone(&record), flush))
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        asked!(self, self.inner.anchor(id, anchor.clone()))
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        asked!(self, self.inner.orphans(limit))
    }

    fn outlives(&self) -> bool {
        true
    }

    fn bound_by(&self, bounds: Bounds) {
        self.inner.bound_by(bounds);
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        asked!(self, self.inner.remove(id))
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
        asked!(self, self.inner.due(now, limit))
    }

    async fn list(
        &self,
        owner: &Owner,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<Vec<Arc<Record>>, StoreError> {
        asked!(self, self.inner.list(owner, after, limit))
    }

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        asked!(self, self.inner.recent(is_ended, below, limit))
    }

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        asked!(self, self.inner.census())
    }

    async fn close(&self) {
        self.inner.close().await;
    }
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
    Arc::new(Record::new(id(number), owner, "slow", MINUTE * 10, created))
}

fn asked(key: &str) -> Event {
    Event::Asked { key: key.into(), request: r#"{"method":"roots/list"}"#.into() }
}

fn progressed(message: &str) -> Event {
    Event::Progressed { message: message.into() }
}

/// The record as it would be after `event`.
fn with(record: &Record, event: Event) -> Arc<Record> {
    Arc::new(deferral::internals::task::apply(record, event, START + MINUTE).expect("applies").0)
}

async fn inserted(store: &dyn Store, record: Arc<Record>) -> Version {
    store.insert(Arc::clone(&record)).await.expect("inserted");
    store.load(&record.id).await.expect("answers").expect("found").0
}

/// What is due, each told from the others by whether it has ended.
async fn due(store: &dyn Store, now: Timestamp, limit: usize) -> Vec<TaskId> {
    let due = store.due(now, limit).await.expect("answers");
    for Due { id, is_ended } in &due {
        let (_, record) = store.load(id).await.expect("answers").expect("what is due is there");
        assert_eq!(record.state.is_ended(), *is_ended);
    }
    due.into_iter().map(|due| due.id).collect()
}

async fn kept(store: &dyn Store, number: u8) -> Option<Arc<Record>> {
    store.load(&id(number)).await.expect("answers").map(|(_, record)| record)
}

async fn swapped(store: &dyn Store, version: Version, record: Arc<Record>) -> bool {
    store.swap(version, record, Flush::Process).await.expect("answers")
}

// === impl Fresh ===

impl Fresh {
    /// The process that used the store is over, and the next one uses it.
    async fn restart(&mut self) {
        self.store.close().await;
        self.store = (self.next)();
    }

    /// What is counted is what there is.
    async fn is_counted_right(&self) {
        let Recount { usage, census, differences } = (self.recount)().await;
        assert_eq!(differences, [""; 0]);
        for (principal, usage) in usage {
            assert_eq!(self.store.usage(&principal), usage);
        }
        assert_eq!(self.store.census().await.expect("answers").into_iter().collect::<BTreeSet<_>>(), census);
    }

    async fn change(&self, number: u8, event: Event) {
        let told = update(&*self.store, &id(number), &event, START + MINUTE).await;
        assert!(matches!(told, Ok(Updated::Done { .. })), "{told:?}");
    }

    /// The tasks that nobody sees to, with their anchors.
    async fn orphans(&self, limit: usize) -> Vec<(TaskId, Option<Bytes>)> {
        let orphans = self.store.orphans(limit).await.expect("answers");
        for Orphan { version, record, .. } in &orphans {
            let kept = self.store.load(&record.id).await.expect("answers").expect("found");
            assert_eq!(kept, (*version, Arc::clone(record)));
        }
        let mut orphans: Vec<_> =
            orphans.into_iter().map(|Orphan { record, anchor, .. }| (record.id.clone(), anchor)).collect();
        orphans.sort();
        orphans
    }
}

async fn what_was_kept_is_there_for_the_next_process(mut fresh: Fresh) {
    for number in 1..=6 {
        inserted(&*fresh.store, record_of(number, number % 2, START)).await;
    }
    fresh.change(1, progressed("half")).await;
    fresh.change(2, asked("a")).await;
    fresh.change(3, Event::Returned { result: vec![b'x'; 1000].into() }).await;
    fresh.change(4, Event::Failed { error: "{}".into(), message: Some("why".into()) }).await;
    fresh.change(5, Event::CANCELLED_BY_CLIENT).await;
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
    fresh.change(1, Event::CANCELLED_BY_CLIENT).await;
    assert!(matches!(fresh.store.insert(record(2)).await, Err(StoreError::Exists)));
    inserted(&*fresh.store, record(6)).await;
}

async fn what_a_process_left_behind_is_given_to_the_next_once(mut fresh: Fresh) {
    for number in 1..=6 {
        inserted(&*fresh.store, record(number)).await;
    }
    fresh.change(2, asked("a")).await;
    fresh.change(3, Event::Returned { result: "{}".into() }).await;
    fresh.change(4, Event::CANCELLED_BY_CLIENT).await;
    fresh.change(5, Event::CANCELLED_BY_CLIENT).await;
    fresh.store.anchor(&id(5), Some("to tell".into())).await.expect("kept");
    fresh.store.anchor(&id(6), Some("to take up".into())).await.expect("kept");
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
    fresh.store.anchor(&id(5), None).await.expect("kept");
    let found: Vec<_> = fresh.orphans(9).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, [id(1), id(2), id(6), id(7)]);
}

async fn an_anchor_is_kept_until_it_is_of_no_use(mut fresh: Fresh) {
    for number in 1..=3 {
        inserted(&*fresh.store, record(number)).await;
        fresh.store.anchor(&id(number), Some("first".into())).await.expect("kept");
    }
    fresh.store.anchor(&id(9), Some("of nothing".into())).await.expect("no error");
    // It is no change: who has read the version may still swap.
    fresh.store.anchor(&id(1), Some("later".into())).await.expect("kept");
    assert!(swapped(&*fresh.store, Version::FIRST, record(1)).await);
    fresh.change(2, Event::CANCELLED_BY_CLIENT).await;
    fresh.change(3, Event::Failed { error: "{}".into(), message: None }).await;
    fresh.restart().await;
    let found = fresh.orphans(9).await;
    assert_eq!(found, [(id(1), Some("later".into())), (id(2), Some("first".into()))]);
    fresh.store.anchor(&id(1), None).await.expect("kept");
    fresh.restart().await;
    assert_eq!(fresh.orphans(9).await[0], (id(1), None));
    fresh.store.remove(&id(1)).await.expect("removed");
    fresh.restart().await;
    assert_eq!(fresh.orphans(9).await, [(id(2), Some("first".into()))]);
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
    let usage = store.usage(&[9; 16]);
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
    assert_eq!(store.usage(&[1; 16]), Usage::default());
}

async fn only_the_first_of_two_writers_wins(store: Arc<dyn Store>) {
    let version = inserted(&*store, record(1)).await;
    let (first, second) =
        (with(&record(1), Event::CANCELLED_BY_CLIENT), with(&record(1), progressed("late")));
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
    assert_eq!(store.usage(&[1; 16]), Usage::default());
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
            tokio::spawn(async move { update(&*store, &id(1), &Event::CANCELLED_BY_CLIENT, START).await })
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
    let usage = store.usage(&winner);
    assert_eq!((usage.tasks, usage.tasks_of_principal), (1, 1));
}

async fn the_longest_due_come_first_and_no_more_than_asked_for(store: Arc<dyn Store>) {
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

async fn a_record_that_changed_is_due_anew(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let due = async |minutes: u32| due(&*store, START + MINUTE * minutes, 9).await;
    assert_eq!(due(5).await, [id(1)]);
    let renewed = update(&*store, &id(1), &Event::Renewed, START + MINUTE * 5).await;
    assert!(matches!(renewed, Ok(Updated::Done { .. })));
    assert_eq!(due(9).await, []);
    assert_eq!(due(10).await, [id(1)]);
    let ended = update(&*store, &id(1), &Event::CANCELLED_BY_CLIENT, START + MINUTE * 6).await;
    assert!(matches!(ended, Ok(Updated::Done { .. })));
    assert_eq!(due(15).await, []);
    assert_eq!(due(16).await, [id(1)]);
    assert!(kept(&*store, 1).await.expect("found").is_expired(START + MINUTE * 16));
}

/// Owner 0 and those that differ from it in one thing.
fn owners() -> Vec<Owner> {
    let owner = Owner { principal: [1; 16], route: "/mcp".into(), scope: Scope::Principal };
    vec![
        owner.clone(),
        Owner { principal: [2; 16], ..owner.clone() },
        Owner { route: "/other".into(), ..owner.clone() },
        Owner { scope: Scope::Legacy, ..owner.clone() },
        Owner { scope: Scope::Session([1; 16]), ..owner.clone() },
        Owner { scope: Scope::Session([2; 16]), ..owner },
    ]
}

/// Task `number` of `owner`, created so many seconds after the start.
fn owned(number: u128, owner: &Owner, seconds: u64) -> Arc<Record> {
    let id = TaskId::from_entropy(number.to_be_bytes());
    let created = START + Duration::from_secs(seconds);
    Arc::new(Record::new(id, owner.clone(), "slow", Duration::ZERO, created))
}

async fn listed(store: &dyn Store, owner: &Owner, after: Option<&Place>, limit: usize) -> Vec<Arc<Record>> {
    store
        .list(owner, after, limit)
        .await
        .expect("answers")
        .iter()
        .map(|record| without_result(record))
        .collect()
}

/// A record as lists may show it: without what it ended with.
fn without_result(record: &Record) -> Arc<Record> {
    let mut listed = record.clone();
    match &mut listed.state {
        State::Completed { result, .. } => result.clear(),
        State::Failed { error } => error.clear(),
        State::Working | State::InputRequired { .. } | State::Cancelled => {}
    }
    Arc::new(listed)
}

async fn an_owner_lists_what_is_its_own_and_nothing_else(store: Arc<dyn Store>) {
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
            for found in listed(&*store, &owner, Some(&Place::of(record)), 99).await {
                assert_eq!(found.owner, owner);
            }
        }
    }
    let nobody = Owner { principal: [9; 16], ..owners().remove(0) };
    assert_eq!(listed(&*store, &nobody, None, 99).await, []);
}

async fn a_list_is_in_order_of_age_and_then_of_id(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    // In another order than they are listed in, and than their ids are.
    for (number, seconds) in [(4, 2), (1, 3), (9, 1), (2, 2), (3, 2)] {
        inserted(&*store, owned(number, owner, seconds)).await;
    }
    let wanted = [(9, 1), (2, 2), (3, 2), (4, 2), (1, 3)].map(|(number, at)| owned(number, owner, at));
    assert_eq!(listed(&*store, owner, None, 99).await, wanted);
    // From behind each of them on, the same.
    for (at, record) in wanted.iter().enumerate() {
        assert_eq!(listed(&*store, owner, Some(&Place::of(record)), 99).await, wanted[at + 1..]);
    }
}

async fn a_list_goes_on_behind_a_place_that_no_longer_exists(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    let records: Vec<_> = (0..6).map(|number| owned(number, owner, number as u64 / 2)).collect();
    for record in &records {
        inserted(&*store, Arc::clone(record)).await;
    }
    store.remove(&records[2].id).await.expect("removed");
    let behind = listed(&*store, owner, Some(&Place::of(&records[2])), 2).await;
    assert_eq!(behind, records[3..5]);
    // Places nobody ever had: before everything, between, behind everything.
    for (seconds, number, wanted) in
        [(0, 0, vec![1, 3, 4, 5]), (1, 9, vec![4, 5]), (2, 9, vec![]), (9, 0, vec![])]
    {
        let place = Place::of(&owned(number, owner, seconds));
        let wanted: Vec<_> = wanted.into_iter().map(|at: usize| Arc::clone(&records[at])).collect();
        assert_eq!(listed(&*store, owner, Some(&place), 99).await, wanted, "{place:?}");
    }
    // Nothing at all is left.
    for record in &records {
        store.remove(&record.id).await.expect("removed");
    }
    assert_eq!(listed(&*store, owner, Some(&Place::of(&records[2])), 99).await, []);
}

async fn a_list_has_no_more_than_was_asked_for(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    assert_eq!(listed(&*store, owner, None, 0).await, []);
    let records: Vec<_> = (0..5).map(|number| owned(number, owner, 1)).collect();
    for record in &records {
        inserted(&*store, Arc::clone(record)).await;
    }
    for limit in [0, 1, 4, 5, 6, usize::MAX] {
        assert_eq!(listed(&*store, owner, None, limit).await, records[..limit.min(5)]);
        let behind = listed(&*store, owner, Some(&Place::of(&records[1])), limit).await;
        assert_eq!(behind, records[2..2 + limit.min(3)]);
    }
}

async fn a_list_shows_records_as_they_are_now(store: Arc<dyn Store>) {
    let owner = &owners()[0];
    for number in 1..=3 {
        inserted(&*store, owned(number, owner, 0)).await;
    }
    let id = owned(2, owner, 0).id.clone();
    // A change moves nothing: its place follows from when it was created.
    for event in [progressed("half"), asked("a"), Event::CANCELLED_BY_CLIENT] {
        let told = update(&*store, &id, &event, START + MINUTE).await.expect("answers");
        let Updated::Done { after, .. } = told else { panic!("applied: {told:?}") };
        let wanted = [owned(1, owner, 0), after, owned(3, owner, 0)];
        assert_eq!(listed(&*store, owner, None, 99).await, wanted);
    }
}

async fn operators_find_the_youngest_first_and_what_works_apart_from_what_has_ended(store: Arc<dyn Store>) {
    let recent = async |is_ended, below, limit| {
        let found = store.recent(is_ended, below, limit).await.expect("answers");
        let ids: Vec<_> = found.iter().map(|(_, record)| record.id.clone()).collect();
        (ids, found.last().map(|(number, _)| *number))
    };
    let ids = |numbers: &[u8]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    assert_eq!(recent(false, None, 9).await, (vec![], None));
    for number in 1..=6 {
        // Of many owners, and created in no order.
        let created = START + MINUTE * u32::from(number % 3);
        inserted(&*store, record_of(number, number, created)).await;
    }
    for (number, event) in
        [(2, Event::CANCELLED_BY_CLIENT), (5, Event::Returned { result: "{}".into() }), (4, asked("a"))]
    {
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
    update(&*store, &id(6), &Event::CANCELLED_BY_CLIENT, START).await.expect("answers");
    assert_eq!(recent(false, None, 9).await.0, ids(&[3, 1]));
    assert_eq!(recent(true, None, 9).await.0, ids(&[6, 5, 2]));
    assert_eq!(recent(true, recent(true, None, 1).await.1, 9).await.0, ids(&[5, 2]));
}

async fn a_record_that_changes_hands_is_listed_by_its_new_owner_alone(store: Arc<dyn Store>) {
    let owners = owners();
    let mut version = inserted(&*store, owned(1, &owners[0], 0)).await;
    for to in owners.iter().skip(1).chain([&owners[0]]) {
        let given = owned(1, to, 0);
        assert!(swapped(&*store, version, Arc::clone(&given)).await);
        version = store.load(&given.id).await.expect("answers").expect("found").0;
        for owner in &owners {
            let wanted: &[_] = if owner == to { std::slice::from_ref(&given) } else { &[] };
            assert_eq!(listed(&*store, owner, None, 9).await, wanted, "{owner:?} of {to:?}");
        }
    }
    store.remove(&owned(1, &owners[0], 0).id).await.expect("removed");
    assert_eq!(listed(&*store, &owners[0], None, 9).await, []);
}

async fn an_id_that_is_used_again_is_not_listed_by_its_former_owner(fresh: Fresh) {
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

async fn pages_lose_nothing_and_repeat_nothing_while_others_come_and_go(fresh: Fresh) {
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
        let (mut seen, mut place) = (Vec::<Place>::new(), None);
        loop {
            let page = listed(&*store, &owner, place.as_ref(), 7).await;
            let Some(last) = page.last() else { break };
            place = Some(Place::of(last));
            // Only the last page is short: what went is made up for.
            let is_short = page.len() < 7;
            seen.extend(page.iter().map(|record| Place::of(record)));
            if is_short {
                break;
            }
        }
        assert!(seen.is_sorted_by(|one, next| one < next), "out of order, or twice: {seen:?}");
        for record in &stay {
            assert!(seen.binary_search(&Place::of(record)).is_ok(), "{} was left out", record.id.as_str());
        }
        tokio::task::yield_now().await;
    }
    for one in crowd {
        one.await.expect("ends");
    }
    assert_eq!(listed(&*store, &owner, None, 999).await, stay);
}

async fn usage_follows_what_is_kept(store: Arc<dyn Store>) {
    let usage = async |principal: u8| {
        let Usage { tasks_of_principal, tasks, stored_bytes, .. } = store.usage(&[principal; 16]);
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

/// How many records there are of each route and status.
async fn census(store: &dyn Store) -> BTreeMap<(String, &'static str), usize> {
    let census = store.census().await.expect("answers");
    census.into_iter().map(|Tally { route, status, tasks }| ((route.to_string(), status), tasks)).collect()
}

async fn the_census_follows_what_is_kept(store: Arc<dyn Store>) {
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
    let result = Event::Returned { result: Bytes::from_static(b"{}") };
    update(&*store, &id(1), &result, START).await.expect("answers");
    update(&*store, &id(3), &Event::CANCELLED_BY_CLIENT, START).await.expect("answers");
    let wanted = [(&*route, "completed", 1), (&route, "working", 1), ("/other", "cancelled", 1)];
    assert_eq!(census(&*store).await, of(&wanted));
    for number in 1..=3 {
        store.remove(&id(number)).await.expect("removed");
    }
    assert!(census(&*store).await.is_empty());
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
    let usage = async |principal: u8| store.usage(&[principal; 16]);
    let total = Usage { tasks: 32, stored_bytes: 32 * each, ..Usage::default() };
    assert_eq!(usage(0).await, total);
    let share = Usage { tasks_of_principal: 16, stored_bytes_of_principal: 16 * each, ..total };
    assert_eq!(usage(1).await, share);
    assert_eq!(store.due(Timestamp::from_millis(u64::MAX), 99).await.expect("answers").len(), 32);
}

async fn a_large_result_comes_back_whole(store: Arc<dyn Store>) {
    inserted(&*store, record(1)).await;
    let result = Bytes::from(vec![b'x'; 8 << 20]);
    update(&*store, &id(1), &Event::Returned { result: result.clone() }, START).await.expect("answers");
    let State::Completed { result: back, .. } = &kept(&*store, 1).await.expect("found").state else {
        panic!("completed")
    };
    assert!(*back == result);
}

async fn every_member_of_a_record_is_kept(store: Arc<dyn Store>) {
    let odd = "ü\0\n\"";
    let asks = with(&with(&record(1), progressed(odd)), asked(odd));
    let answers = BTreeMap::from([(odd.to_owned(), Ok(odd.into()))]);
    let answer = Event::Answered { answers, are_kept: true };
    let refused = BTreeMap::from([(odd.to_owned(), Err("{}".into()))]);
    let refused = Event::Answered { answers: refused, are_kept: true };
    let error = State::Failed { error: vec![0, 255, b'\n'].into() };
    let tool_failed = Event::Returned { result: r#"{"isError":true}"#.into() };
    let in_scope = |scope| {
        let owner = Owner { scope, ..asks.owner.clone() };
        Arc::new(Record { owner, ..Record::clone(&asks) })
    };
    for next in [
        Arc::clone(&asks),
        with(&asks, answer),
        with(&asks, refused),
        Arc::new(Record { state: error, ..Record::clone(&asks) }),
        with(&asks, Event::Returned { result: "".into() }),
        with(&asks, tool_failed),
        with(&asks, Event::CANCELLED_BY_CLIENT),
        Arc::new(Record { raised: false, ..Record::clone(&asks) }),
        with(&asks, Event::Described { server_info: r#"{ "name": "\u00fc\"", "x": 1e400 }"#.into() }),
        in_scope(Scope::Legacy),
        in_scope(Scope::Session([0xff; 16])),
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
    Insert {
        number: u8,
        owner: usize,
        minute: u32,
    },
    Update {
        number: u8,
        event: Event,
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
        "[a-c]{0,9}".prop_map(|message| Event::Progressed { message }),
        "[a-f]".prop_map(|key| asked(&key)),
        "[a-f]".prop_map(|key| Event::Withdrawn { key }),
        "x{0,99}".prop_map(|result| Event::Returned { result: result.into() }),
        Just(Event::CANCELLED_BY_CLIENT),
        Just(Event::Renewed),
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

async fn random_changes_agree_with_a_plain_map(store: Arc<dyn Store>) {
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
                    (Updated::Done { before, after, effects, .. }, Some(Ok((next, wanted)))) => {
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
                let due = due(&*store, now, limit).await;
                // Among those due at the same time any order is fine.
                let times: Vec<_> = due.iter().map(|id| due_in(&model, id)).collect();
                let mut wanted: Vec<_> = model.values().map(|record| record.due()).collect();
                wanted.retain(|due| *due <= now);
                wanted.sort_unstable();
                wanted.truncate(limit);
                assert_eq!(times, wanted, "{operation:?}");
            }
            Operation::List { owner, after, limit } => {
                let after = after.map(|(number, minute)| match model.get(&number) {
                    Some(record) => Place::of(record),
                    None => Place { created: START + MINUTE * minute, id: id(number) },
                });
                let found = listed(&*store, &owners[owner], after.as_ref(), limit).await;
                let mut wanted: Vec<_> = model.values().cloned().collect();
                wanted.retain(|record| record.owner == owners[owner]);
                wanted.retain(|record| after.as_ref().is_none_or(|after| Place::of(record) > *after));
                wanted.sort_by_key(|record| Place::of(record));
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
            let wanted = Usage {
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
    model.values().find(|record| record.id == *id).expect("only what is kept is due").due()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_does_not_fit_is_refused_and_changes_nothing_however_many_come_at_once() {
    let bounds = Bounds { stored_bytes: 100_000, stored_bytes_per_principal: 60_000 };
    let store: Arc<dyn Store> = Arc::new(Memory::bounded(bounds));
    let all: Vec<_> = (0..64).map(|number| record_of(number, number % 2, START)).collect();
    for record in &all {
        inserted(&*store, Arc::clone(record)).await;
    }
    let ends = all.iter().map(|record| {
        let (store, id) = (Arc::clone(&store), record.id.clone());
        tokio::spawn(async move {
            let result = Event::Returned { result: vec![b' '; 10_000].into() };
            (id.clone(), update(&*store, &id, &result, START).await)
        })
    });
    let (mut fit, mut full) = (0, Vec::new());
    for end in ends.collect::<Vec<_>>() {
        match end.await.expect("ends") {
            (_, Ok(Updated::Done { .. })) => fit += 1,
            (id, Err(StoreError::Full(limit))) => full.push((id, limit)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((fit, full.len()), (9, 55), "each of the two has room for five, and both for nine");
    for limit in ["limits.stored_bytes", "limits.stored_bytes_per_principal"] {
        assert!(full.iter().any(|(_, named)| *named == limit), "{limit}: {full:?}");
    }
    for (id, _) in &full {
        let (_, record) = store.load(id).await.expect("answers").expect("it is there");
        assert_eq!(record.state, State::Working, "it is as it was");
        // Why it failed must always fit.
        let error = Event::Failed { error: vec![b' '; 300].into(), message: Some("x".repeat(300)) };
        assert!(matches!(update(&*store, id, &error, START).await, Ok(Updated::Done { .. })));
    }
    let kept = store.usage(&[0; 16]).stored_bytes;
    assert!(kept <= bounds.stored_bytes + full.len() * Bounds::ALWAYS, "{kept}");
}

/// A store in which somebody else is always a little faster, a few times.
struct Contended {
    inner: Memory,
    /// What the others do, the next one last.
    others: Mutex<Vec<Event>>,
}

#[async_trait]
impl Store for Contended {
    fn bound_by(&self, bounds: Bounds) {
        self.inner.bound_by(bounds);
    }

    async fn insert(&self, record: Arc<Record>) -> Result<(), StoreError> {
        self.inner.insert(record).await
    }

    async fn load(&self, id: &TaskId) -> Result<Option<(Version, Arc<Record>)>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(&self, version: Version, record: Arc<Record>, flush: Flush) -> Result<bool, StoreError> {
        let other = self.others.lock().expect("unharmed").pop();
        if let Some(other) = other {
            update(&self.inner, &record.id, &other, START).await?;
        }
        self.inner.swap(version, record, flush).await
    }

    async fn anchor(&self, id: &TaskId, anchor: Option<Bytes>) -> Result<(), StoreError> {
        self.inner.anchor(id, anchor).await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Orphan>, StoreError> {
        self.inner.orphans(limit).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), StoreError> {
        self.inner.remove(id).await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due>, StoreError> {
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

    async fn recent(
        &self,
        is_ended: bool,
        below: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Arc<Record>)>, StoreError> {
        self.inner.recent(is_ended, below, limit).await
    }

    fn usage(&self, principal: &[u8; 16]) -> Usage {
        self.inner.usage(principal)
    }

    async fn census(&self) -> Result<Vec<Tally>, StoreError> {
        self.inner.census().await
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
    let store = Contended { inner: Memory::default(), others: Mutex::new(vec![Event::CANCELLED_BY_CLIENT]) };
    inserted(&store, record(1)).await;
    let late = update(&store, &id(1), &progressed("late"), START).await.expect("answers");
    assert!(matches!(late, Updated::Refused(Refusal::Ended)), "{late:?}");
}
