//! All output of commands to a terminal, a pipe or a file.
//!
//! Much of the output is chosen by servers, proxies and files. It must not move the cursor, change the
//! direction of text, or look like a line of this program. Therefore all text goes through a [`Printer`]
//! (`tests/it/architecture/mod.rs` checks that). Its methods differ in the treatment of line breaks: a space
//! in a single line, an indented line in a message, a prefixed line in a quotation. All of them escape
//! control characters.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    fmt::{Display, Write as _},
    io::{self, IsTerminal, Write},
    time::Duration,
};

/// Standard output and standard error of a command.
pub struct Printer {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// The first error of standard output; a closed pipe (`| head`) is stored, but not reported.
    output_error: Option<io::Error>,
}

/// Prefix of the lines of a quotation.
const QUOTE: &str = "| ";
/// Prefix of further lines of a message.
const INDENT: &str = "  ";

// === impl Printer ===

impl Printer {
    /// Creates a printer for standard output and standard error.
    pub fn standard() -> Self {
        Self::new(io::stdout(), io::stderr())
    }

    /// Creates a printer that writes results to `out` and messages to `err`.
    pub fn new(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self { out: Box::new(out), err: Box::new(err), output_error: None }
    }

    /// Prints a text on one line of standard output.
    pub fn line(&mut self, text: impl Display) {
        let line = format!("{}\n", to_single_line(&text.to_string()));
        self.write(&line);
    }

    /// Prints several lines of untrusted text, such as a tool result, on standard output.
    pub fn text(&mut self, text: impl Display) {
        let text = format!("{}\n", escape_lines(&text.to_string()));
        self.write(&text);
    }

    /// Prints a value as indented JSON on standard output.
    pub fn json(&mut self, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).expect("it is written to memory");
        let text = format!("{}\n", escape_json(&text));
        self.write(&text);
    }

    /// Prints JSON as received, on one line: numbers and the order of members are kept.
    pub fn raw_json(&mut self, value: &RawValue) {
        let text = format!("{}\n", escape_json(&value.get().replace(['\r', '\n', '\t'], " ")));
        self.write(&text);
    }

    /// Prints output that this program generates, such as shell scripts and manual pages, byte for byte.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        let written = self.out.write_all(bytes).and_then(|()| self.out.flush());
        self.output_error = self.output_error.take().or_else(|| written.err());
    }

    /// Prints the reason why the command fails on standard error: `error: …`.
    pub fn error(&mut self, text: impl Display) {
        self.note(format_args!("error: {text}"));
    }

    /// Prints a message on standard error; further lines are indented.
    pub fn note(&mut self, text: impl Display) {
        let text = indent_message(&text.to_string());
        self.write_error(&text);
    }

    /// Prints a single line on standard error.
    pub fn note_line(&mut self, text: impl Display) {
        let line = to_single_line(&text.to_string());
        self.write_error(&line);
    }

    /// Prints text of a peer on standard error, each line with a prefix.
    pub fn quote(&mut self, text: &str) {
        let quoted: Vec<_> = escape_lines(text).lines().map(|line| format!("{QUOTE}{line}")).collect();
        self.write_error(&quoted.join("\n"));
    }

    /// Prints a prompt on standard error, without a line break; the user's input follows on the same line.
    pub fn prompt(&mut self, text: &str) {
        // A closed standard error is ignored.
        let _ = write!(self.err, "{} ", to_single_line(text)).and_then(|()| self.err.flush());
    }

    /// Whether standard output failed, for example because its reader closed it.
    pub fn has_failed(&self) -> bool {
        self.output_error.is_some()
    }

    /// Returns the exit code of the command: 2 if output was lost, which is reported, else `code`.
    pub fn finish(mut self, code: u8) -> u8 {
        match self.output_error.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
            Some(error) => {
                self.error(format_args!("cannot write the output: {error}"));
                super::exit_codes::EXIT_FAILURE
            }
            None => code,
        }
    }

    fn write(&mut self, text: &str) {
        self.write_bytes(text.as_bytes());
    }

    fn write_error(&mut self, text: &str) {
        // A closed standard error is ignored.
        let _ = self.err.write_all(format!("{text}\n").as_bytes()).and_then(|()| self.err.flush());
    }
}

/// A progress bar with a message, on a terminal.
pub struct StatusBar(ProgressBar);

// === impl StatusBar ===

impl StatusBar {
    /// Creates a bar that is not drawn yet; `None` if standard error is not a terminal.
    pub fn on_terminal() -> Option<Self> {
        is_error_terminal().then(|| Self(ProgressBar::hidden()))
    }

    /// Starts to draw, initially or after [`StatusBar::clear`].
    pub fn begin(&mut self, message: &str) {
        let style =
            ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}").expect("the template is valid");
        self.0 = ProgressBar::new_spinner().with_style(style).with_message(to_single_line(message));
        self.0.enable_steady_tick(Duration::from_millis(100));
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }

    /// Sets the text of the bar.
    pub fn set_message(&self, text: &str) {
        self.0.set_message(to_single_line(text));
    }

    /// Sets the progress, from 0 to 1.
    pub fn set_progress(&self, fraction: f64) {
        let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {bar:30} {percent:>3}% {wide_msg}");
        self.0.set_style(style.expect("the template is valid"));
        // The progress is in thousandths, because positions are integers.
        self.0.set_length(1000);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
        self.0.set_position((fraction.clamp(0.0, 1.0) * 1000.0) as u64);
    }

    /// Prints a message above the bar.
    pub fn note(&self, text: &str) {
        self.0.println(indent_message(text));
    }
}

/// Whether standard error is a terminal.
pub fn is_error_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard output is a terminal.
pub fn is_output_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns the text on one line, with control and direction characters escaped.
pub fn to_single_line(text: &str) -> String {
    escape_lines(text).replace(['\n', '\t'], " ")
}

/// Returns the text with further lines indented, so that none of them looks like a message of its own.
fn indent_message(text: &str) -> String {
    let text = escape_lines(text);
    let mut all = text.lines();
    let mut out = all.next().unwrap_or_default().to_owned();
    for line in all {
        let indent = if line.is_empty() { "" } else { INDENT };
        let _ = write!(out, "\n{indent}{line}");
    }
    out
}

/// Returns the text with line breaks and tabs kept, and other control characters escaped.
fn escape_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\n' | '\t' => out.push(char),
            '\r' if chars.peek() == Some(&'\n') => {}
            _ if affects_display(char) => out.extend(char.escape_unicode()),
            _ => out.push(char),
        }
    }
    out
}

/// Escapes control characters in JSON as `\u…`. Outside of strings JSON contains only white space, so the
/// value is unchanged.
fn escape_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\r' => out.push(' '),
            '\n' | '\t' => out.push(char),
            _ if affects_display(char) => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            _ => out.push(char),
        }
    }
    out
}

/// Whether a character affects the display of others: control characters, line separators, and direction
/// characters (Unicode, *Bidirectional Character Types*). All are below U+10000.
fn affects_display(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};

    /// What a printer has written to one or both streams.
    #[derive(Clone, Default)]
    pub struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Screen {
        pub fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            String::from_utf8(bytes).expect("text")
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(print: impl FnOnce(&mut Printer)) -> String {
        let screen = Screen::default();
        print(&mut Printer::new(screen.clone(), screen.clone()));
        screen.text()
    }

    const EVIL: &str = "a\u{1b}[2Jb\r\n\tc\rd\u{7}\u{9b}e\u{202e}f\u{2028}error: g";

    #[test]
    fn no_method_prints_control_characters() {
        let raw = RawValue::from_string(format!("[\r\n\t{}]", serde_json::json!(EVIL))).expect("JSON");
        let all = printed(|printer| {
            printer.line(EVIL);
            printer.text(EVIL);
            printer.json(&[EVIL]);
            printer.raw_json(&raw);
            printer.error(EVIL);
            printer.note(EVIL);
            printer.note_line(EVIL);
            printer.quote(EVIL);
            printer.prompt(EVIL);
        });
        let active: Vec<_> =
            all.chars().filter(|char| !"\n\t".contains(*char) && affects_display(*char)).collect();
        assert!(active.is_empty(), "{active:?} in {all:?}");
    }

    #[test]
    fn a_line_break_of_a_peer_begins_no_line_of_ours() {
        let forged = "busy\nerror: the disk is gone\r\n\n| quoted";
        let all = printed(|printer| {
            printer.line(forged);
            printer.error(forged);
            printer.note_line(forged);
            printer.quote(forged);
        });
        expect_test::expect![[r"
            busy error: the disk is gone  | quoted
            error: busy
              error: the disk is gone

              | quoted
            busy error: the disk is gone  | quoted
            | busy
            | error: the disk is gone
            | 
            | | quoted
        "]]
        .assert_eq(&all);
    }

    #[test]
    fn json_stays_json_with_the_same_value() {
        let value = serde_json::json!({ EVIL: EVIL, "n": 1 });
        let text = printed(|printer| printer.json(&value));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
        let raw = RawValue::from_string("{\r\n \"n\": 1.50, \"c\": \"\u{9b}\u{202e}é\" }".to_owned());
        let text = printed(|printer| printer.raw_json(&raw.expect("JSON")));
        assert_eq!(text, "{   \"n\": 1.50, \"c\": \"\\u009b\\u202eé\" }\n");
    }

    #[test]
    fn harmless_text_is_unchanged() {
        assert_eq!(to_single_line("Zürich 世 😀"), "Zürich 世 😀");
        assert_eq!(escape_lines("a\tb\r\nc"), "a\tb\nc");
    }

    #[test]
    fn lost_output_is_a_failure_but_a_closed_pipe_is_not() {
        struct Full(io::ErrorKind);
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (kind, code) in [(io::ErrorKind::StorageFull, 2), (io::ErrorKind::BrokenPipe, 0)] {
            let screen = Screen::default();
            let mut printer = Printer::new(Full(kind), screen.clone());
            printer.line("x");
            assert_eq!(printer.finish(0), code);
            assert_eq!(screen.text().starts_with("error: cannot write the output: "), code == 2);
        }
    }
}
