//! Standard error of a process: lines for the log, and the last of them.

use std::collections::VecDeque;

/// Splits a stream into lines for display. Keeps the start of each line, and the last few.
#[derive(Debug, Default)]
pub struct StderrLines {
    begun: Vec<u8>,
    /// Whether the line is longer than the kept part.
    is_cut: bool,
    /// Last lines, the oldest first.
    last: VecDeque<String>,
}

/// Limit of a line, in bytes.
const LINE: usize = 2048;
/// Number of lines kept until the process ends.
const LAST: usize = 10;

// === impl StderrLines ===

impl StderrLines {
    /// Takes the next complete line from `input`, and advances it.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<String> {
        while !input.is_empty() {
            let end = memchr::memchr(b'\n', input);
            let piece = &input[..end.unwrap_or(input.len())];
            let room = LINE - self.begun.len();
            self.is_cut |= piece.len() > room;
            self.begun.extend_from_slice(&piece[..piece.len().min(room)]);
            *input = &input[end.map_or(input.len(), |end| end + 1)..];
            if end.is_some()
                && let Some(line) = self.end()
            {
                return Some(line);
            }
        }
        None
    }

    /// Takes an incomplete line at the end, if there is one.
    pub fn end(&mut self) -> Option<String> {
        let begun = std::mem::take(&mut self.begun);
        let mut line = String::from_utf8_lossy(begun.trim_ascii_end()).into_owned();
        if std::mem::take(&mut self.is_cut) {
            line.push('…');
        }
        if line.is_empty() {
            return None;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line.clone());
        Some(line)
    }

    /// Latest line.
    pub fn latest(&self) -> Option<&str> {
        self.last.back().map(String::as_str)
    }

    /// Last lines, the oldest first.
    pub fn last(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
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
            assert!(remarks.begun.len() <= LINE);
        }
        let mut input = &b"x\r\n\nlast"[..];
        let line = remarks.next(&mut input).expect("it ends");
        assert_eq!((line.len(), line.ends_with("x…")), (LINE + '…'.len_utf8(), true));
        assert_eq!(remarks.next(&mut input), None);
        assert_eq!(remarks.end().as_deref(), Some("last"));
        for number in 0..20 {
            let line = format!("{number}\n");
            assert_eq!(remarks.next(&mut line.as_bytes()), Some(number.to_string()));
        }
        assert_eq!(remarks.last().len(), LAST);
        assert!(remarks.last().ends_with(&["18".to_owned(), "19".to_owned()]));
    }
}
