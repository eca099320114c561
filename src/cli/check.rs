//! `deferral check`: validates a configuration file without starting anything.

use super::{
    exit_codes::{EXIT_FAILURE, EXIT_SUCCESS},
    printer::Printer,
};
use crate::config;
use clap::ValueHint;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    /// Configuration file to check, or `-` for standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present_any = ["config", "schema"])]
    file: Option<PathBuf>,
    /// Another way to name FILE, as for `deferral serve`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Print the JSON Schema of the configuration, for editors.
    #[arg(long, conflicts_with_all = ["file", "config"])]
    schema: bool,
}

/// Prints `FILE: ok (2 routes)` and warnings, or all problems. Returns the exit code, which warnings do not
/// affect.
pub fn run(args: &Args, printer: &mut Printer) -> u8 {
    let Some(path) = args.file.as_ref().or(args.config.as_ref()).filter(|_| !args.schema) else {
        printer.json(&config::schema());
        return EXIT_SUCCESS;
    };
    let (config, warnings) = match config::check(path) {
        Ok(checked) => checked,
        Err(problems) => {
            print_problems(&problems, printer);
            return EXIT_FAILURE;
        }
    };
    for line in warnings.iter().flat_map(config::Problems::lines) {
        printer.note_line(line);
    }
    let (count, noun) = (config.routes.len(), if config.routes.len() == 1 { "route" } else { "routes" });
    printer.line(format_args!("{}: ok ({count} {noun})", config::display_path(path).display()));
    EXIT_SUCCESS
}

/// Prints one line per problem, in the format of editors, and an error line with their number. Further lines
/// of a problem, such as a suggested file, are indented.
pub(super) fn print_problems(problems: &config::Problems, printer: &mut Printer) {
    let lines: Vec<_> = problems.lines().collect();
    for line in &lines {
        printer.note(line);
    }
    let noun = if lines.len() == 1 { "problem" } else { "problems" };
    printer.error(format_args!("{} {noun} in the configuration", lines.len()));
}
