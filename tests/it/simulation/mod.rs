//! One call and its task from a seed, in virtual time: random orders of all events, and the invariants of each.

mod coverage;

use bytes::Bytes;
use deferral::internals::{
    bridge::{
        Exchange, ExchangeAction,
        exchange::{CallDeadlines, ExchangePhase, InputDelivery, InputNumber},
    },
    protocol::Timestamp,
    runtime::{Clock, SystemClock},
    task::{
        Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState, apply,
        view::experimental::{self, TaskOutcome, ToolErrors},
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// The server's word, so that one can tell whose result a task carries.
const WORD: &str = r#"{"resultType":"complete","content":[]}"#;

/// What it says where its tool failed.
const TOOL_ERROR: &str = r#"{"resultType":"complete","content":[],"isError":true}"#;

/// And where the call failed.
const ERROR: &str = r#"{"code":-32603,"message":"lost"}"#;

const AFTER: Duration = Duration::from_secs(5);

/// What can happen next, where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    ServerAnswers,
    ServerSaysItsToolFailed,
    ServerIsLost,
    ServerAsks,
    ServerWithdraws,
    /// It asks two things, and ends the call with that.
    ServerTurnsOver,
    /// Whatever the exchange waits for: the threshold, the settling, the end of parking.
    TimeComes,
    /// Enough of it for a sweeper to have work.
    TimePasses,
    StoreAnswers,
    StoreFails,
    SocketTakesHandle,
    ClientLeaves,
    ClientComesBackWithAll,
    ClientComesBackWithSome,
    ClientComesBackWithNothing,
    /// The same retry once more, while the first still waits.
    ClientRepeatsItself,
    /// What follows from it may come later, and comes also where its request has been dropped meanwhile.
    ClientAnswersInTask,
    ClientCancels,
    /// The call receives what a client's request has changed in its record.
    MailArrives,
    /// A `tasks/result` of 2025-11-25, at any time once a client knows the task.
    WaiterComes,
    ProxyStops,
}

/// The server's final word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Result,
    ToolError,
    Lost,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Answered,
    Withdrawn,
    Declined,
}

/// What a change of the record means to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mail {
    Answer(InputNumber),
    Cancelled,
}

/// The whole world of one call.
struct CallSimulation {
    exchange: Exchange<Word>,
    now: Instant,
    clock: Timestamp,
    /// What the store holds.
    record: Option<Record>,
    storing: bool,
    /// Changes of the record that the call has not received.
    mail: VecDeque<Mail>,
    /// A handle between the proxy and the client's socket.
    handle_on_its_way: bool,
    client: Client,
    older: LegacyView,
    server: Server,
    log: Vec<String>,
}

#[derive(Default)]
struct Client {
    gone: bool,
    /// Requests that wait for their answer.
    waiting: usize,
    /// What it has been asked, and will come back for.
    asked: Option<BTreeSet<InputNumber>>,
    rounds: usize,
    plain_answers: Vec<Word>,
    has_handle: bool,
    cancelled: bool,
}

/// The task as 2025-11-25 sees it.
#[derive(Default)]
struct LegacyView {
    /// Whether the call itself was one of an older revision.
    calls: bool,
    /// The status it had last, for each [`TOOL_ERRORS`].
    status: Option<[&'static str; 2]>,
    /// Every step from one status to another, in either.
    steps: BTreeSet<(&'static str, &'static str)>,
    /// What `tasks/result` gives now.
    outcome: Option<TaskOutcome>,
    waiters: Vec<Waiter>,
}

/// One `tasks/result`. It looks when it comes, and again whenever the task is announced.
struct Waiter {
    came_late: bool,
    /// The response it got. It keeps waiting, so that a second one is noticed.
    told: Vec<TaskOutcome>,
}

const TOOL_ERRORS: [ToolErrors; 2] = [ToolErrors::Failed, ToolErrors::Completed];

const WAITERS: usize = 4;

#[derive(Default)]
struct Server {
    spoke: Option<Word>,
    cancels: usize,
    questions: BTreeMap<InputNumber, Fate>,
    /// What it has turned the call over for: it has no call until all that is answered.
    turned_over: Option<BTreeSet<InputNumber>>,
    turns: usize,
}

impl CallSimulation {
    fn new(defer_after: Option<Duration>) -> Self {
        let now = SystemClock::new().now();
        let deadlines = CallDeadlines {
            defer_after,
            settle: Duration::from_millis(25),
            park: Duration::from_secs(300),
            input_timeout: Some(Duration::from_secs(300)),
        };
        Self {
            exchange: Exchange::new(InputDelivery::RoundTrips, deadlines, now),
            now,
            clock: Timestamp::from_millis(1_000_000),
            record: None,
            storing: false,
            mail: VecDeque::new(),
            handle_on_its_way: false,
            client: Client { waiting: 1, ..Client::default() },
            // Such a call is a task at once where its client asks for one.
            older: LegacyView { calls: defer_after == Some(Duration::ZERO), ..LegacyView::default() },
            server: Server::default(),
            log: Vec::new(),
        }
    }

    fn possible(&self) -> Vec<Happening> {
        use Happening::*;
        let lives = self.server.spoke.is_none() && self.server.cancels == 0;
        let speaks = lives && self.server.turned_over.is_none();
        let open = self.server.questions.values().any(|fate| *fate == Fate::Open);
        let back = !self.client.gone && self.client.asked.is_some();
        let in_task = match &self.record {
            Some(Record { state: TaskState::InputRequired { .. }, .. }) => self.client.has_handle,
            _ => false,
        };
        [
            (ServerAnswers, speaks),
            (ServerSaysItsToolFailed, speaks),
            (ServerIsLost, speaks),
            (ServerAsks, speaks && self.server.questions.len() < 4),
            (ServerWithdraws, speaks && open),
            (ServerTurnsOver, speaks && self.server.questions.len() < 4),
            (TimeComes, self.exchange.poll_timeout().is_some()),
            // The record of a task that has ended outlives what the call is yet to be told of it.
            (TimePasses, lives && !self.record.as_ref().is_some_and(|record| record.state.is_ended())),
            (StoreAnswers, self.storing),
            (StoreFails, self.storing),
            (SocketTakesHandle, self.handle_on_its_way && !self.client.gone),
            (
                ClientLeaves,
                !self.client.gone && !self.client.has_handle && self.client.plain_answers.is_empty(),
            ),
            (ClientComesBackWithAll, back),
            (ClientComesBackWithSome, back),
            (ClientComesBackWithNothing, back && self.client.rounds < 6),
            (ClientRepeatsItself, self.client.waiting == 1 && self.client.rounds > 0 && !self.client.gone),
            (ClientAnswersInTask, in_task),
            (ClientCancels, self.client.has_handle && !self.client.cancelled),
            (MailArrives, !self.mail.is_empty()),
            (WaiterComes, self.client.has_handle && self.older.waiters.len() < WAITERS),
            (ProxyStops, self.exchange.phase() == ExchangePhase::Parked),
        ]
        .into_iter()
        .filter_map(|(happening, possible)| possible.then_some(happening))
        .collect()
    }

    fn happen(&mut self, happening: Happening) {
        self.log.push(format!("{happening:?}"));
        let was_answered = self.server.spoke.is_some();
        self.clock = self.clock + Duration::from_millis(100);
        match happening {
            Happening::ServerAnswers => self.speak(Word::Result),
            Happening::ServerSaysItsToolFailed => self.speak(Word::ToolError),
            Happening::ServerIsLost => self.speak(Word::Lost),
            Happening::ServerAsks => {
                let ask = InputNumber::try_from(self.server.questions.len()).expect("few");
                self.server.questions.insert(ask, Fate::Open);
                self.exchange.handle_input_request(ask, self.now);
            }
            Happening::ServerWithdraws => {
                let open = self.server.questions.iter_mut().find(|(_, fate)| **fate == Fate::Open);
                let (ask, fate) = open.expect("one is open");
                *fate = Fate::Withdrawn;
                self.exchange.handle_input_withdrawn(*ask);
            }
            Happening::ServerTurnsOver => {
                let first = InputNumber::try_from(self.server.questions.len()).expect("few");
                let asks = BTreeSet::from([first, first + 1]);
                self.server.questions.extend(asks.iter().map(|ask| (*ask, Fate::Open)));
                self.server.turned_over = Some(asks.clone());
                self.exchange.handle_input_required(asks, self.now);
            }
            Happening::TimeComes => {
                self.now = self.exchange.poll_timeout().expect("armed").max(self.now);
                self.exchange.handle_timeout(self.now);
            }
            Happening::TimePasses => {
                self.clock = self.clock + Duration::from_secs(400);
                self.sweep();
            }
            Happening::StoreAnswers => {
                self.storing = false;
                let owner =
                    TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
                let retention = Duration::from_secs(60);
                let id = TaskId::from_entropy([7; 16]);
                let record = Record::new(id, owner, "tool", retention, self.clock);
                self.record = Some(Record { is_translated: !self.older.calls, ..record });
                self.older.watch(self.record.as_ref());
                self.exchange.handle_stored(true, self.now);
            }
            Happening::StoreFails => {
                self.storing = false;
                self.exchange.handle_stored(false, self.now);
            }
            Happening::SocketTakesHandle => {
                self.handle_on_its_way = false;
                self.client.has_handle = true;
                self.exchange.handle_committed();
            }
            Happening::ClientLeaves => {
                self.client.gone = true;
                self.handle_on_its_way = false;
                if self.client.waiting > 0 || self.exchange.phase() == ExchangePhase::CommittingHandle {
                    self.exchange.handle_disconnect();
                }
                self.client.waiting = 0;
            }
            Happening::ClientComesBackWithAll => self.come_back(usize::MAX),
            Happening::ClientComesBackWithSome => self.come_back(1),
            Happening::ClientComesBackWithNothing => self.come_back(0),
            Happening::ClientRepeatsItself => {
                // Its answers were taken the first time: none of their questions is open.
                self.client.waiting += 1;
                self.exchange.handle_retry(&BTreeSet::new(), Some(AFTER), self.now);
            }
            Happening::ClientAnswersInTask => {
                let Some(Record { state: TaskState::InputRequired { outstanding }, .. }) = &self.record
                else {
                    unreachable!("it is possible only then")
                };
                let key = outstanding.keys().next().expect("never empty").clone();
                let answers = BTreeMap::from([(key, Ok(Bytes::from_static(b"{}")))]);
                for effect in self.apply(TaskEvent::InputAnswered { answers, are_stored: false }) {
                    if let TaskEffect::AnswerUpstream { key, .. } = effect {
                        self.mail.push_back(Mail::Answer(key.parse().expect("a number")));
                    }
                }
            }
            Happening::ClientCancels => {
                self.client.cancelled = true;
                if self.apply(TaskEvent::CANCELLED_BY_CLIENT).contains(&TaskEffect::CancelUpstream) {
                    self.mail.push_back(Mail::Cancelled);
                }
            }
            Happening::MailArrives => match self.mail.pop_front().expect("there is some") {
                // A call that has ended receives nothing.
                _ if self.exchange.is_done() => {}
                // The server took it back meanwhile.
                Mail::Answer(ask) if self.server.questions[&ask] != Fate::Open => {}
                Mail::Answer(ask) => {
                    self.answer(ask);
                    self.exchange.handle_input_answered(ask);
                }
                Mail::Cancelled => self.exchange.handle_task_cancelled(),
            },
            Happening::WaiterComes => {
                let told: Vec<_> = self.record.iter().filter_map(experimental::task_outcome).collect();
                self.older.waiters.push(Waiter { came_late: !told.is_empty(), told });
            }
            Happening::ProxyStops => self.exchange.handle_shutdown(self.now),
        }
        self.carry_out();
        // A call that is a task whatever comes has to be stored before its handle is given.
        if self.storing && !was_answered && self.server.spoke.is_some() && !self.older.calls {
            assert_eq!(self.client.waiting, 0, "a result that is there waits for the store");
        }
    }

    fn speak(&mut self, word: Word) {
        self.server.spoke = Some(word.clone());
        self.exchange.handle_final(word);
    }

    /// The client makes its request again, with answers to so many of the questions.
    fn come_back(&mut self, answers: usize) {
        let asked = self.client.asked.take().expect("it was asked");
        self.client.rounds += 1;
        if self.exchange.is_done() {
            // Told that the call is gone: an answer too, but none of the exchange's.
            self.client.gone = true;
            return;
        }
        self.client.waiting += 1;
        let open = |ask: &InputNumber| self.server.questions[ask] == Fate::Open;
        let answered: BTreeSet<_> = asked.into_iter().filter(open).take(answers).collect();
        answered.iter().for_each(|ask| self.answer(*ask));
        self.exchange.handle_retry(&answered, Some(AFTER), self.now);
    }

    fn answer(&mut self, ask: InputNumber) {
        let fate = self.server.questions.get_mut(&ask).expect("an answer to what was asked");
        assert_eq!(*fate, Fate::Open, "question {ask} is answered twice, or after its end");
        *fate = Fate::Answered;
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.exchange.poll_action() {
            self.log.push(format!("  -> {action:?}"));
            match action {
                ExchangeAction::Reply(word) => {
                    assert!(self.client.waiting > 0, "an answer for nobody");
                    self.client.waiting = 0;
                    self.client.plain_answers.push(word);
                }
                ExchangeAction::RequestInput(asks) => {
                    assert!(self.client.waiting > 0, "a question for nobody");
                    assert!(self.client.asked.is_none());
                    for ask in &asks {
                        assert_eq!(self.server.questions[ask], Fate::Open, "asked what is not open");
                    }
                    self.client.waiting = 0;
                    self.client.asked = Some(asks);
                }
                ExchangeAction::Store => {
                    assert!(!self.storing && self.record.is_none(), "a task is stored once");
                    self.storing = true;
                }
                ExchangeAction::ReplyTask => {
                    assert!(self.record.is_some(), "a handle of a task that is not stored");
                    assert!(self.client.waiting > 0);
                    self.client.waiting = 0;
                    self.handle_on_its_way = true;
                }
                ExchangeAction::RequestInTask(ask) => {
                    assert_eq!(self.server.questions[&ask], Fate::Open);
                    let request = Bytes::from_static(b"{}");
                    let effects = self.apply(TaskEvent::InputRequested { key: ask.to_string(), request });
                    if effects.is_empty() {
                        self.server.questions.insert(ask, Fate::Declined);
                    }
                }
                ExchangeAction::ExpireInput(ask) => {
                    // Refused where it has been answered: the answer counts.
                    if !self.apply(TaskEvent::InputWithdrawn { key: ask.to_string() }).is_empty() {
                        let fate = self.server.questions.insert(ask, Fate::Declined);
                        assert_eq!(fate, Some(Fate::Open), "lapsed what is not open");
                    }
                }
                ExchangeAction::Withdraw(ask) => {
                    drop(self.apply(TaskEvent::InputWithdrawn { key: ask.to_string() }))
                }
                ExchangeAction::RequestOnStream(_) => unreachable!("nobody is asked on a stream here"),
                ExchangeAction::RetryUpstream => {
                    let asks = self.server.turned_over.take().expect("made again, and was not turned over");
                    assert!(asks.iter().all(|ask| self.server.questions[ask] == Fate::Answered));
                    assert_eq!(self.server.cancels, 0, "made again after it was cancelled");
                    self.server.turns += 1;
                }
                ExchangeAction::Decline(ask) => {
                    let fate = self.server.questions.insert(ask, Fate::Declined);
                    assert_eq!(fate, Some(Fate::Open), "declined what is not open");
                }
                ExchangeAction::StoreResult(word) => {
                    let event = match word {
                        Word::Result => TaskEvent::Returned { result: Bytes::from_static(WORD.as_bytes()) },
                        Word::ToolError => {
                            TaskEvent::Returned { result: Bytes::from_static(TOOL_ERROR.as_bytes()) }
                        }
                        Word::Lost => {
                            TaskEvent::Failed { error: Bytes::from_static(ERROR.as_bytes()), message: None }
                        }
                    };
                    self.apply(event);
                }
                ExchangeAction::RemoveTask => {
                    assert!(self.record.take().is_some(), "only what is stored is forgotten");
                    self.older.watch(None);
                }
                ExchangeAction::CancelUpstream => {
                    assert_eq!(self.server.spoke, None, "a cancel after the server's final word");
                    self.server.cancels += 1;
                }
            }
        }
    }

    /// Applies an event to the stored task and checks that it moves only as it may.
    fn apply(&mut self, event: TaskEvent) -> Vec<TaskEffect> {
        let Some(record) = &self.record else { return Vec::new() };
        let ended = record.state.is_ended();
        match apply(record, event, self.clock) {
            Ok((next, effects)) => {
                assert!(!ended, "an ended task moved");
                assert!(next.ttl >= record.ttl, "a ttl was shortened");
                self.record = Some(next);
                self.older.watch(self.record.as_ref());
                if effects.contains(&TaskEffect::Announce) {
                    self.older.hear();
                }
                effects
            }
            Err(_) => Vec::new(),
        }
    }

    /// What the sweeper does with a task that is due.
    fn sweep(&mut self) {
        let Some(record) = &self.record else { return };
        if record.due_at() > self.clock {
            return;
        }
        if record.is_expired(self.clock) {
            assert!(record.state.is_ended(), "a working task was evicted");
            self.record = None;
            self.older.watch(None);
        } else {
            self.apply(TaskEvent::TtlRenewed);
        }
    }

    /// What must hold once nothing more can happen.
    fn check(&self) {
        let answers = self.client.plain_answers.len() + usize::from(self.client.has_handle);
        assert!(answers <= 1, "answered {answers} times");
        assert!(self.server.cancels <= 1, "cancelled {} times", self.server.cancels);
        assert!(!self.exchange.is_outcome_open(), "somebody still waits for the server");
        if !self.client.gone {
            assert_eq!(self.client.waiting, 0, "a client that stayed has no answer");
            assert_eq!(answers, 1, "a client that stayed has no outcome");
        }
        if let Some(word) = self.client.plain_answers.first() {
            assert_eq!(Some(word), self.server.spoke.as_ref(), "an invented answer");
            assert!(self.record.is_none(), "a task nobody knows of is kept");
        }
        if self.client.has_handle {
            let record = self.record.as_ref().expect("a task whose handle was given is kept");
            assert!(record.state.is_ended(), "a task without an end: {:?}", record.state);
            match (&record.state, &self.server.spoke) {
                (TaskState::Completed { result, is_error: false }, Some(Word::Result)) => {
                    assert_eq!(result, WORD);
                }
                (TaskState::Completed { result, is_error: true }, Some(Word::ToolError)) => {
                    assert_eq!(result, TOOL_ERROR);
                }
                (TaskState::Failed { .. }, Some(Word::Lost)) => {}
                (TaskState::Cancelled, _) => assert!(self.client.cancelled),
                (state, spoke) => panic!("the server said {spoke:?} and the task is {state:?}"),
            }
            self.older.check(record);
        }
        if self.client.gone && !self.client.has_handle {
            assert!(self.record.is_none(), "a task whose handle nobody has is kept");
            assert_eq!(
                self.server.cancels,
                usize::from(self.server.spoke.is_none()),
                "a client left, the server is told unless it had spoken"
            );
        }
    }
}

// === impl LegacyView ===

impl LegacyView {
    /// Sees the task as it is now: it went where it may, and its outcome is there at its end, once
    /// and for all.
    fn watch(&mut self, record: Option<&Record>) {
        let Some(record) = record else {
            assert!(self.waiters.is_empty(), "a task somebody waits for is forgotten");
            (self.status, self.outcome) = (None, None);
            return;
        };
        let now = TOOL_ERRORS.map(|tool_errors| experimental::task_status(record, tool_errors));
        match self.status {
            None => assert_eq!(now, ["working"; 2], "a task begins to work"),
            Some(before) => self.steps.extend(before.into_iter().zip(now).filter(|(was, is)| was != is)),
        }
        for (was, is) in &self.steps {
            assert!(matches!(*was, "working" | "input_required"), "a task went from {was} to {is}");
        }
        self.status = Some(now);

        let outcome = experimental::task_outcome(record);
        assert_eq!(outcome.is_some(), record.state.is_ended(), "an outcome before the end, or none at it");
        if self.outcome.is_some() {
            assert_eq!(outcome, self.outcome, "an outcome changed");
        }
        self.outcome = outcome;
    }

    /// The task was announced: waiting requests read it again.
    fn hear(&mut self) {
        for waiter in &mut self.waiters {
            waiter.told.extend(self.outcome.clone());
        }
    }

    /// What must hold once nothing more can happen.
    fn check(&self, record: &Record) {
        let own = |word: &str| {
            let mut own: Value = serde_json::from_str(word).expect("JSON");
            if record.is_translated {
                own.as_object_mut().expect("an object").remove("resultType");
            }
            own["_meta"] =
                json!({ "io.modelcontextprotocol/related-task": { "taskId": record.id.as_str() } });
            own
        };
        match (self.outcome.as_ref().expect("the task has ended"), &record.state) {
            (TaskOutcome::Result(given), TaskState::Completed { is_error, .. }) => {
                let given: Value = serde_json::from_slice(given).expect("JSON");
                assert_eq!(given, own(if *is_error { TOOL_ERROR } else { WORD }));
            }
            (TaskOutcome::Error(given), TaskState::Failed { .. }) => assert_eq!(given, ERROR),
            (TaskOutcome::Cancelled, TaskState::Cancelled) => {}
            (outcome, state) => panic!("a task that is {state:?} came to {outcome:?}"),
        }
        assert_eq!(self.waiters.len(), WAITERS);
        for Waiter { came_late, told } in &self.waiters {
            let times = told.len();
            assert_eq!(times, 1, "a waiter is released {times} times (it came after the end: {came_late})");
            assert_eq!(told.first(), self.outcome.as_ref(), "two waiters were told two things");
        }
    }
}

/// Whether this ends a call or a task, or takes away what could come of it.
fn is_an_end(happening: Happening) -> bool {
    use Happening::*;
    match happening {
        ServerAnswers
        | ServerSaysItsToolFailed
        | ServerIsLost
        | StoreFails
        | ClientLeaves
        | ClientCancels
        | ProxyStops => true,
        ServerAsks
        | ServerWithdraws
        | ServerTurnsOver
        | TimeComes
        | TimePasses
        | StoreAnswers
        | SocketTakesHandle
        | ClientComesBackWithAll
        | ClientComesBackWithSome
        | ClientComesBackWithNothing
        | ClientRepeatsItself
        | ClientAnswersInTask
        | MailArrives
        | WaiterComes => false,
    }
}

/// Chooses what happens, by a seed. In every other run what ends something is seldom chosen: where
/// all is equally likely few calls live long enough to become a task.
fn run(seed: u64, defer_after: Option<Duration>) -> CallSimulation {
    let mut world = CallSimulation::new(defer_after);
    let mut state = seed | 1;
    let mut time_left = 6;
    let patience = if seed.count_ones().is_multiple_of(2) { 1 } else { 16 };
    loop {
        let mut possible = world.possible();
        if time_left == 0 {
            possible.retain(|happening| *happening != Happening::TimePasses);
        }
        if possible.is_empty() {
            return world;
        }
        let weight = |happening: Happening| if is_an_end(happening) { 1 } else { patience };
        let total: u64 = possible.iter().map(|happening| weight(*happening)).sum();
        // xorshift*: a step is enough to choose among a few, by its upper half.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let mut chosen = (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % total;
        let mut weighed = possible.into_iter().skip_while(|happening| {
            let weight = weight(*happening);
            let is_behind = chosen >= weight;
            chosen -= if is_behind { weight } else { 0 };
            is_behind
        });
        let happening = weighed.next().expect("less than the total was chosen");
        time_left -= usize::from(happening == Happening::TimePasses);
        world.happen(happening);
    }
}

fn thresholds() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![Just(None), Just(Some(AFTER)), Just(Some(Duration::ZERO))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]

    #[test]
    fn every_order_of_events_has_one_outcome_and_answers_every_request(seed: u64, after in thresholds()) {
        let world = run(seed, after);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.check()));
        prop_assert!(checked.is_ok(), "seed {}:\n{}", seed, world.log.join("\n"));
    }
}
