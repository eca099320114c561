//! Progress of a call, from a notification or from a task's status message.

use crate::protocol::{Frame, Kind, Method, status_message};
use serde::Deserialize;
use std::fmt;

/// Progress of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The completed amount, in the unit of `total`.
    pub done: f64,
    /// The whole amount, if the server names it.
    pub total: Option<f64>,
    pub message: Option<String>,
}

// === impl Progress ===

impl Progress {
    /// Reads progress from a task's status message: `half way (2.5/4)`, `2.5/4`. `None` if the message has
    /// none.
    pub fn from_status(message: &str) -> Option<Self> {
        let (text, counts) = match message.strip_suffix(')').and_then(|rest| rest.rsplit_once('(')) {
            Some((text, counts)) => (text.trim_end(), counts),
            None => ("", message),
        };
        let (done, total) = counts.split_once('/')?;
        Some(Self {
            done: done.trim().parse().ok()?,
            total: Some(total.trim().parse().ok()?),
            message: (!text.is_empty()).then(|| text.to_owned()),
        })
    }

    /// Reads progress from a notification with this progress token; `None` for any other message.
    pub(super) fn from_frame(frame: &Frame, token: u64) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ProgressParams {
            progress_token: u64,
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
            return None;
        };
        let params: ProgressParams = serde_json::from_slice(params).ok()?;
        (params.progress_token == token).then_some(Self {
            done: params.progress,
            total: params.total,
            message: params.message,
        })
    }
}

/// Formats progress as a proxy does in status messages: `half way (2.5/4)`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total.map(|total| total.to_string());
        let text =
            status_message::format_progress(self.message.clone(), &self.done.to_string(), total.as_deref());
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_message_may_have_progress() {
        let read = |text: &str| Progress::from_status(text).map(|progress| (progress.done, progress.total));
        assert_eq!(read("half way (2.5/4)"), Some((2.5, Some(4.0))));
        assert_eq!(read("2/4"), Some((2.0, Some(4.0))));
        for other in ["working", "see a/b", "(x/y)", "", "3"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
