//! One process of a server, from its start until nothing is left of it.
//!
//! A [`ChildProcess`] is what the rest holds of it: what is to be written, and how it ends. Its pipes and its supervisor
//! are kept by one task, which outlives whoever has it: it writes, takes the process's remarks to the log, and
//! sees to its end: its input is closed, then SIGTERM goes to its group, then SIGKILL to everything it has started.

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

/// The ends of a process that was started. Boxed, so that a test can be the process.
pub struct ProcessIo {
    pub stdin: MessagePipe,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// To its supervisor.
    pub control: Box<dyn ControlSocket>,
    /// Resolves when the supervisor has been reaped: whether it was killed.
    pub reaped: BoxFuture<'static, bool>,
}

pub trait ControlSocket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> ControlSocket for C {}

/// The place of a process among those of its server.
pub struct ProcessPermit {
    pub permit: OwnedSemaphorePermit,
    /// How many leave theirs.
    pub leaving: Arc<AtomicUsize>,
}

/// Starts a process.
pub type SpawnFn = Box<dyn Fn(&ServerCommand) -> io::Result<ProcessIo> + Send + Sync>;

/// One process.
pub struct ChildProcess {
    lines: UnboundedSender<MessageLine>,
    state: Arc<ProcessState>,
}

/// What is known of a process.
pub struct ProcessState {
    route: Arc<str>,
    clock: SystemClock,
    started: Instant,
    starts: Arc<Mutex<StartLimiter>>,
    /// Whose start it was.
    caller: Principal,
    /// How many of the same server leave their places.
    leaving: Arc<AtomicUsize>,
    entry: RegistryEntry,
    backlog: WriteBacklog,
    /// It is to end.
    end_requested: CancellationToken,
    /// The same, or it has ended: for each call to look at without a lock, and for whoever waits for its place.
    is_leaving: AtomicBool,
    /// The id of the command, and of its group.
    command: OnceLock<Pid>,
    end: OnceLock<ProcessEnd>,
    /// It has ended, or cannot go on.
    ended: CancellationToken,
    /// Nothing is left of it.
    gone: CancellationToken,
    /// The latest line on its standard error; empty where there is none.
    latest_stderr_line: Mutex<String>,
    /// Its standard error has ended.
    stderr_ended: CancellationToken,
    /// What has become of its start is counted, once.
    is_counted: AtomicBool,
}

#[derive(Debug)]
struct ProcessEnd {
    /// In words.
    how: String,
    /// We have ended it.
    is_wanted: bool,
}

/// What the supervisor says.
struct ReportReader {
    lines: Lines<BufReader<ReadHalf<Box<dyn ControlSocket>>>>,
    has_ended: bool,
}

/// What waits to be written to a process.
#[derive(Debug, Default)]
struct WriteBacklog {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

/// Messages that wait to be written to one process. Each costs its bytes. More than are let in at once by default
/// (`limits.calls`): those that come together, or wait for its start, say nothing of whether it reads.
pub(super) const WAITING: usize = 16 << 10;
/// Bytes of them. One that is alone may be larger: what a client sends is bounded by itself.
pub(super) const WAITING_BYTES: usize = 16 << 20;
/// How long a process may take to end once its input is closed; then it is sent SIGTERM.
const CLOSING: Duration = Duration::from_secs(2);
/// How long after SIGTERM; then everything is killed.
const TERMINATING: Duration = Duration::from_secs(2);
/// How long what a process has started may outlive it.
const LEFT_BEHIND: Duration = Duration::from_secs(1);
/// How long the end of what was killed is waited for: the system may not be able to end it.
const KILLING: Duration = Duration::from_secs(5);
/// How long the last remarks of a process that is gone are waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// What is read of remarks at a time.
pub const REMARKS: usize = 8 << 10;

/// Starts a real process under its supervisor.
///
/// # Errors
/// Those of the system.
pub fn spawn(command: &ServerCommand) -> io::Result<ProcessIo> {
    let (ours, theirs) = UnixStream::pair()?;
    let (their_input, stdin) = io::pipe()?;
    let (stdout, their_output) = io::pipe()?;
    supervisor::send_stdio(&ours, [their_input.as_fd(), their_output.as_fd()])?;
    let mut words = std::process::Command::new(command.supervisor());
    words.arg0(env!("CARGO_PKG_NAME")).args(["supervise", "--"]).args(&command.words);
    words.env_clear().envs(command.environment());
    // In a group of its own: Ctrl-C in a terminal is for the proxy, which sees to the rest.
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

// === impl Child ===

impl ChildProcess {
    /// Takes charge of a process that was started. `place` is given back when nothing is left of it, and it is taken
    /// out of the table.
    pub fn manage(
        ends: ProcessIo,
        route: Arc<str>,
        (starts, caller): (Arc<Mutex<StartLimiter>>, Principal),
        entry: RegistryEntry,
        place: ProcessPermit,
        work: &BackgroundTasks,
    ) -> (Self, Box<dyn AsyncRead + Send + Unpin>) {
        let ProcessIo { stdin, stdout, stderr, control, reaped } = ends;
        let ProcessPermit { permit, leaving } = place;
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

    /// Has a message written, after those that wait.
    ///
    /// # Errors
    /// [`CallError::InputBacklogFull`] where too much waits; what became of the process where it has ended.
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
            CallError::Unreachable("its process reads nothing any more".to_owned())
        })
    }

    /// Has a call written, likewise. It counts as in hand until what is given is dropped.
    ///
    /// # Errors
    /// As [`ChildProcess::write`].
    pub fn call(&self, message: Bytes) -> Result<PendingCallGuard, CallError> {
        self.write(message)?;
        Ok(self.state.entry.begin_call())
    }

    /// Ends it. Resolves when nothing is left of it.
    pub async fn end(&self) {
        self.state.request_end();
        self.state.wait_gone().await;
    }
}

impl Drop for ChildProcess {
    /// A process that nobody holds ends.
    fn drop(&mut self) {
        self.state.request_end();
    }
}

// === impl Life ===

impl ProcessState {
    /// Resolves when the process has ended, or cannot go on.
    pub async fn wait_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Resolves when nothing is left of it.
    pub async fn wait_gone(&self) {
        self.gone.cancelled().await;
    }

    /// How it has ended, in words.
    pub fn end_reason(&self) -> &str {
        self.end.get().map_or("it is being ended", |end| &end.how)
    }

    /// It cannot go on, for this reason: it is ended.
    pub fn fail(&self, why: &str) {
        self.record_end(why);
        self.request_end();
    }

    /// It is to end.
    fn request_end(&self) {
        self.mark_leaving();
        self.end_requested.cancel();
    }

    /// It is about to leave its place.
    fn mark_leaving(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.leaving.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its supervisor was killed, which kills nothing any more. What has left the command's group is out of reach then.
    fn kill_group(&self) {
        let _ = self.command.get().map(|command| kill_process_group(*command, Signal::KILL));
    }

    /// It did not come up.
    pub fn record_failed_start(&self) {
        self.count_start(|starts, now| starts.record_failure(now, self.caller, self.started, Duration::ZERO));
    }

    /// The first time, it has ended like this.
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

    /// Counted before anybody is told, so that whoever starts another knows of it.
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
            // Beside the lines that are written for each call.
            let mut remarking = pin!(PollOnWake::new(self.log_stderr(stderr, &mut remarks).fuse()));
            let mut living = pin!(PollOnWake::new(self.supervise(control)));
            loop {
                tokio::select! {
                    biased;
                    () = &mut living => break,
                    // Before what it remarks: who never stops to takes all that a turn of a runtime's task may do.
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

    /// Writes what is to be written, short messages together; what waits when it is to end, too. Then its input ends.
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
                // Whoever else is about to write does so first: calls that come together share a write, and a wake of
                // the process, where each of them would cost as much as all.
                yield_now().await;
            }
            let (taken, written) = stdin.write(first, || lines.try_recv().ok()).await;
            self.backlog.take(taken.messages, taken.bytes);
            if let Err(error) = written {
                // A process that has ended reads nothing either, and its supervisor is about to say how it has.
                let _ = timeout(STATUS, self.ended.cancelled()).await;
                return self.fail(&format!("it reads nothing any more ({error})"));
            }
        }
    }

    /// Takes what it writes to standard error to the log.
    async fn log_stderr(&self, mut stderr: impl AsyncRead + Unpin, remarks: &mut StderrLines) {
        let mut read = vec![0; REMARKS];
        loop {
            // What cannot be read has ended.
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
            // There may always be more, and others of this thread have calls.
            yield_now().await;
        }
    }

    /// The latest line on standard error; of a process that has ended the last one, once it was read.
    pub async fn latest_stderr_line(&self) -> Option<String> {
        if self.ended.is_cancelled() {
            let _ = timeout(LAST_WORDS, self.stderr_ended.cancelled()).await;
        }
        Some(self.latest_stderr_line.lock().clone()).filter(|remark| !remark.is_empty())
    }

    /// Until nothing is left of it.
    async fn supervise(&self, control: Box<dyn ControlSocket>) {
        let (reports, mut orders) = split(control);
        let mut reports = ReportReader { lines: BufReader::new(reports).lines(), has_ended: false };
        tokio::select! {
            () = reports.wait_command_end(self) => {}
            () = self.end_requested.cancelled() => {}
        }
        let _ = timeout(CLOSING, reports.wait_command_end(self)).await;
        if !reports.has_ended {
            // One that is gone need not be told.
            let _ = orders.write_all(&[TERMINATE]).await;
            let _ = timeout(TERMINATING, reports.wait_command_end(self)).await;
        }
        if reports.has_ended {
            let _ = timeout(LEFT_BEHIND, reports.wait_all_gone(self)).await;
        }
        // The end of what the supervisor hears.
        let _ = orders.shutdown().await;
        let _ = timeout(KILLING, reports.wait_all_gone(self)).await;
        self.record_end("it could not be killed");
    }
}

// === impl Reports ===

impl ReportReader {
    async fn wait_command_end(&mut self, life: &ProcessState) {
        while !self.has_ended && self.take(life).await {}
    }

    async fn wait_all_gone(&mut self, life: &ProcessState) {
        while self.take(life).await {}
    }

    /// Takes the next report. Whether there was one.
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

// === impl Waiting ===

impl WriteBacklog {
    /// # Errors
    /// [`CallError::InputBacklogFull`] where too much waits.
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
