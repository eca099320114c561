//! `deferral man`: the manual pages, made of what `--help` says.

use super::USAGE;
use clap::Command;
use clap_mangen::Man;
use std::io::{self, Write};

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The command whose page it is, as in `tasks list`; left out, the program's own page, which names them.
    command: Vec<String>,
}

/// Prints the page to `out`, or to `err` that there is none. Gives the exit code.
///
/// # Errors
/// Where nothing can be printed.
pub fn run(args: &Args, mut program: Command, out: &mut impl Write, err: &mut impl Write) -> io::Result<u8> {
    // Names each command by the whole way to it.
    program.build();
    let mut page = &program;
    for word in &args.command {
        let found = page.find_subcommand(word).filter(|found| !found.is_hide_set());
        let Some(found) = found else {
            writeln!(err, "error: there is no command `{}`", args.command.join(" "))?;
            return Ok(USAGE);
        };
        page = found;
    }
    let name = env!("CARGO_PKG_NAME");
    Man::new(page.clone())
        .source(format!("{name} {}", env!("CARGO_PKG_VERSION")))
        .manual(format!("{name}'s manual"))
        .render(out)?;
    Ok(0)
}
