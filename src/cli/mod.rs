//! What people type: one file for each command.
//!
//! The words and flags here are scripted by people and do not change. A command that cannot be
//! understood, and a configuration that cannot be used, exit with [`USAGE`].

mod ask;
mod call;
mod check;
mod completions;
mod demo;
mod explain;
mod man;
mod operator;
mod plain;
mod ready;
mod report;
mod serve;
mod store;
mod supervise;
mod tasks;

use crate::runtime::{forget_alarms, has_rest, keep_alarms, or_never};
use clap::{CommandFactory, Parser, Subcommand};
use std::{env, io, num::NonZeroUsize, process::ExitCode, thread};
use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

/// The exit code for a command line or a configuration that cannot be used.
const USAGE: u8 = 2;

/// Puts slow MCP tools behind tasks, without changing the server.
#[derive(Debug, Parser)]
#[command(name = "deferral", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stand in front of one server or of many (the default command).
    Serve(serve::Args),
    /// Call a tool, follow its task, and print the result.
    Call(call::Args),
    /// Start a slow legacy server with the proxy in front of it, and show what happens.
    Demo(demo::Args),
    /// Check a configuration file, and say everything that is wrong with it.
    Check(check::Args),
    /// Show how long calls take, tool by tool, and which threshold is advised.
    Report(report::Args),
    /// Ask a proxy that runs whether it should be sent clients: for health checks.
    Ready(ready::Args),
    /// List, show or cancel the tasks of a proxy that runs.
    Tasks(tasks::Args),
    /// Tell how a task came to be, by which rule, and its whole life.
    Explain(explain::Args),
    /// Look after the folder in which a proxy keeps its tasks.
    Store(store::Args),
    /// Print what a shell needs to complete commands and flags.
    Completions(completions::Args),
    /// Print the manual page, of a command if one is named, for `man -l -`.
    Man(man::Args),
    /// What the proxy starts to watch over a server's process.
    #[command(hide = true)]
    Supervise(supervise::Args),
}

// === impl Cli ===

impl Cli {
    /// The command that was typed; `serve` where none was named.
    fn command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

/// Does what the command line of this process says.
pub fn run() -> ExitCode {
    let command = Cli::parse().command();
    if let Err(wrong) = threads() {
        eprintln!("error: {wrong}");
        return USAGE.into();
    }
    match command {
        Command::Serve(args) => serve::run(&args),
        // A reader that went away (`| head`) has seen enough.
        Command::Check(args) => {
            check::run(&args, &mut io::stdout().lock(), &mut io::stderr().lock()).unwrap_or_default().into()
        }
        Command::Store(args) => {
            store::run(&args, &mut io::stdout().lock(), &mut io::stderr().lock()).unwrap_or_default().into()
        }
        Command::Report(args) => runtime()
            .block_on(report::run(args, &mut io::stdout().lock(), &mut io::stderr().lock()))
            .unwrap_or_default()
            .into(),
        Command::Tasks(args) => runtime()
            .block_on(tasks::run(args, &mut io::stdout().lock(), &mut io::stderr().lock()))
            .unwrap_or_default()
            .into(),
        Command::Explain(args) => runtime()
            .block_on(explain::run(args, &mut io::stdout().lock(), &mut io::stderr().lock()))
            .unwrap_or_default()
            .into(),
        Command::Ready(args) => runtime()
            .block_on(ready::run(args, &mut io::stdout().lock(), &mut io::stderr().lock()))
            .unwrap_or_default()
            .into(),
        Command::Completions(args) => {
            completions::run(&args, &<Cli as CommandFactory>::command(), &mut io::stdout().lock())
                .unwrap_or_default()
                .into()
        }
        Command::Man(args) => man::run(
            &args,
            <Cli as CommandFactory>::command(),
            &mut io::stdout().lock(),
            &mut io::stderr().lock(),
        )
        .unwrap_or_default()
        .into(),
        Command::Supervise(args) => supervise::run(&args),
        Command::Call(args) => runtime().block_on(call::run(args)).into(),
        Command::Demo(args) => match runtime().block_on(demo::run(args, &mut io::stdout())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                USAGE.into()
            }
        },
    }
}

/// Says how many threads serve calls, and outweighs [`threads_for`]. As tokio calls it.
const THREADS: &str = "TOKIO_WORKER_THREADS";

/// The threads that serve calls.
///
/// # Errors
/// What is wrong with the number that was asked for, in words.
fn threads() -> Result<usize, String> {
    match env::var_os(THREADS).filter(|asked| !asked.is_empty()) {
        None => Ok(threads_for(thread::available_parallelism().map_or(1, NonZeroUsize::get))),
        Some(asked) => {
            let count = asked.to_str().and_then(|count| count.trim().parse::<NonZeroUsize>().ok());
            let wrong = || format!("`{THREADS}` is {asked:?}, and has to be a number of threads, at least 1");
            count.map(NonZeroUsize::get).ok_or_else(wrong)
        }
    }
}

/// One for two cores: who calls and who is called are often on the same machine, and a call that two threads have their
/// hands in costs a third more than where it stays on one (`benches/README.md`).
const fn threads_for(cores: usize) -> usize {
    if cores < 2 { 1 } else { cores / 2 }
}

/// The runtime everything runs on.
fn runtime() -> Runtime {
    runtime::Builder::new_multi_thread()
        .worker_threads(threads().unwrap_or(1))
        .enable_all()
        .on_thread_start(keep_alarms)
        .on_thread_park(has_rest)
        .on_thread_stop(forget_alarms)
        .build()
        .expect("the system gives threads to a process that starts")
}

/// Resolves at the first Ctrl-C or SIGTERM.
async fn interrupted() {
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let mut terminate = signal(SignalKind::terminate()).ok();
    // One that cannot be listened to never comes.
    tokio::select! {
        _ = or_never(interrupt.as_mut().map(Signal::recv)) => {}
        _ = or_never(terminate.as_mut().map(Signal::recv)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as CommandFactory>::command().debug_assert();
    }

    #[test]
    fn one_thread_serves_calls_for_two_cores() {
        for (cores, threads) in [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (64, 32)] {
            assert_eq!(threads_for(cores), threads, "{cores}");
        }
    }

    #[test]
    fn serve_may_be_left_out() {
        for words in
            [&["deferral", "--upstream", "http://x/"][..], &["deferral", "serve", "--upstream", "http://x/"]]
        {
            let Command::Serve(args) = Cli::parse_from(words).command() else { panic!("serve") };
            assert!(args.config().is_ok());
        }
        assert!(Cli::try_parse_from(["deferral", "--listen", "127.0.0.1:1", "check", "--schema"]).is_err());
    }
}
