//! A server that is a process (2025-11-25, *Transports, stdio*), as a [`Wire`].
//!
//! A session is a process: `command` says what starts one, `child` is one from its start until nothing is left of
//! it, `supervisor` watches over it from outside the proxy. `lines` takes what it says apart, `message_line` is what is written to it, `remarks` what it
//! writes to standard error, `table` what an operator is shown of all of them, `hello` is how a session with one begins,
//! `starts` says when one may be started again. The manual's page is
//! [`processes`](crate::manual::processes).
//!
//! A process costs much and knows no callers: the one of those that declare the same is shared by all of them,
//! until the server asks something that names no call ([`Wire::IS_COSTLY`]).

mod child;
mod command;
mod hello;
pub mod lines;
mod message_line;
mod remarks;
mod starts;
mod supervisor;
mod table;
#[cfg(test)]
mod tests;

pub use command::{Command, INSTANCES, Inherit, Instances, OWN, Variables, When};
pub use supervisor::supervise;
pub use table::Processes as ProcessTable;

use bytes::Bytes;
use http::HeaderMap;
use std::{
    fmt::Display,
    future::Future,
    io, mem,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::coop::consume_budget,
    time::{sleep_until, timeout},
};

use super::{
    CallError, Change, Config, Description, Identity, Limits, NotStarted, Upstream,
    legacy::Legacy,
    wire::{self, Again, Beside, Heard, Hello, Progress, QuietRounds, Wire},
    work::Work,
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::{Capabilities, Frame, Kind, Messages, Method, splice::Object},
    runtime::{Clock, Live, Mutex, Net, SystemClock},
    telemetry::{Limit, ServerGarbage, ServerNotStarted, ServerOmitsVersion, ServerProcessAdded, metrics},
};
#[cfg(test)]
use child::Ends;
use child::{Child, Life, Place, Spawn};
use hello::{Verdict, welcome};
use lines::{Line, Lines, answered_by};
use starts::{BUDGET, Start, Starts, Why};
use table::{CallInHand, Table};

/// A server of the older era that is started here.
pub type Stdio = Legacy<Processes>;

/// How the processes of one server are started.
pub struct Processes {
    /// The route it is for, by which the log names it.
    route: Arc<str>,
    command: Command,
    config: Live<Config>,
    spawn: Spawn,
    /// Locked for a question at a time.
    starts: Arc<Mutex<Starts>>,
    verdict: Verdict,
    /// Whether the last start came to something.
    came_up: Mutex<Option<bool>>,
    /// Why it came to nothing.
    failure: Mutex<Option<Arc<str>>>,
    table: Arc<Table>,
    /// The operator has been told that the server writes messages without `"jsonrpc":"2.0"`.
    is_hinted: Arc<AtomicBool>,
    /// One for each process there may be.
    places: Arc<Semaphore>,
    most: usize,
    /// How many have ended, or are to, and still have theirs.
    leaving: Arc<AtomicUsize>,
    /// How many wait for a place.
    waiting: AtomicUsize,
    /// Somebody waits for a place.
    crowded: Notify,
    /// There is none for whoever waits, for now.
    full: Notify,
    /// What a process is shown of its callers: nothing.
    credentials: Credentials,
    clock: SystemClock,
    work: Work,
}

/// Somebody who waits for a place, counted.
struct Waits<'a>(&'a AtomicUsize);

/// One process, as the line of a session.
pub struct Pipe {
    child: Child,
    /// Until it is listened to.
    said: Mutex<Option<Said>>,
    /// Why nothing more will come.
    lost: OnceLock<CallError>,
}

/// What a process says on standard output.
struct Said {
    route: Arc<str>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: Lines,
    config: Live<Config>,
    read: Box<[u8]>,
    /// What of `read` is still to be looked at.
    left: std::ops::Range<usize>,
    /// What is left of a line: there were batches (2025-03-26).
    messages: Messages,
    /// It has said something that would be a message if it declared JSON-RPC 2.0.
    omits_version: bool,
    /// Whether the operator has been told so of this server.
    is_hinted: Arc<AtomicBool>,
    life: Arc<Life>,
    work: Work,
}

/// Why a line is skipped that has the members of a message.
const NO_VERSION: &str = r#"it has no "jsonrpc":"2.0""#;
/// What is read at a time: all that a pipe holds, mostly.
const READ: usize = 64 << 10;
/// How often those who wait for a place ask for one.
const ASK: Duration = Duration::from_millis(100);
/// How much of a line that is no message is shown.
const SHOWN: usize = 200;
/// How long a process that has ended may take with what it had still to say.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long it may take to be heard how a process ended that says or reads nothing more. On a machine that is busy
/// its supervisor has its turn late; one that goes on without its output is rare, and about to be ended.
const STATUS: Duration = Duration::from_secs(2);

// === impl Stdio ===

impl Stdio {
    /// A server that this command starts, for this route. With a network that is not the system's nothing is
    /// started.
    ///
    /// # Errors
    /// [`NotStarted::NoRuntime`].
    pub fn new(route: &str, command: Command, config: Config, net: &Net) -> Result<Self, NotStarted> {
        let spawn: Spawn = match net {
            Net::System | Net::Within(_) => Box::new(child::spawn),
            Net::Pipes(_) => Box::new(|_| Err(io::ErrorKind::Unsupported.into())),
        };
        Self::spawned_by(spawn, route, command, config, net)
    }

    fn spawned_by(
        spawn: Spawn,
        route: &str,
        command: Command,
        config: Config,
        net: &Net,
    ) -> Result<Self, NotStarted> {
        let work = Work::new()?;
        let start = command.start;
        let processes = Processes::new(spawn, route, command, config.clone(), work.clone());
        let config = Config { limits: processes.limits(config.limits), ..config };
        let server = Self::over(processes, route, config, work.clone(), net);
        if start == When::Eager {
            let eager = server.clone();
            work.spawn(async move {
                let nobody = Identity {
                    principal: Principal::ANONYMOUS,
                    credentials: Credentials::default(),
                    capabilities: Arc::new(Capabilities::none()),
                    client_info: ClientInfo::default(),
                };
                // What went wrong is in the log.
                let _ = eager.describe(&nobody).await;
            });
        }
        Ok(server)
    }
}

// === impl Processes ===

impl Processes {
    fn new(spawn: Spawn, route: &str, command: Command, config: Config, work: Work) -> Self {
        let most = match command.instances {
            Instances::Shared(most) => most.max(1),
            Instances::PerCaller => command::PER_CALLER,
        };
        Self {
            route: route.into(),
            command,
            config: config.into(),
            spawn,
            starts: Arc::default(),
            verdict: Verdict::default(),
            came_up: Mutex::default(),
            failure: Mutex::default(),
            table: Arc::default(),
            is_hinted: Arc::default(),
            places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            most,
            leaving: Arc::default(),
            waiting: AtomicUsize::new(0),
            crowded: Notify::new(),
            full: Notify::new(),
            credentials: Credentials::default(),
            clock: SystemClock::new(),
            work,
        }
    }

    /// Waits for one of the places there are. What nobody uses is asked to give way, again and again: it may
    /// have been in use before.
    async fn place(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let after = self.config.now().timeouts.queue;
        let _waits = Waits::on(&self.waiting);
        let mut free = pin!(timeout(after, self.places.clone().acquire_owned()));
        loop {
            let place = timeout(ASK, &mut free).await;
            match place {
                Ok(Ok(place)) => return place.map_err(|_| CallError::Closing),
                Ok(Err(_)) => return Err(CallError::AllInUse { limit: self.most, after }),
                // Those that have ended, or are to, leave their places in a moment.
                Err(_) if self.leaving.load(Ordering::Relaxed) >= self.waiting.load(Ordering::Relaxed) => {}
                Err(_) => self.crowded.notify_one(),
            }
        }
    }

    /// Waits until one more may be started.
    async fn may_start(&self, caller: Principal) -> Result<(), CallError> {
        loop {
            let now = self.clock.now();
            let start = self.starts.lock().begin(now, caller);
            match start {
                Start::Now { stands_in } => {
                    if stands_in {
                        metrics::child_restarted(&self.route);
                    }
                    return Ok(());
                }
                Start::At(next) => sleep_until(next.into()).await,
                Start::NotBefore(next, why) => {
                    let wait = (next - now).as_secs() + 1;
                    let why = match why {
                        Why::Failing => "its process has ended again and again".to_owned(),
                        Why::Spent => format!("{BUDGET} of its processes were started within a minute"),
                    };
                    let why = format!("{why}, and it is not started for {wait} s");
                    return Err(CallError::Unreachable(why));
                }
            }
        }
    }

    /// Tells the operator that there will be more than one process, and why: each costs what the server costs.
    fn tell_of_another(&self, caller: &Identity) {
        let (running, is_one_like_these) = self.table.running(caller);
        let processes = running.saturating_sub(self.leaving.load(Ordering::Relaxed)) + 1;
        if processes < 2 {
            return;
        }
        let why = match self.command.instances {
            Instances::PerCaller => "each caller has its own",
            Instances::Shared(_) if is_one_like_these => {
                "calls that may be asked for input take turns, or a task has the other"
            }
            Instances::Shared(_) => "its callers declare other capabilities than those of the others",
        };
        let remedy = match self.command.instances {
            Instances::PerCaller => "upstream.instances: { per: caller } says so; a number shares them",
            Instances::Shared(_) => {
                "upstream.instances (--instances) is the most there may be; 1 keeps it at one"
            }
        };
        ServerProcessAdded { route: &self.route, processes, why, remedy }.emit();
    }

    /// An error of a server that did not start, with its last line on standard error where callers may know that.
    async fn with_remark(&self, error: CallError, life: &Life) -> CallError {
        match error {
            CallError::Unreachable(why) if self.command.tells_remarks => match life.latest_remark().await {
                Some(remark) => {
                    let remark: String = remark.chars().take(SHOWN).collect();
                    CallError::Unreachable(format!("{why}; its last line on standard error: {remark}"))
                }
                None => CallError::Unreachable(why),
            },
            error => error,
        }
    }

    async fn begin(&self, caller: &Identity, hello: &mut Hello) -> Result<(Description, Pipe), CallError> {
        self.verdict.allows(self.clock.now())?;
        let place = self.place().await?;
        self.may_start(caller.principal).await?;
        let ends = (self.spawn)(&self.command).map_err(|error| {
            let now = self.clock.now();
            self.starts.lock().failed(now, caller.principal, now, Duration::ZERO);
            CallError::Unreachable(format!("its process cannot be started: {error}"))
        })?;
        self.tell_of_another(caller);
        let entry = self.table.enter(caller.clone(), self.clock.timestamp());
        let (route, starts) = (self.route.clone(), (self.starts.clone(), caller.principal));
        let place = Place { permit: place, leaving: self.leaving.clone() };
        let (child, stdout) = Child::keep(ends, route, starts, entry, place, &self.work);
        let life = child.life().clone();
        let config = self.config.clone();
        let (hinted, work) = (self.is_hinted.clone(), self.work.clone());
        let mut said = Said::new(self.route.clone(), stdout, config, hinted, life.clone(), work);
        let welcomed = timeout(self.command.start_timeout, welcome(&child, &mut said, hello)).await;
        let started = welcomed.unwrap_or_else(|_| {
            let limit = self.command.start_timeout;
            Limit::StartTimeout.hit();
            let hint = if said.omits_version {
                "; it wrote JSON without \"jsonrpc\":\"2.0\", which is no message"
            } else {
                ""
            };
            let why = format!(
                "its process did not answer `initialize` within {limit:?} (upstream.start_timeout){hint}"
            );
            Err(CallError::Unreachable(why))
        });
        let description = match started {
            Ok(description) => description,
            Err(error) => {
                self.verdict.learn(self.clock.now(), &error);
                life.did_not_start();
                return Err(self.with_remark(error, &life).await);
            }
        };
        let pipe = Pipe { child, said: Mutex::new(Some(said)), lost: OnceLock::new() };
        Ok((description, pipe))
    }
}

impl Wire for Processes {
    type Line = Pipe;

    const IS_COSTLY: bool = true;
    const BOUND: &'static str = "callers that can be asked take turns in a process";
    /// The process is asked, told, and killed.
    const FAREWELL: Duration = Duration::from_secs(6);

    /// Calls of those who declare the same take turns on one process, once they have to, and what has become a task
    /// keeps none of them from its turn.
    fn limits(&self, limits: Limits) -> Limits {
        Limits { sessions: 1, task_sessions: self.most - 1, identities: self.most, ..limits }
    }

    fn otherwise(self: &Arc<Self>, config: &Config) -> Result<Change, NotStarted> {
        let (this, config) = (Arc::clone(self), config.clone());
        Ok(Box::new(move || this.config.set(config)))
    }

    async fn open(
        self: &Arc<Self>,
        caller: &Identity,
        hello: &mut Hello,
    ) -> Result<(Description, Pipe), CallError> {
        let begun = self.begin(caller, hello).await;
        // Where there is no place, it was not tried.
        if !matches!(begun, Err(CallError::AllInUse { .. } | CallError::Closing)) {
            *self.came_up.lock() = Some(begun.is_ok());
            *self.failure.lock() = begun.as_ref().err().map(|error| error.to_string().into());
        }
        if let Err(error) = &begun {
            ServerNotStarted { route: &self.route, program: self.command.program(), error }.emit();
        }
        begun
    }

    fn quiet_rounds(&self) -> QuietRounds {
        let Some(idle) = self.command.idle else {
            return QuietRounds { lists: u32::MAX, others: QuietRounds::default().others };
        };
        let lists = u32::try_from(idle.as_secs().div_ceil(60)).unwrap_or(u32::MAX).max(1);
        QuietRounds { lists, others: lists.min(QuietRounds::default().others) }
    }

    fn is_up(&self) -> Option<bool> {
        *self.came_up.lock()
    }

    fn failure(&self) -> Option<Arc<str>> {
        self.failure.lock().clone()
    }

    fn processes(&self) -> Option<ProcessTable> {
        Some(self.table.shown())
    }

    async fn is_crowded(&self) {
        self.crowded.notified().await;
    }

    fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    fn nothing_gave_way(&self) {
        self.full.notify_waiters();
    }

    async fn none_gives_way(&self) {
        self.full.notified().await;
    }

    /// It has no headers by which it could tell callers apart, and several clients may share a process.
    fn known_as(&self, caller: &Identity) -> Identity {
        let principal = match self.command.instances {
            Instances::Shared(_) => Principal::ANONYMOUS,
            Instances::PerCaller => caller.principal,
        };
        let capabilities = Arc::clone(&caller.capabilities);
        let (credentials, client_info) = (self.credentials.clone(), ClientInfo::default());
        Identity { principal, credentials, capabilities, client_info }
    }
}

// === impl Waits ===

impl<'a> Waits<'a> {
    fn on(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Pipe ===

impl wire::Line for Pipe {
    /// In hand for as long as this is held, or why it is not written: boxed, as a call that waits has no such thing.
    type Answer = Result<CallInHand, Box<CallError>>;

    /// What the process has not read when its client leaves is followed by the cancellation.
    fn send(&self, body: Bytes, _: &HeaderMap) -> Self::Answer {
        self.child.call(body).map_err(Box::new)
    }

    fn poll_answer(self: &Arc<Self>, sent: &mut Self::Answer, _: u64, _: &mut Context<'_>) -> Poll<Heard> {
        Poll::Ready(match sent {
            Ok(_) => Heard::Elsewhere,
            Err(lost) if matches!(**lost, CallError::Unreachable(_)) => Heard::Gone(CallError::clone(lost)),
            Err(lost) => Heard::Lost(CallError::clone(lost)),
        })
    }

    fn progress(sent: &mut Self::Answer) -> Progress {
        if sent.is_ok() { Progress::Sent } else { Progress::Unsent }
    }

    fn tell(&self, body: Bytes, _: Again) -> impl Future<Output = Result<(), CallError>> + Send {
        std::future::ready(self.child.write(body))
    }

    async fn listen(self: Arc<Self>, mut tell: impl FnMut(Beside) + Send) {
        let said = self.said.lock().take();
        let mut said = said.expect("it is listened to once");
        tell(Beside::Settled);
        let life = self.child.life();
        loop {
            tokio::select! {
                biased;
                beside = said.next() => match beside {
                    Some(beside) => tell(beside),
                    None => break,
                },
                () = life.ended() => {
                    // What it said last may still be on its way; what it has left behind has nothing to say.
                    let rest = async { while let Some(beside) = said.next().await { tell(beside) } };
                    let _ = timeout(LAST_WORDS, rest).await;
                    break;
                }
            }
        }
        let _ = timeout(STATUS, life.ended()).await;
        life.cannot_go_on("it says nothing any more");
        let how = match said.lines.is_within() {
            true => format!("{}, in the middle of a message", life.how()),
            false => life.how().to_owned(),
        };
        let _ = self.lost.set(CallError::Exited(how));
        tell(Beside::Ended);
    }

    fn lost(&self) -> CallError {
        self.lost.get().cloned().unwrap_or(CallError::SessionEnded)
    }

    async fn close(&self) {
        self.child.end().await;
    }
}

// === impl Said ===

impl Said {
    fn new(
        route: Arc<str>,
        stdout: Box<dyn AsyncRead + Send + Unpin>,
        config: Live<Config>,
        is_hinted: Arc<AtomicBool>,
        life: Arc<Life>,
        work: Work,
    ) -> Self {
        Self {
            route,
            stdout,
            lines: Lines::default(),
            config,
            read: vec![0; READ].into_boxed_slice(),
            left: 0..0,
            messages: Messages::default(),
            omits_version: false,
            is_hinted,
            life,
            work,
        }
    }

    /// What it says next; `None` where it says nothing more. Nothing is lost where this is dropped.
    async fn next(&mut self) -> Option<Beside> {
        loop {
            // There may be millions in what has been read, and others of this thread have calls.
            consume_budget().await;
            match self.messages.next() {
                Some(Ok(frame)) if frame.is_json_rpc() => {
                    return Some(Beside::Message(self.messages.apart(frame)));
                }
                Some(Ok(frame)) => {
                    self.skip_unversioned(&frame);
                    continue;
                }
                Some(Err(error)) => {
                    let line = self.messages.bytes().clone();
                    self.skip(&error, &line);
                    match answered_by(&line) {
                        Some(call) => return Some(Beside::Invalid(call, error.to_string())),
                        None => continue,
                    }
                }
                None => {}
            }
            let mut input = &self.read[self.left.clone()];
            let line = self.lines.next(&mut input, self.config.now().limits.result_bytes);
            self.left.start = self.left.end - input.len();
            match line {
                Some(Line::Whole(line)) => self.messages = Messages::of(line),
                Some(Line::TooLong { answers: Some(call) }) => return Some(Beside::TooLarge(call)),
                Some(Line::TooLong { answers: None }) => self.skip(&"a line that is too long", b""),
                None => match self.stdout.read(&mut self.read).await {
                    Ok(count @ 1..) => self.left = 0..count,
                    Ok(0) | Err(_) => return None,
                },
            }
        }
    }

    /// Skips JSON that does not declare JSON-RPC 2.0: programs that log to standard output write `error`, `method` and `id`, too.
    fn skip_unversioned(&mut self, frame: &Frame) {
        self.skip(&NO_VERSION, frame.as_bytes());
        if is_meant_for_us(frame) {
            self.omits_version = true;
            if !self.is_hinted.swap(true, Ordering::Relaxed) {
                ServerOmitsVersion { route: &self.route }.emit();
            }
        }
    }

    /// Tells the operator of what is no message: what a program prints on standard output beside them, mostly.
    fn skip(&mut self, why: &dyn Display, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
        ServerGarbage { route: &self.route, why: &why.to_string(), line: &line }.emit();
    }
}

/// Whether what does not declare JSON-RPC 2.0 looks like a message all the same, to somebody who knows the server's words.
fn is_meant_for_us(frame: &Frame) -> bool {
    match frame.kind() {
        Kind::Success { id, .. } => id.came_back().is_some(),
        Kind::Failure { id, error } => {
            id.as_ref().is_some_and(|id| id.came_back().is_some())
                && Object::read(error).is_ok_and(|error| error.contains("code"))
        }
        Kind::Request { method, .. } | Kind::Notification { method, .. } => {
            !matches!(method, Method::Other(_))
        }
    }
}

impl Drop for Said {
    /// A process that is being ended may still write: it is read on until nothing is
    /// left of it, so that it meets no closed pipe; nobody hears what it says.
    fn drop(&mut self) {
        let mut stdout = mem::replace(&mut self.stdout, Box::new(tokio::io::empty()));
        let (mut read, life) = (mem::take(&mut self.read), self.life.clone());
        self.work.spawn(async move {
            let to_its_end = async { while let Ok(1..) = stdout.read(&mut read).await {} };
            tokio::select! {
                () = to_its_end => {}
                () = life.gone() => {}
            }
        });
    }
}
