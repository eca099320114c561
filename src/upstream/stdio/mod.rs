//! Stdio servers (2025-11-25, *Transports, stdio*), as a [`Transport`].
//!
//! A session is a process: `command` describes its start, `child` is one process from start to end,
//! `supervisor` watches it from outside the proxy. `lines` splits its output, `message_line` writes its
//! input, `stderr` collects its standard error, `process_registry` lists all processes for operators,
//! `modern_only` remembers a server that cannot be used, `start_limiter` decides when a process may be started again. The manual's
//! page is [`processes`](crate::manual::processes).
//!
//! A process is costly and cannot distinguish callers: all callers with the same capabilities share one,
//! until the server sends a request that names no call ([`SessionKind::Process`]). Begin with the `Transport`
//! implementation in this file.

mod child;
mod command;
pub mod lines;
mod message_line;
mod modern_only;
mod process_registry;
mod start_limiter;
mod stderr;
mod supervisor;
#[cfg(test)]
mod tests;

pub use command::{
    DEFAULT_MAX_PROCESSES, EnvInheritance, EnvVariables, OWN_PREFIX, ProcessSharing, ServerCommand, StartMode,
};
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
    ApplyReload, CallError, CallerIdentity, Config, ProcessTable, Upstream, UpstreamLimits,
    UpstreamSetupError,
    background::BackgroundTasks,
    legacy::LegacyUpstream,
    transport::{
        self, CallEvent, CallProgress, HandshakeChannel, HandshakeEvent, IdleRounds, RetryOnLoss,
        SessionEvent, SessionKind, Transport,
    },
};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::{Frame, Kind, MessageReader, Method, splice::JsonObject},
    runtime::{Clock, Mutex, Network, SwapCell, SystemClock},
    telemetry::{
        Limit, ServerNotStarted, ServerOmitsVersion, ServerOutputSkipped, ServerProcessAdded, metrics,
    },
};
#[cfg(test)]
use child::ProcessIo;
use child::{ChildProcess, ProcessPermit, ProcessState, SpawnFn};
use lines::{OutputLine, OutputLines, answered_call};
use modern_only::ModernOnlyCache;
use process_registry::{PendingCallGuard, ProcessRegistry};
use start_limiter::{DelayReason, MAX_STARTS, StartDecision, StartLimiter};

/// An [`Upstream`] for a legacy server that the proxy starts as a process.
pub type StdioUpstream = LegacyUpstream<ProcessTransport>;

/// Stdio transport: starts the processes of one server.
pub struct ProcessTransport {
    /// Route of the server, its name for operators.
    route: Arc<str>,
    command: ServerCommand,
    config: SwapCell<Config>,
    spawn: SpawnFn,
    /// Locked for a few statements only.
    start_limiter: Arc<Mutex<StartLimiter>>,
    modern_only: ModernOnlyCache,
    /// Outcome of the last start of a process, with the reason of its failure; `None` before the first.
    last_start: Mutex<Option<Result<(), Arc<str>>>>,
    registry: Arc<ProcessRegistry>,
    /// Whether a log message has said that the server omits `"jsonrpc":"2.0"` from its messages.
    has_logged_version: Arc<AtomicBool>,
    /// One permit for each process.
    permits: Arc<Semaphore>,
    max_processes: usize,
    /// Number of ended or ending processes that still hold a permit.
    releasing: Arc<AtomicUsize>,
    /// Number of callers that wait for a permit.
    waiting: AtomicUsize,
    /// Notified when a caller waits for a permit: an unused process should be evicted.
    eviction_request: Notify,
    /// Notified when no process can be evicted for a waiting caller.
    eviction_failure: Notify,
    /// Credentials in the identity of a process: none.
    credentials: Credentials,
    clock: SystemClock,
    work: BackgroundTasks,
}

/// Counts a caller that waits for a permit, until dropped.
struct WaiterCount<'a>(&'a AtomicUsize);

/// A started process whose handshake is not complete.
pub struct ProcessChannel {
    transport: Arc<ProcessTransport>,
    child: ChildProcess,
    output: OutputReader,
    /// The last request.
    method: &'static str,
}

/// A session of a stdio server: one process.
pub struct ProcessSession {
    child: ChildProcess,
    /// Reader of the output; taken by `listen`.
    output: Mutex<Option<OutputReader>>,
    /// Reason why no more messages will arrive; set at the end of the output.
    loss: OnceLock<CallError>,
}

/// Reads the messages of a process from its standard output.
struct OutputReader {
    route: Arc<str>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: OutputLines,
    config: SwapCell<Config>,
    buffer: Box<[u8]>,
    /// Part of the buffer that is not parsed yet.
    unparsed: std::ops::Range<usize>,
    /// Messages that remain of a line: batches (2025-03-26).
    messages: MessageReader,
    /// Whether a line was skipped that would be a message if it declared JSON-RPC 2.0.
    omits_version: bool,
    /// Whether a log message has said so for this server.
    has_logged_version: Arc<AtomicBool>,
    process: Arc<ProcessState>,
    work: BackgroundTasks,
}

/// Reason for skipping a line that has the members of a message.
const NO_VERSION_REASON: &str = r#"it has no "jsonrpc":"2.0""#;
/// Bytes read from the output at a time: usually all that a pipe holds.
const READ_BYTES: usize = 64 << 10;
/// Interval of the eviction requests while a caller waits for a permit.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);
/// Limit of an invalid line in the log, in bytes; of a line on standard error in an error, in characters.
const MAX_SHOWN: usize = 200;
/// Time limit of reading the last output of an ended process.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);
/// Time limit of the wait for the end of a process that has closed its output or does not read its input. On
/// a busy machine the supervisor runs late. A process that continues without output is rare, and is ended
/// after this time.
const STATUS: Duration = Duration::from_secs(2);

// === impl StdioUpstream ===

impl StdioUpstream {
    /// Creates an upstream for a route, whose processes are started with this command. Starts fail on a
    /// simulated network.
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
        Self::with_spawn(spawn, route, command, config, net)
    }

    fn with_spawn(
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
            let upstream = server.clone();
            work.spawn(async move {
                let anonymous = CallerIdentity::of_principal(Principal::ANONYMOUS);
                // The error is logged when the start fails.
                let _ = upstream.describe(&anonymous).await;
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
        let max_processes = match command.instances {
            ProcessSharing::Shared(limit) => limit.max(1),
            ProcessSharing::PerCaller => command::MAX_PROCESSES_PER_CALLER,
        };
        Self {
            route: route.into(),
            command,
            config: config.into(),
            spawn,
            start_limiter: Arc::default(),
            modern_only: ModernOnlyCache::default(),
            last_start: Mutex::default(),
            registry: Arc::default(),
            has_logged_version: Arc::default(),
            permits: Arc::new(Semaphore::new(max_processes.min(Semaphore::MAX_PERMITS))),
            max_processes,
            releasing: Arc::default(),
            waiting: AtomicUsize::new(0),
            eviction_request: Notify::new(),
            eviction_failure: Notify::new(),
            credentials: Credentials::default(),
            clock: SystemClock::new(),
            work,
        }
    }

    /// Waits for a permit to start a process. Requests the eviction of an unused process repeatedly, because
    /// a process may become unused later.
    async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let time_limit = self.config.load().timeouts.queue;
        let _waiter = WaiterCount::new(&self.waiting);
        let mut acquiring = pin!(timeout(time_limit, self.permits.clone().acquire_owned()));
        loop {
            let permit = timeout(EVICTION_INTERVAL, &mut acquiring).await;
            match permit {
                Ok(Ok(permit)) => return permit.map_err(|_| CallError::Closing),
                Ok(Err(_)) => {
                    return Err(CallError::ProcessesInUse { limit: self.max_processes, after: time_limit });
                }
                // Ended processes release their permits soon.
                Err(_) if self.releasing.load(Ordering::Relaxed) >= self.waiting.load(Ordering::Relaxed) => {}
                Err(_) => self.eviction_request.notify_one(),
            }
        }
    }

    /// Waits until one more process may be started for this caller.
    async fn wait_to_start(&self, caller: Principal) -> Result<(), CallError> {
        loop {
            let now = self.clock.now();
            let decision = self.start_limiter.lock().request_start(now, caller);
            match decision {
                StartDecision::Now { is_replacement } => {
                    if is_replacement {
                        metrics::record_child_restart(&self.route);
                    }
                    return Ok(());
                }
                StartDecision::At(time) => sleep_until(time.into()).await,
                StartDecision::NotBefore(time, reason) => {
                    let wait = (time - now).as_secs() + 1;
                    let reason = match reason {
                        DelayReason::Failing => "its process ended repeatedly".to_owned(),
                        DelayReason::BudgetSpent => {
                            format!("{MAX_STARTS} of its processes were started within a minute")
                        }
                    };
                    let text = format!("{reason}, and it is not started for {wait} s");
                    return Err(CallError::Unreachable(text));
                }
            }
        }
    }

    /// Logs that a further process of the server will run, and why: each costs as much as the server does.
    fn log_additional_process(&self, caller: &CallerIdentity) {
        let (running, has_same_set) = self.registry.running(caller);
        let processes = running.saturating_sub(self.releasing.load(Ordering::Relaxed)) + 1;
        if processes < 2 {
            return;
        }
        let why = match self.command.instances {
            ProcessSharing::PerCaller => "each caller has its own",
            ProcessSharing::Shared(_) if has_same_set => {
                "clients that accept input requests have a process each once the server has sent one"
            }
            ProcessSharing::Shared(_) => "its callers declare other capabilities than the others",
        };
        let remedy = match self.command.instances {
            ProcessSharing::PerCaller => "upstream.instances: { per: caller } says so; a number shares them",
            ProcessSharing::Shared(_) => "upstream.instances (--instances) is the limit; 1 keeps it at one",
        };
        ServerProcessAdded { route: &self.route, processes, why, remedy }.emit();
    }

    /// Adds the last line on standard error to the error of a failed start, if callers may see that line.
    async fn with_stderr_line(&self, error: CallError, process: &ProcessState) -> CallError {
        match error {
            CallError::Unreachable(reason) if self.command.reveals_stderr => {
                match process.latest_stderr_line().await {
                    Some(line) => {
                        let line: String = line.chars().take(MAX_SHOWN).collect();
                        CallError::Unreachable(format!("{reason}; its last line on standard error: {line}"))
                    }
                    None => CallError::Unreachable(reason),
                }
            }
            error => error,
        }
    }

    /// Starts a process.
    async fn start(self: &Arc<Self>, caller: &CallerIdentity) -> Result<ProcessChannel, CallError> {
        self.modern_only.check(self.clock.now())?;
        let permit = self.acquire_permit().await?;
        self.wait_to_start(caller.principal).await?;
        let io = (self.spawn)(&self.command).map_err(|error| {
            let now = self.clock.now();
            self.start_limiter.lock().record_failure(now, caller.principal, now, Duration::ZERO);
            CallError::Unreachable(format!("its process cannot be started: {error}"))
        })?;
        self.log_additional_process(caller);
        let entry = self.registry.register(caller.clone(), self.clock.timestamp());
        let (route, start_limiter) = (self.route.clone(), (self.start_limiter.clone(), caller.principal));
        let permit = ProcessPermit { permit, releasing: self.releasing.clone() };
        let (child, stdout) = ChildProcess::manage(io, route, start_limiter, entry, permit, &self.work);
        let process = child.state().clone();
        let config = self.config.clone();
        let (has_logged_version, work) = (self.has_logged_version.clone(), self.work.clone());
        let output = OutputReader::new(self.route.clone(), stdout, config, has_logged_version, process, work);
        Ok(ProcessChannel { transport: Arc::clone(self), child, output, method: "" })
    }

    /// Records whether a process was started and completed its handshake.
    fn record_start(&self, started: Result<(), &CallError>) {
        // Without a permit, no start was attempted.
        if !matches!(started, Err(CallError::ProcessesInUse { .. } | CallError::Closing)) {
            *self.last_start.lock() = Some(started.map_err(|error| error.to_string().into()));
        }
        if let Err(error) = started {
            ServerNotStarted { route: &self.route, program: self.command.program(), error }.emit();
        }
    }
}

impl Transport for ProcessTransport {
    type Session = ProcessSession;
    type Channel = ProcessChannel;

    const SESSIONS: SessionKind = SessionKind::Process;
    const SESSION_LIMIT_REASON: &'static str = "upstream.instances";
    /// Closing the input, SIGTERM and SIGKILL each take their time.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

    fn is_local(&self) -> bool {
        self.command.reveals_stderr
    }

    /// A pool may use all processes, for calls and tasks alike.
    fn limits(&self, limits: UpstreamLimits) -> UpstreamLimits {
        UpstreamLimits {
            sessions: self.max_processes,
            task_sessions: 0,
            identities: self.max_processes,
            ..limits
        }
    }

    fn prepare_reload(self: &Arc<Self>, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let (transport, config) = (Arc::clone(self), config.clone());
        Ok(Box::new(move || transport.config.set(config)))
    }

    async fn open(self: &Arc<Self>, caller: &CallerIdentity) -> Result<ProcessChannel, CallError> {
        self.start(caller).await.inspect_err(|error| self.record_start(Err(error)))
    }

    fn idle_rounds(&self) -> IdleRounds {
        let Some(idle) = self.command.idle else {
            return IdleRounds {
                list_session: u32::MAX,
                other_sessions: IdleRounds::default().other_sessions,
            };
        };
        let lists = u32::try_from(idle.as_secs().div_ceil(60)).unwrap_or(u32::MAX).max(1);
        IdleRounds { list_session: lists, other_sessions: lists.min(IdleRounds::default().other_sessions) }
    }

    fn last_attempt(&self) -> Option<Result<(), Arc<str>>> {
        self.last_start.lock().clone()
    }

    fn processes(&self) -> Option<ProcessTable> {
        Some(self.registry.snapshot())
    }

    async fn eviction_requested(&self) {
        self.eviction_request.notified().await;
    }

    fn waiters(&self) -> usize {
        self.waiting.load(Ordering::Relaxed).saturating_sub(self.releasing.load(Ordering::Relaxed))
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
    /// Counts one more waiter.
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ProcessChannel ===

impl HandshakeChannel for ProcessChannel {
    type Session = ProcessSession;

    const CAN_PROBE: bool = true;

    fn time_limit(&self) -> Duration {
        self.transport.command.start_timeout
    }

    fn timeout_error(&self, method: &str) -> CallError {
        let limit = self.time_limit();
        Limit::StartTimeout.record_hit();
        let hint = if self.output.omits_version {
            "; it wrote JSON without \"jsonrpc\":\"2.0\", which is no message"
        } else {
            ""
        };
        CallError::Unreachable(format!(
            "its process did not answer `{method}` within {limit:?} (upstream.start_timeout){hint}"
        ))
    }

    fn send(&mut self, method: &'static str, body: Bytes) -> Result<(), CallError> {
        self.method = method;
        self.child.write(body)
    }

    async fn receive(&mut self) -> Result<HandshakeEvent, CallError> {
        while let Some(event) = self.output.next().await {
            if let SessionEvent::Message(frame) = event {
                return Ok(HandshakeEvent::Message(frame));
            }
        }
        let _ = timeout(STATUS, self.child.state().wait_ended()).await;
        let (method, end_reason) = (self.method, self.child.state().end_reason());
        let reason = format!("its process ended before it answered `{method}`: {end_reason}");
        Err(CallError::Unreachable(reason))
    }

    fn into_session(self, _: &str) -> Result<ProcessSession, CallError> {
        let Self { transport, child, output, .. } = self;
        transport.record_start(Ok(()));
        Ok(ProcessSession { child, output: Mutex::new(Some(output)), loss: OnceLock::new() })
    }

    async fn abandon(self, error: CallError) -> CallError {
        let Self { transport, child, output, .. } = self;
        let process = child.state().clone();
        transport.modern_only.remember(transport.clock.now(), &error);
        process.record_failed_start();
        let error = transport.with_stderr_line(error, &process).await;
        drop((output, child));
        transport.record_start(Err(&error));
        error
    }
}

// === impl ProcessSession ===

impl transport::TransportSession for ProcessSession {
    /// Guard of the pending call, or the error of queuing it; boxed, to keep a waiting call small.
    type CallHandle = Result<PendingCallGuard, Box<CallError>>;

    /// Queues the call. If the call is dropped before the process has read it, its cancellation follows in
    /// the queue.
    fn send_call(&self, body: Bytes, _: &HeaderMap) -> Self::CallHandle {
        self.child.call(body).map_err(Box::new)
    }

    fn poll_call(
        self: &Arc<Self>,
        handle: &mut Self::CallHandle,
        _: u64,
        _: &mut Context<'_>,
    ) -> Poll<CallEvent> {
        Poll::Ready(match handle {
            Ok(_) => CallEvent::AnsweredOffStream,
            Err(error) if matches!(**error, CallError::Unreachable(_)) => {
                CallEvent::SessionGone(CallError::clone(error))
            }
            Err(error) => CallEvent::Lost(CallError::clone(error)),
        })
    }

    fn progress(handle: &mut Self::CallHandle) -> CallProgress {
        if handle.is_ok() { CallProgress::Sent } else { CallProgress::Unsent }
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
        let process = self.child.state();
        loop {
            tokio::select! {
                biased;
                event = output.next() => match event {
                    Some(event) => deliver(event),
                    None => break,
                },
                () = process.wait_ended() => {
                    // The last output may still be in the pipe. Output of descendants that keep the pipe open
                    // is not awaited.
                    let last_output = async { while let Some(event) = output.next().await { deliver(event) } };
                    let _ = timeout(LAST_OUTPUT_TIMEOUT, last_output).await;
                    break;
                }
            }
        }
        let _ = timeout(STATUS, process.wait_ended()).await;
        process.fail("it closed its standard output");
        let status = match output.lines.has_partial_line() {
            true => format!("{}, in the middle of a message", process.end_reason()),
            false => process.end_reason().to_owned(),
        };
        let _ = self.loss.set(CallError::Exited(status));
        deliver(SessionEvent::Ended);
    }

    fn loss_error(&self) -> CallError {
        self.loss.get().cloned().unwrap_or(CallError::SessionEnded)
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
        has_logged_version: Arc<AtomicBool>,
        process: Arc<ProcessState>,
        work: BackgroundTasks,
    ) -> Self {
        Self {
            route,
            stdout,
            lines: OutputLines::default(),
            config,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            unparsed: 0..0,
            messages: MessageReader::default(),
            omits_version: false,
            has_logged_version,
            process,
            work,
        }
    }

    /// Next event of the session; `None` at the end of the output. Cancel-safe.
    async fn next(&mut self) -> Option<SessionEvent> {
        loop {
            // A read may contain millions of messages, and other tasks of this thread must run as well.
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
            let mut input = &self.buffer[self.unparsed.clone()];
            let line = self.lines.next(&mut input, self.config.load().limits.result_bytes);
            self.unparsed.start = self.unparsed.end - input.len();
            match line {
                Some(OutputLine::Whole(line)) => self.messages = MessageReader::new(line),
                Some(OutputLine::TooLong { answers: Some(call) }) => {
                    return Some(SessionEvent::TooLarge(call));
                }
                Some(OutputLine::TooLong { answers: None }) => {
                    self.skip(&"a line above limits.result_bytes", b"");
                }
                None => match self.stdout.read(&mut self.buffer).await {
                    Ok(count @ 1..) => self.unparsed = 0..count,
                    Ok(0) | Err(_) => return None,
                },
            }
        }
    }

    /// Skips a JSON object that does not declare JSON-RPC 2.0: programs that log to standard output also
    /// write objects with `error`, `method` and `id`.
    fn skip_unversioned(&mut self, frame: &Frame) {
        self.skip(&NO_VERSION_REASON, frame.as_bytes());
        if is_likely_message(frame) {
            self.omits_version = true;
            if !self.has_logged_version.swap(true, Ordering::Relaxed) {
                ServerOmitsVersion { route: &self.route }.emit();
            }
        }
    }

    /// Logs a skipped line, which is usually other output of a program.
    fn skip(&mut self, reason: &dyn Display, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]);
        ServerOutputSkipped { route: &self.route, why: &reason.to_string(), line: &line }.emit();
    }
}

/// Whether an object without `"jsonrpc":"2.0"` looks like a message, by its ids and methods.
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
    /// Continues to read the output in the background until none of the processes is left, so that they do
    /// not write to a closed pipe. The output is dropped.
    fn drop(&mut self) {
        let mut stdout = mem::replace(&mut self.stdout, Box::new(tokio::io::empty()));
        let (mut buffer, process) = (mem::take(&mut self.buffer), self.process.clone());
        self.work.spawn(async move {
            let reading = async { while let Ok(1..) = stdout.read(&mut buffer).await {} };
            tokio::select! {
                () = reading => {}
                () = process.wait_all_gone() => {}
            }
        });
    }
}
