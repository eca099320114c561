//! Supervisor of one process of a server: no descendant of the process outlives the proxy.
//!
//! The supervisor is another process of this program, between the proxy and the command. Orphans below it
//! become its children (it is a *subreaper*), so that everything the command starts stays within reach: in
//! sessions of its own, behind a shell, with all signals ignored. Its standard input is a socket to the
//! proxy. However the proxy ends, the socket closes, and the supervisor kills everything below it, reaps it,
//! and exits. The command's input and output are passed over the socket, so that the supervisor holds
//! neither.

use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
    process::{Pid, Signal, WaitOptions, kill_process_group, wait},
};
use std::{
    io::{self, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Command, ExitStatus, Stdio},
};
use tokio::{
    io::AsyncReadExt,
    net::unix::OwnedReadHalf,
    signal::unix::{SignalKind, signal},
};

/// Report of a supervisor to the proxy, sent as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorReport {
    Started {
        pid: i32,
    },
    NotStarted {
        reason: String,
    },
    /// The command has ended with this status, as text. Its descendants may still run.
    Ended {
        status: String,
    },
}

/// Byte with which the proxy requests SIGTERM to the command's process group.
pub const TERMINATE: u8 = b't';

/// Exit code of a supervisor that could not start its command, as in shells.
const NOT_STARTED: i32 = 127;

// === impl SupervisorReport ===

impl SupervisorReport {
    /// Serializes the report as a line, with its line end.
    pub fn to_line(&self) -> String {
        let without_breaks = |text: &str| text.replace('\n', " ");
        match self {
            Self::Started { pid } => format!("started {pid}\n"),
            Self::NotStarted { reason: why } => format!("not-started {}\n", without_breaks(why)),
            Self::Ended { status: how } => format!("ended {}\n", without_breaks(how)),
        }
    }

    /// Parses a report from a line without its line end; `None` if the line is none.
    pub fn parse(line: &str) -> Option<Self> {
        let (kind, value) = line.split_once(' ')?;
        match kind {
            "started" => Some(Self::Started { pid: value.parse().ok()? }),
            "not-started" => Some(Self::NotStarted { reason: value.to_owned() }),
            "ended" => Some(Self::Ended { status: value.to_owned() }),
            _ => None,
        }
    }
}

/// Sends the command's standard input and output to the supervisor, as file descriptors over the socket.
///
/// # Errors
/// Errors of the socket.
pub fn send_stdio(control: &UnixStream, stdio: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(rights.push(SendAncillaryMessage::ScmRights(&stdio)), "there is room for two");
    sendmsg(control, &[IoSlice::new(b".")], &mut rights, SendFlags::empty())?;
    Ok(())
}

/// Receives the command's standard input and output from the proxy.
fn receive_stdio(control: &UnixStream) -> io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    recvmsg(control, &mut [IoSliceMut::new(&mut [0])], &mut rights, RecvFlags::empty())?;
    let mut stdio = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            stdio.extend(rights);
        }
    }
    for descriptor in &stdio {
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    stdio.try_into().map_err(|_| io::Error::other("no input and output were handed over"))
}

/// Starts the command and supervises it until none of its descendants is left. Returns the exit code of the
/// supervisor: the command's own, 128 plus the number of the signal that ended the command, or 127 if the
/// command could not be started.
///
/// # Errors
/// If this process was not started by the proxy.
pub async fn supervise(words: &[String]) -> io::Result<u8> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdio = receive_stdio(&control)?;
    adopt_orphans()?;
    // A signal to a process group, or to all processes of a container, is for the proxy, which ends the
    // process. Handle these signals rather than ignore them, because the command would inherit ignored
    // signals.
    let handled_signals =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _handlers = handled_signals.map(signal);
    let mut children = signal(SignalKind::child())?;

    let mut watch =
        CommandWatch { control: control.try_clone()?, command: None, status: None, kills_all: false };
    watch.start(words, stdio);
    control.set_nonblocking(true)?;
    let (mut orders, _replies) = tokio::net::UnixStream::from_std(control)?.into_split();
    while watch.reap() {
        tokio::select! {
            _ = children.recv() => {}
            order = next_order(&mut orders), if !watch.kills_all => match order {
                Some(TERMINATE) => watch.terminate(),
                Some(_) => {}
                None => watch.kills_all = true,
            },
        }
    }
    Ok(watch.exit_code())
}

/// Next order of the proxy; `None` when the proxy has ended, or has closed the socket to have everything
/// killed.
async fn next_order(orders: &mut OwnedReadHalf) -> Option<u8> {
    orders.read_u8().await.ok()
}

/// State of a running supervisor.
struct CommandWatch {
    /// Socket for reports. Written before it becomes non-blocking.
    control: UnixStream,
    /// Process id of the command; `None` if it was not started.
    command: Option<Pid>,
    /// Exit status of the command; `None` while it runs.
    status: Option<ExitStatus>,
    /// Whether everything below the supervisor must be killed.
    kills_all: bool,
}

// === impl CommandWatch ===

impl CommandWatch {
    /// Starts the command, and reports the outcome.
    fn start(&mut self, words: &[String], [stdin, stdout]: [OwnedFd; 2]) {
        let Some((program, arguments)) = words.split_first() else { return };
        let mut command = Command::new(program);
        command.args(arguments).stdin(stdin).stdout(stdout).stderr(Stdio::inherit()).process_group(0);
        match command.spawn() {
            Ok(child) => {
                let pid = i32::try_from(child.id()).unwrap_or_default();
                self.command = Pid::from_raw(pid);
                self.report(&SupervisorReport::Started { pid });
            }
            Err(error) => {
                self.report(&SupervisorReport::NotStarted { reason: format!("`{program}`: {error}") })
            }
        }
    }

    /// Sends a report. Errors are ignored: a proxy that has ended needs no report.
    fn report(&mut self, report: &SupervisorReport) {
        let _ = self.control.write_all(report.to_line().as_bytes());
    }

    /// Sends SIGTERM to the command's process group, unless the command has ended.
    fn terminate(&self) {
        // The command may just have ended.
        if let (Some(command), None) = (self.command, self.status) {
            let _ = kill_process_group(command, Signal::TERM);
        }
    }

    /// Reaps ended processes. Returns whether any processes are left.
    ///
    /// If everything must end, the remaining processes are killed before each wait: a process started
    /// meanwhile becomes a child of the supervisor when its parent dies, and the parent's death wakes the
    /// supervisor again.
    fn reap(&mut self) -> bool {
        if self.kills_all {
            self.kill_all();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
                    let status = ExitStatus::from_raw(status.as_raw());
                    self.status = Some(status);
                    self.report(&SupervisorReport::Ended { status: status.to_string() });
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                // No process is left below; only the command is known to be gone if orphans are not adopted.
                Err(_) => {
                    self.kill_all();
                    return false;
                }
            }
        }
    }

    fn exit_code(&self) -> u8 {
        let code = match self.status {
            Some(status) => status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(NOT_STARTED),
            None => NOT_STARTED,
        };
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }

    #[cfg(target_os = "linux")]
    fn kill_all(&self) {
        for pid in descendants::below(rustix::process::getpid()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Processes that have left the command's group are out of reach.
    #[cfg(not(target_os = "linux"))]
    fn kill_all(&self) {
        if let Some(command) = self.command {
            let _ = kill_process_group(command, Signal::KILL);
        }
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod descendants {
    use rustix::process::Pid;
    use std::{collections::HashMap, fs};

    /// All processes below `top`, including ended ones that are not reaped yet: a running process looks like
    /// an ended one after its first thread has ended.
    pub(super) fn below(top: Pid) -> Vec<Pid> {
        let top = top.as_raw_nonzero().get();
        let parents: HashMap<i32, i32> = all().collect();
        let is_below = |mut pid: i32| {
            // Processes start and end while `/proc` is read, so a cycle could appear.
            for _ in 0..parents.len() {
                match parents.get(&pid) {
                    Some(parent) if *parent == top => return true,
                    Some(parent) => pid = *parent,
                    None => return false,
                }
            }
            false
        };
        parents.keys().filter(|pid| is_below(**pid)).filter_map(|pid| Pid::from_raw(*pid)).collect()
    }

    /// All processes of the system with the ids of their parents.
    fn all() -> impl Iterator<Item = (i32, i32)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(entry.path().join("stat")).ok()?;
            Some((pid, parent(&stat)?))
        })
    }

    /// Parent process id: the fourth field of `stat`. The second field, the name, may contain any character.
    fn parent(stat: &[u8]) -> Option<i32> {
        let after_name = &stat[memchr::memrchr(b')', stat)? + 1..];
        std::str::from_utf8(after_name).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_hides_no_parent() {
            assert_eq!(parent(b"7 (a) R 9) S 3 7 7 0"), Some(3));
            assert_eq!(parent(b"7 (sh"), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_were_written() {
        for report in [
            SupervisorReport::Started { pid: 7 },
            SupervisorReport::NotStarted { reason: "`x`: no such file".to_owned() },
            SupervisorReport::Ended { status: "signal: 9 (SIGKILL)".to_owned() },
        ] {
            let line = report.to_line();
            assert_eq!(SupervisorReport::parse(line.strip_suffix('\n').expect("a line")), Some(report));
        }
        assert_eq!(SupervisorReport::parse("what"), None);
        let two = SupervisorReport::Ended { status: "a\nb".to_owned() };
        assert_eq!(two.to_line(), "ended a b\n");
    }
}
