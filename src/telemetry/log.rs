//! Where what is told goes: standard error, a line each.
//!
//! Lines are gathered and written together, because a system call for each would cost a quick call
//! a sixth of its time. What is told waits at most 200 ms; a warning or an error is
//! written at once, and so is everything when [`LogGuard`] is dropped.
//!
//! One thread writes, and nobody waits for it: whoever reads our standard error may have stalled, or the disk that it goes to
//! be full, and a call must not wait for that. What does not fit meanwhile, and what is not taken, is dropped and counted
//! at once, for whoever looks at the counts; and the count is the first thing said when lines flow again.

use super::{
    events::{LogLinesDropped, LogLinesSuppressed},
    line::{LineFormat, LogLayer},
    log_throttle::{LogThrottle, SuppressedLines, WINDOW},
    metrics,
};
use std::{
    cell::Cell,
    env,
    io::{self, IsTerminal, Write},
    mem,
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};
use tracing::Level;
use tracing_subscriber::{EnvFilter, filter::ParseError, layer::SubscriberExt, registry};

/// Keeps the log going; dropping it writes what is left.
#[must_use = "what is gathered is written when this is dropped"]
#[derive(Debug)]
pub struct LogGuard(Arc<LogBuffer>);

/// So much is gathered before it is written, in bytes.
const FLUSH_BYTES: usize = 16 << 10;

/// The most that is gathered while nothing is taken of what is written, in bytes. Some 4,000 access
/// lines; further ones are dropped and counted. As much again may be on its way out.
pub const MAX_BUFFERED_BYTES: usize = 1 << 20;

/// How long a line may wait for others.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// How long the end may take: for a reader that has stalled the process does not stay.
const FINAL_FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The lines that wait to be written.
#[derive(Debug, Default)]
struct LogBuffer {
    /// Held while lines are added and while they are taken out to be written, never while they are
    /// written.
    lines: Mutex<PendingLines>,
    /// Tells the writer that there is something to write.
    wakeup: Condvar,
    /// Tells who waits for the end that all is written.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    bytes: Vec<u8>,
    /// Something is to be written at once.
    is_urgent: bool,
    /// Nobody gathers any more: each line is written as it comes.
    is_closed: bool,
    /// The writer has taken lines out and not yet written them.
    is_writing: bool,
    /// Lines that there was no room for since the writer last took what there is.
    dropped: u64,
    /// What the writer has to say itself. It goes out before everything else, and always has room.
    notice: Vec<u8>,
}

thread_local! {
    /// Whether what this thread tells is the writer's own notice.
    static IS_NOTICE: Cell<bool> = const { Cell::new(false) };
}

/// Bounds what peers can have written.
static THROTTLE: LazyLock<Arc<LogThrottle>> = LazyLock::new(Arc::default);

/// Whether a thread waits to tell what was suppressed.
static IS_REPORT_SCHEDULED: AtomicBool = AtomicBool::new(false);

/// Chooses what is told.
const FILTER_VARIABLE: &str = "DEFERRAL_LOG";

/// What is told where nothing was chosen.
const DEFAULT_FILTER: &str = "info";

/// Whether this can choose what is told.
///
/// # Errors
/// What is wrong with it, in words.
pub fn is_filter(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    EnvFilter::try_new(text).map(drop).map_err(|error| error.to_string())
}

/// Begins to write the log, for the whole process. `DEFERRAL_LOG` chooses what, else `level` (`info` by default), in
/// the syntax of `tracing`'s filters: `warn,deferral::task=info`. `now` is the wall clock.
///
/// Once only: a second call changes nothing.
pub fn start(format: LineFormat, level: Option<&str>, now: fn() -> SystemTime) -> LogGuard {
    // A format is meant for the command line, of whose `--log` it is the variable.
    let is_format = |chosen: &str| matches!(chosen.trim(), "text" | "json" | "");
    let chosen = env::var(FILTER_VARIABLE).ok().filter(|chosen| !is_format(chosen));
    let (filter, wrong) = filter(chosen.as_deref().or(level));
    let gathered = Arc::new(LogBuffer::default());
    let writer = Arc::clone(&gathered);
    thread::Builder::new()
        .name("log".into())
        .spawn(move || writer.write_lines(|lines| write_available(&mut io::stderr(), lines)))
        .expect("the system gives threads to a process that starts");
    let taken = Arc::clone(&gathered);
    let take = move |level: &Level, line: &str| taken.add(line.as_bytes(), *level <= Level::WARN);
    // `NO_COLOR` that is set and not empty means what it says (no-color.org).
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let lines = LogLayer::new(format, now, take)
        .coloured(colour)
        .throttled(THROTTLE.clone(), schedule_suppressed_report);
    let _ = tracing::subscriber::set_global_default(registry().with(filter).with(lines));
    if let Some(error) = wrong {
        tracing::warn!(target: "deferral", event = "log_filter_invalid", variable = FILTER_VARIABLE, used = DEFAULT_FILTER, %error);
    }
    LogGuard(gathered)
}

/// Tells how many lines were suppressed since this was last told.
pub(super) fn log_suppressed() {
    for SuppressedLines { event, of, count } in THROTTLE.take_suppressed() {
        LogLinesSuppressed { lines: &event, of: &of, count }.emit();
    }
}

/// The same in a while. No thread waits where nothing is suppressed.
fn schedule_suppressed_report() {
    if IS_REPORT_SCHEDULED.swap(true, Ordering::Relaxed) {
        return;
    }
    let waiting = thread::Builder::new().name("log-suppressed".into()).spawn(|| {
        thread::sleep(WINDOW);
        IS_REPORT_SCHEDULED.store(false, Ordering::Relaxed);
        log_suppressed();
    });
    // Where there is no thread, the next line that is suppressed first tries again.
    if waiting.is_err() {
        IS_REPORT_SCHEDULED.store(false, Ordering::Relaxed);
    }
}

/// Writes as much of this as is taken, and says how many bytes that was. Whoever takes nothing at the moment is waited for.
fn write_available(to: &mut impl Write, lines: &[u8]) -> usize {
    let mut count = 0;
    while count < lines.len() {
        match to.write(&lines[count..]) {
            Ok(more) if more > 0 => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FLUSH_INTERVAL),
            // A log that cannot be written has nowhere to say so but in the counts.
            Ok(_) | Err(_) => return count,
        }
    }
    count
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

/// What was chosen, or the usual and what is wrong with the choice.
fn filter(chosen: Option<&str>) -> (EnvFilter, Option<ParseError>) {
    let usual = || EnvFilter::new(DEFAULT_FILTER);
    match chosen.filter(|chosen| !chosen.trim().is_empty()).map(EnvFilter::try_new) {
        None => (usual(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual(), Some(error)),
    }
}

// === impl Log ===

impl Drop for LogGuard {
    fn drop(&mut self) {
        log_suppressed();
        self.0.close(FINAL_FLUSH_LIMIT);
    }
}

// === impl Gathered ===

impl LogBuffer {
    fn lock(&self) -> MutexGuard<'_, PendingLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it where there is no room for it.
    fn add(&self, line: &[u8], at_once: bool) {
        let mut lines = self.lock();
        if IS_NOTICE.get() {
            return lines.notice.extend_from_slice(line);
        }
        let before = lines.bytes.len();
        if before + line.len() > MAX_BUFFERED_BYTES {
            lines.dropped += 1;
            return metrics::record_log_lines_dropped(1);
        }
        let was_due = lines.is_due();
        lines.bytes.extend_from_slice(line);
        lines.is_urgent |= at_once;
        let is_due = lines.is_due();
        drop(lines);
        // The writer looks for itself from then on.
        if before == 0 || (is_due && !was_due) {
            self.wakeup.notify_one();
        }
    }

    /// Gives lines to `write`, some time after the first of them, for ever. It says how many bytes were taken.
    fn write_lines(&self, mut write: impl FnMut(&[u8]) -> usize) {
        // Lines that are missing and of which nobody has read; and whether the last of what was taken is half a line.
        let (mut taken, mut missing, mut is_torn) = (Vec::new(), 0, false);
        loop {
            missing += self.take(&mut taken);
            let lost = write_after_torn(&taken, &mut is_torn, &mut write);
            metrics::record_log_lines_dropped(lost);
            missing += lost;
            taken.clear();
            // Not before lines flow: a notice that is lost, too, would be the next to be told of.
            if lost == 0
                && missing > 0
                && write_after_torn(&self.notice(missing), &mut is_torn, &mut write) == 0
            {
                missing = 0;
            }
        }
    }

    /// The line that says how many are missing; empty where nothing of the kind is told.
    fn notice(&self, missing: u64) -> Vec<u8> {
        IS_NOTICE.set(true);
        LogLinesDropped { count: missing }.emit();
        IS_NOTICE.set(false);
        mem::take(&mut self.lock().notice)
    }

    /// Waits until something is to be written, and takes it; says how many lines there was no room for.
    fn take(&self, taken: &mut Vec<u8>) -> u64 {
        let mut lines = self.lock();
        lines.is_writing = false;
        if lines.bytes.is_empty() {
            self.drained.notify_all();
        }
        let waited = self.wakeup.wait_while(lines, |lines| lines.bytes.is_empty());
        let lines = waited.unwrap_or_else(PoisonError::into_inner);
        let waited = self.wakeup.wait_timeout_while(lines, FLUSH_INTERVAL, |lines| !lines.is_due());
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        mem::swap(&mut lines.bytes, taken);
        lines.is_urgent = false;
        lines.is_writing = true;
        mem::take(&mut lines.dropped)
    }

    /// Waits until all is written, at most so long.
    fn close(&self, limit: Duration) {
        let mut lines = self.lock();
        lines.is_closed = true;
        self.wakeup.notify_one();
        let left = |lines: &mut PendingLines| lines.is_writing || !lines.bytes.is_empty();
        drop(self.drained.wait_timeout_while(lines, limit, left));
    }
}

/// Has lines written, behind the end of one that was torn off, and says how many were lost.
fn write_after_torn(lines: &[u8], is_torn: &mut bool, write: &mut impl FnMut(&[u8]) -> usize) -> u64 {
    if lines.is_empty() {
        return 0;
    }
    if *is_torn {
        if write(b"\n") == 0 {
            return count_lines(lines);
        }
        *is_torn = false;
    }
    let count = write(lines);
    *is_torn = lines[..count].last().is_some_and(|last| *last != b'\n');
    count_lines(&lines[count..])
}

// === impl Waiting ===

impl PendingLines {
    /// Whether what is here is to be written now.
    fn is_due(&self) -> bool {
        self.is_urgent || self.is_closed || self.bytes.len() >= FLUSH_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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

    /// A writer that gives what it is given to a test, which lets it go on piece by piece.
    fn writer(gathered: &Arc<LogBuffer>) -> mpsc::Receiver<String> {
        let (said, heard) = mpsc::sync_channel(0);
        let writer = Arc::clone(gathered);
        thread::spawn(move || {
            writer.write_lines(|lines| {
                // The test is over where nobody listens.
                let _ = said.send(String::from_utf8(lines.to_vec()).expect("lines are text"));
                lines.len()
            });
        });
        heard
    }

    #[test]
    fn a_reader_that_has_stalled_keeps_nobody_waiting() {
        let gathered = Arc::new(LogBuffer::default());
        let heard = writer(&gathered);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        gathered.add(&line, true);
        // It is taken out, and stays in the writer's hands.
        while !gathered.lock().is_writing {
            thread::yield_now();
        }
        let fit = MAX_BUFFERED_BYTES / line.len();
        for _ in 0..fit + 7 {
            gathered.add(&line, true);
        }
        assert_eq!(gathered.lock().dropped, 7);
        assert!(gathered.lock().bytes.capacity() <= 2 * MAX_BUFFERED_BYTES);
        // It reads again.
        assert_eq!(heard.recv().expect("the writer writes").len(), line.len());
        assert_eq!(heard.recv().expect("the writer writes").len(), fit * line.len());
        assert_eq!(gathered.lock().dropped, 0);
        gathered.add(b"after\n", true);
        assert_eq!(heard.recv().expect("the writer writes"), "after\n");
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_counted_and_told_once_it_takes_lines_again() {
        let gathered = Arc::new(LogBuffer::default());
        let (given, room) = mpsc::sync_channel::<usize>(0);
        let (said, heard) = mpsc::channel();
        let writer = Arc::clone(&gathered);
        thread::spawn(move || {
            let lines = LogLayer::new(LineFormat::Json, || SystemTime::UNIX_EPOCH, {
                let writer = Arc::clone(&writer);
                move |_: &Level, line: &str| writer.add(line.as_bytes(), true)
            });
            let _log = tracing::subscriber::set_default(registry().with(lines));
            // As much of each as the test says.
            writer.write_lines(|lines| {
                let count = room.recv().unwrap_or_default().min(lines.len());
                let _ = said.send(String::from_utf8(lines[..count].to_vec()).expect("lines are text"));
                count
            });
        });
        let dropped = metrics::log_lines_dropped_so_far;
        let before = dropped();
        let tell = |lines: &[u8], rooms: &[usize]| {
            gathered.add(lines, true);
            rooms
                .iter()
                .map(|room| {
                    given.send(*room).expect("it writes");
                    heard.recv().expect("it says")
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(tell(b"first\nsecond\n", &[0]), [""]);
        assert_eq!(tell(b"third\nfourth\nfifth\n", &[8]), ["third\nfo"], "a line is torn off");
        let told = tell(b"sixth\n", &[1, 99, 999]);
        assert_eq!(told[..2], ["\n", "sixth\n"]);
        assert!(told[2].contains(r#""event":"log_lines_dropped","count":4"#), "{}", told[2]);
        assert_eq!(dropped(), before + 4);
        assert_eq!(tell(b"seventh\n", &[99]), ["seventh\n"], "it is told once");
    }

    #[test]
    fn the_end_waits_for_what_is_left_but_not_for_ever() {
        let gathered = Arc::new(LogBuffer::default());
        gathered.add(b"last words\n", false);
        // Nobody writes.
        gathered.close(Duration::from_millis(1));
        let heard = writer(&gathered);
        let reader = thread::spawn(move || heard.recv().expect("the writer writes"));
        gathered.close(Duration::from_secs(60));
        assert_eq!(reader.join().expect("it reads"), "last words\n");
        assert!(gathered.lock().bytes.is_empty());
    }
}
