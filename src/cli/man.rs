//! `deferral man`: manual pages, generated from `--help`.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    printer::Printer,
};
use clap::Command;
use clap_mangen::Man;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Command to describe, as in `tasks list`. Without it, the page of the program, which lists all commands.
    command: Vec<String>,
}

/// Prints the page and returns the exit code.
pub fn run(args: &Args, mut program: Command, printer: &mut Printer) -> u8 {
    // `build` sets the full name of each subcommand.
    program.build();
    let mut page = &program;
    for word in &args.command {
        let found = page.find_subcommand(word).filter(|found| !found.is_hide_set());
        let Some(found) = found else {
            printer.error(format_args!("unknown command `{}`", args.command.join(" ")));
            return EXIT_FAILURE;
        };
        page = found;
    }
    let name = env!("CARGO_PKG_NAME");
    let man = Man::new(page.clone()).source(format!("{name} {}", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.manual(format!("{name}'s manual")).render(&mut text).expect("it is written to memory");
    printer.write_bytes(&text);
    EXIT_SUCCESS
}
