//! Where what is told goes: standard error, a line each.
//!
//! Lines are gathered and written together, because a system call for each would cost a quick call
//! a sixth of its time. What is told waits at most 200 ms; a warning or an error is
//! written at once, and so is everything when [`Log`] is dropped.

use super::line::{Format, Lines};
use std::{
    env,
    io::{self, IsTerminal, Write},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, SystemTime},
};
use tracing::Level;
use tracing_subscriber::{EnvFilter, filter::ParseError, layer::SubscriberExt, registry};

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
    lines: Mutex<Waiting>,
    /// Told when there is something to write, and when it is over.
    told: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    over: bool,
}

/// Chooses what is told.
const CHOICE: &str = "DEFERRAL_LOG";

/// What is told where nothing was chosen.
const USUAL: &str = "info";

/// Begins to write the log, for the whole process. `DEFERRAL_LOG` chooses what (`info` by default), in
/// the syntax of `tracing`'s filters: `warn,deferral::task=info`. `now` is the wall clock.
///
/// Once only: a second call changes nothing.
pub fn start(format: Format, now: fn() -> SystemTime) -> Log {
    let (filter, wrong) = filter(env::var(CHOICE).ok().as_deref());
    let gathered = Arc::new(Gathered::default());
    let writer = Arc::clone(&gathered);
    thread::Builder::new()
        .name("log".into())
        .spawn(move || writer.write_now_and_then())
        .expect("the system gives threads to a process that starts");
    let taken = Arc::clone(&gathered);
    let take = move |level: &Level, line: &str| taken.add(line.as_bytes(), *level <= Level::WARN);
    // `NO_COLOR` that is set and not empty means what it says (no-color.org).
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let lines = Lines::new(format, now, take).coloured(colour);
    let _ = tracing::subscriber::set_global_default(registry().with(filter).with(lines));
    if let Some(error) = wrong {
        tracing::warn!(target: "deferral", event = "log_filter_invalid", variable = CHOICE, used = USUAL, %error);
    }
    Log(gathered)
}

/// What was chosen, or the usual and what is wrong with the choice.
fn filter(chosen: Option<&str>) -> (EnvFilter, Option<ParseError>) {
    let usual = || EnvFilter::new(USUAL);
    match chosen.filter(|chosen| !chosen.trim().is_empty()).map(EnvFilter::try_new) {
        None => (usual(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual(), Some(error)),
    }
}

// === impl Log ===

impl Drop for Log {
    fn drop(&mut self) {
        let mut lines = self.0.lock();
        lines.over = true;
        lines.write();
        self.0.told.notify_one();
    }
}

// === impl Gathered ===

impl Gathered {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
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

// === impl Waiting ===

impl Waiting {
    fn write(&mut self) {
        // A log that cannot be written has nowhere to say so.
        let _ = io::stderr().write_all(&self.bytes);
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_is_none_is_told_of_and_the_usual_is_told() {
        for (chosen, told, wrong) in [
            (None, "info", false),
            (Some(""), "info", false),
            (Some("warn,deferral::task=info"), "deferral::task=info,warn", false),
            (Some("[{task=1}]=debug"), "[{task=1}]=debug", false),
            (Some("deferral=loud"), "info", true),
        ] {
            let (filter, error) = filter(chosen);
            assert_eq!((filter.to_string().as_str(), error.is_some()), (told, wrong), "{chosen:?}");
        }
    }
}
