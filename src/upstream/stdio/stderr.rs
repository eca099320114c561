//! Standard error of a process: lines for the log, and the last lines for operators.

use std::collections::VecDeque;

/// Splits a byte stream into lines for display. Keeps the start of each line, and the last few lines.
#[derive(Debug, Default)]
pub struct StderrLines {
    /// Start of a line that is incomplete.
    partial: Vec<u8>,
    /// Whether the incomplete line is longer than the kept part.
    is_cut: bool,
    /// Last lines, the oldest first.
    last_lines: VecDeque<String>,
}

/// Limit of the kept part of a line, in bytes.
const MAX_LINE_BYTES: usize = 2048;
/// Number of last lines that are kept until the process ends.
const MAX_LAST_LINES: usize = 10;

// === impl StderrLines ===

impl StderrLines {
    /// Takes the next complete, nonempty line from `input`, and advances `input`; `None` when all of `input`
    /// was consumed.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<String> {
        while !input.is_empty() {
            let end = memchr::memchr(b'\n', input);
            let piece = &input[..end.unwrap_or(input.len())];
            let available = MAX_LINE_BYTES - self.partial.len();
            self.is_cut |= piece.len() > available;
            self.partial.extend_from_slice(&piece[..piece.len().min(available)]);
            *input = &input[end.map_or(input.len(), |end| end + 1)..];
            if end.is_some()
                && let Some(line) = self.finish_line()
            {
                return Some(line);
            }
        }
        None
    }

    /// Ends the incomplete line, and returns it; `None` if it is empty.
    pub fn finish_line(&mut self) -> Option<String> {
        let partial = std::mem::take(&mut self.partial);
        let mut line = String::from_utf8_lossy(partial.trim_ascii_end()).into_owned();
        if std::mem::take(&mut self.is_cut) {
            line.push('…');
        }
        if line.is_empty() {
            return None;
        }
        if self.last_lines.len() == MAX_LAST_LINES {
            self.last_lines.pop_front();
        }
        self.last_lines.push_back(line.clone());
        Some(line)
    }

    /// Latest line; `None` before the first.
    pub fn latest(&self) -> Option<&str> {
        self.last_lines.back().map(String::as_str)
    }

    /// The last lines, the oldest first.
    pub fn last_lines(&self) -> Vec<String> {
        self.last_lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_line_without_end_is_kept() {
        let mut remarks = StderrLines::default();
        for _ in 0..50 {
            assert_eq!(remarks.next(&mut &[b'x'; 1000][..]), None);
            assert!(remarks.partial.len() <= MAX_LINE_BYTES);
        }
        let mut input = &b"x\r\n\nlast"[..];
        let line = remarks.next(&mut input).expect("it ends");
        assert_eq!((line.len(), line.ends_with("x…")), (MAX_LINE_BYTES + '…'.len_utf8(), true));
        assert_eq!(remarks.next(&mut input), None);
        assert_eq!(remarks.finish_line().as_deref(), Some("last"));
        for number in 0..20 {
            let line = format!("{number}\n");
            assert_eq!(remarks.next(&mut line.as_bytes()), Some(number.to_string()));
        }
        assert_eq!(remarks.last_lines().len(), MAX_LAST_LINES);
        assert!(remarks.last_lines().ends_with(&["18".to_owned(), "19".to_owned()]));
    }
}
