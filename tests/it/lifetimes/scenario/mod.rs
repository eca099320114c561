//! Random events for a few calls in a few lives of a proxy.

mod wall_clock;

use super::{
    process::{Process, RESUME_WAIT, RealTime, Request, principal},
    random::Chance,
    server::{Kind, Server, Word},
    stored_records::Records,
};
use crate::support::faulty_store::{EVERYTHING, Halt, Op};
use deferral::internals::{
    protocol::{Timestamp, WallTime},
    task::{Record, TaskId, TaskState},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// What a seed is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// The server keeps its events, so that calls go on.
    Resumable,
    /// It keeps none.
    Forgetful,
    /// The store fails as often as the process ends.
    FailingStore,
    /// Anything.
    Anything,
    /// Clients leave right behind their requests, and the store yields around each operation.
    DroppedRequests,
    /// The store stalls, refuses and is full.
    StallingStore,
}

/// What happens, without to whom; and how likely it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    Calls,
    Leaves,
    ComesBack,
    Looks,
    Answers,
    Cancels,
    Reports,
    Asks,
    Withdraws,
    Ends,
    Forgets,
    StoreFails,
    StoreWorks,
    Passes,
    PassesLong,
    Killed,
    Halts,
    Stops,
    /// A client makes a request and leaves right behind it.
    Hurries,
    StoreStalls,
    StoreFills,
}

const ALL: [(Kinds, usize); 21] = [
    (Kinds::Calls, 4),
    (Kinds::Leaves, 1),
    (Kinds::ComesBack, 3),
    (Kinds::Looks, 3),
    (Kinds::Answers, 4),
    (Kinds::Cancels, 1),
    (Kinds::Reports, 2),
    (Kinds::Asks, 4),
    (Kinds::Withdraws, 1),
    (Kinds::Ends, 3),
    (Kinds::Forgets, 0),
    (Kinds::StoreFails, 1),
    (Kinds::StoreWorks, 3),
    (Kinds::Passes, 4),
    (Kinds::PassesLong, 1),
    (Kinds::Killed, 2),
    (Kinds::Halts, 3),
    (Kinds::Stops, 1),
    (Kinds::Hurries, 8),
    (Kinds::StoreStalls, 3),
    (Kinds::StoreFills, 2),
];

/// The wall clock, which is stepped at random, while a process runs and between two.
pub(super) struct Wall {
    /// Used for steps alone, so that the other choices of a seed do not change.
    chance: Chance,
    is_set: bool,
    pub(super) time: RealTime,
    /// Number of steps so far.
    pub(super) steps: usize,
    /// The clock was stepped, and the offset may not have been stored yet.
    is_unkept: bool,
    /// Time of the line and of the wall clock when the last process ended.
    last: (Timestamp, WallTime),
    /// The largest distance that the line went back between two processes.
    pub(super) fell: Duration,
    /// The latest time of the line in any process: a task that expired then stays removed if the line goes back.
    pub(super) latest: Timestamp,
}

/// One call, as its client knows it.
pub(super) struct Call {
    pub(super) who: usize,
    pub(super) client: Client,
    pub(super) task: Option<Task>,
    /// A process ended in the middle of it that could not leave it to the next, or told nobody where it was.
    pub(super) may_be_lost: bool,
    /// When its last request was sent.
    pub(super) sent: Timestamp,
    /// The earliest time at which it may have been asked something last, and in which life.
    pub(super) asked: Option<(Timestamp, usize)>,
    /// Number of steps of the wall clock when the call was made.
    pub(super) steps: usize,
    /// One was stopped in the middle of it.
    pub(super) was_stopped: bool,
    /// The cancellation that its server needs may be lost.
    pub(super) may_go_untold: bool,
}

/// Where a call stands for its client, before there is a task.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Client {
    Waits,
    /// It was asked, and has this to come back with.
    Asked {
        state: String,
        requests: Value,
    },
    /// It has its answer, or its task, or has given up.
    Over,
}

/// A task, as its client knows it.
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) created: Timestamp,
    /// `createdAt` as first displayed.
    pub(super) created_at: String,
    /// As it was last shown.
    pub(super) ttl: Duration,
    /// How it was shown to have ended.
    pub(super) ended: Option<Value>,
    /// What is asked, by key, as last shown.
    pub(super) open: BTreeMap<String, String>,
    /// All that was ever shown to be asked, by key.
    pub(super) asked: BTreeMap<String, String>,
    /// What was asked and has been acknowledged to be answered.
    pub(super) answered: BTreeSet<String>,
    /// Every answer to it: of several the first that is kept counts.
    pub(super) answers: BTreeMap<String, Vec<String>>,
    pub(super) cancels: bool,
    pub(super) is_cancelled: bool,
}

/// A request under way.
pub(super) struct Flight {
    pub(super) call: usize,
    pub(super) what: What,
    pub(super) request: Request,
}

/// What a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Call,
    Get,
    /// With the key, the question, and what it is answered with.
    Update(String, String, String),
    Cancel,
}

pub(super) struct Scenario {
    pub(super) profile: Profile,
    /// The store has been full.
    pub(super) was_full: bool,
    pub(super) chance: Chance,
    odds: Vec<usize>,
    pub(super) always: bool,
    pub(super) kind: Kind,
    pub(super) server: Server,
    pub(super) records: Records,
    pub(super) process: Option<Process>,
    /// Current time on the time line of the records.
    pub(super) now: Timestamp,
    pub(super) wall: Wall,
    pub(super) calls: Vec<Call>,
    pub(super) flights: Vec<Flight>,
    is_failing: bool,
    /// The store has failed, stalled or been full at least once.
    pub(super) has_failed: bool,
    /// Since when the credentials of the second caller are missing.
    absent_since: Timestamp,
    answers: usize,
    /// What happens is said, too.
    is_told: bool,
    pub(super) lives: usize,
}

/// Calls in one world.
const CALLS: usize = 3;
/// The processes of one.
const LIVES: usize = 4;
/// What happens in one, the end aside.
const STEPS: usize = 20;
/// What the store is full of.
pub(super) const FULL: &str = "limits.stored_bytes";

/// Time within which a sweep has run.
const SWEPT: Duration = Duration::from_millis(6_000);
/// Operations that requests wait for. Only these fail alone.
const REQUESTED: &[Op] = EVERYTHING.split_at(9).0;

// === impl Scenario ===

impl Scenario {
    pub(super) fn new(profile: Profile, seed: u64, is_told: bool) -> Self {
        let mut chance = Chance::new(seed);
        let keeps_events = match profile {
            Profile::Resumable | Profile::FailingStore => true,
            Profile::Forgetful => false,
            Profile::Anything | Profile::DroppedRequests | Profile::StallingStore => !chance.once_in(4),
        };
        let answers_take = Duration::from_millis(chance.one_of(&[0, 0, 20]));
        let kind = Kind { keeps_events, primes: !chance.once_in(4), answers_take };
        let odds = ALL.iter().map(|(kind, usual)| match (kind, profile) {
            (Kinds::Calls | Kinds::Passes | Kinds::StoreWorks, _) => *usual,
            (Kinds::StoreFails, Profile::FailingStore) => 4,
            (Kinds::Hurries, Profile::DroppedRequests) => *usual,
            (Kinds::StoreStalls | Kinds::StoreFills, Profile::StallingStore) => *usual,
            // Others draw nothing for them, so that a seed stays what it was.
            (Kinds::Hurries | Kinds::StoreStalls | Kinds::StoreFills, _) => 0,
            (Kinds::StoreFails, Profile::Resumable | Profile::Forgetful) => 0,
            (Kinds::Forgets, Profile::Anything) => 1,
            _ => usual * chance.one_of(&[0, 1, 1, 3]),
        });
        let odds = odds.collect();
        let server = Server::new(kind);
        let records = Records::new();
        let always = !chance.once_in(3);
        let time = RealTime::at(1_785_234_600_000);
        let yields = profile == Profile::DroppedRequests;
        let process = Process::start(&server, &records, always, yields, &time);
        let now = process.now().time;
        let last = (now, time.wall());
        let mut wall_chance = Chance::new(seed ^ 0xC10C);
        let is_set = wall_chance.once_in(2);
        let world = Self {
            profile,
            was_full: false,
            chance,
            odds,
            always,
            kind,
            server,
            records,
            process: Some(process),
            now,
            wall: Wall {
                chance: wall_chance,
                is_set,
                time,
                steps: 0,
                is_unkept: false,
                last,
                fell: Duration::ZERO,
                latest: now,
            },
            calls: Vec::new(),
            flights: Vec::new(),
            is_failing: false,
            has_failed: false,
            absent_since: now,
            answers: 0,
            is_told,
            lives: 1,
        };
        world.tell(|| format!("{profile:?} {kind:?} always={always}"));
        world
    }

    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            eprintln!("{:>8} {}", self.now.as_millis() % 100_000_000, what());
        }
    }

    /// Lives through it.
    pub(super) fn live(&mut self) {
        for _ in 0..STEPS {
            let possible = self.possible();
            let happening = self.choose(&possible);
            self.step_wall_clock();
            self.happen(happening);
            if self.process.is_some() {
                self.passes(Duration::ZERO);
            }
        }
    }

    /// First what, then to whom: that there are many calls does not make it likelier that the process ends.
    fn choose(&mut self, possible: &[(Kinds, usize)]) -> (Kinds, usize) {
        let mut odds = [0; ALL.len()];
        for (kind, _) in possible {
            odds[*kind as usize] = self.odds[*kind as usize];
        }
        let mut drawn = self.chance.below(odds.iter().sum());
        let kind = odds.iter().position(|odds| {
            let is_this = drawn < *odds;
            drawn = drawn.saturating_sub(*odds);
            is_this
        });
        let (kind, _) = ALL[kind.expect("less than all was drawn")];
        let whom: Vec<_> = possible.iter().filter(|(it, _)| *it == kind).copied().collect();
        self.chance.one_of(&whom)
    }

    /// What can happen, and to which call.
    fn possible(&self) -> Vec<(Kinds, usize)> {
        let mut possible = vec![(Kinds::Passes, 0)];
        if self.process.is_some() {
            possible.push((Kinds::PassesLong, 0));
            if self.lives < LIVES && !self.calls.is_empty() {
                possible.extend([(Kinds::Killed, 0), (Kinds::Halts, 0), (Kinds::Stops, 0)]);
            }
            possible.push((if self.is_failing { Kinds::StoreWorks } else { Kinds::StoreFails }, 0));
            if self.profile == Profile::StallingStore && !self.is_failing {
                possible.extend([(Kinds::StoreStalls, 0), (Kinds::StoreFills, 0)]);
            }
            if self.profile == Profile::DroppedRequests {
                // The next call is one that has not been made.
                let calls = self.calls.iter().enumerate();
                let has_one = |call: &Call| {
                    matches!(call.client, Client::Asked { .. })
                        || call.task.is_some() && call.client == Client::Over
                };
                let able = calls.filter(|(_, call)| has_one(call)).map(|(number, _)| number);
                let next = (self.calls.len() < CALLS).then_some(self.calls.len());
                possible.extend(able.chain(next).map(|number| (Kinds::Hurries, number)));
            }
            if self.calls.len() < CALLS {
                possible.push((Kinds::Calls, 0));
            }
            for (number, call) in self.calls.iter().enumerate() {
                match (&call.client, &call.task) {
                    (Client::Waits, _) => possible.push((Kinds::Leaves, number)),
                    (Client::Asked { .. }, _) => possible.push((Kinds::ComesBack, number)),
                    (Client::Over, Some(task)) => {
                        possible.extend([(Kinds::Looks, number), (Kinds::Cancels, number)]);
                        if !task.open.is_empty() {
                            possible.push((Kinds::Answers, number));
                        }
                    }
                    (Client::Over, None) => {}
                }
            }
        }
        for (&number, served) in &*self.server.calls() {
            // One that waits for an answer says nothing in the moment in which it comes.
            if served.end.is_some() || served.cancelled > 0 || served.under_way > 0 {
                continue;
            }
            possible.extend([(Kinds::Reports, number), (Kinds::Ends, number), (Kinds::Forgets, number)]);
            if served.questions.len() < 4 {
                possible.push((Kinds::Asks, number));
            }
            if served.questions.iter().any(|put| !put.is_over && put.answers.is_empty()) {
                possible.push((Kinds::Withdraws, number));
            }
        }
        possible
    }

    fn happen(&mut self, (kind, call): (Kinds, usize)) {
        self.tell(|| format!("{kind:?} {call}"));
        match kind {
            Kinds::Calls => self.call(),
            Kinds::Leaves => {
                let at =
                    self.flights.iter().position(|flight| flight.call == call && flight.what == What::Call);
                self.flights.swap_remove(at.expect("it waits")).request.leaves();
                self.calls[call].client = Client::Over;
            }
            Kinds::ComesBack => self.come_back(call),
            Kinds::Looks => self.ask(call, What::Get),
            Kinds::Answers => self.answer(call),
            Kinds::Cancels => self.cancel(call),
            Kinds::Reports => self.server.reports(call),
            Kinds::Asks => self.server.asks(call),
            Kinds::Withdraws => {
                let open = self.server.calls()[&call]
                    .questions
                    .iter()
                    .position(|put| !put.is_over && put.answers.is_empty());
                self.server.withdraws(call, open.expect("one is open"));
            }
            Kinds::Ends => {
                let word = self.chance.one_of(&[
                    Word::Result,
                    Word::Result,
                    Word::ToolError,
                    Word::Error,
                    Word::Lost,
                ]);
                self.server.ends(call, word);
            }
            Kinds::Forgets => {
                self.server.calls().get_mut(&call).expect("it was called").has_forgotten = true;
            }
            Kinds::StoreFails => {
                (self.is_failing, self.has_failed) = (true, true);
                let one = [self.chance.one_of(REQUESTED)];
                let writes = [Op::Insert, Op::Swap, Op::Anchor, Op::Remove];
                let ops = match self.chance.below(3) {
                    0 => &EVERYTHING[..],
                    1 => &writes[..],
                    _ => &one[..],
                };
                self.tell(|| format!("    {ops:?}"));
                self.process.as_ref().expect("it is there").store.fails(ops);
            }
            Kinds::StoreWorks => {
                self.is_failing = false;
                let store = &self.process.as_ref().expect("it is there").store;
                store.works();
                store.stalls(&[]);
            }
            Kinds::StoreStalls => {
                (self.is_failing, self.has_failed) = (true, true);
                let one = [self.chance.one_of(REQUESTED)];
                let ops = if self.chance.once_in(2) { &EVERYTHING[..] } else { &one[..] };
                self.tell(|| format!("    {ops:?}"));
                self.process.as_ref().expect("it is there").store.stalls(ops);
            }
            Kinds::StoreFills => {
                (self.is_failing, self.was_full, self.has_failed) = (true, true, true);
                let one = [self.chance.one_of(&[Op::Insert, Op::Swap])];
                let ops = if self.chance.once_in(2) { &[Op::Insert, Op::Swap][..] } else { &one[..] };
                self.tell(|| format!("    {ops:?}"));
                self.process.as_ref().expect("it is there").store.is_full(ops, FULL);
            }
            Kinds::Hurries => self.hurries(call),
            Kinds::Passes => {
                let time = Duration::from_millis(self.chance.one_of(&[10, 600, 6000]));
                self.passes(time);
                if self.process.is_none() && self.chance.once_in(2) {
                    self.start();
                }
            }
            Kinds::PassesLong => self.passes(RESUME_WAIT + Duration::from_secs(5)),
            Kinds::Killed => {
                let steps = self.chance.below(12);
                self.process.as_ref().expect("it is there").goes_on(steps);
                self.kill();
            }
            Kinds::Halts => {
                let op = self.chance.one_of(&[Op::Insert, Op::Swap, Op::Swap, Op::Anchor, Op::Remove]);
                let halt = Halt { op, time: 1 + self.chance.below(3), is_done: self.chance.once_in(2) };
                self.tell(|| format!("    {halt:?}"));
                self.process.as_ref().expect("it is there").store.halts(halt);
            }
            Kinds::Stops => {
                let drain = Duration::from_millis(self.chance.one_of(&[0, 10, 6000]));
                for call in &mut self.calls {
                    call.was_stopped = true;
                }
                // A store that fails then is not waited for, which may tell nobody where a call is.
                let process = self.process.as_ref().expect("it is there");
                process.stops(drain);
                self.hear();
                self.kill();
            }
        }
    }

    /// A client answers one of the questions of its task.
    fn answer(&mut self, call: usize) {
        let open = &self.calls[call].task.as_ref().expect("it is one").open;
        let open: Vec<_> = open.iter().map(|(key, words)| (key.clone(), words.clone())).collect();
        let (key, words) = open[self.chance.below(open.len())].clone();
        self.answers += 1;
        let answer = self.answers.to_string();
        let task = self.calls[call].task.as_mut().expect("it is one");
        task.answers.entry(words.clone()).or_default().push(answer.clone());
        self.ask(call, What::Update(key, words, answer));
    }

    fn cancel(&mut self, call: usize) {
        self.calls[call].task.as_mut().expect("it is one").cancels = true;
        self.ask(call, What::Cancel);
    }

    /// A client makes a request and leaves after so many steps, unless it has been answered by then.
    fn hurries(&mut self, call: usize) {
        let is_new = call == self.calls.len();
        let absent_since = self.absent_since;
        if is_new {
            self.call();
        } else if matches!(self.calls[call].client, Client::Asked { .. }) {
            self.come_back(call);
        } else {
            let has_questions = self.calls[call].task.as_ref().is_some_and(|task| !task.open.is_empty());
            match self.chance.below(if has_questions { 4 } else { 2 }) {
                0 => self.ask(call, What::Get),
                1 => self.cancel(call),
                _ => self.answer(call),
            }
        }
        let steps = self.chance.below(16);
        self.process.as_ref().expect("it is there").goes_on(steps);
        if self.flights.last().is_some_and(|flight| !flight.request.is_answered()) {
            let flight = self.flights.pop().expect("it was sent");
            self.tell(|| format!("    leaves {:?} after {steps} steps", flight.what));
            // The process may not have seen its credentials.
            self.absent_since = absent_since;
            if flight.what == What::Call {
                self.calls[call].client = Client::Over;
            }
            flight.request.leaves();
        }
    }

    fn call(&mut self) {
        let who = self.chance.below(2);
        let number = self.calls.len();
        let (client, task) = (Client::Waits, None);
        self.calls.push(Call {
            who,
            client,
            task,
            may_be_lost: false,
            sent: self.now,
            asked: None,
            steps: self.wall.steps,
            was_stopped: false,
            may_go_untold: false,
        });
        self.send(number, What::Call, "tools/call", &format!("t{number}"), &format!(r#""name":"t{number}""#));
    }

    fn come_back(&mut self, call: usize) {
        let Client::Asked { state, requests } =
            std::mem::replace(&mut self.calls[call].client, Client::Waits)
        else {
            unreachable!("it is possible only then")
        };
        let mut answers = Vec::new();
        for key in requests.as_object().expect("questions").keys() {
            if !self.chance.once_in(3) {
                self.answers += 1;
                answers.push(format!(r#""{key}":{}"#, accepted(&self.answers.to_string())));
            }
        }
        let params = format!(
            r#""name":"t{call}","requestState":"{state}","inputResponses":{{{}}}"#,
            answers.join(",")
        );
        self.send(call, What::Call, "tools/call", &format!("t{call}"), &params);
    }

    /// A client asks of its task.
    pub(super) fn ask(&mut self, call: usize, what: What) {
        let task = self.calls[call].task.as_ref().expect("it is one").id.clone();
        let (method, more) = match &what {
            What::Get => ("tasks/get", String::new()),
            What::Cancel => ("tasks/cancel", String::new()),
            What::Update(key, _, answer) => {
                ("tasks/update", format!(r#","inputResponses":{{"{key}":{}}}"#, accepted(answer)))
            }
            What::Call => unreachable!("it is none of a task"),
        };
        self.send(call, what, method, task.as_str(), &format!(r#""taskId":"{}"{more}"#, task.as_str()));
    }

    fn send(&mut self, call: usize, what: What, method: &'static str, name: &str, params: &str) {
        let who = self.calls[call].who;
        self.calls[call].sent = self.now;
        if who == 1 {
            self.absent_since = self.now;
        }
        let process = self.process.as_ref().expect("it is there");
        let request = process.asked(who, method, name, params);
        self.flights.push(Flight { call, what, request });
    }

    /// Time passes, for a process too where there is one.
    pub(super) fn passes(&mut self, time: Duration) {
        let Some(process) = &self.process else {
            self.now = self.now + time;
            self.wall.time.millis += u64::try_from(time.as_millis()).expect("not for ever");
            return;
        };
        let goes_on = process.passes(time);
        (self.now, self.wall.time) = (process.now().time, process.time());
        self.hear();
        if goes_on && time >= SWEPT && !self.is_failing {
            self.wall.is_unkept = false;
        }
        if goes_on && time >= Duration::from_millis(10) {
            self.who_waits_for_what_is_there_is_answered();
        }
        if self.now.since(self.absent_since) >= RESUME_WAIT {
            // The awaited credentials did not arrive in time.
            for call in self.calls.iter_mut().filter(|call| call.who == 1) {
                (call.may_be_lost, call.may_go_untold) = (true, true);
            }
        }
        if !goes_on {
            self.kill();
        }
    }

    /// The process ends wherever it is.
    pub(super) fn kill(&mut self) {
        self.hear();
        let process = self.process.take().expect("it is there");
        (self.now, self.wall.time) = (process.now().time, process.time());
        self.wall.last = (self.now, self.wall.time.wall());
        process.dies(&self.server);
        self.is_failing = false;
        self.tell(|| "is gone".to_owned());
        for Flight { call, what, .. } in std::mem::take(&mut self.flights) {
            if what == What::Call {
                // Its connection broke: it knows of nothing.
                self.calls[call].client = Client::Over;
            }
        }
        for record in self.records.all() {
            let call = number(&record);
            self.calls[call].may_be_lost |= !record.state.is_ended() && !self.goes_on(&record);
            // Who it is, and that it was cancelled or is yet to be, nobody can tell the server then.
            let is_known = self.server.calls().get(&call).is_none_or(|served| served.cancelled > 0)
                || self.records.note(&record.id).is_anchored;
            let may_matter = !record.state.is_ended() || record.state == TaskState::Cancelled;
            self.calls[call].may_go_untold |= may_matter && !is_known;
        }
    }

    /// Whether the next process must go on with the call of this task.
    fn goes_on(&self, record: &Record) -> bool {
        let note = self.records.note(&record.id);
        let is_deliverable = !record.undelivered.keys().any(|key| note.unanchored.contains(key));
        let has_forgotten =
            self.server.calls().get(&number(record)).is_none_or(|served| served.has_forgotten);
        self.kind.keeps_events && self.kind.primes && note.is_anchored && is_deliverable && !has_forgotten
    }

    pub(super) fn start(&mut self) {
        self.lives += 1;
        self.records = self.records.restarted();
        self.tell(|| "starts".to_owned());
        let yields = self.profile == Profile::DroppedRequests;
        let process = Process::start(&self.server, &self.records, self.always, yields, &self.wall.time);
        self.check_line_continues(process.now());
        self.absent_since = self.now;
        self.process = Some(process);
    }

    /// What has been answered is looked at, in the order in which it came.
    fn hear(&mut self) {
        let mut answered = Vec::new();
        let mut at = 0;
        while at < self.flights.len() {
            match self.flights[at].request.answer() {
                Some((number, said)) => answered.push((number, said, self.flights.swap_remove(at))),
                None => at += 1,
            }
        }
        answered.sort_by_key(|(number, ..)| *number);
        for (_, said, Flight { call, what, .. }) in answered {
            self.tell(|| format!("    {call} {what:?} -> {said}"));
            self.heard(call, &what, &said);
        }
    }

    /// The principals of those who call.
    pub(super) fn principals(&self) -> BTreeSet<[u8; 16]> {
        self.calls.iter().map(|call| *principal(call.who).as_bytes()).collect()
    }
}

/// The number of the call of a task.
pub(super) fn number(record: &Record) -> usize {
    record.tool.strip_prefix('t').and_then(|number| number.parse().ok()).expect("a tool of ours")
}

fn accepted(answer: &str) -> String {
    format!(r#"{{"action":"accept","content":{{"n":"{answer}"}}}}"#)
}
