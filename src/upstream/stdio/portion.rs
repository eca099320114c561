//! How much of what a process says goes to the log.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// So many lines in a while, and how many were left out.
#[derive(Debug)]
pub struct Portion {
    left: u32,
    since: Instant,
    omitted: u64,
}

/// Takes a stream apart into lines for people. Keeps the beginning of each, and the last few.
#[derive(Debug, Default)]
pub struct Remarks {
    begun: Vec<u8>,
    /// The line is longer than what is kept of it.
    is_cut: bool,
    /// The latest lines, the oldest first.
    last: VecDeque<String>,
}

/// Lines of one process that are logged within [`WHILE`]; further ones are counted.
const LINES: u32 = 200;
const WHILE: Duration = Duration::from_secs(10);
/// Bytes of a line that are kept.
const LINE: usize = 2048;
/// Lines that are kept until the process ends.
const LAST: usize = 10;

// === impl Portion ===

impl Portion {
    pub fn new(now: Instant) -> Self {
        Self { left: LINES, since: now, omitted: 0 }
    }

    /// Whether one more is logged; first how many were not, where that has not been said.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= WHILE {
            (self.left, self.since) = (LINES, now);
        }
        if self.left == 0 {
            self.omitted += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.omitted))
    }

    /// How many were left out and not told of.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }
}

// === impl Remarks ===

impl Remarks {
    /// The next line, once its end is in `input`, of which what has been read is taken off.
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

    /// What has come of a line that did not end, if there is any.
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

    /// The last lines.
    pub fn last(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};

    #[test]
    fn so_many_lines_are_logged_and_the_others_counted() {
        let now = SystemClock::new().now();
        let mut portion = Portion::new(now);
        for _ in 0..LINES {
            assert_eq!(portion.take(now), Some(0));
        }
        assert_eq!((portion.take(now), portion.take(now)), (None, None));
        assert_eq!(portion.omitted(), 2);
        assert_eq!(portion.take(now + WHILE), Some(2));
        assert_eq!(portion.omitted(), 0);
    }

    #[test]
    fn of_a_line_without_end_the_beginning_is_kept() {
        let mut remarks = Remarks::default();
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
