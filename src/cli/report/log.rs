//! Reads calls from a log of the proxy, in the text or the JSON format.

use crate::telemetry::metrics::{LatencyHistogram, MAX_TOOLS, OTHER};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{self, BufRead},
    time::Duration,
};

/// The calls of one tool.
#[derive(Debug, Default)]
pub(super) struct LoggedCalls {
    /// Latencies of calls that ended with a result, timed out, or were abandoned.
    pub(super) calls: LatencyHistogram,
    /// Calls that ended in an error, which are not in `calls`.
    pub(super) failed: LatencyHistogram,
    /// Number of calls that timed out.
    pub(super) timed_out: u64,
    /// Number of calls whose client disconnected or cancelled.
    pub(super) departed: u64,
    /// Number of calls that became tasks.
    pub(super) tasks: u64,
}

/// The calls of a log.
#[derive(Debug, Default)]
pub(super) struct LogSummary {
    /// Calls by route and tool. Tools without a successful call, and tools beyond [`MAX_TOOLS`] of a route, are
    /// counted as [`OTHER`], as in the metrics, because clients can invent names.
    pub(super) tools: BTreeMap<(String, String), LoggedCalls>,
    /// Tools without a successful call so far, with the same limit.
    without_success: BTreeMap<(String, String), LoggedCalls>,
    /// Number of lines that were read.
    pub(super) lines: u64,
    /// Timestamps of the first and the last call, as logged.
    pub(super) period: Option<(String, String)>,
    /// Number of lines that are not from a log of deferral.
    pub(super) foreign: u64,
}

/// Maximum number of bytes of a line that are kept. Lines of deferral are shorter.
const MAX_LINE_BYTES: usize = 64 << 10;

// === impl LogSummary ===

impl LogSummary {
    /// Reads a log to its end. Memory use depends on the number of tools, not on the length of the log.
    ///
    /// # Errors
    /// An error if the log cannot be read.
    pub(super) fn read(mut input: impl BufRead) -> io::Result<Self> {
        let (mut log, mut line) = (Self::default(), Vec::new());
        while read_line(&mut input, &mut line)? {
            log.lines += 1;
            match parse_fields(&String::from_utf8_lossy(&line)) {
                Some(fields) => log.count_line(&fields),
                None => log.foreign += 1,
            }
        }
        log.merge_without_success();
        Ok(log)
    }

    fn count_line(&mut self, fields: &BTreeMap<String, String>) {
        let text = |name: &str| fields.get(name).map(String::as_str);
        match text("logger") {
            Some("deferral::access") => self.count_request(text),
            Some("deferral::task") if text("event") == Some("transition") => self.count_task(text),
            _ => {}
        }
    }

    /// Counts a call, unless it became a task, whose end is another line, or fetched the result of a ticket.
    fn count_request<'a>(&mut self, field: impl Fn(&str) -> Option<&'a str>) {
        let micros = |name| field(name)?.parse().ok().map(Duration::from_micros);
        let (Some(route), Some(tool), Some(outcome)) = (field("route"), field("target"), field("outcome"))
        else {
            return;
        };
        let is_call = field("method") == Some("tools/call") && field("shown").is_none();
        if !is_call || matches!(outcome, "task" | "refused" | "input_required") {
            return;
        }
        let duration = micros("upstream_us").unwrap_or_default() + micros("own_us").unwrap_or_default();
        self.extend_period(field("timestamp"));
        let entry = self.tool_entry(route, tool, outcome == "result");
        if matches!(outcome, "tool_error" | "server_error" | "upstream_failed" | "proxy_failed") {
            return entry.failed.record(duration);
        }
        entry.calls.record(duration);
        entry.timed_out += u64::from(outcome == "timed_out");
        entry.departed += u64::from(outcome == "departed");
    }

    fn count_task<'a>(&mut self, field: impl Fn(&str) -> Option<&'a str>) {
        let (Some(route), Some(tool), Some(to)) = (field("route"), field("tool"), field("to")) else {
            return;
        };
        if field("from") == Some("call") {
            self.tool_entry(route, tool, false).tasks += 1;
        }
        let millis = field("took_ms").and_then(|millis| millis.parse::<f64>().ok());
        if let Some(duration) = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok()) {
            self.extend_period(field("timestamp"));
            let has_succeeded = to == "completed" && field("tool_error").is_none();
            let entry = self.tool_entry(route, tool, has_succeeded);
            if to == "failed" {
                return entry.failed.record(duration);
            }
            entry.calls.record(duration);
            entry.departed += u64::from(to == "cancelled");
        }
    }

    /// Extends the period to a timestamp. All timestamps have the same format, so they sort as texts.
    fn extend_period(&mut self, timestamp: Option<&str>) {
        let is_time =
            |text: &&str| text.len() <= 40 && text.starts_with(|first: char| first.is_ascii_digit());
        let Some(time) = timestamp.filter(is_time) else { return };
        let (first, last) = self.period.get_or_insert_with(|| (time.to_owned(), time.to_owned()));
        if time < first.as_str() {
            time.clone_into(first);
        }
        if time > last.as_str() {
            time.clone_into(last);
        }
    }

    /// Returns the entry of a tool. `has_succeeded` is set if a call of the tool ended without an error.
    fn tool_entry(&mut self, route: &str, tool: &str, has_succeeded: bool) -> &mut LoggedCalls {
        let mut key = (route.to_owned(), tool.to_owned());
        if !self.tools.contains_key(&key) {
            let is_full = is_full(if has_succeeded { &self.tools } else { &self.without_success }, route);
            match has_succeeded {
                true if !is_full => {
                    let calls = self.without_success.remove(&key).unwrap_or_default();
                    self.tools.insert(key.clone(), calls);
                }
                false if !is_full || self.without_success.contains_key(&key) => {
                    return self.without_success.entry(key).or_default();
                }
                true | false => OTHER.clone_into(&mut key.1),
            }
        }
        self.tools.entry(key).or_default()
    }

    /// Counts the tools without a successful call as [`OTHER`].
    fn merge_without_success(&mut self) {
        for ((route, _), entry) in std::mem::take(&mut self.without_success) {
            let others = self.tools.entry((route, OTHER.to_owned())).or_default();
            others.calls.merge(&entry.calls);
            others.failed.merge(&entry.failed);
            others.timed_out += entry.timed_out;
            others.departed += entry.departed;
            others.tasks += entry.tasks;
        }
    }
}

/// Whether the route has its maximum number of tools.
fn is_full(tools: &BTreeMap<(String, String), LoggedCalls>, route: &str) -> bool {
    let start = (route.to_owned(), String::new());
    tools.range(start..).take_while(|((tool_route, _), _)| tool_route == route).take(MAX_TOOLS).count()
        == MAX_TOOLS
}

/// Reads one line without its line break, keeping at most [`MAX_LINE_BYTES`] bytes. Returns false at the end
/// of the log.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_line = false;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(has_line);
        }
        has_line = true;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        line.extend_from_slice(&part[..part.len().min(MAX_LINE_BYTES - line.len())]);
        let read = end.map_or(buffer.len(), |end| end + 1);
        input.consume(read);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Parses the fields of a line of deferral, in either format; `None` for a line of another program.
fn parse_fields(line: &str) -> Option<BTreeMap<String, String>> {
    if line.starts_with('{') {
        let object: BTreeMap<String, Value> = serde_json::from_str(line).ok()?;
        object.contains_key("logger").then_some(())?;
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        return Some(object.into_iter().map(|(name, value)| (name, text(value))).collect());
    }
    // The text format is: TIME LEVEL LOGGER: name=value …
    let (time, rest) = line.trim_start().split_once(' ')?;
    let (_level, rest) = rest.trim_start().split_once(' ')?;
    let (logger, mut rest) = rest.trim_start().split_once(": ")?;
    if !logger.starts_with("deferral") {
        return None;
    }
    let mut fields =
        BTreeMap::from([("logger".to_owned(), logger.to_owned()), ("timestamp".to_owned(), time.to_owned())]);
    while let Some((name, value)) = rest.split_once('=') {
        // A message may precede the first field.
        let name = name.rsplit(' ').next()?;
        let (value, after) = if value.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
            let text = values.next()?.ok()?;
            (text, &value[values.byte_offset()..])
        } else {
            let (word, after) = value.split_once(' ').unwrap_or((value, ""));
            (word.to_owned(), after)
        };
        fields.insert(name.to_owned(), value);
        rest = after.trim_start();
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{AccessEvent, LineFormat, LogLayer, RequestOutcome, TaskEnd, TaskTransition};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::{SystemTime, UNIX_EPOCH};
    use tracing_subscriber::layer::SubscriberExt;

    /// Returns the log lines of the events that `log` emits.
    fn logged(format: LineFormat, log: impl FnOnce()) -> String {
        let text = Arc::new(Mutex::new(String::new()));
        let taken = Arc::clone(&text);
        let now = || -> SystemTime { UNIX_EPOCH };
        let take = move |_: &tracing::Level, line: &str| {
            taken.lock().unwrap_or_else(PoisonError::into_inner).push_str(line);
        };
        let lines = LogLayer::new(format, now, take);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn access(tool: &str, outcome: RequestOutcome, upstream: Duration) {
        AccessEvent {
            method: "tools/call",
            counted_as: "tools/call",
            tool: None,
            target: tool,
            route: "/mcp",
            token: None,
            principal: &"anonymous",
            client_era: "modern",
            task: None,
            session: None,
            shown: None,
            status: 200,
            outcome,
            reason: Some("no answer = \"late\""),
            code: None,
            upstream,
            own: Duration::from_millis(1),
            content: None,
        }
        .emit();
    }

    #[test]
    fn calls_are_read_from_logs_in_both_formats() {
        for format in [LineFormat::Text, LineFormat::Json] {
            let text = logged(format, || {
                access("a tool=x", RequestOutcome::Result, Duration::from_secs(4));
                access("a tool=x", RequestOutcome::TimedOut, Duration::from_secs(60));
                access("a tool=x", RequestOutcome::Disconnected, Duration::from_secs(30));
                access("a tool=x", RequestOutcome::Task, Duration::from_secs(5));
                access("a tool=x", RequestOutcome::Refused, Duration::ZERO);
                let (waited, age) = (Duration::from_secs(5), Duration::from_secs(15));
                TaskTransition {
                    task: &"t",
                    route: "/mcp",
                    tool: "a tool=x",
                    principal: &"anonymous",
                    from: "working",
                    to: "completed",
                    end: Some(TaskEnd { waited, age, code: None, is_tool_error: false }),
                    reason: None,
                }
                .emit();
            });
            let log = LogSummary::read(text.as_bytes()).expect("memory can be read");
            assert_eq!((log.lines, log.foreign), (6, 0), "{text}");
            let seen = &log.tools[&("/mcp".to_owned(), "a tool=x".to_owned())];
            let calls = seen.calls.snapshot();
            assert_eq!((calls.count, calls.longest_us), (4, 60_001_000), "{text}");
            assert_eq!(calls.sum_us, 114_003_000);
            assert_eq!((seen.timed_out, seen.departed, seen.failed.snapshot().count), (1, 1, 0));
            let time = "1970-01-01T00:00:00.000000Z".to_owned();
            assert_eq!(log.period, Some((time.clone(), time)));
        }
    }

    #[test]
    fn failed_calls_are_counted_separately() {
        for format in [LineFormat::Text, LineFormat::Json] {
            let text = logged(format, || {
                access("t", RequestOutcome::Result, Duration::from_secs(4));
                for failure in [
                    RequestOutcome::ToolError,
                    RequestOutcome::ServerError,
                    RequestOutcome::UpstreamFailed,
                    RequestOutcome::ProxyFailed,
                ] {
                    access("t", failure, Duration::from_millis(1));
                }
                let end = Some(TaskEnd {
                    waited: Duration::ZERO,
                    age: Duration::from_secs(15),
                    code: None,
                    is_tool_error: false,
                });
                let (task, route, tool, principal) = (&"t", "/mcp", "t", &"anonymous");
                let (from, to, reason) = ("working", "failed", Some("the reason = any words"));
                TaskTransition { task, route, tool, principal, from, to, end, reason }.emit();
            });
            let log = LogSummary::read(text.as_bytes()).expect("memory can be read");
            let seen = &log.tools[&("/mcp".to_owned(), "t".to_owned())];
            assert_eq!((seen.calls.snapshot().count, seen.failed.snapshot().count), (1, 5), "{text}");
        }
    }

    /// A log that is generated while it is read, with another tool in each call.
    struct Endless {
        calls: usize,
        line: Vec<u8>,
    }

    impl io::Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.line.is_empty() && self.calls > 0 {
                self.calls -= 1;
                self.line = format!("1970 INFO deferral::access: method=tools/call target=tool-{} route=/mcp outcome=result upstream_us=2000000\n", self.calls).into();
            }
            let taken = self.line.len().min(into.len());
            into[..taken].copy_from_slice(&self.line[..taken]);
            self.line.drain(..taken);
            Ok(taken)
        }
    }

    #[test]
    fn memory_for_a_log_is_bounded_by_the_tools_of_its_routes() {
        let log = LogSummary::read(io::BufReader::new(Endless { calls: 20_000, line: Vec::new() }))
            .expect("it is read");
        assert_eq!((log.lines, log.foreign), (20_000, 0));
        assert_eq!(log.tools.len(), MAX_TOOLS + 1);
        let others = &log.tools[&("/mcp".to_owned(), OTHER.to_owned())];
        assert_eq!(others.calls.snapshot().count, 20_000 - MAX_TOOLS as u64);
    }

    #[test]
    fn a_name_without_a_successful_call_has_no_row() {
        let line = |tool: &str, outcome: &str| {
            format!(
                "1970 INFO deferral::access: method=tools/call target={tool} route=/mcp outcome={outcome} upstream_us=2000000\n"
            )
        };
        let made_up =
            ["tool_error", "server_error", "timed_out", "departed", "upstream_failed", "proxy_failed"];
        let mut text: String = made_up.iter().map(|outcome| line(outcome, outcome)).collect();
        text.push_str(
            "1970 INFO deferral::task: event=transition route=/mcp tool=task from=call to=working\n",
        );
        text.push_str("1970 INFO deferral::task: event=transition route=/mcp tool=task from=working to=completed tool_error=true took_ms=10\n");
        text.push_str(&line("real", "timed_out"));
        text.push_str(&line("real", "result"));
        let log = LogSummary::read(text.as_bytes()).expect("it is read");
        let counts = |tool: &str| {
            let seen = &log.tools[&("/mcp".to_owned(), tool.to_owned())];
            (seen.calls.snapshot().count, seen.failed.snapshot().count, seen.timed_out, seen.tasks)
        };
        assert_eq!((log.tools.len(), counts("real"), counts(OTHER)), (2, (2, 0, 1, 0), (3, 4, 1, 1)));
    }

    #[test]
    fn lines_of_others_are_counted_and_long_ones_take_no_memory() {
        let long = format!("{{\"logger\":\"{}", "x".repeat(10 << 20));
        let text = format!("hello\n{long}\n\n=\n: = :\n{{}}\n");
        let log = LogSummary::read(text.as_bytes()).expect("memory can be read");
        assert_eq!((log.lines, log.foreign), (6, 6));
        assert!(log.tools.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_whatever_can_be_read(bytes: Vec<u8>) {
            let _ = LogSummary::read(&bytes[..]);
        }

        #[test]
        fn any_fields_whatever_can_be_read(line in "1970 INFO deferral::access: [a-z=\" \\\\{}]{0,60}") {
            let _ = parse_fields(&line);
        }
    }
}
