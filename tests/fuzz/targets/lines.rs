//! What a process says against the plainest way to take it apart: all of it split at its line ends, and the id
//! of what is too long as `serde_json` reads it.

use super::cuttings;
use deferral::internals::upstream::lines::{OutputLine, OutputLines};
use serde_json::Value;

/// Small, so that chance gets beyond it.
const LIMIT: usize = 48;

/// `output` is what a process writes until it ends.
pub fn target(output: &[u8]) {
    let (wanted, is_within) = plainly(output);
    for pieces in cuttings(output) {
        let mut lines = OutputLines::default();
        let mut found = Vec::new();
        for piece in &pieces {
            let mut input = *piece;
            while let Some(line) = lines.next(&mut input, LIMIT) {
                found.push(line);
            }
            assert!(input.is_empty());
        }
        assert_eq!(found.len(), wanted.len(), "{found:?}, not {wanted:?}");
        for (found, wanted) in found.iter().zip(&wanted) {
            is_same(found, wanted);
        }
        assert_eq!(lines.has_partial_line(), is_within, "{pieces:?}");
    }
}

/// The lines that are not blank, and whether one is left that has not ended.
fn plainly(output: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut lines: Vec<_> = output.split(|byte| *byte == b'\n').collect();
    let last = lines.pop().unwrap_or_default();
    let is_within = last.len() > LIMIT || !last.trim_ascii().is_empty();
    (
        lines.into_iter().filter(|line| line.len() > LIMIT || !line.trim_ascii().is_empty()).collect(),
        is_within,
    )
}

fn is_same(found: &OutputLine, wanted: &[u8]) {
    match found {
        OutputLine::Whole(line) => {
            assert!(wanted.len() <= LIMIT);
            assert_eq!(line, wanted.trim_ascii());
        }
        OutputLine::TooLong { answers } => {
            assert!(wanted.len() > LIMIT);
            // What is no JSON answers nothing in particular; of what is, it is found, unless it is written oddly.
            let Ok(Value::Object(message)) = serde_json::from_slice(wanted) else { return };
            let is_message = message.get("jsonrpc").is_some_and(|version| version == "2.0");
            let id = message.get("id").filter(|_| is_message && !message.contains_key("method"));
            let id = id.and_then(|id| id.as_u64().or_else(|| id.as_str()?.parse().ok()));
            let is_odd = wanted.contains(&b'\\') || is_repeated(wanted) || is_spelled(wanted);
            if !is_odd {
                assert_eq!(*answers, id, "{}", wanted.escape_ascii());
            }
        }
    }
}

/// Whether a key may be there twice: `serde_json` keeps the last, here as there, but for a `method`.
fn is_repeated(line: &[u8]) -> bool {
    let count = |key: &[u8]| line.windows(key.len()).filter(|part| *part == key).count();
    [&br#""id""#[..], br#""method""#, br#""jsonrpc""#].into_iter().any(|key| count(key) > 1)
}

/// Whether the id may be longer than any of ours, or spelled as none of them.
fn is_spelled(line: &[u8]) -> bool {
    line.windows(21).any(|part| part.iter().all(u8::is_ascii_digit))
}
