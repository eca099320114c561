//! Stdio servers (2025-11-25, *Transports, stdio*), as a [`Transport`].
//!
//! A session is a process: `command` describes its start, `child` is one process from start to end,
//! `supervisor` watches it from outside the proxy. `lines` splits its output, `message_line` writes its
//! input, `stderr` collects its standard error, `process_table` lists all processes for operators,
//! `initialize` is the handshake, `start_limiter` decides when a process may be started again. The manual's
//! page is [`processes`](crate::manual::processes).
//!
//! A process is costly and does not know callers: all callers that declare the same share one, until the
//! server sends a request that names no call ([`Transport::IS_COSTLY`]). Begin with the `Transport`
//! implementation in this file.

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

/// A legacy server that the proxy starts as a process.
pub type StdioUpstream = LegacyUpstream<ProcessTransport>;

/// Stdio transport: starts the processes of one server.
pub struct ProcessTransport {
    /// Route of the server, its name in the log.
    route: Arc<str>,
    command: ServerCommand,
    config: SwapCell<Config>,
    spawn: SpawnFn,
    /// Locked for a few statements only.
    starts: Arc<Mutex<StartLimiter>>,
    verdict: ModernOnlyCache,
    /// Whether the last start succeeded.
    last_start_succeeded: Mutex<Option<bool>>,
    /// Reason of its failure.
    failure: Mutex<Option<Arc<str>>>,
    table: Arc<ProcessRegistry>,
    /// Whether it was logged that the server omits `"jsonrpc":"2.0"` from its messages.
    version_hint_given: Arc<AtomicBool>,
    /// One permit for each process.
    permits: Arc<Semaphore>,
    max_processes: usize,
    /// Number of ended or ending processes that still hold a permit.
    leaving: Arc<AtomicUsize>,
    /// Number of waits for a permit.
    waiting: AtomicUsize,
    /// Notified when a permit is awaited.
    eviction_request: Notify,
    /// Notified when no process can be evicted for it.
    eviction_failure: Notify,
    /// Credentials of callers for a process: none.
    credentials: Credentials,
    clock: SystemClock,
    work: BackgroundTasks,
}

/// Counts a wait for a permit, until dropped.
struct WaiterCount<'a>(&'a AtomicUsize);

/// A process as a session.
pub struct ProcessSession {
    child: ChildProcess,
    /// Taken by `listen`.
    output: Mutex<Option<OutputReader>>,
    /// Reason why no more messages will arrive.
    lost: OnceLock<CallError>,
}

/// Reader of a process's standard output.
struct OutputReader {
    route: Arc<str>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: OutputLines,
    config: SwapCell<Config>,
    read: Box<[u8]>,
    /// Part of `read` that is not parsed.
    left: std::ops::Range<usize>,
    /// Remaining messages of a line: batches (2025-03-26).
    messages: MessageReader,
    /// Whether a line would be a message if it declared JSON-RPC 2.0.
    omits_version: bool,
    /// Whether that was logged for this server.
    is_hinted: Arc<AtomicBool>,
    life: Arc<ProcessState>,
    work: BackgroundTasks,
}

/// Reason for skipping a line that has the members of a message.
const NO_VERSION: &str = r#"it has no "jsonrpc":"2.0""#;
/// Bytes read at once: usually all that a pipe holds.
const READ: usize = 64 << 10;
/// Interval of eviction requests while a permit is awaited.
const ASK: Duration = Duration::from_millis(100);
/// Characters of an invalid line in the log.
const SHOWN: usize = 200;
/// Time limit of reading the last output of an ended process.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Time limit of the wait for the end of a process that has closed its output or does not read. On a busy
/// machine the supervisor runs late; a process that continues without output is rare, and is ended then.
const STATUS: Duration = Duration::from_secs(2);

// === impl StdioUpstream ===

impl StdioUpstream {
    /// Creates an upstream for a route, whose processes are started by this command. On a network other than
    /// the system's, starts fail.
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
                let anonymous = CallerIdentity {
                    principal: Principal::ANONYMOUS,
                    credentials: Credentials::default(),
                    capabilities: Arc::new(Capabilities::none()),
                    client_info: ClientInfo::default(),
                };
                // The log has the error.
                let _ = eager.describe(&anonymous).await;
            });
        }
        Ok(server)
    }
}

// === impl ProcessTransport ===

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

    /// Waits for a permit. Requests the eviction of an unused process repeatedly, because it may have been in
    /// use before.
    async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let after = self.config.load().timeouts.queue;
        let _waits = WaiterCount::on(&self.waiting);
        let mut free = pin!(timeout(after, self.permits.clone().acquire_owned()));
        loop {
            let permit = timeout(ASK, &mut free).await;
            match permit {
                Ok(Ok(permit)) => return permit.map_err(|_| CallError::Closing),
                Ok(Err(_)) => return Err(CallError::ProcessesInUse { limit: self.max_processes, after }),
                // Ended processes release their permits in a moment.
                Err(_) if self.leaving.load(Ordering::Relaxed) >= self.waiting.load(Ordering::Relaxed) => {}
                Err(_) => self.eviction_request.notify_one(),
            }
        }
    }

    /// Waits until one more process may be started.
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
                        DelayReason::Failing => "its process ended repeatedly".to_owned(),
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

    /// Logs that a further process will run, and why: each costs as much as the server does.
    fn log_additional_process(&self, caller: &CallerIdentity) {
        let (running, is_one_like_these) = self.table.running(caller);
        let processes = running.saturating_sub(self.leaving.load(Ordering::Relaxed)) + 1;
        if processes < 2 {
            return;
        }
        let why = match self.command.instances {
            ProcessSharing::PerCaller => "each caller has its own",
            ProcessSharing::Shared(_) if is_one_like_these => {
                "calls that accept input requests take turns, or a task uses the other process"
            }
            ProcessSharing::Shared(_) => "its callers declare other capabilities than the others",
        };
        let remedy = match self.command.instances {
            ProcessSharing::PerCaller => "upstream.instances: { per: caller } says so; a number shares them",
            ProcessSharing::Shared(_) => {
                "upstream.instances (--instances) is the most there may be; 1 keeps it at one"
            }
        };
        ServerProcessAdded { route: &self.route, processes, why, remedy }.emit();
    }

    /// Adds the last line on standard error to the error of a failed start, if callers may see it.
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
        request: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, ProcessSession), CallError> {
        self.verdict.check(self.clock.now())?;
        let permit = self.acquire_permit().await?;
        self.wait_to_start(caller.principal).await?;
        let ends = (self.spawn)(&self.command).map_err(|error| {
            let now = self.clock.now();
            self.starts.lock().record_failure(now, caller.principal, now, Duration::ZERO);
            CallError::Unreachable(format!("its process cannot be started: {error}"))
        })?;
        self.log_additional_process(caller);
        let entry = self.table.register(caller.clone(), self.clock.timestamp());
        let (route, starts) = (self.route.clone(), (self.starts.clone(), caller.principal));
        let permit = ProcessPermit { permit, leaving: self.leaving.clone() };
        let (child, stdout) = ChildProcess::manage(ends, route, starts, entry, permit, &self.work);
        let life = child.state().clone();
        let config = self.config.clone();
        let (hinted, work) = (self.version_hint_given.clone(), self.work.clone());
        let mut output = OutputReader::new(self.route.clone(), stdout, config, hinted, life.clone(), work);
        let welcomed = timeout(self.command.start_timeout, initialize(&child, &mut output, request)).await;
        let started = welcomed.unwrap_or_else(|_| {
            let limit = self.command.start_timeout;
            Limit::StartTimeout.record_hit();
            let hint = if output.omits_version {
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
        let pipe = ProcessSession { child, output: Mutex::new(Some(output)), lost: OnceLock::new() };
        Ok((description, pipe))
    }
}

impl Transport for ProcessTransport {
    type Line = ProcessSession;

    const IS_COSTLY: bool = true;
    const BOUND: &'static str = "callers that accept input requests take turns in a process";
    /// Closing, SIGTERM and SIGKILL take their time.
    const FAREWELL: Duration = Duration::from_secs(6);

    /// One session for the calls of a pool, which take turns if necessary, and the other processes for its
    /// tasks.
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
        request: &mut InitializeRequest,
    ) -> Result<(UpstreamDescription, ProcessSession), CallError> {
        let begun = self.start(caller, request).await;
        // Without a permit, no start was attempted.
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

    /// A process has no headers that would distinguish callers, and clients may share it.
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

// === impl WaiterCount ===

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

// === impl ProcessSession ===

impl transport::TransportSession for ProcessSession {
    /// Guard of the pending call, or the error of writing it; boxed, to keep a waiting call small.
    type Answer = Result<PendingCallGuard, Box<CallError>>;

    /// A call that is dropped before the process has read it is followed by its cancellation.
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

    async fn listen(self: Arc<Self>, mut deliver: impl FnMut(SessionEvent) + Send) {
        let output = self.output.lock().take();
        let mut output = output.expect("it is listened to once");
        deliver(SessionEvent::Settled);
        let life = self.child.state();
        loop {
            tokio::select! {
                biased;
                event = output.next() => match event {
                    Some(event) => deliver(event),
                    None => break,
                },
                () = life.wait_ended() => {
                    // The last output may still be in the pipe; descendants that keep it open are not read
                    // on.
                    let rest = async { while let Some(event) = output.next().await { deliver(event) } };
                    let _ = timeout(LAST_WORDS, rest).await;
                    break;
                }
            }
        }
        let _ = timeout(STATUS, life.wait_ended()).await;
        life.fail("it closed its standard output");
        let how = match output.lines.is_within() {
            true => format!("{}, in the middle of a message", life.end_reason()),
            false => life.end_reason().to_owned(),
        };
        let _ = self.lost.set(CallError::Exited(how));
        deliver(SessionEvent::Ended);
    }

    fn loss_error(&self) -> CallError {
        self.lost.get().cloned().unwrap_or(CallError::SessionEnded)
    }

    async fn close(&self) {
        self.child.end().await;
    }
}

// === impl OutputReader ===

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

    /// Next event; `None` at the end of the output. Cancel-safe.
    async fn next(&mut self) -> Option<SessionEvent> {
        loop {
            // A read may contain millions of messages, and other tasks of this thread have calls.
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
                Some(OutputLine::TooLong { answers: None }) => {
                    self.skip(&"a line above limits.result_bytes", b"");
                }
                None => match self.stdout.read(&mut self.read).await {
                    Ok(count @ 1..) => self.left = 0..count,
                    Ok(0) | Err(_) => return None,
                },
            }
        }
    }

    /// Skips JSON that does not declare JSON-RPC 2.0: programs that log to standard output write `error`,
    /// `method` and `id`, too.
    fn skip_unversioned(&mut self, frame: &Frame) {
        self.skip(&NO_VERSION, frame.as_bytes());
        if is_likely_message(frame) {
            self.omits_version = true;
            if !self.is_hinted.swap(true, Ordering::Relaxed) {
                ServerOmitsVersion { route: &self.route }.emit();
            }
        }
    }

    /// Logs a skipped line: usually other output of a program.
    fn skip(&mut self, why: &dyn Display, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
        ServerOutputSkipped { route: &self.route, why: &why.to_string(), line: &line }.emit();
    }
}

/// Whether an object without JSON-RPC 2.0 looks like a message, by its ids and methods.
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
    /// Continues to read the output until nothing of the process is left, so that it does not write to a
    /// closed pipe; the output is dropped.
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
