//! Recommends a threshold for a tool from its latencies.

use crate::telemetry::metrics::LatencySnapshot;
use serde::Serialize;
use std::time::Duration;

/// Candidate thresholds in seconds, in ascending order.
pub(super) const THRESHOLDS: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// A recommended setting in the syntax of the configuration, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ThresholdAdvice {
    /// `None` if no change is needed, or if there is too little data.
    pub(super) setting: Option<String>,
    /// The reason for the setting, or for the lack of one.
    pub(super) reason: String,
}

/// Minimum number of calls for a recommendation.
const MIN_CALLS: u64 = 20;
/// Default timeout of clients that are built with the MCP SDKs.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum recommended threshold, in seconds: half of the shortest timeout of common clients (30 s), with a
/// margin.
const MAX_THRESHOLD_SECONDS: u64 = 10;
/// The default threshold, in seconds. A longer threshold makes clients wait longer, and is recommended only
/// if it avoids most tasks.
const DEFAULT_SECONDS: u64 = 5;
/// Target share of calls that become tasks.
const TARGET_TASK_SHARE: f64 = 0.1;
/// Maximum share of calls that wait longer because of a threshold above [`DEFAULT_SECONDS`].
const MAX_WAITING_SHARE: f64 = 0.15;
/// Difference between two shares of calls that does not justify a longer wait.
const NEGLIGIBLE_SHARE: f64 = 0.05;

/// Returns the share of calls that took longer than the threshold, from 0 to 1.
pub(super) fn share_over(calls: &LatencySnapshot, threshold: Duration) -> f64 {
    match calls.count {
        0 => 0.0,
        count => ((count as f64 - calls.count_within(threshold)) / count as f64).clamp(0.0, 1.0),
    }
}

/// Returns the recommendation for a tool with these calls, of which `timed_out` timed out and `departed` were
/// abandoned by their clients.
pub(super) fn recommend(calls: &LatencySnapshot, timed_out: u64, departed: u64) -> ThresholdAdvice {
    let no_change = |reason: String| ThresholdAdvice { setting: None, reason };
    if calls.count < MIN_CALLS {
        return no_change(format!(
            "{} calls are too few for a recommendation; {MIN_CALLS} are needed",
            calls.count
        ));
    }
    let share_above = |seconds| share_over(calls, Duration::from_secs(seconds));
    let shown = |share: f64| format_percent(share);
    let abandoned = timed_out + departed;
    let abandoned_text = match abandoned {
        0 => String::new(),
        abandoned => {
            format!(", and {abandoned} ended because the client or the server timed out or disconnected")
        }
    };
    if calls.longest_us < 1_000_000 {
        return no_change("every call ended within 1 s: no threshold makes a difference".to_owned());
    }
    if share_above(30) > 0.5 {
        let setting = Some("mode: always".to_owned());
        return ThresholdAdvice {
            setting,
            reason: format!(
                "{} of the calls take longer than 30 s{abandoned_text}: a task from the start saves the wait",
                shown(share_above(30))
            ),
        };
    }
    let mut candidates = THRESHOLDS.into_iter().filter(|seconds| *seconds <= MAX_THRESHOLD_SECONDS);
    let rarely_exceeded = candidates.find(|seconds| share_above(*seconds) <= TARGET_TASK_SHARE);
    let is_short_wait = |seconds: &u64| {
        *seconds <= DEFAULT_SECONDS
            || share_above(DEFAULT_SECONDS) - share_above(*seconds) <= MAX_WAITING_SHARE
    };
    // If many calls are slow at any threshold, the shortest threshold with hardly more tasks is recommended.
    let fallback = || {
        THRESHOLDS
            .into_iter()
            .find(|seconds| share_above(*seconds) - share_above(DEFAULT_SECONDS) <= NEGLIGIBLE_SHARE)
    };
    let seconds = rarely_exceeded.filter(is_short_wait).or_else(fallback).unwrap_or(DEFAULT_SECONDS);
    let share = share_above(seconds);
    let over_client_timeout = share_over(calls, CLIENT_TIMEOUT);
    let detail = match () {
        () if over_client_timeout > 0.0 => {
            format!(
                "{} take longer than 60 s, when most clients give up{abandoned_text}",
                shown(over_client_timeout)
            )
        }
        () if abandoned > 0 => {
            format!("{abandoned} ended because the client or the server timed out or disconnected")
        }
        () => format!("the longest took {}", format_micros(calls.longest_us)),
    };
    let next = THRESHOLDS.into_iter().find(|next| *next > seconds).unwrap_or(seconds);
    let next_text = match share > TARGET_TASK_SHARE {
        true => format!(", {} with {next} s", shown(share_above(next))),
        false => String::new(),
    };
    ThresholdAdvice {
        setting: Some(format!("after: {seconds}s")),
        reason: format!("{} of the calls would become tasks{next_text}; {detail}", shown(share)),
    }
}

/// Formats a share; 0 % and 100 % are exact.
pub(super) fn format_percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        less if less < 1.0 => "<1 %".to_owned(),
        most if most > 99.0 && most < 100.0 => ">99 %".to_owned(),
        other => format!("{other:.0} %"),
    }
}

/// Formats a duration with two or three significant digits.
pub(super) fn format_micros(micros: u64) -> String {
    let seconds = micros as f64 / 1e6;
    match seconds {
        _ if micros < 1_000 => format!("{micros}us"),
        _ if micros < 1_000_000 => format!("{:.0}ms", micros as f64 / 1e3),
        _ if seconds < 10.0 => format!("{seconds:.1}s"),
        _ if seconds < 120.0 => format!("{seconds:.0}s"),
        _ if seconds < 7200.0 => format!("{:.0}min", seconds / 60.0),
        _ => format!("{:.0}h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::LatencyHistogram;

    fn calls(times: &[(u64, u64)]) -> LatencySnapshot {
        let latencies = LatencyHistogram::default();
        for (count, millis) in times {
            (0..*count).for_each(|_| latencies.record(Duration::from_millis(*millis)));
        }
        latencies.snapshot()
    }

    #[test]
    fn the_recommendation_follows_from_the_calls() {
        for (times, timed_out, setting, reason) in [
            (&[(19, 90_000)][..], 0, None, "19 calls are too few for a recommendation; 20 are needed"),
            (&[(100, 900)], 0, None, "every call ended within 1 s: no threshold makes a difference"),
            (
                &[(40, 1_000), (60, 45_000)],
                0,
                Some("mode: always"),
                "60 % of the calls take longer than 30 s: a task from the start saves the wait",
            ),
            (
                &[(95, 800), (5, 20_000)],
                0,
                Some("after: 1s"),
                "5 % of the calls would become tasks; the longest took 20s",
            ),
            (
                &[(95, 4_000), (5, 90_000)],
                3,
                Some("after: 5s"),
                "5 % of the calls would become tasks; 5 % take longer than 60 s, when most clients give up, and 3 ended because the client or the server timed out or disconnected",
            ),
            (
                &[(60, 4_000), (40, 29_000)],
                0,
                Some("after: 5s"),
                "40 % of the calls would become tasks, 40 % with 10 s; the longest took 29s",
            ),
            // If calls are slow at any threshold, a longer wait would avoid no tasks, or keep many calls
            // waiting.
            (
                &[(63, 500), (37, 20_000)],
                0,
                Some("after: 1s"),
                "37 % of the calls would become tasks, 37 % with 2 s; the longest took 20s",
            ),
            (
                &[(63, 4_000), (37, 8_000)],
                0,
                Some("after: 5s"),
                "37 % of the calls would become tasks, 0 % with 10 s; the longest took 8.0s",
            ),
            (
                &[(86, 4_000), (14, 8_000)],
                0,
                Some("after: 10s"),
                "0 % of the calls would become tasks; the longest took 8.0s",
            ),
        ] {
            let found = recommend(&calls(times), timed_out, 0);
            assert_eq!((found.setting.as_deref(), &*found.reason), (setting, reason), "{times:?}");
        }
    }

    #[test]
    fn shares_and_durations_are_formatted_for_display() {
        let shares = [0.0, 0.001, 0.5, 0.999, 1.0].map(format_percent);
        assert_eq!(shares, ["0 %", "<1 %", "50 %", ">99 %", "100 %"]);
        let times = [7, 70_000, 1_500_000, 59_000_000, 300_000_000, 86_400_000_000].map(format_micros);
        assert_eq!(times, ["7us", "70ms", "1.5s", "59s", "5min", "24h"]);
    }
}
