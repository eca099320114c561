//! Supervisor of one process of a server: nothing of it outlives the proxy.
//!
//! The supervisor is this program again, between the proxy and the command. Orphans below it become its
//! children (it is a *subreaper*), so that everything the command starts stays within reach: in sessions of
//! its own, behind a shell, with all signals ignored. Its standard input is a socket to the proxy. However
//! the proxy ends, the socket closes, and the supervisor kills everything below it, reaps it, and exits. The
//! command's input and output are passed over the socket, so that the supervisor holds neither.

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

/// Report of a supervisor to the proxy, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorReport {
    Started {
        pid: i32,
    },
    NotStarted {
        why: String,
    },
    /// The command has ended with this status, as text. Its descendants may still run.
    Ended {
        how: String,
    },
}

/// Byte by which the proxy requests SIGTERM to the command's group.
pub const TERMINATE: u8 = b't';

/// Exit code of a supervisor that could not start its command, as in shells.
const NOT_STARTED: i32 = 127;

// === impl SupervisorReport ===

impl SupervisorReport {
    pub fn to_line(&self) -> String {
        let on_one_line = |text: &str| text.replace('\n', " ");
        match self {
            Self::Started { pid } => format!("started {pid}\n"),
            Self::NotStarted { why } => format!("not-started {}\n", on_one_line(why)),
            Self::Ended { how } => format!("ended {}\n", on_one_line(how)),
        }
    }

    pub fn read(line: &str) -> Option<Self> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "started" => Some(Self::Started { pid: rest.parse().ok()? }),
            "not-started" => Some(Self::NotStarted { why: rest.to_owned() }),
            "ended" => Some(Self::Ended { how: rest.to_owned() }),
            _ => None,
        }
    }
}

/// Sends the command's standard input and output to the supervisor.
///
/// # Errors
/// Errors of the socket.
pub fn send_stdio(control: &UnixStream, ends: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(rights.push(SendAncillaryMessage::ScmRights(&ends)), "there is room for two");
    sendmsg(control, &[IoSlice::new(b".")], &mut rights, SendFlags::empty())?;
    Ok(())
}

fn receive_stdio(control: &UnixStream) -> io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    recvmsg(control, &mut [IoSliceMut::new(&mut [0])], &mut rights, RecvFlags::empty())?;
    let mut ends = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            ends.extend(rights);
        }
    }
    for end in &ends {
        fcntl_setfd(end, FdFlags::CLOEXEC)?;
    }
    ends.try_into().map_err(|_| io::Error::other("no input and output were handed over"))
}

/// Starts the command and supervises it until nothing of it is left. Returns the exit code: the command's
/// own, 128 and the signal's number, or that of a command that could not be started.
///
/// # Errors
/// If this was not started by the proxy.
pub async fn supervise(words: &[String]) -> io::Result<u8> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let ends = receive_stdio(&control)?;
    adopt_orphans()?;
    // A signal to a process group, or to all processes of a container, is for the proxy, which ends the
    // process. Handled rather than ignored, because the command would inherit ignored signals.
    let ends_nothing =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _handlers = ends_nothing.map(signal);
    let mut children = signal(SignalKind::child())?;

    let mut watch =
        CommandWatch { control: control.try_clone()?, command: None, status: None, is_over: false };
    watch.start(words, ends);
    control.set_nonblocking(true)?;
    let (mut orders, _replies) = tokio::net::UnixStream::from_std(control)?.into_split();
    while watch.reap() {
        tokio::select! {
            _ = children.recv() => {}
            order = next_order(&mut orders), if !watch.is_over => match order {
                Some(TERMINATE) => watch.terminate(),
                Some(_) => {}
                None => watch.is_over = true,
            },
        }
    }
    Ok(watch.exit_code())
}

/// Next order of the proxy; `None` if it has ended, or wants everything killed.
async fn next_order(orders: &mut OwnedReadHalf) -> Option<u8> {
    orders.read_u8().await.ok()
}

/// State of a running supervisor.
struct CommandWatch {
    /// Socket for reports. Written before it becomes non-blocking.
    control: UnixStream,
    command: Option<Pid>,
    status: Option<ExitStatus>,
    /// Whether everything below is to be killed.
    is_over: bool,
}

// === impl CommandWatch ===

impl CommandWatch {
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
            Err(error) => self.report(&SupervisorReport::NotStarted { why: format!("`{program}`: {error}") }),
        }
    }

    /// Sends a report; a proxy that has ended need not get it.
    fn report(&mut self, report: &SupervisorReport) {
        let _ = self.control.write_all(report.to_line().as_bytes());
    }

    fn terminate(&self) {
        // The command may just have ended.
        if let (Some(command), None) = (self.command, self.status) {
            let _ = kill_process_group(command, Signal::TERM);
        }
    }

    /// Reaps ended processes. Returns whether any are left.
    ///
    /// If everything is to end, the remaining ones are killed before each wait: a process started meanwhile
    /// becomes a child of the supervisor when its parent dies, and that death wakes the supervisor again.
    fn reap(&mut self) -> bool {
        if self.is_over {
            self.kill_all();
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
                    let status = ExitStatus::from_raw(status.as_raw());
                    self.status = Some(status);
                    self.report(&SupervisorReport::Ended { how: status.to_string() });
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                // Nothing is left; of the command only, if orphans are not adopted.
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
        for pid in descendants::of(rustix::process::getpid()) {
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

    /// All processes below this one, including ended ones that are not reaped: a running process looks like
    /// one after its first thread has ended.
    pub(super) fn of(top: Pid) -> Vec<Pid> {
        let top = top.as_raw_nonzero().get();
        let parents: HashMap<i32, i32> = all().collect();
        let is_below = |mut pid: i32| {
            // Processes come and go while this is read, so a cycle could appear.
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

    /// All processes with their parents.
    fn all() -> impl Iterator<Item = (i32, i32)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(entry.path().join("stat")).ok()?;
            Some((pid, parent(&stat)?))
        })
    }

    /// Fourth field of `stat`. The second, the name, may contain anything.
    fn parent(stat: &[u8]) -> Option<i32> {
        let behind_name = &stat[memchr::memrchr(b')', stat)? + 1..];
        std::str::from_utf8(behind_name).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
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
            SupervisorReport::NotStarted { why: "`x`: no such file".to_owned() },
            SupervisorReport::Ended { how: "signal: 9 (SIGKILL)".to_owned() },
        ] {
            let line = report.to_line();
            assert_eq!(SupervisorReport::read(line.strip_suffix('\n').expect("a line")), Some(report));
        }
        assert_eq!(SupervisorReport::read("what"), None);
        let two = SupervisorReport::Ended { how: "a\nb".to_owned() };
        assert_eq!(two.to_line(), "ended a b\n");
    }
}
