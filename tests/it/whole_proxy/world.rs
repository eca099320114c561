//! What can happen in a house, and what must hold whatever did.

use super::{
    client::Person,
    server::{self, Served, Server, number, question},
};
use crate::support::{faulty_store::Faulty, modern_client::Following};
use deferral::internals::{
    app, config,
    runtime::{Clock, Net, Pipes, SystemClock},
    store::Store,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, task::JoinHandle, time::sleep};

/// What a house is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) asks: Asks,
    /// Whether the server answers with one document instead of a stream.
    pub(super) documents: bool,
    /// Whether every call of a client that knows tasks is one at once.
    pub(super) always: bool,
    /// Of one identity with the server.
    pub(super) sessions: usize,
    pub(super) crowd: Crowd,
    /// Whether clients of today say that they can be asked. Those who cannot be share a session.
    pub(super) askable: bool,
    /// Whether the proxy is stopped with calls under way, or when all is answered.
    pub(super) in_a_hurry: bool,
    /// Whether some calls are tasks and others are not when the proxy is stopped with calls under way.
    pub(super) meets: bool,
    /// How long it takes to keep a new task.
    pub(super) storing: Duration,
    pub(super) odds: Odds,
}

/// How likely each kind of happening is, beside the others that are possible.
///
/// Each house draws its own, and some kinds never happen in it. Where everything can happen at any time
/// nothing lasts: calls are answered before they meet, and tasks are gone before they fill anything.
#[derive(Clone, Copy)]
pub(super) struct Odds([u8; KINDS]);

/// What happens, without to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Begins,
    CallsSlow,
    CallsQuick,
    CallsPlain,
    CallsForTask,
    Leaves,
    TakesBack,
    Listens,
    ListensNot,
    ComesBack,
    AnswersInTask,
    Responds,
    LooksAtTask,
    AwaitsResult,
    AwaitsResultNot,
    ListsTasks,
    SpiesOnTask,
    CancelsTask,
    ServerAnswers,
    ServerAsks,
    ServerBreaksOff,
    ServerHangsUp,
    ServerDies,
    ServerComesBack,
    Passes,
    PassesForLong,
    Stops,
}

/// Each kind, how likely it is in most houses, and whether there are houses without it.
const ALL_KINDS: [(Kind, u8, bool); KINDS] = [
    (Kind::Begins, 6, false),
    (Kind::CallsSlow, 6, false),
    (Kind::CallsQuick, 3, true),
    (Kind::CallsPlain, 2, true),
    (Kind::CallsForTask, 4, true),
    (Kind::Leaves, 2, true),
    (Kind::TakesBack, 2, true),
    (Kind::Listens, 3, true),
    (Kind::ListensNot, 1, true),
    (Kind::ComesBack, 3, true),
    (Kind::AnswersInTask, 2, true),
    (Kind::Responds, 3, true),
    (Kind::LooksAtTask, 1, true),
    (Kind::AwaitsResult, 2, true),
    (Kind::AwaitsResultNot, 1, true),
    (Kind::ListsTasks, 1, true),
    (Kind::SpiesOnTask, 1, true),
    (Kind::CancelsTask, 1, true),
    (Kind::ServerAnswers, 3, true),
    (Kind::ServerAsks, 6, true),
    (Kind::ServerBreaksOff, 2, true),
    (Kind::ServerHangsUp, 1, true),
    (Kind::ServerDies, 1, true),
    (Kind::ServerComesBack, 6, false),
    (Kind::Passes, 4, false),
    (Kind::PassesForLong, 1, true),
    (Kind::Stops, 1, true),
];

pub(super) const KINDS: usize = 27;

/// Who lives there: few, so that they meet often, or everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowd {
    /// One caller, with a client that knows tasks and one that does not.
    OneModern,
    OneLegacy,
    /// A legacy client that takes tasks it has not asked for.
    OneTaker,
    OneOfBoth,
    Everybody,
}

/// Where the server asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    OnTheCall,
    OnTheSession,
    Anywhere,
}

/// What can happen next. Calls, questions and people are named by their numbers.
#[derive(Clone, Debug)]
enum Happening {
    /// A client begins a session.
    Begins(usize),
    Calls(usize, Tool),
    /// A call is to be a task of 2025-11-25.
    CallsForTask(usize),
    Leaves(usize),
    /// A legacy client cancels a call that it waits for.
    TakesBack(usize),
    /// A legacy client opens its session's own stream again.
    Listens(usize),
    ListensNot(usize),
    /// A modern client comes back with its answers.
    ComesBack(usize),
    /// A client answers what it was asked inside its task.
    AnswersInTask(usize),
    /// A legacy client answers the server's own request.
    Responds(u32),
    LooksAtTask(usize),
    /// A legacy client waits for what its task comes to.
    AwaitsResult(usize),
    AwaitsResultNot(usize),
    ListsTasks(usize),
    /// Somebody else does.
    SpiesOnTask(usize, usize),
    CancelsTask(usize),
    ServerAnswers(usize),
    ServerAsks(usize, Way),
    ServerBreaksOff(usize),
    ServerHangsUp(String),
    ServerDies,
    ServerComesBack,
    Passes(Duration),
    Stops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Slow,
    /// Answered by the server as soon as it arrives.
    Quick,
    /// As slow, and never a task.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OnTheCall,
    OnTheSession,
}

/// One call, known by its number.
struct Call {
    who: usize,
    /// Its client's own.
    id: u64,
    tool: Tool,
    /// Since when there is a session that could have it, as far as one can see from outside.
    has_room: Option<Instant>,
    /// Whether there ever was none.
    was_crowded: bool,
    /// Whether its client asked for a task of 2025-11-25.
    for_task: bool,
    client: Client,
    /// What the server has of it.
    served: Option<Served>,
    /// What its answer may be besides the server's: why it need not end well.
    excuse: Option<&'static str>,
    /// The client has called it off, or has left a call that its departure cancels.
    called_off: bool,
    /// Since when the server should know that.
    hushed: Option<Instant>,
    /// The server was told that nobody waits.
    cancelled: bool,
    /// When the server gave its answer, if that was before anything went wrong.
    answered: Option<Instant>,
}

/// Where a call stands for its client.
enum Client {
    Waits(Following),
    /// It has questions, and what to come back with.
    Asked {
        state: String,
        requests: Value,
    },
    Task {
        id: String,
        ended: bool,
        /// What a legacy client hears that waits for the result.
        result: Option<Following>,
    },
    /// It has cancelled its request, and may hear something of it all the same.
    TookBack(Following, Instant),
    Ended,
    Left,
}

/// A question of the server.
struct Question {
    call: usize,
    session: String,
    asked: Instant,
    /// The id of a request that a legacy client has been sent, and has not answered.
    with_client: Option<Value>,
    /// Whether its client was ever put it.
    was_put: bool,
    /// When its client answered it.
    answered: Option<Instant>,
    /// Its session is gone, and with it whom an answer could reach: clients answer within a session.
    is_moot: bool,
    answers: usize,
}

pub(super) struct House {
    profile: Profile,
    proxy: Option<app::Running>,
    stopping: Option<JoinHandle<()>>,
    server: Server,
    store: Arc<Faulty>,
    people: Vec<Person>,
    calls: BTreeMap<usize, Call>,
    questions: BTreeMap<u32, Question>,
    next_id: u64,
    clock: SystemClock,
    log: Vec<String>,
}

const PROXY: &str = "10.0.0.1:80";
const DRAIN: Duration = Duration::from_secs(2);
/// A question that is put on the call itself waits so long for its client.
const PARK: Duration = Duration::from_secs(300);
/// Nothing that is answered at once takes longer.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Calls in one house.
const CALLS: usize = 14;
/// What is waited for to go round: everything runs until it waits, and then time moves on.
const MOMENT: Duration = Duration::from_millis(1);
/// How long the proxy gathers questions.
const SETTLE: Duration = Duration::from_millis(25);

// === impl Odds ===

impl Odds {
    /// Each kind as often as is usual where its number is 1, never where that is 0, and else oftener.
    pub(super) fn new(times: [u8; KINDS]) -> Self {
        let mut odds = [0; KINDS];
        for (at, (kind, usual, may_be_missing)) in ALL_KINDS.iter().enumerate() {
            let times = if *may_be_missing { times[at] } else { times[at].max(1) };
            // Each takes long to live through, and little comes of the next.
            let times = if *kind == Kind::PassesForLong { times.min(1) } else { times };
            odds[at] = usual * times;
        }
        Self(odds)
    }

    fn of(&self, kind: Kind) -> u8 {
        let at = ALL_KINDS.iter().position(|(listed, ..)| *listed == kind).expect("each kind is listed");
        self.0[at]
    }

    /// First what, then to whom: that there are many calls does not make it likelier that the server
    /// dies.
    fn choose(&self, possible: Vec<Happening>, pick: u16) -> Happening {
        let is_there = |kind| possible.iter().any(|happening| happening.kind() == kind);
        let kinds: Vec<_> = ALL_KINDS.iter().map(|(kind, ..)| *kind).filter(|kind| is_there(*kind)).collect();
        let all: u16 = kinds.iter().map(|kind| u16::from(self.of(*kind))).sum();
        let mut left = pick % all;
        let drawn = kinds.into_iter().find(|kind| {
            let odds = u16::from(self.of(*kind));
            let is_this = left < odds;
            left = left.saturating_sub(odds);
            is_this
        });
        let drawn = drawn.expect("it is less than all of them together");
        let mut of_that_kind: Vec<_> =
            possible.into_iter().filter(|happening| happening.kind() == drawn).collect();
        let at = usize::from(pick / all) % of_that_kind.len();
        of_that_kind.swap_remove(at)
    }
}

impl fmt::Debug for Odds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(ALL_KINDS.iter().map(|(kind, ..)| (kind, self.of(*kind)))).finish()
    }
}

// === impl Happening ===

impl Happening {
    fn kind(&self) -> Kind {
        match self {
            Self::Begins(_) => Kind::Begins,
            Self::Calls(_, Tool::Slow) => Kind::CallsSlow,
            Self::Calls(_, Tool::Quick) => Kind::CallsQuick,
            Self::Calls(_, Tool::Plain) => Kind::CallsPlain,
            Self::CallsForTask(_) => Kind::CallsForTask,
            Self::Leaves(_) => Kind::Leaves,
            Self::TakesBack(_) => Kind::TakesBack,
            Self::Listens(_) => Kind::Listens,
            Self::ListensNot(_) => Kind::ListensNot,
            Self::ComesBack(_) => Kind::ComesBack,
            Self::AnswersInTask(_) => Kind::AnswersInTask,
            Self::Responds(_) => Kind::Responds,
            Self::LooksAtTask(_) => Kind::LooksAtTask,
            Self::AwaitsResult(_) => Kind::AwaitsResult,
            Self::AwaitsResultNot(_) => Kind::AwaitsResultNot,
            Self::ListsTasks(_) => Kind::ListsTasks,
            Self::SpiesOnTask(..) => Kind::SpiesOnTask,
            Self::CancelsTask(_) => Kind::CancelsTask,
            Self::ServerAnswers(_) => Kind::ServerAnswers,
            Self::ServerAsks(..) => Kind::ServerAsks,
            Self::ServerBreaksOff(_) => Kind::ServerBreaksOff,
            Self::ServerHangsUp(_) => Kind::ServerHangsUp,
            Self::ServerDies => Kind::ServerDies,
            Self::ServerComesBack => Kind::ServerComesBack,
            Self::Passes(time) if *time > PARK => Kind::PassesForLong,
            Self::Passes(_) => Kind::Passes,
            Self::Stops => Kind::Stops,
        }
    }
}

// === impl House ===

impl House {
    /// Lives through what these numbers pick.
    pub(super) fn run(profile: Profile, picks: &[u16]) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let mut house = Self::new(profile);
            for pick in picks {
                let possible = house.possible();
                let happening = profile.odds.choose(possible, *pick);
                house.happen(happening).await;
                house.look().await;
            }
            house.end().await;
        });
    }

    fn new(profile: Profile) -> Self {
        let pipes = Pipes::default();
        let server = Server::start(&pipes);
        let mode = if profile.always { "always" } else { "auto" };
        let yaml = format!(
            "listen: {PROXY}\nadmin: \"off\"\ndrain: {}s\nlimits: {{ sessions: {} }}\nroutes:\n  \
             - upstream: {{ url: \"http://{}/mcp\" }}\n    defer: {{ mode: {mode}, after: 5s, retention: 24h }}\n    \
             tools: [{{ match: plain, mode: never }}]\n    \
             tasks: {{ unsolicited: [{{ header: X-Takes-Tasks, value: yes }}] }}\n    \
             questions: {{ settle: {}ms, park: {}s }}\n",
            DRAIN.as_secs(),
            profile.sessions,
            server::ADDRESS,
            SETTLE.as_millis(),
            PARK.as_secs(),
        );
        let config = config::parse(Path::new("house.yaml"), &yaml).unwrap_or_else(|error| panic!("{error}"));
        let store = Faulty::taking(profile.storing);
        let net = Net::Pipes(pipes.clone());
        let proxy =
            app::start_with(config, &net, Arc::clone(&store) as Arc<dyn Store>, None).expect("it starts");
        let at: SocketAddr = PROXY.parse().expect("an address");
        let modern = |name, tasks| Person::modern(&pipes, at, name, tasks, profile.askable);
        let legacy = |name| Person::legacy(&pipes, at, name, false);
        let taker = |name| Person::legacy(&pipes, at, name, true);
        let people = match profile.crowd {
            Crowd::OneModern => vec![modern("alice", true), modern("alice", false)],
            Crowd::OneLegacy => vec![legacy("alice")],
            Crowd::OneTaker => vec![taker("alice")],
            Crowd::OneOfBoth => vec![modern("alice", true), taker("alice")],
            Crowd::Everybody => vec![
                modern("alice", true),
                modern("alice", false),
                modern("bob", true),
                legacy("alice"),
                taker("alice"),
                taker("bob"),
            ],
        };
        Self {
            profile,
            proxy: Some(proxy),
            stopping: None,
            server,
            store,
            people,
            calls: BTreeMap::new(),
            questions: BTreeMap::new(),
            next_id: 1,
            clock: SystemClock::new(),
            log: Vec::new(),
        }
    }

    fn fails(&self, what: &str) -> ! {
        panic!("{what}\n{:?}\n{}", self.profile, self.log.join("\n"))
    }

    // === what can happen ===

    fn possible(&self) -> Vec<Happening> {
        let mut possible = vec![
            Happening::Passes(Duration::from_millis(30)),
            Happening::Passes(Duration::from_secs(3)),
            Happening::Passes(Duration::from_secs(6)),
            Happening::Passes(PARK + Duration::from_secs(60)),
        ];
        let is_up = self.proxy.is_some();
        if is_up {
            possible.push(Happening::Stops);
            self.clients_begin(&mut possible);
            self.clients_go_on(&mut possible);
        }
        if self.server.is_alive() {
            self.server_acts(&mut possible);
        } else if self.server.has_lives() {
            possible.push(Happening::ServerComesBack);
        }
        possible
    }

    fn clients_begin(&self, possible: &mut Vec<Happening>) {
        let room = self.calls.len() < CALLS;
        for (who, person) in self.people.iter().enumerate() {
            match person.has_session() {
                true if room => {
                    possible.push(Happening::Calls(who, Tool::Slow));
                    possible.push(Happening::Calls(who, Tool::Quick));
                    possible.push(Happening::Calls(who, Tool::Plain));
                    if person.is_legacy() {
                        possible.push(Happening::CallsForTask(who));
                    }
                }
                false if self.server.is_alive() => possible.push(Happening::Begins(who)),
                true | false => {}
            }
            if person.is_legacy() && person.has_session() {
                possible.push(Happening::ListsTasks(who));
                possible.push(match person.listens() {
                    true => Happening::ListensNot(who),
                    false => Happening::Listens(who),
                });
            }
        }
    }

    fn clients_go_on(&self, possible: &mut Vec<Happening>) {
        for (&n, call) in &self.calls {
            match &call.client {
                Client::Waits(_) => {
                    possible.push(Happening::Leaves(n));
                    let person = &self.people[call.who];
                    // One that is to be a task is cancelled by the task's id, and none is in another session.
                    let is_task = call.for_task && !person.takes_tasks();
                    let is_over = call.excuse.is_some() || call.answered.is_some();
                    if person.is_legacy() && person.has_session() && !is_task && !is_over {
                        possible.push(Happening::TakesBack(n));
                    }
                }
                Client::Asked { .. } => possible.push(Happening::ComesBack(n)),
                Client::Task { ended: false, result, .. } => {
                    if self.people[call.who].is_legacy() && self.people[call.who].has_session() {
                        possible.push(match result {
                            None => Happening::AwaitsResult(n),
                            Some(_) => Happening::AwaitsResultNot(n),
                        });
                    }
                    possible.push(Happening::LooksAtTask(n));
                    possible.push(Happening::CancelsTask(n));
                    possible.push(Happening::AnswersInTask(n));
                    let spies = (0..self.people.len())
                        .filter(|spy| self.people[*spy].principal != self.people[call.who].principal)
                        .filter(|spy| self.people[*spy].is_legacy() == self.people[call.who].is_legacy())
                        .filter(|spy| self.people[*spy].has_session());
                    possible.extend(spies.map(|spy| Happening::SpiesOnTask(spy, n)));
                }
                Client::Task { ended: true, .. } | Client::TookBack(..) | Client::Ended | Client::Left => {}
            }
        }
        let with_clients = self.questions.iter().filter(|(_, question)| question.with_client.is_some());
        possible.extend(with_clients.map(|(id, _)| Happening::Responds(*id)));
    }

    fn server_acts(&self, possible: &mut Vec<Happening>) {
        let mut sessions = BTreeSet::new();
        for (&n, call) in &self.calls {
            let Some(served) = &call.served else { continue };
            if served.is_open() {
                possible.push(Happening::ServerAnswers(n));
                possible.push(Happening::ServerBreaksOff(n));
            }
            if call.answered.is_some() || call.cancelled {
                continue;
            }
            sessions.insert(served.session.clone());
            if self.profile.asks != Asks::OnTheSession && served.stream().is_some() {
                possible.push(Happening::ServerAsks(n, Way::OnTheCall));
            }
            // It may ask also for what its client no longer waits for.
            let may = self.profile.asks != Asks::OnTheCall || !served.is_open();
            if may && self.server.listening(&served.session).is_some() {
                possible.push(Happening::ServerAsks(n, Way::OnTheSession));
            }
        }
        possible.extend(sessions.into_iter().map(Happening::ServerHangsUp));
        possible.push(Happening::ServerDies);
    }

    // === what happens ===

    async fn happen(&mut self, happening: Happening) {
        self.log.push(format!("{happening:?}"));
        match happening {
            Happening::Begins(who) => self.people[who].begin().await,
            Happening::Calls(who, tool) => self.call(who, tool, false).await,
            Happening::CallsForTask(who) => self.call(who, Tool::Slow, true).await,
            Happening::Leaves(n) => self.leave(n),
            Happening::TakesBack(n) => self.take_back(n).await,
            Happening::Listens(who) => self.people[who].listen().await,
            Happening::ListensNot(who) => self.people[who].listen_no_more(),
            Happening::ComesBack(n) => self.come_back(n).await,
            Happening::AnswersInTask(n) => self.answer_in_task(n).await,
            Happening::Responds(id) => self.respond(id).await,
            Happening::LooksAtTask(n) => drop(self.look_at_task(n).await),
            Happening::AwaitsResult(n) => self.await_result(n).await,
            Happening::AwaitsResultNot(n) => {
                if let Some(Client::Task { result, .. }) = self.calls.get_mut(&n).map(|call| &mut call.client)
                {
                    result.take().expect("it is awaited").leave();
                }
            }
            Happening::ListsTasks(who) => self.list_tasks(who).await,
            Happening::SpiesOnTask(spy, n) => self.spy(spy, n).await,
            Happening::CancelsTask(n) => self.cancel(n).await,
            Happening::ServerAnswers(n) => self.server_answers(n),
            Happening::ServerAsks(n, way) => self.server_asks(n, way),
            Happening::ServerBreaksOff(n) => {
                let call = self.calls.get_mut(&n).expect("it is there");
                call.excuse = Some("its answer broke off");
                call.served.as_mut().expect("the server has it").break_off();
            }
            Happening::ServerHangsUp(session) => self.server.hang_up(&session),
            Happening::ServerDies => self.server_dies(),
            Happening::ServerComesBack => self.server.come_back(),
            Happening::Passes(time) => {
                sleep(time).await;
                if time > PARK {
                    self.parking_ends();
                }
            }
            Happening::Stops => {
                let proxy = self.proxy.take().expect("it stops once");
                self.stopping = Some(tokio::spawn(proxy.stop()));
            }
        }
    }

    /// What was asked on a call itself has waited for its client for too long.
    fn parking_ends(&mut self) {
        for question in self.questions.values().filter(|question| question.answers == 0) {
            let call = self.calls.get_mut(&question.call).expect("it is there");
            if matches!(call.client, Client::Asked { .. } | Client::Waits(_)) {
                call.excuse = Some("nobody answered for too long");
                call.called_off = true;
            }
        }
    }

    async fn call(&mut self, who: usize, tool: Tool, for_task: bool) {
        let n = self.calls.len();
        let following = self.send(who, "tools/call", params(n, tool, for_task)).await;
        let id = self.next_id;
        let excuse = (!self.server.is_alive()).then_some("there was no server");
        let call = Call {
            who,
            id,
            tool,
            has_room: None,
            was_crowded: false,
            for_task,
            client: Client::Waits(following),
            served: None,
            excuse,
            called_off: false,
            hushed: None,
            cancelled: false,
            answered: None,
        };
        self.calls.insert(n, call);
    }

    async fn send(&mut self, who: usize, method: &str, params: Value) -> Following {
        self.next_id += 1;
        self.people[who].send(self.next_id, method, params).await
    }

    /// Asks for something that is answered at once.
    async fn ask(&mut self, who: usize, method: &str, params: Value) -> Value {
        let following = self.send(who, method, params).await;
        for _ in 0..200 {
            if following.is_over() {
                break;
            }
            sleep(MOMENT).await;
        }
        if !following.is_over() {
            self.fails(&format!("{method} is not answered"));
        }
        let answer = following.messages().pop();
        answer.unwrap_or_else(|| self.fails(&format!("{method} is answered with nothing")))
    }

    fn leave(&mut self, n: usize) {
        let is_legacy = self.people[self.calls[&n].who].is_legacy();
        let call = self.calls.get_mut(&n).expect("it is there");
        match std::mem::replace(&mut call.client, Client::Left) {
            Client::Waits(following) => following.leave(),
            _ => unreachable!("only who waits can leave"),
        }
        // A departure is no cancel in older revisions.
        if !is_legacy {
            let now = self.clock.now();
            call.is_called_off(now);
            // In this moment the client may be answered with what it is asked. Nobody knows then that it has not
            // read that, and it is waited for as one that was asked.
            let is_due = |question: &Question| now + MOMENT * 2 >= question.asked + SETTLE;
            if self
                .questions
                .values()
                .any(|question| question.call == n && question.answers == 0 && is_due(question))
            {
                call.hushed = None;
            }
        }
    }

    async fn take_back(&mut self, n: usize) {
        let (now, call) = (self.clock.now(), self.calls.get_mut(&n).expect("it is there"));
        let Client::Waits(following) = std::mem::replace(&mut call.client, Client::Left) else {
            unreachable!("only who waits takes back")
        };
        call.client = Client::TookBack(following, now);
        call.is_called_off(now);
        let (who, id) = (call.who, call.id);
        // What was asked in it, its client answers no more.
        for question in self.questions.values_mut().filter(|question| question.call == n) {
            question.with_client = None;
        }
        drop(self.people[who].cancel(id).await);
    }

    async fn come_back(&mut self, n: usize) {
        let Client::Asked { state, requests } = &self.calls[&n].client else {
            unreachable!("only who was asked comes back")
        };
        let mut params = params(n, self.calls[&n].tool, false);
        params["requestState"] = json!(state);
        params["inputResponses"] = answers(requests);
        let following = self.send(self.calls[&n].who, "tools/call", params).await;
        self.calls.get_mut(&n).expect("it is there").client = Client::Waits(following);
    }

    async fn answer_in_task(&mut self, n: usize) {
        let task = self.look_at_task(n).await;
        let Client::Task { id, ended: false, .. } = &self.calls[&n].client else { return };
        if task["status"] != "input_required" || self.people[self.calls[&n].who].is_legacy() {
            return;
        }
        let params = json!({ "taskId": id, "inputResponses": answers(&task["inputRequests"]) });
        let answer = self.ask(self.calls[&n].who, "tasks/update", params).await;
        if answer["error"].is_object() {
            self.fails(&format!("the answers in the task of call {n} are refused: {answer}"));
        }
        self.are_answered(numbers(&task["inputRequests"]));
    }

    fn are_answered(&mut self, questions: Vec<u32>) {
        for id in questions {
            self.questions.get_mut(&id).expect("it is there").answered = Some(self.clock.now());
        }
    }

    async fn respond(&mut self, id: u32) {
        let question = self.questions.get_mut(&id).expect("it is there");
        let its_id = question.with_client.take().expect("it is with its client");
        let (n, who) = (question.call, self.calls[&question.call].who);
        let call = &self.calls[&n];
        let is_over = call.called_off || call.excuse.is_some() || call.answered.is_some();
        // It passes under the server's own id, and would cross the refusal of what was asked in a call that is
        // over.
        let would_cross = its_id.is_u64() && is_over && self.people[who].takes_tasks();
        if self.people[who].has_session() && !would_cross {
            // Whether it is taken is the server's affair.
            let answer = json!({ "action": "accept", "content": { "name": answer(id) } });
            drop(self.people[who].respond(&its_id, answer).await);
            self.are_answered(vec![id]);
        }
    }

    /// What a task's client is told of it; takes note of its end.
    async fn look_at_task(&mut self, n: usize) -> Value {
        let (who, id) = self.task(n);
        if !self.people[who].has_session() {
            return Value::Null;
        }
        let answer = self.ask(who, "tasks/get", json!({ "taskId": id })).await;
        let task = answer["result"].clone();
        if !task.is_object() {
            self.fails(&format!("the task of call {n} is not found: {answer}"));
        }
        for request in task["inputRequests"].as_object().into_iter().flat_map(|requests| requests.values()) {
            self.hears(n, &request["params"]["message"]);
        }
        let call = &self.calls[&n];
        let ended = match task["status"].as_str() {
            Some("working" | "input_required") if self.has_been_answered(n) => {
                self.fails(&format!("the task of call {n} goes on, which has ended: {task}"))
            }
            Some("working" | "input_required") => false,
            Some("completed") => {
                if self.people[who].knows_tasks() {
                    self.hears(n, &task["result"]["content"][0]["text"]);
                }
                true
            }
            Some("failed") if call.excuse.is_some() => true,
            Some("cancelled") if call.called_off => true,
            _ => self.fails(&format!("the task of call {n} has no right to end like this: {task}")),
        };
        if let Client::Task { ended: known, .. } = &mut self.calls.get_mut(&n).expect("it is there").client {
            *known = ended;
        }
        task
    }

    async fn spy(&mut self, spy: usize, n: usize) {
        let (_, id) = self.task(n);
        let theirs = self.ask(spy, "tasks/get", json!({ "taskId": id })).await;
        let nothing = self.ask(spy, "tasks/get", json!({ "taskId": "0".repeat(id.len()) })).await;
        if theirs["error"]["code"] != nothing["error"]["code"] || theirs["error"].is_null() {
            self.fails(&format!("somebody else can tell that the task of call {n} is there: {theirs}"));
        }
    }

    async fn cancel(&mut self, n: usize) {
        let (who, id) = self.task(n);
        if self.people[who].has_session() {
            let now = self.clock.now();
            self.calls.get_mut(&n).expect("it is there").is_called_off(now);
            // One that has ended may refuse.
            self.ask(who, "tasks/cancel", json!({ "taskId": id })).await;
        }
    }

    async fn await_result(&mut self, n: usize) {
        let (who, id) = self.task(n);
        let following = self.send(who, "tasks/result", json!({ "taskId": id })).await;
        if let Some(Client::Task { result, .. }) = self.calls.get_mut(&n).map(|call| &mut call.client) {
            *result = Some(following);
        }
    }

    /// A legacy client is shown its own tasks, each once, and those that it has left before it heard of them.
    async fn list_tasks(&mut self, who: usize) {
        let answer = self.ask(who, "tasks/list", json!({})).await;
        let listed = answer["result"]["tasks"].as_array().into_iter().flatten();
        let mut listed: Vec<_> =
            listed.filter_map(|task| Some((task["taskId"].as_str()?, task["status"].as_str()?))).collect();
        let principal = self.people[who].principal;
        let of_theirs =
            |call: &&Call| self.people[call.who].is_legacy() && self.people[call.who].principal == principal;
        let theirs = || self.calls.values().filter(of_theirs);
        for call in theirs() {
            let Client::Task { id, .. } = &call.client else { continue };
            let Some(at) = listed.iter().position(|(listed, _)| listed == id) else {
                self.fails(&format!("a task is not in its client's list: {answer}"));
            };
            listed.swap_remove(at);
        }
        if self.store.is_busy() {
            return;
        }
        let left = || theirs().filter(|call| self.is_kept_unseen(call));
        let at_work = left().filter(|call| call.answered.is_none() && call.excuse.is_none()).count();
        let works =
            listed.iter().filter(|(_, status)| matches!(*status, "working" | "input_required")).count();
        if listed.len() != left().count() || works < at_work {
            self.fails(&format!("of the calls that were left {at_work} go on, and the tasks are {listed:?}"));
        }
        let fresh = |call: &Call| call.answered.is_some_and(|at| self.clock.now() - at < AT_ONCE);
        if works > at_work + left().filter(|call| call.excuse.is_some() || fresh(call)).count() {
            self.fails(&format!(
                "{at_work} of the calls that were left go on, and more tasks do: {listed:?}"
            ));
        }
    }

    /// Whether a call that its client has left is a task, which that may find.
    fn is_kept_unseen(&self, call: &Call) -> bool {
        let becomes_one = self.people[call.who].takes_tasks() && call.tool != Tool::Plain;
        matches!(call.client, Client::Left) && (becomes_one || call.for_task)
    }

    fn task(&self, n: usize) -> (usize, String) {
        match &self.calls[&n].client {
            Client::Task { id, .. } => (self.calls[&n].who, id.clone()),
            _ => unreachable!("it is a task"),
        }
    }

    fn server_answers(&mut self, n: usize) {
        let call = self.calls.get_mut(&n).expect("it is there");
        call.answered = Some(self.clock.now());
        call.served.as_mut().expect("the server has it").answer(&name(n));
    }

    fn server_asks(&mut self, n: usize, way: Way) {
        let id = u32::try_from(self.questions.len()).expect("few");
        let served = self.calls[&n].served.as_ref().expect("the server has it");
        let question_text = question(id, &name(n));
        match way {
            Way::OnTheCall => served.stream().expect("it has one").send(&question_text),
            Way::OnTheSession => {
                self.server.listening(&served.session).expect("it is open").send(&question_text);
            }
        }
        let session = served.session.clone();
        let asked = self.clock.now();
        let question = Question {
            call: n,
            session,
            asked,
            with_client: None,
            was_put: false,
            answered: None,
            is_moot: false,
            answers: 0,
        };
        self.questions.insert(id, question);
    }

    fn server_dies(&mut self) {
        self.server.die();
        for person in &mut self.people {
            person.lose_session();
        }
        for call in self.calls.values_mut() {
            if call.answered.is_none() {
                call.excuse = Some("its server died");
            }
            if let Some(served) = &mut call.served {
                served.die();
            }
        }
        for question in self.questions.values_mut() {
            question.with_client = None;
            question.is_moot = true;
        }
    }

    // === what is seen of it ===

    /// Lets everything run until it waits, and looks at what came of it.
    async fn look(&mut self) {
        for _ in 0..2 {
            sleep(MOMENT).await;
            while let Some(call) = self.server.next_call().await {
                self.arrived(call);
            }
            self.server_hears();
            self.sessions_hear();
            for n in 0..self.calls.len() {
                self.client_hears(n);
                self.result_is_heard(n);
            }
        }
        self.server_is_told();
        self.questions_are_put();
        self.what_is_kept_is_known().await;
    }

    /// A call has come to the server.
    fn arrived(&mut self, call: crate::support::legacy_server::Call) {
        let Some(n) = call.seen.json["params"]["arguments"]["n"].as_u64() else {
            self.fails(&format!("the server was sent what nobody said: {}", call.seen.json));
        };
        let n = usize::try_from(n).expect("small");
        let tool = self.calls[&n].tool;
        if self.calls[&n].served.is_some() {
            self.fails(&format!("call {n} was made twice"));
        }
        if self.calls[&n].called_off {
            self.fails(&format!("call {n} was made although it had been called off"));
        }
        let served = Served::new(call, self.profile.documents);
        self.calls.get_mut(&n).expect("it is there").served = Some(served);
        if tool == Tool::Quick {
            self.server_answers(n);
        }
    }

    /// Answers and cancellations that have come to the server.
    fn server_hears(&mut self) {
        for seen in self.server.news() {
            let id = &seen.json["id"];
            if seen.method() == "notifications/cancelled" {
                self.server_hears_cancel(seen.session(), &seen.json["params"]["requestId"]);
            } else if seen.method().is_empty() && id.is_u64() {
                let id = u32::try_from(id.as_u64().expect("a number")).expect("small");
                let Some(question) = self.questions.get_mut(&id) else {
                    self.fails(&format!("the server is answered what it did not ask: {}", seen.json));
                };
                question.answers += 1;
                let (n, answers) = (question.call, question.answers);
                let is_home = seen.session() == question.session;
                if answers > 1 {
                    self.fails(&format!("question {id} is answered twice"));
                }
                if !is_home {
                    self.fails(&format!("the answer to question {id} went to another session"));
                }
                let told = &seen.json["result"]["content"]["name"];
                if told.is_string() && *told != answer(id) {
                    self.fails(&format!("question {id} of call {n} is answered for another: {told}"));
                }
            }
        }
    }

    fn server_hears_cancel(&mut self, session: &str, request: &Value) {
        let stopping = self.proxy.is_none();
        let about = self.calls.iter_mut().find(|(_, call)| {
            call.served.as_ref().is_some_and(|served| served.session == session && served.id == *request)
        });
        let Some((&n, call)) = about else {
            self.fails(&format!("a cancel of {request} in {session}, which is no call"));
        };
        call.cancelled = true;
        let may = call.called_off || stopping || call.excuse.is_some();
        if !may {
            self.fails(&format!("call {n} was cancelled, and nobody wanted it"));
        }
    }

    /// What comes on the own streams of legacy sessions.
    fn sessions_hear(&mut self) {
        for who in 0..self.people.len() {
            for message in self.people[who].news() {
                self.is_asked(who, &message);
            }
        }
    }

    /// A legacy client reads this where it listens: a question, or that one is taken back.
    fn is_asked(&mut self, who: usize, message: &Value) {
        if message["method"] == "notifications/cancelled" {
            let taken_back = &message["params"]["requestId"];
            for question in self.questions.values_mut() {
                question.with_client.take_if(|id| id == taken_back);
            }
        }
        if message["method"] != "elicitation/create" {
            return;
        }
        let id = number(message).and_then(|id| self.questions.get(&id).map(|_| id));
        let Some(id) = id else { self.fails(&format!("a client is asked what no server asked: {message}")) };
        let n = self.questions[&id].call;
        if self.calls[&n].who != who {
            self.fails(&format!("a question of call {n} is put to another client: {message}"));
        }
        let task = &message["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"];
        match &self.calls[&n].client {
            Client::Task { id, .. } if *task != Value::Null && task != id => {
                self.fails(&format!("a question of call {n} is put in another task: {message}"))
            }
            _ => {}
        }
        let is_over = matches!(self.calls[&n].client, Client::TookBack(..));
        let question = self.questions.get_mut(&id).expect("it is there");
        question.was_put = true;
        if question.answers == 0 && !question.is_moot && !is_over {
            question.with_client = Some(message["id"].clone());
        }
    }

    /// Within a short while a server knows of what is called off, and of what it told the client it asked.
    fn server_is_told(&self) {
        let now = self.clock.now();
        for (n, call) in &self.calls {
            let is_late = call.hushed.is_some_and(|since| now - since >= AT_ONCE);
            let may_go_on = call.cancelled || call.answered.is_some() || call.excuse.is_some();
            if is_late && !may_go_on && self.server.is_alive() {
                self.fails(&format!("the server goes on with call {n}, which was called off"));
            }
        }
    }

    /// What a server asks in a legacy client's own session is put to the client, or refused; and whatever a client
    /// has answered reaches the server.
    fn questions_are_put(&self) {
        let now = self.clock.now();
        for (id, question) in &self.questions {
            let call = &self.calls[&question.call];
            let person = &self.people[call.who];
            let can_hear = match &call.client {
                Client::Waits(_) => true,
                Client::Task { ended, result, .. } => {
                    !ended && (person.listens() || result.as_ref().is_some_and(|result| !result.is_over()))
                }
                Client::Asked { .. } | Client::TookBack(..) | Client::Ended | Client::Left => false,
            };
            let is_over = call.answered.is_some() || call.called_off || call.excuse.is_some();
            let is_lost = question.answered.is_some_and(|at| now - at >= AT_ONCE);
            if is_lost && question.answers == 0 && !question.is_moot && !is_over && self.proxy.is_some() {
                self.fails(&format!("the answer to question {id} of call {} is lost", question.call));
            }
            let is_open = !question.was_put && question.answers == 0 && !question.is_moot && !is_over;
            let is_late = now - question.asked >= AT_ONCE;
            if is_late && is_open && can_hear && person.is_legacy() && self.proxy.is_some() {
                self.fails(&format!("question {id} of call {} is put to nobody", question.call));
            }
        }
    }

    /// A task is kept for each handle that was given, and for each call that was left by a client that takes
    /// tasks; no other.
    async fn what_is_kept_is_known(&self) {
        if self.proxy.is_none() || self.store.is_busy() {
            return;
        }
        let known = |call: &&Call| matches!(call.client, Client::Task { .. }) || self.is_kept_unseen(call);
        let known = self.calls.values().filter(known).count();
        let kept = self.store.usage(&[0; 16]).tasks;
        if kept != known {
            self.fails(&format!("{kept} tasks are kept, and clients know of {known}"));
        }
    }

    /// What has come of a call for its client.
    fn client_hears(&mut self, n: usize) {
        let who = self.calls[&n].who;
        let (messages, is_over, taken_back) = match &self.calls[&n].client {
            Client::Waits(following) => (following.messages(), following.is_over(), None),
            Client::TookBack(following, since) => (following.messages(), following.is_over(), Some(*since)),
            Client::Asked { .. } | Client::Task { .. } | Client::Ended | Client::Left => return,
        };
        for message in &messages {
            if message["method"] == "elicitation/create" {
                self.hears(n, &message["params"]["message"]);
            }
            self.is_asked(who, message);
        }
        if !is_over {
            return match taken_back {
                Some(since) => self.ends_in_time(n, since),
                None => self.may_wait(n),
            };
        }
        if taken_back.is_some() && messages.last().is_none_or(|last| last["result"].is_null()) {
            self.calls.get_mut(&n).expect("it is there").client = Client::Ended;
            return;
        }
        let client = match messages.last() {
            Some(last) if last["error"].is_object() => self.ends_badly(n, last),
            Some(last) => self.ends(n, &last["result"]),
            None => self.fails(&format!("call {n} ended without a word")),
        };
        self.calls.get_mut(&n).expect("it is there").client = client;
    }

    /// Whether an end may still be waited for of a call that was taken back: where it only passes, that is
    /// the server's affair.
    fn ends_in_time(&self, n: usize, since: Instant) {
        let call = &self.calls[&n];
        let is_driven = self.people[call.who].takes_tasks() && call.tool != Tool::Plain;
        if is_driven && self.clock.now() - since >= AT_ONCE {
            self.fails(&format!("call {n} was taken back, and does not end"));
        }
    }

    /// What a legacy client hears that waits for the result of its task.
    fn result_is_heard(&mut self, n: usize) {
        let who = self.calls[&n].who;
        let Client::Task { id, result: Some(following), .. } = &self.calls[&n].client else { return };
        let (id, is_over, messages) = (id.clone(), following.is_over(), following.messages());
        for message in &messages {
            if message["method"] == "elicitation/create" {
                self.hears(n, &message["params"]["message"]);
            }
            self.is_asked(who, message);
        }
        if !is_over {
            if self.has_been_answered(n) {
                self.fails(&format!("the result of call {n} is waited for, which has ended"));
            }
            return;
        }
        match messages.last() {
            Some(last) if last["error"].is_object() => drop(self.ends_badly(n, last)),
            Some(last) => {
                self.hears(n, &last["result"]["content"][0]["text"]);
                let task = &last["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"];
                if *task != id {
                    self.fails(&format!("the result of call {n} is of another task: {last}"));
                }
            }
            None => self.fails(&format!("the result of call {n} ended without a word")),
        }
        let client = Client::Task { id, ended: true, result: None };
        self.calls.get_mut(&n).expect("it is there").client = client;
    }

    /// Whether the server's answer has been there for a while.
    fn has_been_answered(&self, n: usize) -> bool {
        self.calls[&n].answered.is_some_and(|at| self.clock.now() - at >= AT_ONCE)
    }

    /// Whether a call may still be waited for. What is answered at once is not held up by the tasks
    /// of anybody, nor by what others wait for.
    fn may_wait(&mut self, n: usize) {
        let call = &self.calls[&n];
        let undecided = self.calls.iter().filter(|(other, theirs)| {
            **other != n
                && self.people[theirs.who].principal == self.people[call.who].principal
                && !self.people[theirs.who].is_legacy()
                && matches!(theirs.client, Client::Waits(_) | Client::Asked { .. })
        });
        let has_room = self.people[call.who].is_legacy() || undecided.count() < self.profile.sessions;
        let now = self.clock.now();
        let call = self.calls.get_mut(&n).expect("it is there");
        call.was_crowded |= !has_room;
        call.has_room = if has_room { Some(call.has_room.unwrap_or(now)) } else { None };
        let waited = call.has_room.is_some_and(|since| now - since >= AT_ONCE);
        if waited && call.tool == Tool::Quick && call.excuse.is_none() {
            self.fails(&format!("call {n}, which the server answers at once, is not answered"));
        }
    }

    fn ends_badly(&self, n: usize, last: &Value) -> Client {
        let call = &self.calls[&n];
        let stopped = self.proxy.is_none();
        let code = last["error"]["code"].as_i64().unwrap_or_default();
        match code {
            -31007 if stopped => Client::Ended,
            // It waited for a session as long as calls may.
            -31006 if call.was_crowded && call.served.is_none() => Client::Ended,
            _ if call.excuse.is_some() || call.called_off => Client::Ended,
            _ => self.fails(&format!("call {n} ends badly for no reason: {last}")),
        }
    }

    fn ends(&self, n: usize, result: &Value) -> Client {
        let call = &self.calls[&n];
        let person = &self.people[call.who];
        if person.is_legacy() && result["task"].is_object() {
            if !call.for_task && !person.takes_tasks() || call.tool == Tool::Plain {
                self.fails(&format!("call {n} is a task for a client that takes none: {result}"));
            }
            let task = &result["task"];
            return Client::Task { id: self.new_handle(n, &task["taskId"]), ended: false, result: None };
        }
        if call.for_task && !person.takes_tasks() {
            self.fails(&format!("call {n} was to be a task: {result}"));
        }
        match result["resultType"].as_str() {
            Some("input_required") => {
                let requests = result["inputRequests"].clone();
                for request in requests.as_object().into_iter().flat_map(|requests| requests.values()) {
                    self.hears(n, &request["params"]["message"]);
                }
                let state = result["requestState"].as_str().expect("a state").to_owned();
                Client::Asked { state, requests }
            }
            Some("task") if person.knows_tasks() => {
                let had_room = call.has_room.is_some_and(|since| self.clock.now() - since >= AT_ONCE);
                if call.tool == Tool::Quick && !self.profile.always && call.excuse.is_none() && had_room {
                    self.fails(&format!("call {n}, which the server answers at once, became a task"));
                }
                if call.tool == Tool::Plain {
                    self.fails(&format!("call {n} is never to be a task: {result}"));
                }
                Client::Task { id: self.new_handle(n, &result["taskId"]), ended: false, result: None }
            }
            Some("complete") | None => {
                self.hears(n, &result["content"][0]["text"]);
                Client::Ended
            }
            Some(_) => self.fails(&format!("call {n} has an answer that its client does not know: {result}")),
        }
    }

    /// A handle that nobody has been given before.
    fn new_handle(&self, n: usize, id: &Value) -> String {
        let id = id.as_str().expect("an id");
        let has_it = |call: &Call| matches!(&call.client, Client::Task { id: given, .. } if given == id);
        if self.calls.values().any(has_it) {
            self.fails(&format!("call {n} is given the handle of another: {id}"));
        }
        id.to_owned()
    }

    /// A client hears this of one of its calls.
    fn hears(&self, n: usize, text: &Value) {
        if *text != name(n) {
            self.fails(&format!("call {n} hears what is {text}"));
        }
    }

    // === how it ends ===

    /// Everything comes to an end, and everybody hears of it.
    async fn end(&mut self) {
        if self.proxy.is_some() {
            match self.profile.in_a_hurry {
                true if self.profile.meets => self.tasks_and_calls_meet().await,
                true => {}
                false => self.all_is_answered().await,
            }
            self.log.push("the end".to_owned());
            self.happen(Happening::Stops).await;
        }
        self.look().await;
        sleep(DRAIN + Duration::from_secs(10)).await;
        self.look().await;
        if !self.stopping.as_ref().expect("it is stopping").is_finished() {
            self.fails("the proxy does not stop");
        }
        for (n, call) in &self.calls {
            if matches!(call.client, Client::Waits(_) | Client::TookBack(..)) {
                self.fails(&format!("call {n} never ended"));
            }
            let is_left = matches!(call.client, Client::Left) && !self.is_kept_unseen(call);
            let awaited = !is_left || !self.people[call.who].is_legacy();
            let is_told = call.cancelled || call.answered.is_some() || call.excuse.is_some() || !awaited;
            if call.served.is_some() && !is_told && self.server.is_alive() {
                self.fails(&format!("the server goes on with call {n}, for nobody"));
            }
        }
    }

    /// Of each client one call is a task and another is not when the proxy is stopped: where clients share a
    /// session with the server, in one session.
    async fn tasks_and_calls_meet(&mut self) {
        self.log.push("tasks and calls meet".to_owned());
        if !self.server.is_alive() {
            return;
        }
        for tool in [Tool::Slow, Tool::Plain] {
            for who in 0..self.people.len() {
                if self.people[who].has_session() {
                    self.call(who, tool, tool == Tool::Slow && self.people[who].is_legacy()).await;
                }
            }
            self.look().await;
            if tool == Tool::Slow {
                sleep(Duration::from_secs(6)).await;
                self.look().await;
            }
        }
    }

    /// The server answers all it has, and each client fetches what is theirs.
    async fn all_is_answered(&mut self) {
        self.log.push("the server answers".to_owned());
        if !self.server.is_alive() && self.server.has_lives() {
            self.server.come_back();
        }
        for _ in 0..2 * CALLS {
            for n in 0..self.calls.len() {
                if self.calls[&n].served.as_ref().is_some_and(Served::is_open) {
                    self.server_answers(n);
                }
                self.look().await;
                match &self.calls[&n].client {
                    Client::Asked { .. } => self.come_back(n).await,
                    Client::Task { ended: false, result: None, .. }
                        if self.people[self.calls[&n].who].is_legacy() =>
                    {
                        if self.people[self.calls[&n].who].has_session() {
                            self.await_result(n).await;
                        }
                    }
                    Client::Task { ended: false, .. } => drop(self.look_at_task(n).await),
                    Client::Task { .. }
                    | Client::TookBack(..)
                    | Client::Waits(_)
                    | Client::Ended
                    | Client::Left => {}
                }
            }
            if self.calls.values().all(|call| self.is_over(call)) {
                break;
            }
            // A broken stream is given up on after a while.
            sleep(Duration::from_secs(5)).await;
            self.look().await;
        }
        for (n, call) in &self.calls {
            if !self.is_over(call) {
                self.fails(&format!("call {n} does not end although its server has answered"));
            }
        }
    }

    /// Whether there is nothing more that its client could hear of a call.
    fn is_over(&self, call: &Call) -> bool {
        match &call.client {
            Client::Ended | Client::Left => true,
            Client::Task { ended, .. } => *ended || !self.people[call.who].has_session(),
            Client::Waits(_) | Client::TookBack(..) | Client::Asked { .. } => false,
        }
    }
}

// === impl Call ===

impl Call {
    /// Its client calls it off: a server that is at it is to know.
    fn is_called_off(&mut self, now: Instant) {
        self.called_off = true;
        let is_at_it = self.answered.is_none() && self.served.as_ref().is_some_and(Served::is_open);
        self.hushed = is_at_it.then_some(now);
    }
}

/// What everything about a call says.
fn name(n: usize) -> String {
    format!("of call {n}")
}

fn params(n: usize, tool: Tool, for_task: bool) -> Value {
    let tool = match tool {
        Tool::Slow => "slow",
        Tool::Quick => "quick",
        Tool::Plain => "plain",
    };
    let mut params = json!({ "name": tool, "arguments": { "n": n } });
    if for_task {
        params["task"] = json!({ "ttl": 86_400_000 });
    }
    params
}

/// The answer to a question.
fn answer(id: u32) -> String {
    format!("to question {id}")
}

/// Which questions these are.
fn numbers(requests: &Value) -> Vec<u32> {
    requests.as_object().into_iter().flatten().filter_map(|(_, request)| number(request)).collect()
}

/// An answer to each of these requests.
fn answers(requests: &Value) -> Value {
    let content = |request| number(request).map(|id| json!({ "name": answer(id) }));
    let answer = |request| json!({ "action": "accept", "content": content(request) });
    let all = requests.as_object().into_iter().flatten();
    all.map(|(key, request)| (key.clone(), answer(request))).collect()
}
