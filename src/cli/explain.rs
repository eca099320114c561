//! `deferral explain`: why a call became a task, the matching rule, and the task's history.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    operator,
    printer::{Printer, to_single_line},
};
use crate::client::Error;
use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Task id (the handle that the client received), or at least its first 4 digits, as `deferral tasks list` and the log show it.
    task: String,
    #[command(flatten)]
    address: operator::AdminArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The response of the admin endpoint for one task.
#[derive(Debug, Deserialize)]
struct TaskExplanation {
    task: String,
    route: String,
    tool: String,
    status: String,
    view: String,
    created: String,
    waited_ms: u64,
    kept_until: String,
    message: Option<String>,
    principal: String,
    #[serde(default)]
    caller: Option<String>,
    is_held: bool,
    is_lost: bool,
    waits: usize,
    cause: Option<DeferralCause>,
    life: Vec<HistoryItem>,
}

#[derive(Debug, Deserialize)]
struct DeferralCause {
    by: String,
    mode: String,
    after_ms: u64,
    rule: Option<String>,
    #[serde(default)]
    rollout: Option<String>,
}

#[derive(Debug, Deserialize)]
struct HistoryItem {
    what: String,
    at: String,
    until: String,
    times: u32,
}

/// Prints the history of the task and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let client = match args.address.client() {
        Ok(client) => client,
        Err(error) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
    };
    let response = client.get(&format!("/tasks/{}", super::tasks::percent_encode(&args.task))).await;
    let parsed = response.and_then(|body| {
        let explanation: TaskExplanation =
            serde_json::from_slice(&body).map_err(|error| invalid_response(&error))?;
        Ok((serde_json::from_slice::<Value>(&body).map_err(|error| invalid_response(&error))?, explanation))
    });
    match parsed {
        Ok((body, _)) if args.json => printer.json(&body),
        Ok((_, explanation)) => {
            for line in explanation.lines() {
                printer.line(line);
            }
        }
        Err(error) => return args.address.report(&error, printer),
    }
    EXIT_SUCCESS
}

fn invalid_response(error: &serde_json::Error) -> Error {
    Error::Invalid(format!("unexpected response, perhaps of another version of deferral: {error}"))
}

// === impl TaskExplanation ===

impl TaskExplanation {
    /// Returns the explanation, line by line. The lines may contain names and messages of clients and
    /// servers.
    fn lines(&self) -> Vec<String> {
        let Self { task, route, tool, status, view, principal, caller, .. } = self;
        let view_text = match view.as_str() {
            "extension" => "a task of the tasks extension (2026-07-28)",
            "experimental" => "a task of 2025-11-25",
            "ticket" => "a ticket",
            other => other,
        };
        let caller = caller.as_ref().unwrap_or(principal);
        let mut lines = vec![
            format!("{task}: {tool} on {route}, {status}"),
            format!("  caller: {caller}, shown as {view_text}"),
            format!("  {}", self.describe_cause()),
            format!(
                "  {}  became a task after the call had run for {}",
                self.created,
                format_seconds(self.waited_ms)
            ),
        ];
        lines.extend(self.life.iter().map(|item| format!("  {}  {}", item.at, item.describe())));
        lines.extend(
            self.message.as_ref().map(|message| format!("  status message: {}", to_single_line(message))),
        );
        lines.push(match status.as_str() {
            "working" | "input_required" if self.is_held => {
                format!("  its call runs in this process, and {} wait for it", count_of(self.waits, "client"))
            }
            "working" | "input_required" if self.is_lost => {
                "  its call runs in no process any more; it ends soon".to_owned()
            }
            "working" | "input_required" => "  its call runs in another process".to_owned(),
            _ => format!("  kept until {}", self.kept_until),
        });
        lines
    }

    fn describe_cause(&self) -> String {
        let Some(DeferralCause { by, mode, after_ms, rule, rollout }) = &self.cause else {
            return "why it became a task is not known".to_owned();
        };
        let rule = match rule {
            Some(pattern) => format!("by the rule `match: {pattern}` of the route's `tools`"),
            None if by == "ticket" => "by the route's `held.ticket` or `tickets`".to_owned(),
            None => "by the route's `defer`".to_owned(),
        };
        let rule = match rollout {
            Some(rollout) => format!("{rule}, within the rollout of {rollout}"),
            None => rule,
        };
        let after = format_seconds(*after_ms);
        match by.as_str() {
            "threshold" => {
                format!("the call reached the threshold: mode {mode}, after {after}, {rule}")
            }
            "mode" => format!("every call is a task at once: mode {mode}, {rule}"),
            "request" => format!("the client requested a task (`params.task`): mode {mode}, {rule}"),
            "ticket" => format!(
                "the client does not support tasks, and the call reached the time of `ticket`: after {after}, {rule}"
            ),
            "departure" => {
                format!("the client, which expected a response, disconnected before it: mode {mode}, {rule}")
            }
            "stop" => "the proxy was shutting down, so that its successor could resume the call".to_owned(),
            other => format!("trigger {other}: mode {mode}, {rule}"),
        }
    }
}

// === impl HistoryItem ===

impl HistoryItem {
    fn describe(&self) -> String {
        let what = match self.what.as_str() {
            "progressed" => "progress of the server",
            "asked" => "input request of the server",
            "withdrawn" => "an input request was withdrawn or expired",
            "answered" => "input response of the client",
            "completed" => "result of the tool",
            "tool_failed" => "result of the tool, marked as an error",
            "failed" => "the call failed with an error",
            "cancelled" => "cancelled",
            "omitted" => "(further changes, which were not recorded)",
            other => other,
        };
        match self.times {
            1 => what.to_owned(),
            times => format!("{what}, {times} times until {}", self.until),
        }
    }
}

fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration in seconds, rounded for display.
fn format_seconds(millis: u64) -> String {
    match millis {
        0..10_000 => format!("{} s", millis as f64 / 1e3),
        _ => format!("{} s", millis / 1000),
    }
}
