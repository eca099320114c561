//! `deferral completions`: what a shell needs to complete commands and flags.

use super::{DONE, printer::Printer};
use clap::Command;
use clap_complete::Shell;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Shell to print completions for.
    shell: Shell,
}

/// Prints the script for the shell. Gives the exit code.
pub fn run(args: &Args, program: &Command, printer: &mut Printer) -> u8 {
    // The generators offer what is hidden, too, so it is left out here.
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown = Command::new(env!("CARGO_PKG_NAME"))
        .version(env!("CARGO_PKG_VERSION"))
        .args(program.get_arguments())
        .subcommands(shown.cloned());
    // Generated as a whole first: a reader that goes away (`| head`) would make the generator panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown, env!("CARGO_PKG_NAME"), &mut script);
    printer.generated(&script);
    DONE
}
