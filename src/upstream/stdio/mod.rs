//! A server that is a process (2025-11-25, *Transports, stdio*), as a [`Transport`].
//!
//! A session is a process: `command` says what starts one, `child` is one from its start until nothing is left of
//! it, `supervisor` watches over it from outside the proxy. `lines` takes what it says apart, `message_line` is what is written to it, `stderr` what it
//! writes to standard error, `process_table` what an operator is shown of all of them, `initialize` is how a session with one begins,
//! `start_limiter` says when one may be started again. The manual's page is
//! [`processes`](crate::manual::processes).
//!
//! A process costs much and knows no callers: the one of those that declare the same is shared by all of them,
//! until the server asks something that names no call ([`Transport::IS_COSTLY`]).

mod child;
mod command;
mod initialize;
pub mod lines;
mod message_line;
mod process_table;
mod start_limiter;
mod stderr;
mod supervisor;
#[cfg(test)]
mod tests;

pub use command::{EnvInheritance, EnvVariables, INSTANCES, OWN, ProcessSharing, ServerCommand, StartMode};
pub use process_table::ProcessTable;
pub use supervisor::supervise;

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
    ApplyReload, CallError, CallerIdentity, Config, Upstream, UpstreamDescription, UpstreamLimits,
    UpstreamSetupError,
    background::BackgroundTasks,
    legacy::LegacyUpstream,
    transport::{
        self, CallEvent, CallProgress, IdleRounds, InitializeRequest, RetryOnLoss, SessionEvent, Transport,
    },
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::{Capabilities, Frame, Kind, MessageReader, Method, splice::JsonObject},
    runtime::{Clock, Mutex, Network, SwapCell, SystemClock},
    telemetry::{
        Limit, ServerNotStarted, ServerOmitsVersion, ServerOutputSkipped, ServerProcessAdded, metrics,
    },
};
#[cfg(test)]
use child::ProcessIo;
use child::{ChildProcess, ProcessPermit, ProcessState, SpawnFn};
use initialize::{ModernOnlyCache, initialize};
use lines::{OutputLine, OutputLines, answered_call};
use process_table::{PendingCallGuard, ProcessRegistry};
use start_limiter::{BUDGET, DelayReason, StartDecision, StartLimiter};

/// A server of the older era that is started here.
pub type StdioUpstream = LegacyUpstream<ProcessTransport>;

/// How the processes of one server are started.
pub struct ProcessTransport {
    /// The route it is for, by which the log names it.
    route: Arc<str>,
    command: ServerCommand,
    config: SwapCell<Config>,
    spawn: SpawnFn,
    /// Locked for a question at a time.
    starts: Arc<Mutex<StartLimiter>>,
    verdict: ModernOnlyCache,
    /// Whether the last start came to something.
    last_start_succeeded: Mutex<Option<bool>>,
    /// Why it came to nothing.
    failure: Mutex<Option<Arc<str>>>,
    table: Arc<ProcessRegistry>,
    /// The operator has been told that the server writes messages without `"jsonrpc":"2.0"`.
    version_hint_given: Arc<AtomicBool>,
    /// One for each process there may be.
    permits: Arc<Semaphore>,
    max_processes: usize,
    /// How many have ended, or are to, and still have theirs.
    leaving: Arc<AtomicUsize>,
    /// How many wait for a place.
    waiting: AtomicUsize,
    /// Somebody waits for a place.
    eviction_request: Notify,
    /// There is none for whoever waits, for now.
    eviction_failure: Notify,
    /// What a process is shown of its callers: nothing.
    credentials: Credentials,
    clock: SystemClock,
    work: BackgroundTasks,
}

/// Somebody who waits for a place, counted.
struct WaiterCount<'a>(&'a AtomicUsize);

/// One process, as the line of a session.
pub struct ProcessSession {
    child: ChildProcess,
    /// Until it is listened to.
    output: Mutex<Option<OutputReader>>,
    /// Why nothing more will come.
    lost: OnceLock<CallError>,
}

/// What a process says on standard output.
struct OutputReader {
    route: Arc<str>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: OutputLines,
    config: SwapCell<Config>,
    read: Box<[u8]>,
    /// What of `read` is still to be looked at.
    left: std::ops::Range<usize>,
    /// What is left of a line: there were batches (2025-03-26).
    messages: MessageReader,
    /// It has said something that would be a message if it declared JSON-RPC 2.0.
    omits_version: bool,
    /// Whether the operator has been told so of this server.
    is_hinted: Arc<AtomicBool>,
    life: Arc<ProcessState>,
    work: BackgroundTasks,
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

impl StdioUpstream {
    /// A server that this command starts, for this route. With a network that is not the system's nothing is
    /// started.
    ///
    /// # Errors
    /// [`UpstreamSetupError::NoRuntime`].
    pub fn new(
        route: &str,
        command: ServerCommand,
        config: Config,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let spawn: SpawnFn = match net {
            Network::System | Network::Limited(_) => Box::new(child::spawn),
            Network::Pipes(_) => Box::new(|_| Err(io::ErrorKind::Unsupported.into())),
        };
        Self::spawned_by(spawn, route, command, config, net)
    }

    fn spawned_by(
        spawn: SpawnFn,
        route: &str,
        command: ServerCommand,
        config: Config,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let work = BackgroundTasks::new()?;
        let start = command.start;
        let processes = ProcessTransport::new(spawn, route, command, config.clone(), work.clone());
        let config = Config { limits: processes.limits(config.limits), ..config };
        let server = Self::with_transport(processes, route, config, work.clone(), net);
        if start == StartMode::Eager {
            let eager = server.clone();
            work.spawn(async move {
                let nobody = CallerIdentity {
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

impl ProcessTransport {
    fn new(
        spawn: SpawnFn,
        route: &str,
        command: ServerCommand,
        config: Config,
        work: BackgroundTasks,
    ) -> Self {
        let most = match command.instances {
            ProcessSharing::Shared(most) => most.max(1),
            ProcessSharing::PerCaller => command::PER_CALLER,
        };
        Self {
            route: route.into(),
            command,
            config: config.into(),
            spawn,
            starts: Arc::default(),
            verdict: ModernOnlyCache::default(),
            last_start_succeeded: Mutex::default(),
            failure: Mutex::default(),
            table: Arc::default(),
            version_hint_given: Arc::default(),
            permits: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            max_processes: most,
            leaving: Arc::default(),
            waiting: AtomicUsize::new(0),
            eviction_request: Notify::new(),
            eviction_failure: Notify::new(),
            credentials: Credentials::default(),
            clock: SystemClock::new(),
            work,
        }
    }

    /// Waits for one of the places there are. What nobody uses is asked to give way, again and again: it may
    /// have been in use before.
    async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let after = self.config.load().timeouts.queue;
        let _waits = WaiterCount::on(&self.waiting);
        let mut free = pin!(timeout(after, self.permits.clone().acquire_owned()));
        loop {
            let place = timeout(ASK, &mut free).await;
            match place {
                Ok(Ok(place)) => return place.map_err(|_| CallError::Closing),
                Ok(Err(_)) => return Err(CallError::ProcessesInUse { limit: self.max_processes, after }),
                // Those that have ended, or are to, leave their places in a moment.
                Err(_) if self.leaving.load(Ordering::Relaxed) >= self.waiting.load(Ordering::Relaxed) => {}
                Err(_) => self.eviction_request.notify_one(),
            }
        }
    }

    /// Waits until one more may be started.
    async fn wait_to_start(&self, caller: Principal) -> Result<(), CallError> {
        loop {
            let now = self.clock.now();
            let start = self.starts.lock().request_start(now, caller);
            match start {
                StartDecision::Now { is_replacement: stands_in } => {
                    if stands_in {
                        metrics::record_child_restart(&self.route);
                    }
                    return Ok(());
                }
                StartDecision::At(next) => sleep_until(next.into()).await,
                StartDecision::NotBefore(next, why) => {
                    let wait = (next - now).as_secs() + 1;
                    let why = match why {
                        DelayReason::Failing => "its process has ended again and again".to_owned(),
                        DelayReason::BudgetSpent => {
                            format!("{BUDGET} of its processes were started within a minute")
                        }
                    };
                    let why = format!("{why}, and it is not started for {wait} s");
                    return Err(CallError::Unreachable(why));
                }
            }
        }
    }

    /// Tells the operator that there will be more than one process, and why: each costs what the server costs.
    fn log_additional_process(&self, caller: &CallerIdentity) {
        let (running, is_one_like_these) = self.table.running(caller);
        let processes = running.saturating_sub(self.leaving.load(Ordering::Relaxed)) + 1;
        if processes < 2 {
            return;
        }
        let why = match self.command.instances {
            ProcessSharing::PerCaller => "each caller has its own",
            ProcessSharing::Shared(_) if is_one_like_these => {
                "calls that may be asked for input take turns, or a task has the other"
            }
            ProcessSharing::Shared(_) => "its callers declare other capabilities than those of the others",
        };
        let remedy = match self.command.instances {
            ProcessSharing::PerCaller => "upstream.instances: { per: caller } says so; a number shares them",
            ProcessSharing::Shared(_) => {
                "upstream.instances (--instances) is the most there may be; 1 keeps it at one"
            }
        };
        ServerProcessAdded { route: &self.route, processes, why, remedy }.emit();
    }

    /// An error of a server that did not start, with its last line on standard error where callers may know that.
    async fn with_stderr_line(&self, error: CallError, life: &ProcessState) -> CallError {
        match error {
            CallError::Unreachable(why) if self.command.reveals_stderr => {
                match life.latest_stderr_line().await {
                    Some(remark) => {
                        let remark: String = remark.chars().take(SHOWN).collect();
                        CallError::Unreachable(format!("{why}; its last line on standard error: {remark}"))
                    }
                    None => CallError::Unreachable(why),
                }
            }
            error => error,
        }
    }

    async fn start(
        &self,
        caller: &CallerIdentity,
        hello: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, ProcessSession), CallError> {
        self.verdict.check(self.clock.now())?;
        let place = self.acquire_permit().await?;
        self.wait_to_start(caller.principal).await?;
        let ends = (self.spawn)(&self.command).map_err(|error| {
            let now = self.clock.now();
            self.starts.lock().record_failure(now, caller.principal, now, Duration::ZERO);
            CallError::Unreachable(format!("its process cannot be started: {error}"))
        })?;
        self.log_additional_process(caller);
        let entry = self.table.register(caller.clone(), self.clock.timestamp());
        let (route, starts) = (self.route.clone(), (self.starts.clone(), caller.principal));
        let place = ProcessPermit { permit: place, leaving: self.leaving.clone() };
        let (child, stdout) = ChildProcess::manage(ends, route, starts, entry, place, &self.work);
        let life = child.state().clone();
        let config = self.config.clone();
        let (hinted, work) = (self.version_hint_given.clone(), self.work.clone());
        let mut said = OutputReader::new(self.route.clone(), stdout, config, hinted, life.clone(), work);
        let welcomed = timeout(self.command.start_timeout, initialize(&child, &mut said, hello)).await;
        let started = welcomed.unwrap_or_else(|_| {
            let limit = self.command.start_timeout;
            Limit::StartTimeout.record_hit();
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
                self.verdict.remember(self.clock.now(), &error);
                life.record_failed_start();
                return Err(self.with_stderr_line(error, &life).await);
            }
        };
        let pipe = ProcessSession { child, output: Mutex::new(Some(said)), lost: OnceLock::new() };
        Ok((description, pipe))
    }
}

impl Transport for ProcessTransport {
    type Line = ProcessSession;

    const IS_COSTLY: bool = true;
    const BOUND: &'static str = "callers that can be asked take turns in a process";
    /// The process is asked, told, and killed.
    const FAREWELL: Duration = Duration::from_secs(6);

    /// Calls of those who declare the same take turns on one process, once they have to, and what has become a task
    /// keeps none of them from its turn.
    fn limits(&self, limits: UpstreamLimits) -> UpstreamLimits {
        UpstreamLimits {
            sessions: 1,
            task_sessions: self.max_processes - 1,
            identities: self.max_processes,
            ..limits
        }
    }

    fn prepare_reload(self: &Arc<Self>, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let (this, config) = (Arc::clone(self), config.clone());
        Ok(Box::new(move || this.config.set(config)))
    }

    async fn open(
        self: &Arc<Self>,
        caller: &CallerIdentity,
        hello: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, ProcessSession), CallError> {
        let begun = self.start(caller, hello).await;
        // Where there is no place, it was not tried.
        if !matches!(begun, Err(CallError::ProcessesInUse { .. } | CallError::Closing)) {
            *self.last_start_succeeded.lock() = Some(begun.is_ok());
            *self.failure.lock() = begun.as_ref().err().map(|error| error.to_string().into());
        }
        if let Err(error) = &begun {
            ServerNotStarted { route: &self.route, program: self.command.program(), error }.emit();
        }
        begun
    }

    fn idle_rounds(&self) -> IdleRounds {
        let Some(idle) = self.command.idle else {
            return IdleRounds { lists: u32::MAX, others: IdleRounds::default().others };
        };
        let lists = u32::try_from(idle.as_secs().div_ceil(60)).unwrap_or(u32::MAX).max(1);
        IdleRounds { lists, others: lists.min(IdleRounds::default().others) }
    }

    fn is_up(&self) -> Option<bool> {
        *self.last_start_succeeded.lock()
    }

    fn failure(&self) -> Option<Arc<str>> {
        self.failure.lock().clone()
    }

    fn processes(&self) -> Option<ProcessTable> {
        Some(self.table.shown())
    }

    async fn eviction_requested(&self) {
        self.eviction_request.notified().await;
    }

    fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    fn report_eviction_failed(&self) {
        self.eviction_failure.notify_waiters();
    }

    async fn eviction_failed(&self) {
        self.eviction_failure.notified().await;
    }

    /// It has no headers by which it could tell callers apart, and several clients may share a process.
    fn pool_key(&self, caller: &CallerIdentity) -> CallerIdentity {
        let principal = match self.command.instances {
            ProcessSharing::Shared(_) => Principal::ANONYMOUS,
            ProcessSharing::PerCaller => caller.principal,
        };
        let capabilities = Arc::clone(&caller.capabilities);
        let (credentials, client_info) = (self.credentials.clone(), ClientInfo::default());
        CallerIdentity { principal, credentials, capabilities, client_info }
    }
}

// === impl Waits ===

impl<'a> WaiterCount<'a> {
    fn on(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Pipe ===

impl transport::TransportSession for ProcessSession {
    /// In hand for as long as this is held, or why it is not written: boxed, as a call that waits has no such thing.
    type Answer = Result<PendingCallGuard, Box<CallError>>;

    /// What the process has not read when its client leaves is followed by the cancellation.
    fn send_call(&self, body: Bytes, _: &HeaderMap) -> Self::Answer {
        self.child.call(body).map_err(Box::new)
    }

    fn poll_call(self: &Arc<Self>, sent: &mut Self::Answer, _: u64, _: &mut Context<'_>) -> Poll<CallEvent> {
        Poll::Ready(match sent {
            Ok(_) => CallEvent::AnsweredOffStream,
            Err(lost) if matches!(**lost, CallError::Unreachable(_)) => {
                CallEvent::SessionGone(CallError::clone(lost))
            }
            Err(lost) => CallEvent::Lost(CallError::clone(lost)),
        })
    }

    fn progress(sent: &mut Self::Answer) -> CallProgress {
        if sent.is_ok() { CallProgress::Sent } else { CallProgress::Unsent }
    }

    fn send_message(
        &self,
        body: Bytes,
        _: RetryOnLoss,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        std::future::ready(self.child.write(body))
    }

    async fn listen(self: Arc<Self>, mut tell: impl FnMut(SessionEvent) + Send) {
        let said = self.output.lock().take();
        let mut said = said.expect("it is listened to once");
        tell(SessionEvent::Settled);
        let life = self.child.state();
        loop {
            tokio::select! {
                biased;
                beside = said.next() => match beside {
                    Some(beside) => tell(beside),
                    None => break,
                },
                () = life.wait_ended() => {
                    // What it said last may still be on its way; what it has left behind has nothing to say.
                    let rest = async { while let Some(beside) = said.next().await { tell(beside) } };
                    let _ = timeout(LAST_WORDS, rest).await;
                    break;
                }
            }
        }
        let _ = timeout(STATUS, life.wait_ended()).await;
        life.fail("it says nothing any more");
        let how = match said.lines.is_within() {
            true => format!("{}, in the middle of a message", life.end_reason()),
            false => life.end_reason().to_owned(),
        };
        let _ = self.lost.set(CallError::Exited(how));
        tell(SessionEvent::Ended);
    }

    fn loss_error(&self) -> CallError {
        self.lost.get().cloned().unwrap_or(CallError::SessionEnded)
    }

    async fn close(&self) {
        self.child.end().await;
    }
}

// === impl Said ===

impl OutputReader {
    fn new(
        route: Arc<str>,
        stdout: Box<dyn AsyncRead + Send + Unpin>,
        config: SwapCell<Config>,
        is_hinted: Arc<AtomicBool>,
        life: Arc<ProcessState>,
        work: BackgroundTasks,
    ) -> Self {
        Self {
            route,
            stdout,
            lines: OutputLines::default(),
            config,
            read: vec![0; READ].into_boxed_slice(),
            left: 0..0,
            messages: MessageReader::default(),
            omits_version: false,
            is_hinted,
            life,
            work,
        }
    }

    /// What it says next; `Missing` where it says nothing more. Nothing is lost where this is dropped.
    async fn next(&mut self) -> Option<SessionEvent> {
        loop {
            // There may be millions in what has been read, and others of this thread have calls.
            consume_budget().await;
            match self.messages.next() {
                Some(Ok(frame)) if frame.is_json_rpc() => {
                    return Some(SessionEvent::Message(self.messages.detach(frame)));
                }
                Some(Ok(frame)) => {
                    self.skip_unversioned(&frame);
                    continue;
                }
                Some(Err(error)) => {
                    let line = self.messages.bytes().clone();
                    self.skip(&error, &line);
                    match answered_call(&line) {
                        Some(call) => return Some(SessionEvent::Invalid(call, error.to_string())),
                        None => continue,
                    }
                }
                None => {}
            }
            let mut input = &self.read[self.left.clone()];
            let line = self.lines.next(&mut input, self.config.load().limits.result_bytes);
            self.left.start = self.left.end - input.len();
            match line {
                Some(OutputLine::Whole(line)) => self.messages = MessageReader::of(line),
                Some(OutputLine::TooLong { answers: Some(call) }) => {
                    return Some(SessionEvent::TooLarge(call));
                }
                Some(OutputLine::TooLong { answers: None }) => self.skip(&"a line that is too long", b""),
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
        if is_likely_message(frame) {
            self.omits_version = true;
            if !self.is_hinted.swap(true, Ordering::Relaxed) {
                ServerOmitsVersion { route: &self.route }.emit();
            }
        }
    }

    /// Tells the operator of what is no message: what a program prints on standard output beside them, mostly.
    fn skip(&mut self, why: &dyn Display, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
        ServerOutputSkipped { route: &self.route, why: &why.to_string(), line: &line }.emit();
    }
}

/// Whether what does not declare JSON-RPC 2.0 looks like a message all the same, to somebody who knows the server's words.
fn is_likely_message(frame: &Frame) -> bool {
    match frame.kind() {
        Kind::Success { id, .. } => id.echoed_number().is_some(),
        Kind::Failure { id, error } => {
            id.as_ref().is_some_and(|id| id.echoed_number().is_some())
                && JsonObject::read(error).is_ok_and(|error| error.contains("code"))
        }
        Kind::Request { method, .. } | Kind::Notification { method, .. } => {
            !matches!(method, Method::Other(_))
        }
    }
}

impl Drop for OutputReader {
    /// A process that is being ended may still write: it is read on until nothing is
    /// left of it, so that it meets no closed pipe; nobody hears what it says.
    fn drop(&mut self) {
        let mut stdout = mem::replace(&mut self.stdout, Box::new(tokio::io::empty()));
        let (mut read, life) = (mem::take(&mut self.read), self.life.clone());
        self.work.spawn(async move {
            let to_its_end = async { while let Ok(1..) = stdout.read(&mut read).await {} };
            tokio::select! {
                () = to_its_end => {}
                () = life.wait_gone() => {}
            }
        });
    }
}
