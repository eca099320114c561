//! The keys of `drain`, `log` and `ready`: what the process does at its end, writes, and reports.

use crate::{
    config::schema::{
        SectionReader, ValueResult, duration, invalid, mapping, parse_word, show_duration, string, word,
    },
    telemetry,
};
use std::time::Duration;

/// Durations of the phases of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimes {
    /// Time after the stop signal in which new calls are still served, while `/ready` responds with 503 and
    /// idle connections are closed, so that load balancers can notice. Default 0.
    pub notice: Duration,
    /// Time for calls in flight to finish, after `notice`. Calls that are still running then end with
    /// `-31007`. Default 30 s.
    pub limit: Duration,
}

/// The default of `drain`.
const DEFAULT_DRAIN: DrainTimes = DrainTimes { notice: Duration::ZERO, limit: Duration::from_secs(30) };

/// Format and level of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    pub format: LogFormat,
    /// Filter in the syntax of `tracing`, as in `warn` or `info,deferral::access=warn`; `None` for `info`.
    pub level: Option<String>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

const LOG_FORMAT: &str = "log format `{}`";
const LOG_FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Conditions of `/ready`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadinessConfig {
    /// Whether `/ready` requires that the server of each route is reachable. Default false: clients of the
    /// other routes are served, and those of this route get errors.
    pub needs_servers: bool,
}

/// Reads `drain`: the limit alone, or a mapping.
pub(super) fn read_drain(s: &mut SectionReader<'_, '_>) -> DrainTimes {
    let drain = duration()
        .map(|limit| DrainTimes { limit, ..DEFAULT_DRAIN })
        .or_mapping(mapping("`drain`", |s| Some(read_drain_times(s))))
        .show_with(|drain| show_duration(drain.limit).into());
    s.key("drain", "Maximum time at shutdown (SIGTERM or Ctrl-C) for calls and tasks in flight to finish, as in `30s`; or a mapping that also sets how long new calls are still served, as in `{ notice: 5s, limit: 30s }`.")
        .read_or(drain, DEFAULT_DRAIN)
}

fn read_drain_times(s: &mut SectionReader<'_, '_>) -> DrainTimes {
    DrainTimes {
        notice: s
            .key("notice", "Time after the stop signal in which new calls are still served. `/ready` already responds with 503, and idle connections are closed. Set it to the time that load balancers need to notice.")
            .read_or(duration(), DEFAULT_DRAIN.notice),
        limit: s
            .key("limit", "Maximum time for calls and tasks in flight to finish, after `notice`; after that they end with `-31007`, except tasks in a store on disk whose calls can be resumed, which are left to the next process.")
            .read_or(duration(), DEFAULT_DRAIN.limit),
    }
}

/// Reads `log`: a format, or a mapping.
pub(super) fn read_log(s: &mut SectionReader<'_, '_>) -> LogConfig {
    let log = word(LOG_FORMAT, LOG_FORMATS)
        .map(|format| LogConfig { format, level: None })
        .or_mapping(mapping("`log`", |s| Some(read_log_keys(s))))
        .show_with(|log| word(LOG_FORMAT, LOG_FORMATS).show(&log.format));
    s.key("log", "Log on standard error: `text` or `json`; or a mapping that also sets the level.")
        .read_or(log, LogConfig::default())
}

fn read_log_keys(s: &mut SectionReader<'_, '_>) -> LogConfig {
    LogConfig {
        format: s
            .key("format", "Format: `text` for people, `json` for programs.")
            .read_or(word(LOG_FORMAT, LOG_FORMATS), LogFormat::default()),
        level: s
            .key("level", "Level: error, warn, info, debug or trace; or a per-module filter, as in `info,deferral::access=warn`. Default: info. If the environment variable DEFERRAL_LOG contains a filter, that overrides it.")
            .read(string(parse_log_level))
            .ok(),
    }
}

/// Parses the log format.
///
/// # Errors
/// The format is unknown.
pub fn parse_log_format(text: &str) -> ValueResult<LogFormat> {
    parse_word(text, LOG_FORMAT, LOG_FORMATS)
}

/// Parses the log level, a filter of `tracing`.
///
/// # Errors
/// The filter is invalid.
pub fn parse_log_level(text: &str) -> ValueResult<String> {
    match telemetry::log::check_filter(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => invalid(format!(
            "`{text}` is not a log level: {error}; write error, warn, info, debug or trace, or a filter, for example `info,deferral::access=warn`"
        )),
    }
}

/// Reads `ready`.
pub(super) fn read_ready(s: &mut SectionReader<'_, '_>) -> ReadinessConfig {
    s.key("ready", "When `/ready` responds with 200. Default: from the start until the stop signal.")
        .read_section("`ready`", read_readiness)
}

fn read_readiness(s: &mut SectionReader<'_, '_>) -> ReadinessConfig {
    ReadinessConfig {
        needs_servers: s
            .key("upstream", "`required`: `/ready` responds with 503 while the server of a route is known to be unreachable; a server that has not been called yet, or was unreachable, is probed every 5 s by a handshake (a stdio server is started for it). Before the result of the first probe `/ready` responds with 200. `ignored`: servers do not affect `/ready`.")
            .read_or(word("value `{}`", &[("required", true), ("ignored", false)]), false),
    }
}
