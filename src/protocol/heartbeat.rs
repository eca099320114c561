//! Progress notifications of the proxy, sent between those of the server, so that a client does not time out
//! on a slow call.
//!
//! `progress` must grow with each notification (2025-11-25, *Progress*), but its unit is not specified: most
//! servers count steps, some report a fraction or a number of bytes. So each value of the proxy is
//! [`PROGRESS_STEP`] above the greatest value sent before: after a day of one notification every ten seconds
//! the sum is still below one hundredth. The server's next value is greater, unless the server starts at zero
//! or repeats a value; the proxy's own values never decrease. The proxy sends no `total`, because it does not
//! know one. The `message` says how long the call has been running.

use super::{RequestId, meta};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, time::Duration};

/// Creates progress notifications for the client of one call, above the progress that the client has
/// received.
#[derive(Clone, Debug)]
pub struct ProgressHeartbeat {
    /// The client's token, raw JSON.
    token: Bytes,
    /// The greatest `progress` sent to the client so far, by the server or the proxy.
    highest: f64,
    /// Whether the client's revision has `message` (2025-03-26 and later).
    has_message: bool,
}

/// The distance of a `progress` value of the proxy from the greatest value before. Where neighbouring doubles
/// are further apart than this, the next double is used.
pub const PROGRESS_STEP: f64 = 1e-6;

/// The relevant members of a progress notification.
#[derive(Deserialize)]
struct ProgressNotification<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: ProgressParams<'a>,
}

#[derive(Deserialize)]
struct ProgressParams<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: &'a RawValue,
    #[serde(borrow)]
    progress: &'a RawValue,
}

// === impl ProgressHeartbeat ===

impl ProgressHeartbeat {
    /// `token` is the progress token of the client's request, raw JSON. `has_message` is whether the client's
    /// revision has `message` in progress notifications.
    pub fn new(token: Bytes, has_message: bool) -> Self {
        Self { token, highest: 0.0, has_message }
    }

    /// Records a message that the server sends to the client. Messages other than progress notifications for
    /// this token are ignored.
    pub fn observe(&mut self, message: &[u8]) {
        // Most messages are progress notifications or the response, which may be large and is not parsed.
        let Ok(ProgressNotification { method, params }) = serde_json::from_slice(message) else { return };
        if method != "notifications/progress" || !is_same_token(params.token.get(), &self.token) {
            return;
        }
        // A value that does not parse as a double is treated as infinite: the proxy cannot send a greater
        // one.
        let value = params.progress.get().parse().unwrap_or(f64::INFINITY);
        self.highest = self.highest.max(value);
    }

    /// The next progress notification: a whole JSON-RPC message on one line, saying that the call has run for
    /// `elapsed`. `None` if no finite number is greater than the last value.
    pub fn beat(&mut self, elapsed: Duration) -> Option<Bytes> {
        self.beat_with_message(&format!("still running, {}", format_elapsed(elapsed)))
    }

    /// As [`ProgressHeartbeat::beat`], with a given `message`.
    pub fn beat_with_message(&mut self, text: &str) -> Option<Bytes> {
        let next = (self.highest + PROGRESS_STEP).max(self.highest.next_up());
        if !next.is_finite() {
            return None;
        }
        self.highest = next;
        let mut message = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{""#.to_vec();
        message.extend_from_slice(meta::PROGRESS_TOKEN.as_bytes());
        message.extend_from_slice(b"\":");
        message.extend_from_slice(&self.token);
        let number = serde_json::to_string(&next).expect("it is finite");
        message.extend_from_slice(br#","progress":"#);
        message.extend_from_slice(number.as_bytes());
        if self.has_message {
            message.extend_from_slice(br#","message":"#);
            serde_json::to_writer(&mut message, text).expect("a string is written to memory");
        }
        message.extend_from_slice(b"}}");
        Some(message.into())
    }
}

/// Whether two tokens have the same value, in any spelling.
fn is_same_token(one: &str, other: &[u8]) -> bool {
    let read = |token: &[u8]| RequestId::from_token(Bytes::copy_from_slice(token));
    one.as_bytes() == other || read(one.as_bytes()).is_some_and(|one| Some(one) == read(other))
}

/// Formats a duration as `40 s`, `5 min` or `2 h 5 min`.
fn format_elapsed(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0 | 1) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn progress(token: &str, value: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{value},"progressToken":{token}}}}}"#
        )
    }

    /// Parses the exact value, which serde_json does not.
    fn value(beat: &Bytes) -> f64 {
        let beat: ProgressNotification<'_> = serde_json::from_slice(beat).expect("JSON");
        beat.params.progress.get().parse().expect("a number")
    }

    #[test]
    fn a_beat_reports_how_long_the_call_has_been_running() {
        let mut heart = ProgressHeartbeat::new(Bytes::from_static(br#""a\u0062""#), true);
        let beat = heart.beat(Duration::from_secs(40)).expect("there is a next number");
        let beat: Value = serde_json::from_slice(&beat).expect("JSON");
        assert_eq!(
            beat["params"],
            json!({ "progressToken": "ab", "progress": 1e-6, "message": "still running, 40 s" })
        );
        let mut quiet = ProgressHeartbeat::new(Bytes::from_static(b"7"), false);
        let beat = quiet.beat(Duration::from_secs(40)).expect("there is a next number");
        assert_eq!(
            beat,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1e-6}}"#
        );
    }

    #[test]
    fn a_longer_time_is_formatted_more_coarsely() {
        for (seconds, formatted) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (3599, "59 min"),
            (7500, "2 h 5 min"),
            (90_000, "25 h 0 min"),
        ] {
            assert_eq!(format_elapsed(Duration::from_secs(seconds)), formatted);
        }
    }

    #[test]
    fn a_beat_is_one_step_above_the_servers_progress() {
        let mut heart = ProgressHeartbeat::new(Bytes::from_static(b"1"), false);
        let mut next = |seen: &str| {
            heart.observe(seen.as_bytes());
            heart.beat(Duration::ZERO).as_ref().map(value)
        };
        let mut millionths = |seen: &str| next(seen).map(|value| (value * 1e6).round());
        assert_eq!(millionths(""), Some(1.0));
        assert_eq!(millionths(&progress("1", "0")), Some(2.0), "we do not go back, though the server does");
        assert_eq!(millionths(&progress("1", "0.5")), Some(500_001.0));
        assert_eq!(millionths(&progress("2", "70")), Some(500_002.0), "that is another call's");
        assert_eq!(millionths(&progress("\"1\"", "70")), Some(500_003.0), "so is that");
        assert_eq!(millionths(r#"{"jsonrpc":"2.0","id":1,"result":{"progress":9}}"#), Some(500_004.0));
        assert_eq!(next(&progress("1", "1e15")), Some(1e15_f64.next_up()));
        assert_eq!(next(&progress("1", "1e400")), None, "nothing is greater");
    }

    #[test]
    fn a_token_is_recognised_in_any_spelling() {
        let mut heart = ProgressHeartbeat::new(Bytes::from_static(br#""a""#), false);
        heart.observe(progress(r#""\u0061""#, "3").as_bytes());
        assert_eq!(heart.beat(Duration::ZERO).as_ref().map(value), Some(3.000001));
    }

    proptest! {
        #[test]
        fn each_is_greater_than_all_before(said in prop::collection::vec(prop::option::of(-1e18f64..1e18), 1..40)) {
            let mut heart = ProgressHeartbeat::new(Bytes::from_static(b"1"), true);
            let mut highest = f64::MIN;
            for said in said {
                match said {
                    Some(said) => {
                        heart.observe(progress("1", &serde_json::to_string(&said).expect("finite")).as_bytes());
                        highest = highest.max(said);
                    }
                    None => {
                        let beat = value(&heart.beat(Duration::ZERO).expect("there is a next number"));
                        prop_assert!(beat > highest, "{beat} after {highest}");
                        highest = beat;
                    }
                }
            }
        }
    }
}
