//! Writes log lines to standard error.
//!
//! Lines are buffered and written together, because one system call for each would cost a quick call a sixth
//! of its time. A line waits at most 200 ms; a warning or an error is written immediately, and everything is
//! when [`LogGuard`] is dropped.
//!
//! One thread writes, and no request waits for it, because the reader of standard error may be stalled, or
//! the disk full. Lines that do not fit into the buffer, or cannot be written, are dropped and counted in the
//! metrics immediately; their number is the first line when writing succeeds again.

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

/// Keeps the log of the process running. Dropping it flushes the buffer.
#[must_use = "what is gathered is written when this is dropped"]
#[derive(Debug)]
pub struct LogGuard(Arc<LogBuffer>);

/// Size at which the buffer is flushed, in bytes.
const FLUSH_BYTES: usize = 16 << 10;

/// Maximum size of the buffer while writing is blocked, in bytes: about 4,000 access log entries. Further
/// lines are dropped and counted. A second buffer of this size may be in the process of being written.
pub const MAX_BUFFERED_BYTES: usize = 1 << 20;

/// Maximum time that a line is buffered.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// Time limit of the final flush, so that a stalled reader does not keep the process running.
const FINAL_FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The buffer between the threads that log and the writer thread.
#[derive(Debug, Default)]
struct LogBuffer {
    /// Locked while lines are added or taken, never while they are written.
    lines: Mutex<PendingLines>,
    /// Wakes the writer.
    wakeup: Condvar,
    /// Signals that all lines are written.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    bytes: Vec<u8>,
    /// The lines are to be written immediately.
    is_urgent: bool,
    /// Each line is to be written as it comes, because the log is closing.
    is_closed: bool,
    /// The writer has taken lines and has not finished writing them.
    is_writing: bool,
    /// The number of lines dropped since the writer last took the buffer.
    dropped: u64,
    /// The writer's own line about dropped lines, which is written first and has no size limit.
    notice: Vec<u8>,
}

thread_local! {
    /// Whether this thread is logging the writer's own notice.
    static IS_NOTICE: Cell<bool> = const { Cell::new(false) };
}

/// The throttle of lines that peers cause.
static THROTTLE: LazyLock<Arc<LogThrottle>> = LazyLock::new(Arc::default);

/// Whether a report of suppressed lines is scheduled.
static IS_REPORT_SCHEDULED: AtomicBool = AtomicBool::new(false);

/// The environment variable with the log filter.
const FILTER_VARIABLE: &str = "DEFERRAL_LOG";

/// The default log filter.
const DEFAULT_FILTER: &str = "info";

/// Checks the syntax of a log filter.
///
/// # Errors
/// A description of why the filter is invalid.
pub fn check_filter(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    EnvFilter::try_new(text).map(drop).map_err(|error| error.to_string())
}

/// Starts the log of the process. The filter is the variable `DEFERRAL_LOG`, else `level`, else `info`, in
/// the syntax of `tracing`: `warn,deferral::task=info`. `now` reads the wall clock.
///
/// Further calls have no effect.
pub fn start(format: LineFormat, level: Option<&str>, now: fn() -> SystemTime) -> LogGuard {
    // Ignore the values `text` and `json` of `DEFERRAL_LOG`, which is also the variable of the flag `--log`.
    let is_format = |value: &str| matches!(value.trim(), "text" | "json" | "");
    let configured = env::var(FILTER_VARIABLE).ok().filter(|value| !is_format(value));
    let (filter, filter_error) = parse_filter(configured.as_deref().or(level));
    let buffer = Arc::new(LogBuffer::default());
    let writer = Arc::clone(&buffer);
    thread::Builder::new()
        .name("log".into())
        .spawn(move || writer.write_lines(|lines| write_available(&mut io::stderr(), lines)))
        .expect("a thread can be started at process start");
    let layer_buffer = Arc::clone(&buffer);
    let sink = move |level: &Level, line: &str| layer_buffer.add(line.as_bytes(), *level <= Level::WARN);
    // `NO_COLOR` disables colours if it is set and not empty (no-color.org).
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let lines = LogLayer::new(format, now, sink)
        .coloured(colour)
        .throttled(THROTTLE.clone(), schedule_suppressed_report);
    let _ = tracing::subscriber::set_global_default(registry().with(filter).with(lines));
    if let Some(error) = filter_error {
        tracing::warn!(target: "deferral", event = "log_filter_invalid", variable = FILTER_VARIABLE, used = DEFAULT_FILTER, %error);
    }
    LogGuard(buffer)
}

/// Logs the number of lines suppressed since the last report.
pub(super) fn log_suppressed() {
    for SuppressedLines { event, scope, count } in THROTTLE.take_suppressed() {
        LogLinesSuppressed { lines: &event, scope: &scope, count }.emit();
    }
}

/// Schedules a report of suppressed lines, on a thread that ends with the report.
fn schedule_suppressed_report() {
    if IS_REPORT_SCHEDULED.swap(true, Ordering::Relaxed) {
        return;
    }
    let spawned = thread::Builder::new().name("log-suppressed".into()).spawn(|| {
        thread::sleep(WINDOW);
        IS_REPORT_SCHEDULED.store(false, Ordering::Relaxed);
        log_suppressed();
    });
    // If no thread can be started, the next suppressed line tries again.
    if spawned.is_err() {
        IS_REPORT_SCHEDULED.store(false, Ordering::Relaxed);
    }
}

/// Writes as much as possible, and returns the number of bytes written. Waits while writing would block.
fn write_available(to: &mut impl Write, lines: &[u8]) -> usize {
    let mut count = 0;
    while count < lines.len() {
        match to.write(&lines[count..]) {
            Ok(written) if written > 0 => count += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FLUSH_INTERVAL),
            // Give up: only its metric can report a log that cannot be written.
            Ok(_) | Err(_) => return count,
        }
    }
    count
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

/// Parses the filter; uses the default if there is none. If the filter is invalid, returns the default and
/// the error.
fn parse_filter(configured: Option<&str>) -> (EnvFilter, Option<ParseError>) {
    let default_filter = || EnvFilter::new(DEFAULT_FILTER);
    match configured.filter(|value| !value.trim().is_empty()).map(EnvFilter::try_new) {
        None => (default_filter(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (default_filter(), Some(error)),
    }
}

// === impl LogGuard ===

impl Drop for LogGuard {
    fn drop(&mut self) {
        log_suppressed();
        self.0.close(FINAL_FLUSH_LIMIT);
    }
}

// === impl LogBuffer ===

impl LogBuffer {
    fn lock(&self) -> MutexGuard<'_, PendingLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it as dropped if it does not fit.
    fn add(&self, line: &[u8], is_urgent: bool) {
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
        lines.is_urgent |= is_urgent;
        let is_due = lines.is_due();
        drop(lines);
        // In all other cases the writer is awake already.
        if before == 0 || (is_due && !was_due) {
            self.wakeup.notify_one();
        }
    }

    /// Passes lines to `write`, which returns the number of bytes that it wrote, until the process ends.
    fn write_lines(&self, mut write: impl FnMut(&[u8]) -> usize) {
        // The taken lines; the number of dropped lines that have not been reported; and whether the last line
        // was written only in part.
        let (mut batch, mut unreported, mut is_torn) = (Vec::new(), 0, false);
        loop {
            unreported += self.take_lines(&mut batch);
            let lost = write_after_torn(&batch, &mut is_torn, &mut write);
            metrics::record_log_lines_dropped(lost);
            unreported += lost;
            batch.clear();
            // Report dropped lines only once writing succeeds: a lost report would have to be reported, too.
            if lost == 0
                && unreported > 0
                && write_after_torn(&self.format_notice(unreported), &mut is_torn, &mut write) == 0
            {
                unreported = 0;
            }
        }
    }

    /// Formats the line that reports dropped lines; empty if the filter excludes it.
    fn format_notice(&self, dropped: u64) -> Vec<u8> {
        IS_NOTICE.set(true);
        LogLinesDropped { count: dropped }.emit();
        IS_NOTICE.set(false);
        mem::take(&mut self.lock().notice)
    }

    /// Waits for lines to write, and moves them to `batch`. Returns the number of dropped lines.
    fn take_lines(&self, batch: &mut Vec<u8>) -> u64 {
        let mut lines = self.lock();
        lines.is_writing = false;
        if lines.bytes.is_empty() {
            self.drained.notify_all();
        }
        let waited = self.wakeup.wait_while(lines, |lines| lines.bytes.is_empty());
        let lines = waited.unwrap_or_else(PoisonError::into_inner);
        let waited = self.wakeup.wait_timeout_while(lines, FLUSH_INTERVAL, |lines| !lines.is_due());
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        mem::swap(&mut lines.bytes, batch);
        lines.is_urgent = false;
        lines.is_writing = true;
        mem::take(&mut lines.dropped)
    }

    /// Closes the log, and waits until all lines are written, at most for `limit`.
    fn close(&self, limit: Duration) {
        let mut lines = self.lock();
        lines.is_closed = true;
        self.wakeup.notify_one();
        let has_pending = |lines: &mut PendingLines| lines.is_writing || !lines.bytes.is_empty();
        drop(self.drained.wait_timeout_while(lines, limit, has_pending));
    }
}

/// Writes lines, after ending a line that was written in part. Returns the number of lines that were lost.
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

// === impl PendingLines ===

impl PendingLines {
    /// Whether the buffer must be written now.
    fn is_due(&self) -> bool {
        self.is_urgent || self.is_closed || self.bytes.len() >= FLUSH_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn an_invalid_filter_is_reported_and_replaced_by_the_default() {
        for (chosen, written, wrong) in [
            (None, "info", false),
            (Some(""), "info", false),
            (Some("warn,deferral::task=info"), "deferral::task=info,warn", false),
            (Some("[{task=1}]=debug"), "[{task=1}]=debug", false),
            (Some("deferral=loud"), "info", true),
        ] {
            let (filter, error) = parse_filter(chosen);
            assert_eq!((filter.to_string().as_str(), error.is_some()), (written, wrong), "{chosen:?}");
        }
    }

    /// A writer that passes its lines to a test, which controls its pace.
    fn writer(gathered: &Arc<LogBuffer>) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::sync_channel(0);
        let writer = Arc::clone(gathered);
        thread::spawn(move || {
            writer.write_lines(|lines| {
                // The receiver is dropped when the test ends.
                let _ = sender.send(String::from_utf8(lines.to_vec()).expect("lines are text"));
                lines.len()
            });
        });
        receiver
    }

    #[test]
    fn a_stalled_reader_does_not_block_logging() {
        let gathered = Arc::new(LogBuffer::default());
        let receiver = writer(&gathered);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        gathered.add(&line, true);
        // The writer has taken the line and is blocked.
        while !gathered.lock().is_writing {
            thread::yield_now();
        }
        let fit = MAX_BUFFERED_BYTES / line.len();
        for _ in 0..fit + 7 {
            gathered.add(&line, true);
        }
        assert_eq!(gathered.lock().dropped, 7);
        assert!(gathered.lock().bytes.capacity() <= 2 * MAX_BUFFERED_BYTES);
        // The reader continues.
        assert_eq!(receiver.recv().expect("the writer writes").len(), line.len());
        assert_eq!(receiver.recv().expect("the writer writes").len(), fit * line.len());
        assert_eq!(gathered.lock().dropped, 0);
        gathered.add(b"after\n", true);
        assert_eq!(receiver.recv().expect("the writer writes"), "after\n");
    }

    #[test]
    fn lines_lost_on_a_full_disk_are_counted_and_reported_later() {
        let gathered = Arc::new(LogBuffer::default());
        let (given, room) = mpsc::sync_channel::<usize>(0);
        let (sender, receiver) = mpsc::channel();
        let writer = Arc::clone(&gathered);
        thread::spawn(move || {
            let lines = LogLayer::new(LineFormat::Json, || SystemTime::UNIX_EPOCH, {
                let writer = Arc::clone(&writer);
                move |_: &Level, line: &str| writer.add(line.as_bytes(), true)
            });
            let _log = tracing::subscriber::set_default(registry().with(lines));
            // Writes as many bytes as the test allows.
            writer.write_lines(|lines| {
                let count = room.recv().unwrap_or_default().min(lines.len());
                let _ = sender.send(String::from_utf8(lines[..count].to_vec()).expect("lines are text"));
                count
            });
        });
        let dropped = metrics::log_lines_dropped_so_far;
        let before = dropped();
        let log = |lines: &[u8], rooms: &[usize]| {
            gathered.add(lines, true);
            rooms
                .iter()
                .map(|room| {
                    given.send(*room).expect("it writes");
                    receiver.recv().expect("it says")
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(log(b"first\nsecond\n", &[0]), [""]);
        assert_eq!(log(b"third\nfourth\nfifth\n", &[8]), ["third\nfo"], "a line is torn off");
        let written = log(b"sixth\n", &[1, 99, 999]);
        assert_eq!(written[..2], ["\n", "sixth\n"]);
        assert!(written[2].contains(r#""event":"log_lines_dropped","count":4"#), "{}", written[2]);
        assert_eq!(dropped(), before + 4);
        assert_eq!(log(b"seventh\n", &[99]), ["seventh\n"], "it is reported once");
    }

    #[test]
    fn the_final_flush_has_a_time_limit() {
        let gathered = Arc::new(LogBuffer::default());
        gathered.add(b"last words\n", false);
        // Nothing writes the buffer yet.
        gathered.close(Duration::from_millis(1));
        let receiver = writer(&gathered);
        let reader = thread::spawn(move || receiver.recv().expect("the writer writes"));
        gathered.close(Duration::from_secs(60));
        assert_eq!(reader.join().expect("it reads"), "last words\n");
        assert!(gathered.lock().bytes.is_empty());
    }
}
