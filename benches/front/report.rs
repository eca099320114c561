//! What came out, as a table and as JSON.

use super::Failure;
use serde::Serialize;
use std::{fs, path::Path};

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) costs: Vec<Cost>,
    pub(crate) instructions: Vec<Instructions>,
    pub(crate) memory: Vec<Memory>,
    notes: Vec<String>,
}

/// CPU time of a proxy for each call.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) proxy: &'static str,
    pub(crate) scenario: &'static str,
    /// The median of the rounds, kernel included.
    pub(crate) cpu_us: f64,
    /// How much of it was spent outside the kernel, from 0 to 1.
    pub(crate) user_share: f64,
    /// To the bare proxy in the same round: the median, and the rounds at either end.
    pub(crate) ratio: f64,
    pub(crate) ratio_least: f64,
    pub(crate) ratio_most: f64,
    /// To the older binary in the same round, the median.
    pub(crate) baseline: Option<f64>,
    /// To the same with the memory store in the same round, the median.
    pub(crate) memory: Option<f64>,
    pub(crate) goal: Option<f64>,
}

/// Instructions of a proxy for each call, outside the kernel.
#[derive(Debug, Serialize)]
pub(crate) struct Instructions {
    pub(crate) proxy: &'static str,
    pub(crate) scenario: &'static str,
    pub(crate) each: f64,
    pub(crate) ratio: f64,
    /// To the older binary.
    pub(crate) baseline: Option<f64>,
    /// To the same with the memory store.
    pub(crate) memory: Option<f64>,
}

/// Resident memory of a proxy for each thing it holds.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) proxy: &'static str,
    pub(crate) what: &'static str,
    pub(crate) count: usize,
    pub(crate) kib: f64,
    /// What the process had before, in MiB.
    pub(crate) before_mib: f64,
    /// To the older binary.
    pub(crate) baseline: Option<f64>,
    pub(crate) goal: Option<f64>,
}

// === impl Report ===

impl Report {
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn print(&self) {
        self.print_costs();
        self.print_instructions();
        self.print_memory();
        for note in &self.notes {
            println!("note: {note}");
        }
    }

    pub(crate) fn write(&self, file: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)?;
        Ok(fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))?)
    }

    fn print_costs(&self) {
        let head = ("CPU a call", "us", "user", "x bare", "rounds", "goal", "x old", "x memory");
        println!(
            "\n{:<60} {:>7} {:>6} {:>7} {:>12} {:>6} {:>6} {:>8}",
            head.0, head.1, head.2, head.3, head.4, head.5, head.6, head.7
        );
        for cost in &self.costs {
            println!(
                "{:<18} {:<41} {:>7.1} {:>5.0}% {:>7.2} {:>12} {:>6} {:>6} {:>8}",
                cost.proxy,
                cost.scenario,
                cost.cpu_us,
                cost.user_share * 100.0,
                cost.ratio,
                format!("{:.2}..{:.2}", cost.ratio_least, cost.ratio_most),
                shown(cost.goal),
                against(cost.baseline),
                against(cost.memory),
            );
        }
    }

    fn print_instructions(&self) {
        if self.instructions.is_empty() {
            return;
        }
        println!(
            "\n{:<60} {:>7} {:>14} {:>6} {:>8}",
            "instructions a call, kernel not counted", "", "x bare", "x old", "x memory"
        );
        for count in &self.instructions {
            println!(
                "{:<18} {:<41} {:>7.0} {:>14.2} {:>6} {:>8}",
                count.proxy,
                count.scenario,
                count.each,
                count.ratio,
                against(count.baseline),
                against(count.memory)
            );
        }
    }

    fn print_memory(&self) {
        if self.memory.is_empty() {
            return;
        }
        println!("\n{:<60} {:>7} {:>14} {:>19} {:>6}", "resident memory", "KiB", "of", "goal", "x old");
        for memory in &self.memory {
            println!(
                "{:<18} {:<41} {:>7.1} {:>14} {:>19} {:>6}",
                memory.proxy,
                memory.what,
                memory.kib,
                memory.count,
                shown(memory.goal),
                against(memory.baseline),
            );
        }
    }
}

fn shown(goal: Option<f64>) -> String {
    goal.map(|goal| format!("{goal:.1}")).unwrap_or_default()
}

/// With the digits that a comparison with ourselves needs.
fn against(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default()
}

/// The middle one, or 0 of none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
