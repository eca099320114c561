//! Status messages of a server, which are stored and sent with every poll.

use super::{Frame, Kind, Method};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The maximum size of a stored status message, in bytes.
pub const LONGEST: usize = 4096;

/// Truncates a text that is longer than [`LONGEST`], at a character boundary.
pub fn shorten(mut words: String) -> String {
    if words.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        words.truncate(cut);
    }
    words
}

/// The text of a progress notification, for a task's `statusMessage`.
pub fn of_progress(frame: &Frame) -> Option<String> {
    let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
        return None;
    };
    let params: ReportedProgress<'_> = serde_json::from_slice(params).ok()?;
    let (progress, total) = (number(params.progress?), params.total.map(number));
    Some(shorten(progress_text(params.message, &progress, total.as_deref())))
}

/// `message (progress/total)`. The counts are not added to a message that ends with them.
pub fn progress_text(message: Option<String>, progress: &str, total: Option<&str>) -> String {
    match (message, total) {
        (Some(message), Some(total)) => match message.trim_end().trim_end_matches(')') {
            counted if ends_with_counts(counted, progress, total) => message,
            _ => format!("{message} ({progress}/{total})"),
        },
        (Some(message), None) => message,
        (None, Some(total)) => format!("{progress}/{total}"),
        (None, None) => progress.to_owned(),
    }
}

fn ends_with_counts(text: &str, progress: &str, total: &str) -> bool {
    let rest = text.strip_suffix(total).and_then(|rest| rest.strip_suffix('/')?.strip_suffix(progress));
    // `13/12` does not end with `3/12`.
    rest.is_some_and(|rest| !rest.ends_with(|last: char| last.is_ascii_digit() || last == '.'))
}

/// An integer without its zero fraction, as in `3` for the `3.0` of a Python server; any other number as it
/// is written.
fn number(raw: &RawValue) -> String {
    let token = raw.get();
    match token.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => {
            whole.to_owned()
        }
        _ => token.to_owned(),
    }
}

#[derive(Deserialize)]
struct ReportedProgress<'a> {
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
    fn counts_stand_behind_the_message_once_and_whole() {
        let of = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
            of_progress(&Frame::parse(text.into()).expect("a message")).expect("progress")
        };
        assert_eq!(of(r#"{"progress":3.0,"total":12.0,"message":"files"}"#), "files (3/12)");
        assert_eq!(of(r#"{"progress":3,"total":12,"message":"files (3/12)"}"#), "files (3/12)");
        assert_eq!(of(r#"{"progress":3,"total":12,"message":"(3/12)"}"#), "(3/12)");
        assert_eq!(of(r#"{"progress":3,"total":12,"message":"3/12"}"#), "3/12");
        assert_eq!(of(r#"{"progress":3,"total":12,"message":"13/12"}"#), "13/12 (3/12)");
        assert_eq!(of(r#"{"progress":2.50,"total":4}"#), "2.50/4");
        assert_eq!(of(r#"{"progress":1e3}"#), "1e3");
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(shorten("short".to_owned()), "short");
        let words = shorten(format!("x{}", "é".repeat(4000)));
        assert_eq!(words.len(), LONGEST - 1);
        assert!(words.ends_with('é'));
    }
}
