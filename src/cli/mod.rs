//! The command line: one file for each command.
//!
//! Command names, flags and exit codes are used in scripts and do not change (`docs/commands.md`). The exit
//! codes are in `exit_codes`. All output goes through a [`Printer`].

mod ask;
mod call;
mod check;
mod choice_parser;
mod command_runtime;
mod completions;
mod demo;
mod exit_codes;
mod explain;
mod host_input;
mod man;
mod operator;
mod printer;
mod ready;
mod report;
mod serve;
mod store;
mod supervise;
mod tap;
mod tasks;
mod tools;

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use command_runtime::{runtime, worker_threads};
use exit_codes::EXIT_FAILURE;
use printer::Printer;
use std::{env, process::ExitCode};

/// Transparent reverse proxy for MCP servers: slow tool calls become tasks.
#[derive(Debug, Parser)]
#[command(
    name = "deferral",
    bin_name = "deferral",
    version,
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    after_help = serve::VARIABLES_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the proxy in front of one or more servers (the default command).
    #[command(after_help = serve::VARIABLES_HELP)]
    Serve(serve::Args),
    /// Call a tool, follow its task, and print the result.
    Call(call::Args),
    /// List the tools of a server.
    Tools(tools::Args),
    /// Run a slow server with the proxy in front of it, and show what happens.
    Demo(demo::Args),
    /// Check a configuration file and report every problem.
    Check(check::Args),
    /// Show latencies of each tool and recommend a threshold.
    Report(report::Args),
    /// Check readiness of a running proxy (exit code 0 or 1).
    Ready(ready::Args),
    /// List, show or cancel tasks of a running proxy.
    Tasks(tasks::Args),
    /// Show why a call became a task, which rule matched, and the history of the task.
    Explain(explain::Args),
    /// Show live traffic of a running proxy. Requires the admin token.
    Tap(tap::Args),
    /// Check or back up a store on disk.
    Store(store::Args),
    /// Print shell completions.
    Completions(completions::Args),
    /// Print a manual page, for `man -l -`.
    Man(man::Args),
    /// Supervisor of a server's process, started by the proxy.
    #[command(hide = true)]
    Supervise(supervise::Args),
}

// === impl Cli ===

impl Cli {
    /// Returns the given command, or `serve` by default.
    fn command(self) -> CliCommand {
        self.command.unwrap_or(CliCommand::Serve(self.serve))
    }
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let mut printer = Printer::standard();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command(),
        Err(error) => return report_usage_error(&error, printer).into(),
    };
    if let Err(error) = worker_threads() {
        printer.error(error);
        return EXIT_FAILURE.into();
    }
    let code = match command {
        // `serve` ignores output errors: it keeps serving even if its addresses cannot be printed.
        CliCommand::Serve(args) => return serve::run(args, &mut printer).into(),
        CliCommand::Supervise(args) => return supervise::run(&args, &mut printer).into(),
        CliCommand::Check(args) => check::run(&args, &mut printer),
        CliCommand::Store(args) => store::run(&args, &mut printer),
        CliCommand::Report(args) => runtime().block_on(report::run(args, &mut printer)),
        CliCommand::Tasks(args) => runtime().block_on(tasks::run(args, &mut printer)),
        CliCommand::Explain(args) => runtime().block_on(explain::run(args, &mut printer)),
        CliCommand::Tap(args) => runtime().block_on(tap::run(args, &mut printer)),
        CliCommand::Ready(args) => runtime().block_on(ready::run(args, &mut printer)),
        CliCommand::Completions(args) => {
            completions::run(&args, &<Cli as CommandFactory>::command(), &mut printer)
        }
        CliCommand::Man(args) => man::run(&args, <Cli as CommandFactory>::command(), &mut printer),
        CliCommand::Call(args) => runtime().block_on(call::run(args, &mut printer)),
        CliCommand::Tools(args) => runtime().block_on(tools::run(args, &mut printer)),
        CliCommand::Demo(args) => runtime().block_on(demo::run(args, &mut printer)),
    };
    printer.finish(code).into()
}

/// Prints help, the version, or a usage error. Returns the exit code.
fn report_usage_error(error: &clap::Error, mut printer: Printer) -> u8 {
    // A closed standard error is ignored.
    let _ = error.print();
    let words: Vec<_> = env::args().skip(1).collect();
    if let Some(server) = with_separator(error, &words) {
        printer.note(format_args!(
            "tip: to start a stdio server, write its command after `--`: deferral {server}"
        ));
    }
    u8::try_from(error.exit_code()).unwrap_or(EXIT_FAILURE)
}

/// Returns the command line with `--` inserted before the command of a server, if `--` was probably
/// forgotten.
fn with_separator(error: &clap::Error, words: &[String]) -> Option<String> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    let Some(ContextValue::String(unknown)) = error.get(kind) else { return None };
    let program = <Cli as CommandFactory>::command();
    // A misspelled command, such as `chek`, is not the command of a server.
    let is_typo_of = |name: &str| strsim::damerau_levenshtein(unknown, name) <= name.len().max(3) / 3;
    let is_typo = program.get_subcommands().any(|command| is_typo_of(command.get_name()));
    let position =
        words.iter().position(|word| word == unknown).filter(|_| !is_typo && !unknown.starts_with('-'))?;
    // Other subcommands take no server command.
    let is_other =
        |word: &String| program.find_subcommand(word).is_some_and(|found| found.get_name() != "serve");
    let is_serve = !words[..position].iter().any(is_other);
    let quoted = |word: &String| match word
        .chars()
        .all(|char| char.is_alphanumeric() || "-_./:=@,+%".contains(char))
    {
        true if !word.is_empty() => word.clone(),
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let mut line: Vec<_> = words.iter().map(quoted).collect();
    line.insert(position, "--".to_owned());
    is_serve.then(|| line.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_server_command_without_dashes_is_recognised() {
        let tip = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let error = Cli::try_parse_from([&["deferral".to_owned()], &words[..]].concat()).expect_err(line);
            with_separator(&error, &words)
        };
        for (line, meant) in [
            ("npx foo", "-- npx foo"),
            ("npx -y @scope/foo /a", "-- npx -y @scope/foo /a"),
            ("./server.py $HOME", "-- ./server.py '$HOME'"),
            ("serve npx foo", "serve -- npx foo"),
            ("--after 2s npx foo", "--after 2s -- npx foo"),
        ] {
            assert_eq!(tip(line).as_deref(), Some(meant), "{line}");
        }
        for other in ["chek", "tool", "--lisen 1", "call", "tasks npx", "ready npx"] {
            assert_eq!(tip(other), None, "{other}");
        }
    }

    #[test]
    fn serve_may_be_left_out() {
        for words in
            [&["deferral", "--upstream", "http://x/"][..], &["deferral", "serve", "--upstream", "http://x/"]]
        {
            let CliCommand::Serve(args) = Cli::parse_from(words).command() else { panic!("serve") };
            assert!(args.config().is_ok());
        }
        assert!(Cli::try_parse_from(["deferral", "--listen", "127.0.0.1:1", "check", "--schema"]).is_err());
    }
}
