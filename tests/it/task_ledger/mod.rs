//! The ledger of tasks alone: no client, no server, and a store that fails on request.

use crate::support::faulty_store::{EVERYTHING, FaultyStore, Op};
use bytes::Bytes;
use deferral::internals::{
    policy::TaskQuotas,
    protocol::{ClockOffset, ClockReading, WallTime},
    proxy::{CancelOutcome, OperatorTasks, TaskAdmissionError, TaskLedger},
    runtime::{Clock, Drain, SteadyClock, SystemClock},
    store::{MemoryStore, Store, StoreError, TaskOwnership, UpdateOutcome},
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState},
};
use futures_util::{FutureExt, poll};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

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
    assert_eq!(ledger.admit(record.clone()).await.err(), Some(TaskAdmissionError::StoreFailed));
    assert_eq!(ledger.working_count(), 0);
    store.fails(&EVERYTHING);
    assert!(ledger.load(&record.id).await.is_err(), "nothing is known of it");
    store.works();
    assert!(ledger.load(&record.id).await.expect("it answers").is_none());
    let _custody = ledger.admit(record).await.expect("its place was given back");
    assert_eq!(ledger.working_count(), 1);
}

#[tokio::test]
async fn a_task_whose_store_has_counted_it_and_not_answered_counts_once() {
    let (ledger, store, clock) = ledger(TaskQuotas { tasks_per_principal: 2, ..TaskQuotas::default() });
    store.yields();
    let first = record(&clock);
    let second = Record { id: TaskId::from_entropy([8; 16]), ..first.clone() };
    let third = Record { id: TaskId::from_entropy([9; 16]), ..first.clone() };
    let mut storing = Box::pin(ledger.admit(first));
    while store.usage(&[1; 16]).tasks == 0 {
        assert!(poll!(&mut storing).is_pending());
        // There is room for both, and for no more.
        assert!(ledger.admit(third.clone()).now_or_never().is_none());
    }
    let _second = ledger.admit(second).await.expect("there is room for one more");
    assert_eq!(ledger.admit(third).await.err(), Some(TaskAdmissionError::Full("limits.tasks_per_principal")));
    let _first = storing.await.expect("it had room");
}

#[tokio::test]
async fn a_task_is_known_while_the_store_fails_for_as_long_as_its_call_is_held() {
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    let custody = ledger.admit(record.clone()).await.expect("there is room");
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
    let custody = ledger.admit(record.clone()).await.expect("there is room");
    let (_drain, overdue) = Drain::new();
    store.fails(&[Op::Swap]);
    let keeping = tokio::spawn(async move { (custody.persist(returned(1), &overdue).await, custody) });
    store.refused(Op::Swap).await;
    let known = ledger
        .with_unstored_message(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert_eq!(known.state, TaskState::Working);
    assert!(known.message.as_ref().is_some_and(|words| words.contains("store")), "{known:?}");
    assert_eq!(ledger.unfetched_count(), 0, "there is nothing to fetch yet");
    store.works();
    let (kept, custody) = keeping.await.expect("it does not panic");
    assert!(matches!(kept, Ok(UpdateOutcome::Applied { .. })), "{kept:?}");
    assert_eq!(ledger.unfetched_count(), 1);
    drop(custody);
    let known = ledger
        .with_unstored_message(ledger.load(&record.id).await.expect("it answers").expect("it is there"));
    assert!(matches!(known.state, TaskState::Completed { .. }), "{known:?}");
    assert_eq!(known.message, None);
}

#[tokio::test(start_paused = true)]
async fn unstored_bytes_are_bounded() {
    let (ledger, store, clock) = ledger(TaskQuotas { stored_bytes: 4000, ..TaskQuotas::default() });
    let record = record(&clock);
    let custody = ledger.admit(record.clone()).await.expect("there is room");
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
    let custody = ledger.admit(record.clone()).await.expect("there is room");
    store.fails(&[Op::Remove]);
    custody.discard().await;
    store.works();
    assert_eq!(ledger.working_count(), 0, "nobody holds it");
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
async fn a_task_of_another_process_is_left_alone_until_its_lease_lapses() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let (ledger, store, clock) = ledger(TaskQuotas::default());
    let record = record(&clock);
    store.insert(Arc::new(record.clone())).await.expect("kept");
    let owner = MemoryStore::default().restarted().process();
    assert_ne!(owner, store.process());
    store.owned_as(TaskOwnership { owner, lease_until: None });
    let (_drain, stopping) = Drain::new();
    let looking_after = tokio::spawn(Arc::clone(&ledger).maintain(Vec::new(), stopping));
    let state =
        async || ledger.load(&record.id).await.expect("it answers").expect("it is there").state.clone();
    // It is due all the time, and its owner does not renew it.
    tokio::time::sleep(HOUR * 24).await;
    assert_eq!(state().await, TaskState::Working, "its lease has no end");
    store.owned_as(TaskOwnership { owner, lease_until: Some(clock.timestamp() + HOUR) });
    tokio::time::sleep(HOUR - Duration::from_secs(10)).await;
    assert_eq!(state().await, TaskState::Working, "its lease holds");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let TaskState::Failed { error } = state().await else { panic!("its lease has lapsed") };
    assert!(error.starts_with(br#"{"code":-31002,"#), "{error:?}");
    looking_after.abort();
}

#[tokio::test]
async fn a_cancellation_whose_owner_is_gone_is_stored_for_the_next_owner() {
    let (former, clock) = (MemoryStore::default(), Arc::new(SystemClock::new()));
    let (record, store) = (record(&clock), Arc::new(former.restarted()));
    former.insert(Arc::new(record.clone())).await.expect("kept");
    former.set_anchor(&record.id, Some("its call".into())).await.expect("kept");
    let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock);
    let cancelled = OperatorTasks::new(ledger).cancel(record.id.as_str()).await.expect("it answers");
    assert!(matches!(cancelled, CancelOutcome::Cancelled(_)));
    let [orphan] = &store.take_orphans(9).await.expect("it answers")[..] else {
        panic!("its server is not told")
    };
    assert_eq!((&orphan.record.id, &orphan.record.state), (&record.id, &TaskState::Cancelled));
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

/// A ledger with a wall clock that the test sets, and its store.
struct SteppedLedger {
    ledger: Arc<TaskLedger>,
    store: Arc<FaultyStore>,
    clock: Arc<SteadyClock>,
    wall: Arc<AtomicU64>,
}

const NOON: u64 = 1_785_234_600_000;
const EIGHT_HOURS: u64 = 8 * 60 * 60 * 1000;

impl SteppedLedger {
    fn start() -> Self {
        let (store, wall) = (FaultyStore::new(), Arc::new(AtomicU64::new(NOON)));
        let shown = Arc::clone(&wall);
        let read = move || WallTime::from_millis(shown.load(Ordering::Relaxed));
        let clock = Arc::new(SteadyClock::resume(store.stored_clock(), read));
        let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
        Self { ledger, store, clock, wall }
    }

    fn record(&self) -> Record {
        let ClockReading { time, offset } = self.clock.reading();
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let id = TaskId::from_entropy([7; 16]);
        let record = Record::new(id, owner, "slow", Duration::from_secs(60 * 60), time);
        Record { clock_offset: offset, ..record }
    }

    fn steps_to(&self, wall: u64) {
        self.wall.store(wall, Ordering::Relaxed);
    }

    fn kept(&self) -> Option<i64> {
        self.store.stored_clock().map(|kept| kept.offset.as_millis())
    }

    /// Remaining lifetime of the task for a process that starts now, after this one was killed.
    fn left(&self, record: &Record) -> Duration {
        let shown = Arc::clone(&self.wall);
        let read = move || WallTime::from_millis(shown.load(Ordering::Relaxed));
        let next = SteadyClock::resume(self.store.stored_clock(), read);
        record.due_at().since(next.timestamp())
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_is_stored_before_a_task_is_created_or_ends() {
    let world = SteppedLedger::start();
    let early = world.record();
    world.steps_to(NOON + EIGHT_HOURS);
    let record = world.record();
    assert_eq!(record.created, early.created, "no time has passed");
    assert_eq!(record.to_wall_time(record.created).to_string(), "2026-07-28T18:30:00.000Z");
    let _custody = world.ledger.admit(record.clone()).await.expect("there is room");
    assert_eq!(world.kept(), Some(28_800_000));
    world.steps_to(NOON - EIGHT_HOURS);
    let ended = world.ledger.change(&record.id, &returned(1)).await.expect("kept");
    let UpdateOutcome::Applied { after, .. } = ended else { panic!("{ended:?}") };
    let after = after.record;
    assert_eq!(world.kept(), Some(-28_800_000));
    assert_eq!(
        after.to_wall_time(after.updated),
        record.to_wall_time(record.created),
        "displayed times do not change"
    );
    assert_eq!(world.left(&after), Duration::from_secs(60 * 60));
}

#[tokio::test(start_paused = true)]
async fn the_sweep_stores_a_step_of_the_wall_clock_without_other_activity() {
    let world = SteppedLedger::start();
    let record = world.record();
    let _custody = world.ledger.admit(record).await.expect("there is room");
    let (_drain, stopping) = Drain::new();
    let sweeping = tokio::spawn(Arc::clone(&world.ledger).maintain(Vec::new(), stopping));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(world.kept(), Some(0));
    world.steps_to(NOON + EIGHT_HOURS);
    world.store.fails(&[Op::KeepClock]);
    world.store.refused(Op::KeepClock).await;
    assert_eq!(world.kept(), Some(0));
    world.store.works();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(world.kept() > Some(28_000_000), "{:?}", world.kept());
    sweeping.abort();
}

#[tokio::test(start_paused = true)]
async fn the_time_line_is_stored_each_minute_while_there_are_tasks() {
    let clock = Arc::new(SystemClock::new());
    let store = FaultyStore::around(Arc::new(MemoryStore::default().restarted()));
    let ledger = TaskLedger::new(store.clone(), None, TaskQuotas::default(), clock.clone());
    let (_drain, stopping) = Drain::new();
    let sweeping = tokio::spawn(Arc::clone(&ledger).maintain(Vec::new(), stopping));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(store.stored_clock(), None, "nothing is stored without tasks");
    let record = record(&clock);
    let custody = ledger.admit(record.clone()).await.expect("there is room");
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        let kept = store.stored_clock().expect("it is kept");
        assert_eq!(kept.offset, ClockOffset::ZERO);
        assert!(clock.timestamp().since(kept.time) <= Duration::from_secs(65), "{kept:?}");
    }
    drop(custody);
    sweeping.abort();
    ledger.close().await;
    assert_eq!(
        store.stored_clock().map(|kept| kept.time),
        Some(clock.timestamp()),
        "the last time is stored at shutdown"
    );
}
