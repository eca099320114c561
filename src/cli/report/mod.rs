//! `deferral report`: latencies of each tool, and the recommended threshold.
//!
//! The source is a running proxy in any mode, or its log. `advice` recommends a threshold, `log` reads logs,
//! and this module prints.

mod advice;
mod log;

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    operator,
    printer::{Printer, to_single_line},
};
use crate::telemetry::metrics::LatencySnapshot;
use advice::{THRESHOLDS, ThresholdAdvice, format_micros, format_percent, recommend, share_over};
use clap::ValueHint;
use log::LogSummary;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Log of a proxy (text or JSON, level info) to read instead of querying a running one, or `-` for standard input.
    #[arg(value_name = "LOGFILE", value_hint = ValueHint::FilePath, conflicts_with = "admin")]
    log: Option<PathBuf>,
    #[command(flatten)]
    address: operator::AdminArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The row of one tool in the report.
#[derive(Clone, Debug, Serialize)]
struct ReportRow {
    route: String,
    tool: String,
    /// The period: since the start of the proxy, or from the first to the last call of a log.
    since: Option<String>,
    until: Option<String>,
    /// Calls that ended with a result, timed out or were abandoned. Failed calls are not included, nor in the
    /// quantiles, because they do not show how long a call takes.
    calls: u64,
    /// Calls that ended in an error: of the tool, of the server, or because the server failed.
    errors: u64,
    p50_us: Option<u64>,
    p90_us: Option<u64>,
    p99_us: Option<u64>,
    max_us: Option<u64>,
    errors_p50_us: Option<u64>,
    errors_max_us: Option<u64>,
    timed_out: u64,
    departed: u64,
    tasks: u64,
    thresholds: Vec<ThresholdShare>,
    advice: ThresholdAdvice,
}

/// The share of calls that exceed a threshold.
#[derive(Clone, Debug, Serialize)]
struct ThresholdShare {
    seconds: u64,
    /// The share, from 0 to 1.
    share: f64,
}

/// A tool in the response of `/tools`.
#[derive(Deserialize)]
struct ToolResponse {
    route: String,
    tool: String,
    since: String,
    /// All calls, including failed ones.
    calls: LatencySnapshot,
    failed_calls: LatencySnapshot,
    timed_out: u64,
    departed: u64,
    tasks_created: u64,
}

/// The figures from which a row is computed.
struct RowFigures {
    name: (String, String),
    period: (Option<String>, Option<String>),
    calls: LatencySnapshot,
    failed: LatencySnapshot,
    timed_out: u64,
    departed: u64,
    tasks: u64,
}

/// Width of a full bar, in characters.
const BAR_WIDTH: usize = 30;

/// Prints the report and returns the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let rows = match &args.log {
        Some(path) => read_log(path, printer),
        None => query_proxy(&args.address).await,
    };
    match rows {
        Err(error) => {
            printer.error(error);
            return EXIT_FAILURE;
        }
        Ok(tools) if args.json => printer.json(&tools),
        Ok(tools) => print_report(&tools, printer),
    }
    EXIT_SUCCESS
}

async fn query_proxy(address: &operator::AdminArgs) -> Result<Vec<ReportRow>, String> {
    let body = address.client()?.get("/tools").await.map_err(|error| address.explain(&error))?;
    let tools: Vec<ToolResponse> = serde_json::from_slice(&body)
        .map_err(|error| format!("unexpected response, perhaps of another version of deferral: {error}"))?;
    Ok(sorted(tools.into_iter().map(|tool| {
        ReportRow::from_figures(&RowFigures {
            name: (tool.route, tool.tool),
            period: (Some(tool.since), None),
            calls: tool.calls.without(&tool.failed_calls),
            failed: tool.failed_calls,
            timed_out: tool.timed_out,
            departed: tool.departed,
            tasks: tool.tasks_created,
        })
    })))
}

fn read_log(path: &Path, printer: &mut Printer) -> Result<Vec<ReportRow>, String> {
    let summary = match path.to_str() {
        Some("-") => LogSummary::read(io::stdin().lock()),
        _ => File::open(path).and_then(|file| LogSummary::read(BufReader::new(file))),
    };
    let log = summary.map_err(|error| format!("{}: {error}", path.display()))?;
    if log.foreign > 0 {
        printer.note(format_args!(
            "note: {} of {} lines are not from a log of deferral",
            log.foreign, log.lines
        ));
    }
    let (since, until) = log.period.unzip();
    let tools = log.tools.into_iter().map(|(name, calls)| {
        ReportRow::from_figures(&RowFigures {
            name,
            period: (since.clone(), until.clone()),
            calls: calls.calls.snapshot(),
            failed: calls.failed.snapshot(),
            timed_out: calls.timed_out,
            departed: calls.departed,
            tasks: calls.tasks,
        })
    });
    Ok(sorted(tools))
}

/// Sorts tools by number of calls, descending. Tools without calls and tasks are left out.
fn sorted(tools: impl Iterator<Item = ReportRow>) -> Vec<ReportRow> {
    let mut tools: Vec<_> = tools.filter(|tool| tool.calls + tool.errors + tool.tasks > 0).collect();
    tools.sort_by(|one, other| {
        let name = |tool: &ReportRow| (tool.route.clone(), tool.tool.clone());
        other.calls.cmp(&one.calls).then_with(|| name(one).cmp(&name(other)))
    });
    tools
}

fn print_report(tools: &[ReportRow], printer: &mut Printer) {
    let Some(ReportRow { since, until, .. }) = tools.first() else {
        printer.line("no tool calls have ended yet");
        return;
    };
    match (since, until) {
        (Some(since), Some(until)) => printer.line(format_args!("period: {since} to {until}")),
        (Some(since), None) => printer.line(format_args!("period: since {since}, the start of the proxy")),
        (None, _) => {}
    }
    printer.line("");
    for line in table(tools) {
        printer.line(line);
    }
    for tool in tools {
        printer.line("");
        for line in tool.lines() {
            printer.line(line);
        }
    }
}

const HEADINGS: [&str; 11] =
    ["ROUTE", "TOOL", "CALLS", "ERRORS", "TIMED OUT", "ABANDONED", "TASKS", "P50", "P90", "P99", "MAX"];

/// Formats the table, with a row for each tool: names left-aligned, figures right-aligned.
fn table(tools: &[ReportRow]) -> Vec<String> {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(tools.iter().map(ReportRow::row));
    let widths: Vec<_> = (0..HEADINGS.len())
        .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default())
        .collect();
    let line = |row: &[String; 11]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 | 1 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect()
}

// === impl ReportRow ===

impl ReportRow {
    fn from_figures(figures: &RowFigures) -> Self {
        let RowFigures { name: (route, tool), period: (since, until), calls, failed, .. } = figures;
        let &RowFigures { timed_out, departed, tasks, .. } = figures;
        let quantile_us = |latencies: &LatencySnapshot, share| {
            let time = latencies.quantile(share)?;
            Some(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        let longest = |latencies: &LatencySnapshot| (latencies.count > 0).then_some(latencies.longest_us);
        let threshold =
            |seconds| ThresholdShare { seconds, share: share_over(calls, Duration::from_secs(seconds)) };
        Self {
            route: route.clone(),
            tool: tool.clone(),
            since: since.clone(),
            until: until.clone(),
            calls: calls.count,
            errors: failed.count,
            p50_us: quantile_us(calls, 0.5),
            p90_us: quantile_us(calls, 0.9),
            p99_us: quantile_us(calls, 0.99),
            max_us: longest(calls),
            errors_p50_us: quantile_us(failed, 0.5),
            errors_max_us: longest(failed),
            timed_out,
            departed,
            tasks,
            thresholds: THRESHOLDS.into_iter().map(threshold).collect(),
            advice: recommend(calls, timed_out, departed),
        }
    }

    /// Returns the cells of the row, in the order of [`HEADINGS`].
    fn row(&self) -> [String; 11] {
        let Self { route, tool, calls, errors, timed_out, departed, tasks, .. } = self;
        let [p50, p90, p99, max] = [self.p50_us, self.p90_us, self.p99_us, self.max_us].map(format_time);
        let counts = [calls, errors, timed_out, departed, tasks].map(ToString::to_string);
        let [calls, errors, timed_out, departed, tasks] = counts;
        [
            to_single_line(route),
            to_single_line(tool),
            calls,
            errors,
            timed_out,
            departed,
            tasks,
            p50,
            p90,
            p99,
            max,
        ]
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} {}", to_single_line(&self.route), to_single_line(&self.tool))];
        for ThresholdShare { seconds, share } in &self.thresholds {
            let filled = (share * BAR_WIDTH as f64).ceil() as usize;
            let bar = "█".repeat(filled) + &"·".repeat(BAR_WIDTH.saturating_sub(filled));
            lines.push(format!("  over {seconds:>2} s  {bar} {:>6}", format_percent(*share)));
        }
        if self.errors > 0 {
            let [p50, max] = [self.errors_p50_us, self.errors_max_us].map(format_time);
            let noun = if self.errors == 1 { "call" } else { "calls" };
            lines.push(format!("  not included: {} failed {noun}, p50 {p50}, max {max}", self.errors));
        }
        let setting = self.advice.setting.as_deref().unwrap_or("none");
        lines.push(format!("  advice: {setting} ({})", self.advice.reason));
        lines
    }
}

fn format_time(micros: Option<u64>) -> String {
    micros.map_or_else(|| "-".to_owned(), format_micros)
}
