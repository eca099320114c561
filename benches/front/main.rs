//! The whole stack in front of a server, beside a bare hyper proxy and nginx.
//!
//! `cargo bench --bench front -- --help`; what is measured and how is in `benches/README.md`. This
//! process starts the others (itself among them, for the upstream and the bare proxy), is their
//! client, and reads what they used from outside. Times are never judged: it fails only where an
//! answer is wrong.

mod bare;
mod cost;
mod instructions;
mod lines;
mod load;
mod memory;
mod process;
mod proxies;
mod report;
mod scenario;
mod upstream;

use clap::{Parser, Subcommand};
use process::Process;
use proxies::{Proxy, Yard};
use report::Report;
use std::{env, error::Error, net::SocketAddr, path::PathBuf, process::ExitCode};
use tokio::process::Command;

/// The proxy allocates with it, so what it is measured by must too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Why there is nothing to report.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Measures the proxy beside a bare hyper proxy and nginx.
#[derive(Debug, Parser)]
#[command(name = "front", args_conflicts_with_subcommands = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: Options,
}

/// The parts that run as processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// Be the legacy server.
    Upstream,
    /// Be the bare proxy in front of a server.
    Bare { upstream: SocketAddr },
    /// Be the server over standard input and output.
    Lines,
    /// Be the bare relay in front of that.
    Relay,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer rounds, calls and tasks: under half a minute.
    #[arg(long)]
    quick: bool,
    /// Also write the numbers to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Count instructions outside the kernel, too (needs valgrind; takes some minutes more).
    #[arg(long)]
    instructions: bool,
    /// Another binary than the one cargo has built for this bench.
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_deferral"))]
    deferral: PathBuf,
    /// An older binary to measure beside it, in turns: what is asked of it is what both know.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Connections with one call in flight each.
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: usize,
    /// Rounds, in each of which everything is measured once.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Calls of each kind in a round.
    #[arg(long, value_name = "N")]
    calls: Option<usize>,
    /// Tasks and calls to hold when memory is measured; fewer if descriptors run out.
    #[arg(long, value_name = "N")]
    held: Option<usize>,
    /// Leave out what has no such word in its name.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// What cargo says to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { part, options } = Cli::parse();
    let ended = match part {
        Some(Part::Upstream) => upstream::serve().await,
        Some(Part::Bare { upstream }) => bare::serve(upstream).await,
        Some(Part::Lines) => lines::serve().await,
        Some(Part::Relay) => lines::relay().await,
        None if options.bench => measure(&options).await,
        // `cargo test --benches` runs everything it finds; this takes minutes and asserts nothing.
        None => {
            println!("nothing is measured without `cargo bench`");
            Ok(())
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let server = Process::start(Command::new(env::current_exe()?).arg("upstream")).await?;
    let yard = Yard {
        upstream: server.address,
        folder: folder.path().to_owned(),
        deferral: options.deferral.clone(),
        baseline: options.baseline.clone(),
    };
    let mut report = Report::default();
    if proxies::nginx().is_none() {
        report.note("nginx is not installed and is left out");
    }
    cost::measure(&yard, options, &mut report).await?;
    if options.instructions {
        instructions::measure(&yard, options, &mut report).await?;
    }
    memory::measure(&yard, options, &mut report).await?;
    report.print();
    if let Some(file) = &options.json {
        report.write(file)?;
    }
    Ok(())
}

// === impl Options ===

impl Options {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 })
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.unwrap_or(if self.quick { 3_000 } else { 10_000 })
    }

    pub(crate) fn held(&self) -> usize {
        self.held.unwrap_or(if self.quick { 500 } else { 2_000 })
    }

    /// What is measured: the binary, and the one it is held against.
    pub(crate) fn ours(&self) -> impl Iterator<Item = Proxy> {
        [Proxy::Deferral].into_iter().chain(self.baseline.is_some().then_some(Proxy::Baseline))
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|word| name.contains(word))
    }
}

/// The proxies that are there to compare with.
pub(crate) fn peers() -> impl Iterator<Item = Proxy> {
    [Proxy::Bare, Proxy::Nginx].into_iter().filter(|peer| *peer != Proxy::Nginx || proxies::nginx().is_some())
}
