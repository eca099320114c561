//! Compares pieces of work on a machine that is not ours alone.
//!
//! The time of one piece says little where others run too, so nothing is judged by it. What is
//! reported is the thread's own CPU time, measured in turns (A B C A B C …) so that a disturbance
//! meets all alike, and the ratio of each case to the first one, taken within each turn.

use rustix::time::{ClockId, clock_gettime};
use std::{env, hint::black_box};

/// How long one turn of one case takes, in nanoseconds of CPU.
const TURN: u64 = 4_000_000;
const TURNS: usize = 15;

/// Pieces of work that are compared with each other; the first is what the others are measured by.
pub(crate) struct Group<'a> {
    name: String,
    cases: Vec<Case<'a>>,
}

struct Case<'a> {
    name: String,
    /// Bytes that one call goes through; 0 where that means nothing.
    bytes: usize,
    work: Box<dyn FnMut() + 'a>,
}

// === impl Group ===

impl<'a> Group<'a> {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), cases: Vec::new() }
    }

    /// Adds a case; what `work` returns is kept from being optimised away.
    pub(crate) fn case<T>(mut self, name: &str, bytes: usize, mut work: impl FnMut() -> T + 'a) -> Self {
        let work = Box::new(move || drop(black_box(work())));
        self.cases.push(Case { name: name.to_owned(), bytes, work });
        self
    }

    /// Runs all cases in turns and prints a line for each. Under `cargo test` each runs once.
    pub(crate) fn run(mut self) {
        if !measures() {
            self.cases.iter_mut().for_each(|case| (case.work)());
            return;
        }
        let calls: Vec<_> = self.cases.iter_mut().map(Case::calls_in_a_turn).collect();
        let turns: Vec<Vec<f64>> = (0..TURNS)
            .map(|_| self.cases.iter_mut().zip(&calls).map(|(case, &calls)| case.turn(calls)).collect())
            .collect();
        println!("{:<44} {:>12} {:>10} {:>8}", self.name, "ns a call", "MB/s", "ratio");
        for (at, case) in self.cases.iter().enumerate() {
            let time = median(turns.iter().map(|turn| turn[at]));
            let ratio = median(turns.iter().map(|turn| turn[at] / turn[0]));
            let rate = match case.bytes {
                0 => String::new(),
                bytes => format!("{:.0}", bytes as f64 / time * 1e3),
            };
            println!("  {:<42} {time:>12.0} {rate:>10} {ratio:>8.2}", case.name);
        }
        println!();
    }
}

// === impl Case ===

impl Case<'_> {
    fn calls_in_a_turn(&mut self) -> u64 {
        let mut calls = 1;
        loop {
            let took = self.turn(calls) * calls as f64;
            if took >= TURN as f64 / 4.0 {
                return (calls as f64 * TURN as f64 / took).ceil() as u64;
            }
            calls *= 4;
        }
    }

    /// Nanoseconds of CPU for one of `calls` calls.
    fn turn(&mut self, calls: u64) -> f64 {
        let before = cpu_ns();
        (0..calls).for_each(|_| (self.work)());
        (cpu_ns() - before) as f64 / calls as f64
    }
}

/// Whether this is `cargo bench`; `cargo test --benches` only wants to know that everything runs.
fn measures() -> bool {
    env::args().any(|argument| argument == "--bench")
}

/// What this thread has used.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
