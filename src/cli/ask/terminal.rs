//! Prompts on standard error and lines from standard input.

use crate::cli::printer::Printer;
use std::{
    io::{self, BufRead},
    sync::mpsc,
    thread,
};
use tokio::sync::oneshot;

/// Maximum length of a typed line, in bytes.
const MAX_LINE: u64 = 1 << 20;

/// A user who reads prompts and types lines.
///
/// A separate thread reads lines on demand, because a blocked read would keep the runtime from ending after
/// Ctrl-C.
pub(super) struct Terminal {
    /// Requests for one line each, with the sender for the line; `None` is sent at the end of the input.
    line_requests: mpsc::Sender<oneshot::Sender<io::Result<Option<String>>>>,
    printer: Printer,
}

/// Reason why no further line can be read.
#[derive(Debug, thiserror::Error)]
pub enum InputClosed {
    #[error("standard input ended before every input request was answered")]
    Ended,
    #[error("cannot read standard input: {0}")]
    Unreadable(#[from] io::Error),
}

// === impl Terminal ===

impl Terminal {
    /// Starts the thread that reads `input`. Prompts are printed by `printer`.
    pub(super) fn new(mut input: impl BufRead + Send + 'static, printer: Printer) -> Self {
        let (line_requests, requests) = mpsc::channel::<oneshot::Sender<_>>();
        // The thread ends with the process at the latest.
        thread::spawn(move || {
            for request in requests {
                let _ = request.send(read_line(&mut input));
            }
        });
        Self { line_requests, printer }
    }

    /// Prints one line, which may contain text of a server.
    pub(super) fn print_line(&mut self, line: &str) {
        self.printer.note_line(line);
    }

    /// Prints text of a server, which may have several lines.
    pub(super) fn quote(&mut self, text: &str) {
        self.printer.quote(text);
    }

    /// Prints a prompt, and reads the next line, without its line break.
    pub(super) async fn read_line(&mut self, prompt: &str) -> Result<String, InputClosed> {
        self.printer.prompt(prompt);
        let (request, line) = oneshot::channel();
        self.line_requests.send(request).map_err(|_| InputClosed::Ended)?;
        line.await.map_err(|_| InputClosed::Ended)??.ok_or(InputClosed::Ended)
    }
}

fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut limited = io::Read::take(input, MAX_LINE);
    limited.read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let is_whole = bytes.ends_with(b"\n");
    if !is_whole && limited.limit() == 0 {
        return Err(io::Error::other(format!("a line is longer than {MAX_LINE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("a line is not UTF-8"))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Printer {
        Printer::new(io::sink(), io::sink())
    }

    #[tokio::test]
    async fn lines_are_read_one_by_one_until_the_input_ends() {
        let mut terminal = Terminal::new(&b"one\r\n\nlast"[..], nowhere());
        for expected in ["one", "", "last"] {
            assert_eq!(terminal.read_line(">").await.unwrap(), expected);
        }
        assert!(matches!(terminal.read_line(">").await, Err(InputClosed::Ended)));
        assert!(matches!(terminal.read_line(">").await, Err(InputClosed::Ended)), "and stays so");
    }

    #[tokio::test]
    async fn a_line_that_is_not_utf8_or_too_long_is_an_error() {
        let mut terminal = Terminal::new(&b"caf\xe9\n"[..], nowhere());
        let error = terminal.read_line(">").await.unwrap_err().to_string();
        assert_eq!(error, "cannot read standard input: a line is not UTF-8");
        let long = vec![b'x'; 1 + usize::try_from(MAX_LINE).unwrap()];
        let mut terminal = Terminal::new(io::Cursor::new(long), nowhere());
        assert!(matches!(terminal.read_line(">").await, Err(InputClosed::Unreadable(_))));
    }
}
