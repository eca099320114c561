//! `deferral completions`: scripts for shell completion.

use super::{exit_codes::EXIT_SUCCESS, printer::Printer};
use clap::Command;
use clap_complete::Shell;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Shell to print completions for.
    shell: Shell,
}

/// Prints the script for the shell and returns the exit code.
pub fn run(args: &Args, program: &Command, printer: &mut Printer) -> u8 {
    // Hidden commands are left out, because the generators would include them.
    let visible = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut visible = Command::new(env!("CARGO_PKG_NAME"))
        .version(env!("CARGO_PKG_VERSION"))
        .args(program.get_arguments())
        .subcommands(visible.cloned());
    // The script is generated in memory, because the generator panics if the reader closes the pipe (`|
    // head`).
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible, env!("CARGO_PKG_NAME"), &mut script);
    printer.write_bytes(&script);
    EXIT_SUCCESS
}
