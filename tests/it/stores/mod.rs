//! The contract of every store. A new store is one more line of `each_store!`.

mod lists;
mod lost_races;
mod ownership;
mod random_changes;
mod records;
mod troubled_store;
mod usage;

use self::{
    lists::{
        a_list_goes_on_behind_a_place_that_no_longer_exists, a_list_has_the_tasks_of_its_owner_only,
        a_list_is_in_order_of_age_and_then_of_id, a_list_shows_records_as_they_are_now,
        a_list_stays_within_its_limit, a_record_that_changes_hands_is_listed_by_its_new_owner_alone,
        an_id_that_is_used_again_is_not_listed_by_its_former_owner,
        operators_find_the_youngest_first_and_what_works_apart_from_what_has_ended,
        pages_lose_and_repeat_nothing_during_concurrent_changes,
    },
    ownership::{a_swap_proves_that_the_owner_is_still_the_same, each_read_reports_who_owns_a_task},
    random_changes::random_changes_agree_with_a_plain_map,
    records::{
        a_large_result_returns_whole, a_record_that_changed_is_due_anew, a_version_is_good_for_one_change,
        an_anchor_is_kept_until_it_is_of_no_use, an_id_is_taken_once, an_unknown_id_is_absent_and_no_error,
        an_update_does_not_restore_a_removed_record, concurrent_changes_are_all_kept,
        concurrent_inserts_of_one_id_succeed_once, every_member_of_a_record_is_kept,
        inserted_records_are_found, only_the_first_of_two_writers_wins,
        orphans_of_a_process_are_given_to_the_next_once, records_survive_a_restart,
        the_clock_is_kept_for_the_next_process, the_longest_due_come_first_within_the_limit,
    },
    troubled_store::{Trouble, Troubled},
    usage::{
        the_census_agrees_with_the_records, usage_agrees_with_the_records,
        usage_is_right_after_concurrent_changes,
    },
};
use crate::support::faulty_store::FaultyStore;
use bytes::Bytes;
use deferral::internals::{
    protocol::Timestamp,
    store::{
        DiskStore, DueTask, Durability, ListCursor, LoadedTask, MemoryStore, OrphanTask, RecordVersion,
        Recount, Store, StoreBounds, TaskOwnership, TaskTally, UpdateOutcome, update,
    },
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState},
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, ready},
};

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// A store of its own, and what it needs for its lifetime (a directory, a server).
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
        inserted_records_are_found
        an_id_is_taken_once
        an_unknown_id_is_absent_and_no_error
        only_the_first_of_two_writers_wins
        a_version_is_good_for_one_change
        an_update_does_not_restore_a_removed_record
        concurrent_changes_are_all_kept
        concurrent_inserts_of_one_id_succeed_once
        the_longest_due_come_first_within_the_limit
        a_record_that_changed_is_due_anew
        a_list_has_the_tasks_of_its_owner_only
        a_list_is_in_order_of_age_and_then_of_id
        a_list_goes_on_behind_a_place_that_no_longer_exists
        a_list_stays_within_its_limit
        a_list_shows_records_as_they_are_now
        operators_find_the_youngest_first_and_what_works_apart_from_what_has_ended
        a_record_that_changes_hands_is_listed_by_its_new_owner_alone
        usage_agrees_with_the_records
        usage_is_right_after_concurrent_changes
        the_census_agrees_with_the_records
        a_large_result_returns_whole
        every_member_of_a_record_is_kept
        random_changes_agree_with_a_plain_map
    } {
        records_survive_a_restart
        orphans_of_a_process_are_given_to_the_next_once
        each_read_reports_who_owns_a_task
        a_swap_proves_that_the_owner_is_still_the_same
        an_anchor_is_kept_until_it_is_of_no_use
        an_id_that_is_used_again_is_not_listed_by_its_former_owner
        pages_lose_and_repeat_nothing_during_concurrent_changes
        the_clock_is_kept_for_the_next_process
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
    let mut memory = MemoryStore::default();
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
        let inner = FaultyStore::around(disk);
        Arc::new(Troubled::new(inner.clone(), Trouble::Refused(inner)))
    })
}

fn on_disk(within: impl Fn(Arc<DiskStore>, &PathBuf) -> Arc<dyn Store> + Send + 'static) -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tasks");
    let open = |path: &PathBuf| Arc::new(DiskStore::open(path, StoreBounds::NONE, None).expect("opens"));
    let first = open(&path);
    let store = within(Arc::clone(&first), &path);
    let next = move || within(open(&path), &path);
    let recount = move || -> BoxFuture<'static, Recount> {
        let disk = Arc::clone(&first);
        async move { disk.recount().await.expect("answers") }.boxed()
    };
    Fresh { store, next: Box::new(next), rounds: 1000, recount: Box::new(recount), _kept: Box::new(folder) }
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
    let owner =
        TaskPrincipal { principal: [principal; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    Arc::new(Record::new(id(number), owner, "slow", MINUTE * 10, created))
}

fn asked(key: &str) -> TaskEvent {
    TaskEvent::InputRequested { key: key.into(), request: r#"{"method":"roots/list"}"#.into() }
}

fn progressed(message: &str) -> TaskEvent {
    TaskEvent::Progressed { message: message.into() }
}

/// The record as it would be after `event`.
fn with(record: &Record, event: TaskEvent) -> Arc<Record> {
    Arc::new(deferral::internals::task::apply(record, event, START + MINUTE).expect("applies").0)
}

async fn inserted(store: &dyn Store, record: Arc<Record>) -> RecordVersion {
    store.insert(Arc::clone(&record)).await.expect("inserted");
    store.load(&record.id).await.expect("answers").expect("found").version
}

/// What is due, each told from the others by whether it has ended.
async fn due(store: &dyn Store, now: Timestamp, limit: usize) -> Vec<TaskId> {
    let due = store.due(now, limit).await.expect("answers");
    for DueTask { id, is_ended, ownership } in &due {
        let task = store.load(id).await.expect("answers").expect("what is due is there");
        assert_eq!((task.record.state.is_ended(), task.ownership), (*is_ended, *ownership));
    }
    due.into_iter().map(|due| due.id).collect()
}

async fn kept(store: &dyn Store, number: u8) -> Option<Arc<Record>> {
    store.load(&id(number)).await.expect("answers").map(|task| task.record)
}

async fn swapped(store: &dyn Store, version: RecordVersion, record: Arc<Record>) -> bool {
    store.swap(version, record, Durability::Process).await.expect("answers")
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

    async fn change(&self, number: u8, event: TaskEvent) {
        let told = update(&*self.store, &id(number), &event, START + MINUTE).await;
        assert!(matches!(told, Ok(UpdateOutcome::Applied { .. })), "{told:?}");
    }

    /// Orphaned tasks, with their anchors.
    async fn orphans(&self, limit: usize) -> Vec<(TaskId, Option<Bytes>)> {
        let orphans = self.store.take_orphans(limit).await.expect("answers");
        for OrphanTask { version, record, .. } in &orphans {
            let kept = self.store.load(&record.id).await.expect("answers").expect("found");
            let ownership = TaskOwnership { owner: self.store.process(), lease_until: None };
            assert_eq!(kept, LoadedTask { version: *version, record: Arc::clone(record), ownership });
        }
        let mut orphans: Vec<_> = orphans
            .into_iter()
            .map(|OrphanTask { record, anchor, .. }| (record.id.clone(), anchor))
            .collect();
        orphans.sort();
        orphans
    }
}

/// Owner 0 and those that differ from it in one thing.
fn owners() -> Vec<TaskPrincipal> {
    let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
    vec![
        owner.clone(),
        TaskPrincipal { principal: [2; 16], ..owner.clone() },
        TaskPrincipal { route: "/other".into(), ..owner.clone() },
        TaskPrincipal { scope: TaskSharing::Legacy, ..owner.clone() },
        TaskPrincipal { scope: TaskSharing::Session([1; 16]), ..owner.clone() },
        TaskPrincipal { scope: TaskSharing::Session([2; 16]), ..owner },
    ]
}

async fn listed(
    store: &dyn Store,
    owner: &TaskPrincipal,
    after: Option<&ListCursor>,
    limit: usize,
) -> Vec<Arc<Record>> {
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
        TaskState::Completed { result, .. } => result.clear(),
        TaskState::Failed { error } => error.clear(),
        TaskState::Working | TaskState::InputRequired { .. } | TaskState::Cancelled => {}
    }
    Arc::new(listed)
}

/// How many records there are of each route and status.
async fn census(store: &dyn Store) -> BTreeMap<(String, &'static str), usize> {
    let census = store.census().await.expect("answers");
    census
        .into_iter()
        .map(|TaskTally { route, status, tasks }| ((route.to_string(), status), tasks))
        .collect()
}
