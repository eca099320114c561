//! A process of this bench: started, measured from outside, and ended with us.

use super::Failure;
use std::{fs, net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader, copy, sink},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

/// How long a process may take until it serves. Generous, as some run under valgrind.
const START: Duration = Duration::from_secs(60);

/// A server that serves. Dropping it ends it.
pub(crate) struct Process {
    child: Child,
    pid: u32,
    pub(crate) address: SocketAddr,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    /// All of it, in nanoseconds, as the scheduler counts it.
    pub(crate) ns: u64,
    /// The two parts, in clock ticks: coarse, good enough for a proportion.
    user: u64,
    system: u64,
}

// === impl Process ===

impl Process {
    /// Starts a server that prints `listening on http://ADDRESS/…` once it serves.
    pub(crate) async fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut child = spawn(command.stdout(Stdio::piped()))?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let address = timeout(START, async {
            while let Some(line) = lines.next_line().await? {
                if let Some(address) = address_in(&line) {
                    return Ok(address);
                }
            }
            Err(Failure::from("it ended before it served"))
        });
        let address = address
            .await
            .unwrap_or_else(|_| Err(Failure::from("it did not say where it listens")))
            .map_err(|error| format!("{command:?}: {error}"))?;
        // Whatever else it says must not fill the pipe and stop it.
        tokio::spawn(async move { copy(&mut lines.into_inner(), &mut sink()).await });
        Ok(Self { pid: child.id().ok_or("it ended at once")?, child, address })
    }

    /// Starts a server that listens on `address` and says nothing.
    pub(crate) async fn start_at(command: &mut Command, address: SocketAddr) -> Result<Self, Failure> {
        let child = spawn(command.stdout(Stdio::null()))?;
        let pid = child.id().ok_or("it ended at once")?;
        let up = timeout(START, async {
            while TcpStream::connect(address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        up.await.map_err(|_| format!("{command:?} does not listen on {address}"))?;
        Ok(Self { child, pid, address })
    }

    pub(crate) fn cpu(&self) -> Result<Cpu, Failure> {
        let mut ns = 0;
        for thread in fs::read_dir(self.proc("task"))? {
            let line = fs::read_to_string(thread?.path().join("schedstat"))?;
            ns += line.split(' ').next().ok_or("an empty schedstat")?.parse::<u64>()?;
        }
        let stat = fs::read_to_string(self.proc("stat"))?;
        // Counted from behind the name, which may hold anything: utime and stime are 14 and 15.
        let fields = stat.rsplit_once(')').ok_or("a stat without a name")?.1;
        let mut ticks = fields.split_whitespace().skip(11).map(str::parse);
        let mut tick = || ticks.next().ok_or("a short stat");
        Ok(Cpu { ns, user: tick()??, system: tick()?? })
    }

    /// Memory of its own that is resident, in KiB.
    pub(crate) fn resident(&self) -> Result<f64, Failure> {
        let status = fs::read_to_string(self.proc("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Ends it in order, so that it can say its last words.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid)?).ok_or("a pid is not 0")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        timeout(START, self.child.wait()).await.map_err(|_| "it does not end")??;
        Ok(())
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn();
    Ok(child.map_err(|error| format!("{command:?} cannot be started: {error}"))?)
}

/// The address in `… http://127.0.0.1:8808/mcp`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on http://")?;
    rest.split('/').next()?.parse().ok()
}

// === impl Cpu ===

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            ns: self.ns.saturating_sub(before.ns),
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { ns: self.ns + other.ns, user: self.user + other.user, system: self.system + other.system }
    }

    /// How much of it was spent outside the kernel.
    pub(crate) fn user_share(self) -> f64 {
        self.user as f64 / (self.user + self.system).max(1) as f64
    }
}
