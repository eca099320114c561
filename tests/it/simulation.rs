//! Seeds and virtual time: one call and its task, with everything that can happen to them in every
//! order, and what must hold whatever the order was.

use bytes::Bytes;
use deferral::runtime::{Clock, SystemClock};
use deferral::{
    bridge::{Action, Exchange},
    protocol::Timestamp,
    task::{Effect, Event, Owner, Record, State, TaskId, apply},
};
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// The server's word, so that one can tell whose result a task carries.
const WORD: &str = r#"{"resultType":"complete","content":[]}"#;

/// What can happen next, where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    ServerAnswers,
    ServerIsLost,
    DeadlinePasses,
    TimePasses,
    StoreAnswers,
    StoreFails,
    SocketTakesHandle,
    ClientLeaves,
    ClientCancels,
}

/// The server's final word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Result,
    Lost,
}

/// The whole world of one call.
struct World {
    exchange: Exchange<Word>,
    now: Instant,
    clock: Timestamp,
    /// What the store holds.
    record: Option<Record>,
    storing: bool,
    /// A handle between the proxy and the client's socket.
    handle_on_its_way: bool,
    client: Client,
    server: Server,
    log: Vec<String>,
}

#[derive(Default)]
struct Client {
    gone: bool,
    plain_answers: Vec<Word>,
    has_handle: bool,
    cancelled: bool,
}

#[derive(Default)]
struct Server {
    spoke: Option<Word>,
    cancels: usize,
}

impl World {
    fn new(deferrable: bool) -> Self {
        let now = SystemClock::new().now();
        Self {
            exchange: Exchange::new(deferrable.then_some(now + Duration::from_secs(5))),
            now,
            clock: Timestamp::from_millis(1_000_000),
            record: None,
            storing: false,
            handle_on_its_way: false,
            client: Client::default(),
            server: Server::default(),
            log: Vec::new(),
        }
    }

    fn possible(&self) -> Vec<Happening> {
        use Happening::*;
        let speaks = self.server.spoke.is_none() && self.server.cancels == 0;
        let waits = !self.client.gone && !self.client.has_handle && self.client.plain_answers.is_empty();
        [
            (ServerAnswers, speaks),
            (ServerIsLost, speaks),
            (DeadlinePasses, self.exchange.poll_timeout().is_some()),
            (TimePasses, speaks),
            (StoreAnswers, self.storing),
            (StoreFails, self.storing),
            (SocketTakesHandle, self.handle_on_its_way && !self.client.gone),
            (ClientLeaves, waits || (!self.client.gone && self.handle_on_its_way)),
            (ClientCancels, self.client.has_handle && !self.client.cancelled),
        ]
        .into_iter()
        .filter_map(|(happening, possible)| possible.then_some(happening))
        .collect()
    }

    fn happen(&mut self, happening: Happening) {
        self.log.push(format!("{happening:?}"));
        self.clock = self.clock + Duration::from_millis(100);
        match happening {
            Happening::ServerAnswers => self.speak(Word::Result),
            Happening::ServerIsLost => self.speak(Word::Lost),
            Happening::DeadlinePasses => {
                self.now = self.exchange.poll_timeout().expect("armed");
                self.exchange.handle_timeout(self.now);
            }
            Happening::TimePasses => {
                self.clock = self.clock + Duration::from_secs(400);
                self.exchange.handle_timeout(self.now);
                self.sweep();
            }
            Happening::StoreAnswers => {
                self.storing = false;
                let owner = Owner { principal: [1; 16], route: "/mcp".into() };
                let retention = Duration::from_secs(60);
                let id = TaskId::from_entropy([7; 16]);
                self.record = Some(Record::new(id, owner, "tool", retention, self.clock));
                self.exchange.handle_stored(true);
            }
            Happening::StoreFails => {
                self.storing = false;
                self.exchange.handle_stored(false);
            }
            Happening::SocketTakesHandle => {
                self.handle_on_its_way = false;
                self.client.has_handle = true;
                self.exchange.handle_committed();
            }
            Happening::ClientLeaves => {
                self.client.gone = true;
                self.handle_on_its_way = false;
                self.exchange.handle_departed();
            }
            Happening::ClientCancels => {
                self.client.cancelled = true;
                if self.apply(Event::Cancelled).contains(&Effect::CancelUpstream) {
                    self.exchange.handle_cancelled();
                }
            }
        }
        self.carry_out();
    }

    fn speak(&mut self, word: Word) {
        self.server.spoke = Some(word.clone());
        self.exchange.handle_final(word);
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.exchange.poll_action() {
            self.log.push(format!("  -> {action:?}"));
            match action {
                Action::Reply(word) => {
                    assert!(!self.client.gone, "an answer for a client that has left");
                    self.client.plain_answers.push(word);
                }
                Action::Store => {
                    assert!(!self.storing && self.record.is_none(), "a task is stored once");
                    self.storing = true;
                }
                Action::ReplyTask => {
                    assert!(self.record.is_some(), "a handle of a task that is not stored");
                    assert!(!self.client.gone);
                    self.handle_on_its_way = true;
                }
                Action::Settle(word) => {
                    let event = match word {
                        Word::Result => Event::Returned { result: Bytes::from_static(WORD.as_bytes()) },
                        Word::Lost => Event::Failed { error: Bytes::from_static(b"{}"), message: None },
                    };
                    self.apply(event);
                }
                Action::Forget => {
                    assert!(self.record.take().is_some(), "only what is stored is forgotten");
                }
                Action::CancelUpstream => {
                    assert_eq!(self.server.spoke, None, "a cancel after the server's final word");
                    self.server.cancels += 1;
                }
            }
        }
    }

    /// Applies an event to the stored task and checks that it moves only as it may.
    fn apply(&mut self, event: Event) -> Vec<Effect> {
        let Some(record) = &self.record else { return Vec::new() };
        let ended = record.state.is_ended();
        match apply(record, event, self.clock) {
            Ok((next, effects)) => {
                assert!(!ended, "an ended task moved");
                assert!(next.ttl >= record.ttl, "a ttl was shortened");
                self.record = Some(next);
                effects
            }
            Err(_) => Vec::new(),
        }
    }

    /// What the sweeper does with a task that is due.
    fn sweep(&mut self) {
        let Some(record) = &self.record else { return };
        if record.due() > self.clock {
            return;
        }
        if record.is_expired(self.clock) {
            assert!(record.state.is_ended(), "a working task was evicted");
            self.record = None;
        } else {
            self.apply(Event::Renewed);
        }
    }

    /// What must hold once nothing more can happen.
    fn check(&self) {
        let answers = self.client.plain_answers.len() + usize::from(self.client.has_handle);
        assert!(answers <= 1, "answered {answers} times");
        assert!(self.server.cancels <= 1, "cancelled {} times", self.server.cancels);
        assert!(!self.exchange.awaits_server(), "somebody still waits for the server");
        if !self.client.gone {
            assert_eq!(answers, 1, "a client that stayed has no answer");
        }
        if let Some(word) = self.client.plain_answers.first() {
            assert_eq!(Some(word), self.server.spoke.as_ref(), "an invented answer");
            assert!(self.record.is_none(), "a task nobody knows of is kept");
        }
        if self.client.has_handle {
            let record = self.record.as_ref().expect("a task whose handle was given is kept");
            assert!(record.state.is_ended(), "a task without an end: {:?}", record.state);
            match (&record.state, &self.server.spoke) {
                (State::Completed { result }, Some(Word::Result)) => assert_eq!(result, WORD),
                (State::Failed { .. }, Some(Word::Lost)) => {}
                (State::Cancelled, _) => assert!(self.client.cancelled),
                (state, spoke) => panic!("the server said {spoke:?} and the task is {state:?}"),
            }
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

/// Chooses what happens, by a seed.
fn run(seed: u64, deferrable: bool) -> World {
    let mut world = World::new(deferrable);
    let mut state = seed | 1;
    let mut time_left = 6;
    loop {
        let mut possible = world.possible();
        if time_left == 0 {
            possible.retain(|happening| *happening != Happening::TimePasses);
        }
        if possible.is_empty() {
            return world;
        }
        // xorshift: a step is enough to choose among nine.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let happening = possible[usize::try_from(state % possible.len() as u64).expect("small")];
        time_left -= usize::from(happening == Happening::TimePasses);
        world.happen(happening);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_the_order_there_is_one_outcome_and_nobody_is_forgotten(seed: u64, deferrable: bool) {
        let world = run(seed, deferrable);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.check()));
        prop_assert!(checked.is_ok(), "seed {}:\n{}", seed, world.log.join("\n"));
    }
}

#[test]
fn the_simulation_meets_every_kind_of_ending() {
    let mut endings = std::collections::BTreeSet::new();
    for seed in 0..2000 {
        let world = run(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15), true);
        endings.insert((
            world.client.gone,
            world.client.plain_answers.first().map(|word| format!("{word:?}")),
            world.record.as_ref().map(|record| record.state.status()),
        ));
    }
    for state in ["completed", "failed", "cancelled"] {
        assert!(endings.iter().any(|(_, _, status)| *status == Some(state)), "no task ended {state}");
    }
    assert!(endings.contains(&(true, None, None)), "no client left early");
    assert!(endings.iter().any(|(_, answer, _)| answer.as_deref() == Some("Result")), "no plain answer");
}
