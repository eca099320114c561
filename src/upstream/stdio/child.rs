//! One process of a server, from its start until nothing is left of it.
//!
//! A [`Child`] is what the rest holds of it: what is to be written, and how it ends. Its pipes and its supervisor
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
    command::Command,
    message_line::{MessageLine, MessagePipe},
    remarks::Remarks,
    starts::Starts,
    supervisor::{self, Report, TERMINATE},
    table::{CallInHand, Entry},
};
use crate::{
    dialect::Principal,
    runtime::{Clock, Mutex, Seldom, SystemClock},
    telemetry::{ServerEnded, ServerSaid},
    upstream::{CallError, work::Work},
};

/// The ends of a process that was started. Boxed, so that a test can be the process.
pub struct Ends {
    pub stdin: MessagePipe,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// To its supervisor.
    pub control: Box<dyn Control>,
    /// Resolves when the supervisor has been reaped: whether it was killed.
    pub reaped: BoxFuture<'static, bool>,
}

pub trait Control: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Control for C {}

/// The place of a process among those of its server.
pub struct Place {
    pub permit: OwnedSemaphorePermit,
    /// How many leave theirs.
    pub leaving: Arc<AtomicUsize>,
}

/// Starts a process.
pub type Spawn = Box<dyn Fn(&Command) -> io::Result<Ends> + Send + Sync>;

/// One process.
pub struct Child {
    lines: UnboundedSender<MessageLine>,
    life: Arc<Life>,
}

/// What is known of a process.
pub struct Life {
    route: Arc<str>,
    clock: SystemClock,
    started: Instant,
    starts: Arc<Mutex<Starts>>,
    /// Whose start it was.
    caller: Principal,
    /// How many of the same server leave their places.
    leaving: Arc<AtomicUsize>,
    entry: Entry,
    waiting: Waiting,
    /// It is to end.
    ends: CancellationToken,
    /// The same, or it has ended: for each call to look at without a lock, and for whoever waits for its place.
    is_leaving: AtomicBool,
    /// The id of the command, and of its group.
    command: OnceLock<Pid>,
    end: OnceLock<End>,
    /// It has ended, or cannot go on.
    ended: CancellationToken,
    /// Nothing is left of it.
    gone: CancellationToken,
    /// The latest line on its standard error; empty where there is none.
    latest_remark: Mutex<String>,
    /// Its standard error has ended.
    has_remarked: CancellationToken,
    /// What has become of its start is counted, once.
    is_counted: AtomicBool,
}

#[derive(Debug)]
struct End {
    /// In words.
    how: String,
    /// We have ended it.
    is_wanted: bool,
}

/// What the supervisor says.
struct Reports {
    lines: Lines<BufReader<ReadHalf<Box<dyn Control>>>>,
    has_ended: bool,
}

/// What waits to be written to a process.
#[derive(Debug, Default)]
struct Waiting {
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
pub fn spawn(command: &Command) -> io::Result<Ends> {
    let (ours, theirs) = UnixStream::pair()?;
    let (their_input, stdin) = io::pipe()?;
    let (stdout, their_output) = io::pipe()?;
    supervisor::hand_over(&ours, [their_input.as_fd(), their_output.as_fd()])?;
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
    Ok(Ends {
        stdin: MessagePipe::new(pipe::Sender::from_owned_fd(stdin.into())?),
        stdout: Box::new(pipe::Receiver::from_owned_fd(stdout.into())?),
        stderr: Box::new(supervisor.stderr.take().expect("it is piped")),
        control: Box::new(tokio::net::UnixStream::from_std(ours)?),
        reaped: async move { supervisor.wait().await.is_ok_and(|status| status.code().is_none()) }.boxed(),
    })
}

// === impl Child ===

impl Child {
    /// Takes charge of a process that was started. `place` is given back when nothing is left of it, and it is taken
    /// out of the table.
    pub fn keep(
        ends: Ends,
        route: Arc<str>,
        (starts, caller): (Arc<Mutex<Starts>>, Principal),
        entry: Entry,
        place: Place,
        work: &Work,
    ) -> (Self, Box<dyn AsyncRead + Send + Unpin>) {
        let Ends { stdin, stdout, stderr, control, reaped } = ends;
        let Place { permit, leaving } = place;
        let clock = SystemClock::new();
        let (lines, to_write) = unbounded_channel();
        let life = Arc::new(Life {
            route,
            started: clock.now(),
            clock,
            starts,
            caller,
            leaving,
            entry,
            waiting: Waiting::default(),
            ends: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            command: OnceLock::new(),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
            gone: CancellationToken::new(),
            latest_remark: Mutex::default(),
            has_remarked: CancellationToken::new(),
            is_counted: AtomicBool::new(false),
        });
        let kept = life.clone();
        work.spawn(async move {
            kept.keep(stdin, to_write, stderr, control).await;
            if timeout(KILLING, reaped).await == Ok(true) {
                kept.kill_group();
            }
            kept.gone.cancel();
            kept.leaves();
            kept.leaving.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        });
        let child = Self { lines, life };
        (child, stdout)
    }

    pub fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Has a message written, after those that wait.
    ///
    /// # Errors
    /// [`CallError::Unread`] where too much waits; what became of the process where it has ended.
    pub fn write(&self, message: Bytes) -> Result<(), CallError> {
        if self.life.is_leaving.load(Ordering::Relaxed) {
            return Err(CallError::Unreachable(format!("its process has ended: {}", self.life.how())));
        }
        let line = MessageLine::of(message);
        let length = line.len();
        self.life.waiting.add(length)?;
        self.lines.send(line).map_err(|_| {
            self.life.waiting.take(1, length);
            CallError::Unreachable("its process reads nothing any more".to_owned())
        })
    }

    /// Has a call written, likewise. It counts as in hand until what is given is dropped.
    ///
    /// # Errors
    /// As [`Child::write`].
    pub fn call(&self, message: Bytes) -> Result<CallInHand, CallError> {
        self.write(message)?;
        Ok(self.life.entry.takes_call())
    }

    /// Ends it. Resolves when nothing is left of it.
    pub async fn end(&self) {
        self.life.ends();
        self.life.gone().await;
    }
}

impl Drop for Child {
    /// A process that nobody holds ends.
    fn drop(&mut self) {
        self.life.ends();
    }
}

// === impl Life ===

impl Life {
    /// Resolves when the process has ended, or cannot go on.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Resolves when nothing is left of it.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// How it has ended, in words.
    pub fn how(&self) -> &str {
        self.end.get().map_or("it is being ended", |end| &end.how)
    }

    /// It cannot go on, for this reason: it is ended.
    pub fn cannot_go_on(&self, why: &str) {
        self.has_ended(why);
        self.ends();
    }

    /// It is to end.
    fn ends(&self) {
        self.leaves();
        self.ends.cancel();
    }

    /// It is about to leave its place.
    fn leaves(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.leaving.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its supervisor was killed, which kills nothing any more. What has left the command's group is out of reach then.
    fn kill_group(&self) {
        let _ = self.command.get().map(|command| kill_process_group(*command, Signal::KILL));
    }

    /// It did not come up.
    pub fn did_not_start(&self) {
        self.count(|starts, now| starts.failed(now, self.caller, self.started, Duration::ZERO));
    }

    /// The first time, it has ended like this.
    fn has_ended(&self, how: &str) {
        let is_wanted = self.ends.is_cancelled();
        self.count(|starts, now| {
            let up = now - self.started;
            match is_wanted {
                true => starts.was_up(self.caller, up),
                false => starts.failed(now, self.caller, self.started, up),
            }
        });
        let _ = self.end.set(End { how: how.to_owned(), is_wanted });
        self.leaves();
        self.ended.cancel();
    }

    /// Counted before anybody is told, so that whoever starts another knows of it.
    fn count(&self, count: impl FnOnce(&mut Starts, Instant)) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            count(&mut self.starts.lock(), self.clock.now());
        }
    }

    async fn keep(
        &self,
        stdin: MessagePipe,
        to_write: UnboundedReceiver<MessageLine>,
        stderr: impl AsyncRead + Unpin,
        control: Box<dyn Control>,
    ) {
        let mut remarks = Remarks::default();
        {
            let mut writing = pin!(self.write(stdin, to_write).fuse());
            // Beside the lines that are written for each call.
            let mut remarking = pin!(Seldom::new(self.remark(stderr, &mut remarks).fuse()));
            let mut living = pin!(Seldom::new(self.live(control)));
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
        ServerEnded { route: &self.route, how: self.how(), up, is_wanted, said: &said.join("\n") }.emit();
        self.entry.has_ended(self.clock.timestamp(), self.how(), is_wanted, said);
    }

    /// Writes what is to be written, short messages together; what waits when it is to end, too. Then its input ends.
    async fn write(&self, mut stdin: MessagePipe, mut lines: UnboundedReceiver<MessageLine>) {
        let mut ends = pin!(Seldom::new(self.ends.cancelled()));
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = &mut ends, if !lines.is_closed() => {
                    lines.close();
                    continue;
                }
            };
            let Some(first) = line else { return };
            if self.entry.calls_in_hand() > 1 {
                // Whoever else is about to write does so first: calls that come together share a write, and a wake of
                // the process, where each of them would cost as much as all.
                yield_now().await;
            }
            let (taken, written) = stdin.write(first, || lines.try_recv().ok()).await;
            self.waiting.take(taken.messages, taken.bytes);
            if let Err(error) = written {
                // A process that has ended reads nothing either, and its supervisor is about to say how it has.
                let _ = timeout(STATUS, self.ended.cancelled()).await;
                return self.cannot_go_on(&format!("it reads nothing any more ({error})"));
            }
        }
    }

    /// Takes what it writes to standard error to the log.
    async fn remark(&self, mut stderr: impl AsyncRead + Unpin, remarks: &mut Remarks) {
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
                ServerSaid { route: &self.route, line: &line }.emit();
            }
            if let Some(latest) = remarks.latest() {
                let mut kept = self.latest_remark.lock();
                if *kept != latest {
                    latest.clone_into(&mut kept);
                }
            }
            if count == 0 {
                return self.has_remarked.cancel();
            }
            // There may always be more, and others of this thread have calls.
            yield_now().await;
        }
    }

    /// The latest line on standard error; of a process that has ended the last one, once it was read.
    pub async fn latest_remark(&self) -> Option<String> {
        if self.ended.is_cancelled() {
            let _ = timeout(LAST_WORDS, self.has_remarked.cancelled()).await;
        }
        Some(self.latest_remark.lock().clone()).filter(|remark| !remark.is_empty())
    }

    /// Until nothing is left of it.
    async fn live(&self, control: Box<dyn Control>) {
        let (reports, mut orders) = split(control);
        let mut reports = Reports { lines: BufReader::new(reports).lines(), has_ended: false };
        tokio::select! {
            () = reports.until_it_ends(self) => {}
            () = self.ends.cancelled() => {}
        }
        let _ = timeout(CLOSING, reports.until_it_ends(self)).await;
        if !reports.has_ended {
            // One that is gone need not be told.
            let _ = orders.write_all(&[TERMINATE]).await;
            let _ = timeout(TERMINATING, reports.until_it_ends(self)).await;
        }
        if reports.has_ended {
            let _ = timeout(LEFT_BEHIND, reports.until_nothing_is_left(self)).await;
        }
        // The end of what the supervisor hears.
        let _ = orders.shutdown().await;
        let _ = timeout(KILLING, reports.until_nothing_is_left(self)).await;
        self.has_ended("it could not be killed");
    }
}

// === impl Reports ===

impl Reports {
    async fn until_it_ends(&mut self, life: &Life) {
        while !self.has_ended && self.take(life).await {}
    }

    async fn until_nothing_is_left(&mut self, life: &Life) {
        while self.take(life).await {}
    }

    /// Takes the next report. Whether there was one.
    async fn take(&mut self, life: &Life) -> bool {
        let Ok(Some(line)) = self.lines.next_line().await else {
            if !self.has_ended {
                self.has_ended = true;
                life.has_ended("its supervisor was killed");
                life.kill_group();
            }
            return false;
        };
        match Report::read(&line) {
            Some(Report::Started { pid }) => {
                let _ = Pid::from_raw(pid).map(|command| life.command.set(command));
                life.entry.is(pid);
            }
            Some(Report::NotStarted { why } | Report::Ended { how: why }) => {
                self.has_ended = true;
                life.has_ended(&why);
            }
            None => {}
        }
        true
    }
}

// === impl Waiting ===

impl Waiting {
    /// # Errors
    /// [`CallError::Unread`] where too much waits.
    fn add(&self, bytes: usize) -> Result<(), CallError> {
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        let others = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if lines < WAITING && (others == 0 || others + bytes <= WAITING_BYTES) {
            return Ok(());
        }
        self.take(1, bytes);
        Err(CallError::Unread { waiting: lines })
    }

    fn take(&self, lines: usize, bytes: usize) {
        self.lines.fetch_sub(lines, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
