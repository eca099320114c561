//! Where what is told goes: standard error, a line each.
//!
//! Lines are gathered and written together, because a system call for each would cost a quick call
//! a sixth of its time. What is told waits at most 200 ms; a warning or an error is
//! written at once, and so is everything when [`Log`] is dropped.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter,
    fmt::{self, MakeWriter},
};

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// A JSON object.
    Json,
}

/// Keeps the log going; dropping it writes what is left.
#[must_use = "what is gathered is written when this is dropped"]
#[derive(Debug)]
pub struct Log(Arc<Gathered>);

/// So much is gathered before it is written, in bytes.
const ENOUGH: usize = 16 << 10;

/// How long a line may wait for others.
const PATIENCE: Duration = Duration::from_millis(200);

/// The lines that wait to be written.
#[derive(Debug, Default)]
struct Gathered {
    /// Held while lines are added and while they are written, never longer.
    lines: Mutex<Lines>,
    /// Told when there is something to write, and when it is over.
    told: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    over: bool,
}

/// Adds one line.
#[derive(Debug)]
struct Writer {
    gathered: Arc<Gathered>,
    at_once: bool,
}

/// Begins to write the log, for the whole process. `DEFERRAL_LOG` chooses what (`info` by default), in
/// the syntax of `tracing`'s filters: `warn,deferral::task=info`.
///
/// Once only: a second call changes nothing.
pub fn start(format: Format) -> Log {
    let filter = EnvFilter::try_from_env("DEFERRAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let gathered = Arc::new(Gathered::default());
    let writer = Arc::clone(&gathered);
    thread::Builder::new()
        .name("log".into())
        .spawn(move || writer.write_now_and_then())
        .expect("the system gives threads to a process that starts");
    let lines = fmt::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(Gatherer(Arc::clone(&gathered)));
    let _ = match format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
    Log(gathered)
}

/// Makes a writer for each line.
#[derive(Debug)]
struct Gatherer(Arc<Gathered>);

// === impl Log ===

impl Drop for Log {
    fn drop(&mut self) {
        let mut lines = self.0.lock();
        lines.over = true;
        lines.write();
        self.0.told.notify_one();
    }
}

// === impl Gatherer ===

impl<'a> MakeWriter<'a> for Gatherer {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        Writer { gathered: Arc::clone(&self.0), at_once: false }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Writer {
        Writer { gathered: Arc::clone(&self.0), at_once: *about.level() <= Level::WARN }
    }
}

// === impl Writer ===

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.gathered.add(line, self.at_once);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Gathered ===

impl Gathered {
    fn lock(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8], at_once: bool) {
        let mut lines = self.lock();
        let first = lines.bytes.is_empty();
        lines.bytes.extend_from_slice(line);
        // After the end nobody would come by again.
        if at_once || lines.over || lines.bytes.len() >= ENOUGH {
            lines.write();
        } else if first {
            self.told.notify_one();
        }
    }

    /// Writes what has gathered, some time after its first line, until it is over.
    fn write_now_and_then(&self) {
        let mut lines = self.lock();
        while !lines.over {
            if lines.bytes.is_empty() {
                lines = self.told.wait(lines).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.told.wait_timeout_while(lines, PATIENCE, |lines| !lines.over);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
            lines.write();
        }
    }
}

// === impl Lines ===

impl Lines {
    fn write(&mut self) {
        // A log that cannot be written has nowhere to say so.
        let _ = io::stderr().write_all(&self.bytes);
        self.bytes.clear();
    }
}
