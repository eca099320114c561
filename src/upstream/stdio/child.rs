//! One process of a server, from its start until nothing of it is left.
//!
//! A [`ChildProcess`] is the handle: it writes messages and ends the process. A background task owns the
//! pipes and the supervisor, and outlives the handle: it writes, logs standard error, and ends the process by
//! closing its input, then with SIGTERM to its group, then with SIGKILL to everything it has started.

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
    process_table::{PendingCallGuard, RegistryEntry},
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

/// Streams of a started process. Boxed, so that a test can be the process.
pub struct ProcessIo {
    pub stdin: MessagePipe,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Socket to the supervisor.
    pub control: Box<dyn ControlSocket>,
    /// Resolves when the supervisor has been reaped, to whether it was killed.
    pub reaped: BoxFuture<'static, bool>,
}

pub trait ControlSocket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> ControlSocket for C {}

/// Permit of a process among those of its server.
pub struct ProcessPermit {
    pub permit: OwnedSemaphorePermit,
    /// Number of processes that are about to release theirs.
    pub leaving: Arc<AtomicUsize>,
}

/// Starts a process.
pub type SpawnFn = Box<dyn Fn(&ServerCommand) -> io::Result<ProcessIo> + Send + Sync>;

/// Handle of one process.
pub struct ChildProcess {
    lines: UnboundedSender<MessageLine>,
    state: Arc<ProcessState>,
}

/// State of a process.
pub struct ProcessState {
    route: Arc<str>,
    clock: SystemClock,
    started: Instant,
    starts: Arc<Mutex<StartLimiter>>,
    /// Principal for which it was started.
    caller: Principal,
    /// Number of the server's processes that are about to release their permits.
    leaving: Arc<AtomicUsize>,
    entry: RegistryEntry,
    backlog: WriteBacklog,
    /// Cancelled when the process is to end.
    end_requested: CancellationToken,
    /// Whether the process is to end or has ended: readable without a lock for each call, and counted in
    /// `leaving`.
    is_leaving: AtomicBool,
    /// Pid of the command, which is the id of its group.
    command: OnceLock<Pid>,
    end: OnceLock<ProcessEnd>,
    /// Cancelled when the process has ended or cannot continue.
    ended: CancellationToken,
    /// Cancelled when nothing of it is left.
    gone: CancellationToken,
    /// Latest line on standard error; empty if there is none.
    latest_stderr_line: Mutex<String>,
    /// Cancelled when standard error has ended.
    stderr_ended: CancellationToken,
    /// Whether the result of its start has been counted.
    is_counted: AtomicBool,
}

#[derive(Debug)]
struct ProcessEnd {
    /// Reason, as text.
    how: String,
    /// Whether the proxy ended it.
    is_wanted: bool,
}

/// Reader of the supervisor's reports.
struct ReportReader {
    lines: Lines<BufReader<ReadHalf<Box<dyn ControlSocket>>>>,
    has_ended: bool,
}

/// Messages waiting to be written to a process.
#[derive(Debug, Default)]
struct WriteBacklog {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

/// Limit of messages waiting for one process. Each costs its bytes. Above the default number of admitted
/// calls (`limits.calls`), because a burst of calls, or calls that wait for a start, do not mean that the
/// process has stopped reading.
pub(super) const WAITING: usize = 16 << 10;
/// Limit of their bytes. A single message may be larger: client requests have a limit of their own.
pub(super) const WAITING_BYTES: usize = 16 << 20;
/// Time from closing the input to SIGTERM.
const CLOSING: Duration = Duration::from_secs(2);
/// Time from SIGTERM to SIGKILL for everything.
const TERMINATING: Duration = Duration::from_secs(2);
/// Time for which descendants may outlive the process.
const LEFT_BEHIND: Duration = Duration::from_secs(1);
/// Time limit of the wait for killed processes: the system may not be able to end them.
const KILLING: Duration = Duration::from_secs(5);
/// Time limit of reading the last lines on standard error after the end.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Bytes read from standard error at once.
pub const REMARKS: usize = 8 << 10;

/// Starts a process under its supervisor.
///
/// # Errors
/// Errors of the system.
pub fn spawn(command: &ServerCommand) -> io::Result<ProcessIo> {
    let (ours, theirs) = UnixStream::pair()?;
    let (their_input, stdin) = io::pipe()?;
    let (stdout, their_output) = io::pipe()?;
    supervisor::send_stdio(&ours, [their_input.as_fd(), their_output.as_fd()])?;
    let mut words = std::process::Command::new(command.supervisor());
    words.arg0(env!("CARGO_PKG_NAME")).args(["supervise", "--"]).args(&command.words);
    words.env_clear().envs(command.environment());
    // In a group of its own: Ctrl-C in a terminal is for the proxy, which ends the process.
    words.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    if let Some(folder) = &command.folder {
        words.current_dir(folder);
    }
    let mut supervisor = tokio::process::Command::from(words).spawn()?;
    ours.set_nonblocking(true)?;
    Ok(ProcessIo {
        stdin: MessagePipe::new(pipe::Sender::from_owned_fd(stdin.into())?),
        stdout: Box::new(pipe::Receiver::from_owned_fd(stdout.into())?),
        stderr: Box::new(supervisor.stderr.take().expect("it is piped")),
        control: Box::new(tokio::net::UnixStream::from_std(ours)?),
        reaped: async move { supervisor.wait().await.is_ok_and(|status| status.code().is_none()) }.boxed(),
    })
}

// === impl ChildProcess ===

impl ChildProcess {
    /// Manages a started process in a background task. The permit is released when nothing of the process is
    /// left and it has been removed from the registry.
    pub fn manage(
        ends: ProcessIo,
        route: Arc<str>,
        (starts, caller): (Arc<Mutex<StartLimiter>>, Principal),
        entry: RegistryEntry,
        permit: ProcessPermit,
        work: &BackgroundTasks,
    ) -> (Self, Box<dyn AsyncRead + Send + Unpin>) {
        let ProcessIo { stdin, stdout, stderr, control, reaped } = ends;
        let ProcessPermit { permit, leaving } = permit;
        let clock = SystemClock::new();
        let (lines, to_write) = unbounded_channel();
        let life = Arc::new(ProcessState {
            route,
            started: clock.now(),
            clock,
            starts,
            caller,
            leaving,
            entry,
            backlog: WriteBacklog::default(),
            end_requested: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            command: OnceLock::new(),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
            gone: CancellationToken::new(),
            latest_stderr_line: Mutex::default(),
            stderr_ended: CancellationToken::new(),
            is_counted: AtomicBool::new(false),
        });
        let kept = life.clone();
        work.spawn(async move {
            kept.run(stdin, to_write, stderr, control).await;
            if timeout(KILLING, reaped).await == Ok(true) {
                kept.kill_group();
            }
            kept.gone.cancel();
            kept.mark_leaving();
            kept.leaving.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
        let child = Self { lines, state: life };
        (child, stdout)
    }

    pub fn state(&self) -> &Arc<ProcessState> {
        &self.state
    }

    /// Queues a message for writing.
    ///
    /// # Errors
    /// [`CallError::InputBacklogFull`] if too much is waiting; [`CallError::Unreachable`] if the process has
    /// ended.
    pub fn write(&self, message: Bytes) -> Result<(), CallError> {
        if self.state.is_leaving.load(Ordering::Relaxed) {
            return Err(CallError::Unreachable(format!(
                "its process has ended: {}",
                self.state.end_reason()
            )));
        }
        let line = MessageLine::of(message);
        let length = line.len();
        self.state.backlog.add(length)?;
        self.lines.send(line).map_err(|_| {
            self.state.backlog.take(1, length);
            CallError::Unreachable("its process has closed its input".to_owned())
        })
    }

    /// Queues a call for writing. It counts as pending until the guard is dropped.
    ///
    /// # Errors
    /// As [`ChildProcess::write`].
    pub fn call(&self, message: Bytes) -> Result<PendingCallGuard, CallError> {
        self.write(message)?;
        Ok(self.state.entry.begin_call())
    }

    /// Ends the process. Resolves when nothing of it is left.
    pub async fn end(&self) {
        self.state.request_end();
        self.state.wait_gone().await;
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

    /// Resolves when nothing of it is left.
    pub async fn wait_gone(&self) {
        self.gone.cancelled().await;
    }

    /// Reason of its end, as text.
    pub fn end_reason(&self) -> &str {
        self.end.get().map_or("it is being ended", |end| &end.how)
    }

    /// Ends the process, because it cannot continue for this reason.
    pub fn fail(&self, why: &str) {
        self.record_end(why);
        self.request_end();
    }

    /// Requests the end of the process.
    fn request_end(&self) {
        self.mark_leaving();
        self.end_requested.cancel();
    }

    /// Marks that it is about to release its permit.
    fn mark_leaving(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.leaving.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Kills the command's group after the supervisor was killed. Processes that have left the group are out
    /// of reach then.
    fn kill_group(&self) {
        let _ = self.command.get().map(|command| kill_process_group(*command, Signal::KILL));
    }

    /// Records that it did not start.
    pub fn record_failed_start(&self) {
        self.count_start(|starts, now| starts.record_failure(now, self.caller, self.started, Duration::ZERO));
    }

    /// Records its end; only the first call has an effect.
    fn record_end(&self, how: &str) {
        let is_wanted = self.end_requested.is_cancelled();
        self.count_start(|starts, now| {
            let up = now - self.started;
            match is_wanted {
                true => starts.record_stop(self.caller, up),
                false => starts.record_failure(now, self.caller, self.started, up),
            }
        });
        let _ = self.end.set(ProcessEnd { how: how.to_owned(), is_wanted });
        self.mark_leaving();
        self.ended.cancel();
    }

    /// Recorded before any waiter is notified, so that the next start takes it into account.
    fn count_start(&self, count: impl FnOnce(&mut StartLimiter, Instant)) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            count(&mut self.starts.lock(), self.clock.now());
        }
    }

    async fn run(
        &self,
        stdin: MessagePipe,
        to_write: UnboundedReceiver<MessageLine>,
        stderr: impl AsyncRead + Unpin,
        control: Box<dyn ControlSocket>,
    ) {
        let mut remarks = StderrLines::default();
        {
            let mut writing = pin!(self.write(stdin, to_write).fuse());
            // Polled separately from the lines written for each call.
            let mut remarking = pin!(PollOnWake::new(self.log_stderr(stderr, &mut remarks).fuse()));
            let mut living = pin!(PollOnWake::new(self.supervise(control)));
            loop {
                tokio::select! {
                    biased;
                    () = &mut living => break,
                    // Before standard error: a process that never stops writing there would use the whole
                    // budget of a poll.
                    () = &mut writing => {}
                    () = &mut remarking => {}
                }
            }
            let _ = timeout(LAST_WORDS, remarking).await;
        }
        let is_wanted = self.end.get().is_some_and(|end| end.is_wanted);
        let up = self.clock.now() - self.started;
        let said = remarks.last();
        ServerProcessEnded {
            route: &self.route,
            how: self.end_reason(),
            up,
            is_wanted,
            said: &said.join("\n"),
        }
        .emit();
        self.entry.record_end(self.clock.timestamp(), self.end_reason(), is_wanted, said);
    }

    /// Writes queued messages, short ones together, also those waiting at its end. Then closes the input.
    async fn write(&self, mut stdin: MessagePipe, mut lines: UnboundedReceiver<MessageLine>) {
        let mut ends = pin!(PollOnWake::new(self.end_requested.cancelled()));
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = &mut ends, if !lines.is_closed() => {
                    lines.close();
                    continue;
                }
            };
            let Some(first) = line else { return };
            if self.entry.pending_calls() > 1 {
                // Let other tasks write first: concurrent calls then share a write and a wake-up of the
                // process, each of which would cost as much as the rest.
                yield_now().await;
            }
            let (taken, written) = stdin.write(first, || lines.try_recv().ok()).await;
            self.backlog.take(taken.messages, taken.bytes);
            if let Err(error) = written {
                // A process that has ended does not read either, and its supervisor is about to report its
                // end.
                let _ = timeout(STATUS, self.ended.cancelled()).await;
                return self.fail(&format!("it reads no input any more ({error})"));
            }
        }
    }

    /// Logs the lines on standard error.
    async fn log_stderr(&self, mut stderr: impl AsyncRead + Unpin, remarks: &mut StderrLines) {
        let mut read = vec![0; REMARKS];
        loop {
            // An error counts as the end.
            let count = stderr.read(&mut read).await.unwrap_or(0);
            let mut input = &read[..count];
            let mut next = || match count {
                0 => remarks.end(),
                _ => remarks.next(&mut input),
            };
            while let Some(line) = next() {
                ServerStderrLine { route: &self.route, line: &line }.emit();
            }
            if let Some(latest) = remarks.latest() {
                let mut kept = self.latest_stderr_line.lock();
                if *kept != latest {
                    latest.clone_into(&mut kept);
                }
            }
            if count == 0 {
                return self.stderr_ended.cancel();
            }
            // There may always be more, and other tasks of this thread have calls.
            yield_now().await;
        }
    }

    /// Latest line on standard error; of an ended process the last one, once it has been read.
    pub async fn latest_stderr_line(&self) -> Option<String> {
        if self.ended.is_cancelled() {
            let _ = timeout(LAST_WORDS, self.stderr_ended.cancelled()).await;
        }
        Some(self.latest_stderr_line.lock().clone()).filter(|remark| !remark.is_empty())
    }

    /// Supervises the process until nothing of it is left.
    async fn supervise(&self, control: Box<dyn ControlSocket>) {
        let (reports, mut orders) = split(control);
        let mut reports = ReportReader { lines: BufReader::new(reports).lines(), has_ended: false };
        tokio::select! {
            () = reports.wait_command_end(self) => {}
            () = self.end_requested.cancelled() => {}
        }
        let _ = timeout(CLOSING, reports.wait_command_end(self)).await;
        if !reports.has_ended {
            // A supervisor that has exited need not get it.
            let _ = orders.write_all(&[TERMINATE]).await;
            let _ = timeout(TERMINATING, reports.wait_command_end(self)).await;
        }
        if reports.has_ended {
            let _ = timeout(LEFT_BEHIND, reports.wait_all_gone(self)).await;
        }
        // Close the supervisor's input: it kills everything.
        let _ = orders.shutdown().await;
        let _ = timeout(KILLING, reports.wait_all_gone(self)).await;
        self.record_end("it could not be killed");
    }
}

// === impl ReportReader ===

impl ReportReader {
    async fn wait_command_end(&mut self, life: &ProcessState) {
        while !self.has_ended && self.take(life).await {}
    }

    async fn wait_all_gone(&mut self, life: &ProcessState) {
        while self.take(life).await {}
    }

    /// Reads the next report. Returns whether there was one.
    async fn take(&mut self, life: &ProcessState) -> bool {
        let Ok(Some(line)) = self.lines.next_line().await else {
            if !self.has_ended {
                self.has_ended = true;
                life.record_end("its supervisor was killed");
                life.kill_group();
            }
            return false;
        };
        match SupervisorReport::read(&line) {
            Some(SupervisorReport::Started { pid }) => {
                let _ = Pid::from_raw(pid).map(|command| life.command.set(command));
                life.entry.set_pid(pid);
            }
            Some(SupervisorReport::NotStarted { why } | SupervisorReport::Ended { how: why }) => {
                self.has_ended = true;
                life.record_end(&why);
            }
            None => {}
        }
        true
    }
}

// === impl WriteBacklog ===

impl WriteBacklog {
    /// # Errors
    /// [`CallError::InputBacklogFull`] if too much is waiting.
    fn add(&self, bytes: usize) -> Result<(), CallError> {
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        let others = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if lines < WAITING && (others == 0 || others + bytes <= WAITING_BYTES) {
            return Ok(());
        }
        self.take(1, bytes);
        Err(CallError::InputBacklogFull { waiting: lines })
    }

    fn take(&self, lines: usize, bytes: usize) {
        self.lines.fetch_sub(lines, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
