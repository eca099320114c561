//! Format of log lines: text or JSON.
//!
//! Field names are fixed, but values may come from peers: tool names, paths, error messages of servers. A
//! value must therefore never end a line, look like another field, or control a terminal:
//!
//! * in text, a value that is not a plain word is quoted, as in `reason="no such tool"`;
//! * in JSON, a value is a string, and member names are unique;
//! * in both, control characters and characters that change the display of others (line separators,
//!   directions, invisible characters) are escaped;
//! * long values are truncated.
//!
//! An access log entry is written for each request, so the cost is kept low: a value is scanned once and
//! copied, and only the changed digits of the time are formatted.

use super::log_throttle::{LogThrottle, ThrottleVerdict};
use crate::runtime::{Clock, SystemClock};
use std::{
    cell::RefCell,
    fmt::{self, Write},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// Plain text: `TIME LEVEL TARGET: message name=value …`.
    Text,
    /// One JSON object per line: `timestamp`, `level`, `logger` and the fields.
    Json,
}

/// A `tracing` layer that formats each event as a line, and passes the line to a sink.
#[derive(Clone, Debug)]
pub struct LogLayer<F> {
    format: LineFormat,
    /// Whether levels and times are coloured; only in text.
    is_coloured: bool,
    /// Reads the wall clock.
    now: fn() -> SystemTime,
    /// The sink, which gets complete lines.
    sink: F,
    /// The throttle, and the function that is called for the first suppressed line of each kind.
    throttle: Option<(Arc<LogThrottle>, fn())>,
}

/// Appends the fields of an event to a line.
struct FieldWriter<'a> {
    format: LineFormat,
    line: &'a mut String,
}

/// Appends a value to a line, up to a maximum size; then fails.
struct ValueWriter<'a> {
    line: &'a mut String,
    /// The number of bytes that may still be written.
    remaining: usize,
}

/// The formatted second of the previous line, which the next line mostly shares.
struct CachedSecond {
    since_epoch: u64,
    /// The second in UTC, as in `2026-07-28T10:30:00`.
    formatted: String,
}

/// Maximum size of a value, in bytes; a longer value is cut and ends with an ellipsis.
const MAX_VALUE_BYTES: usize = 4096;

/// The name of the field with the message of an event.
const MESSAGE: &str = "message";

thread_local! {
    /// Buffer in which lines are formatted, reused to avoid allocations.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
    static SECOND: RefCell<CachedSecond> = const { RefCell::new(CachedSecond { since_epoch: u64::MAX, formatted: String::new() }) };
}

// === impl LogLayer ===

impl<F: Fn(&Level, &str)> LogLayer<F> {
    /// Creates a layer with this format and clock. `sink` gets complete lines, including the line break.
    pub const fn new(format: LineFormat, now: fn() -> SystemTime, sink: F) -> Self {
        Self { format, is_coloured: false, now, sink, throttle: None }
    }

    /// Enables colours for a terminal, in text.
    #[must_use]
    pub fn coloured(mut self, is_coloured: bool) -> Self {
        self.is_coloured = is_coloured && self.format == LineFormat::Text;
        self
    }

    /// Limits the number of lines of one kind. `suppressed` is called for the first suppressed line of each
    /// kind.
    #[must_use]
    pub fn throttled(mut self, throttle: Arc<LogThrottle>, suppressed: fn()) -> Self {
        self.throttle = Some((throttle, suppressed));
        self
    }

    /// Whether the throttle lets an event through.
    fn is_admitted(&self, event: &Event<'_>) -> bool {
        let Some((throttle, suppressed)) = &self.throttle else { return true };
        match throttle.check(event, || SystemClock::new().now()) {
            ThrottleVerdict::Write => true,
            ThrottleVerdict::Suppress { is_first } => {
                if is_first {
                    suppressed();
                }
                false
            }
        }
    }

    fn write(&self, event: &Event<'_>, line: &mut String) {
        let metadata = event.metadata();
        let at = (self.now)().duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.format {
            LineFormat::Text => {
                let (dim, level_colour, reset) = match (self.is_coloured, *metadata.level()) {
                    (false, _) => ("", "", ""),
                    (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
                    (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
                    (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
                    (true, Level::DEBUG) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
                    (true, Level::TRACE) => ("\x1b[2m", "\x1b[35m", "\x1b[0m"),
                };
                line.push_str(dim);
                write_time(at, line);
                line.push_str(reset);
                line.push(' ');
                line.push_str(level_colour);
                // Pads levels to equal width.
                line.push_str(if metadata.level().as_str().len() == 4 { " " } else { "" });
                line.push_str(metadata.level().as_str());
                line.push_str(reset);
                line.push(' ');
                line.push_str(dim);
                line.push_str(metadata.target());
                line.push(':');
                line.push_str(reset);
                event.record(&mut FieldWriter { format: self.format, line });
            }
            LineFormat::Json => {
                line.push_str("{\"timestamp\":\"");
                write_time(at, line);
                line.push_str("\",\"level\":\"");
                line.push_str(metadata.level().as_str());
                line.push_str("\",\"logger\":\"");
                line.push_str(metadata.target());
                line.push('"');
                event.record(&mut FieldWriter { format: self.format, line });
                line.push('}');
            }
        }
        line.push('\n');
    }
}

impl<S, F> Layer<S> for LogLayer<F>
where
    S: Subscriber,
    F: Fn(&Level, &str) + 'static,
{
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if !self.is_admitted(event) {
            return;
        }
        let write_line = |line: &mut String| {
            line.clear();
            self.write(event, line);
            (self.sink)(event.metadata().level(), line);
        };
        LINE.with(|buffer| match buffer.try_borrow_mut() {
            Ok(mut line) => write_line(&mut line),
            // Formatting a value may itself log an event.
            Err(_) => write_line(&mut String::new()),
        });
    }
}

// === impl FieldWriter ===

impl FieldWriter<'_> {
    /// Writes the name of a field and the separator.
    fn write_name(&mut self, field: &Field) {
        let name = field.name();
        // A field whose name is a Rust keyword has the prefix of a raw identifier.
        let name = name.strip_prefix("r#").unwrap_or(name);
        match self.format {
            LineFormat::Text => {
                self.line.push(' ');
                if name != MESSAGE {
                    self.line.push_str(name);
                    self.line.push('=');
                }
            }
            LineFormat::Json => {
                self.line.push_str(",\"");
                // Member names must be unique (RFC 8259, 4).
                if matches!(name, "timestamp" | "level" | "logger") {
                    self.line.push_str("field_");
                }
                self.line.push_str(name);
                self.line.push_str("\":");
            }
        }
    }

    /// Writes a value that needs no escaping, such as a number or `true`.
    fn write_bare(&mut self, field: &Field, value: &str) {
        self.write_name(field);
        self.line.push_str(value);
    }

    /// Writes an arbitrary value: first as it is, then again with escapes if it contains special characters,
    /// which is rare.
    fn write_escaped(
        &mut self,
        field: &Field,
        write_value: impl FnOnce(&mut ValueWriter<'_>) -> fmt::Result,
    ) {
        self.write_name(field);
        let is_json = self.format == LineFormat::Json;
        let is_message = !is_json && field.name() == MESSAGE;
        if is_json {
            self.line.push('"');
        }
        let begin = self.line.len();
        let mut value = ValueWriter { line: self.line, remaining: MAX_VALUE_BYTES };
        // `write_value` fails only if the value exceeds the limit; the truncated value is kept.
        let is_truncated = write_value(&mut value).is_err();
        let value_marks = find_marks(&self.line.as_bytes()[begin..]);
        let is_quoted = !is_json && !is_message && (value_marks != 0 || self.line.len() == begin);
        if is_quoted || value_marks & (if is_message { HIDDEN } else { HIDDEN | QUOTES }) != 0 {
            let raw = self.line.split_off(begin);
            self.line.push_str(if is_quoted { "\"" } else { "" });
            write_with_escapes(&raw, !is_message, self.line);
        }
        self.line.push_str(if is_truncated { "…" } else { "" });
        self.line.push_str(if is_quoted || is_json { "\"" } else { "" });
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Write a plain word without scanning it again.
        if self.format == LineFormat::Text
            && !value.is_empty()
            && value.len() <= MAX_VALUE_BYTES
            && find_marks(value.as_bytes()) == 0
        {
            return self.write_bare(field, value);
        }
        self.write_escaped(field, |line| line.write_str(value));
    }

    /// Writes a value by its `Display` or `Debug` implementation.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write_escaped(field, |line| write!(line, "{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write_bare(field, itoa::Buffer::new().format(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write_bare(field, itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write_bare(field, if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match self.format {
            // JSON cannot represent NaN and infinities.
            LineFormat::Json if !value.is_finite() => self.write_bare(field, "null"),
            LineFormat::Json | LineFormat::Text => {
                self.write_name(field);
                write!(self.line, "{value}").expect("a string takes everything");
            }
        }
    }
}

// === impl ValueWriter ===

impl Write for ValueWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() <= self.remaining {
            self.remaining -= text.len();
            self.line.push_str(text);
            return Ok(());
        }
        let fitting = (0..=self.remaining).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.line.push_str(&text[..fitting]);
        self.remaining = 0;
        Err(fmt::Error)
    }
}

/// Marks characters that end a plain word in text: space and `=`.
const SEPARATOR: u8 = 1;
/// Marks characters that must be escaped inside quotes.
const QUOTES: u8 = 2;
/// Marks bytes of characters that may need escaping, including all that are not ASCII.
const HIDDEN: u8 = 4;

/// The marks of each byte value.
static MARKS: [u8; 256] = {
    let mut marks = [0; 256];
    let mut byte = 0;
    while byte < marks.len() {
        marks[byte] = match byte as u8 {
            b' ' | b'=' => SEPARATOR,
            b'"' | b'\\' => QUOTES,
            b'!'..=b'~' => 0,
            _ => HIDDEN,
        };
        byte += 1;
    }
    marks
};

/// The marks of all bytes of a value together.
fn find_marks(value: &[u8]) -> u8 {
    value.iter().fold(0, |found, &byte| found | MARKS[usize::from(byte)])
}

/// Appends a value with special characters escaped as in JSON.
fn write_with_escapes(raw: &str, escapes_quotes: bool, line: &mut String) {
    for character in raw.chars() {
        match character {
            '"' | '\\' if escapes_quotes => line.extend(['\\', character]),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                for unit in hidden.encode_utf16(&mut [0; 2]) {
                    write!(line, "\\u{unit:04x}").expect("a string takes everything");
                }
            }
            visible => line.push(visible),
        }
    }
}

/// Whether a character is not displayed as itself: terminal controls (C0 and C1), line separators, direction
/// changes, and invisible characters.
const fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Appends a time, as in `2026-07-28T10:30:00.000000Z`.
fn write_time(since_epoch: Duration, line: &mut String) {
    SECOND.with_borrow_mut(|second| {
        if second.since_epoch != since_epoch.as_secs() {
            second.since_epoch = since_epoch.as_secs();
            second.formatted.clear();
            let whole = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
            let whole = jiff::Timestamp::from_second(whole).unwrap_or(jiff::Timestamp::MAX);
            write!(second.formatted, "{whole:.0}").expect("a string takes everything");
            second.formatted.truncate("2026-07-28T10:30:00".len());
        }
        line.push_str(&second.formatted);
    });
    let mut digits = *b".000000Z";
    let mut remaining = since_epoch.subsec_micros();
    for digit in digits[1..7].iter_mut().rev() {
        *digit = b'0' + u8::try_from(remaining % 10).expect("a digit");
        remaining /= 10;
    }
    line.push_str(std::str::from_utf8(&digits).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::{layer::SubscriberExt, registry};

    /// The lines that are logged while `log` runs.
    fn logged(format: LineFormat, colour: bool, log: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let taken = Arc::clone(&lines);
        let now = || UNIX_EPOCH + Duration::from_micros(1_785_234_600_007_008);
        let take = move |_: &Level, line: &str| taken.lock().expect("one thread").push_str(line);
        let subscriber = registry().with(LogLayer::new(format, now, take).coloured(colour));
        tracing::subscriber::with_default(subscriber, log);
        let lines = lines.lock().expect("one thread");
        lines.clone()
    }

    /// A line with the field `said`, which must be the same for a string and for a value with `Display`.
    fn line_with(format: LineFormat, value: &str) -> String {
        let once = logged(format, false, || tracing::info!(said = value, end = 1));
        let shown = logged(format, false, || tracing::info!(said = %value, end = 1));
        assert_eq!(once, shown);
        assert_eq!(once.matches('\n').count(), 1, "{once}");
        once
    }

    /// Hostile values, and their representation in text.
    const HOSTILE: [(&str, &str); 14] = [
        ("", r#""""#),
        ("tools/call", "tools/call"),
        ("two words", r#""two words""#),
        ("a=b", r#""a=b""#),
        (r#"say "no""#, r#""say \"no\"""#),
        (r"C:\temp", r#""C:\\temp""#),
        ("x\n2026-07-28T10:30:00Z  INFO forged", r#""x\n2026-07-28T10:30:00Z  INFO forged""#),
        ("x\r\ty\u{0}", r#""x\r\ty\u0000""#),
        ("\u{1b}[2J\u{1b}]0;owned\u{7}", r#""\u001b[2J\u001b]0;owned\u0007""#),
        ("\u{9b}31m\u{7f}", r#""\u009b31m\u007f""#),
        ("a\u{2028}b\u{2029}c\u{85}d", r#""a\u2028b\u2029c\u0085d""#),
        ("\u{202e}gpj.exe\u{2066}\u{200b}\u{feff}", r#""\u202egpj.exe\u2066\u200b\ufeff""#),
        ("tag \u{e0041}", r#""tag \udb40\udc41""#),
        ("überweisen 送金 🙂", r#""überweisen 送金 🙂""#),
    ];

    #[test]
    fn a_hostile_value_is_quoted_in_text() {
        for (value, expected) in HOSTILE {
            let line = line_with(LineFormat::Text, value);
            let expected = format!(
                "2026-07-28T10:30:00.007008Z  INFO deferral::telemetry::line::tests: said={expected} end=1\n"
            );
            assert_eq!(line, expected, "{value:?}");
        }
    }

    #[test]
    fn a_hostile_value_is_escaped_in_json() {
        for (value, _) in HOSTILE {
            let line = line_with(LineFormat::Json, value);
            let object: serde_json::Value = serde_json::from_str(&line).expect("one object a line");
            let expected = json!({
                "timestamp": "2026-07-28T10:30:00.007008Z",
                "level": "INFO",
                "logger": "deferral::telemetry::line::tests",
                "said": value,
                "end": 1,
            });
            assert_eq!(object, expected);
            assert!(!line.trim_end_matches('\n').contains(is_hidden), "{line:?}");
        }
    }

    #[test]
    fn any_value_is_restored_from_json() {
        for from in (0..=0xffff_u32).step_by(64).chain([0x1_f600, 0xe_0000, 0x10_ffc0]) {
            let value: String = (from..from + 64).filter_map(char::from_u32).collect();
            let line = line_with(LineFormat::Json, &value);
            let object: serde_json::Value = serde_json::from_str(&line).expect("one object a line");
            assert_eq!(object["said"], *value, "{line}");
            assert!(!line_with(LineFormat::Text, &value).trim_end_matches('\n').contains(is_hidden));
        }
    }

    #[test]
    fn values_are_written_by_their_types() {
        let log = || {
            tracing::warn!(
                target: "deferral::access",
                status = 200_u16,
                less = -1,
                yes = true,
                half = 0.5,
                none = f64::NAN,
                absent = None::<u64>,
                shown = ?Some("x y"),
                r#type = "t",
                "no answer: \"{}\"", "late\u{1b}[0m",
            );
        };
        assert_eq!(
            logged(LineFormat::Text, false, log),
            "2026-07-28T10:30:00.007008Z  WARN deferral::access: no answer: \"late\\u001b[0m\" status=200 \
             less=-1 yes=true half=0.5 none=NaN shown=\"Some(\\\"x y\\\")\" type=t\n"
        );
        let object: serde_json::Value =
            serde_json::from_str(&logged(LineFormat::Json, false, log)).expect("JSON");
        assert_eq!(
            object,
            json!({
                "timestamp": "2026-07-28T10:30:00.007008Z",
                "level": "WARN",
                "logger": "deferral::access",
                "message": "no answer: \"late\u{1b}[0m\"",
                "status": 200,
                "less": -1,
                "yes": true,
                "half": 0.5,
                "none": null,
                "shown": "Some(\"x y\")",
                "type": "t",
            })
        );
    }

    #[test]
    fn member_names_are_unique() {
        let log = || tracing::info!(target = "greet", level = 1, timestamp = 2, logger = 3);
        let line = logged(LineFormat::Json, false, log);
        for name in
            ["timestamp", "level", "logger", "target", "field_timestamp", "field_level", "field_logger"]
        {
            assert_eq!(line.matches(&format!("\"{name}\":")).count(), 1, "{name} in {line}");
        }
        assert!(line.contains(r#""target":"greet""#), "{line}");
    }

    #[test]
    fn long_values_are_truncated_in_the_log() {
        let long = "ä".repeat(MAX_VALUE_BYTES);
        let object: serde_json::Value =
            serde_json::from_str(&line_with(LineFormat::Json, &format!("x{long}"))).expect("JSON");
        let expected = format!("x{}…", "ä".repeat(MAX_VALUE_BYTES / 2 - 1));
        assert_eq!(object["said"], *expected);
        assert_eq!(object["end"], 1);
        assert!(
            line_with(LineFormat::Text, &format!("x{long}"))
                .ends_with(&format!("said=\"{expected}\" end=1\n"))
        );
    }

    #[test]
    fn an_event_logged_while_formatting_has_its_own_line() {
        let outer = "the line that is being put together";
        LINE.with_borrow_mut(|line| {
            line.push_str(outer);
            assert!(logged(LineFormat::Text, false, || tracing::info!("inner")).ends_with("tests: inner\n"));
            assert_eq!(line, outer);
        });
    }

    #[test]
    fn a_terminal_gets_colours_and_a_file_does_not() {
        let log = || tracing::error!("no");
        assert!(logged(LineFormat::Text, true, log).contains("\x1b[31mERROR\x1b[0m"));
        assert!(!logged(LineFormat::Json, true, log).contains('\x1b'));
        assert!(!logged(LineFormat::Text, false, log).contains('\x1b'));
    }
}
