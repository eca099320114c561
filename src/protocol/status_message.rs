//! Words of a server that are kept, and shown with every poll.

use super::{Frame, Kind, Method};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The most that is kept of them, in bytes.
pub const LONGEST: usize = 4096;

/// The words, cut between characters where they are longer than [`LONGEST`].
pub fn shorten(mut words: String) -> String {
    if words.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        words.truncate(cut);
    }
    words
}

/// What a server said of its progress, in words for a task's `statusMessage`.
pub fn of_progress(frame: &Frame) -> Option<String> {
    let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
        return None;
    };
    let params: Progress<'_> = serde_json::from_slice(params).ok()?;
    let (progress, total) = (params.progress?.get(), params.total.map(RawValue::get));
    let words = match (params.message, total) {
        (Some(message), Some(total)) => format!("{message} ({progress}/{total})"),
        (Some(message), None) => message,
        (None, Some(total)) => format!("{progress}/{total}"),
        (None, None) => progress.to_owned(),
    };
    Some(shorten(words))
}

#[derive(Deserialize)]
struct Progress<'a> {
    #[serde(borrow, default)]
    progress: Option<&'a RawValue>,
    #[serde(borrow, default)]
    total: Option<&'a RawValue>,
    #[serde(default)]
    message: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(shorten("short".to_owned()), "short");
        let words = shorten(format!("x{}", "é".repeat(4000)));
        assert_eq!(words.len(), LONGEST - 1);
        assert!(words.ends_with('é'));
    }
}
