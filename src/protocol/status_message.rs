//! Status messages of a server, which are stored and sent with every poll.

use super::{Frame, Kind, Method};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The maximum size of a stored status message, in bytes.
pub const MAX_STATUS_MESSAGE_BYTES: usize = 4096;

/// Truncates a text to [`MAX_STATUS_MESSAGE_BYTES`], at a character boundary.
pub fn truncate(mut text: String) -> String {
    if text.len() > MAX_STATUS_MESSAGE_BYTES {
        let cut = (0..=MAX_STATUS_MESSAGE_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
    }
    text
}

/// The text of a progress notification, for a task's `statusMessage`; `None` for any other message.
pub fn from_progress(frame: &Frame) -> Option<String> {
    let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
        return None;
    };
    let params: ReportedProgress<'_> = serde_json::from_slice(params).ok()?;
    let (progress, total) = (format_number(params.progress?), params.total.map(format_number));
    Some(truncate(format_progress(params.message, &progress, total.as_deref())))
}

/// Formats a progress report as `message (progress/total)`. The counts are not added to a message that ends
/// with them already.
pub fn format_progress(message: Option<String>, progress: &str, total: Option<&str>) -> String {
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
fn format_number(raw: &RawValue) -> String {
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
            from_progress(&Frame::parse(text.into()).expect("a message")).expect("progress")
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
        assert_eq!(truncate("short".to_owned()), "short");
        let words = truncate(format!("x{}", "é".repeat(4000)));
        assert_eq!(words.len(), MAX_STATUS_MESSAGE_BYTES - 1);
        assert!(words.ends_with('é'));
    }
}
