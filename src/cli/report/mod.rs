//! `deferral report`: how long calls take, tool by tool, and which threshold is advised.
//!
//! It works from a proxy that runs, in whatever mode, or from its log. `advice` decides, `log` reads, and this prints.

mod advice;
mod log;

use super::{
    DONE, FAILED, operator,
    printer::{Printer, inline},
};
use crate::telemetry::metrics::LatencySnapshot;
use advice::{Advice, THRESHOLDS, advice, percent, seconds_of, share_over};
use clap::ValueHint;
use log::Log;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A log of the proxy to read instead of asking one that runs, or `-` for the standard input.
    #[arg(value_name = "LOGFILE", value_hint = ValueHint::FilePath, conflicts_with = "admin")]
    log: Option<PathBuf>,
    #[command(flatten)]
    address: operator::Address,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is said of one tool.
#[derive(Clone, Debug, Serialize)]
struct Tool {
    route: String,
    tool: String,
    calls: u64,
    p50_us: Option<u64>,
    p90_us: Option<u64>,
    p99_us: Option<u64>,
    max_us: Option<u64>,
    timed_out: u64,
    departed: u64,
    tasks: u64,
    thresholds: Vec<Threshold>,
    advice: Advice,
}

/// What a threshold would come to.
#[derive(Clone, Debug, Serialize)]
struct Threshold {
    seconds: u64,
    /// Of all calls, of `0.0..=1.0`.
    share: f64,
}

/// A tool as the proxy tells of it.
#[derive(Deserialize)]
struct Told {
    route: String,
    tool: String,
    calls: LatencySnapshot,
    timed_out: u64,
    departed: u64,
    tasks_created: u64,
}

/// Characters of a bar that stands for all.
const BAR: usize = 30;

/// Prints the report, or why there is none. Gives the exit code.
pub async fn run(args: Args, printer: &mut Printer) -> u8 {
    let found = match &args.log {
        Some(path) => of_log(path, printer),
        None => of_proxy(&args.address).await,
    };
    match found {
        Err(error) => {
            printer.error(error);
            return FAILED;
        }
        Ok(tools) if args.json => printer.json(&tools),
        Ok(tools) => print(&tools, printer),
    }
    DONE
}

async fn of_proxy(address: &operator::Address) -> Result<Vec<Tool>, String> {
    let body = address.operator()?.get("/tools").await.map_err(|error| address.explain(&error))?;
    let told: Vec<Told> = serde_json::from_slice(&body)
        .map_err(|error| format!("what answers is no `deferral` of this version: {error}"))?;
    Ok(sorted(told.into_iter().map(|told| {
        Tool::of((told.route, told.tool), &told.calls, [told.timed_out, told.departed, told.tasks_created])
    })))
}

fn of_log(path: &Path, printer: &mut Printer) -> Result<Vec<Tool>, String> {
    let read = match path.to_str() {
        Some("-") => Log::read(io::stdin().lock()),
        _ => File::open(path).and_then(|file| Log::read(BufReader::new(file))),
    };
    let log = read.map_err(|error| format!("{}: {error}", path.display()))?;
    if log.foreign > 0 {
        printer.note(format_args!("note: {} of {} lines are of no log of deferral", log.foreign, log.lines));
    }
    let tools = log.tools.into_iter().map(|(name, seen)| {
        Tool::of(name, &seen.calls.snapshot(), [seen.timed_out, seen.departed, seen.tasks])
    });
    Ok(sorted(tools))
}

/// The most called first.
fn sorted(tools: impl Iterator<Item = Tool>) -> Vec<Tool> {
    let mut tools: Vec<_> = tools.filter(|tool| tool.calls > 0 || tool.tasks > 0).collect();
    tools.sort_by(|one, other| {
        let name = |tool: &Tool| (tool.route.clone(), tool.tool.clone());
        other.calls.cmp(&one.calls).then_with(|| name(one).cmp(&name(other)))
    });
    tools
}

fn print(tools: &[Tool], printer: &mut Printer) {
    if tools.is_empty() {
        printer.line("no calls of tools have ended yet");
    }
    for (at, tool) in tools.iter().enumerate() {
        if at > 0 {
            printer.line("");
        }
        for line in tool.lines() {
            printer.line(line);
        }
    }
}

// === impl Tool ===

impl Tool {
    fn of(
        (route, tool): (String, String),
        calls: &LatencySnapshot,
        [timed_out, departed, tasks]: [u64; 3],
    ) -> Self {
        let within = |share| {
            let time = calls.quantile(share)?;
            Some(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        let threshold =
            |seconds| Threshold { seconds, share: share_over(calls, Duration::from_secs(seconds)) };
        Self {
            route,
            tool,
            calls: calls.count,
            p50_us: within(0.5),
            p90_us: within(0.9),
            p99_us: within(0.99),
            max_us: (calls.count > 0).then_some(calls.longest_us),
            timed_out,
            departed,
            tasks,
            thresholds: THRESHOLDS.into_iter().map(threshold).collect(),
            advice: advice(calls, timed_out, departed),
        }
    }

    fn lines(&self) -> Vec<String> {
        let time = |micros: Option<u64>| micros.map_or_else(|| "-".to_owned(), seconds_of);
        let Self { calls, timed_out, departed, tasks, .. } = self;
        let mut lines = vec![
            format!("{} {}", inline(&self.route), inline(&self.tool)),
            format!(
                "  {calls} calls: p50 {}, p90 {}, p99 {}, max {}; {timed_out} timed out, {departed} left or cancelled, {tasks} became tasks",
                time(self.p50_us),
                time(self.p90_us),
                time(self.p99_us),
                time(self.max_us),
            ),
        ];
        for Threshold { seconds, share } in &self.thresholds {
            let filled = (share * BAR as f64).ceil() as usize;
            let bar = "█".repeat(filled) + &"·".repeat(BAR.saturating_sub(filled));
            lines.push(format!("  over {seconds:>2} s  {bar} {:>6}", percent(*share)));
        }
        let setting = self.advice.setting.as_deref().unwrap_or("none");
        lines.push(format!("  advice: {setting} ({})", self.advice.reason));
        lines
    }
}
