//! One line of the log: how a happening is written, as text or as a JSON object.
//!
//! Names of fields are ours, their values may be anybody's: a tool's name, a path, what a server
//! says is wrong. So a value never ends a line, never looks like a field of ours, and never reaches
//! a terminal as anything but characters to show:
//!
//! * in text, a value that is more than a plain word stands in quotes, as `reason="no such tool"`;
//! * in JSON it is a string, and no two members of the object have the same name;
//! * in both, control characters and those that change how others are shown (line separators,
//!   directions, invisible ones) are escaped;
//! * of a very long one only the beginning is written.
//!
//! An access line is written for each request, so this is made to cost little: a value is looked
//! through once and copied, and of a time only the digits that changed are computed.

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

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// For people: `TIME LEVEL MAX_TARGET: message name=value …`.
    Text,
    /// A JSON object: `timestamp`, `level`, `logger` and the fields.
    Json,
}

/// Writes each event as a line and gives it to `take`.
#[derive(Clone, Debug)]
pub struct LogLayer<F> {
    format: LineFormat,
    /// Whether levels have colours, in text.
    colour: bool,
    now: fn() -> SystemTime,
    take: F,
    throttle: Option<(Arc<LogThrottle>, fn())>,
}

/// Writes the fields of an event behind what the line begins with.
struct FieldWriter<'a> {
    format: LineFormat,
    line: &'a mut String,
}

/// The end of a line, taking one value as far as it may go.
struct ValueWriter<'a> {
    line: &'a mut String,
    left: usize,
}

/// The second that was written last, which the next line is likely to share.
struct CachedSecond {
    since_epoch: u64,
    /// `2026-07-28T10:30:00`
    shown: String,
}

/// Bytes of one value that are written; an ellipsis stands for the rest.
const MAX_VALUE_BYTES: usize = 4096;

/// The field that is the sentence of an event that has one.
const MESSAGE: &str = "message";

thread_local! {
    /// Where lines are put together; kept, so that it is allocated once.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
    static SECOND: RefCell<CachedSecond> = const { RefCell::new(CachedSecond { since_epoch: u64::MAX, shown: String::new() }) };
}

// === impl Lines ===

impl<F: Fn(&Level, &str)> LogLayer<F> {
    /// Lines of a format with the time that `now` tells. `take` is given whole lines, their end
    /// included.
    pub const fn new(format: LineFormat, now: fn() -> SystemTime, take: F) -> Self {
        Self { format, colour: false, now, take, throttle: None }
    }

    /// Colours for a terminal.
    #[must_use]
    pub fn coloured(mut self, colour: bool) -> Self {
        self.colour = colour && self.format == LineFormat::Text;
        self
    }

    /// Bounds how many lines of one kind are written; `suppressed` is called with the first of each that is not.
    #[must_use]
    pub fn throttled(mut self, throttle: Arc<LogThrottle>, suppressed: fn()) -> Self {
        self.throttle = Some((throttle, suppressed));
        self
    }

    /// Whether an event is written.
    fn is_admitted(&self, event: &Event<'_>) -> bool {
        let Some((throttle, suppressed)) = &self.throttle else { return true };
        match throttle.judge(event, || SystemClock::new().now()) {
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
        let about = event.metadata();
        let at = (self.now)().duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.format {
            LineFormat::Text => {
                let (dim, strong, plain) = match (self.colour, *about.level()) {
                    (false, _) => ("", "", ""),
                    (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
                    (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
                    (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
                    (true, Level::DEBUG) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
                    (true, Level::TRACE) => ("\x1b[2m", "\x1b[35m", "\x1b[0m"),
                };
                line.push_str(dim);
                write_time(at, line);
                line.push_str(plain);
                line.push(' ');
                line.push_str(strong);
                // All as wide as the widest, so that what follows stands in a column.
                line.push_str(if about.level().as_str().len() == 4 { " " } else { "" });
                line.push_str(about.level().as_str());
                line.push_str(plain);
                line.push(' ');
                line.push_str(dim);
                line.push_str(about.target());
                line.push(':');
                line.push_str(plain);
                event.record(&mut FieldWriter { format: self.format, line });
            }
            LineFormat::Json => {
                line.push_str("{\"timestamp\":\"");
                write_time(at, line);
                line.push_str("\",\"level\":\"");
                line.push_str(about.level().as_str());
                line.push_str("\",\"logger\":\"");
                line.push_str(about.target());
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
        let told = |line: &mut String| {
            line.clear();
            self.write(event, line);
            (self.take)(event.metadata().level(), line);
        };
        LINE.with(|kept| match kept.try_borrow_mut() {
            Ok(mut line) => told(&mut line),
            // Showing a value told of something in its turn.
            Err(_) => told(&mut String::new()),
        });
    }
}

// === impl Fields ===

impl FieldWriter<'_> {
    /// Writes a field's name and what stands between it and its value.
    fn name(&mut self, field: &Field) {
        let name = field.name();
        // As Rust spells a name that is also a keyword.
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
                // No two members of an object may have one name (RFC 8259, 4).
                if matches!(name, "timestamp" | "level" | "logger") {
                    self.line.push_str("field_");
                }
                self.line.push_str(name);
                self.line.push_str("\":");
            }
        }
    }

    /// A value that needs no care: digits, `true`.
    fn bare(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.line.push_str(value);
    }

    /// A value that may be anything. It is written as it is, and again with care if it turns out
    /// to need it: hardly any does.
    fn anything(&mut self, field: &Field, put: impl FnOnce(&mut ValueWriter<'_>) -> fmt::Result) {
        self.name(field);
        let json = self.format == LineFormat::Json;
        let sentence = !json && field.name() == MESSAGE;
        if json {
            self.line.push('"');
        }
        let begin = self.line.len();
        let mut value = ValueWriter { line: self.line, left: MAX_VALUE_BYTES };
        // Nothing but too much of it makes this fail, and what there is of it then is kept.
        let cut = put(&mut value).is_err();
        let found = marks(&self.line.as_bytes()[begin..]);
        let quoted = !json && !sentence && (found != 0 || self.line.len() == begin);
        if quoted || found & (if sentence { HIDDEN } else { HIDDEN | QUOTES }) != 0 {
            let raw = self.line.split_off(begin);
            self.line.push_str(if quoted { "\"" } else { "" });
            escape(&raw, !sentence, self.line);
        }
        self.line.push_str(if cut { "…" } else { "" });
        self.line.push_str(if quoted || json { "\"" } else { "" });
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // A plain word, as nearly all are.
        if self.format == LineFormat::Text
            && !value.is_empty()
            && value.len() <= MAX_VALUE_BYTES
            && marks(value.as_bytes()) == 0
        {
            return self.bare(field, value);
        }
        self.anything(field, |line| line.write_str(value));
    }

    /// Whatever shows itself, by `Display` or by `Debug`.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.anything(field, |line| write!(line, "{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, itoa::Buffer::new().format(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match self.format {
            // JSON has no spelling for the others.
            LineFormat::Json if !value.is_finite() => self.bare(field, "null"),
            LineFormat::Json | LineFormat::Text => {
                self.name(field);
                write!(self.line, "{value}").expect("a string takes everything");
            }
        }
    }
}

// === impl Value ===

impl Write for ValueWriter<'_> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() <= self.left {
            self.left -= more.len();
            self.line.push_str(more);
            return Ok(());
        }
        let whole = (0..=self.left).rev().find(|&end| more.is_char_boundary(end)).unwrap_or(0);
        self.line.push_str(&more[..whole]);
        self.left = 0;
        Err(fmt::Error)
    }
}

/// Ends a plain word in text: a space, or what stands between a name and its value.
const SEPARATOR: u8 = 1;
/// Stands in the way of quotes.
const QUOTES: u8 = 2;
/// Begins a character that may not be one to show. Also all that are not ASCII.
const HIDDEN: u8 = 4;

/// What each byte may do to a line.
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

fn marks(value: &[u8]) -> u8 {
    value.iter().fold(0, |found, &byte| found | MARKS[usize::from(byte)])
}

/// Writes a value with everything escaped that is not for showing, as JSON does it.
fn escape(raw: &str, quoted: bool, line: &mut String) {
    for character in raw.chars() {
        match character {
            '"' | '\\' if quoted => line.extend(['\\', character]),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                for unit in hidden.encode_utf16(&mut [0; 2]) {
                    write!(line, "\\u{unit:04x}").expect("a string takes everything");
                }
            }
            shown => line.push(shown),
        }
    }
}

/// Whether a character is not there to be shown itself: those that control a terminal (C0 and C1),
/// end a line, turn the direction of writing, or cannot be seen.
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

/// `2026-07-28T10:30:00.000000Z`
fn write_time(since_epoch: Duration, line: &mut String) {
    SECOND.with_borrow_mut(|second| {
        if second.since_epoch != since_epoch.as_secs() {
            second.since_epoch = since_epoch.as_secs();
            second.shown.clear();
            let whole = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
            let whole = jiff::Timestamp::from_second(whole).unwrap_or(jiff::Timestamp::MAX);
            write!(second.shown, "{whole:.0}").expect("a string takes everything");
            second.shown.truncate("2026-07-28T10:30:00".len());
        }
        line.push_str(&second.shown);
    });
    let mut digits = *b".000000Z";
    let mut left = since_epoch.subsec_micros();
    for digit in digits[1..7].iter_mut().rev() {
        *digit = b'0' + u8::try_from(left % 10).expect("a digit");
        left /= 10;
    }
    line.push_str(std::str::from_utf8(&digits).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::{layer::SubscriberExt, registry};

    /// What is told while `tell` runs, as lines of a format.
    fn told(format: LineFormat, colour: bool, tell: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let taken = Arc::clone(&lines);
        let now = || UNIX_EPOCH + Duration::from_micros(1_785_234_600_007_008);
        let take = move |_: &Level, line: &str| taken.lock().expect("one thread").push_str(line);
        let subscriber = registry().with(LogLayer::new(format, now, take).coloured(colour));
        tracing::subscriber::with_default(subscriber, tell);
        let lines = lines.lock().expect("one thread");
        lines.clone()
    }

    /// The value of the field `said`, as both formats write it. Told once as a string and once as
    /// something that shows itself, which must be the same.
    fn said(format: LineFormat, value: &str) -> String {
        let once = told(format, false, || tracing::info!(said = value, end = 1));
        let shown = told(format, false, || tracing::info!(said = %value, end = 1));
        assert_eq!(once, shown);
        assert_eq!(once.matches('\n').count(), 1, "{once}");
        once
    }

    /// Values that were made to do harm, and what stands in a line of text instead.
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
    fn a_value_of_a_stranger_stays_a_value_in_text() {
        for (value, expected) in HOSTILE {
            let line = said(LineFormat::Text, value);
            let expected = format!(
                "2026-07-28T10:30:00.007008Z  INFO deferral::telemetry::line::tests: said={expected} end=1\n"
            );
            assert_eq!(line, expected, "{value:?}");
        }
    }

    #[test]
    fn a_value_of_a_stranger_stays_a_value_in_json() {
        for (value, _) in HOSTILE {
            let line = said(LineFormat::Json, value);
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
    fn any_value_whatever_reads_back_from_json() {
        for from in (0..=0xffff_u32).step_by(64).chain([0x1_f600, 0xe_0000, 0x10_ffc0]) {
            let value: String = (from..from + 64).filter_map(char::from_u32).collect();
            let line = said(LineFormat::Json, &value);
            let object: serde_json::Value = serde_json::from_str(&line).expect("one object a line");
            assert_eq!(object["said"], *value, "{line}");
            assert!(!said(LineFormat::Text, &value).trim_end_matches('\n').contains(is_hidden));
        }
    }

    #[test]
    fn each_kind_of_value_is_written_as_what_it_is() {
        let tell = || {
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
            told(LineFormat::Text, false, tell),
            "2026-07-28T10:30:00.007008Z  WARN deferral::access: no answer: \"late\\u001b[0m\" status=200 \
             less=-1 yes=true half=0.5 none=NaN shown=\"Some(\\\"x y\\\")\" type=t\n"
        );
        let object: serde_json::Value =
            serde_json::from_str(&told(LineFormat::Json, false, tell)).expect("JSON");
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
    fn no_member_of_the_object_is_there_twice() {
        let tell = || tracing::info!(target = "greet", level = 1, timestamp = 2, logger = 3);
        let line = told(LineFormat::Json, false, tell);
        for name in
            ["timestamp", "level", "logger", "target", "field_timestamp", "field_level", "field_logger"]
        {
            assert_eq!(line.matches(&format!("\"{name}\":")).count(), 1, "{name} in {line}");
        }
        assert!(line.contains(r#""target":"greet""#), "{line}");
    }

    #[test]
    fn of_a_long_value_the_beginning_is_written() {
        let long = "ä".repeat(MAX_VALUE_BYTES);
        let object: serde_json::Value =
            serde_json::from_str(&said(LineFormat::Json, &format!("x{long}"))).expect("JSON");
        let expected = format!("x{}…", "ä".repeat(MAX_VALUE_BYTES / 2 - 1));
        assert_eq!(object["said"], *expected);
        assert_eq!(object["end"], 1);
        assert!(
            said(LineFormat::Text, &format!("x{long}")).ends_with(&format!("said=\"{expected}\" end=1\n"))
        );
    }

    #[test]
    fn what_is_told_while_a_value_is_shown_has_a_line_of_its_own() {
        let outer = "the line that is being put together";
        LINE.with_borrow_mut(|line| {
            line.push_str(outer);
            assert!(told(LineFormat::Text, false, || tracing::info!("inner")).ends_with("tests: inner\n"));
            assert_eq!(line, outer);
        });
    }

    #[test]
    fn a_terminal_gets_colours_and_a_file_does_not() {
        let tell = || tracing::error!("no");
        assert!(told(LineFormat::Text, true, tell).contains("\x1b[31mERROR\x1b[0m"));
        assert!(!told(LineFormat::Json, true, tell).contains('\x1b'));
        assert!(!told(LineFormat::Text, false, tell).contains('\x1b'));
    }
}
