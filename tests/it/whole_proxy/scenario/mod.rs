//! A random scenario: its profile, its events and its state.

mod actions;
mod checks;
mod possible;

use super::{
    client::ScenarioClient,
    server::{self, Served, Server, number},
};

use deferral::internals::{
    app, config,
    runtime::{Network, PipeNetwork, SystemClock},
    store::Store,
};

use crate::support::{faulty_store::FaultyStore, modern_client::Following};
use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, task::JoinHandle};

use serde_json::{Value, json};

/// Parameters of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) asks: Asks,
    /// Whether the server answers with one document instead of a stream.
    pub(super) documents: bool,
    /// Whether every call of a client that knows tasks is one at once.
    pub(super) always: bool,
    /// Of one identity with the server.
    pub(super) sessions: usize,
    pub(super) crowd: ClientSet,
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
pub(super) enum ClientSet {
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
    /// Another client does.
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
    /// The server received a cancellation.
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

pub(super) struct WholeProxy {
    profile: Profile,
    proxy: Option<app::RunningProxy>,
    stopping: Option<JoinHandle<()>>,
    server: Server,
    store: Arc<FaultyStore>,
    people: Vec<ScenarioClient>,
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

// === impl WholeProxy ===

impl WholeProxy {
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
        let pipes = PipeNetwork::default();
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
        let store = FaultyStore::taking(profile.storing);
        let net = Network::Pipes(pipes.clone());
        let proxy =
            app::start_with(config, &net, Arc::clone(&store) as Arc<dyn Store>, None).expect("it starts");
        let at: SocketAddr = PROXY.parse().expect("an address");
        let modern = |name, tasks| ScenarioClient::modern(&pipes, at, name, tasks, profile.askable);
        let legacy = |name| ScenarioClient::legacy(&pipes, at, name, false);
        let taker = |name| ScenarioClient::legacy(&pipes, at, name, true);
        let people = match profile.crowd {
            ClientSet::OneModern => vec![modern("alice", true), modern("alice", false)],
            ClientSet::OneLegacy => vec![legacy("alice")],
            ClientSet::OneTaker => vec![taker("alice")],
            ClientSet::OneOfBoth => vec![modern("alice", true), taker("alice")],
            ClientSet::Everybody => vec![
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
