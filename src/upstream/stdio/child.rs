//! One process of a server, from its start until none of its descendants is left.
//!
//! A [`ChildProcess`] is the handle: it writes messages and ends the process. A background task owns the
//! pipes and the supervisor, and outlives the handle: it writes, logs standard error, and ends the process by
//! closing its input, then with SIGTERM to its process group, then with SIGKILL to everything that the
//! process has started.

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    pin::pin,
    process::Stdio,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines, ReadHalf,
        split,
    },
    net::unix::pipe,
    sync::{
        OwnedSemaphorePermit,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::yield_now,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    STATUS,
    command::ServerCommand,
    message_line::{MessageLine, MessagePipe},
    process_registry::{PendingCallGuard, RegistryEntry},
    start_limiter::StartLimiter,
    stderr::StderrLines,
    supervisor::{self, SupervisorReport, TERMINATE},
};
use crate::{
    dialect::Principal,
    runtime::{Clock, Mutex, PollOnWake, SystemClock},
    telemetry::{ServerProcessEnded, ServerStderrLine},
    upstream::{CallError, background::BackgroundTasks},
};

/// Streams of a started process. Boxed, so that a test can play the process.
pub struct ProcessIo {
    /// Standard input of the process.
    pub stdin: MessagePipe,
    /// Standard output of the process.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Standard error of the process.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Socket to the supervisor.
    pub control: Box<dyn ControlSocket>,
    /// Resolves when the supervisor has been reaped; `true` if a signal killed it.
    pub reaped: BoxFuture<'static, bool>,
}

/// Socket between the proxy and a supervisor.
pub trait ControlSocket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> ControlSocket for C {}

/// Permit of one process, out of the limited number of processes of its server.
pub struct ProcessPermit {
    pub permit: OwnedSemaphorePermit,
    /// Number of processes that are about to release their permits.
    pub releasing: Arc<AtomicUsize>,
}

/// Function that starts a process of this command.
pub type SpawnFn = Box<dyn Fn(&ServerCommand) -> io::Result<ProcessIo> + Send + Sync>;

/// Handle of one process. Dropping it ends the process.
pub struct ChildProcess {
    queue: UnboundedSender<MessageLine>,
    state: Arc<ProcessState>,
}

/// State of a process, shared by its handle and its background task.
pub struct ProcessState {
    route: Arc<str>,
    clock: SystemClock,
    started: Instant,
    start_limiter: Arc<Mutex<StartLimiter>>,
    /// Principal for which the process was started.
    caller: Principal,
    /// Number of the server's processes that are about to release their permits.
    releasing: Arc<AtomicUsize>,
    entry: RegistryEntry,
    backlog: WriteBacklog,
    /// Cancelled to request the end of the process.
    end_requested: CancellationToken,
    /// Whether the end of the process was requested or has happened: readable without a lock for each call.
    /// Such a process is counted in `releasing`.
    is_ending: AtomicBool,
    /// Pid of the command, which is also the id of its process group.
    command_pid: OnceLock<Pid>,
    end: OnceLock<ProcessEnd>,
    /// Cancelled when the process has ended or cannot continue.
    ended: CancellationToken,
    /// Cancelled when none of its processes is left.
    all_gone: CancellationToken,
    /// Latest line on standard error; empty if there is none.
    latest_stderr_line: Mutex<String>,
    /// Cancelled when standard error has ended.
    stderr_ended: CancellationToken,
    /// Whether the outcome of the start has been recorded in the limiter.
    is_start_recorded: AtomicBool,
}

#[derive(Debug)]
struct ProcessEnd {
    /// Reason of the end, as text.
    reason: String,
    /// Whether the proxy requested the end.
    is_requested: bool,
}

/// Reader of the supervisor's reports on a process.
struct ReportReader {
    lines: Lines<BufReader<ReadHalf<Box<dyn ControlSocket>>>>,
    /// Whether the command has ended or did not start.
    has_command_ended: bool,
}

/// Messages waiting to be written to a process.
#[derive(Debug, Default)]
struct WriteBacklog {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

/// Limit of messages waiting for one process. Each costs its bytes. Greater than the default number of
/// admitted calls (`limits.calls`), because a burst of calls, or calls that wait for a start, do not show
/// that the process has stopped reading.
pub(super) const MAX_WAITING_MESSAGES: usize = 16 << 10;
/// Limit of the bytes of messages waiting for one process. A single message may be larger: client requests
/// have a limit of their own.
pub(super) const MAX_WAITING_BYTES: usize = 16 << 20;
/// Time from closing the input to SIGTERM.
const SIGTERM_DELAY: Duration = Duration::from_secs(2);
/// Time from SIGTERM to SIGKILL for the process and all its descendants.
const SIGKILL_DELAY: Duration = Duration::from_secs(2);
/// Time for which descendants may outlive the process.
const DESCENDANTS_GRACE: Duration = Duration::from_secs(1);
/// Time limit of the wait for killed processes: the system may be unable to end them.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of reading the last lines on standard error after the process has ended.
const STDERR_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes read from standard error at a time.
pub const STDERR_READ_BYTES: usize = 8 << 10;

/// Starts a process of this command under a supervisor.
///
/// # Errors
/// Errors of the system.
pub fn spawn(command: &ServerCommand) -> io::Result<ProcessIo> {
    let (proxy_socket, supervisor_socket) = UnixStream::pair()?;
    let (child_stdin, stdin) = io::pipe()?;
    let (stdout, child_stdout) = io::pipe()?;
    supervisor::send_stdio(&proxy_socket, [child_stdin.as_fd(), child_stdout.as_fd()])?;
    let mut supervisor_command = std::process::Command::new(command.supervisor());
    supervisor_command.arg0(env!("CARGO_PKG_NAME")).args(["supervise", "--"]).args(&command.words);
    supervisor_command.env_clear().envs(command.environment());
    // In a process group of its own: Ctrl-C in a terminal is for the proxy, which ends the process.
    supervisor_command
        .stdin(OwnedFd::from(supervisor_socket))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(folder) = &command.folder {
        supervisor_command.current_dir(folder);
    }
    let mut supervisor = tokio::process::Command::from(supervisor_command).spawn()?;
    proxy_socket.set_nonblocking(true)?;
    Ok(ProcessIo {
        stdin: MessagePipe::new(pipe::Sender::from_owned_fd(stdin.into())?),
        stdout: Box::new(pipe::Receiver::from_owned_fd(stdout.into())?),
        stderr: Box::new(supervisor.stderr.take().expect("it is piped")),
        control: Box::new(tokio::net::UnixStream::from_std(proxy_socket)?),
        reaped: async move { supervisor.wait().await.is_ok_and(|status| status.code().is_none()) }.boxed(),
    })
}

// === impl ChildProcess ===

impl ChildProcess {
    /// Manages a started process in a background task. Returns the handle and the standard output of the
    /// process. The permit is released when all its processes are gone and it has been removed from the
    /// registry.
    pub fn manage(
        io: ProcessIo,
        route: Arc<str>,
        (start_limiter, caller): (Arc<Mutex<StartLimiter>>, Principal),
        entry: RegistryEntry,
        permit: ProcessPermit,
        work: &BackgroundTasks,
    ) -> (Self, Box<dyn AsyncRead + Send + Unpin>) {
        let ProcessIo { stdin, stdout, stderr, control, reaped } = io;
        let ProcessPermit { permit, releasing } = permit;
        let clock = SystemClock::new();
        let (queue, queued) = unbounded_channel();
        let state = Arc::new(ProcessState {
            route,
            started: clock.now(),
            clock,
            start_limiter,
            caller,
            releasing,
            entry,
            backlog: WriteBacklog::default(),
            end_requested: CancellationToken::new(),
            is_ending: AtomicBool::new(false),
            command_pid: OnceLock::new(),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
            all_gone: CancellationToken::new(),
            latest_stderr_line: Mutex::default(),
            stderr_ended: CancellationToken::new(),
            is_start_recorded: AtomicBool::new(false),
        });
        let task_state = state.clone();
        work.spawn(async move {
            task_state.run(stdin, queued, stderr, control).await;
            if timeout(KILL_TIMEOUT, reaped).await == Ok(true) {
                task_state.kill_group();
            }
            task_state.all_gone.cancel();
            task_state.mark_ending();
            task_state.releasing.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
        let child = Self { queue, state };
        (child, stdout)
    }

    /// State of the process.
    pub fn state(&self) -> &Arc<ProcessState> {
        &self.state
    }

    /// Queues a message for writing.
    ///
    /// # Errors
    /// [`CallError::InputBacklogFull`] if too many messages are waiting; [`CallError::Unreachable`] if the
    /// process has ended.
    pub fn write(&self, message: Bytes) -> Result<(), CallError> {
        if self.state.is_ending.load(Ordering::Relaxed) {
            return Err(CallError::Unreachable(format!(
                "its process has ended: {}",
                self.state.end_reason()
            )));
        }
        let line = MessageLine::from_message(message);
        let length = line.len();
        self.state.backlog.reserve(length)?;
        self.queue.send(line).map_err(|_| {
            self.state.backlog.remove(1, length);
            CallError::Unreachable("its process has closed its input".to_owned())
        })
    }

    /// Queues a call for writing. The call counts as pending until the guard is dropped.
    ///
    /// # Errors
    /// As [`ChildProcess::write`].
    pub fn call(&self, message: Bytes) -> Result<PendingCallGuard, CallError> {
        self.write(message)?;
        Ok(self.state.entry.begin_call())
    }

    /// Ends the process. Resolves when none of its processes is left.
    pub async fn end(&self) {
        self.state.request_end();
        self.state.wait_all_gone().await;
    }
}

impl Drop for ChildProcess {
    /// Ends the process when its handle is dropped.
    fn drop(&mut self) {
        self.state.request_end();
    }
}

// === impl ProcessState ===

impl ProcessState {
    /// Resolves when the process has ended or cannot continue.
    pub async fn wait_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Resolves when none of its processes is left.
    pub async fn wait_all_gone(&self) {
        self.all_gone.cancelled().await;
    }

    /// Reason of the end, as text; a placeholder if the process has not ended yet.
    pub fn end_reason(&self) -> &str {
        self.end.get().map_or("it is being ended", |end| &end.reason)
    }

    /// Ends the process, because it cannot continue, and records the reason.
    pub fn fail(&self, reason: &str) {
        self.record_end(reason);
        self.request_end();
    }

    /// Requests the end of the process.
    fn request_end(&self) {
        self.mark_ending();
        self.end_requested.cancel();
    }

    /// Marks that the process is about to release its permit.
    fn mark_ending(&self) {
        if !self.is_ending.swap(true, Ordering::Relaxed) {
            self.releasing.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Kills the command's process group after the supervisor was killed. Processes that have left the group
    /// are out of reach then.
    fn kill_group(&self) {
        let _ = self.command_pid.get().map(|command| kill_process_group(*command, Signal::KILL));
    }

    /// Records that the process did not complete its handshake.
    pub fn record_failed_start(&self) {
        self.record_start(|starts, now| {
            starts.record_failure(now, self.caller, self.started, Duration::ZERO)
        });
    }

    /// Records the end of the process; only the first call has an effect.
    fn record_end(&self, reason: &str) {
        let is_requested = self.end_requested.is_cancelled();
        self.record_start(|starts, now| {
            let run_time = now - self.started;
            match is_requested {
                true => starts.record_stop(self.caller, run_time),
                false => starts.record_failure(now, self.caller, self.started, run_time),
            }
        });
        let _ = self.end.set(ProcessEnd { reason: reason.to_owned(), is_requested });
        self.mark_ending();
        self.ended.cancel();
    }

    /// Records the outcome of the start, at most once, before any waiter is notified, so that the next start
    /// takes it into account.
    fn record_start(&self, record: impl FnOnce(&mut StartLimiter, Instant)) {
        if !self.is_start_recorded.swap(true, Ordering::Relaxed) {
            record(&mut self.start_limiter.lock(), self.clock.now());
        }
    }

    async fn run(
        &self,
        stdin: MessagePipe,
        queued: UnboundedReceiver<MessageLine>,
        stderr: impl AsyncRead + Unpin,
        control: Box<dyn ControlSocket>,
    ) {
        let mut stderr_lines = StderrLines::default();
        {
            let mut writing = pin!(self.write(stdin, queued).fuse());
            // Polled separately from the lines written for each call.
            let mut logging = pin!(PollOnWake::new(self.log_stderr(stderr, &mut stderr_lines).fuse()));
            let mut supervising = pin!(PollOnWake::new(self.supervise(control)));
            loop {
                tokio::select! {
                    biased;
                    () = &mut supervising => break,
                    // Before standard error: a process that never stops writing there would use up the budget
                    // of each poll.
                    () = &mut writing => {}
                    () = &mut logging => {}
                }
            }
            let _ = timeout(STDERR_TIMEOUT, logging).await;
        }
        let is_requested = self.end.get().is_some_and(|end| end.is_requested);
        let run_time = self.clock.now() - self.started;
        let last_lines = stderr_lines.last_lines();
        ServerProcessEnded {
            route: &self.route,
            exit_status: self.end_reason(),
            uptime: run_time,
            was_requested: is_requested,
            last_stderr_lines: &last_lines.join("\n"),
        }
        .emit();
        self.entry.record_end(self.clock.timestamp(), self.end_reason(), is_requested, last_lines);
    }

    /// Writes queued messages, short ones together, until the end is requested and the queue is empty. Then
    /// closes the input.
    async fn write(&self, mut stdin: MessagePipe, mut queued: UnboundedReceiver<MessageLine>) {
        let mut end_requested = pin!(PollOnWake::new(self.end_requested.cancelled()));
        loop {
            let line = tokio::select! {
                line = queued.recv() => line,
                () = &mut end_requested, if !queued.is_closed() => {
                    queued.close();
                    continue;
                }
            };
            let Some(first) = line else { return };
            if self.entry.pending_calls() > 1 {
                // Let other tasks queue their messages first: concurrent calls then share a write and a
                // wake-up of the process, each of which would cost as much as the rest of the work.
                yield_now().await;
            }
            let (taken, written) = stdin.write(first, || queued.try_recv().ok()).await;
            self.backlog.remove(taken.messages, taken.bytes);
            if let Err(error) = written {
                // A process that has ended does not read either, and its supervisor is about to report the
                // end.
                let _ = timeout(STATUS, self.ended.cancelled()).await;
                return self.fail(&format!("it reads no input any more ({error})"));
            }
        }
    }

    /// Logs the lines on standard error, and keeps the latest one.
    async fn log_stderr(&self, mut stderr: impl AsyncRead + Unpin, stderr_lines: &mut StderrLines) {
        let mut read = vec![0; STDERR_READ_BYTES];
        loop {
            // A read error counts as the end of standard error.
            let count = stderr.read(&mut read).await.unwrap_or(0);
            let mut input = &read[..count];
            let mut next = || match count {
                0 => stderr_lines.finish_line(),
                _ => stderr_lines.next(&mut input),
            };
            while let Some(line) = next() {
                ServerStderrLine { route: &self.route, line: &line }.emit();
            }
            if let Some(latest) = stderr_lines.latest() {
                let mut latest_line = self.latest_stderr_line.lock();
                if *latest_line != latest {
                    latest.clone_into(&mut latest_line);
                }
            }
            if count == 0 {
                return self.stderr_ended.cancel();
            }
            // There may always be more, and other tasks of this thread have calls.
            yield_now().await;
        }
    }

    /// Latest line on standard error; after the end of the process the last line, once that has been read.
    /// `None` if there is none.
    pub async fn latest_stderr_line(&self) -> Option<String> {
        if self.ended.is_cancelled() {
            let _ = timeout(STDERR_TIMEOUT, self.stderr_ended.cancelled()).await;
        }
        Some(self.latest_stderr_line.lock().clone()).filter(|line| !line.is_empty())
    }

    /// Supervises the process until none of its processes is left.
    async fn supervise(&self, control: Box<dyn ControlSocket>) {
        let (reports, mut orders) = split(control);
        let mut reports = ReportReader { lines: BufReader::new(reports).lines(), has_command_ended: false };
        tokio::select! {
            () = reports.wait_command_end(self) => {}
            () = self.end_requested.cancelled() => {}
        }
        let _ = timeout(SIGTERM_DELAY, reports.wait_command_end(self)).await;
        if !reports.has_command_ended {
            // A supervisor that has exited does not read this.
            let _ = orders.write_all(&[TERMINATE]).await;
            let _ = timeout(SIGKILL_DELAY, reports.wait_command_end(self)).await;
        }
        if reports.has_command_ended {
            let _ = timeout(DESCENDANTS_GRACE, reports.wait_all_gone(self)).await;
        }
        // Close the supervisor's input: the supervisor then kills everything.
        let _ = orders.shutdown().await;
        let _ = timeout(KILL_TIMEOUT, reports.wait_all_gone(self)).await;
        self.record_end("it could not be killed");
    }
}

// === impl ReportReader ===

impl ReportReader {
    /// Reads reports until the command has ended.
    async fn wait_command_end(&mut self, state: &ProcessState) {
        while !self.has_command_ended && self.read_report(state).await {}
    }

    /// Reads reports until the supervisor has exited, when nothing is left.
    async fn wait_all_gone(&mut self, state: &ProcessState) {
        while self.read_report(state).await {}
    }

    /// Reads the next report. Returns whether there was one.
    async fn read_report(&mut self, state: &ProcessState) -> bool {
        let Ok(Some(line)) = self.lines.next_line().await else {
            if !self.has_command_ended {
                self.has_command_ended = true;
                state.record_end("its supervisor was killed");
                state.kill_group();
            }
            return false;
        };
        match SupervisorReport::parse(&line) {
            Some(SupervisorReport::Started { pid }) => {
                let _ = Pid::from_raw(pid).map(|command| state.command_pid.set(command));
                state.entry.set_pid(pid);
            }
            Some(SupervisorReport::NotStarted { reason: why } | SupervisorReport::Ended { status: why }) => {
                self.has_command_ended = true;
                state.record_end(&why);
            }
            None => {}
        }
        true
    }
}

// === impl WriteBacklog ===

impl WriteBacklog {
    /// Counts a waiting message of this length.
    ///
    /// # Errors
    /// [`CallError::InputBacklogFull`] if too much is waiting.
    fn reserve(&self, bytes: usize) -> Result<(), CallError> {
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        let other_bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if lines < MAX_WAITING_MESSAGES && (other_bytes == 0 || other_bytes + bytes <= MAX_WAITING_BYTES) {
            return Ok(());
        }
        self.remove(1, bytes);
        Err(CallError::InputBacklogFull { waiting: lines })
    }

    fn remove(&self, lines: usize, bytes: usize) {
        self.lines.fetch_sub(lines, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
